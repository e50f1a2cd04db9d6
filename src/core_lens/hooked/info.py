"""What the rest of the package knows of a hooked model: its shape, labels, identity and hook points."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from ..components import ComponentSet, Kind
from ..errors import ModelError
from .adapters import ADAPTERS, LANGUAGE_MODELS

_SLOT = "_core_lens_info"
_POINTS = {"head": "attn.hook_z", "mlp": "hook_mlp_out"}


@dataclass(frozen=True)
class ModelInfo:
    """Identity and shape of a hooked model.

    Args:
        model_id: hub id, folder name or class name.
        architecture: HF's class name.
        n_layers: number of blocks.
        n_heads: (query) heads per block.
        d_head: width of a head's context vector.
        d_model: width of the residual stream.
        id2label: class index -> label name, as the model (or `label_map`) says; empty for a language model.
        problem_type: `single_label_classification`, `regression` or `language_modeling`.
        is_decoder: causal attention; its classifier reads the last token.
        weight_hash: sha256 over names and float32 values of HF's weights, before hooking and conversion.
        dtype: of the parameters now.
        device: of the parameters now.
    """

    model_id: str
    architecture: str
    n_layers: int
    n_heads: int
    d_head: int
    d_model: int
    id2label: Mapping[int, str]
    problem_type: str
    is_decoder: bool
    weight_hash: str
    dtype: torch.dtype
    device: torch.device

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @property
    def is_regression(self) -> bool:
        return self.problem_type == "regression"


class HookedModel(TransformerBridge):
    """A `TransformerBridge` with the positions that HF's model chooses by itself."""

    def _accepts_derived_position_ids(self) -> bool:
        # The bridge would derive position ids from the mask of batches padded left. HF's models do not,
        # so that its logits would differ from HF's (by 0.5 on GPT-2).
        return False


def model_info(model: TransformerBridge) -> ModelInfo:
    """What is known of `model`; for a bridge that `load_model` did not make it is read off now.

    Raises:
        ModelError: not a bridge around a supported model.
    """
    if not isinstance(model, TransformerBridge):
        raise ModelError(f"a {type(model).__name__} is no hooked model: pass it to core_lens.load_model first.")
    info = model.__dict__.get(_SLOT)
    if info is None:
        original = model.original_model
        check_architecture(type(original).__name__, also=LANGUAGE_MODELS)
        for name in sum(_points(cast(Any, model.cfg).n_layers).values(), ()):
            if name not in model.hook_dict:
                raise ModelError(f"the hooked model has no {name}: hook it with core_lens.load_model.")
        info = read_info(model, original, type(original).__name__, hash_weights(original, "the hooked model"))
        set_info(model, info)
    # The model may have been moved since.
    parameter = next(model.original_model.parameters())
    return replace(info, dtype=parameter.dtype, device=parameter.device)


def set_info(model: TransformerBridge, info: ModelInfo) -> None:
    """Keep `info` with the model, past `TransformerBridge.__setattr__`, and in deep copies."""
    model.__dict__[_SLOT] = info


def read_info(model: TransformerBridge, hf_model: nn.Module, model_id: str, weight_hash: str) -> ModelInfo:
    """Collect the description of a bridge around `hf_model`."""
    cfg, config = cast(Any, model.cfg), cast(Any, hf_model.config)
    parameter = next(hf_model.parameters())
    architecture = type(hf_model).__name__
    reads_on = architecture in LANGUAGE_MODELS
    return ModelInfo(
        model_id=model_id,
        architecture=architecture,
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        d_head=cfg.d_head,
        d_model=cfg.d_model,
        id2label={} if reads_on else {int(index): str(name) for index, name in config.id2label.items()},
        problem_type="language_modeling" if reads_on else problem_type(config),
        is_decoder=reads_on or ADAPTERS[architecture].is_causal,
        weight_hash=weight_hash,
        dtype=parameter.dtype,
        device=parameter.device,
    )


def problem_type(config: Any) -> str:
    """HF's problem type, or the one HF would infer.

    Raises:
        ModelError: multi-label, which has no class distribution to compare.
    """
    kind = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    several = kind == "regression" and config.num_labels > 1
    if kind not in ("single_label_classification", "regression") or several:
        raise ModelError(
            f"problem_type={kind!r} with {config.num_labels} labels is not supported: use a model with one "
            "label per example, or one real output."
        )
    return kind


def check_architecture(name: str, also: Iterable[str] = ()) -> None:
    """Raise a ModelError that lists what is supported, unless HF's class `name` is a classifier that is, or one of `also`."""
    if name.startswith("Exported"):
        raise ModelError(
            f"an exported subnetwork ({name}) has no hook points: analyse the full model that it was exported from, with the "
            "subnetwork's own file, and use the exported one through transformers."
        )
    if name not in ADAPTERS and name not in also:
        raise ModelError(
            f"{name} is not supported: pass one of {', '.join(ADAPTERS)} (a pretrained model is fine-tuned "
            "first, with core_lens.finetune)."
        )


def hash_weights(model: nn.Module, name: str) -> str:
    """sha256 over the names, shapes and float32 values of the state dict, in the order of the names.

    Values count as float32, so that a checkpoint has one hash however it is stored or loaded.

    Raises:
        ModelError: a value is not finite, or the weights are not in memory.
    """
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise ModelError(f"{name} has no values at {key} (meta device): load the model into memory.")
        value = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
        if not torch.isfinite(value).all():
            raise ModelError(f"{name} has NaN or infinite weights at {key}: train or download it again.")
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def component_set(model: TransformerBridge, kinds: Iterable[str] = ("head", "mlp")) -> ComponentSet:
    """All units of `model` of the given kinds."""
    info = model_info(model)
    return ComponentSet(info.n_layers, info.n_heads, cast("tuple[Kind, ...]", tuple(kinds)))


def hook_name(kind: Kind, layer: int) -> str:
    """The hook point of a layer's heads or MLP.

    A head's carries the context vectors before W_O [batch, pos, head, d_head], an MLP's the output before the
    residual add [batch, pos, d_model].
    """
    return f"blocks.{layer}.{_POINTS[kind]}"


def hook_names(model: TransformerBridge) -> dict[Kind, tuple[str, ...]]:
    """For heads and for MLPs, the hook point of every layer."""
    return _points(model_info(model).n_layers)


def _points(n_layers: int) -> dict[Kind, tuple[str, ...]]:
    kinds: tuple[Kind, ...] = ("head", "mlp")
    return {kind: tuple(hook_name(kind, layer) for layer in range(n_layers)) for kind in kinds}


def logits(model: TransformerBridge, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch *pos label"]:
    """The model's output: [batch, label], or [batch, pos, token] of a language model.

    Args:
        model: the hooked model.
        inputs: `input_ids`, `attention_mask`, ... each [batch, pos].
    """
    rest = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
    return model(inputs["input_ids"], **rest)
