"""Pictures of the project's tables: one function each, which takes a table and returns a matplotlib figure.

    plots.save(plots.accuracy_strip(core.evaluation, task), "accuracy.svg")

Nothing here goes through pyplot or changes matplotlib's settings, so figures can be made in threads and without a screen.
Values and intervals are drawn as the tables give them. Colours are those of Okabe and Ito (2008), cividis and RdBu, which
readers who are colour-blind can tell apart, and shapes differ with them.
"""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ..components import Component
from ..errors import CoreLensError
from ..evaluate import BALANCED
from ..files import write_atomically
from ..heads import MEASURES
from ..interactions import OTHERS
from ..tasks import Task

BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY = "#767676"
_MARKERS = "osD^vPX<>*"
_SMALL = 9
"""Points of the smallest text."""
_SHARES = ("accuracy", BALANCED, "agreement")
_METRICS = {
    "accuracy": "accuracy (%)",
    BALANCED: "balanced accuracy (%)",
    "agreement": "agreement with the full model (%)",
    "kl": "KL divergence from the full model (nats)",
    "mcc": "Matthews correlation",
    "pearson": "Pearson's r",
    "squared_error_to_full": "squared error to the full model",
}
_DROPS = {
    "accuracy": "accuracy (points)",
    "margin": "gold margin (logits)",
    "negative_squared_error": "negative squared error",
}
_ROLES = {"id": "in domain", "ood": "out of domain", "companion": "companions", "extra": "extra", "train": "training"}
_ROLE_COLORS = {"id": BLUE, "ood": RED, "companion": GREEN, "extra": PINK, "train": ORANGE}
_MEASURES = {
    "previous": "previous token",
    "next": "next token",
    "self": "itself",
    "first": "first token",
    "cls": "[CLS]",
    "sep": "separators",
    "within": "the same text",
    "across": "the other text",
    "repeated_piece": "repeated word piece",
    "repeated_word": "repeated word",
    "repeated_piece_vs_content": "repeated word piece\n(chance: other content)",
    "repeated_word_vs_content": "repeated word\n(chance: other content)",
    "entropy": "entropy",
}


class Picture(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def accuracy_strip(
    evaluation: pd.DataFrame,
    task: Task | None = None,
    splits: Iterable[str] | None = None,
    metric: str = "accuracy",
) -> Figure:
    """Every subnetwork on every split, the full model as a line (after Figures 2 and 5 of the Heuristic Core).

    Args:
        evaluation: `core.evaluation`.
        task: says which splits are in domain and which are not; without it they stand in the table's order.
        splits: which ones; all by default.
        metric: as in the table.

    Raises:
        CoreLensError: the table has no such column, split or metric.
    """
    _check(evaluation, "evaluation", ["subnetwork", "sparsity", "split", "group", "metric", "value", "low", "high"])
    rows = evaluation[(evaluation["metric"] == metric) & (evaluation["group"] == "all")]
    parts = _by_role(_chosen(rows["split"], splits, f"a {metric!r}"), task)
    ours = rows[rows["subnetwork"] != "full"]
    sparsities = sorted(ours["sparsity"].unique())
    row_height = max(0.34, 0.2 * len(sparsities))
    counts = [len(names) for names in parts.values()]
    figure = Picture((7.2, 1.4 + row_height * sum(counts) + 0.3 * len(parts)), layout="constrained")
    panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    full = rows[rows["subnetwork"] == "full"].set_index("split")[["value", "low", "high"]].astype(float)
    colors = _ordered_colors(len(sparsities))
    for ax, (role, names) in zip(panels, parts.items(), strict=True):
        at = {name: y for y, name in enumerate(names)}
        for i, sparsity in enumerate(sparsities):
            part = ours[ours["split"].isin(names) & (ours["sparsity"] == sparsity)]
            band = 0.8 / len(sparsities)
            shift = (i - (len(sparsities) - 1) / 2) * band
            within = part.groupby("split").cumcount().to_numpy() % 5  # apart, so that equal values can be counted
            within = within - within.max(initial=0) / 2
            y = part["split"].map(at).to_numpy(dtype=float) + shift + within * band / 7
            ax.plot(part["value"], y, _MARKERS[i % 10], color=colors[i], ms=5, alpha=0.75, mew=0)
        known = [name for name in names if name in full.index]
        y = np.array([at[name] for name in known], dtype=float)
        value, low, high = full.loc[known].to_numpy().T
        ax.barh(y, high - low, 0.9, low, color="black", alpha=0.12, lw=0)
        ax.vlines(value, y - 0.45, y + 0.45, color="black", lw=2, zorder=1.5)
        ax.set_yticks(range(len(names)), [_text(name, 26) for name in names])
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.hlines(np.arange(len(names) - 1) + 0.5, 0, 1, color="#dddddd", lw=0.8, transform=ax.get_yaxis_transform())
        ax.set_title(role, loc="left", fontsize=10, fontweight="bold")
    _metric_axis(panels[-1], "x", metric)
    panels[-1].set_xlabel(_METRICS.get(metric, _text(metric)))
    handles: list[tuple[Any, str]] = [
        (_dot(_MARKERS[i % 10], colors[i]), f"{_percent(sparsity)} removed") for i, sparsity in enumerate(sparsities)
    ]
    if len(full):
        line, band = (
            Line2D([], [], color="black", marker="|", ls="", ms=12, mew=2),
            Patch(color="black", alpha=0.12, lw=0),
        )
        handles.insert(0, ((band, line), "full model, 95 % interval over examples"))
    _legend(figure, handles)
    figure.suptitle(f"{_name(metric)} of every subnetwork")
    return figure


def accuracy_by_sparsity(
    table: pd.DataFrame,
    task: Task | None = None,
    splits: Iterable[str] | None = None,
    metric: str = "accuracy",
) -> Figure:
    """Mean over seeds against sparsity with its 95 % interval (Student's t), a panel per split, beside the full model.

    Args:
        table: `core.table()`.
        task, splits, metric: as in `accuracy_strip`.

    Raises:
        CoreLensError: as `accuracy_strip`.
    """
    if table.columns.nlevels != 2 or ("full", "value") not in table.columns:
        raise CoreLensError("the table has no column ('full', 'value'): pass core.table().")
    rows = table[table.index.get_level_values("metric") == metric].droplevel("metric")
    parts = _by_role(_chosen(rows.index, splits, f"a {metric!r}"), task)
    names = [name for group in parts.values() for name in group]
    roles = {name: _role(task, name) for name in names}
    sparsities = np.array([s for s in rows.columns.get_level_values(0).unique() if s != "full"], dtype=float)
    figure, panels = _panels(
        len(names), (2.5, 2.0), ("sparsity: units removed (%)", _METRICS.get(metric, _text(metric)))
    )
    for ax, name in zip(panels, names, strict=True):
        row, color = rows.loc[name], _ROLE_COLORS.get(roles[name], BLUE)
        mean, low, high = (
            np.array([row[s, part] for s in sparsities], dtype=float) for part in ("mean", "low", "high")
        )
        full = row["full"].astype(float)
        ax.axhspan(full["low"], full["high"], color="black", alpha=0.12, lw=0)
        ax.axhline(full["value"], color="black", lw=1.2, ls="--")
        ax.plot(sparsities, mean, color=color, marker="o", ms=5)
        if len(sparsities) > 1:
            ax.fill_between(sparsities, low, high, color=color, alpha=0.25, lw=0)
        ax.errorbar(sparsities, mean, _around(mean, low, high), color=color, ls="", capsize=3, lw=1)
        ax.set_title(_text(name, 26), fontsize=10)
    panels[0].set_xticks(_thin(sparsities))
    _in_percent(panels[0].xaxis)
    panels[0].set_xlim(0, max(1.15 * sparsities.max(), 0.1))
    _metric_axis(panels[0], "y", metric)
    shown = [role for role in _ROLES if role in roles.values()]
    handles: list[tuple[Any, str]] = [(Patch(color=_ROLE_COLORS[role]), _ROLES[role]) for role in shown]
    has_seeds = any(rows[s, "low"].notna().any() for s in sparsities)
    over_seeds = "mean over seeds, 95 % interval" if has_seeds else "one seed, so without an interval"
    line = _dot("o", GREY if shown else BLUE, "-")
    handles.append(((Patch(color=line.get_color(), alpha=0.25, lw=0), line), over_seeds))
    if rows.loc[names]["full", "value"].notna().any():
        line, band = Line2D([], [], color="black", ls="--"), Patch(color="black", alpha=0.12, lw=0)
        handles.append(((band, line), "full model, 95 % interval over examples"))
    _legend(figure, handles)
    figure.suptitle(f"{_name(metric)} against sparsity")
    return figure


def frequency_maps(frequencies: pd.DataFrame) -> Figure:
    """How often each head and MLP is kept, layer by head, one map per sparsity and one over all; the core is framed.

    Args:
        frequencies: `core.frequencies()`.

    Raises:
        CoreLensError: the table has no such column.
    """
    sparsities = _sparsities_of(frequencies)
    columns = [*sparsities, "all"] if len(sparsities) > 1 else sparsities
    is_head = (frequencies["kind"] == "head").to_numpy()
    n_layers = int(frequencies["layer"].max()) + 1
    n_heads = int(frequencies["head"].max()) + 1 if is_head.any() else 0
    has_mlps = not is_head.all()
    width = n_heads + has_mlps
    x = np.where(is_head, frequencies["head"].fillna(n_heads).to_numpy(dtype=int), n_heads)
    y = frequencies["layer"].to_numpy(dtype=int)
    written = width <= 16 and n_layers <= 24
    cell = 0.42 if written else max(0.1, 6 / max(width, n_layers))
    size = (max(cell * width + 0.9, 2.8), max(cell * n_layers + 0.8, 1.6))
    figure, panels = _panels(
        len(columns), size, ("head" if n_heads else "", "layer"), max(1, min(3, int(15 / size[0])))
    )
    image = None
    for ax, column in zip(panels, columns, strict=True):
        shares = np.full((n_layers, width), np.nan)
        shares[y, x] = frequencies[column].to_numpy(dtype=float)
        image = ax.imshow(shares, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
        for (layer, head), share in np.ndenumerate(shares):
            if written and not np.isnan(share):
                ink = "black" if share > 0.5 else "white"
                ax.text(head, layer, f"{100 * share:.0f}", ha="center", va="center", fontsize=_SMALL, color=ink)
            if share == 1 and head < n_heads:
                ax.add_patch(Rectangle((head - 0.46, layer - 0.46), 0.92, 0.92, fill=False, ec=RED, lw=2, zorder=3))
        if has_mlps and n_heads:
            ax.axvline(n_heads - 0.5, color="white", lw=5, zorder=2)
        which = "all subnetworks" if column == "all" else f"{_percent(float(column))} of units removed"
        ax.set_title(which, fontsize=10)
        heads = _thin(np.arange(n_heads))
        ax.set_xticks([*heads, *[n_heads] * has_mlps], [*(f"{head:g}" for head in heads), *["MLP"] * has_mlps])
        ax.set_yticks(_thin(np.arange(n_layers)))
    assert image is not None
    bar = figure.colorbar(image, ax=panels, label="share of subnetworks that keep it (%)", aspect=30)
    _in_percent(bar.ax.yaxis)
    _legend(figure, [(Patch(fill=False, ec=RED, lw=2), "head kept by every subnetwork of the map")] if n_heads else [])
    figure.suptitle("How often each head and MLP is kept" if has_mlps and n_heads else "How often each unit is kept")
    return figure


def frequency_scatter(frequencies: pd.DataFrame, a: float, b: float, correlation: Mapping[str, float] | None) -> Figure:
    """How often each head is kept at two sparsities (Heuristic Core, Figures 13 and 14), with Spearman's rho.

    Args:
        frequencies: `core.frequencies()`.
        a, b: two of its sparsities.
        correlation: `core.rank_correlation(a, b)`; None writes no rho.

    Raises:
        CoreLensError: the table has no such sparsity, or no heads.
    """
    known = _sparsities_of(frequencies)
    for sparsity in (a, b):
        if sparsity not in known:
            raise CoreLensError(f"frequencies has no sparsity {sparsity!r}: choose from {', '.join(map(str, known))}.")
    heads = frequencies[frequencies["kind"] == "head"].sort_values(["layer", "head"])
    if heads.empty:
        raise CoreLensError("frequencies has no heads: heads were no units of this run.")
    places = heads.groupby([a, b], sort=False).cumcount().to_numpy()
    steps = np.concatenate([np.diff(np.unique(heads[column].to_numpy(dtype=float))) for column in (a, b)])
    # Heads at one place are set apart in a sunflower's spiral that stays clear of the next place.
    radius = 0.45 * min(steps.min(initial=0.2), 0.2) * np.sqrt(places / max(places.max(), 8))
    angle = places * np.pi * (3 - np.sqrt(5))
    figure = Picture((6.4, 5.8), layout="constrained")
    ax = figure.subplots()
    ax.axline((0, 0), slope=1, color="#bbbbbb", lw=1, zorder=0)
    points = ax.scatter(
        heads[a].to_numpy(dtype=float) + radius * np.cos(angle),
        heads[b].to_numpy(dtype=float) + radius * np.sin(angle),
        c=heads["layer"].to_numpy(dtype=float),
        cmap=mpl.colormaps["cividis"].resampled(int(heads["layer"].max()) + 1),
        vmin=-0.5,
        vmax=heads["layer"].max() + 0.5,
        s=30 if len(heads) <= 100 else 16,
        edgecolors="black",
        linewidths=0.4,
    )
    figure.colorbar(points, ax=ax, label="layer", ticks=_thin(np.arange(heads["layer"].max() + 1)))
    for axis, sparsity in ((ax.xaxis, a), (ax.yaxis, b)):
        _in_percent(axis)
        axis.set_label_text(f"kept at {_percent(sparsity)} sparsity (% of its subnetworks)")
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), aspect="equal")
    text = "a dot is a head; heads at one place are set apart"
    if correlation is not None:
        low, high, p = (float(correlation[key]) for key in ("low", "high", "p"))
        interval = "(too few seeds for an interval)" if np.isnan(low) else f"[{low:.2f}, {high:.2f}]"
        chance = f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
        text = f"Spearman's \u03c1 = {float(correlation['rho']):.2f} {interval}, {chance}\n{text}"
    ax.set_title(text.replace("-", "\u2212"), fontsize=10)
    figure.suptitle(f"How often heads are kept at {_percent(a)} and at {_percent(b)} sparsity")
    return figure


def effective_size(sizes: pd.DataFrame, groups: Iterable[str] | None = None) -> Figure:
    """Effective size over fine-tuning with its interval over seeds, above the full model's accuracy (Figure 6).

    Args:
        sizes: from `core_lens.effective_size.effective_size`.
        groups: which groups of splits; all by default.

    Raises:
        CoreLensError: the table has no such column or group.
    """
    _check(sizes, "sizes", ["checkpoint", "splits", "size", "low", "high", "full", "flags"])
    names = _chosen(sizes["splits"], groups, "a size")
    checkpoints = list(dict.fromkeys(sizes["checkpoint"]))
    is_number = pd.api.types.is_numeric_dtype(sizes["checkpoint"])
    at = {c: float(c) if is_number else float(i) for i, c in enumerate(checkpoints)}
    span = np.ptp(list(at.values())) or 1.0
    figure = Picture((7.2, 6.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 1])
    colors = [BLUE, RED, GREEN, ORANGE, PINK, SKY]
    handles, any_flag, any_interval = [], False, False
    for i, name in enumerate(names):
        part = sizes[sizes["splits"] == name]
        x = part["checkpoint"].map(at).to_numpy(dtype=float)
        order = np.argsort(x)
        part, x = part.iloc[order], x[order]
        aside = x + (i - (len(names) - 1) / 2) * span / 120  # apart, so that no bar hides another
        color, marker = colors[i % 6], _MARKERS[i % 10]
        size, low, high = (part[column].to_numpy(dtype=float) for column in ("size", "low", "high"))
        flagged = part["flags"].map(len).to_numpy() > 0
        top.errorbar(aside, size, _around(size, low, high), color=color, lw=1.4, elinewidth=1, capsize=3)
        for some, face in ((flagged, "white"), (~flagged, color)):
            top.plot(aside[some], size[some], marker, mfc=face, mec=color, ms=6, zorder=3)
        bottom.plot(x, part["full"].to_numpy(dtype=float), color=color, marker=marker, ms=5)
        handles.append((_dot(marker, color, "-"), _text(name, 40)))
        any_flag, any_interval = any_flag or flagged.any(), any_interval or not np.isnan(low).all()
    if any_flag:
        handles.append(
            (Line2D([], [], ls="", marker="o", mfc="white", mec="black", ms=6), "hollow: flagged, see the table")
        )
    interval = ", with 95 % intervals over seeds" if any_interval else ", one seed"
    top.set_title(f"Size of the smallest faithful subnetwork{interval}", fontsize=10)
    bottom.set_title("Accuracy of the full model", fontsize=10)
    top.set_ylabel("units kept (%)")
    bottom.set_ylabel("accuracy (%)")
    for ax in (top, bottom):
        ax.set_ylim(-0.03, 1.03)
        _in_percent(ax.yaxis)
        ax.grid(axis="y", color="#e4e4e4", lw=0.8)
        ax.set_axisbelow(True)
    bottom.set_xlabel("step of fine-tuning" if is_number else "checkpoint")
    if not is_number:
        turned = max(len(str(c)) for c in checkpoints) * len(checkpoints) > 60
        bottom.set_xticks(range(len(checkpoints)), [_text(c, 40 if turned else 20) for c in checkpoints])
        if turned:
            for label in bottom.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")
    _legend(figure, handles)
    figure.suptitle("Effective size over fine-tuning")
    return figure


def pattern_scores(
    patterns: pd.DataFrame, core: Iterable[str | Component], measures: Iterable[str] | None = None
) -> Figure:
    """Where core heads attend, with intervals, beside all other heads and chance (after Figure 9).

    Args:
        patterns: from `attention_patterns`, with or without a pretrained checkpoint.
        core: the heads to name, usually `core.heads`.
        measures: a panel each; all that the data has by default.

    Returns:
        A figure in which a point is filled where the value less its own chance has an interval without 0.

    Raises:
        CoreLensError: the table has no such column, measure or head.
    """
    needed = ["layer", "head", "measure", "value", "chance", "low", "high", "n", "excess_low", "excess_high"]
    _check(patterns, "patterns", needed)
    there = patterns[patterns["n"] > 0]
    known = [measure for measure in MEASURES if measure in set(there["measure"])]
    shown = _chosen(known, measures, "a measure")
    heads = sorted({Component.parse(head) if isinstance(head, str) else head for head in core})
    names = pd.Series([f"L{i}.H{j}" for i, j in zip(there["layer"], there["head"], strict=True)], there.index)
    _chosen(names, map(str, heads), "a row")
    at = {str(head): float(y) for y, head in enumerate(heads)}
    checkpoints = list(dict.fromkeys(there["checkpoint"])) if "checkpoint" in there.columns else [None]
    styles = list(zip((BLUE, ORANGE), ("o", "D"), strict=True))
    n_rest = names[~names.isin(list(at))].nunique()
    rest = len(heads) + 0.4
    size = (2.7, 0.9 + 0.27 * (len(heads) + 1.8))
    figure, panels = _panels(len(shown), size, ("attention (%)", "head"), sharex=False)
    for ax, measure in zip(panels, shown, strict=True):
        of_measure = there[there["measure"] == measure]
        for checkpoint, (color, marker) in zip(checkpoints, styles, strict=False):
            part = of_measure if checkpoint is None else of_measure[of_measure["checkpoint"] == checkpoint]
            shift = 0.0 if len(checkpoints) == 1 else (-0.25, 0.25)[checkpoints.index(checkpoint)]
            name = names[part.index]
            ours, others = part[name.isin(list(at))], part[~name.isin(list(at))]
            y = name[ours.index].map(at).to_numpy(dtype=float) + shift
            value = ours["value"].to_numpy(dtype=float)
            ends = _around(value, *(ours[end].to_numpy(dtype=float) for end in ("low", "high")))
            ax.errorbar(value, y, xerr=ends, color=color, ls="", lw=1.2)
            apart = ((ours["excess_low"] > 0) | (ours["excess_high"] < 0)).to_numpy()
            for some, face in ((apart, color), (~apart, "white")):
                ax.plot(value[some], y[some], marker, mfc=face, mec=color, ms=5, zorder=3)
            spread = (np.arange(len(others)) % 7 - 3) / 7
            around = rest + 0.15 + (1.2 * shift + spread * 0.45 if len(checkpoints) > 1 else spread)
            ax.plot(others["value"], around, marker, mfc=color, mec="none", ms=3.5, alpha=0.55)
            half = 0.5 / len(checkpoints)  # so that equal chance levels make one line
            ax.vlines(ours["chance"], y - half, y + half, color="black", lw=1.2)
            middle = rest + 0.15 + 1.5 * shift
            ax.vlines(others["chance"].mean(), middle - 1.5 * half, middle + 1.5 * half, color="black", lw=1.2)
        ax.set_title(_MEASURES.get(measure, _text(measure)), fontsize=10)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.axhline(rest - 0.6, color="#cccccc", lw=0.8)
        if measure == "entropy":
            ax.set_xlabel("entropy (nats)")
        else:
            _in_percent(ax.xaxis)
            left, right = ax.get_xlim()
            ax.set_xlim(min(left, 0), 1.03 * right)
    others = [(rest + 0.15, f"{n_rest} others")] if n_rest else []
    panels[0].set_yticks([*at.values(), *(y for y, _ in others)], [*at, *(name for _, name in others)])
    panels[0].set_ylim(rest + 0.95 if n_rest else len(heads) - 0.4, -0.6)
    handles: list[tuple[Any, str]] = [(Line2D([], [], color="black", marker="|", ls="", ms=12, mew=1.4), "chance")]
    for checkpoint, (color, marker) in zip(checkpoints, styles, strict=False):
        of = "" if checkpoint is None else f"{_text(checkpoint)}: "
        handles.append((_dot(marker, color, "-"), f"{of}share and 95 % interval over examples"))
    hollow = Line2D([], [], ls="", marker="o", mfc="white", mec="black", ms=5)
    handles.append((hollow, "hollow: the interval of the difference to chance holds 0"))
    _legend(figure, handles)
    figure.suptitle("Where core heads attend" if n_rest else "Where the heads attend")
    return figure


def ablation_bars(
    singles: pd.DataFrame,
    joint: pd.DataFrame | None = None,
    splits: Iterable[str] | None = None,
    metric: str | None = None,
) -> Figure:
    """What ablating each head takes, then the sum of these beside what ablating them together takes; a panel per split.

    Args:
        singles: from `ablation_table`.
        joint: from `interaction`, of the heads that `singles` lists; or the rows of that one set of `interaction_map`.
        splits: which ones; all by default.
        metric: as in the table; its first by default, the gold margin.

    Raises:
        CoreLensError: a table lacks a column, split or metric, or `joint` is of other heads or examples.
    """
    _check(singles, "singles", ["ablated", "split", "metric", "drop", "drop_low", "drop_high", "spread"])
    metric, rows = _of_metric(singles, "singles", metric)
    names = _chosen(rows["split"], splits, f"a {metric!r}")
    drops = rows[rows["drop"].notna()]
    heads = [name for name in dict.fromkeys(drops["ablated"]) if name != OTHERS]
    has_control = bool((drops["ablated"] == OTHERS).any())
    together = None if joint is None else _one_set(joint, metric, names, heads, drops)
    labels = [_text(head) for head in heads] + ["other heads"] * has_control
    labels += [] if together is None else ["sum of these", "together"]
    y_of = dict(zip([*heads, *[OTHERS] * has_control], range(len(labels)), strict=False))
    gap = 0.0 if together is None else 0.4
    size = (2.7, 0.7 + 0.25 * (len(labels) + gap))
    figure, panels = _panels(len(names), size, (f"drop in\n{_DROPS.get(metric, _text(metric))}", "ablated"))
    for ax, name in zip(panels, names, strict=True):
        part = drops[drops["split"] == name]
        drop, low, high = (part[column].to_numpy(dtype=float) for column in ("drop", "drop_low", "drop_high"))
        y = part["ablated"].map(y_of).to_numpy(dtype=float)
        is_head = (part["ablated"] != OTHERS).to_numpy()
        ends = _around(drop, low, high)
        ends[:, ~is_head] = part["spread"].to_numpy(dtype=float)[
            ~is_head
        ]  # over heads, as single heads stand beside it
        ax.barh(y, drop, color=np.where(is_head, BLUE, "#bbbbbb"), height=0.75)
        ax.errorbar(drop, y, xerr=np.nan_to_num(ends), color="black", ls="", lw=1, capsize=2)
        if together is not None:
            row = together.loc[name]
            y_sum = len(labels) - 2 + gap
            ax.barh(y_sum, row["singles"], color="white", edgecolor=BLUE, hatch="////", height=0.75, lw=1.2)
            ax.barh(y_sum + 1, row["joint"], color=RED, height=0.75)
            ends = _around(*(np.atleast_1d(row["singles"] + row[column]) for column in ("value", "low", "high")))
            ax.errorbar(row["joint"], y_sum + 1, xerr=ends, color="black", ls="", lw=1, capsize=2)
        ax.axvline(0, color="black", lw=0.8)
        ax.set_title(_text(name, 26), fontsize=10)
    ticks = np.arange(len(labels), dtype=float)
    ticks[len(labels) - 2 * (together is not None) :] += gap
    panels[0].set_yticks(ticks, labels)
    panels[0].set_ylim(ticks[-1] + 0.6, -0.6)
    panels[0].xaxis.set_major_locator(MaxNLocator(4))
    if metric in _SHARES:
        _in_percent(panels[0].xaxis)
    handles: list[tuple[Any, str]] = [(Patch(color=BLUE), "a head alone, 95 % interval over examples")]
    if has_control:
        handles.append((Patch(color="#bbbbbb"), "mean of all other heads, \u00b1 standard deviation over them"))
    if together is not None:
        handles.append((Patch(fc="white", ec=BLUE, hatch="////"), "sum of the single drops"))
        handles.append((Patch(color=RED), "ablated together, 95 % interval of the difference to the sum"))
    _legend(figure, handles)
    figure.suptitle("Heads ablated alone" if together is None else "Heads ablated alone and together")
    return figure


def interaction_map(
    interactions: pd.DataFrame, splits: Iterable[str] | None = None, metric: str | None = None
) -> Figure:
    """How far ablating two heads together goes beyond the sum of ablating each; a map per split.

    Args:
        interactions: from `core_lens.interactions.interaction_map`; sets of more than two are left out.
        splits: which ones; all by default.
        metric: as in the table; its first by default, the gold margin.

    Raises:
        CoreLensError: the table lacks a column, split or metric, or has no pairs.
    """
    _check(interactions, "interactions", ["head", "other", "split", "metric", "value", "low", "high"])
    metric, rows = _of_metric(interactions, "interactions", metric)
    pairs = rows[rows["head"].notna() & rows["other"].notna()]
    if pairs.empty:
        raise CoreLensError("interactions has no pairs: make the table with 2 among its sizes.")
    names = _chosen(pairs["split"], splits, f"a {metric!r}")
    units = list(map(str, sorted(map(Component.parse, set(pairs["head"]) | set(pairs["other"])))))
    scale = 100 if metric in _SHARES else 1
    digits = 0 if metric in _SHARES else 2
    pairs = pairs[pairs["split"].isin(names)]
    norm = CenteredNorm(halfrange=float(pairs["value"].abs().max()) * scale or 1.0)
    size = (max(0.58 * len(units) + 0.8, 2.4), max(0.42 * len(units) + 0.8, 2.2))
    figure, panels = _panels(len(names), size, ("ablated with", "head"), max(1, min(4, int(13 / size[0]))))
    image = None
    for ax, name in zip(panels, names, strict=True):
        part = pairs[pairs["split"] == name]
        value, low, high = (
            part.pivot(index="head", columns="other", values=column).reindex(units, columns=units).to_numpy(dtype=float)
            for column in ("value", "low", "high")
        )
        image = ax.imshow(scale * value, cmap="RdBu_r", norm=norm, aspect="auto")
        ax.set_facecolor("#e8e8e8")
        for (i, j), one in np.ndenumerate(scale * value):
            if not np.isnan(one):
                strong = low[i, j] > 0 or high[i, j] < 0
                ink = "white" if abs(one) > 0.6 * norm.halfrange else "black"
                text = f"{one:+.{digits}f}".replace("-", "\u2212") if round(one, digits) else "0"
                weight = "bold" if strong else "normal"
                ax.text(j, i, text, ha="center", va="center", fontsize=_SMALL, color=ink, fontweight=weight)
        ax.set_xticks(range(len(units)), units, rotation=60 if len(units) > 3 else 0)
        ax.set_yticks(range(len(units)), units)
        ax.set_title(_text(name, 26), fontsize=10)
    assert image is not None
    label = f"joint drop less sum of single drops,\n{_DROPS.get(metric, _text(metric))}"
    figure.colorbar(image, ax=panels, label=label, aspect=30)
    figure.suptitle("Interaction of pairs of heads\n(bold: the 95 % interval over examples is without 0)")
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the suffix; the same figure gives the same SVG and PDF, byte for byte.

    Raises:
        CoreLensError: another suffix.
        SavedFileError: the file cannot be written there.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise CoreLensError(f"cannot save a figure as {path.name!r}: end the name in .png, .svg or .pdf.")

    def write(temporary: Path) -> None:
        if suffix == ".svg":
            temporary.write_text(svg(figure), encoding="utf-8")
        elif suffix == ".pdf":
            figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
        else:
            figure.savefig(temporary, format="png", dpi=150)

    write_atomically(path, write)
    return path


def svg(figure: Figure) -> str:
    """A figure as an `<svg>` element to stand in a page: no scripts, nothing loaded, the same text for the same figure.

    Identifiers begin with a hash of the content, so that several figures can stand in one page.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())  # comments, with text from data, are gone here
    names: dict[str, str] = {}
    for element in root.iter():
        for child in [child for child in element if child.tag.endswith(("}metadata", "}style"))]:
            element.remove(child)
        # matplotlib's own names hold a random salt; those of the order of appearance do not.
        names |= {name: f"\0{len(names)}" for name in [element.get("id")] if name}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: names[value] if key == "id" else _renamed(value, names)
            for key, value in element.items()
        }
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "role": "img"}
    root.set("aria-label", figure.get_suptitle().replace("\n", ", "))
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace("\0", f"f{hashlib.sha256(text.encode()).hexdigest()[:10]}-")


def _renamed(value: str, names: Mapping[str, str]) -> str:
    """References `#name` in an attribute under their new names; colours stay."""
    return re.sub(r"#([\w.-]+)", lambda match: "#" + names.get(match[1], match[1]), value)


def _check(table: pd.DataFrame, name: str, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise CoreLensError(f"{name} has no column {missing[0]!r}: it needs {', '.join(columns)}.")


def _chosen(known: Iterable[str], chosen: Iterable[str] | None, what: str) -> list[str]:
    """`chosen`, or all that are known, in the table's order."""
    there = list(dict.fromkeys(known))
    given = [chosen] if isinstance(chosen, str) else chosen
    wanted = there if given is None else list(dict.fromkeys(given))
    unknown = [name for name in wanted if name not in there]
    if unknown or not wanted:
        which = f"of {unknown[0]!r}" if unknown else "in the table"
        raise CoreLensError(f"there is not {what} {which}: choose from {', '.join(map(str, there)) or 'nothing'}.")
    return wanted


def _of_metric(table: pd.DataFrame, name: str, metric: str | None) -> tuple[str, pd.DataFrame]:
    known = list(dict.fromkeys(table["metric"]))
    if metric is None and known:
        metric = str(known[0])
    if metric not in known:
        raise CoreLensError(f"{name} has no metric {metric!r}: choose from {', '.join(known) or 'nothing'}.")
    return str(metric), table[table["metric"] == metric]


def _one_set(
    joint: pd.DataFrame, metric: str, splits: Sequence[str], heads: Sequence[str], drops: pd.DataFrame
) -> pd.DataFrame:
    """The joint ablation of `heads` by split."""
    _check(joint, "joint", ["split", "metric", "joint", "singles", "value", "low", "high"])
    rows = joint[joint["metric"] == metric].drop(columns=["head", "other"], errors="ignore").drop_duplicates()
    if rows["split"].duplicated().any():
        raise CoreLensError("joint has several sets of heads: pass the rows of one.")
    _chosen(rows["split"], splits, f"a {metric!r} of a joint ablation")
    rows = rows.set_index("split")
    sums = drops[drops["ablated"].isin(heads)].groupby("split")["drop"].sum()
    for split in splits:
        here, there = sums[split], rows["singles"][split]
        if not np.isclose(here, there, rtol=1e-3, atol=1e-3):
            raise CoreLensError(
                f"joint is not of the heads and examples of singles: on {split!r} the single drops of "
                f"{', '.join(heads)} add up to {here:.3f}, and to {there:.3f} in joint."
            )
    return rows


def _role(task: Task | None, split: str) -> str:
    return "" if task is None else task.split(split).role


def _by_role(splits: list[str], task: Task | None) -> dict[str, list[str]]:
    """Title of a role -> its splits; one part without a title where there is no task."""
    if task is None:
        return {"": list(splits)}
    roles = {split: _role(task, split) for split in splits}
    parts = {title: [split for split in splits if roles[split] == role] for role, title in _ROLES.items()}
    return {title: names for title, names in parts.items() if names}


def _sparsities_of(frequencies: pd.DataFrame) -> list[Any]:
    _check(frequencies, "frequencies", ["component", "layer", "head", "kind"])
    sparsities = [column for column in frequencies.columns if isinstance(column, float)]
    if not sparsities or frequencies.empty:
        raise CoreLensError("frequencies has no column of a sparsity: pass core.frequencies().")
    return sparsities


def _panels(
    n: int, size: tuple[float, float], labels: tuple[str, str], columns: int = 4, sharex: bool = True
) -> tuple[Picture, list[Axes]]:
    """`n` axes in rows of at most `columns`.

    Args:
        n: how many.
        size: width and height of each, in inches.
        labels: of the x axes (where there is one for all, below the lowest panels) and of the y axis.
        columns: at most so many in a row.
        sharex: whether they have one x axis; they always have one y axis.
    """
    rows = -(-n // columns)
    columns = -(-n // rows)
    figure = Picture((max(size[0] * columns + 0.5, 5.2), size[1] * rows + 1), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=sharex, sharey=True, squeeze=False).ravel()
    for ax in axes[n:]:
        ax.set_visible(False)
    for ax in axes[max(n - columns, 0) if sharex else 0 : n]:
        ax.tick_params(labelbottom=True)  # also where the panel below is empty
        ax.set_xlabel(labels[0])
    for ax in axes[:n:columns]:
        ax.set_ylabel(labels[1])
    return figure, list(axes[:n])


def _legend(figure: Figure, handles: Sequence[tuple[Any, str]]) -> None:
    """Below all panels, where it covers no data, in as many columns as fit; the figure grows by its rows."""
    if not handles:
        return
    artists, labels = zip(*handles, strict=True)
    width = 0.6 + 0.075 * max(map(len, labels))  # inches
    columns = min(len(labels), max(1, int(figure.get_figwidth() / width)))
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
    figure.legend(artists, labels, loc="outside lower center", ncols=columns, fontsize=_SMALL)


def _in_percent(axis: Axis) -> None:
    """Shares are written as percent; the unit stands in the label."""
    axis.set_major_formatter(lambda share, position: f"{100 * share:.4g}".replace("-", "\u2212"))


def _metric_axis(ax: Axes, which: str, metric: str) -> None:
    """Shares are shown in percent, on their whole range."""
    if metric in _SHARES:
        _in_percent(ax.xaxis if which == "x" else ax.yaxis)
        ax.set(**{f"{which}lim": (-0.03, 1.03)})


def _around(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far an interval reaches on each side, [2, n]; nothing where it is not known."""
    return np.maximum(np.nan_to_num(np.array([value - low, high - value])), 0)


def _dot(marker: str, color: Any, line: str = "") -> Line2D:
    return Line2D([], [], color=color, marker=marker, ls=line, ms=6)


def _ordered_colors(n: int) -> list[Any]:
    """Of cividis, without its light end."""
    return [mpl.colormaps["cividis"](0.72 * i / max(n - 1, 1)) for i in range(n)]


def _thin(values: np.ndarray) -> np.ndarray:
    """At most a dozen of them, at even steps."""
    return values[:: max(1, -(-len(values) // 12))]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _name(metric: str) -> str:
    name = _METRICS.get(metric, _text(metric)).split(" (")[0]
    return name[0].upper() + name[1:]


def _text(value: Any, width: int = 60) -> str:
    """Text from data as it is: wrapped, no mathematics, nothing that XML cannot hold."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in str(value))
    return textwrap.fill(text, width).replace("$", r"\$")
