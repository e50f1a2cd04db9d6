"""Importance pruning against its own description, written again with one example at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.metrics import matthews_corrcoef

from builders import hooked, problem
from core_lens import CoreLensError, ImportancePruner, inject
from core_lens.components import ComponentSet
from core_lens.hooked import batches, logits
from core_lens.pruners.importance import gate_importance, scaled


def outputs_at(p, mask, rows):
    """Logits of each row, one forward pass per example."""
    found = {}
    with torch.no_grad(), inject(p.model, p.units, p.replacement, mask.float()):
        for (row,), inputs in batches(p.encoded, 1, rows=rows):
            found[int(row)] = logits(p.model, inputs)[0]
    return torch.stack([found[int(row)] for row in rows])


def gradients_at(p, mask, rows, loss="task"):
    """Gradient of each row's loss with respect to the gates, [row, unit], one backward pass per example."""
    found = []
    for row in rows:
        ((_, inputs),) = batches(p.encoded, 1, rows=row[None])
        z = mask.float().requires_grad_()
        with inject(p.model, p.units, p.replacement, z):
            log_q = logits(p.model, inputs)[0].log_softmax(-1)
        log_p = p.teacher[row].log_softmax(-1)
        value = -log_q[p.gold[row]].logsumexp(-1) if loss == "task" else (log_p.exp() * (log_p - log_q)).sum()
        found.append(torch.autograd.grad(value, z)[0])
    return torch.stack(found)


def scale_by_hand(raw: np.ndarray, n_layers: int, n_heads: int) -> np.ndarray:
    heads, mlps = raw[: n_layers * n_heads].reshape(n_layers, n_heads).copy(), raw[n_layers * n_heads :]
    for layer in range(n_layers):
        heads[layer] /= np.sqrt((heads[layer] ** 2).sum())
    parts = [(part - part.min()) / (part.max() - part.min()) for part in (heads, mlps)]
    return np.concatenate([part.ravel() for part in parts])


def phases_by_hand(p, n_layers: int, n_heads: int, stop: float | None, limit: int | None) -> list[set[int]]:
    """The units left after each step that held."""
    n, rows = n_layers * n_heads + n_layers, torch.arange(len(p))
    left, trail = set(range(n)), []

    def accuracy(kept):
        mask = torch.zeros(n)
        mask[list(kept)] = 1
        return float((outputs_at(p, mask, rows).argmax(-1) == p.gold.int().argmax(-1)).double().mean())

    full = accuracy(left)
    for n_lowest, n_mlps in (((n_layers * n_heads) // 10, 1), ((n_layers * n_heads) // 20, 0), (0, 1)):
        while True:
            mask = torch.zeros(n)
            mask[list(left)] = 1
            score = scale_by_hand(gradients_at(p, mask, rows).abs().mean(0).numpy(), n_layers, n_heads)
            heads = sorted((u for u in left if u < n_layers * n_heads), key=lambda u: score[u])
            mlps = sorted((u for u in left if u >= n_layers * n_heads), key=lambda u: score[u])
            gone = [*heads[:n_lowest], *mlps[:n_mlps]]
            gone = gone[: (n - 1 if limit is None else limit) - (n - len(left))]
            if not gone or (stop is not None and accuracy(left - set(gone)) < stop * full):
                break
            left = left - set(gone)
            trail.append(left)
    return trail


@pytest.fixture(scope="module")
def p():
    """2 layers x 10 heads: a step removes 2 heads and 1 MLP, then 1 head, then 1 MLP; all right at the full model."""
    found = problem(hooked(n_heads=10, d_model=40), 24)
    gold = torch.nn.functional.one_hot(found.teacher.argmax(-1), 3).bool()
    gold[:6] = gold[:6].roll(1, dims=1)  # a quarter wrong
    return replace(found, gold=gold)


def kept(mask) -> set[int]:
    return set(mask.nonzero()[:, 0].tolist())


@pytest.mark.parametrize("stop", [0.9, 0.5])
def test_three_phases_against_their_description(p, stop):
    pruner = ImportancePruner(stop=stop, batch_size=7)
    result = pruner.prune_to_stop(p, seed=0)
    trail = phases_by_hand(p, 2, 10, stop, None)
    assert kept(result.mask) == (trail[-1] if trail else set(range(22)))
    held = result.history[result.history["accepted"]]
    assert held["kept"].tolist() == [len(left) for left in trail]
    assert (held["metric"] >= stop * 0.75 - 1e-9).all()  # the full model has 3/4 right
    refused = result.history[~result.history["accepted"]]
    assert (refused["metric"] < stop * 0.75).all()
    # Each step: gradients count twice; every metric, the full model's too, once.
    n_gradients = len(trail) + 1
    assert result.passes == 24 * (2 * n_gradients + len(result.history) + 1)
    assert torch.equal(
        result.scores.argsort(descending=True)[: int(result.mask.sum())].sort().values, result.mask.nonzero()[:, 0]
    )


@pytest.mark.parametrize(("sparsity", "removed"), [(0.3, 7), (0.9, 20)])
def test_an_exact_sparsity_without_a_stop_is_the_first_phase(p, sparsity, removed):
    result = ImportancePruner(stop=None).prune(p, sparsity, seed=0)
    assert kept(result.mask) == phases_by_hand(p, 2, 10, None, removed)[-1]
    assert int((~result.mask).sum()) == removed and result.history["metric"].isna().all()


def test_a_stop_that_comes_too_early_is_passed(p):
    """Nothing may be lost, so the phases stop at once; the sparsity is reached all the same, by the first phase's steps."""
    stopping, free = (ImportancePruner(stop=stop).prune(p, 0.5, seed=0) for stop in (1.0, None))
    assert int(stopping.mask.sum()) == 11
    n_held = int(stopping.history.query("phase > 0 and accepted")["kept"].min()) if len(stopping.history) else 22
    assert n_held > 11 and (stopping.history["phase"] == 0).sum() > 0
    if not stopping.history.query("phase > 0")["accepted"].any():
        assert torch.equal(stopping.mask, free.mask)


@pytest.mark.parametrize("loss", ["task", "kl"])
def test_gradients_of_examples_and_batches(p, loss):
    mask = torch.ones(22, dtype=torch.bool)
    mask[[1, 5, 20]] = False
    rows = torch.arange(10)
    single = gradients_at(p, mask, rows, loss)
    by_example = gate_importance(p, mask, rows, loss, batch_size=4)
    torch.testing.assert_close(by_example, single.abs().mean(0), rtol=1e-3, atol=1e-6)
    whole = gate_importance(p, mask, rows, loss, "batch", batch_size=10)
    torch.testing.assert_close(whole, single.sum(0).abs() / 10, rtol=1e-3, atol=1e-6)
    assert (whole <= by_example + 1e-6).all() and not torch.allclose(whole, by_example)
    # A closed gate has a gradient too: what would change if it opened.
    assert by_example[[1, 5, 20]].min() > 0


def test_the_papers_scales_by_hand():
    units = ComponentSet(2, 2)
    scores = torch.tensor([3.0, 4.0, 0.0, 5.0, 7.0, 9.0])
    # Layer norms 5 and 5: .6 .8 0 1, which spans [0, 1]; MLPs 7 and 9 become 0 and 1.
    torch.testing.assert_close(scaled(scores, units, True, True), torch.tensor([0.6, 0.8, 0.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(scaled(scores, units, True, False), torch.tensor([0.6, 0.8, 0.0, 1.0, 7.0, 9.0]))
    torch.testing.assert_close(scaled(scores, units, False, True), torch.tensor([0.6, 0.8, 0.0, 1.0, 0.0, 1.0]))
    assert torch.equal(scaled(scores, units, False, False), scores)
    heads = scaled(torch.tensor([1.0, 1.0, 0.0, 0.0]), ComponentSet(2, 2, ("head",)), True, True)
    torch.testing.assert_close(heads, torch.tensor([1.0, 1.0, 0.0, 0.0]))  # a layer without any importance stays at 0


@pytest.mark.parametrize("kinds", [("head",), ("mlp",)])
def test_one_kind_of_unit(p, kinds):
    units = ComponentSet(2, 10, kinds)
    result = ImportancePruner(stop=None, sample=8).prune(replace(p, units=units), 0.5, seed=1)
    assert int(result.mask.sum()) == len(units) // 2


def test_metric_of_a_problem_against_other_implementations(p):
    rng = torch.Generator().manual_seed(0)
    outputs, rows = torch.randn(24, 3, generator=rng), torch.randperm(24, generator=rng)
    gold, said = p.gold.int().argmax(-1)[rows].numpy(), outputs.argmax(-1).numpy()
    assert p.score(outputs, rows) == pytest.approx((gold == said).mean())
    assert replace(p, metric="mcc").score(outputs, rows) == pytest.approx(matthews_corrcoef(gold, said))
    values = torch.randn(24, 1, generator=rng)
    regression = replace(p, is_regression=True, metric="pearson", gold=values)
    expected = pearsonr(outputs[:, 0], values[rows, 0]).statistic
    assert regression.score(outputs[:, :1], rows) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": "slow"}, "steps='slow'"),
        ({"loss": "mse"}, "loss='mse'"),
        ({"steps": "one-shot", "loss": "kl"}, "no gradient at the full model"),
        ({"stop": 1.2}, "stop=1.2"),
        ({"sample": 0}, "sample=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(CoreLensError, match=message):
        ImportancePruner(**settings)


def test_prune_to_stop_needs_a_stop(p):
    for pruner in (ImportancePruner(stop=None), ImportancePruner.one_shot()):
        with pytest.raises(CoreLensError, match="prune_to_stop needs"):
            pruner.prune_to_stop(p, seed=0)
