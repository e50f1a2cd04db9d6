"""What the numbers say, in sentences: they name the figures and their uncertainty, and conclude no more than these allow."""

from __future__ import annotations

import numpy as np

from ..core import Core
from ..evaluate import BALANCED
from ..interactions import OTHERS, POOLED
from .findings import RANDOM_SETS, TOLERANCE, Findings
from .layout import figure_of, in_words, listed, named, range_of, records, sparsity_name, with_unit

POINTS = f"{100 * TOLERANCE:g} points"
PLAIN_GROUPS = {"ID": "in domain", "OOD": "out of domain", "OOD, balanced": "out of domain with the companion splits"}


def summary(found: Findings) -> list[tuple[str, str]]:
    """The report in a dozen sentences, each with what it is about."""
    parts = {
        "Run": [run(found.core)],
        "Core": core_heads(found),
        "In domain": in_domain(found),
        "Out of domain": out_of_domain(found),
        "Effective size": sizes(found),
        "Attention": classes(found),
        "Ablated alone": single_ablations(found),
        "Ablated together": interactions(found),
        "The core alone": alone(found),
    }
    return [(name, " ".join(texts)) for name, texts in parts.items() if texts]


def warnings(found: Findings) -> list[tuple[str, str]]:
    """What speaks against taking the figures at their word, each with what it is about."""
    texts = [("Note", note[0].upper() + note[1:]) for note in found.notes if note]
    if len(found.core.subnetworks) == 1:
        only = "There is one subnetwork: its heads are no core, and nothing here has an interval over seeds."
        texts.append(("One subnetwork", only))
    unfaithful = [sparsity for sparsity, faithful in found.faithful.items() if not faithful]
    if unfaithful:
        texts.append(
            (
                f"Nothing faithful at {listed(map(sparsity_name, unfaithful))}",
                f"No subnetwork there is within {POINTS} of the full model in domain. What such subnetworks share "
                "need not be what the model uses.",
            )
        )
    for row in () if found.sizes is None else records(found.sizes):
        where = PLAIN_GROUPS.get(row["splits"])
        for flag in row["flags"] if where else ():
            if "floor" in flag:
                texts.append(
                    (
                        f"Floor effect {where}",
                        f"{flag[0].upper()}{flag[1:]}. Such an accuracy can be had without the model's work: "
                        "subnetworks that keep it, and ablations that do not lower it, say little there.",
                    )
                )
            elif "companion" in flag and row["splits"] == "OOD":
                texts.append(
                    (
                        "One-sided answers",
                        f"{flag[0].upper()}{flag[1:]}. Accuracy is kept there by giving one answer more often.",
                    )
                )
    return texts


def run(core: Core) -> str:
    """What was done."""
    units, origin = core.subnetworks[0].units, core.provenance
    n = {s: len(core.at(s)) for s in core.sparsities}
    if len(set(n.values())) == 1 and len(n) > 1:
        counts = f"{_seeds(next(iter(n.values())))} at each of {listed(map(sparsity_name, n))}"
    else:
        counts = listed(f"{_seeds(k)} at {sparsity_name(s)}" for s, k in n.items())
    kinds = {"head": f"{units.n_layers * units.n_heads} heads", "mlp": f"{units.n_layers} MLPs"}
    pruner = origin.get("pruner", {}).get("name", core.subnetworks[0].provenance.get("pruner", "?"))
    return (
        f"{_count(len(core.subnetworks), 'subnetwork')} of {origin.get('model', {}).get('model_id', '?')} on "
        f"{origin.get('task', '?')}, found by the pruner {pruner}: {counts} of {listed(kinds[k] for k in units.kinds)} "
        f"removed, with {core.subnetworks[0].replacement.mode} ablation."
    )


def core_heads(found: Findings) -> list[str]:
    """The core beside random selection."""
    overlap = found.overlap
    if overlap is None:
        return ["Heads were no units here, so no head was removed and there is no core of heads."]
    n = overlap.heads.n
    if n == 1:
        return [f"The only subnetwork keeps {len(overlap.heads)} of {overlap.n_heads} heads."]
    whole, strict = overlap.at_random, overlap.by_seed_within_layers
    if not overlap.heads:
        (most, share), *_ = overlap.heads.others.items()
        return [
            f"No head is in all {n} subnetworks; the most frequent, {most}, is in {sparsity_name(share)}. Random "
            f"subnetworks with as many heads would share {whole.expected:.2g} on average."
        ]
    if strict.p < 0.05:
        verdict = "All subnetworks share the model and its data, so this speaks against random selection only."
    else:
        verdict = "So random selection may leave as many."
    texts = [
        f"{len(overlap.heads)} of {overlap.n_heads} heads {_be(len(overlap.heads))} in all {n} subnetworks: "
        f"{listed(overlap.heads)}. Random subnetworks with as many heads would share {whole.expected:.2g} on average "
        f"({in_words(whole.p)}); with as many in each layer, and only seeds taken as independent, "
        f"{strict.expected:.2g} ({in_words(strict.p)}). {verdict}"
    ]
    for row in records(overlap.others):
        seeds = row["shared_seeds"]
        apart = f"; {_seeds(seeds)} in common, so not drawn apart" if seeds else ""
        texts.append(
            f"{row['stay']} of {'this' if len(overlap.heads) == 1 else 'these'} {len(overlap.heads)} {_be(row['stay'])} in "
            f"the core of {row['core']}, which has {_count(row['heads'], 'head')} ({row['expected']:.2g} expected of a "
            f"random core; {in_words(row['p'])}{apart})."
        )
    return texts


def in_domain(found: Findings) -> list[str]:
    """The full model and the subnetworks, on every in-domain split."""
    core, texts = found.core, []
    has_seeds = {len(core.at(s)) > 1 for s in core.sparsities}
    spread = "mean and 95 % interval over seeds" if True in has_seeds else "one seed, so without an interval"
    spread += ", none where there is one seed" if len(has_seeds) > 1 else ""
    for split in found.splits("id"):
        metric = found.main_metric(split)
        ours = listed(f"{_mean(found, split, metric, s)} at {sparsity_name(s)}" for s in core.sparsities)
        texts.append(
            f"On {split} the full model's {named(metric)} is {_full(found, split, metric)}; that of the "
            f"subnetworks is {ours} ({spread})."
        )
    return texts


def out_of_domain(found: Findings) -> list[str]:
    """Where the sparsest subnetworks fall most and least, and where their seeds differ most."""
    outside, inside = found.splits("ood"), found.splits("id")
    if not outside:
        return []
    sparsest = found.core.sparsities[-1]
    rows = {split: found.rows[split, found.main_metric(split)] for split in outside}
    falls = {split: row["full", "value"] - row[sparsest, "mean"] for split, row in rows.items()}
    most, least = max(falls, key=falls.__getitem__), min(falls, key=falls.__getitem__)
    text = f"At {sparsity_name(sparsest)} sparsity "
    text += "the fall is largest on " if falls[most] > 0 else "there is no fall out of domain; nearest to one is "
    text += _fall(found, most, sparsest)
    if most != least:
        text += ", and smallest on " if falls[least] > 0 or falls[most] <= 0 else ", and there is none on "
        text += _fall(found, least, sparsest)
    texts = [f"{text}."]
    n = len(found.core.at(sparsest))
    if n > 1 and inside:
        widest = max(rows, key=lambda split: rows[split][sparsest, "std"])
        differ = ", where they differ most" if rows[widest][sparsest, "std"] > 0 else ""
        texts.append(
            f"The {_seeds(n)} have {_ends(found, inside[0], sparsest)} on {inside[0]}, and "
            f"{_ends(found, widest, sparsest)} on {widest}{differ}."
        )
    return texts


def sizes(found: Findings) -> list[str]:
    """Effective size in and out of domain."""
    if found.sizes is None:
        return []
    rows = {row["splits"]: row for row in records(found.sizes)}
    texts = []
    for name in ("ID", "OOD, balanced" if "OOD, balanced" in rows else "OOD"):
        if name in rows:
            size, low, high = (rows[name][part] for part in ("size", "low", "high"))
            interval = "" if np.isnan(low) else f" [{100 * low:.0f}, {100 * high:.0f}]"
            kept = f"it keeps {100 * size:.0f} %{interval} of the units" if size < 1 else "there is none"
            texts.append(f"{PLAIN_GROUPS[name]} {kept}")
    if not texts:
        return []
    n, grid = int(found.sizes["n_seeds"].iloc[0]), found.core.sparsities
    grid = f"{'among sparsities' if len(grid) > 1 else 'at sparsity'} {listed(map(sparsity_name, grid))}"
    over = f"mean over {_seeds(n)}, of which one without any counts as 100 %" if n > 1 else "one seed"
    return [f"The smallest subnetwork within {POINTS} of the full model, {grid} ({over}): {'; '.join(texts)}."]


def classes(found: Findings) -> list[str]:
    """What core heads and the others attend to."""
    if found.classes is None:
        return []
    kinds = {f"L{row['layer']}.H{row['head']}": str(row["class"]) for row in records(found.classes)}
    ours = {str(head): kinds.pop(str(head)) for head in found.core.heads}
    others = [f"{sum(kind == name for kind in kinds.values())} {name}" for name in dict.fromkeys(kinds.values())]
    if not ours:
        return [f"The {len(kinds)} heads are: {listed(others)}."]
    mine = [
        f"{name} ({', '.join(head for head, kind in ours.items() if kind == name)})"
        for name in dict.fromkeys(ours.values())
    ]
    rest = f"; the other {len(kinds)}: {listed(others)}" if kinds else ""
    return [f"The core {'head is' if len(ours) == 1 else 'heads are'}: {listed(mine)}{rest}."]


def single_ablations(found: Findings) -> list[str]:
    """The core head and split with the largest drop."""
    if found.single is None:
        return []
    rows = [row for row in records(found.single) if not np.isnan(row["drop"]) and row["ablated"] != OTHERS]
    metric = rows[0]["metric"]
    ours = [row for row in rows if row["metric"] == metric]
    top = max(ours, key=lambda row: row["drop"])
    if top["drop"] <= 0:
        return [f"No core head takes from the {named(metric)} of any split when it is ablated alone."]
    text = (
        f"The core head that takes most from one split is {top['ablated']}: without it the {named(metric)} on "
        f"{top['split']} drops by {_estimate(metric, top['drop'], top['drop_low'], top['drop_high'])}"
    )
    for row in rows:
        if row["metric"] == "accuracy" and (row["ablated"], row["split"]) == (top["ablated"], top["split"]):
            text += f", accuracy by {_estimate('accuracy', row['drop'], row['drop_low'], row['drop_high'])} points"
    chosen = f"; the largest of {len(ours)} drops, so likely a little smaller on new examples" if len(ours) > 1 else ""
    return [f"{text} (n = {top['n']}{chosen})."]


def interactions(found: Findings) -> list[str]:
    """The set chosen as most super-additive, on the half of the examples that did not choose it."""
    if found.best is None:
        return []
    test = [row for row in records(found.best) if row["half"] == "test"]
    metric = test[0]["metric"]
    test = [row for row in test if row["metric"] == metric]
    (pooled,) = (row for row in test if row["split"] == POOLED)
    single = [row for row in test if row["split"] != POOLED]
    above, below = sum(row["low"] > 0 for row in single), sum(row["high"] < 0 for row in single)
    difference = _estimate(metric, pooled["value"], pooled["low"], pooled["high"])
    n = pooled["candidates"]
    which = f"most super-additive of {n} sets" if n > 1 else "only set"
    half = "the other half" if n > 1 else "half"
    pool = "the out-of-domain splits and their companions" if found.splits("ood", "companion") else "all splits"
    return [
        f"The {which} of core heads is {pooled['ablated']}{', chosen on half the examples' * (n > 1)}. On {half} of "
        f"the examples, pooled over {pool}, ablating them together lowers the {named(metric)} by "
        f"{figure_of(metric, pooled['joint'])}, each alone by {figure_of(metric, pooled['singles'])} in sum: a "
        f"difference of {difference}. Of {_count(len(single), 'split')} it is above 0 on {above}, below on {below}, and "
        f"undecided on {len(single) - above - below}."
    ]


def alone(found: Findings) -> list[str]:
    """The core's heads with all MLPs, without any other head."""
    if found.alone is None:
        return []
    rows = records(found.alone)
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in rows) else rows[0]["metric"]
    rows = [row for row in rows if row["metric"] == metric]
    ours = {row["split"]: row for row in rows if row["kept"] == "core"}
    texts = []
    for split in found.splits("id"):
        draws = [row["value"] for row in rows if row["kept"] == "random" and row["split"] == split]
        row = ours[split]
        value = f"{with_unit(metric, row['value'])} {range_of(metric, row['low'], row['high'])}"
        texts.append(
            f"{value} in domain on {split} (random sets of as many heads in each layer: "
            f"{_between(metric, min(draws), max(draws))}; {in_words(row['p'])})"
        )
    outside = [ours[split] for split in found.splits("ood")]
    if outside:
        values = [row["value"] for row in outside]
        better = sum(row["p"] < 0.05 for row in outside)
        texts.append(
            f"{_between(metric, min(values), max(values))} out of domain, above all {RANDOM_SETS} random sets on "
            f"{better} of {_count(len(outside), 'split')}"
        )
    return [f"With no heads but the core's, and all MLPs, {named(metric)} is {listed(texts)}."] if texts else []


def _full(found: Findings, split: str, metric: str) -> str:
    row = found.rows[split, metric]
    interval = range_of(metric, row["full", "low"], row["full", "high"])
    return f"{with_unit(metric, row['full', 'value'])} {interval}".strip()


def _mean(found: Findings, split: str, metric: str, sparsity: float) -> str:
    row = found.rows[split, metric]
    interval = range_of(metric, row[sparsity, "low"], row[sparsity, "high"])
    return f"{with_unit(metric, row[sparsity, 'mean'])} {interval}".strip()


def _fall(found: Findings, split: str, sparsity: float) -> str:
    metric = found.main_metric(split)
    text = f"{split}: {named(metric)} {_full(found, split, metric)} in the full model, "
    text += f"{_mean(found, split, metric, sparsity)} in the subnetworks"
    if row := found.rows.get((split, BALANCED)):
        before, after = (with_unit(BALANCED, row[key]) for key in (("full", "value"), (sparsity, "mean")))
        text += f" (balanced with its companion {before} and {after})"
    return text


def _ends(found: Findings, split: str, sparsity: float) -> str:
    metric = found.main_metric(split)
    row = found.rows[split, metric]
    return _between(metric, row[sparsity, "min"], row[sparsity, "max"])


def _between(metric: str, low: float, high: float) -> str:
    return with_unit(metric, high) if low == high else f"{figure_of(metric, low)} to {with_unit(metric, high)}"


def _estimate(metric: str, value: float, low: float, high: float) -> str:
    return f"{figure_of(metric, value)} {range_of(metric, low, high)}".strip()


def _be(n: int) -> str:
    return "is" if n == 1 else "are"


def _seeds(n: int) -> str:
    return _count(n, "seed")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
