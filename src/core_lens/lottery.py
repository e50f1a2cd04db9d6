"""Are all tickets winning? Good, random and bad subnetworks of a classifier, pruned and trained again, over tasks and seeds.

Prasanna, Rogers and Rumshisky, "When BERT plays the lottery, all tickets are winning" (EMNLP 2020). Half of the evaluation
data prunes; every score is reported on that half and on the half that pruning has not seen (the paper reports the former).
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from . import stability
from .errors import CoreLensError, PruningError, TaskError
from .evaluate import check_numbers, predict_with, score
from .files import check_folder, claim_folder, read_table, versions_and_time, write_json, write_table
from .finetune import finetune, new_classifier
from .hooked import encode, load_model
from .magnitude import MagnitudePruner, magnitude_mask
from .plan import plan, problem_of
from .pruners import ImportancePruner
from .subnetwork import Subnetwork
from .tasks import Task, class_order, load_task, split_clusters
from .tickets import bad_like, random_like
from .weight_mask import WeightMask, without_components

SEEDS = (1337, 42, 86, 71, 166)
"""The paper's."""
TICKETS = ("s-good", "s-random", "s-bad", "m-good", "m-random", "m-bad")
"""Structured (heads and MLPs) and magnitude (single weights)."""
SEEN, UNSEEN = "seen", "unseen"
"""The halves of the evaluation data: what pruning judged its steps on, and the rest."""
TRAINING = ("steps", "batch_size", "learning_rate", "warmup_steps", "weight_decay", "bf16", "freeze_word_embeddings")
"""The settings of `finetune` that the study takes."""


@dataclass(frozen=True, eq=False)
class Lottery:
    """The study's results.

    Args:
        scores: task, seed, ticket (`full` or one of `TICKETS`), how (`pruned`, `retrained`; `full` is neither: ``), split
            (`seen`, `unseen`), metric, value, low, high, n: intervals over examples.
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
        order = [("full", ""), *((ticket, how) for ticket in TICKETS for how in ("pruned", "retrained"))]
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
    loaded = [t if isinstance(t, Task) else load_task(t, _data_of(data_dir, t, several)) for t in tasks]
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
        write_json(folder / "about.json", versions_and_time())
    study = _Study(model, structured, unstructured, ablation, retrain, device, training)
    runs = [(task, seed) for task in halves for seed in numbers]
    for task, seed in tqdm(runs, "lottery", unit="seed"):
        place = folder / task.name / f"seed-{seed}"
        if not (place / "scores.parquet").is_file():
            study.run(task, seed, place)
    return _load(folder, [task.name for task in halves], numbers, {t.name: t.metric for t in halves})


def _load(folder: Path, tasks: Sequence[str], seeds: Sequence[int], main: Mapping[str, str]) -> Lottery:
    scores, sizes, good = [], [], {}
    for task in tasks:
        good[task] = [Subnetwork.load(folder / task / f"seed-{seed}" / "s-good.safetensors") for seed in seeds]
        for seed in seeds:
            place = folder / task / f"seed-{seed}"
            scores.append(read_table(place / "scores.parquet").assign(task=task, seed=seed))
            sizes.append(read_table(place / "sizes.parquet").assign(task=task, seed=seed))
    first = ["task", "seed"]
    tables = [pd.concat(parts, ignore_index=True) for parts in (scores, sizes)]
    ordered = [table[[*first, *(c for c in table.columns if c not in first)]] for table in tables]
    return Lottery(ordered[0], ordered[1], good, main)


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
        made = self._tune(task, seed, work / "full", None)
        rows = [_rows(made.curve, "full", "")]
        network = AutoModelForSequenceClassification.from_pretrained(made.final)
        tokenizer = AutoTokenizer.from_pretrained(made.final)
        bridge = load_model(made.final, device=self.device)
        network.to(next(bridge.original_model.parameters()).device)
        order = class_order(network.config.id2label, task)

        encoded = {name: encode(task.split(name), tokenizer, task.max_length) for name in (SEEN, UNSEEN)}

        def evaluated(pruned: PreTrainedModel, *splits: str) -> pd.DataFrame:
            def forward(inputs: Any, _: Any) -> Any:
                return pruned(**inputs).logits

            chosen = task.select(splits)
            return score(
                predict_with(forward, tokenizer, pruned.device, task, chosen, order, "ticket", encoded=encoded), task
            )

        def metric(pruned: PreTrainedModel) -> float:
            table = evaluated(pruned.eval(), SEEN).query("group == 'all'").set_index("metric")["value"]
            return float(table[task.metric])

        good = self._prune(task, seed, bridge)
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
            pruned = copy.deepcopy(network)
            mask = without_components(pruned, ticket) if isinstance(ticket, Subnetwork) else ticket
            mask.hold(pruned)
            rows.append(_rows(evaluated(pruned.eval(), SEEN, UNSEEN), name, "pruned"))
            if self.retrain:
                again = self._tune(task, seed, work / name, ticket)
                rows.append(_rows(again.curve, name, "retrained"))
                shutil.rmtree(work / name)
            ticket.save(place / f"{name}.safetensors")
        heads, mlps = good.units.heads(good.mask), good.units.mlps(good.mask)
        assert heads is not None and mlps is not None
        size = {"heads": int(heads.sum()), "n_heads": heads.numel(), "mlps": int(mlps.sum()), "n_mlps": mlps.numel()}
        write_table(place / "sizes.parquet", pd.DataFrame([size | {"weights": 1 - weights.sparsity}]))
        write_table(place / "m-history.parquet", history)
        shutil.rmtree(work)
        write_table(place / "scores.parquet", pd.concat(rows, ignore_index=True))

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


def _data_of(folder: str | Path | None, task: str, several: bool) -> Path | None:
    return None if folder is None else Path(folder) / task if several else Path(folder)
