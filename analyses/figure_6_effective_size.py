"""Does a model grow or shrink as it begins to generalise: how large is the smallest subnetwork that is as accurate?

Figure 6 of the Heuristic Core; 15 and 16 with checkpoints of a RoBERTa or a GPT-2. MODEL is `lab` or a folder of `step-<n>`
folders, as `core_lens.finetune` leaves it. `--splits` names what is out of domain, and `--ood-e` the subcases of entailment
of Figure 16. As it stands: three checkpoints, coarsely, in a few minutes. In full (hours): `--every 1
--sparsities .1 .2 .3 .4 .5 .6 .7 --seeds 3 --steps 200 --max-examples 500`.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

import core_lens
from core_lens import Core, Task, scripts
from core_lens.effective_size import effective_size, floors, split_groups, tables_of
from core_lens.viz import plots


def run(cores: Mapping[int, Core], known: pd.DataFrame, task: Task, groups=None) -> pd.DataFrame:
    """Sizes by the published code (average: sizes) and by the paper's text (accuracies), flagged by the `known` floors."""
    beside = {split.name: split.companion for split in task.with_role("ood") if split.companion}
    tables, groups = tables_of(cores), groups or split_groups(task)
    parts = [
        effective_size(*tables, groups, average=average, floors=known, companions=beside).assign(average=average)
        for average in ("sizes", "accuracies")
    ]
    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    coarse = {"sparsities": [0.1, 0.3, 0.5, 0.7], "seeds": 2, "max_examples": 100}
    args = scripts.arguments(__doc__, every=4, ood_e=(), passes=4000, run="runs/{model}-over-fine-tuning", **coarse)
    found = scripts.checkpoints(args.model, args.every)
    task, runs, cores, low = core_lens.load_task(args.task, args.data_dir), args.run, {}, []
    inside, ood = [split.name for split in task.with_role("id")], scripts.shown(args, task, "ood")
    groups = {"ID": inside, "OOD": ood, "mixed": [*inside, *ood]} if args.splits else split_groups(task)
    groups |= {"OOD-E": [task.split(name).name for name in args.ood_e]} if args.ood_e else {}
    for step, folder in found.items():
        args.run, model = Path(runs) / f"step-{step}", core_lens.load_model(folder, label_map=args.label_map)
        core = cores[step] = scripts.find_run(args, model, task, [split for of in groups.values() for split in of])
        reported = core.evaluation["split"].unique()
        known = floors(model, task, core.subnetworks[0], reported, max_examples=args.max_examples)
        low.append(known.assign(checkpoint=step))
    table = run(cores, pd.concat(low), task, groups)
    print(table.drop(columns="flags").round(3).to_string(index=False))
    for row in table[table["average"] == "sizes"].itertuples():
        print(f"\nstep {row.checkpoint}, {row.splits}:", *(row.flags or ["no flags"]), sep="\n  ")
    if len(cores) > 1:
        print("", core_lens.compare_cores({f"step {step}": core for step, core in cores.items()}), sep="\n")
    if args.picture:
        plots.save(plots.effective_size(table[table["average"] == "sizes"]), args.picture)
