"""Strings of a Dyck language and the splits of the Illusions paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike

from ..errors import CoreLensError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SPLITS = ("train", "iid", "seen-structure", "unseen-structure-short", "unseen-structure-long", "unseen-depth")
"""The training strings; new strings of the same source; the others are explained in `splits`."""
SHORT = 32
"""Brackets of the longest string of unseen structure that is short."""
DISTANCE = 10
"""Tokens between a bracket and its opener from which on closing it is scored."""
_AT_LEAST = 4
Tokens = Int[np.ndarray, " token"]


@dataclass(frozen=True)
class Dyck:
    """The language Dyck-(k, m), with the vocabulary 0..k-1 (open), k..2k-1 (close), START and END.

    Args:
        k: bracket types.
        m: greatest depth.
        max_length: brackets; longer strings are drawn again.

    Raises:
        CoreLensError: a number is too small.
    """

    k: int = 20
    m: int = 10
    max_length: int = 512

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("m", 1), ("max_length", _AT_LEAST)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise CoreLensError(f"{name}={getattr(self, name)!r} must be a whole number of at least {least}.")

    @property
    def start(self) -> int:
        return 2 * self.k

    @property
    def end(self) -> int:
        return 2 * self.k + 1

    @property
    def n_tokens(self) -> int:
        return 2 * self.k + 2

    def sample(self, n: int, rng: np.random.Generator) -> list[Tokens]:
        """Draw `n` strings, each START, brackets, END (Hewitt et al. 2020).

        At depth 0 a string ends or opens, half and half, but does not end before 4 brackets; at depth m it closes; between
        them it opens or closes, half and half. All types are alike.
        """
        found: list[Tokens] = []
        while len(found) < n:
            found += self._draw(round(1.05 * (n - len(found))) + 8, rng)
        return found[:n]

    def _draw(self, n: int, rng: np.random.Generator) -> list[Tokens]:
        """About `n` strings: all at once, bracket by bracket, without those that get too long."""
        strings = np.full((n, self.max_length), -1, dtype=np.int16)
        stacks, depth = np.zeros((n, self.m), dtype=np.int16), np.zeros(n, dtype=np.int64)
        lengths = np.zeros(n, dtype=np.int64)
        going = np.arange(n)
        for position in range(self.max_length + 1):
            heads = rng.random(len(going)) < 0.5
            at = depth[going]
            ends = (at == 0) & heads & (position >= _AT_LEAST)
            lengths[going[ends]] = position
            going, at, heads = going[~ends], at[~ends], heads[~ends]
            if position == self.max_length or not len(going):
                break
            opens = ((at == 0) | heads) & (at < self.m)
            up, down = going[opens], going[~opens]
            stacks[up, at[opens]] = rng.integers(self.k, size=len(up))
            strings[up, position] = stacks[up, at[opens]]
            strings[down, position] = self.k + stacks[down, at[~opens] - 1]
            depth[up] += 1
            depth[down] -= 1
        done = np.flatnonzero(lengths)
        framed = np.full((len(done), self.max_length + 2), self.end, dtype=np.int64)
        framed[:, 0], framed[:, 1:-1] = self.start, strings[done]
        return [
            row[: length + 2] for row, length in zip(self._ended(framed, lengths[done]), lengths[done], strict=True)
        ]

    def _ended(self, framed: Int[np.ndarray, "string token"], lengths: Tokens) -> Int[np.ndarray, "string token"]:
        framed[np.arange(len(framed)), lengths + 1] = self.end
        return framed

    def text(self, tokens: ArrayLike) -> str:
        """Readable: `(3 )3`, with START and END as `<` and `>`."""
        names = [f"({i}" for i in range(self.k)] + [f"){i}" for i in range(self.k)] + ["<", ">"]
        return " ".join(names[token] for token in np.asarray(tokens))


def depths(tokens: ArrayLike, k: int) -> Int[np.ndarray, " token"]:
    """Depth of every token: of a bracket, how many are open with it, its own pair included; 0 for START and END."""
    tokens = np.asarray(tokens)
    opens, closes = tokens < k, (tokens >= k) & (tokens < 2 * k)
    return np.cumsum(opens.astype(int) - closes) + closes


def openers(tokens: ArrayLike, k: int) -> Int[np.ndarray, " token"]:
    """Where the bracket that each closing one closes is; -1 for all other tokens.

    Raises:
        CoreLensError: a bracket closes nothing, or another type.
    """
    tokens = np.asarray(tokens)
    found, stack = np.full(len(tokens), -1), []
    for i, token in enumerate(tokens.tolist()):
        if token < k:
            stack.append(i)
        elif token < 2 * k:
            if not stack or tokens[stack[-1]] != token - k:
                raise CoreLensError(
                    f"token {i} of the string closes a bracket of type {token - k} that is not open there."
                )
            found[i] = stack.pop()
    return found


def scored(tokens: ArrayLike, k: int) -> Bool[np.ndarray, " token"]:
    """The closing brackets that are at least `DISTANCE` tokens from their opener: those that accuracy counts."""
    where = openers(tokens, k)
    return (where >= 0) & (np.arange(len(where)) - where >= DISTANCE)


def components(tokens: ArrayLike, k: int) -> list[bytes]:
    """The structures of the top-level balanced components: brackets without types, such as b"(())"."""
    tokens = np.asarray(tokens)
    brackets = tokens[tokens < 2 * k]
    ends = np.flatnonzero(np.cumsum(np.where(brackets < k, 1, -1)) == 0) + 1
    erased = np.where(brackets < k, ord("("), ord(")")).astype(np.uint8).tobytes()
    return [erased[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def splits(
    k: int = 20, m: int = 10, *, n_train: int = 200_000, n_test: int = 20_000, max_length: int = 512, seed: int = 0
) -> DatasetDict:
    """The splits of the Illusions paper (Section 3).

    No test string is in the training set or twice in its split.

    - `train`, `iid`: drawn by `Dyck(k, m).sample`.
    - `seen-structure`: every component has the structure of one in the training set.
    - `unseen-structure-short`, `unseen-structure-long`: some component has not; at most 32 brackets, and more.
    - `unseen-depth`: drawn with depths up to 2 m, deeper than m.

    Args:
        k, m, max_length: as in `Dyck`.
        n_train: training strings.
        n_test: strings of each other split.
        seed: of everything.

    Returns:
        A `datasets.DatasetDict` by `SPLITS` with the columns tokens (START, brackets, END), depth (greatest).

    Raises:
        CoreLensError: a number is too small, or such strings are too rare to be found.
    """
    for name, value in (("n_train", n_train), ("n_test", n_test)):
        if not isinstance(value, int) or value < 1:
            raise CoreLensError(f"{name}={value!r} must be a whole number of at least 1.")
    language, deep = Dyck(k, m, max_length), Dyck(k, 2 * m, max_length)
    streams: dict[str, np.random.Generator] = dict(
        zip(SPLITS, np.random.default_rng(seed).spawn(len(SPLITS)), strict=True)
    )
    train = language.sample(n_train, streams["train"])
    known = {part for string in train for part in components(string, k)}
    taken = {string.tobytes() for string in train}

    def seen(string: Tokens) -> bool:
        return all(part in known for part in components(string, k))

    def is_short(string: Tokens) -> bool:
        return len(string) - 2 <= SHORT

    wanted: dict[str, tuple[Dyck, Callable[[Tokens], bool]]] = {
        "iid": (language, lambda string: True),
        "seen-structure": (language, seen),
        "unseen-structure-short": (language, lambda string: is_short(string) and not seen(string)),
        "unseen-structure-long": (language, lambda string: not is_short(string) and not seen(string)),
        "unseen-depth": (deep, lambda string: int(depths(string, k).max()) > m),
    }
    from datasets import DatasetDict  # imported late, as it takes a second

    made = DatasetDict({"train": _dataset(train, k)})
    for name, (source, belongs) in wanted.items():
        made[name] = _dataset(_find(source, belongs, n_test, taken, streams[name], name), k)
    return made


def _find(
    source: Dyck, belongs: Callable[[Tokens], bool], n: int, taken: set[bytes], rng: np.random.Generator, name: str
) -> list[Tokens]:
    """`n` different strings that belong and are not taken."""
    found: dict[bytes, Tokens] = {}
    drawn = 0
    while len(found) < n:
        batch = source.sample(max(1000, min(n, 20_000)), rng)
        drawn += len(batch)
        for string in batch:
            key = string.tobytes()
            if key not in taken and key not in found and belongs(string):
                found[key] = string
        if drawn > 1000 * n + 100_000:
            raise CoreLensError(
                f"of {drawn} strings of Dyck-({source.k}, {source.m}) only {len(found)} belong to {name!r}: ask for fewer "
                "test strings, fewer training strings, or more types or depth."
            )
    return list(found.values())[:n]


def _dataset(strings: Sequence[Tokens], k: int) -> Dataset:
    from datasets import Dataset

    return Dataset.from_dict({"tokens": strings, "depth": [int(depths(string, k).max()) for string in strings]})
