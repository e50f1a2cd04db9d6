"""Do subnetworks generalise to the same subcases, or each to its own?

Figure 3 of the Heuristic Core, whose subnetwork #8 does well on SO-Swap and badly on Embed-If, and #5 the other way round.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from core_lens import Core, scripts
from core_lens.viz import plots


def run(core: Core, splits: list[str], sparsity: float) -> pd.DataFrame:
    """Accuracy of each subnetwork of one sparsity (rows) on each split (columns), the full model first."""
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy'")
    table = rows.pivot(index="subnetwork", columns="split", values="value")
    return table.loc[["full", *(s.name for s in core.at(sparsity))], splits]


def reversal(core: Core, table: pd.DataFrame) -> pd.DataFrame:
    """Of all pairs of subnetworks and of splits, the one in opposite order by most: its four accuracies; empty for none."""
    values = table.drop("full").to_numpy()
    ahead = values[:, None] - values  # [a, b, split]
    margins = np.minimum(ahead[:, :, :, None], -ahead[:, :, None, :])  # [a, b, x, y]: a beats b on x and loses on y
    a, b, x, y = np.unravel_index(margins.argmax(), margins.shape)
    four = [(table.index[1 + s], table.columns[split]) for split in (x, y) for s in (a, b)] if margins.max() > 0 else []
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy'").set_index(["subnetwork", "split"])
    return rows.loc[four, ["value", "low", "high", "n"]].reset_index()


def picture(core: Core, splits: list[str]) -> Figure:
    figure = plots.Picture((8.5, 3.2 * len(core.sparsities)), layout="constrained")
    panels = figure.subplots(len(core.sparsities), 1, sharex=True, squeeze=False)
    for axes, sparsity in zip(panels[:, 0], core.sparsities, strict=True):
        table = 100 * run(core, splits, sparsity)
        axes.plot(splits, table.drop("full").T, ".-", color="0.75")
        axes.plot(splits, table.loc["full"], "kD--", label="full model")
        for name, line in zip(reversal(core, table)["subnetwork"].unique(), ("C0o-", "C1s-"), strict=False):
            axes.plot(splits, table.loc[name], line, label=name)
        axes.set(title=f"{sparsity:.0%} of units removed", ylabel="accuracy (%)", ylim=(-3, 103))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.suptitle("Accuracy by subcase: the two subnetworks that are reversed by most, the others in grey")
    return figure


if __name__ == "__main__":
    args = scripts.arguments(__doc__)
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "ood")
    core = scripts.find_run(args, model, task, splits)
    for sparsity in core.sparsities:
        table = run(core, splits, sparsity)
        print(f"\n{sparsity:.0%} of units removed:", table.round(3).to_string(), sep="\n")
        print("\nThe largest reversal of all, 95 % intervals over examples:")
        print(reversal(core, table).round(3).to_string(index=False))
    if args.picture:
        plots.save(picture(core, splits), args.picture)
