"""The hard concrete distribution over [0, 1] with point masses at both ends.

Louizos, Welling and Kingma, "Learning sparse neural networks through L0 regularization", ICLR 2018; constants as in
the Heuristic Core (Appendix B), which follows CoFi (Xia et al. 2022).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TEMPERATURE = 2 / 3
STRETCH = (-0.1, 1.1)
EPSILON = 1e-6


def sample(log_alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One draw of gates in [0, 1], shape of `log_alpha`; differentiable in `log_alpha`.

    Args:
        log_alpha: location of each gate, any shape.
        generator: source of the uniform noise, on the CPU, so that a seed gives the same draw on every device.
    """
    u = torch.rand(log_alpha.shape, generator=generator, dtype=torch.float32).to(log_alpha.device)
    u = EPSILON + (1 - 2 * EPSILON) * u
    s = torch.sigmoid((torch.log(u) - torch.log1p(-u) + log_alpha) / TEMPERATURE)
    return _stretch(s)


def probability_active(log_alpha: Tensor) -> Tensor:
    """P(gate > 0) in closed form; its sum is the expected L0 norm."""
    return torch.sigmoid(log_alpha - TEMPERATURE * math.log(-STRETCH[0] / STRETCH[1]))


def _stretch(s: Tensor) -> Tensor:
    low, high = STRETCH
    return torch.clamp(s * (high - low) + low, 0.0, 1.0)
