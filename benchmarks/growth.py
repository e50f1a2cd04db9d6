"""How does the cost of a step of pruning grow with layers, heads, tokens and classes, and that of pruning with seeds?

OMP_NUM_THREADS=1 python benchmarks/growth.py [--turns N] [--passes N] [--device D]

Small BERTs (d_model 128) with random weights, one thing varied at a time, its values in turn. The step: the derivatives of all
logits by all gates (`LinearizedPruner`), per example; pruning: `LinearizedPruner.prune` once for each seed. HF's forward and
backward pass of the same shape stands beside both, with frozen weights, the embeddings' output wanting a gradient.
"""

import argparse
import contextlib
import io
import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import ZeroActivations
from core_lens.hooked import Encoded, batches, component_set
from core_lens.pruners import PruningProblem
from core_lens.pruners.linearized import _Search

BASE = {"layers": 4, "heads": 4, "tokens": 32, "classes": 3}
VARIED = {"layers": (2, 4, 8), "heads": (4, 8, 16), "tokens": (16, 32, 64, 128), "classes": (2, 3, 6)}
SEEDS = (1, 2, 4)
ROWS = 32


def build(shape: dict[str, int], device: str) -> tuple[PruningProblem, Callable[[], object]]:
    """The problem, and HF's forward and backward pass on its rows."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
        intermediate_size=512, max_position_embeddings=128, num_labels=shape["classes"],
    )  # fmt: skip
    plain = BertForSequenceClassification(config).to(device).eval().requires_grad_(False)  # pyright: ignore[reportArgumentType]
    bridge = core_lens.load_model(plain, device=device)
    plain.bert.embeddings.register_forward_hook(lambda module, given, output: output.requires_grad_())
    ids = torch.randint(5, 1000, (ROWS * shape["tokens"],), dtype=torch.int32)
    encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), torch.full((ROWS,), shape["tokens"]), 0)
    teacher = torch.randn(ROWS, shape["classes"], device=device)
    zero = ZeroActivations(core_lens.model_info(bridge).weight_hash)
    problem = PruningProblem(bridge, component_set(bridge), zero, encoded, teacher, teacher > 0)

    def limit() -> None:
        for _, inputs in batches(encoded, ROWS, device=device):
            plain(**inputs).logits.sum().backward()

    return problem, limit


def timed(run: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    name: str, runs: dict[int, tuple[Callable[[], object], Callable[[], object]]], turns: int, device: str
) -> pd.DataFrame:
    """Median milliseconds an example of ours and HF's at each value, and both relative to the first value's."""
    seconds: dict[tuple[int, int], list[float]] = {(value, side): [] for value in runs for side in (0, 1)}
    for turn in range(turns + 1):
        for value, side in list(seconds)[:: 1 if turn % 2 == 0 else -1]:
            took = timed(runs[value][side], device)
            if turn:  # the first pays for set-up
                seconds[value, side].append(took)
    middle = {key: 1000 * statistics.median(values) / ROWS for key, values in seconds.items()}
    first = next(iter(runs))
    rows = [
        (name, value, middle[value, 0], middle[value, 0] / middle[first, 0], middle[value, 1],
         middle[value, 1] / middle[first, 1], middle[value, 0] / middle[value, 1])
        for value in runs
    ]  # fmt: skip
    return pd.DataFrame(
        rows,
        columns=["varied", "value", "ours, ms an example", "/ first", "HF, ms an example", "HF / first", "ours / HF"],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--passes", type=int, default=500, help="of a subnetwork, where seeds vary")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    tables = []
    for name, values in VARIED.items():
        made = {value: build({**BASE, name: value}, args.device) for value in values}
        runs = {
            v: (_Search(problem, torch.arange(ROWS), ROWS).linearise, limit) for v, (problem, limit) in made.items()
        }
        tables.append(compare(name, runs, args.turns, args.device))
    problem, limit = build(BASE, args.device)
    pruner = core_lens.LinearizedPruner(passes=args.passes, batch_size=ROWS)

    def times(n: int) -> tuple[Callable[[], object], Callable[[], object]]:
        return lambda: [pruner.prune(problem, 0.5, seed) for seed in range(n)], lambda: [limit() for _ in range(n)]

    with contextlib.redirect_stderr(io.StringIO()):  # no progress bars
        seeds = compare("seeds", {n: times(n) for n in SEEDS}, args.turns, args.device)
    seeds = seeds.drop(columns="ours / HF")
    print(
        f"d_model 128, else {BASE}, {ROWS} rows, float32, {args.device}, {torch.get_num_threads()} threads, "
        f"median of {args.turns} turns"
    )
    print(pd.concat(tables).to_string(index=False, float_format="{:.3g}".format))
    print(f"\nall of LinearizedPruner(passes={args.passes}).prune for each seed; HF's pass as many times")
    print(seeds.to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
