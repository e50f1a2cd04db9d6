"""Simpler pictures of a model's attention, put in its place: low-rank and clustered vectors, one-hot and average patterns.

    proxy = core_lens.simplify.SVD(4).fit(model, task)    # what it needs to know comes from training data
    with proxy.apply(model):
        logits = core_lens.hooked.logits(model, inputs)

Nothing is trained anew. They are the simplifications of Friedman et al. 2024; a `Subnetwork` is one more, with the same
`apply`. `core_lens.generalization_gap` asks whether such a picture is as faithful out of distribution as in it.
"""

from __future__ import annotations

from .base import Proxy, Simplification
from .pattern import AveragePattern, OneHot
from .vectors import SVD, KMeans

__all__ = ["SVD", "AveragePattern", "KMeans", "OneHot", "Proxy", "Simplification"]
