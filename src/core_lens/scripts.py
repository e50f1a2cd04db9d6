"""What the scripts in `analyses/` have in common: their arguments, and one run that several of them read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from . import lab
from .api import find_core
from .core import Core
from .errors import CoreLensError, TaskError
from .hooked import load_model
from .illusions import Illusions, illusions
from .lottery import Lottery, lottery
from .pruners import HardConcretePruner, LinearizedPruner, named_pruner
from .tasks import Role, Task, load_task


def arguments(doc: str | None, omit: Sequence[str] = (), **more: Any) -> argparse.Namespace:
    """Read the command line of a script on one model.

        args = scripts.arguments(__doc__, seeds=3, pretrained=None)

    Args:
        doc: the script's docstring.
        omit: arguments below that mean nothing to the script.
        **more: other defaults for the arguments below, and the script's own arguments with theirs; a default that is a
            number takes such a number, a tuple takes several words.
    """
    omit = [*omit, *(["passes"] if "preset" in omit else [])]
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="lab", help="hub id, local folder, or a model of the package")

    def add(name: str, **options: Any) -> None:
        if name[2:].replace("-", "_") not in omit:
            parser.add_argument(name, **options)

    add("--task", default="lab")
    add("--data-dir", help="the task's files, instead of the hub's")
    add("--label-map", type=json.loads, help='like {"LABEL_0": "entailment", ...}, where the checkpoint has no names')
    add("--run", default="runs/{model}", help="folder; what is finished there is read, whatever settings are given")
    add("--sparsities", type=float, nargs="+", help="shares of units to remove (the paper's)")
    add("--seeds", type=int, default=5, help="how many (the paper: 12)")
    add("--preset", default="fast", choices=("fast", "paper"))
    add("--passes", type=int, help="that the fast preset's pruner spends on each subnetwork (12,000)")
    add(
        "--steps",
        type=int,
        help="of a training that is begun (the default's), or of the hard-concrete pruner, which is then taken",
    )
    add("--splits", nargs="+", help="what to show (all in- and out-of-domain splits)")
    add("--max-examples", type=int, default=500, help="of each split")
    add("--picture", help="file to draw the figure to: .png, .svg or .pdf")
    known = vars(parser.parse_args([]))
    for name, default in more.items():
        if name not in known:
            kind = type(default) if isinstance(default, int | float) else str
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=kind, nargs="+" if isinstance(default, tuple) else None
            )
    parser.set_defaults(**more)
    args = parser.parse_args()
    place = Path(args.model)
    name = f"{place.parent.name}-{place.name}" if place.name.startswith("step-") else place.name
    args.run = Path(args.run.format(model=name))
    return args


def load(args: argparse.Namespace) -> tuple[TransformerBridge, Task]:
    """The model and the task that `arguments` names.

    Raises:
        CoreLensError: they cannot be loaded, or the task has numbers to predict, and so no accuracy.
    """
    task = load_task(args.task, args.data_dir)
    if task.is_regression:
        raise TaskError(f"task {task.name!r} has numbers for labels: the paper's figures are of accuracies.")
    return load_model(args.model, label_map=args.label_map), task


def shown(args: argparse.Namespace, task: Task, *roles: Role) -> list[str]:
    """Names of the splits that `--splits` asks for, else of all with one of the roles.

    Raises:
        TaskError: there is no such split, or none with these roles.
    """
    if args.splits:
        return list(dict.fromkeys(task.split(name).name for name in args.splits))
    found = [split.name for split in task.with_role(*roles)]
    if roles and not found:
        raise TaskError(
            f"task {task.name!r} has no split of role {' or '.join(roles)}: name what to show with --splits."
        )
    return found


def find_run(args: argparse.Namespace, model: TransformerBridge, task: Task, splits: Sequence[str] = ()) -> Core:
    """The run in the folder `args.run`; made there (or continued) where it is not finished.

    Args:
        args: from `arguments`.
        model, task: from `load`.
        splits: what is needed of it. A new run reports all in- and out-of-domain splits and their companions beside these.

    Raises:
        CoreLensError: the folder's run is of another model or task or without those splits, or as `find_core`.
    """
    if (args.run / "run.json").is_file():
        core = Core.load(args.run)
        core.subnetworks[0].check(model)
        if core.provenance.get("task") != task.name:
            raise CoreLensError(
                f"{args.run} is of task {core.provenance.get('task')!r}: name another folder with --run."
            )
        there = list(dict.fromkeys(core.evaluation["split"]))
        if missing := [name for name in splits if name not in there]:
            raise CoreLensError(
                f"the run in {args.run} reports no {missing[0]}, only {', '.join(there)}: name another folder with --run."
            )
        print(f"{args.run} is read: {len(core.subnetworks)} subnetworks, sparsities {core.sparsities}", file=sys.stderr)
        return core
    pruner = named_pruner(None, args.preset)
    if isinstance(pruner, LinearizedPruner) and args.passes is not None:
        pruner = replace(pruner, passes=args.passes)
    if args.steps is not None:
        pruner = replace(cast(HardConcretePruner, named_pruner("hard-concrete", args.preset)), steps=args.steps)
    reported = [split.name for split in task.select()]
    rest = {"splits": [*reported, *splits], "max_examples": args.max_examples, "out": args.run}
    return find_core(model, task, args.sparsities, args.seeds, pruner, args.preset, **rest)


def find_lottery(args: argparse.Namespace) -> Lottery:
    """The lottery study in the folder `args.run`; for the lab, a small one is made (or continued) there.

    Raises:
        CoreLensError: no study is there and the model is none of the lab's, or nothing of it is finished, or an unfinished one
            of the lab has other settings.
    """
    begun = [place for place in args.run.glob("*/seed-*") if not (place / "scores.parquet").is_file()]
    if args.model == "lab" and (begun or not (args.run / "lottery.json").is_file()):
        settings = {"steps": args.steps or 500, "learning_rate": 4e-4}
        return lottery(
            "lab-pretrained", ["lab"], args.run, seeds=args.seeds, max_examples=args.max_examples, **settings
        )
    study = Lottery.load(args.run)
    seeds = max(map(len, study.good.values()))
    print(f"{args.run} is read: {', '.join(study.good)}, {seeds} seeds", file=sys.stderr)
    return study


def find_illusions(args: argparse.Namespace, what: str, **settings: Any) -> Illusions:
    """The study of simplified models in the folder `args.run`; made there (or continued) where it is not finished.

    Args:
        args: from `arguments`.
        what: `dyck`, `code` or a task; a model of the same name is the study's own default.
        **settings: of `core_lens.illusions`.

    Raises:
        CoreLensError: as `core_lens.illusions`.
    """
    model = None if args.model == what else args.model
    if not Illusions.is_finished(args.run):
        return illusions(what, args.run, model=model, max_examples=args.max_examples, **settings)
    study = Illusions.load(args.run)
    asked = Path(model).resolve().name if model is not None and Path(model).is_dir() else model
    if study.what != what or (asked is not None and study.model != asked):
        raise CoreLensError(
            f"{args.run} is a study of {study.model} on {study.what}, not of {asked or what}: name another folder with --run."
        )
    print(f"{args.run} is read: {len(study.proxies)} simplified models of {study.model}", file=sys.stderr)
    return study


def checkpoints(model: str, every: int = 1) -> dict[int, Path]:
    """Step -> folder over a fine-tuning, first to last.

    Args:
        model: `lab`, or a folder of `step-<n>` folders as `finetune` leaves it.
        every: keep every so many of them, the last one always.

    Raises:
        CoreLensError: there are none.
    """
    if model == "lab":
        found = {step: lab.checkpoint(step) for step in lab.checkpoint_steps()}
    else:
        found = {int(folder.name[5:]): folder for folder in Path(model).glob("step-*") if folder.name[5:].isdigit()}
    if not found:
        raise CoreLensError(f"{model} has no step-<n> folders: pass lab, or a folder that core_lens.finetune wrote.")
    return {step: found[step] for step in sorted(sorted(found)[:: -max(every, 1)])}


def starred(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A table of ablations as in the paper, a row per ablation and a column per split.

    Args:
        table: from `ablation_table`.
        metric: `accuracy` gives the accuracy in percent; any other the drop in it.

    Returns:
        DataFrame of text; a star says that the drop's 95 % interval over examples is without 0.
    """
    rows = table[table["metric"] == metric]
    values = 100 * rows["value"] if metric == "accuracy" else rows["drop"]
    apart = (rows["drop_low"] > 0) | (rows["drop_high"] < 0)
    texts = [
        "" if pd.isna(value) else f"{value:.{1 if metric == 'accuracy' else 2}f}{'*' if is_apart else ' '}"
        for value, is_apart in zip(values, apart, strict=True)
    ]
    wide = rows.assign(text=texts).pivot(index="ablated", columns="split", values="text")
    return wide.loc[list(dict.fromkeys(rows["ablated"])), list(dict.fromkeys(rows["split"]))]
