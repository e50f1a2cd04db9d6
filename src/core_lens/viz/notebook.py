"""How `Core`, `Subnetwork` and `Task` show themselves in a notebook: what it is, the key numbers, a grid of the heads.

Colours are the notebook's own ink and one blue, so that light and dark themes both work; no scripts, no styles of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..components import Component, ComponentSet
from .html import escape, table

if TYPE_CHECKING:
    from ..core import Core
    from ..subnetwork import Subnetwork
    from ..tasks import Task

_CELL = 18
_METRICS = ("accuracy", "mcc", "pearson")


def core_html(core: Core) -> str:
    """The heads by how many subnetworks keep them, and the main metric on every split."""
    n = len(core.subnetworks)
    many = f"{n} subnetwork{'s' * (n != 1)}"
    counts = ", ".join(f"{len(core.at(s))} at {s:.0%}" for s in core.sparsities)
    where = f"{core.provenance.get('model', {}).get('model_id', '?')} on {core.provenance.get('task', '?')}"
    shares = core.frequencies().set_index("component")["all"]
    heads = " ".join(map(str, core.heads)) or "none"
    return _block(
        f"Heuristic core of {where}",
        f"{many} by sparsity: {counts}. Heads in all of them ({len(core.heads)}): {heads}.",
        head_grid(
            core.subnetworks[0].units,
            {Component.parse(str(name)): float(share) for name, share in shares.items()},
            f"the bluer, the more of {many} keep it; outlined: all do",
        ),
        table(_results(core)),
        *(f"<p>Note: {escape(note)}</p>" for note in core.notes),
    )


def _results(core: Core) -> pd.DataFrame:
    """Main metric per split: the full model with its interval, then mean (min to max) per sparsity, as text."""
    results = core.table()
    rows = []
    for split, metric in results.index:
        if metric not in _METRICS:
            continue
        row = results.loc[(split, metric)]
        low, high = row["full", "low"], row["full", "high"]
        line = {"split": split, "metric": metric, "full model": f"{row['full', 'value']:.3f} [{low:.3f}, {high:.3f}]"}
        for s in core.sparsities:
            line[f"mean (min to max) at {s:.0%}"] = f"{row[s, 'mean']:.3f} ({row[s, 'min']:.3f} to {row[s, 'max']:.3f})"
        rows.append(line)
    return pd.DataFrame(rows)


def subnetwork_html(subnetwork: Subnetwork) -> str:
    """Which units stay."""
    origin = subnetwork.provenance
    model = origin.get("model", {}).get("model_id")
    facts = [
        f"{len(subnetwork.components)} of {len(subnetwork.units)} units stay ({subnetwork.sparsity:.1%} removed)",
        f"pruner {origin.get('pruner', '?')}",
        f"seed {subnetwork.seed}" if subnetwork.seed is not None else "",
    ]
    return _block(
        f"Subnetwork of {model}" if model else "Subnetwork",
        ", ".join(filter(None, facts)) + ".",
        head_grid(subnetwork.units, dict.fromkeys(subnetwork.components, 1.0), "filled: stays", outline=False),
    )


def task_html(task: Task) -> str:
    """Labels and splits."""
    labels = "a number" if task.is_regression else ", ".join(task.labels)
    return _block(f"Task {task.name}", f"Label: {labels}. Metric: {task.metric}.", table(task.summary()))


def head_grid(units: ComponentSet, shares: Mapping[Component, float], legend: str, outline: bool = True) -> str:
    """Layers x heads as inline SVG, MLPs in a column of their own.

    Args:
        units: what is drawn.
        shares: how full a unit's cell is, 0 (where it is not named) to 1.
        legend: one line below, plain text.
        outline: whether cells with share 1 get an orange outline.
    """
    n_columns = units.n_heads if "head" in units.kinds else 0
    cells = []
    for unit in units:
        share = shares.get(unit, 0.0)
        x = 34 + _CELL * (n_columns if unit.head is None else unit.head) + (8 if unit.head is None and n_columns else 0)
        y = 18 + _CELL * unit.layer
        edge = (
            'stroke="#e07b00" stroke-width="2.5"'
            if outline and share == 1
            else 'stroke="currentColor" stroke-opacity=".3"'
        )
        cells.append(
            f'<rect x="{x}" y="{y}" width="{_CELL - 3}" height="{_CELL - 3}" rx="2" fill="#2b7cc4" '
            f'fill-opacity="{share:.2f}" {edge}><title>{unit}: {share:.0%}</title></rect>'
        )
    texts = [(28, 18 + _CELL * layer + 12, "end", f"L{layer}") for layer in range(units.n_layers)]
    middle = 34 + (_CELL - 3) / 2
    texts += [(middle + _CELL * head, 12, "middle", f"{head}") for head in range(n_columns)]
    width = 34 + _CELL * n_columns + (40 if "mlp" in units.kinds else 0)
    if "mlp" in units.kinds:
        texts.append((middle + _CELL * n_columns + (8 if n_columns else 0), 12, "middle", "MLP"))
    height = 18 + _CELL * units.n_layers
    labels = "".join(f'<text x="{x}" y="{y}" text-anchor="{side}">{text}</text>' for x, y, side, text in texts)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" style="max-width:100%;height:auto" '
        f'role="img" aria-label="{escape(legend)}" fill="currentColor" font-size="10" font-family="sans-serif">'
        f"{labels}{''.join(cells)}</svg><div><small>{escape(legend)}</small></div>"
    )


def _block(title: str, about: str, *parts: Any) -> str:
    """A titled block of HTML; the first two are plain text."""
    return f"<div><b>{escape(title)}</b><p>{escape(about)}</p>{''.join(parts)}</div>"
