"""Methods that choose which components stay."""

from __future__ import annotations

from typing import Literal

from ..errors import PruningError
from .base import Pruner, PruningProblem, PruningResult, check_sparsity, divergence, keep_highest
from .chance import RandomPruner
from .hard_concrete import HardConcretePruner, paper_steps
from .importance import ImportancePruner
from .linearized import LinearizedPruner

PRUNERS = ("linearized", "hard-concrete", "importance", "one-shot-importance", "random")
"""Names that `find_core` knows."""

__all__ = [
    "PRUNERS",
    "HardConcretePruner",
    "ImportancePruner",
    "LinearizedPruner",
    "Pruner",
    "PruningProblem",
    "PruningResult",
    "RandomPruner",
    "check_sparsity",
    "divergence",
    "keep_highest",
    "named_pruner",
    "paper_steps",
]


def named_pruner(pruner: str | Pruner | None, preset: Literal["fast", "paper"] = "fast") -> Pruner:
    """A pruner by name, the given one unchanged, or for None the preset's: `linearized`, or the paper's `hard-concrete`.

    Of a pruner given by name the preset says something for `hard-concrete` alone.
    """
    if preset not in ("fast", "paper"):
        raise PruningError(f"preset={preset!r}: choose 'fast' or 'paper'.")
    if pruner is None:
        pruner = "hard-concrete" if preset == "paper" else "linearized"
    if not isinstance(pruner, str):
        missing = [name for name in ("name", "examples", "config", "work", "prune") if not hasattr(pruner, name)]
        if missing or isinstance(pruner, type):
            raise PruningError(
                f"pruner={pruner!r} is no pruner object: pass a name, or an object like HardConcretePruner()."
            )
        return pruner
    known: tuple[Pruner, ...] = (
        LinearizedPruner(),
        HardConcretePruner.paper() if preset == "paper" else HardConcretePruner(),
        ImportancePruner(),
        ImportancePruner.one_shot(),
        RandomPruner(),
    )
    if pruner not in PRUNERS:
        raise PruningError(f"pruner={pruner!r} is not known: choose {', '.join(PRUNERS)}, or pass a pruner object.")
    return next(one for one in known if one.name == pruner)
