"""How does generalisation go as more is removed: step by step, or all at once?

Figure 4 of the Heuristic Core: mean accuracy over 3 seeds against sparsity. The run has a folder of its own, as its grid of
sparsities is another. In the paper's steps: `--sparsities .05 .1 .15 .2 .25 .3 .35 .4 .45 .5 .55 .6 .65 .7`.
"""

import pandas as pd

from core_lens import Core, Task, scripts
from core_lens.intervals import over_seeds
from core_lens.viz import plots


def run(core: Core, task: Task, splits: list[str]) -> pd.DataFrame:
    """role, sparsity (0: full), mean (over splits, then seeds), low, high (95 %, over seeds), change (since the row above)."""
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy' and split in @splits")
    rows = rows.assign(role=[task.split(name).role for name in rows["split"]])
    by_seed = rows.groupby(["role", "sparsity", "seed"])["value"].mean().groupby(["role", "sparsity"])
    table = by_seed.agg(mean="mean", low=lambda v: over_seeds(v)[0], high=lambda v: over_seeds(v)[1]).reset_index()
    table[["low", "high"]] = table[["low", "high"]].clip(0, 1)
    return table.assign(change=table.groupby("role")["mean"].diff())


if __name__ == "__main__":
    args = scripts.arguments(__doc__, sparsities=[0.1, 0.3, 0.5, 0.7, 0.9], seeds=3, run="runs/{model}-grid")
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "id", "ood", "companion")
    core = scripts.find_run(args, model, task, splits)
    print(run(core, task, splits).round(3).to_string(index=False))
    if args.picture:
        plots.save(plots.accuracy_by_sparsity(core.table(), task, splits), args.picture)
