"""Attention patterns while a hooked model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from ..errors import ModelError


@contextmanager
def watch_patterns(
    model: TransformerBridge, layers: Sequence[int], see: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Show `see` the pattern [batch, head, query, key] of each layer in every forward pass inside the block.

    The model's attention is `eager` meanwhile, as others compute no pattern in some architectures.

    Raises:
        ModelError: the model ran, and a layer gave no pattern.
    """
    fired: set[int] = set()

    def hook(layer: int) -> tuple[str, Any]:
        def look(pattern: Tensor, hook: Any) -> None:
            fired.add(layer)
            see(layer, pattern)

        return f"blocks.{layer}.attn.hook_pattern", look

    hooks = [hook(layer) for layer in layers]
    original = cast(PreTrainedModel, model.original_model)
    before = cast(str, original.config._attn_implementation)
    original.set_attn_implementation("eager")
    try:
        with model.hooks(fwd_hooks=hooks):
            yield
    finally:
        original.set_attn_implementation(before)
    silent = [layer for layer in layers if layer not in fired]
    if silent:
        raise ModelError(
            f"layer {silent[0]} of the model gave no attention pattern: hook it with core_lens.load_model."
        )
