"""Peak memory of a subnetwork's search on BERT-base beside HF's own forward and backward pass, each in a process of its own.

python benchmarks/memory.py [--batch-size N] [--length N] [--device D]

Plain: frozen weights, the embeddings' output wants a gradient, one batch. Search: what `LinearizedPruner` does with such a
batch, the logits' derivatives by all gates and then a forward pass under a mask. Resident memory, or what CUDA allocated there.
"""

import argparse
import resource
import subprocess
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import ZeroActivations
from core_lens.hooked import Encoded, component_set
from core_lens.pruners import PruningProblem
from core_lens.pruners.linearized import _Search


def measure(what: str, batch_size: int, length: int, device: str) -> float:
    """MiB at the peak."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=3)).to(device).eval().requires_grad_(False)
    n = batch_size
    ids = torch.randint(5, 30_000, (n * length,), dtype=torch.int32)
    if what == "plain":
        rows = ids.view(n, length)[:batch_size].long().to(device)
        embedded = model.bert.embeddings.word_embeddings(rows).requires_grad_()
        model(inputs_embeds=embedded).logits.sum().backward()
    elif what == "search":
        bridge = core_lens.load_model(model, device=device)
        del model
        encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), torch.full((n,), length), 0)
        teacher = torch.randn(n, 3, device=device)
        units, zero = component_set(bridge), ZeroActivations(core_lens.model_info(bridge).weight_hash)
        problem = PruningProblem(bridge, units, zero, encoded, teacher, teacher > 0)
        search = _Search(problem, torch.arange(n), batch_size)
        search.linearise()
        search._forward(search.mask, torch.arange(n))
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", choices=("model", "plain", "search"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(measure(args.measure, args.batch_size, args.length, args.device))
    else:
        given = ["--batch-size", str(args.batch_size), "--length", str(args.length), "--device", args.device]
        peak = {}
        for what in ("model", "plain", "search"):
            command = [sys.executable, __file__, *given, "--measure", what]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            peak[what] = float(out.split()[-1])
        print(f"BERT-base, {args.batch_size} x {args.length} tokens, float32, {args.device}: peak MiB")
        print(f"the model alone {peak['model']:.0f}, plain {peak['plain']:.0f}, search {peak['search']:.0f}")
        print(f"search / plain = {peak['search'] / peak['plain']:.2f}")
