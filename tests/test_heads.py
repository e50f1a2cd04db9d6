"""Attention patterns: worked out by hand, by plain loops, and on a model whose heads are built to do each thing."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModel, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from builders import frame, hooked, random_task
from core_lens import Component, CoreLensError, CoreLensWarning, load_model
from core_lens.heads import (
    COLUMNS,
    MEASURES,
    attention_patterns,
    classify_heads,
    find_targets,
    ratio_intervals,
    sum_measures,
)
from core_lens.hooked import batches, encode, logits
from core_lens.hooked.loading import load_pretrained
from core_lens.hooked.patterns import watch_patterns
from core_lens.hooked.segments import CONTENT, PUNCTUATION, SPECIAL, STOP_WORD, read_tokens
from core_lens.tasks import Split, Task
from tiny_models import ARCHITECTURES, DECODERS, LABELS, tiny_model, tiny_tokenizer

AT = {name: i for i, name in enumerate(MEASURES)}


def pairs(*texts: tuple[str, ...], name: str = "dev") -> Split:
    columns = ["text_a", "text_b"][: len(texts[0])]
    data = pd.DataFrame(list(texts), columns=columns).assign(label="neutral", group="all")
    return Split(name, "id", data.assign(cluster=[str(i) for i in range(len(data))]))


def task_of(split: Split) -> Task:
    return Task("t", LABELS, (split,))


def ratio(sums, part: str, measure: str, head: int = 0, row: int = 0) -> float:
    i = AT[measure]
    return float(getattr(sums, part)[row, head, i] / sums.counts[row, i])


def random_patterns(batch: int, heads: int, n: int, causal: bool = False) -> torch.Tensor:
    scores = torch.randn(batch, heads, n, n, generator=torch.Generator().manual_seed(0))
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


# What the tokens are


def test_what_each_token_of_a_pair_is():
    tokens = read_tokens(pairs(("The doctor saw .", "the doctors slept")), tiny_tokenizer("bert"))
    #                            CLS the doctor saw . SEP the doctors slept SEP
    assert tokens.segment.tolist() == [[-1, 0, 0, 0, 0, -1, 1, 1, 1, -1]]
    assert tokens.side.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1, 1]]
    s, p, w, c = SPECIAL, PUNCTUATION, STOP_WORD, CONTENT
    assert tokens.kind.tolist() == [[s, w, c, c, p, s, w, c, c, s]]
    word = tokens.word[0].tolist()
    assert word[1] == word[6] and word[2] != word[7] and word[0] == word[5] == word[9] == -1
    assert (tokens.cls_id, tokens.sep_id) == (2, 3)


def test_segments_need_neither_token_types_nor_separators():
    text = ("a doctor", "the doctor slept")
    roberta = read_tokens(pairs(text), tiny_tokenizer("roberta"))
    assert roberta.segment.tolist() == [[-1, 0, 0, -1, 1, 1, 1, -1]]
    gpt2 = read_tokens(pairs(text), tiny_tokenizer("gpt2"))
    assert gpt2.segment.tolist() == gpt2.side.tolist() == [[0, 0, 1, 1, 1]]
    assert gpt2.sep_id == gpt2.cls_id == -2
    lab = load_model("lab-gpt2")  # separators, no token types
    assert read_tokens(pairs(text), lab.tokenizer).segment.tolist() == [[-1, 0, 0, -1, 1, 1, 1, -1]]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tokens_are_those_of_encode(arch):
    """Cut and empty texts too."""
    tokenizer = hooked(arch).tokenizer
    long = " ".join(["red doctor"] * 12)
    for split in (
        pairs((long, "a film"), ("a", "the the"), ("", ""), ("a", long)),
        pairs((long,), ("",), ("a bad film",)),
    ):
        with pytest.warns(CoreLensWarning, match="were cut"):
            encoded = encode(split, tokenizer, 14)
        tokens = read_tokens(split, tokenizer, 14)
        for i in range(len(split)):
            n = int(encoded.lengths[i])
            assert tokens.ids[i, :n].tolist() == encoded.row(i)
            assert (tokens.side[i, n:] == -1).all() and (tokens.side[i, :n] >= 0).all()


def test_words_are_whole_whatever_the_pieces():
    """A byte-level tokenizer cuts `doctors` in two and puts a space before all but the first word of a text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    corpus = ["doctor saw a doctor don't é", " doctor  Doctor"] * 9
    special = ["<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>")
    split = pairs(("doctors don't", "A Doctors  é ."))
    tokens = read_tokens(split, tokenizer)
    names = tokenizer.convert_ids_to_tokens(tokens.ids[0].tolist())
    assert len(names) > 7
    spelled: dict[int, dict[int, str]] = {0: {}, 1: {}}
    for name, segment, word in zip(names, tokens.segment[0].tolist(), tokens.word[0].tolist()):
        if word >= 0:
            spelled[segment][word] = spelled[segment].get(word, "") + name.replace("Ġ", "")
    assert list(spelled[0].values()) == ["doctors", "don't"]
    assert list(spelled[1].values())[:2] == ["A", "Doctors"] and list(spelled[1].values())[-1] == "."
    assert next(iter(spelled[0])) == list(spelled[1])[1]  # one word, though cased and cut differently
    kinds = dict(zip(tokens.word[0].tolist(), tokens.kind[0].tolist()))
    assert [kinds[w] for w in spelled[0]] == [CONTENT, STOP_WORD]
    assert [kinds[w] for w in spelled[1]] == [STOP_WORD, CONTENT, CONTENT, PUNCTUATION]
    whole = find_targets(tokens, causal=True).counted[0, AT["repeated_word"]]
    first = [i for i, w in enumerate(tokens.word[0].tolist()) if w == next(iter(spelled[0]))]
    ours = [i for i in first if tokens.segment[0, i] == 0]
    theirs = [i for i in first if tokens.segment[0, i] == 1]
    assert sorted(map(tuple, whole.nonzero().tolist())) == sorted((q, k) for q in theirs for k in ours)


# What is measured


def test_every_measure_by_hand():
    """[CLS] doctor saw actor [SEP] doctor slept [SEP]; queries 1 and 5 repeat, `saw`, `actor` and `slept` do not."""
    tokens = read_tokens(pairs(("doctor saw actor", "doctor slept")), tiny_tokenizer("bert"))
    a = torch.zeros(8, 8)
    a[0, 0] = 1.0
    a[1] = torch.tensor([0.1, 0.0, 0.0, 0.0, 0.0, 0.6, 0.2, 0.1])
    a[2, 1] = 1.0
    a[3] = 1 / 8
    a[4, 4], a[4, 7] = 0.5, 0.5
    a[5] = torch.tensor([0.0, 0.4, 0.1, 0.3, 0.0, 0.1, 0.1, 0.0])
    a[6, 6] = 1.0
    a[7, 0] = 1.0
    sums = sum_measures(a[None, None], find_targets(tokens, causal=False))
    value, chance = ({name: ratio(sums, part, name) for name in MEASURES} for part in ("values", "chances"))
    entropy_1 = -(0.1 * math.log(0.1) + 0.6 * math.log(0.6) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1))
    entropy_5 = -(0.4 * math.log(0.4) + 0.3 * math.log(0.3) + 3 * 0.1 * math.log(0.1))
    assert value == pytest.approx(
        {
            # from token   1    2     3    4    5    6    7   to the one before
            "previous": (0.1 + 1.0 + 1 / 8 + 0.0 + 0.0 + 0.0 + 0.0) / 7,
            "next": (0.0 + 0.0 + 0.0 + 1 / 8 + 0.0 + 0.1 + 0.0) / 7,
            "self": (1.0 + 0.0 + 0.0 + 1 / 8 + 0.5 + 0.1 + 1.0 + 0.0) / 8,
            "first": (1.0 + 0.1 + 0.0 + 1 / 8 + 0.0 + 0.0 + 0.0 + 1.0) / 8,
            "cls": (1.0 + 0.1 + 0.0 + 1 / 8 + 0.0 + 0.0 + 0.0 + 1.0) / 8,
            "sep": (0.0 + 0.1 + 0.0 + 2 / 8 + 1.0 + 0.0 + 0.0 + 0.0) / 8,
            "within": (0.0 + 1.0 + 3 / 8 + 0.2 + 1.0) / 5,
            "across": (0.8 + 0.0 + 2 / 8 + 0.8 + 0.0) / 5,
            "repeated_piece": (0.6 + 0.4) / 2,
            "repeated_word": (0.6 + 0.4) / 2,
            "repeated_piece_vs_content": (0.6 + 0.4) / 2,
            "repeated_word_vs_content": (0.6 + 0.4) / 2,
            "entropy": (entropy_1 + entropy_5 + math.log(8) + math.log(2)) / 8,
        }
    )
    assert chance == pytest.approx(
        {
            **dict.fromkeys(("previous", "next", "self", "first", "cls"), 1 / 8),
            "sep": 2 / 8,
            "within": (3 * 3 / 8 + 2 * 2 / 8) / 5,
            "across": (3 * 2 / 8 + 2 * 3 / 8) / 5,
            **dict.fromkeys(("repeated_piece", "repeated_word"), 1 / 8),
            # query 1: `slept` gets 0.2; query 5: `saw` and `actor` get 0.1 and 0.3
            **dict.fromkeys(("repeated_piece_vs_content", "repeated_word_vs_content"), (0.2 + (0.1 + 0.3) / 2) / 2),
            "entropy": math.log(8),
        }
    )


def by_loops(split: Split, tokenizer, patterns: torch.Tensor, row: int, causal: bool, leave_out: set[str]) -> dict:
    """Every measure of one example and head, query by query, from the words (one word is one token here)."""
    stop, marks = {"the", "a", "not", "all", "some", "by", "if", "since", "that", "who", "is", "was", "and"}, {".", ","}
    out = tokenizer(*[split.data[c].tolist()[row] for c in ("text_a", "text_b")])
    words, text = tokenizer.convert_ids_to_tokens(out["input_ids"]), out.sequence_ids(0)
    n = len(words)
    side = [0] * n
    for i in range(n):
        side[i] = text[i] if text[i] is not None else (side[i - 1] if i else 0)
    kind = ["special" if t is None else "punctuation" if w in marks else "stop_words" if w in stop else "content"
            for w, t in zip(words, text)]  # fmt: skip
    kept = [k not in leave_out for k in kind]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in MEASURES}
    for q in range(n):
        keys = list(range(q + 1 if causal else n))
        p = [float(patterns[q, k]) for k in keys]

        def add(name: str, chosen: list[int], p: list[float] = p, keys: list[int] = keys) -> None:
            if chosen:
                found[name].append((sum(p[k] for k in chosen), len(chosen) / len(keys)))

        add("previous", [k for k in keys if k == q - 1])
        add("next", [k for k in keys if k == q + 1])
        add("self", [k for k in keys if k == q])
        add("first", [k for k in keys if k == 0])
        add("cls", [k for k in keys if words[k] == "[CLS]"])
        add("sep", [k for k in keys if words[k] == "[SEP]"])
        if text[q] is not None:
            add("within", [k for k in keys if text[k] == text[q]])
            add("across", [k for k in keys if text[k] == 1 - text[q]])
        repeats = [k for k in keys if side[k] != side[q] and words[k] == words[q] and kept[k] and kept[q]]
        add("repeated_piece", repeats)
        add("repeated_word", repeats)
        content = [k for k in keys if text[k] is not None and side[k] != side[q] and kind[k] == "content"
                   and not any(side[i] == side[q] and words[i] == words[k] for i in range(n))]  # fmt: skip
        if repeats and content:
            pair = (sum(p[k] for k in repeats), len(repeats) * sum(p[k] for k in content) / len(content))
            found["repeated_piece_vs_content"].append(pair)
            found["repeated_word_vs_content"].append(pair)
        found["entropy"].append((-sum(x * math.log(x) for x in p if x > 0), math.log(len(keys))))
    return {name: (sum(v for v, _ in some), sum(c for _, c in some), len(some)) for name, some in found.items()}


@pytest.mark.parametrize("leave_out", [("special", "punctuation", "stop_words"), ("special",), ()])
@pytest.mark.parametrize("arch", ["bert", "roberta", "gpt2"])
def test_measures_agree_with_plain_loops(arch, leave_out):
    split, tokenizer, causal = Split("dev", "id", frame(30, 5)), tiny_tokenizer(arch), arch == "gpt2"
    tokens = read_tokens(split, tokenizer)
    n = tokens.ids.shape[1]
    patterns = random_patterns(30, 2, n, causal).masked_fill((tokens.side < 0)[:, None, None], 0)
    patterns = patterns / patterns.sum(-1, keepdim=True)
    sums = sum_measures(patterns, find_targets(tokens, causal, leave_out))
    n_compared = 0
    for row in range(30):
        for head in range(2):
            expected = by_loops(split, tokenizer, patterns[row, head], row, causal, set(leave_out))
            for name, (value, chance, count) in expected.items():
                i = AT[name]
                ours = (sums.values[row, head, i], sums.chances[row, head, i], sums.counts[row, i])
                assert [float(x) for x in ours] == pytest.approx([value, chance, count], rel=1e-4, abs=1e-5), name
        n_compared += expected["repeated_word_vs_content"][2]
    assert n_compared > 5


@pytest.mark.parametrize("causal", [False, True])
def test_chance_is_the_measure_of_a_uniform_pattern(causal):
    tokens = read_tokens(Split("dev", "id", frame(20, 6)), tiny_tokenizer("roberta"))
    targets = find_targets(tokens, causal)
    uniform = targets.allowed / targets.allowed.sum(-1, keepdim=True).clamp(min=1)
    sums = sum_measures(uniform[:, None], targets)
    assert torch.allclose(sums.values, sums.chances, atol=1e-4)
    assert bool((sums.counts.sum(0)[[AT["repeated_word"], AT["repeated_word_vs_content"]]] > 0).all())


def test_padding_does_not_count_whatever_is_attended_there():
    tokens = read_tokens(Split("dev", "id", frame(8, 7)), tiny_tokenizer("bert"))
    n, rows = tokens.ids.shape[1], torch.arange(8)
    targets = find_targets(tokens, False)
    sums = sum_measures(random_patterns(8, 3, n) * targets.allowed[:, None], targets)
    wide = torch.rand(8, 3, n + 6, n + 6)
    wide[:, :, :n, :n] = torch.where(targets.allowed[:, None] > 0, random_patterns(8, 3, n), wide[:, :, :n, :n])
    padded = sum_measures(wide, find_targets(tokens.at(rows, n + 6), False))
    for part in ("values", "chances", "counts"):
        assert torch.allclose(getattr(sums, part), getattr(padded, part), atol=1e-4)


# Over a model


def planted_heads() -> tuple[BertForSequenceClassification, tuple[str, ...]]:
    """One layer whose heads each do one thing, for sure.

    The embeddings are one-hot in word, position and text, and LayerNorm is set to give them back as they are.
    """
    n_words, n_pos, d_head = 36, 40, 48
    what = ("previous-token", "next-token", "self", "separator", "first-token", "repeated-token", "broad", "mixed")
    d_model = d_head * len(what)
    config = BertConfig(
        vocab_size=64, hidden_size=d_model, num_hidden_layers=1, num_attention_heads=len(what), intermediate_size=4,
        max_position_embeddings=n_pos, pad_token_id=0, id2label=dict(enumerate(LABELS)),
        label2id={name: i for i, name in enumerate(LABELS)},
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    embeddings, attention = model.bert.embeddings, model.bert.encoder.layer[0].attention.self
    words, places, texts = (
        slice(0, n_words),
        slice(n_words, n_words + n_pos),
        slice(n_words + n_pos, n_words + n_pos + 2),
    )
    strength = 40 * math.sqrt(d_head)
    with torch.no_grad():
        for part in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
            part.weight.zero_()
        embeddings.word_embeddings.weight[:n_words, words] = torch.eye(n_words)
        embeddings.position_embeddings.weight[:, places] = torch.eye(n_pos)
        embeddings.token_type_embeddings.weight[:, texts] = torch.eye(2)
        one = torch.zeros(d_model)
        one[:3] = 1
        embeddings.LayerNorm.weight.fill_(one.std(correction=0))
        embeddings.LayerNorm.bias.fill_(one.mean())
        for linear in (attention.query, attention.key):
            linear.weight.zero_()
            linear.bias.zero_()
        for head, name in enumerate(what):
            mine = slice(head * d_head, (head + 1) * d_head)
            query, key = attention.query.weight[mine], attention.key.weight[mine]
            if name in ("previous-token", "next-token", "self", "mixed"):
                key[:n_pos, places] = strength * torch.eye(n_pos)
                steps = {"previous-token": [-1], "next-token": [1], "self": [0], "mixed": [-4, -3, -2, -1, 0, 1]}[name]
                query[:n_pos, places] = sum(torch.ones(n_pos - abs(s)).diag(-s) for s in steps)
            if name == "separator":
                key[:n_words, words] = strength * torch.eye(n_words)
                attention.query.bias[head * d_head + 3] = 1  # [SEP]
            if name == "first-token":
                key[:n_pos, places] = strength * torch.eye(n_pos)
                attention.query.bias[head * d_head] = 1
            if name == "repeated-token":
                key[:n_words, words] = strength * torch.eye(n_words)
                query[:n_words, words] = torch.eye(n_words)
                key[n_words : n_words + 2, texts] = strength * torch.eye(2)
                query[n_words : n_words + 2, texts] = torch.eye(2).flip(0)
    return model, what


NATURAL = pairs(
    ("the doctor saw the lawyer .", "a doctor thanked some actors"),
    ("the actor paid the judge near the doctors", "the judge slept ."),
    ("some lawyers danced and the actors ran", "the lawyers knew the judge ."),
    ("a red film was good .", "the blue film was good"),
)


def test_heads_that_do_one_thing_are_found_and_named():
    hf, what = planted_heads()
    model = load_model(hf, tokenizer=tiny_tokenizer("bert"))
    patterns = attention_patterns(model, task_of(NATURAL))
    assert list(patterns.columns) == COLUMNS and len(patterns) == len(what) * len(MEASURES)
    classes = classify_heads(patterns)
    assert tuple(classes["class"]) == what
    value = patterns.set_index(["head", "measure"])["value"]
    for head, measure in enumerate(("previous", "next", "self", "sep", "first")):
        assert value[head, measure] == pytest.approx(1, abs=1e-6)
    assert value[5, "repeated_piece"] == value[5, "repeated_word_vs_content"] == pytest.approx(1, abs=1e-6)
    excess = classes.set_index("class")
    assert excess.loc["broad", ["repeated", "previous", "sep", "entropy"]].abs().max() < 1e-6
    content = patterns.set_index(["head", "measure"])["chance"]
    assert content[5, "repeated_word_vs_content"] == pytest.approx(0, abs=1e-6)


def test_a_head_for_content_is_no_head_for_repeats():
    """It beats uniform attention, and the second chance level tells."""
    tokens = read_tokens(NATURAL, tiny_tokenizer("bert"))
    content = (tokens.kind == CONTENT).float()
    pattern = (content / content.sum(1, keepdim=True))[:, None, None].expand(-1, 1, tokens.ids.shape[1], -1)
    sums = sum_measures(pattern, find_targets(tokens, False))
    value, chance = (part[:, 0].sum(0) / sums.counts.sum(0) for part in (sums.values, sums.chances))
    assert value[AT["repeated_word"]] > chance[AT["repeated_word"]] + 0.05
    assert float(value[AT["repeated_word_vs_content"]]) == pytest.approx(float(chance[AT["repeated_word_vs_content"]]))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_table_is_that_of_hfs_own_patterns_one_example_at_a_time(arch):
    """Batches, padding and hooks against HF's `attentions`; a hooked model is left as it was."""
    model, split = hooked(arch), random_task(8).split("dev")
    assert model.original_model.config._attn_implementation == "sdpa"
    n_hooks = {name: len(point.fwd_hooks) for name, point in model.hook_dict.items()}
    table = attention_patterns(model, random_task(8), "dev", batch_size=5)
    assert model.original_model.config._attn_implementation == "sdpa"
    assert n_hooks == {name: len(point.fwd_hooks) for name, point in model.hook_dict.items()}
    hf, tokenizer = tiny_model(arch), model.tokenizer
    hf.set_attn_implementation("eager")
    values, counts = torch.zeros(2, 2, len(MEASURES)), torch.zeros(len(MEASURES))
    for row in range(8):
        one = Split("one", "id", split.data.iloc[[row]])
        ids = torch.tensor([encode(one, tokenizer).row(0)])
        kinds = {"token_type_ids": encode(one, tokenizer).types[None].long()} if arch in ("bert", "electra") else {}
        with torch.no_grad():
            out = hf(ids, attention_mask=torch.ones_like(ids), output_attentions=True, **kinds)
        targets = find_targets(read_tokens(one, tokenizer), arch in DECODERS)
        for layer in range(2):
            sums = sum_measures(out.attentions[layer], targets)
            values[layer] += sums.values[0]
        counts += sums.counts[0]
    expected = (values / counts).flatten()
    assert table["value"].to_numpy() == pytest.approx(expected.numpy(), abs=2e-5, nan_ok=True)
    assert table.loc[table["measure"] == "entropy", "n"].eq(8).all()


def test_a_decoder_sees_only_what_is_left_of_it():
    table = attention_patterns(hooked("gpt2"), random_task(20), "dev").set_index(["layer", "head", "measure"])
    first = table.loc[0, 0]
    lengths = encode(random_task(20).split("dev"), tiny_tokenizer("gpt2")).lengths.tolist()
    harmonic = sum(1 / (i + 1) for n in lengths for i in range(n)) / sum(lengths)
    assert first.loc["self", "chance"] == first.loc["first", "chance"] == pytest.approx(harmonic, rel=1e-5)
    assert np.isnan(first.loc["next", "value"]) and first.loc["next", "n"] == 0
    assert np.isnan(first.loc["sep", "value"]) and np.isnan(first.loc["cls", "low"])  # it has none of these
    assert first.loc["across", "n"] == first.loc["within", "n"] == 20


def test_a_single_sentence_has_no_measures_about_two():
    split = pairs(("the red film was good",), ("a bad film",), ("some doctors danced",))
    table = attention_patterns(hooked(), task_of(split))
    about_two = table["measure"].isin([m for m in MEASURES if "repeated" in m or m in ("within", "across")])
    assert table.loc[about_two, ["value", "chance", "low", "high"]].isna().all(axis=None)
    assert (table.loc[about_two, "n"] == 0).all() and table.loc[~about_two, "value"].notna().all()
    assert set(classify_heads(table)["class"]) <= {"broad", "mixed", "self", "separator", "first-token"}


def test_neither_batches_nor_other_heads_show():
    model, task = hooked(), random_task(12)
    table = attention_patterns(model, task, "dev")
    small = attention_patterns(model, task, "dev", batch_size=1)
    pd.testing.assert_frame_equal(table, small, rtol=1e-4, atol=1e-5)
    some = attention_patterns(model, task, "dev", heads=["L1.H1", Component(0, 1)])
    there = table[table["head"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(some, there, rtol=1e-6)
    bf16 = attention_patterns(load_model(tiny_model("bert"), tiny_tokenizer("bert"), dtype="bf16"), task, "dev")
    assert (bf16["value"] - table["value"]).abs().max() < 0.05 and bf16["value"].notna().all()


def test_what_repeats_can_be_chosen():
    model, task = hooked(), task_of(pairs(("the film .", "the actor ."), ("a judge", "a judge")))
    n = {}
    for leave_out in (("special", "punctuation", "stop_words"), ("special", "punctuation"), ("special",), ()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoreLensWarning)  # that little is there to compare with
            table = attention_patterns(model, task, leave_out=leave_out)
        n[leave_out] = table.set_index("measure").loc["repeated_word", "chance"].iloc[0]
    # Keys of both texts: (the film . | the actor .) has 9 tokens, (a judge | a judge) 7.
    assert n["special", "punctuation", "stop_words"] == pytest.approx(1 / 7)
    assert n["special", "punctuation"] == pytest.approx((2 / 9 + 4 / 7) / 6)
    assert n["special",] == pytest.approx((4 / 9 + 4 / 7) / 8)
    # [SEP] repeats too
    assert n[()] == pytest.approx((6 / 9 + 6 / 7) / 12)


def test_repeats_without_a_reference_are_pointed_out():
    """On pairs like HANS's every word repeats: nothing says whether the head looks for repeats or for content."""
    split = pairs(*[("the doctor saw the judge", "the judge saw the doctor")] * 3, name="SO-Swap")
    with pytest.warns(CoreLensWarning, match="of 3 examples of 'SO-Swap' with repeated tokens only 0 have") as caught:
        table = attention_patterns(hooked(), task_of(split)).set_index("measure")
    assert caught[0].filename == __file__
    assert (table.loc["repeated_word_vs_content", "n"] == 0).all() and table.loc["repeated_word", "value"].notna().all()


# The pretrained checkpoint


def test_the_lab_has_its_overlap_head_before_fine_tuning():
    table = attention_patterns("lab", "lab", heads=["L2.H7", "L0.H3"], pretrained="lab-pretrained", max_examples=100)
    assert list(table.columns) == ["checkpoint", *COLUMNS]
    classes = classify_heads(table)
    assert classes["checkpoint"].tolist() == ["fine-tuned"] * 2 + ["pretrained"] * 2
    assert classes.loc[classes["head"] == 7, "class"].tolist() == ["repeated-token"] * 2
    chance = table.set_index(["checkpoint", "layer", "head", "measure"])["chance"]
    uniform = [m for m in MEASURES if not m.endswith("vs_content")]
    assert chance["fine-tuned", 2, 7][uniform].tolist() == chance["pretrained", 2, 7][uniform].tolist()


@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_a_bare_model_gives_its_own_patterns(arch, tmp_path):
    tiny_model(arch, seed=4).base_model.save_pretrained(tmp_path)
    with pytest.raises(CoreLensError, match="has no trained head"):
        load_model(tmp_path, tokenizer=tiny_tokenizer(arch))
    model = load_pretrained(tmp_path, tiny_tokenizer(arch))
    bare = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    encoded, seen = encode(random_task(6).split("dev"), model.tokenizer), {}
    (_, inputs), *_ = batches(encoded, 6)
    with torch.inference_mode():
        with watch_patterns(model, [0, 1], lambda layer, pattern: seen.update({layer: pattern})):
            logits(model, inputs)
        expected = bare(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"][:, None, :, None].bool()
    for layer in range(2):
        assert torch.allclose(seen[layer] * real, expected[layer] * real, atol=1e-5)
    table = attention_patterns(hooked(arch), random_task(6), "dev", pretrained=tmp_path)
    other = attention_patterns(hooked(arch, seed=4), random_task(6), "dev")
    before = table[table["checkpoint"] == "pretrained"].drop(columns="checkpoint").reset_index(drop=True)
    pd.testing.assert_frame_equal(before, other, rtol=1e-5)


def test_weights_that_a_pretrained_model_must_have(tmp_path):
    model = tiny_model("bert").base_model
    state = {name: value for name, value in model.state_dict().items() if "layer.1.attention.self.query" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(CoreLensError, match=r"lack bert\.encoder\.layer\.1\.attention\.self\.query"):
        load_pretrained(tmp_path, tiny_tokenizer("bert"))


# Intervals


def test_intervals_cover_when_premises_are_drawn_together():
    """400 data sets of 60 premises with 1 to 5 hypotheses that share the premise's effect and differ in length."""
    rng, truth = np.random.default_rng(3), 0.3
    clusters = np.repeat(np.arange(60), rng.integers(1, 6, 60))
    counts = rng.integers(1, 9, len(clusters)).astype(float)[:, None]
    effect = 0.1 * rng.standard_normal((60, 400))[clusters] + 0.05 * rng.standard_normal((len(clusters), 400))
    values = (counts * (truth + effect))[..., None]
    chances = np.broadcast_to((counts * 0.1)[..., None], values.shape)

    def coverage(clusters: object) -> tuple[float, float]:
        low, high, excess_low, excess_high = ratio_intervals(values, chances, counts, clusters)[..., 0]
        return np.mean((low <= truth) & (truth <= high)), np.mean((excess_low <= 0.2) & (excess_high >= 0.2))

    assert coverage(clusters)[0] == coverage(clusters)[1]  # chance does not vary here
    assert 0.91 <= coverage(clusters)[0] <= 0.98
    assert coverage(range(len(clusters)))[0] < 0.85  # as if hypotheses of one premise were independent


def test_the_interval_of_the_excess_is_paired():
    """Value and chance go up and down together: each varies, their difference does not."""
    rng = np.random.default_rng(0)
    counts = np.ones((50, 1))
    level = rng.random((50, 1, 1))
    low, high, excess_low, excess_high = ratio_intervals(level + 0.1, level, counts, range(50)).ravel()
    assert high - low > 0.1
    assert (excess_low, excess_high) == (pytest.approx(0.1), pytest.approx(0.1))
    draws = np.array([np.mean(rng.choice(level.ravel() + 0.1, 50)) for _ in range(4000)])
    assert [low, high] == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.015)


def test_one_premise_has_no_interval():
    values, counts = np.ones((4, 1, 2)), np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = ratio_intervals(values, values, counts, ["a", "a", "b", "b"])
    assert np.isfinite(found[:, 0, 0]).all() and np.isnan(found[:, 0, 1]).all()


# Classes


def head_table(**figures: tuple[float, float]) -> pd.DataFrame:
    """One head: measure -> (value, lower end of the excess); nothing beyond chance elsewhere."""
    rows = []
    for name in MEASURES:
        value, low = figures.get(name, (-2.0 if name == "entropy" else 0.0, -0.1))
        rows.append((0, 0, name, value, 0.0, value, value, 10, low, value))
    return pd.DataFrame(rows, columns=COLUMNS)


def repeats(value: float, against_content: float, low: float = 0.01) -> dict[str, tuple[float, float]]:
    return {"repeated_word": (value, low), "repeated_word_vs_content": (against_content, low)}


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ({"previous": (0.25, 0.2)}, "previous-token"),
        ({"previous": (0.24, 0.2)}, "mixed"),
        ({"previous": (0.9, -0.01)}, "mixed"),  # perhaps chance
        ({"previous": (0.3, 0.2), "sep": (0.5, 0.4)}, "separator"),
        ({"sep": (0.5, 0.4), **repeats(0.3, 0.3)}, "repeated-token"),
        ({"sep": (0.5, 0.4), **repeats(0.9, 0.2)}, "separator"),  # content as such, not repeats
        (repeats(0.2, 0.9), "mixed"),
        (repeats(0.9, 0.9, low=-0.1), "mixed"),
        (repeats(0.9, float("nan"), low=float("nan")), "mixed"),  # nothing to compare with
        ({"entropy": (-0.5, -0.6)}, "broad"),
        ({"entropy": (-0.51, -0.6)}, "mixed"),
        ({"entropy": (-0.3, -0.6), "self": (0.4, 0.3)}, "self"),
    ],
)
def test_the_rules_for_a_class(figures, name):
    (row,) = classify_heads(head_table(**figures)).to_dict("records")
    assert row["class"] == name
    if "repeated_word" in figures:
        worst = min(figures["repeated_word"][0], figures["repeated_word_vs_content"][0])
        assert row["repeated"] == max(worst, 0) or math.isnan(figures["repeated_word_vs_content"][0])


def test_user_mistakes():
    model, task = hooked(), random_task(10)
    with pytest.raises(CoreLensError, match="no split 'nope'"):
        attention_patterns(model, task, "nope")
    with pytest.raises(CoreLensError, match=r"L7\.H0 is not a unit"):
        attention_patterns(model, task, heads="L7.H0")
    with pytest.raises(CoreLensError, match=r"L0\.MLP is not a unit"):
        attention_patterns(model, task, heads=["L0.MLP"])
    with pytest.raises(CoreLensError, match="heads is empty"):
        attention_patterns(model, task, heads=[])
    with pytest.raises(CoreLensError, match="leave_out=.*'verbs'.*stop_words"):
        attention_patterns(model, task, leave_out=["verbs"])
    with pytest.raises(CoreLensError, match="max_examples=0"):
        attention_patterns(model, task, max_examples=0)
    with pytest.raises(CoreLensError, match="has 3 layers, BertForSequenceClassification has 2"):
        attention_patterns(model, task, pretrained=tiny_model("bert", n_layers=3))
    with pytest.raises(CoreLensError, match="has 70 tokens in its vocabulary"):
        attention_patterns(model, task, pretrained=tiny_model("bert", vocab=70))
    with pytest.raises(CoreLensError, match="no 'excess_low'"):
        classify_heads(head_table().drop(columns="excess_low"))
    with pytest.raises(CoreLensError, match="no 'sep'"):
        classify_heads(head_table().query("measure != 'sep'"))
