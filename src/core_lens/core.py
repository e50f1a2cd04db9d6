"""What many subnetworks of one model have in common, how they compare, and whether that is more than chance: numbers only.

Subnetworks of one run share the model and its data. So every p-value here speaks against *random selection* of heads, not
for a role of theirs in the model: whatever makes a pruner prefer a head, such as its scale, does so under every seed. See
`significance` for what random selection means where a seed has subnetworks at several sparsities.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from scipy.stats import false_discovery_control
from transformer_lens.model_bridge import TransformerBridge

from . import significance
from .components import Component
from .errors import CoreLensError, CoreLensWarning, ModelError
from .evaluate import BALANCED, COLUMNS
from .hooked import load_model
from .intervals import over_seeds
from .overlap import CoreHeads, Overlap
from .run_folder import read_run, write_run
from .significance import Null
from .stability import jaccard
from .subnetwork import Subnetwork
from .tasks import Task, load_task

if TYPE_CHECKING:
    from .viz.attention import AttentionView

_MAIN_METRICS = ("accuracy", "mcc", "pearson", BALANCED, "kl", "squared_error_to_full", "agreement")


_RANGE: dict[str, tuple[float, float]] = {
    "accuracy": (0, 1),
    BALANCED: (0, 1),
    "agreement": (0, 1),
    "kl": (0, np.inf),
    "squared_error_to_full": (0, np.inf),
}
"""What a metric can be; a t-interval over few seeds would reach beyond."""


@dataclass(frozen=True, eq=False)
class Core:
    """The result of `find_core`.

    Args:
        subnetworks: one per sparsity and seed.
        evaluation: long DataFrame (subnetwork, sparsity, seed, split, group, metric, value, low, high, n); the full
            model's rows have subnetwork `full` and sparsity 0.
        predictions: per subnetwork name (and `full`), the logits of every reported example (`evaluate.predict`).
        provenance: model, task, data, configuration, versions and time, as plain JSON values.
        notes: what a reader of the results should know.
        model, data: the hooked model and the task, where `find_core` made this; they are not saved.
    """

    subnetworks: tuple[Subnetwork, ...]
    evaluation: pd.DataFrame
    predictions: Mapping[str, pd.DataFrame]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    model: TransformerBridge | None = field(default=None, repr=False)
    data: Task | None = field(default=None, repr=False)

    @property
    def sparsities(self) -> list[float]:
        """The sparsities that were asked for, ascending."""
        return sorted({s.asked_sparsity for s in self.subnetworks})

    @property
    def heads(self) -> CoreHeads:
        """The heads that occur in every subnetwork (the heuristic core), with how often the others do."""
        shares = self._shares("head")
        others = pd.Series({c: share for c, share in shares.items() if share < 1}, dtype=float)
        return CoreHeads(
            [c for c, share in shares.items() if share == 1],
            others.sort_values(ascending=False, kind="stable"),
            len(self.subnetworks),
        )

    @property
    def mlps(self) -> tuple[Component, ...]:
        """The MLPs that occur in every subnetwork."""
        shares = self._shares("mlp")
        return tuple(c for c, share in shares.items() if share == 1)

    def _shares(self, kind: str) -> dict[Component, float]:
        """Share of subnetworks that keep each unit of a kind."""
        shares = np.mean([s.mask.numpy() for s in self.subnetworks], axis=0)
        units = self.subnetworks[0].units
        return {c: float(share) for c, share in zip(units, shares, strict=True) if c.kind == kind}

    def at(self, sparsity: float) -> tuple[Subnetwork, ...]:
        """The subnetworks of one asked sparsity."""
        return tuple(s for s in self.subnetworks if s.asked_sparsity == sparsity)

    def frequencies(self) -> pd.DataFrame:
        """How often each component is kept: component, layer, head, kind, then one column per sparsity and `all`."""
        units = self.subnetworks[0].units
        table = pd.DataFrame(
            {
                "component": [str(c) for c in units],
                "layer": [c.layer for c in units],
                "head": pd.array([c.head for c in units], dtype="Int64"),
                "kind": [c.kind for c in units],
            }
        )
        for sparsity in self.sparsities:
            table[sparsity] = np.mean([s.mask.numpy() for s in self.at(sparsity)], axis=0)
        table["all"] = np.mean([s.mask.numpy() for s in self.subnetworks], axis=0)
        return table

    def table(self) -> pd.DataFrame:
        """Per split and metric: the full model, then min / max / mean / std and a 95 % interval over subnetworks.

        Index (split, metric); columns `("full", "value" / "low" / "high")` with the interval over examples, then per
        sparsity `min`, `max`, `mean`, `std` (population, as in the paper), `low`, `high` (Student's t over seeds).
        """
        rows = self.evaluation[self.evaluation["group"] == "all"]
        order = list(dict.fromkeys(zip(rows["split"], rows["metric"], strict=True)))
        full = rows[rows["subnetwork"] == "full"].set_index(["split", "metric"])
        columns: dict[tuple[Any, str], list[float]] = {}
        splits = list(dict.fromkeys(split for split, _ in order))
        index = [(s, m) for s in splits for m in _MAIN_METRICS if (s, m) in order]
        for part in ("value", "low", "high"):
            columns["full", part] = [float(full[part].get(key, np.nan)) for key in index]  # type: ignore[arg-type]
        for sparsity in self.sparsities:
            ours = rows[(rows["subnetwork"] != "full") & (rows["sparsity"] == sparsity)]
            values = {key: part["value"].to_numpy() for key, part in ours.groupby(["split", "metric"])}
            for name, reduce in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
                columns[sparsity, name] = [float(reduce(values[key])) for key in index]
            bounds = [np.clip(over_seeds(values[key]), *_RANGE.get(key[1], (-1, 1))) for key in index]
            columns[sparsity, "low"], columns[sparsity, "high"] = map(list, zip(*bounds, strict=True))
        table = pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(index, names=["split", "metric"]))
        return table

    def jaccard(self) -> dict[float, float]:
        """Mean Jaccard index of kept units over pairs of seeds, per sparsity (nan for a single seed)."""
        return {sparsity: jaccard([s.mask.numpy() for s in self.at(sparsity)]) for sparsity in self.sparsities}

    def overlap(self, others: Mapping[str, Core] | Sequence[Core] = ()) -> Overlap:
        """The heads in all subnetworks beside the number that random selection would leave, exactly.

            core.overlap()
            core.overlap([core_under_zero_ablation, core_of_another_pruner])

        Args:
            others: cores of the same model found in other ways (another pruner, another ablation), to see whether this one
                stays; a list is named by pruner and ablation.

        Raises:
            CoreLensError: heads are no units here, or another core is of another model.
        """
        masks = self.head_masks()
        core = masks.all(axis=0)
        named = others if isinstance(others, Mapping) else {_settings(c, i): c for i, c in enumerate(others, 1)}
        rows = []
        for name, other in named.items():
            theirs, elsewhere = other.head_masks().all(axis=0), dict(other.heads.others)
            hashes = [c.subnetworks[0].replacement.weight_hash for c in (self, other)]
            if hashes[0] != hashes[1]:
                raise CoreLensError(
                    f"the core {name!r} is of a model with other weights (hash {hashes[1][:12]}, here {hashes[0][:12]}); "
                    "overlap(others=) is for other ways to prune the same model: use compare_cores for other models."
                )
            at_random, within = significance.intersection(np.stack([core, theirs]))
            lost = ", ".join(f"{c} ({elsewhere[c]:.0%})" for c in self.heads if c in elsewhere)
            figures = (at_random.observed, at_random.expected, at_random.p, within.p)
            rows.append((name, len(other.heads), *figures, lost, len(set(self.seeds()) & set(other.seeds()))))
        columns = ["core", "heads", "stay", "expected", "p", "p_within_layers", "lost", "shared_seeds"]
        by_seed = np.stack([masks[self.seeds() == seed].all(axis=0) for seed in np.unique(self.seeds())])
        nulls = (*significance.intersection(masks), *significance.intersection(by_seed))
        return Overlap(self.heads, core.size, *nulls, pd.DataFrame(rows, columns=columns))

    def head_tests(self) -> pd.DataFrame:
        """Is each head kept more often than random selection would keep it?

        `p` takes the number of subnetworks that keep a head as Poisson binomial, with the share of heads that each subnetwork
        keeps. `p_by_seed` takes only seeds as independent, and `p_within_layers` as well that each seed's subnetworks keep
        as many heads of the head's layer. One-sided; where some heads are always kept, the others have less room than
        the null gives them, which errs on the careful side.

        Returns:
            DataFrame, a row per head: component, layer, head, kept (number of subnetworks), n, expected, then p and q of
            each kind; q is p corrected over heads (Benjamini and Hochberg 1995).
        """
        masks = self.head_masks()
        kept, seeds = masks.sum(axis=0), self._per_seed(masks, self.seeds())
        whole = significance.times_kept(masks.reshape(len(masks), -1).astype(int))
        whole_by_seed = significance.times_kept(seeds.reshape(len(seeds), -1))
        layers_by_seed = [significance.times_kept(seeds[:, layer]) for layer in range(seeds.shape[1])]
        layer, head = (i.ravel() for i in np.indices(kept.shape))
        columns = {"component": _head_names(self), "layer": layer, "head": head, "kept": kept.ravel(), "n": len(masks)}
        table = pd.DataFrame(columns).assign(expected=kept.mean())
        tests = {"": [whole] * len(layer), "_by_seed": [whole_by_seed] * len(layer)}
        tests["_within_layers"] = [layers_by_seed[i] for i in layer]
        for name, pmfs in tests.items():
            table["p" + name] = [Null(int(k), pmf).p for k, pmf in zip(kept.ravel(), pmfs, strict=True)]
            table["q" + name] = false_discovery_control(table["p" + name])
        return table

    def containment(self, draws: int = 10_000, seed: int = 0) -> pd.DataFrame:
        """How far sparser subnetworks lie within denser ones: |sparser and denser| / |sparser|, in heads.

        Pairs of different seeds are what is tested: those of one seed are found on the same examples and are alike anyhow.

        Args:
            draws: permutations of each seed's heads; p is at least 1 / (draws + 1).
            seed: of the permutations.

        Returns:
            DataFrame, a row per pair of sparsities: sparser, denser, pairs (of different seeds), containment (sum over
            pairs of the shared heads over the sum of the sparser ones' heads), min, max (of one pair), expected (mean of the
            hypergeometric distribution), p, expected_within_layers, p_within_layers, same_seed (pairs of one seed).
        """
        self.head_masks()  # says so where heads are no units, at one sparsity too
        rows = []
        for low, high in combinations(self.sparsities, 2):
            sparse, dense = self.head_masks(high).astype(int), self.head_masks(low).astype(int)
            differ = self.seeds(high)[:, None] != self.seeds(low)
            inside, sizes = np.einsum("alh,blh->ab", sparse, dense), sparse.sum(axis=(1, 2))[:, None]
            shares = np.divide(inside, sizes, out=np.full(inside.shape, np.nan), where=sizes > 0)
            held = np.einsum("al,bl->ab", sparse.sum(axis=2), dense.sum(axis=2)) / sparse.shape[2]
            whole = sizes * dense.sum(axis=(1, 2)) / sparse[0].size
            total, same = ((sizes * pairs).sum() for pairs in (differ, ~differ))
            if not total:
                continue
            everyone = np.union1d(self.seeds(high), self.seeds(low))
            a, b = (self._per_seed(m, self.seeds(s), everyone) for m, s in ((sparse, high), (dense, low)))
            p = []
            for strata in self._strata():
                x, y = significance.shuffled(a.reshape(len(a), -1), b.reshape(len(b), -1), strata, draws, seed)
                # Pairs of one seed add the same to every draw.
                p.append(significance.upper_p((x * y).sum(axis=1), inside.sum()))
            figures = ((inside * differ).sum() / total, np.nanmin(shares[differ]), np.nanmax(shares[differ]))
            nulls = ((whole * differ).sum() / total, p[0], (held * differ).sum() / total, p[1])
            alike = (inside * ~differ).sum() / same if same else np.nan
            rows.append((high, low, int(differ.sum()), *figures, *nulls, alike))
        columns = ["sparser", "denser", "pairs", "containment", "min", "max", "expected", "p"]
        return pd.DataFrame(rows, columns=[*columns, "expected_within_layers", "p_within_layers", "same_seed"])

    def associations(
        self, splits: Iterable[str] | None = None, metric: str = "accuracy", draws: int = 50_000, seed: int = 0
    ) -> pd.DataFrame:
        """Do subnetworks with a head score better on a split? Over heads outside the core, within sparsities.

        The paper's counter-heuristic heads (Section 4) go with higher accuracy on a subcase. Sparsity lowers both, so
        subnetworks are compared within theirs, and seeds are permuted as a whole. An association is no effect: a head may
        stand for others that come and go with it. `ablate` tests effects.

        Args:
            splits: the splits; None for all with `metric`.
            metric: as in `evaluation`, over all examples of a split.
            draws: permutations; p is at least 1 / (draws + 1).
            seed: of the permutations.

        Returns:
            DataFrame, a row per head that is in some but not all subnetworks of a sparsity, and split: component, split,
            with_head, without (subnetworks, over sparsities where it varies), difference (mean over sparsities), p
            (two-sided), q (over all rows, Benjamini-Hochberg), arrangements (in how many ways the seeds could differ in
            the head: p cannot be below 1 over that, however strong the association; with few seeds no p is small).
        """
        masks = self.head_masks().reshape(len(self.subnetworks), -1)
        rows = self.evaluation
        rows = rows[(rows["metric"] == metric) & (rows["group"] == "all") & (rows["subnetwork"] != "full")]
        known = list(dict.fromkeys(rows["split"]))
        chosen = known if splits is None else [splits] if isinstance(splits, str) else list(splits)
        if unknown := [s for s in chosen if s not in known] or not chosen:
            raise CoreLensError(
                f"no {metric!r} of subnetworks on {unknown if known else 'any split'}: choose from {known}."
            )
        names = [s.name for s in self.subnetworks]
        outcome = (
            rows.pivot(index="subnetwork", columns="split", values="value").loc[names, chosen].to_numpy(dtype=float)
        )
        strata = np.array([s.asked_sparsity for s in self.subnetworks])
        kept = np.array([masks[strata == s].sum(axis=0) for s in self.sparsities])
        size = np.array([[len(self.at(s))] for s in self.sparsities])
        varies = (kept > 0) & (kept < size)
        heads = np.flatnonzero(varies.any(axis=0))
        difference, p = significance.association(masks[:, heads], outcome, strata, self.seeds(), draws, seed)
        ways = [significance.arrangements(masks[:, head], strata, self.seeds()) for head in heads]
        table = pd.DataFrame(
            {
                "component": np.repeat(np.array(_head_names(self), dtype=object)[heads], len(chosen)),
                "split": np.tile(np.array(chosen, dtype=object), len(heads)),
                "with_head": np.repeat((kept * varies).sum(axis=0)[heads], len(chosen)),
                "without": np.repeat(((size - kept) * varies).sum(axis=0)[heads], len(chosen)),
                "difference": difference.ravel(),
                "p": p.ravel(),
            }
        )
        table["q"] = false_discovery_control(table["p"]) if len(table) else []
        return table.assign(arrangements=np.repeat(ways, len(chosen)))

    def rank_correlation(self, a: float, b: float, draws: int = 10_000, seed: int = 0) -> pd.Series:
        """Spearman's rho between how often each head is kept at sparsity `a` and at `b` (Section 4, Figures 13 and 14).

        Args:
            a, b: two of `sparsities`.
            draws: permutations of each seed's heads, alike at both sparsities; p is at least 1 / (draws + 1).
            seed: of the permutations.

        Returns:
            Series: rho, low, high, p, p_within_layers (one-sided: is rho above what random selection gives, in which the
            noise that a seed has at both sparsities makes up for a part of it), seeds. The interval is a jackknife over
            seeds for the rho to expect of this many (see `significance.spearman_interval`).
        """
        masks = [self.head_masks(s).reshape(len(self.at(s)), -1) for s in (a, b)]
        freqs = [m.mean(axis=0) for m in masks]
        for sparsity, freq in zip((a, b), freqs, strict=True):
            if np.ptp(freq) == 0:
                raise CoreLensError(f"at sparsity {sparsity:g} all heads are kept equally often: there are no ranks.")
        seeds = [self.seeds(s) for s in (a, b)]
        everyone = np.union1d(seeds[0], seeds[1])
        low, high = significance.spearman_interval(masks[0], masks[1], seeds[0], seeds[1])
        rho, p = float(significance.spearman(freqs[0], freqs[1])), []
        x, y = (self._per_seed(m, s, everyone) for m, s in zip(masks, seeds, strict=True))
        for strata in self._strata():
            null = significance.spearman(*significance.shuffled(x, y, strata, draws, seed))
            p.append(significance.upper_p(null, rho))
        return pd.Series(
            {"rho": rho, "low": low, "high": high, "p": p[0], "p_within_layers": p[1], "seeds": len(everyone)}
        )

    def seeds(self, sparsity: float | None = None) -> np.ndarray:
        """The seed of each subnetwork (of one sparsity, or all), as text."""
        return np.array([str(s.seed) for s in (self.subnetworks if sparsity is None else self.at(sparsity))])

    @staticmethod
    def _per_seed(masks: np.ndarray, seeds: np.ndarray, everyone: np.ndarray | None = None) -> np.ndarray:
        """How many of each seed's subnetworks keep each head, [seed, ...]."""
        return np.stack([masks[seeds == s].sum(axis=0) for s in (np.unique(seeds) if everyone is None else everyone)])

    def _strata(self) -> tuple[np.ndarray, np.ndarray]:
        """Within what heads are permuted: the model, the layer."""
        units = self.subnetworks[0].units
        layers = np.repeat(np.arange(units.n_layers), units.n_heads)
        return np.zeros_like(layers), layers

    def head_masks(self, sparsity: float | None = None) -> Bool[np.ndarray, "subnetwork layer head"]:
        """Which subnetworks (of one sparsity, or all) keep which heads.

        Raises:
            CoreLensError: heads are no units, or there is no such sparsity.
        """
        chosen = self.subnetworks if sparsity is None else self.at(sparsity)
        if not chosen:
            there = ", ".join(f"{s:g}" for s in self.sparsities)
            raise CoreLensError(f"no subnetwork was asked for at sparsity {sparsity!r}: choose from {there}.")
        masks = [s.units.heads(s.mask) for s in chosen]
        if any(m is None for m in masks):
            raise CoreLensError(
                "heads were no units here (units='mlp'), so none was removed: find a core with heads as units."
            )
        return np.stack([m.numpy() for m in masks if m is not None])

    def __repr__(self) -> str:
        where = self.provenance.get("model", {}).get("model_id", "?")
        return (
            f"Core of {where} on {self.provenance.get('task', '?')}: {len(self.subnetworks)} subnetwork"
            f"{'s' * (len(self.subnetworks) != 1)} at "
            f"{', '.join(f'{s:.0%}' for s in self.sparsities)}\n{self.heads!r}"
        )

    def show_attention(
        self, heads: Any = None, examples: Any = 2, *, model: Any = None, task: str | Task | None = None
    ) -> AttentionView:
        """The attention of heads on examples, in the full model; shows itself in a notebook.

            core.show_attention("L2.H5", examples=[("the judge saw the actor", "the actor saw the judge")])

        Args:
            heads: `"L2.H5"`, or several; None for the core.
            examples: how many to draw of the first in-domain and out-of-domain split each; or a text, a pair, a list of
                these, rows of a split, or a split.
            model, task: for a loaded run, which keeps neither; the task may be left out where examples are texts.

        Raises:
            ModelError: no model, or another one than the run's.
            TaskError: the examples cannot be drawn or read.
        """
        from .viz.attention import show

        given = self.model if model is None else model
        if given is None:
            raise ModelError("a loaded run keeps no model: pass model= (and task=, unless examples= are texts).")
        bridge = load_model(given)
        self.subnetworks[0].check(bridge)
        data = self.data if task is None else load_task(task) if isinstance(task, str) else task
        return show(bridge, self.heads if heads is None else heads, examples, data)

    def save_attention(self, path: str | Path, heads: Any = None, examples: Any = 2, **options: Any) -> Path:
        """Write `show_attention` as one page that works offline.

        Raises:
            SavedFileError: it cannot be written there; and as `show_attention`.
        """
        return self.show_attention(heads, examples, **options).save(path)

    def report(self, path: str | Path, model: Any = None, task: str | Task | None = None, **options: Any) -> Path:
        """Write everything that is known of this run into one page that works offline (see `report.write_report`)."""
        from .report import write_report

        return write_report(
            self, path, self.model if model is None else model, self.data if task is None else task, **options
        )

    def _repr_html_(self) -> str:
        from .viz.notebook import core_html

        return core_html(self)

    def save(self, folder: str | Path) -> None:
        """Write the run as a folder of safetensors, JSON and parquet files.

        Raises:
            SavedFileError: the folder cannot be written, or holds something else.
        """
        write_run(folder, self.subnetworks, self.evaluation, self.predictions, self.provenance, self.notes)

    @classmethod
    def load(cls, folder: str | Path) -> Core:
        """Read what `save` wrote, checking every file against its hash.

        Raises:
            SavedFileError: something is missing, damaged, or of another version.
        """
        subnetworks, evaluation, predictions, provenance, notes = read_run(folder)
        return cls(tuple(subnetworks), evaluation, predictions, provenance, tuple(notes))


def _head_names(core: Core) -> list[str]:
    """`L0.H0`, `L0.H1`, ... in the order of the masks."""
    return [str(c) for c in core.subnetworks[0].units if c.kind == "head"]


def _settings(core: Core, number: int) -> str:
    """What tells cores of one model apart: pruner and ablation."""
    pruner = core.provenance.get("pruner", {}).get("name", "?")
    return f"other {number} ({pruner} pruner, {core.subnetworks[0].replacement.mode} ablation)"


def notes_on(subnetworks: Iterable[Subnetwork]) -> list[str]:
    """What the number and the likeness of the subnetworks mean for the core; also raised as warnings."""
    core = Core(tuple(subnetworks), pd.DataFrame(columns=["subnetwork", *COLUMNS]), {})
    few = {s: len(core.at(s)) for s in core.sparsities if len(core.at(s)) < 5}
    alike = {s: likeness for s, likeness in core.jaccard().items() if likeness > 0.9}
    notes = []
    if few:
        n = max(few.values())
        notes.append(
            f"{n} seed{'s' * (n > 1)} at {_named(few)}: with fewer than 5 the intersection is loose; heads may be in the core "
            "by chance."
        )
    if alike:
        notes.append(
            f"subnetworks of different seeds at {_named(alike)} hardly differ (mean Jaccard {min(alike.values()):.2f}"
            f"{' or more' * (len(alike) > 1)}): the core is then little more than one mask."
        )
    for note in notes:
        warnings.warn(note, CoreLensWarning, stacklevel=3)
    return notes


def _named(sparsities: Iterable[float]) -> str:
    several = [f"{s:g}" for s in sparsities]
    return f"sparsit{'y' if len(several) == 1 else 'ies'} {', '.join(several)}"
