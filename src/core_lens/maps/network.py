"""The convolutional network that names the class of an attention map (lottery paper, Section 5)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from ..files import read_tensors
from .draw import CLASSES

WEIGHTS = Path(__file__).parent / "weights.safetensors"


class MapNetwork(nn.Module):
    """Six 3x3 convolutions (16-16-32-32-64-64) with 2x2 max pooling after the first two pairs, 1x1 to 16, average, 1x1 to 5.

    Maps of one batch have one length, at least 4; pooling keeps a last odd row and column. A map counts up to a factor, so
    that attention and its norm-weighted form are read alike: it is divided by the mean of its rows' largest values.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(pairwise((1, 16, 16, 32, 32, 64, 64))):
            layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU()]
            if i in (1, 3):
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers, nn.Conv2d(64, 16, 1), nn.ReLU())
        self.classify = nn.Linear(16, len(CLASSES))  # a 1x1 convolution of the one averaged position

    def forward(self, maps: Float[Tensor, "batch query key"]) -> Float[Tensor, "batch class"]:
        """Logits of `CLASSES`."""
        scale = maps.amax(dim=2).mean(dim=1).clamp_min(1e-12)
        return self.classify(self.features((maps / scale[:, None, None])[:, None]).mean(dim=(2, 3)))


@cache
def load_network(path: Path = WEIGHTS) -> MapNetwork:
    """The trained network that comes with the package, on the CPU."""
    network = MapNetwork()
    network.load_state_dict(read_tensors(path, network.state_dict(), ())[0])
    return network.eval().requires_grad_(False)
