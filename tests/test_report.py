"""The report: its numbers are the tables', its sentences are true of hand-made cases, and the page works offline."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch

from builders import hooked, random_task
from core_lens import Core, Subnetwork, ZeroActivations, find_core, load_model, model_info
from core_lens.cli import main
from core_lens.components import Component, ComponentSet
from core_lens.errors import CoreLensError, ModelError, SavedFileError, TaskError
from core_lens.report import write_report
from core_lens.report.findings import Findings, gather
from core_lens.report.layout import SORT, Cell, sortable
from core_lens.report.words import summary, warnings
from core_lens.tasks import Split, Task
from core_lens.viz.html import page
from tiny_models import LABELS, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::core_lens.CoreLensWarning")

HOSTILE = (
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "</details></style></title>",
    '" onfocus="document.title=1',
    "' onload='document.title=1",
    "<!--",
    "$a_b$",
    "&lt;b&gt;",
)
UNITS = ComponentSet(2, 4)


def made(kept: list[str], sparsity: float, seed: int, units: ComponentSet = UNITS) -> Subnetwork:
    origin = {"asked_sparsity": sparsity, "seed": seed, "pruner": "p"}
    mask = units.mask([Component.parse(name) for name in kept])
    return Subnetwork(units, mask, ZeroActivations("h"), provenance=origin)


def a_core(subnetworks, accuracy, full, names=("dev", "hard", "easy"), model="m", task="random", notes=()) -> Core:
    """Made by hand.

    Args:
        subnetworks: from `made`.
        accuracy: split -> accuracy of each.
        full: split -> accuracy of the full model.
    """
    rows = []
    for split in names:
        rows.append(
            ("full", 0.0, -1, split, "all", "accuracy", full[split], full[split] - 0.05, full[split] + 0.04, 100)
        )
        for s, value in zip(subnetworks, accuracy[split], strict=True):
            rows.append((s.name, s.asked_sparsity, s.seed, split, "all", "accuracy", value, 0.0, 1.0, 100))
            rows.append((s.name, s.asked_sparsity, s.seed, split, "all", "kl", 1 - value, 0.0, 1.0, 100))
    columns = ["subnetwork", "sparsity", "seed", "split", "group", "metric", "value", "low", "high", "n"]
    origin = {"task": task, "model": {"model_id": model, "architecture": "A"}}
    return Core(tuple(subnetworks), pd.DataFrame(rows, columns=columns), {}, origin, tuple(notes))


def four(kept=None) -> list[Subnetwork]:
    """Two seeds at each of two sparsities; L0.H0 is in all."""
    kept = kept or (["L0.H0", "L0.H1", "L1.H2", "L0.MLP"], ["L0.H0", "L1.H3", "L0.MLP"], ["L0.H0", "L1.H2"], ["L0.H0"])
    return [
        made(names, s, seed) for names, (s, seed) in zip(kept, [(0.4, 1), (0.4, 2), (0.8, 1), (0.8, 2)], strict=True)
    ]


ACCURACY = {"dev": (0.89, 0.88, 0.6, 0.7), "hard": (0.5, 0.4, 0.1, 0.3), "easy": (1.0, 1.0, 1.0, 0.9)}
FULL = {"dev": 0.9, "hard": 0.6, "easy": 0.95}


def found(core: Core, task: Task | None = None) -> Findings:
    """Without a model."""
    return gather(core, None, task, [], examples=1, max_examples=5, others=())


def told(sentences: list[tuple[str, str]], name: str) -> str:
    return dict(sentences).get(name, "").replace("\u00a0", " ")


class Parsed(HTMLParser):
    """Tags, attributes, text outside scripts, and the tables, whose cells are (text, value to sort by)."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.tables: list[list[list[tuple[str, str]]]] = []
        self.ids: list[str] = []
        self._cell: list[str] | None = None
        self._script = False
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        self._script = tag in ("script", "style")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ["", dict(attrs).get("data-value")]
        elif tag == "small" and self._cell:
            self._cell[0] += "|"

    def handle_endtag(self, tag):
        self._script = False
        if tag in ("td", "th"):
            self.tables[-1][-1].append(tuple(self._cell))
            self._cell = None

    def handle_data(self, data):
        if self._script:
            return
        self.text += data
        if self._cell is not None:
            self._cell[0] += data

    def table(self, *columns: str) -> list[dict[str, tuple[str, str]]]:
        """Rows of the first table that has these columns."""
        for head, *rows in self.tables:
            names = [name.replace("\u00a0", " ") for name, _ in head]
            if set(columns) <= set(names):
                return [dict(zip(names, row)) for row in rows]
        raise AssertionError(f"no table with {columns}")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run, and the page with everything on it."""
    model, task = hooked("bert"), random_task()
    core = find_core(model, task, sparsities=[0.3, 0.5], seeds=[1, 2], pruner="one-shot-importance", max_examples=40)
    folder = tmp_path_factory.mktemp("report")
    core.save(folder / "run")
    path = write_report(core, folder / "report.html", model, task, max_examples=8)
    return core, path, model, task


# --- numbers


def test_the_page_has_the_figures_of_the_tables(tmp_path):
    core = a_core(four(), ACCURACY, FULL)
    parsed = Parsed(write_report(core, tmp_path / "report.html").read_text(encoding="utf-8"))
    rows = {row["Split"][0]: row for row in parsed.table("Split", "Full model", "40 %: mean")}
    for split in FULL:
        expected = core.table().loc[(split, "accuracy")]
        assert (
            rows[split]["Full model"][0]
            == f"{100 * FULL[split]:.1f}|[{100 * FULL[split] - 5:.1f}, {100 * FULL[split] + 4:.1f}]"
        )
        for s, name in ((0.4, "40 %"), (0.8, "80 %")):
            mean, ends = rows[split][f"{name}: mean"], rows[split][f"{name}: range"]
            assert float(mean[1]) == pytest.approx(expected[s, "mean"])
            assert mean[0].split("|")[0] == f"{100 * expected[s, 'mean']:.1f}"
            assert ends[0] == (
                f"{100 * expected[s, 'min']:.1f} to {100 * expected[s, 'max']:.1f}|std {100 * expected[s, 'std']:.1f}"
            )
    # By hand: .89 and .88 have mean .885; the t interval of two values, half width 12.706 * .005, is cut at 1 only.
    assert rows["dev"]["40 %: mean"][0] == "88.5|[82.1, 94.9]"
    closeness = {row["Split"][0]: row for row in parsed.tables and parsed.table("Split", "80 %: mean", "80 %: range")}
    assert set(closeness) == set(FULL)

    overlap = core.overlap()
    for row, null in zip(parsed.table("Heads in all", "Expected", "p"), overlap.table().itertuples(), strict=True):
        assert int(row["Heads in all"][1]) == null.heads == 1
        assert float(row["Expected"][1]) == pytest.approx(null.expected)
        assert float(row["p"][1]) == pytest.approx(null.p)
    heads = {row["Head"][0]: row for row in parsed.table("Head", "Kept of 4")}
    tests = core.head_tests().set_index("component")
    assert len(heads) == 8 and heads["L1.H2"]["Kept of 4"][1] == "2" and heads["L1.H2"]["40 %"][0] == "50\u00a0%"
    assert float(heads["L0.H0"]["p"][1]) == pytest.approx(tests.loc["L0.H0", "p"])
    assert float(heads["L0.H0"]["q, in layers"][1]) == pytest.approx(tests.loc["L0.H0", "q_within_layers"])


def test_with_the_model_the_page_has_everything(real):
    core, path, model, _ = real
    parsed = Parsed(path.read_text(encoding="utf-8"))
    wanted = ["summary", "warnings", "run", "core", "accuracy", "size", "attention", "views", "ablations", "alone"]
    assert [name for name in parsed.ids if name in wanted] == wanted
    links = [value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")]
    assert {link[1:] for link in links} <= set(parsed.ids) and set(wanted) <= {link[1:] for link in links}
    assert core.heads and len(parsed.tables) > 12
    assert model_info(model).weight_hash[:16] in parsed.text
    # A section's ablations are of the run's own splits and labels: the full model is the run's.
    full = {row["Split"][0]: row["Full model"][1] for row in parsed.table("Split", "Full model", "30 %: mean")}
    assert set(full) == {"dev", "hard", "easy"}
    kept = parsed.table("Split", "Core alone", "p")
    assert {row["Split"][0] for row in kept} == set(full)
    assert all(1 / 21 - 1e-9 <= float(row["p"][1]) <= 1 for row in kept)


# --- sentences


def test_the_summary_of_a_made_run():
    texts = summary(found(a_core(four(), ACCURACY, FULL), random_task()))
    assert told(texts, "Run") == (
        "4 subnetworks of m on random, found by the pruner p: 2 seeds at each of 40 % and 80 % of 8 heads and 2 MLPs "
        "removed, with zero ablation."
    )
    assert told(texts, "Core").startswith("1 of 8 heads is in all 4 subnetworks: L0.H0.")
    # Independent draws of 3, 2, 2 and 1 of 8 heads share 8 * 3/8 * 2/8 * 2/8 * 1/8 of them on average.
    assert "would share 0.023 on average (p = 0.023)" in told(texts, "Core")
    assert told(texts, "In domain") == (
        "On dev the full model's accuracy is 90.0 % [85.0, 94.0]; that of the subnetworks is 88.5 % [82.1, 94.9] at "
        "40 % and 65.0 % [1.5, 100.0] at 80 % (mean and 95 % interval over seeds)."
    )
    assert told(texts, "Out of domain") == (
        "At 80 % sparsity the fall is largest on hard: accuracy 60.0 % [55.0, 64.0] in the full model, 20.0 % [0.0, "
        "100.0] in the subnetworks. The 2 seeds have 60.0 to 70.0 % on dev, and 10.0 to 30.0 % on hard, where they "
        "differ most."
    )
    # In domain both seeds pass at 40 %, so 60 % of the units. Out of domain with the companion (.775 in full) one does (.75),
    # one does not (.7) and counts as 100 %; Student's t of two is wider than shares can be.
    assert told(texts, "Effective size") == (
        "The smallest subnetwork within 3 points of the full model, among sparsities 40 % and 80 % (mean over 2 "
        "seeds, of which one without any counts as 100 %): in domain it keeps 60 % [60, 60] of the units; out of domain "
        "with the companion splits it keeps 80 % [0, 100] of the units."
    )


def test_a_core_that_random_selection_may_leave_is_said_to_be_one():
    kept = [
        [f"L{i}.H{j}" for i in range(2) for j in range(4) if (i, j) != gone]
        for gone in [(0, 1), (0, 2), (1, 1), (1, 2)]
    ]
    text = told(summary(found(a_core(four(kept), ACCURACY, FULL))), "Core")
    assert text.startswith("4 of 8 heads are in all") and "random selection may leave as many" in text
    assert "speaks against" not in text


def test_no_core_head():
    kept = (["L0.H0"], ["L0.H1"], ["L0.H0"], ["L1.H1"])
    findings = found(a_core(four(kept), ACCURACY, FULL))
    assert told(summary(findings), "Core").startswith(
        "No head is in all 4 subnetworks; the most frequent, L0.H0, is in 50 %."
    )
    assert not told(summary(findings), "Ablated alone")


def test_falls_and_rises_are_told_apart():
    task = random_task()
    outside = tuple(replace(s, role="ood", companion=None) if s.name == "easy" else s for s in task.splits)
    outside = tuple(replace(s, companion=None) for s in outside)

    def text(hard, easy) -> str:
        accuracy = ACCURACY | {"hard": (0.5, 0.5, *hard), "easy": (0.5, 0.5, *easy)}
        return told(summary(found(a_core(four(), accuracy, FULL), replace(task, splits=outside))), "Out of domain")

    # In full .6 on hard, .95 on easy.
    assert text((0.1, 0.3), (0.9, 0.8)).startswith("At 80 % sparsity the fall is largest on hard: accuracy 60.0 %")
    assert ", and smallest on easy: accuracy 95.0 %" in text((0.1, 0.3), (0.9, 0.8))
    rising = text((0.7, 0.7), (0.9, 0.9))
    assert "the fall is largest on easy: accuracy" in rising and ", and there is none on hard: accuracy" in rising
    none = text((0.9, 0.9), (1.0, 1.0))
    assert none.startswith("At 80 % sparsity there is no fall out of domain; nearest to one is easy: accuracy 95.0 %")
    assert ", and smallest on hard: accuracy 60.0 %" in none
    assert none.endswith("The 2 seeds have 60.0 to 70.0 % on dev, and 90.0 % on hard.")


def test_a_sparsity_with_one_seed_beside_one_with_two():
    three = {split: values[:3] for split, values in ACCURACY.items()}
    findings = found(a_core(four()[:3], three, FULL), random_task())
    assert "2 seeds at 40 % and 1 seed at 80 % of 8 heads" in told(summary(findings), "Run")
    assert told(summary(findings), "In domain").endswith(
        "88.5 % [82.1, 94.9] at 40 % and 60.0 % at 80 % (mean and 95 % interval over seeds, none where there is one seed)."
    )


def with_tables(heads: list[str], splits: tuple[str, ...] = ("dev", "hard", "easy")) -> Findings:
    """Of a run whose core is `heads`, with made ablations: every head drops by .5, together they drop by 2."""
    kept = [[*heads, "L0.MLP"], [*heads], [*heads, "L0.MLP"], [*heads]]
    made_ = found(a_core(four(kept), ACCURACY, FULL), random_task())
    single = [
        (head, split, metric, 0.5 + 0.1 * (split == "hard"), 0.3, 0.7, 40, 0.1)
        for metric in ("margin", "accuracy")
        for head in [*heads, "mean of others"]
        for split in splits
    ]
    columns = ["ablated", "split", "metric", "drop", "drop_low", "drop_high", "n", "p"]
    made_.single = pd.DataFrame(single, columns=columns)
    if len(heads) > 1:
        rows = [
            (
                " & ".join(heads),
                2,
                half,
                split,
                "margin",
                2.0,
                1.0,
                1.0,
                low,
                high,
                20,
                len(heads) * (len(heads) - 1) // 2,
            )
            for half, low, high in (("test", 0.2, 1.8), ("selection", np.nan, np.nan))
            for split in ("pooled", *splits)
        ]
        columns = [
            "ablated",
            "size",
            "half",
            "split",
            "metric",
            "joint",
            "singles",
            "value",
            "low",
            "high",
            "n",
            "candidates",
        ]
        made_.best = pd.DataFrame(rows, columns=columns)
    alone = [("core", split, "accuracy", 0.75, 0.5, 0.9, 1 / 21) for split in splits]
    alone += [("random", split, "accuracy", value, 0, 1, np.nan) for split in splits for value in (0.25, 0.5)]
    made_.alone = pd.DataFrame(alone, columns=["kept", "split", "metric", "value", "low", "high", "p"])
    names = [f"L{i}.H{j}" for i in range(2) for j in range(4)]
    table = {"layer": [0] * 4 + [1] * 4, "head": [0, 1, 2, 3] * 2}
    made_.classes = pd.DataFrame(table).assign(**{"class": ["self" if name in heads else "broad" for name in names]})
    return made_


def test_one_core_head_is_told_of_in_the_singular():
    texts = summary(with_tables(["L1.H2"]))
    assert told(texts, "Core").startswith("1 of 8 heads is in all 4 subnetworks: L1.H2. ")
    assert told(texts, "Attention") == "The core head is: self (L1.H2); the other 7: 7 broad."
    assert told(texts, "Ablated alone") == (
        "The core head that takes most from one split is L1.H2: without it the gold margin (in logits) on hard drops by "
        "0.60 [0.30, 0.70], accuracy by 60.0 [30.0, 70.0] points (n = 40; the largest of 3 drops, so likely a little "
        "smaller on new examples)."
    )
    findings = with_tables(["L1.H2"])
    assert findings.single is not None
    findings.single["drop"] *= -1
    assert told(summary(findings), "Ablated alone") == (
        "No core head takes from the gold margin (in logits) of any split when it is ablated alone."
    )
    assert not told(texts, "Ablated together")
    assert told(texts, "The core alone") == (
        "With no heads but the core's, and all MLPs, accuracy is 75.0 % [50.0, 90.0] in domain on dev (random sets of as "
        "many heads in each layer: 25.0 to 50.0 %; p = 0.048) and 75.0 % out of domain, above all 20 random sets on 1 of "
        "1 split."
    )


def test_two_core_heads_are_one_set():
    texts = summary(with_tables(["L0.H3", "L1.H2"]))
    assert told(texts, "Core").startswith("2 of 8 heads are in all 4 subnetworks: L0.H3 and L1.H2. ")
    assert told(texts, "Attention") == "The core heads are: self (L0.H3, L1.H2); the other 6: 6 broad."
    assert told(texts, "Ablated together") == (
        "The only set of core heads is L0.H3 & L1.H2. On half of the examples, pooled over the out-of-domain "
        "splits and their companions, ablating them together lowers the gold margin (in logits) by 2.00, each alone by "
        "1.00 in sum: a difference of 1.00 [0.20, 1.80]. Of 3 splits it is above 0 on 3, below on 0, and undecided on 0."
    )


def test_three_core_heads_are_many_sets():
    findings = with_tables(["L0.H1", "L0.H3", "L1.H2"])
    assert findings.best is not None
    findings.best = findings.best[findings.best["split"].isin(["pooled", "dev"])]
    text = told(summary(findings), "Ablated together")
    assert text.startswith("The most super-additive of 3 sets of core heads is L0.H1 & L0.H3 & L1.H2, chosen on half")
    assert text.endswith("Of 1 split it is above 0 on 1, below on 0, and undecided on 0.")


def test_other_cores_are_told_of(real):
    core = a_core(four(), ACCURACY, FULL)
    same = gather(core, None, None, [], examples=1, max_examples=5, others={"X": core})
    assert "1 of this 1 is in the core of X, which has 1 head (" in told(summary(same), "Core")
    assert "2 seeds in common, so not drawn apart" in told(summary(same), "Core")


def test_one_seed_is_said_to_be_one():
    one = {split: values[:1] for split, values in ACCURACY.items()}
    findings = found(a_core([made(["L0.H0", "L1.H1"], 0.8, 7)], one, FULL), random_task())
    assert told(summary(findings), "Core") == "The only subnetwork keeps 2 of 8 heads."
    assert "88.5" not in told(summary(findings), "In domain")
    assert told(summary(findings), "In domain").endswith("89.0 % at 80 % (one seed, so without an interval).")
    assert "nan" not in str(summary(findings))
    cautions = warnings(findings)
    assert "One subnetwork" in dict(cautions)
    assert sum("with fewer than 5 the intersection is loose" in text for _, text in cautions) == 1


def test_the_runs_own_notes_are_not_said_twice():
    note = "2 seeds at sparsity 0.4: with fewer than 5 the intersection is loose; heads may be in the core by chance."
    texts = [text for _, text in warnings(found(a_core(four(), ACCURACY, FULL, notes=(note, "Another."))))]
    assert texts.count(note) == 1 and "Another." in texts and len(texts) == 3  # the same of sparsity 0.8


def test_sparsities_without_a_faithful_subnetwork():
    def cautions(dev):
        return warnings(found(a_core(four(), ACCURACY | {"dev": dev}, FULL), random_task()))

    (name,) = (name for name, _ in cautions(ACCURACY["dev"]) if "faithful" in name)
    assert name == "Nothing faithful at 80\u00a0%"  # .89 is within 3 points of .9, .7 is not
    assert not [name for name, _ in cautions((0.2, 0.88, 0.2, 0.88)) if "faithful" in name]  # one seed is enough
    (name,) = (name for name, _ in cautions((0.5, 0.5, 0.5, 0.5)) if "faithful" in name)
    assert name == "Nothing faithful at 40\u00a0% and 80\u00a0%"


def test_a_model_at_a_floor(tmp_path):
    """It always says entailment: 100 % on the companion, nothing on the other half, whatever is ablated."""
    hf_model = tiny_model("bert")
    with torch.no_grad():
        hf_model.classifier.weight.zero_()
        hf_model.classifier.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    model = load_model(hf_model, tokenizer=tiny_tokenizer("bert"))
    task = random_task()
    core = find_core(model, task, sparsities=[0.5], seeds=[1, 2], pruner="random", max_examples=40)
    findings = gather(core, model, task, [], examples=1, max_examples=10, others=())
    names = [name for name, _ in warnings(findings)]
    assert "Floor effect in domain" in names and "Floor effect out of domain with the companion splits" in names
    floors = [text for name, text in warnings(findings) if name == "Floor effect in domain"]
    assert "everything ablated" in floors[0] and "always entailment" in floors[0]


def test_mlps_only_have_no_core_of_heads(tmp_path):
    units = ComponentSet(2, 4, ("mlp",))
    subnetworks = [made(["L0.MLP"], 0.5, seed, units) for seed in (1, 2)]
    accuracy = {split: values[:2] for split, values in ACCURACY.items()}
    core = a_core(subnetworks, accuracy, FULL)
    assert told(summary(found(core)), "Core").startswith("Heads were no units here")
    assert "Heads were no units" in write_report(core, tmp_path / "r.html").read_text(encoding="utf-8")


# --- the page


def test_what_comes_from_outside_stays_text(tmp_path):
    def tags(word: str) -> Parsed:
        names = (f"dev{word}", f"hard{word}", f"easy{word}")
        accuracy, full = (dict(zip(names, d.values())) for d in (ACCURACY, FULL))
        core = a_core(four(), accuracy, full, names, f"model{word}", f"task{word}", (f"note {word}",))
        core = replace(core, provenance={**core.provenance, "time": word, "selected_from": {word: 3}})
        return Parsed(write_report(core, tmp_path / "report.html").read_text(encoding="utf-8"))

    harmless = tags("x")
    outline = [tag for tag in harmless.tags if tag not in ("path", "g", "use", "defs", "text", "tspan")]
    for word in ("".join(HOSTILE[:4]), "".join(HOSTILE[4:])):
        parsed = tags(word)
        assert [tag for tag in parsed.tags if tag not in ("path", "g", "use", "defs", "text", "tspan")] == outline
        assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
        assert parsed.text.count(f"model{word}") >= 3 and f"Note {word}" in parsed.text
        assert {row["Split"][0] for row in parsed.table("Split", "Full model")} == {f"{s}{word}" for s in FULL}


def test_the_page_is_small_and_loads_nothing(real):
    path = real[1]
    document = path.read_text(encoding="utf-8")
    assert 1_000_000 < path.stat().st_size < 10_000_000
    parsed = Parsed(document)
    assert not {"link", "img", "iframe", "object", "embed", "base", "video", "audio", "form"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert name not in ("src", "srcset", "action")
        assert name != "href" or value[0] == "#" or tag == "image"
        assert tag != "image" or name != "href" or value.startswith("data:image/png;base64,")
        assert name == "xmlns" or "://" not in value
        assert "url(" not in value or "url(#" in value
    assert "@import" not in document and "default-src 'none'" in document
    assert len(parsed.ids) == len(set(parsed.ids))


def test_tables_sort_in_the_browser(browser):
    rows = [
        ["b", Cell("10", 10.0), Cell("\u2212", -2.0)],
        ["a", Cell("9", 9.0), Cell("", float("nan"))],
        ["c10", Cell("x", 11.0), 3],
        ["c9", 0, 1],
    ]
    click = """
      const head = (i) => document.querySelectorAll("th button")[i];
      const order = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent).join(" ");
      const seen = {};
      for (const [name, i] of [["text", 0], ["textDown", 0], ["up", 1], ["down", 1], ["nan", 2], ["nanDown", 2]]) {
        head(i).click(); seen[name] = order();
      }
      seen.aria = [...document.querySelectorAll("th")].map((th) => th.getAttribute("aria-sort"));
      document.body.dataset.seen = JSON.stringify(seen);
    """
    shown = browser(page("t", sortable(["Name", "Number", "Gap"], rows), [SORT, click]))
    seen = json.loads(re.search('data-seen="(.*?)"', shown)[1].replace("&quot;", '"'))
    assert seen == {
        "text": "a b c9 c10",
        "textDown": "c10 c9 b a",
        "up": "c9 a b c10",
        "down": "c10 b a c9",
        "nan": "b c9 c10 a",
        "nanDown": "c10 c9 b a",
        "aria": [None, None, "descending"],
    }


def test_the_page_fits_a_phone_and_draws_the_heads(real, browser):
    document = real[1].read_text(encoding="utf-8")
    probe = """
      setTimeout(() => {
        const wide = [...document.querySelectorAll("body *")].filter((e) =>
          e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .plot, .circuits, pre, nav"));
        document.body.dataset.width = JSON.stringify([innerWidth, document.documentElement.scrollWidth, wide.length,
          document.querySelectorAll("canvas").length]);
      }, 1500);
    """
    document = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", document)
    shown = browser(document.replace("</body>", f"<script>{probe}</script></body>"), 500)
    inner, scroll, wide, canvases = json.loads(re.search('data-width="(.*?)"', shown)[1])
    assert inner <= 500 and scroll <= inner and wide == 0 and canvases > 0


# --- without a model, and mistakes


def test_a_loaded_run_without_its_model_says_what_is_missing(real, tmp_path, capsys):
    core, path, *_ = real
    out = tmp_path / "new" / "report.html"
    assert main(["report", str(path.parent / "run"), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    parsed = Parsed(out.read_text(encoding="utf-8"))
    assert "ablations" not in parsed.ids and "views" not in parsed.ids and "accuracy" in parsed.ids
    assert "The model 'BertForSequenceClassification' was not found" in parsed.text and "--model" in parsed.text
    assert "The task 'random' was not found" in parsed.text
    rows = {row["Split"][0]: row for row in parsed.table("Split", "Full model")}
    full = core.table().loc[("dev", "accuracy")]["full", "value"]
    assert float(rows["dev"]["Full model"][1]) == pytest.approx(full)
    assert not re.search(r"\bnan\b", parsed.text)


def test_the_lab_is_found_where_the_run_says():
    from core_lens.report.findings import find_model_and_task

    model = load_model("lab")
    info = model_info(model)
    units = ComponentSet(info.n_layers, info.n_heads)
    one = Subnetwork(
        units, units.mask([]), ZeroActivations(info.weight_hash), provenance={"asked_sparsity": 0.5, "seed": 1}
    )
    origin = {"task": "lab", "model": {"model_id": "lab"}}
    core = Core((one,), pd.DataFrame({"split": ["dev"]}), {}, origin)
    bridge, task, missing = find_model_and_task(core, None, None, None, None, "cpu")
    assert model_info(bridge).model_id == "lab" and task.name == "lab" and not missing
    other = Subnetwork(units, units.mask([]), ZeroActivations("other"), provenance=one.provenance)
    bridge, _, missing = find_model_and_task(replace(core, subnetworks=(other,)), None, None, None, None, "cpu")
    assert bridge is None and "other weights" in missing[0]


def test_mistakes_end_in_one_sentence(real, tmp_path, capsys):
    core, path, model, task = real
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedFileError, match="cannot write"):
        write_report(core, tmp_path / "file" / "report.html")
    assert main(["report", str(path.parent / "run"), "--out", str(tmp_path / "file" / "r.html")]) == 1
    assert capsys.readouterr().err.count("core-lens: cannot write") == 1
    with pytest.raises(SavedFileError, match="it is a folder"):
        write_report(core, tmp_path)
    with pytest.raises(ModelError, match="other weights"):
        write_report(core, tmp_path / "r.html", load_other(), task)
    with pytest.raises(TaskError, match="the run is on task 'random', but task= is 'lab'"):
        write_report(core, tmp_path / "r.html", model, "lab")
    data = task.split("dev").data
    narrow = Task("random", LABELS, (Split("dev", "id", data),))
    with pytest.raises(TaskError, match="reports the split 'hard', which task 'random' has not"):
        write_report(core, tmp_path / "r.html", model, narrow)
    with pytest.raises(CoreLensError, match="max_examples=0"):
        write_report(core, tmp_path / "r.html", model, task, max_examples=0)
    assert not (tmp_path / "r.html").exists()


def load_other():
    return load_model(tiny_model("bert", seed=1), tokenizer=tiny_tokenizer("bert"))


def test_other_examples_than_the_runs_are_noted(real):
    core, _, _, task = real
    changed = [replace(s, data=s.data.iloc[::-1]) if s.name == "hard" else s for s in task.splits]
    notes = found(core, replace(task, splits=tuple(changed))).notes
    assert [note for note in notes if note.startswith("the examples of hard are not those")]
    assert not [note for note in found(core, task).notes if "fingerprint" in note]


def test_unknown_intervals_are_left_out():
    assert np.isnan(
        found(a_core([made(["L0.H0"], 0.8, 7)], {k: v[:1] for k, v in ACCURACY.items()}, FULL)).rows["dev", "accuracy"][
            0.8, "low"
        ]
    )
