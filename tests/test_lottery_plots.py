"""Pictures of the lottery study: what is drawn is what the tables and masks say."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from core_lens.errors import CoreLensError
from core_lens.stability import task_overlap
from core_lens.viz import drawing, lottery

MAIN = {"cola": "mcc", "mrpc": "accuracy", "stsb": "pearson"}
STRUCTURED, SUPER, MAGNITUDE = (
    ("s-good", "s-random", "s-bad"),
    ("super-survivors", "super-bad"),
    ("m-good", "m-random", "m-bad"),
)
LEVEL = dict(zip((*STRUCTURED, *SUPER, *MAGNITUDE), (0.7, 0.5, 0.25, 0.6, 0.2, 0.75, 0.1, 0.0)))


def scores(tasks=tuple(MAIN), seeds=3, has_super=True, hows=("pruned", "retrained")) -> pd.DataFrame:
    """Seeds at -0.02, 0, +0.02 around a ticket's level, .05 higher when retrained, .01 lower where pruning looked.

    Only `mrpc` has super tickets; `cola` has an accuracy beside its own metric.
    """
    rows = []
    for task in tasks:
        for seed in range(seeds):
            for split, less in (("seen", 0.01), ("unseen", 0.0)):
                shift = 0.02 * (seed - (seeds - 1) / 2) - less
                rows.append((task, seed, "full", "", split, MAIN[task], 0.8 + shift / 2))
                for ticket, level in LEVEL.items():
                    if ticket in SUPER and not (has_super and task == "mrpc"):
                        continue
                    for how in hows:
                        value = level + shift + 0.05 * (how == "retrained")
                        rows.append((task, seed, ticket, how, split, MAIN[task], value))
                        if task == "cola":
                            rows.append((task, seed, ticket, how, split, "accuracy", 0.99))
    return pd.DataFrame(rows, columns=["task", "seed", "ticket", "how", "split", "metric", "value"])


HEADS = {
    "cola": np.array([[[1, 0, 1], [0, 1, 1]], [[1, 0, 0], [0, 1, 1]], [[1, 0, 1], [0, 0, 1]]]),
    "mrpc": np.array([[[0, 0, 1], [1, 1, 1]], [[1, 0, 0], [0, 1, 0]], [[0, 1, 1], [0, 0, 1]]]),
}
"""3 seeds, 2 layers x 3 heads."""
MLPS = {"cola": np.array([[1, 0], [1, 1], [1, 0]]), "mrpc": np.array([[0, 0], [0, 1], [1, 1]])}


def overlap() -> pd.DataFrame:
    return task_overlap({task: masks.reshape(3, -1) for task, masks in HEADS.items()})


def panels(figure):
    return {ax.get_title(): ax for ax in figure.axes if ax.get_visible() and ax.get_title()}


def legend(figure) -> list[str]:
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def ticks(axis) -> dict[str, float]:
    return {label.get_text(): at for label, at in zip(axis.get_ticklabels(), axis.get_ticklocs())}


def test_every_seed_of_every_ticket_is_drawn_beside_mean_and_std():
    figure = lottery.ticket_scores(scores(), MAIN)
    assert list(panels(figure)) == ["cola", "mrpc", "stsb"]
    colors = {"pruned": drawing.BLUE, "retrained": drawing.ORANGE}
    at = ticks(figure.axes[0].yaxis)  # which all panels share
    assert list(at) == [*STRUCTURED, *SUPER, *MAGNITUDE]
    for task, ax in panels(figure).items():
        drawn = {}
        for line in ax.lines:
            if line.get_marker() in ("o", "D") and len(line.get_xdata()):
                (y,) = set(line.get_ydata())
                ticket = min(at, key=lambda name: abs(at[name] - y))
                assert abs(at[ticket] - y) < 0.5  # in the ticket's own row
                drawn[ticket, to_hex(line.get_color())] = (sorted(line.get_xdata()), y)
        tickets = [ticket for ticket in LEVEL if ticket not in SUPER or task == "mrpc"]
        assert len(drawn) == 2 * len(tickets)
        for ticket in tickets:
            rows = {}
            for how, color in colors.items():
                values, rows[how] = drawn[ticket, color.lower()]
                middle = LEVEL[ticket] + 0.05 * (how == "retrained")
                assert values == pytest.approx([middle - 0.02, middle, middle + 0.02])
            assert rows["pruned"] < rows["retrained"]  # the axis runs down
        ends = {
            tuple(np.round(np.sort(segment[:, 0]), 6))
            for bars in ax.containers
            if isinstance(bars, ErrorbarContainer)
            for segment in bars.lines[2][0].get_segments()
            if len(segment)
        }
        assert (0.68, 0.72) in ends and (0.73, 0.77) in ends  # s-good: 0.70 +- 0.02 and 0.75 +- 0.02, ddof 1
        means = {round(float(bars.lines[0].get_xdata()[0]), 6) for bars in ax.containers}
        assert {0.7, 0.55, 0.25, 0.3, 0.05} <= means


def test_the_full_model_is_a_line_with_a_band_of_its_own_std():
    (ax,) = panels(lottery.ticket_scores(scores(["mrpc"]), MAIN, "seen")).values()
    line = next(line for line in ax.lines if line.get_linestyle() == "--")
    assert set(np.round(line.get_xdata(), 9)) == {0.795}  # 0.8 less half of 0.01
    box = ax.patches[0].get_bbox() if hasattr(ax.patches[0], "get_bbox") else ax.patches[0].get_path().get_extents()
    assert (box.x0, box.x1) == pytest.approx((0.785, 0.805))


def test_each_axis_is_named_and_scaled_by_the_tasks_own_metric():
    table = scores()
    table.loc[(table["task"] == "cola") & (table["ticket"] == "m-bad"), "value"] -= 0.3
    shown = panels(lottery.ticket_scores(table, MAIN))
    names = ["Matthews correlation", "accuracy (%)", "Pearson's r"]
    assert [ax.get_xlabel() for ax in shown.values()] == names
    assert shown["mrpc"].xaxis.get_major_formatter()(0.25, 0) == "25"
    assert shown["stsb"].xaxis.get_major_formatter()(0.25, 0) != "25"
    for ax in shown.values():
        low, high = ax.get_xlim()
        values = [x for line in ax.lines if line.get_marker() in ("o", "D") for x in line.get_xdata()]
        assert low < min(values) and low < 0 and high > 1  # nothing is cut off
    assert shown["cola"].get_xlim()[0] < -0.3


def test_what_was_not_made_has_no_row_and_no_colour():
    figure = lottery.ticket_scores(scores(["cola"], hows=("pruned",)), MAIN)
    (ax,) = panels(figure).values()
    assert list(ticks(ax.yaxis)) == [*STRUCTURED, *MAGNITUDE]
    assert "retrained" not in str(legend(figure)) and "mean \u00b1 standard deviation over seeds" in legend(figure)
    assert not [line for line in ax.lines if line.get_marker() == "D"]
    one = lottery.ticket_scores(scores(["mrpc"], seeds=1), MAIN)
    assert "standard deviation" not in str(legend(one)) and "pruned, one seed" in legend(one)
    FigureCanvasAgg(one).draw()
    assert "seen in pruning" in lottery.ticket_scores(scores(), MAIN, "seen").get_suptitle()


def test_the_maps_count_seeds_and_frame_what_all_keep():
    figure = lottery.survival_map(HEADS, MLPS)
    expected = {"cola": [[3, 0, 2, 3], [0, 2, 3, 1]], "mrpc": [[1, 1, 2, 1], [1, 2, 2, 2]]}
    framed = {"cola": {(0, 0), (0, 3), (1, 2)}, "mrpc": set()}
    assert list(panels(figure)) == list(expected)
    for task, ax in panels(figure).items():
        (image,) = ax.images
        np.testing.assert_array_equal(image.get_array(), expected[task])
        texts = {text.get_position(): text.get_text() for text in ax.texts}
        assert texts == {(x, y): str(n) for y, row in enumerate(expected[task]) for x, n in enumerate(row)}
        assert {(round(p.get_y() + 0.46), round(p.get_x() + 0.46)) for p in ax.patches} == framed[task]
        assert list(ticks(ax.xaxis)) == ["0", "1", "2", "MLP"] and ax.get_ylim() == (-0.5, 1.5)  # layer 0 is lowest
        # A colour for each count
        shades = {to_hex(image.to_rgba(float(n))) for n in range(4)}
        assert len(shades) == 4
    assert figure.axes[-1].get_ylabel() == "seeds that keep it (of 3)"
    one = lottery.survival_map({"a": HEADS["cola"][:1]}, {"a": MLPS["cola"][:1]})
    assert not one.legends and not panels(one)["a"].patches  # one seed has no super-survivors


def test_large_models_have_maps_without_numbers():
    big = {"a": np.ones((2, 32, 40))}
    ax = panels(lottery.survival_map(big, {"a": np.ones((2, 32))}))["a"]
    assert not ax.texts and ax.images[0].get_array().shape == (32, 41)
    assert len(ax.get_xticks()) <= 14


def test_the_overlap_has_shared_heads_and_what_chance_would_give():
    figure = lottery.overlap_map(overlap())
    ax = figure.axes[0]
    # cola keeps 4, 3, 3 heads, mrpc 4, 2, 3; by seed they share L0.H2 L1.H1 L1.H2 / L0.H0 L1.H1 / L0.H2 L1.H2
    np.testing.assert_allclose(ax.images[0].get_array(), [[10 / 3, np.nan], [7 / 3, 3]])
    # random: (4 * 4 + 3 * 2 + 3 * 3) / 6 / 3 = 1.72
    texts = {text.get_position(): text.get_text() for text in ax.texts}
    assert texts == {(0, 0): "3.3 \u00b1 0.6", (0, 1): "2.3 \u00b1 0.6\n(1.7)", (1, 1): "3.0 \u00b1 1.0"}
    assert list(ticks(ax.xaxis)) == list(ticks(ax.yaxis)) == ["cola", "mrpc"]
    assert "in brackets: expected of random tickets" in ax.get_title()
    alone = lottery.overlap_map(task_overlap({"cola": HEADS["cola"].reshape(3, -1)}))
    assert [text.get_text() for text in alone.axes[0].texts] == ["3.3 \u00b1 0.6"]
    one_seed = lottery.overlap_map(task_overlap({task: m[:1].reshape(1, -1) for task, m in HEADS.items()}))
    assert [text.get_text() for text in one_seed.axes[0].texts] == ["4.0", "3.0\n(2.7)", "4.0"]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_all_text_is_inside_the_figure_and_large_enough(count):
    names = [f"task {i}" for i in range(count)]
    table = pd.concat([scores(["mrpc"]).assign(task=name) for name in names])
    masks = {name: np.ones((3, 12, 12)) for name in names}
    figures = [
        lottery.ticket_scores(table, dict.fromkeys(names, "accuracy")),
        lottery.survival_map(masks, {name: np.ones((3, 12)) for name in names}),
        lottery.overlap_map(task_overlap({name: one.reshape(3, -1) for name, one in masks.items()})),
    ]
    for figure in figures:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        page = figure.bbox
        assert figure.get_figwidth() <= 11.5
        everything = [*figure.texts, *(text for ax in figure.axes if ax.get_visible() for text in _texts(ax))]
        shown = [text for text in everything if text.get_visible() and text.get_text()]
        assert len(shown) > 3
        for text in shown:
            box = text.get_window_extent(canvas.get_renderer())
            assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, text.get_text()
            assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text.get_text()
            assert text.get_fontsize() >= drawing.SMALL


def _texts(ax):
    return [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            lambda: lottery.ticket_scores(scores().drop(columns="how"), MAIN),
            "scores has no column 'how': it needs task",
        ),
        (lambda: lottery.ticket_scores(scores(), MAIN, "dev"), "nothing of split 'dev' .*its splits: seen, unseen"),
        (lambda: lottery.ticket_scores(scores(), dict.fromkeys(MAIN, "f1")), "with the metrics {'cola': 'f1'"),
        (lambda: lottery.survival_map({}, {}), "the masks are not"),
        (lambda: lottery.survival_map(HEADS, {}), "of the same tasks"),
        (lambda: lottery.survival_map(MLPS, MLPS), r"are not \[seed, layer, head\]"),
        (lambda: lottery.survival_map({"a": HEADS["cola"]}, {"a": MLPS["cola"][:2]}), r"\(3, 2, 3\), \(2, 2\)"),
        (lambda: lottery.overlap_map(overlap().iloc[:0]), r"overlap is empty: pass study.overlap\(\)"),
        (lambda: lottery.overlap_map(scores()), "overlap has no column 'a'"),
    ],
)
def test_mistakes_end_in_one_sentence(draw, words):
    with pytest.raises(CoreLensError, match=words) as caught:
        draw()
    assert str(caught.value).count(". ") == 0 and str(caught.value).endswith(".")
