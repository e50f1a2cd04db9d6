"""bfloat16 passes on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def bf16_attention(device: str, enabled: bool = True) -> Iterator[None]:
    """Attention kernels that suit bfloat16 inside the block.

    On CPUs the fused attention's bfloat16 backward pass is many times slower than the plain one.
    """
    with ExitStack() as stack:
        if enabled and device == "cpu":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


@contextmanager
def bf16_autocast(device: str, enabled: bool = True) -> Iterator[None]:
    """bfloat16 forward passes inside the block, where enabled."""
    with torch.autocast(device, torch.bfloat16, enabled=enabled), bf16_attention(device, enabled):
        yield
