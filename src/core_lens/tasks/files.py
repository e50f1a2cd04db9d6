"""Reading data in the formats corpora are distributed in, and finding a corpus's files by their names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import TaskError
from .base import Files
from .base import Path as AnyPath

if TYPE_CHECKING:
    import datasets

FORMATS = (".parquet", ".jsonl", ".json", ".tsv", ".csv", ".txt")
"""What is read, in order of preference where a folder has the same data twice."""

_COLA = ["source", "label", "mark", "sentence"]
_BAD_FILE = (ValueError, KeyError, pa.ArrowException, OSError, UnicodeError)
_DEPTH = 4

NAMES: Mapping[str, str] = {
    "hans": r"hans|heuristics_(evaluation|train)_set",
    "paws": r"paws(?!x|[-_ ]?(wiki|x))([-_ ]?qqp)?",
    "mnli": r"mnli|multi_?nli",
    "snli": r"snli",
    "qqp": r"(?<!paws)(?<!paws[-_ ])qqp",
    "rte": r"rte",
    "sst2": r"sst[-_]?2",
    "cola": r"cola",
    "mrpc": r"mrpc|msr_paraphrase",
    "qnli": r"qnli",
    "stsb": r"sts[-_]?b(enchmark)?",
    "wnli": r"wnli",
}
"""Corpus -> how a file's or folder's name shows that it belongs to it (case does not matter)."""

_SPLITS = {
    "validation_matched": r"(dev|valid|validation|val)_matched",
    "validation_mismatched": r"(dev|valid|validation|val)_mismatched",
    # Before test, as PAWS-QQP's dev_and_test is one.
    "validation": r"dev|valid|validation|val|evaluation|eval",
    "train": r"train|training",
    "test": r"test",
}


def read_table(path: Path, columns: Collection[str] | None = None) -> pd.DataFrame:
    """A file, or a `Dataset` folder, as a DataFrame; values of csv and tsv files are strings.

    Tab-separated files (.tsv, .txt) are read without quoting, as GLUE's are. CoLA's have no header; its four
    columns are named here.

    Args:
        path: the file.
        columns: what is needed of it, to save memory; None for all.

    Raises:
        TaskError: the file is missing or cannot be read.
    """
    if not path.exists():
        raise TaskError(f"there is no file {path}: check the path.")
    try:
        if path.is_dir():
            return dataset_frame(_saved(path))
        if path.suffix not in FORMATS:
            raise TaskError(f"{path} is no file that is read: use {', '.join(FORMATS)} or a folder saved by datasets.")
        if path.suffix == ".parquet":
            names = pq.read_schema(path).names
            return pd.read_parquet(path, columns=names if columns is None else [c for c in names if c in columns])
        if path.suffix in (".jsonl", ".json"):
            return _read_json(path, columns)
        return _read_text(path, columns)
    except _BAD_FILE as error:
        raise TaskError(
            f"cannot read {path}: {_first_line(error)}; is it whole and of the format its name says?"
        ) from error


def _read_json(path: Path, columns: Collection[str] | None) -> pd.DataFrame:
    options: dict[str, Any] = {"dtype": False}

    def needed(frame: pd.DataFrame) -> pd.DataFrame:
        return frame if columns is None else frame.filter([name for name in frame.columns if name in columns])

    with path.open(encoding="utf-8") as file:
        if file.read(1) == "[":
            return needed(pd.read_json(path, **options))
    # In chunks, so that the parses in MultiNLI's files (most of their 400 MB) are not all held at once.
    with pd.read_json(path, lines=True, chunksize=100_000, **options) as chunks:
        return pd.concat([needed(chunk) for chunk in chunks], ignore_index=True)


def _read_text(path: Path, columns: Collection[str] | None) -> pd.DataFrame:
    tabs = path.suffix != ".csv"
    options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
    if tabs:
        options |= {"sep": "\t", "quoting": 3}
    if tabs and len(header := _header(path)) == 4 and header[1] in ("0", "1"):
        options |= {"header": None, "names": _COLA}
    return pd.read_csv(path, usecols=None if columns is None else lambda name: name in columns, **options)


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig") as file:
        return file.readline().rstrip("\n").split("\t")


def column_names(path: Path) -> list[str]:
    """The columns of a file, read from its first line or schema; [] where it cannot be read."""
    try:
        if path.suffix == ".parquet":
            return pq.read_schema(path).names
        if path.suffix in (".jsonl", ".json"):
            with path.open(encoding="utf-8") as file:
                first = json.loads(file.readline())
            return list(first if isinstance(first, dict) else first[0])
        if path.suffix == ".csv":
            return [str(name) for name in pd.read_csv(path, nrows=0, encoding="utf-8-sig")]
        return _header(path)
    except (*_BAD_FILE, IndexError, TypeError):
        return []


def is_saved_dataset(path: Path) -> bool:
    """Whether `datasets`' save_to_disk made this folder."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def _saved(path: Path) -> datasets.Dataset | datasets.DatasetDict:
    if not is_saved_dataset(path):
        raise TaskError(f"{path} is a folder, but not one that datasets' save_to_disk made: name a file in it.")
    import datasets

    return datasets.load_from_disk(str(path))


def dataset_frame(data: datasets.Dataset | datasets.DatasetDict) -> pd.DataFrame:
    """A `Dataset` as a DataFrame with class labels by name (-1 where unlabelled).

    A `DatasetDict` gives all its rows, with a `split` column.
    """
    import datasets

    if isinstance(data, datasets.DatasetDict):
        parts = {str(name): dataset_frame(part) for name, part in data.items()}
        return pd.concat([frame.assign(split=name) for name, frame in parts.items()], ignore_index=True)
    frame = data.with_format(None).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    for column, feature in data.features.items():
        if isinstance(feature, datasets.ClassLabel):
            names = np.array([*feature.names, "-1"], dtype=object)  # -1 picks the last
            frame[column] = names[frame[column].fillna(-1).astype(int)]
    return frame


@dataclass(frozen=True)
class Source:
    """Files that hold one corpus together.

    Args:
        folder: where they lie.
        format: their ending.
        parts: (split, file); split None where the file itself says, in a `split` column.
    """

    folder: Path
    format: str
    parts: tuple[tuple[str | None, Path], ...]

    def read(self, columns: Collection[str]) -> dict[str, tuple[pd.DataFrame, str]]:
        """Split -> (its rows, a name for it that says where it is from).

        The splits are called train, validation (also validation_matched, ...), test, or as the `split` column
        says; `all` where nothing says. The name is the file's, with the split's where the file has several.
        """
        found: dict[str, tuple[list[pd.DataFrame], str]] = {}
        for split, path in self.parts:
            frame = read_table(path, {*columns, "split"})
            stem = _stem(path).replace("_", "-")
            if split is not None:
                found.setdefault(split, ([], stem))[0].append(frame)
                continue
            pieces = dict(list(frame.groupby("split", sort=False))) if "split" in frame else {"all": frame}
            others = [str(name) for name in pieces if name != "train" and not is_test(str(name))]
            for name, piece in pieces.items():
                label = stem if len(others) == 1 and not path.is_dir() else f"{stem}-{name}"
                found.setdefault(str(name), ([], label))[0].append(piece)
        return {split: (pd.concat(frames, ignore_index=True), name) for split, (frames, name) in found.items()}


def find_source(folder: AnyPath, corpus: str, own: bool = True) -> Source | None:
    """Find a corpus in a folder or up to four levels below it, by the names of files and folders.

    A file belongs to the corpus whose name (see `NAMES`) is in its own, else in that of its nearest folder.
    Its split is in its name (train, dev, validation, dev_matched ...) or in a `split` column. Of several
    finds the one with training data is taken, then the one with more evaluation splits, the one nearer to the
    top, the format listed first.

    Args:
        folder: where to look.
        corpus: a key of `NAMES`.
        own: whether files directly in `folder` whose names say nothing but their split (train.tsv) belong to
            the corpus.

    Returns:
        The files, or None.

    Raises:
        TaskError: no such folder, or two finds that nothing tells apart.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise TaskError(f"data_dir={str(folder)!r} {what}: pass a folder, or load single files with Task.from_files.")
    groups: dict[tuple[Path, str], list[tuple[str | None, Path]]] = {}
    for path in _walk(root):
        if not _belongs(path, root, corpus, own):
            continue
        saved = path.is_dir()
        names = [] if saved else column_names(path)
        if corpus == "paws" and "qid1" in names:
            continue  # the index from which the corpus is to be generated, without its texts
        digits = _stem(path).isdigit()  # validation/0000.parquet, as on the hub's conversion branches
        split = None if saved or "split" in names else _split_of(path.parent.name if digits else _stem(path))
        whole = saved or "split" in names or split is None
        place = path if whole else path.parent.parent if digits else path.parent
        groups.setdefault((place, path.suffix), []).append((split, path))
    ranked = sorted(
        (
            (_merit(root, place, parts), Source(place, suffix, tuple(parts)))
            for (place, suffix), parts in groups.items()
        ),
        key=lambda item: item[0],
        reverse=True,
    )
    if len(ranked) > 1 and ranked[0][0] == ranked[1][0]:
        raise TaskError(
            f"{corpus} is in {root} twice, as {ranked[0][1].folder} and {ranked[1][1].folder}: "
            "pass data_dir= with the folder of one of them."
        )
    return ranked[0][1] if ranked else None


def _walk(root: Path) -> list[Path]:
    """The readable files and saved datasets below `root` in a fixed order, hidden folders passed over."""
    found = []
    for place, folders, files in os.walk(root):
        here = Path(place)
        if is_saved_dataset(here):
            found.append(here)
            folders.clear()
            continue
        deep = len(here.relative_to(root).parts) >= _DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        found += [here / name for name in sorted(files) if Path(name).suffix in FORMATS]
    return found


def _stem(path: Path) -> str:
    """The file's name without its ending and without `-00000-of-00001`."""
    name = path.name if path.is_dir() else path.stem
    return re.sub(r"-\d{5}-of-\d{5}$", "", name).lower()


def _matches(pattern: str, name: str) -> bool:
    return re.search(rf"(?<![a-z])(?:{pattern})(?![a-z])", name.lower()) is not None


def _belongs(path: Path, root: Path, corpus: str, own: bool) -> bool:
    parents = path.relative_to(root).parent.parts
    for name in [_stem(path), *reversed(parents), *([root.name] if path != root else [])]:
        named = [other for other, pattern in NAMES.items() if _matches(pattern, name)]
        if named:
            return named == [corpus]
    return own and not parents and (path.is_dir() or _split_of(_stem(path)) is not None)


def is_test(split: str) -> bool:
    """Whether it is a test set, whose labels GLUE keeps to itself (test, test_matched ...)."""
    return split.startswith("test")


def _split_of(stem: str) -> str | None:
    return next((split for split, pattern in _SPLITS.items() if _matches(pattern, stem)), None)


def _merit(root: Path, place: Path, parts: Sequence[tuple[str | None, Path]]) -> tuple[bool, int, int, int]:
    splits = {split for split, _ in parts}
    if splits == {None}:
        path = parts[0][1]
        known = _inside(path)
        splits = known or splits
    evaluated = len([split for split in splits if split != "train" and not is_test(split or "")])
    suffix = parts[0][1].suffix
    rank = FORMATS.index(suffix) if suffix in FORMATS else -1
    depth = len((place.parent if place.is_file() else place).relative_to(root).parts)
    return "train" in splits, evaluated, -depth, -rank


def _inside(path: Path) -> set[str | None]:
    """The splits that one file or saved folder holds by its own account."""
    if path.is_dir():
        listing = path / "dataset_dict.json"
        return set(json.loads(listing.read_text())["splits"]) if listing.is_file() else {"all"}
    if "split" in column_names(path):
        return set(read_table(path, {"split"})["split"].unique())
    return {"all"}


def read_part(paths: AnyPath | Sequence[AnyPath]) -> pd.DataFrame:
    """One path, perhaps with `:part`, or several one after the other, for `Task.from_files`."""
    if not isinstance(paths, (str, os.PathLike)):
        if not paths:
            raise TaskError("an empty list of files: name at least one for each split.")
        return pd.concat([read_part(path) for path in paths], ignore_index=True)
    path, part = _cut(paths)
    frame = read_table(path)
    if "split" not in frame.columns:
        if part is not None:
            raise TaskError(f"{path} has no column 'split' to take {part!r} from: it has {', '.join(frame.columns)}.")
        return frame
    have = [str(name) for name in frame["split"].unique()]
    if part is None and len(have) > 1:
        raise TaskError(f"{path} holds the splits {', '.join(have)}: say which, e.g. '{path}:{have[0]}'.")
    if part is not None and part not in have:
        raise TaskError(f"{path} has no split {part!r}: it has {', '.join(have)}.")
    return frame if part is None else frame.loc[frame["split"] == part].reset_index(drop=True)


def read_named(files: Files) -> dict[str, pd.DataFrame]:
    """Name -> frame; a bare path is named after its file and part."""
    if isinstance(files, Mapping):
        return {str(name): read_part(paths) for name, paths in files.items()}
    frame = read_part(files)
    first = files if isinstance(files, (str, os.PathLike)) else files[0]
    path, part = _cut(first)
    name = _stem(path).replace("_", "-")
    return {f"{name}-{part}" if part else name: frame}


def _cut(path: AnyPath) -> tuple[Path, str | None]:
    whole = Path(path).expanduser()
    head, colon, part = str(whole).rpartition(":")
    # A drive letter's colon is followed by a separator, and a file may have a colon in its own name.
    if not colon or whole.exists() or re.search(r"[\\/]", part):
        return whole, None
    return Path(head), part


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
