"""Classifiers that are physically smaller: without some heads and MLPs, whose constant outputs are biases.

transformers 5 removes no heads (`prune_heads` is gone), so each architecture has a class of ours beside HF's, which
makes HF's modules and shrinks them as its configuration says. Importing core_lens makes them known to AutoConfig and
AutoModelForSequenceClassification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..components import Component
from ..errors import ModelError

_WRAPPED = "._original_component"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class _Parts:
    """Where HF keeps the parts of a block; paths are relative to it.

    Args:
        layers: path of the blocks in the model.
        attention: the module that computes context vectors and holds `inputs`.
        inputs: its linear layers from the residual stream to queries, keys and values (one layer in GPT-2).
        writer: from context vectors to the residual stream.
        inner: what of an MLP comes before its last layer.
        out: the MLP's last layer.
    """

    layers: str
    attention: str
    inputs: tuple[str, ...]
    writer: str
    inner: tuple[str, ...]
    out: str


def _bert(base: str) -> _Parts:
    inputs = ("query", "key", "value")
    return _Parts(
        f"{base}.encoder.layer", "attention.self", inputs, "attention.output.dense", ("intermediate",), "output.dense"
    )


_DISTILBERT = _Parts(
    "distilbert.transformer.layer", "attention", ("q_lin", "k_lin", "v_lin"), "attention.out_lin",
    ("ffn.lin1", "ffn.activation"), "ffn.lin2",
)  # fmt: skip
_GPT2 = _Parts("transformer.h", "attn", ("c_attn",), "attn.c_proj", ("mlp.c_fc", "mlp.act"), "mlp.c_proj")
_PARTS = {
    "BertForSequenceClassification": _bert("bert"),
    "RobertaForSequenceClassification": _bert("roberta"),
    "ElectraForSequenceClassification": _bert("electra"),
    "DistilBertForSequenceClassification": _DISTILBERT,
    "GPT2ForSequenceClassification": _GPT2,
}
EXPORTED: dict[str, type[PreTrainedModel]] = {}
"""HF class name -> ours, for the architectures that have one."""


class Constant(nn.Module):
    """A linear layer whose input is gone: its bias, whatever it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(*x.shape[:-1], -1)


class _NoHeads(nn.Module):
    """An attention module without heads; where it held the `writer`, that is a constant."""

    def __init__(self, writer: str | None, width: int) -> None:
        super().__init__()
        self.writer = writer
        if writer is not None:
            self.add_module(writer, Constant(width))

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return hidden_states if self.writer is None else getattr(self, self.writer)(hidden_states), None


def _shrink(model: Any, parts: _Parts, removed: Sequence[Component]) -> None:
    """Give the blocks of a freshly made HF model the shapes that are left."""
    config = model.config
    width, n_heads = config.hidden_size, config.num_attention_heads
    d_head = width // n_heads
    for layer, block in enumerate(model.get_submodule(parts.layers)):
        gone = [c for c in removed if c.layer == layer]
        n_left = n_heads - sum(c.kind == "head" for c in gone)
        inside = parts.writer.rpartition(".")[0] == parts.attention
        if n_left == 0:
            name = parts.writer.rpartition(".")[2]
            block.set_submodule(parts.attention, _NoHeads(name if inside else None, width))
            if not inside:
                block.set_submodule(parts.writer, Constant(width))
        elif n_left < n_heads:
            attention = block.get_submodule(parts.attention)
            for name in parts.inputs:
                new = (
                    Conv1D(3 * n_left * d_head, width) if len(parts.inputs) == 1 else nn.Linear(width, n_left * d_head)
                )
                attention.set_submodule(name, new)
            left = n_left * d_head
            block.set_submodule(parts.writer, Conv1D(width, left) if len(parts.inputs) == 1 else nn.Linear(left, width))
            # HF's modules shape by the width of a head; GPT-2 also splits queries, keys and values by this.
            if hasattr(attention, "split_size"):
                attention.split_size = left
        if any(c.kind == "mlp" for c in gone):
            for name in parts.inner:
                block.set_submodule(name, nn.Identity())
            block.set_submodule(parts.out, Constant(width))


def _register(architecture: str, parts: _Parts) -> None:
    hf_class: Any = getattr(transformers, architecture)
    hf_config = hf_class.config_class
    family = hf_config.__name__.removesuffix("Config")

    def init(self: Any, config: Any) -> None:
        hf_class.__init__(self, config)
        _shrink(self, parts, [Component.parse(name) for name in config.removed])
        self.post_init()

    names = {"__module__": __name__}
    config_class: Any = type(
        f"Exported{family}Config",
        (hf_config,),
        {**names, "__annotations__": {"removed": list[str]}, "removed": field(default_factory=list),
         "model_type": f"core-lens-{hf_config.model_type}",
         "__doc__": f"{hf_config.__name__} with `removed`, the components that are gone, like `L2.H5` and `L0.MLP`."},
    )  # fmt: skip
    model_class: Any = type(
        f"Exported{architecture}",
        (hf_class,),
        {**names, "__init__": init, "config_class": config_class,
         "__doc__": f"{architecture} without the heads and MLPs that its configuration names."},
    )  # fmt: skip
    globals()[config_class.__name__], globals()[model_class.__name__] = config_class, model_class
    AutoConfig.register(config_class.model_type, config_class)
    AutoModelForSequenceClassification.register(config_class, model_class)
    EXPORTED[architecture] = model_class


for _architecture, _parts in _PARTS.items():
    _register(_architecture, _parts)


def can_stand_in(model: TransformerBridge) -> bool:
    """Whether a smaller form of the classifier inside says what it says: it has one, and no hook of a user's is on it."""
    if type(model.original_model).__name__ not in EXPORTED:
        return False
    hooks = [hook for module in model.modules() for kind in _HOOKS for hook in getattr(module, kind).values()]
    return all(_is_bridges(hook) for hook in hooks)


def _is_bridges(hook: Any) -> bool:
    """Whether the bridge itself set `hook`, to keep or pass on an activation."""
    if "add_hook" in getattr(hook, "__qualname__", "add_hook"):  # a hook point's, named by the function that it calls
        return "_wire_symbolic_hooks" in getattr(hook, "__name__", "")
    return getattr(hook, "__module__", "").startswith("transformer_lens.")


def without(
    model: TransformerBridge,
    removed: Sequence[Component],
    heads: Float[Tensor, "layer head d_head"],
    mlps: Float[Tensor, "layer d_model"],
    share: bool = False,
) -> PreTrainedModel:
    """A copy of the classifier inside `model` that has lost some components, each of which gave a constant.

    Args:
        model: the hooked classifier, which stays as it is.
        removed: what the copy has not.
        heads: the constant context vector of each removed head; those of other heads are not looked at.
        mlps: the constant output of each removed MLP.
        share: what is left whole is `model`'s own memory, so that the copy costs next to nothing; not to be trained.

    Raises:
        ModelError: the architecture has no smaller form.
    """
    hf: Any = model.original_model
    architecture = type(hf).__name__
    if architecture not in EXPORTED:
        raise ModelError(f"{architecture} cannot be exported: this works for {', '.join(EXPORTED)}.")
    parts, ours = _PARTS[architecture], EXPORTED[architecture]
    config = ours.config_class.from_dict(  # pyright: ignore[reportOptionalMemberAccess]
        {
            **{
                name: value
                for name, value in hf.config.to_dict().items()
                if name not in ("model_type", "architectures")
            },
            "removed": [str(c) for c in sorted(removed)],
        }
    )
    with torch.device("meta"):
        names = type(hf)(hf.config).state_dict().keys()
    # The bridge wraps HF's modules; without the wrappers' names the keys are HF's, and those of its own views fall away.
    wrapped = {key.replace(_WRAPPED, ""): value for key, value in hf.state_dict().items()}
    state = {name: wrapped[name] for name in names}
    for layer in range(config.num_hidden_layers):
        gone = [c for c in removed if c.layer == layer]
        _fold(state, f"{parts.layers}.{layer}.", parts, gone, heads[layer], mlps[layer])
    with torch.device("meta"):
        small: Any = ours(config)
    small.load_state_dict({name: value if share else value.clone() for name, value in state.items()}, assign=True)
    wrapped = {name.replace(_WRAPPED, ""): buffer for name, buffer in hf.named_buffers()}
    for name, buffer in list(small.named_buffers()):
        if buffer.is_meta:  # no part of the state: position numbers, causal masks
            owner, _, last = name.rpartition(".")
            value = wrapped[name]
            small.get_submodule(owner).register_buffer(last, value if share else value.clone(), persistent=False)
    return small.eval()


def _fold(
    state: dict[str, Tensor], block: str, parts: _Parts, removed: Sequence[Component], heads: Tensor, mlp: Tensor
) -> None:
    """Take the weights of a block's removed components out of `state`, and add what they say to biases."""
    lost = sorted(c.head for c in removed if c.head is not None)
    fused = len(parts.inputs) == 1  # GPT-2's Conv1D, [in, out]
    if lost:
        keep = torch.ones(len(heads), dtype=torch.bool, device=heads.device)
        keep[lost] = False
        kept = keep.repeat_interleave(heads.shape[-1])
        weight = state.pop(f"{block}{parts.writer}.weight")
        weight = weight if fused else weight.T  # [in, out]
        bias = state[f"{block}{parts.writer}.bias"]
        said = heads.flatten()[~kept].double() @ weight[~kept].double()
        state[f"{block}{parts.writer}.bias"] = (bias.double() + said).to(bias)
        if kept.any():
            state[f"{block}{parts.writer}.weight"] = weight[kept] if fused else weight[kept].T
        for name in parts.inputs:
            for kind in ("weight", "bias"):
                value = state.pop(f"{block}{parts.attention}.{name}.{kind}")
                if kept.any():
                    value = value[..., kept.repeat(3)] if fused else value[kept]
                    state[f"{block}{parts.attention}.{name}.{kind}"] = value
    if any(c.kind == "mlp" for c in removed):
        mlp = mlp.to(state[f"{block}{parts.out}.bias"])
        for inner in (*parts.inner, parts.out):
            for key in [key for key in state if key.startswith(f"{block}{inner}.")]:
                del state[key]
        state[f"{block}{parts.out}.bias"] = mlp
