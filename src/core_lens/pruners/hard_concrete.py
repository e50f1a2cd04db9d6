"""The pruner of the Heuristic Core: hard concrete gates, KL to the full model, a Lagrangian on the sparsity."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pandas as pd
import torch
from torch import nn
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .. import hard_concrete
from ..errors import CoreLensWarning, PruningError
from ..gates import Gates, inject
from ..hooked import bf16_autocast, logits
from ..hooked.batches import batches
from .base import PruningProblem, PruningResult, check_sparsity, is_number, keep_highest
from .importance import ImportancePruner
from .swaps import best_by_swaps


@dataclass(frozen=True)
class HardConcretePruner:
    """Learns one hard concrete gate per unit by gradient descent.

    The loss is KL(full || gated) + lambda_1 (t - s) + lambda_2 (t - s)^2, where s is the sparsity of the gates, t the
    target, which ramps up linearly from 0, and the lambdas are ascended (Heuristic Core, Appendix B; Wang et al. 2020).
    Units are then ranked together by log_alpha and exactly the sparsity asked for is removed. The fast preset ends with
    swaps on this discrete mask, which the noise of a short run leaves a little off its best.

    The defaults are the `fast` preset; `HardConcretePruner.paper()` is the published procedure.

    Args:
        steps: optimiser steps; None for the paper's, which depend on the sparsity (`paper_steps`).
        ramp: share of the steps over which the target sparsity rises from 0; None for the paper's.
        batch_size: examples per step, sharing one draw of the gates.
        examples: training examples to draw from; None for all.
        learning_rate: of log_alpha (AdamW).
        lambda_learning_rate: of the two multipliers (gradient ascent by AdamW).
        weight_decay: of AdamW, on both groups.
        warmup_steps: over which both learning rates rise linearly before they decay linearly to 0.
        init: mean of the initial log_alpha.
        init_std: its standard deviation, the seed's first difference.
        warm_start: examples from which one-shot importance is estimated first (0 for none): log_alpha then starts
            spread out by importance, so that at each sparsity most gates are settled and only those at the margin
            are uncertain.
        spread: half the range of log_alpha after a warm start.
        swaps: at the end, how many exchanges of one kept for one removed unit to try (0 for none), each kept if it lowers
            the KL; they begin from the better of the learned and the warm start's mask.
        swap_examples: selection examples that masks are compared on, drawn by the seed.
        draws: gates are drawn once per `batch`, as in the paper, or per `example`, which costs the same and makes the
            gradient less noisy.
        constraint: `lagrangian` is the paper's, with s from the gates drawn in each step. `projection` shifts all
            log_alpha alike after each step, so that the expected sparsity 1 - mean P(z > 0) is the target: the
            ranking is left to the KL alone, and nothing oscillates in a short run.
        dropout: leave the model's dropout on, as the published code does.
        pad_to: pad every batch to this length (128 in the published code) or the model's longest; None pads to its longest row.
    """

    steps: int | None = 200
    ramp: float | None = 0.5
    batch_size: int = 32
    examples: int | None = 4096
    learning_rate: float = 0.2
    lambda_learning_rate: float = 1.0
    weight_decay: float = 0.0
    warmup_steps: int = 10
    init: float = 2.0
    init_std: float = 1.0
    warm_start: int = 512
    spread: float = 7.0
    swaps: int = 40
    swap_examples: int = 256
    draws: Literal["example", "batch"] = "example"
    constraint: Literal["projection", "lagrangian"] = "projection"
    dropout: bool = False
    pad_to: int | None = None

    @classmethod
    def paper(cls, **changes: Any) -> HardConcretePruner:
        """The published procedure; `steps=` shortens it, keeping the shape of its schedule."""
        published = cls(
            steps=None,
            ramp=None,
            batch_size=128,
            examples=None,
            learning_rate=0.1,
            lambda_learning_rate=1.0,
            weight_decay=0.01,
            warmup_steps=200,
            init=10.0,
            init_std=0.01,
            warm_start=0,
            swaps=0,
            draws="batch",
            constraint="lagrangian",
            dropout=True,
            pad_to=128,
        )
        return replace(published, **changes)

    def __post_init__(self) -> None:
        for name, allowed in (("draws", ("example", "batch")), ("constraint", ("projection", "lagrangian"))):
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in allowed:
                raise PruningError(f"{name}={getattr(self, name)!r}: choose {' or '.join(map(repr, allowed))}.")
        least = {"steps": 2, "batch_size": 1, "examples": 1, "warmup_steps": 0, "warm_start": 0, "pad_to": 1}
        least |= {"weight_decay": 0, "init_std": 0, "spread": 0, "swaps": 0, "swap_examples": 1}
        for name, low in least.items():
            value, whole = getattr(self, name), name not in ("weight_decay", "init_std", "spread")
            if value is None and name in ("steps", "examples", "pad_to"):
                continue
            if value is None or not is_number(value, whole) or value < low:
                raise PruningError(f"{name}={value!r} must be {'a whole number of ' if whole else ''}at least {low}.")
        for name in ("learning_rate", "lambda_learning_rate"):
            if not is_number(value := getattr(self, name)) or value <= 0:
                raise PruningError(f"{name}={value!r} must be above 0.")
        if not is_number(self.init):
            raise PruningError(f"init={self.init!r} must be a number.")
        if not isinstance(self.dropout, bool):
            raise PruningError(f"dropout={self.dropout!r} must be True or False.")
        if self.ramp is not None and (not is_number(self.ramp) or not 0 < self.ramp <= 1):
            raise PruningError(
                f"ramp={self.ramp!r} must lie in (0, 1]: the share of the steps that the target rises over."
            )

    @property
    def name(self) -> str:
        return "hard-concrete"

    def config(self) -> Mapping[str, Any]:
        return asdict(self)

    def schedule(self, sparsity: float) -> tuple[int, int]:
        """(steps over which the target ramps up, steps in all) for a sparsity."""
        ramp, total = paper_steps(sparsity)
        share = ramp / total if self.ramp is None else self.ramp
        total = total if self.steps is None else self.steps
        return max(1, round(share * total)), total

    def work(self, sparsity: float) -> int:
        # A swap is tried forward only, which is a third of the work.
        return self.schedule(sparsity)[1] * self.batch_size + self.warm_start + self.swaps * self.swap_examples // 3

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        check_sparsity(sparsity)
        ramp, total = self.schedule(sparsity)
        model, units, device = problem.model, problem.units, problem.teacher.device
        noise = torch.Generator().manual_seed(seed)
        gates = Gates(units, self.init, self.init_std, noise).to(device)
        passes = 0
        masks = []
        if self.warm_start:
            importance = ImportancePruner.one_shot(sample=self.warm_start, batch_size=self.batch_size)
            start = importance.prune(problem, sparsity, seed)
            rank = start.scores.argsort().argsort().to(device) / max(1, len(units) - 1)
            passes += start.passes
            masks.append(start.mask)
            with torch.no_grad():
                gates.log_alpha.add_(self.spread * (2 * rank - 1))
        lambdas = nn.Parameter(torch.zeros(2, device=device))
        optimizer = torch.optim.AdamW(
            [
                {"params": [gates.log_alpha], "lr": self.learning_rate},
                {"params": [lambdas], "lr": self.lambda_learning_rate, "maximize": True},
            ],
            weight_decay=self.weight_decay,
        )
        lagrangian = self.constraint == "lagrangian"
        warmup = min(self.warmup_steps, total // 2)

        def rate(step: int) -> float:
            return (step + 1) / warmup if step < warmup else (total - step) / max(1, total - warmup)

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        history = []
        bar = tqdm(total=total, desc=f"prune {sparsity:.0%} seed {seed}", unit="step", leave=False)
        with bar, inject(model, units, problem.replacement) as injection, _mode(model, self.dropout, seed):
            for step, (rows, inputs) in zip(range(total), self._stream(problem, seed), strict=False):
                target = sparsity * min(1.0, step / ramp)
                n_draws = len(rows) if self.draws == "example" else None
                injection.z, injection.rows = gates.sample(noise, n_draws), rows
                with bf16_autocast(device.type, problem.autocast):
                    output = logits(model, inputs)
                divergence = problem.divergence(output, rows)
                reached = 1 - injection.z.mean()
                gap = target - reached
                loss = divergence + lambdas[0] * gap + lambdas[1] * gap.square() if lagrangian else divergence
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if not lagrangian:
                    _project(gates, sparsity * min(1.0, (step + 1) / ramp))
                passes += 2 * len(rows)
                bar.update()
                if step % 20 == 0 or step == total - 1:
                    row = {
                        "step": step,
                        "divergence": float(divergence.detach()),
                        "target_sparsity": target,
                        "sparsity": float(reached.detach()),
                    }
                    history.append(row)
                    bar.set_postfix(KL=f"{row['divergence']:.3f}", sparsity=f"{row['sparsity']:.2f}")
                    if not math.isfinite(row["divergence"]) or not gates.log_alpha.isfinite().all():
                        raise PruningError(
                            f"the loss or the gates became NaN at step {step} (seed {seed}): lower learning_rate "
                            f"({self.learning_rate:g}), or use float32 if you asked for bf16."
                        )
        scores = gates.log_alpha.detach().cpu()
        self._warn_of_collapse(gates, sparsity, seed)
        mask = keep_highest(scores, sparsity)
        if self.swaps:
            rows = torch.randperm(len(problem), generator=torch.Generator().manual_seed(seed))[: self.swap_examples]
            mask, more = best_by_swaps(problem, [mask, *masks], rows, self.swaps, self.batch_size)
            passes += more
        return PruningResult(mask, scores, pd.DataFrame(history), passes=passes)

    def _stream(self, problem: PruningProblem, seed: int):
        """Batches without end, shuffled anew in every epoch."""
        pad_to = None if self.pad_to is None else min(self.pad_to, problem.model.tokenizer.model_max_length)
        epoch = 0
        while True:
            yield from batches(
                problem.encoded,
                self.batch_size,
                shuffle_seed=seed + 1_000_003 * epoch,
                pad_to=pad_to,
                device=problem.teacher.device,
            )
            epoch += 1

    def _warn_of_collapse(self, gates: Gates, sparsity: float, seed: int) -> None:
        reached = 1 - float(gates.probability_active().detach().mean())
        state = "open" if reached < 0.02 else "closed" if reached > 0.98 else None
        if state and abs(reached - sparsity) > 0.05:
            warnings.warn(
                f"all gates ended {state} (expected sparsity {reached:.2f}, {sparsity:.2f} was asked, seed {seed}), so the "
                f"mask is hardly learned: raise steps ({self.schedule(sparsity)[1]}) or lambda_learning_rate "
                f"({self.lambda_learning_rate:g}), or lower init ({self.init:g}).",
                CoreLensWarning,
                stacklevel=3,
            )


@torch.no_grad()
def _project(gates: Gates, sparsity: float) -> None:
    """Shift all log_alpha alike, so that the expected sparsity is `sparsity`; found by bisection."""
    log_alpha = gates.log_alpha.cpu()  # one transfer, not one for every step of the search
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        active = hard_concrete.probability_active(log_alpha + middle).mean()
        low, high = (middle, high) if float(active) < 1 - sparsity else (low, middle)
    gates.log_alpha.add_(high)


@contextmanager
def _mode(model: TransformerBridge, dropout: bool, seed: int) -> Iterator[None]:
    """Dropout on or off inside the block, its noise seeded; the modules' modes are as before afterwards."""
    # The bridge lists the modules that it wraps; HF's own dropout before the first block is not among them.
    modules = [*model.modules(), *model.original_model.modules()]
    before = {module: module.training for module in modules}
    with torch.random.fork_rng(enabled=dropout):
        if dropout:
            torch.manual_seed(seed)
        try:
            for module in before:
                module.training = dropout
            yield
        finally:
            for module, training in before.items():
                module.training = training


def paper_steps(sparsity: float) -> tuple[int, int]:
    """The published schedule: warmup = 6500 + 50 S and total = warmup + 6 S steps, S the sparsity in percent."""
    percent = 100 * sparsity
    ramp = round(6500 + 50 * percent)
    return ramp, ramp + round(6 * percent)
