"""Magnitude pruning against a sort of all weights, and its stop rule against a metric made for it."""

import numpy as np
import pytest
import torch

from core_lens import CoreLensError, MagnitudePruner
from core_lens.magnitude import magnitude_mask
from core_lens.weight_mask import encoder_weights
from tiny_models import tiny_model


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_all_blocks_are_ranked_together(which, arch):
    model = tiny_model(arch)
    values = np.concatenate([p.detach().abs().numpy().ravel() for p in encoder_weights(model).values()])
    mask = magnitude_mask(model, 0.3, which)
    kept = np.concatenate([m.numpy().ravel() for m in mask.kept.values()])
    assert (~kept).sum() == round(0.3 * len(values)) and mask.sparsity == pytest.approx(0.3, abs=1e-4)
    expected = np.sort(values)[:: 1 if which == "smallest" else -1][: (~kept).sum()]
    assert np.sort(values[~kept]).tolist() == np.sort(expected).tolist()
    by_layer = [m.float().mean().item() for m in mask.kept.values()]
    assert max(by_layer) - min(by_layer) > 1e-3  # not the same share of each matrix


def test_random_masks_differ_by_seed_alone():
    model = tiny_model("bert")
    a, again, b = (
        torch.cat([m.flatten() for m in magnitude_mask(model, 0.5, "random", s).kept.values()]) for s in (1, 1, 2)
    )
    assert torch.equal(a, again) and 0.45 < (a == b).float().mean() < 0.55
    values = torch.cat([p.detach().abs().flatten() for p in encoder_weights(model).values()])
    assert abs(values[a].mean() / values[~a].mean() - 1) < 0.1  # large and small ones alike


def sparsity_of(model) -> float:
    matrices = encoder_weights(model).values()
    return sum(int((p == 0).sum()) for p in matrices) / sum(p.numel() for p in matrices)


def test_steps_and_stop():
    """A metric that falls with the share removed: 1 - s^2 >= .9 up to s = .316; steps reach .1, .19, .271, .344."""
    model = tiny_model("bert")
    mask, history = MagnitudePruner().prune(model, lambda m: 1 - sparsity_of(m) ** 2)
    assert mask.sparsity == pytest.approx(0.271, abs=1e-3)
    assert history["sparsity"].tolist() == pytest.approx([0, 0.1, 0.19, 0.271, 0.3439], abs=1e-3)
    assert history["accepted"].tolist() == [True] * 4 + [False]
    assert history["metric"].tolist() == pytest.approx([1 - s**2 for s in (0, 0.1, 0.19, 0.271, 0.3439)], abs=1e-3)
    assert sparsity_of(model) == 0
    # Ten steps and no more, where the metric never falls: 1 - .9^10.
    mask, history = MagnitudePruner().prune(model, lambda m: 1.0)
    assert mask.sparsity == pytest.approx(0.6513, abs=1e-3) and len(history) == 11
    mask, history = MagnitudePruner().prune(model, lambda m: float(sparsity_of(m) == 0))
    assert mask.sparsity == 0 and history["accepted"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"step": 0}, "step=0"), ({"step": 1}, "step=1"), ({"stop": 1.1}, "stop=1.1"), ({"max_steps": 0}, "max_steps=0")],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(CoreLensError, match=message):
        MagnitudePruner(**settings)
    for sparsity, which in ((1.0, "smallest"), (0.5, "middle")):
        with pytest.raises(CoreLensError, match=r"sparsity=1\.0|which='middle'"):
            magnitude_mask(tiny_model("bert"), sparsity, which)
