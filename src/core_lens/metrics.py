"""Metrics that take weights, so that a bootstrap can reweight examples."""

from __future__ import annotations

import numpy as np


def pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Pearson's r; nan where one side is constant."""
    w = np.ones(len(x)) if weights is None else weights
    if w.sum() == 0:
        return float("nan")
    dx, dy = x - np.average(x, weights=w), y - np.average(y, weights=w)
    scale = np.sqrt((w * dx * dx).sum() * (w * dy * dy).sum())
    return float((w * dx * dy).sum() / scale) if scale > 0 else float("nan")


def mcc(cells: np.ndarray, k: int, weights: np.ndarray | None = None) -> float:
    """Matthews correlation over k classes (Gorodkin 2004) from gold * k + predicted; 0 where undefined, as is usual."""
    c = np.bincount(cells, weights=weights, minlength=k * k).reshape(k, k).astype(float)
    total, trace, t, p = c.sum(), np.trace(c), c.sum(axis=1), c.sum(axis=0)
    scale = np.sqrt((total**2 - (p**2).sum()) * (total**2 - (t**2).sum()))
    return float((trace * total - t @ p) / scale) if scale > 0 else 0.0
