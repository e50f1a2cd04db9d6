"""Are all tickets winning? Good, random and bad subnetworks of a classifier, pruned and trained again, over tasks and seeds.

Prasanna, Rogers and Rumshisky, "When BERT plays the lottery, all tickets are winning" (EMNLP 2020). Half of the evaluation
data prunes; every score is reported on that half and on the half that pruning has not seen (the paper reports the former).
"""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from . import stability
from .errors import CoreLensError, CoreLensWarning, PruningError, SavedFileError, TaskError
from .evaluate import check_numbers, predict_with, score
from .files import (
    check_folder,
    claim_folder,
    read_json,
    read_table,
    versions_and_time,
    write_atomically,
    write_json,
    write_table,
)
from .finetune import finetune, new_classifier
from .hooked import Encoded, encode, load_model
from .hooked.loading import pick_device
from .magnitude import MagnitudePruner, magnitude_mask
from .plan import data_of, plan, problem_of
from .pruners import ImportancePruner
from .subnetwork import Subnetwork
from .tasks import Task, class_order, load_task, split_clusters
from .tickets import bad_like, random_like, super_bad, super_survivors
from .weight_mask import WeightMask, without_components

SEEDS = (1337, 42, 86, 71, 166)
"""The paper's."""
TICKETS = ("s-good", "s-random", "s-bad", "m-good", "m-random", "m-bad")
"""Structured (heads and MLPs) and magnitude (single weights)."""
SUPER = ("super-survivors", "super-bad")
"""What the structured good tickets of all seeds keep, and as many units that they keep least often."""
SEEN, UNSEEN = "seen", "unseen"
"""The halves of the evaluation data: what pruning judged its steps on, and the rest."""
TRAINING = ("steps", "batch_size", "learning_rate", "warmup_steps", "weight_decay", "bf16", "freeze_word_embeddings")
"""The settings of `finetune` that the study takes."""


@dataclass(frozen=True, eq=False)
class Lottery:
    """The study's results.

    Args:
        scores: task, seed, ticket (`full`, one of `TICKETS` or `SUPER`), how (`pruned`, `retrained`; `full` is neither: ``),
            split (`seen`, `unseen`), metric, value, low, high, n: intervals over examples. The super tickets are of all seeds
            and are scored in every seed's model; a task where no unit is in all good tickets has none.
        sizes: task, seed, heads, n_heads, mlps, n_mlps (kept by the structured ticket), weights (share kept by the other).
        good: task -> the structured good tickets, by seed.
        main: task -> its metric.
    """

    scores: pd.DataFrame
    sizes: pd.DataFrame
    good: Mapping[str, Sequence[Subnetwork]]
    main: Mapping[str, str]

    def table(self, split: Literal["seen", "unseen"] = "unseen") -> pd.DataFrame:
        """The paper's table, by each task's metric: index (ticket, how), columns (task, `mean` / `std` over seeds, ddof 1)."""
        rows = self.scores[self.scores["split"] == split]
        rows = rows[rows["metric"] == rows["task"].map(self.main)]
        columns = {}
        for task in self.good:
            values = rows[rows["task"] == task].groupby(["ticket", "how"])["value"]
            columns[task, "mean"], columns[task, "std"] = values.mean(), values.std()
        table = pd.DataFrame(columns)
        order = [("full", ""), *((ticket, how) for ticket in TICKETS + SUPER for how in ("pruned", "retrained"))]
        return table.reindex([key for key in order if key in table.index])

    def masks(self, kind: Literal["head", "mlp"] = "head") -> dict[str, np.ndarray]:
        """task -> which heads [seed, layer, head] or MLPs [seed, layer] the good tickets keep."""
        found = {}
        for task, tickets in self.good.items():
            parts = [one.units.heads(one.mask) if kind == "head" else one.units.mlps(one.mask) for one in tickets]
            found[task] = np.stack([part.numpy() for part in parts if part is not None])
        return found

    def stability(self) -> pd.DataFrame:
        """Agreement of the good tickets over seeds (`stability.table`): index (task, kind)."""
        rows = {
            (task, kind): stability.table(masks.reshape(len(masks), -1))
            for kind in ("head", "mlp")
            for task, masks in self.masks(kind).items()
        }
        return pd.DataFrame(rows).T.rename_axis(["task", "kind"])

    def overlap(self) -> pd.DataFrame:
        """Heads that good tickets of two tasks share, seed by seed (`stability.task_overlap`)."""
        return stability.task_overlap({task: m.reshape(len(m), -1) for task, m in self.masks().items()})

    def survival(self) -> pd.DataFrame:
        """Share of each layer's heads, and of its MLP, that survive: task, layer, heads, heads_std, mlps."""
        parts = []
        mlps = self.masks("mlp")
        for task, masks in self.masks().items():
            part = stability.survival_by_layer(masks).rename(columns={"mean": "heads", "std": "heads_std"})
            parts.append(part.assign(task=task, mlps=mlps[task].mean(axis=0)))
        return pd.concat(parts, ignore_index=True)[["task", "layer", "heads", "heads_std", "mlps"]]

    @classmethod
    def load(cls, folder: str | Path) -> Lottery:
        """Read a study, an unfinished one too: the seeds that all tasks have finished, of the tasks with a finished seed.

        Raises:
            SavedFileError: the folder is none of `lottery`, or damaged.
            CoreLensError: no seed is finished in all tasks.
        """
        folder = Path(folder)
        if not (folder / "lottery.json").is_file():
            raise SavedFileError(f"{folder} holds no lottery study (no lottery.json): make one with core-lens lottery.")
        tasks, metrics = read_json(folder / "lottery.json")["tasks"], read_json(folder / "about.json")["metrics"]
        done = {task: {int(p.parent.name[5:]) for p in folder.glob(f"{task}/seed-*/scores.parquet")} for task in tasks}
        done = {task: seeds for task, seeds in done.items() if seeds}
        if not done or not (seeds := sorted(set.intersection(*done.values()), key=_paper_order)):
            raise CoreLensError(
                f"{folder} has no seed that is finished in {', '.join(tasks)}: run the same command again."
            )
        return _load(folder, list(done), seeds, metrics)

    def write(self, folder: str | Path) -> list[Path]:
        """Write the tables as CSV and the pictures as PNG.

        Returns:
            The files: scores-unseen, scores-seen, sizes, survival, stability where there are two seeds, overlap where there
            are two tasks; pictures of the scores, survival, overlap.
        """
        from .viz.drawing import save  # imported late, as matplotlib takes a second
        from .viz.lottery import overlap_map, survival_map, ticket_scores

        folder = check_folder(folder)
        tables = {
            **{f"scores-{split}": self.table(split) for split in (UNSEEN, SEEN)},
            "sizes": self.sizes.set_index(["task", "seed"]), "survival": self.survival().set_index(["task", "layer"]),
        }  # fmt: skip
        pictures = {
            **{f"scores-{split}": ticket_scores(self.scores, self.main, split) for split in (UNSEEN, SEEN)},
            "survival": survival_map(self.masks(), self.masks("mlp")),
        }  # fmt: skip
        if self.sizes["seed"].nunique() > 1:
            tables["stability"] = self.stability()
        if len(self.good) > 1:
            tables["overlap"], pictures["overlap"] = self.overlap().set_index(["a", "b"]), overlap_map(self.overlap())
        written = []
        for name, table in tables.items():
            written.append(folder / f"{name}.csv")
            write_atomically(written[-1], partial(_write_csv, table))
        return written + [save(figure, folder / f"{name}.png") for name, figure in pictures.items()]

    def __repr__(self) -> str:
        n = max(map(len, self.good.values()))
        tables = {f"{split} in pruning": self.table(split) for split in (UNSEEN, SEEN)}
        shown = [f"the half {title}:\n{table.round(3).to_string()}" for title, table in tables.items()]
        return f"Lottery of {', '.join(self.good)}, {n} seeds\n" + "\n\n".join(shown)


def lottery(
    model: str | Path,
    tasks: Sequence[str | Task],
    out: str | Path,
    *,
    seeds: int | Iterable[int] = 5,
    pruner: ImportancePruner | None = None,
    magnitude: MagnitudePruner | None = None,
    ablation: Literal["zero", "mean"] = "zero",
    retrain: bool = True,
    max_train: int | None = None,
    max_examples: int | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    **training: Any,
) -> Lottery:
    """The whole study for one pretrained model: fine-tune, prune, draw tickets, score them pruned and trained again.

        core_lens.lottery("lab-pretrained", ["lab"], "runs/lottery", steps=1500, learning_rate=3e-4)

    Calling it again with the same folder continues after the last seed that is finished.

    Args:
        model: the pretrained model: hub id, local folder or `lab-pretrained`.
        tasks: names or `Task`s with a training split and an in-domain split, of which half prunes.
        out: folder for scores and tickets; fine-tuned weights are deleted once they are scored.
        seeds: a list, or how many of the paper's 1337, 42, 86, 71, 166 (and on from 167): of the head, the order of the data,
            the sample that importance is taken over, and the draw of tickets.
        pruner: of the structured tickets; by default on all examples of the pruning half.
        magnitude: of the others.
        ablation: what stands in for removed heads and MLPs: `zero` (the paper) or their `mean` in the fine-tuned model.
        retrain: score tickets trained again from the pretrained weights, too (most of the time).
        max_train: examples of the training split, a fixed random draw; None for all.
        max_examples: of each half; None for all.
        data_dir: where the tasks' files are, in a folder per task where there are several.
        device: as in `finetune`.
        **training: the settings named in `TRAINING`, as in `finetune`, whose defaults are the paper's (3 epochs, 32, 2e-5).

    Raises:
        CoreLensError: a task, model or setting cannot be used; the message says what to change.
    """
    check_numbers(max_train=max_train, max_examples=max_examples)
    if ablation not in ("zero", "mean"):
        raise CoreLensError(f"ablation={ablation!r}: choose 'zero' or 'mean'.")
    if unknown := sorted(set(training) - set(TRAINING)):
        raise CoreLensError(f"{unknown[0]}= is no setting of the study's training: choose from {', '.join(TRAINING)}.")
    numbers = _seeds(seeds)
    structured, unstructured = pruner or ImportancePruner(examples=None), magnitude or MagnitudePruner()
    if structured.stop is None or structured.steps == "one-shot":
        raise PruningError("the study needs a pruner with steps='phases' and stop=, such as ImportancePruner().")
    several = len(tasks) > 1
    loaded = [t if isinstance(t, Task) else load_task(t, data_of(data_dir, t, several)) for t in tasks]
    if not loaded or len({task.name for task in loaded}) < len(loaded):
        raise TaskError(f"tasks={[task.name for task in loaded]!r}: name at least one task, each once.")
    halves = [_halved(task, max_train, max_examples) for task in loaded]
    network, _, _ = new_classifier(model, None, halves[0])  # before the folder is claimed for it
    folder = check_folder(out)
    claim_folder(folder, "lottery.json", {
        "model": {"source": str(model), "architecture": type(network).__name__},
        "tasks": {task.name: task.fingerprint() for task in halves},
        "pruner": dict(structured.config()), "magnitude": repr(unstructured), "ablation": ablation, "retrain": retrain,
        "training": {key: training[key] for key in sorted(training)},
    })  # fmt: skip
    if not (folder / "about.json").is_file():
        write_json(
            folder / "about.json", {**versions_and_time(), "metrics": {task.name: task.metric for task in halves}}
        )
    study = _Study(model, structured, unstructured, ablation, retrain, device, training)
    runs = [(task, seed) for task in halves for seed in numbers]
    for task, seed in tqdm(runs, "lottery", unit="seed"):
        place = folder / task.name / f"seed-{seed}"
        if not (place / "scores.parquet").is_file():
            study.run(task, seed, place)
        if seed == numbers[-1]:
            study.run_super(task, numbers, folder / task.name)
    return _load(folder, [task.name for task in halves], numbers, {t.name: t.metric for t in halves})


def _super_of(place: Path, seeds: Sequence[int]) -> Path:
    """Where the scores of these seeds' super tickets are."""
    return place / "super" / "-".join(str(seed) for seed in sorted(seeds))


def _load(folder: Path, tasks: Sequence[str], seeds: Sequence[int], main: Mapping[str, str]) -> Lottery:
    scores, sizes, good = [], [], {}
    for task in tasks:
        good[task] = [Subnetwork.load(folder / task / f"seed-{seed}" / "s-good.safetensors") for seed in seeds]
        for seed in seeds:
            place = folder / task / f"seed-{seed}"
            scores.append(read_table(place / "scores.parquet").assign(task=task, seed=seed))
            if (part := _super_of(folder / task, seeds) / f"seed-{seed}" / "scores.parquet").is_file():
                scores.append(read_table(part).assign(task=task, seed=seed))
            sizes.append(read_table(place / "sizes.parquet").assign(task=task, seed=seed))
    first = ["task", "seed"]
    tables = [pd.concat(parts, ignore_index=True) for parts in (scores, sizes)]
    ordered = [table[[*first, *(c for c in table.columns if c not in first)]] for table in tables]
    return Lottery(ordered[0], ordered[1], good, main)


@dataclass(frozen=True, eq=False)
class _Full:
    """A seed's fine-tuned model, and what evaluates it and its tickets."""

    folder: Path
    curve: pd.DataFrame
    task: Task
    network: PreTrainedModel
    tokenizer: Any
    encoded: Mapping[str, Encoded]

    def evaluate(self, pruned: PreTrainedModel, *splits: str) -> pd.DataFrame:
        def forward(inputs: Any, _: Any) -> Any:
            return pruned(**inputs).logits

        names = self.network.config.id2label
        assert names is not None
        order = class_order(names, self.task)
        chosen = self.task.select(splits)
        parts = {name: self.encoded[name] for name in splits}
        said = predict_with(forward, self.tokenizer, pruned.device, self.task, chosen, order, "ticket", encoded=parts)
        return score(said, self.task)


@dataclass(frozen=True, eq=False)
class _Study:
    model: str | Path
    pruner: ImportancePruner
    magnitude: MagnitudePruner
    ablation: Literal["zero", "mean"]
    retrain: bool
    device: str | None
    training: Mapping[str, Any]

    def run(self, task: Task, seed: int, place: Path) -> None:
        """One task and seed, from fine-tuning to its files; `scores.parquet` is written last."""
        work = place / "work"
        full = self._full(task, seed, work)
        rows = [_rows(full.curve, "full", "")]
        self._check_stop(task, seed, rows[0])
        good = self._prune(task, seed, load_model(full.folder, device=self.device))
        network = full.network

        def metric(pruned: PreTrainedModel) -> float:
            table = full.evaluate(pruned.eval(), SEEN).query("group == 'all'").set_index("metric")["value"]
            return float(table[task.metric])

        weights, history = self.magnitude.prune(network, metric, seed)
        tickets: dict[str, Callable[[], Subnetwork | WeightMask]] = {
            "s-good": lambda: good,
            "s-random": lambda: random_like(good, seed),
            "s-bad": lambda: bad_like(good, seed),
            "m-good": lambda: weights,
            "m-random": lambda: magnitude_mask(network, weights.sparsity, "random", seed),
            "m-bad": lambda: magnitude_mask(network, weights.sparsity, "largest", seed),
        }
        for name, make in tqdm(tickets.items(), f"tickets of {task.name}", leave=False):
            ticket = make()
            rows += self._score(task, seed, work, full, name, ticket)
            ticket.save(place / f"{name}.safetensors")
        heads, mlps = good.units.heads(good.mask), good.units.mlps(good.mask)
        assert heads is not None and mlps is not None
        size = {"heads": int(heads.sum()), "n_heads": heads.numel(), "mlps": int(mlps.sum()), "n_mlps": mlps.numel()}
        write_table(place / "sizes.parquet", pd.DataFrame([size | {"weights": 1 - weights.sparsity}]))
        write_table(place / "m-history.parquet", history)
        write_table(place / "scores.parquet", pd.concat(rows, ignore_index=True))

    def _check_stop(self, task: Task, seed: int, full: pd.DataFrame) -> None:
        """Warn where a constant answer is as good as the pruners ask for, so that a good ticket may be anything."""
        if task.metric != "accuracy":
            return  # the others are 0 for a constant answer
        reached = float(full.query(f"split == {SEEN!r} and metric == 'accuracy'")["value"].iloc[0])
        constant = float(task.split(SEEN).data["label"].value_counts(normalize=True).iloc[0])
        if (floor := min(self.pruner.stop or 1, self.magnitude.stop) * reached) <= constant:
            warnings.warn(
                f"{task.name}, seed {seed}: pruning goes down to an accuracy of {floor:.3f}, and answering the most frequent "
                f"class gives {constant:.3f}: good tickets may be no more. Train longer, or raise the pruners' stop=.",
                CoreLensWarning,
                stacklevel=4,
            )

    def run_super(self, task: Task, seeds: Sequence[int], place: Path) -> None:
        """The super tickets of these seeds, in the model of each; then the models are deleted."""
        good = [Subnetwork.load(place / f"seed-{seed}" / "s-good.safetensors") for seed in seeds]
        if len(good) > 1 and np.logical_and.reduce([one.mask.numpy() for one in good]).any():
            tickets = {"super-survivors": super_survivors(good), "super-bad": super_bad(good, 0)}
            for one, seed in zip(tqdm(good, f"super tickets of {task.name}", leave=False), seeds, strict=True):
                folder, work = _super_of(place, seeds) / f"seed-{seed}", place / f"seed-{seed}" / "work"
                if (folder / "scores.parquet").is_file():
                    continue
                full, rows = self._full(task, seed, work), []
                for name, ticket in tickets.items():
                    ticket = replace(ticket, replacement=one.replacement)  # means are of this seed's model
                    rows += self._score(task, seed, work, full, name, ticket)
                    ticket.save(folder / f"{name}.safetensors")
                write_table(folder / "scores.parquet", pd.concat(rows, ignore_index=True))
        for seed in seeds:
            shutil.rmtree(place / f"seed-{seed}" / "work", ignore_errors=True)

    def _full(self, task: Task, seed: int, work: Path) -> _Full:
        made = self._tune(task, seed, work / "full", None)
        network = AutoModelForSequenceClassification.from_pretrained(made.final)
        tokenizer = AutoTokenizer.from_pretrained(made.final)
        network.to(pick_device(self.device))
        encoded = {name: encode(task.split(name), tokenizer, task.max_length) for name in (SEEN, UNSEEN)}
        return _Full(made.final, made.curve, task, network, tokenizer, encoded)

    def _score(
        self, task: Task, seed: int, work: Path, full: _Full, name: str, ticket: Subnetwork | WeightMask
    ) -> list[pd.DataFrame]:
        """The rows of a ticket, pruned and retrained."""
        pruned = copy.deepcopy(full.network)
        mask = without_components(pruned, ticket) if isinstance(ticket, Subnetwork) else ticket
        mask.hold(pruned)
        rows = [_rows(full.evaluate(pruned.eval(), SEEN, UNSEEN), name, "pruned")]
        if self.retrain:
            again = self._tune(task, seed, work / name, ticket)
            rows.append(_rows(again.curve, name, "retrained"))
            shutil.rmtree(work / name)
        return rows

    def _tune(self, task: Task, seed: int, place: Path, keep: Subnetwork | WeightMask | None) -> Any:
        settings = {"every": 10**9, "splits": [SEEN, UNSEEN], "max_examples": None} | dict(self.training)
        return finetune(self.model, task, place, seed=seed, device=self.device, keep=keep, **settings)

    def _prune(self, task: Task, seed: int, bridge: Any) -> Subnetwork:
        """The structured good ticket, pruned on the half that is `seen`."""
        # As a split of role `train` the half is taken whole.
        splits = tuple(replace(split, role="train") if split.name == SEEN else split for split in task.splits)
        pruned_on = replace(task, splits=splits)
        job = plan(bridge, pruned_on, 0.5, [seed], self.pruner, prune_on=SEEN, splits=UNSEEN, ablation=self.ablation)
        problem = problem_of(job)
        result = self.pruner.prune_to_stop(problem, seed)
        origin = {
            **job.config, **versions_and_time(), "seed": seed, "ticket": "s-good",
            "pruner": self.pruner.name, "history": result.history.to_dict("list"), "passes": result.passes,
        }  # fmt: skip
        return Subnetwork(job.units, result.mask, problem.replacement, result.scores, origin)


def _rows(table: pd.DataFrame, ticket: str, how: str) -> pd.DataFrame:
    chosen = table[(table["group"] == "all") & ~table["metric"].isin(["balanced_accuracy"])]
    columns = ["split", "metric", "value", "low", "high", "n"]
    return chosen[columns].assign(ticket=ticket, how=how)[["ticket", "how", *columns]]


def _halved(task: Task, max_train: int | None, max_examples: int | None) -> Task:
    """The task with its training split and the two halves of its first in-domain split."""
    train, inside = task.with_role("train"), task.with_role("id")
    if not train or not inside:
        raise TaskError(
            f"task {task.name!r} has no {'training' if not train else 'in-domain'} split: the study needs both."
        )
    first, second = split_clusters(inside[0], 0.5, seed=0)
    halves = (
        replace(part.sample(max_examples), name=name, role="id", aliases=(), companion=None)
        for name, part in ((SEEN, first), (UNSEEN, second))
    )
    return replace(task, splits=(train[0].sample(max_train), *halves))


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int):
        more = range(SEEDS[-1] + 1, SEEDS[-1] + 1 + max(0, seeds))
        given: list[int] = [*SEEDS, *more][: max(0, seeds)]
    else:
        given = list(seeds)
    if given and all(isinstance(seed, int) for seed in given) and len(set(given)) == len(given):
        return given
    raise PruningError(f"seeds={seeds!r}: give a number of at least 1, or a list of different whole numbers.")


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    table.to_csv(path)


def _paper_order(seed: int) -> tuple[int, int]:
    return (SEEDS.index(seed) if seed in SEEDS else len(SEEDS), seed)
