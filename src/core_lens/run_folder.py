"""A run on disk: a folder of safetensors, JSON and parquet files, with a manifest of their hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import SavedFileError
from .files import check_folder, differences, file_hash, read_json, read_table, write_json, write_table
from .subnetwork import Subnetwork

FORMAT = 1
"""Version of the run folder's layout."""


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
    known = {"run.json", "evaluation.parquet", "subnetworks", "predictions", "plan.json"}
    strange = sorted(p.name for p in root.iterdir() if p.name not in known and not p.name.startswith("."))
    if strange:
        raise SavedFileError(f"the folder {root} holds other things ({', '.join(strange[:3])}); choose a new one.")
    for name in ("run.json", "plan.json"):
        there = read_json(root / name) if (root / name).is_file() else {}
        origin = there.get("provenance", {}) if name == "run.json" else there
        different = [k for k in differences(origin, provenance) if k in origin and k not in ("time", "versions")]
        if different:
            raise SavedFileError(
                f"the folder {root} holds another run (it differs in {', '.join(different)}); choose a new one."
            )
    files: list[Path] = []
    for subnetwork in subnetworks:
        files.append(root / "subnetworks" / f"{subnetwork.name}.safetensors")
        subnetwork.save(files[-1])
    for name, table in predictions.items():
        files.append(root / "predictions" / f"{name}.parquet")
        write_table(files[-1], table)
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
    return subnetworks, evaluation, predictions, content["provenance"], content["notes"]
