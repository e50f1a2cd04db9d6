"""Pruning on linearised logits: what removing any set of units does to every class, from a few gradients per example.

At a mask m the logits of an example are l(m), and their derivative by the gates is J [class, unit]. For a mask m' nearby,
l(m) + J (m' - m) stands in for l(m'), and the KL of that to the full model is computed without the model, for as many masks as
one likes. Unlike the gradient of a loss, which is 0 where the full model is sure of itself and knows of no two units together,
this sees that two units cancel, or say the same. It is the Gauss-Newton view of pruning (as in LeCun, Denker and Solla,
"Optimal brain damage", 1989, and Kwon et al., "A fast post-training pruning framework for transformers", NeurIPS 2022), taken
anew at every mask on the way, and checked against the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from ..errors import PruningError
from ..gates import inject
from ..hooked import bf16_autocast, logits
from ..hooked.batches import batches
from .base import PruningProblem, PruningResult, check_sparsity, divergence

_STEP = 0.08
"""Share of the units that one round removes: beyond it the linearised logits are off by too much."""
_SHORTLIST = 64
"""Units of each side that a swap is sought among."""
_TRIALS = 30
"""Swaps that may fail at a mask before it counts as a local optimum; ways out of it that may lead to known masks."""
_PROBE = 64
"""Examples that tell whether an MLP could go at all."""

_State = tuple[float, Tensor, Tensor, Tensor, dict[int, Tensor]]
"""Of a search: the KL, the mask, the logits and their derivative there, and what was measured."""


@dataclass(frozen=True)
class LinearizedPruner:
    """Removes units in rounds, each by a search on linearised logits, then swaps kept for removed units as the model confirms.

    An MLP's gate is far from linear, so what its removal does is measured where it may be removed, not extrapolated.

    Args:
        passes: example passes to spend on a subnetwork, each forward or backward of one example counted as one; a round
            costs as many for each example as there are classes (two for two, or for regression).
        examples: training examples to draw from; None for all.
        sample: how many of them masks are compared on, drawn by the seed; None takes what spends half of the passes on
            rounds and half on swaps.
        batch_size: examples per pass.
    """

    passes: int = 12_000
    examples: int | None = 4096
    sample: int | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("passes", "examples", "sample", "batch_size"):
            value = getattr(self, name)
            if value is None and name in ("examples", "sample"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PruningError(f"{name}={value!r} must be a whole number of at least 1.")

    @property
    def name(self) -> str:
        return "linearized"

    def config(self) -> Mapping[str, Any]:
        return asdict(self)

    def work(self, sparsity: float) -> int:
        return self.passes // 2

    def prune(self, problem: PruningProblem, sparsity: float, seed: int) -> PruningResult:
        return self.curve(problem, [sparsity], seed)[sparsity]

    def curve(self, problem: PruningProblem, sparsities: Iterable[float], seed: int) -> dict[float, PruningResult]:
        """Subnetworks at several sparsities from one run, each found from the one before, for about the price of the last.

        For curves: such subnetworks are close to nested, so that a core or a rank correlation over them would be circular.
        Runs of `prune` are independent of each other.

        Args:
            problem, seed: as in `prune`.
            sparsities: each strictly between 0 and 1.

        Returns:
            Sparsity -> its result; `passes` are those spent up to there.
        """
        wanted = sorted(check_sparsity(sparsity) for sparsity in sparsities)
        n = len(problem.units)
        n_rounds = max(2, math.ceil(round(wanted[-1] * n) / n / _STEP))
        n_rows = self.sample or max(8, self.passes // (2 * n_rounds * _cost(problem)))
        rows = torch.randperm(len(problem), generator=torch.Generator().manual_seed(seed))[:n_rows]
        search, found = _Search(problem, rows, self.batch_size), {}
        title = f"prune {', '.join(f'{sparsity:.0%}' for sparsity in wanted)} seed {seed}"
        with tqdm(total=self.passes, desc=title, unit="pass", leave=False) as bar:
            for sparsity in wanted:
                search.eliminate(round(sparsity * n), bar)
                search.refine(round(self.passes * sparsity / wanted[-1]), bar)
                history = pd.DataFrame(search.history)
                found[sparsity] = PruningResult(search.mask.clone(), search.scores(), history, search.passes)
        return found


def _cost(problem: PruningProblem) -> int:
    """Passes for each example that a linearisation takes: one forward, and a backward for each class but the last."""
    return max(2, problem.teacher.shape[1])


def _key(mask: Tensor) -> bytes:
    return mask.numpy().tobytes()


class _Search:
    """The mask so far, the model's logits and their derivative there, and what it all cost."""

    def __init__(self, problem: PruningProblem, rows: Tensor, batch_size: int) -> None:
        self.problem, self.batch_size = problem, batch_size
        self.device = problem.teacher.device
        self.mask = torch.ones(len(problem.units), dtype=torch.bool)
        self.is_mlp = torch.tensor([unit.kind == "mlp" for unit in problem.units])
        self.measured: dict[int, Tensor] = {}  # unit -> logits with it less logits without it, [row, class]
        self.history: list[dict[str, Any]] = []
        self.passes = 0
        self.generator = torch.Generator().manual_seed(int(rows[0]))
        self._take(rows)

    def _take(self, rows: Tensor) -> None:
        self.rows, self.teacher = rows, self.problem.teacher[rows.to(self.device)].float().cpu()
        self.place = torch.full((len(self.problem),), -1)
        self.place[rows] = torch.arange(len(rows))

    def eliminate(self, goal: int, bar: Any) -> None:
        """Remove units in rounds of about equal size until `goal` are gone."""
        begin = int((~self.mask).sum())
        n_rounds = max(1 if begin else 2, math.ceil((goal - begin) / len(self.mask) / _STEP))
        if not begin:
            self.linearise()
        for number in range(1, n_rounds + 1):
            target = begin + round((goal - begin) * number / n_rounds)
            fresh: set[int] = set()
            if number == 1:
                self._measure_cheap_mlps(goal)
                fresh = set(self.measured)
            while True:
                surrogate = self._surrogate()
                surrogate.remove(target)
                surrogate.swap(target - int((~self.mask).sum()))
                stale = self.is_mlp & self.mask & ~surrogate.mask
                stale[list(fresh)] = False
                if not stale.any():
                    break
                for unit in stale.nonzero()[:, 0].tolist():
                    self._measure(unit)
                    fresh.add(unit)
            self.mask, predicted = surrogate.mask, surrogate.value
            self.linearise()
            self._log("round", predicted)
            bar.update(self.passes - bar.n)

    def refine(self, budget: int, bar: Any) -> None:
        """Swap while the model itself confirms that the KL falls; where nothing helps any more, on twice as many examples.

        Where those cannot be afforded, or there are no more, leave the optimum at random, come down anew and keep the best.
        """
        at_once = max(1, int((~self.mask).sum()) // 4)
        tried, best, in_vain = {_key(self.mask)}, self._state(), 0
        while self.passes + (1 + _cost(self.problem)) * len(self.rows) <= budget:
            trial = self._propose(at_once, tried)
            if trial is None and at_once > 1:
                at_once = 1
            elif trial is None:
                best = self._back_to(best)
                n_rows = min(2 * len(self.rows), len(self.problem))
                if (
                    n_rows > len(self.rows)
                    and self.passes + (_cost(self.problem) + len(self.measured)) * n_rows <= budget
                ):
                    self._grow(n_rows)
                    tried, best = {_key(self.mask)}, self._state()
                elif in_vain == _TRIALS or self.passes + 2 * _cost(self.problem) * len(self.rows) > budget:
                    break
                else:
                    in_vain = 0 if self._leave(tried) else in_vain + 1
            elif self._is_better(trial[0]):
                self.mask = trial[0]
                self.linearise()
                self._log("swap", trial[1])
            else:
                at_once = max(1, at_once // 2)
            bar.update(min(self.passes, budget) - bar.n)
        self._back_to(best)

    def _state(self) -> _State:
        return self.value, self.mask, self.logits, self.slope, dict(self.measured)

    def _be(self, state: _State) -> None:
        _, self.mask, self.logits, self.slope, self.measured = *state[:4], dict(state[4])

    def _back_to(self, best: _State) -> _State:
        """The better one of where the search is and `best`, to which it returns if it is worse."""
        if self.value > best[0]:
            self._be(best)
            self._log("back", best[0])
        return self._state()

    def _leave(self, tried: set[bytes]) -> bool:
        """Toggle some units at random, mostly few, and linearised there as many of the other side; False if that was tried."""
        before, n_removed = self._state(), int((~self.mask).sum())
        sides = [side for side in self._surrogate().sides() if len(side)]
        if len(sides) < 2:
            return False
        side = sides[int(torch.randint(2, (), generator=self.generator))]
        most = max(1, min(len(part) for part in sides) // 2)
        n = int((most + 1) ** float(torch.rand((), generator=self.generator)))
        away = side[torch.randperm(len(side), generator=self.generator)[:n]]
        self.mask = self.mask.clone()
        self.mask[away] = ~self.mask[away]
        self.linearise()
        surrogate = self._surrogate(away)
        surrogate.remove(n_removed)
        surrogate.restore(n_removed)
        if _key(surrogate.mask) in tried:
            self._be(before)
            return False
        self.mask = surrogate.mask
        tried.add(_key(self.mask))
        self.linearise()
        self._log("leave", surrogate.value)
        return True

    @property
    def value(self) -> float:
        """The KL at the mask, on the rows."""
        return float(self.distance(self.logits).mean())

    def distance(
        self, logits: Float[Tensor, "*candidate row label"], places: Tensor | slice = slice(None)
    ) -> Float[Tensor, "*candidate row"]:
        """KL of each row to the full model, of any number of candidate logits."""
        return divergence(self.teacher[places], logits, self.problem.is_regression)

    def linearise(self) -> None:
        """The logits at the mask and their derivative by the gates, [row, class, unit]; the last class moves by none.

        Only differences of logits count, so that one class can be the zero of the others.
        """
        n_classes, n_units = self.teacher.shape[1], len(self.mask)
        backward = max(1, n_classes - 1)
        self.logits = torch.empty(len(self.rows), n_classes)
        self.slope = torch.zeros(len(self.rows), n_classes, n_units)
        with inject(self.problem.model, self.problem.units, self.problem.replacement) as gates:
            for batch, inputs in batches(self.problem.encoded, self.batch_size, rows=self.rows, device=self.device):
                place = self.place[batch]
                # Every example has its own copy of the gates, so that one backward pass gives all examples' derivatives.
                gates.z = self.mask.float().to(self.device).expand(len(batch), -1).clone().requires_grad_()
                gates.rows = batch
                with bf16_autocast(self.device.type, self.problem.autocast):
                    output = logits(self.problem.model, inputs).float()
                self.logits[place] = output.detach().cpu()
                relative = output if n_classes == 1 else output - output[:, -1:]
                for k in range(backward):
                    (slope,) = torch.autograd.grad(relative[:, k].sum(), gates.z, retain_graph=k < backward - 1)
                    self.slope[place, k] = slope.cpu()
        self.passes += (1 + backward) * len(self.rows)

    def _forward(self, mask: Tensor, places: Tensor) -> Float[Tensor, "place label"]:
        """The model's logits on some of the rows under a mask."""
        found = torch.empty(len(self.rows), self.teacher.shape[1])
        with inject(self.problem.model, self.problem.units, self.problem.replacement) as gates, torch.inference_mode():
            for batch, inputs in batches(
                self.problem.encoded, self.batch_size, rows=self.rows[places], device=self.device
            ):
                gates.z, gates.rows = mask.float().to(self.device), batch
                with bf16_autocast(self.device.type, self.problem.autocast):
                    found[self.place[batch]] = logits(self.problem.model, inputs).float().cpu()
        self.passes += len(places)
        return found[places]

    def _measure(self, unit: int, places: Tensor | None = None) -> Tensor:
        """Logits with a unit less logits without it; kept where it is measured on all rows."""
        where = torch.arange(len(self.rows)) if places is None else places
        other = self.mask.clone()
        other[unit] = not other[unit]
        change = (self.logits[where] - self._forward(other, where)) * (1 if self.mask[unit] else -1)
        if places is None:
            self.measured[unit] = change
        return change

    def _measure_cheap_mlps(self, goal: int) -> None:
        """Measure the MLPs that might go: a probe costs less than the removal of `goal` heads is predicted to, thrice over.

        An MLP's gate is far from linear, and its derivative may be a hundredth of what its removal does.
        """
        mlps = [unit for unit in (self.is_mlp & self.mask).nonzero()[:, 0].tolist() if unit not in self.measured]
        n_others = len(self.mask) - len(mlps)
        heads_alone = self._surrogate()
        heads_alone.remove(min(goal, n_others))
        probe = torch.arange(min(_PROBE, len(self.rows)))
        for unit in mlps:
            change = self._measure(unit, probe)
            cost = self.distance(self.logits[probe] - change, probe).mean()
            if goal > n_others or cost < 3 * heads_alone.value:
                self._measure(unit)

    def _surrogate(self, stay: Tensor | None = None) -> _Surrogate:
        """Linearised logits around the mask; what was measured takes the place of a derivative. `stay` are not to move."""
        with_less_without = self.slope.clone()
        for unit, change in self.measured.items():
            with_less_without[..., unit] = change
        stays = self.is_mlp & self.mask
        stays[list(self.measured)] = False
        if stay is not None:
            stays[stay] = True
        toggle = torch.where(self.mask, -with_less_without, with_less_without)
        return _Surrogate(self, self.mask.clone(), self.logits, toggle.permute(2, 0, 1).contiguous(), stays)

    def _propose(self, at_once: int, tried: set[bytes]) -> tuple[Tensor, float] | None:
        """The best mask within so many swaps that was not tried, as the surrogate has it, and the KL predicted for it."""
        surrogate = self._surrogate()
        if at_once > 1:
            surrogate.swap(at_once)
            masks = [(surrogate.mask, surrogate.value)]
        else:
            masks = surrogate.single_swaps()
        for mask, predicted in masks:
            if _key(mask) not in tried:
                tried.add(_key(mask))
                return mask, predicted
        return None

    def _is_better(self, mask: Tensor) -> bool:
        """Whether the model's KL falls; a first part of the rows may rule it out."""
        now = self.distance(self.logits)
        places = torch.arange(len(self.rows))
        first, rest = places[: len(places) // 4], places[len(places) // 4 :]
        change = torch.zeros(0)
        for part in (first, rest):
            if len(part) == 0:
                continue
            here = self.distance(self._forward(mask, part), part) - now[part]
            change = torch.cat([change, here])
            if part is first and len(part) > 1 and change.mean() > change.std() / math.sqrt(len(part)):
                return False
        return float(change.mean()) < -1e-7

    def _grow(self, n_rows: int) -> None:
        others = torch.ones(len(self.problem), dtype=torch.bool)
        others[self.rows] = False
        more = others.nonzero()[:, 0]
        more = more[torch.randperm(len(more), generator=self.generator)][: n_rows - len(self.rows)]
        self._take(torch.cat([self.rows, more]))
        self.linearise()
        again, self.measured = list(self.measured), {}
        for unit in again:
            self._measure(unit)

    def scores(self) -> Float[Tensor, " n_units"]:
        """Kept units above removed ones; within both by what the KL would lose or gain without or with the unit."""
        surrogate = self._surrogate()
        change = surrogate.values(torch.arange(len(self.mask))) - surrogate.value
        change[surrogate.stays] = torch.inf
        cost = torch.where(self.mask, change, -change)
        rank = cost.argsort(stable=True).argsort(stable=True).float()
        return rank + len(rank) * self.mask.float()

    def _log(self, kind: str, predicted: float) -> None:
        """What the mask is now, beside what was predicted for it."""
        self.history.append(
            {"step": kind, "removed": int((~self.mask).sum()), "divergence": self.value, "predicted": predicted,
             "rows": len(self.rows), "passes": self.passes}
        )  # fmt: skip


class _Surrogate:
    """Logits of any mask as a sum of what each toggled unit does to them, and searches on the KL of those."""

    def __init__(self, search: _Search, mask: Tensor, logits: Tensor, toggle: Tensor, stays: Tensor) -> None:
        self.search, self.mask, self.logits, self.toggle, self.stays = search, mask, logits, toggle, stays
        self.value = float(self._kl(logits[None]))

    def _kl(self, candidates: Float[Tensor, "candidate row label"]) -> Float[Tensor, " candidate"]:
        return self.search.distance(candidates).mean(dim=-1)

    def values(self, units: Tensor) -> Float[Tensor, " unit"]:
        """The KL after toggling each of `units` alone."""
        return torch.cat([self._kl(self.logits + self.toggle[part]) for part in units.split(256)])

    def _flip(self, *units: int) -> None:
        for unit in units:
            self.logits = self.logits + self.toggle[unit]
            self.toggle[unit] = -self.toggle[unit]
            self.mask[unit] = ~self.mask[unit]
        self.value = float(self._kl(self.logits[None]))

    def sides(self) -> tuple[Tensor, Tensor]:
        """Units that may go, and units that may come back."""
        return (self.mask & ~self.stays).nonzero()[:, 0], (~self.mask & ~self.stays).nonzero()[:, 0]

    def remove(self, target: int) -> None:
        """Remove the least harmful unit, one after the other, until `target` are gone."""
        while int((~self.mask).sum()) < target:
            kept, _ = self.sides()
            if len(kept) == 0:
                self.stays = torch.zeros_like(self.stays)
                continue
            self._flip(int(kept[self.values(kept).argmin()]))

    def restore(self, target: int) -> None:
        """Bring back the most useful unit, one after the other, until `target` are gone."""
        while int((~self.mask).sum()) > target:
            _, removed = self.sides()
            self._flip(int(removed[self.values(removed).argmin()]))

    def swap(self, limit: int) -> None:
        """Exchange units, the best pair first, at most `limit` times and while it helps."""
        for _ in range(limit):
            pairs, values = self._pairs()
            if len(values) == 0 or float(values.min()) >= self.value - 1e-6:
                return
            self._flip(*pairs[int(values.argmin())].tolist())

    def single_swaps(self) -> list[tuple[Tensor, float]]:
        """The masks one swap away that look best, the best first, each with its KL."""
        pairs, values = self._pairs()
        masks = []
        for i in values.argsort()[:_TRIALS]:
            mask = self.mask.clone()
            mask[pairs[i]] = ~mask[pairs[i]]
            masks.append((mask, float(values[i])))
        return masks

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """(pairs [pair, 2] of one unit that comes back and one that goes, their KL)."""
        kept, removed = self.sides()
        if len(kept) * len(removed) == 0:
            return torch.zeros(0, 2, dtype=torch.long), torch.zeros(0)
        kept = kept[self.values(kept).argsort()[:_SHORTLIST]]
        removed = removed[self.values(removed).argsort()[:_SHORTLIST]]
        values = torch.stack([self._kl(self.logits + self.toggle[unit] + self.toggle[kept]) for unit in removed])
        pairs = torch.cartesian_prod(removed, kept)
        return pairs, values.flatten()
