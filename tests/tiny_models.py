"""Tiny random classifiers of every supported architecture and word-level tokenizers, made offline."""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

ARCHITECTURES = ("bert", "roberta", "distilbert", "electra", "gpt2", "llama", "qwen2")
DECODERS = ("gpt2", "llama", "qwen2")
WORDS = tuple(
    """the a doctor doctors lawyer lawyers actor judge near by saw thanked paid knew believed slept ran danced
    if since that who not all some red blue good bad film was is . ,""".split()  # noqa: SIM905
)
LABELS = ("entailment", "neutral", "contradiction")
_NAMES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
_NAMES |= {"gpt2": "GPT2", "llama": "Llama", "qwen2": "Qwen2"}


def class_name(arch: str) -> str:
    """`BertForSequenceClassification` for `bert`."""
    return f"{_NAMES[arch]}ForSequenceClassification"


def tiny_config(
    arch: str, n_layers: int = 2, n_heads: int = 2, d_model: int = 16, n_labels: int = 3, vocab: int = 64
) -> Any:
    """A configuration; RoBERTa's padding is token 1, everyone else's 0."""
    if arch == "distilbert":
        shape = {"n_layers": n_layers, "n_heads": n_heads, "dim": d_model, "hidden_dim": 4 * d_model}
    elif arch == "gpt2":
        shape = {"n_layer": n_layers, "n_head": n_heads, "n_embd": d_model}
    else:
        shape = {"num_hidden_layers": n_layers, "num_attention_heads": n_heads, "hidden_size": d_model}
        shape["intermediate_size"] = 4 * d_model
    if arch in ("llama", "qwen2"):
        shape["num_key_value_heads"] = max(1, n_heads // 2)  # grouped-query attention
    if arch == "electra":
        shape["embedding_size"] = d_model // 2  # as in electra-small: projected up to d_model
    if arch == "roberta":
        shape["type_vocab_size"] = 1
    length = "n_positions" if arch == "gpt2" else "max_position_embeddings"
    names = LABELS if n_labels == 3 else tuple(f"class {i}" for i in range(n_labels))
    pad = 1 if arch == "roberta" else 0
    return getattr(transformers, f"{_NAMES[arch]}Config")(
        vocab_size=vocab,
        pad_token_id=pad,
        bos_token_id=2,
        eos_token_id=3,
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
        **{length: 40},
        **shape,
    )


def tiny_model(
    arch: str,
    n_layers: int = 2,
    n_heads: int = 2,
    d_model: int = 16,
    n_labels: int = 3,
    seed: int = 0,
    vocab: int = 64,
) -> PreTrainedModel:
    """HF's `*ForSequenceClassification` with all parameters random.

    LayerNorms, biases, positions and token types too, so that a wrong one shows in the logits.
    """
    model = getattr(transformers, class_name(arch))(tiny_config(arch, n_layers, n_heads, d_model, n_labels, vocab))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = re.search(r"(norm|ln_|LayerNorm)[^.]*\.weight$", name) is not None
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.3 * noise)
    return model.eval()


def tiny_tokenizer(arch: str, words: tuple[str, ...] | list[str] = WORDS) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with `arch`'s special tokens: 0 pad (1 in RoBERTa), 2 start, 3 end or separator.

    Encoders frame a text as [CLS] a [SEP], a pair as [CLS] a [SEP] b [SEP]; decoders add nothing.
    """
    special = ["<unk>", "[PAD]"] if arch == "roberta" else ["[PAD]", "<unk>"]
    special += ["[CLS]", "[SEP]", "[MASK]"]
    if arch in DECODERS:
        special[2:4] = ["<s>", "</s>"]
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*special, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    names = {"unk_token": "<unk>", "pad_token": "[PAD]"}
    if arch in DECODERS:
        names |= {"bos_token": "<s>", "eos_token": "</s>"}
    else:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    inputs = ["input_ids", "attention_mask"]
    if arch in ("bert", "electra"):
        inputs.insert(1, "token_type_ids")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


def tiny_language_model(n_tokens: int = 12, length: int = 20, seed: int = 0) -> PreTrainedModel:
    """HF's `GPT2LMHeadModel`, 2 layers of 2 heads of 8 dimensions, all parameters random."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": n_tokens, "n_positions": length, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model
