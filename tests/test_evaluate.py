"""Figures of an evaluation against hand-worked values and scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, matthews_corrcoef

from builders import frame, hooked, means_of, random_task
from core_lens import CoreLensError, CoreLensWarning, Split, Subnetwork, Task, evaluate
from core_lens.evaluate import COLUMNS, predict, score
from core_lens.tasks import class_order
from tiny_models import LABELS, tiny_model, tiny_tokenizer

NLI = ("entailment", "neutral", "contradiction")


def hans_like() -> Task:
    texts = pd.DataFrame({"text_a": ["a"] * 4, "text_b": ["b"] * 4, "group": "all", "cluster": [1, 2, 3, 4]})
    collapse = {"neutral": "non-entailment", "contradiction": "non-entailment"}
    return Task(
        "nli",
        NLI,
        (
            Split("dev", "id", texts.assign(label=["entailment", "neutral", "contradiction", "neutral"])),
            Split("hard", "ood", texts.assign(label="non-entailment"), collapse, companion="easy"),
            Split("easy", "companion", texts.assign(label="entailment"), collapse, companion="hard"),
        ),
    )


def predictions(task: Task, split: str, probabilities: list[list[float]]) -> pd.DataFrame:
    data = task.split(split).data
    table = pd.DataFrame(
        {
            "split": split,
            "row": range(len(data)),
            "group": "all",
            "cluster": data["cluster"],
            "label": data["label"],
        }
    )
    table[[f"logit_{label}" for label in NLI]] = np.log(probabilities)
    return table


def value(rows, split, metric, column="value"):
    return float(rows[(rows.split == split) & (rows.metric == metric) & (rows.group == "all")][column].iloc[0])


def test_accuracy_kl_agreement_and_balanced_accuracy_by_hand():
    task = hans_like()
    p = [
        [0.5, 0.3, 0.2],
        [0.1, 0.8, 0.1],
        [0.2, 0.5, 0.3],
        [0.2, 0.3, 0.5],
    ]  # entailment, neutral, neutral, contradiction
    q = [
        [0.5, 0.3, 0.2],
        [0.1, 0.1, 0.8],
        [0.2, 0.5, 0.3],
        [0.5, 0.3, 0.2],
    ]  # entailment, contradiction, neutral, entailment
    full = pd.concat([predictions(task, s, p) for s in ("dev", "hard", "easy")], ignore_index=True)
    ours = pd.concat([predictions(task, s, q) for s in ("dev", "hard", "easy")], ignore_index=True)
    rows = score(ours, task, teacher=full)
    assert list(rows.columns) == COLUMNS
    assert value(rows, "dev", "accuracy") == 0.25
    assert value(rows, "hard", "accuracy") == 0.5  # neutral and contradiction are both non-entailment
    assert value(rows, "easy", "accuracy") == 0.5
    assert value(rows, "hard", "balanced_accuracy") == 0.5 and value(rows, "hard", "balanced_accuracy", "n") == 8
    assert value(rows, "dev", "agreement") == 0.5
    assert value(rows, "hard", "agreement") == 0.75  # neutral -> contradiction is no change there
    kl = (0.8 * np.log(8) + 0.1 * np.log(1 / 8)) + (0.2 * np.log(0.2 / 0.5) + 0.5 * np.log(0.5 / 0.2))
    assert value(rows, "dev", "kl") == pytest.approx(kl / 4)
    assert (value(rows, "dev", "accuracy", "low"), value(rows, "dev", "accuracy", "high")) == pytest.approx(
        tuple(stats.binomtest(1, 4).proportion_ci(method="wilson")), abs=1e-9
    )


def test_a_constant_answer_is_shown_for_what_it_is():
    """Always entailment: 100 % on the companion, 0 on the subcase, one half balanced."""
    task = hans_like()
    always = [[0.98, 0.01, 0.01]] * 4
    rows = score(pd.concat([predictions(task, s, always) for s in ("hard", "easy")], ignore_index=True), task)
    assert value(rows, "easy", "accuracy") == 1 and value(rows, "hard", "accuracy") == 0
    assert value(rows, "hard", "balanced_accuracy") == balanced_accuracy_score([0] * 4 + [1] * 4, [1] * 8) == 0.5


def test_mcc_and_pearson_against_other_implementations():
    rng = np.random.default_rng(0)
    n = 80
    base = frame(n, 0, ("no", "yes"))
    table = base[["group", "cluster", "label"]].assign(split="dev", row=range(n))
    table[["logit_no", "logit_yes"]] = rng.normal(size=(n, 2)) + np.where(
        base["label"].to_numpy()[:, None] == ["no", "yes"], 1, 0
    )
    task = Task("cola-like", ("no", "yes"), (Split("dev", "id", base),), metric="mcc")
    guess = np.where(table["logit_no"] > table["logit_yes"], "no", "yes")
    rows = score(table, task)
    assert value(rows, "dev", "mcc") == pytest.approx(matthews_corrcoef(base["label"], guess))
    assert value(rows, "dev", "mcc", "low") < value(rows, "dev", "mcc") < value(rows, "dev", "mcc", "high")
    numbers = base.assign(label=rng.normal(size=n))
    out = numbers[["group", "cluster", "label"]].assign(
        split="dev", row=range(n), output=numbers["label"] + rng.normal(size=n)
    )
    task = Task("sts-like", (), (Split("dev", "id", numbers),), metric="pearson")
    assert value(score(out, task), "dev", "pearson") == pytest.approx(stats.pearsonr(out["output"], out["label"])[0])
    shifted = out.assign(output=out["output"] + 2)
    assert value(score(shifted, task, teacher=out), "dev", "squared_error_to_full") == pytest.approx(4.0)


def test_predictions_match_hf_one_row_at_a_time_in_the_tasks_label_order():
    hf, tokenizer = tiny_model("bert"), tiny_tokenizer("bert")
    hf.config.id2label = {0: "contradiction", 1: "entailment", 2: "neutral"}
    model = __import__("core_lens").load_model(hf, tokenizer=tokenizer)
    task = random_task(20)
    order = class_order(hf.config.id2label, task)
    table = predict(model, task, task.select("dev"), order, batch_size=7)
    for i, row in task.split("dev").data.reset_index(drop=True).iterrows():
        logits = hf(**tokenizer(row["text_a"], row["text_b"], return_tensors="pt")).logits[0].tolist()
        ours = table.loc[i, [f"logit_{label}" for label in LABELS]].to_numpy(dtype=float)
        assert ours == pytest.approx([logits[1], logits[2], logits[0]], abs=1e-5)


def test_groups_are_reported_beside_the_whole():
    rows = evaluate(hooked(), random_task(40), splits=["hard", "hard"])
    assert set(rows["split"]) == {"hard", "easy"}  # the companion is always shown, and a split counts once
    accuracy = rows[(rows.metric == "accuracy") & (rows.split == "hard")].set_index("group")
    assert set(accuracy.index) == {"all", "a", "b"} and accuracy.loc["a", "n"] == 20
    mean = (accuracy.loc["a", "value"] + accuracy.loc["b", "value"]) / 2
    assert accuracy.loc["all", "value"] == pytest.approx(mean)


def test_the_full_mask_has_no_kl_and_full_agreement():
    model = hooked()
    everything = Subnetwork.of(model, list(Subnetwork.of(model, [], means_of(model)).units), means_of(model))
    rows = evaluate(model, random_task(30), everything)
    assert rows[rows.metric == "kl"]["value"].abs().max() < 1e-6
    assert (rows[rows.metric == "agreement"]["value"] == 1).all()


def test_mixed_up_labels_are_noticed():
    """A model that is right all the time but for neutral and contradiction, which its config swaps."""
    task = hans_like()
    data = pd.concat([frame(60, 4).assign(label=label) for label in NLI], ignore_index=True)
    task = Task("nli", NLI, (Split("dev", "id", data),))
    swapped = {"entailment": 0, "neutral": 2, "contradiction": 1}
    table = data[["group", "cluster", "label"]].assign(split="dev", row=range(len(data)))
    table[[f"logit_{label}" for label in NLI]] = np.eye(3)[[swapped[label] for label in data["label"]]] * 5
    from core_lens.evaluate import warn_about_labels

    with pytest.warns(
        CoreLensWarning, match=r"scores 0\.333 as they are named, and 1\.000 with label_map=.*'C': 'neutral'"
    ):
        warn_about_labels(table, task, {0: "E", 1: "N", 2: "C"}, [0, 1, 2])


def test_nan_outputs_are_named():
    model = hooked()
    model.original_model.classifier.bias.data[0] = float("nan")
    with pytest.raises(CoreLensError, match="output on row 0 of 'dev' is NaN"):
        evaluate(model, random_task(10))


def test_mcc_on_a_split_that_collapses_labels():
    task = random_task(30)
    rows = evaluate(hooked(), Task("t", task.labels, task.splits, metric="mcc"), splits="hard")
    assert (rows[(rows.metric == "mcc") & (rows.split == "hard")]["value"] == 0).all()  # one gold label only


def test_user_mistakes():
    with pytest.raises(CoreLensError, match="batch_size=0"):
        evaluate(hooked(), random_task(10), batch_size=0)
    with pytest.raises(CoreLensError, match="no split 'nope'"):
        evaluate(hooked(), random_task(10), splits=["nope"])
    with pytest.raises(CoreLensError, match="other weights"):
        evaluate(hooked(), random_task(10), Subnetwork.of(hooked(seed=1), [], means_of(hooked(seed=1))))
