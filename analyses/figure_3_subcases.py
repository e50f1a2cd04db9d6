"""Do subnetworks generalise to the same subcases, or each to its own?

Figure 3 of the Heuristic Core, whose subnetwork #8 does well on SO-Swap and badly on Embed-If, and #5 the other way round.
"""

from itertools import permutations

import pandas as pd

from core_lens import Core, Task, scripts
from core_lens.viz import plots


def run(core: Core, task: Task, sparsity: float) -> pd.DataFrame:
    """Accuracy of each subnetwork of one sparsity (rows) on each out-of-domain split (columns), the full model first."""
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy'")
    rows = rows[(rows["sparsity"] == sparsity) | (rows["subnetwork"] == "full")]
    table = rows.pivot(index="subnetwork", columns="split", values="value")
    ood = [split.name for split in task.with_role("ood") if split.name in table]
    return table.loc[["full", *(s.name for s in core.at(sparsity))], ood]


def reversal(table: pd.DataFrame) -> str:
    """The two subnetworks and two splits that come out in opposite order by most."""
    values = table.drop("full").stack()
    margins = {
        (a, b, x, y): min(values[a, x] - values[b, x], values[b, y] - values[a, y])
        for a, b in permutations(table.index[1:], 2)
        for x, y in permutations(table.columns, 2)
    }
    (a, b, x, y), margin = max(margins.items(), key=lambda item: item[1])
    return f"{a} beats {b} on {x} and loses to it on {y}, each by {100 * margin:.1f} points or more."


if __name__ == "__main__":
    args = scripts.arguments(__doc__, sparsity=0.0)
    model, task = scripts.load(args)
    core = scripts.find_run(args, model, task)
    sparsity = args.sparsity or core.sparsities[0]
    table = run(core, task, sparsity)
    print(table.round(3).to_string(), reversal(table), sep="\n\n")
    heads = core.associations(list(table.columns)).sort_values("p").head(10)
    print(
        "\nHeads outside the core whose presence goes with accuracy:", heads.round(4).to_string(index=False), sep="\n"
    )
    if args.picture:
        rows = core.evaluation[core.evaluation["sparsity"].isin([0, sparsity])]
        plots.save(plots.accuracy_strip(rows, task, args.splits or list(table.columns)), args.picture)
