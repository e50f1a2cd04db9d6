"""Do the heads of the core attend to repeated words, more than chance and more than other heads?

Figure 9 of the Heuristic Core. `--pretrained` measures the checkpoint from before fine-tuning too, to see whether the heads
that look for overlap were there already, which the paper leaves open.
"""

import pandas as pd

import core_lens
from core_lens import Core, scripts
from core_lens.viz import plots


def run(patterns: pd.DataFrame, core: Core) -> pd.DataFrame:
    """The class of every head and its excess over chance by kind of token, the core's heads first."""
    table = core_lens.classify_heads(patterns)
    names = [f"L{layer}.H{head}" for layer, head in zip(table["layer"], table["head"], strict=True)]
    table.insert(0, "in_core", [name in {str(head) for head in core.heads} for name in names])
    return table.sort_values("in_core", ascending=False, kind="stable", ignore_index=True)


if __name__ == "__main__":
    args = scripts.arguments(__doc__, pretrained=None, split=None)
    model, task = scripts.load(args)
    core = scripts.find_run(args, model, task)
    patterns = core_lens.attention_patterns(
        model, task, args.split, pretrained=args.pretrained, max_examples=args.max_examples
    )
    table = run(patterns, core)
    print(table.round(3).to_string(index=False))
    by = [name for name in ("checkpoint", "in_core") if name in table]
    print(
        "\nMean excess over chance:",
        table.groupby(by).mean(numeric_only=True).iloc[:, 2:].round(3).to_string(),
        sep="\n",
    )
    if args.picture:
        measures = ["repeated_word", "repeated_word_vs_content", "previous", "next", "sep"]
        plots.save(plots.pattern_scores(patterns, core.heads, measures), args.picture)
