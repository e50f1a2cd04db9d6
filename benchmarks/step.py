"""How near is a step of pruning to the limit? Examples per second at BERT-base's shape, variants in turn in one process.

OMP_NUM_THREADS=1 python benchmarks/step.py [--batch-size N] [--batches N] [--turns N] [--bf16] [--compile] [--neurosurgeon]
    [--device D]

Random weights, 3 classes; rows of random tokens as long as MNLI-dev's pairs are. `plain` is the limit: HF's forward and
backward pass with frozen weights, the embeddings' output wanting a gradient, on batches of rows of like length padded to their
longest. `gates` is hard-concrete's fast step, `linearise` that of `LinearizedPruner`; `paper` is the published step: padding to
128 tokens, the full model's forward pass each time, dropout, one draw for a batch, a Lagrangian. NeuroSurgeon masks the neurons
of the value and the MLP's output layers, one draw for a batch: other and far more masks, on weights instead of activations.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import ZeroActivations
from core_lens.gates import Gates, inject
from core_lens.hooked import Encoded, batches, bf16_autocast, component_set, logits
from core_lens.pruners import PruningProblem, divergence
from core_lens.pruners.hard_concrete import _mode, _project
from core_lens.pruners.linearized import _Search

LENGTHS = (6, 15, 18, 21, 23, 26, 28, 30, 32, 34, 36, 38, 41, 43, 46, 49, 53, 57, 63, 72, 128)
"""MNLI-dev's pairs in tokens of BERT's uncased tokenizer: the 0, 5, ..., 100 % quantiles; the last, 237, is cut at 128."""
SPARSITY = 0.5


def bert() -> BertForSequenceClassification:
    """BERT-base with the same random weights each time, frozen."""
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(num_labels=3)).eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="forward passes under autocast")
    parser.add_argument("--compile", action="store_true", help="HF's model through torch.compile too")
    parser.add_argument("--neurosurgeon", action="store_true", help="NeuroSurgeon's hard concrete masks too")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device, n = torch.device(args.device), args.batch_size * args.batches
    rng = np.random.default_rng(0)
    lengths = torch.from_numpy(np.quantile(LENGTHS, rng.random(n)).round().astype(int))
    ids = torch.from_numpy(rng.integers(5, 30_000, int(lengths.sum())).astype(np.int32))
    encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), lengths, 0)

    plain = bert().to(device)  # pyright: ignore[reportArgumentType]
    model = core_lens.load_model(plain, device=device)
    plain.bert.embeddings.register_forward_hook(lambda module, given, output: output.requires_grad_())
    units, zero = component_set(model), ZeroActivations(core_lens.model_info(model).weight_hash)
    teacher = torch.randn(n, 3, device=device)
    problem = PruningProblem(model, units, zero, encoded, teacher, teacher > 0, autocast=args.bf16)

    def cut(pad_to: int | None = None):
        return batches(encoded, args.batch_size, pad_to=pad_to, device=device)

    def precision() -> AbstractContextManager[None]:
        return bf16_autocast(device.type, args.bf16)

    def limit(net: Callable[..., object]) -> Callable[[], None]:
        def run() -> None:
            for rows, inputs in cut():
                with precision():
                    output = net(**inputs).logits.float()  # pyright: ignore[reportAttributeAccessIssue]
                divergence(teacher[rows], output).mean().backward()

        return run

    def gated() -> Callable[[], None]:
        gates = Gates(units, init=2.0, std=1.0).to(device)
        optimizer = torch.optim.AdamW(gates.parameters(), lr=0.2, weight_decay=0)

        def run() -> None:
            with inject(model, units, zero) as gate:
                for rows, inputs in cut():
                    gate.z, gate.rows = gates.sample(n=len(rows)), rows
                    with precision():
                        output = logits(model, inputs)
                    problem.divergence(output, rows).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    _project(gates, SPARSITY)

        return run

    def published() -> Callable[[], None]:
        gates = Gates(units).to(device)
        lambdas = torch.nn.Parameter(torch.zeros(2, device=device))
        groups = [{"params": [gates.log_alpha], "lr": 0.1}, {"params": [lambdas], "lr": 1.0, "maximize": True}]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01)

        def run() -> None:
            with inject(model, units, zero) as gate, _mode(model, True, 0):
                for rows, inputs in cut(pad_to=128):
                    with torch.no_grad(), precision():
                        target = plain(**inputs).logits.float()
                    gate.z, gate.rows = gates.sample(), rows
                    with precision():
                        output = logits(model, inputs).float()
                    gap = SPARSITY - (1 - gate.z.mean())
                    loss = divergence(target, output).mean() + lambdas[0] * gap + lambdas[1] * gap.square()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()

        return run

    def neurosurgeon() -> Callable[[], None]:
        from NeuroSurgeon.Models.circuit_model import CircuitModel  # pyright: ignore[reportMissingImports]
        from NeuroSurgeon.Models.model_configs import CircuitConfig  # pyright: ignore[reportMissingImports]

        ends = ("attention.self.value", "output.dense")
        net = bert()
        names = [name for name, _ in net.named_modules() if name.endswith(ends) and "attention.output" not in name]
        settings = {"ablation": "none", "mask_unit": "neuron", "mask_bias": False, "mask_init_percentage": 0.9}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            masked = CircuitModel(CircuitConfig("hard_concrete", settings, names), net).to(device)
        optimizer = torch.optim.AdamW([p for p in masked.parameters() if p.requires_grad], lr=0.1)

        def run() -> None:
            for rows, inputs in cut():
                with precision():
                    loss = masked(**inputs, labels=teacher[rows].argmax(dim=-1)).loss  # with its own L0 penalty
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        return run

    # Passes: each forward or backward of all rows counts as one.
    variants: dict[str, tuple[Callable[[], None], int]] = {
        "plain: HF forward, backward": (limit(plain), 2),
        "gates: forward, backward, Adam": (gated(), 2),
        "linearise: forward, 2 backward": (lambda: _Search(problem, torch.arange(n), args.batch_size).linearise(), 3),
        "paper: teacher, forward, backward": (published(), 3),
    }
    extra: dict[str, Callable[[], Callable[[], None]]] = {}
    if args.neurosurgeon:
        extra["NeuroSurgeon: forward, backward, Adam"] = neurosurgeon
    if args.compile:
        extra["plain through torch.compile"] = lambda: limit(torch.compile(plain, dynamic=True))
    for name, make in extra.items():
        try:
            run = make()
            run()
        except ImportError as error:
            print(f"Left out, {name}: {error}; install it with pip install --no-deps NeuroSurgeon.")
        except Exception as error:  # whatever the compiler or the other package raises here
            reason = (str(error).strip().splitlines() or [""])[0]
            print(f"Left out, {name}: it fails here with {type(error).__name__}: {reason}")
        else:
            variants[name] = run, 2

    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(args.turns + 1):
        for name in list(variants)[:: 1 if turn % 2 == 0 else -1]:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            variants[name][0]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first pays for set-up
                seconds[name].append(time.perf_counter() - start)
    first, _, _, published_name, *_ = variants
    rows = []
    for name, (_, passes) in variants.items():
        over, under = (
            statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))
            for base in (first, published_name)
        )
        rows.append((name, n / statistics.median(seconds[name]), over, over * 2 / passes, 1 / under))
    columns = ["step", "examples/s", "time / plain", "time / plain, per pair of passes", "speed / paper"]
    kind = "bfloat16 autocast" if args.bf16 else "float32"
    print(
        f"12 layers x 12 heads, d_model 768, {n} rows of {float(lengths.float().mean()):.0f} tokens on average, batches of "
        f"{args.batch_size}, {kind}, sdpa, {device}, {torch.get_num_threads()} threads, median of {args.turns} turns"
    )
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
