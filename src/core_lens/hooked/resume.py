"""Forward passes that start in the middle: the residual stream of an earlier pass, and only the blocks after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge


@contextmanager
def entering(
    model: TransformerBridge, layers: Iterable[int]
) -> Iterator[dict[int, Float[Tensor, "batch pos d_model"]]]:
    """The residual stream that enters each of `layers` in a forward pass inside the block (the last pass counts)."""
    found: dict[int, Tensor] = {}

    def keep(layer: int):
        def hook(residual: Tensor, hook: object) -> None:
            found[layer] = residual

        return f"blocks.{layer}.hook_in", hook

    with model.hooks(fwd_hooks=[keep(layer) for layer in layers]):
        yield found


@contextmanager
def resumed(
    model: TransformerBridge, layer: int, residual: Float[Tensor, "batch pos d_model"] | None = None
) -> Iterator[None]:
    """Skip the blocks before `layer` inside the `with` block: `residual` enters it, whatever the inputs.

    The model is called with the same inputs as before, which still make the attention mask and, in decoders, the
    position of the last token. (TransformerLens' `start_at_layer` runs the earlier blocks all the same, and is called
    without token ids, by which HF's decoders find the last token.)

    Args:
        model: the hooked classifier.
        layer: the first block to run; 0 runs all.
        residual: what entered it in a pass on the same inputs (`entering`); may be left out at layer 0.
    """
    skipped = list(model.blocks)[:layer]
    assert residual is not None or not skipped
    # In the instance's own dictionary, which Python asks before the class: deleting it leaves no trace.
    for block in skipped:
        block.__dict__["forward"] = lambda *args, **kwargs: residual
    try:
        yield
    finally:
        for block in skipped:
            del block.__dict__["forward"]
