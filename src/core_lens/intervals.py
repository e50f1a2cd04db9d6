"""Intervals: Wilson for proportions, Student's t over seeds, and a bootstrap over clusters of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int
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


def bootstrap_draws(
    values: Float[np.ndarray, " n"], clusters: Int[np.ndarray, " n"], draws: int = 1000, seed: int = 0
) -> Float[np.ndarray, " draw"]:
    """The mean of the values in every resample of whole clusters; NaN for fewer than two clusters.

    Args:
        values: one of each example.
        clusters: number of each one's cluster, from 0 on, none left out.
        draws: number of resamples.
        seed: the same resamples for the same clusters, so that differences of two means over one set are paired.
    """
    sizes, sums = np.bincount(clusters), np.bincount(clusters, weights=values)
    if len(sizes) < 2:
        return np.full(draws, np.nan)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(draws):
        counts = np.bincount(rng.integers(len(sizes), size=len(sizes)), minlength=len(sizes))
        means.append(counts @ sums / (counts @ sizes))
    return np.array(means)


def bootstrap_difference(
    a: Float[np.ndarray, " n"],
    b: Float[np.ndarray, " m"],
    clusters_a: Int[np.ndarray, " n"],
    clusters_b: Int[np.ndarray, " m"],
    n_clusters: int,
    draws: int = 1000,
    seed: int = 0,
) -> Float[np.ndarray, " draw"]:
    """The mean of `a` less that of `b` in every resample of whole clusters, some of which are in both; NaN for fewer than two.

    Args:
        a, b: values of two sets of examples.
        clusters_a, clusters_b: number of each one's cluster, below `n_clusters`.
        n_clusters: of both.
        draws: number of resamples.
        seed: of the resampling.
    """
    if n_clusters < 2:
        return np.full(draws, np.nan)
    rng = np.random.default_rng(seed)
    parts = [
        (np.bincount(codes, weights=values, minlength=n_clusters), np.bincount(codes, minlength=n_clusters))
        for values, codes in ((a, clusters_a), (b, clusters_b))
    ]
    found = np.empty(draws)
    for i in range(draws):
        counts = np.bincount(rng.integers(n_clusters, size=n_clusters), minlength=n_clusters)
        means = [counts @ sums / size if (size := counts @ sizes) else np.nan for sums, sizes in parts]
        found[i] = means[0] - means[1]
    return found


def interval(draws: Float[np.ndarray, " draw"], level: float = 0.95) -> tuple[float, float]:
    """The quantiles that leave out as much on either side; (nan, nan) where a draw is NaN."""
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)
