"""Do the heads that survive have attention patterns of their own, by the attention and by what it moves?

The lottery paper's Section 5: the share of attention maps that are vertical, diagonal, both, block or heterogeneous, among
heads that all seeds keep, some keep, and none keeps; raw, and weighted by the norm of what each key adds to the head's output.
The maps are those of one fine-tuned classifier on the first in-domain split, the survivors those of the study in `--run`.
"""

import numpy as np
import pandas as pd

import core_lens
from core_lens import scripts
from core_lens.maps import CLASSES


def run(shapes: pd.DataFrame, masks: np.ndarray) -> pd.DataFrame:
    """Mean share of the maps in each class by how many seeds keep the head, and how many such heads there are.

    Args:
        shapes: from `classify_maps`, all heads.
        masks: 0/1 [seed, layer, head].
    """
    kept = masks.mean(axis=0)[shapes["layer"], shapes["head"]]
    group = np.select([kept == 1, kept > 0], ["all seeds", "some"], "none")
    table = shapes.groupby(group)[list(CLASSES)].mean()
    table.loc["all heads"] = shapes[list(CLASSES)].mean()
    sizes = pd.Series(group).value_counts()
    sizes["all heads"] = len(shapes)
    return table.assign(heads=sizes).reindex(["all seeds", "some", "none", "all heads"]).rename_axis("kept by").dropna()


if __name__ == "__main__":
    args = scripts.arguments(
        __doc__, ["sparsities", "preset", "splits", "picture"], run="runs/lottery-{model}", seeds=3
    )
    study = scripts.find_lottery(args)
    model, task = scripts.load(args)
    masks = study.masks()[task.name]
    for title, weighted in (("attention", False), ("attention times the norm of what it moves", True)):
        shapes = core_lens.classify_maps(model, task, weighted=weighted, max_examples=args.max_examples)
        print(f"\nShare of the maps, {title}:", run(shapes, masks).round(3).to_string(), sep="\n")
