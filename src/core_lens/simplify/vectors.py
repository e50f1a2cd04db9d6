"""Simpler queries and keys: projected to a few dimensions, or replaced by the nearest of a few."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from sklearn import cluster
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from ..errors import CoreLensError
from ..hooked import Encoded
from .base import SIDES, Side, Simplification, collect, vector_hook


@dataclass(frozen=True)
class _Vectors(Simplification):
    """Attention from changed queries and keys.

    Args:
        k: how many dimensions, or vectors, are left of each head's.
        of: which vectors: `query`, `key` or both.
        together: treat a head's queries and keys as one set.
    """

    k: int
    of: tuple[Side, ...] = SIDES
    together: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.k, int) or self.k < 1:
            raise CoreLensError(f"k={self.k!r} must be a whole number of at least 1.")
        given = (self.of,) if isinstance(self.of, str) else tuple(self.of)
        if not given or set(given) - set(SIDES):
            raise CoreLensError(f"of={self.of!r}: choose 'query', 'key' or both.")
        object.__setattr__(self, "of", given)

    def _sets(self, queries: Tensor, keys: Tensor) -> dict[Side, Tensor]:
        """The vectors [head, n, d_head] that are simplified alike, for either side, from those of both."""
        if not self.together:
            return {"query": queries, "key": keys}
        # Heads that share their keys share what is learned.
        n_sets, d_head = keys.shape[0], keys.shape[-1]
        both = torch.cat([queries.reshape(n_sets, -1, d_head), keys], dim=1)
        return {"query": both, "key": both}

    @contextmanager
    def _changed(self, model: TransformerBridge, change: Callable[[Side, int, Tensor], Tensor]) -> Iterator[None]:
        """Every simplified layer uses `change(side, index of the layer among them, vectors)`."""

        def hook(side: Side, i: int, layer: int) -> tuple[str, Any]:
            return vector_hook(model, side, layer), lambda vectors, hook: change(side, i, vectors)

        hooks = [hook(side, i, layer) for side in self.of for i, layer in enumerate(self._layers(model))]
        with model.hooks(fwd_hooks=hooks):
            yield


def _spread(tensor: Tensor, n_heads: int) -> Tensor:
    """What was learned for sets of heads, for each of `n_heads` heads."""
    return tensor.repeat_interleave(n_heads // len(tensor), dim=0)


@dataclass(frozen=True)
class SVD(_Vectors):
    """Queries and keys projected onto the top `k` right singular vectors of each head's (Friedman et al. 2024, Section 4).

        proxy = SVD(4).fit(model, task)

    With rotary positions the vectors are those after rotation, which enter the scores.

    Args:
        k: dimensions that are left; as many as a head has change nothing.
        of: which vectors: `query`, `key` or both.
        together: one basis for a head's queries and keys, in place of one for each.
        centred: subtract the mean first, and add it again: principal components.
        layers, n_examples: as in `Simplification`.

    Raises:
        CoreLensError: a value is impossible.
    """

    centred: bool = False

    @property
    def name(self) -> str:
        return f"{'PCA' if self.centred else 'SVD'} {self.k}"

    def _fit(self, model: TransformerBridge, rows: Encoded) -> dict[str, list[Tensor]]:
        layers = self._layers(model)
        # Right singular vectors are the eigenvectors of the sum of outer products, which needs no vector kept.
        outer: dict[tuple[Side, int], Any] = {}
        sums: dict[tuple[Side, int], Any] = {}
        n_vectors = 0

        def see(side: Side, layer: int, vectors: Tensor, mask: Tensor) -> None:
            nonlocal n_vectors
            part = vectors[mask].cpu().double()  # [n, head, d_head]
            n_vectors += len(part) if (side, layer) == ("key", layers[0]) else 0
            place = (side, layer)
            outer[place] = outer.get(place, 0) + torch.einsum("nhd,nhe->hde", part, part)
            sums[place] = sums.get(place, 0) + part.sum(dim=0)

        collect(model, rows, layers, see, self.name)
        d_head = outer["key", layers[0]].shape[-1]
        if self.k > d_head:
            raise CoreLensError(f"k={self.k}: the model's heads have {d_head} dimensions; ask for at most as many.")
        found: dict[str, list[Tensor]] = {f"{side} {what}": [] for side in self.of for what in ("basis", "mean")}
        for layer in layers:
            parts = {side: (outer[side, layer], sums[side, layer], n_vectors) for side in SIDES}
            if self.together:
                group = len(sums["query", layer]) // len(sums["key", layer])
                squares, total = (
                    known["query", layer].unflatten(0, (-1, group)).sum(dim=1) + known["key", layer]
                    for known in (outer, sums)
                )
                parts = dict.fromkeys(SIDES, (squares, total, n_vectors * (group + 1)))
            for side in self.of:
                squares, total, n = parts[side]
                mean = total / n
                if self.centred:
                    squares = squares - n * mean[:, :, None] * mean[:, None, :]
                basis = torch.linalg.eigh(squares).eigenvectors[:, :, -self.k :]
                found[f"{side} basis"].append(basis.float())
                found[f"{side} mean"].append((mean if self.centred else torch.zeros_like(mean)).float())
        return found

    def _simplified(self, model: TransformerBridge, known: dict[str, list[Tensor]]) -> Any:
        def project(side: Side, i: int, vectors: Float[Tensor, "batch pos head d_head"]) -> Tensor:
            basis, mean = (
                _spread(known[f"{side} {what}"][i], vectors.shape[2]).to(vectors) for what in ("basis", "mean")
            )
            parts = torch.einsum("bphd,hdk->bphk", vectors - mean, basis)
            return mean + torch.einsum("bphk,hdk->bphd", parts, basis)

        return self._changed(model, project)


@dataclass(frozen=True)
class KMeans(_Vectors):
    """Queries and keys replaced by the nearest of `k` cluster centres of each head's (Friedman et al. 2024, Section 4).

        proxy = KMeans(16).fit(model, task)

    Centres are scikit-learn's (k-means++, Lloyd's algorithm). With rotary positions the vectors are those after rotation.

    Args:
        k: clusters of a head's queries, and of its keys; where there are no more different vectors, each is a centre.
        of: which vectors: `query`, `key` or both.
        together: the same centres for a head's queries and keys.
        seed: of the first centres and of the draw of vectors.
        max_vectors: of a head's queries, or keys, to cluster; a random draw where there are more.
        layers, n_examples: as in `Simplification`.

    Raises:
        CoreLensError: a value is impossible.
    """

    seed: int = 0
    max_vectors: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.max_vectors, int) or self.max_vectors < self.k:
            raise CoreLensError(f"max_vectors={self.max_vectors!r} must be a whole number of at least k={self.k}.")

    @property
    def name(self) -> str:
        return f"k-means {self.k}"

    def _fit(self, model: TransformerBridge, rows: Encoded) -> dict[str, list[Tensor]]:
        layers = self._layers(model)
        n_vectors = int(rows.lengths.sum())
        generator = torch.Generator().manual_seed(self.seed)
        # Tokens in the order in which `collect` shows them.
        chosen = torch.randperm(n_vectors, generator=generator)[: self.max_vectors].sort().values
        seen: dict[tuple[Side, int], list[Tensor]] = {(side, layer): [] for side in SIDES for layer in layers}
        counts = dict.fromkeys(seen, 0)

        def see(side: Side, layer: int, vectors: Tensor, mask: Tensor) -> None:
            part = vectors[mask]
            first, last = torch.searchsorted(
                chosen, torch.tensor([counts[side, layer], counts[side, layer] + len(part)])
            )
            seen[side, layer].append(part[(chosen[first:last] - counts[side, layer]).to(part.device)].float().cpu())
            counts[side, layer] += len(part)

        collect(model, rows, layers, see, self.name)
        found: dict[str, list[Tensor]] = {side: [] for side in self.of}
        n_sets = sum(torch.cat(seen[side, layer]).shape[1] for side in self.of for layer in layers)
        with tqdm(total=n_sets, desc=f"{self.name}: clusters", leave=False) as bar:
            for layer in layers:
                queries, keys = (torch.cat(seen.pop((side, layer))).transpose(0, 1) for side in SIDES)
                sets = self._sets(queries, keys)
                centres: dict[Side, Tensor] = {}
                for side in self.of:
                    if self.together and centres:
                        centres[side] = next(iter(centres.values()))
                    else:
                        centres[side] = torch.stack([self._centres(part.numpy()) for part in sets[side]])
                    bar.update(len(queries if side == "query" else keys))
                for side, part in centres.items():
                    found[side].append(part)
        return found

    def _centres(self, vectors: Float[np.ndarray, "n d_head"]) -> Float[Tensor, "k d_head"]:
        """`k` centres; the first is repeated where there are fewer different vectors."""
        if self.k < len(vectors):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different vectors than clusters
                means = (
                    cluster.KMeans(self.k, n_init=cast(Any, 1), random_state=self.seed).fit(vectors).cluster_centers_
                )
        else:
            means = vectors[np.minimum(np.arange(self.k), len(vectors) - 1)]
        return torch.from_numpy(np.ascontiguousarray(means, dtype=np.float32))

    def _simplified(self, model: TransformerBridge, known: dict[str, list[Tensor]]) -> Any:
        def nearest(side: Side, i: int, vectors: Float[Tensor, "batch pos head d_head"]) -> Tensor:
            centres = _spread(known[side][i], vectors.shape[2])  # [head, k, d_head]
            points = vectors.float().transpose(0, 2).flatten(1, 2)  # [head, pos * batch, d_head]
            closest = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=-1)
            replaced = torch.take_along_dim(centres, closest[..., None], dim=1)
            return replaced.unflatten(1, (vectors.shape[1], vectors.shape[0])).transpose(0, 2).to(vectors)

        return self._changed(model, nearest)
