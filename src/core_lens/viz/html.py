"""HTML that is safe to make from data, and the one skeleton of all pages: self-contained, offline, light and dark."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable
from html import escape as escape_markup
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..files import write_atomically

STYLE = """
:root { color-scheme: light dark; --ink: #1d232b; --soft: #5a6472; --paper: #fff; --box: #f4f6f8; --line: #d5dae1;
  --accent: #0b62a8; --first: #d3e6f8; --second: #fbe3c0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3adba; --paper: #14181d; --box: #1e242b;
  --line: #39424d; --accent: #7db9f0; --first: #1d4568; --second: #5f4313; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.25rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--accent); }
.soft { color: var(--soft); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
img, svg { max-width: 100%; height: auto; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .75rem 0; background: var(--box); }
summary { cursor: pointer; padding: .6rem .9rem; }
details > :not(summary) { margin-left: .9rem; margin-right: .9rem; }
"""


def escape(value: Any) -> str:
    """`str(value)` as text of HTML or a quoted attribute; what UTF-8 cannot say becomes a question mark."""
    return escape_markup(str(value).encode("utf-8", "replace").decode())


def script_data(value: Any) -> str:
    """A JSON data block, `<script type="application/json">`, that no string in `value` can close."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII only: U+2028 and lone surrogates are escaped
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json">{text}</script>'


def page(title: str, body: str, scripts: Iterable[str] = (), style: str = "") -> str:
    """A whole HTML document that loads nothing.

    Args:
        title: plain text.
        body: HTML in which everything that comes from data is escaped.
        scripts: JavaScript that runs at the end of the page, in order.
        style: CSS after the pages' own.

    The browser is told to run these scripts only, by their hashes, and to load nothing: text that reached the page
    unescaped could not act.
    """
    code = [script.replace("</script", r"<\/script").strip() for script in scripts]
    hashes = " ".join(f"'sha256-{b64encode(hashlib.sha256(c.encode()).digest()).decode()}'" for c in code) or "'none'"
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; font-src data:"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n{body}\n"
        + "".join(f"<script>{c}</script>\n" for c in code)
        + "</body>\n</html>\n"
    )


def table(data: pd.DataFrame) -> str:
    """A table of all rows and columns: floats to three places, whole numbers with thousands separated."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            value = "" if np.isnan(value) else f"{value:.3f}"
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            value = f"{value:,}"
        else:
            return f"<td>{escape(value)}</td>"
        return f'<td style="text-align:right">{value}</td>'

    head = "".join(f"<th>{escape(name)}</th>" for name in data.columns)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>\n" for row in data.itertuples(index=False))
    return (
        f'<div style="overflow-x:auto"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
    )


def frame(document: str, height: int) -> str:
    """A document inside a notebook's output: apart from the notebook's styles, scripts and other outputs.

    Args:
        document: what `page` made.
        height: in pixels; the reader can drag it larger.
    """
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(document)}" '
        f'style="width:100%;height:{height}px;border:0;resize:vertical;overflow:auto"></iframe>'
    )


def write_page(path: str | Path, document: str) -> Path:
    """Write a page as UTF-8, whole or not at all.

    Raises:
        SavedFileError: it cannot be written there.
    """

    def write(temporary: Path) -> None:
        temporary.write_text(document, encoding="utf-8")

    write_atomically(Path(path), write)
    return Path(path)
