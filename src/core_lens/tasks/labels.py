"""Labels are matched by name, never by position.

Public NLI checkpoints order entailment, neutral and contradiction in at least three ways, so a class index
means nothing until `id2label` or the user says what it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..errors import TaskError
from ..intervals import wilson
from .base import Task

SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("entailment", "entailed", "entails", "entail"),
    ("neutral",),
    ("contradiction", "contradicts", "contradict", "contradictory"),
    ("not_entailment", "non_entailment", "no_entailment", "not_entailed"),
    ("duplicate", "is_duplicate", "equivalent", "paraphrase"),
    ("not_duplicate", "non_duplicate", "not_equivalent", "non_equivalent", "not_paraphrase", "non_paraphrase",
     "no_paraphrase"),
    ("positive", "pos"),
    ("negative", "neg"),
    ("acceptable", "grammatical"),
    ("unacceptable", "not_acceptable", "ungrammatical"),
)  # fmt: skip
"""Names that checkpoints and files use for the same label, whatever the task."""


def key(name: object) -> str:
    """What is compared of a label's name: no case, spaces, hyphens or underscores."""
    return re.sub(r"[\s_-]+", "", str(name)).lower()


def lookup(labels: Sequence[str], aliases: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """`key` of every name by which a label may be called -> the label. Labels win over aliases, aliases over
    synonyms.

    Args:
        labels: the task's labels.
        aliases: label -> other names.
    """
    found: dict[str, str] = {}
    for label in labels:
        for group in SYNONYMS:
            if key(label) in map(key, group):
                found |= {key(other): label for other in group}
    found |= {key(other): label for label, others in aliases.items() for other in others}
    return found | {key(label): label for label in labels}


def class_order(
    id2label: Mapping[int, str] | Mapping[str, str],
    task: Task,
    label_map: Mapping[object, object] | None = None,
) -> tuple[int, ...]:
    """The class of a checkpoint that stands for each label of a task.

    Example:
        >>> class_order({0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, load_task("mnli"))
        (2, 1, 0)

    Args:
        id2label: class index -> name, from the checkpoint's config.
        task: names the labels.
        label_map: the checkpoint's class (its name, index or LABEL_<index>) -> label of the task, for a
            checkpoint that does not name its classes or names them differently; label -> class is understood
            too.

    Returns:
        One class index per label: logits[:, order] has the task's columns. (0,) for a regression task.

    Raises:
        TaskError: the classes and the labels do not match one to one.
    """
    names = {int(index): str(name) for index, name in id2label.items()}
    classes = ", ".join(names[i] for i in sorted(names))
    if task.is_regression:
        if len(names) != 1:
            raise TaskError(
                f"the model has {len(names)} classes ({classes}), but task {task.name!r} is a regression: "
                "it needs a model with one output (num_labels=1)."
            )
        return (0,)
    if len(names) != len(task.labels):
        raise TaskError(
            f"the model has {len(names)} classes ({classes}), but task {task.name!r} has {len(task.labels)} "
            f"labels ({', '.join(task.labels)}): use a model or a task with the same number."
        )
    known = lookup(task.labels, task.label_aliases)
    label_of = _by_map(label_map, names, task, known) if label_map else _by_name(names, task, known)
    for label in task.labels:
        twice = [names[i] for i, found in label_of.items() if found == label]
        if len(twice) > 1:
            raise TaskError(
                f"{twice[0]!r} and {twice[1]!r} of the model both stand for {label!r} of task {task.name!r}: "
                f"pass label_map={_example(names, task)}, one class per label."
            )
    return tuple(next(i for i, found in label_of.items() if found == label) for label in task.labels)


def _by_name(names: Mapping[int, str], task: Task, known: Mapping[str, str]) -> dict[int, str]:
    label_of = {}
    for index, name in names.items():
        label = known.get(key(name))
        if label is None and re.fullmatch(r"(?i)(label_?)?\d+", name):
            raise TaskError(
                f"the model does not name its classes ({', '.join(names.values())}): say what each stands "
                f"for with label_map=, e.g. label_map={_example(names, task)} if trained in that order."
            )
        if label is None:
            raise TaskError(
                f"the model's class {name!r} is none of the labels of task {task.name!r} "
                f"({', '.join(task.labels)}): say what each class stands for with label_map=, "
                f"e.g. label_map={_example(names, task)}."
            )
        label_of[index] = label
    return label_of


def _by_map(
    label_map: Mapping[object, object], names: Mapping[int, str], task: Task, known: Mapping[str, str]
) -> dict[int, str]:
    if not isinstance(label_map, Mapping):
        raise TaskError(f"label_map={label_map!r}: write it like label_map={_example(names, task)}.")
    by_name = {key(name): index for index, name in names.items()}

    def class_of(value: object) -> int | None:
        if isinstance(value, str) and key(value) in by_name:
            return by_name[key(value)]
        match = re.fullmatch(r"(?:label_?)?(\d+)", str(value).strip().lower())
        return int(match[1]) if match and int(match[1]) in names else None

    pairs = list(label_map.items())
    # class -> label as documented; the reverse only where this way round makes no sense.
    forwards = [(class_of(a), known.get(key(b))) for a, b in pairs]
    backwards = [(class_of(b), known.get(key(a))) for a, b in pairs]
    complete = [all(None not in pair for pair in way) for way in (forwards, backwards)]
    chosen = backwards if complete == [False, True] else forwards
    for (index, label), (given, meant) in zip(chosen, pairs, strict=True):
        if index is None:
            raise TaskError(
                f"label_map has {given!r}, which is no class of the model ({', '.join(names.values())}): "
                f"write it like label_map={_example(names, task)}."
            )
        if label is None:
            raise TaskError(
                f"label_map gives {given!r} the label {meant!r}, which task {task.name!r} does not have: its "
                f"labels are {', '.join(task.labels)}."
            )
    label_of = {index: label for index, label in chosen if index is not None and label is not None}
    missing = [name for index, name in names.items() if index not in label_of]
    if missing:
        raise TaskError(
            f"label_map={dict(label_map)} leaves out the model's class {missing[0]!r}: give each class "
            f"its label, like label_map={_example(names, task)}."
        )
    if len(label_of) != len(chosen):
        raise TaskError(
            f"label_map={dict(label_map)} names one class of the model twice: give each class one label, "
            f"like label_map={_example(names, task)}."
        )
    return label_of


def _example(names: Mapping[int, str], task: Task) -> dict[str, str]:
    return {names[i]: label for i, label in zip(sorted(names), task.labels, strict=False)}


@dataclass(frozen=True)
class BetterAssignment:
    """Another reading of a checkpoint's classes that fits the gold labels better.

    Args:
        permutation: for each label as now assigned, the index of the label that it seems to be.
        accuracy: under that reading.
        given_accuracy: as now assigned.
        interval: 95 % Wilson interval of `given_accuracy`.
    """

    permutation: tuple[int, ...]
    accuracy: float
    given_accuracy: float
    interval: tuple[float, float]

    def label_map(self, id2label: Mapping[int, str], order: Sequence[int], labels: Sequence[str]) -> dict[str, str]:
        """The `label_map` that puts this reading into effect.

        Args:
            id2label: the checkpoint's class names.
            order: the present `class_order`.
            labels: the task's labels.
        """
        return {id2label[order[i]]: labels[j] for i, j in enumerate(self.permutation)}


def better_assignment(confusion: np.ndarray, labels: Sequence[str]) -> BetterAssignment | None:
    """Notice a wrong `label_map` or a mislabelled checkpoint from its answers on in-domain data.

    "Below chance" would not do: with neutral and contradiction swapped, a third of MNLI is still right. The
    best one-to-one assignment of predicted classes to gold labels is reported if its accuracy lies above the
    Wilson interval of the present one, and is itself better than a constant answer (a classifier that always
    says the same is broken, not mislabelled).

    Args:
        confusion: counts [gold, predicted], both in the order of `labels`.
        labels: the task's labels.

    Returns:
        The better assignment, or None where the present one stands.
    """
    counts = np.asarray(confusion)
    if counts.shape != (len(labels), len(labels)):
        raise TaskError(f"a confusion matrix of shape {counts.shape} does not fit the labels {', '.join(labels)}.")
    n = int(counts.sum())
    if n == 0:
        return None
    predicted, gold = linear_sum_assignment(counts.T, maximize=True)
    best, given = int(counts.T[predicted, gold].sum()), int(np.trace(counts))
    interval = wilson(given, n)
    constant = counts.sum(axis=1).max() / n
    if best / n <= interval[1] or wilson(best, n)[0] <= constant:
        return None
    return BetterAssignment(tuple(int(j) for j in gold), best / n, given / n, interval)
