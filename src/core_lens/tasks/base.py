"""`Task` and `Split`: labelled text with in-domain and out-of-domain parts, and how a prediction is scored.

The frames of all splits have one schema:

| column | what |
|---|---|
| `text_a` | the sentence, or the first of a pair (the premise) |
| `text_b` | the second of a pair (the hypothesis); absent in single-sentence tasks |
| `label` | the gold label's *name*, or a float for a regression task |
| `group` | a name to break results down by (genre, subcase, template); a constant where there is none |
| `cluster` | what belongs together when examples are resampled: the premise, unless said otherwise |
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..errors import TaskError

Role = Literal["train", "id", "ood", "companion", "extra"]
Metric = Literal["accuracy", "mcc", "pearson"]
SCHEMA = ("text_a", "label", "group", "cluster")
"""The columns that every split has; pairs have `text_b` too."""


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """One named set of examples.

    Args:
        name: how tables call it.
        role: `train` selects masks and fits means; `id` and `ood` are reported; `companion` is reported
            beside the `ood` split that names it; `extra` is evaluated only when asked for by name.
        data: the examples, in the schema above.
        collapse: label of the task -> label of this split, where the split knows fewer labels (HANS: neutral
            and contradiction are both non-entailment). Labels that are not mentioned stay as they are.
        companion: the split with the same construction and the other answer; a constant answer scores 100 %
            on one of the two, so balanced accuracy is shown over both.
        aliases: other names that `Task.split` accepts.
    """

    name: str
    role: Role
    data: pd.DataFrame
    collapse: Mapping[str, str] = field(default_factory=dict)
    companion: str | None = None
    aliases: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.data)

    @property
    def is_pair(self) -> bool:
        return "text_b" in self.data.columns

    def __repr__(self) -> str:
        return f"Split({self.name!r}, {self.role}, {len(self):,} rows)"

    def collapsed(self, labels: Sequence[str]) -> np.ndarray:
        """This split's name for each label of the task: the one place where the collapse rule is applied.

        Args:
            labels: the task's labels.

        Returns:
            Object array [n_labels] of names, e.g. entailment, non-entailment, non-entailment for HANS under
            MNLI.
        """
        return np.array([self.collapse.get(label, label) for label in labels], dtype=object)

    def label_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels this split knows, each once, in the order of the task's."""
        return tuple(dict.fromkeys(self.collapsed(labels)))

    def group_matrix(self, labels: Sequence[str]) -> np.ndarray:
        """Which labels of the task make up which label of this split.

        Returns:
            Bool array [n_labels, n_split_labels], one True a row; columns as in `label_names`.
        """
        return self.collapsed(labels)[:, None] == np.array(self.label_names(labels), dtype=object)[None]

    def predictions(self, outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """The label of this split that a classifier chose: the class of the highest logit, collapsed.

        Args:
            outputs: logits or probabilities [n, n_labels], columns in the order of the task's labels.
            labels: the task's labels.

        Returns:
            Object array [n] of names, to be compared with the `label` column.
        """
        return self.collapsed(labels)[np.asarray(outputs).argmax(axis=1)]

    def sample(self, n: int | None, seed: int = 0) -> Split:
        """At most `n` examples drawn without replacement (all if None), the same ones for the same seed."""
        if n is None or len(self) <= n:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self), n, replace=False))
        return replace(self, data=self.data.iloc[rows])

    def fingerprint(self) -> str:
        """sha256 of texts, labels and groups, in order."""
        digest = hashlib.sha256()
        for column in self.data.columns:
            values = [column, *self.data[column].astype(str).to_numpy(dtype=object)]
            digest.update("\0".join(values).encode(errors="surrogatepass") + b"\0\0")
        return digest.hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A classification or regression task over one sentence or a pair, with its splits.

    Args:
        name: how tables and provenance call it.
        labels: the label names, in the order of this task's own columns (the model's order is matched by
            name); empty for a regression task.
        splits: all splits, one of role `train` first where there is one.
        metric: `accuracy`, `mcc` (Matthews correlation) or `pearson`.
        label_aliases: label of this task -> other names that checkpoints use for it (compared without case,
            spaces, hyphens and underscores).
        sparsities: the paper's sparsities for this task, used when none are asked for.
        max_length: longest input in word pieces; longer ones are truncated.

    Raises:
        TaskError: two splits share a name, a split is empty, lacks a column of the schema, misses a label or
            has one that the task does not know.
    """

    name: str
    labels: tuple[str, ...]
    splits: tuple[Split, ...]
    metric: Metric = "accuracy"
    label_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sparsities: tuple[float, ...] = (0.3, 0.5)
    max_length: int = 128

    def __post_init__(self) -> None:
        counts = Counter(name for split in self.splits for name in {split.name, *split.aliases})
        twice = [name for name, n in counts.items() if n > 1]
        if twice:
            raise TaskError(f"task {self.name!r} has two splits named {twice[0]!r}: give each split its own name.")
        if len(set(self.labels)) < len(self.labels):
            raise TaskError(f"task {self.name!r} has a label twice: {', '.join(self.labels)}.")
        for split in self.splits:
            _check(split, self)

    def __repr__(self) -> str:
        roles = ", ".join(f"{n} {role}" for role, n in Counter(split.role for split in self.splits).items())
        return f"Task({self.name!r}, labels={list(self.labels) or 'a number'}, splits: {roles})"

    def _repr_html_(self) -> str:
        from ..viz.notebook import task_html

        return task_html(self)

    @classmethod
    def from_dataframes(
        cls,
        name: str,
        *,
        id: Frames,
        train: pd.DataFrame | Sequence[pd.DataFrame] | None = None,
        ood: Frames | None = None,
        text: str | tuple[str, str] | None = None,
        label: str | None = None,
        group: str | None = None,
        cluster: str | None = None,
        labels: Sequence[str] | None = None,
        collapse: Mapping[str, Mapping[str, str]] | None = None,
        companions: Mapping[str, str] | None = None,
        label_aliases: Mapping[str, Sequence[str]] | None = None,
        metric: Metric | None = None,
        sparsities: Sequence[float] = (0.3, 0.5),
        max_length: int = 128,
    ) -> Task:
        """A task of your own from DataFrames.

        Example:
            >>> ood = {"forum": c, "news": d}
            >>> Task.from_dataframes("toxicity", train=a, id=b, ood=ood, text="comment", group="topic")

        Args:
            name: how tables call it.
            id: the in-domain evaluation data: a frame (the split is then called `id`) or name -> frame.
            train: the training data, which selects masks and fits means; None where there is none.
            ood: out-of-domain evaluation data, likewise (a single frame is called `ood`).
            text: the column of the sentence, or the two columns of a pair; None looks for the usual names
                (premise / hypothesis, sentence1 / sentence2, question1 / question2, sentence, text ...).
            label: the column of the label; None looks for the usual names (label, gold_label ...).
            group: column to break results down by, used in the splits that have it.
            cluster: column of what belongs together when examples are resampled, used in the splits that have
                it; the first text by default.
            labels: the label names in order, which numbers refer to; None takes the sorted values of the
                training data.
            collapse: split -> (label of the task -> label of that split), where a split knows fewer labels.
            companions: split -> the one of the same construction with the other answer, shown beside it (`Split`).
            label_aliases: label -> other names that checkpoints or files use for it.
            metric: `accuracy` (default), `mcc`, or `pearson`, which makes it a regression task.
            sparsities: used when none are asked for.
            max_length: longest input in word pieces.

        A list of frames stands for one after the other.

        Raises:
            TaskError: see `Task`; also a missing column or a number where a name is needed.
        """
        from .frames import build

        return build(
            name=name,
            train=train,
            id=id,
            ood=ood,
            text=text,
            label=label,
            group=group,
            cluster=cluster,
            labels=labels,
            collapse=collapse or {},
            companions=companions or {},
            label_aliases=label_aliases or {},
            metric=metric,
            sparsities=sparsities,
            max_length=max_length,
        )

    @classmethod
    def from_files(
        cls,
        name: str,
        *,
        id: Files,
        train: Path | Sequence[Path] | None = None,
        ood: Files | None = None,
        **options: Any,
    ) -> Task:
        """A task of your own from files: parquet, csv, tsv, jsonl, or folders saved by `datasets`.

        A path may name a part, `"nli.parquet:train"`: the rows whose `split` column says so, or that split of
        a saved folder. Tab-separated files are read without quoting, as GLUE's are. A split that is given as
        a bare path is called after its file and part (`nli-train`). A list of paths stands for one after the
        other.

        Example:
            >>> train = ["mnli.parquet:train", "snli.parquet:train"]
            >>> Task.from_files("nli", train=train, id="mnli.parquet:validation", ood={"hard": "hard.tsv"})

        Args:
            name: how tables call it.
            id: the in-domain evaluation data: a path, or name -> path.
            train: the training data.
            ood: out-of-domain evaluation data, like `id`.
            options: the columns, labels and other options of `from_dataframes`.

        Raises:
            TaskError: as there; also a file that is missing or cannot be read, or a part that it does not
                have.
        """
        from .files import read_named, read_part

        return cls.from_dataframes(
            name,
            id=read_named(id),
            train=None if train is None else read_part(train),
            ood=None if ood is None else read_named(ood),
            **options,
        )

    def split(self, name: str) -> Split:
        """The split of that name or alias.

        Raises:
            TaskError: there is none.
        """
        for split in self.splits:
            if name == split.name or name in split.aliases:
                return split
        known = ", ".join(split.name for split in self.splits)
        raise TaskError(f"task {self.name!r} has no split {name!r}: it has {known}.")

    def with_role(self, *roles: Role) -> list[Split]:
        return [split for split in self.splits if split.role in roles]

    def select(self, splits: Iterable[str] | str | None = None) -> list[Split]:
        """The splits to report: all of role `id`, `ood` and `companion` by default; or the named ones, each once,
        with their companions after them."""
        if splits is None:
            return self.with_role("id", "ood", "companion")
        if not isinstance(splits, Iterable):
            raise TaskError(f"splits={splits!r}: name some of {', '.join(split.name for split in self.splits)}.")
        named = [self.split(name) for name in ([splits] if isinstance(splits, str) else splits)]
        beside = [self.split(split.companion) for split in named if split.companion]
        return list({split.name: split for split in (*named, *beside)}.values())

    @property
    def is_regression(self) -> bool:
        return not self.labels

    def summary(self) -> pd.DataFrame:
        """DataFrame (split, role, rows, labels, groups, companion): what the task consists of."""
        rows = []
        for split in self.splits:
            gold = split.data["label"]
            if self.is_regression:
                labels = f"{gold.min():g} to {gold.max():g}"
            else:
                counts = gold.value_counts()
                names = [name for name in split.label_names(self.labels) if name in counts]
                labels = ", ".join(f"{name} {counts[name]}" for name in names)
            groups = split.data["group"].nunique()
            rows.append((split.name, split.role, len(split), labels, groups, split.companion or ""))
        return pd.DataFrame(rows, columns=["split", "role", "rows", "labels", "groups", "companion"])

    def fingerprint(self) -> str:
        """sha256 of the labels, the metric and every split with its role and collapse rule."""
        digest = hashlib.sha256(repr((self.name, self.labels, self.metric)).encode())
        for split in self.splits:
            about = (
                split.name,
                split.role,
                sorted(split.collapse.items()),
                split.companion,
                split.fingerprint(),
            )
            digest.update(repr(about).encode())
        return digest.hexdigest()


Frames = pd.DataFrame | Sequence[pd.DataFrame] | Mapping[str, pd.DataFrame | Sequence[pd.DataFrame]]
Path = str | os.PathLike[str]
Files = Path | Sequence[Path] | Mapping[str, Path | Sequence[Path]]


def _check(split: Split, task: Task) -> None:
    """Raise on data that does not fit the schema and the task's labels."""
    where = f"split {split.name!r} of task {task.name!r}"
    missing = [column for column in SCHEMA if column not in split.data.columns]
    if missing:
        have = ", ".join(map(str, split.data.columns))
        raise TaskError(f"{where} has no column {missing[0]!r}: it has {have}; build it with Task.from_dataframes.")
    if split.data.empty:
        raise TaskError(f"{where} is empty: leave it out or give it examples.")
    for column in ("text_a", "text_b", "label"):
        rows = np.flatnonzero(pd.isna(split.data.get(column, [])))
        if len(rows):
            raise TaskError(f"{where} has no {column} in row {rows[0]}: drop such rows first.")
    if not task.is_regression:
        known = split.label_names(task.labels)
        unknown = [value for value in split.data["label"].unique() if value not in known]
        if unknown:
            raise TaskError(
                f"{where} has the label {unknown[0]!r}, which is none of {', '.join(known)}: rename it, "
                "or map the task's labels to it with collapse=."
            )


def split_clusters(split: Split, fraction: float, seed: int = 0) -> tuple[Split, Split]:
    """Cut a split in two so that no cluster (premise) is on both sides.

    Args:
        split: what to cut; both parts keep its name.
        fraction: share of the examples that the first part gets, to within one cluster.
        seed: the same seed gives the same cut.

    Returns:
        (selection, rest), rows in their old order.

    Raises:
        TaskError: the fraction is not between 0 and 1, or there are fewer than two clusters.
    """
    if not 0 < fraction < 1:
        raise TaskError(f"fraction={fraction!r}: a share between 0 and 1 is needed to cut split {split.name!r} in two.")
    code, clusters = pd.factorize(split.data["cluster"])
    if len(clusters) < 2:
        raise TaskError(
            f"split {split.name!r} is one single cluster and cannot be cut in two: give it a cluster column."
        )
    order = np.random.default_rng(seed).permutation(len(clusters))
    reached = np.bincount(code, minlength=len(clusters))[order].cumsum()
    # The prefix of the shuffled clusters whose size is nearest to the share asked for, never all or nothing.
    n_first = int(np.abs(reached[:-1] - fraction * len(code)).argmin()) + 1
    first = np.zeros(len(clusters), dtype=bool)
    first[order[:n_first]] = True
    inside = first[code]
    return replace(split, data=split.data[inside]), replace(split, data=split.data[~inside])


def without_overlap(selection: Split, reported: Iterable[Split]) -> Split:
    """`selection` less the examples whose text (both texts of a pair) occurs in a reported split."""
    texts = _texts(selection)
    seen = np.zeros(len(selection), dtype=bool)
    for split in reported:
        seen |= texts.isin(_texts(split)).to_numpy()
    return replace(selection, data=selection.data[~seen])


def _texts(split: Split) -> pd.Series:
    """The text of each example, both texts of a pair as one string."""
    first = split.data.loc[:, "text_a"].astype(str)
    return first + "\0" + split.data.loc[:, "text_b"].astype(str) if split.is_pair else first
