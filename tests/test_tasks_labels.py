"""Labels are matched by name; wrong and missing names are noticed."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from core_lens.errors import TaskError
from core_lens.tasks import Split, Task, better_assignment, class_order

NLI = ("entailment", "neutral", "contradiction")


def task(*labels: str, **options) -> Task:
    frame = pd.DataFrame({"text_a": ["a"], "label": [labels[0] if labels else 1.0], "group": "all", "cluster": "a"})
    return Task("t", labels, (Split("id", "id", frame),), **options)


MATCHES = [
    (NLI, ["entailment", "neutral", "contradiction"], (0, 1, 2)),
    (NLI, ["contradiction", "entailment", "neutral"], (1, 2, 0)),  # cross-encoders
    (NLI, ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], (2, 1, 0)),  # roberta-large-mnli, bart-large-mnli
    (NLI, ["Entailment", " Neutral ", "Contradiction"], (0, 1, 2)),
    (("entailment", "not_entailment"), ["non-entailment", "entailment"], (1, 0)),
    (("entailment", "not_entailment"), ["entailment", "Not Entailment"], (0, 1)),
    (("not_duplicate", "duplicate"), ["equivalent", "not_equivalent"], (1, 0)),
    (("not_duplicate", "duplicate"), ["not_paraphrase", "paraphrase"], (0, 1)),
    (("not_equivalent", "equivalent"), ["DUPLICATE", "not duplicate"], (1, 0)),
    (("negative", "positive"), ["POSITIVE", "NEGATIVE"], (1, 0)),
    (("unacceptable", "acceptable"), ["acceptable", "unacceptable"], (1, 0)),
    (("spam", "ham"), ["Ham", "Spam"], (1, 0)),
]


@pytest.mark.parametrize(("labels", "names", "order"), MATCHES)
def test_match_by_name(labels: tuple[str, ...], names: list[str], order: tuple[int, ...]) -> None:
    assert class_order(dict(enumerate(names)), task(*labels)) == order
    # JSON turns the keys of id2label to text.
    assert class_order({str(i): name for i, name in enumerate(names)}, task(*labels)) == order


def test_order_picks_the_columns_of_the_task() -> None:
    logits = np.array([[10, 20, 30]])  # contradiction, entailment, neutral
    order = class_order({0: "contradiction", 1: "entailment", 2: "neutral"}, task(*NLI))
    assert logits[:, order].tolist() == [[20, 30, 10]]


def test_aliases_of_the_task() -> None:
    own = task("spam", "ham", label_aliases={"ham": ("legitimate",)})
    assert class_order({0: "legitimate", 1: "spam"}, own) == (1, 0)


LABEL_MAPS = [
    {"LABEL_0": "contradiction", "LABEL_1": "entailment", "LABEL_2": "neutral"},
    {0: "contradiction", 1: "entailment", 2: "neutral"},
    {"0": "Contradiction", "1": "ENTAILMENT", "2": "neutral"},
    {"contradiction": "LABEL_0", "entailment": "LABEL_1", "neutral": "LABEL_2"},
    {"contradiction": 0, "entailment": 1, "neutral": 2},
    {"label_0": "contradiction", 1: "entailment", "2": "neutral"},
]


@pytest.mark.parametrize("label_map", LABEL_MAPS)
def test_label_map(label_map: dict) -> None:
    assert class_order({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, task(*NLI), label_map) == (1, 2, 0)


def test_label_map_overrules_names_and_reads_class_to_label_first() -> None:
    # The checkpoint calls its classes by the task's names, in the wrong places: both directions make sense,
    # and class -> label is the documented one. A three-cycle tells them apart.
    names = {0: "entailment", 1: "neutral", 2: "contradiction"}
    label_map = {"entailment": "neutral", "neutral": "contradiction", "contradiction": "entailment"}
    assert class_order(names, task(*NLI), label_map) == (2, 0, 1)


GENERIC = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
BAD = {
    "unnamed": (GENERIC, None, r"=\{'LABEL_0': 'entailment', 'LABEL_1': 'neutral', 'LABEL_2'"),
    "numbers": ({0: "0", 1: "1", 2: "2"}, None, "does not name its classes"),
    "two classes": ({0: "entailment", 1: "neutral"}, None, r"2 classes \(entailment, neutral\).*3 labels"),
    "foreign name": ({0: "entailment", 1: "neutral", 2: "refuted"}, None, "class 'refuted' is none of"),
    "twice": ({0: "entailment", 1: "entails", 2: "neutral"}, None, "'entails' of the model both stand"),
    "incomplete map": (GENERIC, {0: "entailment", 1: "neutral"}, "leaves out the model's class 'LABEL_2'"),
    "double label": (GENERIC, {0: "entailment", 1: "neutral", 2: "neutral"}, "both stand for 'neutral'"),
    "double class": (GENERIC, {0: NLI[0], 1: NLI[1], 2: NLI[2], "LABEL_0": NLI[1]}, "one class"),
    "unknown label": (GENERIC, {0: "entailment", 1: "neutral", 2: "refuted"}, "'refuted', which task 't'"),
    "unknown class": (GENERIC, {0: "entailment", 1: "neutral", 7: "contradiction"}, "7, which is no class"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_mismatches_get_one_sentence(case: str) -> None:
    id2label, label_map, message = BAD[case]
    with pytest.raises(TaskError, match=message) as error:
        class_order(id2label, task(*NLI), label_map)
    assert "\n" not in str(error.value)


def test_regression_needs_one_output() -> None:
    regression = task(metric="pearson")
    assert class_order({0: "LABEL_0"}, regression) == (0,)
    with pytest.raises(TaskError, match=r"3 classes.*regression"):
        class_order(GENERIC, regression)


# --- a wrong assignment is noticed ----------------------------------------------------------------


def confusion(right: int, wrong: int, permutation: tuple[int, ...] = (0, 1, 2)) -> np.ndarray:
    """A classifier right `right` times and wrong `wrong` times each way, whose columns are then permuted."""
    counts = np.full((3, 3), wrong) + np.eye(3, dtype=int) * (right - wrong)
    return counts[:, list(permutation)]


def test_swapped_neutral_and_contradiction_is_noticed_though_a_third_is_right() -> None:
    counts = confusion(80, 10, (0, 2, 1))
    found = better_assignment(counts, NLI)
    assert found is not None
    # Entailment right 80 of 300, and 10 + 10 more by accident: 1/3 in all, which is chance.
    assert found.given_accuracy == pytest.approx(100 / 300)
    assert found.accuracy == pytest.approx(240 / 300)
    assert found.permutation == (0, 2, 1)
    assert found.interval[0] < 1 / 3 < found.interval[1] < 0.4
    names = {0: "a", 1: "b", 2: "c"}
    assert found.label_map(names, (0, 1, 2), NLI) == {"a": "entailment", "b": "contradiction", "c": "neutral"}


@pytest.mark.parametrize("truth", list(itertools.permutations(range(3))))
def test_the_suggested_label_map_repairs_any_mix_up(truth: tuple[int, ...]) -> None:
    """Class c of the model means label truth[c], but its config claims that class c is label c."""
    rng = np.random.default_rng(0)
    gold = rng.integers(3, size=3000)
    says = np.where(rng.random(3000) < 0.8, gold, rng.integers(3, size=3000))  # the label that it means
    classes = np.argsort(truth)[says]  # the class that it outputs for it
    names = dict(enumerate(NLI))
    order = class_order(names, task(*NLI))
    counts = np.zeros((3, 3), dtype=int)
    np.add.at(counts, (gold, np.argsort(order)[classes]), 1)
    found = better_assignment(counts, NLI)
    if truth == (0, 1, 2):
        assert found is None
        return
    assert found is not None
    repaired = class_order(names, task(*NLI), found.label_map(names, order, NLI))
    assert (np.argsort(repaired)[classes] == gold).mean() == pytest.approx(found.accuracy)
    assert repaired == tuple(np.argsort(truth))


def test_a_right_assignment_stands() -> None:
    assert better_assignment(confusion(80, 10), NLI) is None
    assert better_assignment(np.zeros((3, 3), dtype=int), NLI) is None
    # 190 of 300 with two labels swapped, 180 without; its interval ends at .654: no evidence.
    close = np.array([[90, 5, 5], [5, 45, 50], [5, 50, 45]])
    assert better_assignment(close, NLI) is None
    assert better_assignment(close * 100, NLI) is not None


def test_a_constant_answer_is_broken_not_mislabelled() -> None:
    # Always "no" where 630 of 1,000 are "yes": renaming it would score .63, as much as any constant.
    assert better_assignment(np.array([[370, 0], [630, 0]]), ("no", "yes")) is None


def test_confusion_of_the_wrong_shape() -> None:
    with pytest.raises(TaskError, match=r"\(2, 2\) does not fit"):
        better_assignment(np.zeros((2, 2)), NLI)
