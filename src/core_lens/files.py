"""Reading and writing what is saved: safetensors, JSON and parquet, never pickle; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import CoreLensWarning, SavedFileError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary file beside `path`, then move it into place.

    Raises:
        SavedFileError: the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        there = next(p for p in (path, *path.parents) if p.exists())
        raise SavedFileError(f"cannot write {path}: {there} is in its place; remove that.") from error
    except OSError as error:
        raise SavedFileError(
            f"cannot write {path}: {error.strerror or error}; choose a folder you may write to."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_folder(path: str | Path) -> Path:
    """`path` as a folder that exists and can be written, made if need be; asked before hours of work, not after."""
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise SavedFileError(f"{path!r} names no folder: give its path.")
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise SavedFileError(f"cannot write to the folder {folder}: {reason}; choose another one.") from error
    return folder


def claim_folder(folder: Path, name: str, config: Mapping[str, Any], remake: bool = False) -> None:
    """Write the configuration into a new folder as `name`; refuse one of another configuration or with other things.

    Args:
        folder: it exists.
        name: of the file.
        config: plain values.
        remake: write a damaged file again, where all else in the folder says what configuration it is of.

    Raises:
        SavedFileError: what differs, or what else is there.
    """
    path = folder / name
    # Listed before the file is looked for: another process may write it, then more, between the two.
    others = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    if not path.is_file():
        if others:
            raise SavedFileError(f"the folder {folder} holds other things ({', '.join(others[:3])}); choose a new one.")
        write_json(path, dict(config))
        return
    try:
        there = read_json(path)
    except SavedFileError as error:
        if not remake or path.is_dir():
            raise
        warnings.warn(f"{error}: it is written again.", CoreLensWarning, stacklevel=2)
        write_json(path, dict(config))
        return
    different = differences(there, config)
    if different:
        raise SavedFileError(
            f"the folder {folder} holds a run with another {', '.join(different)}; choose a new folder for out=, or "
            "repeat that run's settings to continue it."
        )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Names under which two sets of plain values differ, one of them read from JSON."""
    plain = json.loads(json.dumps(dict(here)))
    return sorted(key for key in {*there, *plain} if there.get(key) != plain.get(key))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """One safetensors file with `meta` as JSON in its header and a checksum over the tensors."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"core_lens": json.dumps({"meta": meta, "checksum": _checksum(stored, meta)}, sort_keys=True)}
    write_atomically(path, lambda temporary: save_file(stored, temporary, header))


def read_tensors(path: Path, names: Iterable[str], keys: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file written by `write_tensors`; at least the named ones are there.

    Raises:
        SavedFileError: the file is missing, damaged, or something else.
    """
    if not path.is_file():
        raise SavedFileError(f"{path} does not exist; check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["core_lens"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        meta, checksum = header["meta"], header["checksum"]
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise SavedFileError(f"{path} is damaged or was not written by core_lens ({error}); make it again.") from error
    if checksum != _checksum(tensors, meta):
        raise SavedFileError(f"{path} is damaged: its content does not match its checksum; make it again.")
    missing = [n for n in names if n not in tensors] + [k for k in keys if k not in meta]
    if missing:
        raise SavedFileError(f"{path} is not what was asked for: it lacks {', '.join(missing)}.")
    return tensors, meta


def _checksum(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.float().numpy().tobytes() if tensor.is_floating_point() else tensor.numpy().tobytes())
    return digest.hexdigest()


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    if not path.is_file():
        raise SavedFileError(f"{path} does not exist; check the path.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise SavedFileError(f"{path} is damaged ({error}); make it again.") from error
    if not isinstance(found, dict):
        raise SavedFileError(f"{path} is damaged (it holds a {type(found).__name__}); make it again.")
    return found


def write_table(path: Path, table: pd.DataFrame) -> None:
    write_atomically(path, lambda temporary: table.to_parquet(temporary, index=False))


def read_table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise SavedFileError(f"{path} does not exist; check the path.")
    try:
        return pd.read_parquet(path)
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors or OSErrors
        raise SavedFileError(f"{path} is damaged ({error}); make it again.") from error


def versions_and_time() -> dict[str, Any]:
    """What a file's provenance says of the software and the moment."""
    packages = ("core-lens", "torch", "transformers", "transformer-lens")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
