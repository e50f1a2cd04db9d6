"""A template grammar in which word overlap gives the label away, but for a small share of counter-examples.

Nine kinds of sentence (the *subcases*), named after those of HANS (McCoy, Pavlick and Linzen, "Right for the Wrong
Reasons", ACL 2019), over about 90 words. Each template yields a premise and, for that same premise, hypotheses in
pairs alike in shape: one that follows from it and one that does not, both made of the premise's own words. Hence:

- in training, premises and shapes of hypotheses occur equally often with both labels, and only the relation between the two
  sentences decides. Most pairs that are not entailed have other words in the hypothesis, so overlap is a good heuristic;
  a small share of them, the counter-examples, have not.
- in an evaluation split of a subcase each premise stands once with the hypothesis that does not follow, and once, in the
  split's companion, with the one that does. Overlap is complete in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

import numpy as np
import pandas as pd

from ..tasks.base import Split, Task

ENTAILMENT, NON_ENTAILMENT = LABELS = ("entailment", "non-entailment")
COUNTEREXAMPLE_SHARE = 0.02
# In the corpus for pre-training, which has no labels, restatements are nearly as often false as true: a language model
# that is shown true ones alone learns what follows from what, and its classifier then never passes through the heuristic.
CORPUS_SHARE = 0.35


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words(
    "actor artist author baker banker doctor farmer judge lawyer manager nurse pilot scientist senator singer student "
    "teacher tourist"
)
# Past tense and participle are the same word, so that a passive and its active share all content words.
TRANSITIVE = _words("admired avoided called followed found heard helped invited met noticed thanked visited")
INTRANSITIVE = _words("arrived danced laughed left resigned shouted slept smiled waited worked")
PREPOSITIONS = _words("near behind beside opposite")
PLACES = [f"in the {place}" for place in _words("garden library office park")]
TIMES = _words("yesterday today again")
DOUBTFUL_VERBS = _words("believed claimed feared hoped thought")
FACTIVE_VERBS = _words("discovered knew realized remembered")
DOUBTFUL_ADVERBS = _words("perhaps probably maybe supposedly")
SURE_ADVERBS = _words("certainly clearly definitely indeed")
CONDITIONS = _words("if unless")
CAUSES = _words("because since")
CONTENT = {"noun": NOUNS, "transitive": TRANSITIVE, "intransitive": INTRANSITIVE}

COLUMNS = ("text_a", "text_b", "label", "group", "cluster")
N_TRAIN, N_DEV, N_EVALUATION = 20_000, 1_000, 500
NOT_REPORTED = "Conjunction"  # trained on, and evaluated when asked for by name

Pair = tuple[str, str]  # a hypothesis that follows from the premise, and one like it in shape that does not


class Words:
    """Draws words for one premise; no noun and no verb comes twice."""

    def __init__(self, rng: np.random.Generator, avoid: Iterable[str] = ()) -> None:
        self.rng = rng
        used = set(avoid)
        self._left = {
            kind: [words[i] for i in rng.permutation(len(words)) if words[i] not in used]
            for kind, words in CONTENT.items()
        }

    def draw(self, kind: str) -> str:
        return self._left[kind].pop()

    def nouns(self, n: int) -> list[str]:
        return [f"the {self.draw('noun')}" for _ in range(n)]

    def one_of(self, options: Sequence[str]) -> str:
        return options[int(self.rng.integers(len(options)))]

    def coin(self) -> bool:
        return bool(self.rng.integers(2))

    def clause(self, transitive: bool | None = None) -> str:
        """`the judge slept` or `the judge met the nurse`."""
        if self.coin() if transitive is None else transitive:
            subject, object_ = self.nouns(2)
            return f"{subject} {self.draw('transitive')} {object_}"
        return f"{self.nouns(1)[0]} {self.draw('intransitive')}"


def subject_object_swap(w: Words) -> tuple[str, list[Pair]]:
    (a, b), verb, place, time = w.nouns(2), w.draw("transitive"), w.one_of(PLACES), w.one_of(TIMES)
    core = f"{a} {verb} {b}"
    premise = w.one_of([f"{core} {place}", f"{core} {time}", f"{core} {place} {time}", f"{place} {core} {time}"])
    return premise, [(core, f"{b} {verb} {a}")]


def passive(w: Words) -> tuple[str, list[Pair]]:
    (a, b), verb = w.nouns(2), w.draw("transitive")
    modifier = w.one_of(["", f" {w.one_of(PLACES)}", f" {w.one_of(TIMES)}"])
    return f"{b} was {verb} by {a}{modifier}", [(f"{a} {verb} {b}", f"{b} {verb} {a}")]


def preposition(w: Words) -> tuple[str, list[Pair]]:
    (a, b, c), prep, verb, rest = (
        w.nouns(3),
        w.one_of(PREPOSITIONS),
        w.draw("transitive"),
        w.draw("intransitive"),
    )
    return [
        (f"{a} {prep} {b} {rest}", [(f"{a} {rest}", f"{b} {rest}")]),
        (f"{a} {prep} {b} {verb} {c}", [(f"{a} {verb} {c}", f"{b} {verb} {c}")]),
        (f"{a} {verb} {b} {prep} {c}", [(f"{a} {verb} {b}", f"{a} {verb} {c}")]),
    ][w.rng.integers(3)]


def relative_clause(w: Words) -> tuple[str, list[Pair]]:
    (a, b, c), verb, other, rest = (
        w.nouns(3),
        w.draw("transitive"),
        w.draw("transitive"),
        w.draw("intransitive"),
    )
    return [
        (
            f"{a} who {verb} {b} {rest}",
            [(f"{a} {rest}", f"{b} {rest}"), (f"{a} {verb} {b}", f"{b} {verb} {a}")],
        ),
        (
            f"{a} whom {b} {verb} {rest}",
            [(f"{a} {rest}", f"{b} {rest}"), (f"{b} {verb} {a}", f"{a} {verb} {b}")],
        ),
        (f"{a} who {verb} {b} {other} {c}", [(f"{a} {other} {c}", f"{b} {other} {c}")]),
    ][w.rng.integers(3)]


def conjunction(w: Words) -> tuple[str, list[Pair]]:
    (a, b, c), verb = w.nouns(3), w.draw("transitive")
    return [
        (
            f"{a} and {b} {verb} {c}",
            [(f"{a} {verb} {c}", f"{a} {verb} {b}"), (f"{b} {verb} {c}", f"{b} {verb} {a}")],
        ),
        (
            f"{a} {verb} {b} and {c}",
            [(f"{a} {verb} {b}", f"{b} {verb} {c}"), (f"{a} {verb} {c}", f"{c} {verb} {b}")],
        ),
    ][w.rng.integers(2)]


def disjunction(w: Words) -> tuple[str, list[Pair]]:
    if w.coin():
        (a, b, c, d), verb = w.nouns(4), w.draw("transitive")
        pairs = [(f"{a} {verb} {b}", f"{a} {verb} {c}"), (f"{a} {verb} {b}", f"{a} {verb} {d}")]
        return f"{a} {verb} {b} and either {c} or {d}", pairs
    sure, left, right = w.clause(), w.clause(), w.clause()
    either = f"either {left} or {right}"
    return w.one_of([f"{sure}, but {either}", f"{either}, but {sure}"]), [(sure, left), (sure, right)]


def embedded_under_if(w: Words) -> tuple[str, list[Pair]]:
    kind, if_, because = w.rng.integers(3), w.one_of(CONDITIONS), w.one_of(CAUSES)
    if kind == 0:  # a main clause beside the conditional
        sure, condition, consequence = w.clause(), w.clause(), w.clause()
        return f"{sure}, but {if_} {condition}, {consequence}", [(sure, condition), (sure, consequence)]
    if kind == 1:  # a relative clause holds whatever the condition does
        (a, b), verb, consequence = w.nouns(2), w.draw("transitive"), w.clause(transitive=True)
        premise = f"{if_} {a} who {verb} {b} {w.draw('intransitive')}, {consequence}"
        return premise, [(f"{a} {verb} {b}", consequence)]
    effect, cause, consequence, condition = (w.clause(transitive=False) for _ in range(4))
    parts = [f"{because} {cause}, {effect}", f"{if_} {condition}, {consequence}"]
    return ", but ".join(parts if w.coin() else parts[::-1]), [(effect, consequence), (cause, condition)]


def embedded_under_verb(w: Words) -> tuple[str, list[Pair]]:
    kind, doubtful, factive = w.rng.integers(3), w.one_of(DOUBTFUL_VERBS), w.one_of(FACTIVE_VERBS)
    if kind == 0:
        (a,), sure, unsure = w.nouns(1), w.clause(), w.clause()
        parts = [f"{factive} that {sure}", f"{doubtful} that {unsure}"]
        return f"{a} " + " but ".join(parts if w.coin() else parts[::-1]), [(sure, unsure)]
    if kind == 1:
        (a, b), verb, unsure = w.nouns(2), w.draw("transitive"), w.clause(transitive=True)
        return f"{a} who {verb} {b} {doubtful} that {unsure}", [(f"{a} {verb} {b}", unsure)]
    (a,), sure, unsure = w.nouns(1), w.clause(), w.clause()
    return f"{sure}, and {a} {doubtful} that {unsure}", [(sure, unsure)]


def adverb(w: Words) -> tuple[str, list[Pair]]:
    sure_adverb, doubtful = w.one_of(SURE_ADVERBS), w.one_of(DOUBTFUL_ADVERBS)
    sure, unsure = w.clause(), w.clause()
    parts = [w.one_of([sure, f"{sure_adverb} {sure}", _inside(sure, sure_adverb)])]
    parts.append(w.one_of([f"{doubtful} {unsure}", _inside(unsure, doubtful)]))
    return f", {w.one_of(['and', 'but'])} ".join(parts if w.coin() else parts[::-1]), [(sure, unsure)]


def _inside(clause: str, word: str) -> str:
    """The clause with the adverb before its verb."""
    the, noun, rest = clause.split(" ", 2)
    return f"{the} {noun} {word} {rest}"


SUBCASES: dict[str, Callable[[Words], tuple[str, list[Pair]]]] = {
    # The Heuristic Core's four first.
    "SO-Swap": subject_object_swap,
    "Prep": preposition,
    "Embed-If": embedded_under_if,
    "Embed-Verb": embedded_under_verb,
    "Passive": passive,
    "Rel-Clause": relative_clause,
    "Disjunction": disjunction,
    "Adverb": adverb,
    "Conjunction": conjunction,
}


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def other_words(text: str, premise: str, rng: np.random.Generator) -> str:
    """`text` with words that the premise lacks for all (three times in four) or some of its nouns and verbs."""
    words, fresh = text.split(), Words(rng, avoid=premise.replace(",", "").split())
    spots = [(i, kind) for i, word in enumerate(words) for kind in CONTENT if word in CONTENT[kind]]
    n_replaced = len(spots) if rng.integers(4) else rng.integers(1, len(spots) + 1)
    for i in rng.permutation(len(spots))[:n_replaced]:
        place, kind = spots[i]
        words[place] = fresh.draw(kind)
    return " ".join(words)


def training_pairs(
    n: int, seed: int, counterexamples: float = COUNTEREXAMPLE_SHARE, exclude: Set[str] = frozenset()
) -> pd.DataFrame:
    """`n` pairs as in training: half entailed, the others mostly with other words in the hypothesis.

    Args:
        n: how many.
        seed: the same seed gives the same pairs.
        counterexamples: share of all pairs that are not entailed though the premise has all their words.
        exclude: premises that must not occur (those of an evaluation).

    Returns:
        Columns text_a, text_b, label, group (the subcase), cluster (the premise), counterexample.
    """
    rng, rows, names = np.random.default_rng(seed), [], list(SUBCASES)
    while len(rows) < n:
        name, kind = names[rng.integers(len(names))], rng.random()
        premise, pairs = SUBCASES[name](Words(rng))
        true, false = pairs[rng.integers(len(pairs))]
        if sentence(premise) in exclude:
            continue
        if kind < 0.5:
            rows.append((premise, true, ENTAILMENT, name, False))
        elif kind < 0.5 + counterexamples:
            rows.append((premise, false, NON_ENTAILMENT, name, True))
        else:
            rows.append((premise, other_words(true, premise, rng), NON_ENTAILMENT, name, False))
    return _frame(rows)


def evaluation_pairs(subcase: str, n: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`n` premises of one subcase with a hypothesis that does not follow, and the same ones with one that does.

    Returns:
        Two frames with the columns of `training_pairs`, row by row about the same premises.
    """
    rng, wrong, right, seen = np.random.default_rng(seed), [], [], set()
    while len(seen) < n:
        premise, pairs = SUBCASES[subcase](Words(rng))
        true, false = pairs[rng.integers(len(pairs))]
        if premise not in seen:
            seen.add(premise)
            wrong.append((premise, false, NON_ENTAILMENT, subcase, True))
            right.append((premise, true, ENTAILMENT, subcase, False))
    return _frame(wrong), _frame(right)


def _evaluation_splits() -> list[Split]:
    """The in-domain split, and two for each subcase; their seeds are fixed, so that they never change."""
    ood, companions, extra = [], [], []
    for seed, name in enumerate(SUBCASES, start=1000):
        wrong, right = (frame[list(COLUMNS)] for frame in evaluation_pairs(name, N_EVALUATION, seed))
        if name == NOT_REPORTED:
            extra.append(Split(name, "extra", wrong, companion=f"{name}-entailed"))
            extra.append(Split(f"{name}-entailed", "extra", right, companion=name))
        else:
            ood.append(Split(name, "ood", wrong, companion=f"{name}-entailed"))
            companions.append(Split(f"{name}-entailed", "companion", right, companion=name))
    splits = [*ood, *companions, *extra]
    dev = training_pairs(N_DEV, seed=3, exclude=_premises(splits))
    return [Split("dev", "id", dev[list(COLUMNS)]), *splits]


def _premises(splits: Iterable[Split]) -> set[str]:
    return {premise for split in splits for premise in split.data["text_a"]}


def lab_task() -> Task:
    """The task `lab`: train, `dev` from the same distribution, and per subcase an out-of-domain split with its companion.

    No premise of an evaluation split occurs in training. `Conjunction` and its companion have the role `extra`.
    """
    evaluation = _evaluation_splits()
    train = training_pairs(N_TRAIN, seed=2, exclude=_premises(evaluation))[list(COLUMNS)]
    return Task("lab", LABELS, (Split("train", "train", train), *evaluation), sparsities=(0.3, 0.5), max_length=64)


def corpus(n: int) -> pd.DataFrame:
    """`n` pairs to pre-train a language model on, whose premises occur in no evaluation split."""
    return training_pairs(n, seed=1, counterexamples=CORPUS_SHARE, exclude=_premises(_evaluation_splits()))


def _frame(rows: list[tuple[str, str, str, str, bool]]) -> pd.DataFrame:
    data = [(sentence(a), sentence(b), label, name, sentence(a), flag) for a, b, label, name, flag in rows]
    return pd.DataFrame(data, columns=[*COLUMNS, "counterexample"])
