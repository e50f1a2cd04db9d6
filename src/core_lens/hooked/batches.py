"""Text to tensors: a split tokenised once, then cut into batches of like length, padded on the right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from warnings import warn

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import CoreLensWarning, ModelError, TaskError
from ..tasks.base import Split

_CHUNK = 10_000  # texts tokenised at a time, so that lists of Python integers stay small
_POOL = 50  # batches that share a pool when shuffled


@dataclass(frozen=True, eq=False)
class Encoded:
    """Tokenised examples without padding, one after the other.

    Args:
        ids: token ids of all rows.
        types: token types of all rows; None where the tokenizer gives none for this model.
        lengths: tokens per row, special tokens included.
        pad_id: the token that batches are padded with.
    """

    ids: Int[Tensor, " token"]
    types: Int[Tensor, " token"] | None
    lengths: Int[Tensor, " row"]
    pad_id: int

    def __len__(self) -> int:
        return len(self.lengths)

    def fingerprint(self) -> str:
        """sha256 of all ids, types and lengths."""
        parts = [self.ids, self.lengths, *([] if self.types is None else [self.types])]
        return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()

    def row(self, index: int) -> list[int]:
        """Token ids of one row."""
        start = int(self.lengths[:index].sum())
        return self.ids[start : start + int(self.lengths[index])].tolist()


def encode(split: Split, tokenizer: Any, max_length: int = 128) -> Encoded:
    """Tokenise a split.

    Args:
        split: one text or a pair per row.
        tokenizer: an HF tokenizer; that of a hooked model is `model.tokenizer`.
        max_length: longest row in tokens; longer ones lose words of the longer text first, with one warning.

    Raises:
        ModelError: no tokenizer, or one that has no token to pad with.
        TaskError: a text is missing or no text, or `max_length` leaves no room for words.
    """
    if tokenizer is None:
        raise ModelError("the model has no tokenizer to read text with: pass tokenizer= to load_model.")
    pad_id = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), None)
    if pad_id is None:
        raise ModelError("the tokenizer has neither a padding nor an end token: set tokenizer.pad_token.")
    columns = [_texts(split, column) for column in ("text_a", "text_b")[: 1 + split.is_pair]]
    limit = min(max_length, tokenizer.model_max_length)
    special = tokenizer.num_special_tokens_to_add(pair=split.is_pair)
    if limit <= special:
        raise TaskError(f"max_length={limit} leaves no room beside {special} special tokens: raise it.")

    with_types = "token_type_ids" in tokenizer.model_input_names
    # A decoder's tokenizer makes nothing of an empty text; the model needs one token.
    start = next(i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id, pad_id) if i is not None)
    ids: list[Tensor] = []
    types: list[Tensor] = []
    lengths: list[int] = []
    n_long = 0

    def tokenise(texts: Sequence[list[str]], **options: Any) -> list[tuple[list[int], list[int]]]:
        if not texts[0]:
            return []
        options |= {"return_attention_mask": False, "return_token_type_ids": with_types}
        out = tokenizer(*texts, verbose=False, **options)
        kinds = out["token_type_ids"] if with_types else [[]] * len(texts[0])
        return list(zip(out["input_ids"], kinds, strict=True))

    for first in range(0, len(split), _CHUNK):
        texts = [column[first : first + _CHUNK] for column in columns]
        rows = tokenise(texts)
        long = [i for i, (row, _) in enumerate(rows) if len(row) > limit]
        long_texts = [[column[i] for i in long] for column in texts]
        cut = tokenise(long_texts, truncation="longest_first", max_length=limit)
        for i, row in zip(long, cut, strict=True):
            rows[i] = row
        rows = [row if row[0] else ([start], [0] * with_types) for row in rows]
        n_long += len(long)
        lengths += [len(row) for row, _ in rows]
        ids.append(torch.tensor([token for row, _ in rows for token in row], dtype=torch.int32))
        types.append(torch.tensor([kind for _, row in rows for kind in row], dtype=torch.int8))
    if n_long:
        warn(
            f"{n_long} of {len(split)} examples of {split.name} are longer than {limit} tokens and were cut.",
            CoreLensWarning,
            stacklevel=2,
        )
    return Encoded(
        torch.cat(ids) if ids else torch.zeros(0, dtype=torch.int32),
        torch.cat(types) if types and with_types else None,
        torch.tensor(lengths, dtype=torch.long),
        pad_id,
    )


def _texts(split: Split, column: str) -> list[str]:
    if column not in split.data.columns:
        known = ", ".join(map(str, split.data.columns))
        raise TaskError(f"split {split.name!r} has no column {column!r}: it has {known}.")
    for row, value in split.data[column].items():
        if not isinstance(value, str):
            where = f"split {split.name!r} has {value!r} in column {column!r} at row {row}"
            raise TaskError(f"{where}: put text there, or drop the row.")
    return split.data[column].tolist()


def batches(
    encoded: Encoded,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    pad_to: int | None = None,
    rows: Sequence[int] | Tensor | None = None,
    device: torch.device | str | None = None,
) -> Iterator[tuple[Int[Tensor, " batch"], dict[str, Int[Tensor, "batch pos"]]]]:
    """Cut examples into batches of like length, each padded (right) to its longest row.

    Args:
        encoded: the examples.
        batch_size: examples per batch; the last may be smaller.
        shuffle_seed: None gives the longest rows first; with a seed rows are shuffled, sorted by length in
            pools of 50 batches, and the batches of a pool shuffled again: one order for one seed.
        pad_to: pad every batch to at least this many tokens (the paper's 128).
        rows: only these rows.
        device: where the inputs go; None for the CPU.

    Yields:
        The rows' numbers in `encoded` (on the CPU), and the model's inputs: `input_ids`, `attention_mask` and
        `token_type_ids` where there are any.
    """
    chosen = torch.arange(len(encoded)) if rows is None else torch.as_tensor(rows, dtype=torch.long).cpu()
    starts = encoded.lengths.cumsum(0) - encoded.lengths
    for batch in batch_rows(chosen, encoded.lengths, batch_size, shuffle_seed):
        lengths = encoded.lengths[batch, None]
        position = torch.arange(max(int(lengths.max()), pad_to or 0))
        mask = position < lengths
        where = (starts[batch, None] + position).clamp(max=len(encoded.ids) - 1)
        ids = encoded.ids[where].long().masked_fill(~mask, encoded.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
        if encoded.types is not None:
            inputs["token_type_ids"] = encoded.types[where].long().masked_fill(~mask, 0)
        yield batch, {name: tensor.to(device or "cpu") for name, tensor in inputs.items()}


def batch_rows(rows: Tensor, lengths: Tensor, batch_size: int, seed: int | None) -> Iterator[Tensor]:
    """The rows of each batch, in the orders that `batches` tells."""
    if len(rows) == 0:
        return
    if seed is None:
        # The longest first: what does not fit into memory shows at once.
        yield from rows[torch.argsort(lengths[rows], descending=True, stable=True)].split(batch_size)
        return
    generator = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    for pool in rows.split(batch_size * _POOL):
        cut = pool[torch.argsort(lengths[pool], stable=True)].split(batch_size)
        yield from (cut[i] for i in torch.randperm(len(cut), generator=generator).tolist())
