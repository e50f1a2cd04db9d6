"""Intervals: Wilson for proportions, Student's t over seeds, and a bootstrap over clusters of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats


def wilson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927).

    Args:
        successes: number of successes, 0 <= successes <= n; whole but for round-off.
        n: number of trials; (nan, nan) for 0.
        level: coverage.
    """
    if n == 0:
        return float("nan"), float("nan")
    found = stats.binomtest(round(successes), n).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def over_seeds(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Interval for the mean over seeds: Student's t; (nan, nan) for fewer than two values."""
    data = np.asarray(values, dtype=float)
    if len(data) < 2:
        return float("nan"), float("nan")
    half = float(stats.t.ppf(0.5 + level / 2, len(data) - 1)) * data.std(ddof=1) / np.sqrt(len(data))
    return float(data.mean() - half), float(data.mean() + half)


def bootstrap(
    statistic: Callable[[np.ndarray], float],
    clusters: Sequence[object] | np.ndarray,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval over whole clusters of examples.

    Args:
        statistic: takes integer weights [n] (how often each example was drawn), gives the statistic.
        clusters: the cluster of each example [n]; a cluster is drawn as a whole (all hypotheses of one premise).
        draws: number of resamples.
        level: coverage.
        seed: of the resampling.
    """
    _, code = np.unique(np.asarray([str(c) for c in clusters], dtype=object), return_inverse=True)
    n_clusters = int(code.max()) + 1 if len(code) else 0
    if n_clusters < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        counts = np.bincount(rng.integers(n_clusters, size=n_clusters), minlength=n_clusters)
        values.append(statistic(counts[code]))
    low, high = np.nanquantile(values, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)
