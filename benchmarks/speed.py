"""How much faster is an exported subnetwork than its model? Time beside floating point operations, side by side.

python benchmarks/speed.py [--sparsities S ...] [--batch-size N] [--length N] [--turns N] [--device D]

BERT-base's shape with random weights; which heads and MLPs go is drawn by chance, as it is their number that counts.
"""

import argparse
import statistics
import time
from typing import Any

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.hooked import component_set
from core_lens.pruners import keep_highest

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--mlps", action="store_true", help="MLPs may go too (the pruners here keep them up to 70 %% or so)"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    full = BertForSequenceClassification(BertConfig(num_labels=3)).eval()
    bridge = core_lens.load_model(full, device=args.device)
    units = component_set(bridge, ("head", "mlp") if args.mlps else ("head",))
    zero = core_lens.ZeroActivations(core_lens.model_info(bridge).weight_hash)
    models: dict[float, Any] = {0.0: full.to(args.device)}
    for sparsity in args.sparsities:
        mask = keep_highest(torch.randn(len(units)), sparsity)
        models[sparsity] = core_lens.Subnetwork(units, mask, zero).export(bridge)
    ids = torch.randint(5, 30_000, (args.batch_size, args.length), device=args.device)
    flops, seconds = {}, {sparsity: [] for sparsity in models}
    with torch.inference_mode():
        for sparsity, model in models.items():
            model(ids)
            with FlopCounterMode(display=False) as counter:
                model(ids)
            flops[sparsity] = counter.get_total_flops()
        for _ in range(args.turns):
            for sparsity, model in models.items():
                start = time.perf_counter()
                float(model(ids).logits.sum())
                seconds[sparsity].append(time.perf_counter() - start)
    middle = {sparsity: statistics.median(values) for sparsity, values in seconds.items()}
    table = pd.DataFrame(
        [
            {"removed": f"{s:.0%}", "parameters": m.num_parameters(), "ms": 1000 * middle[s],
             "time / full": middle[s] / middle[0.0], "flops / full": flops[s] / flops[0.0]}
            for s, m in models.items()
        ]
    )  # fmt: skip
    what = "heads and MLPs" if args.mlps else "heads"
    print(f"BERT-base, {what} removed, {args.batch_size} x {args.length} tokens, {torch.get_num_threads()} threads, float32, "
          f"median of {args.turns} turns")  # fmt: skip
    print(table.to_string(index=False, float_format="{:.3f}".format))
