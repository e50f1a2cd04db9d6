"""How alike masks are over seeds: agreement beyond chance, equal survival rates, shared units (lottery paper, Section 6).

Everything takes 0/1 arrays [seed, unit], such as `core.head_masks(0.5).reshape(n_seeds, -1)`; nothing knows of models.

Cochran's Q asks only whether seeds keep equally *many* units, not the same ones: masks of one size have Q = 0 whatever they
keep. So the agreement measures stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool
from numpy.typing import ArrayLike

from .errors import CoreLensError


class CochranQ(NamedTuple):
    """The statistic, its p (chi-squared) and degrees of freedom."""

    q: float
    p: float
    df: int


def fleiss_kappa(masks: ArrayLike) -> float:
    """Fleiss' kappa: seeds are the raters, units the subjects, kept or not the answers.

    1 where all seeds agree, about 0 where they agree as often as random masks of the overall survival rate; nan where every
    seed keeps all units or none.
    """
    from statsmodels.stats.inter_rater import fleiss_kappa as kappa  # imported late, as it takes a second

    checked = _checked(masks)
    kept = checked.sum(axis=0)
    if kept.sum() in (0, checked.size):
        return float("nan")
    return float(kappa(np.stack([len(checked) - kept, kept], axis=1)))


def krippendorff_alpha(masks: ArrayLike) -> float:
    """Krippendorff's alpha for nominal values, kappa corrected for few seeds; nan as `fleiss_kappa`."""
    import krippendorff

    checked = _checked(masks)
    if checked.all() or not checked.any():
        return float("nan")
    return float(krippendorff.alpha(reliability_data=checked.astype(int), level_of_measurement="nominal"))


def cochran_q(masks: ArrayLike) -> CochranQ:
    """Cochran's Q: do seeds keep equally many units? A small p says that they do not.

    Where all seeds agree on every unit there is nothing to compare: Q = 0, p = 1.
    """
    from statsmodels.stats.contingency_tables import cochrans_q

    checked = _checked(masks)
    if (checked == checked[0]).all():
        return CochranQ(0.0, 1.0, len(checked) - 1)
    found = cochrans_q(checked.T.astype(int))
    return CochranQ(float(found.statistic), float(found.pvalue), int(found.df))


def cochran_q_pairs(masks: ArrayLike, level: float = 0.05) -> pd.DataFrame:
    """Cochran's Q of every pair of seeds (McNemar's test): a, b, q, p, differ (p <= `level`, uncorrected)."""
    checked = _checked(masks)
    rows = [(a, b, *cochran_q(checked[[a, b]])[:2]) for a, b in combinations(range(len(checked)), 2)]
    return pd.DataFrame(rows, columns=["a", "b", "q", "p"]).assign(differ=lambda table: table["p"] <= level)


def jaccard(masks: ArrayLike) -> float:
    """Mean Jaccard index over pairs of seeds: units in both over units in either; nan where no pair keeps any."""
    checked = _checked(masks, at_least=1)
    pairs = [(a & b).sum() / (a | b).sum() for a, b in combinations(checked, 2) if (a | b).any()]
    return float(np.mean(pairs)) if pairs else float("nan")


def table(masks: ArrayLike) -> pd.Series:
    """All of it: seeds, units, kept (mean share), kappa, alpha, q, p, pairs_that_differ (share, at 0.05), jaccard."""
    checked = _checked(masks)
    test = cochran_q(checked)
    return pd.Series(
        {
            "seeds": len(checked),
            "units": checked.shape[1],
            "kept": checked.mean(),
            "kappa": fleiss_kappa(checked),
            "alpha": krippendorff_alpha(checked),
            "q": test.q,
            "p": test.p,
            "pairs_that_differ": cochran_q_pairs(checked)["differ"].mean(),
            "jaccard": jaccard(checked),
        }
    )


def task_overlap(masks: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """How many units the masks of two tasks share, seed by seed (lottery paper, Figure 3).

    Args:
        masks: task -> [seed, unit], the same seeds in the same order.

    Returns:
        DataFrame, a row per pair of tasks, a task with itself too: a, b, mean, std (over seeds, ddof 1), expected (of random
        masks of these sizes).

    Raises:
        CoreLensError: the arrays have different shapes.
    """
    checked = {task: _checked(mask, at_least=1) for task, mask in masks.items()}
    shapes = {task: mask.shape for task, mask in checked.items()}
    if len(set(shapes.values())) > 1:
        raise CoreLensError(f"the masks have different shapes ({shapes}): give the same seeds of models of one shape.")
    rows = []
    for a, b in [(a, b) for i, a in enumerate(checked) for b in list(checked)[i:]]:
        shared = (checked[a] & checked[b]).sum(axis=1)
        expected = checked[a].sum(axis=1) * (checked[b].mean(axis=1) if a != b else 1)
        rows.append((a, b, shared.mean(), shared.std(ddof=1) if len(shared) > 1 else np.nan, expected.mean()))
    return pd.DataFrame(rows, columns=["a", "b", "mean", "std", "expected"])


def survival_by_layer(masks: ArrayLike) -> pd.DataFrame:
    """Share of each layer's heads that survive: layer, mean, std (over seeds, ddof 1).

    Args:
        masks: 0/1 [seed, layer, head].
    """
    values = np.asarray(masks)
    if values.ndim != 3:
        raise CoreLensError(f"masks of shape {values.shape} are not [seed, layer, head].")
    shares = _checked(values.reshape(len(values), -1), at_least=1).reshape(values.shape).mean(axis=2)
    std = shares.std(axis=0, ddof=1) if len(shares) > 1 else np.full(shares.shape[1], np.nan)
    return pd.DataFrame({"layer": range(shares.shape[1]), "mean": shares.mean(axis=0), "std": std})


def _checked(masks: ArrayLike, at_least: int = 2) -> Bool[np.ndarray, "seed unit"]:
    values = np.asarray(masks)
    if values.ndim != 2 or not values.size:
        raise CoreLensError(f"masks of shape {values.shape} are not [seed, unit]: give one row of 0 and 1 per seed.")
    if not np.isin(values, (0, 1)).all():
        raise CoreLensError(
            f"masks hold {values[~np.isin(values, (0, 1))][0]!r}: give 1 for a unit that stays, else 0."
        )
    if len(values) < at_least:
        raise CoreLensError(f"masks have {len(values)} seed: agreement needs at least {at_least}.")
    return values.astype(bool)
