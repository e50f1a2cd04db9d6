"""Are simple pictures of a Dyck model as faithful on strings of unseen structure and depth as on those of its training?

Agreement of each simplification with the model in distribution, and the generalisation gap of each split; then how often
the head that looks for the opener looks at a bracket of the right depth, up to the greatest depth of training and beyond it.
The picture is of the curves, with --depths of where the head looks.
"""

import pandas as pd

from core_lens import CoreLensError, Illusions, scripts
from core_lens.viz import illusions, plots


def run(study: Illusions) -> pd.DataFrame:
    """Agreement in distribution in percent, and the gaps as text, a star where the interval is without 0."""
    return study.marked().assign(agreement=(100 * study.wide().iloc[:, 0]).round(1)).iloc[:, [-1, *range(4)]]


def depths(study: Illusions, head: str, deepest: int = 10) -> pd.DataFrame:
    """Share of closing brackets at which the head looks most at a key of the bracket's own depth, in percent."""
    table = study.errors[study.errors["head"] == head]
    if table.empty:
        raise CoreLensError(f"head={head!r}: the model has {', '.join(study.errors['head'].unique())}.")
    right = table["n"].where(table["key_depth"] == table["query_depth"], 0)
    where = pd.Series(table["query_depth"] > deepest, name="where").map({True: "deeper", False: f"to {deepest}"})
    counts = table.assign(right=right).groupby([table["who"], table["split"], where], sort=False)[["right", "n"]].sum()
    shares = 100 * counts["right"] / counts["n"]
    return shares.unstack(["split", "where"]).reindex(["model", *study.proxies["proxy"]])


if __name__ == "__main__":
    omit = ["task", "data_dir", "label_map", "sparsities", "seeds", "preset", "steps", "splits"]
    args = scripts.arguments(__doc__, omit, model="dyck", run="runs/illusions-dyck", head="L1.H0", depths=None)
    study = scripts.find_illusions(args, "dyck")
    print("Agreement in distribution (%), and the gap (% points):", run(study).to_string(), sep="\n")
    print(f"\n{args.head} looks at the right depth (%):", depths(study, args.head).round(1).to_string(), sep="\n")
    if args.picture:
        plots.save(illusions.proxy_curves(study.curves, study.comparison.splits[0]), args.picture)
    if args.depths:
        part = study.errors[study.errors["head"] == args.head]
        who = ["model", *(name for name in ("SVD 4", "SVD 8", "k-means 16", "one-hot") if name in set(part["who"]))]
        plots.save(illusions.depth_maps(part, "unseen-depth", who, args.head), args.depths)
