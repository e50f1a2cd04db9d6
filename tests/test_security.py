"""Nothing that we read can run code, and nothing is fetched that was not asked for."""

import ast
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import core_lens
from core_lens import CoreLensError, load_model
from tiny_models import tiny_model, tiny_tokenizer

ROOT = Path(core_lens.__file__).parent
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
FORBIDDEN = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "subprocess", "ctypes"}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_module_unpickles_or_starts_programs():
    """What executors send is theirs; `hooked` reads PyTorch's pickle files only through HF, where the user says so by name."""
    found = set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(name, module) for module in modules if module.split(".")[0] in FORBIDDEN}
        for called, node in calls(tree):
            bad = called in (
                "eval",
                "exec",
                "compile",
                "os.system",
                "torch.load",
                "joblib.load",
                "joblib.dump",
                "torch.save",
            )
            if bad or called.endswith((".read_pickle", ".to_pickle")):
                found.add((name, called))
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "shell") and ast.unparse(keyword.value) == "True":
                    found.add((name, keyword.arg))
    assert not found


def test_remote_code_is_never_trusted():
    values = [
        ast.unparse(node)
        for tree in TREES.values()
        for node in ast.walk(tree)
        if (isinstance(node, ast.keyword) and node.arg == "trust_remote_code")
        or (isinstance(node, ast.Dict) and "'trust_remote_code'" in [ast.unparse(key) for key in node.keys if key])
    ]
    assert values and all("True" not in value.replace("'local_files_only': True", "") for value in values)


def test_pickled_weights_are_read_only_when_asked_for_by_name(tmp_path):
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CoreLensError, match="allow_pickle"):
        load_model(tmp_path)
    assert load_model(tmp_path, allow_pickle=True) is not None


def test_code_beside_a_model_is_not_run(tmp_path):
    model = tiny_model("bert")
    model.config.auto_map = {"AutoModelForSequenceClassification": "evil.Evil"}
    model.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with suppress(CoreLensError):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_run_names_no_file_outside_its_folder(tmp_path, name):
    (tmp_path / "run.json").write_text(
        f'{{"format": 1, "provenance": {{}}, "notes": [], "files": [["{name}.parquet", "0"]]}}'
    )
    with pytest.raises(CoreLensError, match="names a file outside the run"):
        core_lens.Core.load(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/x"])
def test_a_record_names_no_file_outside_its_folder(tmp_path, name):
    from core_lens.run_folder import is_done

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "0.5-seed1.json").write_text(f'{{"files": {{"{name}": "0"}}}}')
    with pytest.warns(core_lens.CoreLensWarning, match="made again"):
        assert not is_done(tmp_path, "0.5-seed1")
