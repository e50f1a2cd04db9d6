"""The runs of `find_core`, here or in other processes, and what of them is kept in a folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from .core import Core, notes_on
from .errors import CoreLensError, PruningError, SavedFileError
from .evaluate import predict, score, warn_about_labels
from .files import differences, versions_and_time
from .hooked import model_info, shipped
from .plan import Plan, plan, problem_of
from .pruners import PruningProblem
from .run_folder import FULL, ask_for, is_done, log, note_failure, read_result, write_result
from .subnetwork import Subnetwork
from .tasks import Task
from .workers import call_each

_ONE = threading.Lock()
"""Hooks of a model know one run at a time: threads of one process wait for each other."""
_KEPT: dict[str, tuple[Plan, PruningProblem]] = {}


@dataclass(frozen=True, eq=False)
class Order:
    """What another process needs to know to make runs of one configuration; it can be pickled.

    Args:
        model: hub id or folder.
        settings: of `plan`, the task and the pruner among them.
        folder: of the runs, absolute, where that process finds it too.
        cache: as in `problem_of`.
        config: of the plan that gave the order.
    """

    model: str
    settings: Mapping[str, Any]
    folder: Path
    cache: Path
    config: Mapping[str, Any]

    @classmethod
    def of(
        cls, model: str | Path, settings: Mapping[str, Any], folder: Path, cache: Path, config: Mapping[str, Any]
    ) -> Order:
        """With whole paths, as the other process may be in another folder."""
        whole = {
            name: str(Path(value).resolve()) if isinstance(value, str | Path) and Path(value).exists() else value
            for name, value in settings.items()
            if name in ("data_dir", "tokenizer")
        }
        return cls(whole_name(model), {**settings, **whole}, folder, cache, config)


def whole_name(model: str | Path) -> str:
    """A model's name that is good in every folder: the whole path of a folder, and any other name as it is."""
    is_folder = shipped(model) == model and Path(model).is_dir()
    return str(Path(model).resolve()) if is_folder else str(model)


def carry_out(job: Plan, folder: Path | None, executor: Executor | None = None, order: Order | None = None) -> Core:
    """All runs of a plan, those left out that the folder has already.

    Raises:
        CoreLensError: runs failed; the folder keeps the others.
    """
    cache = None if folder is None else (folder / "shared" if order is None else order.cache)
    names = {name_of(*run): run for run in job.runs}
    if folder is not None:
        ask_for(folder, list(names))
    full = full_predictions(job, folder)
    warn_about_labels(full, job.task, model_info(job.model).id2label, job.order)
    problem = problem_of(job, cache)
    found: dict[str, tuple[Subnetwork | None, pd.DataFrame]] = {}
    failed: dict[str, BaseException] = {}
    if executor is None:
        for name, run in tqdm(names.items(), desc="subnetworks", unit="run"):
            try:
                found[name] = perform(job, problem, *run, folder)
            except Exception as error:
                if folder is None:
                    raise
                failed[name] = error
    else:
        assert folder is not None and order is not None
        todo = [(order, *run) for name, run in names.items() if not is_done(folder, name)]
        for (_, *run), _, error in call_each(executor, work, todo, "subnetworks"):
            if error is not None:
                failed[name_of(*run)] = error
        found = {name: _checked(job, folder, name) for name in names if name not in failed}
    report_failures(failed, len(names), folder)
    subnetworks = [one for one, _ in found.values() if one is not None]
    predictions = {FULL: full, **{name: table for name, (_, table) in found.items()}}
    core = Core(tuple(subnetworks), _tabulate(job.task, subnetworks, predictions), predictions, {**_origin(job)})
    return replace(core, notes=tuple(notes_on(subnetworks)), model=job.model, data=job.task)


def report_failures(failed: Mapping[str, BaseException], n: int, folder: Path | None) -> None:
    """Raise a PruningError that tells of failed runs, if there are any."""
    if failed:
        name, error = next(iter(failed.items()))
        reason = str(error).strip() or "no reason given (has its scheduler gone?)"
        raise PruningError(
            f"{len(failed)} of {n} runs failed ({', '.join(list(failed)[:5])}), {name} with {type(error).__name__}: "
            f"{reason.splitlines()[0]}; the others are in {folder}, logs in runs/ there, and the same call makes the "
            "failed ones again."
        ) from error


def full_predictions(job: Plan, folder: Path | None) -> pd.DataFrame:
    """The model's own predictions, from the folder where they are there."""
    if folder is not None and is_done(folder, FULL):
        return read_result(folder, FULL)[1]
    found = predict(job.model, job.task, job.reported, job.order, None, job.batch_size, job.encoded)
    if folder is not None:
        write_result(folder, FULL, None, found)
    return found


def perform(
    job: Plan, problem: PruningProblem, sparsity: float, seed: int, folder: Path | None
) -> tuple[Subnetwork | None, pd.DataFrame]:
    """One subnetwork and its predictions, read from the folder where they are there already."""
    name = name_of(sparsity, seed)
    if folder is not None and is_done(folder, name):
        return _checked(job, folder, name)
    try:
        start = time.monotonic()
        if folder is not None:
            log(folder, name, "begun")
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
        if folder is not None:
            seconds = time.monotonic() - start
            write_result(folder, name, subnetwork, predicted, seconds)
            log(folder, name, f"finished in {seconds:.1f} s, {result.passes} passes")
    except Exception as error:
        if folder is not None:
            note_failure(folder, name, error)
        raise
    return subnetwork, predicted


def work(order: Order, sparsity: float, seed: int) -> None:
    """One run in whatever process this is; what it gives is in the folder."""
    with _ONE:
        try:
            job, problem = prepared(order)
        except Exception as error:
            note_failure(order.folder, name_of(sparsity, seed), error)
            raise
        perform(job, problem, sparsity, seed, order.folder)


def prepared(order: Order) -> tuple[Plan, PruningProblem]:
    """The plan and the problem of an order; those of the last one are kept."""
    asked = [
        str(order.settings.get(name)) for name in ("sparsities", "seeds", "batch_size")
    ]  # not in the configuration
    key = json.dumps([order.model, str(order.folder), order.config, asked], sort_keys=True)
    if key not in _KEPT:
        _KEPT.clear()
        _KEPT[key] = _prepare(order)
    return _KEPT[key]


def _prepare(order: Order) -> tuple[Plan, PruningProblem]:
    job = plan(order.model, **order.settings)
    if different := differences(order.config, job.config):
        raise CoreLensError(
            f"a worker finds another {', '.join(different)} than the process that sent it: give it the same files and versions."
        )
    return job, problem_of(job, order.cache)


def name_of(sparsity: float, seed: int) -> str:
    """What files of a run are called."""
    return f"{sparsity:g}-seed{seed}"


def _checked(job: Plan, folder: Path, name: str) -> tuple[Subnetwork | None, pd.DataFrame]:
    """A run that is there, if it is of this plan."""
    there, table = read_result(folder, name)
    assert there is not None
    there.check(job.model)
    if there.name != name:
        raise SavedFileError(f"the file of {name} in {folder} holds {there.name}: delete it.")
    expected = {**job.config, "pruner": job.pruner.name}
    different = [k for k in differences(there.provenance, expected) if k in expected]
    if different:
        raise SavedFileError(f"{name} in {folder} is of another run (it differs in {', '.join(different)}): delete it.")
    return there, table


def _tabulate(task: Task, subnetworks: Sequence[Subnetwork], predictions: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    full = predictions[FULL]
    tables = [score(full, task).assign(subnetwork=FULL, sparsity=0.0, seed=-1)]
    for s in tqdm(subnetworks, desc="intervals", unit="run", leave=False):
        rows = score(predictions[s.name], task, teacher=full)
        tables.append(rows.assign(subnetwork=s.name, sparsity=s.asked_sparsity, seed=s.seed))
    table = pd.concat(tables, ignore_index=True)
    first = ["subnetwork", "sparsity", "seed"]
    return table[[*first, *(c for c in table.columns if c not in first)]]


def _origin(job: Plan) -> dict[str, Any]:
    return {**job.config, **versions_and_time()}
