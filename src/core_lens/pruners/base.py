"""What every pruner is given, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.model_bridge import TransformerBridge

from ..ablation import Replacement
from ..components import ComponentSet
from ..errors import PruningError
from ..hooked.batches import Encoded
from ..metrics import mcc, pearson


@dataclass(frozen=True, eq=False)
class PruningProblem:
    """A frozen model, the units to choose among and the examples that the choice is made on.

    Args:
        model: the hooked classifier.
        units: what can be removed.
        replacement: what stands in for it.
        encoded: the selection examples, tokenised; disjoint from all that is reported.
        teacher: the full model's logits on them, in the model's own class order.
        gold: classes that count as right, in the model's class order (one, or several where the split collapses
            labels); for a regression task the gold value, [example, 1].
        is_regression: one real output; distances are squared errors instead of KL.
        autocast: run forward passes in bfloat16.
        metric: the task's: `accuracy`, `mcc` or `pearson`.
    """

    model: TransformerBridge
    units: ComponentSet
    replacement: Replacement
    encoded: Encoded
    teacher: Float[Tensor, "example label"]
    gold: Bool[Tensor, "example label"] | Float[Tensor, "example 1"]
    is_regression: bool = False
    autocast: bool = False
    metric: str = "accuracy"

    def __len__(self) -> int:
        return len(self.teacher)

    def divergence(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Mean over the batch of KL(full model || subnetwork), in nats (squared error for regression)."""
        return divergence(self.teacher[rows].to(logits.device), logits.float(), self.is_regression).mean()

    def task_loss(self, logits: Tensor, rows: Tensor) -> Float[Tensor, " batch"]:
        """Loss against the gold labels per example: -log P(a right class), or squared error."""
        gold, logits = self.gold[rows].to(logits.device), logits.float()
        if self.is_regression:
            return (logits - gold).square().sum(dim=-1)
        return logits.logsumexp(-1) - logits.masked_fill(~gold, -torch.inf).logsumexp(-1)

    def score(self, outputs: Float[Tensor, "row label"], rows: Int[Tensor, " row"]) -> float:
        """The task's metric over the examples `rows`, from a subnetwork's logits on them."""
        gold, outputs = self.gold[rows.to(self.gold.device)].cpu(), outputs.cpu()
        if self.is_regression:
            return pearson(outputs[:, 0].double().numpy(), gold[:, 0].double().numpy())
        said = outputs.argmax(dim=-1)
        if self.metric == "mcc":
            k = outputs.shape[1]
            return mcc((gold.int().argmax(dim=-1) * k + said).numpy(), k)
        return float(gold.gather(1, said[:, None]).double().mean())


def divergence(teacher: Tensor, logits: Tensor, is_regression: bool = False) -> Float[Tensor, "*batch"]:
    """KL(teacher || student) over classes per example, in nats; squared error of the output for regression."""
    if is_regression:
        return (logits - teacher).square().sum(dim=-1)
    log_p, log_q = teacher.log_softmax(-1), logits.log_softmax(-1)
    return F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(dim=-1)


@dataclass(frozen=True, eq=False)
class PruningResult:
    """A mask, what it was ranked by, and how the run went.

    Args:
        mask: True where a unit stays.
        scores: higher stays.
        history: one row per logged step.
        passes: example passes spent, forwards and backwards each counted once.
    """

    mask: Bool[Tensor, " n_units"]
    scores: Float[Tensor, " n_units"]
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    passes: int = 0


class Pruner(Protocol):
    """Chooses the units that stay."""

    @property
    def name(self) -> str: ...

    @property
    def examples(self) -> int | None:
        """How many training examples the pruner draws from; None for all."""
        ...

    def config(self) -> Mapping[str, Any]:
        """Every setting, as plain values, for the provenance."""
        ...

    def work(self, sparsity: float) -> int:
        """Examples that one run takes forward and backward, for the time estimate."""
        ...

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult: ...


def is_number(value: object, whole: bool = False) -> bool:
    """Whether it is a finite number, no truth value."""
    kinds = (int, np.integer) if whole else (int, float, np.number)
    return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)  # pyright: ignore[reportArgumentType]


def check_sparsity(sparsity: object) -> float:
    """The sparsity, if it lies strictly between 0 and 1.

    Raises:
        PruningError: it does not.
    """
    if not isinstance(sparsity, int | float | np.number) or not 0 < float(sparsity) < 1:
        raise PruningError(
            f"sparsity={sparsity!r} must lie strictly between 0 and 1: it is the share of heads and MLPs to remove "
            "(0.5 removes half)."
        )
    return float(sparsity)


def keep_highest(scores: Tensor, sparsity: float) -> Bool[Tensor, " n_units"]:
    """The mask that removes exactly round(sparsity * n_units) units, those of lowest score.

    All units are ranked together; of equal scores the earlier unit stays. |reached - asked| <= 1 / (2 * n_units).
    """
    if not scores.isfinite().all():
        raise PruningError(
            f"{int((~scores.isfinite()).sum())} of {len(scores)} scores are NaN or infinite: check the model."
        )
    n_removed = round(check_sparsity(sparsity) * len(scores))
    order = torch.argsort(scores.detach().cpu().double(), descending=True, stable=True)
    mask = torch.zeros(len(scores), dtype=torch.bool)
    mask[order[: len(scores) - n_removed]] = True
    return mask
