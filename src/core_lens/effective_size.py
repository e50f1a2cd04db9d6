"""Effective size: the share of units in the smallest subnetwork that is as accurate as the full model.

Heuristic Core, Section 4 and Figures 6, 15 and 16, after Merrill, Tsilivis and Shukla, "A tale of two circuits" (2023).

Accuracy alone is a weak witness: where the full model does no better than a constant answer, every subnetwork that gives
that answer is as accurate. So each size comes with flags that say where it should not be taken at its word.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from .core import Core
from .errors import CoreLensError, TaskError
from .evaluate import check_numbers, predict, score
from .hooked import load_model, model_info
from .intervals import over_seeds
from .subnetwork import Subnetwork
from .tasks import Task, class_order, load_task

COLUMNS = ["checkpoint", "splits", "size", "low", "high", "n_seeds", "sparsity", "full", "flags"]
"""Schema of `effective_size`."""

EVERYTHING_ABLATED = "everything ablated"
"""What `floors` calls the model without any of its units; every other floor is a label, always answered."""

MISSING = -1.0
"""What the published result files give as the accuracy of a run that failed."""

_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class _Grid:
    """Accuracy of one checkpoint's subnetworks (nan: the run is missing) and of its full model, by split."""

    sparsities: Float[np.ndarray, " sparsity"]
    accuracy: Mapping[str, Float[np.ndarray, "seed sparsity"]]
    full: Mapping[str, float]


def effective_size(
    accuracies: pd.DataFrame,
    full: pd.DataFrame,
    splits: Mapping[str, Sequence[str] | Mapping[str, float]],
    tolerance: float = 0.03,
    average: Literal["sizes", "accuracies"] = "sizes",
    *,
    floors: pd.DataFrame | None = None,
    companions: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Size of the smallest faithful subnetwork of every checkpoint: one with accuracy > the full model's - `tolerance`.

        effective_size(*tables_of({500: early, 5000: late}), {"ID": ["dev"], "OOD": ["SO-Swap", "Prep"]})

    Args:
        accuracies: of the subnetworks: checkpoint, sparsity (share of units removed), seed, split, accuracy. A run that
            is missing may be absent, nan, or -1 as in the published files: it is left out, and flagged.
        full: of the full models: checkpoint, split, accuracy.
        splits: name of a group -> its splits, of which the plain mean is taken, or split -> weight (any scale).
        tolerance: how far below the full model is faithful still, in accuracy (3 points in the paper).
        average: `sizes` finds the size for each seed and takes the mean (the published code); `accuracies` takes the
            mean accuracy over seeds at each sparsity and finds the size once (the paper's text).
        floors: accuracies of answers without a model: split, floor, accuracy, and checkpoint where they differ by it
            (see `floors`). None leaves their flags out.
        companions: split -> the split of the same construction with the other answer. None leaves their flags out.

    Returns:
        DataFrame, a row per checkpoint and group: checkpoint, splits (the group's name), size (share of units kept; 1 where
        nothing on the grid is faithful), low, high, n_seeds, sparsity (1 - size), full (the full model's accuracy), flags.

        `low` and `high` are a 95 % interval over seeds, that is over what the pruner happens to find in this model on
        these examples; nan for one seed. `sizes`: Student's t for the mean size, cut at 0 and 1; it has no width where all
        seeds agree. `accuracies`: the sizes found when each mean accuracy is replaced by the upper or the lower end of its
        Student's t interval. Both know the size only up to a step of the grid.

        `flags` is a tuple of short texts, at most one of each kind:
        - the full model is no better than a floor on the group, which is then faithful itself; or within the tolerance of
          one on some of its splits. A label that is right on every example there is no floor.
        - subnetworks are faithful on a split whose companion falls by more than the tolerance.
        - not monotone: accuracy rises with sparsity by more than the tolerance, or a subnetwork is faithful although a
          denser one is not.
        - the size is at an end of the grid, or runs are missing.

    Raises:
        CoreLensError: a table has duplicates or percentages, or lacks a column, split, companion or checkpoint.
    """
    if average not in ("sizes", "accuracies"):
        raise CoreLensError(f"average={average!r}: choose 'sizes' or 'accuracies'.")
    if not 0 <= tolerance < 1:
        raise CoreLensError(f"tolerance={tolerance!r} must be an accuracy from 0 to 1, such as 0.03.")
    groups = {name: _weights(name, of) for name, of in splits.items()}
    beside = {split: other for split, other in (companions or {}).items() if any(split in of for of in groups.values())}
    used = {*(split for of in groups.values() for split in of), *beside.values()}
    rows = []
    for checkpoint, grid in _grids(accuracies, full, used).items():
        known = _floors_of(checkpoint, floors, used)
        for name, weights in groups.items():
            rows.append((checkpoint, name, *_row(grid, weights, tolerance, average, known, beside)))
    return pd.DataFrame(rows, columns=COLUMNS)


def tables_of(cores: Mapping[Any, Core]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables that `effective_size` takes, from the runs of several checkpoints.

    Args:
        cores: checkpoint -> its run; the sparsity is the one asked for, at most half a unit off the one reached.

    Returns:
        `accuracies` (checkpoint, sparsity, seed, split, accuracy) and `full` (checkpoint, split, accuracy).

    Raises:
        CoreLensError: a run has no accuracies (a regression task).
    """
    parts = []
    for checkpoint, core in cores.items():
        rows = core.evaluation.query("group == 'all' and metric == 'accuracy'")
        if rows.empty:
            raise CoreLensError(f"the run of checkpoint {checkpoint!r} has no accuracies: effective size needs labels.")
        parts.append(rows.rename(columns={"value": "accuracy"}).assign(checkpoint=checkpoint))
    if not parts:
        raise CoreLensError("cores is empty: pass at least one checkpoint's run.")
    table = pd.concat(parts, ignore_index=True)
    ours = table["subnetwork"] != "full"
    accuracies = table.loc[ours, ["checkpoint", "sparsity", "seed", "split", "accuracy"]]
    full = table.loc[~ours, ["checkpoint", "split", "accuracy"]]
    return accuracies.reset_index(drop=True), full.reset_index(drop=True)


def split_groups(task: Task) -> dict[str, dict[str, float]]:
    """The groups of the paper and one of ours, for the `splits` of `effective_size`.

    Args:
        task: with in-domain and out-of-domain splits.

    Returns:
        Group -> split -> weight. `ID`, `OOD`, `mixed` (the plain mean of both, the published code's), `mixed, half ID`
        (half the weight each, the paper's text), and `OOD, balanced`: out-of-domain splits and their companions alike, on
        which a constant answer earns nothing. Groups that would be empty are left out.
    """
    id_, ood = ([split.name for split in task.with_role(role)] for role in ("id", "ood"))
    pairs = [name for split in task.with_role("ood") if split.companion for name in (split.name, split.companion)]
    groups = {"ID": dict.fromkeys(id_, 1.0), "OOD": dict.fromkeys(ood, 1.0)}
    if id_ and ood:
        half = dict.fromkeys(id_, 0.5 / len(id_)) | dict.fromkeys(ood, 0.5 / len(ood))
        groups |= {"mixed": dict.fromkeys([*id_, *ood], 1.0), "mixed, half ID": half}
    groups["OOD, balanced"] = dict.fromkeys(pairs, 1.0)
    return {name: weights for name, weights in groups.items() if weights}


def floors(
    model: Any,
    task: str | Task,
    like: Subnetwork,
    splits: Sequence[str] | str | None = None,
    *,
    tokenizer: Any = None,
    label_map: Mapping[Any, str] | None = None,
    max_examples: int | None = 1000,
    batch_size: int = 64,
    device: str | None = None,
) -> pd.DataFrame:
    """Accuracy of the model with everything ablated, and of each constant answer.

        floors("lab", "lab", core.subnetworks[0])

    Args:
        model, task, splits, tokenizer, label_map, max_examples, batch_size, device: as in `evaluate`.
        like: any subnetwork of that model; its units are ablated, all of them, in its way.

    Returns:
        DataFrame (split, floor, accuracy); floor is `everything ablated` or a label of the task. A label's accuracy is
        the share of examples whose gold label it is, after the split's collapse rule.

    Raises:
        CoreLensError: as `evaluate`; also a regression task.
    """
    task = task if isinstance(task, Task) else load_task(task)
    if task.is_regression:
        raise TaskError(f"task {task.name!r} has no labels, so no constant answers: effective size needs labels.")
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    bridge = load_model(model, tokenizer=tokenizer, device=device)
    chosen = [split.sample(max_examples) for split in task.select(splits)]
    order = class_order(model_info(bridge).id2label, task, label_map)
    nothing = Subnetwork(like.units, torch.zeros_like(like.mask), like.replacement)
    figures = score(predict(bridge, task, chosen, order, nothing, batch_size), task)
    ablated = figures.query("group == 'all' and metric == 'accuracy'").set_index("split")["value"]
    rows = [(split.name, EVERYTHING_ABLATED, float(ablated[split.name])) for split in chosen]
    for split in chosen:
        gold = split.data["label"].to_numpy()
        answers = zip(task.labels, split.collapsed(task.labels), strict=True)
        rows += [(split.name, label, float((gold == answer).mean())) for label, answer in answers]
    return pd.DataFrame(rows, columns=["split", "floor", "accuracy"])


def _weights(name: str, of: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """split -> weight, summing to 1."""
    if isinstance(of, str):
        raise CoreLensError(f"the group {name!r} is {of!r}: give a list of splits, or split -> weight.")
    given = dict(of) if isinstance(of, Mapping) else dict.fromkeys(of, 1.0)
    total = sum(given.values())
    if not given or min(given.values()) < 0 or total <= 0:
        raise CoreLensError(f"the group {name!r} needs splits whose weights are at least 0 and not all 0, not {of!r}.")
    return {split: weight / total for split, weight in given.items() if weight > 0}


def _grids(accuracies: pd.DataFrame, full: pd.DataFrame, used: set[str]) -> dict[Hashable, _Grid]:
    """One grid per checkpoint, in the order of the table, checked."""
    _check(accuracies, "accuracies", ["checkpoint", "sparsity", "seed", "split", "accuracy"], missing=MISSING)
    _check(full, "full", ["checkpoint", "split", "accuracy"])
    grids = {}
    for checkpoint, part in accuracies.groupby("checkpoint", sort=False):
        mine = full[full["checkpoint"] == checkpoint].set_index("split")["accuracy"]
        seeds, sparsities = np.sort(part["seed"].unique()), np.sort(part["sparsity"].unique())
        whole = pd.MultiIndex.from_product([seeds, sparsities], names=["seed", "sparsity"])
        table = part.pivot(index=["seed", "sparsity"], columns="split", values="accuracy").reindex(whole)
        for split in sorted(used):
            for name, has in (("accuracies", table.columns), ("full", mine.index)):
                if split not in has:
                    known = ", ".join(map(str, has)) or "none"
                    raise CoreLensError(f"{name} has no split {split!r} of checkpoint {checkpoint!r}, only: {known}.")
        values = {split: table[split].replace(MISSING, np.nan).to_numpy(dtype=float) for split in used}
        values = {split: value.reshape(len(seeds), len(sparsities)) for split, value in values.items()}
        grids[checkpoint] = _Grid(sparsities, values, {split: float(mine[split]) for split in used})
    if not grids:
        raise CoreLensError("accuracies is empty: it needs the rows of at least one checkpoint.")
    return grids


def _check(table: pd.DataFrame, name: str, columns: list[str], missing: float | None = None) -> None:
    """Columns are there, keys (all but the last column) are unique, shares are shares; `missing` may stand for none."""
    lacking = [column for column in columns if column not in table.columns]
    if lacking:
        raise CoreLensError(f"{name} has no column {lacking[0]!r}: it needs {', '.join(columns)}.")
    twice = table[table.duplicated(columns[:-1])]
    if len(twice):
        which = ", ".join(f"{column} {twice.iloc[0][column]}" for column in columns[:-1])
        raise CoreLensError(f"{name} has two rows for {which}: keep one.")
    for column in [column for column in ("sparsity", "accuracy") if column in columns]:
        fine = table[column].between(0, 1)
        if column == "accuracy" and missing is not None:
            fine |= table[column].isna() | (table[column] == missing)
        if not fine.all():
            raise CoreLensError(f"{name} has {column} {table[column][~fine].iloc[0]}: give shares from 0 to 1.")


def _floors_of(checkpoint: Any, floors: pd.DataFrame | None, used: set[str]) -> dict[str, dict[str, float]]:
    """floor -> split -> accuracy at a checkpoint."""
    if floors is None:
        return {}
    by_checkpoint = "checkpoint" in floors.columns
    _check(floors, "floors", [*(["checkpoint"] if by_checkpoint else []), "split", "floor", "accuracy"])
    part = floors[floors["checkpoint"] == checkpoint] if by_checkpoint else floors
    found = {
        str(floor): dict(zip(of["split"], of["accuracy"], strict=True))
        for floor, of in part.groupby("floor", sort=False)
    }
    gaps = [(floor, split) for floor, of in found.items() for split in sorted(used - set(of))]
    if gaps or not found:
        floor, split = gaps[0] if gaps else ("any", min(used))
        raise CoreLensError(f"floors has no accuracy of {floor!r} on {split!r} for checkpoint {checkpoint!r}.")
    return found


def _row(
    grid: _Grid,
    weights: Mapping[str, float],
    tolerance: float,
    average: str,
    floors: Mapping[str, Mapping[str, float]],
    companions: Mapping[str, str],
) -> tuple[float, float, float, int, float, float, tuple[str, ...]]:
    """size, low, high, n_seeds, sparsity, full, flags."""
    by_seed, full = _mean(grid.accuracy, weights), _mean(grid.full, weights)
    threshold = full - tolerance + _ROUND_OFF
    curves = by_seed if average == "sizes" else pd.DataFrame(by_seed).mean().to_numpy()[None]
    sparsest = _sparsest(curves > threshold, grid.sparsities)
    size = float(1 - sparsest.mean())
    if average == "sizes":
        low, high = np.clip(over_seeds(list(1 - sparsest)), 0, 1).tolist()
    else:
        low, high = _band(by_seed, threshold, grid.sparsities)
    # The subnetworks that set the size: of each seed, or (accuracies) all of one sparsity.
    deciding = np.broadcast_to((grid.sparsities == sparsest[:, None]) & (curves > threshold), by_seed.shape)
    flags = [
        *_floor_flags(grid.full, weights, tolerance, floors),
        *_companion_flags(grid, weights, tolerance, companions, deciding),
        *_curve_flags(curves, full, tolerance, grid.sparsities),
    ]
    if np.isnan(by_seed).any():
        flags.append(f"{int(np.isnan(by_seed).sum())} of {by_seed.size} runs missing")
    return size, low, high, len(by_seed), 1 - size, full, tuple(flags)


def _mean(values: Mapping[str, Any], weights: Mapping[str, float]) -> Any:
    """Weighted mean over splits, of numbers or of arrays."""
    return sum(weight * values[split] for split, weight in weights.items())


def _sparsest(faithful: np.ndarray, sparsities: np.ndarray) -> np.ndarray:
    """The highest faithful sparsity of each curve, [curve, sparsity] -> [curve]; 0, the full model, where none is."""
    return np.where(faithful, sparsities, 0.0).max(axis=-1)


def _band(by_seed: np.ndarray, threshold: float, sparsities: np.ndarray) -> tuple[float, float]:
    """The sizes by the upper and by the lower ends of Student's t intervals of the mean accuracies over seeds."""
    if len(by_seed) < 2:
        return float("nan"), float("nan")
    # A mean over fewer than two runs is not known at all.
    bounds = np.array([over_seeds(list(column[~np.isnan(column)])) for column in by_seed.T])
    lower, upper = np.nan_to_num(bounds[:, 0], nan=-np.inf), np.nan_to_num(bounds[:, 1], nan=np.inf)
    low, high = (float(1 - _sparsest(bound > threshold, sparsities)) for bound in (upper, lower))
    return low, high


def _floor_flags(
    full: Mapping[str, float],
    weights: Mapping[str, float],
    tolerance: float,
    floors: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """At most two texts: floors that are faithful on the group, and splits of it on which the full model is at a floor."""

    def reached(of: Mapping[str, float], below_too: bool) -> tuple[float, dict[str, float]]:
        accuracy, found = _mean(full, of), {}
        for floor, at in floors.items():
            value = _mean(at, of)
            is_sole_label = floor != EVERYTHING_ABLATED and value > 1 - _ROUND_OFF
            distance = accuracy - value if below_too else abs(accuracy - value)
            if distance <= tolerance + _ROUND_OFF and not is_sole_label:
                found[floor if floor == EVERYTHING_ABLATED else f"always {floor}"] = value
        return accuracy, found

    flags = []
    accuracy, found = reached(weights, below_too=True)
    if found:
        values = ", ".join(f"{floor} {value:.3f}" for floor, value in found.items())
        flags.append(f"the full model ({accuracy:.3f}) is no better than a floor: {values}")
    parts = []
    for split in weights if len(weights) > 1 else ():
        accuracy, found = reached({split: 1.0}, below_too=False)
        if found:
            parts.append(f"{split} ({accuracy:.3f}: {', '.join(found)})")
    if parts:
        flags.append(f"the full model is within the tolerance of a floor on {', '.join(parts)}")
    return flags


def _companion_flags(
    grid: _Grid,
    weights: Mapping[str, float],
    tolerance: float,
    companions: Mapping[str, str],
    deciding: np.ndarray,
) -> list[str]:
    parts = []
    for split in weights:
        if split not in companions:
            continue
        other = companions[split]
        passes = grid.accuracy[split] > grid.full[split] - tolerance + _ROUND_OFF
        falls = grid.accuracy[other] < grid.full[other] - tolerance - _ROUND_OFF
        n, n_deciding = int((passes & falls).sum()), int((passes & falls & deciding).sum())
        if n:
            parts.append(f"{split} ({n} of {passes.size}, {n_deciding} of which set the size)")
    return [f"subnetworks are faithful while the companion falls on {', '.join(parts)}"] if parts else []


def _curve_flags(curves: np.ndarray, full: float, tolerance: float, sparsities: np.ndarray) -> list[str]:
    """On the shape of the curves [curve, sparsity] of accuracy over sparsity, which start from the full model."""
    threshold = full - tolerance + _ROUND_OFF
    faithful, unfaithful = curves > threshold, curves <= threshold  # neither where a run is missing
    lowest = np.minimum(np.fmin.accumulate(curves, axis=1), full)
    rises = (curves - lowest > tolerance + _ROUND_OFF).any(axis=1)
    returns = (faithful & np.logical_or.accumulate(unfaithful, axis=1)).any(axis=1)
    texts = {
        "not monotone": rises | returns,
        f"at the sparsest of the grid ({sparsities[-1]:g})": faithful[:, -1],
        "nothing faithful on the grid": ~faithful.any(axis=1),
    }
    n = len(curves)
    return [f"{text}: {where.sum()} of {n} seeds" if n > 1 else text for text, where in texts.items() if where.any()]
