"""How far is each pruner from the best that there is? All subsets of the heads of a model with 16, tried one by one.

python benchmarks/optimum.py [--model FOLDER] [--examples N] [--seeds N]

The model is a lab with 4 layers x 4 heads, trained by the lab's own recipe (in some minutes) if FOLDER is not there. Its MLPs
stay. KL of all 65,536 subsets on the selection examples (kept beside the model), then every pruner's KL over the lowest of any
subset of that size.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

import core_lens
from core_lens.gates import inject
from core_lens.hooked import logits
from core_lens.hooked.batches import batches
from core_lens.hooked.resume import entering, resumed
from core_lens.lab.make import Settings, make
from core_lens.plan import plan, problem_of
from core_lens.pruners import PruningProblem, divergence


def every_subset(problem: PruningProblem) -> torch.Tensor:
    """Mean KL of each subset of the heads; bit i of the index says whether unit i is kept.

    The residual stream after a layer is shared by all subsets that agree up to there, and a layer's 16 subsets go through one
    pass, each example with gates of its own.
    """
    units, model = problem.units, problem.model
    choices = torch.tensor(list(product((0.0, 1.0), repeat=units.n_heads))).flip(-1)  # bit i is head i
    total = torch.zeros(len(choices) ** units.n_layers)

    def descend(layer: int, z: torch.Tensor, index: int, residual: torch.Tensor | None, batch: tuple) -> None:
        """All subsets of the heads from `layer` on, below a subset `z` of those before it."""
        rows, wide = batch
        wider = z.repeat(len(choices), 1)
        wider[:, layer * units.n_heads : (layer + 1) * units.n_heads] = choices
        gates.z, gates.rows = wider.repeat_interleave(len(rows), dim=0), rows.repeat(len(choices))
        last = layer == units.n_layers - 1
        start = None if residual is None else residual.repeat(len(choices), 1, 1)
        with resumed(model, layer, start), entering(model, () if last else (layer + 1,)) as found:
            out = logits(model, wide)
        places = torch.arange(len(choices)) * len(choices) ** layer + index
        if last:
            total[places] += divergence(problem.teacher[gates.rows], out).view(len(choices), -1).sum(1)
            return
        after = found[layer + 1].view(len(choices), len(rows), *found[layer + 1].shape[1:])
        for place, row, stream in zip(places.tolist(), wider, after, strict=True):
            descend(layer + 1, row, place, stream.clone(), batch)

    with inject(model, units, problem.replacement) as gates, torch.inference_mode():
        for rows, inputs in tqdm(
            [*batches(problem.encoded, 32, rows=torch.arange(len(problem)))], "subsets", file=sys.stderr
        ):
            wide = {name: tensor.repeat(len(choices), 1) for name, tensor in inputs.items()}
            descend(0, torch.ones(len(units)), 0, None, (rows, wide))
    return total / len(problem)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=Path("runs/lab-4x4"))
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--passes", type=int, nargs="+", default=[4_000, 12_000, 30_000], help="of the linearized pruner"
    )
    args = parser.parse_args()
    folder = args.model / "weights" / "lab"
    if not folder.is_dir():
        make(args.model, Settings(heads=4), ("lab",))
    job = plan(
        str(folder), "lab", [0.5], 1, core_lens.LinearizedPruner(examples=args.examples), units="head", device="cpu"
    )
    problem = problem_of(job)
    n = len(problem.units)
    kept_kl = args.model / f"subsets-{args.examples}.pt"
    if not kept_kl.is_file():
        torch.save(every_subset(problem), kept_kl)
    kl = torch.load(kept_kl)
    sizes = torch.tensor([bin(i).count("1") for i in range(len(kl))])
    pruners = {
        **{f"linearized, {passes:,}": core_lens.LinearizedPruner(passes=passes) for passes in args.passes},
        "hard-concrete, fast": core_lens.HardConcretePruner(),
        "one-shot importance": core_lens.ImportancePruner.one_shot(),
        "importance, KL, no stop": core_lens.ImportancePruner(loss="kl", stop=None),
        "random": core_lens.RandomPruner(),
    }
    rows = []
    for kept in tqdm(range(1, n), "sizes", file=sys.stderr):
        of_size = kl[sizes == kept]
        row = {"kept": kept, "subsets": len(of_size), "best": float(of_size.min()), "median": float(of_size.median())}
        for name, pruner in pruners.items():
            found = []
            for seed in range(args.seeds):
                mask = pruner.prune(problem, 1 - kept / n, seed).mask
                assert int(mask.sum()) == kept
                found.append(float(kl[(mask.long() << torch.arange(n)).sum()]) / row["best"])
            row[name] = float(torch.tensor(found).mean())
            row[f"{name}, worst"] = max(found)
        rows.append(row)
    table = pd.DataFrame(rows)
    means = [name for name in table.columns if not name.endswith("worst")]
    print(f"{len(problem)} examples, {args.seeds} seeds; pruners: KL over the best subset's, mean over seeds")
    print(table[means].to_string(index=False, float_format="{:.3f}".format))
    print("\nworst of all sizes and seeds:")
    print(
        table[[name for name in table.columns if name.endswith("worst")]].max().to_string(float_format="{:.2f}".format)
    )


if __name__ == "__main__":
    main()
