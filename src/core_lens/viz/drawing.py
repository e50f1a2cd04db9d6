"""What the pictures share: colours, panels, heat maps, bars, legends, and how a figure is written to a file or a page.

Nothing here goes through pyplot or changes matplotlib's settings, so figures can be made in threads and without a screen.
Colours are those of Okabe and Ito (2008), cividis and RdBu, which readers who are colour-blind can tell apart, and
shapes differ with them.
"""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..errors import CoreLensError
from ..evaluate import BALANCED
from ..files import write_atomically

BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY = "#767676"
MARKERS = "osD^vPX<>*"
SMALL, TITLE = 9, 10
"""Points of the smallest text, and of a panel's title."""
_WIDEST = 10.2
"""Inches of a figure with many panels, so that a page of 64 rem shows it in its own size."""
Handles = list[tuple[Any, str]]
"""What a legend shows, and what it says."""
METRICS = {
    "accuracy": "accuracy (%)",
    BALANCED: "balanced accuracy (%)",
    "agreement": "agreement with the full model (%)",
    "kl": "KL divergence from the full model (nats)",
    "mcc": "Matthews correlation",
    "pearson": "Pearson's r",
    "squared_error_to_full": "squared error to the full model",
}
"""How axes name them."""


class Picture(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the suffix; made anew from the same table it is the same, byte for byte.

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
    """A figure as an `<svg>` element to stand in a page: no scripts, nothing loaded; the same text whenever it is made anew.

    Identifiers begin with a hash of the content, so that several figures can stand in one page.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    # All text from data is drawn as paths; what is left of it is in comments.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    # matplotlib's own names hold a random salt; those of the order of appearance do not.
    names = {name: f"\0{i}" for i, name in enumerate(dict.fromkeys(re.findall(r' id="([^"]+)"', text)))}
    text = re.sub(r'( id="|#)([\w.-]+)', lambda match: match[1] + names.get(match[2], match[2]), text)
    label = escape(figure.get_suptitle().replace("\n", ", "))
    start = f'<svg role="img" aria-label="{label}" style="stroke-linejoin:round;stroke-linecap:butt"'
    text = text.replace("<svg", start, 1).replace("xlink:href", "href")
    return text.replace("\0", f"f{hashlib.sha256(text.encode()).hexdigest()[:10]}-")


def make_panels(
    titles: Sequence[str],
    size: tuple[float, float],
    labels: tuple[str, str],
    beside: float = 0,
    sharex: bool = True,
) -> tuple[Picture, list[Axes]]:
    """Axes in rows, as many in each as fit `_WIDEST`.

    Args:
        titles: one for each.
        size: width and height of each, in inches.
        labels: of the x axes (where there is one for all, below the lowest panels) and of the y axis.
        beside: inches for a color bar.
        sharex: whether they have one x axis; they always have one y axis.
    """
    n = len(titles)
    rows = -(-n // max(1, int((_WIDEST - 0.5 - beside) / size[0])))
    columns = -(-n // rows)
    figure = Picture((max(size[0] * columns + 0.5 + beside, 5.2), size[1] * rows + 1), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=sharex, sharey=True, squeeze=False).ravel()
    for ax in axes[n:]:
        ax.set_visible(False)
    for ax in axes[max(n - columns, 0) if sharex else 0 : n]:
        ax.tick_params(labelbottom=True)  # also where the panel below is empty
        ax.set_xlabel(labels[0])
    for ax in axes[:n:columns]:
        ax.set_ylabel(labels[1])
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title, fontsize=TITLE)
    return figure, list(axes[:n])


def heat_map(
    ax: Axes, values: np.ndarray, texts: np.ndarray | None, bold: np.ndarray | None = None, **scale: Any
) -> None:
    """Cells by their values, with texts in black or white, whichever stands out; nothing where there is no value."""
    image = ax.imshow(values, aspect="auto", **scale)
    if texts is None:
        return
    for i, j in np.argwhere(~np.isnan(values)):
        dark = np.dot(image.to_rgba(values[i, j])[:3], (0.3, 0.59, 0.11)) < 0.5
        weight = "bold" if bold is not None and bold[i, j] else "normal"
        style = {"fontsize": SMALL, "fontweight": weight, "color": "white" if dark else "black"}
        ax.text(j, i, str(texts[i, j]), ha="center", va="center", **style)


def markers(ax: Axes, x: np.ndarray, y: np.ndarray, color: str, marker: str, filled: np.ndarray, size: float) -> None:
    """Filled and hollow markers."""
    face = list(np.where(filled, color, "white"))
    ax.scatter(x, y, s=size**2, c=face, marker=marker, edgecolors=color, linewidths=1, zorder=3)


def bars(ax: Axes, y: Any, width: np.ndarray, ends: np.ndarray | None, **style: Any) -> None:
    error = {"lw": 1, "capsize": 2, "ecolor": "black"}
    ax.barh(y, width, height=0.75, xerr=ends, error_kw=error, **style)


def add_legend(figure: Figure, handles: Handles) -> None:
    """Below all panels, where it covers no data, in as many columns as fit; the figure grows by its rows."""
    if not handles:
        return
    artists, labels = zip(*handles, strict=True)
    width = 0.6 + 0.075 * max(map(len, labels))  # inches
    columns = min(len(labels), max(1, int(figure.get_figwidth() / width)))
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
    figure.legend(artists, labels, loc="outside lower center", ncols=columns, fontsize=SMALL)


def dot(marker: str, color: Any, line: str = "", face: Any = None) -> Line2D:
    return Line2D([], [], color=color, marker=marker, ls=line, ms=6, mfc=face or color)


def in_percent(axis: Axis) -> None:
    """Shares are written as percent; the unit stands in the label."""
    axis.set_major_formatter(lambda share, position: f"{100 * share:.4g}".replace("-", "\u2212"))


def around(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far an interval reaches on each side, [2, n]; nothing where it is not known."""
    return np.maximum(np.nan_to_num(np.array([value - low, high - value])), 0)


def thin(values: np.ndarray) -> np.ndarray:
    """At most a dozen of them, at even steps."""
    return values[:: max(1, -(-len(values) // 12))]


def plain(value: Any, width: int = 60) -> str:
    """Text from data as it is: wrapped, no mathematics, nothing that XML cannot hold."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in str(value))
    return textwrap.fill(text, width).replace("$", r"\$")


def check_columns(table: pd.DataFrame, name: str, columns: Sequence[str]) -> None:
    """Raise a CoreLensError unless the table `name` has these columns."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise CoreLensError(f"{name} has no column {missing[0]!r}: it needs {', '.join(columns)}.")
