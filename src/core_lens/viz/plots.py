"""Pictures of the project's tables: one function each, which takes a table and returns a matplotlib figure.

    plots.save(plots.accuracy_strip(core.evaluation, task), "accuracy.svg")

Values and intervals are drawn as the tables give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ..components import Component
from ..errors import CoreLensError
from ..evaluate import BALANCED
from ..heads import MEASURES
from ..interactions import OTHERS
from ..tasks import Task
from .drawing import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    METRICS,
    ORANGE,
    PINK,
    RED,
    SKY,
    TITLE,
    Handles,
    Picture,
    add_legend,
    around,
    bars,
    check_columns,
    dot,
    heat_map,
    in_percent,
    make_panels,
    markers,
    plain,
    save,
    svg,
    thin,
)

__all__ = [
    "Picture",
    "ablation_bars",
    "accuracy_by_sparsity",
    "accuracy_strip",
    "effective_size",
    "frequency_maps",
    "frequency_scatter",
    "interaction_map",
    "pattern_scores",
    "save",
    "svg",
]

_SHARES = ("accuracy", BALANCED, "agreement")
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
    check_columns(
        evaluation, "evaluation", ["subnetwork", "sparsity", "split", "group", "metric", "value", "low", "high"]
    )
    rows = evaluation[(evaluation["metric"] == metric) & (evaluation["group"] == "all")]
    parts = _by_role(_chosen(rows["split"], splits, f"split with {metric!r}"), task)
    is_full = rows["subnetwork"] == "full"
    full, ours = rows[is_full], rows[~is_full]
    sparsities = sorted(ours["sparsity"].unique())
    band = 0.8 / max(len(sparsities), 1)
    counts = [len(names) for names in parts.values()]
    height = 1.4 + max(0.34, 0.2 * len(sparsities)) * sum(counts) + 0.3 * len(parts)
    figure = Picture((7.2, height), layout="constrained")
    panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    colors = [mpl.colormaps["cividis"](0.66 * i / max(len(sparsities) - 1, 1)) for i in range(len(sparsities))]
    for ax, (role, names) in zip(panels, parts.items(), strict=True):
        at = {name: float(y) for y, name in enumerate(names)}
        for i, sparsity in enumerate(sparsities):
            part = ours[ours["split"].isin(names) & (ours["sparsity"] == sparsity)]
            within = part.groupby("split").cumcount().to_numpy() % 5  # apart, so that equal values can be counted
            shift = (i - (len(sparsities) - 1) / 2) * band + (within - within.max(initial=0) / 2) * band / 7
            y = part["split"].map(at).to_numpy() + shift
            ax.plot(part["value"], y, MARKERS[i % 10], color=colors[i], ms=5, alpha=0.8, mew=0)
        part = full[full["split"].isin(names)]
        value, low, high = _floats(part, "value", "low", "high")
        y = part["split"].map(at).to_numpy(dtype=float)
        ax.barh(y, high - low, 0.9, low, color="black", alpha=0.12, lw=0)
        ax.vlines(value, y - 0.45, y + 0.45, color="black", lw=2, zorder=1.5)
        ax.set_yticks(range(len(names)), [plain(name, 26) for name in names])
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.hlines(np.arange(len(names) - 1) + 0.5, 0, 1, color="#dddddd", lw=0.8, transform=ax.get_yaxis_transform())
        ax.set_title(role, loc="left", fontsize=TITLE, fontweight="bold")
    _whole_range(panels[-1], "x", metric)
    panels[-1].set_xlabel(_named(metric, METRICS))
    handles = _full_model(Line2D([], [], color="black", marker="|", ls="", ms=12, mew=2)) if len(full) else []
    handles += [(dot(MARKERS[i % 10], colors[i]), f"{_percent(s)} removed") for i, s in enumerate(sparsities)]
    add_legend(figure, handles)
    figure.suptitle(f"{_titled(metric)} of every subnetwork")
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
    parts = _by_role(_chosen(rows.index, splits, f"split with {metric!r}"), task)
    names = [name for group in parts.values() for name in group]
    rows = rows.loc[names].astype(float)
    roles = [_role(task, name) for name in names]
    sparsities = np.array([s for s in rows.columns.unique(0) if s != "full"], dtype=float)
    labels = ("sparsity: units removed (%)", _named(metric, METRICS))
    figure, panels = make_panels([plain(name, 26) for name in names], (2.4, 2.0), labels)
    for ax, role, (_, row) in zip(panels, roles, rows.iterrows(), strict=True):
        color = _ROLE_COLORS.get(role, BLUE)
        mean, low, high = (np.array([row[s, part] for s in sparsities]) for part in ("mean", "low", "high"))
        ax.axhspan(row["full", "low"], row["full", "high"], color="black", alpha=0.12, lw=0)
        ax.axhline(row["full", "value"], color="black", lw=1.2, ls="--")
        ax.errorbar(sparsities, mean, around(mean, low, high), color=color, marker="o", ms=5, capsize=3, elinewidth=1)
        ax.fill_between(sparsities, low, high, color=color, alpha=0.25, lw=0)
    panels[0].set_xticks(thin(sparsities))
    in_percent(panels[0].xaxis)
    panels[0].set_xlim(0, max(1.15 * sparsities.max(), 0.1))
    _whole_range(panels[0], "y", metric)
    handles: Handles = [(Patch(color=_ROLE_COLORS[role]), _ROLES[role]) for role in _ROLES if role in roles]
    color = GREY if handles else BLUE
    band, line = Patch(color=color, alpha=0.25, lw=0), dot("o", color, "-")
    has_seeds = rows.xs("low", axis=1, level=1).drop(columns="full").notna().to_numpy().any()
    handles.append(((band, line), "mean over seeds, 95 % interval") if has_seeds else (dot("o", color), "one seed"))
    if rows["full", "value"].notna().any():
        handles += _full_model(Line2D([], [], color="black", ls="--"))
    add_legend(figure, handles)
    figure.suptitle(f"{_titled(metric)} against sparsity")
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
    cell = 0.3 if written else max(0.1, 6 / max(width, n_layers))
    size = (max(cell * width + 0.2, 2.2), max(cell * n_layers + 0.8, 1.6))
    titles = ["all subnetworks" if s == "all" else f"{_percent(float(s))} of units removed" for s in columns]
    figure, panels = make_panels(titles, size, ("head" if n_heads else "", "layer"), beside=0.9)
    for ax, column in zip(panels, columns, strict=True):
        shares = np.full((n_layers, width), np.nan)
        shares[y, x] = frequencies[column].to_numpy(dtype=float)
        texts = np.char.mod("%.0f", 100 * shares) if written else None
        heat_map(ax, shares, texts, vmin=0, vmax=1, cmap="cividis", origin="lower")
        for layer, head in np.argwhere(shares[:, :n_heads] == 1):
            ax.add_patch(Rectangle((head - 0.46, layer - 0.46), 0.92, 0.92, fill=False, ec=RED, lw=2, zorder=3))
        if has_mlps and n_heads:
            ax.axvline(n_heads - 0.5, color="white", lw=2, zorder=2)
        heads = thin(np.arange(n_heads))
        ax.set_xticks([*heads, *[n_heads] * has_mlps], [*map(str, heads), *["MLP"] * has_mlps])
        ax.set_yticks(thin(np.arange(n_layers)))
    bar = figure.colorbar(
        panels[0].images[0], ax=panels, label="subnetworks that keep it (%)", aspect=30, fraction=0.05
    )
    in_percent(bar.ax.yaxis)
    add_legend(
        figure, [(Patch(fill=False, ec=RED, lw=2), "head kept by every subnetwork of the map")] if n_heads else []
    )
    figure.suptitle(f"How often each {'head and MLP' if has_mlps and n_heads else 'unit'} is kept")
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
    x, y, layer = _floats(heads, a, b, "layer")
    places = heads.groupby([a, b], sort=False).cumcount().to_numpy()
    step = np.concatenate([np.diff(np.unique(x)), np.diff(np.unique(y))]).min(initial=0.2)
    # Heads at one place are set apart in a sunflower's spiral that stays clear of the next place.
    radius = 0.45 * step * np.sqrt(places / max(places.max(), 8))
    angle = places * np.pi * (3 - np.sqrt(5))
    figure = Picture((6.4, 5.8), layout="constrained")
    ax = figure.subplots()
    ax.axline((0, 0), slope=1, color="#bbbbbb", lw=1, zorder=0)
    points = ax.scatter(
        x + radius * np.cos(angle),
        y + radius * np.sin(angle),
        c=layer,
        cmap=mpl.colormaps["cividis"].resampled(int(layer.max()) + 1),
        vmin=-0.5,
        vmax=layer.max() + 0.5,
        s=30 if len(heads) <= 100 else 16,
        edgecolors="black",
        linewidths=0.4,
    )
    figure.colorbar(points, ax=ax, label="layer", ticks=thin(np.arange(layer.max() + 1)))
    for axis, sparsity in ((ax.xaxis, a), (ax.yaxis, b)):
        in_percent(axis)
        axis.set_label_text(f"kept at {_percent(sparsity)} sparsity (% of its subnetworks)")
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), aspect="equal")
    text = "a dot is a head; heads at one place are set apart"
    if correlation is not None:
        rho, low, high, p = (float(correlation[key]) for key in ("rho", "low", "high", "p"))
        interval = "too few seeds for an interval" if np.isnan(low) else f"95 % interval [{low:.2f}, {high:.2f}]"
        chance = f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
        text = f"Spearman's \u03c1 = {rho:.2f}, {interval}, {chance}\n{text}"
    ax.set_title(text.replace("-", "\u2212"), fontsize=TITLE)
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
    check_columns(sizes, "sizes", ["checkpoint", "splits", "size", "low", "high", "full", "flags"])
    names = _chosen(sizes["splits"], groups, "group of splits")
    checkpoints = list(dict.fromkeys(sizes["checkpoint"]))
    is_number = pd.api.types.is_numeric_dtype(sizes["checkpoint"])
    at = {c: float(c) if is_number else float(i) for i, c in enumerate(checkpoints)}
    span = np.ptp(list(at.values())) or 1.0
    shown = sizes[sizes["splits"].isin(names)]
    shown = shown.assign(x=shown["checkpoint"].map(at), filled=shown["flags"].map(len) == 0).sort_values("x")
    figure = Picture((7.2, 6.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 1])
    handles: Handles = []
    for i, name in enumerate(names):
        part = shown[shown["splits"] == name]
        x, size, low, high, full = _floats(part, "x", "size", "low", "high", "full")
        aside = x + (i - (len(names) - 1) / 2) * span / 120  # apart, so that no bar hides another
        color, marker = (BLUE, RED, GREEN, ORANGE, PINK, SKY)[i % 6], MARKERS[i % 10]
        top.errorbar(aside, size, around(size, low, high), color=color, lw=1.4, elinewidth=1, capsize=3)
        markers(top, aside, size, color, marker, part["filled"].to_numpy(), 6)
        bottom.plot(x, full, color=color, marker=marker, ms=5)
        handles.append((dot(marker, color, "-"), plain(name, 40)))
    if not shown["filled"].all():
        handles.append((dot("o", "black", face="white"), "hollow: flagged, see the table"))
    interval = ", one seed" if shown["low"].isna().all() else ", with 95 % intervals over seeds"
    top.set_title(f"Size of the smallest faithful subnetwork{interval}", fontsize=TITLE)
    bottom.set_title("Accuracy of the full model", fontsize=TITLE)
    for ax, label in ((top, "units kept (%)"), (bottom, "accuracy (%)")):
        ax.set(ylabel=label, ylim=(-0.03, 1.03))
        in_percent(ax.yaxis)
        ax.grid(axis="y", color="#e4e4e4", lw=0.8)
        ax.set_axisbelow(True)
    bottom.set_xlabel("step of fine-tuning" if is_number else "checkpoint")
    if not is_number:
        turned = max(len(str(c)) for c in checkpoints) * len(checkpoints) > 60
        turn = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if turned else {}
        bottom.set_xticks(range(len(checkpoints)), [plain(c, 40 if turned else 20) for c in checkpoints], **turn)
    add_legend(figure, handles)
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
    check_columns(patterns, "patterns", needed)
    there = patterns[patterns["n"] > 0]
    there = there.assign(name=[f"L{i}.H{j}" for i, j in zip(there["layer"], there["head"], strict=True)])
    if "checkpoint" not in there.columns:
        there = there.assign(checkpoint="")
    known = set(there["measure"])
    shown = _chosen([measure for measure in MEASURES if measure in known], measures, "measure")
    heads = sorted({Component.parse(head) if isinstance(head, str) else head for head in core})
    at = {name: float(y) for y, name in enumerate(_chosen(there["name"], map(str, heads), "head"))}
    is_core, y_rest = there["name"].isin(list(at)), len(heads) + 0.55
    n_rest = there.loc[~is_core, "name"].nunique()
    checkpoints = dict(zip(dict.fromkeys(there["checkpoint"]), ((BLUE, "o"), (ORANGE, "D")), strict=False))
    titles = [_MEASURES.get(measure, plain(measure)) for measure in shown]
    size = (2.4, 0.9 + 0.27 * (len(heads) + 1.8))
    figure, panels = make_panels(titles, size, ("attention (%)", "head"), sharex=False)
    for ax, measure in zip(panels, shown, strict=True):
        for i, (checkpoint, (color, marker)) in enumerate(checkpoints.items()):
            is_here = (there["measure"] == measure) & (there["checkpoint"] == checkpoint)
            shift, share = (i - (len(checkpoints) - 1) / 2) / 2, 1 / len(checkpoints)
            ours, others = there[is_here & is_core], there[is_here & ~is_core]
            value, chance, low, high = _floats(ours, "value", "chance", "low", "high")
            y = ours["name"].map(at).to_numpy() + shift
            ax.errorbar(value, y, xerr=around(value, low, high), color=color, ls="", lw=1.2)
            apart = ((ours["excess_low"] > 0) | (ours["excess_high"] < 0)).to_numpy()
            markers(ax, value, y, color, marker, apart, 5)
            ax.vlines(chance, y - share / 2, y + share / 2, color="black", lw=1.2)  # equal levels make one line
            middle = y_rest + 1.5 * shift
            spread = share * (np.arange(len(others)) % 7 - 3) / 7
            ax.plot(others["value"], middle + spread, marker, mfc=color, mec="none", ms=3.5, alpha=0.55)
            ax.vlines(others["chance"].mean(), middle - 0.75 * share, middle + 0.75 * share, color="black", lw=1.2)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.axhline(y_rest - 0.75, color="#cccccc", lw=0.8)
        if measure == "entropy":
            ax.set_xlabel("entropy (nats)")
        else:
            in_percent(ax.xaxis)
            left, right = ax.get_xlim()
            ax.set_xlim(min(left, 0), 1.03 * right)
    rest = {f"{n_rest} others": y_rest} if n_rest else {}
    panels[0].set_yticks([*at.values(), *rest.values()], [*at, *rest])
    panels[0].set_ylim(y_rest + 0.8 if n_rest else len(heads) - 0.4, -0.6)
    handles: Handles = [(Line2D([], [], color="black", marker="|", ls="", ms=12, mew=1.4), "chance")]
    for checkpoint, (color, marker) in checkpoints.items():
        of = f"{plain(checkpoint)}: " if checkpoint else ""
        handles.append((dot(marker, color, "-"), f"{of}value and 95 % interval over examples"))
    hollow = dot("o", "black", face="white")
    handles.append((hollow, "hollow: the interval of the difference to chance holds 0"))
    add_legend(figure, handles)
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
    check_columns(singles, "singles", ["ablated", "split", "metric", "drop", "drop_low", "drop_high", "spread"])
    metric, drops = _of_metric(singles[singles["drop"].notna()], metric)
    names = _chosen(drops["split"], splits, f"split with {metric!r}")
    heads = [name for name in dict.fromkeys(drops["ablated"]) if name != OTHERS]
    together = None if joint is None else _one_set(joint, metric, names, heads, drops)
    rows = {name: plain(name) for name in heads}
    if (drops["ablated"] == OTHERS).any():
        rows[OTHERS] = "other heads"
    y_of = {name: float(y) for y, name in enumerate(rows)}
    y_sum = len(rows) + 0.4
    labels, ticks = [*rows.values()], [*y_of.values()]
    if together is not None:
        labels, ticks = [*labels, "sum of these", "together"], [*ticks, y_sum, y_sum + 1]
    titles = [plain(name, 26) for name in names]
    about = (f"drop in\n{_named(metric, _DROPS)}", "ablated")
    figure, panels = make_panels(titles, (2.4, 0.95 + 0.25 * ticks[-1]), about)
    for ax, name in zip(panels, names, strict=True):
        part = drops[drops["split"] == name]
        drop, low, high, spread = _floats(part, "drop", "drop_low", "drop_high", "spread")
        is_head = (part["ablated"] != OTHERS).to_numpy()
        # Over heads for the others, as single heads stand beside them.
        ends = np.where(is_head, around(drop, low, high), np.nan_to_num(spread))
        y = part["ablated"].map(y_of).to_numpy(dtype=float)
        bars(ax, y, drop, ends, color=np.where(is_head, BLUE, "#bbbbbb"))
        if together is not None:
            joint_drop, total, value, low, high = _floats(
                together.loc[[name]], "joint", "singles", "value", "low", "high"
            )
            bars(ax, y_sum, total, None, color="white", edgecolor=BLUE, hatch="////", lw=1.2)
            bars(ax, y_sum + 1, joint_drop, around(value, low, high), color=RED)
        ax.axvline(0, color="black", lw=0.8)
    panels[0].set_yticks(ticks, labels)
    panels[0].set_ylim(ticks[-1] + 0.6, -0.6)
    panels[0].xaxis.set_major_locator(MaxNLocator(4))
    if metric in _SHARES:
        in_percent(panels[0].xaxis)
    handles: Handles = [(Patch(color=BLUE), "a head alone, 95 % interval over examples")]
    if OTHERS in rows:
        handles.append((Patch(color="#bbbbbb"), "mean of all other heads, \u00b1 standard deviation over them"))
    if together is not None:
        handles.append((Patch(fc="white", ec=BLUE, hatch="////"), "sum of the single drops"))
        handles.append((Patch(color=RED), "ablated together, 95 % interval of the difference to the sum"))
    add_legend(figure, handles)
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
    check_columns(interactions, "interactions", ["head", "other", "split", "metric", "value", "low", "high"])
    metric, rows = _of_metric(interactions, metric)
    pairs = rows[rows["head"].notna() & rows["other"].notna()]
    if pairs.empty:
        raise CoreLensError("interactions has no pairs: make the table with 2 among its sizes.")
    names = _chosen(pairs["split"], splits, f"split with {metric!r}")
    pairs = pairs[pairs["split"].isin(names)]
    units = list(map(str, sorted(map(Component.parse, set(pairs["head"]) | set(pairs["other"])))))
    scale, digits = (100, 0) if metric in _SHARES else (1, 2)
    norm = CenteredNorm(halfrange=float(pairs["value"].abs().max()) * scale or 1.0)
    size = (max(0.52 * len(units) + 0.2, 2.2), max(0.36 * len(units) + 0.6, 2))
    figure, panels = make_panels([plain(name, 26) for name in names], size, ("ablated with", "head"), beside=1.2)
    for ax, name in zip(panels, names, strict=True):
        part = pairs[pairs["split"] == name].set_index(["head", "other"])
        value, low, high = (
            scale * part[column].unstack().reindex(units, columns=units).to_numpy(dtype=float)
            for column in ("value", "low", "high")
        )
        texts = np.char.replace(np.char.mod(f"%+.{digits}f", value), "-", "\u2212")
        texts[np.round(value, digits) == 0] = "0"
        heat_map(ax, value, texts, (low > 0) | (high < 0), cmap="RdBu_r", norm=norm)
        ax.set_facecolor("#e8e8e8")
        ax.set_xticks(range(len(units)), units, rotation=60 if len(units) > 3 else 0)
        ax.set_yticks(range(len(units)), units)
    label = f"joint drop less sum of single drops,\n{_named(metric, _DROPS)}"
    figure.colorbar(panels[0].images[0], ax=panels, label=label, aspect=30, fraction=0.05)
    figure.suptitle("Interaction of pairs of heads\n(bold: the 95 % interval over examples is without 0)")
    return figure


def _chosen(known: Iterable[str], chosen: Iterable[str] | None, what: str) -> list[str]:
    """`chosen`, or all that are known, in the table's order."""
    there = list(dict.fromkeys(known))
    wanted = there if chosen is None else list(dict.fromkeys([chosen] if isinstance(chosen, str) else chosen))
    if not there:
        raise CoreLensError(f"the table has no {what}: there is nothing to draw.")
    unknown = [name for name in wanted if name not in there]
    if unknown or not wanted:
        wrong = f"{unknown[0]!r} is no {what} here" if unknown else f"no {what} is named"
        raise CoreLensError(f"{wrong}: choose from {', '.join(map(str, there))}.")
    return wanted


def _of_metric(table: pd.DataFrame, metric: str | None) -> tuple[str, pd.DataFrame]:
    metric = _chosen(table["metric"], metric, "metric")[0]
    return metric, table[table["metric"] == metric]


def _one_set(
    joint: pd.DataFrame, metric: str, splits: Sequence[str], heads: Sequence[str], drops: pd.DataFrame
) -> pd.DataFrame:
    """The joint ablation of `heads` by split."""
    check_columns(joint, "joint", ["split", "metric", "joint", "singles", "value", "low", "high"])
    rows = joint[joint["metric"] == metric].drop(columns=["head", "other"], errors="ignore").drop_duplicates()
    if rows["split"].duplicated().any():
        raise CoreLensError("joint has several sets of heads: pass the rows of one.")
    _chosen(rows["split"], splits, f"split with a joint {metric!r}")
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
        return {"": splits}
    parts = {title: [split for split in splits if _role(task, split) == role] for role, title in _ROLES.items()}
    return {title: names for title, names in parts.items() if names}


def _sparsities_of(frequencies: pd.DataFrame) -> list[Any]:
    check_columns(frequencies, "frequencies", ["component", "layer", "head", "kind"])
    sparsities = [column for column in frequencies.columns if isinstance(column, float)]
    if not sparsities or frequencies.empty:
        raise CoreLensError("frequencies has no column of a sparsity: pass core.frequencies().")
    return sparsities


def _floats(table: pd.DataFrame, *columns: Any) -> list[np.ndarray]:
    return [table[column].to_numpy(dtype=float) for column in columns]


def _full_model(line: Line2D) -> Handles:
    return [((Patch(color="black", alpha=0.12, lw=0), line), "full model, 95 % interval over examples")]


def _whole_range(ax: Axes, which: str, metric: str) -> None:
    """Shares are shown in percent, on their whole range."""
    if metric in _SHARES:
        in_percent(ax.xaxis if which == "x" else ax.yaxis)
        ax.set(**{f"{which}lim": (-0.03, 1.03)})


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _named(metric: str, names: Mapping[str, str]) -> str:
    return names.get(metric) or plain(metric)


def _titled(metric: str) -> str:
    name = _named(metric, METRICS).split(" (")[0]
    return name[0].upper() + name[1:]
