"""Good, random, bad and super subnetworks of one size, to ask what a good one is worth (lottery paper, Sections 4 and 5).

A pruner's subnetwork is the good one. The others have as many heads and as many MLPs, and its replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from .errors import CoreLensError
from .subnetwork import Subnetwork


def random_like(good: Subnetwork, seed: int) -> Subnetwork:
    """As many heads and MLPs as `good`, drawn at random."""
    return _like(good, torch.zeros(len(good.units)), seed, "random")


def bad_like(good: Subnetwork, seed: int) -> Subnetwork:
    """What `good` removes, topped up at random from what it keeps to its number of heads and of MLPs."""
    return _like(good, (~good.mask).float(), seed, "bad")


def super_survivors(subnetworks: Sequence[Subnetwork]) -> Subnetwork:
    """The units in every one of them.

    Raises:
        CoreLensError: none are given, they are of different units, or there is no such unit.
    """
    masks = _masks(subnetworks)
    kept = masks.all(dim=0)
    if not kept.any():
        raise CoreLensError(f"no unit is in all {len(masks)} subnetworks: there are no super-survivors.")
    return _made(subnetworks[0], kept, "super-survivors", None)


def super_bad(subnetworks: Sequence[Subnetwork], seed: int) -> Subnetwork:
    """As many heads and MLPs as the super-survivors, of those that are kept least often (never, where there are enough).

    Args:
        subnetworks: of several seeds.
        seed: of the draw among units that are kept equally often.

    Raises:
        CoreLensError: as `super_survivors`.
    """
    return _like(super_survivors(subnetworks), -_masks(subnetworks).float().mean(dim=0), seed, "super-bad")


def _masks(subnetworks: Sequence[Subnetwork]) -> Bool[Tensor, "subnetwork n_units"]:
    if not subnetworks:
        raise CoreLensError("there are no subnetworks: give at least one.")
    if any(one.units != subnetworks[0].units for one in subnetworks):
        raise CoreLensError("the subnetworks are of different units: give those of one model and one choice of units.")
    return torch.stack([one.mask for one in subnetworks])


def _like(size: Subnetwork, first: Tensor, seed: int, which: str) -> Subnetwork:
    """The units with the highest `first`, drawn at random among equals, as many of each kind as `size` has."""
    tie = np.random.default_rng(seed).random(len(size.units))
    order = np.lexsort((tie, -first.numpy()))
    mask = torch.zeros(len(size.units), dtype=torch.bool)
    kinds = np.array([unit.kind for unit in size.units])
    for kind in size.units.kinds:
        n = int(size.mask.numpy()[kinds == kind].sum())
        mask[torch.from_numpy(order[kinds[order] == kind][:n])] = True
    return _made(size, mask, which, seed)


def _made(source: Subnetwork, mask: Bool[Tensor, " n_units"], which: str, seed: int | None) -> Subnetwork:
    known = {key: source.provenance[key] for key in ("pruner", "model", "task", "data") if key in source.provenance}
    provenance = known | {"ticket": which, "seed": source.seed, "drawn_with": seed}
    return Subnetwork(source.units, mask, source.replacement, None, provenance)
