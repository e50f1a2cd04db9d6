"""A subnetwork is exact, belongs to its model, and survives saving."""

import pytest
import torch

from builders import frame, hooked, means_of
from core_lens import Component, CoreLensError, Subnetwork, ZeroActivations
from core_lens.errors import ModelError, SavedFileError
from core_lens.hooked import batches, component_set, encode, logits, model_info
from core_lens.tasks import Split


def a_batch(model, n=5):
    ((_, inputs),) = batches(encode(Split("x", "train", frame(n, 9)), model.tokenizer), n)
    return inputs


def test_applying_it_equals_editing_the_weights_by_hand():
    """Mean-ablating L0.H1 and L1.MLP = no path through W_O or the output matrix, and their mean in the bias."""
    model = hooked()
    means = means_of(model)
    keep = [c for c in component_set(model) if str(c) not in ("L0.H1", "L1.MLP")]
    subnetwork = Subnetwork.of(model, keep, means)
    inputs = a_batch(model)
    with torch.no_grad(), subnetwork.apply(model):
        ours = logits(model, inputs)
    from tiny_models import tiny_model

    edited = tiny_model("bert")
    with torch.no_grad():
        out = edited.bert.encoder.layer[0].attention.output.dense
        out.bias += out.weight[:, 8:16] @ means.heads[0, 1]
        out.weight[:, 8:16] = 0
        mlp = edited.bert.encoder.layer[1].output.dense
        mlp.weight.zero_()
        mlp.bias.copy_(means.mlps[1])
    torch.testing.assert_close(ours, edited(**inputs).logits, atol=1e-5, rtol=0)


def test_what_it_says_of_itself():
    model = hooked()
    subnetwork = Subnetwork.of(model, ["L0.H1", "l1.mlp", Component(1, 0)], means_of(model))
    assert [str(c) for c in subnetwork.components] == ["L0.H1", "L1.H0", "L1.MLP"]
    assert [str(c) for c in subnetwork.removed] == ["L0.H0", "L0.MLP", "L1.H1"]
    assert [str(c) for c in subnetwork.heads] == ["L0.H1", "L1.H0"]
    assert subnetwork.sparsity == 0.5
    only_heads = Subnetwork.of(model, ["L0.H1"], means_of(model), kinds=("head",))
    assert only_heads.sparsity == 0.75 and len(only_heads.removed) == 3


def test_absent_means_raise_and_zero_is_asked_for_by_name():
    model = hooked()
    with pytest.raises(CoreLensError, match="fit_means, or ZeroActivations"):
        Subnetwork.of(model, ["L0.H1"])
    Subnetwork.of(model, ["L0.H1"], ZeroActivations(model_info(model).weight_hash))


def test_another_model_is_refused_and_the_difference_named():
    model, other, bigger = hooked(), hooked(seed=1), hooked(n_layers=3)
    subnetwork = Subnetwork.of(model, ["L0.H1"], means_of(model))
    with pytest.raises(ModelError, match="other weights"), subnetwork.apply(other):
        pass
    with pytest.raises(ModelError, match="2 layers x 2 heads.* 3 x 2"), subnetwork.apply(bigger):
        pass


def test_saving_keeps_everything_and_changes_no_logit(tmp_path):
    model = hooked()
    made = Subnetwork.of(model, ["L0.H1", "L1.MLP"], means_of(model))
    made = Subnetwork(
        made.units,
        made.mask,
        made.replacement,
        torch.randn(6),
        {"seed": 3, "asked_sparsity": 0.7, "pruner": "p"},
    )
    made.save(tmp_path / "s.safetensors")
    back = Subnetwork.load(tmp_path / "s.safetensors")
    assert back.components == made.components and back.provenance == made.provenance and back.name == "0.7-seed3"
    assert torch.equal(back.scores, made.scores)
    inputs = a_batch(model)
    out = []
    for subnetwork in (made, back):
        with torch.no_grad(), subnetwork.apply(model):
            out.append(logits(model, inputs))
    assert torch.equal(*out)


def test_what_is_no_subnetwork_is_refused(tmp_path):
    with pytest.raises(SavedFileError, match="does not exist"):
        Subnetwork.load(tmp_path / "s.safetensors")
    from safetensors.torch import save_file

    save_file({"mask": torch.ones(3)}, tmp_path / "s.safetensors")
    with pytest.raises(SavedFileError, match="was not written by core_lens"):
        Subnetwork.load(tmp_path / "s.safetensors")
