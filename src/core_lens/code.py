"""Code completion, character by character: source files, a language model of them, and what it is asked in and out of domain.

    train, asked = core_lens.code.splits()     # Python's own library; held-out packages, other languages found here
    folder = core_lens.code.train(train, "runs/code")
    model = core_lens.load_language_model(folder)

After the second setting of Friedman et al. (2024), whose CodeSearchNet functions any folder of source files stands in for.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from .completions import Completions, token_rows
from .errors import CoreLensError
from .evaluate import check_numbers
from .language_model import small_gpt2, train_language_model

CHARACTERS = "\t\n" + "".join(map(chr, range(32, 127)))
"""The vocabulary, by token id; one more token stands for every other character."""
OTHER = len(CHARACTERS)
LENGTH = 256
"""Characters of a sequence."""
HEADS, D_HEAD = 4, 32
"""Of each of the two layers of the model that `train` makes."""
LANGUAGES = {
    "Python": (".py",), "C and C++": (".c", ".h", ".cc", ".cpp", ".hh", ".hpp"), "JavaScript": (".js", ".mjs"),
    "TypeScript": (".ts",), "Perl": (".pl", ".pm"), "Java": (".java",), "Ruby": (".rb",), "PHP": (".php",), "Go": (".go",),
    "Rust": (".rs",), "R": (".r", ".R"), "Shell": (".sh",),
}  # fmt: skip
"""Language -> how its files' names end."""
REPEATED, NEW = "repeated words", "new words"
_LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "encodings",
    "pydoc_data",
    "node_modules",
}
_LARGEST, _LONGEST_LINE = (
    1_000_000,
    500,
)  # of a file in bytes, in characters: what is longer is data, or made by a program
_FILES = 400  # of a language, a random draw
_FEWEST = 20  # of a language that is found rather than given
_TOKEN = np.full(0x110000, OTHER, dtype=np.int16)
_TOKEN[[ord(char) for char in CHARACTERS]] = np.arange(len(CHARACTERS))
Tokens = Int[np.ndarray, " token"]


def splits(
    folder: str | Path | None = None,
    others: Mapping[str, str | Path] | None = None,
    *,
    n: int = 1000,
    held_out: float = 0.2,
    seed: int = 0,
) -> tuple[list[Tokens], dict[str, Completions]]:
    """What to train on, and what to ask: every character but the first of each sequence.

    - the language trained on, in distribution: files in parts of the folder that nothing is trained on;
    - of these, only the characters that go on with a word: one that stood in the sequence before, or a new one;
    - other languages.

    A word is letters, digits and underscores, and does not begin with a digit. What is asked has a column `kind`: `repeated
    words`, `new words` (both without the first character), `other`.

    Args:
        folder: source files of one language (the one that most of them are in); its own files and folders are the parts, of
            which some are held out. Python's standard library by default.
        others: name -> a folder of other files; by default what this machine has of `LANGUAGES`, at most 400 files of each.
        n: sequences to ask, of each language.
        held_out: share of the folder's parts that nothing is trained on.
        seed: of every draw.

    Returns:
        The training sequences, token ids of up to 256 characters each, which begin with a line; and split -> `Completions`.

    Raises:
        CoreLensError: too few files, or a folder that is none.
    """
    check_numbers(n=n)
    if not isinstance(seed, int) or seed < 0:
        raise CoreLensError(f"seed={seed!r} must be a whole number of at least 0.")
    if not isinstance(held_out, int | float) or not 0 < held_out < 1:
        raise CoreLensError(f"held_out={held_out!r} must be between 0 and 1, both excluded.")
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else Path(folder)
    language, files = _main_language(root)
    parts = sorted({path.relative_to(root).parts[0] for path in files})
    rng = np.random.default_rng(seed)
    n_out = round(held_out * len(parts))
    if not 0 < n_out < len(parts):
        raise CoreLensError(
            f"{root} has {len(parts)} files and folders with {language} in them: with held_out={held_out} none are left to "
            "train on or to test on; choose a folder with more."
        )
    taken_names = {language, f"{language}, {REPEATED}", f"{language}, {NEW}"}
    if others is not None and not isinstance(others, Mapping):
        raise CoreLensError(f"others={others!r}: pass name -> folder, such as {{'Java': 'src/java'}}.")
    if bad := [name for name in others or () if name in taken_names or not isinstance(name, str)]:
        raise CoreLensError(f"others has {bad[0]!r}, which is the name of a split already: choose another one.")
    if bad := [place for place in (others or {}).values() if not isinstance(place, str | Path)]:
        raise CoreLensError(f"others has {bad[0]!r}, which is no folder.")
    out = set(rng.permutation(parts)[:n_out])
    inside = [path for path in files if path.relative_to(root).parts[0] not in out]
    train = sequences(inside)
    if not train:
        raise CoreLensError(f"{root} has no file of {language} long enough to train on: choose a folder with more.")
    taken = {one.tobytes() for one in train}
    tested = [path for path in files if path.relative_to(root).parts[0] in out]
    found = others if others is not None else _languages_here(language, rng)
    asked: dict[str, Completions] = {}
    for name, source in {language: tested, **found}.items():
        if isinstance(source, str | Path):
            source = _draw(_main_language(Path(source))[1], rng)
        # What the training set has too tells nothing of generalisation.
        rows = [one for one in sequences(source) if one.tobytes() not in taken]
        if not rows:
            raise CoreLensError(f"{name} has no sequence of source code that is not trained on: choose another folder.")
        kept = np.sort(rng.permutation(len(rows))[:n])
        asked[name] = completions(name, [rows[i] for i in kept])
        if name == language:
            for kind in (REPEATED, NEW):
                part = asked[name].asked.query("kind == @kind").reset_index(drop=True)
                if len(part):
                    asked[f"{name}, {kind}"] = Completions(f"{name}, {kind}", asked[name].encoded, part)
    return train, asked


def completions(name: str, rows: Sequence[Tokens]) -> Completions:
    """Every character but the first of each sequence, with its kind."""
    tables = [
        pd.DataFrame({"row": i, "position": np.arange(1, len(row)), "kind": kinds(row)[1:]})
        for i, row in enumerate(rows)
    ]
    return Completions.of(name, rows, pd.concat(tables, ignore_index=True), pad_id=OTHER)


def kinds(tokens: Tokens) -> np.ndarray:
    """What each character of a sequence does: goes on with one of the `repeated words` or `new words`, or `other`."""
    found = np.full(len(tokens), "other", dtype=object)
    seen: set[str] = set()
    for word in re.finditer(r"[A-Za-z_][A-Za-z0-9_]*", text_of(tokens)):
        found[word.start() + 1 : word.end()] = REPEATED if word[0] in seen else NEW
        seen.add(word[0])
    return found


def tokens_of(text: str) -> Tokens:
    """The token id of every character."""
    return _TOKEN[np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)].astype(np.int64)


def text_of(tokens: Tokens) -> str:
    """The characters; what is not in the vocabulary shows as U+FFFD."""
    return "".join([*CHARACTERS, "\ufffd"][token] for token in tokens)


def sequences(files: Iterable[Path]) -> list[Tokens]:
    """Pieces of up to 256 characters, one after the other, each from the beginning of a line; each once."""
    found: dict[str, None] = {}
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            continue
        if max(map(len, lines), default=0) > _LONGEST_LINE:
            continue
        piece = ""
        for line in lines:
            if piece and len(piece) + len(line) > LENGTH:
                found[piece[:LENGTH]] = None
                piece = ""
            piece += line
        if len(piece) > LENGTH // 4:
            found[piece[:LENGTH]] = None
    return [tokens_of(piece) for piece in found]


def train(
    rows: Sequence[Tokens],
    out: str | Path,
    *,
    steps: int = 4000,
    batch_size: int = 32,
    seed: int = 0,
    device: str | None = None,
) -> Path:
    """Train a character-level GPT-2 of 2 layers with 4 heads each, d_model 128 (0.4 million parameters).

    Calling it again with the same folder continues where it was interrupted.

    Args:
        rows: from `splits`.
        out: folder.
        steps: about 5 minutes a thousand on one thread of a CPU.
        batch_size: sequences of a step.
        seed: of weights and order.
        device: as in `train_language_model`.

    Returns:
        The folder of the trained model, as `load_language_model` takes it.

    Raises:
        CoreLensError: a value is impossible, or the folder holds another training.
    """
    check_numbers(steps=steps)
    model = small_gpt2(OTHER + 1, n_layers=2, n_heads=HEADS, d_model=HEADS * D_HEAD, length=LENGTH, seed=seed)
    settings: dict[str, Any] = {"learning_rate": 2e-3, "warmup_steps": min(200, steps // 10), "weight_decay": 0.01}
    return train_language_model(
        model,
        token_rows(rows, OTHER),
        out,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        device=device,
        every=500,
        **settings,
    )


def _main_language(root: Path) -> tuple[str, list[Path]]:
    """The language that most files of a folder are in, and those files."""
    if not root.is_dir():
        raise CoreLensError(f"{root} is no folder of source files: check the path.")
    found = {name: files for name, files in _by_language(_walk(root)).items() if files}
    if not found:
        raise CoreLensError(f"{root} has no source files of {', '.join(LANGUAGES)}: choose another folder.")
    return max(found.items(), key=lambda item: len(item[1]))


def _languages_here(trained: str, rng: np.random.Generator) -> dict[str, list[Path]]:
    """Language -> files of it that this machine has; some come with Python packages everywhere."""
    places = [sysconfig.get_paths()["purelib"], "/usr/include", "/usr/share", "/usr/lib"]
    files = [path for place in map(Path, places) if place.is_dir() for path in _walk(place)]
    found = {name: part for name, part in _by_language(files).items() if len(part) >= _FEWEST and name != trained}
    return {name: _draw(part, rng) for name, part in found.items()}


def _draw(files: Sequence[Path], rng: np.random.Generator) -> list[Path]:
    return [files[i] for i in np.sort(rng.permutation(len(files))[:_FILES])]


def _by_language(files: Iterable[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {name: [] for name in LANGUAGES}
    of = {suffix: name for name, suffixes in LANGUAGES.items() for suffix in suffixes}
    for path in files:
        if path.suffix in of:
            found[of[path.suffix]].append(path)
    return found


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder in a fixed order, without links, tests, what other packages brought, and large files."""
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if path.suffix and not path.is_symlink() and path.is_file() and path.stat().st_size <= _LARGEST:
                yield path
