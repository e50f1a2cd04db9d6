"""What the attention maps of each head look like: the five classes that the lottery paper takes from Kovaleva et al. 2019.

A look at shapes, beside the measures of `core_lens.heads`, which say what the attended tokens *are*: a map that is vertical
may look at [CLS], at a comma or at one word, and a head that finds repeated words is mostly heterogeneous here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from .components import Component
from .evaluate import check_numbers
from .heads import choose_heads
from .hooked import load_model, logits, model_info
from .hooked.batches import batches, encode
from .hooked.patterns import watch_patterns
from .maps import CLASSES, MapNetwork, load_network
from .tasks import Task, load_task


def classify_maps(
    model: Any,
    task: str | Task,
    split: str | None = None,
    heads: str | Component | Iterable[str | Component] | None = None,
    *,
    weighted: bool = False,
    network: MapNetwork | None = None,
    max_examples: int | None = 100,
    batch_size: int = 32,
    tokenizer: Any = None,
    device: str | None = None,
) -> pd.DataFrame:
    """Name the class of every head's attention map in every example, and count.

        core_lens.classify_maps("lab", "lab", heads=core.heads, weighted=True)

    Args:
        model: anything `load_model` takes; a hooked model is left as it was.
        task: a `Task`, or a name.
        split: its name; the first in-domain split by default.
        heads: `"L2.H5"`, several, or `core.heads`; all by default.
        weighted: classify || alpha (x W_V + b_V) W_O ||, how much each key adds to what the head writes, in place of the
            attention alpha alone, which may rest on tokens whose values are close to nothing (Kobayashi et al. 2020).
        network: the shipped one by default (`core_lens.maps`), which was trained on drawn maps of 8 to 128 tokens.
        max_examples: a fixed random draw; None for all.
        batch_size: examples per forward pass.
        tokenizer: where the model's own is not beside it.
        device: where to run; the model's own by default.

    Returns:
        DataFrame (layer, head, class, one column per class of `core_lens.maps.CLASSES`, n): the share of the `n` examples
        whose map is of that class, and the most frequent one (the first of `CLASSES` among equals).

    Raises:
        CoreLensError: an unknown head, or a number that makes no sense.
        ModelError: model or tokenizer cannot be used.
        TaskError: there is no such split.
    """
    task = task if isinstance(task, Task) else load_task(task)
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    bridge = load_model(model, tokenizer=tokenizer, device=device)
    info, chosen = model_info(bridge), choose_heads(heads, bridge)
    examples = (task.split(split) if split is not None else (task.with_role("id") or task.splits)[0]).sample(
        max_examples
    )
    encoded = encode(examples, bridge.tokenizer, task.max_length)
    by_layer: dict[int, list[int]] = {}
    for head in chosen:
        by_layer.setdefault(head.layer, []).append(cast(int, head.head))
    network = network or load_network()
    counts = {layer: np.zeros((len(numbers), len(CLASSES)), dtype=int) for layer, numbers in by_layer.items()}

    def see(inside: Tensor, layer: int, pattern: Tensor) -> None:
        for one, real in zip(pattern[:, by_layer[layer]].float().cpu(), inside, strict=True):
            said = network(one[:, real][:, :, real]).argmax(dim=1).numpy()
            counts[layer][np.arange(len(said)), said] += 1

    n_batches = -(-len(encoded) // batch_size)
    bar = tqdm(batches(encoded, batch_size, device=info.device), f"maps of {info.model_id}", n_batches, leave=False)
    for _, inputs in bar:
        inside = inputs["attention_mask"].bool().cpu()
        with torch.inference_mode(), watch_patterns(bridge, list(by_layer), partial(see, inside), weighted):
            logits(bridge, inputs)
    table = pd.DataFrame(np.concatenate(list(counts.values())) / len(encoded), columns=pd.Index(CLASSES))
    table.insert(0, "class", table.idxmax(axis=1))
    table.insert(0, "head", [head.head for head in chosen])
    table.insert(0, "layer", [head.layer for head in chosen])
    return table.assign(n=len(encoded))
