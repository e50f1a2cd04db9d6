"""The heads that subnetworks share, as they are shown, beside the number that random selection would leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .components import Component
from .significance import Null


class CoreHeads(tuple[Component, ...]):
    """The heads in every subnetwork; `.others` says how often each other head occurs, as a share of subnetworks."""

    others: pd.Series
    n: int

    def __new__(cls, components: Iterable[Component], others: pd.Series, n: int) -> CoreHeads:
        made = super().__new__(cls, components)
        made.others, made.n = others, n
        return made

    def __repr__(self) -> str:
        core = " ".join(map(str, self)) or "none"
        text = f"{_count(len(self), 'head')} in all {_count(self.n, 'subnetwork')}: {core}"
        if not self and self.others.empty:
            return "heads were no units here, so none was removed"
        some = self.others[self.others > 0]
        if len(some):
            text += "\nothers: " + ", ".join(f"{c} {share:.0%}" for c, share in some.items())
        return text


@dataclass(frozen=True, eq=False)
class Overlap:
    """The heads in every subnetwork, beside what random selection would leave (`Core.overlap`); MLPs are apart.

    Args:
        heads: the heads in all subnetworks.
        n_heads: heads of the model.
        at_random: how many would be in all, had each subnetwork kept as many heads of the whole model at random.
        within_layers: the same where each keeps as many in each layer (stricter: layers that are hardly pruned, or hardly
            kept, are no evidence).
        by_seed, by_seed_within_layers: the same where only seeds are independent, each with as many heads as all its
            subnetworks share (they are found on the same examples, so that one is little news beside the other).
        others: whether the core stays under other settings: core, heads (in the other core), stay, expected, p,
            p_within_layers, lost (the heads that are not in the other core, with how often they are kept there),
            shared_seeds. Expected and p are those of a random core of the other's size, drawn apart from this one, which
            cores with seeds in common are not quite.
    """

    heads: CoreHeads
    n_heads: int
    at_random: Null
    within_layers: Null
    by_seed: Null
    by_seed_within_layers: Null
    others: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Index null; heads, expected, p, mid_p."""
        whole, layers, seeds = "as many heads", "as many heads in each layer", ", only seeds independent"
        nulls = {
            whole: self.at_random,
            layers: self.within_layers,
            whole + seeds: self.by_seed,
            layers + seeds: self.by_seed_within_layers,
        }
        rows = [(name, null.observed, null.expected, null.p, null.mid_p) for name, null in nulls.items()]
        return pd.DataFrame(rows, columns=["null", "heads", "expected", "p", "mid_p"]).set_index("null")

    def __repr__(self) -> str:
        def line(whole: Null, layers: Null) -> str:
            return (
                f"{whole.expected:.2g} heads expected in all, p = {whole.p:.2g}; "
                f"as many in each layer: {layers.expected:.2g}, p = {layers.p:.2g}"
            )

        lines = [
            f"{len(self.heads)} of {self.n_heads} heads in all {_count(self.heads.n, 'subnetwork')}: "
            f"{' '.join(map(str, self.heads)) or 'none'}",
            f"independent random subnetworks with as many heads: {line(self.at_random, self.within_layers)}",
            f"only seeds independent: {line(self.by_seed, self.by_seed_within_layers)}",
            "All subnetworks share the model and its data: p speaks against random selection of heads only.",
        ]
        for row in self.others.itertuples():
            lines.append(
                f"{row.stay} of {len(self.heads)} stay in the core of {row.core}, which has {row.heads}: {row.expected:.2g} "
                f"expected of a random core, p = {row.p:.2g}, with layers held p = {row.p_within_layers:.2g}"
                + (f"; not there: {row.lost}" if row.lost else "")
                + (f"; {_count(row.shared_seeds, 'seed')} in common, so not drawn apart" if row.shared_seeds else "")
            )
        return "\n".join(lines)


def _count(n: Any, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
