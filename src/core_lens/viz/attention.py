"""What attention heads look at on single examples, drawn with circuitsvis.

circuitsvis (Cooney and Nanda, 2023) draws in the browser. Its Python side loads the JavaScript from the network, or puts
one copy of 1.3 MB into every figure, and takes tokens for safe; so its `AttentionHeads` is called from a page of our own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import circuitsvis
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from ..components import Component
from ..errors import CoreLensError, TaskError
from ..hooked import ModelInfo, batches, component_set, encode, load_model, logits, model_info
from ..hooked.patterns import watch_patterns
from ..hooked.segments import read_tokens
from ..tasks import Split, Task
from .html import escape, frame, page, script_data, write_page

Examples = int | str | tuple[str, str] | list[str | tuple[str, str]] | pd.DataFrame | Split
_LONGEST = 24
"""Characters of a token beside a figure; the text above the figure has it whole."""
MOST = 300
"""Figures (heads times examples) on one page, so that a browser can draw it and it stays small."""

_READ = (
    "One figure per head: each row is a token that attends (destination), each column one that is attended to (source), "
    "from white (not at all) to blue (wholly), on one scale everywhere; hover or tap for the values. This is the full "
    "model, nothing is ablated."
)
STYLE = """
.attention > .tokens { margin-top: .3rem; margin-bottom: .3rem; line-height: 1.9; }
.tokens b { display: inline-block; min-width: 8.8rem; font-weight: 600; }
.tokens span { padding: .1rem .3rem; border-radius: .25rem; white-space: pre-wrap; }
.tokens .first { background: var(--first); }
.tokens .second { background: var(--second); }
.attention > .circuits { margin-top: .6rem; margin-bottom: .9rem; padding: .5rem; border-radius: .4rem; overflow-x: auto;
  background: #fff; color: #1d232b; overflow-wrap: normal; }
.circuits > div { max-width: none !important; margin: 0 !important; padding: 0 .6rem !important; }
.circuits h3, .circuits h4 { font-size: .85rem; line-height: 1.2; }
.circuits h4 { font-size: .7rem; padding: .1rem .25rem !important; background: #1d232bd0 !important; }
.circuits h2 { display: none; }
.circuits > div > div { margin-left: 0 !important; margin-right: 0 !important; }
.circuits > div > div:nth-of-type(1) > div { flex: 0 0 6.5rem !important; width: 6.5rem !important; max-width: 25% !important; }
.circuits > div > div:nth-of-type(2) { width: max(var(--tokens) * 1.35rem + 8rem, min(100%, 44rem)); }
.circuits > div > div:nth-of-type(2) > div { padding: 0 !important; }
.circuits div[style*="aspect-ratio"] { width: 100% !important; }
"""
_DRAW = """
document.querySelectorAll("details.attention").forEach((item, i) => {
  const figure = item.querySelector(".circuits");
  figure.id = "attention-" + i;
  const draw = () => {
    if (!item.open || figure.dataset.drawn) return;  // a chart drawn while hidden has no size
    figure.dataset.drawn = "yes";
    CircuitsVis.render(figure.id, CircuitsVis.AttentionHeads, JSON.parse(item.querySelector("script").textContent));
  };
  item.addEventListener("toggle", draw);
  draw();
});
"""


def scripts() -> list[str]:
    """The JavaScript that draws every `AttentionView.body` of a page; once per page."""
    bundle = Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js"
    code = bundle.read_text(encoding="utf-8")
    return [code.split("\n//# sourceMappingURL")[0], _DRAW]


@dataclass(frozen=True, eq=False)
class Example:
    """One example and the attention of the shown heads on it.

    Args:
        origin: the split, or how else it came here.
        gold: the label's name; None where it is not known.
        said: what the model says of it.
        tokens: as the tokenizer cuts the text, special tokens included.
        segments: per token 0 for the first text, 1 for the second, None for a special token.
        attention: share of attention that each token pays to each, rows sum to 1.
    """

    origin: str
    gold: str | None
    said: str
    tokens: tuple[str, ...]
    segments: tuple[int | None, ...]
    attention: Float[np.ndarray, "head pos pos"]


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention of some heads on some examples; shows itself in a notebook, and is saved as a page.

    Args:
        info: the model.
        task: the task's name, where there is one.
        heads: what is shown, in order.
        examples: on what.
        parts: what the first and the second text of a pair are called.
    """

    info: ModelInfo
    task: str | None
    heads: tuple[Component, ...]
    examples: tuple[Example, ...]
    parts: tuple[str, str]

    def body(self) -> str:
        """HTML for a page that has `scripts()` and `STYLE`: one box per example, the first one open."""
        return "\n".join(self._box(example, is_open=not i) for i, example in enumerate(self.examples))

    def page(self) -> str:
        """One document that works offline, with one copy of circuitsvis."""
        n, some = len(self.heads), ", ".join(map(str, self.heads))
        title = f"Attention of {some if n <= 4 else f'{n} heads'} in {self.info.model_id}"
        about = f"{self.info.architecture}, {self.info.n_layers} layers × {self.info.n_heads} heads"
        about += f", on {self.task}" if self.task else ""
        shown = f"<p>{escape(some)}</p>" if n > 4 else ""
        head = f"<h1>{escape(title)}</h1>\n<p class=soft>{escape(about)}. {_READ} {self._order}</p>\n{shown}"
        return page(title, head + self.body(), scripts(), STYLE)

    @property
    def _order(self) -> str:
        if self.info.is_decoder:
            return "Tokens cannot attend to later ones (grey)."
        return "Tokens attend in both directions."

    def save(self, path: str | Path) -> Path:
        """Write `page` to a file.

        Raises:
            SavedFileError: it cannot be written there.
        """
        return write_page(path, self.page())

    def _repr_html_(self) -> str:
        return frame(self.page(), 900)

    def __repr__(self) -> str:
        heads = " ".join(map(str, self.heads))
        return f"AttentionView({heads} of {self.info.model_id} on {len(self.examples)} examples)"

    def _box(self, example: Example, is_open: bool) -> str:
        is_pair = 1 in example.segments
        first, second = self.parts
        marks = ("P:", "H:") if first == "premise" else ("1:", "2:")
        labels = [
            (marks[segment] if is_pair and segment is not None else "")
            + (token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}…")
            for token, segment in zip(example.tokens, example.segments, strict=True)
        ]
        size = len(example.tokens)
        data = {
            "tokens": labels,
            "attention": np.round(example.attention.astype(float), 3).tolist(),
            "attentionHeadNames": [str(head) for head in self.heads],
            "minValue": 0,
            "maxValue": 1,
            "positiveColor": "#0b4f8a",
            "maskUpperTri": self.info.is_decoder,
        }
        title = f"<b>{escape(example.origin)}</b>"
        title += f" · gold <b>{escape(example.gold)}</b>" if example.gold is not None else ""
        title += f" · model says <b>{escape(example.said)}</b>"
        if is_pair:
            rows = _tokens(example, 0, f"{first} ({marks[0][0]})") + _tokens(example, 1, f"{second} ({marks[1][0]})")
        else:
            rows = _tokens(example, 0, "text")
        return (
            f'<details class="attention"{" open" * is_open}><summary>{title}</summary>\n{rows}'
            f'<div class="circuits" style="--tokens:{size}"></div>{script_data(data)}</details>'
        )


def _tokens(example: Example, segment: int, name: str) -> str:
    """One of the texts, token by token."""
    mine = [t for t, s in zip(example.tokens, example.segments, strict=True) if s == segment]
    spans = " ".join(f'<span class="{("first", "second")[segment]}">{escape(token)}</span>' for token in mine)
    return f'<div class="tokens"><b>{escape(name)}</b> {spans}</div>\n'


def show(
    model: Any,
    heads: str | Component | Iterable[str | Component],
    examples: Examples = 2,
    task: Task | None = None,
) -> AttentionView:
    """The attention of heads on examples, in the full model.

    Args:
        model: anything `load_model` takes; a hooked model is left as it was.
        heads: `"L2.H5"`, or several.
        examples: how many to draw from the task's first in-domain and first out-of-domain split each; or a text, a
            pair `(premise, hypothesis)`, a list of these, rows of a split (`task.split("dev").data.iloc[[3, 8]]`), or a
            split.
        task: where examples are drawn from, and what limits their length.

    Raises:
        CoreLensError: the model has no such head.
        TaskError: there are no examples, too many, or they are no text.
        ModelError: the model has no tokenizer, or none that tells the two texts apart.
    """
    bridge = load_model(model)
    info = model_info(bridge)
    chosen = _heads(heads, bridge)
    max_length = task.max_length if task else 128
    given = _examples(examples, task)
    if not 1 <= len(given) * len(chosen) <= MOST:
        raise TaskError(
            f"{len(given):,} examples x {len(chosen)} heads are too many or none: a page holds 1 to {MOST} figures; pass "
            "fewer heads, some rows, or split.sample(10)."
        )
    drawn = tuple(_draw(bridge, chosen, split, max_length) for split in tqdm(given, "attention", leave=False))
    names = {*info.id2label.values(), *(task.labels if task else ())}
    is_nli = any("entail" in name.lower() for name in names)
    parts = ("premise", "hypothesis") if is_nli else ("first text", "second text")
    return AttentionView(info, task.name if task else None, chosen, drawn, parts)


def _heads(heads: str | Component | Iterable[str | Component], model: TransformerBridge) -> tuple[Component, ...]:
    given = list(heads) if isinstance(heads, Iterable) and not isinstance(heads, str) else [heads]
    parsed = [Component.parse(head) if isinstance(head, str) else head for head in given]
    if not parsed:
        raise CoreLensError("there is no head to show: name some, like 'L2.H5'.")
    known = component_set(model, ("head",))
    for head in parsed:
        known.index(head)
    return tuple(dict.fromkeys(parsed))


def _examples(examples: Examples, task: Task | None) -> list[Split]:
    """Each example as a split of one row, called after where it comes from."""
    if isinstance(examples, int):
        if task is None:
            raise TaskError("examples cannot be drawn without a task: pass task=, or texts as examples=.")
        if examples < 1:
            raise TaskError(f"examples={examples}: ask for at least 1 of each split.")
        splits = [split.sample(examples) for role in ("id", "ood") for split in task.with_role(role)[:1]]
    elif isinstance(examples, Split):
        splits = [examples]
    elif isinstance(examples, pd.DataFrame):
        splits = [Split("given rows", "extra", examples)]
    else:
        splits = [_given(text) for text in (examples if isinstance(examples, list) else [examples])]
    return [replace(split, data=split.data.iloc[[row]]) for split in splits for row in range(len(split))]


def _given(text: Any) -> Split:
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, tuple | list) else []
    if len(texts) not in (1, 2) or not all(isinstance(part, str) for part in texts):
        raise TaskError(f"{text!r} is no example: pass a text, or a pair of texts.")
    return Split("given text", "extra", pd.DataFrame([texts], columns=["text_a", "text_b"][: len(texts)]))


def _draw(model: TransformerBridge, heads: Sequence[Component], split: Split, max_length: int) -> Example:
    """Run one example and keep the attention of `heads`."""
    info, kept = model_info(model), dict[int, np.ndarray]()
    ((_, inputs),) = batches(encode(split, model.tokenizer, max_length), 1, device=info.device)

    def keep(layer: int, pattern: Tensor) -> None:
        kept[layer] = pattern[0].detach().float().cpu().numpy()

    with torch.inference_mode(), watch_patterns(model, sorted({head.layer for head in heads}), keep):
        output = logits(model, inputs)[0].float().cpu().numpy()
    tokens = read_tokens(split, model.tokenizer, max_length)
    row = split.data.iloc[0]
    return Example(
        split.name,
        str(row["label"]) if "label" in row else None,
        _said(output, info),
        tuple(_token(model.tokenizer, i) for i in tokens.ids[0].tolist()),
        tuple(None if segment < 0 else segment for segment in tokens.segment[0].tolist()),
        np.stack([kept[head.layer][cast(int, head.head)] for head in heads]),
    )


def _said(output: Float[np.ndarray, " label"], info: ModelInfo) -> str:
    if info.is_regression:
        return f"{output[0]:.2f}"
    shares = np.exp(output - output.max())
    best = int(output.argmax())
    return f"{info.id2label[best]} ({shares[best] / shares.sum():.0%})"


def _token(tokenizer: Any, token: int) -> str:
    """A token as a reader knows it: `##ing` stays, byte-level BPE is decoded where it is a whole character."""
    raw = tokenizer.convert_ids_to_tokens(token)
    text = tokenizer.convert_tokens_to_string([raw]).strip()
    return text if text and "�" not in text else raw
