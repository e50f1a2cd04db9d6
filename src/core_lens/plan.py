"""What `find_core` is about to do: everything checked, one step timed, nothing begun."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .ablation import (
    MeanActivations,
    Mode,
    Positions,
    Replacement,
    ResampleActivations,
    ZeroActivations,
    fit_means,
)
from .components import ComponentSet
from .errors import CoreLensError, PruningError, SavedFileError
from .evaluate import check_numbers
from .files import read_tensors, write_tensors
from .gates import inject
from .hooked import bf16_autocast, component_set, load_model, logits, model_info
from .hooked.batches import Encoded, batches, encode
from .pruners import Pruner, PruningProblem, check_sparsity, named_pruner
from .selection import MEAN_EXAMPLES, PruneOn, Selection, means_split, separate
from .tasks import Split, Task, class_order, load_task

PAPER_SEEDS = 42
"""The paper's seeds are 42 to 53."""
GPT2_SPARSITIES = (0.4, 0.6)
"""The paper's for GPT-2, whatever the task."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What `find_core` is about to do.

    Args:
        model: the hooked classifier.
        task: the task.
        pruner: the method.
        units: the units it chooses among.
        selection: the examples it chooses on.
        means: the examples that means are taken over.
        reported: the splits that are reported.
        order: class of the model for each label of the task.
        encoded: split name -> its tokenised rows, for the selection and the reported splits.
        sparsities: to reach, each with every seed.
        seeds: of the runs.
        config: all that identifies the runs; a folder holds runs of one config.
    """

    model: TransformerBridge
    task: Task
    pruner: Pruner
    units: ComponentSet
    selection: Selection
    means: Split
    reported: Sequence[Split]
    order: Sequence[int]
    encoded: Mapping[str, Encoded]
    sparsities: Sequence[float]
    seeds: Sequence[int]
    config: Mapping[str, Any]
    ablation: Mode
    positions: Positions
    batch_size: int
    autocast: bool

    @cached_property
    def seconds(self) -> float:
        """Estimate for all runs, from one timed step of pruning and of evaluation."""
        return _estimate(self)

    @property
    def runs(self) -> list[tuple[float, int]]:
        return [(sparsity, seed) for sparsity in self.sparsities for seed in self.seeds]

    def __str__(self) -> str:
        info = model_info(self.model)
        kinds = " and ".join(f"{kind}s".replace("mlp", "MLP") for kind in self.units.kinds)
        sources = ", ".join(f"{n} of {name}" for name, n in self.selection.sources.items())
        reported = ", ".join(f"{split.name} {len(split)}" for split in self.reported)
        rounds = ", ".join(f"{s:.0%}: {self.pruner.work(s):,} examples" for s in self.sparsities)
        return "\n".join(
            [
                f"model      {info.model_id} ({info.architecture}, {info.n_layers} layers x {info.n_heads} heads)",
                f"task       {self.task.name}: labels {', '.join(self.task.labels) or 'a number'}",
                f"units      {len(self.units)} ({kinds}), {self.ablation} ablation",
                f"runs       {len(self.runs)}: {len(self.seeds)} seeds at each of "
                f"{', '.join(f'{s:.0%}' for s in self.sparsities)}, pruner {self.pruner.name}",
                f"per run    {rounds} forward and backward, drawn from {sources}",
                f"reported   {reported} (none of them used to prune)",
                f"estimate   {_duration(self.seconds)} on {info.device}",
            ]
        )


def plan(
    model: Any,
    task: str | Task,
    sparsities: float | Iterable[float] | None = None,
    seeds: int | Iterable[int] = 12,
    pruner: str | Pruner | None = None,
    preset: Literal["fast", "paper"] = "fast",
    *,
    prune_on: PruneOn | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    label_map: Mapping[Any, str] | None = None,
    units: str | Sequence[str] = ("head", "mlp"),
    ablation: Mode = "mean",
    positions: Positions = "all",
    splits: Iterable[str] | str | None = None,
    max_examples: int | None = 1000,
    mean_examples: int | None = None,
    batch_size: int = 64,
    dtype: Any = None,
    autocast: bool = False,
) -> Plan:
    """Check everything, time one step, and say what `find_core` would do; `print` the result.

    Args:
        model, task, sparsities, seeds, pruner, preset, prune_on, data_dir, device: as in `find_core`.
        tokenizer: where the model's own is not beside it.
        label_map: class of the checkpoint -> label of the task, where its config does not name them.
        units: `head`, `mlp` or both: what may be removed.
        ablation: what stands in for it: `mean` of the training data, `zero`, or `resample` from other examples.
        positions: tokens that means are taken over: `all`, or `not_first` (decoders put outliers on the first).
        splits: what to report; by default all in-domain and out-of-domain splits and their companions.
        max_examples: reported per split, a fixed random draw; None for all.
        mean_examples: training examples that means are taken over; None for the paper's first 100,000 with the `paper`
            preset, and otherwise 4,096 drawn at random (training sets are often sorted).
        batch_size: of evaluation.
        dtype: of the weights (float32; `"bfloat16"` on request).
        autocast: prune with bfloat16 forward passes.

    Raises:
        CoreLensError: as `find_core`.
    """
    method = named_pruner(pruner, preset)
    seed_list = seed_numbers(seeds)
    if ablation not in ("mean", "zero", "resample"):
        raise CoreLensError(f"ablation={ablation!r}: choose 'mean', 'zero' or 'resample'.")
    if positions not in ("all", "not_first"):
        raise CoreLensError(f"positions={positions!r}: choose 'all' or 'not_first'.")
    check_numbers(max_examples=max_examples, mean_examples=mean_examples, batch_size=batch_size)
    chosen_task = task if isinstance(task, Task) else load_task(task, data_dir)
    bridge = load_model(model, tokenizer=tokenizer, device=device, dtype=dtype)
    info = model_info(bridge)
    if sparsities is None:
        sparsities = GPT2_SPARSITIES if info.architecture.startswith("GPT2") else chosen_task.sparsities
    wanted = list(sparsities) if isinstance(sparsities, Iterable) and not isinstance(sparsities, str) else [sparsities]
    shares = list(dict.fromkeys(check_sparsity(s) for s in wanted))
    if not shares:
        raise PruningError("sparsities is empty: name at least one, such as 0.5.")
    if len({f"{share:g}" for share in shares}) < len(shares):
        raise PruningError(f"sparsities={shares} has two that are equal to six digits: name each once.")
    order = class_order(info.id2label, chosen_task, label_map)
    if not isinstance(units, str | Sequence):
        raise CoreLensError(f"units={units!r}: choose 'head', 'mlp' or both.")
    component_units = component_set(bridge, (units,) if isinstance(units, str) else tuple(units))
    selection, reported = separate(chosen_task, prune_on, splits, method.examples, max_examples)
    n_means = mean_examples or MEAN_EXAMPLES[preset]
    means = means_split(chosen_task, reported, n_means, first=preset == "paper", instead=selection.split)
    config = {
        "model": {
            "model_id": info.model_id,
            "architecture": info.architecture,
            "weight_hash": info.weight_hash,
        },
        "labels": dict(zip(chosen_task.labels, order, strict=False)),
        "task": chosen_task.name,
        "data": {split.name: split.fingerprint() for split in (selection.split, means, *reported)},
        "selected_from": dict(selection.sources),
        "pruner": {"name": method.name, **method.config()},
        "units": list(component_units.kinds),
        "ablation": ablation,
        "positions": positions,
        "dtype": str(info.dtype).removeprefix("torch."),
        "autocast": autocast,
    }
    encoded = {s.name: encode(s, bridge.tokenizer, chosen_task.max_length) for s in (selection.split, *reported)}
    return Plan(
        bridge, chosen_task, method, component_units, selection, means, reported, order, encoded, shares, seed_list,
        config, ablation, positions, batch_size, autocast,
    )  # fmt: skip


def data_of(folder: str | Path | None, task: str | Task, several: bool) -> Path | None:
    """Where a task's files are: in a folder for each where there are several tasks."""
    if folder is None or not several or isinstance(task, Task):
        return None if folder is None else Path(folder)
    return Path(folder) / task


def problem_of(job: Plan, cache: Path | None = None) -> PruningProblem:
    """Means and the full model's logits, computed once and shared by all runs.

    Args:
        job: the plan.
        cache: a folder to keep them in; several processes may use it at once.
    """
    info = model_info(job.model)
    encoded = job.encoded[job.selection.split.name]
    key = {"weights": info.weight_hash, "dtype": job.config["dtype"], "tokens": encoded.fingerprint()}
    teacher = _kept(cache, "teacher", key, lambda: {"logits": _teacher(job, encoded)})["logits"]
    gold = job.selection.gold
    if not job.task.is_regression:
        by_class = torch.zeros(len(encoded), info.num_labels, dtype=torch.bool)
        by_class[:, list(job.order)] = gold
        gold = by_class
    return PruningProblem(
        job.model,
        job.units,
        _replacement(job, encoded, cache),
        encoded,
        teacher.to(info.device),
        gold.to(info.device),
        job.task.is_regression,
        job.autocast,
        job.task.metric,
    )


def _teacher(job: Plan, encoded: Encoded) -> Tensor:
    """The full model's logits on the selection, on the CPU."""
    info = model_info(job.model)
    found = torch.empty(len(encoded), info.num_labels)
    with torch.inference_mode():
        cut = batches(encoded, job.batch_size, device=info.device)
        for rows, inputs in tqdm(cut, "full model", -(-len(encoded) // job.batch_size), unit="batch", leave=False):
            found[rows] = logits(job.model, inputs).float().cpu()
    return found


def _replacement(job: Plan, selection: Encoded, cache: Path | None) -> Replacement:
    info = model_info(job.model)
    if job.ablation == "zero":
        return ZeroActivations(info.weight_hash)
    if job.ablation == "resample":
        rows = torch.arange(min(32, len(selection)))
        ((_, donors),) = batches(selection, len(rows), rows=rows, device=info.device)
        return ResampleActivations(donors, info.weight_hash)

    encoded = encode(job.means, job.model.tokenizer, job.task.max_length)

    def fit() -> dict[str, Tensor]:
        cut = batches(encoded, job.batch_size, device=info.device)
        means = fit_means(job.model, cut, job.positions, len(encoded))
        return {**means.tensors(), "n_tokens": torch.tensor(means.n_tokens)}

    key = {"weights": info.weight_hash, "dtype": job.config["dtype"], "tokens": encoded.fingerprint()}
    found = _kept(cache, "means", {**key, "positions": job.positions}, fit)
    means = MeanActivations(found["heads"], found["mlps"], int(found["n_tokens"]), job.positions, info.weight_hash)
    return means.bind(job.model)


def _kept(
    cache: Path | None, name: str, key: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Tensors from the cache, where they are there and whole; otherwise made, and put there."""
    if cache is None:
        return make()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = cache / f"{name}-{digest[:16]}.safetensors"
    if path.is_file():
        with suppress(SavedFileError):  # a damaged one is made again
            found, meta = read_tensors(path, (), ("key",))
            if meta["key"] == dict(key):
                return found
    made = make()
    write_tensors(path, made, {"key": dict(key)})
    return made


def seed_numbers(seeds: int | Iterable[int]) -> list[int]:
    """The seeds that `seeds` means: those of a list, or as many as it says of the paper's.

    Raises:
        PruningError: it is neither.
    """
    given = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    try:
        numbers = [int(seed) for seed in given if seed == int(seed) and 0 <= int(seed) < 2**63]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if isinstance(seeds, Iterable) and given and len(set(numbers)) == len(given):
        return numbers
    if not isinstance(seeds, Iterable) and numbers and numbers[0] > 0:
        return [*range(PAPER_SEEDS, PAPER_SEEDS + numbers[0])]
    raise PruningError(f"seeds={seeds!r}: give a number of at least 1, or a list of different whole numbers from 0 on.")


def _estimate(job: Plan) -> float:
    """Seconds for the whole job, from one timed pruning step and one timed evaluation batch."""
    device = model_info(job.model).device
    encoded, pad_to = job.encoded[job.selection.split.name], job.pruner.config().get("pad_to")
    rows = torch.arange(min(32, len(job.selection)))
    longest: int = job.model.tokenizer.model_max_length

    def timed(gradient: bool) -> float:
        """Seconds per example."""
        zero = ZeroActivations(model_info(job.model).weight_hash)
        start = time.perf_counter()
        with inject(job.model, job.units, zero) as gates, torch.set_grad_enabled(gradient):
            pad = min(pad_to, longest) if gradient and pad_to else None
            for _, inputs in batches(encoded, len(rows), rows=rows, pad_to=pad, device=device):
                gates.z = torch.ones(len(job.units), device=device, requires_grad=gradient)
                with bf16_autocast(device.type, gradient and job.autocast):
                    out = logits(job.model, inputs).float()
                if gradient:
                    out.logsumexp(-1).sum().backward()
                float(out.detach().sum())  # waits for the device
        return (time.perf_counter() - start) / len(rows)

    timed(True)  # the first pass pays for set-up
    step, forward = timed(True), timed(False)
    n_reported = sum(map(len, job.reported))
    pruning = sum(job.pruner.work(sparsity) for sparsity in job.sparsities) * len(job.seeds) * step
    return pruning + forward * (n_reported * (len(job.runs) + 1) + len(job.means) + len(job.selection))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
