"""The lottery study: what it reports is what its tickets score, by another path; and it continues where it stopped."""

import shutil
import warnings
from dataclasses import replace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertModel

from builders import frame
from core_lens import (
    CoreLensError,
    ImportancePruner,
    Lottery,
    MagnitudePruner,
    Split,
    Subnetwork,
    Task,
    WeightMask,
    evaluate,
    finetune,
)
from core_lens.lottery import SUPER, TICKETS, _halved, _seeds, _Study, lottery
from core_lens.tasks import split_clusters
from tiny_models import LABELS, tiny_config, tiny_tokenizer

TRAINING = {"steps": 60, "batch_size": 16, "learning_rate": 3e-3}


def task(name: str = "word") -> Task:
    """The first word gives the label away, mostly."""
    data = [frame(n, seed, LABELS[:2]) for n, seed in ((160, 0), (80, 1))]
    for part in data:
        cue = part["label"].map({LABELS[0]: "doctor ", LABELS[1]: "lawyer "})
        part["text_a"] = cue.where(part.index % 7 > 0, "judge ") + part["text_a"]
        part["cluster"] = part["text_a"]
    return Task(name, LABELS[:2], (Split("train", "train", data[0]), Split("dev", "id", data[1])), metric="mcc")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "encoder"
    torch.manual_seed(0)
    BertModel(tiny_config("bert", n_heads=4, d_model=32)).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


def settings(**changes) -> dict:
    return {"seeds": [3, 4], "pruner": ImportancePruner(examples=None, stop=0.95), "magnitude": MagnitudePruner(max_steps=3),
            "device": "cpu", **TRAINING} | changes  # fmt: skip


@pytest.fixture(scope="module")
def made(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "lottery"
    return lottery(pretrained, [task(), task("again")], folder, **settings()), folder


def test_every_ticket_is_scored_on_both_halves(made):
    result, folder = made
    keys = result.scores[["task", "seed", "ticket", "how", "split"]].drop_duplicates()
    common = [np.logical_and.reduce([one.mask.numpy() for one in good]).any() for good in result.good.values()]
    assert len(keys) == 2 * 2 * 2 * (1 + 2 * len(TICKETS)) + 2 * 2 * 2 * len(SUPER) * sum(common)
    assert set(result.scores["metric"]) == {"mcc", "accuracy"}
    assert not list(folder.rglob("work")) and not list(folder.rglob("model.safetensors"))


def test_scores_are_those_of_the_tickets(made, pretrained, tmp_path):
    """The same fine-tuning again, then the saved tickets applied to it: as components by hooks, as weights by hand."""
    result, folder = made
    halves = _halved(task(), None, None)
    tuned = finetune(
        pretrained, halves, tmp_path / "full", seed=3, every=100, splits=["seen", "unseen"], device="cpu", **TRAINING
    )
    there = result.scores.query("task == 'word' and seed == 3").set_index(["ticket", "how", "split", "metric"])["value"]
    place = folder / "word" / "seed-3"
    for name in ("s-good", "s-random", "s-bad"):
        subnetwork = Subnetwork.load(place / f"{name}.safetensors")
        table = evaluate(tuned.final, halves, subnetwork, device="cpu").set_index(["split", "metric"])["value"]
        for split in ("seen", "unseen"):
            assert there[name, "pruned", split, "accuracy"] == pytest.approx(table[split, "accuracy"])
            assert there[name, "pruned", split, "mcc"] == pytest.approx(table[split, "mcc"])
    network = AutoModelForSequenceClassification.from_pretrained(tuned.final)
    for name in ("m-good", "m-random", "m-bad"):
        pruned = WeightMask.load(place / f"{name}.safetensors").apply(network)
        table = evaluate(pruned, halves, tokenizer=tiny_tokenizer("bert"), device="cpu").set_index(["split", "metric"])[
            "value"
        ]
        assert there[name, "pruned", "unseen", "accuracy"] == pytest.approx(table["unseen", "accuracy"])
    again = finetune(
        pretrained, halves, tmp_path / "again", seed=3, every=100, splits=["seen", "unseen"], device="cpu", **TRAINING,
        keep=Subnetwork.load(place / "s-bad.safetensors"),
    )  # fmt: skip
    table = again.curve.set_index(["split", "metric"])["value"]
    assert there["s-bad", "retrained", "unseen", "mcc"] == pytest.approx(table["unseen", "mcc"])


def test_tickets_of_a_seed_are_of_one_size_and_good_ones_hold(made):
    result, folder = made
    full = result.scores.query("ticket == 'full' and split == 'seen' and metric == 'mcc'").set_index(["task", "seed"])[
        "value"
    ]
    for row in result.sizes.itertuples():
        place = folder / row.task / f"seed-{row.seed}"
        for name in ("s-good", "s-random", "s-bad"):
            ticket = Subnetwork.load(place / f"{name}.safetensors")
            assert (len(ticket.heads), len(ticket.components) - len(ticket.heads)) == (row.heads, row.mlps)
        shares = [1 - WeightMask.load(place / f"m-{name}.safetensors").sparsity for name in ("good", "random", "bad")]
        assert shares == pytest.approx([row.weights] * 3)
    held = result.scores.query("how == 'pruned' and split == 'seen' and metric == 'mcc'").set_index(
        ["ticket", "task", "seed"]
    )["value"]
    for (name, seed), value in full.items():
        assert held["s-good", name, seed] >= 0.95 * value - 1e-9 and held["m-good", name, seed] >= 0.9 * value - 1e-9


def test_tables_by_hand(made):
    result, _ = made
    table = result.table()
    assert list(table.index)[:3] == [("full", ""), ("s-good", "pruned"), ("s-good", "retrained")]
    values = result.scores.query(
        "task == 'again' and ticket == 'm-bad' and how == 'pruned' and split == 'unseen' and metric == 'mcc'"
    )["value"]
    assert table.loc[("m-bad", "pruned"), ("again", "mean")] == pytest.approx(sum(values) / 2)
    assert table.loc[("m-bad", "pruned"), ("again", "std")] == pytest.approx(
        abs(values.iloc[0] - values.iloc[1]) / 2**0.5
    )
    assert list(result.stability().index) == [("word", "head"), ("again", "head"), ("word", "mlp"), ("again", "mlp")]
    survival = result.survival().query("task == 'word'")
    assert survival["heads"].mean() * 8 == pytest.approx(result.sizes.query("task == 'word'")["heads"].mean())
    assert len(result.overlap()) == 3 and "unseen in pruning" in repr(result)


def test_a_saved_study_is_read_as_it_was_returned(made, tmp_path):
    result, folder = made
    read = Lottery.load(folder)
    order = ["task", "seed", "ticket", "how", "split", "metric"]
    first, second = (one.scores.sort_values(order, ignore_index=True) for one in (result, read))
    pd.testing.assert_frame_equal(first, second)
    assert read.main == result.main == {"word": "mcc", "again": "mcc"}
    for name, masks in result.masks().items():
        kept = {tuple(mask.ravel()) for mask in masks}
        assert kept == {tuple(mask.ravel()) for mask in read.masks()[name]}


def test_an_unfinished_study_has_what_its_tasks_have(made, tmp_path):
    folder = tmp_path / "lottery"
    shutil.copytree(made[1], folder)
    (folder / "again" / "seed-3" / "scores.parquet").unlink()
    one = Lottery.load(folder)
    assert set(one.good) == {"word", "again"} and one.sizes["seed"].tolist() == [4, 4]
    assert not set(SUPER) & set(one.scores["ticket"])  # those in the folder are of two seeds
    (folder / "again" / "seed-4" / "scores.parquet").unlink()
    read = Lottery.load(folder)
    assert list(read.good) == ["word"] and sorted(read.sizes["seed"]) == [3, 4]
    shutil.rmtree(folder / "word")
    with pytest.raises(CoreLensError, match="has no seed that is finished"):
        Lottery.load(folder)
    with pytest.raises(CoreLensError, match="nowhere holds no lottery study"):
        Lottery.load(tmp_path / "nowhere")


def test_tables_and_pictures_are_written(made, tmp_path):
    result, _ = made
    files = {path.name: path for path in result.write(tmp_path / "results")}
    assert set(files) == {path.name for path in (tmp_path / "results").iterdir()} == {
        "scores-seen.csv", "scores-unseen.csv", "sizes.csv", "stability.csv", "overlap.csv", "survival.csv",
        "scores-seen.png", "scores-unseen.png", "survival.png", "overlap.png",
    }  # fmt: skip
    table = pd.read_csv(files["scores-seen.csv"], header=[0, 1], index_col=[0, 1], keep_default_na=False)
    values = result.scores.query(
        "task == 'word' and ticket == 's-bad' and how == 'retrained' and split == 'seen' and metric == 'mcc'"
    )["value"]
    assert float(table.loc[("s-bad", "retrained"), ("word", "mean")]) == pytest.approx(sum(values) / 2)
    assert pd.read_csv(files["sizes.csv"])["heads"].tolist() == result.sizes["heads"].tolist()
    assert len(pd.read_csv(files["stability.csv"])) == 4 and len(pd.read_csv(files["overlap.csv"])) == 3
    for name, path in files.items():
        if name.endswith(".png"):
            assert np.ptp(matplotlib.image.imread(path)) > 0.5  # something is drawn


def test_one_seed_of_one_task_is_written_without_what_needs_two(made, tmp_path):
    folder = tmp_path / "lottery"
    shutil.copytree(made[1], folder)
    shutil.rmtree(folder / "again")
    shutil.rmtree(folder / "word" / "seed-3")
    names = {path.stem for path in Lottery.load(folder).write(tmp_path / "results")}
    assert names == {"scores-seen", "scores-unseen", "sizes", "survival"}


@pytest.fixture(scope="module")
def made_super(made, pretrained, tmp_path_factory):
    """The study again after its good tickets became two that share units."""
    folder = tmp_path_factory.mktemp("super") / "lottery"
    shutil.copytree(made[1], folder)
    for seed, kept in ((3, [0, 1, 2, 8]), (4, [1, 2, 3, 8, 9])):
        path = folder / "word" / f"seed-{seed}" / "s-good.safetensors"
        mask = torch.zeros(10, dtype=torch.bool).index_fill(0, torch.tensor(kept), True)
        replace(Subnetwork.load(path), mask=mask).save(path)
    shutil.rmtree(folder / "word" / "super", ignore_errors=True)
    return lottery(pretrained, [task(), task("again")], folder, **settings()), folder


def test_super_tickets_are_what_all_seeds_keep_and_what_they_keep_least(made_super, pretrained, tmp_path):
    result, folder = made_super
    place = folder / "word" / "super" / "3-4" / "seed-4"
    best, worst = (Subnetwork.load(place / f"{name}.safetensors").mask.nonzero().ravel().tolist() for name in SUPER)
    assert best == [1, 2, 8]
    # Two of the heads that no seed keeps, and the MLP that one of them keeps.
    assert len(worst) == 3 and set(worst[:2]) < {4, 5, 6, 7} and worst[2] == 9
    halves, ticket = _halved(task(), None, None), Subnetwork.load(place / "super-bad.safetensors")
    options = {"seed": 4, "every": 100, "splits": ["seen", "unseen"], "device": "cpu"} | TRAINING
    tuned = finetune(pretrained, halves, tmp_path / "full", **options)
    again = finetune(pretrained, halves, tmp_path / "again", keep=ticket, **options)
    there = result.scores.query("task == 'word' and seed == 4 and metric == 'mcc'").set_index(
        ["ticket", "how", "split"]
    )
    for how, table in (("pruned", evaluate(tuned.final, halves, ticket, device="cpu")), ("retrained", again.curve)):
        value = table.set_index(["split", "metric"])["value"]["unseen", "mcc"]
        assert there["value"]["super-bad", how, "unseen"] == pytest.approx(value)
    assert len(result.table()) == 1 + 2 * len(TICKETS + SUPER)


def test_super_tickets_are_of_the_seeds_asked_for(made_super, pretrained):
    result, folder = made_super
    one = lottery(pretrained, [task(), task("again")], folder, **settings(seeds=[4]))
    assert not set(SUPER) & set(one.scores["ticket"])
    (folder / "word" / "super" / "3-4" / "seed-3" / "scores.parquet").unlink()
    again = lottery(pretrained, [task(), task("again")], folder, **settings(seeds=[4, 3]))
    order = ["task", "seed", "ticket", "how", "split", "metric"]
    first, second = (made.scores.sort_values(order, ignore_index=True) for made in (result, again))
    pd.testing.assert_frame_equal(first, second)
    assert not list(folder.rglob("work"))


def test_it_continues_with_what_is_missing(made, pretrained, monkeypatch):
    result, folder = made
    (folder / "again" / "seed-4" / "scores.parquet").unlink()
    ran, run = [], _Study.run

    def counted(self, task, seed, place):
        ran.append((task.name, seed))
        return run(self, task, seed, place)

    monkeypatch.setattr(_Study, "run", counted)
    second = lottery(pretrained, [task(), task("again")], folder, **settings())
    assert ran == [("again", 4)]
    pd.testing.assert_frame_equal(result.scores, second.scores)
    with pytest.raises(CoreLensError, match="another ablation"):
        lottery(pretrained, [task(), task("again")], folder, **settings(ablation="mean"))


@pytest.mark.parametrize(("reached", "warns"), [(0.56, True), (0.66, False)])
def test_a_stop_that_a_constant_answer_reaches_is_told(reached, warns):
    """55 of 100 examples are of one class: 0.9 x 0.56 = 0.504 is below it, 0.9 x 0.66 = 0.594 above."""
    data = frame(100, 0, LABELS[:2]).assign(label=[LABELS[0]] * 55 + [LABELS[1]] * 45)
    halves = Task("word", LABELS[:2], (Split("seen", "id", data),))
    study = _Study("m", ImportancePruner(), MagnitudePruner(), "zero", True, None, {})
    full = pd.DataFrame(
        [("seen", "accuracy", reached), ("unseen", "accuracy", 0.1)], columns=["split", "metric", "value"]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study._check_stop(halves, 7, full)
    said = [str(one.message) for one in caught]
    assert [one.startswith("word, seed 7: pruning goes down to an accuracy of 0.504") for one in said] == [True] * warns


def test_halves_share_no_premise_and_lose_none():
    halves = _halved(task(), 50, None)
    seen, unseen = (set(halves.split(name).data["cluster"]) for name in ("seen", "unseen"))
    assert not seen & unseen and len(halves.split("seen")) + len(halves.split("unseen")) == 80
    assert len(halves.split("train")) == 50
    first, _ = split_clusters(task().split("dev"), 0.5)
    assert set(first.data["cluster"]) == seen


def test_seeds_are_the_papers():
    assert _seeds(3) == [1337, 42, 86] and _seeds(7)[5:] == [167, 168] and _seeds([9, 1]) == [9, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, "seeds="),
        ({"ablation": "resample"}, "ablation='resample'"),
        ({"pruner": ImportancePruner(stop=None)}, "steps='phases'"),
        ({"max_train": 0}, "max_train=0"),
        ({"stepz": 3}, "stepz= is no setting"),
        ({"tasks": []}, "name at least one task"),
        ({"tasks": [task(), task()]}, "each once"),
        ({"tasks": [replace(task(), splits=task().splits[:1])]}, "no in-domain split"),
    ],
)
def test_mistakes(pretrained, tmp_path, changes, message):
    given = settings(tasks=[task()]) | changes
    with pytest.raises(CoreLensError, match=message):
        lottery(pretrained, given.pop("tasks"), tmp_path / "out", **given)
    assert not (tmp_path / "out" / "lottery.json").exists()


def test_a_mistyped_model_does_not_claim_the_folder(tmp_path):
    with pytest.raises(CoreLensError, match="cannot load"):
        lottery(tmp_path / "absent", [task()], tmp_path / "out", **settings())
    assert not (tmp_path / "out").exists()


def test_masks_are_arrays_by_seed(made):
    result, _ = made
    heads, mlps = result.masks()["word"], result.masks("mlp")["word"]
    assert heads.shape == (2, 2, 4) and mlps.shape == (2, 2)
    assert [int(m.sum()) for m in heads] == result.sizes.query("task == 'word'")["heads"].tolist()
    assert np.array_equal(heads[1].ravel(), result.good["word"][1].mask[:8].numpy())
