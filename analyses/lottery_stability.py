"""Are the good subnetworks of different seeds the same?

The lottery paper's Section 6: Fleiss' kappa, Krippendorff's alpha, Cochran's Q and Jaccard of the surviving heads and MLPs.
The paper finds kappas of .18 to .33 for heads. Q compares how many units seeds keep, not which ones.
"""

import pandas as pd

from core_lens import Lottery, scripts, stability


def run(study: Lottery) -> pd.DataFrame:
    """`core_lens.stability.table` of every task, for heads and for MLPs."""
    return study.stability()


def pairs(study: Lottery) -> pd.DataFrame:
    """Cochran's Q of every two seeds' heads, per task."""
    parts = []
    for task, masks in study.masks().items():
        seeds = dict(enumerate(study.sizes[study.sizes["task"] == task]["seed"]))
        part = stability.cochran_q_pairs(masks.reshape(len(masks), -1)).replace({"a": seeds, "b": seeds})
        parts.append(part.assign(task=task))
    return pd.concat(parts, ignore_index=True)[["task", "a", "b", "q", "p", "differ"]]


if __name__ == "__main__":
    args = scripts.arguments(
        __doc__,
        ["task", "data_dir", "label_map", "sparsities", "preset", "splits", "picture"],
        run="runs/lottery-{model}",
        seeds=3,
    )
    study = scripts.find_lottery(args)
    print(run(study).round(3).to_string())
    print("\nCochran's Q of two seeds' heads:", pairs(study).round(3).to_string(index=False), sep="\n")
