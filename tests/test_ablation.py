"""Means, zero and resampled activations, against activations read off with TransformerLens' own cache."""

import pytest
import torch

from builders import frame, hooked
from core_lens.ablation import (
    MeanActivations,
    MeanFitter,
    ResampleActivations,
    ZeroActivations,
    fit_means,
    replacement_from_tensors,
    replacement_tensors,
)
from core_lens.errors import CoreLensError
from core_lens.gates import inject
from core_lens.hooked import batches, component_set, encode, hook_name, logits, model_info
from core_lens.tasks import Split


def encoded(model, n=30, data=None):
    return encode(Split("x", "train", frame(n) if data is None else data), model.tokenizer)


def one_by_one(model, rows, first=0):
    """Means by a second method: every row alone, without padding, from run_with_cache."""
    heads, mlps = [], []
    info = model_info(model)
    for _, inputs in batches(rows, 1):
        rest = {k: v for k, v in inputs.items() if k != "input_ids"}
        _, cache = model.run_with_cache(inputs["input_ids"], **rest)
        heads.append(torch.stack([cache[hook_name("head", i)][0, first:] for i in range(info.n_layers)]))
        mlps.append(torch.stack([cache[hook_name("mlp", i)][0, first:] for i in range(info.n_layers)]))
    return torch.cat(heads, 1).double().mean(1), torch.cat(mlps, 1).double().mean(1)


@pytest.mark.parametrize("arch", ["bert", "gpt2"])
@pytest.mark.parametrize(("positions", "first"), [("all", 0), ("not_first", 1)])
def test_means_are_over_every_token_that_is_not_padding(arch, positions, first):
    model = hooked(arch)
    rows = encoded(model)
    means = fit_means(model, batches(rows, 8), positions)
    heads, mlps = one_by_one(model, rows, first)
    assert means.n_tokens == int(rows.lengths.sum()) - first * len(rows)
    torch.testing.assert_close(means.heads.double(), heads, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(means.mlps.double(), mlps, atol=1e-6, rtol=1e-5)


def test_means_do_not_depend_on_batch_size_order_or_padding():
    model = hooked()
    rows = encoded(model)
    reference = fit_means(model, batches(rows, 1))
    for other in (batches(rows, 7), batches(rows, 30, shuffle_seed=3), batches(rows, 5, pad_to=32)):
        means = fit_means(model, other)
        torch.testing.assert_close(means.heads, reference.heads, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(means.mlps, reference.mlps, atol=1e-6, rtol=1e-5)
        assert means.n_tokens == reference.n_tokens


def test_padding_on_the_left_does_not_count_either():
    model = hooked("gpt2")
    ((_, inputs),) = batches(encoded(model, 4), 4)
    flipped = {k: torch.stack([row.roll(int((inputs["attention_mask"][i] == 0).sum())) for i, row in enumerate(v)])
               for k, v in inputs.items()}  # fmt: skip
    fitter = MeanFitter(model, "not_first")
    fitter.update(flipped)
    assert fitter.finish().n_tokens == int(inputs["attention_mask"].sum()) - 4


def test_no_data_and_unknown_positions_are_refused():
    model = hooked()
    with pytest.raises(CoreLensError, match="no tokens to average"):
        MeanFitter(model).finish()
    with pytest.raises(CoreLensError, match="positions='last'"):
        MeanFitter(model, "last")


def test_resampled_rows_meet_their_donor_in_any_batch():
    """With all gates closed a row's components say what they say on the donor, wherever the row stands."""
    model = hooked()
    data = frame(12, 5)
    ((_, donors),) = batches(encoded(model, 6), 6)
    replacement = ResampleActivations(donors, model_info(model).weight_hash)
    units = component_set(model)
    rows = encoded(model, data=data)
    results = {}
    for size in (12, 5):
        out = torch.empty(12, 3)
        with torch.no_grad(), inject(model, units, replacement, torch.zeros(len(units))) as gates:
            for row, inputs in batches(rows, size):
                gates.rows = row
                out[row] = logits(model, inputs)
        results[size] = out
    torch.testing.assert_close(results[12], results[5], atol=1e-5, rtol=1e-4)
    assert results[12].std(0).max() > 1e-3  # donors differ, unlike means


def test_resampling_copies_the_donor_position_by_position():
    model = hooked()
    ((_, donors),) = batches(encoded(model, 3), 3)
    bound = ResampleActivations(donors, model_info(model).weight_hash).bind(model)
    rest = {k: v for k, v in donors.items() if k != "input_ids"}
    _, cache = model.run_with_cache(donors["input_ids"], **rest)
    there = cache[hook_name("head", 1)]
    lengths = donors["attention_mask"].sum(1)
    x = torch.zeros(40, 15, *there.shape[2:])
    stand_in = bound.at("head", 1, x, torch.arange(40))
    met = set()
    for row in stand_in:
        donor = [i for i in range(3) if torch.equal(row[: lengths[i]], there[i, : lengths[i]])]
        assert len(donor) == 1
        met.add(donor[0])
        n = int(lengths[donor[0]])
        assert torch.equal(row[n], there[donor[0], 0])  # past the end it wraps around
    assert met == {0, 1, 2}


def test_replacements_survive_saving():
    model = hooked()
    hash_ = model_info(model).weight_hash
    ((_, donors),) = batches(encoded(model, 3), 3)
    means = fit_means(model, batches(encoded(model), 8), "not_first")
    for replacement in (ZeroActivations(hash_), means, ResampleActivations(donors, hash_, 4)):
        back = replacement_from_tensors(*replacement_tensors(replacement))
        assert type(back) is type(replacement) and back.weight_hash == hash_
        assert all(torch.equal(t, back.tensors()[n]) for n, t in replacement.tensors().items())
    assert isinstance(means, MeanActivations) and means.positions == "not_first"
