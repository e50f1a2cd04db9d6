"""Source code for a language model: characters, kinds of them, and what is held out."""

import numpy as np
import pytest

from core_lens import CoreLensError, code


def kinds(text):
    names = {code.REPEATED: "r", code.NEW: "n", "other": "."}
    return "".join(names[kind] for kind in code.kinds(code.tokens_of(text)))


def test_kinds_by_hand():
    text = "def add(a, add_b):\n    return add(a, b2) + add_b"
    # words: def, add (new), a, add_b (new), return (new), add (repeated), a, b2 (new), add_b (repeated)
    expected = list(" " * len(text))
    expected[0:3] = ".nn"
    expected[4:7] = ".nn"
    expected[11:16] = ".nnnn"
    expected[23:29] = ".nnnnn"
    expected[30:33] = ".rr"
    expected[37:39] = ".n"
    expected[43:48] = ".rrrr"
    assert kinds(text) == "".join(char if char != " " else "." for char in expected)
    assert kinds("if elif if") == ".n..nnn..r"
    assert kinds("2x x x") == "......"  # digits begin no word; words of one character have none to go on with


def test_characters_go_back_and_forth():
    text = "\tx = 'é€😀'\n~"
    tokens = code.tokens_of(text)
    assert len(tokens) == len(text)
    assert tokens.max() == code.OTHER == 97
    assert code.text_of(tokens) == "\tx = '\ufffd\ufffd\ufffd'\n~"


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lines(word, n=40):
    return "".join(f"{word}_{i} = call({word}, {i})\n" for i in range(n))


@pytest.fixture
def folders(tmp_path):
    for i in range(10):
        write(tmp_path / "python", f"part{i}/one.py", lines(f"part{i}"))
        write(tmp_path / "python", f"part{i}/tests/two.py", lines("hidden"))
    write(tmp_path / "python", "part0/made.py", "x = [" + "1, " * 500 + "]\n")  # one long line: data
    write(tmp_path / "python", "part0/few.js", lines("script"))
    for i in range(3):
        write(tmp_path / "c", f"{i}.c", lines(f"int{i}"))
    return tmp_path


def test_pieces_begin_with_lines_and_are_unique(folders):
    path = folders / "python/part3/one.py"
    rows = [code.text_of(row) for row in code.sequences([path, path])]
    assert "".join(rows) == path.read_text()  # nothing is lost, nothing twice
    assert all(len(row) <= code.LENGTH and row.startswith("part3_") and row.endswith("\n") for row in rows)


def test_nothing_asked_is_trained_on(folders):
    train, asked = code.splits(folders / "python", {"C": folders / "c"}, n=7, held_out=0.3)
    assert [*asked] == ["Python", "Python, repeated words", "Python, new words", "C"]
    trained = "".join(code.text_of(row) for row in train)
    inside = {i for i in range(10) if f"part{i}_" in trained}
    assert len(inside) == 7
    tested = code.text_of(asked["Python"].encoded.ids.numpy())
    assert {i for i in range(10) if f"part{i}_" in tested} <= set(range(10)) - inside
    for word in ("hidden", "script", "1, 1, 1"):
        assert word not in trained and word not in tested
    whole = asked["Python"]
    assert len(whole.encoded) == 7
    assert len(whole.asked) == len(whole.encoded.ids) - 7  # every character but the first
    parts = [asked["Python, repeated words"], asked["Python, new words"]]
    assert [set(part.asked["kind"]) for part in parts] == [{code.REPEATED}, {code.NEW}]
    assert sum(len(part.asked) for part in parts) == (whole.asked["kind"] != "other").sum()
    assert "int1_" in code.text_of(asked["C"].encoded.ids.numpy())
    again, _ = code.splits(folders / "python", {"C": folders / "c"}, n=7, held_out=0.3)
    assert all(np.array_equal(a, b) for a, b in zip(train, again, strict=True))


@pytest.mark.parametrize(("change", "message"), [
    ({"folder": "nowhere"}, "nowhere is no folder"),
    ({"folder": "empty"}, "has no source files"),
    ({"folder": "c", "held_out": 0.01}, "3 files and folders with C and C"),
    ({"n": 0}, "n=0"),
    ({"held_out": 1.0}, "held_out=1.0"),
    ({"others": {"Python again": "python"}, "held_out": 0.3}, None),
    ({"others": {"Python": "c"}, "held_out": 0.3}, "others has 'Python', which is the name of a split already"),
    ({"others": {"Python, new words": "c"}, "held_out": 0.3}, "which is the name of a split"),
    ({"seed": -1}, "seed=-1"),
    ({"held_out": "a"}, "held_out='a'"),
    ({"others": {"Nothing": "empty"}}, "has no source files"),
])  # fmt: skip
def test_mistakes_are_named(folders, change, message):
    (folders / "empty").mkdir()
    given = {"folder": "python", "others": {}, **change}
    given = {
        **given,
        "folder": folders / given["folder"],
        "others": {k: folders / v for k, v in given["others"].items()},
    }
    if message is None:
        # What is left of the same folder is what nothing was trained on.
        train, asked = code.splits(**given)
        taken = {row.tobytes() for row in train}
        again = asked["Python again"].encoded
        parts = np.split(again.ids.numpy().astype(np.int64), np.cumsum(again.lengths.numpy())[:-1])
        assert not [part for part in parts if part.tobytes() in taken]
        return
    with pytest.raises(CoreLensError, match=message):
        code.splits(**given)
