"""Magnitude pruning: the weights nearest to 0 go first (lottery paper, Section 3; Han et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from .errors import PruningError
from .weight_mask import WeightMask, encoder_weights

Which = Literal["smallest", "random", "largest"]


def magnitude_mask(model: PreTrainedModel, sparsity: float, which: Which = "smallest", seed: int = 0) -> WeightMask:
    """Remove a share of the weights of all blocks, ranked together by their absolute value.

    Args:
        model: HF's classifier.
        sparsity: share of the weight matrices' entries to remove; exactly round(sparsity * n) go.
        which: go first: the `smallest` (the paper's good subnetworks), `largest` (its bad ones), or `random`.
        seed: of `random`.

    Raises:
        PruningError: a sparsity outside [0, 1), or another `which`.
        ModelError: the architecture is not supported.
    """
    if which not in ("smallest", "random", "largest"):
        raise PruningError(f"which={which!r}: choose 'smallest', 'random' or 'largest'.")
    if not 0 <= sparsity < 1:
        raise PruningError(f"sparsity={sparsity!r} must lie in [0, 1): the share of weights to remove.")
    matrices = encoder_weights(model)
    flat = torch.cat([p.detach().abs().flatten().float() for p in matrices.values()])
    if which == "random":
        flat = torch.rand(len(flat), generator=torch.Generator().manual_seed(seed))
    gone = flat.topk(round(sparsity * len(flat)), largest=which == "largest", sorted=False).indices
    left = torch.ones(len(flat), dtype=torch.bool)
    left[gone.cpu()] = False
    parts = left.split([p.numel() for p in matrices.values()])
    kept = {name: part.view(p.shape).clone() for (name, p), part in zip(matrices.items(), parts, strict=True)}
    return WeightMask(kept, {"pruner": "magnitude", "which": which, "asked_sparsity": sparsity, "seed": seed})


@dataclass(frozen=True)
class MagnitudePruner:
    """Removes weights step by step while the model's metric holds, without training in between.

    Args:
        step: share of the weights still left that each step removes (0.1 in the paper).
        max_steps: at most (10 in the paper).
        stop: share of the full model's metric that must stay; the last mask with at least that is kept.
        which: as in `magnitude_mask`; `random` and `largest` are controls.
    """

    step: float = 0.1
    max_steps: int = 10
    stop: float = 0.9
    which: Which = "smallest"

    def __post_init__(self) -> None:
        if not 0 < self.step < 1:
            raise PruningError(
                f"step={self.step!r} must lie between 0 and 1: the share of what is left that a step removes."
            )
        if not 0 < self.stop <= 1:
            raise PruningError(f"stop={self.stop!r} must lie in (0, 1]: the share of the full model's metric to keep.")
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise PruningError(f"max_steps={self.max_steps!r} must be a whole number of at least 1.")

    def prune(
        self, model: PreTrainedModel, metric: Callable[[PreTrainedModel], float], seed: int = 0
    ) -> tuple[WeightMask, pd.DataFrame]:
        """The sparsest mask before the metric first falls below `stop` times the full model's.

        As nothing is trained in between, the order of removal never changes: step t removes 1 - (1 - step)^t in all.

        Args:
            model: HF's classifier; left as it is.
            metric: scores a model; higher is better.
            seed: of `which="random"`.

        Returns:
            The mask (nothing removed, where the first step fails), and a row per step: step, sparsity, metric, accepted.
        """
        full = metric(model)
        best = magnitude_mask(model, 0.0, self.which, seed)
        history = [(0, 0.0, full, True)]
        for t in tqdm(range(1, self.max_steps + 1), "magnitude", unit="step", leave=False):
            trial = magnitude_mask(model, 1 - (1 - self.step) ** t, self.which, seed)
            value = metric(trial.apply(model))
            holds = value >= self.stop * full
            history.append((t, trial.sparsity, value, holds))
            if not holds:
                break
            best = trial
        origin = dict(best.provenance) | {"config": asdict(self)}
        return WeightMask(best.kept, origin), pd.DataFrame(history, columns=["step", "sparsity", "metric", "accepted"])
