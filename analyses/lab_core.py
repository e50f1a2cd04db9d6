"""Which heads does every subnetwork of the lab model keep, and do equally faithful subnetworks generalise alike?

Makes the README's picture: `python analyses/lab_core.py RUN --picture docs/lab-core.png`, where RUN is a saved run
(`core-lens find-core lab --task lab --out RUN`). After Figures 2 and 5 of the Heuristic Core.
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import core_lens


def run(core: core_lens.Core) -> pd.DataFrame:
    """Accuracy of every subnetwork and of the full model: subnetwork, sparsity, split, value."""
    rows = core.evaluation
    return rows[(rows["metric"] == "accuracy") & (rows["group"] == "all")][["subnetwork", "sparsity", "split", "value"]]


def picture(core: core_lens.Core, path: str, splits: list[str]) -> None:
    accuracy, frequency = run(core), core.frequencies()
    heads = (
        frequency[frequency["kind"] == "head"].pivot(index="layer", columns="head", values="all").to_numpy(dtype=float)
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", width_ratios=[1, 1.5])
    image = left.imshow(heads, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
    for (layer, head), share in np.ndenumerate(heads):
        color = "black" if share > 0.5 else "white"
        left.text(head, layer, f"{share:.0%}", ha="center", va="center", fontsize=8, color=color)
    left.set(title="How often each head is kept", xlabel="head", ylabel="layer", yticks=range(len(heads)))
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
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--picture", default="lab-core.png")
    parser.add_argument(
        "--splits", nargs="+", default=["dev", "SO-Swap", "Prep", "Rel-Clause", "Embed-If", "Embed-Verb"]
    )
    args = parser.parse_args()
    picture(core_lens.Core.load(args.run), args.picture, args.splits)
