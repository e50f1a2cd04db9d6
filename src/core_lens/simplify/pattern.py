"""Simpler attention patterns: all on one token, or the same for every input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from ..hooked import Encoded, batches, logits, model_info
from ..hooked.patterns import edit_patterns, watch_patterns
from .base import BATCH, Fitted, Simplification


@dataclass(frozen=True)
class _Pattern(Simplification):
    """Attention by changed patterns."""

    @contextmanager
    def _changed(self, model: TransformerBridge, change: Callable[[int, Tensor, Tensor], Tensor]) -> Iterator[None]:
        """Every simplified layer attends by `change(index of the layer among them, pattern, mask)`."""
        place = {layer: i for i, layer in enumerate(self._layers(model))}

        def edit(layer: int, pattern: Tensor, mask: Tensor) -> Tensor:
            return change(place[layer], pattern, mask) if layer in place else pattern

        with edit_patterns(model, edit):
            yield


@dataclass(frozen=True)
class OneHot(_Pattern):
    """All of a query's attention on the key that gets most of it (Friedman et al. 2024, Section 4); the first of equals.

        proxy = OneHot().fit(model)    # needs no data

    Args:
        layers: the layers it simplifies; None for all.
    """

    @property
    def name(self) -> str:
        return "one-hot"

    def fit(self, model: TransformerBridge, data: object = None) -> Self:
        """The same, bound to `model`; `data` is not read."""
        self._layers(model)
        return replace(self, fitted=Fitted(model_info(model).weight_hash))

    def _fit(self, model: TransformerBridge, rows: Encoded) -> dict[str, list[Tensor]]:
        return {}

    def _simplified(self, model: TransformerBridge, known: dict[str, list[Tensor]]) -> Any:
        def most(i: int, pattern: Float[Tensor, "batch head query key"], mask: Tensor) -> Tensor:
            return torch.zeros_like(pattern).scatter_(-1, pattern.argmax(dim=-1, keepdim=True), 1)

        return self._changed(model, most)


@dataclass(frozen=True)
class AveragePattern(_Pattern):
    """The mean attention from each position to each, whatever the tokens are.

        proxy = AveragePattern().fit(model, task)

    The mean over all training sequences that have both positions; on an input it is cut to the keys that the query can see,
    and made to sum to 1 again. A position that no training sequence has attends alike to all keys it sees.

    Args:
        layers, n_examples: as in `Simplification`.
    """

    @property
    def name(self) -> str:
        return "average pattern"

    def _fit(self, model: TransformerBridge, rows: Encoded) -> dict[str, list[Tensor]]:
        layers, longest = self._layers(model), int(rows.lengths.max())
        n_heads = model_info(model).n_heads
        sums = [torch.zeros(n_heads, longest, longest, dtype=torch.float64) for _ in layers]
        counts = torch.zeros(longest, longest, dtype=torch.float64)
        both = torch.empty(0)

        def see(layer: int, pattern: Tensor) -> None:
            n = pattern.shape[-1]
            sums[layers.index(layer)][:, :n, :n] += (pattern * both[:, None]).sum(dim=0).double().cpu()

        with (
            tqdm(total=len(rows), desc=self.name, unit="ex", leave=False) as bar,
            torch.inference_mode(),
            watch_patterns(model, layers, see),
        ):
            for numbers, inputs in batches(rows, BATCH, device=model_info(model).device):
                mask = inputs["attention_mask"].float()
                both = mask[:, :, None] * mask[:, None, :]
                counts[: both.shape[1], : both.shape[1]] += both.sum(dim=0).double().cpu()
                logits(model, inputs)
                bar.update(len(numbers))
        return {"pattern": [(part / counts.clamp_min(1)).float() for part in sums]}

    def _simplified(self, model: TransformerBridge, known: dict[str, list[Tensor]]) -> Any:
        def fixed(i: int, pattern: Float[Tensor, "batch head query key"], mask: Tensor) -> Tensor:
            mean, n = known["pattern"][i], pattern.shape[-1]
            m = min(n, mean.shape[-1])
            placed = mean.new_zeros(mean.shape[0], n, n)
            placed[:, :m, :m] = mean[:, :m, :m]
            open_ = mask.expand_as(pattern).to(mean)
            cut = placed * open_
            total = cut.sum(dim=-1, keepdim=True)
            even = open_ / open_.sum(dim=-1, keepdim=True).clamp_min(1)
            return torch.where(total > 0, cut / total.clamp_min(1e-30), even).to(pattern)

        return self._changed(model, fixed)
