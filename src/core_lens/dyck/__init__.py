"""Dyck languages: balanced brackets of k types up to depth m, with splits that ask for systematic generalisation.

    data = core_lens.dyck.splits()         # the Illusions paper's: 200,000 strings to train on, five test splits of 20,000
    data["unseen-depth"][0]["tokens"]      # START, brackets, END

A string's *structure* is the string without bracket types, cut into its top-level balanced components. It is *seen* where each
of its components is the structure of some component in the training set (Friedman et al. 2024, after Murty et al. 2023).
"""

from __future__ import annotations

from .data import SPLITS, Dyck, components, depths, openers, scored, splits
from .questions import completions, depth_errors

__all__ = [
    "SPLITS",
    "Dyck",
    "completions",
    "components",
    "depth_errors",
    "depths",
    "openers",
    "scored",
    "splits",
]
