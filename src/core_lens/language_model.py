"""A small causal language model, trained from nothing on token sequences."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from .errors import CoreLensError, ModelError
from .evaluate import check_numbers
from .files import check_folder, claim_folder, versions_and_time, write_json
from .hooked import LANGUAGE_MODELS, Encoded, bf16_attention
from .hooked.batches import batch_rows
from .hooked.info import hash_weights
from .training import Rows, train_on, trains_on_cpu


def small_gpt2(n_tokens: int, n_layers: int, n_heads: int, d_model: int, length: int, seed: int = 0) -> GPT2LMHeadModel:
    """A GPT-2 of the given size with random weights, without dropout.

    Args:
        n_tokens: of the vocabulary.
        n_layers, n_heads: blocks, and heads in each.
        d_model: width of the residual stream; MLPs are four times as wide.
        length: longest sequence.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    no_dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes: dict[str, Any] = {"n_embd": d_model, "n_layer": n_layers, "n_head": n_heads, "n_positions": length}
    # The same function as GPT-2's own gelu_new, but in one operation.
    activation: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh"}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=n_tokens, **sizes, **no_dropout, **activation, bos_token_id=None, eos_token_id=None)
    )


def train_language_model(
    model: PreTrainedModel,
    sequences: Encoded,
    out: str | Path,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    warmup_steps: int,
    weight_decay: float = 1e-4,
    adam_epsilon: float = 1e-7,
    every: int = 1000,
    seed: int = 0,
    bf16: bool = False,
    device: str | None = None,
    look: Callable[[PreTrainedModel, int], None] | None = None,
) -> Path:
    """Train a model to predict the next token of every sequence: AdamW, linear warm-up, cosine decay.

    Calling it again with the same folder continues where it was interrupted, at the last multiple of `every`.

    Args:
        model: GPT-2, Llama or Qwen2, with the weights to start from. It is trained in place, unless the folder has it trained.
        sequences: of token ids; batches are padded, and hold sequences of like length.
        out: folder; gets `model/`.
        steps, batch_size: optimiser steps, and sequences of each.
        learning_rate, warmup_steps: the peak, and the steps to it.
        weight_decay, adam_epsilon: of AdamW; the betas are .9 and .999.
        every: steps between two states to resume from.
        seed: of the order of the sequences.
        bf16: mixed precision.
        device: `cpu`, `cuda` or `mps`; the best there is by default.
        look: called with the model and the step as often as a state is saved.

    Returns:
        The folder of the trained model.

    Raises:
        CoreLensError: a value is impossible, or the folder holds another training.
    """
    check_numbers(steps=steps, batch_size=batch_size, every=every)
    if not learning_rate > 0 or warmup_steps < 0:
        raise CoreLensError(
            f"learning_rate={learning_rate}, warmup_steps={warmup_steps}: they must be above 0, and at least 0."
        )
    if not weight_decay >= 0 or not adam_epsilon > 0 or not isinstance(seed, int) or seed < 0:
        raise CoreLensError(
            f"weight_decay={weight_decay}, adam_epsilon={adam_epsilon}, seed={seed}: they must be at least 0, above 0, and a "
            "whole number of at least 0."
        )
    if type(model).__name__ not in LANGUAGE_MODELS:
        raise ModelError(f"{type(model).__name__} is no language model: pass one of {', '.join(LANGUAGE_MODELS)}.")
    if not len(sequences):
        raise CoreLensError("there are no sequences of token ids to train on.")
    longest = int(model.config.max_position_embeddings)
    if int(sequences.lengths.max()) > longest:
        raise ModelError(f"a sequence has {int(sequences.lengths.max())} tokens, the model takes {longest}: cut it.")
    ends = int(sequences.ids.min()), int(sequences.ids.max())
    if bad := [token for token in ends if not 0 <= token < model.config.vocab_size]:
        raise ModelError(f"a sequence has the token id {bad[0]}; the model knows 0 to {model.config.vocab_size - 1}.")
    on_cpu = trains_on_cpu(device)
    folder = check_folder(out)
    claim_folder(folder, "training.json", {
        "architecture": type(model).__name__, "config": model.config.to_diff_dict(),
        "weights": hash_weights(model, "the model"),
        "data": sequences.fingerprint(),
        "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "warmup_steps": warmup_steps,
        "weight_decay": weight_decay, "adam_epsilon": adam_epsilon, "seed": seed, "bf16": bf16,
    })  # fmt: skip
    done = folder / "model"
    if (folder / "about.json").is_file() and done.is_dir():
        return done
    arguments = TrainingArguments(
        output_dir=str(folder / "resume"), max_steps=steps, per_device_train_batch_size=batch_size,
        learning_rate=learning_rate, warmup_steps=warmup_steps, weight_decay=weight_decay, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=adam_epsilon, lr_scheduler_type="cosine",
        save_strategy="steps", save_steps=every, save_total_limit=1, logging_strategy="no", report_to="none",
        disable_tqdm=False, seed=seed, bf16=bf16, use_cpu=on_cpu, dataloader_pin_memory=not on_cpu,
    )  # fmt: skip
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(sequences),
        data_collator=lambda rows: _padded(rows, sequences.pad_id),
        callbacks=[] if look is None else [_Looker(look, every, steps)],
    )
    with bf16_attention(model.device.type, bf16):
        train_on(trainer, folder / "resume")
    model.save_pretrained(done)
    write_json(folder / "about.json", versions_and_time())
    shutil.rmtree(folder / "resume", ignore_errors=True)
    return done


class _Trainer(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        assert isinstance(self.train_dataset, Rows)
        return _Order(self.train_dataset.encoded.lengths, self.args.train_batch_size, self.args.seed)


class _Order(torch.utils.data.Sampler):
    """Rows so that every batch holds sequences of like length, and that batches of all lengths alternate.

    The Trainer's own `group_by_length` goes from long to short over and over; after the same steps such a model of Dyck
    strings has half the accuracy.
    """

    def __init__(self, lengths: Tensor, batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def __len__(self) -> int:
        # What is left over would shift the batches behind it; each epoch leaves out other rows.
        return max(len(self.lengths) // self.batch_size, 1) * min(self.batch_size, len(self.lengths))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        seed = self.seed + 1_000_003 * self.epoch
        kept = torch.randperm(len(self.lengths), generator=torch.Generator().manual_seed(seed))[: len(self)]
        for rows in batch_rows(kept, self.lengths, self.batch_size, seed):
            yield from rows.tolist()


def _padded(rows: list[dict[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """A batch; padding is no target."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), longest), pad_id)
    labels = torch.full((len(rows), longest), -100)
    for i, row in enumerate(rows):
        tokens = torch.tensor(row["input_ids"])
        ids[i, : len(tokens)] = labels[i, : len(tokens)] = tokens
    # Behind the last token of a causal model: nothing real attends to padding.
    return {"input_ids": ids, "labels": labels}


class _Looker(TrainerCallback):
    """Calls a function with the model every so many steps, and at the end."""

    def __init__(self, look: Callable[[PreTrainedModel, int], None], every: int, total: int) -> None:
        self.look, self.every, self.total = look, every, total

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == self.total:
            model = kwargs["model"]
            model.eval()
            with torch.inference_mode():
                self.look(model, state.global_step)
            model.train()
