"""The command line: what it calls, what it prints, how it fails."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from builders import frame
from core_lens import Core, Illusions
from core_lens.cli import main
from tiny_models import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A model and RTE-like files, as a user would have them."""
    root = tmp_path_factory.mktemp("cli")
    model = tiny_model("bert", n_labels=2)
    model.config.id2label = {0: "not_entailment", 1: "entailment"}
    model.save_pretrained(root / "model")
    tiny_tokenizer("bert").save_pretrained(root / "model")
    for name, n, seed in (("train", 60, 0), ("validation", 30, 1)):
        data = frame(n, seed, ("entailment", "not_entailment")).rename(
            columns={"text_a": "premise", "text_b": "hypothesis"}
        )
        (root / "data").mkdir(exist_ok=True)
        data[["premise", "hypothesis", "label"]].to_parquet(root / "data" / f"rte_{name}.parquet")
    return root


def command(here, *words):
    return [*words, "--data-dir", str(here / "data"), "--device", "cpu"]


@pytest.mark.filterwarnings("ignore::core_lens.CoreLensWarning")
def test_find_core_show_and_evaluate(here, tmp_path, capsys):
    run = tmp_path / "run"
    args = ["find-core", str(here / "model"), "--task", "rte", "--sparsity", "0.5", "--seeds", "2"]
    assert main(command(here, *args, "--pruner", "one-shot-importance", "--out", str(run))) == 0
    printed = capsys.readouterr()
    assert "2 subnetworks at 50%" in printed.out and "How often each component is kept" in printed.out
    assert "runs       2: 2 seeds" in printed.err
    core = Core.load(run)
    assert [s.seed for s in core.subnetworks] == [42, 43]
    assert main(["show", str(run)]) == 0
    assert repr(core.heads) in capsys.readouterr().out
    out = tmp_path / "table.csv"
    file = str(run / "subnetworks" / "0.5-seed42.safetensors")
    assert (
        main(command(here, "evaluate", str(here / "model"), "--task", "rte", "--subnetwork", file, "--out", str(out)))
        == 0
    )
    table, there = pd.read_csv(out), core.evaluation[core.evaluation.subnetwork == "0.5-seed42"]
    assert table["value"].tolist() == pytest.approx(there["value"].tolist(), abs=1e-6)


def test_dry_run_writes_nothing(here, tmp_path, capsys):
    run = tmp_path / "run"
    words = command(here, "find-core", str(here / "model"), "--task", "rte", "--dry-run", "--out", str(run))
    assert main(words) == 0
    assert "estimate" in capsys.readouterr().out and not run.exists()


def test_finetune(here, tmp_path, capsys):
    words = [
        "finetune",
        str(here / "model"),
        "--task",
        "rte",
        "--out",
        str(tmp_path / "tuned"),
        "--steps",
        "4",
        "--every",
        "2",
    ]
    assert main(command(here, *words, "--batch-size", "8")) == 0
    assert (tmp_path / "tuned" / "step-4" / "model.safetensors").is_file()
    assert "the last checkpoint is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["find-core", "no/such/model/folder", "--task", "rte"], "no folder 'no/such/model/folder'"),
        (["find-core", "{model}", "--task", "rtee"], "did you mean 'rte'"),
        (["find-core", "{model}", "--task", "rte", "--sparsity", "1.5"], "sparsity=1.5"),
        (
            ["evaluate", "{model}", "--task", "rte", "--subnetwork", "absent.safetensors"],
            "absent.safetensors does not exist",
        ),
        (["evaluate", "{model}", "--task", "rte", "--out", "table.xlsx"], "must end in .csv or .parquet"),
        (["evaluate", "{model}", "--task", "rte", "--splits", "dev"], "no split 'dev'"),
    ],
)
def test_mistakes_are_one_line_on_stderr(here, words, says, capsys):
    assert main(command(here, *(w.format(model=here / "model") for w in words))) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("core-lens:")]
    assert len(error) == 1 and says in error[0]


@pytest.mark.parametrize("words", [["--seeds", "two"], ["--max-examples", "0"], ["--label-map", "entailment"], []])
def test_what_argparse_refuses_has_exit_status_2(here, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["find-core", str(here / "model"), *(["--task", "rte", *words] if words else [])])
    assert caught.value.code == 2 and "core-lens find-core: error:" in capsys.readouterr().err


def test_help_names_every_command():
    out = subprocess.run(
        [sys.executable, "-m", "core_lens", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(name in out for name in ("find-core", "evaluate", "finetune", "demo", "show"))


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_the_run_continues(here, tmp_path):
    run = tmp_path / "run"
    words = command(
        here, "find-core", str(here / "model"), "--task", "rte", "--sparsity", "0.5", "--seeds", "25", "--out", str(run)
    )
    # A shell that starts the tests in the background lets them, and what they start, ignore the signal.
    process = subprocess.Popen(
        [sys.executable, "-m", "core_lens", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for _ in range(600):
        if list(run.glob("predictions/*.parquet")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; the same command with the same --out continues" in error
    assert "Traceback" not in error
    subprocess.run([sys.executable, "-m", "core_lens", *words], check=True, capture_output=True, env={**os.environ})
    assert len(Core.load(run).subnetworks) == 25
    assert json.loads((run / "run.json").read_text())["format"] == 1


def test_illusions_prints_its_tables(tmp_path, capsys):
    args = ["illusions", "lab", "--out", str(tmp_path / "i"), "--seeds", "0", "--svd", "4", "8", "--k-means", "2"]
    args += ["--max-examples", "10", "--splits", "dev", "Prep"]
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "agreement with the model (%)" in said and "SVD 8" in said and "Embed-If" not in said
    assert (tmp_path / "i" / "results" / "curves.png").is_file()
    assert Illusions.load(tmp_path / "i").comparison.splits == ["dev", "Prep", "Prep-entailed"]
    assert main(args) == 0  # finished: it is read
    assert main([*args, "--others", "Java=src"]) == 1
    assert "others= means nothing to 'lab'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*args, "--others", "Java"])
    assert "write it like Java=src/java" in capsys.readouterr().err


def test_lottery_prints_its_tables(tmp_path, capsys):
    args = ["lottery", "lab-pretrained", "--tasks", "lab", "--out", str(tmp_path / "l"), "--seeds", "2", "--steps", "5"]
    assert main([*args, "--max-train", "100", "--max-examples", "40", "--no-retrain", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "the half unseen in pruning" in out and "m-bad" in out and "kappa" in out and "retrained" not in out
    assert main([*args[:2], "--tasks", "labb", *args[4:]]) == 1
    assert "labb" in capsys.readouterr().err
