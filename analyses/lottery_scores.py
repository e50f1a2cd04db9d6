"""Do good subnetworks beat random and bad ones of their size, and does training them again make up for it?

The lottery paper's main table: the full model, and good, random and bad subnetworks, of heads and MLPs (s) and of single
weights (m), as they are and trained again from the pretrained weights; beside them what all seeds keep (super-survivors)
and what they keep least (super-bad). On the half of the data that pruning has not seen, and on the half that it has, as in
the paper.
"""

import pandas as pd

from core_lens import Lottery, scripts
from core_lens.viz import lottery, plots


def run(study: Lottery) -> pd.DataFrame:
    """Mean and std over seeds by task and half, in percent, of each task's metric; the task's drop from the full model."""
    parts = {}
    for split in ("unseen", "seen"):
        table = 100 * study.table(split)
        for task in study.good:
            parts[task, split, "mean"] = table[task, "mean"]
            parts[task, split, "std"] = table[task, "std"]
            parts[task, split, "drop"] = table.loc[("full", ""), (task, "mean")] - table[task, "mean"]
    return pd.DataFrame(parts).rename_axis(columns=["task", "half", "over seeds"])


if __name__ == "__main__":
    args = scripts.arguments(
        __doc__,
        ["task", "data_dir", "label_map", "sparsities", "preset", "splits"],
        run="runs/lottery-{model}",
        seeds=3,
        split="unseen",
    )
    study = scripts.find_lottery(args)
    print(run(study).round(1).to_string())
    print(f"\nby {', '.join(f'{metric} in {task}' for task, metric in study.main.items())}, times 100; std over seeds")
    if args.picture:
        plots.save(lottery.ticket_scores(study.scores, study.main, args.split), args.picture)
