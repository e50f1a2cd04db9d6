"""Does a model grow or shrink as it begins to generalise: how large is the smallest subnetwork that is as accurate?

Figure 6 of the Heuristic Core (15 and 16 with checkpoints of a RoBERTa or a GPT-2). MODEL is `lab` or a folder of `step-<n>`
folders, as `core_lens.finetune` leaves it. As it stands: three checkpoints, coarsely, in a few minutes. In full (hours):
`--every 1 --sparsities .1 .2 .3 .4 .5 .6 .7 --seeds 3 --steps 200 --max-examples 500`.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

import core_lens
from core_lens import Core, Task, scripts
from core_lens.effective_size import effective_size, floors, split_groups, tables_of
from core_lens.viz import plots


def run(cores: Mapping[int, Core], known: pd.DataFrame, task: Task, average="sizes") -> pd.DataFrame:
    """The table of `effective_size` over the runs of several checkpoints, flagged by the `known` floors."""
    beside = {split.name: split.companion for split in task.with_role("ood") if split.companion}
    return effective_size(*tables_of(cores), split_groups(task), average=average, floors=known, companions=beside)


if __name__ == "__main__":
    coarse = {"sparsities": [0.1, 0.3, 0.5, 0.7], "seeds": 2, "steps": 60, "max_examples": 100}
    args = scripts.arguments(__doc__, every=4, average="sizes", run="runs/{model}-over-fine-tuning", **coarse)
    task, runs, cores, low = core_lens.load_task(args.task, args.data_dir), args.run, {}, []
    for step, folder in scripts.checkpoints(args.model, args.every).items():
        args.run, model = Path(runs) / f"step-{step}", core_lens.load_model(folder, label_map=args.label_map)
        cores[step] = scripts.find_run(args, model, task)
        ablated = floors(model, task, cores[step].subnetworks[0], max_examples=args.max_examples)
        low.append(ablated.assign(checkpoint=step))
    table = run(cores, pd.concat(low), task, args.average)
    print(table.drop(columns="flags").round(3).to_string(index=False))
    for _, row in table.iterrows():
        print(f"\nstep {row['checkpoint']}, {row['splits']}:", *(row["flags"] or ["no flags"]), sep="\n  ")
    if args.picture:
        plots.save(plots.effective_size(table), args.picture)
