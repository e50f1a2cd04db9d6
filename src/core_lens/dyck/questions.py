"""What a language model of a Dyck language is asked: the closing brackets far from their openers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..completions import Completions
from ..errors import CoreLensError
from ..generalization import ProxyComparison
from .data import depths, openers, scored

if TYPE_CHECKING:
    from datasets import Dataset


def completions(data: Mapping[Any, Dataset], n: int | None = None, k: int = 20) -> dict[str, Completions]:
    """The test splits as `generalization_gap` takes them: which bracket closes, of those at least 10 tokens from their opener.

        data = core_lens.dyck.splits()
        core_lens.generalization_gap(model, proxy, core_lens.dyck.completions(data))

    Args:
        data: from `splits`; its training strings are left out.
        n: strings of each split, the first ones; None for all.
        k: bracket types.

    Returns:
        Split -> its strings and the closings asked for, with depth, opener and distance of each; in distribution first.

    Raises:
        CoreLensError: a split is not of this language.
    """
    if n is not None and (not isinstance(n, int) or n < 1):
        raise CoreLensError(f"n={n!r} must be a whole number of at least 1.")
    if not isinstance(data, Mapping):
        raise CoreLensError(
            f"data is a {type(data).__name__}: pass split -> dataset, as core_lens.dyck.splits gives them."
        )
    found = {}
    for name, split in data.items():
        if name == "train":
            continue
        if "tokens" not in split.column_names or not len(split):
            raise CoreLensError(f"split {name!r} has no strings in a column tokens.")
        rows = split.select(range(min(n or len(split), len(split)))).with_format("numpy")["tokens"][:]
        tables = []
        for i, row in enumerate(rows):
            _check_language(row, k, str(name))
            at = np.flatnonzero(scored(row, k))
            where = openers(row, k)[at]
            tables.append(np.column_stack([np.full(len(at), i), at, depths(row, k)[at], where, at - where]))
        table = pd.DataFrame(np.concatenate(tables), columns=["row", "position", "depth", "opener", "distance"])
        found[str(name)] = Completions.of(str(name), rows, table, range(k, 2 * k), pad_id=2 * k + 1)
    return found


def depth_errors(found: ProxyComparison, asked: Mapping[str, Completions], head: str, k: int = 20) -> pd.DataFrame:
    """Where a head looks when a bracket is to be closed: the depth of the key it attends to most, by the depth of the bracket.

    A head that finds the opener looks at a key of the same depth.

    Args:
        found: `compare_proxies(..., asked, max_examples=None, attended=True)`.
        asked: what was asked there.
        head: like `L1.H0`.
        k: bracket types.

    Returns:
        DataFrame (split, who, query_depth, key_depth, n, share): `who` is `model` or a proxy; START and END have depth 0;
        `share` is of the brackets of that depth.

    Raises:
        CoreLensError: the comparison did not keep it, was of other questions, or there is no such head.
    """
    if found.attended is None:
        raise CoreLensError("the comparison did not keep where heads attend: call compare_proxies(..., attended=True).")
    heads = list(dict.fromkeys(found.attended.columns.get_level_values(1)))
    if head not in heads:
        raise CoreLensError(f"head={head!r}: the model has {', '.join(heads)}.")
    rows = []
    if not asked:
        raise CoreLensError("asked is empty: pass what the comparison was of.")
    for split, given in asked.items():
        one = given.sample(None)  # what something is asked of, as there
        part = np.flatnonzero((found.questions["split"] == split).to_numpy())
        questions = found.questions.iloc[part]
        here = one.asked[["row", "position"]].to_numpy()
        if len(part) != len(here) or (questions[["row", "position"]].to_numpy() != here).any():
            raise CoreLensError(f"split {split!r} was asked otherwise: call compare_proxies with max_examples=None.")
        ids = one.encoded.ids.numpy()
        starts = (one.encoded.lengths.cumsum(0) - one.encoded.lengths).numpy()
        strings = np.split(ids, starts[1:])
        for string in strings:
            _check_language(string, k, split)
        deep = np.concatenate([depths(string, k) for string in strings])
        for who in ("model", *found.proxies):
            keys = found.attended[who][head].to_numpy()[part]
            table = pd.DataFrame(
                {"query_depth": questions["depth"].to_numpy(), "key_depth": deep[starts[questions["row"]] + keys]}
            )
            counts = table.value_counts(sort=False).rename("n").reset_index()
            rows.append(counts.assign(split=split, who=who))
    table = pd.concat(rows, ignore_index=True)
    table["share"] = table["n"] / table.groupby(["split", "who", "query_depth"])["n"].transform("sum")
    return table[["split", "who", "query_depth", "key_depth", "n", "share"]]


def _check_language(tokens: np.ndarray, k: int, split: str) -> None:
    if tokens[0] != 2 * k or tokens.max() > 2 * k + 1:
        raise CoreLensError(f"split {split!r} has a string that is none of Dyck with k={k} types: give its own k=.")
