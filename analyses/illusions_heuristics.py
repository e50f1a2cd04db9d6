"""Is a simplified classifier as faithful where heuristics fail, whatever the simplification?

The Illusions paper's question asked of the Heuristic Core's data: SVD, k-means, one-hot and average attention, and pruned
subnetworks, side by side in one table.
"""

import pandas as pd

from core_lens import CoreLensError, Illusions, scripts
from core_lens.viz import illusions, plots


def run(study: Illusions, splits: list[str]) -> pd.DataFrame:
    """The gaps on the splits, in percent points, beside agreement in distribution, in percent."""
    inside = study.comparison.splits[0]
    gaps = 100 * study.wide("gap")[[split for split in splits if split != inside]]
    return pd.concat({f"agreement on {inside}": 100 * study.wide()[inside], **gaps}, axis=1)


if __name__ == "__main__":
    args = scripts.arguments(__doc__, ["preset", "steps"], run="runs/illusions-{model}", seeds=2)
    settings = {"data_dir": args.data_dir, "label_map": args.label_map, "seeds": args.seeds}
    if args.sparsities:
        settings["sparsities"] = args.sparsities
    study = scripts.find_illusions(args, args.task, **settings)
    names = [split for split in study.comparison.splits if not split.endswith("-entailed")]
    splits = args.splits or names
    if unknown := [split for split in splits if split not in study.comparison.splits]:
        raise CoreLensError(f"the study has no split {unknown[0]!r}: {', '.join(study.comparison.splits)}.")
    table, marked = run(study, splits), study.marked()
    shown = table.round(1).astype(str)
    for split in table.columns[1:]:
        shown[split] = marked[split]
    print("Agreement (%), gaps (% points; *: the interval is without 0):", shown.to_string(), sep="\n")
    print(
        "\nVerdicts:", study.wide("verdict").apply(pd.Series.value_counts).fillna(0).astype(int).to_string(), sep="\n"
    )
    if args.picture:
        plots.save(illusions.proxy_curves(study.curves, study.comparison.splits[0], splits), args.picture)
