"""Chance, as a pruner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .base import PruningProblem, PruningResult, keep_highest


@dataclass(frozen=True)
class RandomPruner:
    """Units drawn at random: what a subnetwork of that size is worth by chance."""

    examples: int | None = 4096

    @property
    def name(self) -> str:
        return "random"

    def config(self) -> Mapping[str, Any]:
        return {}

    def work(self, sparsity: float) -> int:
        return 0

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        scores = torch.rand(len(problem.units), generator=torch.Generator().manual_seed(seed))
        return PruningResult(keep_highest(scores, sparsity), scores)
