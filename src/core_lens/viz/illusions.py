"""Pictures of the illusions study: one function each, which takes a table of `Illusions` and returns a matplotlib figure.

plots.save(illusions.proxy_curves(study.curves, study.comparison.splits[0]), "curves.png")
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..errors import CoreLensError
from .drawing import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
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
    plain,
    thin,
)

_STRENGTH = {"SVD": "rank k", "k-means": "clusters k", "subnetwork": "units kept (%)"}
"""Methods that have a strength, and what it is."""
_COLORS = (RED, BLUE, GREEN, ORANGE, PINK, SKY, GREY)
"""Of splits out of distribution; that in distribution is black."""
_VERDICTS = {
    "faithful": GREY,
    "as good, other predictions": SKY,
    "underestimates": BLUE,
    "overestimates": RED,
}


def proxy_curves(curves: pd.DataFrame, inside: str, splits: Sequence[str] | None = None) -> Figure:
    """Agreement with the model and divergence of attention against the strength of a simplification, a line per split.

    Bands are 95 % intervals over examples. Where several proxies share a strength (subnetworks of several seeds) each is a dot,
    and the line goes through their mean, without a band.

    Args:
        curves: `study.curves`.
        inside: the split in distribution.
        splits: what to draw; all by default.

    Raises:
        CoreLensError: the table lacks a column, or has none of these splits, or no method of several strengths.
    """
    check_columns(curves, "curves", ["method", "strength", "split", "metric", "value", "low", "high"])
    chosen = _splits(curves, splits)
    methods = [method for method in _STRENGTH if (curves["method"] == method).any()]
    if not methods:
        raise CoreLensError(f"curves has none of the methods {', '.join(_STRENGTH)}.")
    figure = Picture((max(3.2 * len(methods) + 0.6, 5.2), 6.2), layout="constrained")
    axes = figure.subplots(2, len(methods), sharex="col", sharey="row", squeeze=False)
    outside = [split for split in chosen if split != inside]
    looks = {inside: ("black", "o")} if inside in chosen else {}
    for i, split in enumerate(outside):
        looks[split] = (_COLORS[i % len(_COLORS)], MARKERS[1 + i % (len(MARKERS) - 1)])
    for row, metric, label in ((0, "agreement", "agreement with the model (%)"), (1, "jsd", "JSD of attention (nats)")):
        axes[row, 0].set_ylabel(label)
        for ax, method in zip(axes[row], methods, strict=True):
            part = curves[(curves["method"] == method) & (curves["metric"] == metric)]
            for split, (color, marker) in looks.items():
                here = part[part["split"] == split].sort_values("strength", kind="stable")
                mean = here.groupby("strength")["value"].mean()
                ax.plot(mean.index, mean, color=color, marker=marker, ms=5, lw=1.4)
                if here["strength"].is_unique:
                    ax.fill_between(here["strength"], here["low"], here["high"], color=color, alpha=0.15, lw=0)
                else:
                    ax.plot(here["strength"], here["value"], marker, color=color, alpha=0.5, ms=4, mew=0)
            if row == 0:
                ax.set_title(method, fontsize=TITLE)
                ax.set_ylim(-0.02, 1.02)
                in_percent(ax.yaxis)
            else:
                ax.set_xlabel(_STRENGTH[method])
            if method == "subnetwork":
                in_percent(ax.xaxis)
                continue
            ticks = sorted(part["strength"].unique())
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
    axes[1, 0].set_ylim(bottom=0)
    handles: Handles = [
        (dot(marker, color, "-"), f"{split} (in distribution)" if split == inside else split)
        for split, (color, marker) in looks.items()
    ]
    add_legend(figure, [(artist, plain(text, 40)) for artist, text in handles])
    figure.suptitle(
        "How well simplified models stand for the model, by strength\n(bands: 95 % intervals over examples)"
    )
    return figure


def gap_bars(gaps: pd.DataFrame, proxies: Sequence[str] | None = None) -> Figure:
    """The generalisation gap of each proxy on each split, with its interval; colours tell the verdict.

    Args:
        gaps: `study.gaps`, or the table of `generalization_gap` with a column proxy.
        proxies: what to draw; by default those that agree with the model on 60 % in distribution at least, but not on all: gaps
            of worse ones say little. At most 12.

    Raises:
        CoreLensError: the table lacks a column, or has nothing to draw.
    """
    check_columns(gaps, "gaps", ["proxy", "split", "agreement", "gap", "low", "high", "verdict"])
    inside = gaps["split"].iloc[0] if len(gaps) else ""
    if proxies is None:
        first = gaps[gaps["split"] == inside]
        proxies = first[first["agreement"].between(0.6, 0.9999)]["proxy"].tolist()[:12] or first["proxy"].tolist()[:12]
    if gaps.duplicated(["proxy", "split"]).any():
        raise CoreLensError("gaps has a proxy twice on one split: draw one study at a time.")
    if unknown := [name for name in proxies if not (gaps["proxy"] == name).any()]:
        raise CoreLensError(f"gaps has no proxy {unknown[0]!r}: it has {', '.join(dict.fromkeys(gaps['proxy']))}.")
    splits = [split for split in dict.fromkeys(gaps["split"]) if split != inside]
    if not proxies or not splits:
        raise CoreLensError("gaps has no proxy, or no split beside the one in distribution: there is nothing to draw.")
    names = [plain(split, 34) for split in splits]
    size = (2.3, 0.5 + 0.28 * max(1, *(0.7 * (name.count("\n") + 1) for name in names)) * len(splits))
    label = "gap (% points)"
    figure, panels = make_panels([plain(name, 24) for name in proxies], size, (label, ""))
    y = np.arange(len(splits))
    for ax, name in zip(panels, proxies, strict=True):
        part = gaps[gaps["proxy"] == name].set_index("split").loc[splits]
        value, low, high = (part[column].to_numpy(dtype=float) for column in ("gap", "low", "high"))
        colors = [_VERDICTS.get(verdict, GREY) for verdict in part["verdict"]]
        bars(ax, y, value, around(value, low, high), color=colors)
        ax.axvline(0, color="black", lw=0.8)
        in_percent(ax.xaxis)
    panels[0].set_yticks(y, names)
    panels[0].invert_yaxis()
    there = [verdict for verdict in _VERDICTS if verdict in set(gaps["verdict"])]
    add_legend(figure, [(Patch(color=_VERDICTS[verdict]), verdict) for verdict in there])
    figure.suptitle(
        f"Generalisation gap: agreement on {plain(inside, 40)} less agreement here\n"
        "(above 0: less like the model here; 95 % intervals)"
    )
    return figure


def depth_maps(errors: pd.DataFrame, split: str, who: Sequence[str], head: str) -> Figure:
    """Where a head looks when a bracket is to be closed: depth of the key it attends to most, by the depth of the bracket.

    On the diagonal it finds a bracket of the right depth.

    Args:
        errors: of `dyck.depth_errors`; where it has several heads in a column head, those of this one are drawn.
        split: one of its splits.
        who: `model`, and proxies to draw beside it.
        head: like `L1.H0`.

    Raises:
        CoreLensError: the table lacks a column, or does not have what is asked for.
    """
    check_columns(errors, "errors", ["split", "who", "query_depth", "key_depth", "share"])
    if not who:
        raise CoreLensError("who is empty: name model, or a proxy.")
    wanted = [("head", head)] if "head" in errors else []
    rows = errors
    for column, value in [*wanted, ("split", split), *(("who", name) for name in who)]:
        if not (rows[column] == value).any():
            known = ", ".join(map(str, dict.fromkeys(rows[column])))
            raise CoreLensError(f"errors has no {column} {value!r}: it has {known}.")
        if column != "who":
            rows = rows[rows[column] == value]
    rows = rows[rows["who"].isin(who)]
    deepest = int(rows[["query_depth", "key_depth"]].to_numpy().max())
    figure, panels = make_panels(
        [plain(name, 26) for name in who], (2.4, 2.5), ("depth of the key", "depth of the bracket"), beside=0.9
    )
    for ax, name in zip(panels, who, strict=True):
        table = rows[rows["who"] == name].pivot_table(index="query_depth", columns="key_depth", values="share")
        table = table.reindex(index=range(1, deepest + 1), columns=range(deepest + 1))
        shown = table.fillna(0).where(table.notna().any(axis=1), np.nan, axis=0)
        heat_map(
            ax, shown.to_numpy(dtype=float), None, vmin=0, vmax=1, cmap=mpl.colormaps["cividis"], origin="lower",
            extent=(-0.5, deepest + 0.5, 0.5, deepest + 0.5),
        )  # fmt: skip
        ax.set_xticks(thin(np.arange(0, deepest + 1, 2)))
        ax.set_yticks(thin(np.arange(2, deepest + 1, 2)))
    figure.colorbar(panels[0].images[0], ax=panels, label="share of the brackets of a depth", aspect=30, fraction=0.05)
    figure.suptitle(f"Where {plain(head)} looks before a closing bracket, {plain(split, 40)}")
    return figure


def _splits(table: pd.DataFrame, splits: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(table["split"]))
    if splits is not None and (unknown := [split for split in splits if split not in known]):
        raise CoreLensError(f"there is no split {unknown[0]!r} in the table: choose from {', '.join(known)}.")
    return [split for split in known if splits is None or split in splits]
