"""The lab: small trained classifiers that come with the package, and the template grammar they were trained on.

    model = core_lens.load_model("lab")                           # a BERT of 4 layers x 8 heads, fine-tuned
    early = core_lens.load_model(core_lens.lab.checkpoint(500))   # the same early on, when it only looks at overlap

`MODEL_CARD.md` beside this file tells what they can do at which step.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import ModelError
from .grammar import lab_task

__all__ = ["checkpoint", "checkpoint_steps", "lab_task", "model_folder"]

WEIGHTS = Path(__file__).parent / "weights"
MODELS = ("lab", "lab-gpt2", "lab-pretrained")


def checkpoint_steps() -> tuple[int, ...]:
    """The steps of fine-tuning at which the BERT was kept, first to last."""
    return tuple(int(step) for step in json.loads((WEIGHTS / "curve.json").read_text())["lab"])


def checkpoint(step: int | None = None) -> Path:
    """Folder of the fine-tuned BERT after `step` steps; the final one by default.

    Raises:
        ModelError: it was not kept at that step.
    """
    steps = checkpoint_steps()
    if step is None or step == steps[-1]:
        return WEIGHTS / "lab"
    if step not in steps:
        raise ModelError(f"the lab has no checkpoint at step {step}: it has {', '.join(map(str, steps))}.")
    return WEIGHTS / f"lab-step-{step}"


def model_folder(name: str) -> Path:
    """Folder of `lab` (the final BERT classifier), `lab-gpt2` or `lab-pretrained` (the BERT before fine-tuning).

    Raises:
        ModelError: the lab has no such model.
    """
    if name not in MODELS:
        raise ModelError(f"the lab has no model {name!r}: it has {', '.join(MODELS)}.")
    return WEIGHTS / name
