"""Dyck strings: the published source's statistics, structure and depth by hand, and what each split promises."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

import core_lens
from core_lens import CoreLensError, dyck
from core_lens.dyck import make

WEIGHTS = Path(dyck.__file__).parent / "weights"

K = 3
STRING = np.array([6, 0, 1, 4, 2, 0, 3, 5, 3, 1, 4, 7])  # < ( [ ] { ( ) } ) [ ] >


def test_depth_openers_and_components_by_hand():
    assert dyck.depths(STRING, K).tolist() == [0, 1, 2, 2, 2, 3, 3, 2, 1, 1, 1, 0]
    assert dyck.openers(STRING, K).tolist() == [-1, -1, -1, 2, -1, -1, 5, 4, 1, -1, 9, -1]
    assert dyck.components(STRING, K) == [b"(()(()))", b"()"]
    assert dyck.Dyck(K, 3).text(STRING) == "< (0 (1 )1 (2 (0 )0 )2 )0 (1 )1 >"


def test_scored_closings_are_ten_tokens_from_their_opener():
    for inside, expected in ((4, False), (5, True)):  # 8 and 10 brackets between the outer pair: 9 and 11 tokens away
        string = np.array([6, 0, *[1, 4] * inside, 3, 7])
        assert dyck.scored(string, K).tolist() == [False] * (2 * inside + 2) + [expected, False]
    string = np.array([6, 0, 1, *[1, 4] * 4, 4, 3, 7])  # the inner pair is 9 tokens apart, the outer 11
    assert dyck.scored(string, K).nonzero()[0].tolist() == [12]


@pytest.mark.parametrize("string", [[6, 0, 4, 7], [6, 3, 7]])
def test_unbalanced_strings_are_named(string):
    with pytest.raises(CoreLensError, match="closes a bracket of type"):
        dyck.openers(string, K)


def test_samples_are_balanced_within_depth_and_length():
    language = dyck.Dyck(K, 4, 40)
    strings = language.sample(2000, np.random.default_rng(0))
    assert len(strings) == 2000
    for string in strings:
        stack, deepest = [], 0
        assert (string[0], string[-1]) == (6, 7) and 4 <= len(string) - 2 <= 40
        for token in string[1:-1]:
            if token < K:
                stack.append(token)
            else:
                assert stack.pop() == token - K
            deepest = max(deepest, len(stack))
        assert not stack and deepest <= 4


def test_choices_are_half_and_half():
    """Given what may follow: ends at depth 0, opens between, types."""
    strings = dyck.Dyck(K, 3).sample(20_000, np.random.default_rng(1))
    ends = opens = n_zero = n_between = 0
    types = np.zeros(K)
    for string in strings:
        depth = 0
        for position, token in enumerate(string[1:]):
            if depth == 0 and position >= 4:
                n_zero, ends = n_zero + 1, ends + (token == 7)
            elif depth == 3:
                assert token >= K
            elif depth:
                n_between, opens = n_between + 1, opens + (token < K)
            depth += 1 if token < K else -1
            if token < K:
                types[token] += 1
    for part, whole in ((ends, n_zero), (opens, n_between)):
        assert abs(part / whole - 0.5) < 4 * 0.5 / whole**0.5
    assert np.abs(types / types.sum() - 1 / 3).max() < 0.01


def test_lengths_are_the_published_sources():
    """Of 200,000 strings of Dyck-(20, 10) without a cap: mean 49.9, median 14, p99 374."""
    lengths = [len(s) - 2 for s in dyck.Dyck(max_length=2000).sample(40_000, np.random.default_rng(2))]
    assert np.mean(lengths) == pytest.approx(49.9, abs=1.5) and abs(np.median(lengths) - 14) <= 2
    assert np.quantile(lengths, 0.99) == pytest.approx(374, rel=0.06)


@pytest.fixture(scope="module")
def data():
    return dyck.splits(n_train=4000, n_test=300, seed=5)


def test_splits_are_what_they_say(data):
    """Read again from the text of each string."""
    assert {name: len(part) for name, part in data.items()} == {s: 4000 if s == "train" else 300 for s in dyck.SPLITS}

    def parts(tokens):
        found, depth, start = [], 0, 0
        shape = "".join("(" if t < 20 else ")" for t in tokens[1:-1])
        for i, c in enumerate(shape):
            depth += 1 if c == "(" else -1
            if depth == 0:
                found.append(shape[start : i + 1])
                start = i + 1
        return found

    def depth(tokens):
        return max(np.cumsum([1 if t < 20 else -1 for t in tokens[1:-1]]))

    train = {tuple(tokens) for tokens in data["train"]["tokens"]}
    known = {part for tokens in train for part in parts(tokens)}
    for name in dyck.SPLITS[1:]:
        strings = [tuple(tokens) for tokens in data[name]["tokens"]]
        assert len(set(strings)) == 300 and not train & set(strings)
        assert data[name]["depth"] == [depth(s) for s in strings]
        seen = [all(part in known for part in parts(s)) for s in strings]
        lengths = np.array([len(s) - 2 for s in strings])
        if name == "seen-structure":
            assert all(seen)
        elif name.startswith("unseen-structure"):
            assert not any(seen) and max(data[name]["depth"]) <= 10
            assert (lengths <= 32).all() if name.endswith("short") else (lengths > 32).all()
        elif name == "unseen-depth":
            assert min(data[name]["depth"]) > 10 and max(data[name]["depth"]) <= 20
        else:
            assert 0 < sum(seen) < 300


def test_a_seed_gives_the_same_splits(data):
    again = dyck.splits(n_train=4000, n_test=300, seed=5)
    assert all(again[name]["tokens"] == data[name]["tokens"] for name in dyck.SPLITS)
    assert dyck.splits(n_train=50, n_test=5, seed=6)["train"]["tokens"] != data["train"]["tokens"][:50]


@pytest.mark.slow
def test_shares_of_a_fresh_sample_at_full_size():
    """Against 200,000 training strings: about 38 % of unseen structure, 38 % seen and new, 24 % exact duplicates."""
    language = dyck.Dyck()
    strings = language.sample(220_000, np.random.default_rng(3))
    train, fresh = strings[:200_000], strings[200_000:]
    known = {part for s in train for part in dyck.components(s, 20)}
    taken = {s.tobytes() for s in train}
    unseen = np.array([not all(p in known for p in dyck.components(s, 20)) for s in fresh])
    twice = np.array([s.tobytes() in taken for s in fresh])
    assert unseen.mean() == pytest.approx(0.38, abs=0.02) and twice.mean() == pytest.approx(0.24, abs=0.02)


def accuracy(strings):
    """Of the shipped network by HF alone, at closings at least ten tokens from their opener, which a stack finds."""
    network = GPT2LMHeadModel.from_pretrained(WEIGHTS).eval()
    right = []
    for string in strings:
        with torch.no_grad():
            said = network(torch.from_numpy(string)[None]).logits[0, :, 20:40].argmax(dim=-1) + 20
        stack = []
        for i, token in enumerate(string.tolist()):
            if token < 20:
                stack.append(i)
            elif token < 40 and i - stack.pop() >= 10:
                right.append(said[i - 1] == token)
    return np.mean(right), len(right)


def carded():
    rows = re.findall(r"^\| ([\w-]+) \| (\d\.\d+) \|", (WEIGHTS.parent / "MODEL_CARD.md").read_text(), flags=re.M)
    return {name: float(value) for name, value in rows}


def test_the_shipped_model_does_what_its_card_says():
    rng = np.random.default_rng(77)
    inside = accuracy(dyck.Dyck().sample(150, rng))[0]
    deep = [s for s in dyck.Dyck(m=20).sample(250, rng) if dyck.depths(s, 20).max() > 10][:25]
    card = carded()
    assert list(card) == list(dyck.SPLITS[1:])
    assert card["iid"] > 0.99 and card["seen-structure"] > 0.99 and card["unseen-structure-long"] > 0.99
    assert inside == pytest.approx(card["iid"], abs=0.01)
    assert accuracy(deep)[0] == pytest.approx(card["unseen-depth"], abs=0.06)
    assert card["unseen-depth"] < 0.85  # what the illusions are about


def test_the_shipped_model_is_hooked():
    model = dyck.load_model()
    info = core_lens.model_info(model)
    assert (info.n_layers, info.n_heads, info.problem_type) == (2, 1, "language_modeling")
    ids = torch.tensor([[40, 0, 1, 21, 20, 41]])
    network = GPT2LMHeadModel.from_pretrained(WEIGHTS).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids), network(ids).logits, atol=1e-5, rtol=0)


def test_making_it(tmp_path, monkeypatch, capsys, data):
    monkeypatch.setattr(make, "splits", lambda: data)
    monkeypatch.setattr(
        sys, "argv", ["make", "--folder", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--steps", "2"]
    )
    threads = torch.get_num_threads()
    try:
        make.main()
    finally:
        torch.set_num_threads(threads)
    said = capsys.readouterr().out
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "2 steps of 128 strings" in card and "| unseen-depth | 0." in card and "unseen-depth" in said
    assert sorted(path.name for path in (tmp_path / "out" / "weights").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "out" / "weights").num_parameters() == 43_264


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dyck.Dyck(k=0), "k=0 must be"),
        (lambda: dyck.completions({}, n=0), "n=0 must be"),
        (lambda: dyck.completions(dyck.splits(3, 3, n_train=50, n_test=5, max_length=40)), "none of Dyck with k=20"),
        (lambda: dyck.Dyck(max_length=2), "max_length=2 must be"),
        (lambda: dyck.splits(n_train=0), "n_train=0 must be"),
        (lambda: dyck.splits(k=1, m=1, n_train=3000, n_test=300, max_length=8), "belong to 'iid'"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(CoreLensError, match=message):
        call()
