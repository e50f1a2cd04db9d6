"""Sweeps: the same results through every executor, each configuration under its own key, and what survives what."""

import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import core_lens
from builders import random_task
from core_lens import (
    Core,
    CoreLensError,
    HardConcretePruner,
    LocalWorkers,
    RandomPruner,
    Sweep,
    find_core,
    runs,
    sweep,
    sweep_status,
)
from core_lens.errors import PruningError, SavedFileError
from core_lens.workers import call_each
from tiny_models import tiny_model, tiny_tokenizer

QUICK = HardConcretePruner(steps=4, batch_size=8, warm_start=16, examples=64, swaps=2, swap_examples=32)
TASK = random_task(20)
SETTINGS = {"sparsities": [0.3, 0.5], "seeds": [3, 4], "device": "cpu", "max_examples": 20}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*with fewer than 5 the intersection is loose"),
    pytest.mark.filterwarnings("ignore:.*hardly differ"),
]


@dataclass(frozen=True)
class Unlucky(RandomPruner):
    """Fails where the seed is 4."""

    @property
    def name(self):
        return "unlucky"

    def prune(self, problem, sparsity, seed):
        if seed == 4:
            raise FloatingPointError("the loss is NaN at step 3")
        return super().prune(problem, sparsity, seed)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two checkpoints of one model, as a fine-tuning leaves them."""
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        tiny_model("bert", seed=seed).save_pretrained(root / f"step-{seed}")
        tiny_tokenizer("bert").save_pretrained(root / f"step-{seed}")
    return [root / "step-0", root / "step-1"]


@pytest.fixture(scope="module")
def alone(models, tmp_path_factory):
    """One run of `find_core`, in this process."""
    return find_core(models[0], TASK, pruner=QUICK, out=tmp_path_factory.mktemp("alone") / "run", **SETTINGS)


@pytest.fixture(scope="module")
def workers():
    with LocalWorkers(2, gpus=()) as pool:
        yield pool


def same(a, b):
    assert [s.name for s in a.subnetworks] == [s.name for s in b.subnetworks]
    assert all(torch.equal(x.mask, y.mask) for x, y in zip(a.subnetworks, b.subnetworks, strict=True))
    ours, theirs = (core.evaluation["value"].to_numpy() for core in (a, b))
    assert np.allclose(ours, theirs, atol=1e-5, equal_nan=True)


def where():
    return os.getpid(), torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def slow_square(x, seconds=0.0):
    time.sleep(seconds)
    if x == 13:
        raise ValueError("unlucky")
    if x == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def test_local_workers_divide_the_threads(workers):
    found = {future.result() for future in [workers.submit(where) for _ in range(6)]}
    cores = len(os.sched_getaffinity(0))
    assert os.getpid() not in {pid for pid, *_ in found}
    assert {threads for _, threads, _ in found} == {max(cores // 2, 1)} and workers.threads == max(cores // 2, 1)


def test_every_call_ends_in_a_result_or_its_own_error(workers):
    found = {
        item[0]: (value, error)
        for item, value, error in call_each(workers, slow_square, [(i,) for i in range(10, 16)], "x")
    }
    assert {x: value for x, (value, _) in found.items()} == {10: 100, 11: 121, 12: 144, 13: None, 14: 196, 15: 225}
    assert isinstance(found[13][1], ValueError) and all(error is None for x, (_, error) in found.items() if x != 13)


def test_a_worker_that_dies_takes_only_its_own_call_down(workers):
    items = [(1, 0.2), (99,), (2, 0.2), (3, 0.2)]
    found = {item[0]: (value, error) for item, value, error in call_each(workers, slow_square, items, "x")}
    assert {x: value for x, (value, _) in found.items()} == {1: 1, 2: 4, 3: 9, 99: None}
    assert found[99][1] is not None


class Polled:
    """A job as submitit has it: it can be asked whether it is done."""

    def __init__(self, call, args):
        self.call, self.args, self.asked = call, args, 0

    def done(self):
        self.asked += 1
        return self.asked > 2

    def result(self):
        return self.call(*self.args)

    def cancel(self):
        pass


def test_jobs_that_are_no_futures_are_polled():
    class Executor:
        def submit(self, call, *args):
            return Polled(call, args)

    found = {item[0]: value for item, value, _ in call_each(Executor(), slow_square, [(2,), (3,)], "x")}
    assert found == {2: 4, 3: 9}


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_an_executor_gives_the_same_core(models, alone, workers, tmp_path, kind):
    with ThreadPoolExecutor(2) as threads:
        executor = {"local": workers, "threads": threads}[kind]
        core = find_core(models[0], TASK, pruner=QUICK, out=tmp_path / "run", executor=executor, **SETTINGS)
    same(core, alone)
    same(Core.load(tmp_path / "run"), alone)
    logs = [path.read_text() for path in (tmp_path / "run/runs").glob("*.log")]
    assert len(logs) == 4 and all(text.count("begun") == text.count("finished in") == 1 for text in logs)
    # A finished run is read, and more seeds are added to it.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/subnetworks").iterdir()}
    more = {**SETTINGS, "seeds": [3, 4, 5]}
    core = find_core(models[0], TASK, pruner=QUICK, out=tmp_path / "run", executor=workers, **more)
    assert len(core.subnetworks) == 6
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_process_loads_a_model_once_for_all_its_runs(models, tmp_path, monkeypatch):
    """Orders arrive as copies."""
    loads = []
    real = runs.plan
    monkeypatch.setattr(runs, "plan", lambda *given, **more: loads.append(given) or real(*given, **more))

    class Copying:
        def submit(self, call, *args):
            return Polled(call, pickle.loads(pickle.dumps(args)))

    find_core(models[0], TASK, pruner=RandomPruner(), out=tmp_path / "run", executor=Copying(), **SETTINGS)
    assert len(loads) == 1


def test_orders_hold_whole_paths_and_lists(models, tmp_path, monkeypatch):
    """The other process may be in another folder, and an iterator cannot be sent."""
    monkeypatch.chdir(models[0].parent)
    order = runs.Order.of("step-0", {"data_dir": "step-1", "task": "mnli"}, tmp_path, tmp_path, {})
    assert order.model == str(models[0].resolve()) and order.settings == {
        "data_dir": str(models[1].resolve()),
        "task": "mnli",
    }
    assert runs.Order.of("someone/bert", {}, tmp_path, tmp_path, {}).model == "someone/bert"
    given = {**SETTINGS, "sparsities": iter([0.3, 0.5])}
    with ThreadPoolExecutor(1) as threads:
        core = find_core("step-0", TASK, pruner=RandomPruner(), out=tmp_path / "run", executor=threads, **given)
    assert core.sparsities == [0.3, 0.5]


def test_an_executor_needs_names(models, workers):
    with pytest.raises(CoreLensError, match="name the model by its hub id or folder"):
        find_core(tiny_model("bert"), TASK, executor=workers, out="x")
    with pytest.raises(CoreLensError, match="a folder for out="):
        find_core(models[0], TASK, executor=workers)


@pytest.fixture(scope="module")
def swept(models, workers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    return folder, sweep(models, [TASK], folder, pruners=[QUICK, RandomPruner()], executor=workers, **SETTINGS)


def test_a_sweep_is_find_core_for_every_combination(models, alone, swept):
    folder, found = swept
    assert found.runs[["model", "task", "pruner"]].to_numpy().tolist() == [
        [str(model), "random", pruner] for model in models for pruner in ("hard-concrete", "random")
    ]
    first = found.runs.query("pruner == 'hard-concrete'")["folder"].iloc[0]
    same(found.cores[first], alone)
    table = found.table()
    assert set(table["model"]) == {str(model) for model in models} and len(table) == 4 * len(alone.evaluation)
    kept = sorted(path.name.split("-")[0] for path in (folder / "shared").iterdir())
    assert kept == ["means"] * 2 + ["teacher"] * 2  # once for each model: both pruners select on all there is
    states = sweep_status(folder)
    assert set(states["state"]) == {"done"} and len(states) == 16
    assert "Sweep of 4 runs" in repr(found)


def test_a_sweep_continues_and_another_configuration_has_another_key(models, swept, tmp_path, capsys):
    folder, _ = swept
    again = sweep(models[:1], [TASK], folder, pruners=[QUICK], **SETTINGS)
    assert "0 runs to make, 4 are there" in capsys.readouterr().err and len(again.runs) == 1
    changed = sweep(models[:1], [TASK], folder, pruners=[QUICK], **{**SETTINGS, "ablation": "zero"})
    said = capsys.readouterr().err
    assert "4 runs to make" in said and "has another ablation" in said
    assert len(changed.runs) == 1 and len(Sweep.load(folder).runs) == 5
    with pytest.raises(SavedFileError, match="no finished run"):
        Sweep.load(tmp_path)


def test_failing_runs_are_reported_and_the_others_are_kept(models, workers, tmp_path):
    with pytest.raises(
        PruningError, match=r"2 of 8 runs failed.*FloatingPointError: the loss is NaN at step 3"
    ) as caught:
        sweep(models[:1], [TASK], tmp_path, pruners=[Unlucky(), RandomPruner()], executor=workers, **SETTINGS)
    assert "the others are in" in str(caught.value)
    assert Sweep.load(tmp_path).runs["pruner"].tolist() == ["random"]
    states = sweep_status(tmp_path)
    assert states["state"].value_counts().to_dict() == {"done": 6, "failed": 2}
    assert set(states.query("state == 'failed'")["run"]) == {"0.3-seed4", "0.5-seed4"}
    assert states.query("state == 'failed'")["error"].str.contains("NaN at step 3").all()


@pytest.mark.parametrize(("changes", "message"), [
    ({"models": []}, "models=\\[\\]"),
    ({"models": "lab"}, "models='lab': give a list"),
    ({"tasks": "lab"}, "tasks='lab'"),
    ({"pruners": ["magic"]}, "magic"),
    ({"models": ["lab", "lab"], "tasks": ["lab"]}, "in the sweep twice"),
    ({"models": ["./nowhere"]}, "nowhere"),
    ({"models": None}, "models=None: give a list"),
    ({"tasks": TASK}, "tasks=.*: give a list"),
    ({"pruners": RandomPruner()}, "pruners=.*: give a list"),
    ({"seeds": 2.5}, "seeds=2.5"),
    ({"seeds": [2**70]}, "seeds=.*from 0 on"),
    ({"sparsities": "0.5"}, "sparsity='0.5'"),
    ({"sparsities": [0.5, 0.5000001]}, "equal to six digits"),
    ({"positions": "nope"}, "positions='nope'"),
    ({"pruner": "random"}, "no setting 'pruner'"),
    ({"executor": LocalWorkers}, "is no executor"),
    ({"out": ""}, "names no folder"),
    ({"out": None}, "names no folder"),
])  # fmt: skip
def test_mistakes_are_found_before_a_run_is_begun(models, tmp_path, changes, message):
    given = {"models": models, "tasks": [TASK], "out": tmp_path, "pruners": [RandomPruner()], **SETTINGS, **changes}
    with pytest.raises(CoreLensError, match=message):
        sweep(**given)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_names_from_outside_stay_in_the_folder(tmp_path, models):
    for name in ("../../evil", "..", "a/b\\c", "\x00", "é" * 300, "con" + "x" * 400):
        place = tmp_path / "out"
        task = core_lens.Task(name, TASK.labels, TASK.splits)
        sweep(models[:1], [task], place, pruners=[RandomPruner()], **{**SETTINGS, "seeds": [1], "sparsities": 0.5})
    inside = {path.resolve() for path in place.rglob("*")}
    assert {path.resolve() for path in tmp_path.rglob("*")} == inside | {place.resolve()}
    assert len(Sweep.load(place).runs) == 6


def test_more_seeds_and_sparsities_later_are_made_too(models, tmp_path):
    given = {**SETTINGS, "seeds": [1], "sparsities": [0.3]}
    for changes, n in (({}, 1), ({"seeds": [1, 2]}, 2), ({"sparsities": [0.3, 0.5]}, 2), ({}, 1)):
        found = sweep(models[:1], [TASK], tmp_path, pruners=[RandomPruner()], **{**given, **changes})
        assert len(next(iter(found.cores.values())).subnetworks) == n
    assert set(sweep_status(tmp_path)["state"]) == {"done"}


def test_one_model_by_two_paths_is_one_model(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(models[0].parent)
    for name in ("step-0", "./step-0/", str(models[0]), str(models[1] / ".." / "step-0")):
        sweep([name], [TASK], tmp_path, pruners=[RandomPruner()], **{**SETTINGS, "seeds": [1], "sparsities": [0.5]})
    assert capsys.readouterr().err.count("1 runs to make") == 1 and len(Sweep.load(tmp_path).runs) == 1


def test_a_folder_called_lab_does_not_stand_before_the_lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    found = sweep(["lab"], ["lab"], "out", pruners=["random"], **{**SETTINGS, "seeds": [1]}, splits="dev")
    assert found.runs["model"].tolist() == ["lab"]


class Closed(ThreadPoolExecutor):
    def submit(self, *args, **kwargs):
        raise OSError("sbatch: error: invalid partition")


def test_an_executor_that_takes_nothing_is_one_sentence(models, tmp_path):
    gone = ThreadPoolExecutor(1)
    gone.shutdown()
    for executor, message in ((Closed(1), "invalid partition"), (gone, "after shutdown"), (5, "executor=5 is no")):
        with pytest.raises(CoreLensError, match=message):
            sweep(models[:1], [TASK], tmp_path / "a", pruners=[RandomPruner()], executor=executor, **SETTINGS)
        with pytest.raises(CoreLensError, match=message):
            find_core(models[0], TASK, pruner="random", out=tmp_path / "b", executor=executor, **SETTINGS)
