"""Which single weights of HF's classifier stay: the unstructured counterpart of a `Subnetwork`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel

from .ablation import MeanActivations, ZeroActivations
from .errors import CoreLensError, ModelError, SavedFileError
from .files import read_tensors, write_tensors
from .hooked.adapters import ADAPTERS
from .hooked.info import check_architecture
from .subnetwork import Subnetwork


@dataclass(frozen=True, eq=False)
class WeightMask:
    """The weights of a classifier that stay; the others are 0.

    Args:
        kept: name of HF's parameter -> True where a weight stays, in the parameter's shape; parameters that are not named
            stay whole.
        provenance: how it was made: plain JSON values.
    """

    kept: Mapping[str, Bool[Tensor, ...]]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_kept(self) -> int:
        return sum(int(mask.sum()) for mask in self.kept.values())

    @property
    def sparsity(self) -> float:
        """Share of the named parameters' weights that is removed."""
        return 1 - self.n_kept / sum(mask.numel() for mask in self.kept.values())

    def __repr__(self) -> str:
        n = sum(mask.numel() for mask in self.kept.values())
        return f"WeightMask({self.n_kept:,} of {n:,} weights, sparsity {self.sparsity:.3f})"

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """A copy of HF's classifier without the removed weights.

        Raises:
            ModelError: the model has no such parameter, or it has another shape.
        """
        pruned = copy.deepcopy(model)
        self.hold(pruned)
        return pruned

    def hold(self, model: PreTrainedModel) -> None:
        """Set the removed weights of `model` itself to 0; after every step of a training this fixes the mask.

        Raises:
            ModelError: as `apply`.
        """
        there = dict(model.named_parameters())
        for name, mask in self.kept.items():
            if name not in there or there[name].shape != mask.shape:
                found = f"shape {tuple(there[name].shape)}" if name in there else "no such weights"
                raise ModelError(
                    f"the mask has {name} of shape {tuple(mask.shape)}, the {type(model).__name__} {found}: apply it to a "
                    "model of the shape that it was made for."
                )
        with torch.no_grad():
            for name, mask in self.kept.items():
                there[name].masked_fill_(~mask.to(there[name].device), 0.0)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with a bit per weight, and the provenance as JSON in its header."""
        bits = {name: torch.from_numpy(np.packbits(mask.numpy().ravel())) for name, mask in self.kept.items()}
        shapes = {name: list(mask.shape) for name, mask in self.kept.items()}
        write_tensors(Path(path), bits, {"shapes": shapes, "provenance": dict(self.provenance)})

    @classmethod
    def load(cls, path: str | Path) -> WeightMask:
        """Read what `save` wrote.

        Raises:
            SavedFileError: the file is missing or damaged.
        """
        bits, meta = read_tensors(Path(path), (), ("shapes", "provenance"))
        if set(bits) != set(meta["shapes"]):
            raise SavedFileError(f"{path} is no weight mask of this version; make it again.")
        kept = {}
        for name, shape in meta["shapes"].items():
            flat = np.unpackbits(bits[name].numpy(), count=int(np.prod(shape))).astype(bool)
            kept[name] = torch.from_numpy(flat.reshape(shape))
        return cls(kept, meta["provenance"])


def encoder_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The weight matrices of all blocks: attention and MLP; no embeddings, biases, norms, pooler or classifier.

    Raises:
        ModelError: the architecture is not supported.
    """
    blocks = _writers(model)[0]
    return {name: p for name, p in model.named_parameters() if name.startswith(f"{blocks}.") and p.dim() == 2}


def without_components(model: PreTrainedModel, subnetwork: Subnetwork) -> WeightMask:
    """Remove a subnetwork's removed units from the weights of `model`, so that it can be trained without them.

    A head is removed by its columns of W_O, an MLP by its output layer. Under zero ablation this is the subnetwork exactly;
    under mean ablation, what the unit added on average is moved to the output layer's bias, where training may change it.

    Args:
        model: HF's classifier of the same shape, such as the pretrained model; its biases are changed in place.
        subnetwork: with zero or mean ablation.

    Returns:
        The mask that keeps the units out; call `hold` after every step.

    Raises:
        ModelError: another shape, or no biases to put means in.
        CoreLensError: resample ablation, which no weights can stand for.
    """
    blocks, attention_path, mlp_path = _writers(model)
    units, means = subnetwork.units, subnetwork.replacement
    if not isinstance(means, ZeroActivations | MeanActivations):
        raise CoreLensError(f"{means.mode} ablation cannot be put into weights: use zero or mean ablation.")
    layers = cast(nn.ModuleList, model.get_submodule(blocks))
    n_heads = getattr(model.config, "num_attention_heads", None)
    if (len(layers), n_heads) != (units.n_layers, units.n_heads):
        raise ModelError(
            f"the subnetwork belongs to a model of {units.n_layers} layers x {units.n_heads} heads, the "
            f"{type(model).__name__} has {len(layers)} x {n_heads}."
        )
    kept: dict[str, Tensor] = {}
    for unit in subnetwork.removed:
        path = attention_path if unit.kind == "head" else mlp_path
        name, layer = f"{blocks}.{unit.layer}.{path}", layers[unit.layer].get_submodule(path)
        weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
        is_linear = isinstance(layer, nn.Linear)  # [out, in]; GPT-2's layers are [in, out]
        mask = kept.setdefault(f"{name}.weight", torch.ones(weight.shape, dtype=torch.bool))
        by_input = mask.T if is_linear else mask
        if unit.head is not None:
            d_head = by_input.shape[0] // units.n_heads
            part = slice(unit.head * d_head, (unit.head + 1) * d_head)
        else:
            part = slice(None)
        by_input[part] = False
        if isinstance(means, MeanActivations):
            if bias is None:
                raise ModelError(f"{name} has no bias to put means in: use zero ablation to train this architecture.")
            with torch.no_grad():
                if unit.head is not None:
                    columns = (weight.T if is_linear else weight)[part]
                    bias += means.heads[unit.layer, unit.head].to(bias) @ columns
                else:
                    bias.copy_(means.mlps[unit.layer])
        elif unit.kind == "mlp" and bias is not None:
            kept[f"{name}.bias"] = torch.zeros(bias.shape, dtype=torch.bool)
    return WeightMask(kept, {"subnetwork": dict(subnetwork.provenance), "ablation": means.mode})


def _writers(model: PreTrainedModel) -> tuple[str, str, str]:
    check_architecture(type(model).__name__)
    return ADAPTERS[type(model).__name__].writers()
