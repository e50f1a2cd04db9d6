"""The linearized pruner: true derivatives, honest counts, the best subsets where all can be tried, better than importance."""

import dataclasses
import itertools
import math

import pytest
import torch

import core_lens.pruners.linearized as module
from builders import ALIVE, hooked, means_of, planted, problem
from core_lens import ImportancePruner, LinearizedPruner, RandomPruner
from core_lens.ablation import ResampleActivations
from core_lens.errors import PruningError
from core_lens.gates import inject
from core_lens.hooked import batches, component_set, logits, model_info
from core_lens.plan import problem_of
from core_lens.pruners.linearized import _Search

SMALL = LinearizedPruner(passes=3000)


def kl(p, mask):
    with torch.no_grad(), inject(p.model, p.units, p.replacement, mask.float()) as gates:
        total = 0.0
        for rows, inputs in batches(p.encoded, 64):
            gates.rows = rows
            total += float(p.divergence(logits(p.model, inputs), rows)) * len(rows)
    return total / len(p)


def test_the_slope_is_the_derivative_of_the_logits():
    """Against central differences of differences of logits, at a mask with closed gates."""
    model = hooked()
    p = problem(model, 6)
    search = _Search(p, torch.tensor([4, 0, 2]), 2)
    search.mask[torch.tensor([1, 4])] = False
    search.linearise()
    model.double()
    with torch.no_grad(), inject(model, p.units, p.replacement) as gates:
        for unit in range(len(p.units)):
            for rows, inputs in batches(p.encoded, 1, rows=search.rows):
                said = []
                for step in (1e-4, -1e-4):
                    z = search.mask.double()
                    z[unit] += step
                    gates.z = z
                    out = logits(model, inputs)[0]
                    said.append(out - out[-1])
                place = search.rows.tolist().index(int(rows[0]))
                numeric = (said[0] - said[1]) / 2e-4
                torch.testing.assert_close(search.slope[place, :, unit].double(), numeric, atol=1e-4, rtol=1e-2)


def test_the_passes_it_counts_are_those_that_the_model_made(monkeypatch):
    """Rows that go forward, counted at the model's door, and rows whose logits get a gradient."""
    counted = {"forward": 0, "backward": 0}

    def counting(model, inputs):
        out = logits(model, inputs)
        counted["forward"] += len(out)
        if out.requires_grad:
            out.register_hook(lambda grad: counted.update(backward=counted["backward"] + len(grad)))
        return out

    monkeypatch.setattr(module, "logits", counting)
    result = SMALL.prune(problem(hooked(n_heads=4)), 0.5, seed=0)
    assert result.passes == counted["forward"] + counted["backward"] and counted["backward"] > 0
    assert 0.7 * SMALL.passes < result.passes <= SMALL.passes


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kept", [2, 3, 5, 7, 8])
def test_the_best_subset_is_found_where_all_can_be_tried(seed, kept):
    p = problem(hooked(n_heads=4, seed=seed), 64)
    n = len(p.units)
    masks = [torch.tensor([i in some for i in range(n)]) for some in itertools.combinations(range(n), kept)]
    best = min(kl(p, mask) for mask in masks)
    mask = SMALL.prune(p, 1 - kept / n, seed).mask
    assert int(mask.sum()) == kept
    assert kl(p, mask) <= 1.2 * best + 1e-6


@pytest.mark.parametrize("sparsity", [0.01, 0.1, 0.3, 0.7, 0.9, 0.999])
@pytest.mark.parametrize("kinds", [("head", "mlp"), ("head",), ("mlp",)])
def test_the_sparsity_is_exact_whatever_the_units(sparsity, kinds):
    model = hooked(n_heads=4)
    p = dataclasses.replace(problem(model, 32), units=component_set(model, kinds))
    result = LinearizedPruner(passes=400).prune(p, sparsity, 0)
    assert int((~result.mask).sum()) == round(sparsity * len(p.units))
    if result.mask.any() and not result.mask.all():
        assert result.scores[result.mask].min() > result.scores[~result.mask].max()
    assert result.scores.isfinite().all()


def test_planted_units_are_found_also_an_mlp_that_is_idle():
    p = problem(planted())
    result = SMALL.prune(p, 0.7, seed=0)
    assert {str(c) for c in p.units.components(result.mask)} == set(ALIVE)


def test_resampled_stand_ins_and_regression():
    model = hooked(n_heads=4)
    p = problem(model)
    donors = next(iter(batches(p.encoded, 8)))[1]
    resampled = dataclasses.replace(p, replacement=ResampleActivations(donors, model_info(model).weight_hash))
    number = hooked(n_heads=4, n_labels=1)
    teacher = torch.empty(len(p), 1)
    with torch.no_grad():
        for rows, inputs in batches(p.encoded, 64):
            teacher[rows] = logits(number, inputs)
    regression = dataclasses.replace(
        p, model=number, replacement=means_of(number), teacher=teacher, gold=teacher, is_regression=True
    )
    for one in (resampled, regression):
        mask = SMALL.prune(one, 0.5, 0).mask
        assert kl(one, mask) < min(kl(one, RandomPruner().prune(one, 0.5, seed).mask) for seed in range(20))


def test_the_same_seed_gives_the_same_mask_and_others_other_examples():
    p = problem(hooked(n_heads=4))
    first, again, other = (SMALL.prune(p, 0.5, seed) for seed in (1, 1, 2))
    assert torch.equal(first.mask, again.mask) and torch.equal(first.scores, again.scores)
    assert first.history["divergence"].tolist() != other.history["divergence"].tolist()


def test_the_history_says_what_the_mask_is_and_a_swap_is_only_made_where_the_model_confirms_it():
    p = problem(hooked(n_heads=4), 48)
    result = LinearizedPruner(passes=6000, sample=48).prune(p, 0.5, 0)
    history = result.history
    assert history["removed"].iloc[-1] == 5 and history["passes"].is_monotonic_increasing
    assert history["divergence"].iloc[-1] == pytest.approx(kl(p, result.mask), abs=1e-6)
    before = history["divergence"].shift()
    swaps = history["step"] == "swap"
    assert swaps.any() and (history["divergence"] < before)[swaps].all()


def test_an_optimum_is_left_and_the_best_that_was_seen_is_returned():
    """With all examples from the start, nothing but leaving is left to do once no swap helps."""
    p = problem(hooked(n_layers=3, n_heads=4), 48)
    result = LinearizedPruner(passes=9_000, sample=48).prune(p, 0.5, 0)
    at_the_end = result.history[result.history["removed"] == round(0.5 * len(p.units))]
    left, back = (at_the_end["step"] == name for name in ("leave", "back"))
    assert left.sum() > 2 and back.any() and at_the_end["step"].iloc[-1] != "leave"
    assert (at_the_end["divergence"] == at_the_end["divergence"].cummin())[back].all()
    assert kl(p, result.mask) == pytest.approx(at_the_end["divergence"].min(), abs=1e-6)
    assert result.passes <= 9_000


def test_the_search_ends_where_every_subset_was_tried():
    p = problem(hooked(n_layers=1, n_heads=4), 16)
    assert LinearizedPruner(passes=50_000, sample=16).prune(p, 0.4, 0).passes < 10_000


def test_leaving_an_optimum_finds_better_subsets_than_staying(monkeypatch):
    """Over models and sizes, on the examples searched: never worse than without, and better somewhere."""
    with_, without = [], []
    for found, leave in ((with_, _Search._leave), (without, lambda *_: False)):
        monkeypatch.setattr(_Search, "_leave", leave)
        for seed, sparsity in itertools.product(range(2), (0.3, 0.6)):
            p = problem(hooked(n_layers=4, n_heads=4, seed=seed), 24)
            found.append(kl(p, LinearizedPruner(passes=2_500, sample=24).prune(p, sparsity, 0).mask))
    assert all(a <= b + 1e-6 for a, b in zip(with_, without, strict=True))
    assert any(a < b - 1e-6 for a, b in zip(with_, without, strict=True))


def test_a_curve_has_every_sparsity_for_the_price_of_one():
    p = problem(hooked(n_heads=4))
    found = SMALL.curve(p, [0.5, 0.2, 0.7], 0)
    assert [*found] == [0.2, 0.5, 0.7]
    assert [int((~result.mask).sum()) for result in found.values()] == [2, 5, 7]
    assert [*found.values()][-1].passes <= SMALL.passes
    for sparsity, result in found.items():
        rivals = [kl(p, RandomPruner().prune(p, sparsity, seed).mask) for seed in range(20)]
        assert kl(p, result.mask) <= sorted(rivals)[2]


@pytest.mark.parametrize("name", ["passes", "examples", "sample", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many", math.nan])
def test_wrong_settings_are_refused_by_name(name, value):
    with pytest.raises(PruningError, match=f"{name}="):
        LinearizedPruner(**{name: value})


def test_it_beats_one_shot_importance_at_equal_passes_on_the_lab():
    """On dev, which no pruner saw; half of importance's KL, as a mean over seeds."""
    from core_lens.plan import plan

    job = plan(
        "lab", "lab", [0.5], 1, LinearizedPruner(), splits="dev", max_examples=400, device="cpu", mean_examples=512
    )
    p = problem_of(job)
    dev = job.encoded["dev"]
    teacher = torch.empty(len(dev), 2)
    with torch.no_grad():
        for rows, inputs in batches(dev, 64):
            teacher[rows] = logits(p.model, inputs)
    reported = dataclasses.replace(p, encoded=dev, teacher=teacher, gold=p.gold[: len(dev)])
    ours, theirs = 0.0, 0.0
    for seed in (0, 1):
        one_shot = ImportancePruner.one_shot().prune(p, 0.5, seed)
        mine = LinearizedPruner(passes=one_shot.passes).prune(p, 0.5, seed)
        assert mine.passes <= one_shot.passes
        ours, theirs = ours + kl(reported, mine.mask), theirs + kl(reported, one_shot.mask)
    assert ours <= theirs / 2
