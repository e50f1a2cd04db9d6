"""Small tasks and hooked models that several tests share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from core_lens.ablation import MeanActivations, fit_means
from core_lens.hooked import batches, component_set, encode, load_model, logits
from core_lens.pruners import PruningProblem
from core_lens.tasks import Split, Task
from tiny_models import LABELS, WORDS, tiny_model, tiny_tokenizer

ALIVE = ("L0.H2", "L1.H1", "L1.MLP")


def frame(n: int, seed: int = 0, labels: tuple[str, ...] = LABELS) -> pd.DataFrame:
    """Random sentence pairs of 2 to 8 words."""
    rng = np.random.default_rng(seed)

    def sentence() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(2, 9)))

    rows = [(sentence(), sentence(), labels[rng.integers(len(labels))]) for _ in range(n)]
    data = pd.DataFrame(rows, columns=["text_a", "text_b", "label"])
    return data.assign(group="all", cluster=data["text_a"])


def random_task(n: int = 60) -> Task:
    """Three labels; an in-domain split and two out-of-domain ones that are each other's companion, collapsed as HANS is."""
    collapse = {"neutral": "non-entailment", "contradiction": "non-entailment"}
    hard = frame(n, 2).assign(label="non-entailment", group=["a", "b"] * (n // 2))
    easy = frame(n, 3).assign(label="entailment")
    return Task(
        "random",
        LABELS,
        (
            Split("train", "train", frame(2 * n, 0)),
            Split("dev", "id", frame(n, 1)),
            Split("hard", "ood", hard, collapse, companion="easy"),
            Split("easy", "companion", easy, collapse, companion="hard"),
        ),
    )


def hooked(arch: str = "bert", **shape: int) -> TransformerBridge:
    return load_model(tiny_model(arch, **shape), tokenizer=tiny_tokenizer(arch))


def means_of(model: TransformerBridge, n: int = 40) -> MeanActivations:
    encoded = encode(Split("train", "train", frame(n)), model.tokenizer)
    return fit_means(model, batches(encoded, 16))


def planted(alive: tuple[str, ...] = ALIVE, scale: float = 4.0) -> TransformerBridge:
    """2 layers x 4 heads whose units outside `alive` write nothing to the residual stream."""
    model = tiny_model("bert", n_heads=4)
    with torch.no_grad():
        for i, layer in enumerate(model.bert.encoder.layer):
            out = layer.attention.output.dense.weight
            for head in range(4):
                out[:, 4 * head : 4 * head + 4] *= 4.0 if f"L{i}.H{head}" in alive else 0.0
            layer.output.dense.weight *= 2.0 if f"L{i}.MLP" in alive else 0.0
        model.classifier.weight *= scale  # so that what they write matters
    return load_model(model, tokenizer=tiny_tokenizer("bert"))


def problem(model: TransformerBridge, n: int = 128) -> PruningProblem:
    data = frame(n)
    encoded = encode(Split("train", "train", data), model.tokenizer)
    teacher = torch.empty(n, 3)
    with torch.no_grad():
        for rows, inputs in batches(encoded, 32):
            teacher[rows] = logits(model, inputs)
    gold = torch.from_numpy(data["label"].to_numpy(dtype=object)[:, None] == np.array(LABELS, dtype=object))
    return PruningProblem(model, component_set(model), means_of(model), encoded, teacher, gold)
