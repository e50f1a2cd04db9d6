"""Simplifications: identities where nothing is left out, and one-hot, low-rank and average attention worked out by hand."""

import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sklearn.cluster import KMeans as SklearnKMeans

from builders import frame, hooked
from core_lens.completions import Completions, read_rows, token_rows
from core_lens.errors import CoreLensError, ModelError
from core_lens.hooked import batches, encode, load_language_model, logits
from core_lens.hooked.patterns import edit_patterns, watch_patterns
from core_lens.simplify import SVD, AveragePattern, KMeans, OneHot
from core_lens.simplify.base import vector_hook
from core_lens.tasks import Split
from tiny_models import ARCHITECTURES, tiny_language_model

SPLIT = Split("train", "train", frame(5))


def batch_of(model, n=5):
    _, inputs = next(batches(encode(Split("train", "train", frame(n)), model.tokenizer), n))
    return inputs


def outputs(model, inputs, proxy=None):
    if proxy is None:
        return logits(model, inputs)
    with proxy.apply(model):
        return logits(model, inputs)


def patterns_of(model, inputs, proxy=None):
    seen = {}
    with (
        nullcontext() if proxy is None else proxy.apply(model),
        watch_patterns(model, [0, 1], lambda layer, pattern: seen.update({layer: pattern.clone()})),
    ):
        logits(model, inputs)
    return seen


@pytest.fixture(scope="module")
def language_model():
    return load_language_model(tiny_language_model(seed=0))


SEQUENCES = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 1, 2, 3, 4]]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "whole",
    [SVD(8), SVD(8, together=True), SVD(8, centred=True), SVD(8, of=("key",)), KMeans(80), KMeans(80, together=True)],
)
def test_with_all_dimensions_or_vectors_nothing_changes(arch, whole):
    """Heads have 8 dimensions, and the five pairs fewer than 80 tokens; together, heads that share keys have more vectors."""
    model = hooked(arch)
    inputs = batch_of(model)
    if whole.together and isinstance(whole, KMeans):
        whole = KMeans(400, together=True)
    fitted = whole.fit(model, SPLIT)
    assert torch.allclose(outputs(model, inputs, fitted), outputs(model, inputs), atol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("rough", [SVD(1), KMeans(2), OneHot(), AveragePattern()])
def test_rough_ones_change_the_output_inside_the_block_alone(arch, rough):
    model = hooked(arch)
    inputs = batch_of(model)
    before = outputs(model, inputs)
    implementation = model.original_model.config._attn_implementation
    fitted = rough.fit(model, SPLIT)
    assert not torch.allclose(outputs(model, inputs, fitted), before, atol=1e-3)
    assert torch.equal(outputs(model, inputs), before)
    with pytest.raises(RuntimeError), fitted.apply(model):
        raise RuntimeError
    assert torch.equal(outputs(model, inputs), before)
    assert model.original_model.config._attn_implementation == implementation


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_edits_that_change_nothing_change_nothing_and_know_what_is_barred(arch):
    model = hooked(arch)
    inputs = batch_of(model)
    masks, own = {}, patterns_of(model, inputs)

    def same(layer, pattern, mask):
        masks[layer] = mask.expand_as(pattern)
        return pattern

    with edit_patterns(model, same):
        assert torch.allclose(logits(model, inputs), outputs(model, inputs), atol=1e-5)
    real = inputs["attention_mask"].bool()
    for layer, pattern in own.items():
        n = pattern.shape[-1]
        causal = torch.ones(n, n).tril().bool() if arch in ("gpt2", "llama", "qwen2") else torch.ones(n, n).bool()
        expected = (real[:, None, None, :] & causal).expand_as(pattern)
        queries = real[:, None, :, None].expand_as(pattern)
        assert torch.equal(masks[layer][queries], expected[queries])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_one_hot_attends_to_the_key_with_most_attention(arch):
    model = hooked(arch)
    inputs = batch_of(model)
    own, changed = patterns_of(model, inputs), patterns_of(model, inputs, OneHot().fit(model))
    assert torch.equal(changed[0], torch.nn.functional.one_hot(own[0].argmax(-1), own[0].shape[-1]).to(own[0]))
    assert torch.equal(changed[1].sum(-1), torch.ones_like(changed[1].sum(-1)))
    assert set(changed[1].unique().tolist()) == {0.0, 1.0}


def test_one_hot_by_hand(language_model):
    """The head's output is the value vector of the key with the highest score, recomputed from queries, keys and values."""
    seen = {}
    names = [f"blocks.0.attn.hook_{x}" for x in "qkvz"]
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    hooks = [(name, lambda x, hook, name=name: seen.update({name[-1]: x})) for name in names]
    with OneHot().fit(language_model).apply(language_model), language_model.hooks(fwd_hooks=hooks):
        logits(language_model, inputs)
    q, k, v, z = (seen[x][0].numpy() for x in "qkvz")
    for head in range(2):
        for query in range(4):
            scores = [float(q[query, head] @ k[key, head]) for key in range(query + 1)]
            assert np.allclose(z[query, head], v[int(np.argmax(scores)), head], atol=1e-6)


def test_svd_is_numpys(language_model):
    """Against the truncated reconstruction from numpy's own SVD of all keys of a head."""
    vectors = {}
    rows = token_rows(SEQUENCES)
    name = vector_hook(language_model, "key", 1)
    for sequence in SEQUENCES:
        inputs = {
            "input_ids": torch.tensor([sequence]),
            "attention_mask": torch.ones(1, len(sequence), dtype=torch.long),
        }
        with language_model.hooks(
            fwd_hooks=[(name, lambda x, hook: vectors.setdefault("all", []).append(x[0].numpy()))]
        ):
            logits(language_model, inputs)
    keys = np.concatenate(vectors["all"])
    fitted = SVD(3, layers=(1,)).fit(language_model, rows)
    after = []
    first = {"input_ids": torch.tensor([SEQUENCES[2]]), "attention_mask": torch.ones(1, 7, dtype=torch.long)}
    with (
        fitted.apply(language_model),
        language_model.hooks(fwd_hooks=[(name, lambda x, hook: after.append(x[0].numpy()))]),
    ):
        logits(language_model, first)
    for head in range(2):
        left, values, right = np.linalg.svd(keys[:, head].astype(float), full_matrices=False)
        truncated = (left[:, :3] * values[:3]) @ right[:3]
        assert np.allclose(after[0][:, head], truncated[-7:], atol=1e-4)
        assert not np.allclose(after[0][:, head], keys[-7:, head], atol=1e-2)


def test_principal_components_keep_the_mean(language_model):
    """With the mean subtracted, one dimension of keys that differ in one direction is all of them."""
    fitted = SVD(1, centred=True, of=("key",), layers=(0,)).fit(language_model, SEQUENCES)
    plain = SVD(1, of=("key",), layers=(0,)).fit(language_model, SEQUENCES)
    assert fitted.name == "PCA 1"
    assert plain.name == "SVD 1"
    assert fitted.fitted.tensors["key mean"][0].norm() > 0.1
    assert plain.fitted.tensors["key mean"][0].norm() == 0


def test_clusters_are_scikit_learns(language_model):
    """Every key becomes the centre that scikit-learn predicts for it."""
    name = vector_hook(language_model, "key", 0)
    got, rows = {"before": [], "after": []}, token_rows(SEQUENCES)
    fitted = KMeans(4, layers=(0,)).fit(language_model, rows)
    for what, proxy in (("before", None), ("after", fitted)):
        for _, inputs in batches(rows, 3):
            hooks = [(name, lambda x, hook, what=what: got[what].append(x))]
            if proxy is None:
                with language_model.hooks(fwd_hooks=hooks):
                    logits(language_model, inputs)
            else:
                with proxy.apply(language_model), language_model.hooks(fwd_hooks=hooks):
                    logits(language_model, inputs)
            mask = inputs["attention_mask"].bool()
    before, after = (got[what][0][mask].numpy() for what in ("before", "after"))
    for head in range(2):
        means = SklearnKMeans(4, n_init=1, random_state=0).fit(before[:, head])
        assert np.allclose(after[:, head], means.cluster_centers_[means.predict(before[:, head])], atol=1e-5)
        assert len(np.unique(after[:, head].round(4), axis=0)) == 4


def test_equal_vectors_are_one_cluster(language_model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = KMeans(3).fit(language_model, [[1], [1], [1], [1], [1]])
    assert torch.allclose(fitted.fitted.tensors["key"][0][0, 0], fitted.fitted.tensors["key"][0][0, 2], atol=1e-6)


@pytest.mark.parametrize("arch", ["bert", "gpt2", "llama"])
def test_average_pattern_is_the_mean_over_examples(arch):
    model = hooked(arch)
    pairs = frame(40)
    pairs = pairs[(pairs["text_a"] + " " + pairs["text_b"]).str.split().str.len() == 10][:3]
    assert len(pairs) == 3
    same_length = Split("train", "train", pairs)
    fitted = AveragePattern().fit(model, same_length)
    _, inputs = next(batches(encode(same_length, model.tokenizer), 3))
    assert inputs["attention_mask"].all()
    mean = patterns_of(model, inputs)[0].mean(dim=0)
    changed = patterns_of(model, inputs, fitted)[0]
    for example in changed:
        assert torch.allclose(example, mean, atol=1e-5)


@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_average_pattern_sums_to_one_on_shorter_and_longer_inputs(arch):
    model = hooked(arch)
    short = frame(30)
    short = short[short["text_a"].str.split().str.len() + short["text_b"].str.split().str.len() < 9]
    fitted = AveragePattern().fit(model, Split("train", "train", short))
    inputs = batch_of(model, 6)
    length = fitted.fitted.tensors["pattern"][0].shape[-1]
    assert inputs["input_ids"].shape[1] > length > inputs["attention_mask"].sum(1).min()
    changed = patterns_of(model, inputs, fitted)[0]
    real = inputs["attention_mask"].bool()
    assert torch.allclose(changed.sum(-1)[real[:, None].expand(-1, 2, -1)], torch.tensor(1.0), atol=1e-5)
    assert (changed * ~real[:, None, None, :]).max() == 0
    beyond = changed[0, 0, length]  # the longest comes first: an even share for each key it sees
    n_seen = length + 1 if arch == "gpt2" else int(real[0].sum())
    assert torch.allclose(beyond[:n_seen], torch.full((n_seen,), 1 / n_seen), atol=1e-5)


def test_only_the_named_layers_change():
    model = hooked("bert")
    inputs = batch_of(model)
    own, changed = patterns_of(model, inputs), patterns_of(model, inputs, OneHot(layers=(1,)).fit(model))
    assert torch.allclose(changed[0], own[0], atol=1e-6)
    assert set(changed[1].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("data", [
    SEQUENCES,
    token_rows(SEQUENCES),
    Dataset.from_dict({"tokens": SEQUENCES}),
    Dataset.from_dict({"input_ids": SEQUENCES}),
    [np.array(sequence) for sequence in SEQUENCES],
])  # fmt: skip
def test_all_that_holds_sequences_is_read_alike(language_model, data):
    found = read_rows(language_model, data, None)
    assert [found.row(i) for i in range(3)] == SEQUENCES
    assert len(read_rows(language_model, data, 2)) == 2


@pytest.mark.parametrize(("make", "message"), [
    (lambda: SVD(0), "k=0 must be a whole number"),
    (lambda: SVD(2, of=("value",)), "choose 'query', 'key' or both"),
    (lambda: KMeans(30, max_vectors=20), "max_vectors=20"),
    (lambda: OneHot(n_examples=0), "n_examples=0"),
    (lambda: SVD(9).fit(hooked("bert"), SPLIT), "k=9: the model's heads have 8 dimensions"),
    (lambda: SVD(2).fit(hooked("bert")), "pass training data"),
    (lambda: SVD(2, layers=(2,)).fit(hooked("bert"), SPLIT), "layers 0 to 1"),
    (lambda: SVD(2).fit(hooked("bert"), "mnli"), "pass a task, a split, or sequences"),
    (lambda: SVD(2).fit(hooked("bert"), [[1, 2], []]), "sequence 1 is no list of token ids"),
    (lambda: SVD(2).fit(hooked("bert"), []), "no sequences"),
    (lambda: SVD(2).fit(hooked("bert"), Dataset.from_dict({"text": ["a"]})), "no column tokens or input_ids"),
    (lambda: SVD(2).fit(hooked("bert"), Split("train", "train", frame(2)[:0])), "is empty"),
])  # fmt: skip
def test_mistakes_end_in_a_sentence(make, message):
    with pytest.raises(CoreLensError, match=message):
        make()


def test_only_its_own_model_is_simplified():
    model, other = hooked("bert"), hooked("bert", seed=1)
    with pytest.raises(CoreLensError, match="SVD 2 is not fitted yet"), SVD(2).apply(model):
        pass
    with pytest.raises(ModelError, match="other weights"), SVD(2).fit(model, SPLIT).apply(other):
        pass
    with pytest.raises(ModelError, match="edited already"):
        fitted = OneHot().fit(model)
        with fitted.apply(model), fitted.apply(model):
            pass


def test_completions_ask_for_what_is_there():
    asked = pd.DataFrame({"row": [0, 2, 2], "position": [1, 6, 2], "depth": [1, 2, 3]})
    one = Completions.of("some", SEQUENCES, asked)
    assert one.gold.tolist() == [2, 4, 11]
    part = one.sample(1, seed=1)
    assert len(part.encoded) == 1
    assert set(part.asked["row"]) == {0}
    assert part.gold.tolist() in ([2], [4, 11])
    whole = one.sample(None)  # without the sequence that nothing is asked of
    assert len(whole.encoded) == 2 and whole.gold.tolist() == one.gold.tolist()
    assert whole.encoded.row(1) == SEQUENCES[2]
    with pytest.raises(CoreLensError, match="n=0"):
        one.sample(0)
    with pytest.raises(CoreLensError, match="row must hold whole numbers, and is float64"):
        Completions.of("some", SEQUENCES, asked.astype({"row": float}))
    for row, position in ((0, 0), (0, 5), (3, 1), (-1, 1)):
        with pytest.raises(CoreLensError, match=f"asks for token {position} of sequence {row}"):
            Completions.of("some", SEQUENCES, pd.DataFrame({"row": [row], "position": [position]}))
    with pytest.raises(CoreLensError, match="asks for token 2, which is not in choices"):
        Completions.of("some", SEQUENCES, asked, choices=[4, 11])
    with pytest.raises(CoreLensError, match="does not say the position"):
        Completions.of("some", SEQUENCES, asked[["row"]])
