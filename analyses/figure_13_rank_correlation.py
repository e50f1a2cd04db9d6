"""Are the heads of sparse subnetworks, which do not generalise, the ones that denser subnetworks keep most often?

Figures 13 and 14 of the Heuristic Core (MNLI, QQP): Spearman's rho between the frequencies of heads at two sparsities.
"""

from itertools import combinations

import pandas as pd

from core_lens import Core, CoreLensError, scripts
from core_lens.viz import plots


def run(core: Core) -> pd.DataFrame:
    """A row per pair of sparsities: rho with interval and p, then how much of the sparser lies within the denser."""
    if len(core.sparsities) < 2:
        raise CoreLensError(f"the run has one sparsity, {core.sparsities[0]:g}: a correlation needs a run at two.")
    rows = []
    for denser, sparser in combinations(core.sparsities, 2):
        found = core.rank_correlation(denser, sparser).drop("seeds").add_prefix("rho_").rename({"rho_rho": "rho"})
        rows.append({"sparser": sparser, "denser": denser, **found})
    return pd.DataFrame(rows).merge(core.containment(), how="left", on=["sparser", "denser"])


if __name__ == "__main__":
    args = scripts.arguments(__doc__)
    model, task = scripts.load(args)
    core = scripts.find_run(args, model, task)
    print(run(core).round(4).T.to_string(header=False))
    if args.picture:
        low, high = core.sparsities[0], core.sparsities[-1]
        figure = plots.frequency_scatter(core.frequencies(), low, high, core.rank_correlation(low, high))
        plots.save(figure, args.picture)
