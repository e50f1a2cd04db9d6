"""The hard concrete gate against its density, integrated numerically, and against simulation."""

import math

import numpy as np
import torch
from scipy import integrate

from core_lens import hard_concrete


def test_probability_active_is_what_sampling_gives():
    for log_alpha in (-3.0, -0.5, 0.0, 2.0):
        draws = hard_concrete.sample(torch.full((200_000,), log_alpha), torch.Generator().manual_seed(0))
        share = float((draws > 0).float().mean())
        closed = float(hard_concrete.probability_active(torch.tensor(log_alpha)))
        assert abs(share - closed) < 4 * math.sqrt(closed * (1 - closed) / 200_000) + 1e-6


def test_probability_active_by_hand():
    # s > 0.1 / 1.2 in stretched terms: sigmoid((logit(u) + a) / T) > 1/12; at a = 0: logit(u) > T * log(1/11).
    threshold = 1 / (1 + math.exp(-2 / 3 * math.log(1 / 11)))
    assert math.isclose(float(hard_concrete.probability_active(torch.tensor(0.0))), 1 - threshold, rel_tol=1e-6)


def test_mean_of_draws_is_the_integral_over_u():
    def gate(u: float, log_alpha: float) -> float:
        s = 1 / (1 + math.exp(-(math.log(u / (1 - u)) + log_alpha) / (2 / 3)))
        return min(1.0, max(0.0, 1.2 * s - 0.1))

    for log_alpha in (-1.0, 0.7):
        exact, _ = integrate.quad(gate, 1e-9, 1 - 1e-9, args=(log_alpha,), limit=200)
        draws = hard_concrete.sample(torch.full((100_000,), log_alpha), torch.Generator().manual_seed(1))
        assert abs(float(draws.mean()) - exact) < 0.005


def test_draws_are_reproducible_and_differentiable():
    log_alpha = torch.zeros(50, requires_grad=True)
    first = hard_concrete.sample(log_alpha, torch.Generator().manual_seed(3))
    again = hard_concrete.sample(log_alpha, torch.Generator().manual_seed(3))
    assert torch.equal(first, again) and first.min() >= 0 and first.max() <= 1
    first.sum().backward()
    inside = ((first > 0) & (first < 1)).numpy()
    assert np.array_equal(log_alpha.grad.numpy() != 0, inside)
