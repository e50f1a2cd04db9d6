"""Hooked classifiers: HF's logits, TransformerLens' hook points, and the user's model left alone."""

from __future__ import annotations

import copy
import hashlib
import re
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import (
    BertForMaskedLM,
    BertForTokenClassification,
    BertModel,
    GPT2LMHeadModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from core_lens.errors import ModelError
from core_lens.hooked import (
    ADAPTERS,
    component_set,
    hook_name,
    hook_names,
    load_model,
    logits,
    model_info,
)
from core_lens.hooked.adapters import RobertaClassifierAdapter, register_architecture
from tiny_models import ARCHITECTURES, DECODERS, LABELS, class_name, tiny_config, tiny_model, tiny_tokenizer

ENCODERS = tuple(arch for arch in ARCHITECTURES if arch not in DECODERS)


def a_batch(arch: str, side: str, token_types: bool = False, lengths: tuple[int, ...] = (9, 5, 7)) -> dict[str, Tensor]:
    """Random token ids, padded on one side."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((len(lengths), max(lengths)), 1 if arch == "roberta" else 0)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(lengths):
        where = slice(0, n) if side == "right" else slice(max(lengths) - n, None)
        ids[row, where] = torch.randint(5, 60, (n,), generator=generator)
        mask[row, where] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if token_types:
        kinds = 1 if arch == "roberta" else 2  # RoBERTa knows one token type
        inputs["token_type_ids"] = torch.randint(0, kinds, ids.shape, generator=generator) * mask
    return inputs


def by_hf(model, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def by_us(model: TransformerBridge, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return logits(model, inputs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_equal_hfs_on_the_same_call(arch, attention):
    hf_model = tiny_model(arch)
    model = load_model(hf_model, device="cpu", attention=attention)
    assert isinstance(model, TransformerBridge)
    for side in ("right", "left"):
        for token_types in (False, True):
            inputs = a_batch(arch, side, token_types)
            expected = by_hf(hf_model, inputs)
            assert expected.std() > 0.1  # the logits say something
            torch.testing.assert_close(by_us(model, inputs), expected, atol=1e-5, rtol=0)
    single = a_batch(arch, "right", lengths=(6,))
    torch.testing.assert_close(by_us(model, single), by_hf(hf_model, single), atol=1e-5, rtol=0)
    bare = {"input_ids": a_batch(arch, "right", lengths=(8, 8))["input_ids"]}
    torch.testing.assert_close(by_us(model, bare), by_hf(hf_model, bare), atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", ["bert", "distilbert", "electra", "gpt2"])
def test_left_padding_would_go_wrong_without_our_bridge(arch):
    """The premise of HookedModel: TransformerLens' own positions give other logits on the same call."""
    hf_model = tiny_model(arch)
    model = load_model(hf_model, device="cpu")
    inputs = a_batch(arch, "left")
    model.__class__ = TransformerBridge
    assert (by_us(model, inputs) - by_hf(hf_model, inputs)).abs().max() > 1e-2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_users_model_is_unchanged(arch, tmp_path):
    hf_model = tiny_model(arch)
    hf_model.train()
    next(hf_model.parameters()).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in hf_model.state_dict().items()}
    grads = [p.requires_grad for p in hf_model.parameters()]
    config = hf_model.config.to_dict()
    attention = hf_model.config._attn_implementation
    tokenizer = tiny_tokenizer(arch)
    tokenizer_state = (tokenizer.pad_token, tokenizer.model_max_length, list(tokenizer.model_input_names))

    model = load_model(hf_model, tokenizer, device="cpu", dtype="bf16", attention="eager")
    by_us(model, a_batch(arch, "right"))

    after = hf_model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) and after[name].dtype == before[name].dtype for name in before)
    assert hf_model.training and [p.requires_grad for p in hf_model.parameters()] == grads
    assert hf_model.config.to_dict() == config and hf_model.config._attn_implementation == attention
    assert (
        tokenizer.pad_token,
        tokenizer.model_max_length,
        list(tokenizer.model_input_names),
    ) == tokenizer_state
    hf_model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_parameter_is_frozen_and_the_model_in_eval_mode(arch):
    hf_model = tiny_model(arch)
    hf_model.train()
    model = load_model(hf_model, device="cpu")
    parameters = [*model.parameters(), *model.original_model.parameters()]
    parameters += [p for module in model.modules() for p in module.parameters()]
    assert parameters and not any(p.requires_grad for p in parameters)
    assert not model.training and not any(m.training for m in model.original_model.modules())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_hook_points_fire_are_writable_and_carry_gradients(arch, attention):
    model = load_model(tiny_model(arch, n_heads=4), device="cpu", attention=attention)
    inputs = a_batch(arch, "right")
    names = hook_names(model)
    assert names["head"] == ("blocks.0.attn.hook_z", "blocks.1.attn.hook_z")
    assert names["mlp"] == ("blocks.0.hook_mlp_out", "blocks.1.hook_mlp_out")
    full = by_us(model, inputs)
    shapes = {"head": (3, 9, 4, 4), "mlp": (3, 9, 16)}  # in Llama and Qwen2 two heads share a key
    seen: list[tuple[int, ...]] = []

    def scaled(name: str, scale: Tensor) -> Tensor:
        def gate(x, hook):
            seen.append(tuple(x.shape))
            return x * scale

        with model.hooks(fwd_hooks=[(name, gate)]):
            return logits(model, inputs)

    def size(name: str, scale: float) -> float:
        with torch.no_grad():
            return float(scaled(name, torch.tensor(scale)).double().square().sum())

    for kind in ("head", "mlp"):
        for name in names[kind]:
            scale = torch.tensor(1.0, requires_grad=True)
            output = scaled(name, scale)
            torch.testing.assert_close(output.detach(), full, atol=1e-5, rtol=0)
            (gradient,) = torch.autograd.grad(output.square().sum(), scale)
            slope = (size(name, 1.001) - size(name, 0.999)) / 0.002
            assert abs(slope) > 1e-2
            assert float(gradient) == pytest.approx(slope, rel=2e-2, abs=2e-3)
            assert seen == [shapes[kind]] * 3
            seen.clear()
    torch.testing.assert_close(by_us(model, inputs), full)  # no hook stays


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ablating_one_head_subtracts_its_contribution(arch):
    """Subtracting a head's contribution behind the output projection is what editing hook_z does."""
    hf_model = tiny_model(arch, n_heads=4)
    model = load_model(hf_model, device="cpu")
    inputs = a_batch(arch, "right")
    mean = torch.arange(4.0)

    def ablate(z, hook):
        z = z.clone()
        z[:, :, 1] = mean
        return z

    with model.hooks(fwd_hooks=[(hook_name("head", 1), ablate)]):
        ours = by_us(model, inputs)

    path = {
        "distilbert": "distilbert.transformer.layer.1.attention.out_lin",
        "gpt2": "transformer.h.1.attn.c_proj",
    }
    path |= dict.fromkeys(("llama", "qwen2"), "model.layers.1.self_attn.o_proj")
    project = hf_model.get_submodule(path.get(arch, f"{arch}.encoder.layer.1.attention.output.dense"))
    weight = project.weight if arch == "gpt2" else project.weight.T  # [head * d_head, d_model]

    def by_hand(module, args, output):
        z = args[0][..., 4:8]
        return output - (z - mean) @ weight[4:8]

    handle = project.register_forward_hook(by_hand)
    expected = by_hf(hf_model, inputs)
    handle.remove()
    assert (expected - by_hf(hf_model, inputs)).abs().max() > 1e-2
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_mlp_hook_is_the_mlps_output_before_the_residual_add(arch):
    hf_model = tiny_model(arch)
    model = load_model(hf_model, device="cpu")
    inputs = a_batch(arch, "right")
    path = {"distilbert": "distilbert.transformer.layer.0.ffn", "gpt2": "transformer.h.0.mlp"}
    path |= dict.fromkeys(("llama", "qwen2"), "model.layers.0.mlp")
    module = hf_model.get_submodule(path.get(arch, f"{arch}.encoder.layer.0.output.dense"))
    seen: list[Tensor] = []
    module.register_forward_hook(lambda m, args, output: seen.append(output))
    by_hf(hf_model, inputs)
    with torch.no_grad():
        _, cache = model.run_with_cache(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    torch.testing.assert_close(cache["blocks.0.hook_mlp_out"], seen[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_patterns_are_there_under_eager_and_the_classifier_has_one_name(arch):
    model = load_model(tiny_model(arch), device="cpu", attention="eager")
    inputs = a_batch(arch, "right")
    with torch.no_grad():
        output, cache = model.run_with_cache(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert pattern.shape == (3, 2, 9, 9)
    torch.testing.assert_close(
        pattern.sum(-1)[inputs["attention_mask"].bool()[:, None].expand(3, 2, 9)], torch.ones(42)
    )
    scores = cache["classifier.hook_out"]
    if arch in DECODERS:
        scores = torch.stack([row[n - 1] for row, n in zip(scores, inputs["attention_mask"].sum(1), strict=True)])
    torch.testing.assert_close(scores, output)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_bfloat16_runs_through_hooks(arch):
    hf_model = tiny_model(arch)
    model = load_model(hf_model, device="cpu", dtype=torch.bfloat16)
    inputs = a_batch(arch, "right")
    kinds = set()
    hooks = [(name, lambda x, hook: kinds.add(x.dtype)) for names in hook_names(model).values() for name in names]
    with model.hooks(fwd_hooks=hooks):
        output = by_us(model, inputs)
    assert output.dtype == torch.bfloat16 and kinds == {torch.bfloat16}
    assert model_info(model).dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: logits of size 1-2 agree to a few hundredths through two layers
    torch.testing.assert_close(output.float(), by_hf(hf_model, inputs), atol=0.1, rtol=0.05)
    # the hash is that of the stored weights
    assert model_info(model).weight_hash == model_info(load_model(hf_model)).weight_hash


@pytest.mark.parametrize("arch", DECODERS)
@pytest.mark.parametrize("tokenizer_pad", ["none", "eos", "pad"])
def test_a_decoder_without_padding_token_gets_one(arch, tokenizer_pad):
    """HF refuses batches then; each row must equal HF's answer on the row alone."""
    hf_model = tiny_model(arch)
    hf_model.config.pad_token_id = None
    tokenizer = tiny_tokenizer(arch)
    tokenizer.pad_token = {"none": None, "eos": "</s>", "pad": "[PAD]"}[tokenizer_pad]
    expected_pad = {"none": 3, "eos": 3, "pad": 0}[tokenizer_pad]
    rows = [torch.randint(5, 40, (n,), generator=torch.Generator().manual_seed(n)) for n in (4, 8, 6)]
    with pytest.raises(ValueError, match="batch sizes > 1"):
        hf_model(torch.stack([rows[0], rows[0]]))
    model = load_model(hf_model, tokenizer, device="cpu")
    assert model.tokenizer.pad_token_id == model.original_model.config.pad_token_id == expected_pad
    assert hf_model.config.pad_token_id is None
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=expected_pad)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.tensor([[1] * len(r) + [0] * (8 - len(r)) for r in rows]),
    }
    expected = torch.cat([by_hf(hf_model, {"input_ids": row[None]}) for row in rows])
    torch.testing.assert_close(by_us(model, inputs), expected, atol=1e-5, rtol=0)


def test_a_padding_token_that_the_tokenizer_lacks_is_replaced():
    hf_model = tiny_model("gpt2")
    hf_model.config.pad_token_id = 63  # the tokenizer has fewer
    model = load_model(hf_model, tiny_tokenizer("gpt2"), device="cpu")
    assert model.original_model.config.pad_token_id == model.tokenizer.pad_token_id == 0


def test_a_decoder_without_tokenizer_pads_with_its_end_token():
    hf_model = tiny_model("gpt2")
    hf_model.config.pad_token_id = None
    assert load_model(hf_model, device="cpu").original_model.config.pad_token_id == 3


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_text_is_read_as_the_tokenizer_reads_it(arch):
    tokenizer = tiny_tokenizer(arch)
    model = load_model(tiny_model(arch), tokenizer, device="cpu")
    with torch.no_grad():
        by_text = model("the doctor saw the actor")
    ids = torch.tensor([tokenizer("the doctor saw the actor")["input_ids"]])
    torch.testing.assert_close(by_text, by_us(model, {"input_ids": ids}))


def test_info_describes_the_model():
    hf_model = tiny_model("llama", n_layers=3, n_heads=4)
    model = load_model(hf_model, device="cpu")
    info = model_info(model)
    assert (info.model_id, info.architecture) == (
        "LlamaForSequenceClassification",
        "LlamaForSequenceClassification",
    )
    assert (info.n_layers, info.n_heads, info.d_head, info.d_model) == (3, 4, 4, 16)
    assert info.id2label == dict(enumerate(LABELS)) and info.num_labels == 3
    assert info.problem_type == "single_label_classification" and not info.is_regression and info.is_decoder
    assert (info.dtype, info.device) == (torch.float32, torch.device("cpu"))
    digest = hashlib.sha256()
    for name, tensor in sorted(hf_model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    assert info.weight_hash == digest.hexdigest()
    assert len(component_set(model)) == 3 * 4 + 3 and len(component_set(model, ["head"])) == 12
    assert model_info(copy.deepcopy(model)) == info
    assert not model_info(load_model(tiny_model("bert"), device="cpu")).is_decoder
    assert model_info(load_model(tiny_model("bert", n_labels=1), device="cpu")).is_regression


def test_one_changed_weight_changes_the_hash():
    hf_model = tiny_model("bert")
    first = model_info(load_model(hf_model)).weight_hash
    with torch.no_grad():
        hf_model.bert.encoder.layer[1].output.dense.bias[3] += 1e-6
    assert model_info(load_model(hf_model)).weight_hash != first


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_folder_loads_in_float32_without_network(arch, stored, tmp_path, monkeypatch, capfd):
    hf_model = tiny_model(arch).to(stored)
    folder = tmp_path / "my-model"
    hf_model.save_pretrained(folder)
    tiny_tokenizer(arch).save_pretrained(folder)
    capfd.readouterr()

    def no_network(*args, **kwargs):
        raise AssertionError(f"network call {args}")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    model = load_model(str(folder), device="cpu")
    info = model_info(model)
    assert info.model_id == "my-model" and info.dtype == torch.float32
    assert info.weight_hash == model_info(load_model(hf_model, device="cpu")).weight_hash
    assert model.tokenizer.convert_tokens_to_ids("doctor") == tiny_tokenizer(arch).convert_tokens_to_ids("doctor")
    inputs = a_batch(arch, "left")
    assert capfd.readouterr() == ("", "")  # no bars, no reports
    reference = type(hf_model).from_pretrained(folder, dtype=torch.float32).eval()
    torch.testing.assert_close(by_us(model, inputs), by_hf(reference, inputs), atol=1e-5, rtol=0)


def test_an_hf_model_finds_its_tokenizer_in_the_folder_it_came_from(tmp_path):
    tiny_model("bert").save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    hf_model = type(tiny_model("bert")).from_pretrained(tmp_path)
    assert load_model(hf_model, device="cpu").tokenizer is not None
    assert load_model(tiny_model("bert"), device="cpu").tokenizer is None
    assert load_model(tiny_model("bert"), tmp_path, device="cpu").tokenizer is not None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    assert load_model(hf_model, device="cpu").tokenizer is None


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_dropout_comes_back_when_asked_for(arch):
    hf_model = tiny_model(arch)
    if arch in ("llama", "qwen2"):
        hf_model.config.attention_dropout = 0.2
        for module in hf_model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.2
    model = load_model(hf_model, device="cpu")
    inputs = a_batch(arch, "right")
    assert torch.equal(by_us(model, inputs), by_us(model, inputs))
    before = by_us(model, inputs)
    model.train()
    assert not torch.equal(by_us(model, inputs), by_us(model, inputs))
    model.eval()
    assert torch.equal(by_us(model, inputs), before)


def test_a_hooked_model_is_returned_itself_and_changed_where_asked():
    hf_model = tiny_model("bert")
    model = load_model(hf_model, tiny_tokenizer("bert"), device="cpu")
    inputs = a_batch("bert", "right")
    before = model_info(model)
    assert load_model(model) is model and model_info(model) == before
    assert load_model(model, label_map={"neutral": "maybe", 0: "yes"}, attention="eager", dtype="bf16") is model
    assert model_info(model).id2label == {0: "yes", 1: "maybe", 2: "contradiction"}
    assert model_info(model).dtype == torch.bfloat16 == by_us(model, inputs).dtype
    assert model_info(model).weight_hash == before.weight_hash
    with torch.no_grad():
        _, cache = model.run_with_cache(inputs["input_ids"])
    assert "blocks.0.attn.hook_pattern" in cache


@pytest.mark.parametrize("arch", ["roberta", "gpt2"])
def test_a_tokenizer_can_follow_later(arch):
    tokenizer = tiny_tokenizer(arch)
    if arch == "gpt2":
        tokenizer.pad_token = None
    at_once = load_model(tiny_model(arch), tokenizer, device="cpu").tokenizer
    later = load_model(load_model(tiny_model(arch), device="cpu"), tokenizer).tokenizer
    assert later.pad_token_id == at_once.pad_token_id == (1 if arch == "roberta" else 0)
    assert later.model_max_length == at_once.model_max_length == (38 if arch == "roberta" else 40)
    assert tokenizer.model_max_length > 40


def test_a_users_own_bridge_works_if_it_classifies():
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf_model = tiny_model("bert")
    own = build_bridge_from_module(copy.deepcopy(hf_model), class_name("bert"), hf_config=hf_model.config)
    assert load_model(own) is own and model_info(own).n_layers == 2
    assert not any(p.requires_grad for p in own.parameters())
    torch.testing.assert_close(by_us(own, a_batch("bert", "right")), by_hf(hf_model, a_batch("bert", "right")))
    language_model = GPT2LMHeadModel(tiny_config("gpt2"))
    own = build_bridge_from_module(language_model, "GPT2LMHeadModel", hf_config=language_model.config)
    with pytest.raises(ModelError, match="GPT2LMHeadModel is not supported"):
        load_model(own)


def test_an_architecture_is_added_by_one_adapter():
    """The example of docs/add-an-architecture.md."""

    class XLMRobertaClassifierAdapter(RobertaClassifierAdapter):
        """`XLMRobertaForSequenceClassification`."""

    name = "XLMRobertaForSequenceClassification"
    hf_model = XLMRobertaForSequenceClassification(
        XLMRobertaConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
    ).eval()
    with pytest.raises(ModelError, match=f"{name} is not supported"):
        load_model(hf_model)
    try:
        register_architecture(name, XLMRobertaClassifierAdapter)
        inputs = a_batch("roberta", "left")
        torch.testing.assert_close(by_us(load_model(hf_model, device="cpu"), inputs), by_hf(hf_model, inputs))
    finally:
        ADAPTERS.pop(name, None)


# --- bad input: one sentence each, naming the value and the way out ---


def refuse(match: str, *args, **kwargs) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(*args, **kwargs)
    message = str(caught.value)
    assert re.search(match, message), message
    assert "\n" not in message and message.endswith(".")
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("bert").save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("cls", [BertForMaskedLM, BertForTokenClassification, BertModel, GPT2LMHeadModel])
def test_other_heads_are_refused_with_the_list(cls, tmp_path):
    model = cls(tiny_config("gpt2" if cls is GPT2LMHeadModel else "bert"))
    message = refuse(cls.__name__, model)
    assert all(name in message for name in map(class_name, ARCHITECTURES))
    model.save_pretrained(tmp_path)
    refuse(f"{cls.__name__}.*fine-tune", tmp_path)


def test_no_model_at_all_is_refused():
    refuse("Linear is not supported", torch.nn.Linear(2, 2))
    refuse("None is no model", None)
    with pytest.raises(ModelError, match="load_model"):
        model_info(tiny_model("bert"))  # type: ignore[arg-type]


def test_unsupported_model_type_in_a_folder(tmp_path):
    from transformers import AlbertConfig, AlbertForSequenceClassification

    config = AlbertConfig(
        vocab_size=20,
        embedding_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    refuse("AlbertForSequenceClassification is not supported.*BertForSequenceClassification", tmp_path)


def test_a_pretrained_only_checkpoint_is_refused(tmp_path, capfd):
    model = BertModel(tiny_config("bert"))
    model.config.architectures = None
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(re.sub(r'"BertModel"', '"BertForSequenceClassification"', config))
    refuse("without a trained head: fine-tune", tmp_path)


def test_paths_and_ids(tmp_path, folder, monkeypatch):
    refuse("no folder './nowhere'", "./nowhere")
    refuse("no folder", tmp_path / "nowhere")
    refuse("is a file", folder / "config.json")
    (tmp_path / "empty").mkdir()
    refuse(r"empty has no config\.json", tmp_path / "empty")
    refuse("no folder ''", "")
    refuse("no folder", "a/b/c")

    def unreachable(*args, **kwargs):
        raise OSError("We couldn't connect to 'the hub' to load the files.\nCheck your connection.")

    monkeypatch.setattr("core_lens.hooked.loading.AutoConfig.from_pretrained", unreachable)
    refuse("'textattack/bert-mnli'.*couldn't connect.*local folder", "textattack/bert-mnli")


def test_damaged_folders(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refuse("the model in .* cannot be loaded", folder)
    weights.unlink()
    refuse("has no weights", folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    refuse("pytorch_model.bin.*allow_pickle=True", folder)
    refuse("cannot be loaded", folder, allow_pickle=True)
    (folder / "config.json").write_text("{")
    refuse("the configuration in .* cannot be loaded", folder)


def test_pickled_weights_load_only_when_allowed(folder):
    state = tiny_model("bert").state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    refuse("allow_pickle", folder)
    model = load_model(folder, device="cpu", allow_pickle=True)
    inputs = a_batch("bert", "right")
    torch.testing.assert_close(by_us(model, inputs), by_hf(tiny_model("bert"), inputs))


def test_missing_and_nan_weights(folder):
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    broken = {k: v for k, v in state.items() if k != "bert.encoder.layer.1.output.dense.weight"}
    save_file(broken, folder / "model.safetensors", metadata={"format": "pt"})
    refuse(r"lack bert\.encoder\.layer\.1\.output\.dense\.weight", folder)
    state["bert.pooler.dense.bias"][2] = float("nan")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    refuse(r"NaN or infinite weights at bert\.pooler\.dense\.bias", folder)
    state["bert.pooler.dense.bias"] = torch.zeros(3)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    refuse("the model in .* cannot be loaded", folder)


def test_tokenizers(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    refuse("tokenizer", folder)
    assert load_model(folder, tiny_tokenizer("bert"), device="cpu").tokenizer is not None
    refuse("no folder './nowhere'", folder, "./nowhere")
    refuse("tokenizer=7", folder, 7)
    refuse(r"70 tokens, the model vectors for 64", folder, tiny_tokenizer("bert", [f"w{i}" for i in range(65)]))


def test_options(folder):
    refuse("dtype='int8'", folder, dtype="int8")
    refuse("dtype=torch.float16", folder, dtype=torch.float16)
    refuse("device='tpu'", folder, device="tpu")
    refuse("attention='flash'", folder, attention="flash")
    refuse("label_map names a class 7", folder, label_map={7: "x"})
    refuse("label_map names a class 'LABEL_0'", folder, label_map={"LABEL_0": "x"})
    refuse("one name", folder, label_map={0: "neutral"})
    hf_model = tiny_model("bert")
    hf_model.config.problem_type = "multi_label_classification"
    refuse("multi_label_classification", hf_model)
    assert model_info(load_model(folder, device="cpu", label_map={1: "x"})).id2label[1] == "x"
