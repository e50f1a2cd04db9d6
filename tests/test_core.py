"""What subnetworks share: counted by hand; runs that are saved come back whole or say what is wrong."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from core_lens import Core, RandomPruner, Subnetwork, ZeroActivations
from core_lens.comparison import compare_cores
from core_lens.components import Component, ComponentSet
from core_lens.core import notes_on
from core_lens.errors import CoreLensError, CoreLensWarning, SavedFileError

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
    assert "1 head in all 4 subnetworks: L0.H0" in repr(core.heads) and "L0.H1 75%" in repr(core.heads)
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
        (note,) = notes_on(a_core().subnetworks)  # one for all sparsities
    assert note.startswith("2 seeds at sparsities 0.2, 0.4: with fewer than 5")


def of_heads(*kept: str, units: ComponentSet = UNITS, weights: str = "h", sparsity: float = 0.5, seed: int = 1) -> Core:
    """A core without results, each subnetwork's heads as "L0.H1 L0.H2", one seed each."""
    made = [
        Subnetwork(
            units,
            units.mask([Component.parse(c) for c in heads.split()]),
            ZeroActivations(weights),
            provenance={"asked_sparsity": sparsity, "seed": seed + i},
        )
        for i, heads in enumerate(kept)
    ]
    return Core(tuple(made), pd.DataFrame(), {}, {"pruner": {"name": "p"}})


def test_overlap_by_hand():
    overlap = a_core().overlap()
    # Four heads; 3, 3, 2 and 3 are kept. One is in all.
    assert overlap.at_random.observed == 1 and overlap.n_heads == 4
    assert overlap.at_random.expected == pytest.approx(4 * (3 / 4) ** 3 * 2 / 4)
    # The two of the third subnetwork: both miss the complement of a subset of three with 2/4, one of them does otherwise.
    # Left after one such subset: 2 (1/2) or 1 (1/2); 1 stays 1 with 3/4. So after three: 2 with 1/8, none with p0.
    p0 = 1 / 2 * 1 / 4 + 1 / 2 * (1 / 2 * 1 / 4) + 1 / 2 * 3 / 4 * 1 / 4
    assert overlap.at_random.p == pytest.approx(1 - p0)
    # Seed 1's subnetworks share heads 0 and 2, seed 2's heads 0, 1 and 3: of four, two and three always meet.
    assert overlap.by_seed.expected == pytest.approx(4 * 2 / 4 * 3 / 4)
    assert overlap.by_seed.p == pytest.approx(1)
    table = overlap.table()
    assert table["heads"].tolist() == [1] * 4
    assert table["p"].tolist() == pytest.approx([1 - p0, 1 - p0, 1, 1])  # a single layer: layers held says the same
    assert "1 of 4 heads in all 4 subnetworks: L0.H0" in repr(overlap)
    assert "0.84 heads expected" in repr(overlap) and "random selection of heads only" in repr(overlap)


def test_overlap_says_whether_the_core_stays_elsewhere():
    core = of_heads("L0.H0 L0.H1 L0.H2", "L0.H0 L0.H1 L0.H3")  # core: 0, 1
    other = of_heads("L0.H0 L0.H3", "L0.H0 L0.H1 L0.H3", seed=2)  # core: 0, 3; one seed in common
    overlap = core.overlap([other])
    row = overlap.others.iloc[0]
    assert (row["core"], row["heads"], row["stay"]) == ("other 1 (p pruner, zero ablation)", 2, 1)
    assert row["lost"] == "L0.H1 (50%)" and row["shared_seeds"] == 1
    assert (row["expected"], row["p"]) == pytest.approx((1, 5 / 6))  # two of four beside two of four
    assert "1 of 2 stay in the core of other 1" in repr(overlap) and "not there: L0.H1 (50%)" in repr(overlap)
    assert core.overlap({"mine": core}).others["lost"].tolist() == [""]
    with pytest.raises(CoreLensError, match="'far' is of a model with other weights .*compare_cores"):
        core.overlap({"far": of_heads("L0.H0", weights="other")})


def test_overlap_of_one_subnetwork_and_of_nothing():
    alone = of_heads("L0.H0 L0.H1").overlap()
    assert (alone.at_random.expected, alone.at_random.p) == pytest.approx((2, 1))
    empty = of_heads("L0.H0", "L0.H1").overlap()
    assert (empty.at_random.observed, empty.at_random.p) == (0, pytest.approx(1))
    assert "0 of 4 heads in all 2 subnetworks: none" in repr(empty)


def test_head_tests_by_hand():
    table = a_core().head_tests().set_index("component")
    assert table["kept"].tolist() == [4, 3, 2, 2] and set(table["n"]) == {4}
    assert set(table["expected"]) == {11 / 4}
    chances = [3 / 4, 3 / 4, 2 / 4, 3 / 4]
    four = np.prod(chances)
    three = sum(np.prod([1 - c if i == j else c for j, c in enumerate(chances)]) for i in range(4))
    assert table["p"].iloc[:2].tolist() == pytest.approx([four, four + three])
    # Seed 1 keeps the heads 2, 1, 2, 0 times and seed 2 2, 2, 0, 2 times: 4 in all with 2/4 * 3/4, 3 with 1/4 * 3/4.
    assert table["p_by_seed"].iloc[:2].tolist() == pytest.approx([3 / 8, 3 / 8 + 3 / 16])
    assert table["p_within_layers"].tolist() == pytest.approx(table["p_by_seed"].tolist())  # there is one layer
    # Benjamini-Hochberg: 4 p(1) / 1, 4 p(2) / 2, ..., made monotone from above.
    p = np.sort(table["p"])
    adjusted = np.minimum.accumulate((4 * p / np.arange(1, 5))[::-1])[::-1]
    assert np.sort(table["q"]) == pytest.approx(np.minimum(adjusted, 1))


def test_head_tests_hold_layers():
    units = ComponentSet(2, 2, ("head",))
    core = of_heads("L0.H0 L0.H1 L1.H0", "L0.H0 L0.H1 L1.H0", "L0.H0 L0.H1 L1.H1", units=units)
    table = core.head_tests().set_index("component")
    assert table.loc["L0.H0", "p"] == pytest.approx((3 / 4) ** 3)
    assert table.loc["L0.H0", "p_within_layers"] == pytest.approx(1)  # its whole layer is always kept
    assert table.loc["L1.H0", "p_within_layers"] == pytest.approx(4 / 8)  # 2 or 3 of three fair coins
    overlap = core.overlap()
    assert overlap.within_layers.expected == pytest.approx(2 + 2 / 8)
    assert overlap.at_random.expected == pytest.approx(4 * 27 / 64)


def test_containment_by_hand():
    (row,) = a_core().containment(draws=500).to_dict("records")
    # Seeds crossed: {0, 2} and {0, 1, 3} share 1 of 2, {0, 1, 3} and {0, 1, 2} share 2 of 3.
    assert (row["sparser"], row["denser"], row["pairs"]) == (0.4, 0.2, 2)
    assert (row["containment"], row["min"], row["max"]) == pytest.approx((3 / 5, 1 / 2, 2 / 3))
    assert (row["expected"], row["expected_within_layers"]) == pytest.approx((3 / 4, 3 / 4))
    assert row["p"] == 1  # fewer cannot be: 2 and 3 of 4 share at least 1, 3 and 3 at least 2
    assert row["same_seed"] == 1
    assert a_core().containment().equals(a_core().containment())


def test_associations_by_hand():
    table = a_core().associations(draws=200).set_index("component")
    assert "L0.H0" not in table.index  # it is in all, there is nothing to compare
    # Accuracies .8, .6 at the lower sparsity, .5, .1 at the higher. Head 1 varies at the higher alone (seed 2 keeps it).
    assert table.loc["L0.H1", ["with_head", "without"]].tolist() == [1, 1]
    assert table.loc["L0.H1", "difference"] == pytest.approx(-0.4)
    assert table.loc["L0.H2", "difference"] == pytest.approx((0.2 + 0.4) / 2)
    assert table.loc["L0.H3", "difference"] == pytest.approx(-0.3)
    assert (table["arrangements"] == 2).all() and (table["p"] == 1).all()  # two seeds: nothing can be said
    by_kl = a_core().associations(["dev"], metric="kl", draws=50)
    assert by_kl["difference"].tolist() == pytest.approx((-table["difference"]).tolist())
    with pytest.raises(CoreLensError, match=r"no 'accuracy' of subnetworks on \['test'\]: choose from \['dev'\]"):
        a_core().associations("test")
    with pytest.raises(CoreLensError, match=r"no 'mcc' of subnetworks on any split"):
        a_core().associations(metric="mcc")


def test_a_planted_counter_heuristic_head_is_found():
    """24 heads at two sparsities; accuracy is lower at the higher one, and depends on head 5 alone within each."""
    units, rng = ComponentSet(2, 12, ("head",)), np.random.default_rng(1)
    subnetworks, rows = [], []
    for sparsity, k in ((0.3, 17), (0.5, 12)):
        for seed in range(12):
            mask = torch.zeros(24, dtype=torch.bool)
            mask[rng.permutation(24)[:k]] = True
            mask[0] = True
            made = {"asked_sparsity": sparsity, "seed": seed}
            subnetworks.append(Subnetwork(units, mask, ZeroActivations("h"), provenance=made))
            value = 0.9 - sparsity + 0.3 * bool(mask[5]) + 0.02 * rng.standard_normal()
            for split, accuracy in (("hard", value), ("noise", rng.random())):
                rows.append((subnetworks[-1].name, sparsity, seed, split, "all", "accuracy", accuracy))
    columns = ["subnetwork", "sparsity", "seed", "split", "group", "metric", "value"]
    table = Core(tuple(subnetworks), pd.DataFrame(rows, columns=columns), {}).associations(draws=20_000)
    best = table.sort_values("p").iloc[0]
    assert (best["component"], best["split"]) == ("L0.H5", "hard")
    assert best["difference"] == pytest.approx(0.3, abs=0.05) and best["q"] < 0.01
    assert "L0.H0" not in set(table["component"])
    assert table.loc[table["split"] == "noise", "q"].min() > 0.05


def test_rank_correlation_by_hand():
    found = a_core().rank_correlation(0.2, 0.4, draws=100)
    # Frequencies 1, 1, .5, .5 and 1, .5, .5, .5: ranks 3.5, 3.5, 1.5, 1.5 and 4, 2, 2, 2, so rho = 2 / sqrt(4 * 3).
    assert found["rho"] == pytest.approx(2 / np.sqrt(12))
    assert np.isnan(found["low"]) and np.isnan(found["high"]) and found["seeds"] == 2
    assert 0 < found["p"] <= 1
    with pytest.raises(CoreLensError, match="no subnetwork was asked for at sparsity 0.3: choose from 0.2, 0.4"):
        a_core().rank_correlation(0.2, 0.3)
    all_kept = of_heads("L0.H0 L0.H1 L0.H2 L0.H3")
    with pytest.raises(CoreLensError, match="at sparsity 0.5 all heads are kept equally often"):
        all_kept.rank_correlation(0.5, 0.5)


def test_cores_without_heads_say_so():
    units = ComponentSet(4, 2, ("mlp",))
    core = of_heads("L0.MLP", "L0.MLP L1.MLP", units=units)
    for ask in (core.overlap, core.head_tests, core.containment, core.associations, core.head_masks):
        with pytest.raises(CoreLensError, match=r"heads were no units here \(units='mlp'\)"):
            ask()
    with pytest.raises(CoreLensError, match="heads were no units"):
        compare_cores({"a": core, "b": core})


def test_compare_cores_by_hand():
    cores = {
        "500": of_heads("L0.H0 L0.H1", "L0.H0 L0.H1 L0.H2", seed=1),
        "1000": of_heads("L0.H0 L0.H2", "L0.H0 L0.H2 L0.H3", seed=5),
        "1500": of_heads("L0.H0 L0.H2 L0.H1", "L0.H0 L0.H2 L0.H1", weights="other", seed=1),
    }
    found = compare_cores(cores)
    assert found.frequencies["1000"].to_dict() == {"L0.H0": 1, "L0.H1": 0, "L0.H2": 1, "L0.H3": 0.5}
    assert found.members.sum().to_dict() == {"500": 2, "1000": 2, "1500": 3}
    assert found.emergence.T.to_dict("list") == {
        "L0.H0": ["500", "500"],
        "L0.H1": ["500", "1500"],  # it leaves and comes back
        "L0.H2": ["1000", "1000"],
    }
    pair = found.pairs.iloc[0]  # {0, 1} beside {0, 2}: share 0, 1, 2 with 1/6, 4/6, 1/6; Jaccard 0, 1/3, 1
    assert (pair["a"], pair["b"], pair["shared"]) == ("500", "1000", 1)
    assert (pair["jaccard"], pair["expected"], pair["p"]) == pytest.approx((1 / 3, 4 / 18 + 1 / 6, 5 / 6))
    assert found.pairs["shared_seeds"].tolist() == [0, 2, 0]
    assert found.shared == ("L0.H0",) and found.at_random.expected == pytest.approx(4 * 2 / 4 * 2 / 4 * 3 / 4)
    assert "in all 3: L0.H0" in repr(found)
    with pytest.raises(CoreLensError, match="got 1 core: give at least two"):
        compare_cores({"a": cores["500"]})
    with pytest.raises(CoreLensError, match="different shapes .*2 layers x 2 heads"):
        compare_cores({"a": cores["500"], "b": of_heads("L0.H0", units=ComponentSet(2, 2))})


def test_comparing_empty_cores():
    found = compare_cores({"a": of_heads("L0.H0", "L0.H1"), "b": of_heads("L0.H2", "L0.H3")})
    assert np.isnan(found.pairs.loc[0, "jaccard"]) and found.pairs.loc[0, "p"] == pytest.approx(1)
    assert found.emergence.empty and found.shared == ()


def test_a_head_that_leaves_the_core_stays_from_nowhere():
    found = compare_cores({"a": of_heads("L0.H0 L0.H1"), "b": of_heads("L0.H0")}).emergence
    assert found.loc["L0.H0"].tolist() == ["a", "a"] and found.loc["L0.H1"].tolist() == ["a", None]


def test_the_random_pruner_has_no_core():
    """Its masks of one seed are nested, so only nulls in which seeds are independent are valid."""
    units, p = ComponentSet(4, 6, ("head",)), {"apart": [], "by_seed": [], "containment": [], "rho": []}
    pruner, problem = RandomPruner(), SimpleNamespace(units=units)
    for run in range(150):
        subnetworks = []
        for sparsity in (0.4, 0.5):
            for seed in range(4 * run, 4 * run + 4):
                mask = pruner.prune(problem, sparsity, seed).mask  # type: ignore[arg-type]
                made = {"asked_sparsity": sparsity, "seed": seed}
                subnetworks.append(Subnetwork(units, mask, ZeroActivations("h"), provenance=made))
        core = Core(tuple(subnetworks), pd.DataFrame(), {})
        overlap = core.overlap()
        p["apart"].append(overlap.at_random.p)
        p["by_seed"].append(overlap.by_seed_within_layers.p)
        p["containment"].append(core.containment(draws=99)["p"].item())
        p["rho"].append(core.rank_correlation(0.4, 0.5, draws=99)["p"])
    rejected = {name: np.mean(np.array(values) <= 0.05) for name, values in p.items()}
    assert rejected.pop("apart") > 0.3
    assert max(rejected.values()) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 150), rejected


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
