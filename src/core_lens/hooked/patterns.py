"""Attention patterns while a hooked model runs: to look at, and to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from ..errors import ModelError
from .info import model_info

Edit = Callable[[int, Tensor, Tensor], Float[Tensor, "batch head query key"]]
"""A layer's number, its pattern and a mask that broadcasts to it (False where attention is barred) -> the pattern to use."""
_EDITED = "core_lens_edited"
_edits: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}  # by the id of HF's attention module


@contextmanager
def watch_patterns(
    model: TransformerBridge, layers: Sequence[int], see: Callable[[int, Tensor], None], weighted: bool = False
) -> Iterator[None]:
    """Show `see` the pattern [batch, head, query, key] of each layer in every forward pass inside the block.

    The model's attention is `eager` meanwhile, as others compute no pattern in some architectures. Inside `edit_patterns`
    the changed patterns are seen.

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
    with _attention(model, "eager"), model.hooks(fwd_hooks=hooks):
        yield
    silent = [layer for layer in layers if layer not in fired]
    if silent:
        raise ModelError(
            f"layer {silent[0]} of the model gave no attention pattern: hook it with core_lens.load_model."
        )


@contextmanager
def edit_patterns(model: TransformerBridge, edit: Edit) -> Iterator[None]:
    """Let every layer attend by `edit(layer, pattern, mask)` in place of its own pattern inside the block.

    TransformerLens computes the attention of decoders itself, and takes what a hook makes of their pattern. That of encoders
    is HF's, whose pattern hooks only see: they run with an attention function of ours meanwhile.
    """
    layers = range(model_info(model).n_layers)
    if model_info(model).is_decoder:
        masks: dict[int, Tensor] = {}

        def mask_hook(layer: int) -> tuple[str, Any]:
            return f"blocks.{layer}.attn.hook_attn_scores", lambda scores, hook: masks.update({layer: _open(scores)})

        def hook(layer: int) -> tuple[str, Any]:
            return f"blocks.{layer}.attn.hook_pattern", lambda pattern, hook: edit(layer, pattern, masks.pop(layer))

        with model.hooks(fwd_hooks=[make(layer) for layer in layers for make in (mask_hook, hook)]):
            yield
        return

    def bound(layer: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda pattern, mask: edit(layer, pattern, mask)

    mine = {id(module): bound(layer) for layer in layers for module in cast(Any, model).blocks[layer].attn.modules()}
    if mine.keys() & _edits.keys():
        raise ModelError("the model's attention patterns are edited already: leave the other block first.")
    _edits.update(mine)
    try:
        with _attention(model, _EDITED):
            yield
    finally:
        for key in mine:
            del _edits[key]


@contextmanager
def _attention(model: TransformerBridge, implementation: str) -> Iterator[None]:
    """HF's attention `implementation` inside the block, unless patterns are edited, which gives patterns too."""
    original = cast(PreTrainedModel, model.original_model)
    before = cast(str, original.config._attn_implementation)
    if before != _EDITED:
        original.set_attn_implementation(implementation)
    try:
        yield
    finally:
        original.set_attn_implementation(before)


def _edited_attention(
    module: nn.Module,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch query head d_head"], Float[Tensor, "batch head query key"]]:
    """HF's eager attention, with the pattern that the module's edit makes of the softmax; without dropout."""
    scores = query @ key.transpose(2, 3) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    mask = _open(scores if attention_mask is None else attention_mask)
    pattern = _edits[id(module)](scores.softmax(dim=-1), mask)
    return (pattern @ value).transpose(1, 2).contiguous(), pattern


def _open(scores: Tensor) -> Tensor:
    """Where attention is not barred: masks add the least number there is, or minus infinity."""
    return scores > torch.finfo(scores.dtype).min / 2


AttentionInterface.register(_EDITED, _edited_attention)
AttentionMaskInterface.register(_EDITED, eager_mask)
