"""Five classes of attention maps (Kovaleva et al. 2019): maps made from their definitions, and a small network that tells them.

| class | where a query's attention goes |
|---|---|
| `vertical` | to a few columns that all queries share: [CLS], [SEP], punctuation |
| `diagonal` | to the tokens beside the query |
| `vertical+diagonal` | to both |
| `block` | to the tokens of the query's own text |
| `heterogeneous` | to none of these: it differs from query to query, or spreads |

The lottery paper's network learned from 400 maps labelled by hand. This one learns from maps drawn by `draw`, whose labels
hold by `shares`; `python -m core_lens.maps.make` makes its weights anew.
"""

from __future__ import annotations

from .draw import CLASSES
from .network import MapNetwork, load_network

__all__ = ["CLASSES", "MapNetwork", "load_network"]
