"""Every command of the README does what it says, in a folder of its own and without the network."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def run(command: list[str], folder: Path) -> str:
    """Run with no network, no cached hub files, and without HF_HUB_OFFLINE, which would keep a library from trying.

    Where a process can be given a network of its own, it gets one without any connection; else a proxy that does not answer.
    """
    alone = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True).returncode == 0:
        command = [*alone, *command]
    env = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    env.pop("HF_HUB_OFFLINE", None)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_python_blocks_run_one_after_the_other(tmp_path):
    code = "\n".join(blocks("python"))
    assert "find_core" in code and "from_dataframes" in code
    run([sys.executable, "-c", code], tmp_path)
    assert (tmp_path / "runs" / "lab" / "run.json").is_file()


@pytest.mark.slow
def test_the_shell_commands_run_one_after_the_other(tmp_path):
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("core-lens ")]
    assert {line.split()[1] for line in lines} == {
        "find-core",
        "show",
        "report",
        "evaluate",
        "export",
        "finetune",
        "lottery",
        "illusions",
        "sweep",
        "status",
    }
    for line in lines:
        assert run(shlex.split(line), tmp_path)


def test_the_make_targets_and_files_that_it_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"make (\S+)", "\n".join(blocks("sh")))
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in targets)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert len(links) > 3 and all((ROOT / link).is_file() for link in links)


def test_contributing_and_docs_link_to_files_that_exist():
    for page in (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.slow
def test_the_demo_prints_its_tables(tmp_path):
    out = run(["core-lens", "demo", "--out", str(tmp_path / "demo"), "--seeds", "2"], tmp_path)
    assert "heads in all 4 subnetworks" in out and "SO-Swap" in out and "the run is in" in out


@pytest.mark.slow
def test_a_built_wheel_brings_the_lab(tmp_path):
    """The wheel alone, without the source tree on the path, loads the shipped models."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(tmp_path / "site"),
            str(wheel),
        ],
        check=True,
    )
    code = (
        "import core_lens, pathlib; assert 'site' in pathlib.Path(core_lens.__file__).parts, core_lens.__file__;"
        "step = core_lens.lab.checkpoint_steps()[0]; core_lens.load_model(core_lens.lab.checkpoint(step));"
        "core_lens.dyck.load_model(); core_lens.maps.load_network();"
        "print(len(core_lens.load_task('lab').splits), core_lens.model_info(core_lens.load_model('lab-gpt2')).is_decoder)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("True"), done.stderr
