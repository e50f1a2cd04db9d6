"""`find_core`: from a fine-tuned classifier to the heads that all of its subnetworks share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from tqdm.auto import tqdm

from .core import Core, notes_on
from .errors import SavedFileError
from .evaluate import predict, score, warn_about_labels
from .files import check_folder, claim_folder, differences, read_table, versions_and_time, write_table
from .hooked import model_info
from .plan import Plan, plan, problem_of
from .pruners import Pruner, PruningProblem
from .selection import PruneOn
from .subnetwork import Subnetwork
from .tasks import Task


def find_core(
    model: Any,
    task: str | Task,
    sparsities: float | Iterable[float] | None = None,
    seeds: int | Iterable[int] = 12,
    pruner: str | Pruner = "hard-concrete",
    preset: Literal["fast", "paper"] = "fast",
    prune_on: PruneOn | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device | None = None,
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
        pruner: `hard-concrete` (the paper's), `importance` (the lottery paper's three phases), `one-shot-importance`,
            `random`, or a pruner of your own.
        preset: `fast` (minutes on two cores) or `paper` (exactly the published procedure), for a pruner given by name.
        prune_on: the split whose predictions masks must reproduce: None for the in-domain training data; a name, a
            list of names, or name -> share of a mixture.
        out: folder to write the run to. An interrupted run continues where it stopped when it is called again.
        data_dir: where the task's files are; None loads them from the hub.
        device: where to run; CUDA where there is one, else the CPU.
        **options: the rarer settings of `plan`: tokenizer, label_map, units, ablation, positions, splits,
            max_examples, mean_examples, batch_size, dtype, autocast.

    Returns:
        The `Core`.

    Raises:
        CoreLensError: something about the model, the data or the settings is wrong; the message says what to change.
    """
    folder = None if out is None else check_folder(out)
    job = plan(
        model,
        task,
        sparsities,
        seeds,
        pruner,
        preset,
        prune_on=prune_on,
        data_dir=data_dir,
        device=device,
        **options,
    )
    if folder is not None:
        claim_folder(folder, "plan.json", job.config)
    tqdm.write(str(job), file=sys.stderr)

    full = predict(job.model, job.task, job.reported, job.order, None, job.batch_size, job.encoded)
    warn_about_labels(full, job.task, model_info(job.model).id2label, job.order)
    problem = problem_of(job)
    subnetworks: list[Subnetwork] = []
    predictions = {"full": full}
    for sparsity, seed in tqdm(job.runs, desc="subnetworks", unit="run"):
        subnetwork, predicted = _run(job, problem, sparsity, seed, folder)
        subnetworks.append(subnetwork)
        predictions[subnetwork.name] = predicted

    core = Core(tuple(subnetworks), _tabulate(job.task, subnetworks, predictions), predictions, {**_origin(job)})
    core = replace(core, notes=tuple(notes_on(subnetworks)), model=job.model, data=job.task)
    if folder is not None:
        core.save(folder)
    return core


def _run(
    job: Plan, problem: PruningProblem, sparsity: float, seed: int, folder: Path | None
) -> tuple[Subnetwork, pd.DataFrame]:
    """One subnetwork and its predictions, read from the folder where they are there already."""
    name = f"{sparsity:g}-seed{seed}"
    files = folder and (folder / "subnetworks" / f"{name}.safetensors", folder / "predictions" / f"{name}.parquet")
    if files and files[0].is_file() and files[1].is_file():
        there = Subnetwork.load(files[0])
        there.check(job.model)
        expected = {**job.config, "pruner": job.pruner.name}
        different = [k for k in differences(there.provenance, expected) if k in expected]
        if different:
            raise SavedFileError(f"{files[0]} is of another run (it differs in {', '.join(different)}): delete it.")
        return there, read_table(files[1])
    result = job.pruner.prune(problem, sparsity, seed)
    origin = _origin(job) | {
        "pruner": job.pruner.name,
        "pruner_config": dict(job.pruner.config()),
        "asked_sparsity": sparsity,
        "seed": seed,
        "passes": result.passes,
        "history": result.history.to_dict("list"),
    }
    subnetwork = Subnetwork(job.units, result.mask, problem.replacement, result.scores, origin)
    predicted = predict(job.model, job.task, job.reported, job.order, subnetwork, job.batch_size, job.encoded)
    if files:
        subnetwork.save(files[0])
        write_table(files[1], predicted)
    return subnetwork, predicted


def _tabulate(task: Task, subnetworks: Sequence[Subnetwork], predictions: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    full = predictions["full"]
    tables = [score(full, task).assign(subnetwork="full", sparsity=0.0, seed=-1)]
    for s in tqdm(subnetworks, desc="intervals", unit="run", leave=False):
        rows = score(predictions[s.name], task, teacher=full)
        tables.append(rows.assign(subnetwork=s.name, sparsity=s.asked_sparsity, seed=s.seed))
    table = pd.concat(tables, ignore_index=True)
    first = ["subnetwork", "sparsity", "seed"]
    return table[[*first, *(c for c in table.columns if c not in first)]]


def _origin(job: Plan) -> dict[str, Any]:
    return {**job.config, **versions_and_time()}
