"""What all simplifications share: an interface, the check that one is applied to its own model, and where attention is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from ..completions import read_rows
from ..errors import CoreLensError, ModelError
from ..hooked import Encoded, batches, logits, model_info

Side = Literal["query", "key"]
SIDES: tuple[Side, ...] = ("query", "key")
BATCH = 32
"""Sequences of a forward pass in `fit`."""


class Proxy(Protocol):
    """What can stand for a model: a fitted `Simplification`, or a `Subnetwork`."""

    def apply(self, model: TransformerBridge, /) -> AbstractContextManager[Any]:
        """Simplify `model` inside the `with` block."""
        ...


@dataclass(frozen=True)
class Fitted:
    """What a fitted simplification knows.

    Args:
        weight_hash: of the model it was fitted to.
        tensors: name -> one tensor per layer, on the CPU.
    """

    weight_hash: str
    tensors: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Simplification(ABC):
    """A way to simplify a model's attention; `fit` gives one that can be applied.

    Args:
        layers: the layers it simplifies; None for all.
        n_examples: sequences that `fit` reads, a fixed random draw (the paper: about 1,000).
        fitted: what `fit` found.
    """

    layers: tuple[int, ...] | None = None
    n_examples: int = 1000
    fitted: Fitted | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.n_examples, int) or self.n_examples < 1:
            raise CoreLensError(f"n_examples={self.n_examples!r} must be a whole number of at least 1.")

    @property
    @abstractmethod
    def name(self) -> str:
        """As tables and pictures call it."""

    def fit(self, model: TransformerBridge, data: object = None) -> Self:
        """The same simplification with what it needs to know of `model` on `data`.

        Args:
            model: a hooked model; it is not changed.
            data: training data: a `Task`, a `Split`, `Completions`, sequences of token ids, or a `datasets.Dataset` with a
                column `tokens` or `input_ids`.

        Raises:
            CoreLensError: there is no data, or it does not suffice.
        """
        if data is None:
            raise CoreLensError(f"{self.name} learns from data: pass training data, fit(model, data).")
        self._layers(model)
        found = self._fit(model, read_rows(model, data, self.n_examples))
        return replace(self, fitted=Fitted(model_info(model).weight_hash, found))

    @contextmanager
    def apply(self, model: TransformerBridge) -> Iterator[None]:
        """Simplify `model` inside the `with` block; nothing of it stays afterwards.

        Raises:
            CoreLensError: not fitted yet, or fitted to another model.
        """
        info = model_info(model)
        if self.fitted is None:
            raise CoreLensError(f"{self.name} is not fitted yet: apply what .fit(model, data) returns.")
        if self.fitted.weight_hash != info.weight_hash:
            raise ModelError(
                f"{self.name} was fitted to a model with other weights (hash {self.fitted.weight_hash[:12]}, "
                f"{info.model_id} has {info.weight_hash[:12]}): load that model, or fit it to this one."
            )
        known = {name: [part.to(info.device) for part in parts] for name, parts in self.fitted.tensors.items()}
        with self._simplified(model, known):
            yield

    def _layers(self, model: TransformerBridge) -> tuple[int, ...]:
        """The numbers of the layers that are simplified."""
        n = model_info(model).n_layers
        chosen = tuple(range(n)) if self.layers is None else tuple(self.layers)
        if not chosen or any(not isinstance(i, int) or not 0 <= i < n for i in chosen):
            raise CoreLensError(f"layers={self.layers!r}: name some of the model's layers 0 to {n - 1}.")
        return chosen

    @abstractmethod
    def _fit(self, model: TransformerBridge, rows: Encoded) -> dict[str, list[Tensor]]:
        """What to know: name -> a tensor for each simplified layer."""

    @abstractmethod
    def _simplified(self, model: TransformerBridge, known: dict[str, list[Tensor]]) -> AbstractContextManager[Any]:
        """Simplify the model inside the block."""


def vector_hook(model: TransformerBridge, side: Side, layer: int) -> str:
    """Where a layer's queries or keys [batch, pos, head, d_head] enter its scores, after rotary positions if there are any."""
    names = [f"blocks.{layer}.attn.{point}_{side[0]}" for point in ("hook_rot", "hook")]
    return next(name for name in names if name in model.hook_dict)


def collect(
    model: TransformerBridge,
    rows: Encoded,
    layers: Sequence[int],
    see: Callable[[Side, int, Tensor, Tensor], None],
    title: str,
) -> None:
    """Run the model on all rows, and show `see(side, layer, vectors, mask)` the queries and keys of each batch and layer.

    Vectors are [batch, pos, head, d_head] (heads may share their keys); the mask [batch, pos] is False at padding.
    """
    mask = torch.empty(0)

    def hook(side: Side, layer: int) -> tuple[str, Any]:
        return vector_hook(model, side, layer), lambda vectors, hook: see(side, layer, vectors, mask)

    hooks = [hook(side, layer) for side in SIDES for layer in layers]
    with (
        tqdm(total=len(rows), desc=title, unit="ex", leave=False) as bar,
        torch.inference_mode(),
        model.hooks(fwd_hooks=hooks),
    ):
        for numbers, inputs in batches(rows, BATCH, device=model_info(model).device):
            mask = inputs["attention_mask"].bool()
            logits(model, inputs)
            bar.update(len(numbers))
