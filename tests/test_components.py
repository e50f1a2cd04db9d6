"""Components print and parse as in the paper, and one map leads from them to tensors and back."""

import pytest
import torch

from core_lens.components import Component, ComponentSet
from core_lens.errors import CoreLensError


def test_prints_and_parses_as_the_paper_does():
    assert str(Component(2, 5)) == "L2.H5"
    assert str(Component(2)) == "L2.MLP"
    assert Component.parse("L11.H0") == Component(11, 0)
    assert Component.parse(" l2.mlp ") == Component(2)


@pytest.mark.parametrize("text", ["", "L2", "H5", "L2H5", "L-1.H0", "L2.H5.x", "2.5"])
def test_what_is_no_component_is_refused_by_name(text):
    with pytest.raises(CoreLensError, match="is not a component"):
        Component.parse(text)


def test_order_is_by_layer_then_heads_then_mlp():
    given = [Component(1, 0), Component(0), Component(0, 10), Component(0, 2)]
    assert [str(c) for c in sorted(given)] == ["L0.H2", "L0.H10", "L0.MLP", "L1.H0"]


def test_flat_order_is_heads_by_layer_then_mlps():
    units = ComponentSet(2, 3)
    assert [str(c) for c in units] == [
        "L0.H0",
        "L0.H1",
        "L0.H2",
        "L1.H0",
        "L1.H1",
        "L1.H2",
        "L0.MLP",
        "L1.MLP",
    ]
    flat = torch.arange(8)
    assert units.heads(flat).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert units.mlps(flat).tolist() == [6, 7]
    assert units.heads(torch.stack([flat, flat + 10]))[1].tolist() == [[10, 11, 12], [13, 14, 15]]


def test_mask_and_components_are_inverse():
    units = ComponentSet(3, 4)
    named = [Component(2), Component(0, 3), Component(1, 1)]
    mask = units.mask(named)
    assert mask.sum() == 3 and mask[3] and mask[5] and mask[14]
    assert units.components(mask) == (Component(0, 3), Component(1, 1), Component(2))


def test_kinds_left_out_are_no_units():
    heads = ComponentSet(2, 2, ("head",))
    assert len(heads) == 4 and Component(0) not in heads and heads.mlps(torch.zeros(4)) is None
    mlps = ComponentSet(2, 2, ("mlp",))
    assert len(mlps) == 2 and mlps.heads(torch.zeros(2)) is None
    with pytest.raises(CoreLensError, match="L0.H0 is not a unit here"):
        mlps.index(Component(0, 0))
    with pytest.raises(CoreLensError, match="neuron"):
        ComponentSet(2, 2, ("neuron",))


def test_wrong_sizes_are_refused():
    with pytest.raises(CoreLensError, match="L0.H7"):
        ComponentSet(2, 3).mask([Component(0, 7)])
    with pytest.raises(CoreLensError, match="does not fit 8 units"):
        ComponentSet(2, 3).components(torch.ones(7, dtype=torch.bool))
