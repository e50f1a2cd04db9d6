"""Importance pruning: remove what the loss is least sensitive to, at once or step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from ..components import ComponentSet
from ..errors import PruningError
from ..gates import Injection, inject
from ..hooked import bf16_autocast, logits
from ..hooked.batches import batches
from .base import PruningProblem, PruningResult, check_sparsity, is_number, keep_highest

_PHASES = ((0.1, 1), (0.05, 0), (0.0, 1))
"""Share of all heads, and MLPs, that a step of each phase removes: 14 and 1 of BERT's 144 and 12, then 7, then 1 MLP."""


@dataclass(frozen=True)
class ImportancePruner:
    """Removes the units with the least E_x |d loss / d gate|, by default in the three phases of Prasanna et al.

    Michel, Levy and Neubig, "Are sixteen heads really better than one?" (NeurIPS 2019), extended to MLPs by Prasanna,
    Rogers and Rumshisky, "When BERT plays the lottery, all tickets are winning" (EMNLP 2020, Section 3).

    Each step of a phase removes the lowest of the units that are left, after which importance is taken anew at the mask
    that is left: 10 % of all heads and one MLP; then 5 % of the heads alone; then one MLP alone. A phase ends where the
    subnetwork's metric would fall below `stop` times the full model's, and that step is undone.

    `prune` removes exactly the sparsity asked for: it stops within the phases if they get there, taking fewer (heads
    first) in its last step, and otherwise goes on with steps of the first phase past the stop. `prune_to_stop` ends with
    the phases, as the paper does.

    Args:
        steps: `phases`, or `one-shot`: rank once, at the full model.
        loss: `task`, or `kl` to the full model, whose gradient is 0 at the full model: there the task's is taken.
        gradients: of each `example`, or summed over each `batch` before the absolute value, as the released code does.
        layer_norm: divide a head's importance by the L2 norm of its layer's.
        min_max: scale heads and MLPs, apart, to [0, 1].
        stop: share of the full model's metric on the selection examples that must stay; None never stops.
        examples: training examples to draw from; None for all.
        sample: how many of them importance is taken over; a seed draws its own.
        judged: how many of them the metric is taken over, in the same way; None for all that are drawn from.
        batch_size: examples per pass.
    """

    steps: Literal["phases", "one-shot"] = "phases"
    loss: Literal["task", "kl"] = "task"
    gradients: Literal["example", "batch"] = "example"
    layer_norm: bool = True
    min_max: bool = True
    stop: float | None = 0.9
    examples: int | None = 4096
    sample: int = 2048
    judged: int | None = None
    batch_size: int = 32

    @classmethod
    def one_shot(cls, **changes: Any) -> ImportancePruner:
        """All units ranked together by what the loss loses, once: the baseline of `find_core`."""
        return replace(cls(steps="one-shot", layer_norm=False, min_max=False), **changes)

    def __post_init__(self) -> None:
        choices = {"steps": ("phases", "one-shot"), "loss": ("task", "kl"), "gradients": ("example", "batch")}
        for name, allowed in choices.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in allowed:
                raise PruningError(f"{name}={getattr(self, name)!r}: choose {' or '.join(map(repr, allowed))}.")
        if self.steps == "one-shot" and self.loss == "kl":
            raise PruningError("loss='kl' has no gradient at the full model: use loss='task', or steps='phases'.")
        if self.stop is not None and (not is_number(self.stop) or not 0 < self.stop <= 1):
            raise PruningError(f"stop={self.stop!r} must lie in (0, 1]: the share of the full model's metric to keep.")
        for name in ("examples", "sample", "judged", "batch_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise PruningError(f"{name}={value!r} must be a whole number of at least 1.")

    @property
    def name(self) -> str:
        return "importance" if self.steps == "phases" else "one-shot-importance"

    def config(self) -> Mapping[str, Any]:
        return asdict(self)

    def work(self, sparsity: float) -> int:
        if self.steps == "one-shot":
            return self.sample
        judged = 0 if self.stop is None else self.judged or self.examples or self.sample
        return round(sparsity / _PHASES[0][0] + 1) * (self.sample + judged // 3)  # forward only is a third

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        limit = round(check_sparsity(sparsity) * len(problem.units))
        if self.steps == "one-shot":
            search = _Search(self, problem, seed)
            scores = search.scores()
            return PruningResult(keep_highest(scores, sparsity), scores, passes=search.passes)
        return self._by_phases(problem, limit, seed)

    def prune_to_stop(self, problem: PruningProblem, seed: int) -> PruningResult:
        """The smallest subnetwork that the three phases reach with at least `stop` times the full model's metric.

        Raises:
            PruningError: `stop` is None, or the pruner is one-shot.
        """
        if self.stop is None or self.steps == "one-shot":
            raise PruningError("prune_to_stop needs steps='phases' and stop=, such as 0.9.")
        return self._by_phases(problem, None, seed)

    def _by_phases(self, problem: PruningProblem, limit: int | None, seed: int) -> PruningResult:
        search = _Search(self, problem, seed)
        floor = None if self.stop is None else self.stop * search.metric()
        with tqdm(total=limit, desc="importance", unit="unit", leave=False) as bar:
            for number, phase in enumerate(_PHASES, start=1):
                # Without a stop the first phase goes on for ever.
                while search.step(phase, limit, floor, number):
                    bar.update(search.n_removed - bar.n)
            while limit is not None and search.n_removed < limit:
                search.step(_PHASES[0], limit, None, 0)
                bar.update(search.n_removed - bar.n)
        return search.result()


class _Search:
    """What is left on the way, and what it cost; the state of one run."""

    def __init__(self, pruner: ImportancePruner, problem: PruningProblem, seed: int) -> None:
        self.pruner, self.problem = pruner, problem
        order = torch.randperm(len(problem), generator=torch.Generator().manual_seed(seed))
        self.rows, self.judged = order[: pruner.sample], order[: pruner.judged]
        self.mask = torch.ones(len(problem.units), dtype=torch.bool)
        self.order = torch.full((len(problem.units),), float(len(problem.units)))  # when each was removed
        self.history: list[dict[str, float]] = []
        self.passes = 0
        self._scores: tuple[Tensor, Tensor] | None = None

    @property
    def n_removed(self) -> int:
        return int((~self.mask).sum())

    def scores(self) -> Float[Tensor, " n_units"]:
        """Importance at the mask that is left, scaled."""
        if self._scores is None or not torch.equal(self._scores[0], self.mask):
            pruner = self.pruner
            loss = "task" if self.mask.all() else pruner.loss
            raw = gate_importance(self.problem, self.mask, self.rows, loss, pruner.gradients, pruner.batch_size)
            self.passes += 2 * len(self.rows)
            self._scores = self.mask.clone(), scaled(raw, self.problem.units, pruner.layer_norm, pruner.min_max)
        return self._scores[1]

    def metric(self) -> float:
        outputs = torch.empty(len(self.judged), self.problem.teacher.shape[1])
        device, place = self.problem.teacher.device, {int(row): i for i, row in enumerate(self.judged)}
        with inject(self.problem.model, self.problem.units, self.problem.replacement) as gates, torch.inference_mode():
            for rows, inputs in batches(self.problem.encoded, self.pruner.batch_size, rows=self.judged, device=device):
                gates.z, gates.rows = self.mask.float().to(device), rows
                with bf16_autocast(device.type, self.problem.autocast):
                    output = logits(self.problem.model, inputs)
                outputs[[place[int(row)] for row in rows]] = output.float().cpu()
        self.passes += len(self.judged)
        return self.problem.score(outputs, self.judged)

    def step(self, phase: tuple[float, int], limit: int | None, floor: float | None, number: int) -> bool:
        """Remove one step's units; False, with nothing removed, where there are none or the metric falls below `floor`."""
        room = len(self.mask) - 1 if limit is None else limit
        chosen = self._lowest(*phase)[: max(0, room - self.n_removed)]
        if not len(chosen):
            return False
        before, self.mask = self.mask, self.mask.clone()
        self.mask[chosen] = False
        value = float("nan") if floor is None else self.metric()
        stays = floor is None or value >= floor
        self.history.append({"phase": number, "kept": int(self.mask.sum()), "metric": value, "accepted": stays})
        if not stays:
            self.mask = before
            return False
        self.order[chosen] = torch.arange(len(chosen)) + float(len(before) - before.sum())
        return True

    def _lowest(self, share: float, n_mlps: int) -> Int[Tensor, " chosen"]:
        """The units a step removes, heads before MLPs, least important first."""
        units, scores = self.problem.units, self.scores().masked_fill(~self.mask, torch.inf)
        is_head = torch.tensor([unit.kind == "head" for unit in units])
        n_heads = max(1, int(share * int(is_head.sum()))) if share else 0
        ranked = scores.argsort(stable=True)
        ranked = ranked[self.mask[ranked]]
        return torch.cat([ranked[is_head[ranked]][:n_heads], ranked[~is_head[ranked]][:n_mlps]])

    def result(self) -> PruningResult:
        """Scores are the order of removal; what is left is ranked by importance, above all that is removed."""
        left = self.scores()
        left = left / left.max().clamp(min=torch.finfo(left.dtype).tiny)
        scores = torch.where(self.mask, len(self.mask) + left, self.order)
        return PruningResult(self.mask, scores, pd.DataFrame(self.history), self.passes)


def gate_importance(
    problem: PruningProblem,
    mask: Bool[Tensor, " n_units"],
    rows: Int[Tensor, " row"],
    loss: Literal["task", "kl"] = "task",
    gradients: Literal["example", "batch"] = "example",
    batch_size: int = 32,
) -> Float[Tensor, " n_units"]:
    """E_x |d loss / d gate| at a mask, over the selection examples `rows`.

    Args:
        problem: the model, its units and examples.
        mask: which gates are open.
        rows: the examples.
        loss: of the `task`, or the `kl` to the full model.
        gradients: `example`, the expectation over examples; `batch`: |sum over a batch|, summed over batches, by example.
        batch_size: examples per pass.
    """
    units, device = problem.units, problem.teacher.device
    total = torch.zeros(len(units), dtype=torch.float64)
    with inject(problem.model, units, problem.replacement) as gates:
        for batch, inputs in tqdm(
            batches(problem.encoded, batch_size, rows=rows, device=device), "gradients", unit="batch", leave=False
        ):
            total += _gradients(problem, gates, mask, batch, inputs, loss, gradients == "batch").double().cpu()
    return (total / len(rows)).float()


def _gradients(
    problem: PruningProblem,
    gates: Injection,
    mask: Tensor,
    batch: Tensor,
    inputs: Mapping[str, Tensor],
    loss: str,
    together: bool,
) -> Float[Tensor, " n_units"]:
    device = problem.teacher.device
    # Every example has its own copy of the gates, so one backward pass gives per-example gradients.
    gates.z = mask.float().to(device).expand(len(batch), -1).clone().requires_grad_()
    gates.rows = batch
    with bf16_autocast(device.type, problem.autocast):
        output = logits(problem.model, inputs)
    value = problem.task_loss(output, batch).sum() if loss == "task" else problem.divergence(output, batch) * len(batch)
    (gradient,) = torch.autograd.grad(value, gates.z)
    return gradient.sum(dim=0).abs() if together else gradient.abs().sum(dim=0)


def scaled(scores: Float[Tensor, " n_units"], units: ComponentSet, layer_norm: bool, min_max: bool) -> Tensor:
    """Importance by the paper's scales: heads by their layer's L2 norm, then heads and MLPs, apart, to [0, 1]."""
    parts = []
    for kind, part in (("head", units.heads(scores)), ("mlp", units.mlps(scores))):
        if part is None:
            continue
        if kind == "head" and layer_norm:
            part = part / part.norm(dim=-1, keepdim=True).clamp(min=1e-20)
        if min_max:
            part = (part - part.min()) / (part.max() - part.min()).clamp(min=1e-20)
        parts.append(part.flatten())
    return torch.cat(parts)
