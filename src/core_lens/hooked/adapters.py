"""One small adapter per architecture: where HF's classifier keeps blocks, heads and MLPs.

TransformerLens 4 maps a model by an adapter's `component_mapping` (its own name -> the HF module wrapped) and
ships none for `*ForSequenceClassification`. In every adapter here the last linear layer is `classifier`.
`docs/add-an-architecture.md` shows how to add one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    BertPoolerBridge,
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    PosEmbedBridge,
)
from transformer_lens.model_bridge.supported_architectures.bert import BertArchitectureAdapter
from transformer_lens.model_bridge.supported_architectures.gpt2 import GPT2ArchitectureAdapter
from transformer_lens.model_bridge.supported_architectures.llama import LlamaArchitectureAdapter
from transformer_lens.model_bridge.supported_architectures.qwen2 import Qwen2ArchitectureAdapter


class EncoderAdapter(BertArchitectureAdapter):
    """BERT's block, whatever HF calls its parts; the class attributes are BERT's own names.

    The paths in `block` are relative to one layer, those in `head` to the model.
    """

    supports_causal_loss: bool = False
    is_causal: ClassVar[bool] = False
    reads_token_types: ClassVar[bool] = True
    base: ClassVar[str] = "bert"
    layers: ClassVar[str] = "encoder.layer"
    block: ClassVar[dict[str, str]] = {
        "attn": "attention",
        "q": "self.query",
        "k": "self.key",
        "v": "self.value",
        "o": "output.dense",
        "ln1": "attention.output.LayerNorm",
        "in": "intermediate.dense",
        "out": "output.dense",
        "ln2": "output.LayerNorm",
    }
    head: ClassVar[dict[str, str]] = {
        "classifier_dense": "classifier.dense",
        "classifier": "classifier.out_proj",
    }

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        embeddings, part = f"{self.base}.embeddings", self.block
        self.component_mapping = {
            "embed": EmbeddingBridge(name=f"{embeddings}.word_embeddings"),
            "pos_embed": PosEmbedBridge(name=f"{embeddings}.position_embeddings"),
            "embed_ln": self._norm(f"{embeddings}.LayerNorm"),
            "blocks": BlockBridge(
                name=f"{self.base}.{self.layers}",
                # TL's MLP as a whole is no HF module here; its output is the second linear layer's.
                hook_alias_overrides={"hook_mlp_out": "mlp.out.hook_out", "hook_mlp_in": "mlp.in.hook_in"},
                submodules={
                    "ln1": self._norm(part["ln1"]),
                    "ln2": self._norm(part["ln2"]),
                    "attn": AttentionBridge(
                        name=part["attn"],
                        config=self.cfg,
                        submodules={name: LinearBridge(name=part[name]) for name in "qkvo"},
                    ),
                    "mlp": MLPBridge(
                        name=None,
                        config=self.cfg,
                        submodules={name: LinearBridge(name=part[name]) for name in ("in", "out")},
                    ),
                },
            ),
            **{name: LinearBridge(name=path) for name, path in self.head.items()},
        }
        if self.reads_token_types:
            path = f"{embeddings}.token_type_embeddings"
            self.component_mapping["token_type_embed"] = EmbeddingBridge(name=path)

    @classmethod
    def writers(cls) -> tuple[str, str, str]:
        """Paths of the blocks, and in a block of the layers that write heads and the MLP to the residual stream."""
        return f"{cls.base}.{cls.layers}", f"{cls.block['attn']}.{cls.block['o']}", cls.block["out"]

    def _norm(self, name: str) -> NormalizationBridge:
        return NormalizationBridge(name=name, config=self.cfg, use_native_layernorm_autograd=True)

    def prepare_model(self, hf_model: Any) -> None:
        """Nothing to adjust: TL's own version looks for language model heads."""


class BertClassifierAdapter(EncoderAdapter):
    """`BertForSequenceClassification`: tanh pooler, then one linear layer."""

    head: ClassVar[dict[str, str]] = {"classifier": "classifier"}

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        assert self.component_mapping is not None
        self.component_mapping["pooler"] = BertPoolerBridge(
            name="bert.pooler", submodules={"dense": LinearBridge(name="dense")}
        )


class RobertaClassifierAdapter(EncoderAdapter):
    """`RobertaForSequenceClassification`: BERT's block, two linear layers on the first token."""

    base = "roberta"


class ElectraClassifierAdapter(EncoderAdapter):
    """`ElectraForSequenceClassification`: BERT's block, two linear layers on the first token."""

    base = "electra"


class DistilBertClassifierAdapter(EncoderAdapter):
    """`DistilBertForSequenceClassification`: no token types, other names."""

    base = "distilbert"
    layers = "transformer.layer"
    reads_token_types = False
    block: ClassVar[dict[str, str]] = {
        "attn": "attention",
        "q": "q_lin",
        "k": "k_lin",
        "v": "v_lin",
        "o": "out_lin",
        "ln1": "sa_layer_norm",
        "in": "ffn.lin1",
        "out": "ffn.lin2",
        "ln2": "output_layer_norm",
    }
    head: ClassVar[dict[str, str]] = {"pre_classifier": "pre_classifier", "classifier": "classifier"}


class DecoderAdapter(ArchitectureAdapter):
    """What turns TL's adapter of a causal language model into one of its classifier; mixed in before it.

    HF's head is `score`, applied at every position; the logits of the last token that is not padding count.
    """

    supports_causal_loss: bool = False
    supports_generation: bool = False
    is_causal: ClassVar[bool] = True
    reads_token_types: ClassVar[bool] = False
    paths: ClassVar[tuple[str, str, str]] = ("model.layers", "self_attn.o_proj", "mlp.down_proj")

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        assert self.component_mapping is not None
        del self.component_mapping["unembed"]
        self.component_mapping["classifier"] = LinearBridge(name="score")

    @classmethod
    def writers(cls) -> tuple[str, str, str]:
        """As `EncoderAdapter.writers`."""
        return cls.paths


class GPT2ClassifierAdapter(DecoderAdapter, GPT2ArchitectureAdapter):
    """`GPT2ForSequenceClassification`."""

    paths = ("transformer.h", "attn.c_proj", "mlp.c_proj")


class LlamaClassifierAdapter(DecoderAdapter, LlamaArchitectureAdapter):
    """`LlamaForSequenceClassification`."""


class Qwen2ClassifierAdapter(DecoderAdapter, Qwen2ArchitectureAdapter):
    """`Qwen2ForSequenceClassification`."""


LANGUAGE_MODELS = ("GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM")
"""HF's causal language models that are supported; TransformerLens maps them itself."""

ADAPTERS: dict[str, type[EncoderAdapter] | type[DecoderAdapter]] = {}
"""HF class name -> adapter, for all supported architectures."""


def register_architecture(name: str, adapter: type[EncoderAdapter] | type[DecoderAdapter]) -> None:
    """Let `load_model` take HF's class `name` (`BertForSequenceClassification`), mapped by `adapter`."""
    ADAPTERS[name] = adapter
    ArchitectureAdapterFactory.register_adapter(name, adapter)


for _name, _adapter in {
    "Bert": BertClassifierAdapter,
    "Roberta": RobertaClassifierAdapter,
    "DistilBert": DistilBertClassifierAdapter,
    "Electra": ElectraClassifierAdapter,
    "GPT2": GPT2ClassifierAdapter,
    "Llama": LlamaClassifierAdapter,
    "Qwen2": Qwen2ClassifierAdapter,
}.items():
    register_architecture(f"{_name}ForSequenceClassification", _adapter)
