"""Train the Dyck language model that comes with the package, and score it: `python -m core_lens.dyck.make`.

Friedman et al. train 100,000 steps with an inverse square root decay; this schedule is shorter, so that it ends within 20
minutes on one thread of a CPU, and decays to 0. An interrupted run goes on where it was. One thread and fixed seeds: the same
machine gives the same bits.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import pandas as pd
import torch
from datasets import DatasetDict, load_from_disk
from transformers import GPT2LMHeadModel

from ..completions import read_rows
from ..generalization import compare_proxies
from ..hooked import load_language_model
from ..language_model import small_gpt2, train_language_model
from .data import Dyck, splits
from .questions import completions

LANGUAGE = Dyck()
STEPS, BATCH, LEARNING_RATE, WARMUP = 20_000, 128, 5e-3, 1000
HERE = Path(__file__).parent


def data_in(folder: Path) -> DatasetDict:
    """The splits, drawn once and then read from there."""
    if not (folder / "dataset_dict.json").is_file():
        splits().save_to_disk(folder)
    found = load_from_disk(folder)
    assert isinstance(found, DatasetDict)
    return found


def new_model() -> GPT2LMHeadModel:
    return small_gpt2(LANGUAGE.n_tokens, n_layers=2, n_heads=1, d_model=32, length=LANGUAGE.max_length + 2)


def train(data: DatasetDict, folder: Path, steps: int = STEPS) -> Path:
    """The folder of a trained model, under `folder`."""
    model = new_model()
    settings = {"batch_size": BATCH, "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP}
    rows = read_rows(load_language_model(model), data["train"], None)
    return train_language_model(model, rows, folder, steps=steps, device="cpu", **settings)


def scores(model: Path, data: DatasetDict) -> pd.DataFrame:
    """Accuracy on each test split, with 95 % intervals over strings."""
    found = compare_proxies(load_language_model(model, device="cpu"), {}, completions(data), max_examples=None)
    return found.agreement()[["split", "value", "low", "high", "n"]]


def card(table: pd.DataFrame, minutes: float, steps: int) -> str:
    """The text of the model card."""
    rows = table.itertuples()
    lines = [f"| {r.split} | {r.value:.4f} | {r.low:.4f} to {r.high:.4f} | {r.n:,} |" for r in rows]
    return f"""# The Dyck model

A causal language model of Dyck-({LANGUAGE.k}, {LANGUAGE.m}), after Friedman et al. 2024: GPT-2's architecture (pre-LN),
2 layers of 1 head, d_model 32, MLPs of 128, learned absolute positions up to {LANGUAGE.max_length + 2}, no dropout;
{new_model().num_parameters():,} parameters, in float32.

Made by `python -m core_lens.dyck.make`: {steps:,} steps of {BATCH} strings out of 200,000, AdamW (.9, .999, eps 1e-7,
weight decay 1e-4), linear warm-up over {WARMUP:,} steps to {LEARNING_RATE:g}, cosine decay to 0, gradients clipped to
norm 1. The paper: 100,000 steps, warm-up over 10,000, inverse square root decay. Training took {minutes:.1f} minutes of one
thread of a CPU.

Accuracy: the arg max over closing brackets, given the true prefix, at closings at least 10 tokens from their opener.

| split | accuracy | 95 % interval (strings) | closings |
|---|---|---|---|
{chr(10).join(lines)}

Only for experiments: it knows nothing but brackets.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/dyck"), help="for the data and the training")
    parser.add_argument("--out", type=Path, default=HERE, help="gets weights/ and MODEL_CARD.md")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = data_in(args.folder / "data")
    start = time.process_time()
    trained = train(data, args.folder / "training", args.steps)
    minutes = (time.process_time() - start) / 60
    table = scores(trained, data)
    print(table.round(4).to_string(index=False))
    print(f"trained in {minutes:.1f} minutes of one thread, if it was not interrupted")
    (args.out / "weights").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(trained / name, args.out / "weights" / name)
    (args.out / "MODEL_CARD.md").write_text(card(table, minutes, args.steps), encoding="utf-8")


if __name__ == "__main__":
    main()
