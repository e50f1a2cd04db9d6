"""Make the lab's models: `python -m core_lens.lab.make [--out DIR]`.

A word-level tokenizer; a small BERT, pre-trained as a masked language model on the grammar's corpus and then fine-tuned
on its training pairs; and a GPT-2 of the same size, pre-trained causally. One thread and fixed seeds: the same machine
gives the same bits.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

from ..tasks.base import Split
from . import grammar
from .grammar import LABELS, corpus, lab_task

Batch = dict[str, Tensor]
Curve = dict[str, dict[str, dict[str, float]]]  # model -> step -> split -> accuracy
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, CLS_ID, SEP_ID, MASK_ID = (SPECIAL.index(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
MAX_LENGTH = 64


@dataclass(frozen=True)
class Settings:
    """Every constant of the recipe."""

    corpus_pairs: int = 100_000
    pretrain_steps: int = 3000
    pretrain_batch: int = 64
    pretrain_lr: float = 2e-3
    masked: float = 0.25  # share of the words that the masked language model predicts; of these,
    replaced: float = 0.4  # so many are replaced by a random word, half by [MASK], and the rest stay
    finetune_batch: int = 32
    finetune_lr: float = 4e-4
    checkpoints: tuple[int, ...] = (125, 250, 500, 1000, 1500, 2000, 2500, 3000, 4000, 5000)
    warmup_steps: int = 200
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    layers: int = 4
    heads: int = 8
    d_model: int = 64
    d_mlp: int = 256
    # Narrow matrices need larger entries than the 0.02 that suits a d_model of 768. There is no dropout.
    init_std: float = 0.05
    seed: int = 0


def make_tokenizer(pairs: pd.DataFrame, inputs: tuple[str, ...]) -> BertTokenizer:
    """A BERT tokenizer that knows every word of the pairs as one piece, and yields the named model inputs."""
    words = sorted(set(re.findall(r"\w+|[.,]", " ".join([*pairs["text_a"], *pairs["text_b"]]).lower())))
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *words])}
    return BertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH, model_input_names=list(inputs))


def encode(pairs: pd.DataFrame, tokenizer: Any) -> Batch:
    """All pairs as tensors [pairs, longest]; `labels` [pairs] index `LABELS`."""
    encoded = tokenizer(list(pairs["text_a"]), list(pairs["text_b"]), padding=True, return_tensors="pt")
    return {**encoded, "labels": torch.tensor([LABELS.index(label) for label in pairs["label"]])}


def rows(data: Batch, index: Tensor) -> Batch:
    """The rows at `index`, cut to the longest of them."""
    longest = int(data["attention_mask"][index].sum(1).max())
    return {name: value[index] if value.dim() == 1 else value[index, :longest] for name, value in data.items()}


def batches(data: Batch, size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Random batches without end, each of rows of about one length."""
    lengths, n_batches = data["attention_mask"].sum(1), 16
    while True:
        pool = torch.randint(len(lengths), (n_batches * size,), generator=generator)
        pool = pool[lengths[pool].argsort(stable=True)].view(n_batches, size)
        for i in torch.randperm(n_batches, generator=generator):
            yield rows(data, pool[i])


def mask_words(batch: Batch, n_words: int, settings: Settings, generator: torch.Generator) -> Batch:
    """Masked language modelling: labels [batch, pos] are -100 where nothing is predicted."""
    ids, draw = batch["input_ids"], torch.rand(batch["input_ids"].shape, generator=generator)
    predicted = (ids >= len(SPECIAL)) & (torch.rand(ids.shape, generator=generator) < settings.masked)
    random_words = torch.randint(len(SPECIAL), n_words, ids.shape, generator=generator)
    corrupted = torch.where(predicted & (draw < settings.replaced), random_words, ids)
    corrupted = torch.where(predicted & (draw >= 0.5), MASK_ID, corrupted)
    return {**batch, "input_ids": corrupted, "labels": torch.where(predicted, ids, -100)}


def next_words(batch: Batch) -> Batch:
    """Causal language modelling of the second sentence; the model itself shifts the labels [batch, pos].

    Nothing in the first sentence can be foretold, and with its noise in the loss nothing was learned from the rest.
    """
    ids = batch["input_ids"]
    second = ((ids == SEP_ID).cumsum(1) - (ids == SEP_ID).long() == 1) & (ids != PAD_ID)
    return {**batch, "labels": torch.where(second, ids, -100)}


def train(
    model: Any,
    source: Iterator[Batch],
    steps: int,
    lr: float,
    settings: Settings,
    name: str,
    after_step: Callable[[int], None] = lambda step: None,
) -> None:
    """`steps` of AdamW with linear warm-up and decay, on words or on labels, as the batches and the model have it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=settings.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / settings.warmup_steps) * (1 - step / steps)
    )
    model.set_attn_implementation("eager")  # on sentences this short it is the faster one
    model.train()
    progress = tqdm(range(1, steps + 1), desc=name)
    for step in progress:
        loss = model(**next(source)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}")
        after_step(step)


def save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write an HF folder: weights in float16, which keeps the package small, and a config that loads them in float32."""
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def accuracies(folder: Path, splits: list[Split]) -> dict[str, float]:
    """Split name -> accuracy of the classifier saved in `folder`."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer, result = AutoTokenizer.from_pretrained(folder), {}
    for split in splits:
        data, n = encode(split.data, tokenizer), len(split)
        gold = data.pop("labels")
        parts = [model(**rows(data, torch.arange(i, min(i + 250, n)))).logits.argmax(-1) for i in range(0, n, 250)]
        order = torch.tensor([LABELS.index(model.config.id2label[i]) for i in range(len(LABELS))])
        result[split.name] = round((order[torch.cat(parts)] == gold).float().mean().item(), 4)
    return result


def configuration(name: str, n_words: int, settings: Settings) -> Any:
    """The configuration of `lab` (BERT) or `lab-gpt2`, without dropout, with the task's label names."""
    s = settings
    shared: dict[str, Any] = {
        "vocab_size": n_words,
        "initializer_range": s.init_std,
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: i for i, label in enumerate(LABELS)},
        "pad_token_id": PAD_ID,
    }
    if name == "lab":
        return BertConfig(
            hidden_size=s.d_model,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            intermediate_size=s.d_mlp,
            max_position_embeddings=MAX_LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **shared,
        )
    sizes = {"n_embd": s.d_model, "n_layer": s.layers, "n_head": s.heads, "n_inner": s.d_mlp, "n_positions": MAX_LENGTH}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    # The same function as GPT-2's own gelu_new, but in one operation: a step takes half the time.
    activation = {"activation_function": "gelu_pytorch_tanh"}
    return GPT2Config(**sizes, **no_dropout, **activation, bos_token_id=CLS_ID, eos_token_id=SEP_ID, **shared)


def make(out: Path, settings: Settings = Settings(), models: Sequence[str] = ("lab", "lab-gpt2")) -> Curve:
    """Train, save and evaluate models under `out/weights`, and write `out/MODEL_CARD.md`.

    Args:
        out: the folder.
        settings: the recipe.
        models: which of `lab` and `lab-gpt2`.

    Returns:
        Model -> step -> split -> accuracy of the files as they lie there, also written to `out/weights/curve.json`.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    task, text, weights, curve = lab_task(), corpus(settings.corpus_pairs), out / "weights", {}
    n_words = n_parameters = 0
    for name in models:
        torch.manual_seed(settings.seed)
        generator = torch.Generator().manual_seed(settings.seed)
        # GPT-2 has no token types: it would look them up among its words.
        inputs = ("input_ids", "attention_mask", *(["token_type_ids"] if name == "lab" else []))
        tokenizer = make_tokenizer(text, inputs)
        n_words = len(tokenizer)
        config = configuration(name, n_words, settings)
        if name == "lab":
            language_model, classifier = BertForMaskedLM(config), BertForSequenceClassification(config)
            prepare = partial(mask_words, n_words=n_words, settings=settings, generator=generator)
        else:
            language_model, classifier = GPT2LMHeadModel(config), GPT2ForSequenceClassification(config)
            prepare = next_words
        source = map(prepare, batches(encode(text, tokenizer), settings.pretrain_batch, generator))
        train(language_model, source, settings.pretrain_steps, settings.pretrain_lr, settings, f"{name}: words")
        if name == "lab":
            n_parameters = classifier.num_parameters()
            save(language_model, tokenizer, weights / "lab-pretrained")
        body = language_model.base_model.state_dict()
        classifier.base_model.load_state_dict(body, strict=False)  # BERT's pooler is new

        def keep(step: int, name: str = name, model: Any = classifier, tokenizer: Any = tokenizer) -> None:
            last = step == settings.checkpoints[-1]
            if last or (name == "lab" and step in settings.checkpoints):
                folder = save(model, tokenizer, weights / (name if last else f"{name}-step-{step}"))
                curve.setdefault(name, {})[str(step)] = accuracies(folder, task.select())

        source = batches(encode(task.split("train").data, tokenizer), settings.finetune_batch, generator)
        train(classifier, source, settings.checkpoints[-1], settings.finetune_lr, settings, f"{name}: labels", keep)
    (weights / "curve.json").write_text(json.dumps(curve, indent=1) + "\n")
    (out / "MODEL_CARD.md").write_text(model_card(curve, settings, n_words, n_parameters))
    return curve


def model_card(curve: Curve, settings: Settings, n_words: int, n_parameters: int) -> str:
    """The text of `card_template.md` with the numbers of this run."""
    task = lab_task()
    ood, companions = ([split.name for split in task.with_role(role)] for role in ("ood", "companion"))
    columns = ["model", "step", "dev", "OOD, mean", *ood, "companions, mean"]
    table = [columns, ["---"] * len(columns)]
    for name, step, scores in ((name, step, steps[step]) for name, steps in curve.items() for step in steps):
        means = [sum(scores[split] for split in group) / len(group) for group in (ood, companions)]
        values = [scores["dev"], means[0], *(scores[split] for split in ood), means[1]]
        table.append([name, step, *(f"{value:.3f}" for value in values)])
    constants = [["setting", "value"], ["---", "---"], *([key, str(value)] for key, value in asdict(settings).items())]
    numbers = {
        "curve": _markdown(table),
        "settings": _markdown(constants),
        "size": f"{settings.layers} layers x {settings.heads} heads, d_model {settings.d_model}, {n_parameters:,} parameters",
        "words": n_words,
        "length": MAX_LENGTH,
        "train": f"{grammar.N_TRAIN:,}",
        "dev": f"{grammar.N_DEV:,}",
        "evaluation": grammar.N_EVALUATION,
        "share": grammar.COUNTEREXAMPLE_SHARE,
        "corpus_share": grammar.CORPUS_SHARE,
    }
    return (Path(__file__).parent / "card_template.md").read_text().format(**numbers)


def _markdown(table: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the lab's models, their curve and their card.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for weights/ and MODEL_CARD.md")
    make(parser.parse_args().out)
