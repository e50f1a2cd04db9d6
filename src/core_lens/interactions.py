"""What ablations do, alone and together: single and joint drops, super-additivity, the core alone.

The scores are those of `ablation_runs`: the gold margin (logit scale) first, accuracy beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from .ablation_runs import FULL, Components, label, named_components, run_ablations
from .components import Component
from .errors import CoreLensError, TaskError
from .evaluate import check_numbers
from .hooked import component_set, load_model
from .tasks import Task, load_task

OTHERS = "mean of others"
"""What `ablation_table` calls the mean over the heads that are not asked about."""
POOLED = "pooled"
"""What `most_super_additive` calls the examples by which it chooses, all together."""


def ablate(
    model: Any, task: str | Task, components: Components, splits: Iterable[str] | str | None = None, **options: Any
) -> pd.DataFrame:
    """Ablate components together, and compare with the full model.

        core_lens.ablate("lab", "lab", "L1.H3 & L2.H7", splits="SO-Swap")

    Args:
        model, task, splits: as in `evaluate`.
        components: heads and MLPs, `["L2.H5", "L3.MLP"]` or `"L2.H5 & L3.H7"`.
        **options: replacement, max_examples, batch_size, tokenizer, label_map, device (see `run_ablations`).

    Returns:
        DataFrame (split, metric, value, low, high, n, drop, drop_low, drop_high). Metrics: `margin` (gold logit minus
        logsumexp of the others) and `accuracy`. The drop is the full model's score less this one, with a paired 95 %
        bootstrap interval over examples clustered by premise.

    Raises:
        CoreLensError: as `run_ablations`.
    """
    run = run_ablations(model, task, [components], splits, **options)
    return run.drops(run.sets[1:]).drop(columns="ablated")


def ablation_table(
    model: Any, task: str | Task, heads: Components, splits: Iterable[str] | str | None = None, **options: Any
) -> pd.DataFrame:
    """Ablate every head of the model alone (Heuristic Core, Tables 3, 4, 6 and 8).

    Args:
        model, task, splits: as in `evaluate`.
        heads: the heads to list, usually the core's; the others are the control.
        **options: see `run_ablations`.

    Returns:
        DataFrame (ablated, split, metric, value, low, high, n, drop, drop_low, drop_high, spread, p). `ablated` is
        `None` (the full model), each of `heads`, then `mean of others`: the mean over all other heads, where `spread`
        is the standard deviation of their drops over heads. `p` = (1 + how many other heads drop at least as far) /
        (1 + how many there are): small where a head matters more than others do.

    Raises:
        CoreLensError: as `run_ablations`; also an MLP among `heads`.
    """
    bridge = _load(model, options)
    units = component_set(bridge, ("head",))
    listed = _heads(bridge, heads)
    rest = [(head,) for head in units if head not in listed]
    run = run_ablations(bridge, task, [(head,) for head in units], splits, **options)
    table = run.drops([(), *((head,) for head in listed)])
    table.loc[table["ablated"] == FULL, ["drop", "drop_low", "drop_high"]] = np.nan
    if not rest:
        return table.assign(spread=np.nan, p=np.nan)
    others = run.drops(rest)
    control = run.estimate([run.score_of(*rest)]).drop(columns="item")
    drop = run.estimate([run.drop_of(*rest)])
    control[["drop", "drop_low", "drop_high"]] = drop[["value", "low", "high"]]
    control.insert(0, "ablated", OTHERS)
    keys = ["split", "metric"]
    drops = {key: part["drop"].to_numpy() for key, part in others.groupby(keys, sort=False)}
    control["spread"] = [drops[key].std() for key in zip(control["split"], control["metric"], strict=True)]
    table["p"] = [
        np.nan if np.isnan(value) else _rank_p(value, drops[split, metric])
        for split, metric, value in zip(table["split"], table["metric"], table["drop"], strict=True)
    ]
    return pd.concat([table.assign(spread=np.nan), control], ignore_index=True)[[*control.columns, "p"]]


def interaction(
    model: Any, task: str | Task, heads: Components, splits: Iterable[str] | str | None = None, **options: Any
) -> pd.DataFrame:
    """How far ablating components together goes beyond the sum of ablating each alone.

    Args:
        model, task, splits: as in `evaluate`.
        heads: at least two heads or MLPs.
        **options: see `run_ablations`.

    Returns:
        DataFrame (split, metric, joint, singles, value, low, high, n): the joint drop, the sum of the single drops, and
        their difference (positive = super-additive) with a paired 95 % bootstrap interval over examples clustered by
        premise. A set that was selected on the same examples looks better than it is: see `most_super_additive`.

    Raises:
        CoreLensError: as `run_ablations`; also fewer than two components.
    """
    bridge = _load(model, options)
    joint = named_components(component_set(bridge), heads, "heads", at_least=2)
    run = run_ablations(bridge, task, _with_singles([joint]), splits, **options)
    return run.interactions([joint]).drop(columns=["ablated", "size"])


def interaction_map(
    model: Any,
    task: str | Task,
    heads: Components,
    splits: Iterable[str] | str | None = None,
    *,
    sizes: Sequence[int] = (2,),
    budget: int = 200,
    **options: Any,
) -> pd.DataFrame:
    """The interaction of every pair of components, and of larger sets.

    Args:
        model, task, splits: as in `evaluate`.
        heads: the components to combine, usually the core's heads.
        sizes: how many are ablated together; sizes beyond the number of components are left out.
        budget: at most so many sets; of a size that goes beyond, a fixed random draw.
        **options: see `run_ablations`.

    Returns:
        DataFrame (head, other, ablated, size, split, metric, joint, singles, value, low, high, n); the figures are those
        of `interaction`. A pair is there twice, once from each side, so that pivoting on `head` and `other` gives a
        symmetric matrix; larger sets have neither. The intervals are of one set each, not of the highest of many.

    Raises:
        CoreLensError: as `interaction`; also a size that is impossible.
    """
    bridge = _load(model, options)
    sets = _subsets(named_components(component_set(bridge), heads, "heads", at_least=2), sizes, budget)
    table = run_ablations(bridge, task, _with_singles(sets), splits, **options).interactions(sets)
    pair = table["ablated"].str.split(" & ", expand=True).where(table["size"] == 2)
    table.insert(0, "head", pair[0])
    table.insert(1, "other", pair[1])
    turned = table[table["size"] == 2].rename(columns={"head": "other", "other": "head"})
    return pd.concat([table, turned], ignore_index=True)


def most_super_additive(
    model: Any,
    task: str | Task,
    heads: Components,
    splits: Iterable[str] | str | None = None,
    *,
    sizes: Sequence[int] = (2, 3),
    budget: int = 200,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Choose the most super-additive set on one half of the examples, and test it on the other.

    The choice is by the interaction on the logit scale, averaged over the examples of the out-of-domain splits and their
    companions, so that a mere shift towards one answer does not count (over all examples where there are none of these).
    No premise is on both sides.

    Args:
        model, task, splits: as in `evaluate`.
        heads: the components to combine, usually the core's heads.
        sizes, budget: as in `interaction_map`.
        seed: of the cut in two.
        **options: see `run_ablations`.

    Returns:
        DataFrame (ablated, size, half, split, metric, joint, singles, value, low, high, n, candidates) of the chosen
        set: on the `test` half, then on the `selection` half, which has no interval because it was chosen there. In
        each, split `pooled` comes first: the mean that the choice is by.

    Raises:
        CoreLensError: as `interaction_map`; a split that is one single cluster.
    """
    task = task if isinstance(task, Task) else load_task(task)
    bridge = _load(model, options)
    sets = _subsets(named_components(component_set(bridge), heads, "heads", at_least=2), sizes, budget)
    run = run_ablations(bridge, task, _with_singles(sets), splits, **options)
    first = halves(run.examples, seed)
    outside = [split.name for split in task.with_role("ood", "companion")]
    counts = run.examples["split"].isin(outside).to_numpy()
    counts = counts | (not counts.any())
    pooled = run.only(counts)
    pooled = replace(pooled, examples=pooled.examples.assign(split=POOLED))
    seen, unseen = (pooled.only(half[counts]) for half in (first, ~first))
    judged = seen.interactions(sets)
    judged = judged.loc[judged["metric"] == next(iter(run.scores)), "value"].to_numpy()  # in the order of `sets`
    chosen = [sets[int(judged.argmax())]]
    tested = [part.interactions(chosen).assign(half="test") for part in (unseen, run.only(~first))]
    chosen_on = [part.interactions(chosen).assign(half="selection") for part in (seen, run.only(first))]
    both = pd.concat([*tested, *chosen_on], ignore_index=True).assign(candidates=len(sets))
    both.loc[both["half"] == "selection", ["low", "high"]] = np.nan
    both.insert(2, "half", both.pop("half"))
    return both


def core_alone(
    model: Any,
    task: str | Task,
    heads: Components,
    splits: Iterable[str] | str | None = None,
    *,
    n_random: int = 20,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Keep only the core's heads and all MLPs, and compare with as many random heads in each layer.

    Args:
        model, task, splits: as in `evaluate`.
        heads: the heads that stay.
        n_random: how many random sets, each drawn among all heads (the core's too) with as many in every layer.
        seed: of the draw.
        **options: see `run_ablations`.

    Returns:
        DataFrame (kept, draw, heads, split, metric, value, low, high, n, p): `kept` is `full`, `core` or `random` (`draw`
        0, 1, ...). The core's `p` = (1 + how many random sets score at least as high) / (1 + n_random): it is small
        where the core alone does better than random sets, and near 1 where it does worse.

    Raises:
        CoreLensError: as `run_ablations`; also an MLP among `heads`.
    """
    check_numbers(n_random=n_random)
    bridge = _load(model, options)
    units = component_set(bridge, ("head",))
    core = _heads(bridge, heads)
    rng = np.random.default_rng(seed)
    per_layer = [sum(head.layer == layer for head in core) for layer in range(units.n_layers)]
    kept = [tuple(units), core]
    for _ in range(n_random):
        drawn = [np.sort(rng.choice(units.n_heads, k, replace=False)) for k in per_layer]
        kept.append(tuple(Component(layer, int(head)) for layer, part in enumerate(drawn) for head in part))
    removed = [tuple(head for head in units if head not in some) for some in kept]
    run = run_ablations(bridge, task, [some for some in removed if some], splits, **options)
    parts = []
    for i, (some, gone) in enumerate(zip(kept, removed, strict=True)):
        part = run.drops([gone]).drop(columns=["ablated", "drop", "drop_low", "drop_high"])
        part.insert(0, "kept", ("full", "core")[i] if i < 2 else "random")
        part.insert(1, "draw", pd.Series(pd.NA if i < 2 else i - 2, part.index, dtype="Int64"))
        part.insert(2, "heads", "all" if i == 0 else label(some))
        parts.append(part)
    table = pd.concat(parts, ignore_index=True).assign(p=np.nan)
    for _, part in table.groupby(["split", "metric"], sort=False):
        ours, draws = part[part["kept"] == "core"], part.loc[part["kept"] == "random", "value"].to_numpy()
        table.loc[ours.index, "p"] = _rank_p(float(ours["value"].iloc[0]), draws)
    return table


def halves(examples: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """Cut examples in two so that no cluster is on both sides and every split is cut near its middle.

    Args:
        examples: DataFrame with `split` and `cluster`; a cluster may occur in several splits.
        seed: the same seed gives the same cut.

    Returns:
        Bool [example], True in the first half.

    Raises:
        TaskError: all examples of a split fall on one side.
    """
    clusters = examples.drop_duplicates("cluster").sample(frac=1, random_state=seed)
    clusters = clusters.sort_values("split", kind="stable")["cluster"]
    side = pd.Series(np.arange(len(clusters)) % 2 == 0, index=clusters.to_numpy())
    first = side.reindex(examples["cluster"]).to_numpy()
    share = pd.Series(first).groupby(examples["split"].to_numpy()).mean()
    for split in share.index[share.isin([0, 1])]:
        raise TaskError(f"split {split!r} has too few clusters to be cut in two: leave it out of splits=.")
    return first


def _load(model: Any, options: dict[str, Any]) -> TransformerBridge:
    return load_model(model, tokenizer=options.get("tokenizer"), device=options.get("device"))


def _heads(model: TransformerBridge, given: Components) -> tuple[Component, ...]:
    named = named_components(component_set(model), given, "heads")
    for one in named:
        if one.kind != "head":
            raise CoreLensError(f"heads has {one}: only heads are asked for here, MLPs stay.")
    return named


def _subsets(components: Sequence[Component], sizes: Sequence[int], budget: int) -> list[tuple[Component, ...]]:
    """All subsets of the given sizes, small sizes first, up to a budget; of a size that goes beyond it a random draw."""
    check_numbers(budget=budget)
    asked = {sizes} if isinstance(sizes, int) else set(sizes)
    wanted = sorted(k for k in asked if isinstance(k, int) and k <= len(components))
    if not wanted or wanted[0] < 2:
        raise CoreLensError(f"sizes={sizes!r}: name whole numbers from 2 to {len(components)}, how many are combined.")
    rng = np.random.default_rng(0)
    found: list[tuple[Component, ...]] = []
    for k in wanted:
        left = budget - len(found)
        if comb(len(components), k) <= left:
            found += combinations(components, k)
            continue
        drawn: set[tuple[Component, ...]] = set()
        while len(drawn) < left:
            drawn.add(tuple(components[i] for i in np.sort(rng.choice(len(components), k, replace=False))))
        found += sorted(drawn)
    return found


def _with_singles(sets: Iterable[tuple[Component, ...]]) -> list[tuple[Component, ...]]:
    sets = list(sets)
    return [*sets, *((one,) for one in sorted(set().union(*sets)))]


def _rank_p(value: float, null: np.ndarray) -> float:
    """(1 + how many of `null` are at least `value`) / (1 + how many there are)."""
    return float((1 + (null >= value).sum()) / (1 + len(null)))
