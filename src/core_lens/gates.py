"""Gates on the outputs of components: `replacement + z * (x - replacement)`, injected by hooks.

A head's gate acts on its context vector before W_O (`hook_z`), an MLP's on its output before the residual add
(`hook_mlp_out`), as in the Heuristic Core, Appendix B. z = 1 leaves the model untouched, z = 0 ablates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from . import hard_concrete
from .ablation import Replacement
from .components import ComponentSet, Kind
from .errors import CoreLensError
from .hooked import hook_name


class Gates(nn.Module):
    """One learnable hard concrete gate per unit; holds `log_alpha` [n_units] and nothing else.

    Args:
        units: the units, whose flat order the tensors follow.
        init: mean of the initial log_alpha (10 in the paper: wide open).
        std: its standard deviation (0.01 in the paper).
        generator: source of the initial noise.
    """

    def __init__(
        self,
        units: ComponentSet,
        init: float = 10.0,
        std: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.units = units
        self.log_alpha = nn.Parameter(init + std * torch.randn(len(units), generator=generator))

    def sample(self, generator: torch.Generator | None = None, n: int | None = None) -> Tensor:
        """One draw of all gates in [0, 1], [n_units], or `n` independent ones, [n, n_units]."""
        return hard_concrete.sample(self.log_alpha if n is None else self.log_alpha.expand(n, -1), generator)

    def probability_active(self) -> Float[Tensor, " n_units"]:
        """P(gate > 0); the sum is the expected L0 norm."""
        return hard_concrete.probability_active(self.log_alpha)


@dataclass
class Injection:
    """The gates in force inside `inject`; set `z` (and `rows`, for resample ablation) before a forward pass.

    Args:
        z: gate values in [0, 1]; one set for the batch, or one per example.
        rows: numbers of the batch's examples.
    """

    z: Float[Tensor, " n_units"] | Float[Tensor, "batch n_units"]
    rows: Int[Tensor, " batch"] | None = None
    fired: Counter[str] = field(default_factory=Counter)


@contextmanager
def inject(
    model: TransformerBridge, units: ComponentSet, replacement: Replacement, z: Tensor | None = None
) -> Iterator[Injection]:
    """Gate every unit of `model` inside the `with` block; nothing of it stays afterwards.

        with inject(model, units, means) as gates:
            gates.z = z
            logits = core_lens.hooked.logits(model, inputs)

    Raises:
        CoreLensError: a hook point did not fire in a block in which others did, or z has a wrong shape.
    """
    bound = replacement.bind(model)
    injection = Injection(torch.ones(len(units)) if z is None else z)

    def gate(kind: Kind, layer: int):
        name = hook_name(kind, layer)

        def hook(x: Tensor, hook: object) -> Tensor | None:
            injection.fired[name] += 1
            flat = injection.z
            if flat.shape[-1] != len(units) or flat.dim() > 2:
                raise CoreLensError(f"gates of shape {tuple(flat.shape)} do not fit {len(units)} units.")
            part = units.heads(flat) if kind == "head" else units.mlps(flat)
            assert part is not None
            value = part[..., layer, :, None] if kind == "head" else part[..., layer, None]
            # [head, 1] or [1]; with a value per example [batch, 1, head, 1] or [batch, 1, 1]
            value = value.unsqueeze(1) if flat.dim() == 2 else value
            value = value.to(x)
            stand_in = bound.at(kind, layer, x, injection.rows)
            return torch.lerp(stand_in.expand_as(x), x, value.expand_as(x))

        return name, hook

    hooks = [gate(kind, layer) for kind in units.kinds for layer in range(units.n_layers)]
    with model.hooks(fwd_hooks=hooks):
        yield injection
    silent = [name for name, _ in hooks if not injection.fired[name]]
    if silent and injection.fired:
        raise CoreLensError(f"the gates at {', '.join(silent)} never fired: the model does not run these hook points.")
