"""The units of a model, attention heads and MLPs, and the only map between them and tensor indices.

Layers and heads are 0-indexed, as in the Heuristic Core paper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal

import torch
from torch import Tensor

from .errors import CoreLensError

Kind = Literal["head", "mlp"]
_PATTERN = re.compile(r"L([0-9]+)\.(?:H([0-9]+)|MLP)", re.IGNORECASE)


@total_ordering
@dataclass(frozen=True)
class Component:
    """One attention head (`Component(2, 5)`, printed `L2.H5`) or one MLP (`Component(2)`, printed `L2.MLP`)."""

    layer: int
    head: int | None = None

    @property
    def kind(self) -> Kind:
        return "mlp" if self.head is None else "head"

    @classmethod
    def parse(cls, text: str) -> Component:
        """Read `L2.H5` or `L2.MLP` (case does not matter).

        Raises:
            CoreLensError: the text is neither.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise CoreLensError(f"{text!r} is not a component: write a head as L2.H5 and an MLP as L2.MLP.")
        return cls(int(match[1]), None if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        return f"L{self.layer}.MLP" if self.head is None else f"L{self.layer}.H{self.head}"

    def __lt__(self, other: Component) -> bool:
        """By layer; within a layer heads by number, then the MLP."""
        if not isinstance(other, Component):
            return NotImplemented
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, int]:
        return (self.layer, self.head is None, self.head or 0)


@dataclass(frozen=True)
class ComponentSet:
    """All prunable units of a model, in the order of the tensors that describe them.

    The flat order, used by gates, masks and scores alike, is all heads layer by layer, then all MLPs.

    Args:
        n_layers: number of blocks.
        n_heads: heads per block.
        kinds: which kinds are units; what is left out is never pruned.
    """

    n_layers: int
    n_heads: int
    kinds: tuple[Kind, ...] = ("head", "mlp")
    _components: tuple[Component, ...] = field(init=False, repr=False, compare=False)
    _index: dict[Component, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = tuple(kind for kind in ("head", "mlp") if kind in self.kinds)
        if not kinds or any(kind not in ("head", "mlp") for kind in self.kinds):
            raise CoreLensError(f"units={list(self.kinds)!r}: choose 'head', 'mlp' or both.")
        heads = [Component(i, j) for i in range(self.n_layers) for j in range(self.n_heads)]
        mlps = [Component(i) for i in range(self.n_layers)]
        components = tuple(heads * ("head" in kinds) + mlps * ("mlp" in kinds))
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "_components", components)
        object.__setattr__(self, "_index", {component: i for i, component in enumerate(components)})

    def __len__(self) -> int:
        return len(self._components)

    def __iter__(self) -> Iterator[Component]:
        return iter(self._components)

    def __contains__(self, component: object) -> bool:
        return component in self._index

    def index(self, component: Component) -> int:
        """Position of `component` in the flat order.

        Raises:
            CoreLensError: the model has no such unit.
        """
        try:
            return self._index[component]
        except KeyError:
            kinds = " and ".join({"head": "heads", "mlp": "MLPs"}[kind] for kind in self.kinds)
            raise CoreLensError(
                f"{component} is not a unit here: the model has layers 0-{self.n_layers - 1}, heads "
                f"0-{self.n_heads - 1} and the units are {kinds}."
            ) from None

    def mask(self, components: Iterable[Component]) -> Tensor:
        """Bool tensor [n_units], True at `components`."""
        mask = torch.zeros(len(self), dtype=torch.bool)
        for component in components:
            if not isinstance(component, Component):
                raise CoreLensError(f"{component!r} is no component: name heads like 'L2.H5' and MLPs like 'L0.MLP'.")
            mask[self.index(component)] = True
        return mask

    def components(self, mask: Tensor) -> tuple[Component, ...]:
        """The components at which `mask` [n_units] is True, sorted."""
        if mask.shape != (len(self),):
            raise CoreLensError(f"a mask of shape {tuple(mask.shape)} does not fit {len(self)} units.")
        return tuple(sorted(c for c, kept in zip(self, mask.tolist(), strict=True) if kept))

    def heads(self, flat: Tensor) -> Tensor | None:
        """The part of `flat` [..., n_units] that belongs to heads, [..., n_layers, n_heads]; None if heads are no units."""
        if "head" not in self.kinds:
            return None
        return flat[..., : self.n_layers * self.n_heads].unflatten(-1, (self.n_layers, self.n_heads))

    def mlps(self, flat: Tensor) -> Tensor | None:
        """The part of `flat` [..., n_units] that belongs to MLPs, as [..., n_layers]; None if MLPs are no units."""
        return flat[..., -self.n_layers :] if "mlp" in self.kinds else None
