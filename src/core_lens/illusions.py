"""How well simpler pictures of a model stand for it, in distribution and out of it, at all strengths.

Friedman et al., "Interpretability Illusions in the Generalization of Simplified Models" (ICML 2024): on Dyck strings, on code,
and, which joins it to the Heuristic Core, on classifiers, with pruned subnetworks as one more simplification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from . import code, dyck
from .ablation import replacement_tensors
from .api import find_core
from .completions import Completions, read_rows
from .core import Core
from .errors import CoreLensError, SavedFileError
from .evaluate import check_numbers
from .files import check_folder, claim_folder, differences, read_json, read_table, write_atomically, write_table
from .generalization import ProxyComparison, compare_proxies, splits_of
from .hooked import Encoded, load_language_model, load_model, model_info
from .simplify import SVD, AveragePattern, KMeans, OneHot, Proxy, Simplification
from .subnetwork import Subnetwork
from .tasks import Task, class_order, load_task

K_MEANS = (2, 4, 8, 16, 32, 64)
"""Numbers of clusters."""
SPARSITIES = (0.3, 0.5, 0.7)
"""Of the subnetworks of a classifier."""
CONFIG = "illusions.json"
_WIDTH = 160  # characters of a printed line; wider tables go on below


@dataclass(frozen=True, eq=False)
class Illusions:
    """What a study found.

    Args:
        comparison: what the model and all proxies answered.
        proxies: proxy, method (`SVD`, `k-means`, `one-hot`, `average pattern`, `subnetwork`), strength (dimensions; clusters;
            of a subnetwork the share of units kept; else NaN).
        errors: of a Dyck model: `dyck.depth_errors` of each head, with a column head.
        what: `dyck`, `code` or the task's name.
        model: whose proxies they are.
    """

    comparison: ProxyComparison
    proxies: pd.DataFrame
    errors: pd.DataFrame | None = None
    what: str = "?"
    model: str = "?"

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The table of `generalization_gap` with the columns proxy, method, strength before it."""
        return self.proxies.merge(self.comparison.gaps(), on="proxy")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Agreement, JSD and accuracy with 95 % intervals: proxy, method, strength, split, metric, value, low, high, n."""
        parts = [
            self.comparison.agreement(),
            self.comparison.jsd(by_head=False).rename(columns={"jsd": "value"}).assign(metric="jsd"),
        ]
        table = self.proxies.merge(pd.concat(parts, ignore_index=True), on="proxy")
        return table[[*self.proxies.columns, "split", "metric", "value", "low", "high", "n"]]

    def wide(self, value: str = "agreement") -> pd.DataFrame:
        """One column of `gaps`: a row per proxy, a column per split."""
        if value not in self.gaps:
            raise CoreLensError(f"value={value!r}: choose a column of gaps, such as agreement, jsd, gap or verdict.")
        table = self.gaps.pivot(index="proxy", columns="split", values=value)
        return table.loc[self.proxies["proxy"], self.comparison.splits].rename_axis(columns=None)

    def marked(self) -> pd.DataFrame:
        """The gaps in percent points, as text; a star where the 95 % interval is without 0."""
        apart = (self.wide("low") > 0) | (self.wide("high") < 0)
        texts = (100 * self.wide("gap")).map("{:.1f}".format)
        return (texts + apart.map({True: "*", False: " "}.get)).iloc[:, 1:]

    @staticmethod
    def is_finished(folder: str | Path) -> bool:
        """Whether `load` finds a whole study there."""
        place = Path(folder) / "proxies"
        return (place / CONFIG).is_file() and not _missing(place)

    @classmethod
    def load(cls, folder: str | Path) -> Illusions:
        """Read a study.

        Raises:
            SavedFileError: the folder is none of `illusions`, not finished, or damaged.
        """
        place = Path(folder) / "proxies"
        if not (place / CONFIG).is_file():
            raise SavedFileError(f"{folder} holds no study (no proxies/{CONFIG}): make one with core-lens illusions.")
        if missing := _missing(place):
            raise SavedFileError(f"{folder} is not finished ({missing[0]} is missing): run the same command again.")
        config = _config(place)
        proxies = pd.DataFrame(_proxies(config), columns=["proxy", "method", "strength"])
        methods = list(dict.fromkeys(proxies["method"]))
        found = ProxyComparison.joined([ProxyComparison.load(_place(place, method)) for method in methods])
        errors = read_table(place / "depths.parquet") if config["language"] is not None else None
        return cls(found, proxies.astype({"strength": float}), errors, config["what"], config["model"])

    def write(self, folder: str | Path) -> list[Path]:
        """Write the tables as CSV and the pictures as PNG.

        Returns:
            The files: gaps, curves, jsd of each head; pictures of the curves, and of the gaps where there are several
            splits; of a Dyck model the errors by depth.
        """
        from .viz.drawing import save  # imported late, as matplotlib takes a second
        from .viz.illusions import depth_maps, gap_bars, proxy_curves

        folder = check_folder(folder)
        tables = {"gaps": self.gaps, "curves": self.curves, "jsd": self.comparison.jsd()}
        pictures = {}
        if self.proxies["strength"].notna().any():
            pictures["curves"] = proxy_curves(self.curves, self.comparison.splits[0])
        if len(self.comparison.splits) > 1:
            pictures["gaps"] = gap_bars(self.gaps)
        if self.errors is not None:
            tables["depths"] = self.errors
            shown = ["model", *self._some()]
            for head in dict.fromkeys(self.errors["head"]):
                part = self.errors[self.errors["head"] == head]
                pictures[f"depths-{head}"] = depth_maps(part, self.comparison.splits[-1], shown, head)
        written = []
        for name, table in tables.items():
            written.append(folder / f"{name}.csv")
            write_atomically(written[-1], partial(table.to_csv, index=False))
        return written + [save(figure, folder / f"{name}.png") for name, figure in pictures.items()]

    def _some(self) -> list[str]:
        """A few proxies of each method, for pictures that do not hold all."""
        found = []
        for _, part in self.proxies.groupby("method", sort=False):
            found += part["proxy"].iloc[max(len(part) // 2 - 1, 0) : len(part) // 2 + 1].tolist()
        return found

    def __repr__(self) -> str:
        parts = {
            "agreement with the model (%)": (100 * self.wide()).map("{:.1f}".format),
            f"gap: agreement on {self.comparison.splits[0]} less agreement here (% points; *: its interval is without 0)": (
                self.marked()
            ),
            "verdict": self.wide("verdict"),
        }
        n = self.comparison.questions["split"].value_counts(sort=False)
        accuracy = self.gaps.drop_duplicates("split").set_index("split")["accuracy_model"]
        model = pd.DataFrame({"accuracy": accuracy.map("{:.3f}".format), "n": n}).loc[self.comparison.splits].T
        shown = [
            f"{title}:\n{table.to_string(line_width=_WIDTH)}" for title, table in {"the model": model, **parts}.items()
        ]
        return "\n\n".join(shown)


def illusions(
    what: str | Task,
    out: str | Path,
    *,
    model: Any = None,
    run: str | Path | Core | None = None,
    svd: Iterable[int] | None = None,
    k_means: Iterable[int] = K_MEANS,
    sparsities: Iterable[float] | None = None,
    seeds: int | Iterable[int] | None = None,
    max_examples: int = 1000,
    n_examples: int = 1000,
    batch_size: int = 32,
    folder: str | Path | None = None,
    others: Mapping[str, str | Path] | None = None,
    steps: int | None = None,
    splits: Sequence[str] | str | None = None,
    data_dir: str | Path | None = None,
    tokenizer: Any = None,
    label_map: Mapping[Any, str] | None = None,
    device: str | None = None,
) -> Illusions:
    """The whole study: fit every simplification at every strength, and put the same questions to all.

        core_lens.illusions("dyck", "runs/illusions-dyck")
        core_lens.illusions("mnli", "runs/illusions-mnli", model="my/bert-mnli")

    Calling it again with the same folder continues after the last method that is finished.

    Args:
        what: `dyck`, `code`, or a classifier's task (name or `Task`).
        out: folder for everything.
        model: for `dyck` the one of the package by default, for `code` one that is trained here, for a task the model that is
            simplified (by default the lab's).
        run: a run of `find_core` (or its folder) whose subnetworks are proxies too; by default some are found.
        svd: ranks; by default powers of 2 up to the heads' dimensions.
        k_means: numbers of clusters.
        sparsities, seeds: of the subnetworks that are found, for a task: .3, .5, .7 and 2; seeds=0 finds none.
        max_examples: examples, or sequences, of each split.
        n_examples: training sequences that simplifications are fitted to.
        batch_size: sequences of a forward pass.
        folder, others: for `code`: what to train and test on, as in `code.splits`.
        steps: of the training of the code model (4,000).
        splits, data_dir, tokenizer, label_map: of a task, as in `evaluate`.
        device: where to run; CUDA where there is one, else the CPU.

    Raises:
        CoreLensError: something about the model, the data or the settings is wrong; the message says what to change.
    """
    for name, value in (("max_examples", max_examples), ("n_examples", n_examples), ("batch_size", batch_size)):
        check_numbers(**{name: value if value is not None else 0})
    check_numbers(steps=steps)
    kind = what if isinstance(what, str) and what in ("dyck", "code") else "task"
    own = {
        "code": {"folder": folder, "others": others, "steps": steps},
        "task": {
            "run": run, "sparsities": sparsities, "seeds": seeds, "splits": splits, "data_dir": data_dir,
            "tokenizer": tokenizer, "label_map": label_map,
        },
    }  # fmt: skip
    for other, settings in own.items():
        if other != kind and (given := [name for name, value in settings.items() if value is not None]):
            named = what.name if isinstance(what, Task) else what
            raise CoreLensError(f"{given[0]}= means nothing to {named!r}, only to a {other}: leave it out.")
    if isinstance(what, Task) and what.name in ("dyck", "code"):
        raise CoreLensError(f"a task named {what.name!r} would be taken for another study: give it another name.")
    place = check_folder(out)
    common: dict[str, Any] = {"max_examples": max_examples, "n_examples": n_examples}
    if kind != "task":
        given = "dyck" if kind == "dyck" and model is None else model
        bridge = None if given is None else load_language_model(given, device=device)
        simple = _simple(svd, k_means, code.D_HEAD if bridge is None else int(bridge.cfg.d_head), n_examples)
        _refuse_another(place, {"what": kind, "simplifications": _rows(simple), **common})
        if bridge is None or kind == "code":
            rows, asked = code.splits(folder, others, n=max_examples)
            if bridge is None:
                trained = code.train(rows, place / "training", steps=steps or 4000, device=device)
                bridge = load_language_model(trained, device=device)
            return _study(bridge, read_rows(bridge, rows, n_examples), asked, simple, place, batch_size, kind, common)
        # Few short strings have a bracket far from its opener.
        data = dyck.splits(n_test=5 * max_examples)
        train = read_rows(bridge, data["train"], n_examples)
        asked = {name: one.sample(max_examples) for name, one in dyck.completions(data).items()}
        return _study(bridge, train, asked, simple, place, batch_size, kind, common, language=dyck.Dyck().k)
    task = what if isinstance(what, Task) else load_task(what, data_dir)
    bridge = load_model("lab" if model is None else model, tokenizer, device, label_map=label_map)
    simple = _simple(svd, k_means, int(bridge.cfg.d_head), n_examples)
    common |= {
        "splits": [split.name for split in splits_of(task, splits)],
        "label_map": None if label_map is None else {str(key): value for key, value in label_map.items()},
    }
    class_order(model_info(bridge).id2label, task, label_map)
    train = read_rows(bridge, task, n_examples)
    _refuse_another(
        place,
        {"what": task.name, "weights": model_info(bridge).weight_hash, "simplifications": _rows(simple), **common},
    )
    found = _subnetworks(bridge, task, run, sparsities, seeds, place, label_map)
    return _study(
        bridge, train, task, simple, place, batch_size, task.name, common, subnetworks=found, label_map=label_map
    )


def _simple(svd: Any, k_means: Any, d_head: int, n_examples: int) -> list[tuple[str, int | None, Simplification]]:
    """Method, strength and the simplification, all checked."""
    ranks = [2**i for i in range(d_head.bit_length())] if svd is None else _numbers(svd, "svd")
    if bad := [k for k in ranks if k > d_head]:
        raise CoreLensError(f"svd: the model's heads have {d_head} dimensions, fewer than {bad[0]}.")
    return [
        *(("SVD", k, SVD(k, n_examples=n_examples)) for k in ranks),
        *(("k-means", k, KMeans(k, n_examples=n_examples)) for k in _numbers(k_means, "k_means")),
        ("one-hot", None, OneHot()),
        ("average pattern", None, AveragePattern(n_examples=n_examples)),
    ]


def _numbers(given: Any, name: str) -> list[int]:
    """Whole numbers of at least 1, each once."""
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if bad := [k for k in values if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1]:
        raise CoreLensError(f"{name} has {bad[0]!r}: give whole numbers of at least 1.")
    return list(dict.fromkeys(int(k) for k in values))


def _rows(simple: Sequence[tuple[str, int | None, Simplification]]) -> list[list[Any]]:
    return [[one.name, method, strength] for method, strength, one in simple]


def _proxies(config: Mapping[str, Any]) -> list[list[Any]]:
    """Proxy, method, strength."""
    return [*config["simplifications"], *([name, "subnetwork", kept] for name, kept, _ in config["subnetworks"])]


def _refuse_another(place: Path, known: Mapping[str, Any]) -> None:
    """Raise before anything is trained or pruned, if the folder has a study with other settings."""
    if (place / "proxies" / CONFIG).is_file():
        there = _config(place / "proxies")
        if different := differences({name: there.get(name) for name in known}, known):
            raise SavedFileError(
                f"the folder {place} holds a study with another {', '.join(different)}: choose a new one."
            )


def _subnetworks(
    model: TransformerBridge, task: Task, run: Any, sparsities: Any, seeds: Any, place: Path, label_map: Any
) -> list[Subnetwork]:
    if run is None and seeds == 0:
        return []
    if run is None:
        if (place / "proxies" / CONFIG).is_file() and not _config(place / "proxies")["subnetworks"]:
            raise SavedFileError(f"the folder {place} holds a study without subnetworks: choose a new one, or seeds=0.")
        # The study itself scores them, on more splits.
        given = sparsities or SPARSITIES, 2 if seeds is None else seeds
        core = find_core(model, task, *given, out=place / "core", label_map=label_map, max_examples=100)
    elif isinstance(run, Core | str | Path):
        core = run if isinstance(run, Core) else Core.load(run)
    else:
        raise CoreLensError(f"run is a {type(run).__name__}: pass a Core, or the folder of a run.")
    for subnetwork in core.subnetworks:
        subnetwork.check(model)
    return list(core.subnetworks)


def _study(
    model: TransformerBridge,
    train: Encoded,
    asked: Task | Mapping[str, Completions],
    simple: Sequence[tuple[str, int | None, Simplification]],
    folder: Path,
    batch_size: int,
    what: str,
    common: Mapping[str, Any],
    *,
    subnetworks: Sequence[Subnetwork] = (),
    label_map: Mapping[Any, str] | None = None,
    language: int | None = None,
) -> Illusions:
    """Method by method, each saved when it is done; `language` is a Dyck language's number of types."""
    info, out = model_info(model), folder / "proxies"
    kept = {f"subnetwork {one.name}": one for one in subnetworks}
    config = {
        "what": what, "model": info.model_id, "weights": info.weight_hash, "train": train.fingerprint(),
        "asked": _fingerprint(asked), "language": language, "simplifications": _rows(simple),
        "subnetworks": [[name, 1 - one.sparsity, _hash_of(one)] for name, one in kept.items()], **common,
    }  # fmt: skip
    claim_folder(check_folder(out), CONFIG, config)
    rows = _proxies(config)
    for method in tqdm(dict.fromkeys(row[1] for row in rows), "illusions", unit="method"):
        place = _place(out, method)
        if (place / "comparison.json").is_file():
            continue
        proxies: dict[str, Proxy] = {one.name: one.fit(model, train) for name, _, one in simple if name == method}
        if method == "subnetwork":
            proxies |= kept
        found = compare_proxies(
            model, proxies, asked, splits=common.get("splits"), max_examples=common["max_examples"], batch_size=batch_size,
            label_map=label_map, attended=language is not None,
        )  # fmt: skip
        found.save(place)
    if language is not None:
        assert not isinstance(asked, Task)
        methods = dict.fromkeys(row[1] for row in rows)
        whole = ProxyComparison.joined([ProxyComparison.load(_place(out, method)) for method in methods])
        write_table(out / "depths.parquet", _errors(whole, asked, language))
    return Illusions.load(folder)


def _config(place: Path) -> dict[str, Any]:
    """What the study in a folder is of."""
    found = read_json(place / CONFIG)
    wanted = {"what", "model", "simplifications", "subnetworks", "language"}
    if not isinstance(found, dict) or not wanted <= set(found):
        raise SavedFileError(f"{place / CONFIG} is damaged: delete {place} and run the same command again.")
    return found


def _missing(place: Path) -> list[str]:
    """What an unfinished study lacks."""
    config = _config(place)
    methods = dict.fromkeys(method for _, method, _ in _proxies(config))
    missing = [method for method in methods if not (_place(place, method) / "comparison.json").is_file()]
    depths = config["language"] is None or (place / "depths.parquet").is_file()
    return missing if depths else [*missing, "depths.parquet"]


def _place(folder: Path, method: str) -> Path:
    return folder / method.replace(" ", "-")


def _errors(found: ProxyComparison, asked: Mapping[str, Completions], k: int) -> pd.DataFrame:
    """`dyck.depth_errors` of every head."""
    assert found.attended is not None
    heads = dict.fromkeys(found.attended.columns.get_level_values(1))
    return pd.concat([dyck.depth_errors(found, asked, head, k).assign(head=head) for head in heads], ignore_index=True)


def _hash_of(subnetwork: Subnetwork) -> str:
    digest = hashlib.sha256(subnetwork.mask.numpy().tobytes() + subnetwork.replacement.mode.encode())
    for name, tensor in sorted(replacement_tensors(subnetwork.replacement)[0].items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def _fingerprint(asked: Task | Mapping[str, Completions]) -> str:
    if isinstance(asked, Task):
        return asked.fingerprint()
    parts = [
        (name, one.encoded.fingerprint(), one.asked.to_csv(index=False), one.choices) for name, one in asked.items()
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
