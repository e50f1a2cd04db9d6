"""HANS (McCoy, Pavlick and Linzen, "Right for the Wrong Reasons", ACL 2019) as splits of MNLI."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import pandas as pd

from ..errors import TaskError
from .base import Role, Split
from .frames import label_column, named_labels, text_columns, to_schema

LABELS = ("entailment", "non-entailment")
COLLAPSE = {"neutral": "non-entailment", "contradiction": "non-entailment"}

PAPER = {
    "lexical_overlap_ln_subject-object_swap": "SO-Swap",
    "lexical_overlap_ln_preposition": "Prep",
    "constituent_cn_embedded_under_if": "Embed-If",
    "constituent_cn_embedded_under_verb": "Embed-Verb",
}
"""The four subcases that "The Heuristic Core" reports, and its names for them."""

COMPANIONS = {
    # not entailed -> entailed, of the same construction
    "lexical_overlap_ln_subject-object_swap": "lexical_overlap_le_passive",  # who did what to whom
    "lexical_overlap_ln_preposition": "lexical_overlap_le_around_prepositional_phrase",
    "lexical_overlap_ln_relative_clause": "lexical_overlap_le_relative_clause",
    "lexical_overlap_ln_passive": "lexical_overlap_le_passive",
    "lexical_overlap_ln_conjunction": "lexical_overlap_le_conjunction",
    "constituent_cn_embedded_under_if": "constituent_ce_embedded_under_since",
    "constituent_cn_after_if_clause": "constituent_ce_after_since_clause",
    "constituent_cn_embedded_under_verb": "constituent_ce_embedded_under_verb",
    "constituent_cn_disjunction": "constituent_ce_conjunction",
    "constituent_cn_adverb": "constituent_ce_adverb",
    "subsequence_sn_PP_on_subject": "subsequence_se_PP_on_obj",
    "subsequence_sn_relative_clause_on_subject": "subsequence_se_relative_clause_on_obj",
    # entailed -> not entailed, of the same construction
    "lexical_overlap_le_around_prepositional_phrase": "lexical_overlap_ln_preposition",
    "lexical_overlap_le_relative_clause": "lexical_overlap_ln_relative_clause",
    "lexical_overlap_le_around_relative_clause": "lexical_overlap_ln_relative_clause",
    "lexical_overlap_le_passive": "lexical_overlap_ln_passive",
    "lexical_overlap_le_conjunction": "lexical_overlap_ln_conjunction",
    "constituent_ce_embedded_under_since": "constituent_cn_embedded_under_if",
    "constituent_ce_after_since_clause": "constituent_cn_after_if_clause",
    "constituent_ce_embedded_under_verb": "constituent_cn_embedded_under_verb",
    "constituent_ce_conjunction": "constituent_cn_disjunction",
    "constituent_ce_adverb": "constituent_cn_adverb",
    "subsequence_se_PP_on_obj": "subsequence_sn_PP_on_subject",
    "subsequence_se_relative_clause_on_obj": "subsequence_sn_relative_clause_on_subject",
    # No counterpart of the same construction: the closest of the same heuristic.
    "subsequence_sn_NP/S": "subsequence_se_understood_object",  # what the verb takes as its object
    "subsequence_sn_NP/Z": "subsequence_se_understood_object",
    "subsequence_sn_past_participle": "subsequence_se_relative_clause_on_obj",  # a reduced relative clause
    "subsequence_se_understood_object": "subsequence_sn_NP/Z",
    "subsequence_se_adjective": "subsequence_sn_PP_on_subject",  # a modifier of the subject
    "subsequence_se_conjunction": "subsequence_sn_PP_on_subject",  # the subject's last noun, and the verb
}
"""Subcase -> the one with the other answer that is shown beside it."""

COLUMNS = {"heuristic", "subcase", "template"}


def split_name(subcase: str) -> str:
    """What the split of a `heuristic_subcase` is called: the paper's name, or itself without slashes."""
    plain = subcase.replace("/", "-")
    return PAPER.get(plain, plain)


def hans_splits(
    validation: pd.DataFrame, train: pd.DataFrame | None = None, subcases: str | Sequence[str] | None = None
) -> tuple[Split, ...]:
    """One split for each subcase; its groups are the templates, its clusters the premises.

    Args:
        validation: the evaluation set, with its columns heuristic, subcase and template.
        train: the training set, given as one split `HANS-train` of role `extra` whose groups are the
            subcases, so that masks can be selected on HANS without touching what is reported.
        subcases: which splits have the role `ood`: names, `all`, or None for the paper's four. Their
            companions have the role `companion`, all others `extra`.

    Raises:
        TaskError: a column is missing, or a subcase is not there.
    """
    frame, keys = _frame(validation, "HANS' evaluation set")
    names = {str(name): split_name(str(name)) for name in keys.unique()}
    partner = {split_name(a): split_name(b) for a, b in COMPANIONS.items()}
    chosen = _choose(subcases, names)
    beside = {partner[name] for name in chosen if name in partner}
    splits = []
    for full, rows in frame.groupby(keys, sort=True):
        name = names[str(full)]
        role: Role = "ood" if name in chosen else "companion" if name in beside else "extra"
        companion = partner.get(name)
        aliases = _names(str(full)) - {name}
        splits.append(
            Split(
                name,
                role,
                rows.reset_index(drop=True),
                COLLAPSE,
                companion if companion in names.values() else None,
                tuple(sorted(aliases)),
            )
        )
    order = [*chosen, *sorted(beside - set(chosen)), *sorted(set(partner) - beside - set(chosen))]
    splits.sort(key=lambda split: order.index(split.name) if split.name in order else len(order))
    if train is not None:
        frame, keys = _frame(train, "HANS' training set")
        frame = frame.assign(group=keys.map({key: split_name(str(key)) for key in keys.unique()}))
        splits.append(Split("HANS-train", "extra", frame, COLLAPSE))
    return tuple(splits)


def _names(full: str) -> set[str]:
    """What a `heuristic_subcase` may be called: so, with and without slash, or by HANS' own subcase alone."""
    short = full
    for heuristic in ("lexical_overlap_", "subsequence_", "constituent_"):
        short = short.removeprefix(heuristic)
    return {split_name(full), full, full.replace("/", "-"), short, short.replace("/", "-")}


def _choose(subcases: str | Sequence[str] | None, names: dict[str, str]) -> list[str]:
    """Names of the splits to report, in the order asked for."""
    have = list(names.values())
    if subcases is None:
        return [name for name in PAPER.values() if name in have]
    if subcases == "all":
        return sorted(have)
    called = {other: name for full, name in names.items() for other in _names(full)}
    chosen = []
    for asked in [subcases] if isinstance(subcases, str) else subcases:
        if asked not in called:
            close = get_close_matches(asked, called, 1, 0.4)
            hint = f"did you mean {close[0]!r}? Or" if close else "give names such as SO-Swap or ln_passive, or"
            raise TaskError(f"HANS has no subcase {asked!r}: {hint} subcases='all'.")
        chosen.append(called[asked])
    return list(dict.fromkeys(chosen))


def _frame(data: pd.DataFrame, where: str) -> tuple[pd.DataFrame, pd.Series]:
    """The schema's columns, and the full subcase of each row."""
    missing = COLUMNS - set(data.columns)
    if missing:
        have = ", ".join(map(str, data.columns))
        raise TaskError(f"{where} has no column {min(missing)!r}: it has {have}; use the files of the HANS authors.")
    text = text_columns(data, where, pair=True)
    frame = to_schema(data, where, text=text, label=label_column(data, where), group="template")
    frame["label"] = named_labels(frame.loc[:, "label"], where, LABELS)
    full = data.loc[:, "heuristic"].astype(str) + "_" + data.loc[:, "subcase"].astype(str)
    return frame, full.reset_index(drop=True)
