"""Pieces of the page: numbers as text, sortable tables, figures, sections. All of them escape what comes from data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from ..viz.html import escape

STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: .5rem 0; border-bottom: 1px solid var(--line); }
section { scroll-margin-top: .5rem; }
ul { padding-left: 1.2rem; max-width: 46rem; }
li { margin: .35rem 0; }
.warnings { border-left: .3rem solid #d98a00; border-radius: .3rem; background: var(--box); padding: .3rem 1rem; }
.scroll { overflow-x: auto; margin: .6rem 0; max-width: 100%; width: fit-content; max-height: 34rem; overflow-y: auto;
  border: 1px solid var(--line); border-radius: .4rem; }
.scroll table { border-collapse: separate; border-spacing: 0; }
.scroll th { position: sticky; top: 0; z-index: 1; background: var(--box); vertical-align: bottom; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--box); white-space: nowrap; }
.scroll th:first-child { z-index: 2; }
.scroll tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; white-space: nowrap; }
td small { display: block; color: var(--soft); font-size: .75rem; }
td.long { min-width: 22rem; }
td.strong { font-weight: 650; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: inherit; }
th button::after { content: "\\2195"; color: var(--soft); opacity: .5; padding-left: .2rem; }
th[aria-sort="ascending"] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort="descending"] button::after { content: "\\2193"; opacity: 1; }
figure { margin: .9rem 0; }
figure > .plot { background: #fff; color: #1d232b; border-radius: .4rem; padding: .4rem; overflow-x: auto;
  border: 1px solid var(--line); }
figure svg { display: block; margin: 0 auto; }
figcaption { color: var(--soft); font-size: .875rem; max-width: 46rem; margin-top: .3rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; }
pre { overflow-x: auto; font-size: .8rem; white-space: pre-wrap; }
details > .scroll { margin-bottom: .9rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
  .plot svg { max-width: none; }
  .scroll th:first-child, .scroll td:first-child { white-space: normal; max-width: 8.5rem; } }
"""

SORT = """
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const sign = down ? -1 : 1, numeric = head.className === "number";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");  // what is not known comes last, either way
      return sign * (numeric ? x - y : x.localeCompare(y, undefined, { numeric: true }));
    });
    table.tBodies[0].append(...rows);
  }));
});
"""


@dataclass(frozen=True)
class Cell:
    """A cell of a sortable table.

    Args:
        text: what is read.
        value: what it is sorted by.
        below: a second, smaller line.
        strong: whether it stands out.
    """

    text: str
    value: float | str
    below: str = ""
    strong: bool = False


SHARES = ("accuracy", "balanced_accuracy", "agreement")
"""Metrics that are shown in percent."""


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\u00a0%"


def sparsity_name(sparsity: float) -> str:
    return f"{100 * sparsity:.3g}\u00a0%"


def figure_of(metric: str, value: float, sign: bool = False) -> str:
    """`value` as its metric is read: shares in percent, without the sign of it in tables; an empty text for nan."""
    if math.isnan(value):
        return ""
    text = _signed(f"{100 * value:.1f}" if metric in SHARES else f"{value:.2f}")
    return f"+{text}" if sign and value > 0 else text


def _signed(number: str) -> str:
    """With a minus of its own width, and none before zero."""
    return number.replace("-", "\u2212") if float(number) else number.lstrip("-")


def range_of(metric: str, low: float, high: float) -> str:
    """`[low, high]`, or an empty text."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{figure_of(metric, low)}, {figure_of(metric, high)}]"


def estimate(metric: str, value: float, low: float, high: float, strong: bool = False) -> Cell:
    """A figure over its interval."""
    return Cell(figure_of(metric, value), value, range_of(metric, low, high), strong)


def number(value: float, digits: int = 2) -> Cell:
    return Cell("" if math.isnan(value) else _signed(f"{value:.{digits}f}"), value)


def p_cell(p: float) -> Cell:
    return Cell("" if math.isnan(p) else f"{p:.2g}", p)


def in_words(p: float) -> str:
    return f"p\u00a0=\u00a0{p:.2g}" if p >= 0.001 else "p\u00a0<\u00a00.001"


def with_unit(metric: str, value: float) -> str:
    return figure_of(metric, value) + ("\u00a0%" if metric in SHARES else "")


def named(metric: str) -> str:
    """A metric inside a sentence."""
    names = {"mcc": "Matthews correlation", "pearson": "Pearson correlation", "margin": "gold margin (in logits)"}
    return names.get(metric, metric.replace("_", " "))


def records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Its rows."""
    return cast("list[dict[Any, Any]]", table.to_dict("records"))


def listed(items: Iterable[Any]) -> str:
    """`a, b and c`."""
    texts = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def sortable(columns: Sequence[str], rows: Iterable[Sequence[Cell | str | float]]) -> str:
    """A table that sorts by any column, in a box that scrolls sideways; a column of numbers only sorts by size."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(not isinstance(row[i].value, str) for row in cells) for i in range(len(columns))]

    def td(cell: Cell, is_number: bool) -> str:
        names = ["number"] * is_number + ["long"] * (len(cell.text) > 60) + ["strong"] * cell.strong
        kind = f' class="{" ".join(names)}"' if names else ""
        unknown = isinstance(cell.value, float) and math.isnan(cell.value)
        value = "" if unknown else cell.value if isinstance(cell.value, str) else f"{cell.value:.12g}"
        below = f"<small>{escape(cell.below)}</small>" if cell.below else ""
        return f'<td{kind} data-value="{escape(value)}">{escape(cell.text)}{below}</td>'

    head = "".join(
        f'<th{" class=number" if is_number else ""}><button type="button">{escape(name)}</button></th>'
        for name, is_number in zip(columns, numeric, strict=True)
    )
    lines = ("".join(map(td, row, numeric)) for row in cells)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def _cell(value: Cell | str | float) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, str):
        return Cell(value, value)
    if isinstance(value, int | np.integer):
        return Cell(f"{value:,}", float(value))
    return number(float(value))


def paragraph(text: str, soft: bool = False) -> str:
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>\n"


def bullets(texts: Iterable[tuple[str, str]]) -> str:
    """A list of texts, each after its heading."""
    items = "".join(f"<li><b>{escape(name)}.</b> {escape(text)}</li>\n" for name, text in texts)
    return f"<ul>\n{items}</ul>\n"


def folded(title: str, *parts: str) -> str:
    """Behind a line that opens it."""
    return f"<details><summary>{escape(title)}</summary>\n{''.join(parts)}</details>\n"


def plot(svg: str, caption: str) -> str:
    """A picture; on a phone it keeps its size and scrolls in its box."""
    return f'<figure><div class="plot" tabindex="0">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>\n'


def facts(pairs: Mapping[str, str]) -> str:
    """Names and values, without those that are empty."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in pairs.items() if value)
    return f"<dl>\n{rows}</dl>\n"
