"""What stands in for the output of a removed component: its mean, zero, or its value on another example.

Each kind answers one question, `at`: the stand-in for all heads, or for the MLP, of one layer, as a tensor that
broadcasts against the activation. Mean ablation is the Heuristic Core's; Zhang and Nanda, "Towards best practices of
activation patching in language models" (ICLR 2024), compare the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .components import Kind
from .errors import CoreLensError
from .hooked import hook_name, logits, model_info

Mode = Literal["mean", "zero", "resample"]
Positions = Literal["all", "not_first"]


@dataclass(frozen=True)
class ZeroActivations:
    """Zero ablation."""

    mode: ClassVar[Mode] = "zero"
    weight_hash: str

    def at(self, kind: Kind, layer: int, activation: Tensor, rows: Tensor | None = None) -> Tensor:
        return activation.new_zeros(())

    def bind(self, model: TransformerBridge) -> ZeroActivations:
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class MeanActivations:
    """Mean output of every head and MLP over the tokens of a data set, padding excluded.

    Args:
        heads: mean context vector of each head, before W_O.
        mlps: mean output of each MLP, before the residual add.
        n_tokens: how many tokens went into the mean.
        positions: which tokens: `all`, or `not_first` (all but each example's first).
        weight_hash: of the model they were computed with.
    """

    mode: ClassVar[Mode] = "mean"
    heads: Float[Tensor, "layer head d_head"]
    mlps: Float[Tensor, "layer d_model"]
    n_tokens: int
    positions: Positions
    weight_hash: str

    def at(self, kind: Kind, layer: int, activation: Tensor, rows: Tensor | None = None) -> Tensor:
        return (self.heads if kind == "head" else self.mlps)[layer].to(activation)

    def bind(self, model: TransformerBridge) -> MeanActivations:
        """The same means on the model's device."""
        device = model_info(model).device
        return replace(self, heads=self.heads.to(device), mlps=self.mlps.to(device))

    def tensors(self) -> dict[str, Tensor]:
        return {"heads": self.heads, "mlps": self.mlps}


class MeanFitter:
    """Streams batches through a model and sums each component's output over tokens that are not padding.

    Sums are kept in float64, so that batch size and order do not show.

        fitter = MeanFitter(model)
        for _, inputs in batches(encoded, 64):
            fitter.update(inputs)
        means = fitter.finish()
    """

    def __init__(self, model: TransformerBridge, positions: Positions = "all") -> None:
        if positions not in ("all", "not_first"):
            raise CoreLensError(f"positions={positions!r}: choose 'all' or 'not_first'.")
        info = model_info(model)
        self.model = model
        self.positions: Positions = positions
        self._sums = {
            "head": torch.zeros(info.n_layers, info.n_heads, info.d_head, dtype=torch.float64),
            "mlp": torch.zeros(info.n_layers, info.d_model, dtype=torch.float64),
        }
        self._n = 0

    def update(self, inputs: Mapping[str, Tensor]) -> None:
        """Add a batch, as the model takes it (`input_ids`, `attention_mask`, ... each [batch, pos])."""
        keep = inputs["attention_mask"].bool()
        if self.positions == "not_first":
            keep = keep & (keep.cumsum(dim=1) > 1)

        def add(kind: Kind, layer: int, activation: Tensor) -> None:
            # Summed where the activation is; MPS has no float64.
            dtype = torch.float32 if activation.device.type == "mps" else torch.float64
            self._sums[kind][layer] += activation[keep].sum(dim=0, dtype=dtype).cpu()

        watch(self.model, inputs, add)
        self._n += int(keep.sum())

    def finish(self) -> MeanActivations:
        """The means over all batches so far.

        Raises:
            CoreLensError: no token was seen.
        """
        if self._n == 0:
            raise CoreLensError("there are no tokens to average: the data for the means is empty.")
        heads, mlps = ((self._sums[kind] / self._n).float() for kind in ("head", "mlp"))
        hash_ = model_info(self.model).weight_hash
        return MeanActivations(heads, mlps, self._n, self.positions, hash_).bind(self.model)


def fit_means(
    model: TransformerBridge,
    batches: Iterable[tuple[Any, Mapping[str, Tensor]]],
    positions: Positions = "all",
    total: int | None = None,
) -> MeanActivations:
    """Means over `(rows, inputs)` batches, with a progress bar that knows of `total` examples."""
    fitter = MeanFitter(model, positions)
    with tqdm(total=total, desc="means", unit="ex", leave=False) as bar:
        for rows, inputs in batches:
            fitter.update(inputs)
            bar.update(len(rows))
    return fitter.finish()


@dataclass(frozen=True, eq=False)
class ResampleActivations:
    """Each example takes the outputs that the component has on another example, position by position.

    The donor is drawn by the example's row number, so that a row meets the same donor in every batch; a position past
    the donor's end wraps around.

    Args:
        donors: one batch of other examples as the model takes it, padded on the right; each [donor, pos].
        weight_hash: of the model they belong to.
        seed: of the draw of donors.
    """

    mode: ClassVar[Mode] = "resample"
    donors: Mapping[str, Int[Tensor, "donor pos"]]
    weight_hash: str
    seed: int = 0
    _bank: dict[tuple[Kind, int], Tensor] = field(default_factory=dict, repr=False)

    def bind(self, model: TransformerBridge) -> ResampleActivations:
        """Run the donors through `model` and keep what every component says on them."""
        bank: dict[tuple[Kind, int], Tensor] = {}
        device = model_info(model).device
        donors = {name: tensor.to(device) for name, tensor in self.donors.items()}
        watch(model, donors, lambda kind, layer, activation: bank.update({(kind, layer): activation.clone()}))
        return replace(self, donors=donors, _bank=bank)

    def at(self, kind: Kind, layer: int, activation: Tensor, rows: Tensor | None = None) -> Tensor:
        batch, length = activation.shape[:2]
        rows = torch.arange(batch) if rows is None else rows
        lengths = self.donors["attention_mask"].sum(dim=1)
        # A multiplicative hash: consecutive rows meet donors in no order.
        donor = ((rows.to(lengths.device) + 1) * 2654435761 + self.seed * 97) % 4294967291 % len(lengths)
        position = torch.arange(length, device=lengths.device)[None] % lengths[donor][:, None]
        return self._bank[kind, layer][donor[:, None], position].to(activation)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.donors)


Replacement = ZeroActivations | MeanActivations | ResampleActivations
"""What gates blend towards as they close."""


def watch(model: TransformerBridge, inputs: Mapping[str, Tensor], see: Any) -> None:
    """One forward pass that calls `see(kind, layer, activation)` on every component's output."""

    def hook(kind: Kind, layer: int):
        return lambda activation, hook: see(kind, layer, activation)

    kinds: tuple[Kind, ...] = ("head", "mlp")
    hooks = [(hook_name(k, i), hook(k, i)) for k in kinds for i in range(model_info(model).n_layers)]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        logits(model, inputs)


def replacement_tensors(replacement: Replacement) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A replacement as named tensors and plain values, for saving."""
    meta: dict[str, Any] = {"mode": replacement.mode, "weight_hash": replacement.weight_hash}
    if isinstance(replacement, MeanActivations):
        meta |= {"n_tokens": replacement.n_tokens, "positions": replacement.positions}
    elif isinstance(replacement, ResampleActivations):
        meta |= {"seed": replacement.seed}
    return replacement.tensors(), meta


def replacement_from_tensors(tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Replacement:
    """The inverse of `replacement_tensors`."""
    values = {name: value for name, value in meta.items() if name != "mode"}
    if meta["mode"] == "zero":
        return ZeroActivations(**values)
    if meta["mode"] == "resample":
        return ResampleActivations(tensors, **values)
    return MeanActivations(tensors["heads"], tensors["mlps"], **values)
