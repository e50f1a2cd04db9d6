"""Ablations on models whose drops follow from pencil and paper; statistics against second methods and by simulation."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import logsumexp

from builders import frame, hooked, means_of, random_task
from core_lens import interactions
from core_lens.ablation import MeanActivations, ResampleActivations, ZeroActivations
from core_lens.ablation_runs import Ablations, run_ablations
from core_lens.components import Component
from core_lens.errors import CoreLensError
from core_lens.evaluate import evaluate, logit_columns, predict
from core_lens.hooked import batches, component_set, encode, hook_name, load_model, logits, model_info
from core_lens.hooked.resume import entering, resumed
from core_lens.interactions import (
    ablate,
    ablation_table,
    core_alone,
    halves,
    interaction,
    interaction_map,
    most_super_additive,
)
from core_lens.intervals import bootstrap
from core_lens.subnetwork import Subnetwork
from core_lens.tasks import Split, Task, class_order
from tiny_models import ARCHITECTURES, LABELS, tiny_model, tiny_tokenizer

V = torch.tensor([1.0, -1.0] * 8)  # three directions of mean 0, variance 1, at right angles
U = torch.tensor([1.0, 1.0, -1.0, -1.0] * 4)
W = torch.tensor([1.0] * 4 + [-1.0] * 4).repeat(2)
SCALE = 5.0


def toy(series: bool):
    """2 layers x 2 heads; every token is V, and the logits are (SCALE * tanh(component of the last state), 0, 0).

    Redundant: L0.H0 and L0.H1 both write 3 U, and the classifier reads U. In series: L0.H0 writes 3 U, L1.H1 reads U and
    writes twice what it read into W, and the classifier reads W. LayerNorm only divides, by the root of the sum of squares.
    """
    model = tiny_model("bert")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        model.bert.embeddings.word_embeddings.weight.copy_(V.expand(64, 16))
        first, second = model.bert.encoder.layer
        for head in (0,) if series else (0, 1):
            first.attention.self.value.bias[8 * head] = 3.0
            first.attention.output.dense.weight[:, 8 * head] = U
        if series:
            second.attention.self.value.weight[8] = U / 16
            second.attention.output.dense.weight[:, 8] = 2 * W
        model.bert.pooler.dense.weight[0] = (W if series else U) / 16
        model.classifier.weight[0, 0] = SCALE
    return load_model(model, tokenizer=tiny_tokenizer("bert"))


def toy_task():
    """One split of each gold label: all are entailment, neutral, or non-entailment where labels are collapsed."""
    collapse = {"neutral": "non-entailment", "contradiction": "non-entailment"}
    return Task(
        "toy",
        LABELS,
        (
            Split("train", "train", frame(30, 0)),
            Split("dev", "id", frame(20, 1).assign(label="entailment")),
            Split("neutral", "id", frame(20, 2).assign(label="neutral")),
            Split("hard", "ood", frame(20, 3).assign(label="non-entailment"), collapse),
        ),
    )


def margins(state: float) -> dict[str, float]:
    """The gold margin of each split, by hand, when the classifier reads `state`."""
    x = SCALE * np.tanh(state)
    return {"dev": x - np.log(2), "neutral": -np.log(np.exp(x) + 1), "hard": np.log(2) - x}


REDUNDANT = {2: 6 / np.sqrt(37), 1: 3 / np.sqrt(10), 0: 0.0}  # heads left -> s / sqrt(1 + s^2), s = 3 per head
SERIES = 2 * (3 / np.sqrt(10)) / np.sqrt(1 + 4 * 0.9)


def test_redundant_heads_by_hand():
    """Either of the two is enough: single drops are small, the joint one is not."""
    model, task = toy(series=False), toy_task()
    full, one, none = (margins(REDUNDANT[heads]) for heads in (2, 1, 0))
    single = ablate(model, task, "L0.H1", replacement="zero").set_index(["split", "metric"])
    both = ablate(model, task, ["L0.H0", "L0.H1"], replacement="zero").set_index(["split", "metric"])
    joint = interaction(model, task, "L0.H0 & L0.H1", replacement="zero").set_index(["split", "metric"])
    for split in full:
        assert single.loc[(split, "margin"), "value"] == pytest.approx(one[split], abs=1e-5)
        assert single.loc[(split, "margin"), "drop"] == pytest.approx(full[split] - one[split], abs=1e-5)
        assert both.loc[(split, "margin"), "drop"] == pytest.approx(full[split] - none[split], abs=1e-5)
        expected = full[split] - none[split] - 2 * (full[split] - one[split])
        assert joint.loc[(split, "margin"), "value"] == pytest.approx(expected, abs=1e-5)
    assert joint.loc[("dev", "margin"), "value"] > 3  # 5 (2 tanh .949 - tanh .986) = 3.55: super-additive
    assert joint.loc[("hard", "margin"), "value"] < -3  # the same heads keep the model from the right answer there
    # With no head left all logits are 0, and the first label wins; entailment was right all along.
    assert (joint.loc[("dev", "accuracy")] == [0, 0, 0, 0, 0, 20]).all()


def test_heads_in_series_by_hand():
    """Both are needed: the second drop is nothing once the first is there, so that the sum counts it twice."""
    model, task = toy(series=True), toy_task()
    table = interaction(model, task, ["L1.H1", "L0.H0"], splits="dev", replacement="zero")
    margin = table[table["metric"] == "margin"].iloc[0]
    drop = SCALE * np.tanh(SERIES)
    assert margin["joint"] == pytest.approx(drop, abs=1e-5)
    assert margin["singles"] == pytest.approx(2 * drop, abs=1e-5)
    assert margin["value"] == pytest.approx(-drop, abs=1e-5)
    # All examples are alike here, so resampling them changes nothing.
    assert margin["low"] == pytest.approx(margin["high"], abs=1e-5)


def plain(model, task, splits, components, replacement):
    """Scores without the shared pass: `predict` of a subnetwork, and the margin label by label."""
    order = class_order(model_info(model).id2label, task)
    units = component_set(model)
    subnetwork = Subnetwork(units, ~units.mask(components), replacement, provenance={"seed": 0})
    table = predict(model, task, [task.split(name) for name in splits], order, subnetwork if components else None)
    expected = []
    for row in table.itertuples():
        collapsed = task.split(row.split).collapsed(task.labels)
        x = np.array([getattr(row, name) for name in logit_columns(task)], dtype=float)
        gold = collapsed == row.label
        expected.append((logsumexp(x[gold]) - logsumexp(x[~gold]), gold[x.argmax()]))
    return np.array(expected).T


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_shared_pass_changes_nothing(arch):
    model, task = hooked(arch, n_layers=3), random_task(30)
    units, means = component_set(model), means_of(model)
    sets = [(c,) for c in units] + [tuple(list(units)[i] for i in (2, 5, 7)), tuple(units)]
    run = run_ablations(model, task, sets, replacement=means, batch_size=7)
    assert run.sets == ((), *(tuple(sorted(s)) for s in sets))
    for i, components in enumerate(run.sets):
        margin, right = plain(model, task, ["dev", "hard", "easy"], components, means)
        np.testing.assert_allclose(run.scores["margin"][i], margin, atol=1e-5, rtol=0)
        assert np.mean(run.scores["accuracy"][i] != right) < 0.02  # a tie may fall either way
    assert np.abs(run.scores["margin"][1:] - run.scores["margin"][0]).max(axis=1).min() > 1e-4


def test_resampled_stand_ins_meet_the_same_donors():
    model, task = hooked("bert"), random_task(20)
    ((_, donors),) = batches(encode(task.split("train"), model.tokenizer), 10, rows=range(10))
    replacement = ResampleActivations(donors, model_info(model).weight_hash)
    some = (Component(0, 1), Component(1, 0))
    run = run_ablations(model, task, [some], replacement=replacement, batch_size=6)
    margin, _ = plain(model, task, ["dev", "hard", "easy"], some, replacement)
    np.testing.assert_allclose(run.scores["margin"][1], margin, atol=1e-5, rtol=0)


def test_bfloat16_models_work():
    model = load_model(tiny_model("bert"), tokenizer=tiny_tokenizer("bert"), dtype="bfloat16")
    table = ablate(model, random_task(20), "L1.H0")
    assert np.isfinite(table["value"]).all()


def n_hooks(model) -> int:
    return sum(len(point.fwd_hooks) for point in model.hook_dict.values())


@pytest.mark.parametrize("arch", ["bert", "gpt2", "roberta"])
def test_skipped_blocks_do_not_run_and_nothing_stays(arch):
    model = hooked(arch, n_layers=3)
    ((_, inputs),) = batches(encode(Split("x", "train", frame(5)), model.tokenizer), 5)
    ran: list[int] = []

    def note(layer):
        return hook_name("head", layer), lambda x, hook: ran.append(layer)

    before, hooks = logits(model, inputs), n_hooks(model)
    with entering(model, [2]) as residuals, model.hooks(fwd_hooks=[note(i) for i in range(3)]):
        logits(model, inputs)
        assert ran == [0, 1, 2] and set(residuals) == {2}
        with resumed(model, 2, residuals[2]):
            resumed_logits = logits(model, inputs)
    assert ran == [0, 1, 2, 2]
    torch.testing.assert_close(resumed_logits, before, atol=1e-6, rtol=0)
    with pytest.raises(ZeroDivisionError), entering(model, [1]), resumed(model, 2, residuals[2]):
        1 / 0  # noqa: B018
    torch.testing.assert_close(logits(model, inputs), before, atol=0, rtol=0)
    assert not any("forward" in block.__dict__ for block in model.blocks)
    assert n_hooks(model) == hooks


def test_a_run_that_breaks_leaves_the_model_as_it_was(monkeypatch):
    model, task = hooked("bert"), random_task(10)
    before, hooks = evaluate(model, task), n_hooks(model)
    monkeypatch.setattr(MeanActivations, "at", lambda self, kind, layer, x, rows=None: x[:, :1, :1, :1] / {}["x"])
    with pytest.raises(KeyError):
        ablate(model, task, "L1.H0", replacement=means_of(model))
    assert not any("forward" in block.__dict__ for block in model.blocks)
    assert n_hooks(model) == hooks
    pd.testing.assert_frame_equal(evaluate(model, task), before)


def test_table_and_its_control_by_one_ablation_at_a_time():
    model, task = hooked("bert"), random_task(30)
    means = means_of(model)
    table = ablation_table(model, task, "L1.H0", splits="dev", replacement=means)
    assert list(dict.fromkeys(table["ablated"])) == ["None", "L1.H0", "mean of others"]
    one = {str(c): ablate(model, task, c, "dev", replacement=means) for c in component_set(model, ("head",))}
    full = evaluate(model, task, splits="dev")
    for metric in ("margin", "accuracy"):
        rows = table[table["metric"] == metric].set_index("ablated")
        drops = {c: t.loc[t["metric"] == metric, "drop"].item() for c, t in one.items()}
        others = np.array([drops[c] for c in ("L0.H0", "L0.H1", "L1.H1")])
        assert rows.loc["L1.H0", "drop"] == pytest.approx(drops["L1.H0"])
        assert rows.loc["mean of others", "drop"] == pytest.approx(others.mean())
        assert rows.loc["mean of others", "spread"] == pytest.approx(np.sqrt(((others - others.mean()) ** 2).mean()))
        assert rows.loc["L1.H0", "p"] == pytest.approx((1 + sum(d >= drops["L1.H0"] for d in others)) / 4)
        values = rows.loc["None", "value"] - rows.loc["mean of others", "drop"]
        assert rows.loc["mean of others", "value"] == pytest.approx(values)
    ours = table[(table["ablated"] == "None") & (table["metric"] == "accuracy")].iloc[0]
    theirs = full[full["metric"] == "accuracy"].iloc[0]
    assert ours[["value", "low", "high", "n"]].tolist() == theirs[["value", "low", "high", "n"]].tolist()
    everything = ablation_table(model, task, component_set(model, ("head",)), splits="dev", replacement=means)
    assert "mean of others" not in set(everything["ablated"]) and everything["p"].isna().all()


def simulated(rng, n_clusters=60, per_cluster=4, effect=0.5, sets=((), ("a",), ("b",), ("a", "b"))):
    """Ablations whose interaction of the heads a and b is `effect` on average, alike within a cluster."""
    name = {"a": Component(0, 0), "b": Component(0, 1)}
    n = n_clusters * per_cluster
    clusters = np.repeat(np.arange(n_clusters), per_cluster)
    difficulty = rng.normal(size=n_clusters)[clusters] + rng.normal(size=n)
    single = {c: 1 + rng.normal(size=n_clusters)[clusters] for c in "ab"}
    synergy = effect + rng.normal(size=n_clusters)[clusters] + 0.5 * rng.normal(size=n)
    scores = [difficulty - sum(single[c] for c in s) - synergy * (len(s) == 2) for s in sets]
    examples = pd.DataFrame({"split": "x", "cluster": clusters, "row": np.arange(n)})
    return Ablations(tuple(tuple(name[c] for c in s) for s in sets), examples, {"margin": np.array(scores)})


def test_intervals_cover_the_truth_by_simulation():
    """95 % intervals hold the true interaction about as often; without clusters they would not."""
    rng = np.random.default_rng(0)
    both = (Component(0, 0), Component(0, 1))
    covered, naive = [], []
    for i in range(200):
        run = simulated(rng)
        row = run.interactions([both]).iloc[0]
        covered.append(row["low"] <= 0.5 <= row["high"])
        if i % 3:
            continue
        run.examples["cluster"] = run.examples["row"]
        row = run.interactions([both]).iloc[0]
        naive.append(row["low"] <= 0.5 <= row["high"])
    assert 0.91 <= np.mean(covered) <= 0.98
    assert np.mean(naive) < 0.8


def test_interval_by_the_other_bootstrap():
    run = simulated(np.random.default_rng(1), n_clusters=40)
    both = (Component(0, 0), Component(0, 1))
    row = run.interactions([both]).iloc[0]
    full, a, b, joint = run.scores["margin"]
    x = a + b - joint - full
    low, high = bootstrap(lambda w: float(np.average(x, weights=w)), run.examples["cluster"].to_numpy(), draws=3000)
    assert row["value"] == pytest.approx(x.mean())
    width = high - low
    assert abs(row["low"] - low) < 0.1 * width and abs(row["high"] - high) < 0.1 * width
    one = simulated(np.random.default_rng(1), n_clusters=1).interactions([both]).iloc[0]
    assert np.isnan(one["low"]) and np.isnan(one["high"])


def test_halves_share_no_cluster_and_cut_every_split():
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"split": np.repeat(["a", "b", "c"], [300, 100, 300]), "cluster": rng.integers(80, size=700)})
    data.loc[:299, "cluster"] = np.arange(300) % 41  # the splits share clusters
    first = halves(data)
    assert not set(data["cluster"][first]) & set(data["cluster"][~first])
    assert pd.Series(first).groupby(data["split"]).mean().between(0.35, 0.65).all()
    assert (halves(data) == first).all() and (halves(data, seed=1) != first).any()
    with pytest.raises(CoreLensError, match="'b' has too few clusters to be cut in two"):
        halves(data.assign(cluster=np.where(data["split"] == "b", "one", data["cluster"])))


def test_selection_on_noise_does_not_show_on_the_other_half(monkeypatch):
    """Of 15 pairs without any interaction the best looks super-additive where it was chosen, and only there."""
    model, task = hooked("bert", n_layers=3), random_task(20)
    rng = np.random.default_rng(0)
    examples = pd.DataFrame({"split": "hard", "cluster": np.arange(100)})

    def noise(model, task, sets, splits):
        every = [(), *sets]
        return Ablations(tuple(every), examples, {"margin": rng.normal(size=(len(every), 100))})

    monkeypatch.setattr(interactions, "run_ablations", noise)
    seen, tested, covered = [], [], []
    for seed in range(40):
        table = most_super_additive(model, task, component_set(model, ("head",)), sizes=(2,), seed=seed)
        table = table[table["split"] == "pooled"].set_index("half")
        seen.append(table.loc["selection", "value"])
        tested.append(table.loc["test", "value"])
        covered.append(table.loc["test", "low"] <= 0 <= table.loc["test", "high"])
    assert np.mean(seen) > 0.3
    assert abs(np.mean(tested)) < 3 * np.std(tested) / np.sqrt(40)
    assert np.mean(covered) > 0.85
    assert table["candidates"].eq(15).all() and np.isnan(table.loc["selection", "low"])


def test_the_super_additive_pair_is_found():
    model, task = toy(series=False), toy_task()
    heads = ["L0.H0", "L0.H1", "L1.H0"]
    # On `hard` both heads stand in the way, so that the pair is the least super-additive there.
    with pytest.raises(CoreLensError, match="too few clusters"):
        one = replace_cluster(task)
        most_super_additive(model, one, heads, splits="dev", replacement="zero")
    table = most_super_additive(model, task, heads, splits="dev", sizes=(2,), replacement="zero")
    assert set(table["ablated"]) == {"L0.H0 & L0.H1"} and set(table["half"]) == {"test", "selection"}
    margin = table[table["metric"] == "margin"]
    assert margin.groupby("split")["n"].sum().to_dict() == {"pooled": 20, "dev": 20}  # no split is out of domain
    full, one_left, none = (margins(REDUNDANT[k])["dev"] for k in (2, 1, 0))
    assert np.allclose(margin["value"], full - none - 2 * (full - one_left), atol=1e-5)
    hard = most_super_additive(model, task, heads, splits=["dev", "hard"], sizes=(2,), replacement="zero")
    assert set(hard["ablated"]) != {"L0.H0 & L0.H1"}
    assert hard.loc[hard["split"] == "pooled", "n"].sum() == 2 * 20  # `hard` alone, with two metrics


def replace_cluster(task):
    splits = [Split(s.name, s.role, s.data.assign(cluster="one"), s.collapse) for s in task.splits]
    return Task(task.name, task.labels, tuple(splits))


def test_map_is_symmetric_and_agrees_with_interaction():
    model, task = hooked("bert"), random_task(20)
    means = means_of(model)
    heads = ["L0.H0", "L0.H1", "L1.H1", "L1.MLP"]
    table = interaction_map(model, task, heads, splits="dev", replacement=means, sizes=(2, 3))
    margin = table[table["metric"] == "margin"]
    matrix = margin.dropna(subset="head").pivot(index="head", columns="other", values="value")
    assert list(matrix.index) == list(matrix.columns) == sorted(heads)
    values = matrix.to_numpy()
    assert np.isnan(np.diag(values)).all() and np.isnan(values).sum() == 4
    np.testing.assert_array_equal(values, values.T)
    assert margin.loc[margin["size"] == 3, "ablated"].tolist() == [
        "L0.H0 & L0.H1 & L1.H1",
        "L0.H0 & L0.H1 & L1.MLP",
        "L0.H0 & L1.H1 & L1.MLP",
        "L0.H1 & L1.H1 & L1.MLP",
    ]
    for name in ("L0.H1 & L1.MLP", "L0.H0 & L0.H1 & L1.H1"):
        alone = interaction(model, task, name, splits="dev", replacement=means)
        same = table[table["ablated"] == name].drop_duplicates("metric")
        pd.testing.assert_frame_equal(same[alone.columns].reset_index(drop=True), alone)
    two = interaction_map(model, task, heads[:2], splits="dev", replacement=means, sizes=(2, 3))
    assert set(two["size"]) == {2}  # there is no triple of two
    drawn = interaction_map(model, task, heads, splits="dev", replacement=means, sizes=(2, 3), budget=8)
    sizes = drawn.drop_duplicates("ablated")["size"].tolist()
    assert sizes == [2] * 6 + [3] * 2


def test_core_alone_keeps_the_core_and_matches_layers():
    model, task = hooked("bert", n_heads=4, n_layers=2), random_task(30)
    means = means_of(model)
    core = ["L0.H2", "L1.H0", "L1.H3"]
    table = core_alone(model, task, core, splits="dev", n_random=6, replacement=means)
    mlps = [c for c in component_set(model) if c.kind == "mlp"]
    accuracy = table[table["metric"] == "accuracy"].set_index("kept")
    kept = evaluate(model, task, Subnetwork.of(model, [*core, *mlps], means), splits="dev")
    assert accuracy.loc["core", "value"] == kept.loc[kept["metric"] == "accuracy", "value"].iloc[0]
    full = evaluate(model, task, splits="dev")
    assert accuracy.loc["full", "value"] == full.loc[full["metric"] == "accuracy", "value"].iloc[0]
    draws = accuracy.loc["random"]
    assert draws["draw"].tolist() == list(range(6))
    for name, value in zip(draws["heads"], draws["value"], strict=True):
        layers = [Component.parse(part).layer for part in name.split(" & ")]
        assert layers == [0, 1, 1]
        some = evaluate(model, task, Subnetwork.of(model, [*name.split(" & "), *mlps], means), splits="dev")
        assert value == some.loc[some["metric"] == "accuracy", "value"].iloc[0]
    expected = (1 + (draws["value"] >= accuracy.loc["core", "value"]).sum()) / 7
    assert accuracy.loc["core", "p"] == expected
    assert accuracy.drop("core")["p"].isna().all()


def test_means_are_of_the_training_data_unless_given():
    """The default is what fit_means gives on all training examples, where there are fewer than 4,096."""
    model, task = hooked("bert"), random_task(20)
    given = ablate(model, task, "L0.H0", replacement=means_of(model, 40))  # builders: the same 40 training examples
    pd.testing.assert_frame_equal(ablate(model, task, "L0.H0"), given, check_exact=False, atol=1e-5)
    zero = ablate(model, task, "L0.H0", replacement="zero")
    assert np.abs(zero["value"] - given["value"]).max() > 1e-4


def test_a_regression_has_one_scale():
    model = load_model(tiny_model("bert", n_labels=1), tokenizer=tiny_tokenizer("bert"))
    data = frame(30).assign(label=np.linspace(0, 5, 30))
    task = Task("score", (), (Split("train", "train", data), Split("dev", "id", data)), metric="pearson")
    table = ablate(model, task, "L0.H0", "dev", replacement="zero")
    assert table["metric"].tolist() == ["negative_squared_error"]
    units = component_set(model)
    replacement = ZeroActivations(model_info(model).weight_hash)
    removed = Subnetwork(units, ~units.mask([Component(0, 0)]), replacement)
    output = predict(model, task, [task.split("dev")], (0,), removed)["output"].to_numpy()
    assert table["value"].item() == pytest.approx(-((output - data["label"]) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: ablate(m, t, "L7.H0"), "L7.H0 is not a unit here"),
        (lambda m, t: ablate(m, t, []), "components is empty: name at least one component."),
        (lambda m, t: ablate(m, t, " "), "components is empty"),
        (lambda m, t: ablate(m, t, ["L0.H0", "L0.H0"]), "components has L0.H0 twice: name each component once."),
        (lambda m, t: ablate(m, t, "5"), "'5' is not a component"),
        (lambda m, t: ablate(m, t, [3]), "components has 3: write a head as L2.H5"),
        (lambda m, t: ablate(m, t, "L0.H0", replacement="median"), "replacement='median': choose 'mean' or 'zero'"),
        (lambda m, t: ablate(m, t, "L0.H0", max_examples=0), "max_examples=0"),
        (lambda m, t: ablate(m, t, "L0.H0", splits="x"), "has no split 'x'"),
        (lambda m, t: ablate(m, without_train(t), "L0.H0"), "no training split to take means over: pass replacement="),
        (lambda m, t: ablate(m, t, "L0.H0", replacement=means_of(hooked("gpt2"))), "other weights"),
        (lambda m, t: interaction(m, t, ["L0.H0"]), "heads is L0.H0: an interaction needs at least two components."),
        (lambda m, t: ablation_table(m, t, ["L0.MLP"]), "heads has L0.MLP: only heads are asked for here, MLPs stay."),
        (lambda m, t: core_alone(m, t, ["L0.H0", "L1.MLP"]), "heads has L1.MLP: only heads"),
        (lambda m, t: core_alone(m, t, ()), "heads is empty: name at least one component."),
        (lambda m, t: core_alone(m, t, "L0.H0", n_random=0), "n_random=0"),
        (lambda m, t: interaction_map(m, t, "L0.H0 & L0.H1", sizes=(3,)), "sizes=(3,): name whole numbers from 2 to 2"),
        (lambda m, t: interaction_map(m, t, "L0.H0 & L0.H1", sizes=()), "sizes=()"),
        (lambda m, t: interaction_map(m, t, "L0.H0 & L0.H1", budget=0), "budget=0"),
    ],
)
def test_mistakes_end_in_a_sentence(call, message):
    with pytest.raises(CoreLensError, match=re.escape(message)):
        call(hooked("bert"), random_task(10))


def without_train(task):
    return Task(task.name, task.labels, tuple(s for s in task.splits if s.role != "train"))
