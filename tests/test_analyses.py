"""The scripts of analyses/: what their tables say, worked out a second way; that each runs; that the README is true of them."""

import argparse
import ast
import inspect
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import core_lens
from core_lens import scripts
from core_lens.generalization import ProxyComparison
from core_lens.tasks.hans import COMPANIONS, split_name
from core_lens.viz.attention import show

FOLDER = Path(__file__).parents[1] / "analyses"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
LAB = [shlex.split(line) for line in re.findall(r"`(python analyses/[^`]*)`(?= \| )", README)]
SMALL = {
    "table_3_ablations": "--splits dev SO-Swap",
    "figure_4_sparsity": "--sparsities .2 .5 --seeds 2 --steps 2",
    "figure_6_effective_size": "--sparsities .3 --seeds 2 --steps 2 --every 9 --ood-e Adverb-entailed",
    "tables_5_to_8_other_models": "--seeds 2 --steps 2",
    "illusions_dyck": "",
    "illusions_code": "--steps 2",
}
"""What makes the long ones small: most of them need a run of their own, all others read the fixture's."""
FEWER = {"figure_10_training": "--every 5"} | SMALL
SLOW = tuple(SMALL)


def script(name):
    """The names a script defines, without its main part."""
    return SimpleNamespace(**runpy.run_path(str(FOLDER / f"{name}.py")))


def accuracies(core):
    """Accuracy [subnetwork or full, split], from the saved logits."""
    table = {}
    for name, rows in core.predictions.items():
        said = rows[["logit_entailment", "logit_non-entailment"]].to_numpy().argmax(axis=1)
        right = np.array(["entailment", "non-entailment"])[said] == rows["label"].to_numpy()
        table[name] = pd.Series(right).groupby(rows["split"].to_numpy()).mean()
    return pd.DataFrame(table).T


@pytest.fixture(scope="module")
def task():
    return core_lens.load_task("lab")


@pytest.fixture(scope="module")
def model():
    return core_lens.load_model("lab")


pytestmark = pytest.mark.filterwarnings("ignore:.*with fewer than 5 the intersection is loose")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, task):
    """Where scripts find finished runs of the lab: random subnetworks, as they take no time."""
    place = tmp_path_factory.mktemp("analyses")
    options = {"max_examples": 20, "mean_examples": 100}
    core = core_lens.find_core(model, task, [0.1, 0.3], 3, core_lens.RandomPruner(), out=place / "runs/lab", **options)
    core.save(place / "runs/lab-readme")
    settings = {"seeds": 2, "steps": 2, "max_train": 32, "max_examples": 20, "retrain": False, "device": "cpu"}
    core_lens.lottery("lab-pretrained", ["lab"], place / "runs/lottery-lab", **settings)
    core_lens.illusions("lab", place / "runs/illusions-lab", run=core, svd=[4, 8], k_means=[2], max_examples=20)
    return place


@pytest.fixture(scope="module")
def core(folder):
    return core_lens.Core.load(folder / "runs/lab")


# The house rules


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_asks_a_question_and_uses_public_names(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) < 60
    assert "?" in ast.get_docstring(tree).split("\n\n")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), node.attr
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            modules = [module] if module else [alias.name for alias in node.names]
            imported = [alias.name for alias in node.names] if module else []
            parts = [part for one in (*modules, *imported) for part in one.split(".")]
            assert not [part for part in parts if part.startswith("_") or part in SCRIPTS]
            assert not getattr(node, "level", 0)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_a_pure_run_that_says_it_returns_a_table(name):
    run = script(name).run
    assert inspect.signature(run).return_annotation is pd.DataFrame
    called = {node.id for node in ast.walk(ast.parse(inspect.getsource(run))) if isinstance(node, ast.Name)}
    assert not called & {"print", "open", "scripts", "args"}


def test_the_readme_lists_every_script_once_on_the_lab_and_names_no_other():
    assert [Path(command[1]).stem for command in LAB] == re.findall(r"^\| `(\w+)\.py`", README, flags=re.M)
    assert sorted(Path(command[1]).stem for command in LAB) == SCRIPTS
    assert set(re.findall(r"(\w+)\.py", README)) == set(SCRIPTS)


def test_the_readme_covers_every_figure_and_table():
    rows = [
        line.split("|")[1]
        for line in README.partition("In the paper's setting")[2].splitlines()
        if line.startswith("| ")
    ]
    items = " ".join(row for row in rows if row.strip()[:6] in ("Figure", "Tables", "Table "))
    assert {int(n) for part in re.findall(r"Figure ([^FT]*)", items) for n in re.findall(r"\d+", part)} >= {
        *range(2, 10),
        *range(10, 17),
    }
    assert {int(n) for part in re.findall(r"Tables? ([^FT]*)", items) for n in re.findall(r"\d+", part)} == {
        *range(3, 9)
    }


def paper_commands():
    """The commands of the second table with the shell's settings filled in."""
    settings = dict(re.findall(r'^([A-Z]+)="(.*)"$', README, flags=re.M))
    found = re.findall(r"`((?:figure|tables?)_[\w]+\.py \S[^`]*)`", README)
    for command in found:
        while "$" in command:
            command = re.sub(r"\$([A-Z]+)", lambda match: settings[match[1]], command)
        yield shlex.split(command)


def test_the_commands_in_the_papers_setting_are_understood(monkeypatch):
    """Each is read by its script, which stops where it would load the task, with what the paper asks for."""
    seen = []

    class Stop(Exception):
        pass

    def stop(args=None, *_):
        raise Stop

    real = scripts.arguments
    monkeypatch.setattr(scripts, "arguments", lambda *given, **more: seen.append(real(*given, **more)) or seen[-1])
    monkeypatch.setattr(scripts, "load", stop)
    monkeypatch.setattr(scripts, "checkpoints", stop)
    monkeypatch.setattr(core_lens, "load_task", stop)
    commands = list(paper_commands())
    assert len(commands) == 20
    for command in commands:
        monkeypatch.setattr(sys, "argv", [str(FOLDER / command[0]), *command[1:]])
        with pytest.raises(Stop):
            runpy.run_path(str(FOLDER / command[0]), run_name="__main__")
        args = seen[-1]
        assert (args.task == "qqp") == ("qqp" in args.model)
        if "--preset" in command:
            assert args.preset == "paper" and args.steps is None and args.max_examples >= 9815  # all of MNLI matched
    sizes = [args for args in seen if "ood_e" in args]
    assert [args.sparsities for args in sizes] == [[i / 20 for i in range(1, 15)]] * 4
    assert sizes[-1].ood_e == ["subsequence_se_relative_clause_on_obj", "constituent_ce_embedded_under_since"]


# What the tables say


def test_figure_2_is_the_spread_of_the_saved_predictions(core, task):
    splits = ["dev", "Prep", "Prep-entailed"]
    table = script("figure_2_subnetworks").run(core, task, splits)
    ours = accuracies(core)
    assert len(table) == 6 and list(table["role"]) == ["id", "ood", "companion"] * 2
    for row in table.itertuples():
        values = ours.loc[[s.name for s in core.subnetworks if s.asked_sparsity == row.sparsity], row.split]
        assert len(values) == 3
        assert row[4:] == pytest.approx((ours.loc["full", row.split], *np.sort(values)[[0, 2]], *_mean_std(values)))
    assert (table["max"] > table["min"]).any()


def _mean_std(values):
    mean = sum(values) / len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5


def test_figure_3_is_a_row_per_subnetwork(core):
    table = script("figure_3_subcases").run(core, ["Prep", "SO-Swap"], 0.3)
    assert list(table.index) == ["full", "0.3-seed42", "0.3-seed43", "0.3-seed44"]
    pd.testing.assert_frame_equal(table, accuracies(core).loc[table.index, ["Prep", "SO-Swap"]], check_names=False)


def evaluation_of(values):
    """Rows of an evaluation, from subnetwork -> split -> accuracy."""
    rows = [
        (name, split, "all", "accuracy", v, v - 0.1, v + 0.1, 9)
        for name, of in values.items()
        for split, v in of.items()
    ]
    return pd.DataFrame(rows, columns=["subnetwork", "split", "group", "metric", "value", "low", "high", "n"])


def test_figure_3_finds_the_largest_reversal():
    values = {
        "full": {"x": 0.9, "y": 0.9, "z": 0.9},
        "a": {"x": 0.8, "y": 0.2, "z": 0.5},  # beats b on x by .5, loses on y by .4
        "b": {"x": 0.3, "y": 0.6, "z": 0.6},  # beats c on y by .5, loses on x by .1
        "c": {"x": 0.4, "y": 0.1, "z": 0.7},
    }
    core, table = SimpleNamespace(evaluation=evaluation_of(values)), pd.DataFrame(values).T
    four = script("figure_3_subcases").reversal(core, table).set_index(["subnetwork", "split"])
    assert sorted(four.index) == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert four.loc[("b", "y")].tolist() == pytest.approx([0.6, 0.5, 0.7, 9])
    assert script("figure_3_subcases").reversal(core, table[["x"]]).empty
    assert script("figure_3_subcases").reversal(core, table.loc[["full", "a"]]).empty


def test_figure_4_averages_over_splits_then_seeds(core, task):
    splits = ["dev", "Prep", "SO-Swap"]
    table = script("figure_4_sparsity").run(core, task, splits).set_index(["role", "sparsity"])
    ours = accuracies(core)
    assert list(table.index) == [(role, s) for role in ("id", "ood") for s in (0, 0.1, 0.3)]
    full = ours.loc["full", ["Prep", "SO-Swap"]].mean()
    seeds = [ours.loc[f"0.1-seed{seed}", ["Prep", "SO-Swap"]].mean() for seed in (42, 43, 44)]
    row = table.loc[("ood", 0.1)]
    low, high = np.clip(stats.t.interval(0.95, 2, np.mean(seeds), stats.sem(seeds)), 0, 1)
    assert row.tolist() == pytest.approx([np.mean(seeds), low, high, np.mean(seeds) - full])
    assert np.isnan(table.loc[("ood", 0.0), ["low", "high", "change"]].to_numpy(dtype=float)).all()


def test_figure_5_counts_the_subnetworks_that_keep_a_head(core):
    table = script("figure_5_frequencies").run(core).set_index("component")
    kept = {str(c): 0 for s in core.subnetworks for c in s.units if c.kind == "head"}
    for subnetwork in core.subnetworks:
        for component in subnetwork.components:
            kept[str(component)] = kept.get(str(component), 0) + 1
    assert len(table) == 32 and table["kept"].is_monotonic_decreasing
    assert table["kept"].to_dict() == {head: kept[head] for head in table.index}
    assert table["all"].tolist() == pytest.approx([kept[head] / 6 for head in table.index])
    assert {str(head) for head in core.heads} == set(table.index[table["kept"] == 6]) != set()
    for head in table.index[:3]:
        at = [head in map(str, s.components) for s in core.subnetworks if s.asked_sparsity == 0.3]
        assert table.loc[head, 0.3] == pytest.approx(np.mean(at))


def test_figure_6_gives_both_published_definitions(core, task):
    groups = {"ID": ["dev"], "OOD": ["Embed-If", "Adverb"]}
    ours, outside = accuracies(core), ["Embed-If", "Adverb"]
    floors = floors_of_all(core)
    reached = floors["split"].isin(outside)
    floors.loc[reached, "accuracy"] = ours.loc["full", floors.loc[reached, "split"]].to_numpy()
    table = script("figure_6_effective_size").run({1: core, 2: core}, floors, task, groups)
    assert [tuple(row) for row in table[["average", "checkpoint", "splits"]].to_numpy()] == [
        (average, step, group) for average in ("sizes", "accuracies") for step in (1, 2) for group in groups
    ]
    need = ours.loc["full", outside].mean() - 0.03
    by_seed = {seed: {s: ours.loc[f"{s}-seed{seed}", outside].mean() for s in (0.1, 0.3)} for seed in (42, 43, 44)}
    sizes = [1 - max([s for s, value in of.items() if value > need], default=0) for of in by_seed.values()]
    means = {s: np.mean([of[s] for of in by_seed.values()]) for s in (0.1, 0.3)}
    joint = 1 - max([s for s, value in means.items() if value > need], default=0)
    rows = table[(table["checkpoint"] == 2) & (table["splits"] == "OOD")].set_index("average")["size"]
    assert rows["sizes"] == pytest.approx(np.mean(sizes)) and rows["accuracies"] == pytest.approx(joint)
    at_floor = table["flags"].map(lambda flags: any("no better than a floor" in flag for flag in flags))
    assert at_floor.tolist() == (table["splits"] == "OOD").tolist()
    everything = script("figure_6_effective_size").run({1: core}, floors_of_all(core), task)
    assert set(everything["splits"]) == {"ID", "OOD", "mixed", "mixed, half ID", "OOD, balanced"}


def floors_of_all(core):
    return pd.DataFrame({"split": core.evaluation["split"].unique(), "floor": "nothing", "accuracy": 0.0})


def test_figure_7_agrees_with_the_hf_model(task):
    pair = ("the judge helped the actor", "the actor helped the judge")
    source = core_lens.lab.model_folder("lab")
    tokenizer = AutoTokenizer.from_pretrained(source)
    network = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager").eval()
    inputs = tokenizer(*pair, return_tensors="pt")
    with torch.no_grad():
        attention = network(**inputs, output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    table = script("figure_7_attention").run(show("lab", ["L2.H7", "L0.H3"], pair, task))
    assert len(table) == 2 * len(tokens) and list(table["token"]) == tokens * 2
    for (layer, head), name in (((2, 7), "L2.H7"), ((0, 3), "L0.H3")):
        strongest = attention[layer][0, head].max(dim=1)
        rows = table[table["head"] == name]
        assert list(rows["attends_to"]) == [tokens[i] for i in strongest.indices]
        assert rows["attention"].tolist() == pytest.approx(strongest.values.tolist(), abs=1e-4)
    # The lab's head for overlap looks at the same word in the other sentence.
    rows = table[(table["head"] == "L2.H7") & table["token"].isin(["judge", "helped", "actor"])]
    assert (rows["token"] == rows["attends_to"]).all()


def test_figure_9_sets_the_core_apart(core, model, task):
    patterns = core_lens.attention_patterns(model, task, max_examples=40)
    table = script("figure_9_patterns").run(patterns, core)
    names = [f"L{layer}.H{head}" for layer, head in zip(table["layer"], table["head"])]
    n = len(core.heads)
    assert set(names[:n]) == {str(head) for head in core.heads} and len(set(names)) == 32
    assert table["in_core"].tolist() == [True] * n + [False] * (32 - n)
    by_name = table.set_index(pd.Index(names))
    measured = patterns.query("measure == 'previous' and layer == 1 and head == 0").iloc[0]
    assert by_name.loc["L1.H0", "previous"] == pytest.approx(measured["value"] - measured["chance"])
    assert by_name.loc["L2.H7", "class"] == "repeated-token" and by_name.loc["L1.H0", "class"] == "previous-token"


def test_figure_10_agrees_with_the_hf_model(task):
    steps = {step: core_lens.lab.checkpoint(step) for step in (125, 5000)}
    table = script("figure_10_training").run(steps, task, ["Prep"], max_examples=40)
    assert set(table["split"]) == {"Prep", "Prep-entailed"} and set(table["n"]) == {40}
    rows = table[table["split"] == "Prep"].set_index("step")
    for step, source in steps.items():
        tokenizer = AutoTokenizer.from_pretrained(source)
        network = AutoModelForSequenceClassification.from_pretrained(source).eval()
        data = task.split("Prep").sample(40).data
        inputs = tokenizer(list(data["text_a"]), list(data["text_b"]), return_tensors="pt", padding=True)
        with torch.no_grad():
            said = network(**inputs).logits.argmax(dim=1)
        right = [network.config.id2label[int(i)] == label for i, label in zip(said, data["label"])]
        assert rows.loc[step, "value"] == pytest.approx(np.mean(right))
    assert rows.loc[125, "value"] < 0.2 and rows.loc[5000, "value"] > 0.8  # the model card's curve


def test_figure_13_is_spearmans_rho_and_the_containment(core):
    table = script("figure_13_rank_correlation").run(core)
    heads = {s.name: {str(c) for c in s.components if c.kind == "head"} for s in core.subnetworks}
    every = [str(c) for c in core.subnetworks[0].units if c.kind == "head"]
    kept = {s: [sum(head in heads[f"{s}-seed{seed}"] for seed in (42, 43, 44)) for head in every] for s in (0.1, 0.3)}
    pairs = [(heads[f"0.3-seed{a}"], heads[f"0.1-seed{b}"]) for a, b in permutations((42, 43, 44), 2)]
    (row,) = table.to_dict("records")
    assert (row["sparser"], row["denser"], row["pairs"]) == (0.3, 0.1, 6)
    assert row["rho"] == pytest.approx(stats.spearmanr(kept[0.1], kept[0.3]).statistic)
    assert row["containment"] == pytest.approx(sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs))


def test_figure_13_needs_two_sparsities(core):
    one = core_lens.Core(core.at(0.3), core.evaluation, core.predictions)
    with pytest.raises(core_lens.CoreLensError, match=r"one sparsity, 0\.3"):
        script("figure_13_rank_correlation").run(one)


def test_table_3_has_the_accuracy_of_the_model_without_the_heads(core, model, task):
    together = ["L2.H7", "L1.H1"]
    table = script("table_3_ablations").run(model, task, core, together, ["dev"], max_examples=40)
    joint, *rest = reversed(list(dict.fromkeys(table["ablated"])))
    assert joint == "L2.H7 & L1.H1" and rest[::-1] == ["None", *map(str, core.heads), "mean of others"]
    means, units = core.subnetworks[0].replacement, core.subnetworks[0].units
    values = table[table["metric"] == "accuracy"].set_index(["ablated", "split"])["value"]
    for name, gone in ((joint, together), (str(core.heads[0]), [str(core.heads[0])]), ("None", [])):
        stays = core_lens.Subnetwork(units, units.mask(c for c in units if str(c) not in gone), means)
        rows = core_lens.evaluate(model, task, stays, "dev", max_examples=40).query(
            "group == 'all' and metric == 'accuracy'"
        )
        assert values[name, "dev"] == pytest.approx(rows["value"].item())
    assert values[joint, "dev"] < values["None", "dev"] - 0.2  # without its head for overlap the lab cannot do its task


def test_tables_5_and_7_are_in_percent(core):
    table = script("tables_5_to_8_other_models").run(core, ["Prep", "dev"])
    ours = 100 * accuracies(core)
    assert list(table.index) == ["Prep", "dev"] and table.shape == (2, 9)
    values = ours.loc[[f"0.3-seed{seed}" for seed in (42, 43, 44)], "Prep"]
    assert table.loc["Prep", ("full", "value")] == pytest.approx(ours.loc["full", "Prep"])
    assert table.loc["Prep", 0.3].tolist() == pytest.approx([values.min(), values.max(), *_mean_std(values)])


def test_section_6_has_the_papers_settings(model, task):
    """RoBERTa at 50 % on the task's splits; GPT-2 at 40 and 60 % on Embed-If and two subcases of entailment of HANS."""
    module = script("tables_5_to_8_other_models")
    eight = ["SO-Swap", "Prep", "Embed-If", "Embed-Verb", "Passive", "Rel-Clause", "Disjunction", "Adverb"]
    assert module.settings(model, task) == ([0.5], ["dev", *eight])
    decoder = core_lens.load_model("lab-gpt2")
    entailed = ["Rel-Clause-entailed", "Embed-If-entailed"]
    assert module.settings(decoder, task) == ([0.4, 0.6], ["dev", "Embed-If", *entailed])
    hans = {split_name(subcase) for subcase in COMPANIONS}
    assert "Embed-If" in hans and set(module.DECODER_OOD["mnli"]) <= hans
    assert module.DECODER_OOD["mnli"][1:] == [
        "subsequence_se_relative_clause_on_obj",
        "constituent_ce_embedded_under_since",
    ]


def test_tables_6_and_8_have_a_row_per_head(core, model, task):
    table = script("tables_5_to_8_other_models").ablations(model, task, core, ["dev"], max_examples=10)
    assert list(dict.fromkeys(table["ablated"])) == ["None", *map(str, core.heads), "mean of others"]


def lottery_study():
    """Two tasks, three seeds, 2 layers of 2 heads: heads 0 and 3 are in all good tickets of `a`, 0 and 1 in those of `b`."""
    units = core_lens.ComponentSet(2, 2)
    kept = {"a": [(0, 3, 4), (0, 3, 5), (0, 1, 3, 4)], "b": [(0, 1, 4), (0, 1, 4), (0, 1, 2, 4)]}
    good, scores, sizes = {}, [], []
    for task, tickets in kept.items():
        masks = [torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(ticket), True) for ticket in tickets]
        good[task] = [core_lens.Subnetwork(units, mask, core_lens.ZeroActivations("x")) for mask in masks]
        for seed, ticket in enumerate(tickets):
            heads = sum(unit < 4 for unit in ticket)
            sizes.append((task, seed, heads, 4, len(ticket) - heads, 2, 0.5))
            for name, value in (("full", 0.9), ("s-good", 0.8), ("m-bad", 0.3)):
                for split, less in (("seen", 0.0), ("unseen", 0.1)):
                    how = "" if name == "full" else "pruned"
                    metric = "mcc" if task == "b" else "accuracy"
                    scores.append((task, seed, name, how, split, metric, value - less + 0.01 * seed))
    columns = ["task", "seed", "ticket", "how", "split", "metric", "value"]
    size_columns = ["task", "seed", "heads", "n_heads", "mlps", "n_mlps", "weights"]
    tables = pd.DataFrame(scores, columns=columns), pd.DataFrame(sizes, columns=size_columns)
    return core_lens.Lottery(*tables, good, {"a": "accuracy", "b": "mcc"})


def test_lottery_scores_are_in_percent_beside_the_drop():
    table = script("lottery_scores").run(lottery_study())
    row = table.sort_index().sort_index(axis=1).loc[("s-good", "pruned"), ("b", "unseen")]
    assert row["mean"] == pytest.approx(71) and row["std"] == pytest.approx(1) and row["drop"] == pytest.approx(10)
    assert table.loc["full", ""]["a", "seen", "mean"] == pytest.approx(91)


def test_lottery_survival_is_a_share_of_each_layer():
    table = script("lottery_survival").run(lottery_study())
    # Layer 0 of `a` keeps 1, 1 and 2 of its 2 heads, layer 1 one in each seed; its MLPs stay in 2 and 1 of 3 seeds.
    assert table["heads"].to_numpy() == pytest.approx(np.array([[2 / 3, 1, 5 / 6], [1 / 2, 1 / 6, 1 / 3]]))
    assert table["mlps", "a"].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_lottery_stability_names_the_seeds():
    found = script("lottery_stability")
    assert found.run(lottery_study()).loc[("a", "head"), "jaccard"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    pairs = found.pairs(lottery_study()).query("task == 'a'")
    assert list(zip(pairs["a"], pairs["b"])) == [(0, 1), (0, 2), (1, 2)]
    assert pairs["q"].tolist() == [0, 1, 1]  # McNemar's (b - c)^2 / (b + c): one head is only in seed 2


def test_lottery_overlap_is_beside_chance():
    table = script("lottery_overlap").run(lottery_study()).set_index(["a", "b"])
    # Shared heads 1, 1, 2; expected 2 * 2 / 4, 2 * 2 / 4 and 3 * 3 / 4.
    row = table.loc[("a", "b")]
    assert row["mean"] == pytest.approx(4 / 3) and row["expected"] == pytest.approx(4.25 / 3)
    assert row["ratio"] == pytest.approx(4 / 4.25)


def test_lottery_patterns_groups_heads_by_the_seeds_that_keep_them():
    shapes = pd.DataFrame(np.eye(5)[[0, 1, 2, 3]], columns=list(core_lens.maps.CLASSES))
    shapes = shapes.assign(layer=[0, 0, 1, 1], head=[0, 1, 0, 1])
    table = script("lottery_patterns").run(shapes, lottery_study().masks()["a"])
    assert table["heads"].to_dict() == {"all seeds": 2, "some": 1, "none": 1, "all heads": 4}
    assert (
        table.loc["all seeds", ["vertical", "block"]].tolist() == [0.5, 0.5]
        and table.loc["none", "vertical+diagonal"] == 1
    )
    assert table.loc["all heads"].drop("heads").tolist() == [0.25, 0.25, 0.25, 0.25, 0]


def test_a_study_is_read_or_made_for_the_lab_alone(monkeypatch, tmp_path, folder):
    monkeypatch.setattr(sys, "argv", ["script.py", "--run", str(folder / "runs/lottery-lab")])
    args = scripts.arguments("", run="runs/lottery-{model}", seeds=3)
    assert scripts.find_lottery(args).sizes["seed"].tolist() == [1337, 42]
    called = []
    monkeypatch.setattr(scripts, "lottery", lambda *given, **more: called.append((given, more)))
    begun = tmp_path / "begun"
    shutil.copytree(folder / "runs/lottery-lab", begun)
    (begun / "lab" / "seed-86").mkdir()  # interrupted: it is continued, with whatever settings are given
    args.run = begun
    scripts.find_lottery(args)
    assert called.pop()[0] == ("lab-pretrained", ["lab"], begun)
    args.run = tmp_path / "none"
    scripts.find_lottery(args)
    assert called[0][0] == ("lab-pretrained", ["lab"], tmp_path / "none") and called[0][1]["seeds"] == 3
    args.model = "bert"
    with pytest.raises(core_lens.CoreLensError, match="holds no lottery study"):
        scripts.find_lottery(args)


def illusions_study():
    """Two splits and three proxies with made gaps; two heads' depths, counted by hand below."""
    splits, proxies = ["iid", "a", "b", "c", "d"], ["SVD 4", "one-hot"]
    questions = pd.DataFrame({"split": np.repeat(splits, 8), "cluster": np.tile(np.arange(8), 5), "gold": 1})
    answers = pd.DataFrame({"model": 1, "SVD 4": [1] * 8 + [1, 0] * 4 + [1] * 24, "one-hot": [1, 0] * 20})
    rows = [(split, proxy, 0.1) for split in splits for proxy in proxies]
    divergence = pd.DataFrame(rows, columns=["split", "proxy", "L1.H0"])
    table = pd.DataFrame({"proxy": proxies, "method": ["SVD", "one-hot"], "strength": [4.0, np.nan]})
    depths = [("iid", "model", 2, 2, 3), ("iid", "model", 2, 4, 1), ("d", "model", 12, 12, 1), ("d", "model", 12, 10, 4),
              ("d", "SVD 4", 3, 3, 2), ("d", "SVD 4", 13, 9, 2)]  # fmt: skip
    errors = pd.DataFrame(depths, columns=["split", "who", "query_depth", "key_depth", "n"]).assign(head="L1.H0")
    return core_lens.Illusions(ProxyComparison(questions, answers, divergence), table, errors)


def test_illusions_tables_by_hand():
    study = illusions_study()
    found = script("illusions_dyck").run(study)
    assert found["agreement"].tolist() == [100, 50] and [*found.columns] == ["agreement", "a", "b", "c", "d"]
    assert found.loc["SVD 4"].tolist()[1:] == ["50.0*", "0.0 ", "0.0 ", "0.0 "]
    depths = script("illusions_dyck").depths(study, "L1.H0")
    assert depths.loc["model", ("iid", "to 10")] == 75 and depths.loc["model", ("d", "deeper")] == 20
    assert depths.loc["SVD 4", [("d", "to 10"), ("d", "deeper")]].tolist() == [100, 0]
    table = script("illusions_heuristics").run(study, ["iid", "c", "a"])
    assert [*table.columns] == ["agreement on iid", "c", "a"] and table.loc["SVD 4"].tolist() == [100, 0, 50]
    assert script("illusions_code").run(study)["iid"].tolist() == [100, 50]


def test_code_agreement_by_kind_of_character():
    study = illusions_study()
    kinds = np.tile(["other", "new words"], 20)
    questions = study.comparison.questions.assign(kind=kinds)
    questions["split"] = questions["split"].replace({"a": "iid, new words"})
    comparison = ProxyComparison(questions, study.comparison.answers, study.comparison.divergence)
    table = script("illusions_code").kinds(core_lens.Illusions(comparison, study.proxies))
    assert set(table.index) == {(split, kind) for split in ("iid", "b", "c", "d") for kind in ("other", "new words")}
    assert table.loc[("b", "new words")].to_dict() == {"SVD 4": 100, "one-hot": 0, "model_is_right": 100}


def test_a_finished_illusions_study_is_read(monkeypatch, folder, tmp_path):
    monkeypatch.chdir(folder)
    args = arguments(monkeypatch, run="runs/illusions-{model}")
    assert len(scripts.find_illusions(args, "lab").proxies) == 11
    called = []
    monkeypatch.setattr(scripts, "illusions", lambda *given, **more: called.append((given, more)))
    scripts.find_illusions(arguments(monkeypatch, "--run none", model="dyck"), "dyck", seeds=0)
    assert called == [(("dyck", Path("none")), {"model": None, "max_examples": 500, "seeds": 0})]
    for line, what in (("dyck", "dyck"), ("lab-gpt2", "lab"), ("lab", "mnli")):
        with pytest.raises(core_lens.CoreLensError, match="is a study of lab on lab, not of"):
            scripts.find_illusions(arguments(monkeypatch, f"{line} --run runs/illusions-lab"), what)


def test_omitted_arguments_are_unknown(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        arguments(monkeypatch, "--preset paper", omit=["preset"])
    assert "--preset" in capsys.readouterr().err


def test_the_readmes_picture_shows_the_saved_predictions(core):
    table = script("lab_core").run(core)
    ours = accuracies(core)
    assert len(table) == ours.size
    for row in table.sample(20, random_state=0).itertuples():
        assert row.value == pytest.approx(ours.loc[row.subnetwork, row.split])


# What they share


def arguments(monkeypatch, line="", omit=(), **more):
    monkeypatch.setattr(sys, "argv", ["script", *line.split()])
    return scripts.arguments("What?", omit, **more)


def test_arguments_take_the_scripts_own(monkeypatch):
    args = arguments(monkeypatch, "--together L1.H1 L2.H2 --every 3", every=1, together=(), seeds=4, page=None)
    assert (args.together, args.every, args.seeds, args.page) == (["L1.H1", "L2.H2"], 3, 4, None)
    assert (args.model, args.task, args.run) == ("lab", "lab", Path("runs/lab"))
    tuned = arguments(monkeypatch, "runs/mine/step-500", run="runs/{model}-grid")
    assert tuned.run == Path("runs/mine-step-500-grid")  # step-500 is the name of many a model
    assert arguments(monkeypatch, "someone/bert").run == Path("runs/bert")


def test_shown_knows_roles_and_names(monkeypatch, task):
    assert scripts.shown(arguments(monkeypatch), task, "id") == ["dev"]
    assert scripts.shown(arguments(monkeypatch), task) == []
    assert scripts.shown(arguments(monkeypatch, "--splits Prep dev Prep"), task, "ood") == ["Prep", "dev"]
    with pytest.raises(core_lens.CoreLensError, match="no split 'Swap'"):
        scripts.shown(arguments(monkeypatch, "--splits Swap"), task)
    plain = core_lens.Task("plain", task.labels, tuple(task.with_role("train", "id")))
    with pytest.raises(core_lens.CoreLensError, match=r"'plain' has no split of role ood.*--splits"):
        scripts.shown(arguments(monkeypatch), plain, "ood")


def test_a_finished_run_is_read_and_must_fit(monkeypatch, folder, core, model, task, capsys):
    monkeypatch.chdir(folder)
    read = scripts.find_run(arguments(monkeypatch, "--seeds 9"), model, task, ["Prep"])
    assert read.heads == core.heads and "6 subnetworks, sparsities [0.1, 0.3]" in capsys.readouterr().err
    with pytest.raises(core_lens.CoreLensError, match="reports no Conjunction, only dev"):
        scripts.find_run(arguments(monkeypatch), model, task, ["Conjunction"])
    other = core_lens.Task("other", task.labels, task.splits)
    with pytest.raises(core_lens.CoreLensError, match=r"is of task 'lab'.*--run"):
        scripts.find_run(arguments(monkeypatch), model, other)
    with pytest.raises(core_lens.CoreLensError):
        scripts.find_run(arguments(monkeypatch), core_lens.load_model(core_lens.lab.checkpoint(500)), task)


@pytest.mark.slow
def test_a_new_run_reports_what_is_asked_for_beside_the_usual(monkeypatch, tmp_path, model, task):
    monkeypatch.chdir(tmp_path)
    line = "--run here --sparsities .4 --seeds 1 --steps 2 --max-examples 4"
    with pytest.warns(core_lens.CoreLensWarning):  # one seed
        made = scripts.find_run(arguments(monkeypatch, line), model, task, ["Conjunction"])
    usual = {split.name for split in task.with_role("id", "ood", "companion")}
    assert set(made.evaluation["split"]) == {*usual, "Conjunction", "Conjunction-entailed"}
    assert [s.name for s in made.subnetworks] == ["0.4-seed42"] and made.provenance["pruner"]["steps"] == 2
    assert (tmp_path / "here/run.json").is_file()


def test_checkpoints_are_sorted_by_step_and_the_last_stays(tmp_path):
    for name in ("step-500", "step-1000", "step-1500", "step-2000", "step-x", "resume"):
        (tmp_path / name).mkdir()
    assert scripts.checkpoints(str(tmp_path)) == {s: tmp_path / f"step-{s}" for s in (500, 1000, 1500, 2000)}
    assert list(scripts.checkpoints(str(tmp_path), 2)) == [1000, 2000]
    assert list(scripts.checkpoints("lab", 4)) == [250, 2000, 5000]
    with pytest.raises(core_lens.CoreLensError, match=r"no step-<n> folders"):
        scripts.checkpoints(str(tmp_path / "resume"))


def test_a_task_of_numbers_is_refused(monkeypatch, task):
    data = task.split("dev").data.drop(columns=["group", "cluster"]).assign(label=0.5)
    numbers = core_lens.Task.from_dataframes("numbers", id=data, metric="pearson")
    monkeypatch.setattr(scripts, "load_task", lambda *_: numbers)
    with pytest.raises(core_lens.CoreLensError, match="'numbers' has numbers for labels"):
        scripts.load(argparse.Namespace(task="numbers", data_dir=None, model="lab", label_map=None))


def test_a_star_says_that_the_interval_of_the_drop_is_without_0():
    nan = float("nan")
    rows = [
        ("None", "a", "accuracy", 0.9, nan, nan, nan),
        ("None", "b", "accuracy", 0.5, nan, nan, nan),
        ("L1.H1", "a", "accuracy", 0.8, 0.1, 0.05, 0.15),
        ("L1.H1", "b", "accuracy", 0.5, 0.0, 0.0, 0.0),
        ("L0.H0", "a", "accuracy", 0.95, -0.05, -0.1, -0.01),
        ("L0.H0", "b", "accuracy", 0.45, 0.05, -0.01, 0.1),
        ("L0.H0", "a", "margin", 3.0, 1.234, 1.0, 1.5),
    ]
    table = pd.DataFrame(rows, columns=["ablated", "split", "metric", "value", "drop", "drop_low", "drop_high"])
    text = scripts.starred(table, "accuracy")
    assert list(text.index) == ["None", "L1.H1", "L0.H0"] and list(text.columns) == ["a", "b"]
    assert text.to_numpy().tolist() == [["90.0 ", "50.0 "], ["80.0*", "50.0 "], ["95.0*", "45.0 "]]
    assert scripts.starred(table, "margin").to_numpy().tolist() == [["1.23*"]]


# They run


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, id=n, marks=[pytest.mark.slow] * (n in SLOW)) for c in LAB for n in [Path(c[1]).stem]],
)
@pytest.mark.filterwarnings("ignore::core_lens.CoreLensWarning")
def test_the_command_on_the_lab_runs(command, folder, monkeypatch, capsys):
    """The README's command as it stands, in a folder that has a finished run, on few examples."""
    name = Path(command[1]).stem
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [*command[1:], "--max-examples", "20", *FEWER.get(name, "").split()])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    written = [Path(word) for word in command if word.endswith((".png", ".html"))]
    assert all(path.is_file() for path in written) and ("nan nan nan" not in out)
    for path in written:
        if path.suffix == ".png":
            assert np.ptp(matplotlib.image.imread(path)) > 0.5  # something is drawn
        else:
            assert "CircuitsVis" in path.read_text(encoding="utf-8")
    expected = {
        "figure_3_subcases": "The largest reversal",
        "figure_5_frequencies": "heads in all 6 subnetworks",
        "figure_6_effective_size": "OOD-E",
        "figure_7_attention": "[SEP]",
        "figure_9_patterns": "pretrained",
        "figure_10_training": "Embed-Verb",
        "figure_13_rank_correlation": "rho_p_within_layers",
        "illusions_code": "repeated words",
        "illusions_dyck": "L1.H0 looks at the right depth",
        "illusions_heuristics": "overestimates",
        "lottery_scores": "s-good",
        "lottery_survival": "all tasks",
        "lottery_stability": "kappa",
        "lottery_overlap": "ratio",
        "lottery_patterns": "vertical+diagonal",
        "table_3_ablations": "joint drop beside",
        "tables_5_to_8_other_models": "mean of others",
    }
    assert expected.get(name, "SO-Swap" if name.startswith("figure_2") else "") in out
    assert out or name == "lab_core"


@pytest.mark.slow
def test_a_script_runs_from_the_shell_without_a_network(tmp_path):
    line = [
        sys.executable,
        str(FOLDER / "figure_2_subnetworks.py"),
        "--seeds",
        "2",
        "--steps",
        "2",
        "--max-examples",
        "10",
    ]
    env = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Best less worst" in done.stdout and (tmp_path / "runs/lab/run.json").is_file()
