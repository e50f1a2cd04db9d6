"""Attention maps of a known class, drawn in three ways: as mixtures, as noisy logits, and as heads with queries and keys.

The first two are for training, the third is held out: there nobody writes a map, a head of random weights computes it.
Every map is checked against the definition of its class before it is used, whichever way it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

CLASSES = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
Map = Float[np.ndarray, "query key"]
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Layout:
    """What is where in an imagined input of one or two texts.

    Args:
        columns: tokens that a vertical map attends to: the first, separators, some punctuation.
        text: 0 or 1 per token: the text that it belongs to.
        causal: a query sees itself and what is left of it only.
    """

    columns: Bool[np.ndarray, " key"]
    text: Float[np.ndarray, " key"]
    causal: bool

    @property
    def n(self) -> int:
        return len(self.columns)

    def near(self) -> Bool[np.ndarray, "query key"]:
        """The query itself and the tokens beside it."""
        return np.abs(np.subtract.outer(np.arange(self.n), np.arange(self.n))) <= 1

    def own(self) -> Bool[np.ndarray, "query key"]:
        """The query's text."""
        return np.equal.outer(self.text, self.text)

    def normalised(self, weights: Map) -> Map:
        """Rows that sum to 1 over the keys that may be seen."""
        seen = np.tril(weights) if self.causal else weights
        return seen / seen.sum(axis=1, keepdims=True).clip(1e-12)


def draw_layout(n: int, rng: Rng) -> Layout:
    """A layout of `n` tokens."""
    columns = np.zeros(n, dtype=bool)
    columns[0] = True
    columns[-1] = rng.random() < 0.8
    boundary = int(rng.integers(n // 4, n - n // 4))
    columns[boundary] |= rng.random() < 0.6
    columns[rng.integers(1, n, rng.integers(0, 1 + max(1, n // 20)))] = True
    return Layout(columns, (np.arange(n) > boundary).astype(float), bool(rng.random() < 0.25))


class Shares(NamedTuple):
    """Shares of the attention, averaged over queries that see at least six tokens or a third of the input.

    Args:
        vertical: on the columns; attention to a column beside the query counts neither here nor there.
        diagonal: on the query and the tokens beside it.
        block: on the query's own text, of what is not on columns: 0 for uniform attention, 1 for all of it.
    """

    vertical: float
    diagonal: float
    block: float


def shares(map: Map, layout: Layout) -> Shares:
    """How much of the attention is of which kind."""
    rows = np.arange(layout.n) >= min(5, layout.n // 3) if layout.causal else np.ones(layout.n, dtype=bool)
    plain, near = ~layout.columns, layout.near()
    clear = (map * ~(near & layout.columns))[rows]
    vertical, diagonal = (
        float(clear[part[rows]].sum() / clear.sum()) for part in (~near & layout.columns, near & plain)
    )
    even = layout.normalised(np.ones_like(map))
    rest, chance = map[:, plain], even[:, plain]
    own = layout.own()[:, plain]
    inside = (rest * own).sum(axis=1) / rest.sum(axis=1).clip(1e-12)
    expected = (chance * own).sum(axis=1) / chance.sum(axis=1).clip(1e-12)
    crossing = rows & (expected < 0.95)  # queries that see both texts
    block = (inside - expected)[crossing] / (1 - expected[crossing]) if crossing.any() else np.zeros(1)
    return Shares(vertical, diagonal, float(block.mean()))


def is_of(kind: str, found: Shares, layout: Layout) -> bool:
    """Whether a map with these shares is of the class, beyond doubt: what lies between classes is nobody's."""
    n = layout.n
    beside = min(0.5, 5 / n)  # what a map without a diagonal may have there
    vertical, diagonal = found.vertical, found.diagonal
    if kind == "vertical":
        return vertical >= 0.55 and diagonal <= 0.15 + beside / 2
    if kind == "diagonal":
        return diagonal >= 0.45 + beside / 4 and vertical <= 0.15
    if kind == "vertical+diagonal":
        return vertical >= 0.25 and diagonal >= 0.2 + beside / 4 and vertical + diagonal >= 0.65
    alone = vertical <= 0.15 + layout.columns.mean() and diagonal <= 0.12 + beside
    if kind == "block":
        return found.block >= 0.6 and alone
    return abs(found.block) <= 0.25 and alone


Drawer = Callable[[str, Layout, Rng], Map]


def as_mixture(kind: str, layout: Layout, rng: Rng) -> Map:
    """A weighted sum of a vertical, a diagonal or a block map and of unstructured attention; weights differ by query."""
    n = layout.n
    main = {
        "vertical": [_vertical],
        "diagonal": [_diagonal],
        "vertical+diagonal": [_vertical, _diagonal],
        "block": [_block],
        "heterogeneous": [],
    }[kind]
    strength = rng.uniform(0.6, 0.98) if main else 0.0
    split = rng.dirichlet(np.full(len(main), 4.0)) if main else []
    sharp = rng.uniform(5, 60)
    weights = rng.dirichlet(sharp * np.array([*(strength * share + 1e-3 for share in split), 1.001 - strength]), n)
    parts = [*(make(layout, rng) for make in main), _unstructured(layout, rng)]
    return layout.normalised(np.einsum("pq,pqk->qk", weights.T, np.stack(parts)))


def as_logits(kind: str, layout: Layout, rng: Rng) -> Map:
    """A softmax of noise, raised where the class attends."""
    n = layout.n
    raised = rng.normal(0, rng.uniform(0.2, 1.5), (n, n)) + rng.normal(0, rng.uniform(0, 0.4), n)
    if kind == "heterogeneous":
        raised *= rng.uniform(1, 3)
    if "vertical" in kind:
        chosen = layout.columns & (rng.random(n) < 0.7)
        raised[:, chosen if chosen.any() else layout.columns] += rng.uniform(2, 7)
    if "diagonal" in kind:
        offset = _offset(layout, rng)
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)) + offset)
        raised += rng.uniform(3, 8) * np.exp(-distance / rng.uniform(0.2, 1.0))
    if kind == "block":
        raised += np.where(layout.own(), rng.uniform(2, 5), 0.0)
    return layout.normalised(np.exp(raised - raised.max(axis=1, keepdims=True)))


def as_head(kind: str, layout: Layout, rng: Rng) -> Map:
    """What an attention head of this kind computes from embeddings of tokens, positions and texts.

    Queries and keys are read off the embeddings by weights that follow one of them: special tokens, sinusoidal positions
    shifted by the offset, the text's embedding, or content (words, of which some repeat).
    """
    n, width = layout.n, 24
    words = rng.normal(size=(max(4, n // 2), width))
    content = words[rng.integers(0, len(words), n)] / np.sqrt(width)
    content[layout.columns] *= 0.3
    weights = rng.normal(size=(width, width)) + rng.normal() * np.eye(width)
    score = rng.uniform(0.3, 1.2) * (content @ weights @ content.T)
    if kind == "heterogeneous":
        score *= rng.uniform(1, 6)
    if "vertical" in kind:
        favourite = np.where(layout.columns, rng.uniform(0.2, 1, n), 0)
        trust = 1 + 0.2 * (content @ rng.normal(size=width))
        score += rng.uniform(3, 8) * np.outer(trust, favourite / favourite.max())
    if "diagonal" in kind:
        frequency = rng.uniform(0.15, 0.6) * 2.0 ** np.arange(0, 3)
        angle = np.subtract.outer(np.arange(n) + _offset(layout, rng), np.arange(n))
        score += rng.uniform(3, 9) * (np.cos(angle[..., None] * frequency).mean(axis=-1) - 1) * rng.uniform(1, 3)
        score += np.where(np.abs(angle) < 12, 0.0, -6.0) * rng.random()
    if kind == "block":
        side = 2 * layout.text - 1 + rng.normal(0, 0.15, n)
        score += rng.uniform(1, 3) * np.outer(side, side)
    if rng.random() < 0.5:  # special tokens often attend to themselves
        score[layout.columns] += rng.uniform(0, 4) * np.eye(n)[layout.columns]
    if layout.causal:
        score = np.where(np.tri(n, dtype=bool), score, -np.inf)
    return layout.normalised(np.exp(score - score.max(axis=1, keepdims=True)))


TRAINING: tuple[Drawer, ...] = (as_mixture, as_logits)
HELD_OUT: tuple[Drawer, ...] = (as_head,)


def draw_map(kind: str, n: int, rng: Rng, drawers: tuple[Drawer, ...] = TRAINING) -> Map:
    """A map of `n` tokens of the class, drawn until it is one."""
    while True:
        layout = draw_layout(n, rng)
        if kind == "block" and layout.causal and n < 16:
            continue  # a triangle of so few tokens shows no blocks
        map = drawers[rng.integers(len(drawers))](kind, layout, rng)
        if is_of(kind, shares(map, layout), layout):
            return map.astype(np.float32)


def _vertical(layout: Layout, rng: Rng) -> Map:
    chosen = np.flatnonzero(layout.columns & (rng.random(layout.n) < 0.7))
    chosen = chosen if len(chosen) else np.flatnonzero(layout.columns)[:1]
    map = np.full((layout.n, layout.n), 1e-9)
    shares = rng.dirichlet(np.full(len(chosen), 0.7))
    map[:, chosen] += rng.dirichlet(rng.uniform(5, 100) * shares + 0.02, layout.n)
    return layout.normalised(map)


def _diagonal(layout: Layout, rng: Rng) -> Map:
    distance = np.abs(np.subtract.outer(np.arange(layout.n), np.arange(layout.n)) + _offset(layout, rng))
    soft = np.exp(-distance / rng.uniform(0.1, 0.9))
    return layout.normalised(soft * rng.gamma(rng.uniform(1, 20), size=soft.shape))


def _offset(layout: Layout, rng: Rng) -> int:
    """-1 to attend to the token before, 1 to the one after; to the query itself now and then."""
    return 0 if rng.random() < 0.2 else 1 if layout.causal or rng.random() < 0.5 else -1


def _block(layout: Layout, rng: Rng) -> Map:
    map = layout.own() * rng.gamma(rng.uniform(0.5, 20), size=(layout.n, layout.n))
    return layout.normalised(map + 1e-9)


def _unstructured(layout: Layout, rng: Rng) -> Map:
    """Uniform, sparse at random, or to content that some queries like."""
    n = layout.n
    how = rng.integers(4)
    if how == 0:
        map = rng.gamma(rng.uniform(5, 50), size=(n, n))
    elif how == 1:
        map = rng.gamma(rng.uniform(0.05, 1.0), size=(n, n))
    elif how == 2:
        rank = int(rng.integers(1, 5))
        map = np.exp(rng.uniform(0.5, 3) * (rng.normal(size=(n, rank)) @ rng.normal(size=(rank, n))) / rank)
    else:
        liked = rng.random((n, n)) < rng.uniform(0.02, 0.3)
        map = 0.05 + liked * rng.gamma(1.0, size=(n, n)) * rng.uniform(1, 20)
    return layout.normalised(map + 1e-9)
