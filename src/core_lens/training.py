"""What trainings share: the device, a progress bar that prints nothing else, and going on where one was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ProgressCallback, Trainer

from .errors import ModelError
from .hooked import Encoded


def train_on(trainer: Trainer, folder: Path) -> None:
    """Train, from the newest of the trainer's own checkpoints in `folder` if there is any."""
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(_Bar)
    trainer.train(resume_from_checkpoint=_resumable(folder))


class Rows(torch.utils.data.Dataset):
    """Examples as the Trainer takes them; `targets` hold one for each, none makes them targets themselves."""

    def __init__(self, encoded: Encoded, targets: np.ndarray | None = None) -> None:
        self.encoded, self.targets = encoded, targets
        self.starts = (encoded.lengths.cumsum(0) - encoded.lengths).tolist()

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = slice(self.starts[index], self.starts[index] + int(self.encoded.lengths[index]))
        row: dict[str, Any] = {"input_ids": self.encoded.ids[part].tolist()}
        if self.targets is not None:
            row["labels"] = self.targets[index]
        if self.encoded.types is not None:
            row["token_type_ids"] = self.encoded.types[part].tolist()
        return row


class _Bar(ProgressCallback):
    """The Trainer's progress bar, without its prints."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        pass


def trains_on_cpu(device: str | None) -> bool:
    """Whether to train on the CPU; the Trainer picks among the other devices itself."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is not None and not there.get(device):
        usable = ", ".join(name for name, usable in there.items() if usable)
        raise ModelError(f"device={device!r} cannot be trained on here: choose {usable}.")
    return device == "cpu" or not (there["cuda"] or there["mps"])


def _resumable(folder: Path) -> str | None:
    """The newest whole Trainer checkpoint."""
    found = [p for p in folder.glob("checkpoint-*") if (p / "trainer_state.json").is_file()]
    return str(max(found, key=lambda p: int(p.name.rpartition("-")[2]))) if found else None
