"""find_core from end to end on tiny models: what it promises, resumes, and refuses."""

import json
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import core_lens
from builders import frame, hooked, random_task
from core_lens import (
    Core,
    CoreLensError,
    HardConcretePruner,
    ImportancePruner,
    RandomPruner,
    Split,
    Task,
    find_core,
    plan,
)
from core_lens.errors import CoreLensWarning, SavedFileError
from core_lens.evaluate import score
from core_lens.run_folder import status
from core_lens.selection import separate
from tiny_models import LABELS, tiny_model, tiny_tokenizer

QUICK = HardConcretePruner(steps=6, batch_size=8, warm_start=16, examples=64, swaps=3, swap_examples=32)


def run(**changes):
    settings = {"sparsities": [0.3, 0.5], "seeds": [3, 4], "pruner": QUICK, "device": "cpu"} | changes
    return find_core(settings.pop("model", None) or hooked(), settings.pop("task", None) or random_task(), **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(out=folder)
    return folder


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Few seeds warn; the tests that are about warnings ask for them."""


def test_one_call_gives_subnetworks_heads_and_tables():
    core = run()
    assert [s.name for s in core.subnetworks] == ["0.3-seed3", "0.3-seed4", "0.5-seed3", "0.5-seed4"]
    # 6 units: 30 % is 1.8, so 2 go; 50 % is 3.
    assert [len(s.removed) for s in core.subnetworks] == [2, 2, 3, 3]
    everywhere = set.intersection(*(set(s.heads) for s in core.subnetworks))
    assert set(core.heads) == everywhere
    table = core.table()
    assert {"dev", "hard", "easy"} == set(table.index.get_level_values("split"))
    assert ("hard", "balanced_accuracy") in table.index and ("dev", "kl") in table.index
    kl = table.xs("kl", level="metric")
    assert kl["full", "value"].isna().all() and (kl[0.3, "mean"] > 0).all()
    assert any("2 seeds" in note for note in core.notes)


def test_the_tables_can_be_recomputed_from_the_saved_predictions(tmp_path):
    task = random_task()
    core = run(task=task, out=tmp_path / "run")
    back = Core.load(tmp_path / "run")
    name = "0.5-seed3"
    again = score(back.predictions[name], task, teacher=back.predictions["full"])
    ours = back.evaluation[back.evaluation.subnetwork == name][again.columns].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, ours)
    assert back.heads == core.heads
    assert back.provenance["task"] == "random" and back.provenance["model"]["weight_hash"]
    one = back.subnetworks[0].provenance
    assert one["seed"] == 3 and one["asked_sparsity"] == 0.3 and one["versions"]["torch"] and one["data"]["dev"]
    text = (tmp_path / "run" / "predictions" / f"{name}.parquet").read_bytes()
    assert task.split("dev").data["text_a"].iloc[0].encode() not in text  # the data's texts are not copied


def test_an_interrupted_run_continues(tmp_path, monkeypatch):
    whole = run(out=tmp_path / "whole")
    calls = []

    class Interrupting(HardConcretePruner):
        def prune(self, problem, sparsity, seed):
            calls.append((sparsity, seed))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return super().prune(problem, sparsity, seed)

    pruner = Interrupting(**QUICK.config())
    with pytest.raises(KeyboardInterrupt):
        run(pruner=pruner, out=tmp_path / "run")
    with pytest.raises(SavedFileError, match="run the same command again"):
        Core.load(tmp_path / "run")
    core = run(pruner=pruner, out=tmp_path / "run")
    assert len(calls) == 3 + 2  # two runs were there, the third is redone, the fourth was never begun
    assert all(torch.equal(a.scores, b.scores) for a, b in zip(core.subnetworks, whole.subnetworks, strict=True))
    more = run(pruner=pruner, out=tmp_path / "run", seeds=[3, 4, 5])
    assert len(calls) == 5 + 2 and len(more.subnetworks) == 6


def test_another_configuration_is_not_mixed_in(tmp_path):
    run(out=tmp_path / "run")
    with pytest.raises(SavedFileError, match=r"another .*pruner"):
        run(out=tmp_path / "run", pruner=ImportancePruner.one_shot(examples=16))
    with pytest.raises(SavedFileError, match="another .*model"):
        run(out=tmp_path / "run", model=hooked(seed=5))


def test_same_seed_same_masks_bit_for_bit():
    a, b = run(), run()
    assert all(torch.equal(x.scores, y.scores) and torch.equal(x.mask, y.mask)
               for x, y in zip(a.subnetworks, b.subnetworks, strict=True))  # fmt: skip


@pytest.mark.parametrize("ablation", ["zero", "resample"])
@pytest.mark.parametrize("units", ["head", "mlp", ("head", "mlp")])
def test_ablations_and_units(ablation, units):
    core = run(ablation=ablation, units=units, sparsities=0.5, seeds=[1])
    (subnetwork,) = core.subnetworks
    assert subnetwork.replacement.mode == ablation
    assert {c.kind for c in subnetwork.units} == ({units} if isinstance(units, str) else set(units))
    assert subnetwork.sparsity == 0.5


@pytest.mark.parametrize("arch", ["gpt2", "distilbert"])
def test_hf_models_with_their_tokenizer(arch):
    hf = tiny_model(arch)
    before = {k: v.clone() for k, v in hf.state_dict().items()}
    core = run(model=hf, tokenizer=tiny_tokenizer(arch), sparsities=None, seeds=1)
    assert core.sparsities == ([0.4, 0.6] if arch == "gpt2" else [0.3, 0.5])
    assert core.subnetworks[0].seed == 42
    assert all(torch.equal(v, before[k]) for k, v in hf.state_dict().items())


@pytest.mark.parametrize("prune_on", [None, "dev", ["hard", "easy"], {"train": 0.75, "hard": 0.25}])
def test_selected_and_reported_examples_are_disjoint(prune_on):
    """No text pair is on both sides; an evaluation split that masks are selected on shares no premise with any report."""
    task = random_task(80)
    # As on HANS and the lab, a companion has the same premises.
    easy = replace(task.split("easy"), data=task.split("hard").data.assign(label="entailment"))
    task = replace(task, splits=(*(s for s in task.splits if s.name != "easy"), easy))
    selection, reported = separate(task, prune_on, None, 100, None)

    def texts(split):
        return set(zip(split.data["text_a"], split.data["text_b"], strict=True))

    assert not any(texts(selection.split) & texts(split) for split in reported)
    from_train = set(task.split("train").data["cluster"])
    chosen = set(selection.split.data["cluster"]) - from_train
    assert not any(chosen & set(split.data["cluster"]) for split in reported)
    assert sum(map(len, reported)) > 80


def test_mixtures_and_leaks():
    selection, _ = separate(random_task(80), {"train": 0.75, "hard": 0.25}, None, 100, None)
    assert selection.sources == {"train": 75, "hard": 25}
    from_hard = selection.split.data["label"].to_numpy() == "non-entailment"
    assert from_hard.sum() == 25 and selection.gold[from_hard].tolist() == [[False, True, True]] * 25
    # A training set that shares texts with a reported split loses them.
    leaky = Task(
        "leaky",
        LABELS,
        (Split("train", "train", pd.concat([frame(50), frame(30, 1)])), Split("dev", "id", frame(30, 1))),
    )
    selection, _ = separate(leaky, None, None, None, None)
    assert len(selection) == 50


def test_means_are_the_same_for_every_pruner():
    pruners = (QUICK, ImportancePruner.one_shot(examples=32, sample=16), RandomPruner())
    means = [run(pruner=p, sparsities=0.5, seeds=1).subnetworks[0].replacement for p in pruners]
    assert all(torch.equal(m.heads, means[0].heads) and m.n_tokens == means[0].n_tokens for m in means)


def test_a_run_of_another_label_map_or_training_set_is_not_continued(tmp_path):
    run(out=tmp_path / "run")
    swapped = {0: "neutral", 1: "entailment", 2: "contradiction"}
    with pytest.raises(SavedFileError, match="another labels"):
        run(out=tmp_path / "run", label_map=swapped)
    task = random_task()
    other = replace(task, splits=(Split("train", "train", frame(200, 7)), *task.splits[1:]))
    with pytest.raises(SavedFileError, match="another data"):
        run(out=tmp_path / "run", task=other)
    with pytest.raises(SavedFileError, match=r"another run \(it differs in labels"):
        run(label_map=swapped).save(tmp_path / "run")


def test_the_paper_preset_runs_unchanged_on_a_short_model():
    """Padding to 128 stops at what the model has positions for."""
    core = run(pruner=HardConcretePruner.paper(steps=2, batch_size=4), sparsities=0.5, seeds=1)
    assert core.subnetworks[0].sparsity == 0.5


def test_the_selection_is_the_same_for_the_same_data():
    a, b = (separate(random_task(80), None, None, 60, 20) for _ in range(2))
    assert a[0].split.fingerprint() == b[0].split.fingerprint()
    assert [s.fingerprint() for s in a[1]] == [s.fingerprint() for s in b[1]]


def test_the_plan_says_what_will_be_done():
    job = plan(hooked(), random_task(40), [0.5], [1, 2, 3], QUICK, max_examples=20)
    text = str(job)
    for words in (
        "BertForSequenceClassification, 2 layers x 2 heads",
        "6 (heads and MLPs), mean ablation",
        "3 seeds at each of 50%",
        "96 examples forward and backward, drawn from 64 of train",  # 6 x 8 + 16, and a third of 3 x 32 forward only
        "dev 20, hard 20, easy 20",
        "estimate",
    ):
        assert words in text
    assert job.seconds > 0 and np.isfinite(job.seconds)


def test_provenance_is_plain_json(tmp_path):
    run(out=tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert saved["provenance"]["pruner"]["name"] == "hard-concrete"
    assert saved["provenance"]["versions"]["core-lens"] == core_lens.__version__


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sparsities": [0.5, 1.2]}, "sparsity=1.2 must lie strictly between 0 and 1"),
        ({"sparsities": 0}, "sparsity=0 must lie"),
        ({"sparsities": []}, "sparsities is empty"),
        ({"seeds": []}, "seeds="),
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": 2.5}, "seeds=2.5"),
        ({"prune_on": 5}, "prune_on=5"),
        ({"prune_on": {"train": "a"}}, "name at least one split"),
        ({"pruner": HardConcretePruner}, "is no pruner object"),
        ({"units": 5}, "units=5"),
        ({"mean_examples": 0}, "mean_examples=0"),
        ({"pruner": "magic"}, "pruner='magic' is not known"),
        ({"preset": "slow"}, "preset='slow'"),
        ({"ablation": "noise"}, "ablation='noise'"),
        ({"positions": "last"}, "positions='last'"),
        ({"units": "neuron"}, "choose 'head', 'mlp' or both"),
        ({"prune_on": "nope"}, "no split 'nope'"),
        ({"prune_on": {"train": -1}}, "shares above 0"),
        ({"splits": "train"}, "no split to report on"),
        ({"task": "mmnli"}, "no task 'mmnli'"),
        ({"label_map": {0: "yes"}}, "label"),
        ({"model": "no/such/folder"}, "no/such/folder"),
        ({"model": 7}, "7 is no model"),
        ({"max_examples": 0}, "max_examples=0"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_mistakes_end_in_one_sentence(changes, words):
    with pytest.raises(CoreLensError) as caught:
        run(**changes)
    text = str(caught.value)
    assert words in text and "\n" not in text and text.endswith((".", "?", ")"))


def test_an_unwritable_folder_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedFileError, match="choose another one"):
        run(model="no/such/model", out=tmp_path / "file" / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(SavedFileError, match="other things"):
        run(out=tmp_path / "mine")


@pytest.mark.parametrize(
    "file", ["subnetworks/0.3-seed3.safetensors", "predictions/0.3-seed3.parquet", "runs/0.3-seed3.json"]
)
@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_a_damaged_run_is_named_and_made_again(tmp_path, finished, file, how):
    shutil.copytree(finished, tmp_path / "run")
    victim = tmp_path / "run" / file
    before = victim.read_bytes()
    changed = bytearray(before)
    changed[len(before) // 2] ^= 1
    victim.unlink() if how == "gone" else victim.write_bytes(before[:-9] if how == "cut" else bytes(changed))
    if file.startswith("runs/") and how == "gone":  # as if it had not been finished
        core = run(out=tmp_path / "run")
    else:
        with pytest.warns(CoreLensWarning, match=r"0\.3-seed3\S* is damaged.*run 0\.3-seed3 is made again"):
            core = run(out=tmp_path / "run")
    whole = Core.load(finished)
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(core.subnetworks, whole.subnetworks, strict=True))
    assert Core.load(tmp_path / "run").heads == whole.heads
    logs = {path.stem: path.read_text().count(" finished in ") for path in (tmp_path / "run/runs").glob("*.log")}
    assert logs == {"0.3-seed3": 2, "0.3-seed4": 1, "0.5-seed3": 1, "0.5-seed4": 1}


def test_a_cache_that_is_damaged_is_made_again(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    kept = sorted((tmp_path / "run/shared").iterdir())
    assert [path.name.split("-")[0] for path in kept] == ["means", "teacher"]
    before = [path.read_bytes() for path in kept]
    for path in kept:
        path.write_bytes(path.read_bytes()[:-4])
    run(out=tmp_path / "run", seeds=[3, 4, 5])
    assert [path.read_bytes() for path in kept] == before


def test_runs_that_fail_leave_the_others(tmp_path):
    class Failing(HardConcretePruner):
        bad: ClassVar = {(0.3, 4)}

        def prune(self, problem, sparsity, seed):
            if (sparsity, seed) in self.bad:
                raise FloatingPointError("the loss is NaN at step 3")
            return super().prune(problem, sparsity, seed)

    pruner, folder = Failing(**QUICK.config()), tmp_path / "run"
    with pytest.raises(CoreLensError, match=r"1 of 4 runs failed \(0.3-seed4\).*the loss is NaN at step 3"):
        run(pruner=pruner, out=folder)
    table = status(folder).set_index("run")
    assert table["state"].to_dict() == {
        "0.3-seed3": "done",
        "0.3-seed4": "failed",
        "0.5-seed3": "done",
        "0.5-seed4": "done",
    }
    assert "NaN at step 3" in table.loc["0.3-seed4", "error"] and table.loc["0.5-seed4", "seconds"] > 0
    assert "Traceback" in (folder / "runs/0.3-seed4.log").read_text()
    Failing.bad = set()
    assert len(run(pruner=pruner, out=folder).subnetworks) == 4
    assert set(status(folder)["state"]) == {"done"}
    assert (folder / "runs/0.5-seed4.log").read_text().count("begun") == 1
    with pytest.raises(FloatingPointError):  # nothing to keep it in
        Failing.bad = {(0.3, 3)}
        run(pruner=pruner)


def test_status_while_it_runs(tmp_path):
    seen = []

    class Looking(HardConcretePruner):
        def prune(self, problem, sparsity, seed):
            seen.append(status(tmp_path / "run")["state"].tolist())
            return super().prune(problem, sparsity, seed)

    run(pruner=Looking(**QUICK.config()), out=tmp_path / "run", sparsities=[0.5])
    assert seen == [["begun", "waiting"], ["done", "begun"]]
    with pytest.raises(SavedFileError, match="is no run"):
        status(tmp_path)
