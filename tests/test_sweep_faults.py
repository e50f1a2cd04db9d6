"""What a sweep survives: killed at random moments, a dead Dask worker, a full disk, a folder that cannot be written, Ctrl-C."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import core_lens
from builders import random_task
from core_lens import Core, CoreLensError, RandomPruner, find_core, sweep_status
from core_lens.errors import CoreLensWarning
from core_lens.files import claim_folder, file_hash, write_json
from core_lens.run_folder import is_done
from core_lens.workers import dask_executor
from tiny_models import tiny_model, tiny_tokenizer

TASK = random_task(20)
SETTINGS = {"sparsities": [0.5], "device": "cpu", "max_examples": 20}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*with fewer than 5 the intersection is loose"),
    pytest.mark.filterwarnings("ignore:.*hardly differ"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model("bert").save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


KILLED = """
import os, pickle, random, signal, sys, time
from pathlib import Path
import torch
import core_lens
from core_lens.run_folder import is_done
model, out, n, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
task = pickle.loads(Path(sys.argv[5]).read_bytes())
random.seed(int(sys.argv[6]))
torch.set_num_threads(1)

def whole():
    names = [path.name.removesuffix(".json") for path in out.glob("runs/*-seed*.json")]
    return {name: (out / "subnetworks" / f"{name}.safetensors").read_bytes() for name in names if is_done(out, name)}

before, died = {}, 0
while died < kills:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        core_lens.find_core(model, task, [0.5], n, core_lens.RandomPruner(), out=out, device="cpu", max_examples=20)
        os._exit(0)
    time.sleep(random.uniform(0.05, 1.2))
    os.kill(pid, signal.SIGKILL)
    _, code = os.waitpid(pid, 0)
    if code == 0:
        break
    died += 1
    after = whole()
    assert all(after[name] == content for name, content in before.items()), "a finished run is lost or changed"
    before = after
    print(died, len(after), flush=True)
print("killed", died, "times;", len(before), "of", n, "were finished")
core = core_lens.find_core(model, task, [0.5], n, core_lens.RandomPruner(), out=out, device="cpu", max_examples=20)
assert len(core.subnetworks) == n
after = whole()
assert len(after) == n and all(after[name] == content for name, content in before.items())
"""


@pytest.mark.slow
def test_killed_at_random_moments(model, tmp_path):
    """Twenty times: no finished run is lost, none is made twice, no half file is read."""
    (tmp_path / "task").write_bytes(pickle.dumps(TASK))
    words = [str(model), str(tmp_path / "run"), "300", "20", str(tmp_path / "task"), "0"]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "killed 20 times" in done.stdout, done.stdout
    texts = {path.stem: path.read_text() for path in (tmp_path / "run/runs").glob("*.log")}
    assert len(texts) == 300
    assert max(text.count(" finished in ") for text in texts.values()) == 1
    assert any(text.count(" begun") > 1 for text in texts.values())  # some were killed in their midst
    assert not [path for path in (tmp_path / "run").rglob(".*") if path.suffix == ".safetensors"]
    assert len(Core.load(tmp_path / "run").subnetworks) == 300


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster:
        yield cluster


@pytest.mark.slow
def test_two_hundred_runs_on_two_dask_workers(model, cluster, tmp_path):
    with dask_executor(cluster.scheduler_address) as executor:
        core = find_core(
            model, TASK, seeds=200, pruner=RandomPruner(), out=tmp_path / "run", executor=executor, **SETTINGS
        )
    here = find_core(model, TASK, seeds=5, pruner=RandomPruner(), **SETTINGS)
    assert len(core.subnetworks) == 200
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(core.subnetworks, here.subnetworks))
    hosts = {re.search(r" (\d+) begun", path.read_text())[1] for path in (tmp_path / "run/runs").glob("*.log")}
    assert len(hosts) == 2  # both took part


@pytest.mark.slow
def test_a_dask_worker_is_killed(model, cluster, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    out = tmp_path / "run"
    with distributed.Client(cluster.scheduler_address) as client:
        pids = client.run(os.getpid)
        victim = next(iter(pids.values()))
        threading.Thread(target=_kill_when, args=(out, 10, victim), daemon=True).start()
        core = find_core(
            model, TASK, seeds=60, pruner=RandomPruner(), out=out, executor=client.get_executor(), **SETTINGS
        )
        assert victim not in client.run(os.getpid).values()
    assert len(core.subnetworks) == 60 and set(sweep_status(out)["state"]) == {"done"}


def _kill_when(out: Path, n: int, pid: int) -> None:
    """Kill a process when so many runs are finished."""
    for _ in range(600):
        if len(list(out.glob("predictions/0.5-*.parquet"))) >= n:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_the_command_runs_on_a_cluster(cluster, tmp_path):
    given = [
        "find-core",
        "lab",
        "--task",
        "lab",
        "--pruner",
        "random",
        "--seeds",
        "2",
        "--sparsity",
        "0.5",
        "--splits",
        "dev",
    ]
    command = [sys.executable, "-m", "core_lens", *given, "--max-examples", "20", "--dask", cluster.scheduler_address]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(Core.load(tmp_path / "run").subnetworks) == 2


@pytest.mark.slow
def test_no_cluster_is_one_sentence():
    pytest.importorskip("distributed", reason="Dask is not installed")
    with (
        pytest.raises(CoreLensError, match="no Dask scheduler answers at tcp://127.0.0.1:9"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass


@pytest.mark.slow
def test_submitit_runs_it_too(model, tmp_path):
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=5)
    core = find_core(model, TASK, seeds=2, pruner=RandomPruner(), out=tmp_path / "run", executor=executor, **SETTINGS)
    assert len(core.subnetworks) == 2


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB; gone afterwards."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk(model, small_disk):
    out = small_disk / "run"
    with pytest.raises(
        CoreLensError, match=r"runs failed.*No space left on device|cannot write.*No space left on device"
    ):
        find_core(model, TASK, seeds=50, pruner=RandomPruner(), out=out, **SETTINGS)
    there = [path.stem for path in out.glob("runs/*-seed*.json") if not path.stem.endswith(".failed")]
    finished = [name for name in there if is_done(out, name)]
    assert finished and len(finished) < 50
    assert not list(out.rglob(".*"))  # no half file is left
    before = {name: file_hash(out / "subnetworks" / f"{name}.safetensors") for name in finished}
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    core = find_core(model, TASK, seeds=50, pruner=RandomPruner(), out=out, **SETTINGS)
    assert len(core.subnetworks) == 50
    assert before == {name: file_hash(out / "subnetworks" / f"{name}.safetensors") for name in finished}


def test_a_folder_that_cannot_be_written(model, small_disk, tmp_path):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CoreLensError, match="cannot write to the folder.*Read-only file system"):
        find_core(model, TASK, seeds=2, pruner=RandomPruner(), out=small_disk / "run", **SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(CoreLensError, match="cannot write to the folder"):
        find_core(model, TASK, seeds=2, pruner=RandomPruner(), out=tmp_path / "file", **SETTINGS)


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_the_run_continues(tmp_path):
    out = tmp_path / "run"
    words = [
        sys.executable,
        "-m",
        "core_lens",
        "find-core",
        "lab",
        "--task",
        "lab",
        "--sparsity",
        "0.5",
        "--seeds",
        "12",
    ]
    words += ["--pruner", "random", "--max-examples", "50", "--workers", "2", "--device", "cpu", "--out", str(out)]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for _ in range(1200):
        if list(out.glob("runs/0.5-seed*.json")):
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; the same command with the same --out continues" in error
    assert "Traceback" not in error, error[-2000:]
    time.sleep(1)
    processes = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True).stdout
    left = [
        line for line in processes.splitlines() if line.split()[0] == str(process.pid) and line.split()[1][0] != "Z"
    ]
    assert not left  # Z: ended, and not yet collected by init
    finished = len(list(out.glob("runs/0.5-seed*.json")))
    assert finished < 12
    said = subprocess.run([*words[:3], "status", str(out)], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"run +{finished} ", said)
    subprocess.run(words, check=True, capture_output=True)
    assert len(Core.load(out).subnetworks) == 12
    assert json.loads((out / "run.json").read_text())["format"] == 1


@pytest.mark.slow
def test_two_at_once_do_not_harm_each_other(model, tmp_path):
    """Two processes with one folder and other seeds, in part the same."""
    out, found, wrong = tmp_path / "run", {}, []

    def go(name, seeds):
        try:
            found[name] = find_core(str(model), TASK, seeds=seeds, pruner=RandomPruner(), out=out, **SETTINGS)
        except Exception as error:
            wrong.append(error)

    threads = [
        threading.Thread(target=go, args=("a", range(12))),
        threading.Thread(target=go, args=("b", range(6, 18))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    whole = find_core(model, TASK, seeds=range(18), pruner=RandomPruner(), **SETTINGS)
    for name, first in (("a", 0), ("b", 6)):
        pairs = zip(found[name].subnetworks, whole.subnetworks[first : first + 12], strict=True)
        assert all(torch.equal(x.mask, y.mask) for x, y in pairs)
    again = find_core(model, TASK, seeds=range(18), pruner=RandomPruner(), out=out, **SETTINGS)
    assert len(again.subnetworks) == len(Core.load(out).subnetworks) == 18


def test_another_process_claims_the_folder_at_the_same_moment(tmp_path, monkeypatch):
    """Between any two looks at the folder the other one may write the same plan and go on."""
    config = {"task": "a", "seed": 1}
    for method in ("is_file", "iterdir"):
        folder = tmp_path / method
        folder.mkdir()
        real = getattr(Path, method)

        def first_the_other_writes(path, real=real, folder=folder):
            before = real(path)
            if path in (folder, folder / "plan.json"):
                write_json(folder / "plan.json", config)
                (folder / "runs").mkdir(exist_ok=True)
            return before

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, first_the_other_writes)
            claim_folder(folder, "plan.json", config)
        assert json.loads((folder / "plan.json").read_text()) == config


DAMAGES = ("", "{", "[]", "5", "null", '{"a": 1}', "[" * 100_000, b"\xff\xfe")


def test_any_damaged_record_is_mended_by_the_same_call(model, tmp_path):
    """Every JSON file of a sweep, damaged in every way: `status` says so or ignores it, and the same sweep is whole again."""
    given = {"pruners": [RandomPruner()], "seeds": [1, 2], **SETTINGS}
    core_lens.sweep([model], [TASK], tmp_path, **given)
    files = sorted(tmp_path.rglob("*.json"))
    assert {path.name for path in files} >= {"run.json", "plan.json", "sweep.json", "asked.json", "full.json"}
    for path in files:
        for damage in DAMAGES:
            path.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
            assert len(sweep_status(tmp_path)) == 2
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CoreLensWarning)
                again = core_lens.sweep([model], [TASK], tmp_path, **given)
            assert len(next(iter(again.cores.values())).subnetworks) == 2
            assert json.loads(path.read_text()) not in ({}, {"a": 1})
            assert set(sweep_status(tmp_path)["state"]) == {"done"}


def test_a_folder_in_a_files_place_is_named(model, tmp_path):
    given = {"pruner": "random", "seeds": [1], "out": tmp_path / "run", **SETTINGS}
    find_core(model, TASK, **given)
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run" / "run.json").mkdir()
    with pytest.raises(CoreLensError, match=r"cannot write .*run.json: .*run.json is in its place; remove that"):
        find_core(model, TASK, **given)


ORPHANS = """
import sys, time
import core_lens
from core_lens.workers import call_each
with core_lens.LocalWorkers(2, gpus=()) as workers:
    futures = [workers.submit(time.sleep, 60) for _ in range(2)]
    time.sleep(1)
    print("ready", flush=True)
    [future.result() for future in futures]
"""


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_workers_leave_with_the_process_that_started_them(sent):
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline().strip() == "ready"
    children = _descendants(parent.pid)
    assert len(children) >= 2
    parent.send_signal(sent)
    parent.wait()
    end = time.monotonic() + 20
    while (left := [pid for pid in children if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left


def _descendants(pid: int) -> list[int]:
    found = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [*found, *(deeper for child in found for deeper in _descendants(child))]
