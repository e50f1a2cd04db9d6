"""When does the model learn the task, and when does it begin to generalise?

Figure 10 of the Heuristic Core: accuracy over fine-tuning, with more subcases by `--splits`. MODEL is `lab` or a folder of
`step-<n>` folders, as `core_lens.finetune` leaves it.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from tqdm.auto import tqdm

import core_lens
from core_lens import Task, scripts
from core_lens.viz import plots


def run(checkpoints: Mapping[int, Path], task: Task, splits=None, max_examples=500, label_map=None) -> pd.DataFrame:
    """Accuracy of every checkpoint: step, split, value, low, high, n."""
    given = {"splits": splits, "max_examples": max_examples, "label_map": label_map}
    bar = tqdm(checkpoints.items(), "checkpoints", leave=False)
    parts = [core_lens.evaluate(model, task, **given).assign(step=step) for step, model in bar]
    rows = pd.concat(parts, ignore_index=True).query("group == 'all' and metric == 'accuracy'")
    return rows[["step", "split", "value", "low", "high", "n"]].reset_index(drop=True)


def picture(table: pd.DataFrame, task: Task) -> Figure:
    figure = plots.Picture((8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (split, part) in enumerate(table.groupby("split", sort=False)):
        line = {"id": "-", "ood": "--"}.get(task.split(split).role, ":")
        errors = [part["value"] - part["low"], part["high"] - part["value"]]
        axes.errorbar(part["step"], part["value"], errors, fmt="osD^vPX<>*"[number % 10] + line, capsize=2, label=split)
    axes.set(
        title="Accuracy over fine-tuning (dashed: out of domain), 95 % intervals over examples",
        xlabel="step",
        ylabel="accuracy",
    )
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


if __name__ == "__main__":
    args = scripts.arguments(__doc__, every=1)
    task = core_lens.load_task(args.task, args.data_dir)
    splits = scripts.shown(args, task, "id", "ood")
    found = scripts.checkpoints(args.model, args.every)
    table = run(found, task, splits, args.max_examples, args.label_map)
    print(table.pivot(index="split", columns="step", values="value").loc[list(dict.fromkeys(table["split"]))].round(3))
    if args.picture:
        plots.save(picture(table[table["split"].isin(splits)], task), args.picture)
