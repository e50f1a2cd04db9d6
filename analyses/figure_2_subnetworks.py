"""Do subnetworks that are alike in domain generalise alike?

Figure 2 of the Heuristic Core: the accuracy of every subnetwork, in and out of domain, at two sparsities.
"""

import pandas as pd

from core_lens import Core, Task, scripts
from core_lens.viz import plots


def run(core: Core, task: Task, splits: list[str]) -> pd.DataFrame:
    """The full model, and how far subnetworks spread: sparsity, role, split, full, min, max, mean, std."""
    table = core.table().xs("accuracy", level="metric").loc[splits]
    parts = [
        table[sparsity].assign(sparsity=sparsity, full=table["full", "value"]).reset_index()
        for sparsity in core.sparsities
    ]
    rows = pd.concat(parts, ignore_index=True)
    rows["role"] = [task.split(name).role for name in rows["split"]]
    return rows[["sparsity", "role", "split", "full", "min", "max", "mean", "std"]]


if __name__ == "__main__":
    args = scripts.arguments(__doc__)
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "id", "ood", "companion")
    core = scripts.find_run(args, model, task, splits)
    table = run(core, task, splits)
    print(table.round(3).to_string(index=False))
    spread = table.assign(spread=table["max"] - table["min"]).groupby(["sparsity", "role"])["spread"].mean()
    print("\nBest less worst subnetwork, mean over splits:", spread.round(3).to_string(), sep="\n")
    if args.picture:
        plots.save(plots.accuracy_strip(core.evaluation, task, splits), args.picture)
