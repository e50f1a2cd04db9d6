"""What many subnetworks of one model have in common, and how they compare: numbers only."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .components import Component
from .errors import CoreLensWarning, SavedFileError
from .evaluate import BALANCED, COLUMNS
from .files import check_folder, differences, file_hash, read_json, read_table, write_json, write_table
from .intervals import over_seeds
from .subnetwork import Subnetwork

FORMAT = 1
"""Version of the run folder's layout."""

_MAIN_METRICS = ("accuracy", "mcc", "pearson", BALANCED, "kl", "squared_error_to_full", "agreement")


_RANGE: dict[str, tuple[float, float]] = {
    "accuracy": (0, 1),
    BALANCED: (0, 1),
    "agreement": (0, 1),
    "kl": (0, np.inf),
    "squared_error_to_full": (0, np.inf),
}
"""What a metric can be; a t-interval over few seeds would reach beyond."""


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
        text = f"{len(self)} heads in all {self.n} subnetworks: {core}"
        if not self and self.others.empty:
            return "heads were no units here, so none was removed"
        some = self.others[self.others > 0]
        if len(some):
            text += "\nothers: " + ", ".join(f"{c} {share:.0%}" for c, share in some.items())
        return text


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
    """

    subnetworks: tuple[Subnetwork, ...]
    evaluation: pd.DataFrame
    predictions: Mapping[str, pd.DataFrame]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
        result = {}
        for sparsity in self.sparsities:
            masks = [s.mask.numpy() for s in self.at(sparsity)]
            pairs = [(a & b).sum() / (a | b).sum() for a, b in combinations(masks, 2) if (a | b).any()]
            result[sparsity] = float(np.mean(pairs)) if pairs else float("nan")
        return result

    def __repr__(self) -> str:
        where = self.provenance.get("model", {}).get("model_id", "?")
        return (
            f"Core of {where} on {self.provenance.get('task', '?')}: {len(self.subnetworks)} subnetworks at "
            f"{', '.join(f'{s:.0%}' for s in self.sparsities)}\n{self.heads!r}"
        )

    def save(self, folder: str | Path) -> None:
        """Write the run as a folder of safetensors, JSON and parquet files.

        Raises:
            SavedFileError: the folder cannot be written, or holds something else.
        """
        root = check_folder(folder)
        known = {"run.json", "evaluation.parquet", "subnetworks", "predictions", "plan.json"}
        strange = sorted(p.name for p in root.iterdir() if p.name not in known and not p.name.startswith("."))
        if strange:
            raise SavedFileError(f"the folder {root} holds other things ({', '.join(strange[:3])}); choose a new one.")
        for name in ("run.json", "plan.json"):
            there = read_json(root / name) if (root / name).is_file() else {}
            origin = there.get("provenance", {}) if name == "run.json" else there
            different = [
                k for k in differences(origin, self.provenance) if k in origin and k not in ("time", "versions")
            ]
            if different:
                raise SavedFileError(
                    f"the folder {root} holds another run (it differs in {', '.join(different)}); choose a new one."
                )
        files: list[Path] = []
        for subnetwork in self.subnetworks:
            files.append(root / "subnetworks" / f"{subnetwork.name}.safetensors")
            subnetwork.save(files[-1])
        for name, table in self.predictions.items():
            files.append(root / "predictions" / f"{name}.parquet")
            write_table(files[-1], table)
        files.append(root / "evaluation.parquet")
        write_table(files[-1], self.evaluation)
        # run.json comes last: a folder that has it is whole.
        manifest = [[path.relative_to(root).as_posix(), file_hash(path)] for path in files]
        content = {
            "format": FORMAT,
            "provenance": dict(self.provenance),
            "notes": list(self.notes),
            "files": manifest,
        }
        write_json(root / "run.json", content)

    @classmethod
    def load(cls, folder: str | Path) -> Core:
        """Read what `save` wrote, checking every file against its hash.

        Raises:
            SavedFileError: something is missing, damaged, or of another version.
        """
        root = Path(folder)
        if not (root / "run.json").is_file():
            hint = (
                "it was interrupted: run the same command again"
                if (root / "subnetworks").is_dir()
                else "check the path"
            )
            raise SavedFileError(f"{root} is no finished run (run.json is missing); {hint}.")
        content = read_json(root / "run.json")
        wanted_keys = {"provenance", "notes", "files"}
        if isinstance(content, dict) and content.get("format") == FORMAT and not wanted_keys <= set(content):
            raise SavedFileError(
                f"{root / 'run.json'} is damaged: it lacks {', '.join(sorted(wanted_keys - set(content)))}."
            )
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else content
            raise SavedFileError(f"{root / 'run.json'} has format {found!r}, this version reads {FORMAT}.")
        subnetworks, predictions, evaluation = [], {}, None
        for name, wanted in content["files"]:
            path = root / name
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise SavedFileError(f"{root / 'run.json'} names a file outside the run: {name!r}.")
            if not path.is_file():
                raise SavedFileError(f"{path} is missing from the run; run the same command again to remake it.")
            if file_hash(path) != wanted:
                raise SavedFileError(f"{path} is damaged (its hash differs); delete it and run the same command again.")
            if path.suffix == ".safetensors":
                subnetworks.append(Subnetwork.load(path))
            elif path.parent.name == "predictions":
                predictions[path.stem] = read_table(path)
            else:
                evaluation = read_table(path)
        if evaluation is None or not subnetworks:
            raise SavedFileError(f"{root / 'run.json'} lists no evaluation or no subnetworks; run the command again.")
        return cls(tuple(subnetworks), evaluation, predictions, content["provenance"], tuple(content["notes"]))


def notes_on(subnetworks: Iterable[Subnetwork]) -> list[str]:
    """What the number and the likeness of the subnetworks mean for the core; also raised as warnings."""
    core = Core(tuple(subnetworks), pd.DataFrame(columns=["subnetwork", *COLUMNS]), {})
    notes = []
    for sparsity, likeness in core.jaccard().items():
        n = len(core.at(sparsity))
        if n < 5:
            notes.append(
                f"{n} seed{'s' * (n > 1)} at sparsity {sparsity:g}: with fewer than 5 the intersection is loose; "
                "heads may be in the core by chance."
            )
        if likeness > 0.9:
            notes.append(
                f"subnetworks of different seeds at sparsity {sparsity:g} hardly differ (mean Jaccard {likeness:.2f}): "
                "the core is then little more than one mask."
            )
    for note in notes:
        warnings.warn(note, CoreLensWarning, stacklevel=3)
    return notes
