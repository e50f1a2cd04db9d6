"""Do pruners find heads that are needed by construction? Hand-built models with distractor heads.

python benchmarks/planted.py [--seeds N] [--tracr]

Random BERTs of several sizes, in which only some heads write to the directions of the residual stream that anything reads; all
other heads write as much to directions that nothing reads (they still move LayerNorm a little, as distractors do). MLPs are
no units. AUROC of a pruner's scores for needed against other heads, and whether the mask of the right size is exactly those.
With --tracr also programs that Tracr compiled (`compiled.py`), where MLPs are units too; it comes with `pip install -e
'.[benchmarks]'`.
"""

import argparse
import itertools
from functools import partial

import pandas as pd
import torch
from transformers import BertConfig, BertForSequenceClassification

import core_lens
from core_lens.ablation import fit_means
from core_lens.hooked import Encoded, batches, component_set, logits
from core_lens.pruners import PruningProblem

SIZES = ((2, 4, 2), (4, 8, 6), (6, 12, 12))
"""Layers, heads of each, heads that are needed."""


def planted(layers: int, heads: int, needed: int, seed: int) -> tuple[PruningProblem, torch.Tensor]:
    """A model, and which of its heads are needed, [head]."""
    generator = torch.Generator().manual_seed(seed)
    d_head, width = 8, 8 * heads
    config = BertConfig(
        vocab_size=200, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=2 * width,
        max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    is_needed = torch.zeros(layers * heads, dtype=torch.bool)
    is_needed[torch.randperm(layers * heads, generator=generator)[:needed]] = True
    read = torch.zeros(width, dtype=torch.bool)
    read[torch.randperm(width, generator=generator)[: width // 2]] = True  # the directions that are read
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
        for i, layer in enumerate(model.bert.encoder.layer):
            attention = layer.attention
            for reader in (attention.self.query, attention.self.key, attention.self.value, layer.intermediate.dense):
                reader.weight[:, ~read] = 0
            layer.output.dense.weight[~read] = 0
            for j in range(heads):
                writes = attention.output.dense.weight[:, d_head * j : d_head * (j + 1)]
                writes[~read if is_needed[i * heads + j] else read] = 0
                writes *= 2
        assert model.bert.pooler is not None
        model.bert.pooler.dense.weight[:, ~read] = 0
        model.classifier.weight *= 6
    bridge = core_lens.load_model(model, device="cpu")
    n = 512
    lengths = torch.randint(6, 17, (n,), generator=generator)
    ids = torch.randint(5, 200, (int(lengths.sum()),), generator=generator, dtype=torch.int32)
    encoded = Encoded(ids, torch.zeros_like(ids, dtype=torch.int8), lengths, 0)
    cut = list(batches(encoded, 64))
    teacher = torch.empty(n, 3)
    with torch.no_grad():
        for rows, inputs in cut:
            teacher[rows] = logits(bridge, inputs)
    gold = torch.nn.functional.one_hot(teacher.argmax(-1), 3).bool()
    units = component_set(bridge, ("head",))
    return PruningProblem(bridge, units, fit_means(bridge, cut), encoded, teacher, gold), is_needed


def auroc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Share of pairs in which the positive has the higher score; ties count half."""
    difference = scores[positive][:, None] - scores[~positive][None]
    return float(((difference > 0).double() + (difference == 0).double() / 2).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tracr", action="store_true", help="compiled programs too")
    args = parser.parse_args()
    pruners = {
        "linearized": core_lens.LinearizedPruner(),
        "linearized, 4,000 passes": core_lens.LinearizedPruner(passes=4000),
        "hard-concrete, fast": core_lens.HardConcretePruner(),
        "importance, phases": core_lens.ImportancePruner(stop=None),
        "one-shot importance": core_lens.ImportancePruner.one_shot(),
        "random": core_lens.RandomPruner(),
    }
    models = {
        f"{layers} x {heads}, {needed} needed": partial(planted, layers, heads, needed)
        for layers, heads, needed in SIZES
    }
    if args.tracr:
        from compiled import PROGRAMS, compiled

        models.update({f"Tracr's {name}": partial(compiled, name) for name in PROGRAMS})
    rows = []
    for (title, make), seed in itertools.product(models.items(), range(args.seeds)):
        problem, is_needed = make(seed)
        n_needed = int(is_needed.sum())
        for name, pruner in pruners.items():
            found = pruner.prune(problem, 1 - n_needed / len(is_needed), seed)
            recovered = float((found.mask & is_needed).sum()) / n_needed
            row = (title, name, auroc(found.scores, is_needed), recovered, recovered == 1, found.passes)
            rows.append(row)
    table = pd.DataFrame(rows, columns=["model", "pruner", "AUROC", "needed found", "exact", "passes"])
    print(f"{args.seeds} models of each size; means")
    print(table.groupby(["model", "pruner"], sort=False).mean().to_string(float_format="{:.3f}".format))
