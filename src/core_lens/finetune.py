"""From a pretrained encoder or decoder to a classifier, with a checkpoint and an evaluation every so many steps."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from .errors import ModelError, TaskError
from .evaluate import check_numbers, predict_with, score
from .files import check_folder, claim_folder, read_table, versions_and_time, write_json, write_table
from .hooked import bf16_attention, shipped
from .hooked.batches import encode
from .hooked.info import hash_weights
from .subnetwork import Subnetwork
from .tasks import Split, Task, class_order, load_task
from .training import Rows, train_on, trains_on_cpu
from .weight_mask import WeightMask, without_components

PAPER_SCHEDULE = {"mnli": (61_360, 32), "qqp": (40_000, 128)}
"""(steps, batch size) of the Heuristic Core, Appendix A."""


@dataclass(frozen=True)
class FineTuned:
    """What `finetune` leaves behind.

    Args:
        folder: holds `step-<n>` folders, each loaded by `from_pretrained`, and `curve.parquet`.
        checkpoints: step -> folder.
        curve: the evaluation at every checkpoint: step, then the columns of `evaluate`.
    """

    folder: Path
    checkpoints: dict[int, Path]
    curve: pd.DataFrame

    @property
    def final(self) -> Path:
        """The folder of the last checkpoint."""
        return self.checkpoints[max(self.checkpoints)]


def finetune(
    model: str | Path | PreTrainedModel,
    task: str | Task,
    out: str | Path,
    *,
    tokenizer: Any = None,
    data_dir: str | Path | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float = 2e-5,
    warmup_steps: int = 0,
    weight_decay: float = 0.0,
    every: int = 500,
    seed: int = 42,
    bf16: bool = False,
    freeze_word_embeddings: bool = False,
    keep: Subnetwork | WeightMask | None = None,
    splits: Iterable[str] | str | None = None,
    max_examples: int | None = 1000,
    device: str | None = None,
) -> FineTuned:
    """Fine-tune a classifier and keep the whole way there.

        made = core_lens.finetune("bert-base-cased", "mnli", "runs/bert-mnli")
        core_lens.find_core(made.final, "mnli")

    Calling it again with the same folder continues after the last checkpoint.

    Args:
        model: hub id, local folder, `lab-pretrained` or HF model; one without a classification head gets a new one.
        task: name or `Task`, with a training split.
        out: folder for the checkpoints.
        tokenizer: where the model's own is not beside it.
        data_dir: as in `load_task`.
        steps: optimiser steps; None for the paper's (MNLI 61,360; QQP 40,000), or 3 epochs for other tasks.
        batch_size: None for the paper's (32; QQP 128).
        learning_rate: peak; decays linearly to 0. Adam's betas are .9 and .999.
        warmup_steps: of the learning rate.
        weight_decay: of AdamW.
        every: steps between checkpoints, each evaluated in and out of domain.
        seed: of the new head, the order of the data and dropout.
        bf16: mixed precision.
        freeze_word_embeddings: leave the word embeddings as they are (faster on a CPU).
        keep: train only this part of the model, with its mask fixed (a lottery ticket): what the mask removes is 0 from the
            first step to the last (see `without_components` for the means of a `Subnetwork`).
        splits: what to evaluate, as in `Task.select`.
        max_examples: evaluated per split; None for all.
        device: `cpu`, `cuda` or `mps`; the best there is by default.

    Raises:
        CoreLensError: the model, the task or the folder cannot be used; the message says what to change.
    """
    on_cpu = trains_on_cpu(device)
    check_numbers(steps=steps, batch_size=batch_size, every=every, max_examples=max_examples)
    if not learning_rate > 0 or warmup_steps < 0 or weight_decay < 0:
        raise TaskError(
            f"learning_rate={learning_rate}, warmup_steps={warmup_steps}, weight_decay={weight_decay}: the rate must be "
            "above 0, the others at least 0."
        )
    folder = check_folder(out)
    chosen = task if isinstance(task, Task) else load_task(task, data_dir)
    train = chosen.with_role("train")
    if not train or not len(train[0]):
        raise TaskError(f"task {chosen.name!r} has no training examples to fine-tune on: give it a train split.")
    paper_steps, paper_batch = PAPER_SCHEDULE.get(chosen.name, (None, 32))
    batch = paper_batch if batch_size is None else batch_size
    total = steps or paper_steps or -(-3 * len(train[0]) // batch)
    evaluated = [split.sample(max_examples) for split in chosen.select(splits) if split.role != "train"]
    if not evaluated:
        raise TaskError(f"splits={splits!r} leaves nothing to evaluate: name an in-domain or out-of-domain split.")
    torch.manual_seed(seed)  # the new head
    network, reader, order = new_classifier(model, tokenizer, chosen)
    source = type(model).__name__ if isinstance(model, PreTrainedModel) else str(model)
    weight_hash = hash_weights(network, source)
    mask = without_components(network, keep) if isinstance(keep, Subnetwork) else keep
    if mask is not None:
        mask.hold(network)
    claim_folder(folder, "finetune.json", {
        "model": {"source": source, "architecture": type(network).__name__, "weight_hash": weight_hash},
        "task": chosen.name, "labels": dict(zip(chosen.labels, order, strict=False)),
        "data": {split.name: split.fingerprint() for split in (train[0], *evaluated)},
        "steps": total, "batch_size": batch, "every": every, "learning_rate": learning_rate, "warmup_steps": warmup_steps,
        "weight_decay": weight_decay, "seed": seed, "bf16": bf16, "freeze_word_embeddings": freeze_word_embeddings,
        **({} if mask is None else {"kept": hash_weights(network, source)}),  # of the weights as training finds them
    })  # fmt: skip
    if not (folder / "about.json").is_file():
        write_json(folder / "about.json", versions_and_time())
    if freeze_word_embeddings:
        network.get_input_embeddings().requires_grad_(False)

    keeper = _Keeper(folder, chosen, reader, evaluated, order, every, total)
    done = {step: path for step, path in keeper.checkpoints().items() if step >= total}
    if not done:
        arguments = TrainingArguments(
            output_dir=str(folder / "resume"),
            max_steps=total,
            per_device_train_batch_size=batch,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            weight_decay=weight_decay,
            adam_beta1=0.9,
            adam_beta2=0.999,
            lr_scheduler_type="linear",
            train_sampling_strategy="group_by_length",
            save_strategy="steps",
            save_steps=every,
            save_total_limit=1,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=False,
            seed=seed,
            bf16=bf16,
            use_cpu=on_cpu,
            dataloader_pin_memory=not on_cpu,
        )
        encoded = encode(train[0], reader, chosen.max_length)
        trainer = Trainer(
            model=network,
            args=arguments,
            train_dataset=Rows(encoded, _targets(chosen, order)),
            data_collator=DataCollatorWithPadding(reader),
            callbacks=[keeper] if mask is None else [_Holder(mask, network), keeper],
        )
        with bf16_attention(network.device.type, bf16):
            train_on(trainer, folder / "resume")
        keeper.keep(network, total)
        shutil.rmtree(folder / "resume", ignore_errors=True)
    return FineTuned(folder, keeper.checkpoints(), read_table(folder / "curve.parquet"))


class _Holder(TrainerCallback):
    """Sets removed weights back to 0 after every step, so that every forward pass finds them there."""

    def __init__(self, mask: WeightMask, model: PreTrainedModel) -> None:
        self.mask, self.model = mask, model

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.mask.hold(self.model)


class _Keeper(TrainerCallback):
    """Saves and evaluates the model every so many steps."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        tokenizer: Any,
        splits: Sequence[Split],
        order: Sequence[int],
        every: int,
        total: int,
    ) -> None:
        self.folder, self.task, self.tokenizer, self.splits = folder, task, tokenizer, splits
        self.order, self.every, self.total = order, every, total

    def checkpoints(self) -> dict[int, Path]:
        """Finished checkpoints: those whose evaluation is in the curve."""
        steps = set(self._curve()["step"]) if (self.folder / "curve.parquet").is_file() else set()
        return {int(step): self.folder / f"step-{step}" for step in sorted(steps)}

    def _curve(self) -> pd.DataFrame:
        return read_table(self.folder / "curve.parquet")

    def keep(self, model: PreTrainedModel, step: int) -> None:
        """Write the checkpoint, then its rows of the curve."""
        if step in self.checkpoints():
            return
        target = self.folder / f"step-{step}"
        model.save_pretrained(target)
        self.tokenizer.save_pretrained(target)
        training = model.training
        model.eval()

        def forward(inputs: Any, rows: Tensor) -> Tensor:
            return model(**inputs).logits

        title = f"step {step}"
        table = predict_with(forward, self.tokenizer, model.device, self.task, self.splits, self.order, title)
        model.train(training)
        rows = score(table, self.task)
        rows.insert(0, "step", step)
        there = [self._curve()] if (self.folder / "curve.parquet").is_file() else []
        write_table(self.folder / "curve.parquet", pd.concat([*there, rows], ignore_index=True))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == self.total:
            self.keep(kwargs["model"], state.global_step)


def new_classifier(model: Any, tokenizer: Any, task: Task) -> tuple[PreTrainedModel, Any, Sequence[int]]:
    """The model with a head for the task's labels, its tokenizer, and its class for each label of the task.

    A head that already names the task's labels keeps its own order; any other is named, and sized, after the task.
    """
    names = dict(enumerate(task.labels)) if task.labels else {0: "value"}
    if isinstance(model, PreTrainedModel):
        if not type(model).__name__.endswith("ForSequenceClassification"):
            raise ModelError(
                f"{type(model).__name__} has no classification head: save it to a folder and pass the folder, so that a "
                "head is added."
            )
        if model.config.num_labels != len(names):
            raise ModelError(f"the model has {model.config.num_labels} outputs, task {task.name!r} needs {len(names)}.")
        network, source = copy.deepcopy(model), getattr(model.config, "_name_or_path", None)
        order = _named_order(network.config, task)
    else:
        source = str(shipped(model))
        try:
            config = AutoConfig.from_pretrained(source)
            order = _named_order(config, task)
            if order is None:
                config.num_labels = len(names)
            network = AutoModelForSequenceClassification.from_pretrained(
                source, config=config, dtype=torch.float32, use_safetensors=True, ignore_mismatched_sizes=True
            )
        except Exception as error:  # HF, safetensors and the hub raise a dozen unrelated types
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"cannot load {source!r} to fine-tune it ({first}); pass a local folder with safetensors."
            ) from error
    if order is None:
        network.config.id2label, network.config.label2id = names, {name: i for i, name in names.items()}
        order = range(len(names))
    network.config.problem_type = "single_label_classification" if task.labels else "regression"
    reader = tokenizer
    if reader is None or isinstance(reader, str | Path):
        try:
            reader = AutoTokenizer.from_pretrained(str(reader or source))
        except Exception as error:
            raise ModelError(f"no tokenizer beside {source!r}: pass tokenizer=.") from error
    if reader.pad_token is None:
        reader.pad_token = reader.eos_token
    network.config.pad_token_id = reader.pad_token_id
    return network, reader, order


def _named_order(config: Any, task: Task) -> Sequence[int] | None:
    """The class of each label, where the config names all of them."""
    try:
        return class_order(config.id2label, task)
    except TaskError:
        return None


def _targets(task: Task, order: Sequence[int]) -> np.ndarray:
    labels = task.with_role("train")[0].data["label"]
    if task.is_regression:
        return labels.to_numpy(dtype=np.float32)
    return labels.map(dict(zip(task.labels, order, strict=True))).to_numpy(dtype=np.int64)
