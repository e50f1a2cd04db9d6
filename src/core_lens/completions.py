"""What a language model is asked: some of the next tokens of some sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import ArrayLike
from transformer_lens.model_bridge import TransformerBridge

from .errors import CoreLensError, ModelError
from .hooked import Encoded, encode, model_info
from .tasks import Split, Task


@dataclass(frozen=True, eq=False)
class Completions:
    """Token sequences, and the tokens of them that a language model is asked for.

    Args:
        name: of the split, as tables call it.
        encoded: the sequences.
        asked: DataFrame (row, position, ...): token `position` of sequence `row`, given all tokens before it. Further
            columns say what is known of a token (its depth, whether its word occurred before).
        choices: the token ids to choose among; None for all.

    Raises:
        CoreLensError: a token is asked for that is not there, or that nothing precedes, or that is not among the choices.
    """

    name: str
    encoded: Encoded
    asked: pd.DataFrame
    choices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if missing := [column for column in ("row", "position") if column not in self.asked]:
            raise CoreLensError(f"split {self.name!r} does not say the {missing[0]} of the tokens it asks for.")
        for column in ("row", "position"):
            if len(self.asked) and self.asked[column].dtype.kind not in "iu":
                kind = self.asked[column].dtype
                raise CoreLensError(f"split {self.name!r}: {column} must hold whole numbers, and is {kind}.")
        rows, positions = (self.asked[column].to_numpy(dtype=int) for column in ("row", "position"))
        known = (rows >= 0) & (rows < len(self.encoded))
        lengths = self.encoded.lengths.numpy()[np.where(known, rows, 0)]
        if not (fits := known & (positions > 0) & (positions < lengths)).all():
            row, position = rows[~fits][0], positions[~fits][0]
            raise CoreLensError(
                f"split {self.name!r} asks for token {position} of sequence {row}: there is none, or nothing before it."
            )
        if self.choices is not None and not (among := np.isin(self.gold, self.choices)).all():
            raise CoreLensError(f"split {self.name!r} asks for token {self.gold[~among][0]}, which is not in choices.")

    @classmethod
    def of(
        cls,
        name: str,
        sequences: Iterable[ArrayLike],
        asked: pd.DataFrame,
        choices: Sequence[int] | None = None,
        pad_id: int = 0,
    ) -> Completions:
        """From sequences of token ids, one [token] each."""
        return cls(name, token_rows(sequences, pad_id), asked, None if choices is None else tuple(choices))

    @property
    def gold(self) -> Int[np.ndarray, " question"]:
        """The tokens that are there."""
        starts = (self.encoded.lengths.cumsum(0) - self.encoded.lengths).numpy()
        return self.encoded.ids.numpy()[starts[self.asked["row"]] + self.asked["position"].to_numpy()]

    def sample(self, n: int | None, seed: int = 0) -> Completions:
        """The sequences that something is asked of, at most `n` of them (all if None), a fixed random draw."""
        if n is not None and (not isinstance(n, int) or n < 1):
            raise CoreLensError(f"n={n!r} must be a whole number of at least 1.")
        rows = kept = np.unique(self.asked["row"])
        if n is not None and n < len(rows):
            kept = np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))
        if len(kept) in (0, len(self.encoded)):
            return self
        place = pd.Series(np.arange(len(kept)), index=kept)
        asked = self.asked[self.asked["row"].isin(kept)]
        asked = asked.assign(row=asked["row"].map(place)).reset_index(drop=True)
        return replace(self, encoded=_chosen(self.encoded, kept), asked=asked)


def token_rows(sequences: Iterable[ArrayLike], pad_id: int = 0) -> Encoded:
    """Sequences of token ids as `batches` takes them.

    Raises:
        CoreLensError: there are none, or one is empty or holds something else.
    """
    rows = [np.asarray(sequence) for sequence in sequences]
    for i, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or row.dtype.kind not in "iu":
            raise CoreLensError(f"sequence {i} is no list of token ids: {np.array2string(row, threshold=6)}.")
    if not rows:
        raise CoreLensError("there are no sequences of token ids.")
    lengths = torch.tensor([len(row) for row in rows])
    return Encoded(torch.from_numpy(np.concatenate(rows).astype(np.int32)), None, lengths, pad_id)


def check_fit(model: TransformerBridge, rows: Encoded, name: str, choices: Sequence[int] = ()) -> None:
    """Raise a ModelError unless the model knows all token ids and takes sequences this long; `name` says whose they are."""
    config: Any = model.original_model.config
    n_tokens, longest, who = config.vocab_size, config.max_position_embeddings, model_info(model).model_id
    used = [*choices, *((int(rows.ids.min()), int(rows.ids.max())) if len(rows) else ())]
    if bad := [token for token in used if not 0 <= token < n_tokens]:
        raise ModelError(f"{name} has the token id {bad[0]}; {who} knows 0 to {n_tokens - 1}.")
    if len(rows) and (length := int(rows.lengths.max())) > longest:
        raise ModelError(f"{name} has a sequence of {length} tokens; {who} takes {longest}: cut it.")


def read_rows(model: TransformerBridge, data: object, n: int | None, seed: int = 0) -> Encoded:
    """At most `n` token sequences of whatever holds some, a fixed random draw.

    Args:
        model: reads text by its tokenizer.
        data: a `Task` (its training split), a `Split`, `Completions`, sequences of token ids, or a `datasets.Dataset` that
            has them in a column `tokens` or `input_ids`.
        n: None for all.
        seed: of the draw.

    Raises:
        CoreLensError: there are none in it.
    """
    if isinstance(data, Task):
        train = data.with_role("train")
        if not train:
            raise CoreLensError(f"task {data.name!r} has no training split: pass a split, data.split(...).")
        data, longest = train[0], data.max_length
    else:
        longest = 128
    if isinstance(data, Split):
        if not len(data):
            raise CoreLensError(f"split {data.name!r} is empty: pass data with examples.")
        return encode(data.sample(n, seed), model.tokenizer, longest)
    if isinstance(data, Completions):
        found = data.encoded
    elif isinstance(data, Encoded):
        found = data
    else:
        columns = getattr(data, "column_names", None)
        if isinstance(columns, dict):
            raise CoreLensError(f"data is several splits ({', '.join(columns)}): pass one of them, data['train'].")
        if columns is not None:
            column = next((name for name in ("tokens", "input_ids") if name in columns), None)
            if column is None:
                raise CoreLensError(f"data has no column tokens or input_ids: it has {', '.join(columns)}.")
            table = data.with_format("numpy")  # pyright: ignore[reportAttributeAccessIssue]
            if n is not None and n < len(table):
                table = table.select(np.sort(np.random.default_rng(seed).choice(len(table), n, replace=False)))
            found = token_rows(table[column][:])
        elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
            found = token_rows(data)
        else:
            raise ModelError(f"data={data!r}: pass a task, a split, or sequences of token ids.")
    check_fit(model, found, "data")
    if n is None or n >= len(found):
        return found
    return _chosen(found, np.sort(np.random.default_rng(seed).choice(len(found), n, replace=False)))


def _chosen(encoded: Encoded, rows: Int[np.ndarray, " row"]) -> Encoded:
    """Some of the rows."""
    parts, kinds = encoded.ids.split(encoded.lengths.tolist()), encoded.types
    types = None if kinds is None else torch.cat([kinds.split(encoded.lengths.tolist())[row] for row in rows])
    return Encoded(torch.cat([parts[row] for row in rows]), types, encoded.lengths[rows], encoded.pad_id)
