"""Tokenising and batching, with token numbers counted by hand."""

from __future__ import annotations

import warnings

import pandas as pd
import pytest
import torch

from core_lens.errors import CoreLensWarning, ModelError, TaskError
from core_lens.hooked import Encoded, batches, encode, load_model, logits
from core_lens.tasks.base import Split
from tiny_models import ARCHITECTURES, DECODERS, tiny_model, tiny_tokenizer

WORDS = ("a", "b", "c", "d")  # tokens 5, 6, 7, 8
PAIRS = [("a b c", "d"), ("", "b"), ("a", "b c")]


def a_split(rows, **options) -> Split:
    columns = ["text_a", "text_b"] if isinstance(rows[0], tuple) else ["text_a"]
    return Split("mine", "id", pd.DataFrame(rows, columns=pd.Index(columns)), **options)


def rows_of(encoded: Encoded) -> list[list[int]]:
    return [encoded.row(i) for i in range(len(encoded))]


def test_a_pair_is_framed_by_hand_counted_tokens():
    encoded = encode(a_split(PAIRS), tiny_tokenizer("bert", WORDS), 128)
    assert rows_of(encoded) == [[2, 5, 6, 7, 3, 8, 3], [2, 3, 6, 3], [2, 5, 3, 6, 7, 3]]
    assert encoded.lengths.tolist() == [7, 4, 6] and encoded.pad_id == 0
    assert encoded.types is not None
    assert encoded.types.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]


def test_a_single_sentence_and_a_tokenizer_without_types():
    encoded = encode(a_split(["a b", "", "c"]), tiny_tokenizer("distilbert", WORDS), 128)
    assert rows_of(encoded) == [[2, 5, 6, 3], [2, 3], [2, 7, 3]]
    assert encoded.types is None


def test_an_empty_text_is_one_token_to_a_decoder():
    encoded = encode(a_split(["a b", "", "c"]), tiny_tokenizer("gpt2", WORDS), 128)
    assert rows_of(encoded) == [[5, 6], [2], [7]]


@pytest.mark.parametrize("n", [1, 10_001])
def test_long_texts_are_cut_longest_first_with_one_warning(n):
    """10,002 rows are two chunks of tokenising."""
    split = a_split([("a b c d a b", "c d")] + [("a", "b")] * (n - 1) + [("c c c c", "d d d d")])
    with pytest.warns(CoreLensWarning, match=rf"^2 of {n + 1} examples of mine are longer than 7 tokens") as caught:
        encoded = encode(split, tiny_tokenizer("bert", WORDS), 7)
    assert len(caught) == 1
    assert encoded.row(0) == [2, 5, 6, 3, 7, 8, 3]
    assert encoded.row(n) == [2, 7, 7, 3, 8, 8, 3]
    assert len(encoded) == n + 1 and encoded.lengths.max() == 7


def test_the_models_own_length_limit_counts(tmp_path):
    model = load_model(tiny_model("roberta"), tiny_tokenizer("roberta", WORDS), device="cpu")
    with pytest.warns(CoreLensWarning, match="longer than 38 tokens"):  # 40 positions, two of them reserved
        encoded = encode(a_split(["a " * 100]), model.tokenizer, 512)
    _, inputs = next(batches(encoded, 1))
    assert logits(model, inputs).shape == (1, 3)


def test_the_index_of_the_data_does_not_matter():
    split = a_split(PAIRS)
    shuffled = Split("mine", "id", split.data.set_index(pd.Index([7, 7, 1])))
    assert rows_of(encode(shuffled, tiny_tokenizer("bert", WORDS))) == rows_of(
        encode(split, tiny_tokenizer("bert", WORDS))
    )


def test_evaluation_batches_run_from_the_longest_and_are_padded_to_it():
    encoded = encode(a_split(PAIRS), tiny_tokenizer("bert", WORDS))
    (first, one), (second, two) = batches(encoded, 2)
    assert first.tolist() == [0, 2] and second.tolist() == [1]
    assert one["input_ids"].tolist() == [[2, 5, 6, 7, 3, 8, 3], [2, 5, 3, 6, 7, 3, 0]]
    assert one["attention_mask"].tolist() == [[1] * 7, [1] * 6 + [0]]
    assert one["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0]]
    assert two["input_ids"].tolist() == [[2, 3, 6, 3]]
    assert {tensor.dtype for tensor in one.values()} == {torch.int64}


def test_padding_to_a_fixed_length_and_a_choice_of_rows():
    encoded = encode(a_split(PAIRS), tiny_tokenizer("roberta", WORDS))
    ((rows, inputs),) = batches(encoded, 8, rows=[1, 2], pad_to=10)
    assert rows.tolist() == [2, 1]
    assert inputs["input_ids"].tolist() == [[2, 5, 3, 6, 7, 3] + [1] * 4, [2, 3, 6, 3] + [1] * 6]
    ((_, inputs),) = batches(encoded, 8, pad_to=3)  # never shorter than the longest row
    assert inputs["input_ids"].shape == (3, 7)


def test_shuffled_batches_hold_every_row_once_in_a_seeds_own_order_and_of_like_length():
    generator = torch.Generator().manual_seed(0)
    texts = ["a " * int(n) for n in torch.randint(1, 60, (1037,), generator=generator)]
    encoded = encode(a_split(texts), tiny_tokenizer("bert", WORDS))
    order = {seed: [rows.tolist() for rows, _ in batches(encoded, 16, shuffle_seed=seed)] for seed in (0, 1)}
    assert sorted(row for batch in order[0] for row in batch) == list(range(1037))
    assert order[0] == [rows.tolist() for rows, _ in batches(encoded, 16, shuffle_seed=0)]
    assert order[0] != order[1]
    assert [len(batch) for batch in order[0]].count(16) == 64  # 1037 = 64 * 16 + 13
    lengths = encoded.lengths
    padding = [int(lengths[batch].max()) * len(batch) - int(lengths[batch].sum()) for batch in order[0]]
    assert sum(padding) < 0.1 * int(lengths.sum())  # at random it would be about 90 %
    means = torch.tensor([float(lengths[batch].float().mean()) for batch in order[0][:50]])
    assert means.diff().sign().abs().sum() > 0 and not torch.equal(means, means.sort().values)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_do_not_depend_on_the_batch(arch):
    tokenizer = tiny_tokenizer(arch, WORDS)
    model = load_model(tiny_model(arch), tokenizer, device="cpu")
    encoded = encode(a_split([*PAIRS, ("", "")]), model.tokenizer)
    alone, together = torch.zeros(4, 3), torch.zeros(4, 3)
    with torch.no_grad():
        for rows, inputs in batches(encoded, 1):
            alone[rows] = logits(model, inputs)
        for rows, inputs in batches(encoded, 4, pad_to=20):
            together[rows] = logits(model, inputs)
    assert alone.std(dim=0).min() > 1e-2
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", DECODERS)
def test_an_empty_text_of_a_decoder_whose_padding_is_its_end_token(arch):
    tokenizer = tiny_tokenizer(arch, WORDS)
    tokenizer.pad_token = None
    tokenizer.bos_token = None
    hf_model = tiny_model(arch)
    hf_model.config.pad_token_id = None
    model = load_model(hf_model, tokenizer, device="cpu")
    ((_, inputs),) = batches(encode(a_split(["a b", ""]), model.tokenizer), 2)
    assert inputs["input_ids"].tolist() == [[5, 6], [3, 3]]
    with torch.no_grad():
        expected = hf_model(torch.tensor([[3]])).logits[0]
        torch.testing.assert_close(logits(model, inputs)[1], expected, atol=1e-5, rtol=0)


def test_token_types_are_dropped_for_models_that_have_none():
    model = load_model(tiny_model("distilbert"), tiny_tokenizer("bert", WORDS), device="cpu")
    assert encode(a_split(PAIRS), model.tokenizer).types is None


def test_an_empty_split_has_no_batches():
    encoded = encode(Split("none", "id", pd.DataFrame({"text_a": []})), tiny_tokenizer("bert", WORDS))
    assert len(encoded) == 0 and list(batches(encoded, 4)) == list(batches(encoded, 4, shuffle_seed=0)) == []


def test_what_is_no_text_is_named_by_column_and_row():
    tokenizer = tiny_tokenizer("bert", WORDS)
    with pytest.raises(TaskError, match=r"nan in column 'text_b' at row 1"):
        encode(a_split([("a", "b"), ("a", float("nan"))]), tokenizer)
    with pytest.raises(TaskError, match=r"7 in column 'text_a' at row 0"):
        encode(a_split([(7, "b")]), tokenizer)
    with pytest.raises(TaskError, match="no column 'text_a': it has sentence"):
        encode(Split("mine", "id", pd.DataFrame({"sentence": ["a"]})), tokenizer)


def test_a_missing_tokenizer_or_no_room_for_words():
    with pytest.raises(ModelError, match=r"no tokenizer.*tokenizer="):
        encode(a_split(PAIRS), None)
    with pytest.raises(TaskError, match="max_length=3"):
        encode(a_split(PAIRS), tiny_tokenizer("bert", WORDS), 3)
    tokenizer = tiny_tokenizer("bert", WORDS)
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match="padding"):
        encode(a_split(PAIRS), tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode(a_split(PAIRS), tiny_tokenizer("bert", WORDS), 7)  # exactly long enough: no warning
