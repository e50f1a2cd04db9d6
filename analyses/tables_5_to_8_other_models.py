"""Do the findings on BERT hold for other models?

Section 6 of the Heuristic Core: for RoBERTa Table 5 (subnetworks) and Table 6 (ablations), for GPT-2 Tables 7 and 8. A
decoder is pruned to 40 % and 60 % and reported on Embed-If, the only subcase it learns, and on two subcases of entailment
(OOD-E), on which it gets worse late in training; an encoder to the task's own sparsities and out-of-domain splits.
"""

import pandas as pd

import core_lens
from core_lens import Core, Task, scripts

DECODER_OOD = {
    "mnli": ["Embed-If", "subsequence_se_relative_clause_on_obj", "constituent_ce_embedded_under_since"],
    "lab": ["Embed-If", "Rel-Clause-entailed", "Embed-If-entailed"],
}


def splits_of(model, task: Task) -> list[str]:
    """The splits of the model's table in the paper."""
    ood = [split.name for split in task.with_role("ood")]
    if core_lens.model_info(model).is_decoder:
        ood = DECODER_OOD.get(task.name, ood)
    return [*(split.name for split in task.with_role("id")), *ood]


def run(core: Core, splits: list[str]) -> pd.DataFrame:
    """Tables 5 and 7: accuracy of the full model, and min, max, mean and std over subnetworks, in percent."""
    table = core.table().xs("accuracy", level="metric").loc[splits]
    columns = [("full", "value"), *((s, name) for s in core.sparsities for name in ("min", "max", "mean", "std"))]
    return 100 * table[columns]


if __name__ == "__main__":
    args = scripts.arguments(__doc__, model="lab-gpt2", run="runs/{model}-section-6")
    model, task = scripts.load(args)
    splits = args.splits or splits_of(model, task)
    core = scripts.find_run(args, model, task, splits)
    print(run(core, splits).round(1).to_string(), core.heads, sep="\n\n")
    ablations = core_lens.ablation_table(
        model, task, core.heads, splits, replacement=core.subnetworks[0].replacement, max_examples=args.max_examples
    )
    rows = ablations.query("metric == 'accuracy'")
    wide = rows.pivot(index="ablated", columns="split", values="value").loc[
        list(dict.fromkeys(rows["ablated"])), splits
    ]
    print("\nAccuracy in percent with one head ablated:", (100 * wide).round(1).to_string(), sep="\n")
