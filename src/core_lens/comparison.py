"""Cores beside one another: of checkpoints, tasks, or models of one shape; which heads they share, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from .core import Core
from .errors import CoreLensError
from .significance import Null, intersection


@dataclass(frozen=True, eq=False)
class CoreComparison:
    """Cores of checkpoints, tasks or models, side by side (`compare_cores`).

    Args:
        frequencies: how often each head is kept: a row per head (`L2.H5`), a column per core; 1 is membership.
        pairs: a row per pair of cores: a, b, heads_a, heads_b, shared, jaccard, expected (Jaccard index of random cores of
            these sizes), p, p_within_layers (random cores with these sizes in each layer), shared_seeds. Random cores are drawn
            apart, which cores with seeds in common are not quite. p is not corrected for the number of pairs.
        emergence: for each head that is in any core: `first`, the first core it is in, and `stays_from`, the first from
            which on it is in all (None where it is not in the last). Says something where the cores are in order.
        shared: the heads in all cores.
        at_random: their number under random cores of these sizes.
        within_layers: the same with the sizes in each layer held.
    """

    frequencies: pd.DataFrame
    pairs: pd.DataFrame
    emergence: pd.DataFrame
    shared: tuple[str, ...]
    at_random: Null
    within_layers: Null

    @property
    def members(self) -> pd.DataFrame:
        """Which heads are in which core: bool, as `frequencies`."""
        return self.frequencies == 1

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {n}" for name, n in self.members.sum().items())
        return (
            f"Heads in the cores: {sizes}; in all {self.members.shape[1]}: {' '.join(self.shared) or 'none'} "
            f"({self.at_random.expected:.2g} expected of random cores, p = {self.at_random.p:.2g}; "
            f"with layers held p = {self.within_layers.p:.2g})\n{self.emergence.to_string()}"
        )


def compare_cores(cores: Mapping[str, Core]) -> CoreComparison:
    """Cores side by side: of checkpoints (in their order, to see when heads enter), of tasks, of models of one shape.

        compare_cores({"500 steps": early, "5000 steps": late}).emergence

    Heads with the same number mean the same only where the models come from one pretrained model.

    Args:
        cores: at least two, by name.

    Raises:
        CoreLensError: fewer than two, of different shapes, or without heads as units.
    """
    if len(cores) < 2:
        raise CoreLensError(
            f"compare_cores got {len(cores)} core{'s' * (len(cores) != 1)}: give at least two, by name."
        )
    masks = {name: core.head_masks() for name, core in cores.items()}
    shapes = {name: f"{m.shape[1]} layers x {m.shape[2]} heads" for name, m in masks.items()}
    if len(set(shapes.values())) > 1:
        raise CoreLensError(f"these cores are of models of different shapes ({shapes}): their heads cannot be matched.")
    members = {name: m.all(axis=0) for name, m in masks.items()}
    tables = {
        name: core.frequencies().query("kind == 'head'").set_index("component")["all"] for name, core in cores.items()
    }
    frequencies = pd.DataFrame(tables)
    heads = list(frequencies.index)
    seeds = {name: set(core.seeds()) for name, core in cores.items()}
    rows = []
    for (a, x), (b, y) in combinations(members.items(), 2):
        at_random, within = intersection(np.stack([x, y]))
        counts = np.arange(len(at_random.pmf))
        union = x.sum() + y.sum() - counts
        jaccard = np.divide(counts, union, out=np.full(len(counts), np.nan), where=union > 0)
        reachable = at_random.pmf > 0
        expected = at_random.pmf[reachable] @ jaccard[reachable]
        shared = at_random.observed
        rows.append(
            (a, b, x.sum(), y.sum(), shared, jaccard[shared], expected, at_random.p, within.p, len(seeds[a] & seeds[b]))
        )
    columns = ["a", "b", "heads_a", "heads_b", "shared", "jaccard", "expected", "p", "p_within_layers", "shared_seeds"]
    stacked, names = np.stack([m.ravel() for m in members.values()]), list(cores)
    entries = {}
    for i in np.flatnonzero(stacked.any(axis=0)):
        absent = np.flatnonzero(~stacked[:, i])
        since = int(absent[-1]) + 1 if len(absent) else 0
        entries[heads[i]] = (names[int(stacked[:, i].argmax())], names[since] if since < len(names) else None)
    return CoreComparison(
        frequencies,
        pd.DataFrame(rows, columns=columns),
        pd.DataFrame.from_dict(entries, orient="index", columns=["first", "stays_from"], dtype=object),
        tuple(heads[i] for i in np.flatnonzero(stacked.all(axis=0))),
        *intersection(np.stack(list(members.values()))),
    )
