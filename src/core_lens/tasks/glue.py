"""The tasks that are known by name: MNLI with HANS, QQP with PAWS-QQP, and the rest of GLUE.

Each comes from the hub or from local files in the form it is distributed in; see `load_task`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import pandas as pd

from ..errors import CoreLensWarning, TaskError
from . import hub
from .base import Metric, Role, Split, Task
from .files import find_source, is_test
from .frames import (
    LABELS,
    PAIRS,
    SINGLES,
    label_column,
    named_labels,
    numeric_labels,
    text_columns,
    to_schema,
    warn_about_overlap,
)
from .hans import COLUMNS, hans_splits


@dataclass(frozen=True)
class Corpus:
    """What is fixed about a task that is known by name.

    Args:
        title: its name in messages, and of its folder in GLUE.
        labels: in the order of the corpus's own numbers; () for a regression.
        pair: whether it has two texts.
        metric: GLUE's own, or accuracy where GLUE has accuracy and F1.
        sparsities: of "The Heuristic Core" for MNLI and QQP; otherwise between the two, as smaller data sets
            lose accuracy earlier.
    """

    title: str
    labels: tuple[str, ...]
    pair: bool = True
    metric: Metric = "accuracy"
    sparsities: tuple[float, ...] = (0.3, 0.5)


CORPORA: Mapping[str, Corpus] = {
    "mnli": Corpus("MNLI", ("entailment", "neutral", "contradiction"), sparsities=(0.5, 0.7)),
    "qqp": Corpus("QQP", ("not_duplicate", "duplicate"), sparsities=(0.3, 0.6)),
    "rte": Corpus("RTE", ("entailment", "not_entailment")),
    "sst2": Corpus("SST-2", ("negative", "positive"), pair=False),
    "cola": Corpus("CoLA", ("unacceptable", "acceptable"), pair=False, metric="mcc"),
    "mrpc": Corpus("MRPC", ("not_equivalent", "equivalent")),
    "qnli": Corpus("QNLI", ("entailment", "not_entailment")),
    "stsb": Corpus("STS-B", (), metric="pearson"),
    "wnli": Corpus("WNLI", ("not_entailment", "entailment")),
}

OFFICIAL = {"validation_matched": "matched", "validation_mismatched": "mismatched"}
_PLAIN = ("dev", "validation", "valid", "val")
_LAB = ("lab", "lab-gpt2")
_COLUMNS = {*(column for pair in PAIRS for column in pair), *SINGLES, *LABELS, *COLUMNS, "genre", "qid1"}
_HANS_FILES = "HANS' heuristics_evaluation_set.txt or .jsonl, or hans*.parquet or .csv"
_PAWS_FILES = "the train.tsv and dev_and_test.tsv that PAWS's qqp_generate_data.py writes, in a folder named paws_qqp"


def load_task(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, subcases: str | Sequence[str] | None = None
) -> Task:
    """A task that is known by name, with its in-domain and out-of-domain splits.

    Example:
        >>> load_task("mnli").summary()
        >>> load_task("qqp", data_dir="data")

    | name | in-domain | out-of-domain | metric |
    |---|---|---|---|
    | mnli | matched, mismatched | HANS: SO-Swap, Prep, Embed-If, Embed-Verb; 26 as extras | accuracy |
    | qqp | validation | PAWS: the pairs of PAWS-QQP that are not equivalent | accuracy |
    | rte, sst2, mrpc, qnli, wnli | validation | | accuracy |
    | cola | validation | | Matthews correlation |
    | stsb | validation | | Pearson correlation |
    | lab | of `core_lens.lab`, made on the spot | | accuracy |

    **From the hub** (no `data_dir`): GLUE from nyu-mll/glue, HANS from the parquet copy of jhu-cogsci/hans.
    PAWS-QQP is not there: Quora's terms let its authors hand out only a script that makes it from QQP.
    Without it `qqp` has no out-of-domain split, and a warning says so.

    **From files**: `data_dir` is searched, with its subfolders, for names such as MNLI/train.tsv (GLUE's
    folders), multinli_1.0_train.jsonl, heuristics_evaluation_set.txt, paws_qqp/dev_and_test.tsv, rte.parquet
    or rte_dev.csv (a `split` column or the file's name says which split it is) or a folder of that name saved
    by `datasets`; the exact rules are those of `find_source`. Nothing is then taken from the hub, but for one
    case: a `data_dir` with HANS or PAWS-QQP only, beside which MNLI or QQP come from the hub. A file that is
    not the corpus's own validation file gives its name to the split, so that no table claims more than is
    true: mnli_dev.parquet makes the split `mnli-dev`.

    Test sets without labels are left out, as are MultiNLI's examples without a gold label.

    Args:
        name: see above.
        data_dir: folder with the files; None for the hub.
        subcases: for mnli, which subcases of HANS have the role `ood`: names, or `all` for the 30; None for
            the paper's four. Their counterparts with the other answer have the role `companion`, all others
            `extra`.

    Raises:
        TaskError: unknown task, files that are not found or cannot be used, or no connection to the hub.
    """
    known = [*CORPORA, *_LAB]
    task = str(name).strip().lower().replace("_", "-")
    task = task if task in _LAB else task.replace("-", "")
    if task not in known:
        close = get_close_matches(task, known, 1)
        hint = f"did you mean {close[0]!r}" if close else "give one of those"
        raise TaskError(f"there is no task {name!r}: there are {', '.join(known)}; {hint}, or use Task.from_files.")
    if subcases is not None and task != "mnli":
        raise TaskError(
            f"subcases={subcases!r} are for 'mnli', whose out-of-domain data HANS is: task {task!r} has none."
        )
    if task in _LAB:
        from ..lab import lab_task

        return lab_task()
    corpus = CORPORA[task]
    main, others = _read_hub(task) if data_dir is None else _read_files(task, data_dir)
    splits = [_split(split, role, frame, corpus) for split, role, frame in main]
    if task == "mnli" and others:
        validation = others.get("validation", others.get("all"))
        if validation is None:
            raise TaskError(f"of HANS only the split {', '.join(others)} is there: {_HANS_FILES} are needed.")
        splits += hans_splits(validation, others.get("train"), subcases)
    if task == "qqp" and others:
        splits += paws_splits(pd.concat(others.values(), ignore_index=True))
    result = Task(task, corpus.labels, tuple(splits), corpus.metric, sparsities=corpus.sparsities)
    warn_about_overlap(result)
    return result


Named = list[tuple[str, Role, pd.DataFrame]]


def _read_hub(task: str) -> tuple[Named, dict[str, pd.DataFrame]]:
    main = _glue_from_hub(task, _needed(task))
    if task == "mnli":
        instead = f"MNLI and {_HANS_FILES}"
        return main, hub.load("jhu-cogsci/hans", revision=hub.PARQUET_BRANCH, instead=instead)
    if task == "qqp":
        _warn_without("qqp", "PAWS-QQP is not on the hub", f"data_dir= with a folder that holds {_PAWS_FILES}")
    return main, {}


def _glue_from_hub(task: str, instead: str) -> Named:
    found = hub.load("nyu-mll/glue", task, instead=instead)
    main: Named = [("train", "train", found["train"])]
    for split, frame in found.items():
        if split.startswith("validation"):
            main.append((OFFICIAL.get(split, split), "id", frame))
    return main


def _read_files(task: str, data_dir: str | os.PathLike[str]) -> tuple[Named, dict[str, pd.DataFrame]]:
    title, challenge = CORPORA[task].title, {"mnli": "hans", "qqp": "paws"}.get(task)
    beside = find_source(data_dir, challenge, own=False) if challenge else None
    others = {} if beside is None else {split: frame for split, (frame, _) in beside.read(_COLUMNS).items()}
    source = find_source(data_dir, task)
    read = {} if source is None else source.read(_COLUMNS)
    tests = [split for split in read if is_test(split)]
    evaluated = [split for split in read if split not in ("train", "all", *tests)] or tests
    if not ("train" in read or evaluated):
        if others:
            return _glue_from_hub(task, f"{title}, too: {_needed(task)}"), others
        raise TaskError(
            f"there is no {title} in data_dir={str(data_dir)!r}: looked there and below for {_needed(task)}."
        )
    main: Named = []
    if "train" in read:
        main.append(("train", "train", read["train"][0]))
    for split in evaluated:
        frame, stem = read[split]
        main.append((_honest_name(task, split, stem), "id", frame))
    if challenge and not others:
        name, files = ("HANS", _HANS_FILES) if task == "mnli" else ("PAWS-QQP", _PAWS_FILES)
        _warn_without(task, f"there is no {name} in {str(data_dir)!r}", f"a data_dir= that holds it, too ({files})")
    return main, others


def _warn_without(task: str, why: str, instead: str) -> None:
    warnings.warn(f"task {task!r} has no out-of-domain split: {why}; pass {instead}.", CoreLensWarning, stacklevel=4)


def _honest_name(task: str, split: str, stem: str) -> str:
    """An in-domain split's name: only the corpus's own files are called matched, mismatched or validation."""
    if split in OFFICIAL:
        return OFFICIAL[split]
    if stem in _PLAIN or stem.endswith("-validation"):
        return "validation" if task != "mnli" else f"mnli-{stem.removeprefix('mnli-')}"
    return f"{stem}-{split}" if stem == task else stem


def _split(name: str, role: Role, frame: pd.DataFrame, corpus: Corpus) -> Split:
    where = f"{corpus.title}'s split {name!r}"
    label = label_column(frame, where)
    gold = frame.loc[:, label].astype(str).str.strip()
    if (gold == "").any():  # a few lines of QQP's train.tsv end too early
        n = int((gold == "").sum())
        warnings.warn(f"{where}: {n} lines without a label are left out.", CoreLensWarning, stacklevel=4)
    # The test sets' -1, and the pairs on which MultiNLI's annotators did not agree.
    frame = frame.loc[~gold.isin(["-", "-1", "-1.0", ""])]
    if frame.empty:
        raise TaskError(f"{where} has no labelled example: it may be a test set, whose labels are not public.")
    group = "genre" if "genre" in frame.columns else None
    data = to_schema(frame, where, text=text_columns(frame, where, corpus.pair), label=label, group=group)
    if corpus.metric == "pearson":
        data["label"] = numeric_labels(data.loc[:, "label"], where)
    else:
        data["label"] = named_labels(data.loc[:, "label"], where, corpus.labels)
    return Split(name, role, data)


def paws_splits(frame: pd.DataFrame) -> tuple[Split, Split]:
    """PAWS-QQP (Zhang, Baldridge and He, "PAWS", NAACL 2019) as two splits of QQP.

    Returns:
        `PAWS`, the pairs that are not equivalent, on which "The Heuristic Core" reports accuracy (8,696 in
        all parts together), and its companion `PAWS-equivalent`.
    """
    where = "PAWS-QQP"
    text = text_columns(frame, where, pair=True)
    data = to_schema(frame, where, text=text, label=label_column(frame, where))
    data["label"] = named_labels(data.loc[:, "label"], where, CORPORA["qqp"].labels)
    for column in ("text_a", "text_b", "cluster"):
        # Under Python 3 the authors' script writes b'...' around each text.
        data[column] = data[column].str.replace(r"""^b(['"])(.*)\1$""", r"\2", regex=True)
    equivalent = data["label"] == "duplicate"
    return (
        Split("PAWS", "ood", data.loc[~equivalent].reset_index(drop=True), companion="PAWS-equivalent"),
        Split("PAWS-equivalent", "companion", data.loc[equivalent].reset_index(drop=True), companion="PAWS"),
    )


def _needed(task: str) -> str:
    """The files that would do."""
    folder = CORPORA[task].title
    glue = f"{folder}/train.tsv and {'dev_matched.tsv' if task == 'mnli' else 'dev.tsv'}"
    more = ", multinli_1.0_train.jsonl and multinli_1.0_dev_matched.jsonl" if task == "mnli" else ""
    return (
        f"{glue} (GLUE's){more}, {task}*.parquet, .csv, .tsv or .jsonl (train and dev in the names or in "
        f"a split column), or a folder {task} saved by datasets"
    )
