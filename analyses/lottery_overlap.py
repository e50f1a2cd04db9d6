"""Do the good subnetworks of two tasks share heads, more than their sizes alone would make them?

The lottery paper's overlap of tasks, seed by seed, beside what random subnetworks of the same sizes share.
"""

import pandas as pd

from core_lens import Lottery, scripts
from core_lens.viz import lottery, plots


def run(study: Lottery) -> pd.DataFrame:
    """Shared heads per pair of tasks: mean and std over seeds, expected at random, and how many times that it is."""
    table = study.overlap()
    return table.assign(ratio=table["mean"] / table["expected"])


if __name__ == "__main__":
    args = scripts.arguments(
        __doc__,
        ["task", "data_dir", "label_map", "sparsities", "preset", "splits"],
        run="runs/lottery-{model}",
        seeds=3,
    )
    study = scripts.find_lottery(args)
    print(run(study).round(2).to_string(index=False))
    print("a task with itself: the heads that it keeps")
    if args.picture:
        plots.save(lottery.overlap_map(study.overlap()), args.picture)
