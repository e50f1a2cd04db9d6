"""Everything that knows HF model classes and TransformerLens: loading, adapters, hook points, batches."""

from .adapters import ADAPTERS, LANGUAGE_MODELS, DecoderAdapter, EncoderAdapter, register_architecture
from .batches import Encoded, batches, encode
from .info import (
    HookedModel,
    ModelInfo,
    component_set,
    hook_name,
    hook_names,
    logits,
    model_info,
)
from .loading import load_language_model, load_model, shipped
from .precision import bf16_attention, bf16_autocast
from .smaller import EXPORTED, can_stand_in, without

__all__ = [
    "ADAPTERS",
    "EXPORTED",
    "LANGUAGE_MODELS",
    "DecoderAdapter",
    "Encoded",
    "EncoderAdapter",
    "HookedModel",
    "ModelInfo",
    "batches",
    "bf16_attention",
    "bf16_autocast",
    "can_stand_in",
    "component_set",
    "encode",
    "hook_name",
    "hook_names",
    "load_language_model",
    "load_model",
    "logits",
    "model_info",
    "register_architecture",
    "shipped",
    "without",
]
