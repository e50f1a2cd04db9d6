"""The generalisation gap: figures by hand, divergence against scipy, verdicts on made answers, both kinds of model."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from builders import hooked, means_of, random_task
from core_lens.ablation import ZeroActivations
from core_lens.completions import Completions
from core_lens.errors import CoreLensError, TaskError
from core_lens.evaluate import evaluate
from core_lens.generalization import (
    GAP_COLUMNS,
    ProxyComparison,
    attention_divergence,
    compare_proxies,
    generalization_gap,
)
from core_lens.hooked import batches, encode, load_language_model, load_model, logits, model_info
from core_lens.intervals import bootstrap, bootstrap_draws, interval
from core_lens.simplify import SVD, KMeans, OneHot
from core_lens.subnetwork import Subnetwork
from test_simplify import SEQUENCES, patterns_of
from tiny_models import tiny_language_model, tiny_model

TASK = random_task(30)


@pytest.fixture(scope="module")
def language_model():
    return load_language_model(tiny_language_model(seed=3))


def asked(name="some", sequences=SEQUENCES, choices=None):
    rows = [(i, j, j % 2) for i, sequence in enumerate(sequences) for j in range(1, len(sequence))]
    return Completions.of(name, sequences, pd.DataFrame(rows, columns=["row", "position", "odd"]), choices)


def test_divergence_is_the_square_of_scipys():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.3), size=(2, 3, 4, 5)).astype(np.float32)
    p[0, 0, 0], q[0, 0, 0] = [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]  # as far apart as can be: ln 2
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    found = attention_divergence(torch.tensor(p), torch.tensor(q), torch.tensor(mask))
    each = jensenshannon(p, q, axis=-1) ** 2
    assert each[0, 0, 0] == pytest.approx(np.log(2))
    for example in range(3):
        assert np.allclose(found[example], each[example][:, mask[example]].mean(axis=-1), atol=1e-6)


def test_divergence_of_the_smallest_numbers_is_finite():
    tiny = torch.tensor([[[[1.0, 1e-45]]]])
    found = attention_divergence(tiny, torch.tensor([[[[1.0, 0.0]]]]), torch.ones(1, 1).bool())
    assert found.item() == pytest.approx(0, abs=1e-12)


def comparison(inside, outside, gold_inside=None, gold_outside=None, n=400):
    """A model that answers 1 and a proxy, on two splits with one question per cluster; arguments are shares of answers 1."""

    def ones(share):
        return (np.arange(n) < round(share * n)).astype(int)

    gold = np.concatenate(
        [ones(1 if gold_inside is None else gold_inside), ones(1 if gold_outside is None else gold_outside)]
    )
    questions = pd.DataFrame({"split": np.repeat(["in", "out"], n), "cluster": np.arange(2 * n), "gold": gold})
    answers = pd.DataFrame({"model": 1, "proxy": np.concatenate([ones(inside), ones(outside)])})
    divergence = pd.DataFrame(
        {"split": ["in", "in", "out"], "proxy": "proxy", "L0.H0": [0.1, 0.3, 0.5], "L0.H1": [0.3, 0.5, 0.7]}
    )
    return ProxyComparison(questions, answers, divergence)


def test_the_table_by_hand():
    table = comparison(0.95, 0.75, gold_outside=0.6).gaps()
    assert [*table.columns] == ["proxy", *GAP_COLUMNS]
    first, second = (row._asdict() for row in table.itertuples(index=False))
    assert (first["agreement"], first["gap"], first["low"], first["high"]) == (0.95, 0, 0, 0)
    assert first["jsd"] == pytest.approx((0.2 + 0.4) / 2)
    assert second["jsd"] == pytest.approx((0.5 + 0.7) / 2)
    assert second["agreement"] == 0.75
    assert second["gap"] == pytest.approx(0.2)
    assert second["accuracy_model"] == pytest.approx(0.6)
    assert second["accuracy_proxy"] == pytest.approx(0.85)  # it says 1 to .75, of which .6 are right, and 0 to .25
    # The normal approximation of a difference of two independent shares
    half = 1.96 * np.sqrt(0.95 * 0.05 / 400 + 0.75 * 0.25 / 400)
    assert second["low"] == pytest.approx(0.2 - half, abs=0.006)
    assert second["high"] == pytest.approx(0.2 + half, abs=0.006)


@pytest.mark.parametrize(("inside", "outside", "gold", "verdict"), [
    (0.98, 0.7, 1.0, "underestimates"),  # the model is right, the proxy answers otherwise
    (0.98, 0.7, 0.7, "overestimates"),  # the model is wrong where the proxy answers otherwise
    (0.98, 0.97, 0.985, "faithful"),
    (0.995, 0.985, 0.0, "overestimates"),  # by .015, and the interval is without 0
    (1.0, 0.995, 1.0, "faithful"),  # a difference of .005
])  # fmt: skip
def test_verdicts(inside, outside, gold, verdict):
    assert comparison(inside, outside, gold_outside=gold).gaps()["verdict"].iloc[1] == verdict


def test_clusters_of_both_splits_are_drawn_together():
    """Sequences whose questions differ in difficulty, and a split that holds every second question of each of them."""
    rng = np.random.default_rng(0)
    ease = rng.beta(1, 1, size=200)
    same = (rng.random((200, 40)) < ease[:, None]).astype(int)
    cluster, split = np.repeat(np.arange(200), 40), "whole"
    questions = pd.DataFrame({"split": split, "cluster": cluster, "gold": 1})
    half = np.tile([True, False], 4000)
    both = pd.concat(
        [questions, questions[half].assign(split="half"), questions.assign(split="copy")], ignore_index=True
    )
    said = np.concatenate([same.ravel(), same.ravel()[half], same.ravel()])
    divergence = pd.DataFrame({"split": ["whole", "half", "copy"], "proxy": "proxy", "L0.H0": 0.1})
    table = ProxyComparison(both, pd.DataFrame({"model": 1, "proxy": said}), divergence).gaps().set_index("split")
    assert table.loc["copy", ["gap", "low", "high"]].tolist() == [0, 0, 0]
    # The difference of a sequence's two means, whose spread over sequences gives the error.
    each = same.mean(axis=1) - same[:, ::2].mean(axis=1)
    row = table.loc["half"]
    assert row["gap"] == pytest.approx(each.mean())
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * each.std() / 200**0.5, rel=0.1)


def test_labels_that_a_split_counts_as_one_are_one_on_both_sides():
    """The same examples as dev, with two labels collapsed: no gap, whatever the proxy confuses."""
    collapse = {"neutral": "non-entailment", "contradiction": "non-entailment"}
    dev = TASK.split("dev")
    copy = replace(
        dev, name="copy", role="ood", collapse=collapse, data=dev.data.assign(label=dev.data["label"].replace(collapse))
    )
    task = replace(TASK, splits=(TASK.split("train"), dev, copy))
    model = hooked("llama")
    table = generalization_gap(model, KMeans(1).fit(model, task), task).set_index("split")
    assert table.loc["dev", "agreement"] < table.loc["copy", "agreement"]  # what it confuses is one label there
    assert table.loc["copy", ["gap", "low", "high"]].tolist() == [0, 0, 0]


def test_one_cluster_says_nothing():
    made = comparison(0.5, 0.5)
    one = ProxyComparison(made.questions.assign(cluster=0), made.answers, made.divergence).gaps()
    assert one["low"].isna().tolist() == [False, True]
    assert one["verdict"].tolist() == ["as good, other predictions"] * 2  # no interval, no difference
    missing = made.questions.assign(cluster=made.questions["cluster"].where(made.questions["cluster"] % 2 == 0))
    assert ProxyComparison(missing, made.answers, made.divergence).gaps()["low"].notna().all()


def test_bfloat16_models():
    model = hooked("bert")
    half = load_model(tiny_model("bert"), tokenizer=model.tokenizer, dtype="bfloat16")
    table = generalization_gap(half, OneHot().fit(half), TASK, max_examples=8)
    assert np.isfinite(table["jsd"]).all() and table["jsd"].max() > 0.01


def test_comparisons_are_saved_and_joined(tmp_path, language_model):
    splits = {"first": asked("first"), "second": asked("second", SEQUENCES[:3])}
    proxies = {"SVD 2": SVD(2).fit(language_model, SEQUENCES), "one-hot": OneHot().fit(language_model)}
    whole = compare_proxies(language_model, proxies, splits, attended=True)
    parts = [compare_proxies(language_model, {name: proxy}, splits, attended=True) for name, proxy in proxies.items()]
    for part, name in zip(parts, ("a", "b")):
        part.save(tmp_path / name)
    joined = ProxyComparison.joined([ProxyComparison.load(tmp_path / name) for name in ("a", "b")])
    pd.testing.assert_frame_equal(joined.gaps(), whole.gaps())
    pd.testing.assert_frame_equal(joined.attended, whole.attended)
    with pytest.raises(CoreLensError, match="in two of the comparisons"):
        ProxyComparison.joined([parts[0], parts[0]])
    with pytest.raises(CoreLensError, match="same questions"):
        other = compare_proxies(
            language_model, {"one-hot": proxies["one-hot"]}, {"first": splits["first"]}, attended=True
        )
        ProxyComparison.joined([parts[0], other])
    with pytest.raises(CoreLensError, match="no comparisons"):
        ProxyComparison.joined([])
    for text in ("{}", "[]", '{"files": {}}', "{"):
        (tmp_path / "a" / "comparison.json").write_text(text)
        with pytest.raises(CoreLensError, match="damaged"):
            ProxyComparison.load(tmp_path / "a")


def test_as_good_with_other_predictions():
    found = comparison(0.98, 0.5)
    answers = found.answers.copy()
    gold = found.questions["gold"].to_numpy().copy()
    # Outside, the model is right on the first half, and the proxy on the second.
    answers.loc[400:, "proxy"] = 0
    gold[400:] = (np.arange(400) < 200).astype(int)
    made = ProxyComparison(found.questions.assign(gold=gold), answers, found.divergence)
    row = made.gaps().iloc[1]
    assert row["accuracy_model"] == row["accuracy_proxy"] == 0.5
    assert row["agreement"] == 0
    assert row["verdict"] == "as good, other predictions"


def test_bootstrap_draws_are_the_bootstrap():
    rng = np.random.default_rng(1)
    values, clusters = rng.random(30), np.repeat(np.arange(10), 3)
    means = interval(bootstrap_draws(values, clusters, 300, seed=4))
    assert means == pytest.approx(bootstrap(lambda w: np.average(values, weights=w), clusters, 300, seed=4))
    assert np.isnan(interval(bootstrap_draws(values, np.zeros(30, dtype=int)))).all()


def test_a_classifier_and_its_proxies():
    model = hooked("bert")
    proxies = {"none": SVD(8).fit(model, TASK), "rough": SVD(1).fit(model, TASK), "one-hot": OneHot().fit(model)}
    found = compare_proxies(model, proxies, TASK)
    table = found.gaps()
    assert found.splits == ["dev", "hard", "easy"]
    none = table[table["proxy"] == "none"]
    assert (none["agreement"] == 1).all()
    assert none["jsd"].max() < 1e-7
    assert (none["verdict"] == "faithful").all()
    accuracy = evaluate(model, TASK).query("metric == 'accuracy' and group == 'all'").set_index("split")["value"]
    assert np.allclose(none["accuracy_model"], accuracy[none["split"]])
    # The proxy's answers, recomputed example by example
    split = TASK.split("hard")
    row = table[(table["proxy"] == "one-hot") & (table["split"] == "hard")].iloc[0]
    said = []
    for i in range(len(split)):
        part = type(split)(split.name, split.role, split.data.iloc[[i]], split.collapse)
        _, inputs = next(batches(encode(part, model.tokenizer), 1))
        with proxies["one-hot"].apply(model):
            said += list(part.predictions(logits(model, inputs).numpy(), TASK.labels))
        if i == 3:
            own, changed = patterns_of(model, inputs), patterns_of(model, inputs, proxies["one-hot"])
            expected = np.mean(jensenshannon(own[1][0, 1].numpy(), changed[1][0, 1].numpy(), axis=-1) ** 2)
            part = found.divergence[(found.divergence["split"] == "hard") & (found.divergence["proxy"] == "one-hot")]
            assert part["L1.H1"].iloc[3] == pytest.approx(expected, abs=1e-6)
    assert row["accuracy_proxy"] == pytest.approx(np.mean(np.array(said) == split.data["label"]))
    assert row["n"] == 30


def test_a_subnetwork_is_one_more_proxy():
    model = hooked("bert")
    everything = [f"L{i}.{unit}" for i in range(2) for unit in ("H0", "H1", "MLP")]
    whole = Subnetwork.of(model, everything, means_of(model))
    dead = Subnetwork.of(model, [], ZeroActivations(model_info(model).weight_hash))
    table = generalization_gap(model, {"whole": whole, "dead": dead}, TASK)
    assert (table[table["proxy"] == "whole"]["agreement"] == 1).all()
    assert table[table["proxy"] == "dead"]["agreement"].min() < 1
    own = evaluate(model, TASK, dead).query("metric == 'agreement' and group == 'all'").set_index("split")["value"]
    assert np.allclose(table[table["proxy"] == "dead"]["agreement"], own[table[table["proxy"] == "dead"]["split"]])


def test_a_language_model_and_its_proxies(language_model):
    splits = {"in": asked(), "out": asked(sequences=[s[::-1] for s in SEQUENCES], choices=range(1, 12))}
    proxies = {p.name: p.fit(language_model, SEQUENCES) for p in (SVD(8), KMeans(64), KMeans(2))}
    found = compare_proxies(language_model, proxies, splits, batch_size=2, attended=True)
    table = found.gaps()
    assert (table[table["proxy"] == "SVD 8"]["agreement"] == 1).all()
    # Fitted on the very sequences with a centre for each vector: the identity there.
    assert table[(table["proxy"] == "k-means 64") & (table["split"] == "in")]["agreement"].item() == 1
    assert table[table["proxy"] == "k-means 2"]["agreement"].min() < 1
    # Each question by itself, from a batch of one
    for split, one in splits.items():
        rows = found.questions["split"] == split
        model = []
        for i, j in one.asked[["row", "position"]].to_numpy():
            ids = torch.tensor([one.encoded.row(int(i))])
            values = logits(language_model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})[0, j - 1]
            values[0] -= 1e9 * (split == "out")
            model.append(values.argmax().item())
        assert found.answers["model"][rows].tolist() == model
        gold = [one.encoded.row(int(i))[j] for i, j in one.asked[["row", "position"]].to_numpy()]
        assert found.questions["gold"][rows].tolist() == gold
    last = {"input_ids": torch.tensor([SEQUENCES[2]]), "attention_mask": torch.ones(1, 7, dtype=torch.long)}
    expected = patterns_of(language_model, last)[1][0, 0].argmax(-1)[:-1].tolist()
    mine = (found.questions["split"] == "in") & (found.questions["row"] == 2)
    assert found.attended["model"]["L1.H0"][mine].tolist() == expected
    by = found.agreement(by=["odd"])
    part = by[(by["split"] == "in") & (by["proxy"] == "k-means 2") & (by["odd"] == 1) & (by["metric"] == "agreement")]
    chosen = (found.questions["split"] == "in") & (found.questions["odd"] == 1)
    assert part["value"].item() == (found.answers["k-means 2"] == found.answers["model"])[chosen].mean()
    assert part["low"].item() <= part["value"].item() <= part["high"].item()
    jsd = found.jsd()
    values = found.divergence.query("split == 'in' and proxy == 'k-means 2'")["L0.H1"]
    assert jsd.query("split == 'in' and proxy == 'k-means 2' and head == 'L0.H1'")["jsd"].item() == pytest.approx(
        values.mean()
    )


def test_batch_size_and_padding_do_not_show(language_model):
    splits, proxy = {"in": asked()}, {"rough": KMeans(2).fit(language_model, SEQUENCES)}
    one, many = (compare_proxies(language_model, proxy, splits, batch_size=n) for n in (1, 3))
    pd.testing.assert_frame_equal(one.answers, many.answers)
    pd.testing.assert_frame_equal(one.divergence, many.divergence, atol=1e-6)


def test_one_proxy_needs_no_name():
    model = hooked("bert")
    table = generalization_gap(model, SVD(2).fit(model, TASK), TASK, splits=["hard", "dev"], max_examples=10)
    assert [*table.columns] == GAP_COLUMNS
    assert table["split"].tolist() == ["dev", "hard", "easy"]  # in distribution first
    assert (table["n"] == 10).all()


@pytest.mark.parametrize(("call", "message"), [
    (lambda m, lm: generalization_gap(m, {}, TASK), "there are no proxies"),
    (lambda m, lm: generalization_gap(m, {"model": OneHot().fit(m)}, TASK), "a proxy is named 'model'"),
    (lambda m, lm: generalization_gap(m, "SVD", TASK), "cannot stand for a model"),
    (lambda m, lm: generalization_gap(m, OneHot(), TASK), "one-hot is not fitted yet"),
    (lambda m, lm: generalization_gap(m, OneHot().fit(m), {"in": asked()}), "is a classifier: pass a Task"),
    (lambda m, lm: generalization_gap(lm, OneHot().fit(lm), TASK), "is a language model"),
    (lambda m, lm: generalization_gap(lm, OneHot().fit(lm), {}), "at least one split"),
    (lambda m, lm: generalization_gap(lm, OneHot().fit(lm), {"in": SEQUENCES}), "is a list, not Completions"),
    (lambda m, lm: generalization_gap(m, OneHot().fit(m), TASK, splits="hard"), "name an in-domain split"),
    (lambda m, lm: generalization_gap(m, OneHot().fit(m), TASK, max_examples=0), "max_examples=0"),
    (lambda m, lm: generalization_gap(m, OneHot().fit(lm), TASK), "other weights"),
])  # fmt: skip
def test_mistakes_end_in_a_sentence(language_model, call, message):
    with pytest.raises(CoreLensError, match=message):
        call(hooked("bert"), language_model)


def test_numbers_for_labels_have_no_agreement():
    frame = TASK.split("train").data.assign(label=1.0)
    from core_lens.tasks import Split, Task

    task = Task("r", (), (Split("train", "train", frame), Split("dev", "id", frame)), metric="pearson")
    model = hooked("bert", n_labels=1)
    with pytest.raises(TaskError, match="numbers for labels"):
        generalization_gap(model, OneHot().fit(model), task)
