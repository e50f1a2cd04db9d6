"""Where each head attends, against chance: the table of attention patterns, and a class for every head.

The Heuristic Core (section 5, Figure 9) describes heads by how much they attend to repeated, adjacent and separator
tokens, without saying how that was measured. Here every measure is an average over queries (the tokens that attend), and
a query counts where it has at least one key (a token to attend to) of the kind in question:

| measure | the attention that counts | chance |
|---|---|---|
| `previous`, `next`, `self` | to the token before, behind, and the query itself | uniform |
| `first`, `cls`, `sep` | to the first token, to [CLS], to all separators | uniform |
| `within`, `across` | from ordinary tokens to those of the same text, of the other text | uniform |
| `repeated_piece` | to the same token in the other text | uniform |
| `repeated_word` | to the pieces of the same word, case folded, in the other text | uniform |
| `repeated_piece_vs_content`, `repeated_word_vs_content` | the same, if the other text has other content too | content |
| `entropy` | entropy of the query's attention, in nats | uniform |

*Uniform* is the same measure if the query attended equally to all positions it may: every token of the example in an
encoder, itself and what is left of it in a decoder. Any head that likes content words beats that, so repeats have a
second chance level, *content*: what the repeated keys would get if each got as much as the other text's non-repeated
content tokens do on average, for the same query and from the same head. A token that repeats by piece or by word
anywhere in the query's text is none of these. Where every word repeats (HANS: the hypothesis is made of the premise's
words) hardly a query has such a reference, so natural pairs are the place for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .components import Component
from .errors import CoreLensError, CoreLensWarning, ModelError
from .evaluate import check_numbers
from .hooked import component_set, load_model, logits, model_info
from .hooked.batches import Encoded, batches, encode
from .hooked.loading import load_pretrained
from .hooked.patterns import watch_patterns
from .hooked.segments import CONTENT, PUNCTUATION, SPECIAL, STOP_WORD, Tokens, read_tokens
from .tasks import Split, Task, load_task

COLUMNS = ["layer", "head", "measure", "value", "chance", "low", "high", "n", "excess_low", "excess_high"]
"""Schema of a pattern table: `low`, `high` for the value, `excess_low`, `excess_high` for the value less chance."""

_REPEATED = ("repeated_piece", "repeated_word")
_CONTENT = ("repeated_piece_vs_content", "repeated_word_vs_content")
MEASURES = ("previous", "next", "self", "first", "cls", "sep", "within", "across", *_REPEATED, *_CONTENT, "entropy")
"""All measures, in the order of the last axis of `Sums`."""

KINDS = {"special": SPECIAL, "punctuation": PUNCTUATION, "stop_words": STOP_WORD}
"""What can be left out when repeats are looked for."""

FOCUS = 0.25
"""A head has a class of its own where it attends to that kind by at least this much more than chance."""
BROAD = 0.5
"""A head is broad where its entropy is at most this many nats below uniform: it spreads over 61 % of what it may see."""
_DRAWS = 1000


def attention_patterns(
    model: Any,
    task: str | Task,
    split: str | None = None,
    heads: str | Component | Iterable[str | Component] | None = None,
    *,
    pretrained: Any = None,
    leave_out: Collection[str] = ("special", "punctuation", "stop_words"),
    max_examples: int | None = 500,
    batch_size: int = 32,
    tokenizer: Any = None,
    device: str | None = None,
) -> pd.DataFrame:
    """Measure where heads attend, beside chance.

        patterns = core_lens.attention_patterns("lab", "lab", heads=core.heads, pretrained="lab-pretrained")

    Args:
        model: anything `load_model` takes; a hooked model is left as it was.
        task: a `Task`, or a name.
        split: its name; the first in-domain split by default.
        heads: `"L2.H5"`, several, or `core.heads`; all by default.
        pretrained: the checkpoint from before fine-tuning: `lab-pretrained`, a hub id or a folder (with a language
            model's head or none), or what `load_model` takes. Measured on the same tokens.
        leave_out: kinds of token that do not count as repeated: any of `special`, `punctuation`, `stop_words`.
        max_examples: a fixed random draw; None for all.
        batch_size: examples per forward pass; only one layer's patterns of one batch are in memory.
        tokenizer: where the model's own is not beside it.
        device: where to run; the model's own by default.

    Returns:
        DataFrame (layer, head, measure, value, chance, low, high, n, excess_low, excess_high), with all measures of the
        module's table for every head, and with `pretrained` a first column `checkpoint` (`fine-tuned`, `pretrained`).
        Values and chance levels are ratios of sums: each query counts alike, whichever example it is of. Intervals are
        95 % percentile bootstrap intervals over examples clustered by premise, nan where a measure has fewer than two
        clusters. `n` is the number of examples with a query that counts. Where nothing in the data has such a key (the
        next token in a decoder, the other text in single sentences) the value is nan and n is 0.

    Raises:
        CoreLensError: an unknown head or kind of token, or a number that makes no sense.
        ModelError: model or tokenizer cannot be used, or `pretrained` has another shape or vocabulary.
        TaskError: there is no such split.
    """
    task = task if isinstance(task, Task) else load_task(task)
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    unknown = [kind for kind in ([leave_out] if isinstance(leave_out, str) else leave_out) if kind not in KINDS]
    if unknown or isinstance(leave_out, str):
        raise CoreLensError(f"leave_out={leave_out!r}: give a list of any of {', '.join(KINDS)}.")
    bridge = load_model(model, tokenizer=tokenizer, device=device)
    chosen = choose_heads(heads, bridge)
    examples = (task.split(split) if split is not None else (task.with_role("id") or task.splits)[0]).sample(
        max_examples
    )
    tables = {"fine-tuned": _table(bridge, task, examples, chosen, leave_out, batch_size)}
    if pretrained is not None:
        before = _pretrained(pretrained, bridge)
        tables["pretrained"] = _table(before, task, examples, chosen, leave_out, batch_size)
    _warn_about_reference(tables["fine-tuned"], examples)
    for checkpoint, table in tables.items():
        if pretrained is not None:
            table.insert(0, "checkpoint", checkpoint)
    return pd.concat(tables.values(), ignore_index=True)


def classify_heads(patterns: pd.DataFrame) -> pd.DataFrame:
    """Name what each head mostly does.

    A head's excess is the value less chance. Repeats have two chance levels and count by piece and by word: theirs is
    the excess over the higher chance level, by piece or by word, whichever is more. The class is, in this order:

    1. `repeated-token`: that excess is at least `FOCUS`. It comes first, as it is measured where there is something
       repeated, and a head with nothing to do parks its attention elsewhere, mostly on separators (Clark et al. 2019).
    2. `previous-token`, `next-token`, `separator`, `first-token`, `self`: the largest excess, if it is at least `FOCUS`.
    3. `broad`: the entropy is at most `BROAD` nats below uniform attention's.
    4. `mixed`: none of these.

    Rules 1 and 2 also ask that the excess's 95 % interval lies above 0. A head is not called repeated-token where there
    was no non-repeated content to compare with.

    Args:
        patterns: from `attention_patterns`.

    Returns:
        DataFrame (layer, head, class, repeated, previous, next, sep, first, self, entropy): the excesses. With a column
        `checkpoint` first where `patterns` has it.

    Raises:
        CoreLensError: the table lacks a column or a measure.
    """
    missing = [column for column in COLUMNS if column not in patterns.columns]
    missing += [name for name in MEASURES if not missing and name not in set(patterns["measure"])]
    if missing:
        raise CoreLensError(f"the table has no {missing[0]!r}: pass what attention_patterns gave.")
    keys = [key for key in ("checkpoint", "layer", "head") if key in patterns.columns]
    table = patterns.assign(excess=patterns["value"] - patterns["chance"])
    excess, low = (table.set_index([*keys, "measure"])[name].unstack() for name in ("excess", "excess_low"))
    for part in (excess, low):
        ways = [part[[way, f"{way}_vs_content"]].min(axis=1, skipna=False) for way in _REPEATED]
        part["repeated"] = pd.concat(ways, axis=1).max(axis=1)
    names = {
        "previous": "previous-token",
        "next": "next-token",
        "sep": "separator",
        "first": "first-token",
        "self": "self",
    }
    passes = (excess >= FOCUS) & (low > 0)
    best = excess[list(names)].where(passes).fillna(-np.inf)
    result = pd.Series("mixed", index=excess.index)
    result[excess["entropy"] >= -BROAD] = "broad"
    result = result.mask(passes[list(names)].any(axis=1), best.idxmax(axis=1).map(names))
    result[passes["repeated"]] = "repeated-token"
    shown = excess[["repeated", *names, "entropy"]].rename_axis(columns=None)
    shown.insert(0, "class", result)
    return shown.loc[list(table[keys].drop_duplicates().itertuples(index=False, name=None))].reset_index()


@dataclass(frozen=True, eq=False)
class Targets:
    """Which attention counts for which measure, for a batch of examples.

    Args:
        allowed: 1 where a query may attend.
        counted: per measure of `MEASURES` but entropy, 1 where the attention counts; queries that do not are 0.
        reference: per measure with a second chance level, weights of the non-repeated content that give this level.
    """

    allowed: Float[Tensor, "batch query key"]
    counted: Float[Tensor, "batch measure query key"]
    reference: Float[Tensor, "batch vs_content query key"]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the queries of each example, and how many queries these were; measures as in `MEASURES`."""

    values: Float[Tensor, "batch head measure"]
    chances: Float[Tensor, "batch head measure"]
    counts: Float[Tensor, "batch measure"]


def find_targets(
    tokens: Tokens, causal: bool, leave_out: Collection[str] = ("special", "punctuation", "stop_words")
) -> Targets:
    """Turn what the tokens of a batch are into what each measure counts.

    Args:
        tokens: one row per example, on the device that the patterns are on.
        causal: a query sees itself and what is left of it only.
        leave_out: as in `attention_patterns`.
    """
    real = tokens.side >= 0
    n = real.shape[1]
    at = torch.arange(n, device=real.device)
    allowed = real[:, :, None] & real[:, None, :]
    if causal:
        allowed &= at[:, None] >= at
    other = tokens.side[:, :, None] == 1 - tokens.side[:, None, :]
    other &= real[:, :, None] & real[:, None, :]
    ordinary = tokens.segment >= 0
    is_pair = (tokens.segment == 1).any(1)
    texts = ordinary[:, :, None] & ordinary[:, None, :] & is_pair[:, None, None]
    piece = other & (tokens.ids[:, :, None] == tokens.ids[:, None, :])
    word = other & (tokens.word[:, :, None] == tokens.word[:, None, :]) & (tokens.word >= 0)[:, None, :]
    kept = torch.ones_like(real)
    for kind in leave_out:
        kept &= tokens.kind != KINDS[kind]
    both = kept[:, :, None] & kept[:, None, :]
    # Special tokens are no part of a word: as words they repeat where they repeat as pieces.
    special = (tokens.kind == SPECIAL)[:, None, :] & piece
    repeats = [piece & both & allowed, (word | special) & both & allowed]

    unrepeated = (tokens.kind == CONTENT) & ~(piece | word).any(1)
    content = other & unrepeated[:, None, :] & allowed
    n_content = content.sum(2, keepdim=True)
    compared = [mask & (n_content > 0) for mask in repeats]
    reference = [mask.sum(2, keepdim=True) * content / n_content.clamp(min=1) for mask in compared]

    def to(key: Tensor) -> Tensor:
        """The same keys for every query; [key] or [batch, key]."""
        return allowed & key.view(-1, 1, n)

    counted = {
        "previous": allowed & (at[:, None] == at + 1),
        "next": allowed & (at[:, None] == at - 1),
        "self": allowed & (at[:, None] == at),
        "first": to(at == 0),
        "cls": to(tokens.ids == tokens.cls_id),
        "sep": to(tokens.ids == tokens.sep_id),
        "within": allowed & texts & ~other,
        "across": allowed & texts & other,
        **dict(zip((*_REPEATED, *_CONTENT), (*repeats, *compared), strict=True)),
    }
    stacked = torch.stack([counted[name] for name in MEASURES[:-1]], dim=1)
    return Targets(allowed.float(), stacked.float(), torch.stack(reference, dim=1).float())


def sum_measures(pattern: Float[Tensor, "batch head query key"], targets: Targets) -> Sums:
    """Every measure of a layer's attention, summed over the queries of each example."""
    # All measures but entropy are linear in the attention: one matrix product.
    attention = pattern.float() * targets.allowed[:, None]
    flat = attention.flatten(2)
    values = flat @ targets.counted.flatten(2).mT
    counts = targets.counted.any(3).sum(2).float()

    n_allowed = targets.allowed.sum(2, keepdim=True)
    uniform = targets.allowed / n_allowed.clamp(min=1)
    chances = torch.einsum("bqk,bmqk->bm", uniform, targets.counted)[:, None].expand_as(values).clone()
    chances[..., -len(_CONTENT) :] = flat @ targets.reference.flatten(2).mT

    entropy = torch.special.entr(attention).sum((2, 3))[..., None]
    log_n = n_allowed.clamp(min=1).log().sum((1, 2))[:, None, None].expand_as(entropy)
    n_queries = (n_allowed > 0).sum((1, 2))[:, None].float()
    return Sums(
        torch.cat([values, entropy], dim=-1),
        torch.cat([chances, log_n], dim=-1),
        torch.cat([counts, n_queries], dim=-1),
    )


def ratio_intervals(
    values: Float[np.ndarray, "example head measure"],
    chances: Float[np.ndarray, "example head measure"],
    counts: Float[np.ndarray, "example measure"],
    clusters: Iterable[object],
    draws: int = _DRAWS,
) -> Float[np.ndarray, "4 head measure"]:
    """95 % percentile bootstrap intervals over clusters for ratios of sums.

    Args:
        values: sums over the queries of each example.
        chances: likewise.
        counts: how many queries these were.
        clusters: the cluster of each example.
        draws: number of resamples.

    Returns:
        The lower and upper end for sum(values) / sum(counts), then for the same less sum(chances) / sum(counts); nan
        where fewer than two clusters have a query.
    """
    codes, names = pd.factorize(pd.Series(list(clusters)).astype(str))
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws).astype(float)
    weights = drawn[:, codes]  # [draw, example]
    n = weights @ counts
    n[n == 0] = np.nan
    ends = np.full((4, *values.shape[1:]), np.nan)
    enough = np.array([len(np.unique(codes[some])) >= 2 for some in counts.T > 0])
    for which, part in enumerate((values, values - chances)):
        ratios = np.tensordot(weights, part[..., enough], axes=1) / n[:, None, enough]
        ends[2 * which : 2 * which + 2, :, enough] = np.nanquantile(ratios, [0.025, 0.975], axis=0)
    return ends


def choose_heads(heads: Any, model: TransformerBridge) -> tuple[Component, ...]:
    """The heads meant by one name, several, or None for all, layer by layer.

    Raises:
        CoreLensError: none are named, or the model has no such head.
    """
    known = component_set(model, ("head",))
    if heads is None:
        return tuple(known)
    given = [heads] if isinstance(heads, str | Component) else list(heads)
    if not given:
        raise CoreLensError("heads is empty: name some, like 'L2.H5', or leave it out for all heads.")
    chosen = [Component.parse(head) if isinstance(head, str) else head for head in given]
    return known.components(known.mask(chosen))


def _pretrained(given: Any, model: TransformerBridge) -> TransformerBridge:
    """The model before fine-tuning, on the same device and with the same tokenizer."""
    info = model_info(model)
    if isinstance(given, str | Path):
        found = load_pretrained(given, model.tokenizer, info.device, info.dtype)
    else:
        found = load_model(given, model.tokenizer, info.device, info.dtype)
    theirs = model_info(found)
    pairs = {
        "layers": (theirs.n_layers, info.n_layers),
        "heads per layer": (theirs.n_heads, info.n_heads),
        "tokens in its vocabulary": (_vocabulary(found), _vocabulary(model)),
    }
    for what, (a, b) in pairs.items():
        if a != b:
            raise ModelError(
                f"pretrained={theirs.model_id!r} has {a} {what}, {info.model_id} has {b}: pass the checkpoint that it was "
                "fine-tuned from."
            )
    return found


def _vocabulary(model: TransformerBridge) -> int:
    return cast(Any, model.original_model).config.vocab_size


def _table(
    model: TransformerBridge,
    task: Task,
    split: Split,
    heads: tuple[Component, ...],
    leave_out: Collection[str],
    batch_size: int,
) -> pd.DataFrame:
    """The pattern table of one model, in the schema of `COLUMNS`."""
    encoded = encode(split, model.tokenizer, task.max_length)
    tokens = read_tokens(split, model.tokenizer, task.max_length)
    values, chances, counts = _measure(model, encoded, tokens, heads, leave_out, batch_size)
    n = counts.sum(axis=0)
    with np.errstate(invalid="ignore"):
        figures = [part.sum(axis=0) / n for part in (values, chances)]
    figures += list(ratio_intervals(values, chances, counts, split.data["cluster"]))
    value, chance, low, high, excess_low, excess_high = (figure.ravel() for figure in figures)
    table = {
        "layer": [head.layer for head in heads for _ in MEASURES],
        "head": [head.head for head in heads for _ in MEASURES],
        "measure": np.tile(MEASURES, len(heads)),
        "value": value,
        "chance": chance,
        "low": low,
        "high": high,
        "n": np.tile((counts > 0).sum(axis=0), len(heads)),
        "excess_low": excess_low,
        "excess_high": excess_high,
    }
    return pd.DataFrame(table, columns=COLUMNS)


def _measure(
    model: TransformerBridge,
    encoded: Encoded,
    tokens: Tokens,
    heads: tuple[Component, ...],
    leave_out: Collection[str],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of values and chances per example [example, head, measure], and counts of queries [example, measure]."""
    info = model_info(model)
    numbers: dict[int, list[int]] = {}
    for head in heads:
        numbers.setdefault(head.layer, []).append(cast(int, head.head))
    shape = (len(encoded), len(heads), len(MEASURES))
    values, chances, counts = np.zeros(shape), np.zeros(shape), np.zeros((shape[0], shape[2]))
    n_batches = -(-len(encoded) // batch_size)
    found: dict[int, Sums] = {}
    for rows, inputs in tqdm(
        batches(encoded, batch_size, device=info.device), f"patterns of {info.model_id}", n_batches, leave=False
    ):
        length = inputs["input_ids"].shape[1]
        targets = find_targets(tokens.at(rows, length, info.device), info.is_decoder, leave_out)
        see = partial(_keep_sums, found, numbers, targets)
        with torch.inference_mode(), watch_patterns(model, list(numbers), see):
            logits(model, inputs)
        # Heads are sorted, so layer after layer is their order.
        values[rows.numpy()] = torch.cat([found[layer].values for layer in numbers], dim=1).cpu().numpy()
        chances[rows.numpy()] = torch.cat([found[layer].chances for layer in numbers], dim=1).cpu().numpy()
        counts[rows.numpy()] = next(iter(found.values())).counts.cpu().numpy()
    return values, chances, counts


def _keep_sums(
    found: dict[int, Sums], numbers: dict[int, list[int]], targets: Targets, layer: int, pattern: Tensor
) -> None:
    found[layer] = sum_measures(pattern[:, numbers[layer]], targets)


def _warn_about_reference(table: pd.DataFrame, split: Split) -> None:
    """Warn where repeats have nothing to be compared with."""
    n = table.drop_duplicates("measure").set_index("measure")["n"]
    if n["repeated_piece_vs_content"] < n["repeated_piece"] / 2:
        warnings.warn(
            f"of {n['repeated_piece']} examples of {split.name!r} with repeated tokens only {n['repeated_piece_vs_content']} "
            "have non-repeated content to compare them with: take a split of natural pairs to look for repeated-token heads.",
            CoreLensWarning,
            stacklevel=3,
        )
