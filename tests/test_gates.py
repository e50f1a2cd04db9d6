"""Gates: mean + z (x - mean), by hand on integers; untouched at 1; clean afterwards; right gradients."""

import pytest
import torch

from builders import frame, hooked, means_of
from core_lens.ablation import MeanActivations, ZeroActivations
from core_lens.components import ComponentSet
from core_lens.errors import CoreLensError
from core_lens.gates import Gates, inject
from core_lens.hooked import batches, component_set, encode, hook_name, logits, model_info
from core_lens.tasks import Split
from tiny_models import ARCHITECTURES, tiny_model


def a_batch(model, n=6):
    ((_, inputs),) = batches(encode(Split("x", "train", frame(n, 9)), model.tokenizer), n)
    return inputs


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_open_gates_leave_hfs_logits(arch):
    hf = tiny_model(arch)
    model = hooked(arch)
    inputs = a_batch(model)
    with torch.no_grad(), inject(model, component_set(model), means_of(model)):
        ours = logits(model, inputs)
    torch.testing.assert_close(ours, hf(**inputs).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", ["bert", "gpt2", "llama"])
def test_closed_and_half_open_gates_by_hand(arch):
    """Integer means: what reaches W_O and the residual stream is mean + z (x - mean)."""
    model = hooked(arch)
    info, units = model_info(model), component_set(model)
    heads = torch.arange(info.n_layers * info.n_heads * info.d_head).float()
    means = MeanActivations(
        heads.view(info.n_layers, info.n_heads, info.d_head),
        -torch.arange(info.n_layers * info.d_model).float().view(info.n_layers, info.d_model),
        1,
        "all",
        info.weight_hash,
    )
    inputs = a_batch(model)
    seen: dict[tuple[str, int], torch.Tensor] = {}

    def look(kind, layer, when):
        # A hook before the gate's sees x, one after it sees what the gate made of it.
        return hook_name(kind, layer), lambda x, hook: seen.update({(kind, layer, when): x.clone()})

    points = [(kind, layer) for kind in ("head", "mlp") for layer in range(info.n_layers)]
    z = torch.ones(len(units))
    z[units.index(next(c for c in units if str(c) == "L0.H1"))] = 0
    z[units.index(next(c for c in units if str(c) == "L1.H0"))] = 0.25
    z[units.index(next(c for c in units if str(c) == "L1.MLP"))] = 0
    with (
        torch.no_grad(),
        model.hooks(fwd_hooks=[look(k, i, "before") for k, i in points]),
        inject(model, units, means, z),
        model.hooks(fwd_hooks=[look(k, i, "after") for k, i in points]),
    ):
        logits(model, inputs)
    d = info.d_head
    assert torch.equal(
        seen["head", 0, "after"][..., 1, :],
        torch.arange(d, 2 * d).float().expand_as(seen["head", 0, "after"][..., 1, :]),
    )
    assert torch.equal(seen["head", 0, "after"][..., 0, :], seen["head", 0, "before"][..., 0, :])
    m = torch.arange(info.n_heads * d, info.n_heads * d + d).float()
    x = seen["head", 1, "before"][..., 0, :]
    torch.testing.assert_close(seen["head", 1, "after"][..., 0, :], m + 0.25 * (x - m))
    assert torch.equal(seen["mlp", 0, "after"], seen["mlp", 0, "before"])
    expected = -torch.arange(info.d_model, 2 * info.d_model).float()
    assert torch.equal(seen["mlp", 1, "after"], expected.expand_as(seen["mlp", 1, "after"]))


def test_everything_ablated_makes_all_inputs_alike_at_the_mean():
    model = hooked("bert")
    units = component_set(model)
    inputs = a_batch(model)
    with (
        torch.no_grad(),
        inject(model, units, ZeroActivations(model_info(model).weight_hash), torch.zeros(len(units))),
    ):
        out = logits(model, inputs)
    # Nothing moves information between positions any more, and all examples start with [CLS].
    torch.testing.assert_close(out, out[:1].expand_as(out), atol=1e-6, rtol=0)


def test_gradients_match_finite_differences_per_batch_and_per_example():
    model = hooked("bert")
    units = component_set(model)
    means, inputs = means_of(model), a_batch(model, 3)
    double = torch.float64
    model.double()
    z = torch.full((len(units),), 0.7, dtype=double)

    def loss(gates, values):
        gates.z = values
        return logits(model, inputs).logsumexp(-1)

    with inject(model, units, means) as gates:
        shared = z.clone().requires_grad_()
        loss(gates, shared).sum().backward()
        each = z.expand(3, -1).clone().requires_grad_()
        loss(gates, each).sum().backward()
        numeric = torch.empty(3, len(units), dtype=double)
        with torch.no_grad():
            for i in range(len(units)):
                step = torch.zeros_like(z)
                step[i] = 1e-5
                numeric[:, i] = (loss(gates, z + step) - loss(gates, z - step)) / 2e-5
    torch.testing.assert_close(each.grad, numeric, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(shared.grad, numeric.sum(0), atol=1e-6, rtol=1e-4)


def test_nothing_stays_after_the_block_or_an_exception():
    model = hooked()
    units, inputs = component_set(model), a_batch(model)
    zero = ZeroActivations(model_info(model).weight_hash)
    before = logits(model, inputs)
    hooks = sum(len(point.fwd_hooks) for point in model.hook_dict.values())
    with pytest.raises(RuntimeError), inject(model, units, zero, torch.zeros(len(units))):
        raise RuntimeError
    assert sum(len(point.fwd_hooks) for point in model.hook_dict.values()) == hooks
    assert torch.equal(logits(model, inputs), before)
    assert not any(p.requires_grad for p in model.parameters()) and not model.training


def test_training_mode_does_not_decide_how_gates_behave():
    model = hooked()  # the tiny models have dropout 0.1: set it to 0 so that only gates could differ
    for module in model.original_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    units, inputs, means = component_set(model), a_batch(model), means_of(model)
    z = torch.linspace(0, 1, len(units))
    out = []
    for training in (False, True):
        model.train(training)
        with torch.no_grad(), inject(model, units, means, z):
            out.append(logits(model, inputs))
    torch.testing.assert_close(out[0], out[1], atol=1e-6, rtol=0)


def test_a_hook_that_never_fires_raises():
    model = hooked()
    original = model.original_model
    units, inputs = component_set(model), a_batch(model)

    class Skip(torch.nn.Module):
        def forward(self, hidden, *args, **kwargs):
            return hidden

    zero = ZeroActivations(model_info(model).weight_hash)
    with pytest.raises(CoreLensError, match=r"blocks\.1\.attn\.hook_z.* never fired"), inject(model, units, zero):
        original.bert.encoder.layer = original.bert.encoder.layer[:1]
        logits(model, inputs)


def test_wrong_shapes_are_named():
    model = hooked()
    zero = ZeroActivations(model_info(model).weight_hash)
    with (
        pytest.raises(CoreLensError, match="do not fit 6 units"),
        inject(model, component_set(model), zero, torch.ones(5)),
    ):
        logits(model, a_batch(model))


def test_gates_hold_log_alpha_and_nothing_else():
    gates = Gates(ComponentSet(2, 3), init=2.0, std=0.5, generator=torch.Generator().manual_seed(0))
    assert [name for name, _ in gates.named_parameters()] == ["log_alpha"] and not list(gates.buffers())
    again = Gates(ComponentSet(2, 3), init=2.0, std=0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gates.log_alpha, again.log_alpha) and gates.log_alpha.std() > 0.1
