"""How often 95 % intervals hold the truth: exactly where that can be summed, by simulation elsewhere.

A share of hits over n simulated data sets has the standard error sqrt(.95 * .05 / n) around .95; tests allow three.
"""

import numpy as np
import pytest
from scipy import stats

from core_lens.intervals import bootstrap, over_seeds, wilson


def error(n: int) -> float:
    """Three standard errors of the share of hits at a coverage of .95."""
    return 3 * (0.95 * 0.05 / n) ** 0.5


def exact_coverage(interval, n: int, p: float) -> float:
    """P(low <= p <= high) under the binomial distribution, summed over all outcomes."""
    bounds = np.array([interval(k, n) for k in range(n + 1)])
    holds = (bounds[:, 0] <= p) & (p <= bounds[:, 1])
    return float(stats.binom.pmf(np.arange(n + 1), n, p)[holds].sum())


def wald(k: int, n: int) -> tuple[float, float]:
    """The textbook interval, for comparison."""
    half = 1.96 * (k / n * (1 - k / n) / n) ** 0.5
    return k / n - half, k / n + half


@pytest.mark.parametrize("n", [100, 500])
def test_wilson_covers_exactly(n):
    shares = np.linspace(0.02, 0.98, 49)
    ours = [exact_coverage(wilson, n, p) for p in shares]
    # The outcomes are discrete, so the coverage swings around the nominal: on average it is right.
    assert np.mean(ours) == pytest.approx(0.95, abs=0.006)
    assert min(ours) > 0.92
    assert exact_coverage(wald, n, 0.02) < 0.93 - 0.06 * (n == 100)  # what Wilson repairs


def test_students_t_over_seeds():
    n, seeds = 4000, 3
    values = np.random.default_rng(0).normal(0.8, 0.05, (n, seeds))
    bounds = np.array([over_seeds(list(row)) for row in values])
    hits = ((bounds[:, 0] <= 0.8) & (bounds[:, 1] >= 0.8)).mean()
    assert hits == pytest.approx(0.95, abs=error(n))
    half = 1.96 * values.std(axis=1, ddof=1) / seeds**0.5  # a normal quantile knows nothing of three seeds
    assert (np.abs(values.mean(axis=1) - 0.8) <= half).mean() < 0.85


def hits_of(n: int, n_clusters: int, mean_size: int, draws: int) -> dict[str, float]:
    """Share of data sets whose intervals for an accuracy of .5 hold it.

    Each cluster (a premise) has its own share of right answers, uniform on 0..1, and 1 to 2 * mean_size - 1 examples: the
    correlation of two examples of a cluster is 1/3.
    """
    rng = np.random.default_rng(0)
    hits = {"clustered": 0, "unclustered": 0, "wilson": 0}
    for _ in range(n):
        cluster = np.repeat(np.arange(n_clusters), rng.integers(1, 2 * mean_size, n_clusters))
        right = (rng.random(len(cluster)) < rng.random(n_clusters)[cluster]).astype(float)

        def accuracy(weights, right=right):
            return float(weights @ right / weights.sum())

        seed = int(rng.integers(2**31))
        found = {
            "clustered": bootstrap(accuracy, cluster, draws, seed=seed),
            "unclustered": bootstrap(accuracy, range(len(cluster)), draws, seed=seed),
            "wilson": wilson(right.sum(), len(right)),
        }
        for name, (low, high) in found.items():
            hits[name] += low <= 0.5 <= high
    return {name: count / n for name, count in hits.items()}


def test_bootstrap_over_clusters_covers_and_over_examples_does_not():
    n = 250
    hits = hits_of(n, n_clusters=60, mean_size=5, draws=300)
    assert hits["clustered"] == pytest.approx(0.95, abs=error(n))
    # Clusters of 5 on average (sizes vary) make the variance about 3 times that of independent examples.
    assert hits["unclustered"] < 0.83 and hits["wilson"] < 0.83


@pytest.mark.slow
@pytest.mark.parametrize(("n_clusters", "least"), [(10, 0.85), (20, 0.90), (200, 0.95 - 0.021)])
def test_bootstrap_over_clusters_by_number_of_clusters(n_clusters, least):
    """Percentiles are of a distribution that is too narrow by about sqrt(1 - 1 / clusters): few clusters undercover."""
    hits = hits_of(1000, n_clusters, mean_size=5, draws=400)
    assert least <= hits["clustered"] <= 0.95 + error(1000)
    assert hits["unclustered"] < 0.85
