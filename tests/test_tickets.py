"""Tickets of one size: what they must and must not hold, and that chance is uniform."""

import pytest
import torch
from scipy.stats import binomtest

from core_lens import CoreLensError, Subnetwork, ZeroActivations
from core_lens.components import ComponentSet
from core_lens.tickets import bad_like, random_like, super_bad, super_survivors

UNITS = ComponentSet(2, 4)  # 8 heads, 2 MLPs


def subnetwork(*keep: int, units: ComponentSet = UNITS) -> Subnetwork:
    mask = torch.zeros(len(units), dtype=torch.bool)
    mask[list(keep)] = True
    return Subnetwork(units, mask, ZeroActivations("hash"), provenance={"pruner": "importance", "seed": 7})


def kept(ticket: Subnetwork) -> set[int]:
    return set(ticket.mask.nonzero()[:, 0].tolist())


GOOD = subnetwork(0, 1, 2, 3, 4, 8)  # 5 of 8 heads, 1 of 2 MLPs


def test_bad_is_the_pruned_units_topped_up():
    """3 pruned heads and 2 of the 5 good ones; the pruned MLP, as 1 is kept."""
    drawn = [kept(bad_like(GOOD, seed)) for seed in range(200)]
    assert all({5, 6, 7, 9} <= units and len(units) == 6 and 8 not in units for units in drawn)
    for unit in range(5):
        n = sum(unit in units for units in drawn)
        assert binomtest(n, 200, 2 / 5).pvalue > 0.001, unit
    # Where less is kept than pruned, only pruned units are taken, not all of them.
    small = subnetwork(0, 8)
    drawn = [kept(bad_like(small, seed)) for seed in range(200)]
    assert all(len(units) == 2 and 9 in units and units.isdisjoint({0, 8}) for units in drawn)
    assert set().union(*drawn) == {1, 2, 3, 4, 5, 6, 7, 9}


def test_random_has_as_many_of_each_kind_and_every_unit_the_same_chance():
    drawn = [kept(random_like(GOOD, seed)) for seed in range(300)]
    assert all(len(units & set(range(8))) == 5 and len(units & {8, 9}) == 1 for units in drawn)
    for unit in range(10):
        n = sum(unit in units for units in drawn)
        assert binomtest(n, 300, 5 / 8 if unit < 8 else 1 / 2).pvalue > 0.001, unit
    assert kept(random_like(GOOD, 3)) == drawn[3]


def test_super_survivors_and_super_bad():
    """In all: head 0, MLP 8. Kept by none: heads 6 and 7, no MLP (9 is in one, 8 in three)."""
    three = [subnetwork(0, 1, 2, 8), subnetwork(0, 1, 3, 8), subnetwork(0, 4, 5, 8, 9)]
    assert kept(super_survivors(three)) == {0, 8}
    drawn = [kept(super_bad(three, seed)) for seed in range(50)]
    assert {frozenset(units) for units in drawn} == {frozenset({6, 9}), frozenset({7, 9})}
    assert super_bad(three, 0).provenance["ticket"] == "super-bad"
    one = subnetwork(0, 1, units=ComponentSet(2, 4, ("head",)))
    assert kept(super_survivors([one])) == {0, 1}


def test_what_cannot_be():
    with pytest.raises(CoreLensError, match="no unit is in all 2"):
        super_survivors([subnetwork(0), subnetwork(1)])
    with pytest.raises(CoreLensError, match="there are no subnetworks"):
        super_bad([], 0)
    with pytest.raises(CoreLensError, match="different units"):
        super_survivors([subnetwork(0), subnetwork(0, units=ComponentSet(2, 4, ("head",)))])
