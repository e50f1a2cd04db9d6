"""Which pruner gives the better subnetwork for the passes it spends? KL, agreement, accuracy in and out of domain.

python benchmarks/quality.py [MODEL] [--task T] [--data-dir D] [--task-file F] [--sparsities S ...] [--seeds N] [--out FOLDER]

Passes are all forward and backward passes of an example that a subnetwork took, the pruner's own selection included; the full
model's logits on the selection (a forward pass of each example, once for all runs) stand beside. Masks are selected on training
data and reported on other splits. CPR is the area under f over the share of units kept, CMD the area between f and 1 (after
MIB, Mueller et al. 2025), with f = (m(C) - m(0)) / (m(N) - m(0)), m = -KL in domain, N the full model and 0 everything
ablated; both end points are included. Higher CPR and lower CMD are better.

A task file is Python with a function `task()` that returns a core_lens.Task.
"""

import argparse
import runpy
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

import core_lens
from core_lens.evaluate import predict, score
from core_lens.plan import plan, problem_of

GRID = [round(0.05 * i, 2) for i in range(1, 15)]


def pruners(names: list[str] | None) -> dict[str, core_lens.pruners.Pruner]:
    known = {
        **{f"linearized {n:,}": core_lens.LinearizedPruner(passes=n) for n in (4_000, 12_000, 30_000)},
        "hard-concrete fast": core_lens.HardConcretePruner(),
        "importance phases": core_lens.ImportancePruner(stop=None, loss="kl"),
        "one-shot importance": core_lens.ImportancePruner.one_shot(),
        "one-shot importance, all examples": core_lens.ImportancePruner.one_shot(sample=4096),
        "random": core_lens.RandomPruner(),
    }
    return {name: pruner for name, pruner in known.items() if names is None or name in names}


def areas(curve: pd.Series, nothing: float) -> tuple[float, float]:
    """(CPR, CMD) of in-domain KL by sparsity, where KL is `nothing` with everything ablated."""
    kept = np.array([1.0, *(1 - curve.index.to_numpy(dtype=float)), 0.0])
    f = 1 - np.array([0.0, *curve.to_numpy(), nothing]) / nothing
    order = kept.argsort()
    return float(np.trapezoid(f[order], kept[order])), float(np.trapezoid(abs(1 - f[order]), kept[order]))


def picture(table: pd.DataFrame) -> Figure:
    figure = Figure((10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, rows in table.groupby("pruner", sort=False):
        mean = rows.groupby("sparsity")[["kl", "passes"]].mean()
        axes[0].plot(100 * mean.index, mean["kl"], "o-", markersize=4, label=name)
        half = rows[np.isclose(rows["sparsity"], 0.5)]
        if len(half) and half["passes"].mean() > 0:
            axes[1].plot(half["passes"].mean(), half["kl"].mean(), "o", label=name)
    axes[0].set(title="KL to the full model by sparsity", xlabel="units removed (%)", ylabel="KL (nats)", yscale="log")
    axes[1].set(title="KL at 50 % by what it cost", xlabel="example passes", ylabel="KL (nats)", xscale="log")
    axes[0].legend(fontsize=8)
    axes[1].legend(fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="lab")
    parser.add_argument("--task", default="lab")
    parser.add_argument("--data-dir")
    parser.add_argument("--task-file")
    parser.add_argument("--splits", nargs="+", help="what to report (all in- and out-of-domain splits)")
    parser.add_argument("--sparsities", type=float, nargs="+", default=GRID)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--pruners", nargs="+")
    parser.add_argument("--max-examples", type=int, default=500)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    task = runpy.run_path(args.task_file)["task"]() if args.task_file else core_lens.load_task(args.task, args.data_dir)
    job = plan(
        args.model, task, args.sparsities, args.seeds, core_lens.HardConcretePruner(), splits=args.splits,
        max_examples=args.max_examples, device=args.device,
    )  # fmt: skip
    problem, chosen = problem_of(job), pruners(args.pruners)
    inside = [split.name for split in job.reported if split.role == "id"]
    outside = [split.name for split in job.reported if split.role == "ood"]
    full = predict(job.model, task, job.reported, job.order, None, job.batch_size, job.encoded)

    def figures(mask: torch.Tensor) -> dict[str, float]:
        subnetwork = core_lens.Subnetwork(job.units, mask, problem.replacement)
        found = predict(job.model, task, job.reported, job.order, subnetwork, job.batch_size, job.encoded)
        rows = score(found, task, teacher=full).query("group == 'all'")
        of = rows.pivot(index="split", columns="metric", values="value")
        id_part, ood = of.loc[inside], of.loc[outside] if outside else of.loc[[]]
        return {
            "kl": id_part["kl"].mean(),
            "agreement": id_part["agreement"].mean(),
            "ID": id_part[task.metric].mean(),
            "OOD": ood["accuracy"].mean(),
        }

    nothing = figures(torch.zeros(len(job.units), dtype=torch.bool))["kl"]
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for sparsity in args.sparsities:
        for seed in job.seeds:
            for name, pruner in chosen.items():
                result = pruner.prune(problem, sparsity, seed)
                rows.append(
                    {
                        "sparsity": sparsity,
                        "seed": seed,
                        "pruner": name,
                        **figures(result.mask),
                        "passes": result.passes,
                    }
                )
                pd.DataFrame(rows).to_csv(args.out / "quality.csv", index=False)
    table = pd.DataFrame(rows)
    shape = f"{args.seeds} seeds, {torch.get_num_threads()} threads, {job.config['dtype']}"
    print(f"{args.model} on {task.name}, {shape}; the full model's logits once: {len(problem)} passes")
    mean = table.groupby(["pruner", "sparsity"], sort=False).mean(numeric_only=True)
    for column in ("kl", "agreement", "ID", "OOD", "passes"):
        wide = mean[column].unstack(0)[list(chosen)]
        print(f"\n{column}:\n{wide.to_string(float_format=('{:.0f}' if column == 'passes' else '{:.4f}').format)}")
    found = {name: areas(mean["kl"].loc[name], nothing) for name in chosen}
    print(f"\nKL with everything ablated {nothing:.3f}\n{pd.DataFrame(found, index=['CPR', 'CMD']).T.to_string()}")
    picture(table).savefig(args.out / "quality.png", dpi=150)
    print(f"\n{args.out / 'quality.csv'}, {args.out / 'quality.png'}")


if __name__ == "__main__":
    main()
