"""How well a model or a subnetwork does, and how close it stays to the full model: one long row per figure.

Predictions per example are kept, so that every later statistic is computed without the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import log_softmax
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .errors import CoreLensError, CoreLensWarning, ModelError, TaskError
from .hooked import load_model, logits, model_info
from .hooked.batches import Encoded, batches, encode
from .intervals import bootstrap, wilson
from .metrics import mcc, pearson
from .subnetwork import Subnetwork
from .tasks import Split, Task, better_assignment, class_order, load_task

COLUMNS = ["split", "group", "metric", "value", "low", "high", "n"]
"""Schema of an evaluation: `metric` on the examples of `split` (of one `group`, or `all`), with a 95 % interval."""

BALANCED = "balanced_accuracy"
_DRAWS = 500


def evaluate(
    model: Any,
    task: str | Task,
    subnetwork: Subnetwork | None = None,
    splits: Iterable[str] | str | None = None,
    *,
    tokenizer: Any = None,
    label_map: Mapping[Any, str] | None = None,
    max_examples: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
) -> pd.DataFrame:
    """Score a model, or one of its subnetworks, on the splits of a task.

    Args:
        model: anything `load_model` takes.
        task: a `Task`, or a name (see `load_task`).
        subnetwork: applied while predicting; its KL to and agreement with the full model are reported too.
        splits: names; by default all in-domain and out-of-domain splits and their companions.
        tokenizer: where the model's own is not beside it.
        label_map: class of the checkpoint -> label of the task, where its config does not name them.
        max_examples: per split, a fixed random draw; None for all.
        batch_size: examples per forward pass.
        device: where to run; the model's own by default.

    Returns:
        DataFrame (split, group, metric, value, low, high, n). Metrics: `accuracy` (or the task's `mcc` / `pearson`),
        `kl` (nats), `agreement` (share of equal predictions), and `balanced_accuracy` of a split and its companion.
        Intervals: Wilson for proportions, otherwise a bootstrap over examples clustered by premise.
    """
    task = task if isinstance(task, Task) else load_task(task)
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    bridge = load_model(model, tokenizer=tokenizer, device=device)
    chosen = [split.sample(max_examples) for split in task.select(splits)]
    order = class_order(model_info(bridge).id2label, task, label_map)
    full = predict(bridge, task, chosen, order, batch_size=batch_size)
    warn_about_labels(full, task, model_info(bridge).id2label, order)
    if subnetwork is None:
        return score(full, task)
    ours = predict(bridge, task, chosen, order, subnetwork, batch_size=batch_size)
    return score(ours, task, teacher=full)


def check_numbers(**numbers: int | None) -> None:
    """Raise a CoreLensError that names the first that is neither None nor a whole number of at least 1."""
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise CoreLensError(f"{name}={number!r} must be a whole number of at least 1.")


def predict(
    model: TransformerBridge,
    task: Task,
    splits: Sequence[Split],
    order: Sequence[int],
    subnetwork: Subnetwork | None = None,
    batch_size: int = 64,
    encoded: Mapping[str, Encoded] | None = None,
) -> pd.DataFrame:
    """Logits of every example.

    Args:
        model: the hooked classifier.
        task: names the labels.
        splits: what to predict.
        order: class index of the model for each label of the task (`class_order`).
        subnetwork: applied meanwhile.
        batch_size: examples per forward pass.
        encoded: split name -> its tokenised rows, where that was done before.

    Returns:
        DataFrame (split, row, group, cluster, label, logit_<label> ...; `output` in place of the logits for
        regression), rows in the order of the splits.
    """
    device = model_info(model).device
    title = "full model" if subnetwork is None else subnetwork.name
    whole = nullcontext(lambda inputs, rows: logits(model, inputs))
    with whole if subnetwork is None else subnetwork.predictor(model) as forward:
        return predict_with(forward, model.tokenizer, device, task, splits, order, title, batch_size, encoded)


def predict_with(
    forward: Callable[[Mapping[str, Tensor], Tensor], Tensor],
    tokenizer: Any,
    device: torch.device,
    task: Task,
    splits: Sequence[Split],
    order: Sequence[int],
    title: str,
    batch_size: int = 64,
    encoded: Mapping[str, Encoded] | None = None,
) -> pd.DataFrame:
    """`predict` for any function from (inputs, row numbers) to logits [batch, class]."""
    names = logit_columns(task)
    frames = []
    with tqdm(total=sum(map(len, splits)), desc=f"evaluate {title}", unit="ex", leave=False) as bar:
        for split in splits:
            if len(split) == 0:
                raise TaskError(f"split {split.name!r} of task {task.name!r} is empty; leave it out of splits=.")
            rows_of = (encoded or {}).get(split.name) or encode(split, tokenizer, task.max_length)
            outputs = np.empty((len(split), len(order)), dtype=np.float32)
            for rows, inputs in batches(rows_of, batch_size, device=device):
                with torch.inference_mode():
                    outputs[rows.numpy()] = forward(inputs, rows).float().cpu().numpy()[:, list(order)]
                bar.update(len(rows))
            if not np.isfinite(outputs).all():
                row = int(np.flatnonzero(~np.isfinite(outputs).all(axis=1))[0])
                raise ModelError(
                    f"the model's output on row {row} of {split.name!r} is NaN or infinite: check its weights."
                )
            frame = split.data[["group", "cluster", "label"]].reset_index(drop=True)
            # Clusters can be whole premises: a hash keeps the file small and free of the data's text.
            frame["cluster"] = pd.util.hash_array(frame["cluster"].astype(str).to_numpy(dtype=object)).astype(str)
            frame.insert(0, "row", np.arange(len(frame)))
            frame.insert(0, "split", split.name)
            frame[names] = outputs
            frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def logit_columns(task: Task) -> list[str]:
    return [f"logit_{label}" for label in task.labels] or ["output"]


def score(predictions: pd.DataFrame, task: Task, teacher: pd.DataFrame | None = None) -> pd.DataFrame:
    """The figures of an evaluation from saved predictions.

    Args:
        predictions: from `predict`.
        task: the same task; only labels, metric and the splits' collapse rules and companions are used.
        teacher: the full model's predictions on the same examples, for KL and agreement.

    Returns:
        DataFrame in the schema of `COLUMNS`.
    """
    rows: list[tuple] = []
    accuracy: dict[str, tuple[float, float, float, int]] = {}
    for name, part in predictions.groupby("split", sort=False):
        split = task.split(str(name))
        reference = None if teacher is None else teacher[teacher["split"] == name]
        whole = _figures(part, reference, split, task)
        rows += [(name, "all", *figure) for figure in whole]
        accuracy |= {str(name): figure[1:] for figure in whole if figure[0] == "accuracy"}
        if part["group"].nunique() > 1:
            for group, index in part.groupby("group", sort=True).groups.items():
                sub = None if reference is None else reference.loc[reference.index[part.index.get_indexer(index)]]
                figures = _figures(part.loc[index], sub, split, task)
                rows += [(name, str(group), *figure) for figure in figures]
    for name in accuracy:
        companion = task.split(name).companion
        if companion in accuracy:
            rows.append((name, "all", BALANCED, *_balanced(accuracy[name], accuracy[companion])))
    return pd.DataFrame(rows, columns=COLUMNS)


def _figures(
    part: pd.DataFrame, teacher: pd.DataFrame | None, split: Split, task: Task
) -> list[tuple[str, float, float, float, int]]:
    """(metric, value, low, high, n) for one set of examples."""
    n, clusters = len(part), part["cluster"].to_numpy()
    names = logit_columns(task)
    output = part[names].to_numpy(dtype=float)
    figures = []
    predicted = np.empty(0)
    if task.is_regression:
        x, y = output[:, 0], part["label"].to_numpy(dtype=float)
        figures.append(("pearson", pearson(x, y), *bootstrap(lambda w: pearson(x, y, w), clusters, _DRAWS), n))
    else:
        predicted = split.predictions(output, task.labels)
        right = predicted == part["label"].to_numpy()
        if task.metric == "mcc":
            index = {label: i for i, label in enumerate(split.label_names(task.labels))}
            k = len(index)
            cells = part["label"].map(index).to_numpy() * k + pd.Series(predicted).map(index).to_numpy()
            figures.append(("mcc", mcc(cells, k), *bootstrap(lambda w: mcc(cells, k, w), clusters, _DRAWS), n))
        figures.append(("accuracy", right.mean(), *wilson(right.sum(), n), n))
    if teacher is not None:
        target = teacher[names].to_numpy(dtype=float)
        if task.is_regression:
            distance, key = (output - target)[:, 0] ** 2, "squared_error_to_full"
        else:
            log_p, log_q = log_softmax(target, axis=1), log_softmax(output, axis=1)
            distance, key = (np.exp(log_p) * (log_p - log_q)).sum(axis=1), "kl"
            same = predicted == split.predictions(target, task.labels)
            figures.append(("agreement", same.mean(), *wilson(same.sum(), n), n))
        interval = bootstrap(lambda w: float(np.average(distance, weights=w)), clusters, _DRAWS)
        figures.append((key, distance.mean(), *interval, n))
    return figures


def _balanced(
    a: tuple[float, float, float, int], b: tuple[float, float, float, int]
) -> tuple[float, float, float, int]:
    """Mean of two accuracies; the interval adds the Wilson half widths of the two independent samples in squares."""
    value = (a[0] + b[0]) / 2
    low = value - np.hypot(a[0] - a[1], b[0] - b[1]) / 2
    high = value + np.hypot(a[2] - a[0], b[2] - b[0]) / 2
    return value, max(0.0, low), min(1.0, high), a[3] + b[3]


def warn_about_labels(predictions: pd.DataFrame, task: Task, id2label: Mapping[int, str], order: Sequence[int]) -> None:
    """Warn when another assignment of the checkpoint's classes to the labels fits an in-domain split better.

    Swapping neutral and contradiction leaves a third of the answers right, so "below chance" would miss it.
    """
    if task.is_regression:
        return
    for split in task.with_role("id"):
        part = predictions[predictions["split"] == split.name]
        if split.collapse or not len(part):
            continue
        predicted = part[logit_columns(task)].to_numpy().argmax(axis=1)
        index = {label: i for i, label in enumerate(task.labels)}
        gold = part["label"].map(index).to_numpy()
        confusion = np.zeros((len(index), len(index)), dtype=int)
        np.add.at(confusion, (gold, predicted), 1)
        found = better_assignment(confusion, task.labels)
        if found is not None:
            names = found.label_map(id2label, order, task.labels)
            warnings.warn(
                f"the checkpoint's labels look mixed up: on {split.name!r} it scores {found.given_accuracy:.3f} as they are "
                f"named, and {found.accuracy:.3f} with label_map={names}; pass that label_map if the model card agrees.",
                CoreLensWarning,
                stacklevel=3,
            )
            return
