"""How much memory does `find_core` need beside HF's own forward and backward pass? BERT-base, each in a process of its own.

OMP_NUM_THREADS=1 python benchmarks/memory.py [--batch-size N] [--length N] [--device D]

Plain: frozen weights, the embeddings' output wants a gradient, one batch. `find_core`: a whole run of its default pruner, means
and evaluation included, on random texts as long; its `sample` is one batch, so that its batches are as large as the plain one.
Peak resident memory, or what CUDA allocated there.
"""

import argparse
import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import core_lens

WORDS = tuple(f"w{i}" for i in range(995))
LABELS = ("entailment", "neutral", "contradiction")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token for a word, in BERT's frame."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab = {word: i for i, word in enumerate((*special, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def frame(n: int, length: int, seed: int) -> pd.DataFrame:
    """Texts of `length` tokens, [CLS] and [SEP] included."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, length - 2)) for _ in range(n)]
    return pd.DataFrame({"text": texts, "label": rng.choice(LABELS, n)})


def measure(what: str, batch_size: int, length: int, device: str) -> float:
    """MiB at the peak."""
    torch.manual_seed(0)
    names = dict(enumerate(LABELS))
    config = BertConfig(num_labels=3, id2label=names, label2id={name: i for i, name in names.items()})
    model = BertForSequenceClassification(config).eval().requires_grad_(False)
    if what != "find_core":
        model.to(device)  # pyright: ignore[reportArgumentType]
    if what == "plain":
        model.bert.embeddings.register_forward_hook(lambda module, given, output: output.requires_grad_())
        ids = torch.randint(5, 1000, (batch_size, length), device=device)
        model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    elif what == "find_core":
        bridge = core_lens.load_model(model, tokenizer=word_tokenizer(), device=device)
        del model
        data = {"train": frame(batch_size, length, 0), "id": frame(batch_size, length, 1)}
        task = core_lens.Task.from_dataframes("random", **data, text="text", labels=LABELS, max_length=length)
        pruner = core_lens.LinearizedPruner(passes=100, sample=batch_size, batch_size=batch_size)
        core_lens.find_core(bridge, task, [0.1], 1, pruner, device=device, batch_size=batch_size)
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", choices=("model", "plain", "find_core"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(args.measure, args.batch_size, args.length, args.device))
        return
    given = ["--batch-size", str(args.batch_size), "--length", str(args.length), "--device", args.device]
    peak = {}
    for what in ("model", "plain", "find_core"):
        done = subprocess.run([sys.executable, __file__, *given, "--measure", what], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"the process that measures {what} failed (exit status {done.returncode}).")
        peak[what] = float(done.stdout.split()[-1])
    kind = "allocated" if args.device != "cpu" else "resident"
    print(
        f"BERT-base, {args.batch_size} rows of {args.length} tokens, float32, {args.device}, {torch.get_num_threads()} threads"
    )
    rows = [(what, value, value - peak["model"], value / peak["plain"]) for what, value in peak.items()]
    columns = ["process", f"peak {kind}, MiB", "less the model alone", "peak / plain"]
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.2f}".format))
    print(f"find_core / plain = {peak['find_core'] / peak['plain']:.2f}")


if __name__ == "__main__":
    main()
