"""The illusions study: the same figures as one comparison, going on after an interruption, and what is drawn."""

import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from builders import hooked, random_task
from core_lens import Illusions, compare_proxies, dyck, find_core, generalization_gap, illusions
from core_lens.completions import read_rows
from core_lens.errors import CoreLensError, SavedFileError
from core_lens.hooked import load_language_model
from core_lens.illusions import _simple, _study
from core_lens.pruners import RandomPruner
from core_lens.simplify import SVD, AveragePattern, KMeans, OneHot
from core_lens.viz import illusions as pictures
from tiny_models import LABELS, tiny_language_model

TASK = random_task(30)
SMALL = {"svd": [1, 8], "k_means": [2, 4], "max_examples": 20, "n_examples": 40}


@pytest.fixture(scope="module")
def bert():
    return hooked("bert")


@pytest.fixture(scope="module")
def study(bert, tmp_path_factory):
    core = find_core(bert, TASK, [0.3, 0.5], 2, RandomPruner(), max_examples=10)
    folder = tmp_path_factory.mktemp("study")
    return folder, core, illusions(TASK, folder, model=bert, run=core, **SMALL)


@pytest.fixture(scope="module")
def brackets(tmp_path_factory):
    """A random model of Dyck-(3, 3): the language of the study is far too large for it."""
    model = load_language_model(tiny_language_model(8, 62))
    data = dyck.splits(3, 3, n_train=300, n_test=40, max_length=60)
    asked = {name: one.sample(15) for name, one in dyck.completions(data, k=3).items()}
    folder = tmp_path_factory.mktemp("brackets")
    simple, common = _simple([1, 8], [4], 8, 50), {"max_examples": 15, "n_examples": 50}
    rows = read_rows(model, data["train"], 50)
    return folder, asked, model, _study(model, rows, asked, simple, folder, 16, "dyck", common, language=3)


def test_the_study_is_one_comparison_of_all(bert, study):
    _, core, found = study
    proxies = {
        one.name: one.fit(bert, read_rows(bert, TASK, 40))
        for one in (*(SVD(k, n_examples=40) for k in (1, 8)), *(KMeans(k, n_examples=40) for k in (2, 4)), OneHot())
    }
    proxies["average pattern"] = AveragePattern(n_examples=40).fit(bert, read_rows(bert, TASK, 40))
    names = [f"subnetwork {s.asked_sparsity}-seed{s.seed}" for s in core.subnetworks]
    proxies |= dict(zip(names, core.subnetworks))
    assert [*found.proxies["proxy"]] == [*proxies]
    expected = generalization_gap(bert, proxies, TASK, max_examples=20)
    pd.testing.assert_frame_equal(found.gaps[expected.columns], expected)
    assert found.gaps["method"].drop_duplicates().tolist() == [
        "SVD",
        "k-means",
        "one-hot",
        "average pattern",
        "subnetwork",
    ]
    assert found.gaps.query("method == 'SVD'")["strength"].unique().tolist() == [1, 8]
    kept = found.gaps.query("method == 'subnetwork'").drop_duplicates("proxy")["strength"]
    assert np.allclose(kept, [s.mask.float().mean() for s in core.subnetworks])


def test_tables(study):
    folder, _, found = study
    wide = found.wide("jsd")
    assert [*wide.columns] == found.comparison.splits == ["dev", "hard", "easy"]
    assert wide.loc["SVD 8"].max() < 1e-6  # all dimensions are left
    curves = found.curves
    assert set(curves["metric"]) >= {"agreement", "jsd", "accuracy"}
    means = curves.query("metric == 'jsd'").set_index(["proxy", "split"])["value"]
    for row in found.gaps.itertuples():
        assert means[row.proxy, row.split] == pytest.approx(row.jsd)
    marked, gaps = found.marked(), found.gaps.set_index(["proxy", "split"])
    assert [*marked.columns] == ["hard", "easy"]
    for proxy, split in gaps.index:
        if split != "dev":
            row = gaps.loc[(proxy, split)]
            text = marked.loc[proxy, split]
            assert float(text[:-1]) == pytest.approx(100 * row["gap"], abs=0.051)
            assert (text[-1] == "*") == (row["low"] > 0 or row["high"] < 0)
    assert "agreement with the model (%)" in repr(found)
    with pytest.raises(CoreLensError, match="value='agrement'"):
        found.wide("agrement")
    names = [path.name for path in found.write(folder / "results")]
    assert names == ["gaps.csv", "curves.csv", "jsd.csv", "curves.png", "gaps.png"]
    assert len(pd.read_csv(folder / "results" / "gaps.csv")) == len(found.gaps)


def test_it_goes_on_where_it_was(bert, study, tmp_path, monkeypatch):
    folder, core, found = study
    copied = tmp_path / "copy"
    shutil.copytree(folder / "proxies", copied / "proxies")
    shutil.rmtree(copied / "proxies" / "one-hot")
    with pytest.raises(SavedFileError, match="not finished .one-hot is missing"):
        Illusions.load(copied)
    fits = []
    fit = SVD.fit
    monkeypatch.setattr(SVD, "fit", lambda self, *given: fits.append(self.k) or fit(self, *given))
    again = illusions(TASK, copied, model=bert, run=core, **SMALL)
    assert not fits  # what was there is not done again
    pd.testing.assert_frame_equal(again.gaps, found.gaps)
    with pytest.raises(CoreLensError, match="another simplifications"):
        illusions(TASK, copied, model=bert, run=core, **{**SMALL, "svd": [2]})
    with pytest.raises(CoreLensError, match="another label_map"):
        illusions(TASK, copied, model=bert, run=core, label_map={0: LABELS[0], 1: LABELS[2], 2: LABELS[1]}, **SMALL)
    other = find_core(bert, TASK, [0.3, 0.5], 2, RandomPruner(), max_examples=10, ablation="zero")
    with pytest.raises(CoreLensError, match="another subnetworks"):
        illusions(TASK, copied, model=bert, run=other, **SMALL)
    with pytest.raises(CoreLensError, match="another .*weights"):
        illusions(TASK, copied, model=hooked("bert", seed=5), seeds=0, **SMALL)
    file = copied / "proxies" / "SVD" / "answers.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(SavedFileError, match="answers.parquet is damaged"):
        illusions(TASK, copied, model=bert, run=core, **SMALL)
    with pytest.raises(SavedFileError, match="holds no study"):
        Illusions.load(tmp_path)


def test_subnetworks_of_another_model_are_refused(study, tmp_path):
    _, core, _ = study
    with pytest.raises(CoreLensError, match="other weights"):
        illusions(TASK, tmp_path, model=hooked("bert", seed=5), run=core, **SMALL)


def test_brackets_keep_where_heads_attend(brackets):
    folder, asked, model, found = brackets
    names = {"SVD 1": SVD(1), "SVD 8": SVD(8)}
    assert {*names, "model"} < set(found.errors["who"])
    once = compare_proxies(model, {}, asked, max_examples=None, attended=True)
    expected = dyck.depth_errors(once, asked, "L1.H1", k=3)
    there = found.errors.query("head == 'L1.H1' and who == 'model'").drop(columns="head")
    pd.testing.assert_frame_equal(there.reset_index(drop=True), expected)
    same = found.errors.query("who == 'SVD 8'").drop(columns="who").reset_index(drop=True)
    own = found.errors.query("who == 'model'").drop(columns="who").reset_index(drop=True)
    pd.testing.assert_frame_equal(same, own)  # all dimensions are left
    names = [path.name for path in found.write(folder / "results")]
    assert names[-4:] == [f"depths-L{layer}.H{head}.png" for layer in (0, 1) for head in (0, 1)]


def test_code_is_trained_and_studied(tmp_path):
    for i in range(5):
        for folder, suffix in (("python", "py"), ("c", "c")):
            path = tmp_path / folder / f"part{i}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{folder}_{i}_{j} = {folder}(x, {j})\n" for j in range(30)))
    given = {"folder": tmp_path / "python", "others": {"C": tmp_path / "c"}, "steps": 2, "svd": [1], "k_means": [2]}
    found = illusions("code", tmp_path / "out", max_examples=4, n_examples=10, **given)
    assert found.comparison.splits == ["Python", "Python, repeated words", "Python, new words", "C"]
    assert (tmp_path / "out" / "training" / "model" / "config.json").is_file()
    assert found.proxies["proxy"].tolist() == ["SVD 1", "k-means 2", "one-hot", "average pattern"]
    assert (found.what, found.model) == ("code", "model")


def test_mistakes_cost_nothing(bert, tmp_path, monkeypatch):
    """They are found before anything is trained, pruned or claimed, so that the right call can follow in the same folder."""
    monkeypatch.setattr("core_lens.code.train", lambda *given, **more: pytest.fail("it trains"))
    monkeypatch.setattr(
        sys.modules["core_lens.illusions"], "find_core", lambda *given, **more: pytest.fail("it prunes")
    )
    calls = [
        (("code",), {"svd": [64]}, "32 dimensions, fewer than 64"),
        (("code",), {"k_means": [0]}, "k_means has 0"),
        (("code",), {"run": "x"}, "run= means nothing to 'code'"),
        (("code",), {"steps": 0}, "steps=0"),
        (("dyck",), {"seeds": 0}, "seeds= means nothing to 'dyck'"),
        (("dyck",), {"folder": "x"}, "folder= means nothing to 'dyck'"),
        (("dyck",), {"max_examples": None}, "max_examples"),
        ((TASK,), {"svd": [True]}, "svd has True"),
        ((TASK,), {"svd": [9]}, "8 dimensions, fewer than 9"),
        ((TASK,), {"k_means": "4"}, "k_means has '4'"),
        ((TASK,), {"splits": ["dev", "nowhere"]}, "nowhere"),
        ((TASK,), {"splits": ["hard"]}, "name an in-domain split too"),
        ((TASK,), {"steps": 5}, "steps= means nothing to"),
        ((TASK,), {"run": 5}, "run is a int"),
        ((TASK,), {"batch_size": None}, "batch_size"),
    ]
    for what, settings, message in calls:
        model = {"model": bert} if what[0] is TASK else {}
        with pytest.raises(CoreLensError, match=message):
            illusions(*what, tmp_path / "out", **model, **settings)
    given = {**SMALL, "svd": 8, "k_means": np.array([2, 2]), "seeds": 0, "splits": "dev"}
    found = illusions(TASK, tmp_path / "out", model=bert, **given)
    assert found.proxies["proxy"].tolist() == ["SVD 8", "k-means 2", "one-hot", "average pattern"]
    assert [path.name for path in found.write(tmp_path / "results")] == [
        "gaps.csv",
        "curves.csv",
        "jsd.csv",
        "curves.png",
    ]
    assert "agreement" in repr(found)
    with pytest.raises(CoreLensError, match="holds a study without subnetworks"):
        illusions(TASK, tmp_path / "out", model=bert, **{**given, "seeds": 2})
    few = illusions(TASK, tmp_path / "few", model=bert, svd=[], k_means=[], seeds=0, max_examples=1)
    assert [path.name for path in few.write(tmp_path / "few" / "r")] == [
        "gaps.csv",
        "curves.csv",
        "jsd.csv",
        "gaps.png",
    ]
    assert not set(few.gaps["verdict"]) & {"underestimates", "overestimates"}  # one example says nothing
    (tmp_path / "few" / "proxies" / "illusions.json").write_text("{}")
    with pytest.raises(SavedFileError, match="illusions.json is damaged"):
        Illusions.load(tmp_path / "few")


def panels(figure):
    return {ax.get_title(): ax for ax in figure.axes if ax.get_visible() and ax.get_title()}


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def test_curves_show_the_table(study):
    _, _, found = study
    figure = pictures.proxy_curves(found.curves, "dev")
    assert legend(figure) == ["dev (in distribution)", "hard", "easy"]
    assert list(panels(figure)) == ["SVD", "k-means", "subnetwork"]
    values = found.curves.set_index(["metric", "method", "split"])
    for row, metric in enumerate(("agreement", "jsd")):
        for column, method in enumerate(("SVD", "k-means", "subnetwork")):
            ax = figure.axes[3 * row + column]
            lines = [line for line in ax.lines if line.get_linestyle() == "-"]
            for line, split in zip(lines, ("dev", "hard", "easy")):
                mean = values.sort_index().loc[(metric, method, split)].groupby("strength")["value"].mean()
                assert np.allclose(line.get_xdata(), mean.index) and np.allclose(line.get_ydata(), mean)
            assert len(ax.collections) == (0 if method == "subnetwork" else 3)  # bands where a strength is one proxy
            assert ax.get_xscale() == ("linear" if method == "subnetwork" else "log")
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    part = found.curves.query("proxy == 'SVD 1' and metric == 'agreement' and split == 'dev'").iloc[0]
    assert {part["low"], part["high"]} <= set(band[band[:, 0] == 1][:, 1])
    assert legend(pictures.proxy_curves(found.curves, "dev", ["easy"])) == ["easy"]
    with pytest.raises(CoreLensError, match="no split 'nowhere'"):
        pictures.proxy_curves(found.curves, "dev", ["nowhere"])


def test_bars_are_the_gaps_in_the_colours_of_verdicts():
    rows = [
        ("A", "in", 0.9, 0.0, 0.0, 0.0, "faithful"), ("A", "one", 0.7, 0.2, 0.1, 0.3, "underestimates"),
        ("A", "two", 0.95, -0.05, -0.1, 0.01, "overestimates"),
        ("B", "in", 1.0, 0.0, 0.0, 0.0, "faithful"), ("B", "one", 1.0, 0.0, 0.0, 0.0, "faithful"),
        ("B", "two", 1.0, 0.0, 0.0, 0.0, "faithful"),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["proxy", "split", "agreement", "gap", "low", "high", "verdict"])
    figure = pictures.gap_bars(table)
    (ax,) = panels(figure).values()
    assert ax.get_title() == "A"  # B is the model itself
    assert [patch.get_width() for patch in ax.patches] == [0.2, -0.05]
    assert len({patch.get_facecolor() for patch in ax.patches}) == 2
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    segments = ax.containers[0].lines[2][0].get_segments()
    assert np.allclose(sorted(segments[0][:, 0]), [0.1, 0.3])
    assert list(panels(pictures.gap_bars(table, ["B", "A"]))) == ["B", "A"]
    with pytest.raises(CoreLensError, match="no proxy 'C'"):
        pictures.gap_bars(table, ["C"])
    with pytest.raises(CoreLensError, match="twice on one split"):
        pictures.gap_bars(pd.concat([table, table]))
    with pytest.raises(CoreLensError, match="nothing to draw"):
        pictures.gap_bars(table[table["split"] == "in"])


def test_maps_show_shares_by_depth():
    rows = [("deep", "model", 1, 1, 3, 0.75), ("deep", "model", 1, 0, 1, 0.25), ("deep", "model", 3, 2, 2, 1.0),
            ("deep", "SVD 1", 1, 0, 4, 1.0), ("deep", "SVD 1", 3, 0, 2, 1.0)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["split", "who", "query_depth", "key_depth", "n", "share"])
    figure = pictures.depth_maps(table, "deep", ["model", "SVD 1"], "L1.H0")
    drawn = panels(figure)["model"].images[0].get_array()
    assert np.allclose(drawn[0], [0.25, 0.75, 0, 0])
    assert np.ma.getmaskarray(drawn)[1].all() or np.isnan(drawn[1].astype(float)).all()  # no bracket of depth 2
    assert np.allclose(drawn[2], [0, 0, 1, 0])
    assert np.allclose(panels(figure)["SVD 1"].images[0].get_array()[0], [1, 0, 0, 0])
    with pytest.raises(CoreLensError, match="no who 'SVD 2'"):
        pictures.depth_maps(table, "deep", ["SVD 2"], "L1.H0")
    with pytest.raises(CoreLensError, match="who is empty"):
        pictures.depth_maps(table, "deep", [], "L1.H0")
    # Of several heads only the one asked for is drawn.
    two = pd.concat([table.assign(head="L1.H0"), table.assign(head="L0.H0", share=0.5)])
    drawn = panels(pictures.depth_maps(two, "deep", ["model"], "L1.H0"))["model"].images[0].get_array()
    assert np.allclose(drawn[0], [0.25, 0.75, 0, 0])
    with pytest.raises(CoreLensError, match="no head 'L9.H9'"):
        pictures.depth_maps(two, "deep", ["model"], "L9.H9")
