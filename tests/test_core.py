"""What subnetworks share: counted by hand; runs that are saved come back whole or say what is wrong."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from core_lens import Core, Subnetwork, ZeroActivations
from core_lens.components import Component, ComponentSet
from core_lens.core import notes_on
from core_lens.errors import CoreLensWarning, SavedFileError

UNITS = ComponentSet(1, 4)


def made(kept: list[str], sparsity: float, seed: int) -> Subnetwork:
    mask = UNITS.mask([Component.parse(c) for c in kept])
    return Subnetwork(UNITS, mask, ZeroActivations("h"), provenance={"asked_sparsity": sparsity, "seed": seed})


def a_core() -> Core:
    subnetworks = (
        made(["L0.H0", "L0.H1", "L0.H2", "L0.MLP"], 0.2, 1),
        made(["L0.H0", "L0.H1", "L0.H3", "L0.MLP"], 0.2, 2),
        made(["L0.H0", "L0.MLP", "L0.H2"], 0.4, 1),
        made(["L0.H0", "L0.H1", "L0.H3"], 0.4, 2),
    )
    rows = [("full", 0.0, -1, "dev", "all", "accuracy", 0.9, 0.85, 0.95, 100)]
    for s, accuracy in zip(subnetworks, (0.8, 0.6, 0.5, 0.1), strict=True):
        rows.append((s.name, s.asked_sparsity, s.seed, "dev", "all", "accuracy", accuracy, 0.0, 1.0, 100))
        rows.append((s.name, s.asked_sparsity, s.seed, "dev", "all", "kl", 1 - accuracy, 0.0, 1.0, 100))
    columns = ["subnetwork", "sparsity", "seed", "split", "group", "metric", "value", "low", "high", "n"]
    predictions = {"full": pd.DataFrame({"split": ["dev"], "logit_a": [0.5]})}
    return Core(subnetworks, pd.DataFrame(rows, columns=columns), predictions, {"task": "t"}, ("a note",))


def test_heads_and_frequencies_by_hand():
    core = a_core()
    assert [str(c) for c in core.heads] == ["L0.H0"]
    assert {str(c): v for c, v in core.heads.others.items()} == {"L0.H1": 0.75, "L0.H2": 0.5, "L0.H3": 0.5}
    assert core.mlps == ()
    assert "1 heads in all 4 subnetworks: L0.H0" in repr(core.heads) and "L0.H1 75%" in repr(core.heads)
    table = core.frequencies().set_index("component")
    assert table.loc["L0.H2", [0.2, 0.4, "all"]].tolist() == [0.5, 0.5, 0.5]
    assert table.loc["L0.MLP", [0.2, 0.4, "all"]].tolist() == [1, 0.5, 0.75]
    assert list(table.columns[:3]) == ["layer", "head", "kind"] and table.loc["L0.MLP", "kind"] == "mlp"


def test_table_by_hand():
    table = a_core().table()
    row = table.loc[("dev", "accuracy")]
    assert row["full", "value"] == 0.9
    assert row[0.2][["min", "max", "mean", "std"]].tolist() == pytest.approx([0.6, 0.8, 0.7, 0.1])  # population std
    # t interval of two values: mean ± 12.706 * sd / sqrt 2, sd = .1414, is wider than accuracies can be.
    assert row[0.2][["low", "high"]].tolist() == [0, 1]
    kl = table.loc[("dev", "kl")][0.2]
    assert kl[["low", "high"]].tolist() == pytest.approx([0, 0.3 + 1.2706], abs=1e-3)
    assert np.isnan(table.loc[("dev", "kl")]["full", "value"])


def test_jaccard_and_notes():
    assert a_core().jaccard() == pytest.approx({0.2: 3 / 5, 0.4: 1 / 5})
    alike = [made(["L0.H0", "L0.H1"], 0.4, seed) for seed in range(6)]
    with pytest.warns(CoreLensWarning, match="hardly differ"):
        (note,) = notes_on(alike)
    assert "mean Jaccard 1.00" in note
    with pytest.warns(CoreLensWarning):
        assert any("2 seeds at sparsity 0.2" in note for note in notes_on(a_core().subnetworks))


def test_saving_and_loading(tmp_path):
    core = a_core()
    core.save(tmp_path / "run")
    back = Core.load(tmp_path / "run")
    assert repr(back) == repr(core) and back.notes == core.notes and back.provenance == {"task": "t"}
    pd.testing.assert_frame_equal(back.table(), core.table())
    assert all(torch.equal(a.mask, b.mask) for a, b in zip(core.subnetworks, back.subnetworks, strict=True))
    suffixes = {p.suffix for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert suffixes == {".safetensors", ".json", ".parquet"}
    core.save(tmp_path / "run")  # again over itself


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "json", "format", "outside", "unfinished"])
def test_damage_is_found_and_named(tmp_path, damage):
    root = tmp_path / "run"
    a_core().save(root)
    victim = root / "subnetworks" / "0.2-seed2.safetensors"
    content = bytearray(victim.read_bytes())
    manifest = json.loads((root / "run.json").read_text())
    match = r"0\.2-seed2\.safetensors is damaged"
    if damage == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif damage == "cut":
        victim.write_bytes(content[:-5])
    elif damage == "gone":
        victim.unlink()
        match = "is missing from the run"
    elif damage == "json":
        (root / "run.json").write_text("{")
        match = r"run\.json is damaged"
    elif damage == "format":
        (root / "run.json").write_text(json.dumps({**manifest, "format": 99}))
        match = "has format 99"
    elif damage == "outside":
        (root / "run.json").write_text(json.dumps({**manifest, "files": [["../x.parquet", "0"]]}))
        match = "outside the run"
    else:
        (root / "run.json").unlink()
        match = "no finished run .* run the same command again"
    with pytest.raises(SavedFileError, match=match):
        Core.load(root)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(SavedFileError, match=r"other things \(thesis\.tex\)"):
        a_core().save(tmp_path)
    with pytest.raises(SavedFileError, match="no finished run"):
        Core.load(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
