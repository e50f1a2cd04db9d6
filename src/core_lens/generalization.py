"""Is a simpler picture of a model as faithful out of distribution as in it?

    proxy = core_lens.simplify.SVD(4).fit(model, task)
    core_lens.generalization_gap(model, proxy, task)

The model and its proxies answer the same questions: the class of each example, or some next tokens of each sequence. Their
agreement in distribution less their agreement on another split is that split's generalisation gap (Friedman et al. 2024).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens.model_bridge import TransformerBridge

from .completions import Completions, check_fit
from .errors import CoreLensError, ModelError, SavedFileError, TaskError
from .evaluate import check_numbers
from .files import check_folder, file_hash, read_json, read_table, write_json, write_table
from .hooked import Encoded, batches, component_set, encode, logits, model_info
from .hooked.patterns import watch_patterns
from .intervals import bootstrap_difference, bootstrap_draws, interval
from .simplify import Proxy
from .tasks import Split, Task, class_order

GAP_COLUMNS = ["split", "agreement", "jsd", "accuracy_model", "accuracy_proxy", "gap", "low", "high", "n", "verdict"]
"""Schema of `generalization_gap`; several proxies have a column `proxy` before them."""
MODEL = "model"
"""What tables call the model beside its proxies."""
MARGIN, CLOSE = 0.01, 0.9
"""Differences of accuracy and agreement up to here count as none; agreement from here on as the same predictions."""
_DRAWS = 1000
_TABLES = ("questions", "answers", "divergence", "attended")


def generalization_gap(
    model: TransformerBridge,
    simplification: Proxy | Mapping[str, Proxy],
    task_or_splits: Task | Mapping[str, Completions],
    *,
    splits: Sequence[str] | str | None = None,
    max_examples: int | None = 1000,
    batch_size: int = 32,
    label_map: Mapping[Any, str] | None = None,
) -> pd.DataFrame:
    """How well a simplified model stands for the model, on each split beside the first, which is in distribution.

        proxy = core_lens.simplify.KMeans(16).fit(model, task)
        core_lens.generalization_gap(model, proxy, task)

    Args:
        model: a hooked model (`load_model`, `load_language_model`).
        simplification: a fitted one of `core_lens.simplify`, a `Subnetwork`, or several by name.
        task_or_splits: a `Task`, for a classifier; or name -> `Completions`, for a language model, of which the first is in
            distribution (`core_lens.dyck.completions` makes such).
        splits: of a task, as in `Task.select`; the first in-domain one is what the gap is measured from.
        max_examples: examples or sequences of each split, a fixed random draw; None for all.
        batch_size: examples per forward pass.
        label_map: class of the checkpoint -> label of the task, where its config does not name them.

    Returns:
        DataFrame, a row per split (and proxy): `agreement` (share of questions that both answer alike), `jsd` (mean
        Jensen-Shannon divergence of the attention of all heads, nats, at most ln 2), the accuracies, `gap` (agreement in
        distribution less agreement here, with the labels that the split counts as one made one on both sides), its 95 %
        interval `low`, `high` (bootstrap over clusters of examples, or over sequences), `n` questions, and a `verdict` on
        what the proxy would say of the model here:

        - `underestimates`, `overestimates`: its accuracy is lower or higher than the model's;
        - `as good, other predictions`: it is not, but they agree less than in distribution, or on fewer than 9 in 10;
        - `faithful`: none of these.

        A difference counts when it is over .01 and its interval is without 0.

    Raises:
        CoreLensError: model, proxies and splits do not fit each other.
    """
    if isinstance(simplification, Mapping) and not simplification:
        raise CoreLensError("there are no proxies: pass at least one fitted simplification.")
    found = compare_proxies(
        model, simplification, task_or_splits, splits=splits, max_examples=max_examples, batch_size=batch_size,
        label_map=label_map,
    )  # fmt: skip
    table = found.gaps()
    return table if isinstance(simplification, Mapping) else table.drop(columns="proxy")


@dataclass(frozen=True, eq=False)
class ProxyComparison:
    """What a model and its proxies answered, and how their attention differs.

    Args:
        questions: a row per question: split, cluster (what is resampled together), gold, and what is known of it.
        answers: the same rows: a column for the model, `model`, and one for each proxy.
        divergence: split, proxy, and for each head the mean Jensen-Shannon divergence of its attention over the queries of an
            example (nats); a row per example and proxy, in the examples' order.
        attended: the same rows as `questions`, where asked for: the key position that each head attends to most at the token
            before the one asked for; columns (who, head).
        collapse: split -> label -> the label that it counts as there (HANS: neutral is non-entailment).
    """

    questions: pd.DataFrame
    answers: pd.DataFrame
    divergence: pd.DataFrame
    attended: pd.DataFrame | None = None
    collapse: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def proxies(self) -> list[str]:
        return [str(name) for name in self.answers.columns if name != MODEL]

    @property
    def splits(self) -> list[str]:
        """The first is in distribution."""
        return list(dict.fromkeys(self.questions["split"]))

    @cached_property
    def _codes(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Split -> its rows, and the number of each one's cluster."""
        found = {}
        for name in self.splits:
            rows = np.flatnonzero((self.questions["split"] == name).to_numpy())
            found[name] = rows, pd.factorize(self.questions["cluster"].to_numpy()[rows], use_na_sentinel=False)[0]
        return found

    def _gap(self, proxy: str, split: str) -> tuple[float, float, float]:
        """Agreement in distribution less agreement on a split, with its interval.

        Labels that the split counts as one are one on both sides. Clusters that are in both splits are drawn together.
        """
        first = self.splits[0]
        if split == first:
            return 0.0, 0.0, 0.0
        said, model = self.answers[proxy].to_numpy(), self.answers[MODEL].to_numpy()
        (inside, outside), merged = (self._codes[name][0] for name in (first, split)), self.collapse.get(split, {})
        agreed = [merged.get(a, a) == merged.get(b, b) for a, b in zip(said[inside], model[inside], strict=True)]
        values = np.array(agreed, dtype=float), (said == model)[outside].astype(float)
        clusters = self.questions["cluster"].to_numpy()
        if pd.Index(clusters[inside]).isin(clusters[outside]).any():
            codes, every = pd.factorize(np.concatenate([clusters[inside], clusters[outside]]), use_na_sentinel=False)
            draws = bootstrap_difference(*values, codes[: len(inside)], codes[len(inside) :], len(every), _DRAWS)
        else:
            first_draws = bootstrap_draws(values[0], self._codes[first][1], _DRAWS, seed=0)
            draws = first_draws - bootstrap_draws(
                values[1], self._codes[split][1], _DRAWS, seed=self.splits.index(split)
            )
        return values[0].mean() - values[1].mean(), *interval(draws)

    def gaps(self) -> pd.DataFrame:
        """The table of `generalization_gap`, with a column `proxy` first."""
        gold, model = self.questions["gold"].to_numpy(), self.answers[MODEL].to_numpy()
        heads = [column for column in self.divergence if column not in ("split", "proxy")]
        divergence = self.divergence.groupby(["proxy", "split"], sort=False)[heads].mean().mean(axis=1)
        rows = []
        for proxy in self.proxies:
            said = self.answers[proxy].to_numpy()
            better = (said == gold).astype(float) - (model == gold)
            for split, (part, codes) in self._codes.items():
                agreement, gap = (said == model)[part].mean(), self._gap(proxy, split)
                change = better[part].mean(), *interval(bootstrap_draws(better[part], codes, _DRAWS))
                rows.append((
                    proxy, split, agreement, divergence.get((proxy, split), np.nan), (model == gold)[part].mean(),
                    (said == gold)[part].mean(), *gap, len(part), _verdict(change, gap, agreement),
                ))  # fmt: skip
        return pd.DataFrame(rows, columns=["proxy", *GAP_COLUMNS])

    def agreement(self, by: Sequence[str] = ()) -> pd.DataFrame:
        """Agreement and accuracies with 95 % intervals (bootstrap over clusters), in each split and value of the columns `by`.

        Returns:
            DataFrame (split, *by, proxy, metric, value, low, high, n); `proxy` is `model` for the model's own accuracy.

        Raises:
            CoreLensError: nothing of that name is known of the questions.
        """
        by = [by] if isinstance(by, str) else list(by)
        if unknown := [column for column in by if column not in self.questions]:
            raise CoreLensError(f"by={unknown[0]!r}: choose among {', '.join(map(str, self.questions.columns))}.")
        gold, rows = self.questions["gold"].to_numpy(), []
        for keys, index in self.questions.groupby(["split", *by], sort=False, dropna=False).indices.items():
            part = self.questions.iloc[index]
            codes = pd.factorize(part["cluster"], use_na_sentinel=False)[0]
            for proxy in (MODEL, *self.proxies):
                said = self.answers[proxy].to_numpy()[index]
                measures = {"accuracy": said == gold[index]}
                if proxy != MODEL:
                    measures["agreement"] = said == self.answers[MODEL].to_numpy()[index]
                for metric, values in measures.items():
                    ends = interval(bootstrap_draws(values.astype(float), codes, _DRAWS))
                    place = keys if isinstance(keys, tuple) else (keys,)
                    rows.append((*place, proxy, metric, values.mean(), *ends, len(index)))
        return pd.DataFrame(rows, columns=["split", *by, "proxy", "metric", "value", "low", "high", "n"])

    def jsd(self, by_head: bool = True) -> pd.DataFrame:
        """Jensen-Shannon divergence of each head's attention from the model's own (nats), with 95 % intervals over examples.

        Args:
            by_head: a row per head; else of the mean over heads.

        Returns:
            DataFrame (proxy, split, head, jsd, low, high, n); without head where they are averaged.
        """
        rows = []
        for (proxy, split), part in self.divergence.groupby(["proxy", "split"], sort=False):
            heads = part.drop(columns=["split", "proxy"])
            for head, values in heads.items() if by_head else [("", heads.mean(axis=1))]:
                ends = interval(bootstrap_draws(values.to_numpy(), np.arange(len(values)), _DRAWS))
                rows.append((proxy, split, head, values.mean(), *ends, len(values)))
        table = pd.DataFrame(rows, columns=["proxy", "split", "head", "jsd", "low", "high", "n"])
        return table if by_head else table.drop(columns="head")

    @classmethod
    def joined(cls, parts: Sequence[ProxyComparison]) -> ProxyComparison:
        """One comparison of all proxies, from several with the same model and questions.

        Raises:
            CoreLensError: the questions or the model's answers differ, or a proxy is in two of them.
        """
        if not parts:
            raise CoreLensError("there are no comparisons to join.")
        first = parts[0]
        names = [name for part in parts for name in part.proxies]
        if len(set(names)) < len(names):
            raise CoreLensError("a proxy is in two of the comparisons: give each a name of its own.")
        for part in parts[1:]:
            if not (part.questions.equals(first.questions) and part.answers[MODEL].equals(first.answers[MODEL])):
                raise CoreLensError("the comparisons are not of one model and the same questions.")
        answers = pd.concat([first.answers[[MODEL]], *(part.answers[part.proxies] for part in parts)], axis=1)
        kept = [
            part.attended if part is first else part.attended[part.proxies]
            for part in parts
            if part.attended is not None
        ]
        attended = pd.concat(kept, axis=1) if len(kept) == len(parts) else None
        divergence = pd.concat([part.divergence for part in parts], ignore_index=True)
        return cls(first.questions, answers, divergence, attended, first.collapse)

    def save(self, folder: str | Path) -> None:
        """Write it as parquet files; `comparison.json`, the last, says that they are whole."""
        folder = check_folder(folder)
        tables = {"questions": self.questions, "answers": self.answers, "divergence": self.divergence}
        if self.attended is not None:
            flat = self.attended.set_axis([f"{who}\n{head}" for who, head in self.attended.columns], axis=1)
            tables["attended"] = flat
        for name, table in tables.items():
            write_table(folder / f"{name}.parquet", table)
        hashes = {name: file_hash(folder / f"{name}.parquet") for name in tables}
        collapse = {name: dict(merged) for name, merged in self.collapse.items()}
        write_json(folder / "comparison.json", {"files": hashes, "collapse": collapse})

    @classmethod
    def load(cls, folder: str | Path) -> ProxyComparison:
        """Read what `save` wrote.

        Raises:
            SavedFileError: it is not there, not whole or damaged.
        """
        folder = Path(folder)
        about = read_json(folder / "comparison.json")
        hashes = about.get("files") if isinstance(about, dict) else None
        if not isinstance(hashes, dict) or not {"questions", "answers", "divergence"} <= set(hashes) <= set(_TABLES):
            raise SavedFileError(f"{folder / 'comparison.json'} is damaged: delete {folder} and run the same again.")
        for name, expected in hashes.items():
            path = folder / f"{name}.parquet"
            if not path.is_file() or file_hash(path) != expected:
                raise SavedFileError(f"{path} is damaged or missing: delete {folder} and run the same again.")
        tables = {name: read_table(folder / f"{name}.parquet") for name in hashes}
        if "attended" in tables:
            columns = [tuple(column.split("\n")) for column in tables["attended"].columns]
            tables["attended"] = tables["attended"].set_axis(pd.MultiIndex.from_tuples(columns), axis=1)
        return cls(**tables, collapse=about.get("collapse", {}))


def _verdict(change: tuple[float, float, float], gap: tuple[float, float, float], agreement: float) -> str:
    """What the proxy says of the model; `change` is its accuracy less the model's."""
    value, low, high = change
    if abs(value) > MARGIN and (low > 0 or high < 0):
        return "underestimates" if value < 0 else "overestimates"
    real_gap = gap[0] > MARGIN and gap[1] > 0
    return "as good, other predictions" if real_gap or agreement < CLOSE else "faithful"


def compare_proxies(
    model: TransformerBridge,
    proxies: Proxy | Mapping[str, Proxy],
    task_or_splits: Task | Mapping[str, Completions],
    *,
    splits: Sequence[str] | str | None = None,
    max_examples: int | None = 1000,
    batch_size: int = 32,
    label_map: Mapping[Any, str] | None = None,
    attended: bool = False,
) -> ProxyComparison:
    """Put the same questions to a model and its proxies.

    Args:
        model: a hooked model.
        proxies: as `simplification` there; none, {}, for the model alone.
        task_or_splits, splits, max_examples, batch_size, label_map: as in `generalization_gap`.
        attended: keep where each head attends to most at every question to a language model.

    Raises:
        CoreLensError: model, proxies and splits do not fit each other.
    """
    check_numbers(max_examples=max_examples, batch_size=batch_size)
    if batch_size is None:
        raise CoreLensError("batch_size=None must be a whole number of at least 1.")
    if attended and isinstance(task_or_splits, Task):
        raise TaskError("attended=True is for language models: a classifier is not asked at a position.")
    named = _named(proxies)
    asked = _questions(model, task_or_splits, splits, max_examples, label_map)
    heads = [str(head) for head in component_set(model, ["head"])]
    layers = list(range(model_info(model).n_layers))
    parts: dict[str, list[pd.DataFrame]] = {"questions": [], "answers": [], "divergence": [], "attended": []}
    with tqdm(total=sum(len(one.encoded) for one in asked), desc="proxies", unit="ex", leave=False) as bar:
        for one in asked:
            answers = {
                who: np.empty(len(one.table), dtype=one.table["gold"].to_numpy().dtype) for who in (MODEL, *named)
            }
            jsd = {proxy: np.zeros((len(one.encoded), len(heads))) for proxy in named}
            most = {who: np.zeros((len(one.table), len(heads)), dtype=np.int32) for who in answers if attended}
            for rows, inputs in batches(one.encoded, batch_size, device=model_info(model).device):
                own: dict[int, Tensor] = {}
                for who in answers:
                    patterns: dict[int, Tensor] = {}
                    watched = watch_patterns(model, layers, lambda i, pattern, keep=patterns: keep.update({i: pattern}))
                    with torch.inference_mode(), nullcontext() if who == MODEL else named[who].apply(model), watched:
                        outputs = logits(model, inputs)
                    one.answer(answers[who], rows, outputs)
                    if who == MODEL:
                        own = patterns
                    else:
                        real = inputs["attention_mask"].bool()
                        found = [attention_divergence(own[i], patterns[i], real).cpu().numpy() for i in layers]
                        jsd[who][rows.numpy()] = np.concatenate(found, axis=1)
                    if attended:
                        questions, row, position = one.among(rows)
                        keys = [patterns[i].argmax(dim=-1)[row, :, position - 1].cpu().numpy() for i in layers]
                        most[who][questions] = np.concatenate(keys, axis=1)
                bar.update(len(rows))
            parts["questions"].append(one.table)
            parts["answers"].append(pd.DataFrame(answers))
            for proxy, values in jsd.items():
                table = pd.DataFrame(values, columns=heads)
                table.insert(0, "proxy", proxy)
                table.insert(0, "split", one.name)
                parts["divergence"].append(table)
            if attended:
                parts["attended"].append(
                    pd.concat({w: pd.DataFrame(v, columns=heads) for w, v in most.items()}, axis=1)
                )
    joined = {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items() if tables}
    joined.setdefault("divergence", pd.DataFrame(columns=["split", "proxy", *heads]))
    collapse = {one.name: one.split.collapse for one in asked if one.split is not None}
    return ProxyComparison(**joined, collapse=collapse)


def attention_divergence(
    p: Float[Tensor, "batch head query key"],
    q: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "batch query"],
) -> Float[Tensor, "batch head"]:
    """Jensen-Shannon divergence of two attention patterns in nats, the mean over the queries that the mask keeps.

    (scipy's `jensenshannon` is the square root of one query's.)
    """
    p, q = p.float(), q.float()
    # Half of the least number there is would be 0; 0 log 0 is 0.
    middle = ((p + q) / 2).clamp_min(torch.finfo(p.dtype).tiny)
    parts = (torch.xlogy(x, x) - torch.xlogy(x, middle) for x in (p, q))
    each = sum(part.sum(dim=-1) for part in parts) / 2
    assert isinstance(each, Tensor)
    weight = mask[:, None].to(each)
    return (each * weight).sum(dim=-1).clamp_min(0) / weight.sum(dim=-1)


def _named(proxies: Proxy | Mapping[str, Proxy]) -> dict[str, Proxy]:
    named = dict(proxies) if isinstance(proxies, Mapping) else {str(getattr(proxies, "name", "proxy")): proxies}
    for name, proxy in named.items():
        if not isinstance(name, str):
            raise CoreLensError(f"a proxy is named {name!r}: names are text.")
        if not hasattr(proxy, "apply"):
            raise CoreLensError(f"{name!r} is {proxy!r}, which cannot stand for a model: pass a fitted simplification.")
    if MODEL in named:
        raise CoreLensError(f"a proxy is named {MODEL!r}: give it another name.")
    return named


@dataclass(frozen=True, eq=False)
class _Questions:
    """One split's examples and what is asked of them.

    Args:
        name: of the split.
        encoded: its examples.
        table: a row per question.
        choices: the tokens to choose among; None for all.
        split, labels, order: of a classifier's task.
    """

    name: str
    encoded: Encoded
    table: pd.DataFrame
    choices: tuple[int, ...] | None = None
    split: Split | None = None
    labels: tuple[str, ...] = ()
    order: Sequence[int] = ()

    def among(self, rows: Int[Tensor, " batch"]) -> tuple[np.ndarray, Tensor, Tensor]:
        """The questions asked of these examples: their numbers, each one's place in the batch, and position."""
        place = np.full(len(self.encoded), -1)
        place[rows.numpy()] = np.arange(len(rows))
        at = place[self.table["row"].to_numpy()]
        questions = np.flatnonzero(at >= 0)
        return (
            questions,
            torch.from_numpy(at[questions]),
            torch.from_numpy(self.table["position"].to_numpy()[questions]),
        )

    def answer(self, answers: np.ndarray, rows: Int[Tensor, " batch"], outputs: Tensor) -> None:
        """Fill in the answers to the questions asked of these examples."""
        if not torch.isfinite(outputs).all():
            raise ModelError(f"the model's output on split {self.name!r} is NaN or infinite: check its weights.")
        if self.split is not None:
            values = outputs.float().cpu().numpy()[:, list(self.order)]
            answers[rows.numpy()] = self.split.predictions(values, self.labels)
            return
        questions, row, position = self.among(rows)
        values = outputs[row, position - 1]
        if self.choices is None:
            answers[questions] = values.argmax(dim=-1).cpu().numpy()
        else:
            answers[questions] = np.array(self.choices)[values[:, list(self.choices)].argmax(dim=-1).cpu().numpy()]


def _questions(
    model: TransformerBridge,
    given: Task | Mapping[str, Completions],
    splits: Sequence[str] | str | None,
    max_examples: int | None,
    label_map: Mapping[Any, str] | None,
) -> list[_Questions]:
    """Checked: at least one split, of the model's kind."""
    info = model_info(model)
    if isinstance(given, Task):
        if info.problem_type == "language_modeling":
            raise TaskError(
                f"{info.model_id} is a language model: pass name -> Completions in place of task {given.name!r}."
            )
        if given.is_regression:
            raise TaskError(f"task {given.name!r} has numbers for labels: agreement is of classes.")
        return list(_of_task(model, given, splits, max_examples, label_map))
    if not isinstance(given, Mapping) or not given:
        kind = "nothing" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise CoreLensError(f"{kind} is given to ask: pass a Task, or name -> Completions with at least one split.")
    if info.problem_type != "language_modeling":
        raise TaskError(f"{info.model_id} is a classifier: pass a Task in place of completions.")
    found = []
    for name, split in given.items():
        if not isinstance(split, Completions):
            raise CoreLensError(f"split {name!r} is a {type(split).__name__}, not Completions.")
        part = split.sample(max_examples)
        if part.asked.empty:
            raise CoreLensError(f"split {name!r} asks for no token.")
        check_fit(model, part.encoded, f"split {name!r}", part.choices or ())
        # The same sequence in two splits is one cluster.
        keys = np.array([_key(ids) for ids in part.encoded.ids.split(part.encoded.lengths.tolist())])
        table = part.asked.assign(split=name, cluster=keys[part.asked["row"].to_numpy()], gold=part.gold)
        found.append(_Questions(name, part.encoded, table, part.choices))
    return found


def _key(ids: Tensor) -> int:
    """A number for a sequence of token ids."""
    return int.from_bytes(hashlib.blake2b(ids.numpy().tobytes(), digest_size=8).digest(), "little", signed=True)


def splits_of(task: Task, splits: Sequence[str] | str | None) -> list[Split]:
    """The splits to ask, as in `Task.select`, the one that gaps are measured from first.

    Raises:
        TaskError: there is no such split, or none in domain.
    """
    # In distribution first, whatever the order they are named in.
    chosen = sorted(task.select(splits), key=lambda split: split.role not in ("id", "train"))
    if not chosen or chosen[0].role not in ("id", "train"):
        raise TaskError(f"task {task.name!r}: name an in-domain split too, from which the gap is measured.")
    return chosen


def _of_task(
    model: TransformerBridge, task: Task, splits: Any, max_examples: int | None, label_map: Mapping[Any, str] | None
) -> Iterator[_Questions]:
    order = class_order(model_info(model).id2label, task, label_map)
    chosen = splits_of(task, splits)
    for split in (part.sample(max_examples) for part in chosen):
        table = split.data[["group", "cluster", "label"]].reset_index(drop=True)
        table = table.rename(columns={"label": "gold"}).assign(split=split.name, row=np.arange(len(table)))
        encoded = encode(split, model.tokenizer, task.max_length)
        yield _Questions(split.name, encoded, table.astype({"gold": object}), None, split, task.labels, order)
