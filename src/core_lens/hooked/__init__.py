"""Everything that knows HF model classes and TransformerLens: loading, adapters, hook points, batches."""

from .adapters import ADAPTERS, DecoderAdapter, EncoderAdapter, register_architecture
from .batches import Encoded, batches, encode
from .info import (
    HookedClassifier,
    ModelInfo,
    component_set,
    hook_name,
    hook_names,
    logits,
    model_info,
)
from .loading import load_model, shipped
from .precision import bf16_attention, bf16_autocast

__all__ = [
    "ADAPTERS",
    "DecoderAdapter",
    "Encoded",
    "EncoderAdapter",
    "HookedClassifier",
    "ModelInfo",
    "batches",
    "bf16_attention",
    "bf16_autocast",
    "component_set",
    "encode",
    "hook_name",
    "hook_names",
    "load_model",
    "logits",
    "model_info",
    "register_architecture",
    "shipped",
]
