"""Many runs at once: models or checkpoints, tasks, pruners, sparsities and seeds, through any executor.

    with core_lens.LocalWorkers(4) as workers:
        sweep = core_lens.sweep(["runs/tuned/step-500", "runs/tuned/step-1000"], ["mnli"], "runs/sweep", executor=workers)

Every combination of model, task and pruner is a run of `find_core` in a folder of its own, named by what it is of and a key of
its configuration, weights and data. What is finished is not done again; another configuration gets another folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from tqdm.auto import tqdm

from .core import Core
from .errors import CoreLensError, SavedFileError
from .files import check_folder, differences, read_json, write_json
from .plan import Plan, data_of, plan, seed_numbers
from .pruners import Pruner
from .run_folder import ask_for, is_done, status
from .runs import Order, carry_out, full_predictions, name_of, prepared, report_failures, whole_name, work
from .tasks import Task
from .workers import call_each, check_executor

ABOUT = "sweep.json"
"""What a run's folder is of: model, task, pruner."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep found.

    Args:
        runs: DataFrame (folder, model, task, pruner), a row per combination.
        cores: folder name -> its `Core`.
    """

    runs: pd.DataFrame
    cores: Mapping[str, Core]

    def table(self) -> pd.DataFrame:
        """The evaluations of all: folder, model, task, pruner, then the columns of `core.evaluation`."""
        parts = [core.evaluation.assign(folder=name) for name, core in self.cores.items()]
        return self.runs.merge(pd.concat(parts, ignore_index=True), on="folder")

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """Read all finished runs of a sweep's folder.

        Raises:
            SavedFileError: none is finished, or one is damaged.
        """
        return cls._read([place for place in _places(Path(folder)) if (place / "run.json").is_file()], folder)

    @classmethod
    def _read(cls, places: Sequence[Path], folder: str | Path) -> Sweep:
        if not places:
            raise SavedFileError(f"{folder} has no finished run of a sweep: run the same command again.")
        rows = [{"folder": place.name, **read_json(place / ABOUT)} for place in places]
        return cls(pd.DataFrame(rows), {place.name: Core.load(place) for place in places})

    def __repr__(self) -> str:
        shown = self.runs.assign(
            subnetworks=[len(core.subnetworks) for core in self.cores.values()],
            core=[", ".join(map(str, core.heads)) or "none" for core in self.cores.values()],
        )
        return f"Sweep of {len(self.runs)} runs\n{shown.to_string(index=False)}"


def sweep(
    models: Sequence[str | Path],
    tasks: Sequence[str | Task],
    out: str | Path,
    *,
    pruners: Sequence[str | Pruner | None] = (None,),
    sparsities: float | Iterable[float] | None = None,
    seeds: int | Iterable[int] = 12,
    preset: Literal["fast", "paper"] = "fast",
    executor: Executor | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> Sweep:
    """Find the core of every model on every task with every pruner.

    Calling it again with the same folder continues, whatever it was interrupted by; several may share a folder.

    Args:
        models: a list of hub ids or folders (checkpoints of one fine-tuning, say).
        tasks: a list of names or `Task`s.
        out: folder; every combination has a folder of its own there, as `find_core` writes it.
        pruners: a list of names or pruners of your own; None among them is the preset's.
        sparsities, seeds, preset, device: as in `find_core`.
        executor: makes the runs elsewhere, as in `find_core`; in this process by default.
        data_dir: where the tasks' files are, in a folder for each where there are several.
        **options: as in `find_core`.

    Raises:
        CoreLensError: something is wrong with a model, a task or a setting, before any run is begun; or runs failed, and all
            others are kept.
    """
    check_executor(executor)
    for name, given in (("models", models), ("tasks", tasks), ("pruners", pruners)):
        if not isinstance(given, list | tuple) or not given:
            raise CoreLensError(f"{name}={given!r}: give a list of at least one.")
    allowed = set(signature(plan).parameters) - {"model", "task", "pruner"}
    if strange := [name for name in options if name not in allowed]:
        raise CoreLensError(
            f"sweep knows no setting {strange[0]!r}: it takes models, tasks, pruners and {', '.join(allowed)}."
        )
    if bad := [model for model in models if not isinstance(model, str | Path)]:
        raise CoreLensError(
            f"models: {type(bad[0]).__name__} is no hub id or folder: save the model, and name its folder."
        )
    folder = check_folder(out).resolve()
    seed_list = seed_numbers(seeds)
    share_list = (
        list(sparsities) if isinstance(sparsities, Iterable) and not isinstance(sparsities, str) else sparsities
    )
    orders: list[Order] = []
    waiting: list[tuple[Order, float, int]] = []
    total = 0
    with tqdm(total=len(models) * len(tasks) * len(pruners), desc="checks", unit="run", leave=False) as bar:
        for model, task, pruner in product(models, tasks, pruners):
            settings = {
                "task": task, "sparsities": share_list, "seeds": seed_list, "pruner": pruner, "preset": preset,
                "data_dir": data_of(data_dir, task, len(tasks) > 1), "device": device, **options,
            }  # fmt: skip
            job = plan(str(model), **settings)
            place = _place(folder, whole_name(model), job)
            order = Order.of(model, settings, place, folder / "shared", job.config)
            if place in [other.folder for other in orders]:
                raise CoreLensError(
                    f"{model} with {job.task.name} and {job.pruner.name} is in the sweep twice: name each once."
                )
            orders.append(order)
            total += len(job.runs)
            waiting += [(order, *run) for run in job.runs if not is_done(place, name_of(*run))]
            ask_for(place, [name_of(*run) for run in job.runs])
            bar.update()
    tqdm.write(f"{len(waiting)} runs to make, {total - len(waiting)} are there, in {folder}", file=sys.stderr)
    failed = {}
    if executor is not None:
        by_model: dict[str, list[Order]] = {}
        for order in dict.fromkeys(order for order, *_ in waiting):
            by_model.setdefault(order.model, []).append(order)
        for parts, _, error in call_each(
            executor, prepare, [tuple(part) for part in by_model.values()], "models", "model"
        ):
            if error is not None:
                failed |= {order.folder.name: error for order in parts}
        waiting = [item for item in waiting if item[0].folder.name not in failed]
        for (order, *run), _, error in call_each(executor, work, waiting, "subnetworks"):
            if error is not None:
                failed[f"{order.folder.name}/{name_of(*run)}"] = error
    for order in tqdm(orders, desc="models", unit="model"):
        if executor is None or not [name for name in failed if name.split("/")[0] == order.folder.name]:
            try:
                carry_out(prepared(order)[0], order.folder, None, order).save(order.folder)
            except SavedFileError:
                raise
            except Exception as error:
                failed[order.folder.name] = error
    report_failures(failed, total, folder)
    return Sweep._read([order.folder for order in orders], folder)


def prepare(*orders: Order) -> None:
    """What the runs of a model share, put into the cache: one after the other, so that nothing is computed twice."""
    for order in orders:
        job, _ = prepared(order)
        full_predictions(job, order.folder)


def sweep_status(folder: str | Path) -> pd.DataFrame:
    """How far a sweep, or a run of `find_core`, is, also while it goes on.

    Returns:
        DataFrame (folder, run, state, seconds, host, time, error); the states are `done`, `failed`, `begun` (going on, or
        interrupted) and `waiting`.

    Raises:
        SavedFileError: the folder is neither.
    """
    root = Path(folder) if isinstance(folder, str | Path) else Path(repr(folder))
    places = [root] if (root / "plan.json").is_file() or (root / "run.json").is_file() else _places(root)
    if not places:
        raise SavedFileError(f"{root} is no run, and no sweep: check the path.")
    return pd.concat([status(place).assign(folder=place.name) for place in places], ignore_index=True)[
        ["folder", "run", "state", "seconds", "host", "time", "error"]
    ]


def _place(folder: Path, model: str, job: Plan) -> Path:
    """The folder of a combination, claimed; folders of other configurations of the same model, task and pruner are told of."""
    about = {"model": model, "task": job.task.name, "pruner": job.pruner.name}
    digest = hashlib.sha256(json.dumps(job.config, sort_keys=True).encode()).hexdigest()
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in about.values())
    place = check_folder(folder / f"{name[-80:].lstrip('-.')}-{digest[:12]}")
    is_new = not (place / ABOUT).is_file()
    write_json(place / ABOUT, about)
    for other in _places(folder) if is_new else []:
        with suppress(SavedFileError):  # this is but a notice
            if other != place and read_json(other / ABOUT) == about and (other / "plan.json").is_file():
                changed = differences(read_json(other / "plan.json"), job.config)
                tqdm.write(f"{place.name} is new: {other.name} has another {', '.join(changed)}", file=sys.stderr)
    # The folder's name has the configuration's key: whatever else plan.json says, it is damaged.
    try:
        whole = not differences(read_json(place / "plan.json"), job.config)
    except SavedFileError:
        whole = False
    if not whole:
        write_json(place / "plan.json", dict(job.config))
    return place


def _places(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/{ABOUT}"))
