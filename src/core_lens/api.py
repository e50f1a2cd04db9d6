"""`find_core`: from a fine-tuned classifier to the heads that all of its subnetworks share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm.auto import tqdm

from .core import Core
from .errors import CoreLensError
from .files import check_folder, claim_folder
from .plan import plan
from .pruners import Pruner
from .runs import Order, carry_out
from .selection import PruneOn
from .tasks import Task
from .workers import check_executor


def find_core(
    model: Any,
    task: str | Task,
    sparsities: float | Iterable[float] | None = None,
    seeds: int | Iterable[int] = 12,
    pruner: str | Pruner | None = None,
    preset: Literal["fast", "paper"] = "fast",
    prune_on: PruneOn | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Core:
    """Find many subnetworks of a fine-tuned classifier that reproduce it, and what they share.

        core = core_lens.find_core("lab", task="lab")
        core.heads

    Args:
        model: hub id, local folder, HF `*ForSequenceClassification`, hooked classifier, or `"lab"` / `"lab-gpt2"`.
        task: a name (see `load_task`) or a `Task`.
        sparsities: shares of units to remove; None takes the paper's for the task (GPT-2: .4 and .6).
        seeds: a list, or how many (12 gives the paper's 42 to 53).
        pruner: None for the preset's; `linearized`, `hard-concrete` (the paper's), `importance` (the lottery paper's three
            phases), `one-shot-importance`, `random`, or a pruner of your own.
        preset: `fast` (minutes on two cores: the `linearized` pruner), or `paper` (exactly the published procedure).
        prune_on: the split whose predictions masks must reproduce: None for the in-domain training data; a name, a
            list of names, or name -> share of a mixture.
        out: folder to write the run to. An interrupted run continues where it stopped when it is called again.
        data_dir: where the task's files are; None loads them from the hub.
        device: where to run; CUDA where there is one, else the CPU.
        executor: makes the runs elsewhere: `LocalWorkers(n)`, Dask's `client.get_executor()`, submitit's, any other of
            `concurrent.futures`. The model is then named by hub id or folder, and all processes see `out`.
        **options: the rarer settings of `plan`: tokenizer, label_map, units, ablation, positions, splits,
            max_examples, mean_examples, batch_size, dtype, autocast.

    Returns:
        The `Core`.

    Raises:
        CoreLensError: something about the model, the data or the settings is wrong; the message says what to change.
    """
    check_executor(executor)
    if executor is not None and (out is None or not isinstance(model, str | Path)):
        raise CoreLensError(
            "executor= sends runs to other processes: name the model by its hub id or folder, and a folder for out= that "
            "they all can write to."
        )
    folder = None if out is None else check_folder(out)
    settings: dict[str, Any] = {
        "task": task, "sparsities": sparsities, "seeds": seeds, "pruner": pruner, "preset": preset, "prune_on": prune_on,
        "data_dir": data_dir, "device": device, **options,
    }  # fmt: skip
    job = plan(model, **settings)
    if folder is not None:
        claim_folder(folder, "plan.json", job.config, remake=True)
    tqdm.write(str(job), file=sys.stderr)
    order = None
    if executor is not None and folder is not None:
        place = folder.resolve()
        sent = {**settings, "sparsities": job.sparsities, "seeds": job.seeds}
        order = Order.of(model, sent, place, place / "shared", job.config)
    core = carry_out(job, folder, executor, order)
    if folder is not None:
        core.save(folder)
    return core
