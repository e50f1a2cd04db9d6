"""Is it more than chance? Exact null distributions and permutation tests on masks; no models and no tables.

The null is random selection: each subnetwork keeps as many heads as it does, drawn at random. Heads are drawn from the whole
model, or, stricter, within layers of which each subnetwork keeps as many as it does.

Subnetworks of one seed are not drawn apart: a pruner's seed sets its noise at every sparsity, and random scores of one seed
even give nested masks. So where a seed has several subnetworks, the null that holds is that *seeds* are independent:
each seed's subnetworks are as alike as they are, and which heads they are about is random.

Every p-value here is valid, P(p <= a) <= a under its null at every a; `Null.randomised_p` is uniform there, and
`Null.mid_p` is neither, though closer to uniform on average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats
from scipy.special import gammaln
from tqdm.auto import tqdm

_CHUNK = 2_000
"""Permutations at a time; bounds the memory, not the result."""
_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class Null:
    """An observed count and its exact distribution under the null; large counts speak against the null.

    Args:
        observed: the count.
        pmf: probability of 0, 1, 2, ... under the null.
    """

    observed: int
    pmf: Float[np.ndarray, " counts"]

    @property
    def expected(self) -> float:
        return float(self.pmf @ np.arange(len(self.pmf)))

    @property
    def p(self) -> float:
        """P(count >= observed): valid, and conservative as counts are discrete."""
        return min(1.0, float(self.pmf[self.observed :].sum()))

    @property
    def mid_p(self) -> float:
        """P(count > observed) + P(count = observed) / 2; not valid at every level."""
        return min(1.0, float(self.pmf[self.observed + 1 :].sum() + self.pmf[self.observed] / 2))

    def randomised_p(self, rng: np.random.Generator) -> float:
        """P(count > observed) + U P(count = observed) with U uniform: uniform under the null, another value each call."""
        return min(1.0, float(self.pmf[self.observed + 1 :].sum() + rng.uniform() * self.pmf[self.observed]))

    def __repr__(self) -> str:
        return f"Null(observed {self.observed}, expected {self.expected:.3g}, p = {self.p:.2g})"


def intersection(masks: Bool[np.ndarray, "n layer head"]) -> tuple[Null, Null]:
    """How many heads are in all of `masks`, had each as many heads at random, and as many in each layer."""
    sizes, observed = masks.sum(axis=2), int(masks.all(axis=0).sum())
    return (
        Null(observed, in_all(sizes.sum(axis=1, keepdims=True), masks[0].size)),
        Null(observed, in_all(sizes, masks.shape[2])),
    )


def in_all(sizes: Int[np.ndarray, "subnetwork group"], n: int) -> Float[np.ndarray, " counts"]:
    """Distribution of the number of heads that random subnetworks all share.

    Exact: the heads of the first are the intersection; each further subnetwork keeps a hypergeometric number of those
    that are left. Groups are independent, so their distributions convolve.

    Args:
        sizes: heads that each subnetwork keeps, by group.
        n: heads in each group; all heads in one group, or `n_heads` with one group per layer.
    """

    def one(kept: Int[np.ndarray, " subnetwork"]) -> np.ndarray:
        pmf = np.eye(n + 1)[kept[0]]
        counts = np.arange(n + 1)
        for k in kept[1:]:
            left = np.flatnonzero(pmf)
            # P(x stay | m were left) [m, x]
            pmf = pmf[left] @ stats.hypergeom.pmf(counts[None, :], n, left[:, None], k)
        return pmf

    return _sum_of(one(kept) for kept in sizes.T)


def times_kept(counts: Int[np.ndarray, "unit head"]) -> Float[np.ndarray, " counts"]:
    """Distribution of how many subnetworks keep a given head, where which head is which is random in each unit.

    Args:
        counts: how many of a unit's subnetworks keep each head. With one subnetwork in each unit this is the Poisson
            binomial distribution with the share of heads that each keeps; with all of a seed's, seeds are independent.
    """
    return _sum_of(np.bincount(unit) / len(unit) for unit in counts)


def _sum_of(distributions: Iterable[np.ndarray]) -> Float[np.ndarray, " counts"]:
    """Distribution of a sum of independent counts."""
    return reduce(np.convolve, distributions, np.ones(1))


def permutations(strata: np.ndarray, draws: int, rng: np.random.Generator) -> Int[np.ndarray, "draws n"]:
    """Random permutations of 0 .. n-1 that move members within their stratum only."""
    order = np.tile(np.arange(len(strata)), (draws, 1))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        order[:, members] = rng.permuted(order[:, members], axis=1)
    return order


def association(
    present: Bool[np.ndarray, "subnetwork head"],
    outcome: Float[np.ndarray, "subnetwork split"],
    strata: np.ndarray,
    seeds: np.ndarray,
    draws: int,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "head split"], Float[np.ndarray, "head split"]]:
    """Difference in outcome between subnetworks with and without a head, within strata, and its p.

    Args:
        present: which subnetworks keep which head; every head must vary within some stratum.
        outcome: such as accuracies.
        strata: of each subnetwork (its sparsity): outcomes are compared within them.
        seeds: of each subnetwork, one in each stratum: all outcomes of a seed move together, to another seed that has
            the same strata.
        draws: number of permutations; p is at least 1 / (draws + 1).
        seed: of the permutations.

    Returns:
        The difference (mean over strata, weighted by n p (1 - p), p the share that keep the head), and the two-sided p
        (1 + permutations at least as extreme) / (1 + draws), which is valid for any number of draws.
    """
    x, y = _centred(present.astype(float), strata), _centred(outcome, strata)
    covariance = x.T @ y
    # As far as round-off tells: a permutation that ties with what was found counts as extreme.
    bound = np.abs(covariance) - _ROUND_OFF * np.sqrt((x**2).sum(axis=0)[:, None] * (y**2).sum(axis=0))
    extreme = np.zeros_like(covariance)
    alike, seed_of, stratum_of = _exchangeable(strata, seeds)
    row = np.zeros((seed_of.max() + 1, stratum_of.max() + 1), dtype=int)
    row[seed_of, stratum_of] = np.arange(len(seeds))
    rng = np.random.default_rng(seed)
    for start in range(0, draws, _CHUNK):
        order = row[permutations(alike, min(_CHUNK, draws - start), rng)[:, seed_of], stratum_of]
        for split in range(y.shape[1]):
            extreme[:, split] += (np.abs(x.T @ y[order, split].T) >= bound[:, split, None]).sum(axis=1)
    return covariance / (x**2).sum(axis=0)[:, None], (1 + extreme) / (1 + draws)


def _exchangeable(strata: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which seeds are exchangeable: a code per seed (of the strata it has), then seed and stratum number of each member."""
    stratum_of, seed_of = (np.unique(v, return_inverse=True)[1] for v in (strata, seeds))
    has = np.zeros((seed_of.max() + 1, stratum_of.max() + 1), dtype=bool)
    has[seed_of, stratum_of] = True
    return np.unique(has, axis=0, return_inverse=True)[1].ravel(), seed_of, stratum_of


def arrangements(present: Bool[np.ndarray, " subnetwork"], strata: np.ndarray, seeds: np.ndarray) -> float:
    """In how many ways exchangeable seeds can differ in whether they keep one head."""
    alike, seed_of, stratum_of = _exchangeable(strata, seeds)
    profile = np.zeros((len(alike), stratum_of.max() + 1), dtype=bool)
    profile[seed_of, stratum_of] = present
    ways = 1.0
    for pattern in np.unique(alike):
        counts = np.unique(profile[alike == pattern], axis=0, return_counts=True)[1]
        ways *= np.exp(gammaln(counts.sum() + 1) - gammaln(counts + 1).sum())
    return float(np.round(ways))


def _centred(values: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """`values` [n, ...] minus the mean of their stratum."""
    _, code = np.unique(strata, return_inverse=True)
    means = np.stack([values[code == i].mean(axis=0) for i in range(code.max() + 1)])
    return values - means[code]


def spearman(a: Float[np.ndarray, "*n head"], b: Float[np.ndarray, "*n head"]) -> Float[np.ndarray, "*n"]:
    """Spearman's rho along the last axis; nan where one side is constant."""
    x, y = (stats.rankdata(v, axis=-1) for v in (a, b))
    x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (x * y).sum(axis=-1) / np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))


def shuffled(
    a: Int[np.ndarray, "seed head"], b: Int[np.ndarray, "seed head"], strata: np.ndarray, draws: int, seed: int = 0
) -> tuple[Int[np.ndarray, "draws head"], Int[np.ndarray, "draws head"]]:
    """Sums over seeds of `a` and of `b`, with the heads of each seed permuted (alike in both) within strata."""
    rng = np.random.default_rng(seed)
    total_a, total_b = (np.zeros((draws, a.shape[1]), dtype=int) for _ in range(2))
    for mine, theirs in tqdm(zip(a, b, strict=True), "permute heads", len(a), leave=False, delay=2):
        order = permutations(strata, draws, rng)
        total_a += mine[order]
        total_b += theirs[order]
    return total_a, total_b


def upper_p(null: np.ndarray, observed: float) -> float:
    """(1 + draws of the null that reach `observed`) / (1 + draws)."""
    return float((1 + (null >= observed - _ROUND_OFF).sum()) / (1 + len(null)))


def spearman_interval(
    a: Bool[np.ndarray, "subnetwork_a head"],
    b: Bool[np.ndarray, "subnetwork_b head"],
    seeds_a: np.ndarray,
    seeds_b: np.ndarray,
    level: float = 0.95,
) -> tuple[float, float]:
    """Interval for Spearman's rho between how often heads are kept in `a` and in `b`: jackknife over seeds, Student's t.

    It is for the rho to expect *of this many seeds*: frequencies of few seeds are noisy, which takes rho towards 0. The
    percentile bootstrap adds that noise once more and lies too low; Fisher's interval takes heads for a random sample.

    Returns:
        (nan, nan) for fewer than three seeds, or where all heads are kept equally often without one of the seeds.
    """
    seeds = np.union1d(seeds_a, seeds_b)
    if min(len(np.unique(seeds_a)), len(np.unique(seeds_b))) < 3:
        return float("nan"), float("nan")
    without = np.array([spearman(a[seeds_a != s].mean(axis=0), b[seeds_b != s].mean(axis=0)) for s in seeds])
    error = np.sqrt((len(seeds) - 1) * without.var())
    half = stats.t.ppf(0.5 + level / 2, len(seeds) - 1) * error
    low, high = np.clip(spearman(a.mean(axis=0), b.mean(axis=0)) + np.array([-half, half]), -1, 1)
    return float(low), float(high)
