"""Which heads does every subnetwork keep, and are they more than chance would leave?

Figure 5 of the Heuristic Core, and Figure 11 for QQP: how often each head is kept at each sparsity.
"""

import pandas as pd

from core_lens import Core, scripts
from core_lens.viz import plots


def run(core: Core) -> pd.DataFrame:
    """A row per head, most often kept first: its frequency per sparsity and over all, and the tests of `head_tests`."""
    tests = core.head_tests().drop(columns=["layer", "head"])
    table = (
        core.frequencies().query("kind == 'head'").drop(columns=["layer", "head", "kind"]).merge(tests, on="component")
    )
    return table.sort_values(["kept", "p_within_layers"], ascending=[False, True], kind="stable", ignore_index=True)


if __name__ == "__main__":
    args = scripts.arguments(__doc__)
    model, task = scripts.load(args)
    splits = scripts.shown(args, task, "id", "ood")
    core = scripts.find_run(args, model, task, splits)
    print(run(core).round(4).to_string(index=False), core.overlap(), sep="\n\n")
    print("\nHeads outside the core whose presence goes with accuracy (counter-heuristic heads, Section 4):")
    print(core.associations(splits).sort_values("p").head(10).round(4).to_string(index=False))
    if args.picture:
        plots.save(plots.frequency_maps(core.frequencies()), args.picture)
