"""`core-lens`: arguments in, calls out."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from .api import find_core
from .core import Core
from .errors import CoreLensError, CoreLensWarning
from .evaluate import evaluate
from .files import check_folder
from .finetune import finetune
from .hooked import load_model
from .illusions import K_MEANS, illusions
from .lottery import lottery
from .plan import plan
from .pruners import PRUNERS
from .report import write_report
from .report.findings import model_of_run
from .subnetwork import Subnetwork
from .sweep import sweep, sweep_status
from .tasks import load_task
from .tasks.glue import CORPORA
from .workers import LocalWorkers, dask_executor

_DESCRIPTION = "Find the subnetworks of a fine-tuned transformer, the heuristic core they share, and what it does."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, 1 for a mistake (one sentence on stderr), 130 when interrupted."""
    arguments = _parser().parse_args(argv)
    warnings.showwarning = _one_line
    try:
        arguments.run(arguments)
    except CoreLensError as error:
        print(f"core-lens: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("core-lens: interrupted; the same command with the same --out continues.", file=sys.stderr)
        return 130
    return 0


def _one_line(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, CoreLensWarning):
        print(f"warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="core-lens", description=_DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    find = _command(commands, "find-core", "find many subnetworks of a model and what they share", _find_core)
    _model_and_task(find)
    find.add_argument("--sparsity", type=float, nargs="+", metavar="S", help="shares of units to remove (the paper's)")
    find.add_argument("--seeds", type=int, nargs="+", default=[12], metavar="N", help="how many, or two or more seeds")
    find.add_argument("--pruner", choices=PRUNERS, help="(the preset's: linearized, or for paper hard-concrete)")
    find.add_argument(
        "--preset", default="fast", choices=("fast", "paper"), help="minutes, or exactly the published procedure"
    )
    find.add_argument("--prune-on", nargs="+", metavar="SPLIT", help="splits to select masks on (the training split)")
    find.add_argument("--units", nargs="+", default=["head", "mlp"], choices=("head", "mlp"))
    find.add_argument("--ablation", default="mean", choices=("mean", "zero", "resample"))
    find.add_argument(
        "--positions", default="all", choices=("all", "not_first"), help="tokens that means are taken over"
    )
    find.add_argument("--autocast", action="store_true", help="prune with bfloat16 forward passes")
    find.add_argument("--out", type=Path, metavar="FOLDER", help="write the run here; continues an interrupted one")
    _executors(find)
    find.add_argument("--dry-run", action="store_true", help="check everything, say what would be done, and stop")

    many = _command(commands, "sweep", "find-core for every model, task and pruner, on many processes", _sweep)
    many.add_argument(
        "models", nargs="+", help="hub ids or local folders, such as the checkpoints of a fine-tuning; lab"
    )
    many.add_argument("--task", nargs="+", required=True, metavar="TASK", help=f"of {', '.join([*CORPORA, 'lab'])}")
    many.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder for each; continues a sweep")
    many.add_argument(
        "--pruner", nargs="+", choices=PRUNERS, help="(the preset's: linearized, or for paper hard-concrete)"
    )
    many.add_argument(
        "--preset", default="fast", choices=("fast", "paper"), help="minutes, or exactly the published procedure"
    )
    many.add_argument("--sparsity", type=float, nargs="+", metavar="S", help="shares of units to remove (the paper's)")
    many.add_argument("--seeds", type=int, nargs="+", default=[12], metavar="N", help="how many, or two or more seeds")
    many.add_argument("--splits", nargs="+", metavar="SPLIT", help="to report (all in- and out-of-domain splits)")
    many.add_argument("--max-examples", type=_whole_or_all, default=1000, metavar="N", help="per split, or 'all'")
    many.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the tasks' files, a folder for each task")
    many.add_argument("--label-map", type=_json, metavar="JSON", help='like {"LABEL_0": "entailment", ...}')
    many.add_argument("--tokenizer", metavar="PATH", help="where the tokenizer is, if not beside the models")
    many.add_argument("--device", help="cpu, cuda, mps (the best there is)")
    _executors(many)

    how = _command(commands, "status", "how far a run or a sweep is, also while it goes on", _status)
    how.add_argument("folder", type=Path)

    score = _command(commands, "evaluate", "score a model, or one of its subnetworks, in and out of domain", _evaluate)
    _model_and_task(score)
    score.add_argument("--subnetwork", type=Path, metavar="FILE", help="a subnetwork of a run (.safetensors)")
    score.add_argument("--out", type=Path, metavar="FILE", help="write the table here (.csv or .parquet)")

    tune = _command(commands, "finetune", "fine-tune a classifier with checkpoints and evaluations", _finetune)
    _model_and_task(tune)
    tune.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    tune.add_argument("--steps", type=int, help="optimiser steps (the paper's; 3 epochs for other tasks)")
    tune.add_argument("--batch-size", type=int, help="(32; 128 for qqp)")
    tune.add_argument("--learning-rate", type=float, default=2e-5)
    tune.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    tune.add_argument("--seed", type=int, default=42)
    tune.add_argument("--bf16", action="store_true", help="mixed precision")
    tune.add_argument("--freeze-word-embeddings", action="store_true")

    study = _command(commands, "lottery", "good, random and bad subnetworks over tasks, pruned and retrained", _lottery)
    study.add_argument("model", help="pretrained: hub id, local folder, or lab-pretrained")
    study.add_argument("--tasks", nargs="+", required=True, metavar="TASK", help=f"of {', '.join([*CORPORA, 'lab'])}")
    study.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="continues an interrupted study")
    study.add_argument("--seeds", type=int, default=5, help="how many of the paper's")
    study.add_argument("--ablation", default="zero", choices=("zero", "mean"))
    study.add_argument("--no-retrain", action="store_true", help="score tickets pruned only, in much less time")
    study.add_argument("--steps", type=int, help="optimiser steps of every fine-tuning (3 epochs)")
    study.add_argument("--batch-size", type=int, default=32)
    study.add_argument("--learning-rate", type=float, default=2e-5)
    study.add_argument("--bf16", action="store_true", help="mixed precision")
    study.add_argument("--freeze-word-embeddings", action="store_true")
    study.add_argument("--max-train", type=int, metavar="N", help="training examples (all)")
    study.add_argument("--max-examples", type=int, metavar="N", help="evaluation examples, of each half (all)")
    study.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the tasks' files, a folder for each task")
    study.add_argument("--device", help="cpu, cuda, mps (the best there is)")

    gap = _command(commands, "illusions", "simplified models in and out of distribution, at all strengths", _illusions)
    gap.add_argument("what", help=f"dyck, code, or a classifier's task: {', '.join([*CORPORA, 'lab'])}")
    gap.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="continues an interrupted study")
    gap.add_argument("--model", help="hub id or local folder (dyck: the package's; code: trained here; a task: lab)")
    gap.add_argument(
        "--run", dest="subnetworks", type=Path, metavar="RUN", help="take the subnetworks of this run of find-core"
    )
    gap.add_argument("--sparsity", type=float, nargs="+", metavar="S", help="else of those found (.3 .5 .7)")
    gap.add_argument("--seeds", type=int, help="subnetworks found per sparsity (2); 0 for none")
    gap.add_argument("--svd", type=int, nargs="+", metavar="K", help="ranks (powers of 2)")
    gap.add_argument("--k-means", type=int, nargs="+", default=K_MEANS, metavar="K", help="numbers of clusters")
    gap.add_argument("--max-examples", type=int, default=1000, metavar="N", help="examples or sequences of each split")
    gap.add_argument("--folder", type=Path, help="of source files to train on, for code (Python's standard library)")
    gap.add_argument(
        "--others", type=_named_folder, nargs="+", metavar="NAME=FOLDER", help="other source files (what is found here)"
    )
    gap.add_argument("--steps", type=int, help="of the training of the code model (4000)")
    gap.add_argument("--splits", nargs="+", metavar="SPLIT", help="of a task (all in- and out-of-domain splits)")
    gap.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the task's files, instead of the hub's")
    gap.add_argument("--tokenizer", metavar="PATH", help="where the tokenizer is, if not beside the model")
    gap.add_argument("--label-map", type=_json, metavar="JSON", help='like {"LABEL_0": "entailment", ...}')
    gap.add_argument("--device", help="cpu, cuda, mps (the best there is)")

    demo = _command(commands, "demo", "find the core of the model that comes with the package", _demo)
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER")
    demo.add_argument("--seeds", type=int, default=5, help="subnetworks per sparsity")
    demo.add_argument("--device")

    show = _command(commands, "show", "print the core and the tables of a saved run", _show)
    show.add_argument("folder", type=Path, metavar="RUN", help="folder of a saved run")

    smaller = _command(commands, "export", "write a subnetwork of a run as a smaller HF classifier", _export)
    smaller.add_argument("folder", type=Path, metavar="RUN", help="folder of a saved run")
    smaller.add_argument("--seed", type=int, required=True, help="of the subnetwork")
    smaller.add_argument("--sparsity", type=float, metavar="S", help="of the subnetwork (the run's, where it has one)")
    smaller.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="new: weights, configuration, tokenizer"
    )
    smaller.add_argument("--model", help="hub id or local folder (where the run says)")
    smaller.add_argument("--tokenizer", metavar="PATH", help="where the tokenizer is, if not beside the model")

    report = _command(commands, "report", "write a saved run as one HTML page", _report)
    report.add_argument("folder", type=Path, metavar="RUN", help="folder of a saved run")
    report.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE")
    report.add_argument("--model", help="hub id or local folder (where the run says)")
    report.add_argument("--task", help="name of the task (the run's)")
    report.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the task's files, instead of the hub's")
    report.add_argument("--tokenizer", metavar="PATH", help="where the tokenizer is, if not beside the model")
    report.add_argument(
        "--others", type=Path, nargs="+", default=[], metavar="RUN", help="runs of the model under other settings"
    )
    report.add_argument(
        "--max-examples", type=_whole_or_all, default=50, metavar="N", help="per split, for ablations, or 'all'"
    )
    report.add_argument("--device", help="cpu, cuda, mps (the best there is)")
    return parser


def _command(commands: Any, name: str, text: str, run: Callable[[Any], None]) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def _model_and_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="hub id, local folder, or lab / lab-gpt2")
    parser.add_argument("--task", required=True, help=f"one of {', '.join([*CORPORA, 'lab'])}")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the task's files, instead of the hub's")
    parser.add_argument("--tokenizer", metavar="PATH", help="where the tokenizer is, if not beside the model")
    parser.add_argument("--label-map", type=_json, metavar="JSON", help='like {"LABEL_0": "entailment", ...}')
    parser.add_argument(
        "--splits", nargs="+", metavar="SPLIT", help="what to report (all in- and out-of-domain splits)"
    )
    parser.add_argument("--max-examples", type=_whole_or_all, default=1000, metavar="N", help="per split, or 'all'")
    parser.add_argument("--device", help="cpu, cuda, mps (the best there is)")


def _executors(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="make the runs in N processes of this machine")
    where.add_argument("--dask", metavar="ADDRESS", help="make them on a Dask cluster, like tcp://host:8786")


@contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    """What `--workers` or `--dask` asks for."""
    if args.workers is not None:
        with LocalWorkers(args.workers) as workers:
            yield workers
    elif args.dask is not None:
        with dask_executor(args.dask) as executor:
            yield executor
    else:
        yield None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is not JSON; write it like {{"LABEL_0": "entailment"}}') from None


def _named_folder(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is no name and folder: write it like Java=src/java")
    return name, Path(folder)


def _whole_or_all(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of at least 1 nor 'all'")
    return int(text)


def _find_core(args: argparse.Namespace) -> None:
    settings = {
        "sparsities": args.sparsity,
        "seeds": args.seeds[0] if len(args.seeds) == 1 else args.seeds,
        "pruner": args.pruner,
        "preset": args.preset,
        "prune_on": args.prune_on,
        "data_dir": args.data_dir,
        "device": args.device,
        "tokenizer": args.tokenizer,
        "label_map": args.label_map,
        "units": args.units,
        "ablation": args.ablation,
        "positions": args.positions,
        "splits": args.splits,
        "max_examples": args.max_examples,
        "autocast": args.autocast,
    }
    if args.dry_run:
        print(plan(args.model, args.task, **settings))
        return
    with _executor(args) as executor:
        core = find_core(args.model, args.task, out=args.out, executor=executor, **settings)
    _print(core, args.out)


def _sweep(args: argparse.Namespace) -> None:
    with _executor(args) as executor:
        found = sweep(
            args.models, args.task, args.out, pruners=args.pruner or [None], preset=args.preset, sparsities=args.sparsity,
            seeds=args.seeds[0] if len(args.seeds) == 1 else args.seeds, splits=args.splits, executor=executor,
            max_examples=args.max_examples, data_dir=args.data_dir, label_map=args.label_map, tokenizer=args.tokenizer,
            device=args.device,
        )  # fmt: skip
    print(found)
    print(f"\nevery folder in {args.out} is a run; read all of them again with core_lens.Sweep.load({str(args.out)!r})")


def _status(args: argparse.Namespace) -> None:
    table = sweep_status(args.folder)
    if table.empty:
        raise CoreLensError(
            f"{args.folder} has no records of runs (runs/ is empty): core-lens show tells what it holds."
        )
    counts = table.groupby("folder", sort=False)["state"].value_counts().unstack(fill_value=0)
    order = [state for state in ("done", "failed", "damaged", "begun", "waiting") if state in counts]
    print(counts[order].assign(minutes=table.groupby("folder")["seconds"].mean() / 60).to_string(float_format=_three))
    for row in table[table["state"] == "failed"].itertuples():
        print(f"failed: {row.folder}/{row.run} on {row.host} at {row.time}: {row.error}")


def _evaluate(args: argparse.Namespace) -> None:
    if args.out is not None and args.out.suffix not in (".csv", ".parquet"):
        raise CoreLensError(f"--out {args.out}: the name must end in .csv or .parquet.")
    table = evaluate(
        args.model,
        load_task(args.task, args.data_dir),
        None if args.subnetwork is None else Subnetwork.load(args.subnetwork),
        args.splits,
        tokenizer=args.tokenizer,
        label_map=args.label_map,
        max_examples=args.max_examples,
        device=args.device,
    )
    if args.out is not None:
        _write(table, args.out)
    print(table.to_string(index=False, float_format=_three))


def _write(table: pd.DataFrame, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path, index=False)
    except OSError as error:
        raise CoreLensError(f"cannot write {path}: {error.strerror or error}.") from error


def _finetune(args: argparse.Namespace) -> None:
    made = finetune(
        args.model,
        load_task(args.task, args.data_dir),
        args.out,
        tokenizer=args.tokenizer,
        steps=args.steps,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        every=args.every,
        seed=args.seed,
        bf16=args.bf16,
        freeze_word_embeddings=args.freeze_word_embeddings,
        splits=args.splits,
        max_examples=args.max_examples,
        device=args.device,
    )
    whole = made.curve[made.curve["group"] == "all"]
    print(whole.pivot(index="step", columns=["split", "metric"], values="value").to_string(float_format=_three))
    print(f"\nthe last checkpoint is {made.final}")


def _lottery(a: Any) -> None:
    result = lottery(
        a.model, a.tasks, a.out, seeds=a.seeds, ablation=a.ablation, retrain=not a.no_retrain, max_train=a.max_train,
        max_examples=a.max_examples, data_dir=a.data_dir, device=a.device, steps=a.steps, batch_size=a.batch_size,
        learning_rate=a.learning_rate, bf16=a.bf16, freeze_word_embeddings=a.freeze_word_embeddings,
    )  # fmt: skip
    print(result)
    kept = result.sizes.groupby("task", sort=False).mean(numeric_only=True).drop(columns="seed")
    shown = {"kept by the good tickets": kept}
    if result.sizes["seed"].nunique() > 1:
        shown["their stability over seeds"] = result.stability()
    if len(result.good) > 1:
        shown["heads that tasks share"] = result.overlap()
    for name, table in shown.items():
        print(f"\n{name}:\n{table.round(3).to_string()}")
    files = result.write(a.out / "results")
    print(f"\nthe tables and pictures are in {files[0].parent}: {', '.join(path.name for path in files)}")
    print(f"the tickets are in {a.out}; read all of it again with core_lens.Lottery.load({str(a.out)!r})")


def _illusions(a: Any) -> None:
    if a.others is not None and len(dict(a.others)) < len(a.others):
        raise CoreLensError(f"--others names {', '.join(name for name, _ in a.others)}: give each another name.")
    result = illusions(
        a.what, a.out, model=a.model, run=a.subnetworks, svd=a.svd, k_means=a.k_means, sparsities=a.sparsity, seeds=a.seeds,
        max_examples=a.max_examples, folder=a.folder, others=None if a.others is None else dict(a.others), steps=a.steps,
        splits=a.splits, data_dir=a.data_dir, tokenizer=a.tokenizer, label_map=a.label_map, device=a.device,
    )  # fmt: skip
    print(result)
    files = result.write(a.out / "results")
    print(f"\nthe tables and pictures are in {files[0].parent}: {', '.join(path.name for path in files)}")
    print(f"read all of it again with core_lens.Illusions.load({str(a.out)!r})")


def _demo(args: argparse.Namespace) -> None:
    core = find_core("lab", "lab", seeds=args.seeds, out=args.out, device=args.device, max_examples=200)
    _print(core, args.out)


def _show(args: argparse.Namespace) -> None:
    _print(Core.load(args.folder), args.folder)


def _export(args: argparse.Namespace) -> None:
    core = Core.load(args.folder)
    found = [s for s in core.subnetworks if s.seed == args.seed and args.sparsity in (None, s.asked_sparsity)]
    if len(found) != 1:
        asked = f"seed {args.seed}" + ("" if args.sparsity is None else f" at sparsity {args.sparsity:g}")
        known = ", ".join(s.name for s in core.subnetworks)
        raise CoreLensError(
            f"{args.folder} has {len(found)} subnetworks of {asked}: choose one of {known} by --seed and --sparsity."
        )
    path = check_folder(args.out)
    if any(path.iterdir()):
        raise CoreLensError(f"--out {path} is not empty: choose a new folder.")
    if args.model is None:
        model = model_of_run(str(core.provenance.get("model", {}).get("model_id", "?")), args.tokenizer)
    else:
        model = load_model(args.model, tokenizer=args.tokenizer)
    smaller = found[0].export(model)
    smaller.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    sizes = f"without {len(found[0].removed)} of {len(found[0].units)} heads and MLPs, {smaller.num_parameters():,} parameters"
    print(f"{path}: {found[0].name} {sizes}")
    print('read it with `import core_lens` and AutoModelForSequenceClassification or pipeline("text-classification")')


def _report(args: argparse.Namespace) -> None:
    path = write_report(
        Core.load(args.folder),
        args.out,
        args.model,
        args.task,
        max_examples=args.max_examples,
        others=[Core.load(folder) for folder in args.others],
        data_dir=args.data_dir,
        tokenizer=args.tokenizer,
        device=args.device,
    )
    print(f"the report is {path}")


def _print(core: Core, folder: Path | None) -> None:
    print(core)
    print("\nAccuracy and closeness to the full model (mean over subnetworks, std and 95 % interval over seeds):")
    print(core.table().to_string(float_format=_three))
    print("\nHow often each component is kept:")
    table = core.frequencies().sort_values("all", ascending=False, kind="stable")
    print(table.drop(columns=["layer", "head", "kind"]).to_string(index=False, float_format="{:.2f}".format))
    for note in core.notes:
        print(f"note: {note}")
    if folder is not None:
        print(f"\nthe run is in {folder}; read it again with core_lens.Core.load({str(folder)!r})")


def _three(value: float) -> str:
    return f"{value:.3f}"
