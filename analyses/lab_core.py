"""Which heads does every subnetwork of the lab model keep, and do equally faithful subnetworks generalise alike?

Makes the README's picture, after Figures 2 and 5 of the Heuristic Core, of a run with 8 seeds.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from core_lens import Core, scripts
from core_lens.viz import plots

SPLITS = ["dev", "SO-Swap", "Prep", "Rel-Clause", "Embed-If", "Embed-Verb"]


def run(core: Core) -> pd.DataFrame:
    """Accuracy of every subnetwork and of the full model: subnetwork, sparsity, split, value."""
    rows = core.evaluation.query("group == 'all' and metric == 'accuracy'")
    return rows[["subnetwork", "sparsity", "split", "value"]]


def picture(core: Core, splits: list[str]) -> Figure:
    accuracy, heads = run(core), core.frequencies().query("kind == 'head'")
    shares = heads.pivot(index="layer", columns="head", values="all").to_numpy(dtype=float)
    figure = plots.Picture((11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    image = left.imshow(shares, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
    for (layer, head), share in np.ndenumerate(shares):
        color = "black" if share > 0.5 else "white"
        left.text(head, layer, f"{share:.0%}", ha="center", va="center", fontsize=8, color=color)
    left.set(title="How often each head is kept", xlabel="head", ylabel="layer", yticks=range(len(shares)))
    figure.colorbar(image, ax=left, label="share of subnetworks")
    for i, (sparsity, marker) in enumerate(zip(core.sparsities, "osD^v", strict=False)):
        here = accuracy[(accuracy["sparsity"] == sparsity) & (accuracy["subnetwork"] != "full")]
        for x, split in enumerate(splits):
            values = here[here["split"] == split]["value"].to_numpy()
            offset = 0.22 * (i - (len(core.sparsities) - 1) / 2) + np.linspace(-0.06, 0.06, len(values))
            label = f"{sparsity:.0%} removed" if x == 0 else None
            right.plot(x + offset, values, marker, color=f"C{i}", markersize=5, alpha=0.75, label=label)
    full = accuracy[accuracy["subnetwork"] == "full"].set_index("split")["value"]
    for x, split in enumerate(splits):
        right.hlines(full[split], x - 0.4, x + 0.4, color="black", label="full model" if x == 0 else None)
    right.set(title="Accuracy of the subnetworks", ylabel="accuracy", ylim=(-0.03, 1.03), xticks=range(len(splits)))
    right.set_xticklabels([f"{split}\n(in domain)" if split == splits[0] else split for split in splits])
    right.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    args = scripts.arguments(__doc__, seeds=8, splits=SPLITS, run="runs/{model}-readme", picture="lab-core.png")
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "id", "ood")
    core = scripts.find_run(args, model, task, splits)
    plots.save(picture(core, splits), args.picture)
