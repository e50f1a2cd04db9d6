"""Do the findings on BERT hold for other models?

Section 6 of the Heuristic Core: for RoBERTa Table 5 (subnetworks) and Table 6 (ablations), for GPT-2 Tables 7 and 8. The
settings are the paper's unless given: an encoder is pruned to 50 % and reported on the task's splits; a decoder to 40 %
and 60 %, and on Embed-If, the only subcase it learns, and on two of entailment (OOD-E), on which it gets worse late on.
"""

import pandas as pd

import core_lens
from core_lens import Core, Task, scripts

DECODER_OOD = {
    "mnli": ["Embed-If", "subsequence_se_relative_clause_on_obj", "constituent_ce_embedded_under_since"],
    "lab": ["Embed-If", "Rel-Clause-entailed", "Embed-If-entailed"],
}


def settings(model, task: Task) -> tuple[list[float], list[str]]:
    """The sparsities and the splits of the model's tables in the paper."""
    is_decoder = core_lens.model_info(model).is_decoder
    ood = [split.name for split in task.with_role("ood")]
    inside = [split.name for split in task.with_role("id")]
    return ([0.4, 0.6], inside + DECODER_OOD.get(task.name, ood)) if is_decoder else ([0.5], inside + ood)


def run(core: Core, splits: list[str]) -> pd.DataFrame:
    """Tables 5 and 7: accuracy of the full model, and min, max, mean and std over subnetworks, in percent."""
    table = core.table().xs("accuracy", level="metric").loc[splits]
    columns = [("full", "value"), *((s, name) for s in core.sparsities for name in ("min", "max", "mean", "std"))]
    return 100 * table[columns]


def ablations(model, task: Task, core: Core, splits: list[str], max_examples=500) -> pd.DataFrame:
    """Tables 6 and 8: the rows of `ablation_table` for the heads of the core."""
    given = {"replacement": core.subnetworks[0].replacement, "max_examples": max_examples}
    return core_lens.ablation_table(model, task, core.heads, splits, **given)


if __name__ == "__main__":
    args = scripts.arguments(__doc__, model="lab-gpt2", run="runs/{model}-section-6")
    model, task = scripts.load(args)
    sparsities, splits = settings(model, task)
    splits, args.sparsities = scripts.shown(args, task) or splits, args.sparsities or sparsities
    core = scripts.find_run(args, model, task, splits)
    print(run(core, splits).round(1).to_string(), core.heads, sep="\n\n")
    table = scripts.starred(ablations(model, task, core, splits, args.max_examples), "accuracy")
    print("\nAccuracy in percent with one head ablated:", table[splits].to_string(), sep="\n")
    print("* the 95 % interval of the drop, over examples, is without 0")
