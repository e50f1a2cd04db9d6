"""Whatever a user may pass ends in a result or in one sentence: properties over generated input (hypothesis).

`CORE_LENS_EXAMPLES=2000 pytest tests/test_bad_input.py` tries more of it.
"""

import os
import re
import string
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import core_lens
from builders import frame, hooked, random_task
from core_lens import Core, CoreLensError, Subnetwork, Task, evaluate, plan
from core_lens.ablation import ZeroActivations
from core_lens.hooked import model_info
from core_lens.pruners import HardConcretePruner, ImportancePruner
from core_lens.tasks import class_order
from tiny_models import LABELS

TRIED = int(os.environ.get("CORE_LENS_EXAMPLES", "60"))
settings.register_profile(
    "here", max_examples=TRIED, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("here")

MODEL = hooked("bert")
TASK = random_task(20)

# Control characters, NUL, right-to-left, combining, emoji, a lone surrogate is no text that a file can hold
ODD = [
    "",
    " ",
    "\x00",
    "\x1b[31m",
    "\u202eabc",
    "שלום עולם",
    "مرحبا",
    "👩‍👩‍👧‍👦" * 3,
    "e\u0301" * 50,
    "\ufeff",
    "word " * 10_000,
    "a",
    "\n\t\r",
]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=60), st.text(string.ascii_letters + " ", max_size=200))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 200), st.floats(), st.text(max_size=8),
    st.sampled_from(["dev", "hard", "train", "all"]), st.just(np.float64(0.5)), st.just(np.int64(3)),
    st.lists(st.one_of(st.integers(-2, 3), st.floats(), st.text(max_size=4)), max_size=3), st.just(b"x"), st.just({}),
    st.dictionaries(st.text(max_size=4), st.floats(), max_size=2), st.just(object()),
)  # fmt: skip


def result_or_sentence(call):
    """The result, or None where a CoreLensError of one line says what is wrong; anything else is a failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except CoreLensError as error:
        text = str(error)
        assert len(text) > 15 and "\n" not in text.strip() and len(text) < 3000, text
        return None


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_texts(pairs):
    """Empty, one token, 10,000 tokens, emoji, right-to-left, control characters, NUL: all are read."""
    data = pd.DataFrame(pairs, columns=["text_a", "text_b"]).assign(label="neutral")
    task = Task.from_dataframes("odd", id=data, labels=LABELS)
    table = result_or_sentence(lambda: evaluate(MODEL, task))
    assert table is not None
    accuracy = table.query("metric == 'accuracy' and group == 'all'")["value"]
    assert accuracy.between(0, 1).all() and len(accuracy) == 1


CELLS = st.one_of(
    st.none(), st.just(float("nan")), st.integers(-2, 3), st.floats(), TEXTS, st.sampled_from(LABELS), st.booleans()
)


@given(
    st.dictionaries(
        st.sampled_from(["text_a", "text_b", "label", "group", "cluster", "premise", "sentence", "x", ""]),
        st.lists(CELLS, min_size=3, max_size=3), max_size=5,
    ),
    st.one_of(st.none(), st.sampled_from([LABELS, ("a", "b"), (), ("neutral", "neutral")])),
    st.sampled_from(["accuracy", "mcc", "pearson", "f1", ""]),
)  # fmt: skip
def test_frames(columns, labels, metric):
    made = result_or_sentence(lambda: Task.from_dataframes("t", id=pd.DataFrame(columns), labels=labels, metric=metric))
    if made is not None:
        assert made.fingerprint() and len(made.splits[0]) == 3
        result_or_sentence(lambda: evaluate(MODEL, made))


KEYS = st.one_of(
    st.integers(-1, 4), st.sampled_from(["LABEL_0", "LABEL_1", "LABEL_2", *LABELS]), st.text(max_size=4), st.none()
)


@given(
    st.dictionaries(KEYS, st.one_of(st.sampled_from(LABELS), st.text(max_size=5), st.none(), st.integers()), max_size=4)
)
def test_label_maps(names):
    order = result_or_sentence(lambda: class_order(model_info(MODEL).id2label, TASK, names))
    if order is not None:
        assert sorted(order) == [0, 1, 2]


NAMES = ["sparsities", "seeds", "pruner", "preset", "prune_on", "units", "ablation", "positions", "splits", "max_examples",
         "mean_examples", "batch_size", "dtype", "autocast", "label_map", "device", "data_dir"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))
def test_configurations(options):
    job = result_or_sentence(lambda: plan(MODEL, TASK, **{"sparsities": 0.5, "seeds": 1, **options}))
    if job is not None:
        assert all(0 < s < 1 for s in job.sparsities) and job.seeds and job.reported
    MODEL.to("cpu")


@given(st.sampled_from(["HardConcretePruner", "ImportancePruner"]), st.data())
def test_pruners(name, data):
    kind = {"HardConcretePruner": HardConcretePruner, "ImportancePruner": ImportancePruner}[name]
    fields = sorted(kind.__dataclass_fields__)
    options = data.draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=2))
    made = result_or_sentence(lambda: kind(**options))
    if made is not None:
        assert made.config() and made.name


@given(st.lists(st.one_of(st.from_regex(r"L\d{1,2}\.(H\d{1,2}|MLP)", fullmatch=True), st.text(max_size=6))))
def test_masks(names):
    zero = ZeroActivations(model_info(MODEL).weight_hash)
    made = result_or_sentence(lambda: Subnetwork.of(MODEL, names, zero))
    if made is not None:
        wanted = {re.sub(r"[0-9]+", lambda n: str(int(n[0])), name.strip().upper()) for name in names}  # H07 is H7
        assert set(map(str, made.components)) == wanted


@given(
    st.binary(max_size=300),
    st.sampled_from(["run.json", "x.safetensors", "x.parquet", "x.csv", "x.tsv", "x.json", "x.jsonl"]),
)
def test_files(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("files")
    (folder / name).write_bytes(content)
    if name == "run.json":
        assert result_or_sentence(lambda: Core.load(folder)) is None
    elif name.endswith("safetensors"):
        assert result_or_sentence(lambda: Subnetwork.load(folder / name)) is None
    else:
        result_or_sentence(lambda: Task.from_files("t", id=folder / name))


@given(st.text(max_size=30))
def test_models(name):
    if not Path(name).exists():
        old = os.environ.get("HF_HUB_OFFLINE")
        assert result_or_sentence(lambda: core_lens.load_model(Path("/nowhere") / name.replace("\x00", "0"))) is None
        assert os.environ.get("HF_HUB_OFFLINE") == old


def test_the_checks_see_something():
    """A mistake of another kind is not taken for a sentence."""
    with pytest.raises(ZeroDivisionError):
        result_or_sentence(lambda: 1 / 0)
    with pytest.raises(AssertionError):
        result_or_sentence(lambda: (_ for _ in ()).throw(CoreLensError("no")))
    assert len(frame(3)) == 3
