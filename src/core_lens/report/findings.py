"""What a report is made of: every table, computed by the modules that own it, once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from ..core import Core, Overlap, notes_on
from ..effective_size import effective_size, floors, split_groups, tables_of
from ..errors import CoreLensError, CoreLensWarning, ModelError, TaskError
from ..heads import attention_patterns, classify_heads
from ..hooked import load_model, shipped
from ..interactions import ablation_table, core_alone, interaction_map, most_super_additive
from ..tasks import Task, load_task
from ..viz.attention import AttentionView, show
from .layout import records

TOLERANCE = 0.03
"""A subnetwork is faithful where its accuracy is above the full model's less this (the paper's 3 points)."""
RANDOM_SETS = 20
"""Random head sets that the core alone is compared with."""
_BUDGET = 100
"""Sets of heads that are ablated together, at most."""
_ONE_PASS = 4
"""How many times as many examples what takes a single pass over them can afford."""
_LONGEST, _MOST_HEADS = 128, 12
"""Tokens of an example and heads that are drawn, at most; they keep the page below 10 MB."""


@dataclass(eq=False)
class Findings:
    """The tables of a report; None where they could not be made.

    Args:
        core: the run.
        task: with roles and companions of the splits.
        max_examples: per split, for what is computed with the model.
        rows: `Core.table`, as (split, metric) -> column -> value.
        overlap, head_tests, containment, rho, associations: the core's methods of these names; `rho` by pairs of
            sparsities.
        sizes: `effective_size` of the groups of splits.
        faithful: per sparsity, whether any subnetwork is faithful in domain.
        patterns, classes: of all heads.
        single: `ablation_table`.
        joint: `interaction_map` of all pairs, and of all core heads together.
        best: `most_super_additive`.
        alone: `core_alone`.
        view: attention of core heads.
        missing: sentences on what is not there, and why.
        notes: what a reader should know, as the parts warned.
        seconds: how long each part took.
    """

    core: Core
    task: Task | None
    max_examples: int | None
    rows: dict[tuple[str, str], dict[tuple[Any, str], float]]
    overlap: Overlap | None = None
    head_tests: pd.DataFrame | None = None
    containment: pd.DataFrame | None = None
    rho: dict[tuple[float, float], pd.Series] = field(default_factory=dict)
    associations: pd.DataFrame | None = None
    sizes: pd.DataFrame | None = None
    faithful: dict[float, bool] = field(default_factory=dict)
    patterns: pd.DataFrame | None = None
    classes: pd.DataFrame | None = None
    single: pd.DataFrame | None = None
    joint: pd.DataFrame | None = None
    best: pd.DataFrame | None = None
    alone: pd.DataFrame | None = None
    view: AttentionView | None = None
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def splits(self, *roles: str) -> list[str]:
        """The reported splits of these roles; none without a task."""
        return [s.name for s in (self.task.splits if self.task else ()) if s.role in roles and s.name in self.reported]

    @property
    def reported(self) -> list[str]:
        """The splits that the run reports, in its order."""
        return list(dict.fromkeys(split for split, _ in self.rows))

    @property
    def counted(self) -> str:
        """How many examples a split has, in words."""
        return "all" if self.max_examples is None else f"up to {self.max_examples:,}"

    @property
    def one_pass(self) -> int | None:
        """Examples a split for what takes a single pass over them."""
        return None if self.max_examples is None else _ONE_PASS * self.max_examples

    def main_metric(self, split: str) -> str:
        """What a split is judged by."""
        return next(metric for metric in ("mcc", "pearson", "accuracy") if (split, metric) in self.rows)


def gather(
    core: Core,
    model: TransformerBridge | None,
    task: Task | None,
    missing: Sequence[str],
    *,
    examples: int,
    max_examples: int | None,
    others: Mapping[str, Core] | Sequence[Core],
) -> Findings:
    """Compute everything that can be, with a bar over the parts."""
    found = Findings(core, task, max_examples, cast(Any, core.table().to_dict("index")), missing=list(missing))
    parts: dict[str, Callable[[], None]] = {
        "core": lambda: _core(found, others),
        "sizes": lambda: _sizes(found, model),
    }
    if model is not None and task is not None:
        parts |= {
            "attention": lambda: _attention(found, model, task, examples),
            "ablations": lambda: _ablations(found, model, task),
            "joint ablations": lambda: _joint(found, model, task),
            "core alone": lambda: _alone(found, model, task),
        }
    with _warnings_into(found.notes), tqdm(parts.items(), "report", unit="part", leave=False) as bar:
        found.notes += core.notes
        notes_on(core.subnetworks)
        found.notes += [] if task is None else _other_examples(core, task)
        for name, compute in bar:
            bar.set_postfix_str(name)
            start = time.perf_counter()
            compute()
            found.seconds[name] = time.perf_counter() - start
    found.notes = list(dict.fromkeys(found.notes))
    return found


@contextmanager
def _warnings_into(notes: list[str]) -> Iterator[None]:
    """Collect what the parts warn of; other warnings are shown as ever."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CoreLensWarning)
        yield
    for one in caught:
        if issubclass(one.category, CoreLensWarning):
            notes.append(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _core(found: Findings, others: Mapping[str, Core] | Sequence[Core]) -> None:
    core = found.core
    if "head" in core.subnetworks[0].units.kinds:
        found.overlap, found.head_tests = core.overlap(others), core.head_tests()
        found.containment = core.containment()
        for pair in zip(core.sparsities, core.sparsities[1:], strict=False):
            try:
                found.rho[pair] = core.rank_correlation(*pair)
            except CoreLensError as error:
                found.missing.append(f"No rank correlation of {pair[0]:g} and {pair[1]:g}: {error}")
        if any(metric == "accuracy" for _, metric in found.rows) and len(core.subnetworks) > 1:
            found.associations = core.associations()


def _sizes(found: Findings, model: TransformerBridge | None) -> None:
    task, core = found.task, found.core
    if task is None or task.is_regression:
        return
    shown = replace(task, splits=tuple(split for split in task.splits if split.name in found.reported))
    groups = split_groups(shown)
    accuracies, full = tables_of({"run": core})
    options = {"label_map": label_map_of(core), "max_examples": found.one_pass}
    known = None if model is None else floors(model, shown, core.subnetworks[0], found.reported, **options)
    companions = {s.name: s.companion for s in shown.splits if s.role == "ood" and s.companion in found.reported}
    found.sizes = effective_size(accuracies, full, groups, TOLERANCE, floors=known, companions=companions)
    if "ID" in groups:
        for sparsity, part in accuracies.groupby("sparsity"):
            (row,) = records(effective_size(part, full, {"ID": groups["ID"]}, TOLERANCE))
            found.faithful[cast(float, sparsity)] = row["sparsity"] > 0


def _attention(found: Findings, model: TransformerBridge, task: Task, examples: int) -> None:
    found.patterns = attention_patterns(model, task, max_examples=found.one_pass)
    found.classes = classify_heads(found.patterns)
    heads = found.core.heads[:_MOST_HEADS]
    if heads:
        found.view = show(model, heads, examples, replace(task, max_length=min(task.max_length, _LONGEST)))


def _ablations(found: Findings, model: TransformerBridge, task: Task) -> None:
    if found.core.heads:
        found.single = ablation_table(model, task, found.core.heads, **_options(found))


def _joint(found: Findings, model: TransformerBridge, task: Task) -> None:
    heads = found.core.heads
    if len(heads) < 2:
        return
    options = _options(found)
    found.joint = interaction_map(model, task, heads, sizes=(2, len(heads)), budget=_BUDGET, **options)
    try:
        found.best = most_super_additive(model, task, heads, budget=_BUDGET, **options)
    except TaskError as error:  # a split that cannot be cut in two
        found.missing.append(f"The most super-additive set was not looked for: {error}")


def _alone(found: Findings, model: TransformerBridge, task: Task) -> None:
    if found.core.heads:
        found.alone = core_alone(model, task, found.core.heads, n_random=RANDOM_SETS, **_options(found))


def _options(found: Findings) -> dict[str, Any]:
    """What every ablation is run with: the run's own stand-ins, labels and splits."""
    return {
        "splits": found.reported,
        "replacement": found.core.subnetworks[0].replacement,
        "max_examples": found.max_examples,
        "label_map": label_map_of(found.core),
    }


def label_map_of(core: Core) -> dict[int, str] | None:
    """Which class stands for which label, as the run had it."""
    return {int(index): label for label, index in core.provenance.get("labels", {}).items()} or None


def find_model_and_task(
    core: Core, model: Any, task: str | Task | None, data_dir: Any, tokenizer: Any, device: Any
) -> tuple[TransformerBridge | None, Task | None, list[str]]:
    """The run's model and task: as given, else looked for where the run says.

    Returns:
        The model and the task, None where they are not found, and a sentence on each that is not.

    Raises:
        CoreLensError: one that was given cannot be used, or is not the run's.
    """
    missing = []
    name = core.provenance.get("task")
    if task is None:
        try:
            task = load_task(str(name), data_dir)
        except TaskError as error:
            missing.append(
                f"The task {name!r} was not found ({_reason(error)}), so the report does not know which splits are "
                "in domain: pass task= (--task), as to find_core."
            )
    elif not isinstance(task, Task):
        task = load_task(task, data_dir)
    if isinstance(task, Task) and name not in (None, task.name):
        raise TaskError(f"the run is on task {name!r}, but task= is {task.name!r}: pass the run's own task.")
    if isinstance(task, Task):
        _check_splits(core, task)
    bridge = None
    if model is not None:
        bridge = load_model(model, tokenizer=tokenizer, device=device)
        core.subnetworks[0].check(bridge)
    else:
        model_id = str(core.provenance.get("model", {}).get("model_id", "?"))
        try:
            bridge = model_of_run(model_id, tokenizer, device)
            core.subnetworks[0].check(bridge)
        except ModelError as error:
            bridge = None
            missing.append(
                f"The model {model_id!r} was not found ({_reason(error)}), so there are no attention patterns, "
                "ablations and attention views: pass model= (--model), the model that the run was made with."
            )
    if bridge is not None and task is None:
        missing.append("Without the task there are no attention patterns, ablations and attention views either.")
    return bridge, task, missing


def model_of_run(model_id: str, tokenizer: Any = None, device: Any = None) -> TransformerBridge:
    """The model that a run calls `model_id`.

    Raises:
        ModelError: it is not found.
    """
    # A folder is remembered by its name only; such a name is nothing to ask the hub for.
    if shipped(model_id) == model_id and not Path(model_id).is_dir() and "/" not in model_id:
        raise ModelError("the run does not say where it is")
    return load_model(model_id, tokenizer=tokenizer, device=device)


def _check_splits(core: Core, task: Task) -> None:
    known = {split.name for split in task.splits}
    for name in dict.fromkeys(core.evaluation["split"]):
        if name not in known:
            raise TaskError(
                f"the run reports the split {name!r}, which task {task.name!r} has not: pass the run's own task."
            )


def _other_examples(core: Core, task: Task) -> list[str]:
    """A note where the task's examples are not those that the run reported."""
    known = core.provenance.get("data", {})
    sizes = core.predictions["full"]["split"].value_counts() if "full" in core.predictions else {}
    differ = [
        name
        for name, fingerprint in known.items()
        if name in sizes and task.split(name).sample(int(sizes[name])).fingerprint() != fingerprint
    ]
    if not differ:
        return []
    return [
        f"the examples of {', '.join(differ)} are not those that the run reported (another fingerprint); attention and "
        "ablations are of the task's examples as they are now."
    ]


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")
