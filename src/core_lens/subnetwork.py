"""A subnetwork: which components stay, what stands in for the others, and where it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedModel

from .ablation import (
    MeanActivations,
    Replacement,
    ResampleActivations,
    replacement_from_tensors,
    replacement_tensors,
)
from .components import Component, ComponentSet
from .errors import CoreLensError, ModelError, SavedFileError
from .files import read_tensors, write_tensors
from .gates import Injection, inject
from .hooked import can_stand_in, component_set, logits, model_info, without


@dataclass(frozen=True, eq=False)
class Subnetwork:
    """The components of a model that stay; the others are ablated.

    Args:
        units: all units that could have been removed.
        mask: True where a unit stays, in the flat order of `units`.
        replacement: what stands in for removed units.
        scores: what the pruner ranked the units by (higher stays); None where they were named by hand.
        provenance: pruner, seed, asked sparsity, model, data, versions: plain JSON values.
    """

    units: ComponentSet
    mask: Bool[Tensor, " n_units"]
    replacement: Replacement
    scores: Float[Tensor, " n_units"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mask.shape != (len(self.units),):
            raise CoreLensError(f"a mask of shape {tuple(self.mask.shape)} does not fit {len(self.units)} units.")

    @classmethod
    def of(
        cls,
        model: TransformerBridge,
        keep: Iterable[Component | str],
        replacement: Replacement | None = None,
        kinds: tuple[str, ...] = ("head", "mlp"),
    ) -> Subnetwork:
        """The subnetwork that keeps the named components (`["L2.H5", "L0.MLP"]`).

        Args:
            model: a hooked classifier.
            keep: the components that stay.
            replacement: what stands in for the others. There is no default: means come from data
                (`fit_means`), and zero ablation is asked for as `ZeroActivations(model_info(model).weight_hash)`.
            kinds: which kinds of component are units; others always stay.
        """
        if replacement is None:
            raise CoreLensError("a subnetwork needs `replacement=`: means from fit_means, or ZeroActivations by name.")
        units = component_set(model, kinds)
        named = [Component.parse(c) if isinstance(c, str) else c for c in keep]
        return cls(units, units.mask(named), replacement, provenance={"pruner": "by hand"})

    @property
    def components(self) -> tuple[Component, ...]:
        """The kept components, sorted."""
        return self.units.components(self.mask)

    @property
    def removed(self) -> tuple[Component, ...]:
        """The removed components, sorted."""
        return self.units.components(~self.mask)

    @property
    def heads(self) -> tuple[Component, ...]:
        """The kept heads, sorted."""
        return tuple(c for c in self.components if c.kind == "head")

    @property
    def sparsity(self) -> float:
        """Share of units removed; an MLP counts as one unit, like a head."""
        return 1 - int(self.mask.sum()) / len(self.units)

    @property
    def asked_sparsity(self) -> float:
        """The sparsity that was asked for (the reached one where none was)."""
        return float(self.provenance.get("asked_sparsity", self.sparsity))

    @property
    def seed(self) -> int | None:
        return self.provenance.get("seed")

    @property
    def name(self) -> str:
        """Like `0.5-seed42`, as tables and file names call it."""
        return f"{self.asked_sparsity:g}-seed{self.seed}"

    def __repr__(self) -> str:
        return (
            f"Subnetwork({int(self.mask.sum())} of {len(self.units)} units, sparsity {self.sparsity:.3f}, "
            f"{self.provenance.get('pruner', '?')}, seed {self.seed})"
        )

    def _repr_html_(self) -> str:
        from .viz.notebook import subnetwork_html

        return subnetwork_html(self)

    @contextmanager
    def apply(self, model: TransformerBridge) -> Iterator[Injection]:
        """Ablate the removed components of `model` inside the `with` block.

            with subnetwork.apply(model):
                logits = core_lens.hooked.logits(model, inputs)

        Raises:
            ModelError: `model` is not the one that the subnetwork was found in.
        """
        self.check(model)
        device = model_info(model).device
        with inject(model, self.units, self.replacement, self.mask.float().to(device)) as injection:
            yield injection

    def export(self, model: TransformerBridge) -> PreTrainedModel:
        """This subnetwork as a smaller HF classifier, for speed: removed heads and MLPs are gone, their means are biases.

            smaller = subnetwork.export(model)
            smaller.save_pretrained("smaller")  # read again by AutoModelForSequenceClassification, or HF's pipelines

        Its logits are those under `apply` (to 1e-5 in float32), on padded batches too. `config.removed` names what went.
        Reading it again takes an `import core_lens`, which makes its class known to HF; there is no remote code.

        Args:
            model: the hooked classifier that the subnetwork was found in: BERT, RoBERTa, DistilBERT, ELECTRA or GPT-2.

        Raises:
            ModelError: another model, or an architecture that cannot be exported.
            CoreLensError: what stands in for removed components is no constant (resample ablation).
        """
        self.check(model)
        if isinstance(self.replacement, ResampleActivations):
            raise CoreLensError(
                "a subnetwork found with resample ablation cannot be exported, as what stands in for its removed "
                "components is not constant: prune with ablation='mean' or 'zero'."
            )
        return self._without(model)

    def _without(self, model: TransformerBridge, share: bool = False) -> PreTrainedModel:
        info = model_info(model)
        heads = torch.zeros(info.n_layers, info.n_heads, info.d_head, device=info.device)
        mlps = torch.zeros(info.n_layers, info.d_model, device=info.device)
        if isinstance(self.replacement, MeanActivations):
            means = self.replacement.bind(model)
            heads, mlps = means.heads, means.mlps
        return without(model, self.removed, heads, mlps, share)

    @contextmanager
    def predictor(
        self, model: TransformerBridge
    ) -> Iterator[Callable[[Mapping[str, Tensor], Tensor], Float[Tensor, "batch label"]]]:
        """A function from (inputs, row numbers) to logits, for passes without a gradient: what is removed costs nothing.

        A smaller copy runs that shares the model's weights. Where there can be none (another architecture, resample
        ablation), or other hooks are on the model, whose work would be missed, the gated model runs.
        """
        self.check(model)
        if can_stand_in(model) and not isinstance(self.replacement, ResampleActivations):
            smaller: Any = self._without(model, share=True)
            yield lambda inputs, rows: smaller(**inputs).logits
            return
        with self.apply(model) as injection:

            def forward(inputs: Mapping[str, Tensor], rows: Tensor) -> Tensor:
                injection.rows = rows
                return logits(model, inputs)

            yield forward

    def check(self, model: TransformerBridge) -> None:
        """Raise a ModelError that says what differs, unless this subnetwork belongs to `model`."""
        info = model_info(model)
        shape = (info.n_layers, info.n_heads)
        if shape != (self.units.n_layers, self.units.n_heads):
            raise ModelError(
                f"the subnetwork belongs to a model of {self.units.n_layers} layers x {self.units.n_heads} heads, "
                f"{info.model_id} has {shape[0]} x {shape[1]}; apply it to the model it was found in."
            )
        if self.replacement.weight_hash != info.weight_hash:
            raise ModelError(
                f"the subnetwork was found in a model with other weights (hash {self.replacement.weight_hash[:12]}, "
                f"{info.model_id} has {info.weight_hash[:12]}); load that model, or prune this one."
            )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, with the provenance as JSON in its header."""
        tensors, how = replacement_tensors(self.replacement)
        stored = {f"replacement.{name}": tensor for name, tensor in tensors.items()} | {"mask": self.mask}
        if self.scores is not None:
            stored["scores"] = self.scores
        units = {"n_layers": self.units.n_layers, "n_heads": self.units.n_heads, "kinds": self.units.kinds}
        meta = {"units": units, "replacement": how, "provenance": dict(self.provenance)}
        write_tensors(Path(path), stored, meta)

    @classmethod
    def load(cls, path: str | Path) -> Subnetwork:
        """Read what `save` wrote.

        Raises:
            SavedFileError: the file is missing or damaged.
        """
        tensors, meta = read_tensors(Path(path), ("mask",), ("units", "replacement", "provenance"))
        prefix = "replacement."
        stand_ins = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        try:
            units = ComponentSet(**{**meta["units"], "kinds": tuple(meta["units"]["kinds"])})
            replacement = replacement_from_tensors(stand_ins, meta["replacement"])
        except (KeyError, TypeError) as error:
            raise SavedFileError(f"{path} is no subnetwork of this version ({error}); make it again.") from error
        return cls(units, tensors["mask"], replacement, tensors.get("scores"), meta["provenance"])
