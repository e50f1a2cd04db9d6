"""Which heads and MLPs survive pruning, and in which layers?

The lottery paper's maps of surviving heads and MLPs, and how much of each layer is left.
"""

import pandas as pd

from core_lens import Lottery, scripts
from core_lens.viz import lottery, plots


def run(study: Lottery) -> pd.DataFrame:
    """Share of each layer's heads, and of its MLP, that is kept, per task; mean over seeds and tasks last."""
    table = study.survival().set_index(["layer", "task"])[["heads", "mlps"]].unstack("task")
    for kind in ("heads", "mlps"):
        table[kind, "all tasks"] = table[kind].mean(axis=1)
    return table.sort_index(axis=1, level=0, sort_remaining=False)


if __name__ == "__main__":
    args = scripts.arguments(
        __doc__,
        ["task", "data_dir", "label_map", "sparsities", "preset", "splits"],
        run="runs/lottery-{model}",
        seeds=3,
    )
    study = scripts.find_lottery(args)
    print(run(study).round(2).to_string())
    print("\nKept by each seed (weights: share that magnitude pruning keeps):")
    print(study.sizes.round(3).to_string(index=False))
    if args.picture:
        plots.save(lottery.survival_map(study.masks(), study.masks("mlp")), args.picture)
