"""What is written is whole, what is damaged is named."""

import os

import pandas as pd
import pytest
import torch

from core_lens.errors import SavedFileError
from core_lens.files import (
    check_folder,
    read_json,
    read_table,
    read_tensors,
    write_atomically,
    write_json,
    write_table,
    write_tensors,
)


def test_round_trips(tmp_path):
    tensors = {
        "a": torch.arange(6).view(2, 3).T,
        "b": torch.tensor([True, False]),
        "c": torch.randn(3).bfloat16(),
    }
    write_tensors(tmp_path / "t.safetensors", tensors, {"x": [1, "two"]})
    back, meta = read_tensors(tmp_path / "t.safetensors", ("a", "b"), ("x",))
    assert meta == {"x": [1, "two"]} and all(torch.equal(back[k], tensors[k]) for k in tensors)
    write_json(tmp_path / "deep" / "j.json", {"ä": 1.5})
    assert read_json(tmp_path / "deep" / "j.json") == {"ä": 1.5}
    frame = pd.DataFrame({"s": ["a", "b"], "v": [0.5, float("nan")]})
    write_table(tmp_path / "f.parquet", frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "f.parquet"), frame)


@pytest.mark.parametrize("damage", ["cut", "flip", "meta", "empty", "other"])
def test_damaged_tensors_are_named(tmp_path, damage):
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.arange(100.0)}, {"x": "seed 3"})
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-40]
    elif damage == "flip":
        content[-7] ^= 0x10
    elif damage == "meta":
        content = content.replace(b"seed 3", b"seed 4")
    elif damage == "empty":
        content = b""
    else:
        content = b"not a tensor file at all"
    path.write_bytes(content)
    with pytest.raises(SavedFileError, match=r"t\.safetensors is damaged"):
        read_tensors(path, ("a",), ())


def test_damaged_json_and_tables_are_named(tmp_path):
    (tmp_path / "j.json").write_text('{"a": ')
    (tmp_path / "f.parquet").write_bytes(b"PAR1xxxx")
    with pytest.raises(SavedFileError, match=r"j\.json is damaged"):
        read_json(tmp_path / "j.json")
    with pytest.raises(SavedFileError, match=r"f\.parquet is damaged"):
        read_table(tmp_path / "f.parquet")
    for read in (read_json, read_table, lambda p: read_tensors(p, (), ())):
        with pytest.raises(SavedFileError, match="does not exist"):
            read(tmp_path / "absent")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "j.json"
    write_json(path, {"old": 1})

    def fail(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(SavedFileError, match="No space left on device"):
        write_atomically(path, fail)
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["j.json"]


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedFileError, match="choose another one"):
        check_folder(tmp_path / "file" / "run")
