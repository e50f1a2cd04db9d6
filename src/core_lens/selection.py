"""Which examples select masks, and which are reported: never the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .errors import TaskError
from .tasks import Split, Task, split_clusters, without_overlap

PruneOn = str | Sequence[str] | Mapping[str, float]

MEAN_EXAMPLES = {"fast": 4096, "paper": 100_000}
"""Training examples that means are taken over, by preset."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The examples that masks are selected on.

    Args:
        split: their texts, as one split of role `train`.
        gold: for each example which of the task's labels are right ([example, label] bool), or its value for a
            regression task ([example, 1] float).
        sources: how many examples came from each split.
    """

    split: Split
    gold: Tensor
    sources: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.split)


def separate(
    task: Task,
    prune_on: PruneOn | None,
    splits: Iterable[str] | str | None,
    examples: int | None,
    max_examples: int | None,
) -> tuple[Selection, list[Split]]:
    """Draw the selection and the reported examples, disjoint.

    Of an evaluation split half the premises select, and no reported split keeps them; texts of the training data
    that occur in a reported split are left out of the selection.

    Args:
        task: the task.
        prune_on: name of the split, names, or name -> share of the mixture; None for the training split.
        splits: what to report, as in `Task.select`.
        examples: size of the selection; None for all there are.
        max_examples: per reported split; None for all.

    Raises:
        TaskError: no such split, no training split, or nothing left.
    """
    shares = _shares(task, prune_on)
    reported = [split for split in task.select(splits) if split.role != "train"]
    if not reported:
        raise TaskError(f"task {task.name!r} has no split to report on: give it an in-domain or out-of-domain split.")
    parts = []
    for name in shares:
        source = task.split(name)
        if source.role != "train":
            # Half of its premises select; what is reported of it, and of any split with the same premises, is the rest.
            source, _ = split_clusters(source, 0.5, seed=0)
            taken = set(source.data["cluster"])
            reported = [replace(s, data=s.data[~s.data["cluster"].isin(taken)]) for s in reported]
        parts.append(source)
    emptied = [split.name for split in reported if not len(split)]
    if emptied:
        raise TaskError(f"prune_on={prune_on!r} takes all premises of {', '.join(emptied)}: leave them out of splits=.")
    reported = [split.sample(max_examples) for split in reported]
    rng = np.random.default_rng(0)
    pools = [without_overlap(source, reported) for source in parts]
    limit = min(len(pool) / share for pool, share in zip(pools, shares.values(), strict=True))
    total = int(limit if examples is None else min(examples, limit))
    drawn = []
    for pool, share in zip(pools, shares.values(), strict=True):
        n = round(total * share)
        rows = rng.permutation(len(pool))[:n]
        drawn.append(replace(pool, data=pool.data.iloc[rows]))
    if not sum(map(len, drawn)):
        raise TaskError(
            f"no examples are left to prune on in {', '.join(shares)}: they are empty or all of them are reported; "
            "pass prune_on= with another split."
        )
    frame = pd.concat([part.data for part in drawn], ignore_index=True)
    gold = torch.cat([_gold(part, task) for part in drawn])
    order = torch.from_numpy(rng.permutation(len(frame)))
    frame = frame.iloc[order.numpy()].reset_index(drop=True)
    selection = Selection(Split("selection", "train", frame), gold[order], {part.name: len(part) for part in drawn})
    return selection, reported


def means_split(
    task: Task, reported: Iterable[Split], n: int, first: bool = False, instead: Split | None = None
) -> Split:
    """The examples that means are taken over, whatever masks are selected on and by which pruner.

    Args:
        task: the task.
        reported: their texts are left out.
        n: how many training examples.
        first: the first ones; otherwise a fixed random draw (training sets are often sorted).
        instead: taken where the task has no training split.

    Raises:
        TaskError: there is no training split and nothing to take instead.
    """
    train = task.with_role("train")
    if not train and instead is None:
        raise TaskError(f"task {task.name!r} has no training split to take means over: pass replacement=.")
    source = without_overlap(train[0], reported) if train else instead
    assert source is not None
    return Split("means", "train", source.data.head(n) if first else source.sample(n).data)


def _shares(task: Task, prune_on: PruneOn | None) -> dict[str, float]:
    if prune_on is None:
        train = task.with_role("train")
        if not train:
            raise TaskError(
                f"task {task.name!r} has no training split: pass prune_on= with the split to select masks on."
            )
        return {train[0].name: 1.0}
    if isinstance(prune_on, str):
        prune_on = [prune_on]
    try:
        weights = {
            str(k): float(v)
            for k, v in (prune_on if isinstance(prune_on, Mapping) else dict.fromkeys(prune_on, 1)).items()
        }
    except (TypeError, ValueError):
        weights = {}
    if not weights or not all(weight > 0 for weight in weights.values()):
        raise TaskError(f"prune_on={prune_on!r}: name at least one split, with shares above 0.")
    total = sum(weights.values())
    return {task.split(name).name: weight / total for name, weight in weights.items()}


def _gold(split: Split, task: Task) -> Tensor:
    if task.is_regression:
        return torch.tensor(split.data["label"].to_numpy(dtype=np.float32))[:, None]
    return torch.from_numpy(split.data["label"].to_numpy(dtype=object)[:, None] == split.collapsed(task.labels)[None])
