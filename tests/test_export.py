"""Exported subnetworks: HF models that are smaller, say the same, and come back from disk as they were."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from builders import frame, hooked, means_of
from core_lens import Component, CoreLensError, Subnetwork, ZeroActivations, find_core, load_model, model_info
from core_lens.cli import main
from core_lens.errors import ModelError
from core_lens.hooked import batches, component_set, encode, logits
from core_lens.tasks import Split

EXPORTABLE = ("bert", "roberta", "distilbert", "electra", "gpt2")
# Some heads of a layer, all of one, an MLP, and a layer that is left whole.
REMOVED = ("L0.H1", "L0.H3", "L1.H0", "L1.H1", "L1.H2", "L1.H3", "L1.MLP")


def subnetwork(model, removed=REMOVED, replacement=None):
    units = component_set(model)
    mask = ~units.mask([Component.parse(name) for name in removed])
    return Subnetwork(units, mask, replacement or means_of(model))


def padded(model):
    encoded = encode(Split("dev", "id", frame(12, 5)), model.tokenizer)
    return [inputs for _, inputs in batches(encoded, 4)]


@pytest.mark.parametrize("arch", EXPORTABLE)
@pytest.mark.parametrize("removed", [REMOVED, REMOVED[:2], REMOVED[-1:], ()])
def test_an_exported_subnetwork_says_what_the_gated_model_says(arch, removed, tmp_path):
    model = hooked(arch, n_heads=4, n_layers=3)
    ours = subnetwork(model, removed)
    smaller = ours.export(model)
    smaller.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(again) is type(smaller) and again.config.removed == sorted(removed, key=Component.parse)
    for inputs in padded(model):
        assert (inputs["attention_mask"] == 0).any() or inputs["input_ids"].shape[0] == 1
        with torch.no_grad():
            with ours.apply(model):
                gated = logits(model, inputs)
            torch.testing.assert_close(smaller(**inputs).logits, gated, atol=1e-5, rtol=0)
            torch.testing.assert_close(again(**inputs).logits, smaller(**inputs).logits, atol=0, rtol=0)
            if removed:
                assert (gated - logits(model, inputs)).abs().max() > 1e-3


def test_what_is_removed_is_gone():
    """Counted by hand: a head of width 4 in d_model 16 has 3 x (16 x 4 + 4) + 4 x 16 parameters, an MLP 2 x 16 x 64 + 64."""
    model = hooked("bert", n_heads=4, n_layers=3)
    whole = sum(p.numel() for p in subnetwork(model, ()).export(model).parameters())
    smaller = subnetwork(model).export(model)
    assert whole - sum(p.numel() for p in smaller.parameters()) == 6 * (3 * (16 * 4 + 4) + 4 * 16) + 2 * 16 * 64 + 64
    assert smaller.bert.encoder.layer[0].attention.self.query.out_features == 8
    assert not list(smaller.bert.encoder.layer[1].attention.self.parameters())


def test_zero_ablation_and_bfloat16():
    model = load_model(hooked("gpt2", n_heads=4, n_layers=3), dtype="bfloat16")
    ours = subnetwork(model, replacement=ZeroActivations(model_info(model).weight_hash))
    smaller = ours.export(model)
    assert next(smaller.parameters()).dtype == torch.bfloat16
    inputs = padded(model)[0]
    with torch.no_grad(), ours.apply(model):
        torch.testing.assert_close(smaller(**inputs).logits, logits(model, inputs), atol=0.1, rtol=0.05)


def test_the_model_stays_as_it_was_and_the_copy_is_its_own():
    model = hooked("bert", n_heads=4, n_layers=3)
    inputs = padded(model)[0]
    before = logits(model, inputs)
    smaller = subnetwork(model).export(model)
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.zero_()
    assert torch.equal(before, logits(model, inputs))


def test_what_cannot_be_exported_is_named():
    with pytest.raises(ModelError, match="Llama.*cannot be exported: this works for Bert"):
        model = hooked("llama")
        subnetwork(model, ("L0.H0",)).export(model)
    model = hooked("bert", n_heads=4, n_layers=3)
    with pytest.raises(ModelError, match="other weights"):
        subnetwork(model).export(hooked("bert", n_heads=4, n_layers=3, seed=1))


def test_an_exported_model_is_no_model_to_hook(tmp_path):
    model = hooked("bert", n_heads=4, n_layers=3)
    smaller = subnetwork(model).export(model)
    with pytest.raises(CoreLensError, match="exported subnetwork.*full model"):
        load_model(smaller, tokenizer=model.tokenizer)
    smaller.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CoreLensError, match="exported subnetwork.*full model"):
        load_model(tmp_path)


def test_the_command_writes_a_folder_that_another_process_reads(tmp_path, capsys):
    run, folder = tmp_path / "run", tmp_path / "smaller"
    core = find_core("lab", "lab", [0.4, 0.5], [1], "random", out=run, splits="dev", max_examples=10, mean_examples=64)
    given = ["export", str(run), "--seed", "1"]
    assert main([*given, "--out", str(folder)]) == 1
    assert "has 2 subnetworks of seed 1: choose one of 0.4-seed1, 0.5-seed1" in capsys.readouterr().err
    assert main([*given, "--sparsity", "0.5", "--out", str(folder)]) == 0
    assert "without 18 of 36 heads and MLPs" in capsys.readouterr().out
    assert main([*given, "--sparsity", "0.5", "--out", str(folder)]) == 1
    assert "is not empty" in capsys.readouterr().err
    code = f"""
import core_lens, transformers
classify = transformers.pipeline("text-classification", {str(folder)!r}, device="cpu")
print(classify({{"text": "the doctor saw the lawyer .", "text_pair": "the lawyer saw the doctor ."}}))
print(transformers.AutoConfig.from_pretrained({str(folder)!r}).removed)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "score" in out and str([str(c) for c in core.at(0.5)[0].removed]) in out


@pytest.mark.parametrize("arch", [*EXPORTABLE, "llama"])
def test_a_predictor_says_what_the_gated_model_says_in_the_models_own_memory(arch):
    model = hooked(arch, n_heads=4, n_layers=3)
    ours = subnetwork(model)
    before = {name: value.clone() for name, value in model.original_model.state_dict().items()}
    for inputs in padded(model):
        rows = torch.arange(len(inputs["input_ids"]))
        with torch.no_grad():
            with ours.apply(model):
                gated = logits(model, inputs)
            with ours.predictor(model) as predict:
                torch.testing.assert_close(predict(inputs, rows), gated, atol=1e-5, rtol=0)
    for name, value in model.original_model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_predictor_runs_a_smaller_model_on_the_same_weights_only_where_no_hook_would_be_missed():
    model = hooked("bert", n_heads=4, n_layers=3)
    ours, (inputs, *_) = subnetwork(model), padded(model)
    rows = torch.arange(len(inputs["input_ids"]))
    calls = []
    forward = model.original_model.forward
    model.original_model.forward = lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
    word, position = "embeddings.word_embeddings.weight", "embeddings.position_ids"
    shared = ours._without(model, share=True).bert
    own = {name.replace("._original_component", ""): t for name, t in model.original_model.bert.state_dict().items()}
    assert shared.get_parameter(word).data_ptr() == own[word].data_ptr()
    assert torch.equal(shared.get_buffer(position), torch.arange(shared.config.max_position_embeddings)[None])
    with torch.no_grad():
        with ours.predictor(model) as predict:
            idle = predict(inputs, rows)
        assert not calls

        # Head 2 of layer 0 is kept: a hook that changes it must be felt, and the bridge's own hooks must not count as one.
        def double(z, hook):
            z[:, :, 2] *= 2
            return z

        with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", double)]), ours.predictor(model) as predict:
            changed = predict(inputs, rows)
        assert calls and (changed - idle).abs().max() > 1e-4
        calls.clear()
        handle = model.original_model.get_submodule("classifier").register_forward_hook(lambda *_: None)
        with ours.predictor(model) as predict:
            predict(inputs, rows)
        assert calls
        handle.remove()
        calls.clear()
        with ours.predictor(model) as predict:
            torch.testing.assert_close(predict(inputs, rows), idle, atol=0, rtol=0)
        assert not calls
