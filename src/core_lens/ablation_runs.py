"""Every example scored under many ablations at once, and the statistics that are weighted sums over ablations.

All figures come from one array of scores [ablation, example], so that they are paired: an interval resamples the
examples (whole clusters of them) once for all ablations.

The primary score is on the logit scale, the *gold margin*: the gold label's logit minus the logsumexp of the others.
Where a split knows fewer labels (HANS: neutral and contradiction are both non-entailment) it is the logsumexp within
the gold label's group minus the logsumexp of the others. Accuracy stands beside it; it saturates, and sums of drops
beyond 0 or 1 say nothing there. A regression task has neither: its only score is the negative squared error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.special import logsumexp
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from .ablation import Replacement, ZeroActivations, fit_means
from .components import Component, ComponentSet
from .errors import CoreLensError
from .evaluate import check_numbers, predict_with, warn_about_labels
from .gates import inject
from .hooked import component_set, load_model, logits, model_info
from .hooked.batches import batches, encode
from .hooked.resume import entering, resumed
from .intervals import wilson
from .selection import MEAN_EXAMPLES, means_split
from .subnetwork import Subnetwork
from .tasks import Split, Task, class_order, load_task

Components = str | Component | Iterable[Component | str]
"""`["L2.H5", "L3.MLP"]`, one component, or the paper's notation, `"L2.H5 & L3.H7"`."""
FULL = "None"
"""What tables call the ablation of nothing."""
_DRAWS = 1000


@dataclass(frozen=True, eq=False)
class Ablations:
    """Scores of every example under several ablations.

    Args:
        sets: the components that are ablated together; the first set is empty, the full model.
        examples: DataFrame (split, row, group, cluster, label).
        scores: metric -> score of every example, in the order of `examples`; the first metric is the primary one.
            `margin` and `accuracy` (1 where right), or `negative_squared_error` for a regression task.
    """

    sets: tuple[tuple[Component, ...], ...]
    examples: pd.DataFrame
    scores: dict[str, np.ndarray]  # each [set, example]

    @cached_property
    def _position(self) -> dict[tuple[Component, ...], int]:
        return {components: i for i, components in enumerate(self.sets)}

    def score_of(self, *sets: tuple[Component, ...]) -> np.ndarray:
        """The weights [1, set] by which `estimate` gives the mean score over `sets`."""
        weights = np.zeros((1, len(self.sets)))
        for components in sets:
            weights[0, self._position[components]] += 1 / len(sets)
        return weights

    def drop_of(self, *sets: tuple[Component, ...]) -> np.ndarray:
        """The weights [1, set] of the mean drop over `sets` against the full model."""
        return self.score_of(()) - self.score_of(*sets)

    def interaction_of(self, components: tuple[Component, ...]) -> np.ndarray:
        """The weights [1, set] of the joint drop minus the sum of the single drops."""
        return self.drop_of(components) - sum(self.drop_of((one,)) for one in components)

    def estimate(self, weights: Sequence[np.ndarray]) -> pd.DataFrame:
        """Weighted sums over ablations, as means over the examples of each split.

        Args:
            weights: any number of [1, set].

        Returns:
            DataFrame (item, split, metric, value, low, high, n), `item` the place in `weights`, with a 95 %
            percentile bootstrap interval over clusters (nan for fewer than two). Zero width says that no example changed.
        """
        stacked = np.concatenate(weights)
        parts = []
        for split, rows in self.examples.groupby("split", sort=False).indices.items():
            draw, codes = _cluster_draws(self.examples["cluster"].to_numpy()[rows])
            for metric, scores in self.scores.items():
                values = stacked @ scores[:, rows]
                low, high = _percentiles(values, draw, codes)
                parts.append(
                    pd.DataFrame(
                        {
                            "item": np.arange(len(values)),
                            "split": split,
                            "metric": metric,
                            "value": values.mean(axis=1),
                            "low": low,
                            "high": high,
                            "n": len(rows),
                        }
                    )
                )
        return pd.concat(parts, ignore_index=True).sort_values("item", kind="stable", ignore_index=True)

    def drops(self, sets: Sequence[tuple[Component, ...]]) -> pd.DataFrame:
        """DataFrame (ablated, split, metric, value, low, high, n, drop, drop_low, drop_high), one row a set and score.

        `value` is the score under the ablation (its interval is Wilson's for accuracy), `drop` the full model's less it.
        """
        table = self.estimate([self.score_of(components) for components in sets])
        share = table["metric"] == "accuracy"
        bounds = [wilson(value * n, int(n)) for value, n in table.loc[share, ["value", "n"]].to_numpy()]
        table.loc[share, ["low", "high"]] = np.reshape(bounds, (-1, 2))
        drops = self.estimate([self.drop_of(components) for components in sets])
        table[["drop", "drop_low", "drop_high"]] = drops[["value", "low", "high"]]
        table.insert(0, "ablated", [label(sets[i]) for i in table.pop("item")])
        return table

    def interactions(self, sets: Sequence[tuple[Component, ...]]) -> pd.DataFrame:
        """DataFrame (ablated, size, split, metric, joint, singles, value, low, high, n): `value` = `joint` - `singles`."""
        table = self.estimate([self.interaction_of(components) for components in sets])
        joint = self.estimate([self.drop_of(components) for components in sets])["value"]
        items = table.pop("item")
        table.insert(0, "ablated", [label(sets[i]) for i in items])
        table.insert(1, "size", [len(sets[i]) for i in items])
        table.insert(4, "joint", joint)
        table.insert(5, "singles", joint - table["value"])
        return table

    def only(self, keep: np.ndarray) -> Ablations:
        """The same ablations on the examples where `keep` [example] is True."""
        scores = {metric: values[:, keep] for metric, values in self.scores.items()}
        return replace(self, examples=self.examples[keep].reset_index(drop=True), scores=scores)


def label(components: Sequence[Component]) -> str:
    """`L2.H5 & L3.H7`, as the paper writes a joint ablation; `None` for the full model."""
    return " & ".join(map(str, components)) or FULL


def named_components(units: ComponentSet, given: Components, name: str, at_least: int = 1) -> tuple[Component, ...]:
    """The components a user named, sorted.

    Raises:
        CoreLensError: too few, one of them twice, or one that the model has not.
    """
    if isinstance(given, str):
        given = given.split("&") if given.strip() else []
    elif isinstance(given, Component) or not isinstance(given, Iterable):
        given = [given]
    named = [Component.parse(one) if isinstance(one, str) else one for one in given]
    for i, one in enumerate(named):
        if not isinstance(one, Component):
            raise CoreLensError(f"{name} has {one!r}: write a head as L2.H5 and an MLP as L2.MLP.")
        units.index(one)
        if one in named[:i]:
            raise CoreLensError(f"{name} has {one} twice: name each component once.")
    if len(named) < at_least:
        wanted = "name at least one component" if at_least == 1 else "an interaction needs at least two components"
        raise CoreLensError(f"{name} is {label(named) if named else 'empty'}: {wanted}.")
    return tuple(sorted(named))


def run_ablations(
    model: Any,
    task: str | Task,
    sets: Iterable[Components],
    splits: Iterable[str] | str | None = None,
    *,
    replacement: Replacement | Literal["mean", "zero"] | None = None,
    max_examples: int | None = 500,
    batch_size: int = 32,
    tokenizer: Any = None,
    label_map: Any = None,
    device: Any = None,
) -> Ablations:
    """Score every example under every one of several ablations.

    Each batch runs once through the full model; an ablation then starts from the residual stream that enters the
    first layer it changes.

    Args:
        model: anything `load_model` takes.
        task: a `Task`, or a name (see `load_task`).
        sets: the components to ablate together, one set an ablation.
        splits: names; by default all in-domain and out-of-domain splits and their companions.
        replacement: what stands in for an ablated component. None or `"mean"` takes means over 4,096 training examples
            drawn at random; `"zero"`; or what a run was made with, such as `core.subnetworks[0].replacement`.
        max_examples: per split, a fixed random draw; None for all.
        batch_size: examples per forward pass.
        tokenizer, label_map, device: as in `evaluate`.

    Raises:
        CoreLensError: a set is empty, names a component twice or one that the model has not, or an argument is unusable.
    """
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    task = task if isinstance(task, Task) else load_task(task)
    bridge = load_model(model, tokenizer=tokenizer, device=device)
    units = component_set(bridge)
    chosen = [split.sample(max_examples) for split in task.select(splits)]
    order = class_order(model_info(bridge).id2label, task, label_map)
    # The full model first; each set once.
    distinct = tuple(dict.fromkeys([(), *(named_components(units, given, "components") for given in sets)]))
    stand_in = _replacement(bridge, task, chosen, replacement, batch_size)
    Subnetwork(units, units.mask(units), stand_in).check(bridge)
    examples, outputs = _run(bridge, task, chosen, order, units, distinct, stand_in, batch_size)
    return Ablations(distinct, examples, _scores(task, examples, outputs))


def _run(
    model: TransformerBridge,
    task: Task,
    splits: Sequence[Split],
    order: Sequence[int],
    units: ComponentSet,
    sets: Sequence[tuple[Component, ...]],
    replacement: Replacement,
    batch_size: int,
) -> tuple[pd.DataFrame, np.ndarray]:
    """The examples, and the logits [set, example, label] under every ablation; the first set is the full model."""
    device = model_info(model).device
    starts = np.cumsum([0, *(len(split) for split in splits)])
    outputs = np.empty((len(sets), starts[-1], len(order)), dtype=np.float32)
    opened = torch.ones(len(units), device=device)
    closed = [(min(c.layer for c in some), (~units.mask(some)).float().to(device)) for some in sets[1:]]
    done = 0
    with inject(model, units, replacement) as gates:

        def forward(inputs: Mapping[str, Tensor], rows: Tensor) -> Tensor:
            nonlocal done
            # `rows` count within a split, and splits come one after the other.
            here = starts[np.searchsorted(starts, done, side="right") - 1] + rows.numpy()
            done += len(rows)
            gates.rows, gates.z = rows, opened
            with entering(model, {layer for layer, _ in closed} - {0}) as residuals:
                full = logits(model, inputs)
            for i, (layer, z) in enumerate(closed, start=1):
                gates.z = z
                with resumed(model, layer, residuals.get(layer)):
                    outputs[i, here] = logits(model, inputs).float().cpu().numpy()[:, list(order)]
            return full

        title = f"{len(closed)} ablation{'s' * (len(closed) > 1)}"
        full = predict_with(forward, model.tokenizer, device, task, splits, order, title, batch_size)
    warn_about_labels(full, task, model_info(model).id2label, order)
    outputs[0] = full.iloc[:, -len(order) :].to_numpy()
    return full.iloc[:, : -len(order)], outputs


def _scores(task: Task, examples: pd.DataFrame, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """Metric -> [set, example], from logits [set, example, label]."""
    outputs = outputs.astype(float)
    gold = examples["label"].to_numpy()
    if task.is_regression:
        return {"negative_squared_error": -((outputs[..., 0] - gold.astype(float)) ** 2)}
    names = {name: task.split(str(name)).collapsed(task.labels) for name in examples["split"].unique()}
    names = np.stack([names[split] for split in examples["split"]])  # [example, label], as the split calls it
    mine = names == gold[:, None]
    within, against = (logsumexp(np.where(part, outputs, -np.inf), axis=-1) for part in (mine, ~mine))
    right = np.take_along_axis(mine[None], outputs.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return {"margin": within - against, "accuracy": right.astype(float)}


def _replacement(
    model: TransformerBridge, task: Task, reported: Sequence[Split], given: Any, batch_size: int
) -> Replacement:
    if isinstance(given, Replacement):
        return given
    info = model_info(model)
    if given == "zero":
        return ZeroActivations(info.weight_hash)
    if given not in (None, "mean"):
        raise CoreLensError(
            f"replacement={given!r}: choose 'mean' or 'zero', or pass MeanActivations, ZeroActivations or "
            "ResampleActivations."
        )
    source = means_split(task, [split for split in reported if split.role != "train"], MEAN_EXAMPLES["fast"])
    encoded = encode(source, model.tokenizer, task.max_length)
    return fit_means(model, batches(encoded, batch_size, device=info.device), total=len(encoded))


def _cluster_draws(clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often each cluster is drawn, [draw, cluster], and the cluster of each example."""
    codes, names = pd.factorize(clusters)
    return np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=_DRAWS), codes


def _percentiles(values: np.ndarray, draw: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Bootstrap intervals [2, k] of the means of `values` [k, example] over resampled clusters."""
    if draw.shape[1] < 2:
        return np.full((2, len(values)), np.nan)
    sums = pd.DataFrame(values.T).groupby(codes).sum().to_numpy()  # [cluster, k]
    means = draw @ sums / (draw @ np.bincount(codes))[:, None]
    return np.quantile(means, [0.025, 0.975], axis=0)
