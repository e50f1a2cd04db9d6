"""Attention patterns while a hooked model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from ..errors import ModelError


@contextmanager
def watch_patterns(
    model: TransformerBridge, layers: Sequence[int], see: Callable[[int, Tensor], None], weighted: bool = False
) -> Iterator[None]:
    """Show `see` the pattern [batch, head, query, key] of each layer in every forward pass inside the block.

    The model's attention is `eager` meanwhile, as others compute no pattern in some architectures.

    With `weighted` every entry is times the length of what it moves, || (x_key W_V + b_V) W_O ||, in the head's own part of
    W_O: the norm of the key's share in what the head writes to the residual stream (Kobayashi et al. 2020).

    Raises:
        ModelError: the model ran, and a layer gave no pattern.
    """
    fired: set[int] = set()
    lengths: dict[int, Tensor] = {}

    def hook(layer: int) -> tuple[str, Any]:
        def look(pattern: Tensor, hook: Any) -> None:
            fired.add(layer)
            see(layer, pattern * lengths.pop(layer)[:, :, None] if weighted else pattern)

        return f"blocks.{layer}.attn.hook_pattern", look

    def value_hook(layer: int) -> tuple[str, Any]:
        def measure(values: Tensor, hook: Any) -> None:
            out = cast(Any, model).blocks[layer].attn.W_O  # [head, d_head, d_model]
            own = values.repeat_interleave(out.shape[0] // values.shape[2], dim=2)  # heads may share their values
            lengths[layer] = torch.einsum("bkhd,hdm->bhkm", own, out.to(own.dtype)).norm(dim=-1)

        return f"blocks.{layer}.attn.hook_v", measure

    hooks = [hook(layer) for layer in layers] + [value_hook(layer) for layer in layers if weighted]
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
