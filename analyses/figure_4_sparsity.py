"""How does generalisation go as more is removed: step by step, or all at once?

Figure 4 of the Heuristic Core: mean accuracy over 3 seeds against sparsity. The run has a folder of its own, as its grid of
sparsities is another. In the paper's steps: `--sparsities .05 .1 .15 .2 .25 .3 .35 .4 .45 .5 .55 .6 .65 .7`.
"""

import pandas as pd

from core_lens import Core, Task, scripts
from core_lens.viz import plots


def run(core: Core, task: Task) -> pd.DataFrame:
    """sparsity, role, mean (of accuracies, over the splits of the role and seeds), change (since the sparsity before)."""
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy'")
    rows = rows.assign(role=[task.split(name).role for name in rows["split"]])
    table = rows.groupby(["role", "sparsity"])["value"].mean().rename("mean").reset_index()
    return table.assign(change=table.groupby("role")["mean"].diff())


if __name__ == "__main__":
    args = scripts.arguments(__doc__, sparsities=[0.1, 0.3, 0.5, 0.7, 0.9], seeds=3, run="runs/{model}-grid")
    model, task = scripts.load(args)
    core = scripts.find_run(args, model, task)
    print(run(core, task).round(3).to_string(index=False))
    if args.picture:
        plots.save(plots.accuracy_by_sparsity(core.table(), task, args.splits), args.picture)
