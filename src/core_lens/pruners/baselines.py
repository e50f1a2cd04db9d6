"""Baselines: one-shot gradient importance, and chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from tqdm.auto import tqdm

from ..gates import inject
from ..hooked import bf16_autocast, logits
from ..hooked.batches import batches
from .base import PruningProblem, PruningResult, keep_highest


@dataclass(frozen=True)
class RandomPruner:
    """Units drawn at random: what a subnetwork of that size is worth by chance."""

    name: ClassVar[str] = "random"
    examples: int | None = 4096

    def config(self) -> Mapping[str, Any]:
        return {}

    def work(self, sparsity: float) -> int:
        return 0

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        scores = torch.rand(len(problem.units), generator=torch.Generator().manual_seed(seed))
        return PruningResult(keep_highest(scores, sparsity), scores)


@dataclass(frozen=True)
class OneShotImportancePruner:
    """Ranks units by E_x |d loss / d gate| at the full model, once.

    Michel, Levy and Neubig, "Are sixteen heads really better than one?" (NeurIPS 2019), extended to MLPs as in Prasanna
    et al. (EMNLP 2020). The loss is the task's: the gradient of the KL to the full model is zero at the full model.

    Args:
        examples: training examples to draw from; None for all.
        sample: how many of them the expectation is taken over; a seed draws its own.
        batch_size: examples per pass.
    """

    name: ClassVar[str] = "one-shot-importance"
    examples: int | None = 4096
    sample: int = 2048
    batch_size: int = 32

    def config(self) -> Mapping[str, Any]:
        return asdict(self)

    def work(self, sparsity: float) -> int:
        return self.sample

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        units, device = problem.units, problem.teacher.device
        total = torch.zeros(len(units), dtype=torch.float64)
        seen = 0
        rows = torch.randperm(len(problem), generator=torch.Generator().manual_seed(seed))[: self.sample]
        with inject(problem.model, units, problem.replacement) as gates:
            for batch_rows, inputs in tqdm(
                batches(problem.encoded, self.batch_size, rows=rows, device=device),
                desc="importance",
                unit="batch",
                leave=False,
            ):
                # Every example has its own copy of the gates, so one backward pass gives per-example gradients.
                gates.z = torch.ones(len(batch_rows), len(units), device=device, requires_grad=True)
                gates.rows = batch_rows
                with bf16_autocast(device.type, problem.autocast):
                    output = logits(problem.model, inputs)
                loss = problem.task_loss(output, batch_rows).sum()
                (gradient,) = torch.autograd.grad(loss, gates.z)
                total += gradient.abs().double().cpu().sum(dim=0)
                seen += len(batch_rows)
        scores = (total / seen).float()
        return PruningResult(keep_highest(scores, sparsity), scores, passes=2 * seen)
