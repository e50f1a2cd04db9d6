"""Pruners: exact sparsity, planted units found, the published schedule and objective, reproducible, honest when they fail."""

import dataclasses
import itertools
import math

import pytest
import torch

from builders import ALIVE, hooked, planted, problem
from core_lens import Component, HardConcretePruner, ImportancePruner, RandomPruner
from core_lens.errors import CoreLensWarning, PruningError
from core_lens.gates import inject
from core_lens.hooked import batches, logits
from core_lens.pruners import check_sparsity, divergence, keep_highest, named_pruner, paper_steps
from core_lens.pruners.swaps import best_by_swaps

QUICK = HardConcretePruner(steps=60, batch_size=16)


@pytest.mark.parametrize("n", [6, 10, 78, 156])
@pytest.mark.parametrize("sparsity", [0.01, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999])
def test_the_sparsity_asked_for_is_hit_to_half_a_unit(n, sparsity):
    mask = keep_highest(torch.randn(n, generator=torch.Generator().manual_seed(n)), sparsity)
    assert abs(float((~mask).sum()) / n - sparsity) <= 1 / (2 * n) + 1e-12


def test_the_lowest_scores_go_and_ties_are_settled_by_order():
    assert keep_highest(torch.tensor([0.3, -1.0, 2.0, 0.1]), 0.5).tolist() == [True, False, True, False]
    assert keep_highest(torch.zeros(4), 0.5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("sparsity", [0, 1, 1.2, -0.1, float("nan"), "0.5", None])
def test_impossible_sparsities_are_refused(sparsity):
    with pytest.raises(PruningError, match="strictly between 0 and 1"):
        check_sparsity(sparsity)


def test_the_published_step_counts():
    # From the spec page: 50 -> 9,000/9,300; 70 -> 10,000/10,420; 30 -> 8,000/8,180; 60 -> 9,500/9,860.
    published = {0.5: (9000, 9300), 0.7: (10_000, 10_420), 0.3: (8000, 8180), 0.6: (9500, 9860)}
    assert {s: paper_steps(s) for s in published} == published
    assert {s: HardConcretePruner.paper().schedule(s) for s in published} == published
    ramp, total = HardConcretePruner.paper(steps=300).schedule(0.5)
    assert total == 300 and ramp == round(300 * 9000 / 9300)


def test_the_paper_preset_has_the_published_constants():
    config = HardConcretePruner.paper().config()
    published = {
        "batch_size": 128,
        "learning_rate": 0.1,
        "lambda_learning_rate": 1.0,
        "weight_decay": 0.01,
        "warmup_steps": 200,
        "init": 10.0,
        "init_std": 0.01,
        "warm_start": 0,
        "swaps": 0,
        "draws": "batch",
        "constraint": "lagrangian",
        "dropout": True,
        "pad_to": 128,
    }
    assert {name: config[name] for name in published} == published


def test_kl_by_hand():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    by_hand = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert float(divergence(p.log()[None], q.log()[None] + 3.0)) == pytest.approx(by_hand, abs=1e-6)
    assert divergence(torch.tensor([[1.0]]), torch.tensor([[3.0]]), True).tolist() == [4.0]


def test_task_loss_counts_every_right_class():
    """-log P(gold) with one right class; -log of their sum where the split collapses labels."""
    p = dataclasses.replace(
        problem(hooked(), 4), gold=torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1]]).bool()
    )
    probabilities = torch.tensor([0.2, 0.3, 0.5])
    loss = p.task_loss(probabilities.log().expand(4, 3), torch.arange(4))
    torch.testing.assert_close(loss, -torch.tensor([0.2, 0.8, 0.5, 1.0]).log(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("pruner", [QUICK, ImportancePruner.one_shot()])
def test_planted_units_are_found(pruner):
    """Only 3 of 10 units write to the residual stream; removing exactly the other 7 changes nothing."""
    model = planted()
    p = problem(model)
    result = pruner.prune(p, 0.7, seed=0)
    assert {str(c) for c in p.units.components(result.mask)} == set(ALIVE)
    with torch.no_grad(), inject(model, p.units, p.replacement, result.mask.float()):
        for rows, inputs in batches(p.encoded, 64):
            assert float(p.divergence(logits(model, inputs), rows)) < 1e-6


def test_the_published_objective_follows_its_target_and_spares_what_is_needed():
    """In so few steps, and with one draw a batch, the ranking among idle units is noise; needed ones stay above them."""
    pruner = HardConcretePruner.paper(steps=400, batch_size=16, pad_to=None, init=2.0, dropout=False)
    p = problem(planted(scale=80.0))
    result = pruner.prune(p, 0.7, seed=0)
    needed = p.units.mask([Component.parse(c) for c in ALIVE])
    assert result.scores[needed].mean() > result.scores[~needed].mean() + 2
    late = result.history.tail(5)
    assert abs(late["sparsity"].mean() - late["target_sparsity"].mean()) < 0.15


def test_one_shot_importance_is_the_mean_absolute_gradient():
    """Against finite differences of each example's loss, one at a time."""
    model = hooked()
    p = problem(model, 6)
    model.double()
    importance = ImportancePruner.one_shot(batch_size=4).prune(p, 0.5, seed=0).scores
    numeric = torch.zeros(len(p.units), dtype=torch.float64)
    with torch.no_grad(), inject(model, p.units, p.replacement) as gates:
        for rows, inputs in batches(p.encoded, 1):
            for i in range(len(p.units)):
                losses = []
                for z in (1 + 1e-4, 1 - 1e-4):
                    gates.z = torch.ones(len(p.units), dtype=torch.float64)
                    gates.z[i] = z
                    log_p = logits(model, inputs).log_softmax(-1)[0]
                    losses.append(-log_p[p.gold[rows[0]]][0])
                numeric[i] += abs(losses[0] - losses[1]) / 2e-4 / 6
    torch.testing.assert_close(importance.double(), numeric, atol=1e-4, rtol=1e-2)


def test_same_seed_same_mask_bit_for_bit_and_seeds_differ():
    p = problem(hooked(n_heads=4))
    first, again, other = (QUICK.prune(p, 0.5, seed) for seed in (1, 1, 2))
    assert torch.equal(first.scores, again.scores) and torch.equal(first.mask, again.mask)
    assert not torch.equal(first.scores, other.scores)
    drawn = [RandomPruner().prune(p, 0.5, seed).mask for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_dropout_is_off_unless_asked_for_and_modes_are_restored():
    model = hooked()
    p = problem(model)
    seen = []
    dropout = next(m for m in model.original_model.modules() if isinstance(m, torch.nn.Dropout))
    dropout.register_forward_pre_hook(lambda module, args: seen.append(module.training))
    QUICK.prune(p, 0.5, 0)
    assert seen and not any(seen)
    seen.clear()
    before = torch.random.get_rng_state()
    HardConcretePruner.paper(steps=4, batch_size=8, pad_to=None, init=2.0).prune(p, 0.5, 0)
    assert all(seen) and torch.equal(before, torch.random.get_rng_state())
    assert not any(module.training for module in model.original_model.modules())


def test_batches_are_padded_only_when_asked_for():
    model = hooked()
    p = problem(model)
    widths = []
    with model.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", lambda x, hook: widths.append(x.shape[1]))]):
        QUICK.prune(p, 0.5, 0)
        longest = max(widths)
        HardConcretePruner.paper(steps=3, batch_size=8, pad_to=30, init=2.0).prune(p, 0.5, 0)
    assert longest <= int(p.encoded.lengths.max()) and min(widths[:-3]) < longest and widths[-3:] == [30] * 3


def test_nan_and_collapse_are_named_with_the_setting_to_change():
    p = problem(hooked())
    broken = dataclasses.replace(p, teacher=torch.full_like(p.teacher, torch.nan))
    with pytest.raises(PruningError, match=r"became NaN at step 0 .* lower learning_rate"):
        QUICK.prune(broken, 0.5, 0)
    with pytest.warns(CoreLensWarning, match=r"all gates ended open .* raise steps \(5\)"):
        HardConcretePruner.paper(steps=5, pad_to=None).prune(p, 0.5, 0)


def test_the_target_ramps_and_the_history_says_what_happened():
    result = HardConcretePruner(steps=60, ramp=0.5, batch_size=8, swaps=0).prune(problem(hooked()), 0.5, 0)
    targets = dict(zip(result.history["step"], result.history["target_sparsity"], strict=True))
    assert targets[0] == 0 and targets[20] == pytest.approx(0.5 * 20 / 30) and targets[40] == 0.5
    assert abs(result.history["sparsity"].iloc[-1] - 0.5) < 0.25
    assert result.passes == 2 * (60 * 8 + 128)  # and the warm start, on all 128 examples there are


def test_bf16_autocast_gives_nearly_the_same_scores():
    p = problem(planted())
    low, full = (QUICK.prune(dataclasses.replace(p, autocast=autocast), 0.7, 0).scores for autocast in (True, False))
    assert not torch.equal(low, full)
    assert float(torch.corrcoef(torch.stack([low, full]))[0, 1]) > 0.95


def test_names_and_presets():
    assert named_pruner("hard-concrete", "paper").dropout and not named_pruner("hard-concrete").dropout
    assert named_pruner("random").name == "random" and named_pruner(QUICK) is QUICK
    for pruner, preset, words in (
        ("l0", "fast", "is not known"),
        (3, "fast", "is no pruner object"),
        ("random", "slow", "'fast' or 'paper'"),
    ):
        with pytest.raises(PruningError, match=words):
            named_pruner(pruner, preset)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 1}, {"ramp": 0}, {"batch_size": 0}, {"learning_rate": -0.1}, {"draws": "exmple"}, {"constraint": "lagrange"},
     {"examples": 0}, {"warm_start": -1}, {"lambda_learning_rate": float("nan")}],
)  # fmt: skip
def test_wrong_settings_are_refused_by_name(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(PruningError, match=f"{name}={value!r}"):
        HardConcretePruner(**wrong)


def all_kl(p):
    """KL of every mask of 5 of the 10 units, one mask at a time."""
    found = {}
    with torch.no_grad(), inject(p.model, p.units, p.replacement) as gates:
        for kept in itertools.combinations(range(10), 5):
            gates.z = torch.zeros(10)
            gates.z[list(kept)] = 1
            sums = [float(p.divergence(logits(p.model, x), rows)) * len(rows) for rows, x in batches(p.encoded, 64)]
            found[kept] = sum(sums) / len(p)
    return found


def test_swaps_end_where_no_single_swap_helps():
    """Against the KL of all 252 masks of that size."""
    p = problem(hooked(n_heads=4), 64)
    kl = all_kl(p)
    assert len(p.units) == 10 and len(kl) == 252
    worst = torch.zeros(10, dtype=torch.bool)
    worst[list(max(kl, key=kl.__getitem__))] = True
    mask, passes = best_by_swaps(p, [worst], torch.arange(64), trials=1000)
    kept = tuple(mask.nonzero()[:, 0].tolist())
    neighbours = [other for other in kl if len(set(other) & set(kept)) == 4]
    assert len(neighbours) == 25 and kl[kept] <= min(kl[n] for n in neighbours) + 1e-7
    assert kl[kept] < max(kl.values()) and passes > 64 * 25
    best = torch.zeros(10, dtype=torch.bool)
    best[list(min(kl, key=kl.__getitem__))] = True
    assert torch.equal(best_by_swaps(p, [worst, best], torch.arange(64), trials=3)[0], best)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(PruningError, match="1 of 4 scores"):
        keep_highest(torch.tensor([1.0, torch.nan, 0.0, 2.0]), 0.5)


def test_importance_differs_by_seed_only_through_its_sample():
    p = problem(hooked(n_heads=4))
    drawn = [ImportancePruner.one_shot(sample=32).prune(p, 0.5, seed).scores for seed in (0, 1)]
    whole = [ImportancePruner.one_shot(sample=1000).prune(p, 0.5, seed).scores for seed in (0, 1)]
    assert not torch.allclose(*drawn, rtol=1e-3)
    torch.testing.assert_close(*whole, rtol=1e-4, atol=1e-6)
