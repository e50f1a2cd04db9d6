"""Pictures: what is drawn is what the table says, it can be read, and it is written whole in three formats."""

import re
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from builders import random_task
from core_lens.errors import CoreLensError, SavedFileError
from core_lens.viz import drawing, plots

OKABE_ITO = {"#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"}
SPLITS = ("dev", "hard", "easy")
MINUS = "\u2212"


def evaluation() -> pd.DataFrame:
    """Three splits, sparsities 0.3 and 0.6, three seeds each; two seeds score the same on `easy`."""
    columns = ["subnetwork", "sparsity", "seed", "split", "group", "metric", "value", "low", "high", "n"]
    rows = []
    for i, split in enumerate(SPLITS):
        rows.append(("full", 0.0, -1, split, "all", "accuracy", 0.9 - 0.1 * i, 0.85 - 0.1 * i, 0.93 - 0.1 * i, 100))
        for sparsity in (0.3, 0.6):
            for seed in range(3):
                value = 0.2 if split == "easy" else 1 - sparsity - 0.1 * i - 0.05 * seed
                rows.append((f"{sparsity}-{seed}", sparsity, seed, split, "all", "accuracy", value, 0.0, 1.0, 100))
                rows.append((f"{sparsity}-{seed}", sparsity, seed, split, "part", "accuracy", 0.01, 0.0, 1.0, 9))
                rows.append((f"{sparsity}-{seed}", sparsity, seed, split, "all", "kl", 2 * value, 0.0, 9.0, 100))
    return pd.DataFrame(rows, columns=columns)


def results(seeds: int = 3) -> pd.DataFrame:
    """What `Core.table` gives, of made figures."""
    index = pd.MultiIndex.from_tuples([(s, "accuracy") for s in SPLITS], names=["split", "metric"])
    columns = {
        ("full", "value"): [0.9, 0.8, 0.7],
        ("full", "low"): [0.85, 0.7, 0.6],
        ("full", "high"): [0.95, 0.9, 0.8],
    }
    for s, mean in ((0.3, [0.8, 0.5, 0.4]), (0.6, [0.7, 0.2, 0.3])):
        columns[s, "mean"] = mean
        columns[s, "low"] = [m - 0.1 for m in mean] if seeds > 1 else [np.nan] * 3
        columns[s, "high"] = [m + 0.2 for m in mean] if seeds > 1 else [np.nan] * 3
    return pd.DataFrame(columns, index=index)


def frequencies(with_mlps: bool = True) -> pd.DataFrame:
    """2 layers x 3 heads; L0.H1 and L1.H0 are in all, L0.MLP too."""
    units = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    table = pd.DataFrame(
        {
            "component": [f"L{i}.H{j}" for i, j in units],
            "layer": [i for i, _ in units],
            "head": pd.array([j for _, j in units], dtype="Int64"),
            "kind": "head",
            0.3: [0.5, 1.0, 0.25, 1.0, 0.25, 0.75],
            0.6: [0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
            "all": [0.25, 1.0, 0.125, 1.0, 0.125, 0.875],
        }
    )
    if not with_mlps:
        return table
    mlps = {"component": ["L0.MLP", "L1.MLP"], "layer": [0, 1], "head": pd.array([pd.NA] * 2, dtype="Int64")}
    mlps |= {"kind": "mlp", 0.3: [1.0, 0.5], 0.6: [1.0, 0.0], "all": [1.0, 0.25]}
    return pd.concat([table, pd.DataFrame(mlps)], ignore_index=True)


RHO = {"rho": 0.5, "low": 0.25, "high": -0.125, "p": 0.03}


def sizes(named: bool = False) -> pd.DataFrame:
    """Two groups at three checkpoints, given out of order; the second of OOD is flagged."""
    rows = [
        (600, "ID", 0.5, 0.4, 0.7, 0.9, ()),
        (200, "ID", 0.4, 0.3, 0.5, 0.8, ()),
        (1200, "ID", 0.6, np.nan, np.nan, 0.95, ()),
        (200, "OOD", 0.3, 0.2, 0.6, 0.1, ()),
        (600, "OOD", 0.8, 0.7, 1.0, 0.3, ("at a floor",)),
        (1200, "OOD", 0.9, 0.85, 0.95, 0.6, ()),
    ]
    table = pd.DataFrame(rows, columns=["checkpoint", "splits", "size", "low", "high", "full", "flags"])
    return table.assign(checkpoint="step " + table["checkpoint"].astype(str)) if named else table


def patterns(checkpoints: tuple[str, ...] = ()) -> pd.DataFrame:
    """1 layer x 4 heads, two measures; only L0.H0 lies apart from chance. Nothing was measured of `cls`."""
    rows = []
    for shift, name in enumerate(checkpoints or ("",)):
        for head in range(4):
            for measure, chance in (("previous", 0.1), ("entropy", 2.0), ("cls", np.nan)):
                value = chance + 0.2 * (4 - head) + 0.01 * shift
                excess = (0.1, 0.3) if head == 0 else (-0.1, 0.3)
                n = 0 if measure == "cls" else 50
                rows.append((name, 0, head, measure, value, chance, value - 0.02, value + 0.05, n, *excess))
    names = [
        "checkpoint",
        "layer",
        "head",
        "measure",
        "value",
        "chance",
        "low",
        "high",
        "n",
        "excess_low",
        "excess_high",
    ]
    table = pd.DataFrame(rows, columns=names)
    return table if checkpoints else table.drop(columns="checkpoint")


def singles() -> pd.DataFrame:
    """Two heads and the others, on two splits and two metrics; the full model's row has no drop."""
    rows = []
    for metric, scale in (("margin", 1.0), ("accuracy", 0.1)):
        for split, sign in (("dev", 1), ("hard", -1)):
            rows.append(("none", split, metric, np.nan, np.nan, np.nan, np.nan))
            for name, drop in (("L0.H1", 2.0), ("L1.H0", 0.5)):
                drop = sign * scale * drop
                rows.append((name, split, metric, drop, drop - 0.3, drop + 0.4, np.nan))
            rows.append(("mean of others", split, metric, 0.05, 0.04, 0.06, 0.25))
    names = ["ablated", "split", "metric", "drop", "drop_low", "drop_high", "spread"]
    return pd.DataFrame(rows, columns=names)


def joint() -> pd.DataFrame:
    rows = [("dev", "margin", 3.0, 2.5, 0.5, 0.2, 0.9), ("hard", "margin", -2.0, -2.5, 0.5, -0.1, 0.6)]
    return pd.DataFrame(rows, columns=["split", "metric", "joint", "singles", "value", "low", "high"])


def interactions() -> pd.DataFrame:
    """Three pairs on two splits, each from both sides, and one set of three."""
    rows = []
    for split, sign in (("dev", 1), ("hard", -1)):
        for metric, scale in (("margin", 1.0), ("accuracy", 0.1)):
            for a, b, value, half in (
                ("L0.H1", "L1.H0", 1.5, 0.5),
                ("L0.H1", "L2.H2", -0.25, 0.5),
                ("L1.H0", "L2.H2", 0, 1),
            ):
                value, half = sign * scale * value, scale * half
                for head, other in ((a, b), (b, a)):
                    rows.append((head, other, split, metric, value, value - half, value + half))
            rows.append((None, None, split, metric, 9.0, 8.0, 10.0))
    return pd.DataFrame(rows, columns=["head", "other", "split", "metric", "value", "low", "high"])


def every_picture() -> dict[str, plots.Picture]:
    task, table = random_task(), patterns(("fine-tuned", "pretrained"))
    return {
        "strip": plots.accuracy_strip(evaluation(), task),
        "strip of kl": plots.accuracy_strip(evaluation(), metric="kl"),
        "by sparsity": plots.accuracy_by_sparsity(results(), task),
        "one seed": plots.accuracy_by_sparsity(results(1)),
        "maps": plots.frequency_maps(frequencies()),
        "scatter": plots.frequency_scatter(frequencies(), 0.3, 0.6, RHO),
        "sizes": plots.effective_size(sizes()),
        "named sizes": plots.effective_size(sizes(named=True)),
        "patterns": plots.pattern_scores(table, ["L0.H0", "L0.H2"]),
        "ablations": plots.ablation_bars(singles(), joint()),
        "ablations in points": plots.ablation_bars(singles(), metric="accuracy"),
        "interactions": plots.interaction_map(interactions()),
    }


@pytest.fixture(scope="module")
def pictures():
    found = every_picture()
    for figure in found.values():
        FigureCanvasAgg(figure).draw()
    return found


def panels(figure) -> dict[str, mpl.axes.Axes]:
    """Title -> visible panel."""
    return {(ax.get_title(loc="left") or ax.get_title()): ax for ax in figure.axes if ax.get_visible()}


def legend(figure) -> list[str]:
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def ticks(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def reach(bars: ErrorbarContainer, axis: int) -> list[tuple[float, float]]:
    """Lower and upper end of each bar, along x (0) or y (1)."""
    return [tuple(np.sort(segment[:, axis])) for segment in bars.lines[2][0].get_segments()]


def error_bars(ax) -> list[ErrorbarContainer]:
    return [one for one in ax.containers if isinstance(one, ErrorbarContainer)]


def dots(ax) -> list[tuple[float, float, bool]]:
    """(x, y, filled) of every marker that can be hollow."""
    found = [one for one in ax.collections if isinstance(one, PathCollection)]
    return [
        (x, y, to_hex(face) != "#ffffff")
        for one in found
        for (x, y), face in zip(np.asarray(one.get_offsets()), one.get_facecolors())
    ]


# --- what is drawn is what the table says


def test_a_strip_has_every_subnetwork_and_the_full_model():
    table = evaluation()
    figure = plots.accuracy_strip(table, random_task())
    by_role = panels(figure)
    assert list(by_role) == ["in domain", "out of domain", "companions"]
    for ax, split in zip(by_role.values(), SPLITS):
        assert ticks(ax.yaxis) == [split]
        rows = table[(table["split"] == split) & (table["metric"] == "accuracy") & (table["group"] == "all")]
        points = [line for line in ax.lines if line.get_marker() in "os"]
        for line, sparsity in zip(points, (0.3, 0.6), strict=True):
            ours = rows[rows["sparsity"] == sparsity]
            assert list(line.get_xdata()) == ours["value"].tolist()
            y = line.get_ydata()
            assert len(set(y)) == 3 and np.abs(y).max() < 0.45  # equal values apart, in the split's own row
        assert points[0].get_marker() != points[1].get_marker() and points[0].get_color() != points[1].get_color()
        assert np.all(points[0].get_ydata() < points[1].get_ydata())
        full = rows[rows["subnetwork"] == "full"].iloc[0]
        (band,) = ax.patches
        assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((full["low"], full["high"]))
        lines = [one for one in ax.collections if isinstance(one, LineCollection)]
        assert [s[:, 0].tolist() for s in lines[0].get_segments()] == [[full["value"]] * 2]
    last = list(by_role.values())[-1]
    assert last.get_xlabel() == "accuracy (%)" and last.get_xlim() == pytest.approx((-0.03, 1.03))
    assert last.xaxis.get_major_formatter()(0.25, 0) == "25"
    assert figure.get_suptitle() == "Accuracy of every subnetwork"
    assert legend(figure) == ["full model, 95 % interval over examples", "30 % removed", "60 % removed"]


def test_a_strip_of_chosen_splits_and_another_metric():
    figure = plots.accuracy_strip(evaluation(), splits=["hard", "dev"], metric="kl")
    ((title, ax),) = panels(figure).items()
    assert title == "" and ticks(ax.yaxis) == ["hard", "dev"]
    points = [line for line in ax.lines if line.get_marker() in "os"]
    # dev: 2 * (1 - .3 - .05 * seed), hard: .2 less; the first split stands on top, at 0
    shown = sorted(zip(np.round(points[0].get_ydata()), np.round(points[0].get_xdata(), 6)))
    assert shown == [(0, 1.0), (0, 1.1), (0, 1.2), (1, 1.2), (1, 1.3), (1, 1.4)]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_xlabel() == "KL divergence from the full model (nats)"
    assert "full model" not in str(legend(figure))  # which has no divergence from itself


def test_accuracy_by_sparsity_has_means_bands_and_the_full_model():
    figure = plots.accuracy_by_sparsity(results(), random_task())
    assert list(panels(figure)) == list(SPLITS)
    colors = {"dev": plots.BLUE, "hard": plots.RED, "easy": plots.GREEN}
    for split, ax in panels(figure).items():
        row = results().loc[(split, "accuracy")]
        (bars,) = error_bars(ax)
        line = bars.lines[0]
        assert line.get_xdata().tolist() == [0.3, 0.6] and line.get_color() == colors[split]
        assert line.get_ydata().tolist() == [row[0.3, "mean"], row[0.6, "mean"]]
        ends = [(row[s, "low"], row[s, "high"]) for s in (0.3, 0.6)]
        np.testing.assert_allclose(reach(bars, 1), ends)
        band = next(one for one in ax.collections if not isinstance(one, LineCollection))
        corners = band.get_paths()[0].vertices
        for s, (low, high) in zip((0.3, 0.6), ends):
            at = corners[np.isclose(corners[:, 0], s), 1]
            assert (at.min(), at.max()) == pytest.approx((low, high))
        full = next(line for line in ax.lines if line.get_linestyle() == "--")
        assert set(full.get_ydata()) == {row["full", "value"]}
        (span,) = ax.patches
        box = span.get_bbox() if hasattr(span, "get_bbox") else span.get_path().get_extents()
        assert (box.y0, box.y1) == pytest.approx((row["full", "low"], row["full", "high"]))
        assert ax.get_xlabel() == "sparsity: units removed (%)"
    first = panels(figure)["dev"]
    assert first.get_ylabel() == "accuracy (%)" and first.xaxis.get_major_formatter()(0.3, 0) == "30"
    assert legend(figure) == [
        "in domain", "out of domain", "companions", "mean over seeds, 95 % interval", "full model, 95 % interval over examples",
    ]  # fmt: skip


def test_one_seed_has_no_band():
    figure = plots.accuracy_by_sparsity(results(1), splits="hard")
    ((title, ax),) = panels(figure).items()
    assert title == "hard"
    assert all(low == high for low, high in reach(error_bars(ax)[0], 1))
    assert legend(figure)[0] == "one seed"


def test_frequency_maps_have_the_shares_and_frame_the_core():
    figure = plots.frequency_maps(frequencies())
    shown = panels(figure)
    assert [title for title in shown if title] == [
        "30 % of units removed",
        "60 % of units removed",
        "all subnetworks",
    ]
    expected = {
        "30 % of units removed": [[0.5, 1, 0.25, 1], [1, 0.25, 0.75, 0.5]],
        "60 % of units removed": [[0, 1, 0, 1], [1, 0, 1, 0]],
        "all subnetworks": [[0.25, 1, 0.125, 1], [1, 0.125, 0.875, 0.25]],
    }
    framed = {"30 % of units removed": {(0, 1), (1, 0)}, "60 % of units removed": {(0, 1), (1, 0), (1, 2)}}
    framed["all subnetworks"] = framed["30 % of units removed"]
    for title, values in expected.items():
        ax = shown[title]
        (image,) = ax.images
        np.testing.assert_allclose(image.get_array(), values)
        assert image.get_clim() == (0, 1) and image.get_cmap().name == "cividis"
        texts = {text.get_position(): text.get_text() for text in ax.texts}
        assert texts == {(x, y): f"{100 * v:.0f}" for y, row in enumerate(values) for x, v in enumerate(row)}
        assert {to_hex(p.get_edgecolor()) for p in ax.patches} == {plots.RED.lower()}
        assert {(round(p.get_y() + 0.46), round(p.get_x() + 0.46)) for p in ax.patches} == framed[title]
        assert ticks(ax.xaxis) == ["0", "1", "2", "MLP"] and ax.get_ylim() == (-0.5, 1.5)  # layer 0 is lowest
    assert shown["30 % of units removed"].get_ylabel() == "layer"
    assert figure.axes[-1].get_ylabel() == "subnetworks that keep it (%)"


def test_frequency_maps_without_mlps_or_without_heads():
    heads = plots.frequency_maps(frequencies(with_mlps=False))
    assert ticks(heads.axes[0].xaxis) == ["0", "1", "2"] and heads.get_suptitle() == "How often each unit is kept"
    table = frequencies()
    mlps = plots.frequency_maps(table[table["kind"] == "mlp"].reset_index(drop=True))
    np.testing.assert_allclose(mlps.axes[0].images[0].get_array(), [[1], [0.5]])
    assert ticks(mlps.axes[0].xaxis) == ["MLP"] and not mlps.legends and not mlps.axes[0].patches


def test_ink_in_a_cell_stands_out_from_it():
    for figure in (plots.frequency_maps(frequencies()), plots.interaction_map(interactions())):
        for ax in figure.axes[:2]:
            for text in ax.texts:
                x, y = text.get_position()
                cell = ax.images[0].to_rgba(ax.images[0].get_array()[int(y), int(x)])
                # WCAG's contrast of two luminances
                light, dark = sorted((luminance(cell), luminance(text.get_color())), reverse=True)
                assert (light + 0.05) / (dark + 0.05) > 4


def test_the_scatter_has_every_head_near_its_place():
    table = frequencies()
    figure = plots.frequency_scatter(table, 0.3, 0.6, RHO)
    ax = figure.axes[0]
    (points,) = [one for one in ax.collections if isinstance(one, PathCollection)]
    heads = table[table["kind"] == "head"]
    drawn, true = np.asarray(points.get_offsets()), heads[[0.3, 0.6]].to_numpy()
    distance = np.hypot(*(drawn - true).T)
    assert list(np.flatnonzero(distance)) == [3, 4]  # the second at (1, 1) and at (.25, 0)
    assert distance.max() < 0.1 and len({tuple(p) for p in drawn.round(4)}) == 6
    np.testing.assert_array_equal(points.get_array(), heads["layer"])
    assert ax.get_title().split("\n")[0] == f"Spearman's \u03c1 = 0.50, 95 % interval [0.25, {MINUS}0.12], p = 0.03"
    assert ax.get_xlabel() == "kept at 30 % sparsity (% of its subnetworks)"
    assert ax.get_ylabel() == "kept at 60 % sparsity (% of its subnetworks)"
    few = plots.frequency_scatter(table, 0.3, 0.6, {"rho": 0.9, "low": np.nan, "high": np.nan, "p": 1e-4})
    assert few.axes[0].get_title().startswith("Spearman's \u03c1 = 0.90, too few seeds for an interval, p < 0.001")
    assert "Spearman" not in plots.frequency_scatter(table, 0.6, 0.3, None).axes[0].get_title()


@pytest.mark.parametrize("named", [False, True])
def test_effective_sizes_stand_above_the_accuracy(named):
    figure = plots.effective_size(sizes(named))
    top, bottom = figure.axes
    table = sizes().sort_values("checkpoint")
    x = [0, 1, 2] if named else [200, 600, 1200]
    if named:  # in the table's order, which is not that of the steps
        table = sizes()
        table["checkpoint"] = table["checkpoint"].map({600: 0, 200: 1, 1200: 2})
        table = table.sort_values("checkpoint")
    for i, (group, bars) in enumerate(zip(("ID", "OOD"), error_bars(top), strict=True)):
        part = table[table["splits"] == group]
        line = bars.lines[0]
        np.testing.assert_allclose(line.get_xdata(), x, atol=0.01 * np.ptp(x))
        np.testing.assert_allclose(line.get_ydata(), part["size"])
        known = part.fillna({"low": part["size"], "high": part["size"]})
        np.testing.assert_allclose(reach(bars, 1), known[["low", "high"]])
        below = bottom.lines[i]
        assert list(below.get_xdata()) == x and list(below.get_ydata()) == part["full"].tolist()
        assert below.get_color() == line.get_color()
    hollow = [(round(px), py) for px, py, filled in dots(top) if not filled]
    assert len(dots(top)) == 6 and len(hollow) == 1 and hollow[0][1] == 0.8
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("units kept (%)", "accuracy (%)")
    assert bottom.get_xlabel() == ("checkpoint" if named else "step of fine-tuning")
    if named:
        assert ticks(bottom.xaxis) == ["step 600", "step 200", "step 1200"]
    assert legend(figure) == ["ID", "OOD", "hollow: flagged, see the table"]
    assert legend(plots.effective_size(sizes(), "ID")) == ["ID"]


def test_pattern_scores_have_values_intervals_chance_and_the_others():
    figure = plots.pattern_scores(patterns(), ["L0.H2", "L0.H0"])
    shown = panels(figure)
    assert list(shown) == ["previous token", "entropy"]  # nothing was measured of cls
    for ax, chance in zip(shown.values(), (0.1, 2.0)):
        assert [(round(x, 6), y, filled) for x, y, filled in dots(ax)] == [
            (round(chance + 0.8, 6), 0, True),
            (round(chance + 0.4, 6), 1, False),
        ]
        (bars,) = error_bars(ax)
        np.testing.assert_allclose(reach(bars, 0), [(chance + 0.78, chance + 0.85), (chance + 0.38, chance + 0.45)])
        others = next(line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o")
        np.testing.assert_allclose(others.get_xdata(), [chance + 0.6, chance + 0.2])
        assert min(others.get_ydata()) > 1.5
        levels = [one for one in ax.collections if isinstance(one, LineCollection) and one not in bars.lines[2]]
        assert {round(x, 6) for one in levels for s in one.get_segments() for x in s[:, 0]} == {chance}
    first, second = shown.values()
    assert ticks(first.yaxis) == ["L0.H0", "L0.H2", "2 others"]
    assert first.get_xlabel() == "attention (%)" and second.get_xlabel() == "entropy (nats)"
    assert first.get_ylabel() == "head" and first.xaxis.get_major_formatter()(0.4, 0) == "40"
    assert figure.get_suptitle() == "Where core heads attend"
    alone = plots.pattern_scores(patterns(), [f"L0.H{i}" for i in range(4)], "previous")
    assert list(panels(alone)) == ["previous token"] and "others" not in str(ticks(alone.axes[0].yaxis))


def test_pattern_scores_of_two_checkpoints_stand_beside_each_other():
    figure = plots.pattern_scores(patterns(("fine-tuned", "pretrained")), ["L0.H0"], ["previous"])
    (ax,) = panels(figure).values()
    assert [(round(x, 6), y) for x, y, _ in dots(ax)] == [(0.9, -0.25), (0.91, 0.25)]
    assert [text.split(":")[0] for text in legend(figure)] == ["chance", "fine-tuned", "pretrained", "hollow"]
    ours, before = (one for one in ax.collections if isinstance(one, PathCollection))
    assert to_hex(ours.get_edgecolors()[0]) != to_hex(before.get_edgecolors()[0])


def test_ablation_bars_have_the_drops():
    figure = plots.ablation_bars(singles(), joint())
    assert list(panels(figure)) == ["dev", "hard"]
    for (split, ax), sign, together in zip(panels(figure).items(), (1, -1), ((0.2, 0.9), (-0.1, 0.6))):
        widths = [patch.get_width() for patch in ax.patches]
        assert widths == pytest.approx([2 * sign, 0.5 * sign, 0.05, 2.5 * sign, 3 if split == "dev" else -2])
        heads, both = error_bars(ax)
        ends = [(2 * sign - 0.3, 2 * sign + 0.4), (0.5 * sign - 0.3, 0.5 * sign + 0.4), (-0.2, 0.3)]
        np.testing.assert_allclose(reach(heads, 0), ends)  # the others by their spread over heads
        # The interval is that of the difference, about the joint drop.
        drop = widths[-1]
        np.testing.assert_allclose(reach(both, 0), [(drop - 0.5 + together[0], drop - 0.5 + together[1])])
        middles = [patch.get_y() + patch.get_height() / 2 for patch in ax.patches]
        labels = dict(zip(ax.get_yticks(), ticks(panels(figure)["dev"].yaxis)))
        assert [labels[round(y, 6)] for y in middles] == ["L0.H1", "L1.H0", "other heads", "sum of these", "together"]
        assert ax.get_xlabel() == "drop in\ngold margin (logits)"
    assert len(legend(figure)) == 4 and figure.get_suptitle() == "Heads ablated alone and together"
    points = plots.ablation_bars(singles(), metric="accuracy", splits=["hard"])
    (ax,) = panels(points).values()
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([-0.2, -0.05, 0.05])
    assert ax.get_xlabel() == "drop in\naccuracy (points)" and ax.xaxis.get_major_formatter()(-0.2, 0) == f"{MINUS}20"
    assert len(legend(points)) == 2


def test_interaction_maps_are_the_pairs():
    figure = plots.interaction_map(interactions())
    for (split, ax), sign in zip(list(panels(figure).items())[:2], (1, -1)):
        assert split == ("dev" if sign == 1 else "hard")
        (image,) = ax.images
        nan, value = np.nan, sign * np.array([1.5, -0.25, 0])
        expected = [[nan, value[0], value[1]], [value[0], nan, value[2]], [value[1], value[2], nan]]
        np.testing.assert_allclose(np.ma.filled(image.get_array(), nan), expected)
        assert image.norm.vmin == -1.5 and image.norm.vmax == 1.5  # white is 0
        texts = {text.get_position(): (text.get_text(), text.get_fontweight()) for text in ax.texts}
        plus, minus = ("+", MINUS) if sign == 1 else (MINUS, "+")
        assert texts[1, 0] == texts[0, 1] == (f"{plus}1.50", "bold")
        assert texts[2, 0] == texts[0, 2] == (f"{minus}0.25", "normal")
        assert texts[2, 1] == ("0", "normal") and len(texts) == 6
        assert ticks(ax.xaxis) == ["L0.H1", "L1.H0", "L2.H2"]
    assert figure.axes[-1].get_ylabel() == "joint drop less sum of single drops,\ngold margin (logits)"
    points = plots.interaction_map(interactions(), "dev", "accuracy")
    assert {text.get_text() for text in points.axes[0].texts} == {"+15", f"{MINUS}2", "0"}
    assert points.axes[-1].get_ylabel().endswith("accuracy (points)")


# --- it can be read


def luminance(color) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_colours_of_groups_differ_for_the_colour_blind():
    # Machado, Oliveira and Fernandes (2009), severity 1.
    seen = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    }
    together = {"roles": (plots.BLUE, plots.RED, plots.GREEN), "checkpoints": (plots.BLUE, plots.ORANGE)}

    def lab(color: str, matrix) -> np.ndarray:
        rgb = np.array(to_rgb(color))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        linear = np.clip(np.array(matrix) @ linear, 0, 1)
        to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        x, y, z = np.cbrt(np.array(to_xyz) @ linear / (0.9505, 1, 1.089))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    for matrix in seen.values():
        assert np.linalg.norm(lab("#ff0000", matrix) - lab("#ff00ff", np.eye(3))) > 0  # the matrices do something
        for colors in together.values():
            points = [lab(color, matrix) for color in colors]
            apart = [np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i]]
            assert min(apart) > 20  # 2.3 can just be told apart


def test_every_colour_is_of_a_palette_for_the_colour_blind(pictures):
    maps = [mpl.colormaps[name](np.linspace(0, 1, 256))[:, :3] for name in ("cividis", "RdBu_r")]

    def known(color) -> bool:
        rgb = np.array(to_rgb(color))
        near = min(np.abs(points - rgb).max(axis=1).min() for points in maps)
        return np.ptp(rgb) < 1e-6 or to_hex(rgb) in OKABE_ITO or near < 0.02

    used = set()
    for figure in pictures.values():
        for ax in figure.axes:
            used |= {to_hex(line.get_color()) for line in ax.lines if line.get_linestyle() != "None"}
            faces = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() in ("o", "s", "D")]
            used |= {to_hex(face) for face in faces}
            used |= {to_hex(patch.get_facecolor()) for patch in ax.patches if patch.get_fill()}
            used |= {to_hex(color) for one in ax.collections for color in one.get_facecolor()}
            used |= {to_hex(color) for one in ax.collections for color in one.get_edgecolor()}
            assert all(image.get_cmap().name in ("cividis", "RdBu_r") for image in ax.images)
    assert len(used & OKABE_ITO) >= 4 and not [color for color in used if not known(color)]


def test_texts_are_large_enough_whole_and_do_not_cover_each_other(pictures):
    for name, figure in pictures.items():
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        hidden = [t for ax in figure.axes if not ax.get_visible() for t in ax.findobj(Text)]
        texts = [t for t in texts if t not in hidden]
        assert min(t.get_fontsize() for t in texts) >= 9, name
        labels = [figure._suptitle, *(t for box in figure.legends for t in box.get_texts())]
        for ax in figure.axes:
            if ax.get_visible():
                labels += [ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts]
                for axis in (ax.xaxis, ax.yaxis):
                    low, high = sorted(axis.get_view_interval())
                    labels += [
                        t.label1
                        for t in axis.get_major_ticks()
                        if low <= t.get_loc() <= high and t.label1.get_visible()
                    ]
        labels = [t for t in labels if t.get_text().strip()]
        found = [text.get_window_extent() for text in labels]
        for text, box in zip(labels, found):
            assert box.x0 >= -1 and box.y0 >= -1, (name, text)
            assert box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1, (name, text)
        for i, a in enumerate(found):
            if labels[i].get_rotation() not in (0, 90):
                continue  # the box of a slanted text is larger than the text
            for j, b in enumerate(found[:i]):
                apart = labels[j].get_rotation() not in (0, 90) or not a.shrunk(0.9, 0.9).overlaps(b.shrunk(0.9, 0.9))
                assert apart, (name, labels[i].get_text(), labels[j].get_text())
        for box in figure.legends:
            for ax in figure.axes:
                assert not box.get_window_extent().overlaps(ax.get_window_extent()), name
        for ax in figure.axes:
            if ax.get_visible() and ax.get_label() != "<colorbar>":
                shares = ax.get_shared_x_axes()
                assert any(one.get_xlabel() for one in figure.axes if shares.joined(ax, one) or one is ax), name
        assert figure.get_suptitle(), name


def test_many_panels_are_no_wider_than_a_page():
    wide = pd.concat([results().rename(index={s: f"{s} {i}" for s in SPLITS}, level=0) for i in range(6)])
    figure = plots.accuracy_by_sparsity(wide)
    assert len(panels(figure)) == 18 and figure.get_figwidth() <= 10.21
    # below each column's last panel the axis has its numbers and its name
    FigureCanvasAgg(figure).draw()
    named = [ax for ax in panels(figure).values() if ax.get_xlabel()]
    assert len(named) == 4 and all(any(ticks(ax.xaxis)) for ax in named)


def test_long_and_hostile_names_stay_text():
    word = "a_very_long_name_of_a_split " * 3 + "$x_1$ </svg><script>alert(1)</script> --> \x07"
    table = evaluation().replace({"split": {"dev": word}})
    text = drawing.svg(plots.accuracy_strip(table))
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    assert "script" not in tags and text.count("<svg") == 1 == text.count("</svg>") and "alert" not in text


# --- files


def test_a_figure_is_written_in_three_formats(tmp_path):
    starts = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg ", "pdf": b"%PDF-"}
    for suffix, start in starts.items():
        first = plots.save(plots.frequency_maps(frequencies()), tmp_path / "new" / f"a.{suffix}")
        again = plots.save(plots.frequency_maps(frequencies()), str(tmp_path / f"b.{suffix.upper()}"))
        assert first.read_bytes().startswith(start) and first.read_bytes() == again.read_bytes()
    figure = plots.frequency_maps(frequencies())
    assert figure._repr_png_().startswith(starts["png"])
    assert not [p for p in (tmp_path / "new").iterdir() if p.name.startswith(".")]
    for name in ("a.jpg", "a", "a.html"):
        with pytest.raises(CoreLensError, match=re.escape(f"cannot save a figure as '{name}': end the name in .png")):
            plots.save(figure, tmp_path / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(SavedFileError, match="cannot write"):
        plots.save(figure, tmp_path / "file" / "a.png")


def test_svgs_stand_together_in_one_page(pictures):
    texts = [drawing.svg(figure) for figure in (pictures["maps"], pictures["sizes"], pictures["ablations"])]
    ids = [name for text in texts for name in re.findall(r' id="([^"]*)"', text)]
    assert len(ids) == len(set(ids)) > 100
    for text in texts:
        own = set(re.findall(r' id="([^"]*)"', text))
        used = set(re.findall(r'(?:href="|url\()#([^")]*)', text))
        assert used and used <= own
        assert "<style" not in text and "<!--" not in text and "http://www.w3.org/2000/svg" in text
        assert not set(re.findall(r'https?://[^"<]*', text)) - {"http://www.w3.org/2000/svg"}
        assert 'role="img" aria-label="' in text
    assert {"#0072b2", "#d55e00"} <= set(re.findall("#[0-9a-f]{6}", texts[2]))  # colours are no references


def test_making_pictures_leaves_matplotlib_alone():
    before = dict(mpl.rcParams)
    drawing.svg(plots.accuracy_strip(evaluation()))
    assert dict(mpl.rcParams) == before


# --- mistakes


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda: plots.accuracy_strip(evaluation().iloc[:0]), "the table has no split with 'accuracy'"),
        (lambda: plots.accuracy_strip(evaluation(), metric="f1"), "the table has no split with 'f1'"),
        (lambda: plots.accuracy_strip(evaluation(), splits=["tests"]), "'tests' is no split with 'accuracy' here: .*dev"),
        (lambda: plots.accuracy_strip(evaluation(), splits=[]), "no split with 'accuracy' is named: choose from dev"),
        (lambda: plots.accuracy_strip(results()), "evaluation has no column 'subnetwork': it needs"),
        (lambda: plots.accuracy_by_sparsity(results().iloc[:0]), "the table has no split with 'accuracy'"),
        (lambda: plots.accuracy_by_sparsity(evaluation()), r"no column \('full', 'value'\): pass core.table\(\)"),
        (lambda: plots.frequency_maps(frequencies().iloc[:0]), r"pass core.frequencies\(\)"),
        (lambda: plots.frequency_maps(evaluation()), "frequencies has no column 'component'"),
        (lambda: plots.frequency_scatter(frequencies(), 0.3, 0.9, None), "no sparsity 0.9: choose from 0.3, 0.6"),
        (lambda: plots.frequency_scatter(frequencies().iloc[6:], 0.3, 0.6, None), "heads were no units of this run"),
        (lambda: plots.effective_size(sizes().iloc[:0]), "the table has no group of splits"),
        (lambda: plots.effective_size(sizes(), ["all"]), "'all' is no group of splits here: choose from ID, OOD"),
        (lambda: plots.pattern_scores(patterns().iloc[:0], ["L0.H0"]), "the table has no measure"),
        (lambda: plots.pattern_scores(patterns(), ["L0.H9"]), "'L0.H9' is no head here: choose from L0.H0"),
        (lambda: plots.pattern_scores(patterns(), []), "no head is named"),
        (lambda: plots.pattern_scores(patterns(), ["L0.H0"], ["cls"]), "'cls' is no measure here: .*previous, entropy"),
        (lambda: plots.pattern_scores(patterns(), ["head 3"]), "write a head as L2.H5"),
        (lambda: plots.ablation_bars(singles().iloc[:0]), "the table has no metric"),
        (lambda: plots.ablation_bars(singles(), metric="f1"), "'f1' is no metric here: choose from margin, accuracy"),
        (lambda: plots.ablation_bars(singles(), joint().assign(singles=9.0)), "add up to 2.500, and to 9.000 in joint"),
        (lambda: plots.ablation_bars(singles(), pd.concat([joint(), joint().assign(joint=5.0)])), "several sets of heads"),
        (lambda: plots.ablation_bars(singles(), joint().iloc[:1]), "'hard' is no split with a joint 'margin' here"),
        (lambda: plots.interaction_map(interactions().iloc[:0]), "the table has no metric"),
        (lambda: plots.interaction_map(interactions().dropna(subset="head"), ["x"]), "'x' is no split with 'margin' here"),
        (lambda: plots.interaction_map(interactions()[interactions()["head"].isna()]), "interactions has no pairs"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_sentence(draw, words):
    with pytest.raises(CoreLensError, match=words) as caught:
        draw()
    assert str(caught.value).count(". ") == 0 and str(caught.value).endswith(".")
