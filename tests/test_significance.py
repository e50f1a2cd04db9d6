"""Null distributions against enumeration of all cases; p-values against what valid means, by simulation."""

from collections import Counter
from itertools import combinations, permutations, product
from math import comb

import numpy as np
import pytest
from scipy import stats

from core_lens import significance
from core_lens.significance import Null

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5)


def subsets(n: int, k: int) -> list[set[int]]:
    return [set(c) for c in combinations(range(n), k)]


def shares(counts: Counter, size: int) -> np.ndarray:
    total = sum(counts.values())
    return np.array([counts[i] / total for i in range(size)])


def drawn(sizes, n: int, rng: np.random.Generator) -> np.ndarray:
    """Independent random masks with these numbers of heads [len(sizes), n]."""
    return rng.random((len(sizes), n)).argsort(axis=1).argsort(axis=1) < np.asarray(sizes)[:, None]


def nested(per_seed, n: int, seeds: int, rng: np.random.Generator) -> list[np.ndarray]:
    """For each size masks [seeds, n]; those of one seed are the highest of the same random scores, as RandomPruner's are."""
    ranks = rng.random((seeds, n)).argsort(axis=1).argsort(axis=1)
    return [ranks < k for k in per_seed]


def rejected(p, level: float) -> float:
    return float((np.asarray(p) <= level + 1e-12).mean())


def assert_valid(p) -> None:
    """P(p <= a) <= a at every level, up to four standard errors of the simulation."""
    for a in LEVELS:
        assert rejected(p, a) <= a + 4 * np.sqrt(a * (1 - a) / len(p)), (a, rejected(p, a))


# Exact distributions


def test_two_random_pairs_of_four_by_hand():
    # The second pair misses the first in 1 of 6 cases, hits one of it in 4 and is the same in 1.
    pmf = significance.in_all(np.array([[2], [2]]), 4)
    assert pmf[:3] == pytest.approx([1 / 6, 4 / 6, 1 / 6])
    null = Null(2, pmf)
    assert (null.expected, null.p, null.mid_p) == pytest.approx((1, 1 / 6, 1 / 12))
    assert (Null(1, pmf).p, Null(0, pmf).p, Null(1, pmf).mid_p) == pytest.approx((5 / 6, 1, 1 / 2))
    # mid-p is 1/12 in a sixth of all cases: it is not valid at 1/12, and says so.
    assert (Null(2, pmf).mid_p <= 1 / 12 + 1e-12) and pmf[2] > 1 / 12 + 0.05
    draws = [null.randomised_p(np.random.default_rng(i)) for i in range(200)]
    assert 0 <= min(draws) < 0.02 and 0.15 < max(draws) <= 1 / 6


@pytest.mark.parametrize("sizes", [(3, 2, 4), (6, 3, 3), (5, 0, 2), (1, 1, 1)])
def test_intersection_of_three_subsets_by_enumeration(sizes):
    found = Counter(len(a & b & c) for a, b, c in product(*(subsets(6, k) for k in sizes)))
    pmf = significance.in_all(np.array(sizes)[:, None], 6)
    assert pmf == pytest.approx(shares(found, len(pmf)), abs=1e-12)


def test_intersection_with_layers_held_by_enumeration():
    sizes = np.array([[2, 1], [3, 2], [1, 2]])  # three subnetworks, two layers of three heads
    layers = [Counter(len(a & b & c) for a, b, c in product(*(subsets(3, k) for k in sizes[:, i]))) for i in (0, 1)]
    both = Counter()
    for (x, nx), (y, ny) in product(layers[0].items(), layers[1].items()):
        both[x + y] += nx * ny
    pmf = significance.in_all(sizes, 3)
    assert pmf == pytest.approx(shares(both, len(pmf)), abs=1e-12)
    # By linearity: a head of layer 0 is in all with chance 2/3 * 3/3 * 1/3, of layer 1 with 1/3 * 2/3 * 2/3.
    assert Null(0, pmf).expected == pytest.approx(3 * 2 / 9 + 3 * 4 / 27)


def test_intersection_takes_whole_model_and_layers_from_masks():
    masks = np.array([[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [0, 1, 1]], [[0, 1, 0], [1, 1, 0]]], dtype=bool)
    whole, layers = significance.intersection(masks)
    assert whole.observed == layers.observed == 1
    assert whole.expected == pytest.approx(6 * (3 / 6) * (5 / 6) * (3 / 6))
    assert layers.expected == pytest.approx(3 * 2 / 9 + 3 * 4 / 27)


def test_the_papers_mnli_core():
    # BERT-base, MLPs never pruned: 50 % and 70 % of 156 units leave 66 and 35 of 144 heads; 9 heads are in all 24.
    pmf = significance.in_all(np.array([[66]] * 12 + [[35]] * 12), 144)
    null = Null(9, pmf)
    assert null.expected == pytest.approx(144 * (66 / 144) ** 12 * (35 / 144) ** 12, rel=1e-9)
    assert null.expected == pytest.approx(5.27e-10, rel=0.01)
    # P(9 or more) is at most the expected number of sets of nine heads in all, and nearly that.
    bound = comb(144, 9) * np.prod([comb(k, 9) / comb(144, 9) for k in [66] * 12 + [35] * 12])
    assert null.p == pytest.approx(bound, rel=1e-6)
    # Were each seed's sparser subnetwork within its denser one, the twelve sparser ones would say it all.
    assert Null(9, significance.in_all(np.full((12, 1), 35), 144)).expected == pytest.approx(144 * (35 / 144) ** 12)


def test_times_kept_by_enumeration_and_against_the_binomial():
    masks = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])  # chances 1/4, 1/2, 3/4
    cases = Counter()
    for kept in product((0, 1), repeat=3):
        cases[sum(kept)] += np.prod([c if k else 1 - c for k, c in zip(kept, (0.25, 0.5, 0.75))])
    assert significance.times_kept(masks) == pytest.approx([cases[i] for i in range(4)])
    assert significance.times_kept(np.repeat(masks[:1], 9, 0)) == pytest.approx(stats.binom.pmf(range(10), 9, 0.25))
    # A seed that keeps heads 2, 1, 0 and 0 times, permuted: all pairs of places of two such seeds.
    counts = np.array([[2, 1, 0, 0], [0, 2, 2, 1]])
    pairs = Counter(int(a + b) for a, b in product(*counts))
    assert significance.times_kept(counts) == pytest.approx(shares(pairs, 5))


# Permutation tests


def test_permutations_stay_within_strata_and_are_uniform():
    strata = np.array(["b", "a", "b", "a", "a"])
    orders = significance.permutations(strata, 6000, np.random.default_rng(0))
    assert (strata[orders] == strata).all() and (np.sort(orders, axis=1) == np.arange(5)).all()
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 12 and stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_association_against_regression_and_enumeration():
    present = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [0, 1], [0, 0], [0, 1]], dtype=bool)
    strata, seeds = np.repeat([0.3, 0.5], 4), np.tile(np.arange(4), 2)
    outcome = np.array([0.9, 0.8, 0.5, 0.6, 0.4, 0.1, 0.2, 0.0])[:, None]
    difference, p = significance.association(present, outcome, strata, seeds, 20_000, seed=1)
    # Head 0 by hand: .85 - .55 at the first sparsity (weight 4 * 1/4), .4 - .1 at the second (weight 4 * 3/16).
    assert difference[0, 0] == pytest.approx(0.3)
    for head in (0, 1):  # the slope of a regression with a mean per sparsity
        design = np.column_stack([present[:, head], strata == 0.3, strata == 0.5]).astype(float)
        assert difference[head, 0] == pytest.approx(np.linalg.lstsq(design, outcome[:, 0], rcond=None)[0][0])
        slopes = []
        for order in permutations(range(4)):  # seeds move as a whole, in both sparsities alike
            moved = outcome[[*order, *(4 + i for i in order)], 0]
            slopes.append(np.linalg.lstsq(design, moved, rcond=None)[0][0])
        exact = np.mean(np.abs(slopes) >= abs(difference[head, 0]) - 1e-9)
        assert p[head, 0] == pytest.approx(exact, abs=0.015)
    # Head 0: profiles (1,1), (1,0), (0,0), (0,0) can be dealt to four seeds in 4! / 2! ways.
    assert significance.arrangements(present[:, 0], strata, seeds) == 12
    # With other seeds at each sparsity they are dealt apart: 6 ways and 4.
    assert significance.arrangements(present[:, 0], strata, np.arange(8)) == 24


def test_shuffled_heads_reach_every_sum_as_often_as_enumeration():
    a, b = np.array([[1, 0, 0], [1, 1, 0]]), np.array([[1, 1, 0], [0, 0, 1]])
    total_a, total_b = significance.shuffled(a, b, np.zeros(3), 20_000, seed=3)
    found = (total_a * total_b).sum(axis=1)
    exact = []
    for first, second in product(permutations(range(3)), repeat=2):
        x, y = (m[0, list(first)] + m[1, list(second)] for m in (a, b))
        exact.append(int(x @ y))
    for value in set(exact):
        assert (found == value).mean() == pytest.approx(np.mean(np.array(exact) == value), abs=0.015)
    assert set(found.tolist()) == set(exact)
    assert significance.upper_p(np.array([1, 2, 3, 4]), 3) == (1 + 2) / 5
    # Within strata of one nothing can move.
    assert (significance.shuffled(a, b, np.arange(3), 5)[0] == a.sum(axis=0)).all()


def test_one_pair_of_different_seeds_has_the_hypergeometric_p():
    a, b = np.zeros((2, 12), dtype=int), np.zeros((2, 12), dtype=int)
    a[0, :4] = 1  # seed 0 has the sparser subnetwork only, seed 1 the denser: 3 of 4 heads lie in its 7
    b[1, 1:8] = 1
    x, y = significance.shuffled(a, b, np.zeros(12), 40_000)
    exact = stats.hypergeom.sf(2, 12, 7, 4)
    assert significance.upper_p((x * y).sum(axis=1), 3) == pytest.approx(exact, abs=0.01)


# Spearman's rho


def test_spearman_against_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.integers(5, size=(2, 30)) / 5
    assert significance.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    many = significance.spearman(a, rng.integers(5, size=(4, 30)))
    assert many.shape == (4,)
    assert np.isnan(significance.spearman(a, np.ones(30)))


def test_interval_of_rho_leaves_out_one_seed_at_a_time():
    rng = np.random.default_rng(2)
    a, b = rng.random((4, 12)) < 0.6, rng.random((4, 12)) < 0.4
    seeds = np.arange(4)
    rho = stats.spearmanr(a.mean(0), b.mean(0)).statistic
    left = [stats.spearmanr(np.delete(a, i, 0).mean(0), np.delete(b, i, 0).mean(0)).statistic for i in range(4)]
    error = np.sqrt(3 / 4 * sum((v - np.mean(left)) ** 2 for v in left))
    t = 3.182446305  # 97.5 % of Student's t with 3 degrees of freedom
    low, high = significance.spearman_interval(a, b, seeds, seeds)
    assert (low, high) == pytest.approx((max(-1, rho - t * error), min(1, rho + t * error)))
    assert np.isnan(significance.spearman_interval(a[:2], b[:2], seeds[:2], seeds[:2])).all()
    one_sided = np.eye(12, dtype=bool)[[0, 0, 0]]
    flat = np.stack([one_sided[0], ~one_sided[0], np.ones(12, dtype=bool)])
    assert np.isnan(significance.spearman_interval(flat, one_sided, seeds[:3], seeds[:3])).all()  # no ranks without one


def noisy_pair(seeds: int, rng: np.random.Generator, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Masks at two sparsities, the highest of scores that are in part the heads' own (the same in every call)."""
    own = np.random.default_rng(9).standard_normal((2, 48))
    own = 1.5 * np.stack([own[0], 0.7 * own[0] + 0.7 * own[1]])
    noise = rng.standard_normal((2, seeds, 48))
    ranks = [(own[i] + noise[0 if shared else i]).argsort(axis=1)[:, ::-1].argsort(axis=1) for i in (0, 1)]
    return ranks[0] < 24, ranks[1] < 12


@pytest.mark.parametrize("shared", [False, True])
def test_interval_of_rho_covers_and_the_percentile_bootstrap_would_not(shared):
    rng, seeds = np.random.default_rng(4), np.arange(6)
    mean = np.mean(
        [significance.spearman(a.mean(0), b.mean(0)) for a, b in (noisy_pair(6, rng, shared) for _ in range(1000))]
    )
    covers, bootstrap = [], []
    for _ in range(300):
        a, b = noisy_pair(6, rng, shared)
        low, high = significance.spearman_interval(a, b, seeds, seeds)
        covers.append(low <= mean <= high)
        again = rng.integers(6, size=(100, 6))
        low, high = np.quantile(significance.spearman(a[again].mean(axis=1), b[again].mean(axis=1)), [0.025, 0.975])
        bootstrap.append(low <= mean <= high)
    assert np.mean(covers) >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 300)
    assert np.mean(bootstrap) < 0.88


# Validity by simulation


def test_p_of_the_intersection_is_valid_and_the_randomised_one_uniform():
    rng, sizes = np.random.default_rng(5), [6] * 2 + [4]
    pmf = significance.in_all(np.array(sizes)[:, None], 8)
    nulls = [Null(int(drawn(sizes, 8, rng).all(axis=0).sum()), pmf) for _ in range(4000)]
    assert_valid([null.p for null in nulls])
    assert stats.kstest([null.randomised_p(rng) for null in nulls], "uniform").pvalue > 1e-3
    assert stats.kstest([null.p for null in nulls], "uniform").pvalue < 1e-6  # discrete: the randomised one was needed


def test_layers_pruned_unevenly_fool_the_whole_model_and_not_the_layers():
    rng, per_layer = np.random.default_rng(6), (8, 6, 2, 1)
    whole, layers, uniform = [], [], []
    for _ in range(400):
        masks = np.stack([drawn([k] * 4, 8, rng) for k in per_layer], axis=1)
        a, b = significance.intersection(masks)
        whole.append(a.p)
        layers.append(b.p)
        uniform.append(b.randomised_p(rng))
    assert rejected(whole, 0.05) > 0.9
    assert_valid(layers)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def test_nested_subnetworks_of_a_seed_fool_independence_and_not_seeds():
    rng = np.random.default_rng(7)
    apart = significance.in_all(np.array([[22]] * 4 + [[14]] * 4), 32)
    by_seed = significance.in_all(np.array([[14]] * 4), 32)
    p = {name: [] for name in ("all apart", "all by seed", "head apart", "head by seed", "randomised")}
    for _ in range(3000):
        dense, sparse = nested((22, 14), 32, 4, rng)
        masks = np.concatenate([dense, sparse]).astype(int)
        found, kept = int(masks.all(axis=0).sum()), int(masks[:, 0].sum())
        p["all apart"].append(Null(found, apart).p)
        p["all by seed"].append(Null(found, by_seed).p)
        p["randomised"].append(Null(found, by_seed).randomised_p(rng))
        p["head apart"].append(Null(kept, significance.times_kept(masks)).p)
        p["head by seed"].append(Null(kept, significance.times_kept(dense.astype(int) + sparse)).p)
    assert_valid(p["all by seed"])
    assert_valid(p["head by seed"])
    assert stats.kstest(p["randomised"], "uniform").pvalue > 1e-3
    assert rejected(p["all apart"], 0.05) > 0.15
    assert rejected(p["head apart"], 0.01) > 0.02


def simulate_permutation_tests(n: int, draws: int, rng: np.random.Generator) -> dict[str, list[float]]:
    """Containment, rank correlation and association where selection is random and nested in each seed."""
    p: dict[str, list[float]] = {"containment": [], "rho": [], "association": [], "rows": []}
    strata, seeds = np.repeat([0.3, 0.5], 6), np.tile(np.arange(6), 2)
    for i in range(n):
        dense, sparse = (m.astype(int) for m in nested((16, 10), 24, 6, rng))
        x, y = significance.shuffled(sparse, dense, np.zeros(24), draws, seed=i)
        p["containment"].append(significance.upper_p((x * y).sum(axis=1), (sparse @ dense.T).sum()))
        rho = significance.spearman(sparse.mean(axis=0), dense.mean(axis=0))
        p["rho"].append(significance.upper_p(significance.spearman(x, y), float(rho)))
        present = np.concatenate([dense, sparse]).astype(bool)
        head = next(h for h in range(24) if 0 < dense[:, h].sum() < 6)
        # Accuracy falls with sparsity and is a seed's own at both, as presence is: neither may look like an association.
        outcome = np.tile(rng.standard_normal(6), 2) + 0.3 * rng.standard_normal(12) - 20 * strata
        for name, unit in (("association", seeds), ("rows", np.arange(12))):
            found = significance.association(present[:, [head]], outcome[:, None], strata, unit, draws, i)[1]
            p[name].append(float(found[0, 0]))
    return p


def test_permutation_p_values_are_valid_by_seed():
    p = simulate_permutation_tests(500, 199, np.random.default_rng(8))
    for name in ("containment", "rho", "association"):
        assert_valid(p[name])


@pytest.mark.slow
def test_permutation_p_values_are_valid_by_seed_at_length():
    p = simulate_permutation_tests(3000, 499, np.random.default_rng(10))
    for name in ("containment", "rho", "association"):
        assert_valid(p[name])
    assert rejected(p["rows"], 0.05) > 0.06  # subnetworks permuted apart from their seed reject too often


@pytest.mark.slow
def test_a_core_of_bert_size_at_length():
    rng, sizes = np.random.default_rng(11), [109] * 12
    pmf = significance.in_all(np.array(sizes)[:, None], 144)
    nulls = [Null(int(drawn(sizes, 144, rng).all(axis=0).sum()), pmf) for _ in range(20_000)]
    assert_valid([null.p for null in nulls])
    assert stats.kstest([null.randomised_p(rng) for null in nulls], "uniform").pvalue > 1e-3
    assert np.mean([null.observed for null in nulls]) == pytest.approx(nulls[0].expected, rel=0.02)
