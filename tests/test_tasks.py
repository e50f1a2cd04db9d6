"""Tasks and splits, tasks of the user's own, and the files and names behind `load_task`."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from core_lens.errors import CoreLensWarning, TaskError
from core_lens.tasks import Split, Task, hub, load_task, split_clusters, without_overlap
from core_lens.tasks.hans import COMPANIONS, PAPER

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the corpora of ../shared/data are not here")

NLI = ("entailment", "neutral", "contradiction")
HANS = {"neutral": "non-entailment", "contradiction": "non-entailment"}


def nli(n: int = 6, prefix: str = "p") -> pd.DataFrame:
    """`n` pairs, two hypotheses to a premise, labels in turn."""
    return pd.DataFrame(
        {
            "premise": [f"{prefix} {i // 2}" for i in range(n)],
            "hypothesis": [f"h {i}" for i in range(n)],
            "label": [NLI[i % 3] for i in range(n)],
            "genre": ["fiction" if i % 2 else "travel" for i in range(n)],
        }
    )


def hans_rows() -> pd.DataFrame:
    """One pair of each of six subcases, in the columns of the authors' files."""
    rows = [
        ("lexical_overlap", "ln_subject/object_swap", "temp1"),
        ("lexical_overlap", "le_passive", "temp2"),
        ("lexical_overlap", "ln_preposition", "temp3"),
        ("lexical_overlap", "le_around_prepositional_phrase", "temp4"),
        ("constituent", "cn_adverb", "temp5"),
        ("constituent", "ce_adverb", "temp6"),
    ]
    return pd.DataFrame(
        {
            "gold_label": ["entailment" if subcase[1] == "e" else "non-entailment" for _, subcase, _ in rows],
            "sentence1_binary_parse": "( a )",
            "sentence2_binary_parse": "( b )",
            "sentence1_parse": "(ROOT a)",
            "sentence2_parse": "(ROOT b)",
            "sentence1": [f'The "judge" saw {i} .' for i in range(len(rows))],
            "sentence2": [f"The judge {i} ." for i in range(len(rows))],
            "pairID": [f"ex{i}" for i in range(len(rows))],
            "heuristic": [row[0] for row in rows],
            "subcase": [row[1] for row in rows],
            "template": [row[2] for row in rows],
        }
    )


def write_tsv(frame: pd.DataFrame, path: Path, header: bool = True) -> None:
    """As GLUE writes them: tabs, no quoting at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(frame.columns)] if header else []
    lines += ["\t".join(map(str, row)) for row in frame.itertuples(index=False)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a test asked the hub for {args}")

    monkeypatch.setattr(hub, "hub_answers", lambda: False)
    monkeypatch.setattr(datasets, "load_dataset", refuse)


# --- splits ---------------------------------------------------------------------------------------


def test_collapse_merges_neutral_and_contradiction_and_nothing_else() -> None:
    frame = pd.DataFrame({"text_a": ["a"], "label": ["non-entailment"], "group": ["all"], "cluster": ["a"]})
    split = Split("hans", "ood", frame, HANS)
    assert list(split.collapsed(NLI)) == ["entailment", "non-entailment", "non-entailment"]
    assert split.label_names(NLI) == ("entailment", "non-entailment")
    assert split.group_matrix(NLI).astype(int).tolist() == [[1, 0], [0, 1], [0, 1]]
    # The highest of the three logits decides, then collapses: .4 beats .3 + .3.
    logits = np.log([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7]])
    assert list(split.predictions(logits, NLI)) == ["entailment", "non-entailment", "non-entailment"]


def test_a_split_without_collapse_keeps_the_labels() -> None:
    split = Task.from_dataframes("t", id=nli(), labels=NLI).split("id")
    assert split.label_names(NLI) == NLI
    assert np.array_equal(split.group_matrix(NLI), np.eye(3, dtype=bool))


def test_clusters_are_never_cut() -> None:
    task = Task.from_dataframes("t", id=nli(200), labels=NLI)
    first, rest = split_clusters(task.split("id"), 0.3, seed=1)
    assert (len(first), len(rest)) == (60, 140)  # 100 premises of two rows: 30 of them make .3
    assert not set(first.data["cluster"]) & set(rest.data["cluster"])
    again, _ = split_clusters(task.split("id"), 0.3, seed=1)
    other, _ = split_clusters(task.split("id"), 0.3, seed=2)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # One large cluster beside small ones: neither side may come out empty.
    skewed = task.split("id").data.assign(cluster=["big"] * 198 + ["x", "y"])
    sides = split_clusters(dataclasses.replace(task.split("id"), data=skewed), 0.01, seed=0)
    assert all(len(side) for side in sides)


@pytest.mark.parametrize("fraction", [0, 1, 1.2, float("nan")])
def test_a_cut_needs_a_share(fraction: float) -> None:
    split = Task.from_dataframes("t", id=nli(), labels=NLI).split("id")
    with pytest.raises(TaskError, match="share between 0 and 1"):
        split_clusters(split, fraction)


def test_a_single_cluster_cannot_be_cut() -> None:
    split = Task.from_dataframes("t", id=nli(2), labels=NLI).split("id")
    with pytest.raises(TaskError, match="one single cluster"):
        split_clusters(split, 0.5)


def test_overlap_needs_both_texts() -> None:
    frame = nli(4)
    same_premise = frame.assign(hypothesis=["h 0", "new", "new", "new"])
    task = Task.from_dataframes("t", train=frame, id=same_premise, labels=NLI)
    left = without_overlap(task.split("train"), [task.split("id")])
    assert list(left.data["text_b"]) == ["h 1", "h 2", "h 3"]
    # "a" + "bc" is not "ab" + "c".
    one = frame.head(1).assign(premise="a", hypothesis="bc")
    two = frame.head(1).assign(premise="ab", hypothesis="c")
    task = Task.from_dataframes("t", train=one, id=two, labels=NLI)
    assert len(without_overlap(task.split("train"), [task.split("id")])) == 1


def test_fingerprint_sees_texts_labels_order_and_rules() -> None:
    def print_of(frame: pd.DataFrame, **options: Any) -> str:
        return Task.from_dataframes("t", id=frame, labels=NLI, **options).fingerprint()

    frame = nli()
    base = print_of(frame)
    assert base == print_of(frame.copy()) and len(base) == 64
    changed = [
        print_of(frame.assign(premise="x")),
        print_of(frame.assign(label="neutral")),
        print_of(frame.iloc[::-1]),
        print_of(frame, group="genre"),
        print_of(frame, metric="mcc"),
    ]
    assert len({base, *changed}) == 6


def test_summary_and_repr_are_short() -> None:
    task = Task.from_dataframes("t", train=nli(6), id=nli(4, "q"), labels=NLI, group="genre")
    assert len(repr(task)) < 150 and len(repr(task.split("id"))) < 80
    row = task.summary().set_index("split").loc["id"]
    assert (row["role"], row["rows"], row["groups"], row["companion"]) == ("id", 4, 2, "")
    assert row["labels"] == "entailment 2, neutral 1, contradiction 1"


# --- tasks of one's own ---------------------------------------------------------------------------


def test_from_dataframes_builds_the_schema() -> None:
    task = Task.from_dataframes(
        "own",
        train=nli(6),
        id={"dev": nli(4, "q")},
        ood={"swap": nli(2, "s").assign(label="non-entailment"), "hard": nli(3, "z")},
        group="genre",
        collapse={"swap": HANS},
        companions={"swap": "hard"},
        sparsities=(0.2,),
    )
    assert [s.companion for s in task.splits] == [None, None, "hard", None]
    assert task.labels == ("contradiction", "entailment", "neutral")  # sorted, as none were given
    assert [(s.name, s.role) for s in task.splits] == [
        ("train", "train"), ("dev", "id"), ("swap", "ood"), ("hard", "ood"),
    ]  # fmt: skip
    assert list(task.split("dev").data.columns) == ["text_a", "text_b", "label", "group", "cluster"]
    assert list(task.split("dev").data["cluster"]) == ["q 0", "q 0", "q 1", "q 1"]
    assert list(task.split("dev").data["group"]) == ["travel", "fiction"] * 2
    assert task.split("swap").collapse == HANS and not task.split("hard").collapse
    assert task.sparsities == (0.2,)


def test_single_sentences_and_numbers_for_labels() -> None:
    frame = pd.DataFrame({"comment": ["a", "b", "c"], "toxic": [1, 0, 1]})
    named = Task.from_dataframes("t", id=frame, text="comment", label="toxic", labels=("fine", "toxic"))
    assert list(named.split("id").data["label"]) == ["toxic", "fine", "toxic"]
    assert not named.split("id").is_pair
    inferred = Task.from_dataframes("t", id=frame, text="comment", label="toxic")
    assert inferred.labels == ("0", "1")
    floats = Task.from_dataframes("t", id=frame.astype({"toxic": float}), text="comment", label="toxic")
    assert floats.labels == ("0", "1")
    # Numbers that are label names themselves are names, not positions.
    stars = Task.from_dataframes(
        "t", id=frame.assign(toxic=[1, 2, 3]), text="comment", label="toxic", labels=("1", "2", "3")
    )
    assert list(stars.split("id").data["label"]) == ["1", "2", "3"]


def test_regression() -> None:
    frame = pd.DataFrame({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": ["3.5", 1]})
    task = Task.from_dataframes("sim", id=frame, metric="pearson")
    assert task.is_regression and list(task.split("id").data["label"]) == [3.5, 1.0]
    assert task.summary()["labels"].item() == "1 to 3.5"
    with pytest.raises(TaskError, match="'high' in row 0"):
        Task.from_dataframes("sim", id=frame.assign(label=["high", "1"]), metric="pearson")


BAD_FRAMES = {
    "empty": (nli(0), {}, "is empty"),
    "no text": (nli().drop(columns="premise"), {}, "no text columns.*hypothesis, label, genre"),
    "named text": (nli(), {"text": "comment"}, "no column 'comment': it has premise, hypothesis"),
    "no label": (nli().drop(columns="label"), {}, "no label column.*premise, hypothesis"),
    "missing label": (nli().assign(label=[*NLI, None, *NLI[:2]]), {}, "no value in column 'label' of row 3"),
    "nan label": (nli().assign(label=[0, 1, 2, np.nan, 0, 1]), {}, "no value in column 'label' of row 3"),
    "missing text": (nli().assign(premise=["a", None, "b", "c", "d", "e"]), {}, "'premise' of row 1"),
    "unknown label": (nli().assign(label="maybe"), {"labels": NLI}, "'maybe', which is none of entailment"),
    "number": (nli().assign(label=3), {"labels": NLI}, "label '3', which.*0 to 2"),
    "hidden": (nli().assign(label=-1), {"labels": NLI}, "label '-1'"),
    "one label": (nli().assign(label="neutral"), {}, "one label 'neutral'"),
    "fractions": (nli().assign(label=[0.5, 1, 2, 3, 4, 5]), {}, "metric='pearson'"),
    "group": (nli(), {"group": "topic"}, "group='topic'"),
    "collapse split": (nli(), {"labels": NLI, "collapse": {"hans": HANS}}, "'hans', which task"),
    "companion": (nli(), {"labels": NLI, "companions": {"id": "easy"}}, "companions= names the split 'easy'"),
    "numbers for text": (nli().assign(hypothesis=range(6)), {}, "'hypothesis' of split 'id'.*holds numbers"),
    "collapse label": (nli(), {"labels": NLI, "collapse": {"id": {"maybe": "no"}}}, "'maybe', which is no"),
    "regression labels": (nli(), {"labels": NLI, "metric": "pearson"}, "leave out labels="),
    "no frame": ("nli.csv", {}, "not str: paths go to Task.from_files"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_bad_frames_get_one_sentence(case: str) -> None:
    frame, options, message = BAD_FRAMES[case]
    with pytest.raises(TaskError, match=message) as error:
        Task.from_dataframes("t", id=frame, **options)
    assert "\n" not in str(error.value)


def test_split_names_are_unique() -> None:
    with pytest.raises(TaskError, match="two splits named 'dev'"):
        Task.from_dataframes("t", id={"dev": nli()}, ood={"dev": nli()}, labels=NLI)


def test_pairs_and_single_sentences_do_not_mix() -> None:
    with pytest.raises(TaskError, match="mixes"):
        Task.from_dataframes("t", id=nli(), ood=nli().rename(columns={"premise": "text"}), labels=NLI)


def test_unknown_split_lists_the_known() -> None:
    with pytest.raises(TaskError, match="no split 'test': it has train, id"):
        Task.from_dataframes("t", train=nli(), id=nli(4, "q"), labels=NLI).split("test")


def test_evaluating_on_training_data_is_warned_about() -> None:
    with pytest.warns(CoreLensWarning, match="every example of split 'id'"):
        Task.from_dataframes("t", train=nli(6), id=nli(4), labels=NLI)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Task.from_dataframes("t", train=nli(6), id=nli(8), labels=NLI)


def test_task_checks_splits_made_by_hand() -> None:
    frame = pd.DataFrame({"text_a": ["a"], "label": ["neutral"]})
    with pytest.raises(TaskError, match="no column 'group': it has text_a, label"):
        Task("t", NLI, (Split("x", "id", frame),))
    whole = frame.assign(group="all", cluster="a")
    with pytest.raises(TaskError, match="'neutral', which is none of entailment, non-entailment"):
        Task("t", NLI, (Split("x", "id", whole, HANS),))
    with pytest.raises(TaskError, match="no label in row 0"):
        Task("t", NLI, (Split("x", "id", whole.assign(label=None)),))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "jsonl", "json", "saved"])
def test_from_files_reads_every_format(tmp_path: Path, suffix: str) -> None:
    both = pd.concat([nli(6).assign(split="train"), nli(4, "q").assign(split="validation")])
    both["hypothesis"] += ', "NA" é'
    path = tmp_path / f"own_nli.{suffix}"
    if suffix == "parquet":
        both.to_parquet(path)
    elif suffix == "csv":
        both.to_csv(path, index=False)
    elif suffix == "tsv":
        write_tsv(both, path)
    elif suffix == "jsonl":
        both.to_json(path, orient="records", lines=True)
    elif suffix == "json":
        both.to_json(path, orient="records")
    else:
        path = tmp_path / "own_nli"
        parts = {name: part.drop(columns="split") for name, part in both.groupby("split")}
        made = {name: datasets.Dataset.from_pandas(part, preserve_index=False) for name, part in parts.items()}
        datasets.DatasetDict(made).save_to_disk(str(path))  # type: ignore[arg-type]
    task = Task.from_files("own", train=f"{path}:train", id=f"{path}:validation", labels=NLI)
    assert [(s.name, len(s)) for s in task.splits] == [("train", 6), ("own-nli-validation", 4)]
    assert list(task.splits[1].data["text_b"]) == [f'h {i}, "NA" é' for i in range(4)]
    with pytest.raises(TaskError, match=r"say which, e\.g\."):
        Task.from_files("own", id=path, labels=NLI)
    with pytest.raises(TaskError, match="no split 'test': it has train, validation"):
        Task.from_files("own", id=f"{path}:test", labels=NLI)


def test_from_files_joins_lists_and_takes_class_names(tmp_path: Path) -> None:
    nli(6).to_parquet(tmp_path / "a.parquet")
    nli(4, "q").to_parquet(tmp_path / "b.parquet")
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"),
         "label": datasets.ClassLabel(names=["contradiction", "entailment", "neutral"])}
    )  # fmt: skip
    rows = {"premise": ["x", "y"], "hypothesis": ["x", "y"], "label": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    task = Task.from_files(
        "own", train=[tmp_path / "a.parquet", tmp_path / "b.parquet"], id=tmp_path / "saved", labels=NLI
    )
    assert len(task.split("train")) == 10
    # By the names stored with the data, not by the position in the task's labels.
    assert list(task.split("saved").data["label"]) == ["contradiction", "entailment"]


def test_bad_files_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"premise": "a"\n')
    (tmp_path / "notes.xlsx").write_text("x")
    (tmp_path / "latin.csv").write_bytes(b"premise,hypothesis,label\ncaf\xe9,b,neutral\n")
    nli().to_csv(tmp_path / "plain.csv", index=False)
    cases = {
        "broken.parquet": "cannot read",
        "empty.csv": "cannot read",
        "broken.jsonl": "cannot read",
        "latin.csv": "cannot read",
        "notes.xlsx": "no file that is read",
        "absent.csv": "there is no file",
        "plain.csv:train": "no column 'split' to take 'train' from",
        "": "a folder, but not one that datasets",
    }
    for name, message in cases.items():
        with pytest.raises(TaskError, match=message) as error:
            Task.from_files("t", id=f"{tmp_path / name}" if name else tmp_path, labels=NLI)
        assert "\n" not in str(error.value)


# --- known tasks from files in the form they are distributed in -----------------------------------


def mnli_tsv(n: int, dev: bool) -> pd.DataFrame:
    frame = nli(n, "dev" if dev else "train")
    annotators = {f"label{i}": frame["label"] for i in range(1, 6 if dev else 2)}
    return pd.DataFrame(
        {
            "index": range(n), "promptID": range(n), "pairID": range(n), "genre": frame["genre"],
            "sentence1_binary_parse": "( a )", "sentence2_binary_parse": "( b )",
            "sentence1_parse": "(ROOT a)", "sentence2_parse": "(ROOT b)",
            "sentence1": '"Said ' + frame["premise"], "sentence2": frame["hypothesis"],
            **annotators, "gold_label": frame["label"],
        }
    )  # fmt: skip


def test_mnli_from_glue_folders_and_hans_txt(tmp_path: Path) -> None:
    folder = tmp_path / "glue_data" / "MNLI"
    write_tsv(mnli_tsv(6, dev=False), folder / "train.tsv")
    write_tsv(mnli_tsv(4, dev=True), folder / "dev_matched.tsv")
    write_tsv(mnli_tsv(5, dev=True), folder / "dev_mismatched.tsv")
    # GLUE's archive brings the originals along; they must not be taken instead.
    (folder / "original").mkdir()
    for part in ("train", "dev_matched", "dev_mismatched"):
        path = folder / "original" / f"multinli_1.0_{part}.jsonl"
        mnli_tsv(9, dev=False).to_json(path, orient="records", lines=True)
    write_tsv(hans_rows(), tmp_path / "hans" / "heuristics_evaluation_set.txt")
    write_tsv(hans_rows().assign(sentence1="other"), tmp_path / "hans" / "heuristics_train_set.txt")
    task = load_task("MNLI", tmp_path)
    sizes = {split.name: (split.role, len(split)) for split in task.splits}
    assert sizes == {
        "train": ("train", 6),
        "matched": ("id", 4),
        "mismatched": ("id", 5),
        "SO-Swap": ("ood", 1),
        "Prep": ("ood", 1),
        "lexical_overlap_le_around_prepositional_phrase": ("companion", 1),
        "lexical_overlap_le_passive": ("companion", 1),
        "constituent_ce_adverb": ("extra", 1),
        "constituent_cn_adverb": ("extra", 1),
        "HANS-train": ("extra", 6),
    }
    assert task.labels == NLI and task.sparsities == (0.5, 0.7)
    assert list(task.split("matched").data["text_a"]) == [f'"Said dev {i // 2}' for i in range(4)]
    assert list(task.split("matched").data["group"]) == ["travel", "fiction"] * 2
    swap = task.split("ln_subject/object_swap")
    assert swap is task.split("lexical_overlap_ln_subject-object_swap") is task.split("SO-Swap")
    assert swap.data.iloc[0].to_dict() == {
        "text_a": 'The "judge" saw 0 .', "text_b": "The judge 0 .", "label": "non-entailment",
        "group": "temp1", "cluster": 'The "judge" saw 0 .',
    }  # fmt: skip
    assert swap.companion == "lexical_overlap_le_passive"
    assert all(split.label_names(NLI) == ("entailment", "non-entailment") for split in task.splits[3:])
    assert set(task.split("HANS-train").data["group"]) >= {"SO-Swap", "constituent_cn_adverb"}
    assert [split.name for split in task.select()][:4] == ["matched", "mismatched", "SO-Swap", "Prep"]


def test_multinli_jsonl_drops_rows_without_a_gold_label(tmp_path: Path) -> None:
    folder = tmp_path / "multinli_1.0"
    folder.mkdir()
    for name, n in (("train", 6), ("dev_matched", 4), ("dev_mismatched", 3)):
        frame = nli(n, name).rename(columns={"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"})
        frame["annotator_labels"] = [["neutral"]] * n
        if name != "train":
            frame.loc[0, "gold_label"] = "-"
        frame.to_json(folder / f"multinli_1.0_{name}.jsonl", orient="records", lines=True)
        write_tsv(frame, folder / f"multinli_1.0_{name}.txt")  # the archive has both forms
    hans_rows().to_json(tmp_path / "heuristics_evaluation_set.jsonl", orient="records", lines=True)
    task = load_task("mnli", tmp_path, subcases="all")
    assert [(split.name, len(split)) for split in task.with_role("train", "id")] == [
        ("train", 6), ("matched", 3), ("mismatched", 2),
    ]  # fmt: skip
    assert len(task.with_role("ood")) == 6 and not task.with_role("companion", "extra")


def test_mnli_from_a_saved_folder_with_class_labels(tmp_path: Path) -> None:
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"),
         "label": datasets.ClassLabel(names=list(NLI))}
    )  # fmt: skip
    rows = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0]}
    other = {"premise": ["x", "y"], "hypothesis": ["c", "d"], "label": [1, -1]}
    hidden = {**rows, "label": [-1, -1]}
    parts = {
        "train": rows, "validation_matched": other, "validation_mismatched": rows, "test_matched": hidden,
    }  # fmt: skip
    made = {name: datasets.Dataset.from_dict(part, features=features) for name, part in parts.items()}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "mnli"))  # type: ignore[arg-type]
    with pytest.warns(CoreLensWarning) as caught:
        task = load_task("mnli", tmp_path / "mnli")
    assert any("no out-of-domain split" in str(w.message) for w in caught)
    found = {split.name: list(split.data["label"]) for split in task.splits}
    assert found == {
        "train": ["contradiction", "entailment"],
        "matched": ["neutral"],
        "mismatched": ["contradiction", "entailment"],
    }


def test_the_file_names_an_unofficial_split(tmp_path: Path) -> None:
    both = pd.concat([nli(6).assign(split="train"), nli(4, "q").assign(split="validation")])
    both.to_parquet(tmp_path / "mnli_dev.parquet")
    both.to_parquet(tmp_path / "snli_dev.parquet")
    with pytest.warns(CoreLensWarning, match="no out-of-domain split"):
        task = load_task("mnli", tmp_path)
    assert [split.name for split in task.splits] == ["train", "mnli-dev"]


def glue_frames() -> dict[str, tuple[str, pd.DataFrame, bool, list[object]]]:
    """Task -> (GLUE's folder, a miniature dev.tsv in its columns, whether it has a header, the labels)."""
    pair = {"sentence1": ["a b", "c"], "sentence2": ["d", "e"]}
    index = {"index": [0, 1]}
    quality = {"\ufeffQuality": ["1", "0"], "#1 ID": [1, 2], "#2 ID": [3, 4]}
    sts = {
        "genre": ["news", "web"],
        "filename": "f",
        "year": "y",
        "old_index": 1,
        "source1": "s",
        "source2": "s",
    }
    return {
        "qqp": (
            "QQP",
            pd.DataFrame({"id": [1, 2], "qid1": [1, 2], "qid2": [3, 4], "question1": ["a?", "b?"],
                          "question2": ["c?", "d?"], "is_duplicate": [0, 1]}),
            True,
            ["not_duplicate", "duplicate"],
        ),
        "rte": (
            "RTE",
            pd.DataFrame({**index, **pair, "label": ["not_entailment", "entailment"]}),
            True,
            ["not_entailment", "entailment"],
        ),
        "sst2": (
            "SST-2",
            pd.DataFrame({"sentence": ["good", "bad"], "label": [1, 0]}),
            True,
            ["positive", "negative"],
        ),
        "cola": (
            "CoLA",
            pd.DataFrame({"a": ["gj04", "gj04"], "b": [1, 0], "c": ["", "*"], "d": ["It is.", "Is it is."]}),
            False,
            ["acceptable", "unacceptable"],
        ),
        "mrpc": (
            "MRPC",
            pd.DataFrame({**quality, "#1 String": ["a", "b"], "#2 String": ["c", "d"]}),
            True,
            ["equivalent", "not_equivalent"],
        ),
        "qnli": (
            "QNLI",
            pd.DataFrame({**index, "question": ["a?", "b?"], "sentence": ["c", "d"],
                          "label": ["entailment", "not_entailment"]}),
            True,
            ["entailment", "not_entailment"],
        ),
        "stsb": (
            "STS-B",
            pd.DataFrame({**index, **sts, **pair, "score": ["5.000", "0.25"]}),
            True,
            [5.0, 0.25],
        ),
        "wnli": (
            "WNLI",
            pd.DataFrame({**index, **pair, "label": [1, 0]}),
            True,
            ["entailment", "not_entailment"],
        ),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:task 'qqp' has no out-of-domain split")
@pytest.mark.parametrize("name", glue_frames())
def test_glue_tsv(tmp_path: Path, name: str) -> None:
    folder, dev, header, labels = glue_frames()[name]
    text = next(c for c in ("sentence", "sentence1", "question1", "#1 String", "d") if c in dev)
    write_tsv(dev, tmp_path / folder / "dev.tsv", header)
    write_tsv(dev.assign(**{text: "training"}), tmp_path / folder / "train.tsv", header)
    write_tsv(pd.DataFrame({"index": [0], "sentence": ["x"]}), tmp_path / folder / "test.tsv")
    for where in (tmp_path, tmp_path / folder):
        task = load_task(name, where)
        assert [split.name for split in task.splits] == ["train", "validation"]
        assert list(task.split("validation").data["label"]) == labels
        assert (task.split("train").data["text_a" if name != "qnli" else "text_b"] == "training").all()
        assert task.split("validation").is_pair == (name not in ("sst2", "cola"))
    metric = {"cola": "mcc", "stsb": "pearson"}.get(name, "accuracy")
    assert task.metric == metric


def test_folder_without_a_telling_name(tmp_path: Path) -> None:
    frame = glue_frames()["rte"][1]
    (tmp_path / "mine").mkdir()
    frame.to_csv(tmp_path / "mine" / "validation.csv", index=False)
    frame.assign(sentence1="x").to_csv(tmp_path / "mine" / "train.csv", index=False)
    assert len(load_task("rte", tmp_path / "mine").split("validation")) == 2


def test_hub_layout_of_parquet_shards(tmp_path: Path) -> None:
    frame = glue_frames()["rte"][1].assign(label=[1, 0])
    (tmp_path / "rte").mkdir()
    for shard in range(2):
        frame.assign(sentence1=f"{shard}").to_parquet(tmp_path / "rte" / f"train-0000{shard}-of-00002.parquet")
    frame.to_parquet(tmp_path / "rte" / "validation-00000-of-00001.parquet")
    task = load_task("rte", tmp_path)
    assert {split.name: len(split) for split in task.splits} == {"train": 4, "validation": 2}
    assert list(task.split("validation").data["label"]) == ["not_entailment", "entailment"]


def test_paws_is_cut_by_answer_and_its_index_passed_over(tmp_path: Path) -> None:
    qqp = glue_frames()["qqp"][1]
    write_tsv(qqp, tmp_path / "QQP" / "dev.tsv")
    write_tsv(qqp.assign(question1="x"), tmp_path / "QQP" / "train.tsv")
    paws = pd.DataFrame(
        {"id": [1, 2, 3], "sentence1": ["b'a ?'", 'b"it \'s ?"', "plain b'"], "sentence2": ["c", "d", "e"],
         "label": [0, 1, 0]}
    )  # fmt: skip
    index = pd.DataFrame(
        {"id": [1], "qid1": [2], "sentence1": ["0/1"], "qid2": [3], "sentence2": ["1/0"], "label": [0]}
    )
    for name, part in (("train", paws.head(2)), ("dev_and_test", paws.tail(1))):
        write_tsv(index, tmp_path / "paws_qqp" / f"{name}.tsv")
        write_tsv(part, tmp_path / "paws_qqp" / "output" / f"{name}.tsv")
    task = load_task("qqp", tmp_path)
    assert [(s.name, s.role, len(s)) for s in task.splits] == [
        ("train", "train", 2), ("validation", "id", 2),
        ("PAWS", "ood", 2), ("PAWS-equivalent", "companion", 1),
    ]  # fmt: skip
    assert sorted(task.split("PAWS").data["text_a"]) == ["a ?", "plain b'"]
    assert list(task.split("PAWS-equivalent").data["text_a"]) == ["it 's ?"]
    assert set(task.split("PAWS").data["label"]) == {"not_duplicate"}
    assert task.split("PAWS").companion == "PAWS-equivalent"
    assert task.sparsities == (0.3, 0.6)


def test_short_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    qqp = glue_frames()["qqp"][1]
    for name in ("dev", "train"):
        write_tsv(qqp.assign(question1=name), tmp_path / "QQP" / f"{name}.tsv")
    with (tmp_path / "QQP" / "train.tsv").open("a") as file:
        file.write("9\t9\t9\tonly one question\n")
    with pytest.warns(CoreLensWarning) as caught:
        task = load_task("qqp", tmp_path)
    assert any("1 lines without a label" in str(w.message) for w in caught)
    assert len(task.split("train")) == 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"there is no RTE in data_dir=.*RTE/train\.tsv and dev\.tsv"):
        load_task("rte", tmp_path)
    with pytest.raises(TaskError, match="does not exist"):
        load_task("rte", tmp_path / "absent")
    (tmp_path / "rte.csv").write_text("x")
    with pytest.raises(TaskError, match=r"is a file: pass a folder.*Task\.from_files"):
        load_task("rte", tmp_path / "rte.csv")


def test_two_equal_finds_are_not_chosen_between(tmp_path: Path) -> None:
    frame = glue_frames()["rte"][1]
    for copy in ("old", "new"):
        for name in ("train", "dev"):
            write_tsv(frame, tmp_path / copy / "RTE" / f"{name}.tsv")
    with pytest.raises(TaskError, match="twice"):
        load_task("rte", tmp_path)


def test_missing_column_and_hidden_labels(tmp_path: Path) -> None:
    frame = glue_frames()["rte"][1]
    write_tsv(frame, tmp_path / "RTE" / "train.tsv")
    write_tsv(frame.drop(columns="label"), tmp_path / "RTE" / "dev.tsv")
    with pytest.raises(TaskError, match=r"no label column.*sentence1, sentence2"):
        load_task("rte", tmp_path)
    write_tsv(frame.assign(label=-1), tmp_path / "RTE" / "dev.tsv")
    with pytest.raises(TaskError, match="no labelled example"):
        load_task("rte", tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(TaskError, match=r"no task 'mnlii'.*did you mean 'mnli'"):
        load_task("mnlii")
    with pytest.raises(TaskError, match="there are mnli, qqp, rte"):
        load_task("translation")
    with pytest.raises(TaskError, match="subcases='all' are for 'mnli'"):
        load_task("rte", subcases="all")


@pytest.mark.parametrize("name", ["lab", "lab-gpt2", "LAB_GPT2"])
def test_the_lab_makes_its_own_task(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import core_lens.lab

    made = Task.from_dataframes("lab", id=nli(), labels=NLI)
    monkeypatch.setattr(core_lens.lab, "lab_task", lambda: made, raising=False)
    assert load_task(name) is made


# --- HANS -----------------------------------------------------------------------------------------


def test_subcases_choose_what_is_reported(tmp_path: Path) -> None:
    write_tsv(mnli_tsv(6, dev=False), tmp_path / "MNLI" / "train.tsv")
    write_tsv(mnli_tsv(4, dev=True), tmp_path / "MNLI" / "dev_matched.tsv")
    write_tsv(hans_rows(), tmp_path / "heuristics_evaluation_set.txt")
    task = load_task("mnli", tmp_path, subcases=["cn_adverb", "SO-Swap"])
    assert [split.name for split in task.with_role("ood")] == ["constituent_cn_adverb", "SO-Swap"]
    assert {split.name for split in task.with_role("companion")} == {
        "constituent_ce_adverb", "lexical_overlap_le_passive",
    }  # fmt: skip
    with pytest.raises(TaskError, match="no subcase 'ln_adverb': did you mean 'cn_adverb'"):
        load_task("mnli", tmp_path, subcases=["ln_adverb"])


def test_companions_have_the_other_answer_and_the_same_heuristic() -> None:
    assert len(COMPANIONS) == 30 and set(PAPER) <= set(COMPANIONS)
    for name, partner in COMPANIONS.items():
        heuristic = next(h for h in ("lexical_overlap", "subsequence", "constituent") if name.startswith(h))
        assert partner.startswith(heuristic + "_"), (name, partner)
        answers = {text.removeprefix(heuristic + "_")[1] for text in (name, partner)}  # ln_, se_ ...
        assert answers == {"e", "n"}, (name, partner)


# --- the hub --------------------------------------------------------------------------------------


def class_labelled(names: list[str], rows: dict[str, list]) -> datasets.Dataset:
    features = {
        column: datasets.ClassLabel(names=names) if column == "label" else datasets.Value("string") for column in rows
    }
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def test_mnli_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    rows = {"premise": ["a"], "hypothesis": ["b"], "label": [2]}
    glue = {
        "train": class_labelled(list(NLI), rows),
        "validation_matched": class_labelled(list(NLI), {**rows, "premise": ["m"]}),
        "validation_mismatched": class_labelled(list(NLI), {**rows, "premise": ["mm"]}),
        "test_matched": class_labelled(list(NLI), {**rows, "label": [-1]}),
    }
    h = hans_rows()
    columns = {c: list(h[c]) for c in ("heuristic", "subcase", "template")}
    texts = {"premise": list(h["sentence1"]), "hypothesis": list(h["sentence2"])}
    gold = {"label": [int(label == "non-entailment") for label in h["gold_label"]]}
    challenge = class_labelled(["entailment", "non-entailment"], {**texts, **gold, **columns})

    def load_dataset(path: str, name: str | None = None, **options: object) -> datasets.DatasetDict:
        asked.append((path, name, options))
        parts = {"train": challenge, "validation": challenge} if "hans" in path else glue
        return datasets.DatasetDict(parts)  # type: ignore[arg-type]

    monkeypatch.setattr(hub, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_task("mnli")
    assert asked == [
        ("nyu-mll/glue", "mnli", {"revision": None}),
        ("jhu-cogsci/hans", None, {"revision": "refs/convert/parquet"}),
    ]
    assert [split.name for split in task.with_role("train", "id")] == ["train", "matched", "mismatched"]
    assert list(task.split("matched").data["label"]) == ["contradiction"]
    assert list(task.split("SO-Swap").data["label"]) == ["non-entailment"]
    assert len(task.split("HANS-train")) == 6


def test_qqp_from_the_hub_with_local_paws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def load_dataset(path: str, name: str | None = None, **options: object) -> datasets.DatasetDict:
        asked.append((path, name))
        rows = {"question1": ["a"], "question2": ["b"], "label": [1]}
        parts = {"train": rows, "validation": {**rows, "question1": ["c"]}, "test": {**rows, "label": [-1]}}
        names = ["not_duplicate", "duplicate"]
        made: dict[Any, Any] = {k: class_labelled(names, v) for k, v in parts.items()}
        return datasets.DatasetDict(made)

    monkeypatch.setattr(hub, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.warns(CoreLensWarning, match="PAWS-QQP is not on the hub"):
        assert [split.name for split in load_task("qqp").splits] == ["train", "validation"]
    frame = pd.DataFrame({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1]})
    write_tsv(frame, tmp_path / "paws_qqp" / "dev_and_test.tsv")
    task = load_task("qqp", tmp_path)
    assert [split.name for split in task.splits] == ["train", "validation", "PAWS", "PAWS-equivalent"]
    assert asked == [("nyu-mll/glue", "qqp")] * 2


def test_a_failing_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: object, **options: object) -> None:
        raise OSError("Consistency check failed: file should be 3 bytes\nlong trace")

    monkeypatch.setattr(hub, "hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        TaskError, match=r"cannot load nyu-mll/glue \(rte\).*file should be 3 bytes; pass data_dir="
    ) as e:
        load_task("rte")
    assert "\n" not in str(e.value)


def test_offline_uses_the_cache_only_and_restores_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    before = (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
    seen = []

    def load_dataset(*args: object, **options: object) -> None:
        seen.append((datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE))
        raise ConnectionError("no")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(TaskError, match=r"cannot be reached.*pass data_dir= with a folder that holds RTE/train\.tsv"):
        load_task("rte")
    assert seen == [(True, True)]
    assert before == (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)


@pytest.mark.slow
def test_offline_for_real(tmp_path: Path) -> None:
    """datasets itself, told to stay offline, with an empty cache."""
    code = """if True:
        from core_lens.tasks import load_task
        try:
            load_task("mnli")
        except Exception as error:
            print(type(error).__name__, error)
    """
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("TaskError cannot load nyu-mll/glue (mnli)") and "data_dir=" in done.stdout
    assert len(done.stdout.splitlines()) == 1


# --- the real corpora -----------------------------------------------------------------------------


@needs_shared
def test_real_mnli_and_hans() -> None:
    task = load_task("mnli", SHARED)
    sizes = {split.name: len(split) for split in task.splits}
    assert sizes.pop("train") == 7834 and sizes.pop("mnli-dev") == 1981 and sizes.pop("HANS-train") == 30_000
    assert len(sizes) == 30 and set(sizes.values()) == {1000}
    assert [split.name for split in task.with_role("ood")] == ["SO-Swap", "Prep", "Embed-If", "Embed-Verb"]
    assert [task.split(split.companion or "").role for split in task.with_role("ood")] == ["companion"] * 4
    hans = [split for split in task.splits if split.collapse and split.name != "HANS-train"]
    single = [split for split in hans if split.data["group"].nunique() == 1]
    assert len(single) == 18  # of the 30 subcases, 18 have one template
    assert all(split.data["label"].nunique() == 1 for split in hans)
    for split in hans:
        assert split.companion is not None
        other = task.split(split.companion)
        assert set(split.data["label"]) | set(other.data["label"]) == {"entailment", "non-entailment"}
    # The paper's four: gold is non-entailment throughout, so calling everything entailment scores 0.
    always = np.tile([1.0, 0.0, 0.0], (1000, 1))
    assert [(s.predictions(always, task.labels) == s.data["label"]).sum() for s in task.with_role("ood")] == [0] * 4


@needs_shared
def test_real_nli_folder_has_no_hans() -> None:
    with pytest.warns(CoreLensWarning, match="no HANS"):
        task = load_task("mnli", SHARED / "nli")
    assert [split.name for split in task.splits] == ["train", "mnli-dev"]


@needs_shared
def test_real_paws() -> None:
    from core_lens.tasks.glue import paws_splits

    not_equivalent, equivalent = paws_splits(pd.read_parquet(SHARED / "paws_qqp" / "paws_qqp.parquet"))
    assert (len(not_equivalent), len(equivalent)) == (8696, 3967)


@needs_shared
def test_paws_alone_asks_the_hub_for_qqp(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: object, **options: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(TaskError, match="a folder that holds QQP, too"):
        load_task("qqp", SHARED)


@needs_shared
@pytest.mark.parametrize(
    ("name", "train", "held_out", "metric"),
    [
        ("rte", 2490, 277, "accuracy"),
        ("mrpc", 4075, 1724, "accuracy"),
        ("cola", 7250, 1043, "mcc"),
        ("sst2", 60614, 6735, "accuracy"),
        ("stsb", 5749, 1500, "pearson"),
    ],
)
def test_real_glue(name: str, train: int, held_out: int, metric: str) -> None:
    task = load_task(name, SHARED)
    assert [(s.name, len(s)) for s in task.splits] == [("train", train), (f"{name}-validation", held_out)]
    assert task.metric == metric


@needs_shared
def test_a_mixture_of_mnli_and_snli() -> None:
    files = {name: SHARED / "nli" / f"{name}_dev.parquet" for name in ("mnli", "snli")}
    task = Task.from_files(
        "nli", train=[f"{path}:train" for path in files.values()], id=f"{files['mnli']}:validation",
        ood={"snli": f"{files['snli']}:validation"}, labels=NLI,
    )  # fmt: skip
    assert {split.name: len(split) for split in task.splits} == {
        "train": 7834 + 7963, "mnli-dev-validation": 1981, "snli": 1879,
    }  # fmt: skip
