"""Attention views, pages and notebook blocks: right patterns, text that stays text, and a browser that draws them offline."""

import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from builders import frame, hooked, random_task
from core_lens import Core, Subnetwork, ZeroActivations, load_model, model_info
from core_lens.components import Component, ComponentSet
from core_lens.errors import CoreLensError, SavedFileError, TaskError
from core_lens.tasks import Split, Task
from core_lens.viz.attention import AttentionView, Example, show
from core_lens.viz.html import page, script_data, table, write_page
from core_lens.viz.notebook import core_html, subnetwork_html, task_html
from tiny_models import DECODERS, tiny_model, tiny_tokenizer

PAIR = ("the doctor saw the judge", "the judge ran .")
HOSTILE = (
    "</script><script>document.title='pwned'</script>",
    "<script>alert(1)</script>",
    "<!--",
    "-->",
    "<!--<script>",
    "]]>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "' onload='document.title=1",
    '" autofocus onfocus="document.title=1',
    "</details></style></title></textarea>",
    "&lt;b&gt;&amp;amp;",
    "\\u003c/script\\u003e",
    "a\u2028b\u2029c",
    "${1}`",
    "\u202egnirts",
    "\ud800",
    "{{x}}",
)


class Parsed(HTMLParser):
    """A page as a parser cuts it: tags, attributes, code, JSON blocks, the words in spans, and all text outside scripts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self.data: list[str] = []
        self.words: list[str] = []
        self.text = ""
        self._inside: tuple[str, str | None] = ("", None)
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {f"{tag} {name}" for name, _ in attrs}
        kind = dict(attrs).get("type" if tag == "script" else "class")
        self._inside = (tag, kind)
        if tag == "script":
            (self.data if kind else self.scripts).append("")
        elif tag == "span":
            self.words.append("")

    def handle_endtag(self, tag):
        self._inside = ("", None)

    def handle_data(self, data):
        tag, kind = self._inside
        self.text += data * (tag != "script")
        if tag == "script":
            (self.data if kind else self.scripts)[-1] += data
        elif tag == "span":
            self.words[-1] += data


def a_view(
    tokens=("[CLS]", "a", "[SEP]", "b"), attention=None, n_heads=1, arch="bert", n_examples=1, **names
) -> AttentionView:
    """Made by hand, without a forward pass."""
    n = len(tokens)
    attention = np.full((n_heads, n, n), 1 / n) if attention is None else np.asarray(attention)
    segments = (None, *[0] * (n - 3), None, 1) if n > 3 else (0,) * n
    example = Example(
        names.get("origin", "dev"),
        names.get("gold", "x"),
        names.get("said", "y (50%)"),
        tuple(tokens),
        segments,
        attention,
    )
    info = replace(
        model_info(hooked(arch)), model_id=names.get("model", "m"), architecture=names.get("architecture", "A")
    )
    heads = tuple(Component(0, head) for head in range(len(attention)))
    return AttentionView(info, names.get("task", "t"), heads, (example,) * n_examples, ("premise", "hypothesis"))


@pytest.mark.parametrize("arch", ["bert", "roberta", "distilbert", "gpt2", "qwen2"])
def test_patterns_are_hfs_own_and_the_model_stays_as_it_was(arch):
    hf_model, tokenizer = tiny_model(arch), tiny_tokenizer(arch)
    model = load_model(hf_model, tokenizer=tokenizer, device="cpu")
    before = {name: len(point.fwd_hooks) for name, point in model.hook_dict.items()}
    view = show(model, ["L1.H1", Component(0, 1)], PAIR)
    (example,) = view.examples
    hf_model.set_attn_implementation("eager")
    ids = tokenizer(*PAIR, return_tensors="pt", return_token_type_ids=arch == "bert")
    with torch.no_grad():
        output = hf_model(**ids, output_attentions=True)
    expected = torch.stack([output.attentions[1][0, 1], output.attentions[0][0, 1]])
    np.testing.assert_allclose(example.attention, expected.numpy(), atol=1e-5)
    assert list(view.heads) == [Component(1, 1), Component(0, 1)]
    share, best = output.logits.softmax(-1)[0].max(0)
    assert example.said == f"{hf_model.config.id2label[int(best)]} ({share:.0%})"
    # later tokens are masked where, and only where, the model cannot see them
    upper = np.triu(np.ones_like(example.attention[0]), 1) * example.attention
    assert (upper.max() == 0) == (arch in DECODERS)
    assert ('"maskUpperTri":true' in view.page()) == (arch in DECODERS)
    assert model.original_model.config._attn_implementation == "sdpa"
    assert {name: len(point.fwd_hooks) for name, point in model.hook_dict.items()} == before


def test_it_works_in_bfloat16():
    model = load_model(tiny_model("bert"), tokenizer=tiny_tokenizer("bert"), device="cpu", dtype="bfloat16")
    (example,) = show(model, "L0.H0", PAIR).examples
    assert example.attention.dtype == np.float32
    np.testing.assert_allclose(example.attention.sum(-1), 1, atol=0.02)


def test_the_two_texts_are_told_apart():
    (example,) = show(hooked("bert"), "L0.H0", ("the doctor", "ran")).examples
    assert example.tokens == ("[CLS]", "the", "doctor", "[SEP]", "ran", "[SEP]")
    assert example.segments == (None, 0, 0, None, 1, None)
    view = show(hooked("gpt2"), "L0.H0", ("the doctor", "ran"))  # no separator, and no token types
    assert view.examples[0].segments == (0, 0, 1)
    parsed = Parsed(view.page())
    assert json.loads(parsed.data[0])["tokens"] == ["P:the", "P:doctor", "H:ran"]
    assert "premise (P)" in parsed.text and "hypothesis (H)" in parsed.text and parsed.words == ["the", "doctor", "ran"]
    single = Parsed(show(hooked("bert"), "L0.H0", "the doctor").page())
    assert json.loads(single.data[0])["tokens"] == ["[CLS]", "the", "doctor", "[SEP]"]
    assert "premise" not in single.text
    (empty,) = show(hooked("gpt2"), "L0.H0", "").examples
    assert empty.segments == (None,) and len(empty.tokens) == 1
    no_nli = load_model(tiny_model("bert", n_labels=2), tokenizer=tiny_tokenizer("bert"), device="cpu")
    assert "first text (1)" in show(no_nli, "L0.H0", PAIR).page()


def test_long_texts_are_cut_as_the_model_reads_them():
    task = replace(random_task(), max_length=9)
    with pytest.warns(UserWarning, match="longer than 9"):
        (example,) = show(
            hooked("bert"), "L0.H0", [("the doctor saw the judge near the lawyer", "the judge ran")], task
        ).examples
    # [CLS] and two [SEP]; 6 words are left, shared as evenly as they can be
    assert len(example.tokens) == 9 and example.segments.count(0) == example.segments.count(1) == 3


def test_tokens_read_as_their_tokenizer_writes_them():
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    start = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=start, special_tokens=["<s>"])
    byte_level.train_from_iterator(["the judge saw the judge"] * 5, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, bos_token="<s>", eos_token="<s>")
    model = load_model(tiny_model("gpt2", vocab=300), tokenizer=tokenizer, device="cpu")
    (example,) = show(model, "L0.H0", "the judge 猫").examples
    assert example.tokens[:2] == ("the", "judge")  # not Ġjudge
    assert (
        "".join(example.tokens[2:]) == "ĠçĮ«"
    )  # bytes that are no character by themselves stay as the tokenizer has them

    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "jud": 1, "##ge": 2, "[PAD]": 3}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]", pad_token="[PAD]")
    (example,) = show(load_model(tiny_model("bert"), tokenizer=tokenizer, device="cpu"), "L0.H0", "judge").examples
    assert example.tokens == ("jud", "##ge")


def test_examples_are_drawn_or_given():
    model, task = hooked("bert"), random_task()
    drawn = show(model, "L0.H0", 2, task).examples
    assert [e.origin for e in drawn] == ["dev", "dev", "hard", "hard"]
    assert [e.gold for e in drawn[2:]] == ["non-entailment"] * 2
    again = show(model, "L0.H0", 2, task).examples
    assert [e.tokens for e in again] == [e.tokens for e in drawn]
    rows = task.split("dev").data.iloc[[3, 8]]
    for given in (rows, Split("two", "extra", rows)):
        ours = show(model, "L0.H0", given).examples
        assert [e.gold for e in ours] == rows["label"].tolist()
        assert [e.tokens[1] for e in ours] == [text.split()[0] for text in rows["text_a"]]
    assert {e.origin for e in ours} == {"two"}
    two = show(model, "L0.H0", ["the doctor", PAIR]).examples
    assert [1 in e.segments for e in two] == [False, True] and two[0].gold is None


@pytest.mark.parametrize(
    "heads, examples, error, words",
    [
        ([], PAIR, CoreLensError, "name some"),
        ("L7.H0", PAIR, CoreLensError, r"L7\.H0 is not a unit here"),
        ("L0.MLP", PAIR, CoreLensError, r"L0\.MLP is not a unit here.*units are heads"),
        (7, PAIR, CoreLensError, "7 is not a unit here"),
        ("head 3", PAIR, CoreLensError, "write a head as L2.H5"),
        ("L0.H0", 2, TaskError, "pass task="),
        ("L0.H0", [], TaskError, "0 examples x 1 heads"),
        ("L0.H0", [("a", "b", "c")], TaskError, "no example: pass a text, or a pair"),
        ("L0.H0", [3.5], TaskError, "3.5 is no example"),
        ("L0.H0", None, TaskError, "None is no example"),
        ("L0.H0", frame(301), TaskError, "301 examples x 1 heads are too many"),
        ("L0.H0", frame(3).drop(columns="text_a"), TaskError, "no column 'text_a'"),
    ],
)
def test_mistakes_end_in_one_sentence(heads, examples, error, words):
    with pytest.raises(error, match=words):
        show(hooked("bert"), heads, examples)
    with pytest.raises(TaskError, match="at least 1"):
        show(hooked("bert"), "L0.H0", 0, random_task())


def test_a_page_is_one_file_with_one_copy_of_the_javascript(tmp_path):
    one, many = a_view(), a_view(n_heads=9, n_examples=8)
    path = many.save(tmp_path / "new" / "attention.html")
    document = path.read_text(encoding="utf-8")
    assert document == many.page()
    assert document.count("var CircuitsVis=") == 1
    # eight more boxes of 9 heads x 4 x 4 numbers are a few kilobytes
    assert len(one.page()) < 1_330_000 and len(document) - len(one.page()) < 20_000
    parsed = Parsed(document)
    assert len(parsed.scripts) == 2 and len(parsed.data) == 8
    loads = {"link", "img", "iframe", "object", "embed", "base", "video", "audio", "source", "form"} & set(parsed.tags)
    assert not loads and not [
        a for a in parsed.attributes if a.split()[1] in ("src", "href", "srcset", "action", "style-src")
    ]
    assert "url(" not in document[: document.index("</style>")] and "@import" not in document
    assert "sourceMappingURL" not in document
    with pytest.raises(SavedFileError, match="cannot write"):
        many.save(tmp_path / "new" / "attention.html" / "x.html")


def test_a_notebook_gets_the_page_in_a_frame_of_its_own():
    view = a_view(tokens=("[CLS]", HOSTILE[0], "[SEP]", '"'), model=HOSTILE[6])
    outer = Parsed(view._repr_html_())
    assert outer.tags == ["iframe"]
    assert outer.attributes == {"iframe sandbox", "iframe srcdoc", "iframe style"}
    source = re.search('srcdoc="([^"]*)"', view._repr_html_())[1]
    assert Parsed(f"<p title='{source}'>").attributes == {"p title"}
    assert repr(view) == f"AttentionView(L0.H0 of {HOSTILE[6]} on 1 examples)"


def test_text_from_outside_stays_text():
    random_ = random.Random(0)
    harmless = Parsed(a_view(tokens=("[CLS]", "a", "b", "c", "[SEP]", "d")).page())
    for _ in range(100):
        a, b, c, d, *names = ("".join(random_.choices(HOSTILE, k=random_.randint(1, 3))) for _ in range(10))
        keys = ("model", "architecture", "task", "origin", "gold", "said")
        tokens = ("[CLS]", a, b, c, "[SEP]", d)
        document = a_view(tokens=tokens, **dict(zip(keys, names))).page()
        parsed = Parsed(document.encode().decode())  # what a file holds
        assert parsed.tags == harmless.tags and parsed.attributes == harmless.attributes
        assert parsed.scripts == harmless.scripts
        short = [word if len(word) <= 24 else f"{word[:23]}…" for word in (a, b, c, d)]
        first, last = [f"P:{word}" for word in short[:3]], f"H:{short[3]}"
        assert json.loads(parsed.data[0])["tokens"] == ["[CLS]", *first, "[SEP]", last]
        assert parsed.words == [t.replace("\ud800", "?") for t in (a, b, c, d)]
        assert all(name.replace("\ud800", "?") in parsed.text for name in names)


def test_hostile_words_come_through_a_real_tokenizer():
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens([HOSTILE[0], HOSTILE[2]])
    model = load_model(tiny_model("bert"), tokenizer=tokenizer, device="cpu")
    view = show(model, "L0.H0", (f"the {HOSTILE[0]}", f"{HOSTILE[2]} ran"))
    assert view.examples[0].tokens == ("[CLS]", "the", HOSTILE[0], "[SEP]", HOSTILE[2], "ran", "[SEP]")
    parsed = Parsed(view.page())
    assert parsed.words == ["the", HOSTILE[0], HOSTILE[2], "ran"] and len(parsed.scripts) == 2


def test_data_blocks_are_json_whatever_is_in_them():
    value = {word: [word, 0.5, None, True] for word in HOSTILE}
    block = script_data(value)
    inside = block.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(inside) and inside.isascii()
    assert json.loads(inside) == value


def test_a_page_runs_its_own_scripts_only(tmp_path):
    document = page("<title>", "<p>body</p>", ["a('</script>')", "b()"])
    parsed = Parsed(document)
    assert parsed.scripts == [r"a('<\/script>')", "b()"] and "<title>" in parsed.text
    # of `printf 'b()' | openssl dgst -sha256 -binary | base64`
    assert "'sha256-cf242PFc/kb7xD0Qzhsmd9vvRkc+cWFmbi+k+YvtdKc='" in document
    assert "script-src 'none'" in page("t", "")
    assert write_page(tmp_path / "p.html", document).read_text(encoding="utf-8") == document


def test_tables_escape_and_round():
    data = pd.DataFrame({"<b>": ["<i>", "x"], "n": [12345, 2], "v": [0.12345, np.nan]})
    html = table(data)
    parsed = Parsed(html)
    assert {"b", "i"}.isdisjoint(parsed.tags)
    assert re.findall("<t[hd](?: [^>]*)?>([^<]*)<", html) == [
        "&lt;b&gt;",
        "n",
        "v",
        "&lt;i&gt;",
        "12,345",
        "0.123",
        "x",
        "2",
        "",
    ]


# --- notebooks

UNITS = ComponentSet(1, 4)


def made(kept: list[str], sparsity: float, seed: int, model: str = "m") -> Subnetwork:
    origin = {"asked_sparsity": sparsity, "seed": seed, "pruner": "p", "model": {"model_id": model}}
    return Subnetwork(UNITS, UNITS.mask([Component.parse(c) for c in kept]), ZeroActivations("h"), provenance=origin)


def a_core(model: str = "m", split: str = "dev", note: str = "a note") -> Core:
    """Two subnetworks of 4 heads and an MLP: H0 always kept, H1 once, H2, H3 and the MLP never."""
    subnetworks = (made(["L0.H0", "L0.H1"], 0.6, 1, model), made(["L0.H0"], 0.8, 1, model))
    rows = [("full", 0.0, -1, split, "all", "accuracy", 0.9, 0.85, 0.95, 100)]
    rows += [
        (s.name, s.asked_sparsity, 1, split, "all", metric, value, 0.0, 1.0, 100)
        for s, value in zip(subnetworks, (0.75, 0.25))
        for metric in ("accuracy", "kl")
    ]
    columns = ["subnetwork", "sparsity", "seed", "split", "group", "metric", "value", "low", "high", "n"]
    origin = {"task": "t", "model": {"model_id": model}}
    return Core(subnetworks, pd.DataFrame(rows, columns=columns), {}, origin, (note,))


def cells(html: str) -> dict[str, tuple[float, bool]]:
    """Component -> (opacity, whether outlined) of a head grid."""
    found = re.findall(r'<rect [^>]*fill-opacity="([\d.]+)" (.*?)><title>([^:<]*): ', html)
    return {name: (float(opacity), "stroke-width" in edge) for opacity, edge, name in found}


def test_a_core_shows_its_heads_and_figures():
    html = core_html(a_core())
    assert cells(html) == {
        "L0.H0": (1, True),
        "L0.H1": (0.5, False),
        "L0.H2": (0, False),
        "L0.H3": (0, False),
        "L0.MLP": (0, False),
    }
    text = Parsed(html).text
    assert "Heuristic core of m on t" in text and "2 subnetworks by sparsity: 1 at 60%, 1 at 80%" in text
    assert "Heads in all of them (1): L0.H0." in text and "Note: a note" in text
    assert "0.900 [0.850, 0.950]" in text and "0.750 (0.750 to 0.750)" in text and "0.250 (0.250 to 0.250)" in text
    assert "kl" not in text  # the key figures only


def test_a_subnetwork_and_a_task_show_themselves():
    html = subnetwork_html(made(["L0.H0", "L0.MLP"], 0.6, 42))
    assert {name for name, (opacity, _) in cells(html).items() if opacity == 1} == {"L0.H0", "L0.MLP"}
    assert not any(outlined for _, outlined in cells(html).values())
    assert "2 of 5 units stay (60.0% removed), pruner p, seed 42." in Parsed(html).text
    only_mlps = Subnetwork(ComponentSet(2, 4, ("mlp",)), torch.tensor([True, False]), ZeroActivations("h"))
    alone = replace(a_core(), subnetworks=a_core().subnetworks[:1])
    assert "1 subnetwork by sparsity: 1 at 60%." in Parsed(core_html(alone)).text
    assert cells(subnetwork_html(only_mlps)) == {"L0.MLP": (1, False), "L1.MLP": (0, False)}
    text = Parsed(task_html(random_task(60))).text
    assert "Task random" in text and "entailment, neutral, contradiction" in text
    assert "120" in text and "non-entailment 60" in text
    number = Task.from_dataframes("n", id=pd.DataFrame({"sentence": ["a", "b"], "label": [0.5, 2.0]}), metric="pearson")
    assert "Label: a number. Metric: pearson." in Parsed(task_html(number)).text


def test_notebook_blocks_escape():
    plain = Parsed(core_html(a_core())).tags
    for word in HOSTILE:
        split = word.replace("\ud800", "?")  # pandas takes no lone surrogates
        parsed = Parsed(core_html(a_core(word, split, word)))
        assert parsed.tags == plain and parsed.text.count(split) >= 3
    data = pd.DataFrame({"sentence": ["a", "b"], "label": [HOSTILE[0], HOSTILE[6]]})
    assert not {"script", "img"} & set(Parsed(task_html(Task.from_dataframes(HOSTILE[4], id={HOSTILE[6]: data}))).tags)
    assert "script" not in Parsed(subnetwork_html(made(["L0.H0"], 0.8, 1, HOSTILE[0]))).tags


# --- the browser


def test_chromium_draws_every_head_offline(browser):
    view = show("lab", ["L0.H1", "L1.H3", "L3.H7"], [PAIR, "the judge slept ."])
    document = browser(view.page().replace('<details class="attention">', '<details class="attention" open>'))
    for head in ("L0.H1", "L1.H3", "L3.H7"):
        assert len(re.findall(f"<h4[^>]*>{re.escape(head)}</h4>", document)) == 2  # once per example
    assert document.count("Zoomed</h3>") == 2
    sizes = [(int(w), int(h)) for w, h in re.findall(r'<canvas[^>]*?width="(\d+)" height="(\d+)"', document)]
    sizes = sizes or [(int(w), int(h)) for h, w in re.findall(r'<canvas[^>]*?height="(\d+)" width="(\d+)"', document)]
    assert len(sizes) == 8 and min(min(size) for size in sizes) > 50  # 3 small and 1 large per example
    assert max(max(size) for size in sizes) > 400


INK = """
setTimeout(() => { document.body.dataset.ink = JSON.stringify([...document.querySelectorAll("canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const share = (r, g, b) => {
    let n = 0;
    for (let i = 0; i < data.length; i += 4)
      n += Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12 && data[i + 3] > 200;
    return n / (data.length / 4);
  };
  return [share(11, 79, 138), share(200, 200, 200), share(255, 255, 255)];
})); }, 1500);
"""


def test_what_is_drawn_is_the_attention_and_hostile_text_does_nothing(browser):
    tokens = HOSTILE[:8]
    names = dict(zip(("model", "task", "origin", "gold", "said"), HOSTILE))
    inks = {}
    for arch in ("bert", "gpt2"):
        view = a_view(tokens, [np.ones((8, 8)), np.zeros((8, 8))], arch=arch, **names)
        document = view.page()
        # without the page's own guard, so that only escaping is left
        document = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", document)
        shown = browser(document.replace("</body>", f"<script>{INK}</script></body>"))
        assert "pwned" not in re.search("<title>(.*?)</title>", shown)[1].replace("document.title='pwned'", "")
        assert shown.count("<script") == document.count("<script") + 1 and "<img" not in shown
        inks[arch] = np.array(json.loads(re.search(r'data-ink="(.*?)"', shown)[1]))
    # canvases: head 0 small, head 1 small, head 0 large. All blue; all white; where causal, 28 of 64 squares grey.
    blue, grey, white = inks["bert"].T
    assert blue[0] > 0.95 and white[1] > 0.95 and blue[1] == 0 and not grey[:2].any()
    blue, grey, white = inks["gpt2"].T
    assert blue[0] == pytest.approx(36 / 64, abs=0.05) and grey[:2] == pytest.approx([28 / 64] * 2, abs=0.05)
    assert white[1] == pytest.approx(36 / 64, abs=0.05)


def test_the_browser_refuses_what_the_page_did_not_bring(browser):
    body = (
        "<p>x</p><script>document.title='pwned'</script><p onclick='1' id=p>y</p><img src='https://example.org/x.png'>"
    )
    with_guard = page("t", body, ["document.body.dataset.ran = 'yes'"])
    assert "<title>t</title>" in (shown := browser(with_guard)) and 'data-ran="yes"' in shown
    without = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", with_guard)
    assert "<title>pwned</title>" in browser(without)  # so that the test can fail
