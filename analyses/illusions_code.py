"""Does a simplification that stands for a code model in its own language do so in others, and when it goes on with words?

A character-level model of Python's standard library is trained first, where none is given. Agreement in its own
language, and the generalisation gap in other languages and on the characters of words that stood before or are new.
"""

import pandas as pd

from core_lens import Illusions, scripts
from core_lens.viz import illusions, plots


def run(study: Illusions) -> pd.DataFrame:
    """Agreement in distribution in percent, and the gaps as text, a star where the interval is without 0."""
    return pd.concat([(100 * study.wide().iloc[:, :1]).round(1), study.marked()], axis=1)


def kinds(study: Illusions) -> pd.DataFrame:
    """Accuracy of the model and agreement of the proxies, in percent, by language and kind of character."""
    table = study.comparison.agreement(by=["kind"])
    whole = table[~table["split"].str.contains(", ")]
    agreement = whole[whole["metric"] == "agreement"].set_index(["split", "kind", "proxy"])["value"].unstack()
    model = whole[(whole["metric"] == "accuracy") & (whole["proxy"] == "model")].set_index(["split", "kind"])["value"]
    return 100 * agreement[study.proxies["proxy"]].assign(model_is_right=model)


if __name__ == "__main__":
    omit = ["task", "data_dir", "label_map", "sparsities", "seeds", "preset", "splits"]
    args = scripts.arguments(__doc__, omit, model="code", run="runs/illusions-code", folder=None)
    study = scripts.find_illusions(args, "code", folder=args.folder, steps=args.steps or 4000)
    print("Agreement in distribution (%), and the gap (% points):", run(study).to_string(), sep="\n")
    print("\nAgreement by kind of character (%):", kinds(study).round(1).T.to_string(), sep="\n")
    if args.picture:
        plots.save(illusions.proxy_curves(study.curves, study.comparison.splits[0]), args.picture)
