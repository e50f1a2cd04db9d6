"""What does the full model lose without a head of the core, and is losing several worse than the sum?

Table 3 of the Heuristic Core, and Table 4 for QQP. `--together L2.H5 L3.H7 L4.H0` names the heads of the joint ablation;
else they are the most super-additive set of the core, chosen on one half of the examples and tested on the other.
"""

import pandas as pd

import core_lens
from core_lens import Core, scripts
from core_lens.viz import plots


def run(model, task, core: Core, together, splits=None, max_examples=200) -> pd.DataFrame:
    """The table of `ablation_table` for the core's heads, and a row per split and metric for the joint ablation."""
    shared = {"replacement": core.subnetworks[0].replacement, "splits": splits, "max_examples": max_examples}
    joint = core_lens.ablate(model, task, together, **shared).assign(ablated=" & ".join(together))
    return pd.concat([core_lens.ablation_table(model, task, core.heads, **shared), joint], ignore_index=True)


if __name__ == "__main__":
    args = scripts.arguments(__doc__, together=(), max_examples=200)
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "id", "ood")
    core = scripts.find_run(args, model, task)
    shared = {"replacement": core.subnetworks[0].replacement, "splits": splits, "max_examples": args.max_examples}
    if args.together:
        joint = core_lens.interaction(model, task, args.together, **shared)
    else:
        joint = core_lens.most_super_additive(model, task, core.heads, **shared).query("half == 'test'")
    together = args.together or joint["ablated"].iloc[0].split(" & ")
    table = run(model, task, core, together, splits, args.max_examples)
    print("Accuracy in percent:", scripts.starred(table, "accuracy")[splits].to_string(), sep="\n")
    print("\nDrop of the gold margin (logits):", scripts.starred(table, "margin")[splits].to_string(), sep="\n")
    print("* the 95 % interval of the drop, over examples, is without 0")
    print(f"\n{' & '.join(together)}, joint drop beside the sum of single drops (value: joint less sum):")
    print(joint[joint["split"].isin(["pooled", *splits])].round(3).to_string(index=False))
    if args.picture:
        singles = table[table["ablated"] != " & ".join(together)]
        plots.save(plots.ablation_bars(singles, splits=splits), args.picture)
