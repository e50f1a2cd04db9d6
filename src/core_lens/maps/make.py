"""Train the network that classifies attention maps, and test it: `python -m core_lens.maps.make [--out FILE]`.

Every step sees a fresh batch of 64 training maps of one length, drawn log-uniformly from 8 to 128 tokens, all classes alike
often; Adam at 1e-3, decaying to 0. The test maps come from another drawer (see `draw`). One thread and fixed seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import trange

from ..files import write_tensors
from .draw import CLASSES, HELD_OUT, TRAINING, Drawer, draw_map
from .network import WEIGHTS, MapNetwork

STEPS, BATCH, LEARNING_RATE = 3000, 64, 1e-3
LENGTHS = (8, 128)


def draw_batch(size: int, rng: np.random.Generator, drawers: tuple[Drawer, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps [batch, query, key] of one length, and the index of each one's class."""
    low, high = np.log(LENGTHS)
    n = round(float(np.exp(rng.uniform(low, high))))
    classes = rng.permutation(np.arange(size) % len(CLASSES))
    maps = np.stack([draw_map(CLASSES[kind], n, rng, drawers) for kind in classes])
    return torch.from_numpy(maps), torch.from_numpy(classes)


def train(steps: int = STEPS, seed: int = 0) -> MapNetwork:
    """A network after so many steps."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = MapNetwork()
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    bar = trange(steps, desc="maps", leave=False)
    for _ in bar:
        maps, classes = draw_batch(BATCH, rng, TRAINING)
        loss = nn.functional.cross_entropy(network(maps), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    return network.eval()


def test(network: MapNetwork, batches: int = 60, seed: int = 1, drawers: tuple[Drawer, ...] = HELD_OUT) -> pd.DataFrame:
    """How often maps of a class (rows) are taken for each (columns): the confusion matrix, in counts."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((len(CLASSES), len(CLASSES)), dtype=int)
    for _ in range(batches):
        maps, classes = draw_batch(50, rng, drawers)
        with torch.inference_mode():
            said = network(maps).argmax(dim=1)
        np.add.at(counts, (classes.numpy(), said.numpy()), 1)
    return pd.DataFrame(counts, pd.Index(CLASSES, name="class"), pd.Index(CLASSES, name="said"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where to write the weights")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--test-batches", type=int, default=60, help="of 50 maps, from either drawers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    network = train(args.steps)
    write_tensors(args.out, network.state_dict(), {"steps": args.steps, "batch": BATCH})
    for title, drawers in (("training", TRAINING), ("held-out", HELD_OUT)):
        counts = test(network, args.test_batches, drawers=drawers)
        right = pd.Series(np.diag(counts) / counts.sum(axis=1), counts.index)
        print(
            f"{title} drawers, {int(counts.to_numpy().sum())} maps: {np.diag(counts).sum() / counts.to_numpy().sum():.3f}"
        )
        print(counts.assign(accuracy=right.round(3)).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
