"""How does the cost of a step of pruning grow: with layers, heads, tokens, classes, and a subnetwork's with its passes?

python benchmarks/growth.py [--turns N] [--device D]

Small BERTs (d_model 128) with random weights, one thing varied at a time, all variants in turn. The step: the derivative of all
logits by all gates (`LinearizedPruner`); HF's forward and backward pass of the same shape stands beside it.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import ZeroActivations
from core_lens.hooked import Encoded, component_set
from core_lens.pruners import PruningProblem
from core_lens.pruners.linearized import _Search

BASE = {"layers": 4, "heads": 4, "tokens": 32, "classes": 3}
VARIED = {"layers": (2, 4, 8), "heads": (4, 8, 16), "tokens": (16, 32, 64, 128), "classes": (2, 3, 6)}
ROWS = 32


def build(shape: dict[str, int], device: str) -> tuple[PruningProblem, Callable[[], None]]:
    """The problem, and HF's forward and backward pass on its rows."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
        intermediate_size=512, max_position_embeddings=128, num_labels=shape["classes"],
    )  # fmt: skip
    plain = BertForSequenceClassification(config).to(device).eval().requires_grad_(False)
    bridge = core_lens.load_model(plain, device=device)
    ids = torch.randint(5, 1000, (ROWS * shape["tokens"],), dtype=torch.int32)
    encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), torch.full((ROWS,), shape["tokens"]), 0)
    teacher = torch.randn(ROWS, shape["classes"], device=device)
    zero = ZeroActivations(core_lens.model_info(bridge).weight_hash)
    problem = PruningProblem(bridge, component_set(bridge), zero, encoded, teacher, teacher > 0)

    def limit() -> None:
        rows = ids.view(ROWS, -1).long().to(device)
        embedded = plain.bert.embeddings.word_embeddings(rows).requires_grad_()
        plain(inputs_embeds=embedded).logits.sum().backward()

    return problem, limit


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = []
    for name, values in VARIED.items():
        made = {value: build({**BASE, name: value}, args.device) for value in values}
        step: dict[int, list[float]] = {value: [] for value in values}
        plain: dict[int, list[float]] = {value: [] for value in values}
        for _ in range(args.turns + 1):
            for value, (problem, limit) in made.items():
                step[value].append(timed(_Search(problem, torch.arange(ROWS), ROWS).linearise))
                plain[value].append(timed(limit))
        ours, theirs = ({v: statistics.median(t[1:]) for v, t in times.items()} for times in (step, plain))
        for value in values:
            first = values[0]
            rows.append((name, value, 1000 * ours[value], ours[value] / ours[first], theirs[value] / theirs[first]))
    columns = ["varied", "value", "step, ms", "step / first", "HF forward + backward / first"]
    print(f"else {BASE}, {ROWS} rows, {torch.get_num_threads()} threads, float32, median of {args.turns} turns")
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.2f}".format))
    problem = build(BASE, args.device)[0]
    seconds = {
        n: timed(lambda n=n: core_lens.LinearizedPruner(passes=n).prune(problem, 0.5, 0)) for n in (500, 1000, 2000)
    }
    print(
        f"\na subnetwork by its passes: {', '.join(f'{n}: {s / seconds[500]:.2f}' for n, s in seconds.items())} (of the first)"
    )
