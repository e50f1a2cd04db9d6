"""The sections of the page, from the findings; no arithmetic here."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pandas as pd

from ..ablation_runs import FULL
from ..evaluate import BALANCED
from ..heads import BROAD, FOCUS
from ..interactions import OTHERS
from ..viz import plots
from ..viz.html import escape
from ..viz.plots import svg
from . import words
from .findings import RANDOM_SETS, Findings
from .layout import (
    Cell,
    bullets,
    estimate,
    facts,
    figure_of,
    folded,
    in_words,
    named,
    number,
    p_cell,
    paragraph,
    percent,
    plot,
    range_of,
    records,
    sortable,
    sparsity_name,
)

_CLOSENESS = ("kl", "agreement", "squared_error_to_full")
_TESTS = {
    "p": "p", "q": "q", "p_by_seed": "p, by seed", "q_by_seed": "q, by seed", "p_within_layers": "p, in layers",
    "q_within_layers": "q, in layers",
}  # fmt: skip
_ROLES = {"id": "in domain", "ood": "out of domain", "companion": "companion", "extra": "extra"}
_MOST_IN_MAP = 16
"""Heads in a drawn interaction map; the table has them all."""


def sections(found: Findings) -> dict[tuple[str, str], str]:
    """(anchor, title) -> HTML, in order; sections with nothing to say are left out."""
    cautions = words.warnings(found)
    parts = {
        ("summary", "Summary"): bullets(words.summary(found)),
        ("warnings", "Warnings"): f'<div class="warnings">{bullets(cautions)}</div>\n'
        if cautions
        else paragraph("None of the checks (seeds, likeness of the masks, floors, faithfulness) had anything to say."),
        ("run", "What was run"): _run(found),
        ("core", "The core"): _core(found),
        ("accuracy", "In and out of domain"): _accuracy(found),
        ("size", "Effective size"): _size(found),
        ("attention", "What the heads attend to"): _classes(found),
        ("views", "Attention of the core heads"): _views(found),
        ("ablations", "Ablations"): _single(found),
        ("interactions", "Joint ablations"): _joint(found),
        ("alone", "The core alone"): _alone(found),
        ("provenance", "Provenance"): _provenance(found),
    }
    return {key: html for key, html in parts.items() if html}


def _run(found: Findings) -> str:
    core, origin = found.core, found.core.provenance
    model, pruner = origin.get("model", {}), origin.get("pruner", {})
    units = core.subnetworks[0].units
    full = core.evaluation[(core.evaluation["subnetwork"] == "full") & (core.evaluation["group"] == "all")]
    sizes = full.drop_duplicates("split").set_index("split")["n"]
    seeds = {s: ", ".join(str(one.seed) for one in core.at(s)) for s in core.sparsities}
    reached = {s: percent(min(one.sparsity for one in core.at(s))) for s in core.sparsities}
    return facts(
        {
            "Model": f"{model.get('model_id', '?')} ({model.get('architecture', '?')}, {units.n_layers} layers × "
            f"{units.n_heads} heads)",
            "Weights": f"sha256 {model.get('weight_hash', core.subnetworks[0].replacement.weight_hash)[:16]}…",
            "Task": "; ".join(filter(None, [str(origin.get("task", "?")), ", ".join(origin.get("labels", {}))])),
            "Pruner": str(pruner.get("name", "?")),
            "Units": f"{len(units)} ({' and '.join(units.kinds)}), {core.subnetworks[0].replacement.mode} ablation"
            + (f", means over {origin['positions'].replace('_', ' ')} positions" if "positions" in origin else ""),
            "Masks selected on": ", ".join(
                f"{n:,} examples of {name}" for name, n in origin.get("selected_from", {}).items()
            ),
            "Sparsities": "; ".join(
                f"{sparsity_name(s)} asked, {reached[s]} reached, seeds {seeds[s]}" for s in core.sparsities
            ),
            "Reported": ", ".join(f"{split} {n:,}" for split, n in sizes.items()),
            "Weights held as": str(origin.get("dtype", "")),
            "Run at": str(origin.get("time", "")),
            "Versions": ", ".join(f"{name} {version}" for name, version in origin.get("versions", {}).items()),
        }
    )


def _core(found: Findings) -> str:
    core = found.core
    html = plot(
        svg(plots.frequency_maps(core.frequencies())),
        "Share of subnetworks that keep each head and MLP; framed: heads that all subnetworks of the map keep.",
    )
    if found.overlap is not None and len(core.subnetworks) > 1:
        rows = [
            [row["null"], row["heads"], number(row["expected"]), p_cell(row["p"])]
            for row in records(found.overlap.table().reset_index())
        ]
        html += paragraph(
            "Heads in all subnetworks beside random ones, which keep as many heads (of the model, or in each layer): "
            "if all subnetworks are independent, or only seeds are. All share the model and its data, so p speaks "
            "against random selection only, not for what a head does."
        )
        html += sortable(["Random subnetworks keep", "Heads in all", "Expected", "p"], rows)
        if len(found.overlap.others):
            html += paragraph("The same heads under other ways to prune the model:") + _other_cores(found)
    if found.containment is not None and len(found.containment):
        rows = [
            [
                sparsity_name(row["sparser"]),
                sparsity_name(row["denser"]),
                Cell(
                    percent(row["containment"]),
                    row["containment"],
                    f"{percent(row['min'], 0)} to {percent(row['max'], 0)}",
                ),
                Cell(percent(row["expected"]), row["expected"]),
                p_cell(row["p"]),
                Cell(percent(row["expected_within_layers"]), row["expected_within_layers"]),
                p_cell(row["p_within_layers"]),
            ]
            for row in records(found.containment)
        ]
        html += "<h3>Do sparser subnetworks lie within denser ones?</h3>\n"
        html += paragraph(
            "Share of the heads of a sparser subnetwork that a denser one of another seed keeps too, beside random "
            "ones."
        )
        columns = ["Sparser", "Denser", "Contained (min to max)", "Expected", "p", "Expected in layers", "p in layers"]
        html += sortable(columns, rows)
    for (a, b), rho in found.rho.items():
        interval = range_of("rho", rho["low"], rho["high"]) or "(fewer than three seeds, so no interval)"
        html += paragraph(
            f"Spearman's rho between how often heads are kept at {sparsity_name(a)} and at {sparsity_name(b)}: "
            f"{rho['rho']:.2f} {interval}; {in_words(rho['p'])} against random selection of heads in the model, "
            f"{in_words(rho['p_within_layers'])} within layers."
        )
        html += folded(
            "The same as a picture", plot(svg(plots.frequency_scatter(core.frequencies(), a, b, dict(rho))), "")
        )
    if found.head_tests is not None:
        html += folded("Every head: how often it is kept, beside random selection", _head_tests(found))
    return html


def _other_cores(found: Findings) -> str:
    assert found.overlap is not None
    rows = [
        [
            row["core"],
            row["heads"],
            row["stay"],
            number(row["expected"]),
            p_cell(row["p"]),
            p_cell(row["p_within_layers"]),
            row["lost"],
            row["shared_seeds"],
        ]
        for row in records(found.overlap.others)
    ]
    columns = ["Other core", "Its heads", "Stay", "Expected", "p", "p in layers", "Not in it (kept)", "Seeds in common"]
    return sortable(columns, rows)


def _head_tests(found: Findings) -> str:
    assert found.head_tests is not None
    frequencies = {row["component"]: row for row in records(found.core.frequencies())}
    rows = [
        [
            Cell(row["component"], row["component"], strong=row["kept"] == row["n"]),
            row["kept"],
            *(
                Cell(percent(share, 0), share)
                for share in (frequencies[row["component"]][s] for s in found.core.sparsities)
            ),
            number(row["expected"], 1),
            *(p_cell(row[name]) for name in _TESTS),
        ]
        for row in records(found.head_tests)
    ]
    mlps = [f"{name} {row['all']:.0%}" for name, row in frequencies.items() if row["kind"] == "mlp"]
    columns = ["Head", f"Kept of {len(found.core.subnetworks)}", *map(sparsity_name, found.core.sparsities)]
    return (
        paragraph(
            "Against random subnetworks with as many heads; then with only seeds taken as independent; then also "
            "with as many heads in each layer. q is p corrected over heads by Benjamini and Hochberg.",
            True,
        )
        + sortable([*columns, "Expected", *_TESTS.values()], rows)
        + (paragraph(f"MLPs: {', '.join(mlps)}.") if mlps else "")
    )


def _accuracy(found: Findings) -> str:
    companions = found.splits("companion")
    main = [
        (split, metric)
        for split, metric in found.rows
        if metric not in _CLOSENESS and not (metric == BALANCED and split in companions)
    ]
    rest = [key for key in found.rows if key[1] in _CLOSENESS]
    metric = found.main_metric(found.reported[0])
    html = plot(
        svg(plots.accuracy_strip(found.core.evaluation, found.task, metric=metric)), "Every subnetwork, on every split."
    )
    html += paragraph(
        "The full model with its 95 % interval over examples; the subnetworks of a sparsity with their mean and its "
        "95 % interval over seeds, then lowest to highest and standard deviation (std). Accuracies are in percent. "
        "Balanced accuracy is over a split and its companion, the same construction with the other answer: a "
        "constant answer has 50 % there."
    )
    html += _results_table(found, main)
    if len(found.core.sparsities) > 1:
        judged = found.splits("id", "ood") or None
        pictures = plots.accuracy_by_sparsity(found.core.table(), found.task, judged, metric)
        html += plot(svg(pictures), "Accuracy against sparsity, with 95 % intervals over seeds.")
    if rest:
        html += folded(
            "How close to the full model: KL divergence (nats) and share of equal predictions",
            _results_table(found, rest, full=False),
        )
    if found.associations is not None and len(found.associations):
        html += folded("Do subnetworks with a head score better on a split?", _associations(found))
    return html


def _results_table(found: Findings, keys: list[tuple[str, str]], full: bool = True) -> str:
    roles = {split.name: _ROLES.get(split.role, split.role) for split in found.task.splits} if found.task else {}
    rows = []
    for split, metric in keys:
        row = found.rows[split, metric]
        line: list[Cell | str | float] = [split, *([roles[split]] if roles else []), metric.replace("_", " ")]
        if full:
            line.append(estimate(metric, row["full", "value"], row["full", "low"], row["full", "high"]))
        for s in found.core.sparsities:
            line.append(estimate(metric, row[s, "mean"], row[s, "low"], row[s, "high"]))
            ends = f"{figure_of(metric, row[s, 'min'])} to {figure_of(metric, row[s, 'max'])}"
            line.append(Cell(ends, row[s, "min"], f"std {figure_of(metric, row[s, 'std'])}"))
        rows.append(line)
    columns = ["Split", *(["Role"] if roles else []), "Metric", *(["Full model"] if full else [])]
    for s in found.core.sparsities:
        columns += [f"{sparsity_name(s)}: mean", f"{sparsity_name(s)}: range"]
    return sortable(columns, rows)


def _associations(found: Findings) -> str:
    table = found.associations
    assert table is not None
    few = int((table["q"] < 0.05).sum())
    rows = [
        [
            row["component"],
            row["split"],
            row["with_head"],
            row["without"],
            Cell(figure_of("accuracy", row["difference"], sign=True), row["difference"]),
            p_cell(row["p"]),
            p_cell(row["q"]),
        ]
        for row in records(table.sort_values("p"))
    ]
    return paragraph(
        "Heads outside the core, within sparsities: difference in accuracy (points) between subnetworks with and "
        f"without the head, with a permutation p and q over all {len(table)} rows. {few} have q < 0.05. An "
        "association is no effect."
    ) + sortable(["Head", "Split", "With", "Without", "Difference", "p", "q"], rows)


def _size(found: Findings) -> str:
    if found.sizes is None:
        return ""
    rows = [
        [
            row["splits"],
            _size_cell(row["size"], row["low"], row["high"]),
            Cell(percent(row["full"]), row["full"]),
            "; ".join(row["flags"]),
        ]
        for row in records(found.sizes)
    ]
    return paragraph(
        f"Share of units in the smallest subnetwork that is within {100 * words.TOLERANCE:g} points of the full "
        f"model: mean over {found.sizes['n_seeds'].iloc[0]} seeds, 95 % interval over seeds, on the grid of "
        f"sparsities of this run ({', '.join(map(sparsity_name, found.core.sparsities))}). OOD, "
        "balanced: with the companions, so that a constant answer earns nothing."
    ) + sortable(["Splits", "Effective size", "Full model", "Read with care"], rows)


def _size_cell(size: float, low: float, high: float) -> Cell:
    interval = "" if low != low or low == high else f"[{100 * low:.0f}, {100 * high:.0f}]"
    return Cell(percent(size, 0) if size < 1 else "none", size, interval)


def _classes(found: Findings) -> str:
    if found.classes is None or found.patterns is None:
        return ""
    core = {(head.layer, head.head) for head in found.core.heads}
    rows = []
    for row in records(found.classes):
        name, ours = f"L{row['layer']}.H{row['head']}", (row["layer"], row["head"]) in core
        excess = [
            number(float(row[key])) for key in ("repeated", "previous", "next", "sep", "first", "self", "entropy")
        ]
        rows.append([Cell(name, name, strong=ours), "core" if ours else "", row["class"], *excess])
    columns = ["Head", "Core", "Class", "Repeated", "Previous", "Next", "Separator", "First", "Self", "Entropy"]
    html = paragraph(
        "Attention to each kind of token less its chance level (uniform attention; for repeated tokens the higher of "
        f"that and of attention to non-repeated content). A class needs an excess of {FOCUS:g}; broad: an entropy "
        f"within {BROAD:g} nats of uniform attention's; mixed: neither."
    )
    if core:
        html += plot(
            svg(plots.pattern_scores(found.patterns, found.core.heads)), "Core heads beside all others and chance."
        )
        html += sortable(columns, [row for row in rows if row[1]])
        html += folded("Every measure of the core heads, with intervals", _patterns(found))
    return html + folded("All heads", sortable(columns, rows))


def _patterns(found: Findings) -> str:
    assert found.patterns is not None
    rows = [
        [
            f"L{row['layer']}.H{row['head']}",
            str(row["measure"]).replace("_", " "),
            Cell(number(row["value"]).text, row["value"], range_of("", row["low"], row["high"])),
            number(row["chance"]),
            row["n"],
        ]
        for row in records(found.patterns)
        if (row["layer"], row["head"]) in {(head.layer, head.head) for head in found.core.heads}
    ]
    return sortable(["Head", "Attention to", "Share", "Chance", "Examples"], rows)


def _views(found: Findings) -> str:
    if found.view is None:
        return ""
    n, shown = len(found.core.heads), " ".join(map(str, found.view.heads))
    if n > len(found.view.heads):
        shown = f"The first {len(found.view.heads)} of {n} core heads: {shown},"
    return (
        paragraph(
            f"{shown} in the full model, nothing ablated. A row is a token that attends, a column one that is "
            "attended to, from white (not at all) to blue (wholly). Tap a head to see it large."
        )
        + found.view.body()
    )


def _single(found: Findings) -> str:
    if found.single is None:
        return ""
    table = found.single
    metrics = list(dict.fromkeys(table["metric"]))
    together = None if found.joint is None else found.joint[found.joint["size"] == len(found.core.heads)]
    together = together if together is not None and len(found.core.heads) > 2 and len(together) else None
    html = paragraph(
        f"Each core head ablated alone on {found.counted} examples a split: how much the score drops "
        "against the full model, with a paired 95 % interval over examples. The mean over all other heads is the "
        "control; bold: the head takes more than all but 5 % of the other heads do (p < 0.05, uncorrected)."
    )
    html += plot(svg(plots.ablation_bars(table, together)), "Ablated alone, and all core heads together.")
    for metric in metrics:
        html += f"<h3>{escape(_title(metric))}</h3>\n" + _wide(table[table["metric"] == metric], metric)
    return html


def _wide(table: pd.DataFrame, metric: str) -> str:
    """Ablations down, splits across: the full model's score, then drops."""
    splits = list(dict.fromkeys(table["split"]))
    rows = []
    for name, part in table.groupby("ablated", sort=False):
        at = {row["split"]: row for row in records(part)}
        line: list[Cell | str | float] = ["full model: score" if name == FULL else str(name)]
        for split in splits:
            row = at[split]
            if name == FULL:
                line.append(estimate(metric, row["value"], row["low"], row["high"]))
            else:
                strong = name != OTHERS and row["p"] < 0.05
                line.append(estimate(metric, row["drop"], row["drop_low"], row["drop_high"], strong))
        rows.append(line)
    return sortable(["Ablated", *splits], rows)


def _joint(found: Findings) -> str:
    if found.joint is None:
        return ""
    metric = str(found.joint["metric"].iloc[0])
    html = paragraph(
        "Heads ablated together: the joint drop less the sum of the single drops. Above 0, they stand in for each "
        "other or work together (super-additive); below, they share what they do. Paired 95 % intervals over "
        "examples, of one set each: the highest of many is higher by chance."
    )
    if found.best is not None:
        html += "<h3>The most super-additive set</h3>\n" + paragraph(words.interactions(found)[0])
        html += _interaction_table(found.best[found.best["half"] == "test"])
    pairs = found.joint.drop_duplicates(["ablated", "split", "metric"])
    whole, pairs = pairs[pairs["size"] > 2], pairs[pairs["size"] == 2]
    if len(whole):
        html += "<h3>All core heads together</h3>\n" + _interaction_table(whole)
    if len(found.core.heads) <= _MOST_IN_MAP:
        html += plot(
            svg(plots.interaction_map(found.joint, found.splits("id", "ood") or None)), "Every pair of core heads."
        )
    for metric in dict.fromkeys(pairs["metric"]):
        html += folded(
            f"{_title(metric, 'every pair: interaction in')}", _pair_table(pairs[pairs["metric"] == metric], metric)
        )
    return html


def _interaction_table(table: pd.DataFrame) -> str:
    """By split: the primary score in sight, the others behind a line."""
    parts = {}
    for row in records(table):
        cells = [
            row["split"],
            estimate(row["metric"], row["value"], row["low"], row["high"], _is_off_zero(row)),
            Cell(figure_of(row["metric"], row["joint"]), row["joint"]),
            Cell(figure_of(row["metric"], row["singles"]), row["singles"]),
            row["n"],
        ]
        parts.setdefault(row["metric"], []).append(cells)
    columns = ["Split", "Difference", "Joint drop", "Sum of single drops", "Examples"]
    first, *rest = ((metric, sortable(columns, rows)) for metric, rows in parts.items())
    return first[1] + "".join(folded(f"The same in {named(metric)}", html) for metric, html in rest)


def _is_off_zero(row: Mapping[str, float]) -> bool:
    return row["low"] > 0 or row["high"] < 0


def _pair_table(table: pd.DataFrame, metric: str) -> str:
    splits = list(dict.fromkeys(table["split"]))
    rows = []
    for name, part in table.groupby("ablated", sort=False):
        at = {row["split"]: row for row in records(part)}
        values = [estimate(metric, at[s]["value"], at[s]["low"], at[s]["high"], _is_off_zero(at[s])) for s in splits]
        rows.append([str(name), *values])
    return sortable(["Ablated", *splits], rows)


def _alone(found: Findings) -> str:
    if found.alone is None:
        return ""
    html = paragraph(
        f"Only the core's {len(found.core.heads)} heads and all MLPs stay, beside {RANDOM_SETS} random sets with as "
        "many heads in each layer. p: share of sets (the core's counted) that score at least as high; near 1, random "
        "heads do better."
    )
    for metric in dict.fromkeys(found.alone["metric"]):
        rows = []
        for split, part in found.alone[found.alone["metric"] == metric].groupby("split", sort=False):
            kept = dict(list(part.groupby("kept")))
            full, ours, draws = kept["full"].iloc[0], kept["core"].iloc[0], kept["random"]["value"]
            middle = float(draws.median())
            rows.append(
                [
                    str(split),
                    estimate(metric, full["value"], full["low"], full["high"]),
                    estimate(metric, ours["value"], ours["low"], ours["high"]),
                    Cell(
                        figure_of(metric, middle),
                        middle,
                        f"{figure_of(metric, draws.min())} to {figure_of(metric, draws.max())}",
                    ),
                    p_cell(ours["p"]),
                ]
            )
        html += f"<h3>{escape(_title(metric, ''))}</h3>\n"
        html += sortable(["Split", "Full model", "Core alone", "Random sets: median (range)", "p"], rows)
    return html


def _title(metric: str, what: str = "drop in") -> str:
    unit = "points" if what else "%"
    names = {"margin": "gold margin (gold logit less logsumexp of the others)", "accuracy": f"accuracy ({unit})"}
    text = f"{what} {names.get(metric, metric.replace('_', ' '))}".strip()
    return text[0].upper() + text[1:]


def _provenance(found: Findings) -> str:
    seconds = ", ".join(f"{name} {time:.0f} s" for name, time in found.seconds.items())
    record = json.dumps(dict(found.core.provenance), indent=1, sort_keys=True, default=str)
    return paragraph(
        f"This page took: {seconds}. Every figure comes from the run's files and, where ablations and attention are "
        "shown, from its model.",
        True,
    ) + folded("Everything the run says of itself", f"<pre>{escape(record)}</pre>\n")
