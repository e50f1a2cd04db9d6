"""What do the heads of the core look at in single examples?

Figure 7 of the Heuristic Core, and Figure 8 for QQP. `--page attention.html` writes a page that draws all of it.
"""

import pandas as pd

from core_lens import scripts
from core_lens.viz.attention import AttentionView, show


def run(view: AttentionView) -> pd.DataFrame:
    """What each token attends to most: example, head, position, token, attends_to, attention."""
    rows = []
    for number, example in enumerate(view.examples):
        for head, pattern in zip(view.heads, example.attention, strict=True):
            for position, (token, row) in enumerate(zip(example.tokens, pattern, strict=True)):
                rows.append((number, str(head), position, token, example.tokens[row.argmax()], row.max()))
    return pd.DataFrame(rows, columns=["example", "head", "position", "token", "attends_to", "attention"])


if __name__ == "__main__":
    args = scripts.arguments(__doc__, heads=(), examples=1, page=None)
    model, task = scripts.load(args)
    heads = args.heads or scripts.find_run(args, model, task).heads
    view = show(model, heads, args.examples, task)
    for number, table in run(view).groupby("example"):
        example = view.examples[number]
        print(f"\n{example.origin}: {example.gold}; the model says {example.said}. Each token's first choice, by head:")
        print(table.pivot(index=["position", "token"], columns="head", values="attends_to").to_string())
    if args.page:
        view.save(args.page)
