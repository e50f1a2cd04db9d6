"""From any DataFrame with texts and labels to the schema of `Split`, or one clear sentence why not."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import CoreLensWarning, TaskError
from .base import Frames, Metric, Role, Split, Task, without_overlap
from .labels import key, lookup

PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("#1 String", "#2 String"),
    ("text_a", "text_b"),
)
"""The usual columns of a pair: NLI, most of GLUE, QQP, QNLI, SetFit's copies, MRPC's tsv, our own schema."""

SINGLES = ("sentence", "text", "text_a")
LABELS = ("gold_label", "label", "labels", "is_duplicate", "score", "Quality")
ALL = "all"
"""The group of a split that has none."""


def text_columns(frame: pd.DataFrame, where: str, pair: bool | None = None) -> tuple[str, ...]:
    """The text columns of a frame by their usual names.

    Args:
        frame: any frame.
        where: what it is, for the message.
        pair: whether two texts are needed; None takes what there is.

    Raises:
        TaskError: no usual name is there.
    """
    options = [*(PAIRS if pair is not False else ()), *((name,) for name in SINGLES if pair is not True)]
    for names in options:
        if set(names) <= set(frame.columns):
            return names
    need = " and ".join(options[0])
    raise TaskError(
        f"{where} has no text columns by the usual names ({need}, ...): it has {_columns(frame)}; "
        "say which they are with text=, in Task.from_dataframes or Task.from_files."
    )


def label_column(frame: pd.DataFrame, where: str) -> str:
    """The label column of a frame by its usual name; TaskError where there is none."""
    for name in LABELS:
        if name in frame.columns:
            return name
    raise TaskError(
        f"{where} has no label column by the usual names ({', '.join(LABELS)}): it has {_columns(frame)}; "
        "say which it is with label=, in Task.from_dataframes or Task.from_files."
    )


def to_schema(
    frame: pd.DataFrame,
    where: str,
    *,
    text: Sequence[str],
    label: str,
    group: str | None = None,
    cluster: str | None = None,
) -> pd.DataFrame:
    """The columns of `Split`, labels as they are in the frame.

    Args:
        frame: any frame.
        where: what it is, for messages.
        text: one or two columns.
        label: its column.
        group: its column; None gives every row the group `all`.
        cluster: its column; None takes the first text.

    Raises:
        TaskError: a column, a text or a label is missing.
    """
    for column in (*text, label, group, cluster):
        if column is not None and column not in frame.columns:
            raise TaskError(f"{where} has no column {column!r}: it has {_columns(frame)}.")
    for column in (*text, label):
        values: pd.Series = frame.loc[:, column]
        blank = values.astype(str).str.strip().eq("") if column == label else False
        rows = np.flatnonzero(values.isna() | blank)
        if len(rows):
            raise TaskError(
                f"{where} has no value in column {column!r} of row {rows[0]} ({len(rows)} such rows): "
                "fill them in or drop them."
            )
    for column in text:
        if pd.api.types.is_numeric_dtype(frame.loc[:, column]):
            raise TaskError(
                f"column {column!r} of {where} holds numbers, not text: say which columns are texts with text=."
            )
    texts = {name: frame[column].astype(str) for name, column in zip(("text_a", "text_b"), text, strict=False)}
    result = pd.DataFrame(texts, index=frame.index)
    result["label"] = frame[label]
    result["group"] = ALL if group is None else frame[group].astype(str)
    result["cluster"] = result["text_a"] if cluster is None else frame[cluster].astype(str)
    return result.reset_index(drop=True)


def named_labels(
    values: pd.Series,
    where: str,
    labels: Sequence[str],
    aliases: Mapping[str, Iterable[str]] | None = None,
) -> pd.Series:
    """Label values as the names of a split's labels.

    A value that is a name, or one of its aliases, is that label; any other whole number counts in the order
    of `labels`.

    Args:
        values: names or numbers.
        where: what they are from, for the message.
        labels: the names.
        aliases: name -> other names.

    Raises:
        TaskError: a value is neither.
    """
    known = lookup(labels, aliases or {})

    def name_of(value: object) -> str:
        found = known.get(key(value)) or known.get(key(_whole(value)))
        index = _whole(value)
        if found is None and re.fullmatch(r"\d+", index) and int(index) < len(labels):
            found = labels[int(index)]
        if found is None:
            raise TaskError(
                f"{where} has the label {_whole(value)!r}, which is none of {', '.join(labels)} nor "
                f"a number from 0 to {len(labels) - 1} for them: correct it, or name it in label_aliases=."
            )
        return found

    names: dict[Any, str] = {value: name_of(value) for value in values.unique()}
    return values.map(names)  # pyright: ignore[reportArgumentType]


def numeric_labels(values: pd.Series, where: str) -> pd.Series:
    """Label values as floats; TaskError where one is no finite number."""
    numbers = pd.Series(pd.to_numeric(values, errors="coerce"), dtype=float)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise TaskError(f"{where} has the value {str(values.iloc[wrong[0]])!r} in row {wrong[0]}: it must be a number.")
    return numbers


def build(
    *,
    name: str,
    train: pd.DataFrame | Sequence[pd.DataFrame] | None,
    id: Frames,
    ood: Frames | None,
    text: str | tuple[str, str] | None,
    label: str | None,
    group: str | None,
    cluster: str | None,
    labels: Sequence[str] | None,
    collapse: Mapping[str, Mapping[str, str]],
    companions: Mapping[str, str],
    label_aliases: Mapping[str, Sequence[str]],
    metric: Metric | None,
    sparsities: Sequence[float],
    max_length: int,
) -> Task:
    """`Task.from_dataframes`, which documents the arguments."""
    named: list[tuple[str, Role, pd.DataFrame]] = []
    if train is not None:
        named.append(("train", "train", _one(train)))
    sides: list[tuple[Role, Frames | None]] = [("id", id), ("ood", ood)]
    for role, frames in sides:
        if frames is not None:
            for split, frame in _named(frames, role):
                named.append((split, role, _one(frame)))
    for option, mentioned in (("collapse", {*collapse}), ("companions", {*companions, *companions.values()})):
        unknown = mentioned - {split for split, _, _ in named}
        if unknown:
            raise TaskError(
                f"{option}= names the split {min(unknown)!r}, which task {name!r} does not have: it has "
                f"{', '.join(split for split, _, _ in named)}."
            )
    for option, column in (("group", group), ("cluster", cluster)):
        if column is not None and not any(column in frame.columns for _, _, frame in named):
            raise TaskError(f"{option}={column!r} is a column of no split of task {name!r}: {_columns(named[0][2])}.")
    tidy: dict[str, pd.DataFrame] = {}
    for split, _, frame in named:
        where = f"split {split!r} of task {name!r}"
        if frame.empty:
            raise TaskError(f"{where} is empty: leave it out or give it examples.")
        tidy[split] = to_schema(
            frame,
            where,
            text=text_columns(frame, where) if text is None else (text,) if isinstance(text, str) else text,
            label=label_column(frame, where) if label is None else label,
            group=group if group in frame.columns else None,
            cluster=cluster if cluster in frame.columns else None,
        )
    if len({"text_b" in frame.columns for frame in tidy.values()}) > 1:
        raise TaskError(f"task {name!r} mixes splits of pairs and of single sentences: say which columns with text=.")
    if metric == "pearson":
        if labels:
            raise TaskError(
                f"metric='pearson' makes task {name!r} a regression, which has no labels: leave out labels=."
            )
        names: tuple[str, ...] = ()
    else:
        names = tuple(map(str, labels)) if labels else _infer(tidy[named[0][0]].loc[:, "label"], name)
    splits = []
    for split, role, _ in named:
        where, frame = f"split {split!r} of task {name!r}", tidy[split]
        rule = {str(a): str(b) for a, b in collapse.get(split, {}).items()}
        wrong = set(rule) - set(names)
        if wrong:
            raise TaskError(
                f"collapse= of {where} maps {min(wrong)!r}, which is no label of the task: it has {', '.join(names)}."
            )
        if metric == "pearson":
            gold = numeric_labels(frame.loc[:, "label"], where)
        else:
            own = tuple(dict.fromkeys(rule.get(label, label) for label in names))
            gold = named_labels(frame.loc[:, "label"], where, own, {a: b for a, b in label_aliases.items() if a in own})
        splits.append(Split(split, role, frame.assign(label=gold), rule, companions.get(split)))
    task = Task(
        name,
        names,
        tuple(splits),
        metric or "accuracy",
        {label: tuple(others) for label, others in label_aliases.items()},
        tuple(sparsities),
        max_length,
    )
    warn_about_overlap(task)
    return task


def warn_about_overlap(task: Task) -> None:
    """Warn about a reported split all of whose examples are training data."""
    for train in task.with_role("train"):
        for split in task.with_role("id", "ood"):
            if len(without_overlap(split, [train])) == 0:
                warnings.warn(
                    f"every example of split {split.name!r} of task {task.name!r} is in {train.name!r} too: "
                    "what is reported on it says nothing about generalisation.",
                    CoreLensWarning,
                    stacklevel=4,
                )


def _infer(values: pd.Series, task: str) -> tuple[str, ...]:
    """The sorted distinct labels, numbers by size."""
    found = sorted(
        {_whole(value) for value in values.unique()},
        key=lambda v: (not v.isdigit(), int(v) if v.isdigit() else 0, v),
    )
    if any(re.fullmatch(r"-?\d*\.\d+", value) for value in found):
        raise TaskError(
            f"the labels of task {task!r} are numbers such as {found[0]}: pass metric='pearson' for a regression."
        )
    if len(found) < 2:
        raise TaskError(f"task {task!r} has the one label {found[0]!r}: name all labels with labels=.")
    if len(found) > 100:
        raise TaskError(f"task {task!r} has {len(found)} different labels: is label= the right column?")
    return tuple(found)


def _whole(value: object) -> str:
    """A label value as text, 1.0 as 1."""
    if isinstance(value, (bool, np.bool_, int, float, np.number)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _one(frames: pd.DataFrame | Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = [frames] if isinstance(frames, pd.DataFrame) else list(frames)
    wrong = [part for part in parts if not isinstance(part, pd.DataFrame)]
    if wrong or not parts:
        what = type(wrong[0]).__name__ if wrong else "nothing"
        raise TaskError(f"a pandas DataFrame is needed for each split, not {what}: paths go to Task.from_files.")
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def _named(frames: Frames, name: str) -> list[tuple[str, pd.DataFrame | Sequence[pd.DataFrame]]]:
    if isinstance(frames, Mapping):
        return [(str(split), frame) for split, frame in frames.items()]
    return [(name, frames)]


def _columns(frame: pd.DataFrame) -> str:
    return ", ".join(map(str, frame.columns)) or "none"
