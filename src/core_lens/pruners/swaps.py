"""Swap refinement: exchange a kept for a removed unit wherever that brings the subnetwork closer to the full model."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor
from tqdm.auto import tqdm

from ..gates import Injection, inject
from ..hooked import bf16_autocast, logits
from ..hooked.batches import batches
from .base import PruningProblem


def best_by_swaps(
    problem: PruningProblem,
    candidates: list[Bool[Tensor, " n_units"]],
    rows: Tensor,
    trials: int,
    batch_size: int = 64,
) -> tuple[Bool[Tensor, " n_units"], int]:
    """The best of some masks of one size, then improved by swaps of one kept with one removed unit.

    Swaps are tried in the order of what the gates' gradients promise, each on all `rows`, and kept where the mean KL
    to the full model falls; gradients are taken anew after each success.

    Args:
        problem: what is pruned.
        candidates: masks to start from.
        rows: selection examples that masks are compared on.
        trials: swaps to try in all.
        batch_size: examples per pass.

    Returns:
        (the mask, example passes spent)
    """
    passes = 0
    with inject(problem.model, problem.units, problem.replacement) as gates:

        def kl(mask: Tensor) -> float:
            nonlocal passes
            passes += len(rows)
            with torch.no_grad():
                return _divergence(problem, gates, mask.float(), rows, batch_size)

        scored = [(kl(mask), i) for i, mask in enumerate(candidates)]
        lowest, first = min(scored)
        mask = candidates[first].clone()
        bar = tqdm(total=trials, desc="swaps", unit="trial", leave=False)
        with bar:
            left = trials
            while left:
                z = mask.float().requires_grad_()
                _divergence(problem, gates, z, rows, batch_size)
                passes += 2 * len(rows)
                assert z.grad is not None
                # First-order change of the KL where `row` is closed and `column` opened.
                change = (z.grad[None] - z.grad[:, None])[mask][:, ~mask]
                kept, removed = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
                for flat in change.flatten().argsort().tolist()[:left]:
                    out, into = kept[flat // len(removed)], removed[flat % len(removed)]
                    trial = mask.clone()
                    trial[out], trial[into] = False, True
                    value = kl(trial)
                    left -= 1
                    bar.update()
                    if value < lowest:
                        mask, lowest = trial, value
                        bar.set_postfix(KL=f"{lowest:.4f}")
                        break
                else:
                    break
    return mask, passes


def _divergence(problem: PruningProblem, gates: Injection, z: Tensor, rows: Tensor, batch_size: int) -> float:
    """Mean divergence over `rows`; where z wants a gradient it gets it."""
    device = problem.teacher.device
    total = 0.0
    for batch, inputs in batches(problem.encoded, batch_size, rows=rows, device=device):
        gates.z, gates.rows = z.to(device), batch
        with bf16_autocast(device.type, problem.autocast):
            output = logits(problem.model, inputs)
        loss = problem.divergence(output, batch) * (len(batch) / len(rows))
        if z.requires_grad:
            loss.backward()
        total += float(loss.detach())
    return total
