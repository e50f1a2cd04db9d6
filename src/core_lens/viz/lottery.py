"""Pictures of the lottery study: one function each, which takes tables or masks of `Lottery` and returns a matplotlib figure.

plots.save(lottery.ticket_scores(study.scores, study.main), "scores.png")
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from ..errors import CoreLensError
from .drawing import (
    BLUE,
    METRICS,
    ORANGE,
    RED,
    SMALL,
    Handles,
    add_legend,
    around,
    check_columns,
    dot,
    heat_map,
    in_percent,
    make_panels,
    plain,
    thin,
)

_GROUPS = (("s-good", "s-random", "s-bad"), ("super-survivors", "super-bad"), ("m-good", "m-random", "m-bad"))
_HOW = {"pruned": (BLUE, "o"), "retrained": (ORANGE, "D")}


def ticket_scores(scores: pd.DataFrame, main: Mapping[str, str], split: str = "unseen") -> Figure:
    """Every ticket in every seed, pruned and retrained, with mean and standard deviation; the full model's behind them.

    Args:
        scores: `study.scores`.
        main: task -> the metric to draw, `study.main`.
        split: half of the evaluation data.

    Raises:
        CoreLensError: the table lacks a column, or has nothing of that split and metric.
    """
    check_columns(scores, "scores", ["task", "ticket", "how", "split", "metric", "value"])
    rows = scores[(scores["split"] == split) & (scores["metric"] == scores["task"].map(main))]
    if rows.empty:
        known = ", ".join(map(str, dict.fromkeys(scores["split"])))
        raise CoreLensError(
            f"scores has nothing of split {split!r} with the metrics {dict(main)}; its splits: {known}."
        )
    at: dict[str, float] = {}
    lines = []
    for group in _GROUPS:
        there = [ticket for ticket in group if (rows["ticket"] == ticket).any()]
        start = max(at.values(), default=-1.3) + 1.3  # groups stand apart
        lines += [start - 0.65] if at and there else []
        at |= {ticket: start + i for i, ticket in enumerate(there)}
    hows = {how: style for how, style in _HOW.items() if (rows["how"] == how).any()}
    tasks = list(dict.fromkeys(rows["task"]))
    bottom = max(at.values(), default=0) + 0.6
    figure, panels = make_panels(
        [plain(task, 30) for task in tasks], (3.2, 0.9 + 0.36 * bottom), ("", "ticket"), 0, False
    )
    for ax, task in zip(panels, tasks, strict=True):
        part = rows[rows["task"] == task]
        mean, std = _mean_std(part[part["ticket"] == "full"]["value"])
        ax.axvspan(mean - std, mean + std, color="black", alpha=0.12, lw=0)
        ax.axvline(mean, color="black", lw=1.2, ls="--")
        for i, (how, (color, marker)) in enumerate(hows.items()):
            shift = 0.4 * (i - (len(hows) - 1) / 2) - 0.06
            for ticket, y in at.items():
                values = part[(part["ticket"] == ticket) & (part["how"] == how)]["value"]
                mean, std = _mean_std(values)
                below = np.full(len(values), y + shift + 0.14)  # the bar would hide them
                ax.plot(values, below, marker, color=color, alpha=0.7, ms=4, mew=0)
                ax.errorbar(
                    mean, y + shift, xerr=around(*np.array([[mean], [mean - std], [mean + std]])), fmt="|", color=color,
                    ms=11, mew=2, elinewidth=1.4, capsize=3,
                )  # fmt: skip
        for y in lines:
            ax.axhline(y, color="#dddddd", lw=0.8)
        metric = main[task]
        ax.set_xlabel(METRICS.get(metric) or plain(metric))
        ax.set_xlim(min(0, part["value"].min()) - 0.03, 1.03)
        if metric == "accuracy":
            in_percent(ax.xaxis)
    panels[0].set_yticks(list(at.values()), list(at))
    panels[0].set_ylim(bottom, -0.6)
    full = (Patch(color="black", alpha=0.12, lw=0), Line2D([], [], color="black", ls="--"))
    several = rows.duplicated(["task", "ticket", "how"]).any()
    names = ("a dot per seed", "mean \u00b1 standard deviation over seeds") if several else ("one seed", "its value")
    handles: Handles = [(dot(marker, color), f"{how}, {names[0]}") for how, (color, marker) in hows.items()]
    handles += [(dot("|", "black", "-" if several else ""), names[1]), (full, "full model, the same")]
    add_legend(figure, handles)
    text = "s: heads and MLPs removed; m: single weights"
    figure.suptitle(f"Scores of the tickets on the half {split} in pruning\n({text})")
    return figure


def survival_map(heads: Mapping[str, np.ndarray], mlps: Mapping[str, np.ndarray]) -> Figure:
    """How many seeds' good tickets keep each head and each layer's MLP; a map per task, with what all keep framed.

    Args:
        heads: task -> 0/1 [seed, layer, head], `study.masks()`.
        mlps: task -> 0/1 [seed, layer], `study.masks("mlp")`.

    Raises:
        CoreLensError: there are none, or they have other shapes.
    """
    shape = np.shape(next(iter(heads.values()), ()))
    fits = len(shape) == 3 and all(np.shape(mask) == shape for mask in heads.values())
    if not fits or [*heads] != [*mlps] or any(np.shape(mask) != shape[:2] for mask in mlps.values()):
        parts = {task: (np.shape(mask), np.shape(mlps.get(task, ()))) for task, mask in heads.items()}
        raise CoreLensError(
            f"the masks are not [seed, layer, head] and [seed, layer] of the same tasks, seeds and model: {parts}."
        )
    n_seeds, n_layers, n_heads = shape
    cell = 0.215 if n_heads <= 16 and n_layers <= 24 else max(0.1, 6 / max(n_heads + 1, n_layers))
    size = (max(cell * (n_heads + 1) + 0.1, 2.2), max(cell * n_layers + 0.8, 1.6))
    figure, panels = make_panels([plain(task, 26) for task in heads], size, ("head", "layer"), beside=0.9)
    for ax, task in zip(panels, heads, strict=True):
        counts = np.column_stack([np.sum(heads[task], axis=0), np.sum(mlps[task], axis=0)]).astype(float)
        texts = np.char.mod("%.0f", counts) if cell == 0.215 else None
        colors = mpl.colormaps["cividis"].resampled(n_seeds + 1)
        heat_map(ax, counts, texts, vmin=-0.5, vmax=n_seeds + 0.5, cmap=colors, origin="lower")
        for layer, unit in np.argwhere((counts == n_seeds) & (n_seeds > 1)):
            ax.add_patch(Rectangle((unit - 0.46, layer - 0.46), 0.92, 0.92, fill=False, ec=RED, lw=1.6, zorder=3))
        ax.axvline(n_heads - 0.5, color="white", lw=2, zorder=2)
        shown = np.arange(n_heads)[:: max(2, -(-n_heads // 12)) if n_heads > 6 else 1]
        ax.set_xticks([*shown, n_heads], [*map(str, shown), "MLP"])
        ax.set_yticks(thin(np.arange(n_layers)))
    label = f"seeds that keep it (of {n_seeds})"
    ticks = thin(np.arange(n_seeds + 1))
    figure.colorbar(panels[0].images[0], ax=panels, label=label, ticks=ticks, aspect=30, fraction=0.05)
    if n_seeds > 1:
        add_legend(figure, [(Patch(fill=False, ec=RED, lw=1.6), "kept in all seeds: a super-survivor")])
    figure.suptitle("Which heads and MLPs the good tickets keep")
    return figure


def overlap_map(overlap: pd.DataFrame) -> Figure:
    """Heads that the good tickets of two tasks share, mean and standard deviation over seeds, above what chance would give.

    Args:
        overlap: `study.overlap()`.

    Raises:
        CoreLensError: the table lacks a column or is empty.
    """
    check_columns(overlap, "overlap", ["a", "b", "mean", "std", "expected"])
    if overlap.empty:
        raise CoreLensError("overlap is empty: pass study.overlap().")
    tasks = list(dict.fromkeys([*overlap["a"], *overlap["b"]]))
    place = {task: i for i, task in enumerate(tasks)}
    values = np.full((len(tasks), len(tasks)), np.nan)
    texts = np.full(values.shape, "", dtype=object)
    for a, b, mean, std, expected in overlap[["a", "b", "mean", "std", "expected"]].itertuples(index=False, name=None):
        i, j = sorted((place[a], place[b]), reverse=True)
        values[i, j] = mean
        spread = "" if np.isnan(std) else f" \u00b1 {std:.1f}"
        chance = "" if i == j else f"\n({expected:.1f})"
        texts[i, j] = f"{mean:.1f}{spread}{chance}"
    size = (max(0.95 * len(tasks), 2.2), max(0.5 * len(tasks) + 0.8, 1.6))
    figure, (ax,) = make_panels([""], size, ("", ""), beside=1.6)
    heat_map(ax, values, texts, vmin=0, vmax=max(np.nanmax(values), 1), cmap="cividis")
    names = [plain(task, 14) for task in tasks]
    ax.set_xticks(range(len(tasks)), names)
    ax.set_yticks(range(len(tasks)), names)
    ax.spines[["top", "right"]].set_visible(False)
    figure.colorbar(ax.images[0], ax=ax, label="heads", aspect=20)
    figure.suptitle("Heads that the good tickets of two tasks share")
    note = "mean \u00b1 standard deviation over seeds; on the diagonal: heads kept"
    if len(tasks) > 1:
        note += "\nin brackets: expected of random tickets of the same sizes"
    ax.set_title(note, fontsize=SMALL)
    return figure


def _mean_std(values: pd.Series) -> tuple[float, float]:
    return float(values.mean()), float(values.std())
