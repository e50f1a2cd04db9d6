"""Weights that are removed: by hand, and as the same function as ablating the components."""

import copy

import pytest
import torch

from builders import frame, means_of
from core_lens import CoreLensError, Subnetwork, WeightMask, ZeroActivations, load_model, model_info
from core_lens.errors import ModelError, SavedFileError
from core_lens.hooked import batches, encode, logits
from core_lens.magnitude import magnitude_mask
from core_lens.tasks import Split
from core_lens.weight_mask import encoder_weights, without_components
from tiny_models import tiny_model, tiny_tokenizer

REMOVED = ("L0.H1", "L1.H0", "L1.MLP")


def weights(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("arch", ["bert", "roberta", "distilbert", "electra", "gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_removed_components_are_ablated_components(arch, ablation):
    """The HF model without the weights says what the hooked model says with the components ablated."""
    hf, tokenizer = tiny_model(arch), tiny_tokenizer(arch)
    bridge = load_model(hf, tokenizer=tokenizer)
    means = ZeroActivations(model_info(bridge).weight_hash) if ablation == "zero" else means_of(bridge)
    keep = [f"L{i}.{part}" for i in range(2) for part in ("H0", "H1", "MLP") if f"L{i}.{part}" not in REMOVED]
    subnetwork = Subnetwork.of(bridge, keep, means)
    ours = copy.deepcopy(hf)
    if ablation == "mean" and arch in ("llama", "qwen2"):
        with pytest.raises(ModelError, match="no bias to put means in: use zero ablation"):
            without_components(ours, subnetwork)
        return
    mask = without_components(ours, subnetwork)
    mask.hold(ours)
    pruned = load_model(ours, tokenizer=tokenizer)
    encoded = encode(Split("x", "id", frame(12)), tokenizer)
    ((_, inputs),) = batches(encoded, 12)
    with torch.no_grad():
        full = logits(bridge, inputs)
        with subnetwork.apply(bridge):
            expected = logits(bridge, inputs)
        torch.testing.assert_close(logits(pruned, inputs), expected, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(full, expected, atol=1e-2)


def test_what_counts_as_an_encoder_weight():
    """Of 2 layers with d_model 16 and d_mlp 64: 4 * 16 * 16 + 2 * 16 * 64 each; GPT-2's Q, K and V are one matrix."""
    for arch, n_matrices in (("bert", 12), ("distilbert", 12), ("gpt2", 8)):
        found = encoder_weights(tiny_model(arch))
        assert len(found) == n_matrices and sum(p.numel() for p in found.values()) == 2 * (4 * 256 + 2 * 1024)
    assert sum(p.numel() for p in encoder_weights(tiny_model("llama")).values()) == 2 * (2 * 256 + 2 * 128 + 3 * 1024)


def test_the_users_model_is_left_alone_and_the_copy_is_pruned():
    model = tiny_model("bert")
    before = weights(model)
    mask = magnitude_mask(model, 0.4)
    pruned = mask.apply(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    for name, tensor in pruned.state_dict().items():
        expected = before[name] * mask.kept[name] if name in mask.kept else before[name]
        assert torch.equal(tensor, expected), name


def test_a_mask_of_another_shape_is_refused():
    mask = magnitude_mask(tiny_model("bert"), 0.4)
    for other in (tiny_model("bert", d_model=24), tiny_model("gpt2")):
        before = weights(other)
        with pytest.raises(ModelError, match="apply it to a model of the shape"):
            mask.hold(other)
        assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_saving_takes_a_bit_per_weight(tmp_path):
    model = tiny_model("bert")
    mask = magnitude_mask(model, 0.37)
    mask.save(tmp_path / "mask.safetensors")
    again = WeightMask.load(tmp_path / "mask.safetensors")
    assert mask.kept.keys() == again.kept.keys()
    assert all(torch.equal(mask.kept[name], again.kept[name]) for name in mask.kept)
    assert again.provenance == mask.provenance and again.n_kept == mask.n_kept
    n = sum(m.numel() for m in mask.kept.values())
    assert (tmp_path / "mask.safetensors").stat().st_size < n / 8 + 6_000
    data = bytearray((tmp_path / "mask.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "mask.safetensors").write_bytes(data)
    with pytest.raises(SavedFileError, match="damaged"):
        WeightMask.load(tmp_path / "mask.safetensors")


def test_a_subnetwork_of_another_shape_and_resampling_are_refused():
    bridge = load_model(tiny_model("bert"), tokenizer=tiny_tokenizer("bert"))
    subnetwork = Subnetwork.of(bridge, ["L0.H0"], means_of(bridge))
    with pytest.raises(CoreLensError, match="2 layers x 2 heads, the BertForSequenceClassification has 2 x 4"):
        without_components(tiny_model("bert", n_heads=4), subnetwork)
