"""How near is a step of pruning to the limit? Examples per second at BERT-base's shape, variants in turn in one process.

python benchmarks/step.py [--layers N] [--batches N] [--turns N] [--bf16] [--compile] [--device D]

Random weights; rows of random tokens as long as MNLI-dev's pairs are. The limit is HF's own forward and backward pass with
frozen weights, the embeddings' output wanting a gradient, on the same batches of rows of like length. `paper` does what the
published code does in a step: padding to 128 tokens, the full model's forward pass each time, dropout, one draw for a batch.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import ZeroActivations
from core_lens.gates import Gates, inject
from core_lens.hooked import Encoded, batches, bf16_autocast, component_set, logits
from core_lens.pruners import PruningProblem, divergence
from core_lens.pruners.linearized import _Search

LENGTHS = (6, 15, 18, 21, 23, 26, 28, 30, 32, 34, 36, 38, 41, 43, 46, 49, 53, 57, 63, 72, 128)
"""MNLI-dev's pairs in tokens of BERT's uncased tokenizer: the 0, 5, ..., 100 % quantiles, cut at 128."""
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true", help="HF's model through torch.compile too")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    n = BATCH * args.batches
    lengths = torch.from_numpy(np.quantile(LENGTHS, rng.random(n)).round().astype(int))
    ids = torch.from_numpy(rng.integers(5, 30_000, int(lengths.sum())).astype(np.int32))
    encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), lengths, 0)
    plain = (
        BertForSequenceClassification(BertConfig(num_labels=3, num_hidden_layers=args.layers)).to(args.device).eval()
    )
    plain.requires_grad_(False)
    model = core_lens.load_model(plain, device=args.device)
    units = component_set(model)
    zero = ZeroActivations(core_lens.model_info(model).weight_hash)
    teacher = torch.randn(n, 3, device=args.device)
    problem = PruningProblem(model, units, zero, encoded, teacher, teacher > 0, autocast=args.bf16)
    gates = Gates(units, init=2.0).to(args.device)
    optimizer = torch.optim.AdamW(gates.parameters(), lr=0.1)
    modules = [*model.modules(), *model.original_model.modules()]

    def autocast() -> object:
        return bf16_autocast(torch.device(args.device).type, args.bf16)

    def limit(net: torch.nn.Module) -> Callable[[], None]:
        def run() -> None:
            for rows, inputs in batches(encoded, BATCH, device=args.device):
                with autocast():
                    embedded = plain.bert.embeddings.word_embeddings(inputs["input_ids"]).requires_grad_()
                    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
                    out = net(inputs_embeds=embedded, **rest).logits.float()
                divergence(teacher[rows], out).mean().backward()

        return run

    def gated(paper: bool) -> Callable[[], None]:
        def run() -> None:
            for module in modules:
                module.training = paper
            with inject(model, units, zero) as gate:
                for rows, inputs in batches(encoded, BATCH, pad_to=128 if paper else None, device=args.device):
                    target = teacher[rows]
                    if paper:
                        gate.z = torch.ones(len(units), device=args.device)
                        with torch.no_grad(), autocast():
                            target = logits(model, inputs).float()
                    gate.z = gates.sample(n=None if paper else len(rows))
                    with autocast():
                        out = logits(model, inputs).float()
                    (divergence(target, out).mean() + gate.z.mean()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            for module in modules:
                module.training = False

        return run

    def linearise() -> None:
        _Search(problem, torch.arange(n), BATCH).linearise()

    variants: dict[str, tuple[Callable[[], None], int]] = {
        "HF forward + backward (the limit)": (limit(plain), 2),
        "hard-concrete, fast": (gated(False), 2),
        "linearized (forward, two backward)": (linearise, 3),
        "paper (pad to 128, teacher, dropout)": (gated(True), 3),
    }
    if args.compile:
        variants["HF, torch.compile"] = (limit(torch.compile(plain, dynamic=True)), 2)  # pyright: ignore[reportArgumentType]
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(args.turns + 1):
        for name, (run, _) in variants.items():
            start = time.perf_counter()
            run()
            if args.device != "cpu":
                torch.cuda.synchronize()
            if turn:  # the first pays for set-up
                seconds[name].append(time.perf_counter() - start)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    best, paper = middle["HF forward + backward (the limit)"], middle["paper (pad to 128, teacher, dropout)"]
    table = pd.DataFrame(
        [
            {"step": name, "examples/s": n / middle[name], "time / limit": middle[name] / best,
             "time / limit, a pass": middle[name] / passes / (best / 2), "speed / paper": paper / middle[name]}
            for name, (_, passes) in variants.items()
        ]
    )  # fmt: skip
    kind = "bfloat16" if args.bf16 else "float32"
    rows = f"{n} rows of {float(lengths.float().mean()):.0f} tokens, batches of {BATCH}"
    print(
        f"{args.layers} layers x 12 heads, {rows}, {kind}, {torch.get_num_threads()} threads, median of {args.turns} turns"
    )
    print(table.to_string(index=False, float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
