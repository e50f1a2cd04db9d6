"""Intervals against published values, scipy, and simulation."""

import numpy as np
import pytest

from core_lens.intervals import bootstrap, over_seeds, wilson


def test_wilson_against_published_values_and_at_the_ends():
    """Newcombe (1998), Table I, method 3."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (k, n), expected in published.items():
        assert wilson(k, n) == pytest.approx(expected, abs=5e-5)
    for n in (1, 7, 500, 9815):  # no round-off takes the interval past the proportion
        assert wilson(0, n)[0] == 0 and wilson(n, n)[1] == 1
    assert 3 * 0.1 * 10 != 3 and wilson(3 * 0.1 * 10, 10) == wilson(3, 10)
    assert np.isnan(wilson(0, 0)).all()


def test_over_seeds_is_students_t():
    values = [0.80, 0.82, 0.85]
    low, high = over_seeds(values)
    # mean .82333, sd .02517, t(2, .975) = 4.30265
    assert (low, high) == pytest.approx(
        (0.82333 - 4.30265 * 0.02517 / 3**0.5, 0.82333 + 4.30265 * 0.02517 / 3**0.5), abs=1e-4
    )
    assert np.isnan(over_seeds([0.5])).all()


def test_bootstrap_draws_whole_clusters():
    """Ten copies of each value in one cluster carry the information of one: the interval must not shrink."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=40)
    single = bootstrap(lambda w: np.average(values, weights=w), range(40))
    copied = np.repeat(values, 10)
    clustered = bootstrap(lambda w: np.average(copied, weights=w), np.repeat(range(40), 10))
    naive = bootstrap(lambda w: np.average(copied, weights=w), range(400))
    width = [b - a for a, b in (single, clustered, naive)]
    assert width[1] == pytest.approx(width[0], rel=0.15)
    assert width[2] < 0.5 * width[0]


def test_bootstrap_covers_the_truth():
    hits = 0
    for seed in range(200):
        values = np.random.default_rng(seed).normal(loc=1.0, size=60)
        low, high = bootstrap(lambda w, v=values: np.average(v, weights=w), range(60), draws=300, seed=seed)
        hits += low <= 1.0 <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_bootstrap_of_one_cluster_says_so():
    assert np.isnan(bootstrap(lambda w: 1.0, ["a", "a"])).all()
