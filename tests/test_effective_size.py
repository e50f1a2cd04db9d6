"""Effective size: both definitions by hand and against the published figures; every flag where it belongs, and only there."""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from builders import hooked, means_of, random_task
from core_lens import Core, CoreLensError, RandomPruner, Subnetwork, Task, find_core, inject
from core_lens.effective_size import effective_size, floors, split_groups, tables_of
from core_lens.hooked import batches, encode, logits
from core_lens.tasks import Split

COLUMNS = ["checkpoint", "sparsity", "seed", "split", "accuracy"]
IN_DOMAIN = ["validation_matched", "validation_mismatched"]


def grid(curves: dict[str, list[list[float]]], sparsities=(0.2, 0.4, 0.6), checkpoint: int = 1) -> pd.DataFrame:
    """split -> a curve over sparsities for each seed."""
    rows = [
        (checkpoint, sparsity, seed, split, accuracy)
        for split, seeds in curves.items()
        for seed, curve in enumerate(seeds)
        for sparsity, accuracy in zip(sparsities, curve, strict=True)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def whole(checkpoint: int = 1, **accuracy: float) -> pd.DataFrame:
    return pd.DataFrame(
        [(checkpoint, split, value) for split, value in accuracy.items()], columns=["checkpoint", "split", "accuracy"]
    )


def only(table: pd.DataFrame) -> pd.Series:
    assert len(table) == 1
    return table.iloc[0]


THREE = grid({"a": [[0.80, 0.78, 0.70], [0.79, 0.71, 0.60], [0.79, 0.75, 0.78]]})
"""Full model .80, so faithful is above .77: seed 0 up to .4, seed 1 up to .2, seed 2 at .2 and .6 (not at .4)."""


def test_sizes_then_mean_by_hand():
    row = only(effective_size(THREE, whole(a=0.8), {"all": ["a"]}))
    assert (row["checkpoint"], row["splits"], row["n_seeds"], row["full"]) == (1, "all", 3, 0.8)
    assert row["size"] == pytest.approx((0.6 + 0.8 + 0.4) / 3) and row["sparsity"] == pytest.approx(0.4)
    # sd .2, t(2, .975) = 4.3027: .6 -+ .4968, cut at 1
    assert (row["low"], row["high"]) == pytest.approx((0.1032, 1.0), abs=1e-4)
    assert row["flags"] == ("not monotone: 1 of 3 seeds", "at the sparsest of the grid (0.6): 1 of 3 seeds")


def test_accuracies_averaged_first_by_hand():
    row = only(effective_size(THREE, whole(a=0.8), {"all": ["a"]}, average="accuracies"))
    # Means .7933, .7467, .6933: only .2 is faithful.
    assert row["size"] == pytest.approx(0.8) and row["n_seeds"] == 3 and row["flags"] == ()
    # Half widths .0143, .0873, .2240: the lower ends .7790, .6594, .4693 and the upper ends .8077, .8340, .9173.
    assert (row["low"], row["high"]) == pytest.approx((0.4, 0.8))


def test_one_seed_has_no_interval():
    for average in ("sizes", "accuracies"):
        row = only(effective_size(THREE.query("seed == 1"), whole(a=0.8), {"all": ["a"]}, average=average))
        assert row["size"] == pytest.approx(0.8) and np.isnan([row["low"], row["high"]]).all()


def test_exactly_the_tolerance_below_is_not_faithful():
    """Whatever floats make of it: .93 - .03 is a little more than .9, .33 - .03 a little less than .3 or not."""
    for percent in range(4, 101):
        full = whole(a=percent / 100)
        edge = [[(percent - 3) / 100, (percent - 4) / 100, 0.0]]
        assert only(effective_size(grid({"a": edge}), full, {"all": ["a"]}))["size"] == 1, percent
        inside = [[(percent - 2) / 100, (percent - 2.9) / 100, 0.0]]
        assert only(effective_size(grid({"a": inside}), full, {"all": ["a"]}))["size"] == pytest.approx(0.6), percent


def test_nothing_faithful_is_the_whole_model():
    row = only(effective_size(grid({"a": [[0.5, 0.4, 0.3]] * 2}), whole(a=0.8), {"all": ["a"]}))
    assert row["size"] == 1 and row["sparsity"] == 0
    assert row["flags"] == ("nothing faithful on the grid: 2 of 2 seeds",)


def test_groups_are_weighted_means():
    # b falls by .08 at .4: plain mean of three -.08 / 3 = -.0267 (faithful); half the weight on b -.04 (not).
    accuracies = grid({"a": [[0.9, 0.9, 0.1]], "b": [[0.5, 0.42, 0.1]], "c": [[0.9, 0.9, 0.1]]})
    groups = {"plain": ["a", "b", "c"], "half b": {"a": 1, "c": 1, "b": 2}, "none of b": {"a": 0.5, "c": 0.5, "b": 0}}
    table = effective_size(accuracies, whole(a=0.9, b=0.5, c=0.9), groups).set_index("splits")
    assert table["size"].to_dict() == pytest.approx({"plain": 0.6, "half b": 0.8, "none of b": 0.6})
    assert table["full"].to_dict() == pytest.approx({"plain": 2.3 / 3, "half b": 0.7, "none of b": 0.9})


def test_checkpoints_keep_their_order_and_their_own_grid():
    late = grid({"a": [[0.9, 0.2]]}, (0.1, 0.3), checkpoint=500)
    full = pd.concat([whole(1, a=0.8), whole(500, a=0.9)])
    table = effective_size(pd.concat([late, THREE]), full, {"all": ["a"]})
    assert table["checkpoint"].tolist() == [500, 1] and table["size"].tolist() == pytest.approx([0.9, 0.6])


# The mean of the four out-of-domain subcases at step 42,500, sparsities 5, 10 ... 70 %, seeds 42 to 44 (published files).
PUBLISHED = [
    [0.143, 0.453, 0.418, 0.446, 0.325, 0.456, 0.449, 0.287, 0.259, 0.072, 0.018, 0.004, 0.001, 0.0],
    [0.077, 0.457, 0.442, 0.514, 0.393, 0.381, 0.236, 0.279, 0.079, 0.041, 0.008, 0.003, 0.002, 0.002],
    [0.079, 0.466, 0.463, 0.446, 0.462, 0.332, 0.297, 0.237, 0.204, 0.09, 0.027, 0.007, 0.009, 0.001],
]


@pytest.mark.parametrize(("average", "size"), [("sizes", 73.3), ("accuracies", 80.0)])
def test_one_published_figure(average, size):
    accuracies = grid({"ood": PUBLISHED}, np.arange(5, 75, 5) / 100, 42500)
    row = only(effective_size(accuracies, whole(42500, ood=0.47625), {"OOD": ["ood"]}, average=average))
    assert round(100 * row["size"], 1) == size
    assert any("not monotone" in flag for flag in row["flags"])  # nothing passes at 5 %, as the pruner stumbles there


SPEC = {  # percent of units kept, checkpoints 500, 6500 ... 54500: size per seed then mean; accuracies averaged first
    "ID": ("50.0 51.7 50.0 48.3 50.0 48.3 50.0 48.3 45.0 48.3", "50 55 50 50 50 50 50 50 45 50"),
    "OOD": ("30.0 30.0 96.7 93.3 93.3 83.3 93.3 73.3 78.3 76.7", "30 30 100 90 90 90 90 80 75 80"),
    "half": ("35.0 41.7 75.0 83.3 88.3 76.7 90.0 73.3 73.3 76.7", None),
    "mixed": ("30.0 35.0 85.0 83.3 88.3 76.7 90.0 73.3 78.3 76.7", "30 35 90 90 90 90 90 80 75 80"),
}


@pytest.fixture(scope="module")
def published(shared) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    folder = shared / "published" / "heuristic-core"
    by_seed = json.loads((folder / "mnli-sparsity-grid-acc.json").read_text())
    rows = [
        (int(step), int(percent) / 100, int(seed), split, accuracy)
        for seed, steps in by_seed.items()
        for step, percents in steps.items()
        for percent, splits in percents.items()
        for split, accuracy in splits.items()
    ]
    over_ft = json.loads((folder / "mnli-acc_over_ft.json").read_text())
    full = [(int(step), split, accuracy) for step, of in over_ft.items() for split, accuracy in of.items()]
    ood = [split for split in over_ft["500"] if split not in IN_DOMAIN]
    half = dict.fromkeys(IN_DOMAIN, 0.25) | dict.fromkeys(ood, 0.125)
    groups = {"ID": IN_DOMAIN, "OOD": ood, "half": half, "mixed": [*IN_DOMAIN, *ood]}
    return pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(full, columns=["checkpoint", "split", "accuracy"]), groups


@pytest.mark.parametrize(("column", "average"), enumerate(("sizes", "accuracies")))
def test_all_published_figures(published, column, average):
    table = effective_size(*published, average=average)
    for group, expected in SPEC.items():
        if expected[column] is not None:
            ours = (100 * table[table["splits"] == group]["size"]).round(1).tolist()
            assert ours == [float(figure) for figure in expected[column].split()], group


def test_published_floors_and_failed_runs_are_flagged(published):
    accuracies, full, groups = published
    always = [(split, "entailment", 0.0 if split in groups["OOD"] else 0.35) for split in groups["mixed"]]
    known = pd.DataFrame(always, columns=["split", "floor", "accuracy"])
    table = effective_size(accuracies, full, groups, floors=known).set_index(["splits", "checkpoint"])["flags"]
    at_floor = [step for step in table["OOD"].index if any("no better than a floor" in f for f in table["OOD", step])]
    assert at_floor == [500, 6500]  # the 30 % of the table's first two columns is the grid's end, not a small circuit
    assert "at the sparsest of the grid (0.7): 3 of 3 seeds" in table["OOD", 500]
    assert not any("floor" in flag for flags in table["ID"] for flag in flags)
    # Six runs of 420 have -1 throughout: they failed.
    missing = {step: f for step, flags in table["OOD"].items() for f in flags if "missing" in f}
    assert missing == {
        **dict.fromkeys((500, 12500, 30500, 48500), "1 of 42 runs missing"),
        18500: "2 of 42 runs missing",
    }


def test_missing_runs_are_left_out():
    """Absent, nan and -1 are one thing; the mean is then over the other seeds."""
    gone = (THREE["seed"] == 1) & (THREE["sparsity"] == 0.4)
    tables = [
        THREE[~gone],
        THREE.assign(accuracy=THREE["accuracy"].mask(gone)),
        THREE.assign(accuracy=THREE["accuracy"].mask(gone, -1)),
    ]
    for table in tables:
        row = only(effective_size(table, whole(a=0.8), {"all": ["a"]}))
        assert row["size"] == pytest.approx(0.6) and row["flags"][-1] == "1 of 9 runs missing"
        # Means .7933, (.78 + .75) / 2 = .765, .6933.
        assert only(effective_size(table, whole(a=0.775), {"all": ["a"]}, average="accuracies"))["size"] == 0.6
    # At .4 a single run is left: its mean has no interval, so that sparsity may be faithful or not.
    alone = THREE.query("sparsity != 0.4 or seed == 0")
    row = only(effective_size(alone, whole(a=0.8), {"all": ["a"]}, average="accuracies"))
    assert (row["size"], row["low"], row["high"]) == pytest.approx((0.6, 0.4, 0.8))


def flags_of(accuracies, full, splits, **options) -> tuple[str, ...]:
    return only(effective_size(accuracies, full, {"g": splits}, **options))["flags"]


def floor_table(**by_floor: dict[str, float]) -> pd.DataFrame:
    rows = [(s, floor.replace("_", " "), a) for floor, of in by_floor.items() for s, a in of.items()]
    return pd.DataFrame(rows, columns=["split", "floor", "accuracy"])


FLAT = [[0.5, 0.3, 0.2]]


def test_floor_of_a_constant_answer():
    """`hard` is all `no`, `easy` all `yes`: a constant answer scores 0 or 1, and its 1 is no floor."""
    known = floor_table(yes={"hard": 0.0, "easy": 1.0}, no={"hard": 1.0, "easy": 0.0})
    accuracies = grid({"hard": FLAT, "easy": FLAT})

    def found(splits, hard: float, easy: float) -> list[str]:
        return [f for f in flags_of(accuracies, whole(hard=hard, easy=easy), splits, floors=known) if "floor" in f]

    assert found(["hard"], 0.031, 1.0) == []
    assert found(["hard"], 0.03, 1.0) == ["the full model (0.030) is no better than a floor: always yes 0.000"]
    assert found(["hard"], 0.99, 1.0) == []  # "always no" is right on every example there
    assert found(["hard", "easy"], 0.9, 0.9) == []
    # Over both, each constant answer earns a half, and has no sole label to hide behind.
    assert found(["hard", "easy"], 0.02, 1.0) == [
        "the full model (0.510) is no better than a floor: always yes 0.500, always no 0.500",
        "the full model is within the tolerance of a floor on hard (0.020: always yes)",
    ]
    assert found(["hard", "easy"], 0.3, 0.2)[0].startswith("the full model (0.250) is no better than a floor")


def test_floor_of_everything_ablated():
    """What is left with everything ablated is a subnetwork too: a floor wherever it stands, at 1 as well."""
    accuracies = grid({"hard": FLAT})
    for at, is_flagged in ((0.0, False), (0.46, False), (0.47, True), (0.5, True), (1.0, True)):
        known = floor_table(everything_ablated={"hard": at})
        flags = flags_of(accuracies, whole(hard=0.5), ["hard"], floors=known)
        text = f"the full model (0.500) is no better than a floor: everything ablated {at:.3f}"
        assert (text in flags) == is_flagged, at


def test_floors_may_differ_by_checkpoint():
    known = pd.concat(
        [floor_table(everything_ablated={"a": at}).assign(checkpoint=c) for c, at in ((1, 0.0), (2, 0.9))]
    )
    accuracies = pd.concat([grid({"a": FLAT}, checkpoint=c) for c in (1, 2)])
    table = effective_size(accuracies, pd.concat([whole(1, a=0.5), whole(2, a=0.5)]), {"g": ["a"]}, floors=known)
    assert [any("floor" in flag for flag in flags) for flags in table["flags"]] == [False, True]


def test_companions_that_fall():
    """Full .5 / .9. Seed 0 drifts to the other answer from .4 on; seed 1 falls by exactly 3 points, which is not more."""
    accuracies = grid({"hard": [[0.5, 0.6, 0.7], [0.5, 0.5, 0.1]], "easy": [[0.9, 0.8, 0.1], [0.87, 0.87, 0.2]]})
    full, companions = whole(hard=0.5, easy=0.9), {"hard": "easy", "elsewhere": "nowhere"}
    flags = flags_of(accuracies, full, ["hard"], companions=companions)
    assert "subnetworks are faithful while the companion falls on hard (2 of 6, 1 of which set the size)" in flags
    assert not any("companion" in flag for flag in flags_of(accuracies, full, ["hard"]))
    assert not any("companion" in flag for flag in flags_of(accuracies, full, ["easy"], companions=companions))
    held = grid({"hard": [[0.5, 0.4, 0.3]], "easy": [[0.9, 0.1, 0.1]]})  # it falls where nothing passes
    assert flags_of(held, full, ["hard"], companions=companions) == ()


@pytest.mark.parametrize(
    ("curve", "is_flagged"),
    [
        ([0.80, 0.78, 0.50], False),
        ([0.60, 0.62, 0.40], False),  # a rise within the tolerance
        ([0.60, 0.64, 0.40], True),  # one beyond it
        ([0.77, 0.78, 0.50], True),  # faithful although a denser one is not, by however little
        ([0.84, 0.80, 0.50], True),  # better than the full model by more than the tolerance
        ([np.nan, 0.78, 0.50], False),  # a missing run is not an unfaithful one
    ],
)
def test_curves_that_are_not_monotone(curve, is_flagged):
    flags = flags_of(grid({"a": [curve]}), whole(a=0.8), ["a"])
    assert ("not monotone" in flags) == is_flagged


def test_users_mistakes():
    full, groups = whole(a=0.8), {"all": ["a"]}
    wrong = {
        "choose 'sizes' or 'accuracies'": lambda: effective_size(THREE, full, groups, average="mean"),
        "tolerance=3 must be an accuracy": lambda: effective_size(THREE, full, groups, tolerance=3),
        "has no column 'seed'": lambda: effective_size(THREE.drop(columns="seed"), full, groups),
        "accuracies has two rows for checkpoint 1, sparsity 0.2, seed 0, split a": lambda: effective_size(
            pd.concat([THREE, THREE]), full, groups
        ),
        "sparsity 20.0: give shares": lambda: effective_size(
            THREE.assign(sparsity=100 * THREE["sparsity"]), full, groups
        ),
        "full has accuracy 80: give shares": lambda: effective_size(THREE, whole(a=80), groups),
        "full has accuracy nan": lambda: effective_size(THREE, whole(a=float("nan")), groups),
        "accuracies has no split 'b' of checkpoint 1, only: a": lambda: effective_size(THREE, full, {"x": ["a", "b"]}),
        "full has no split 'a' of checkpoint 1, only: none": lambda: effective_size(THREE, whole(2, a=0.8), groups),
        "no split 'easy'": lambda: effective_size(THREE, full, groups, companions={"a": "easy"}),
        "floors has no accuracy of 'yes' on 'a'": lambda: effective_size(
            THREE, full, groups, floors=floor_table(yes={"b": 0.0})
        ),
        "the group 'all' is 'a': give a list": lambda: effective_size(THREE, full, {"all": "a"}),
        "whose weights are at least 0": lambda: effective_size(THREE, full, {"all": {"a": -1.0}}),
        "accuracies is empty": lambda: effective_size(THREE[:0], full, groups),
        "cores is empty": lambda: tables_of({}),
    }
    for match, call in wrong.items():
        with pytest.raises(CoreLensError, match=match):
            call()


def test_the_papers_groups():
    task = random_task()
    assert split_groups(task) == {
        "ID": {"dev": 1},
        "OOD": {"hard": 1},
        "mixed": {"dev": 1, "hard": 1},
        "mixed, half ID": {"dev": 0.5, "hard": 0.5},
        "OOD, balanced": {"hard": 1, "easy": 1},
    }
    more = [Split(f"id{i}", "id", task.split("dev").data) for i in range(2)]
    other = [Split(f"ood{i}", "ood", task.split("hard").data, task.split("hard").collapse) for i in range(4)]
    weights = split_groups(Task("six", task.labels, (*more, *other)))
    assert list(weights.pop("mixed, half ID").values()) == [0.25] * 2 + [0.125] * 4
    assert {name: len(of) for name, of in weights.items()} == {"ID": 2, "OOD": 4, "mixed": 6}


def test_floors_of_a_model_by_a_second_way():
    task, model = random_task(), hooked()
    means = means_of(model)
    like = Subnetwork.of(model, ["L0.H0"], means)
    table = floors(model, task, like).set_index(["split", "floor"])["accuracy"]
    for name in ("dev", "hard", "easy"):
        split = task.split(name)
        gold = split.data["label"].to_numpy()
        right = np.empty(len(split), dtype=bool)
        with inject(model, like.units, means, torch.zeros(len(like.units))), torch.no_grad():
            for rows, inputs in batches(encode(split, model.tokenizer), 7):
                said = [task.labels[i] for i in logits(model, inputs).argmax(-1).tolist()]
                right[rows] = [split.collapse.get(label, label) == gold[r] for label, r in zip(said, rows.tolist())]
        assert table[name, "everything ablated"] == pytest.approx(right.mean())
    counts = task.split("dev").data["label"].value_counts(normalize=True)
    assert {label: table["dev", label] for label in task.labels} == pytest.approx(counts.to_dict())
    # HANS knows two labels: neutral and contradiction are one answer there.
    assert [table["hard", label] for label in ("entailment", "neutral", "contradiction")] == [0, 1, 1]
    assert [table["easy", label] for label in ("entailment", "neutral", "contradiction")] == [1, 0, 0]


@pytest.mark.filterwarnings("ignore::core_lens.errors.CoreLensWarning")
def test_from_runs_to_sizes():
    task, model = random_task(), hooked()
    core = find_core(model, task, [0.3, 0.5], [1, 2], RandomPruner(), device="cpu")
    accuracies, full = tables_of({7: core, 8: core})
    assert len(accuracies) == 2 * 2 * 2 * 3 and set(accuracies["checkpoint"]) == {7, 8}
    for sparsity, seed in product((0.3, 0.5), (1, 2)):
        predicted = core.predictions[f"{sparsity}-seed{seed}"].query("split == 'dev'")
        columns = [f"logit_{label}" for label in task.labels]
        said = np.array(task.labels)[predicted[columns].to_numpy().argmax(1)]
        ours = accuracies.query("checkpoint == 7 and sparsity == @sparsity and seed == @seed and split == 'dev'")
        assert only(ours)["accuracy"] == pytest.approx((said == predicted["label"]).mean())
    known = floors(model, task, core.subnetworks[0])
    table = effective_size(accuracies, full, split_groups(task), floors=known, companions={"hard": "easy"})
    assert table["checkpoint"].tolist() == [7] * 5 + [8] * 5
    assert table["size"].between(0.5, 1).all() and table["flags"].map(lambda flags: isinstance(flags, tuple)).all()
    without = Core(core.subnetworks, core.evaluation.query("metric != 'accuracy'"), core.predictions)
    with pytest.raises(CoreLensError, match="has no accuracies"):
        tables_of({1: without})
