"""A run on disk: a folder of safetensors, JSON and parquet files, with a manifest of their hashes.

While it is made, `runs/` has for each subnetwork a record (the last file written of it), a log, and what went wrong.
"""

from __future__ import annotations

import os
import socket
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import CoreLensWarning, SavedFileError
from .files import check_folder, differences, file_hash, read_json, read_table, write_json, write_table
from .subnetwork import Subnetwork

FORMAT = 1
"""Version of the run folder's layout."""
FULL = "full"
"""What the model itself is called beside its subnetworks."""


def write_run(
    folder: str | Path,
    subnetworks: Sequence[Subnetwork],
    evaluation: pd.DataFrame,
    predictions: Mapping[str, pd.DataFrame],
    provenance: Mapping[str, Any],
    notes: Sequence[str],
) -> None:
    """Write the parts of a `Core`.

    Raises:
        SavedFileError: the folder cannot be written, or holds something else.
    """
    root = check_folder(folder)
    known = {
        "run.json",
        "evaluation.parquet",
        "subnetworks",
        "predictions",
        "plan.json",
        "runs",
        "shared",
        "sweep.json",
    }
    strange = sorted(p.name for p in root.iterdir() if p.name not in known and not p.name.startswith("."))
    if strange:
        raise SavedFileError(f"the folder {root} holds other things ({', '.join(strange[:3])}); choose a new one.")
    planned = root / "plan.json"
    if planned.is_file() or (root / "run.json").is_file():
        # Where there is a plan.json it says whose folder this is, and a damaged run.json is written again.
        origin = read_json(planned) if planned.is_file() else read_json(root / "run.json").get("provenance", {})
        different = [k for k in differences(origin, provenance) if k in origin and k not in ("time", "versions")]
        if different:
            raise SavedFileError(
                f"the folder {root} holds another run (it differs in {', '.join(different)}); choose a new one."
            )
    files: list[Path] = []
    for subnetwork in subnetworks:
        files.append(_files(root, subnetwork.name)[0])
        if subnetwork.name not in predictions:
            subnetwork.save(files[-1])
    by_name = {subnetwork.name: subnetwork for subnetwork in subnetworks}
    for name, table in predictions.items():
        files.append(_files(root, name)[1])
        if not is_done(root, name):
            write_result(root, name, by_name.get(name), table)
    files.append(root / "evaluation.parquet")
    write_table(files[-1], evaluation)
    # run.json comes last: a folder that has it is whole.
    manifest = [[path.relative_to(root).as_posix(), file_hash(path)] for path in files]
    content = {
        "format": FORMAT,
        "provenance": dict(provenance),
        "notes": list(notes),
        "files": manifest,
    }
    write_json(root / "run.json", content)


def _files(root: Path, name: str) -> tuple[Path, Path]:
    """Of a subnetwork; `full`, the model itself, has only the second."""
    return root / "subnetworks" / f"{name}.safetensors", root / "predictions" / f"{name}.parquet"


def write_result(
    root: Path, name: str, subnetwork: Subnetwork | None, predictions: pd.DataFrame, seconds: float | None = None
) -> None:
    """Write what one run gave; its record comes last, so that a run that has one is whole."""
    first, second = _files(root, name)
    files = [second] if subnetwork is None else [first, second]
    if subnetwork is not None:
        subnetwork.save(first)
    write_table(second, predictions)
    hashes = {path.relative_to(root).as_posix(): file_hash(path) for path in files}
    write_json(root / "runs" / f"{name}.json", {"files": hashes, "seconds": seconds, **_here()})
    (root / "runs" / f"{name}.failed.json").unlink(missing_ok=True)


def is_done(root: Path, name: str) -> bool:
    """Whether a run is there and whole; where it is damaged a warning says so."""
    path = root / "runs" / f"{name}.json"
    if not path.is_file():
        return False
    try:
        hashes = read_json(path).get("files")
        for file in [file for file in _files(root, name) if name != FULL or file.suffix == ".parquet"]:
            wanted = hashes.get(file.relative_to(root).as_posix()) if isinstance(hashes, dict) else None
            if not file.is_file() or file_hash(file) != wanted:
                raise SavedFileError(f"{file} is damaged, missing or not the one in {path.name}")
    except (SavedFileError, OSError) as error:
        warnings.warn(f"{error}: run {name} is made again.", CoreLensWarning, stacklevel=2)
        return False
    return True


def read_result(root: Path, name: str) -> tuple[Subnetwork | None, pd.DataFrame]:
    """What `write_result` wrote."""
    first, second = _files(root, name)
    return (None if name == FULL else Subnetwork.load(first)), read_table(second)


def note_failure(root: Path, name: str, error: BaseException) -> None:
    """Keep what went wrong in a run, for `status`; the log has all of it."""
    text = "".join(traceback.format_exception(error))
    write_json(root / "runs" / f"{name}.failed.json", {"error": f"{type(error).__name__}: {error}", **_here()})
    log(root, name, f"failed\n{text}")


def log(root: Path, name: str, text: str) -> None:
    """Add a line to a run's log."""
    path = root / "runs" / f"{name}.log"
    here = _here()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{here['time']} {here['host']} {here['pid']} {text}\n")
    except OSError as error:
        raise SavedFileError(
            f"cannot write {path}: {error.strerror or error}; choose a folder you may write to."
        ) from error


def ask_for(root: Path, names: Sequence[str]) -> None:
    """Keep which runs are wanted, beside those that were asked for before."""
    path = root / "runs" / "asked.json"
    write_json(path, {"runs": list(dict.fromkeys([*_asked(root), *names]))})


def _asked(root: Path) -> list[str]:
    """What was asked for; nothing where that is damaged, as only `status` wants to know."""
    with suppress(SavedFileError):
        runs = read_json(root / "runs" / "asked.json").get("runs")
        return [name for name in runs if isinstance(name, str)] if isinstance(runs, list) else []
    return []


def status(folder: str | Path) -> pd.DataFrame:
    """How far a run is, also while it goes on.

    Returns:
        DataFrame (run, state, seconds, host, time, error); the states are `done`, `failed`, `begun` (going on, or interrupted),
        `waiting` and `damaged` (to be made again).

    Raises:
        SavedFileError: the folder is no run.
    """
    root = Path(folder)
    if not (root / "plan.json").is_file() and not (root / "run.json").is_file():
        raise SavedFileError(f"{root} is no run (plan.json is missing); check the path.")
    place = root / "runs"
    there = [path.stem.removesuffix(".failed") for path in sorted(place.glob("*.json")) if path.stem != "asked"]
    rows = []
    for name in dict.fromkeys([*_asked(root), *there]):
        about: dict[str, Any] = {}
        for state, file in (("done", f"{name}.json"), ("failed", f"{name}.failed.json")):
            if (place / file).is_file():
                try:
                    about = {**read_json(place / file), "state": state}
                except SavedFileError as error:
                    about = {"state": "damaged", "error": str(error)}
                break
        if not about:
            lines = (
                (place / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
                if (place / f"{name}.log").is_file()
                else []
            )
            begun = [parts for line in lines if len(parts := line.split(" ")) == 4 and parts[3] == "begun"]
            about = {"state": "begun", "time": begun[-1][0], "host": begun[-1][1]} if begun else {"state": "waiting"}
        if name != FULL:
            rows.append({"run": name, **{key: about.get(key) for key in ("state", "seconds", "host", "time", "error")}})
    table = pd.DataFrame(rows, columns=["run", "state", "seconds", "host", "time", "error"])
    return table.assign(seconds=pd.to_numeric(table["seconds"].astype(str), errors="coerce"))


def _here() -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "host": socket.gethostname() or "?", "pid": os.getpid()}


def read_run(
    folder: str | Path,
) -> tuple[list[Subnetwork], pd.DataFrame, dict[str, pd.DataFrame], dict[str, Any], list[str]]:
    """What `write_run` wrote, in its order, every file checked against its hash.

    Raises:
        SavedFileError: something is missing, damaged, or of another version.
    """
    root = Path(folder)
    if not (root / "run.json").is_file():
        hint = "it was interrupted: run the same command again" if (root / "subnetworks").is_dir() else "check the path"
        raise SavedFileError(f"{root} is no finished run (run.json is missing); {hint}.")
    content = read_json(root / "run.json")
    wanted_keys = {"provenance", "notes", "files"}
    if content.get("format") == FORMAT and not wanted_keys <= set(content):
        raise SavedFileError(
            f"{root / 'run.json'} is damaged: it lacks {', '.join(sorted(wanted_keys - set(content)))}."
        )
    if content.get("format") != FORMAT:
        raise SavedFileError(f"{root / 'run.json'} has format {content.get('format')!r}, this version reads {FORMAT}.")
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
    return subnetworks, evaluation, predictions, content["provenance"], content["notes"]
