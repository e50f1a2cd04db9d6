"""Agreement over seeds: a hand-worked example, independent formulas, and what random masks give."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binomtest, chi2

from core_lens import CoreLensError
from core_lens.stability import (
    cochran_q,
    cochran_q_pairs,
    fleiss_kappa,
    jaccard,
    krippendorff_alpha,
    survival_by_layer,
    task_overlap,
)
from core_lens.stability import (
    table as stability_table,
)

SIX_BY_FOUR = np.array(  # 4 seeds x 6 units
    [
        [1, 1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 1, 1],
        [1, 1, 0, 0, 0, 0],
    ]
)


def test_six_units_and_four_seeds_by_hand():
    """Kept by 4, 3, 0, 1, 3, 1 of 4 seeds: 12 of 24.

    Pairs of seeds that agree, of 6: 6, 3, 6, 3, 3, 3, in all 24 of 36: observed 2/3, by chance 1/2 (shares .5 and .5).
    kappa = (2/3 - 1/2) / (1/2) = 1/3. Alpha: disagreement 1/3 over 2 * 12 * 12 / (24 * 23) = 12/23: 1 - 23/36 = 13/36.
    Q: seeds keep 3, 3, 4, 2 (squares 38); units' counts squared 36: 3 (4 * 38 - 144) / (4 * 12 - 36) = 24 / 12 = 2.
    """
    assert fleiss_kappa(SIX_BY_FOUR) == pytest.approx(1 / 3)
    assert krippendorff_alpha(SIX_BY_FOUR) == pytest.approx(13 / 36)
    found = cochran_q(SIX_BY_FOUR)
    assert found.q == pytest.approx(2) and found.df == 3 and found.p == pytest.approx(chi2.sf(2, 3))
    # Shared over either, pairs in order: 2/4, 3/4, 2/3, 2/5, 1/4, 2/4.
    assert jaccard(SIX_BY_FOUR) == pytest.approx((1 / 2 + 3 / 4 + 2 / 3 + 2 / 5 + 1 / 4 + 1 / 2) / 6)
    row = stability_table(SIX_BY_FOUR)
    assert (row["seeds"], row["units"], row["kept"], row["pairs_that_differ"]) == (4, 6, 0.5, 0)
    assert (
        row["kappa"] == pytest.approx(1 / 3) and row["alpha"] == pytest.approx(13 / 36) and row["q"] == pytest.approx(2)
    )


def by_pairs(masks: np.ndarray) -> tuple[Fraction, Fraction]:
    """(kappa, alpha) from pairs of answers, counted one by one."""
    n, k = masks.shape
    agree = Fraction(sum(a == b for unit in masks.T for a, b in combinations(unit, 2)), k * n * (n - 1) // 2)
    ones = int(masks.sum())
    share = Fraction(ones, n * k)
    chance = share**2 + (1 - share) ** 2
    all_answers = masks.ravel()
    apart = Fraction(
        sum(int(a != b) for a, b in combinations(all_answers, 2)), len(all_answers) * (len(all_answers) - 1) // 2
    )
    return (agree - chance) / (1 - chance), 1 - (1 - agree) / apart


@pytest.mark.parametrize("seed", range(4))
def test_kappa_and_alpha_against_counting_pairs(seed):
    masks = np.random.default_rng(seed).random((2 + seed, 9)) < 0.3 + 0.1 * seed
    kappa, alpha = by_pairs(masks.astype(int))
    assert fleiss_kappa(masks) == pytest.approx(float(kappa))
    assert krippendorff_alpha(masks) == pytest.approx(float(alpha))


def test_q_of_pairs_is_mcnemars():
    """(b - c)^2 / (b + c), b and c the units that only one of the two seeds keeps."""
    masks = np.zeros((3, 40), dtype=int)
    masks[0, :12], masks[1, 10:12], masks[2, :12] = 1, 1, 1
    table = cochran_q_pairs(masks)
    assert table[["a", "b"]].to_numpy().tolist() == [[0, 1], [0, 2], [1, 2]]
    assert table["q"].tolist() == pytest.approx([10.0, 0.0, 10.0])  # 10 units in one alone: (10 - 0)^2 / 10
    assert table["p"].tolist() == pytest.approx([chi2.sf(10, 1), 1.0, chi2.sf(10, 1)])
    assert table["differ"].tolist() == [True, False, True]


def test_random_masks_agree_by_chance_and_equal_ones_wholly():
    rng = np.random.default_rng(0)
    masks = rng.random((5, 20_000)) < 0.6
    assert fleiss_kappa(masks) == pytest.approx(0, abs=0.01) and krippendorff_alpha(masks) == pytest.approx(0, abs=0.01)
    assert jaccard(masks) == pytest.approx(0.36 / 0.84, abs=0.01)
    # Q is chi-squared where seeds keep equally many: 5 % lie below .05.
    below = sum(cochran_q(rng.random((5, 60)) < 0.6).p <= 0.05 for _ in range(400))
    assert binomtest(below, 400, 0.05).pvalue > 0.001
    same = np.tile(masks[0, :50], (5, 1))
    assert fleiss_kappa(same) == 1 and krippendorff_alpha(same) == 1 and jaccard(same) == 1
    assert cochran_q(same) == (0, 1, 4)


def test_q_says_nothing_of_which_units_stay():
    opposite = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    assert cochran_q(opposite).p == 1 and fleiss_kappa(opposite) == -1 and jaccard(opposite) == 0


def test_nothing_kept_and_everything_kept():
    for masks in (np.zeros((3, 4)), np.ones((3, 4))):
        assert np.isnan(fleiss_kappa(masks)) and np.isnan(krippendorff_alpha(masks)) and cochran_q(masks).p == 1
    assert np.isnan(jaccard(np.zeros((3, 4)))) and jaccard(np.ones((3, 4))) == 1


def test_overlap_between_tasks_by_hand():
    masks = {"a": [[1, 1, 0, 0], [1, 1, 1, 0]], "b": [[1, 0, 0, 0], [0, 1, 1, 1]]}
    table = task_overlap(masks).set_index(["a", "b"])
    assert list(table.index) == [("a", "a"), ("a", "b"), ("b", "b")]
    # Shared 1 and 2: mean 1.5, std sqrt(.5); expected 2 * 1/4 and 3 * 3/4: mean 1.375.
    assert table.loc["a", "b"].tolist() == pytest.approx([1.5, 0.5**0.5, 1.375])
    assert table.loc["a", "a"].tolist() == pytest.approx([2.5, 0.5**0.5, 2.5])


def test_survival_by_layer_by_hand():
    table = survival_by_layer([[[1, 1], [0, 0]], [[1, 0], [0, 1]]])
    assert table["mean"].tolist() == [0.75, 0.25] and table["std"].tolist() == pytest.approx([0.125**0.5] * 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fleiss_kappa([1, 0, 1]), "not \\[seed, unit\\]"),
        (lambda: cochran_q([[0.5, 1], [0, 1]]), "masks hold .*0.5"),
        (lambda: krippendorff_alpha([[1, 0]]), "agreement needs at least 2"),
        (lambda: survival_by_layer([[1, 0]]), "not \\[seed, layer, head\\]"),
        (lambda: task_overlap({"a": [[1, 0]], "b": [[1, 0, 1]]}), "different shapes"),
    ],
)
def test_arrays_that_are_no_masks(call, message):
    with pytest.raises(CoreLensError, match=message):
        call()
