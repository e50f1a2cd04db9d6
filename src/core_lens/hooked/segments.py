"""What each token of a split is: of which text, of which word, special, punctuation, stop word or content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import ModelError
from ..tasks.base import Split

PADDING, SPECIAL, PUNCTUATION, STOP_WORD, CONTENT = -1, 0, 1, 2, 3
"""The kinds of token."""

STOP_WORDS = frozenset(
    """a about above after again against all also although am an and any are as at be because been before being below
    between both but by can cannot could did do does doing down during each either few for from further had has have
    having he her here hers herself him himself his how i if in into is it its itself just may me might more most must
    my myself neither no nor not now of off on once only or other our ours ourselves out over own same shall she should
    since so some such than that the their theirs them themselves then there these they this those though through to
    too under unless until up upon us very was we were what when where whether which while who whom whose why will with
    would yet you your yours yourself yourselves""".split()  # noqa: SIM905
)
"""English function words: articles, pronouns, prepositions, conjunctions, auxiliaries, particles."""

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Tokens:
    """All tokens of a split, padded on the right to the longest row.

    Args:
        ids: token ids; -1 at padding.
        segment: 0 in the first text, 1 in the second; -1 at special tokens and padding.
        side: as `segment`, but a special token goes with the text before it, one in front with the first.
        word: a number for the whole word, case folded, that the token is a piece of; -1 where there is none.
        kind: `PADDING`, `SPECIAL`, `PUNCTUATION`, `STOP_WORD` or `CONTENT`.
        cls_id: of the token that the tokenizer calls cls; -2 for none.
        sep_id: of the separator; -2 for none.
    """

    ids: Int[Tensor, "row pos"]
    segment: Int[Tensor, "row pos"]
    side: Int[Tensor, "row pos"]
    word: Int[Tensor, "row pos"]
    kind: Int[Tensor, "row pos"]
    cls_id: int = -2
    sep_id: int = -2

    def at(self, rows: Tensor, length: int, device: torch.device | str | None = None) -> Tokens:
        """Some rows, cut or filled to `length` tokens."""

        def part(name: str) -> Tensor:
            found = getattr(self, name)[rows, :length]
            return torch.nn.functional.pad(found, (0, length - found.shape[1]), value=-1).to(device)

        return replace(self, **{name: part(name) for name in ("ids", "segment", "side", "word", "kind")})


def read_tokens(split: Split, tokenizer: Any, max_length: int = 128) -> Tokens:
    """What the tokens are that `encode` gives for the same arguments.

    The tokenizer itself says which text a token is of, so that it needs neither token types nor separators (RoBERTa,
    GPT-2, Llama). Words are runs of word characters in the text, whatever the tokenizer's pieces are.

    Args:
        split: one text or a pair per row.
        tokenizer: an HF tokenizer.
        max_length: as in `encode`.

    Raises:
        ModelError: the tokenizer keeps no record of where its tokens come from.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"{type(tokenizer).__name__} does not say which text and word a token is of: pass a fast tokenizer "
            "(AutoTokenizer gives one where there is any)."
        )
    columns = [split.data[column].tolist() for column in ("text_a", "text_b")[: 1 + split.is_pair]]
    limit = min(max_length, tokenizer.model_max_length)
    out = tokenizer(*columns, truncation="longest_first", max_length=limit, verbose=False)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    numbers: dict[str, int] = {}
    rows = [
        _row(e, texts, special, numbers) for e, texts in zip(out.encodings, zip(*columns, strict=True), strict=True)
    ]
    # `encode` gives an empty text one token, where the tokenizer gives none.
    start = next(
        (i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None), -1
    )
    rows = [row or [(start, -1, 0, -1, SPECIAL)] for row in rows]
    filled = torch.full((len(rows), max(map(len, rows)), 5), -1)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = torch.tensor(row)
    ids, segment, side, word, kind = filled.unbind(-1)
    known = (-2 if i is None else i for i in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    return Tokens(ids, segment, side, word, kind, *known)


def _row(encoding: Any, texts: Sequence[str], special: set[int], numbers: dict[str, int]) -> list[tuple[int, ...]]:
    """(id, segment, side, word, kind) of each token of one example."""
    spans = [[(m.end(), m.group().casefold()) for m in _WORD.finditer(text)] for text in texts]
    row, side = [], 0
    for i, segment, (start, end) in zip(encoding.ids, encoding.sequence_ids, encoding.offsets, strict=True):
        if segment is None or i in special:
            row.append((i, -1, side, -1, SPECIAL))
            continue
        side = segment
        # Byte-level pieces may begin with the space in front of their word.
        piece = str(texts[segment])[start:end]
        start += len(piece) - len(piece.lstrip())
        word = next((word for stop, word in spans[segment] if stop > start), "") if start < end else ""
        number = numbers.setdefault(word, len(numbers)) if word else -1
        row.append((i, segment, side, number, _kind(word)))
    return row


def _kind(word: str) -> int:
    if not word or not any(c.isalnum() for c in word):
        return PUNCTUATION
    plain = word.replace("’", "'")
    return STOP_WORD if plain.endswith("n't") or plain.split("'")[0] in STOP_WORDS else CONTENT
