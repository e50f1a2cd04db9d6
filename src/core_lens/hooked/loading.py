"""From a hub id, a folder or an HF object to a frozen, hooked model with its tokenizer: a classifier or a language model."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import huggingface_hub.utils
import torch
import transformers
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ..errors import ModelError
from .adapters import ADAPTERS, LANGUAGE_MODELS
from .info import (
    HookedModel,
    check_architecture,
    hash_weights,
    model_info,
    problem_type,
    read_info,
    set_info,
)

Attention = Literal["sdpa", "eager"]
_HEADS = ("classifier", "pre_classifier", "score")
_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "fp32": torch.float32,
}


def load_model(
    model: str | Path | PreTrainedModel | TransformerBridge,
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    label_map: Mapping[int | str, str] | None = None,
    attention: Attention | None = None,
    allow_pickle: bool = False,
) -> TransformerBridge:
    """A fine-tuned classifier as a TransformerBridge: frozen, in eval mode, with hook points.

    Called like HF's model, `model(input_ids, attention_mask=...)`, it gives HF's logits [batch, label].

    Args:
        model: `lab` or `lab-gpt2` (they come with the package), a hub id, a folder that `save_pretrained` wrote,
            HF's `*ForSequenceClassification` (copied, never changed), or a hooked model. The latter is returned
            itself: frozen, in eval mode, and with what the other arguments ask for changed in place.
        tokenizer: an HF tokenizer, or where to load it; None looks where the model came from.
        device: None for CUDA where there is one, else the CPU.
        dtype: `float32` (the default, however the weights are stored) or `bfloat16`, by name or torch's.
        label_map: names for classes: index or present name -> name, for checkpoints that say LABEL_0.
        attention: `sdpa` (the default) or `eager`; only `eager` has attention patterns in every architecture.
        allow_pickle: read weights from PyTorch's pickle files too (with torch's restricted unpickler).

    Raises:
        ModelError: the model or its tokenizer cannot be found, loaded or hooked.
    """
    if attention not in (None, "sdpa", "eager"):
        raise ModelError(f"attention={attention!r}: choose 'sdpa' or 'eager'.")
    to_dtype = _dtype(dtype)
    to_device = pick_device(device)
    if isinstance(model, TransformerBridge):
        check_architecture(type(model.original_model).__name__)
        return _change(model, tokenizer, None if device is None else to_device, dtype, label_map, attention)

    if isinstance(model, str | Path):
        source = _Source(model)
        hf_model = _load(source, allow_pickle)
        model_id = source.name
        found = _tokenizer(source if tokenizer is None else tokenizer)
    else:
        if not isinstance(model, nn.Module):
            raise ModelError(f"{model!r} is no model: pass a hub id, a folder, HF's classifier or a hooked model.")
        check_architecture(type(model).__name__)
        hf_model, model_id = copy.deepcopy(model), type(model).__name__
        found = _tokenizer_of(model) if tokenizer is None else _tokenizer(tokenizer)

    bridge = _hook(hf_model, model_id, found, to_device, to_dtype, attention or "sdpa")
    info = model_info(bridge)
    set_info(bridge, replace(info, id2label=_rename(info.id2label, label_map)))
    return bridge


def load_pretrained(
    model: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> TransformerBridge:
    """A pretrained model, as it was before it became a classifier, for its activations: its logits mean nothing.

    Args:
        model: `lab-pretrained`, a hub id or a folder, with or without a language model's head; what a classifier's
            head needs beside it is random.
        tokenizer, device, dtype: as in `load_model`.

    Raises:
        ModelError: the model or its tokenizer cannot be found, loaded or hooked.
    """
    source = _Source(model)
    hf_model = _load(source, allow_pickle=False, with_head=False)
    found = _tokenizer(source if tokenizer is None else tokenizer)
    return _hook(hf_model, source.name, found, pick_device(device), _dtype(dtype), "sdpa")


def load_language_model(
    model: str | Path | PreTrainedModel | TransformerBridge,
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> TransformerBridge:
    """A causal language model as a TransformerBridge: frozen, in eval mode, with hook points.

    Called like HF's model, it gives HF's logits [batch, pos, token].

    Args:
        model: a hub id, a folder, `dyck` (it comes with the package), HF's model (copied, never changed), or a hooked one,
            which is returned itself: GPT-2, Llama or Qwen2.
        tokenizer: an HF tokenizer, or where to load it; None takes the model's own where it has one. A model that is
            given token ids needs none.
        device, dtype: as in `load_model`.

    Raises:
        ModelError: the model or its tokenizer cannot be found, loaded or hooked.
    """
    to_device, to_dtype = pick_device(device), _dtype(dtype)
    if isinstance(model, TransformerBridge):
        _check_language_model(type(model.original_model).__name__, "the model")
        return _change(model, tokenizer, None if device is None else to_device, dtype, None, None)
    if isinstance(model, str | Path):
        source = _Source(model)
        hf_model, name = _load(source, allow_pickle=False, language_model=True), source.name
        try:
            found = _tokenizer(source if tokenizer is None else tokenizer)
        except ModelError:
            if tokenizer is not None:
                raise
            found = None
    else:
        _check_language_model(type(model).__name__, "the model")
        hf_model, name = copy.deepcopy(model), type(model).__name__
        found = _tokenizer_of(model) if tokenizer is None else _tokenizer(tokenizer)
    return _hook(hf_model, name, found, to_device, to_dtype, "sdpa")


def _check_language_model(architecture: str | None, name: str) -> None:
    if architecture not in LANGUAGE_MODELS:
        raise ModelError(f"{name} is a {architecture}, no supported language model: pass {', '.join(LANGUAGE_MODELS)}.")


def _hook(
    hf_model: PreTrainedModel,
    model_id: str,
    tokenizer: PreTrainedTokenizerBase | None,
    device: torch.device,
    dtype: torch.dtype,
    attention: Attention,
) -> TransformerBridge:
    """Turn our copy of a model into a bridge."""
    weight_hash = hash_weights(hf_model, model_id)
    _prepare(hf_model, device, dtype, attention)
    _align(hf_model, tokenizer)
    bridge = build_bridge_from_module(hf_model, type(hf_model).__name__, hf_config=hf_model.config)
    bridge.__class__ = HookedModel
    _freeze(bridge)
    set_info(bridge, read_info(bridge, hf_model, model_id, weight_hash))
    _attach(bridge, tokenizer)
    return bridge


def shipped(name: str | Path) -> str | Path:
    """The folder of a model of the package (`lab`, `lab-gpt2`, `lab-pretrained`, `dyck`); any other name as it is."""
    if name == "dyck":
        return Path(__file__).parents[1] / "dyck" / "weights"
    if name in ("lab", "lab-gpt2", "lab-pretrained"):
        from ..lab import model_folder

        return model_folder(str(name))
    return name


class _Source:
    """A name the user gave: a folder if there is one, else a hub id."""

    def __init__(self, given: str | Path) -> None:
        name = shipped(given)
        self.path = Path(name).expanduser()
        self.local = self.path.is_dir() and bool(str(name).strip())
        self.text = str(self.path) if self.local else str(name)
        self.name = str(given) if name is not given else self.path.resolve().name if self.local else self.text
        if self.path.is_file():
            raise ModelError(f"{self.text} is a file: pass the folder that save_pretrained wrote.")
        # A hub id is `name` or `owner/name`.
        is_path = isinstance(name, Path) or self.text.startswith((".", "~", os.sep)) or self.text.count("/") > 1
        if not self.local and (is_path or not self.text.strip()):
            raise ModelError(f"there is no folder {self.text!r}: check the path, or pass a hub id.")

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn whatever HF raises into one sentence."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:  # HF, safetensors and the hub raise a dozen unrelated types
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            if self.local:
                message = f"{what} in {self.text} cannot be loaded ({reason}): save or download it again."
            else:
                message = (
                    f"{what} of {self.text!r} cannot be loaded from the hub ({reason}), and it is no local "
                    "folder: check the name, or pass a local folder where there is no network."
                )
            raise ModelError(message) from error


def _load(source: _Source, allow_pickle: bool, with_head: bool = True, language_model: bool = False) -> PreTrainedModel:
    """HF's model, its weights as they are stored; nothing of it newly initialised, unless it may lack a head."""
    options: dict[str, Any] = {"local_files_only": source.local, "trust_remote_code": False}
    if source.local and not (source.path / "config.json").is_file():
        raise ModelError(f"{source.text} has no config.json: pass the folder that save_pretrained wrote.")
    with _quiet(show_downloads=not source.local):
        with source.errors("the configuration"):
            config = AutoConfig.from_pretrained(source.text, **options)
        if language_model:
            known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
            _check_language_model((config.architectures or [known])[0], source.text)
        else:
            _check_config(config, source.text, with_head)
        if source.local and not allow_pickle and not list(source.path.glob("*.safetensors")):
            pickles = ", ".join(path.name for path in source.path.glob("*.bin"))
            raise ModelError(
                f"{source.text} has {pickles} but no safetensors weights: convert them, or pass allow_pickle="
                "True if you trust the file."
                if pickles
                else f"{source.text} has no weights (no *.safetensors): save or download the model again."
            )
        auto: Any = AutoModelForCausalLM if language_model else AutoModelForSequenceClassification
        with source.errors("the model"):
            hf_model, report = auto.from_pretrained(
                source.text,
                config=config,
                dtype="auto",
                use_safetensors=None if allow_pickle else True,
                output_loading_info=True,
                **options,
            )
    missing = sorted(report["missing_keys"])
    if not with_head:
        missing = [key for key in missing if key.split(".")[0] not in _HEADS and ".pooler." not in key]
    if any(key.split(".")[0] in _HEADS for key in missing):
        raise ModelError(f"{source.text} is pretrained, without a trained head: fine-tune it first.")
    if missing:
        raise ModelError(f"the weights of {source.text} lack {missing[0]}: save or download it again.")
    return hf_model


def _check_config(config: Any, name: str, with_head: bool = True) -> None:
    """Raise unless the configuration is of a supported classifier, or of what could become one."""
    if hasattr(config, "removed"):
        check_architecture(type(config).__name__)
    known = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(config.model_type)
    check_architecture(known or f"{name} (model type {config.model_type!r})")
    problem_type(config)
    saved = config.architectures or [known]
    if with_head and known not in saved:
        raise ModelError(
            f"{name} is a {saved[0]}, which has no trained head for classifying sequences: fine-tune it "
            f"first (core_lens.finetune), or pass one of {', '.join(ADAPTERS)}."
        )


def _tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the folder an HF object came from, or None: ids can be classified without."""
    name = getattr(model, "name_or_path", "") or getattr(model.config, "_name_or_path", "")
    if not name or not Path(name).is_dir():
        return None
    try:
        return _tokenizer(name)
    except ModelError:
        return None


def _tokenizer(given: _Source | str | Path | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer of our own: loaded, or a copy of the user's."""
    if isinstance(given, PreTrainedTokenizerBase):
        return copy.deepcopy(given)
    if not isinstance(given, _Source | str | Path):
        raise ModelError(f"tokenizer={given!r}: pass an HF tokenizer, a folder or a hub id.")
    source = given if isinstance(given, _Source) else _Source(given)
    with _quiet(), source.errors("the tokenizer"):
        found = AutoTokenizer.from_pretrained(source.text, local_files_only=source.local, trust_remote_code=False)
    # Without its files HF makes up a tokenizer that knows special tokens only.
    if len(found) <= len(set(found.all_special_ids)):
        raise ModelError(f"{source.text} has no tokenizer: pass tokenizer= (an HF tokenizer, or its folder).")
    return found


def _prepare(model: PreTrainedModel, device: torch.device, dtype: torch.dtype, attention: Attention) -> None:
    """Bring our copy of the model into the state that hooking needs."""
    with _quiet():
        model.set_attn_implementation(attention)
    _cast(model, dtype)
    model.to(device)  # pyright: ignore[reportArgumentType]
    model.eval()
    model.config.use_cache = False


def _align(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Make our copies of model and tokenizer agree on padding, token types and length.

    Raises:
        ModelError: the tokenizer belongs to another model, or there is nothing to pad with.
    """
    config, adapter = model.config, ADAPTERS.get(type(model).__name__)
    if adapter is not None and adapter.is_causal:
        # HF's decoders classify at the last token that is not config.pad_token_id: both must agree on it.
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id) if tokenizer else (config.eos_token_id,)
        known = [i for i in (_pad_id(config), *ids) if isinstance(i, int)]
        if tokenizer:
            known = [i for i in known if tokenizer.convert_ids_to_tokens(i) is not None]
        pad = next(iter(known), None)
        if tokenizer and pad is None:
            raise ModelError("model and tokenizer have no padding or end token: set tokenizer.pad_token.")
        config.pad_token_id = pad
        if tokenizer:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(cast(int, pad))
    if tokenizer is None:
        return
    n_tokens, n_vectors = max(tokenizer.get_vocab().values()) + 1, config.vocab_size
    if n_tokens > n_vectors:
        raise ModelError(
            f"the tokenizer has {n_tokens} tokens, the model vectors for {n_vectors}: pass the tokenizer "
            "that the model was fine-tuned with."
        )
    if adapter is None or not adapter.reads_token_types:
        tokenizer.model_input_names = [n for n in tokenizer.model_input_names if n != "token_type_ids"]
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None:
        # RoBERTa's positions start behind the padding's.
        embedding = next((m for n, m in model.named_modules() if n.endswith("position_embeddings")), None)
        reserved = getattr(embedding, "padding_idx", None)
        longest -= 0 if reserved is None else reserved + 1
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest)


def _pad_id(config: Any) -> int | None:
    """The configuration's padding token; some say -1 for none."""
    return config.pad_token_id if config.pad_token_id is not None and config.pad_token_id >= 0 else None


def _attach(bridge: TransformerBridge, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Give the bridge its tokenizer, so that text passed to it is read exactly as HF reads it.

    TransformerLens' own setup would replace the tokenizer by one that adds a beginning-of-sequence token.
    """
    if tokenizer is None:
        return
    cfg = cast(Any, bridge.cfg)
    bridge._tokenizer = None
    bridge.tokenizer = tokenizer
    first = tokenizer("a")["input_ids"][:1]
    starts = bool(first) and first[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id)
    cfg.tokenizer_prepends_bos = cfg.default_prepend_bos = starts
    cfg.tokenizer_appends_eos = False  # says "do not strip it"


def _change(
    bridge: TransformerBridge,
    tokenizer: Any,
    device: torch.device | None,
    dtype: str | torch.dtype | None,
    label_map: Mapping[int | str, str] | None,
    attention: Attention | None,
) -> TransformerBridge:
    info = model_info(bridge)
    set_info(bridge, replace(info, id2label=_rename(info.id2label, label_map)))
    original = cast(PreTrainedModel, bridge.original_model)
    if device is not None and device != info.device:
        bridge.to(device, print_details=False)
    if dtype is not None and _dtype(dtype) != info.dtype:
        _cast(original, _dtype(dtype))
        cast(Any, bridge.cfg).dtype = _dtype(dtype)
    if attention is not None:
        original.set_attn_implementation(attention)
    if tokenizer is not None:
        found = _tokenizer(tokenizer)
        _align(original, found)
        _attach(bridge, found)
    _freeze(bridge)
    return bridge


def _freeze(bridge: TransformerBridge) -> None:
    # After building: the bridge makes fresh q, k and v parameters for GPT-2.
    bridge.original_model.requires_grad_(False)
    bridge.requires_grad_(False)
    bridge.eval()


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert parameters only: rotary frequencies are buffers, and lose their meaning in bfloat16."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _rename(id2label: Mapping[int, str], label_map: Mapping[int | str, str] | None) -> dict[int, str]:
    """`id2label` with the user's names."""
    index = {name: i for i, name in id2label.items()}
    names = dict(id2label)
    for key, name in (label_map or {}).items():
        place = index.get(key) if isinstance(key, str) else key
        if place not in names:
            raise ModelError(f"label_map names a class {key!r}, the model has {dict(id2label)}: use one of these.")
        names[place] = name
    if len(set(names.values())) < len(names):
        raise ModelError(f"label_map gives two classes one name ({names}): name each differently.")
    return names


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float32
    named = _DTYPES.get(str(dtype).removeprefix("torch."))
    if named is None:
        raise ModelError(f"dtype={dtype!r}: choose 'float32' or 'bfloat16'.")
    return named


def pick_device(device: str | torch.device | None) -> torch.device:
    """The device of this name; by default the best there is."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ModelError(f"device={str(device)!r} is not available: pass 'cpu', or None to choose.") from error
    return found


@contextmanager
def _quiet(show_downloads: bool = False) -> Iterator[None]:
    """Silence HF's loading bars and reports; what they say and matters is raised as an error instead."""
    log = transformers.utils.logging
    hub = huggingface_hub.utils
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    hub_verbosity, hub_bars = hub.logging.get_verbosity(), not hub.are_progress_bars_disabled()
    log.set_verbosity_error()
    hub.logging.set_verbosity_error()
    log.disable_progress_bar()  # the hub's too
    if show_downloads and hub_bars:
        hub.enable_progress_bars()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        hub.logging.set_verbosity(hub_verbosity)
        if bars:
            log.enable_progress_bar()
        if not hub_bars:
            hub.disable_progress_bars()
