"""Attention maps: definitions by hand, the shipped network on maps it never saw, norm weighting against what heads write."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import core_lens
from builders import random_task
from core_lens import CoreLensError, classify_maps
from core_lens.hooked import logits
from core_lens.hooked.patterns import watch_patterns
from core_lens.maps import CLASSES, draw, load_network, make
from core_lens.maps.network import WEIGHTS, MapNetwork
from tiny_models import tiny_model, tiny_tokenizer


def layout(n=10, columns=(0, 9), boundary=4, causal=False):
    chosen = np.zeros(n, dtype=bool)
    chosen[list(columns)] = True
    return draw.Layout(chosen, (np.arange(n) > boundary).astype(float), causal)


def test_shares_by_hand():
    """Half to column 0, half to the token before; of rows 0 and 1 all lies where both would count."""
    map = np.zeros((10, 10))
    map[:, 0] += 0.5
    map[np.arange(1, 10), np.arange(9)] += 0.5
    map[0, 0] += 0.5
    found = draw.shares(map, layout())
    # Rows 2 to 9 put half on each; rows 0 and 1 put all on column 0, which is near.
    assert found.vertical == pytest.approx(0.5) and found.diagonal == pytest.approx(0.5)
    # Outside the columns row i looks at i - 1: in its own text but for row 5; rows 0 and 1 see nothing else.
    # Plain keys are 1-4 and 5-8, so that chance is one half for every row: (7 - .5 * 8 - .5 * 2) / (10 * .5)
    inside = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    assert found.block == pytest.approx(((inside - 0.5) / 0.5).mean())


def test_shares_of_uniform_attention():
    found = draw.shares(np.full((10, 10), 0.1), layout())
    # 28 places are near, 4 of them in a column; 16 others are in a column.
    assert found.vertical == pytest.approx(16 / 96) and found.diagonal == pytest.approx(24 / 96)
    assert found.block == pytest.approx(0)


def test_blocks_fill_their_text():
    where = layout()
    map = where.normalised(where.own().astype(float))
    assert draw.shares(map, where).block == pytest.approx(1) and draw.is_of("block", draw.shares(map, where), where)


def test_causal_maps_see_nothing_to_the_right():
    rng = np.random.default_rng(0)
    where = layout(24, (0, 12, 23), 12, causal=True)
    for drawer in (*draw.TRAINING, *draw.HELD_OUT):
        for kind in CLASSES:
            map = drawer(kind, where, rng)
            assert np.array_equal(map, np.tril(map)) and map.sum(axis=1) == pytest.approx(np.ones(24))


@pytest.mark.parametrize("drawers", [draw.TRAINING, draw.HELD_OUT])
@pytest.mark.parametrize("kind", CLASSES)
def test_drawn_maps_are_of_their_class_alone(kind, drawers, monkeypatch):
    """By a second reading of the definition: where the attention is, in a map of one column at 0."""
    monkeypatch.setattr(draw, "draw_layout", lambda n, rng: layout(n, (0, n - 1), n // 2 - 1))
    for seed in range(5):
        map = draw.draw_map(kind, 40, np.random.default_rng(seed), drawers)
        assert map.sum(axis=1) == pytest.approx(np.ones(40), abs=1e-4)
        ends = map[2:38][:, [0, 39]].sum(axis=1).mean()
        beside = np.mean([map[i, max(i - 1, 1) : min(i + 2, 39)].sum() for i in range(2, 38)])
        own = np.mean([map[i, 1:20].sum() if i < 20 else map[i, 20:39].sum() for i in range(2, 38)])
        assert (ends > 0.5) == (kind == "vertical") or kind == "vertical+diagonal"
        assert (ends > 0.23 and beside > 0.18) == (kind == "vertical+diagonal")
        assert (beside > 0.4) == (kind == "diagonal") or kind == "vertical+diagonal"
        assert (own > 0.65 and beside < 0.3) == (kind == "block")


def test_network_is_the_papers():
    """1-16-16-32-32-64-64 by 3x3, 64-16 and 16-5 by 1x1, with biases: counted by hand."""
    assert sum(p.numel() for p in MapNetwork().parameters()) == 72_917
    assert WEIGHTS.stat().st_size < 1_000_000


def ideal(kind, n):
    eye, columns = np.eye(n, k=-1) + np.eye(n) * (np.arange(n) == 0), np.zeros((n, n))
    columns[:, 0] = columns[:, -1] = 0.5
    text = np.arange(n) >= n // 3
    same = np.equal.outer(text, text)
    words = np.random.default_rng(n).gamma(0.2, size=(n, n))
    return {
        "vertical": columns,
        "diagonal": eye,
        "vertical+diagonal": (columns + eye) / 2,
        "block": same / same.sum(axis=1, keepdims=True),
        "heterogeneous": words / words.sum(axis=1, keepdims=True),
    }[kind]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("n", [12, 31, 64, 128])
def test_network_knows_ideal_maps(kind, n):
    map = torch.tensor(ideal(kind, n), dtype=torch.float32)[None]
    found = load_network()(map).softmax(dim=1)[0]
    assert CLASSES[found.argmax()] == kind
    assert torch.allclose(load_network()(0.01 * map).softmax(dim=1)[0], found, atol=1e-4)


def test_network_generalises_to_computed_maps():
    counts = make.test(load_network(), batches=20, seed=7)
    right = np.diag(counts) / counts.sum(axis=1)
    assert counts.to_numpy().sum() == 1000 and (right > 0.9).all(), counts


def test_making_it(tmp_path):
    out = tmp_path / "weights.safetensors"
    command = [sys.executable, "-m", "core_lens.maps.make", "--steps", "2", "--test-batches", "3", "--out", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "held-out drawers, 150 maps" in said and load_network(out).classify.weight.shape == (5, 16)


@pytest.mark.parametrize("arch", ["bert", "distilbert", "gpt2", "llama"])
def test_weighted_patterns_are_shares_of_what_the_head_writes(arch):
    """Summed over keys, as vectors, they are the head's own output; their norms are what is watched."""
    model = core_lens.load_model(tiny_model(arch, n_heads=4, d_model=32), tokenizer=tiny_tokenizer(arch))
    ids = torch.tensor([[2, 5, 9, 6, 7, 3], [2, 8, 5, 5, 11, 3]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seen: dict[str, torch.Tensor] = {}
    with watch_patterns(model, [1], lambda _, map: seen.update(plain=map)):
        logits(model, inputs)
    with watch_patterns(model, [1], lambda _, map: seen.update(weighted=map), weighted=True):
        logits(model, inputs)
    _, cache = model.run_with_cache(ids)
    values, contexts = cache["blocks.1.attn.hook_v"], cache["blocks.1.attn.hook_z"]
    out = model.blocks[1].attn.o
    for head in range(4):
        own = values[:, :, head * values.shape[2] // 4]

        def write(vectors, head=head):
            """Through the real output layer, with the other heads at 0, less its bias."""
            full = torch.zeros(*vectors.shape[:-1], 4, 8)
            full[..., head, :] = vectors
            none = torch.zeros_like(full)
            return out.original_component(full.flatten(-2)) - out.original_component(none.flatten(-2))

        moved = write(own)[:, None] * seen["plain"][:, head, :, :, None]  # [batch, query, key, d_model]
        assert torch.allclose(moved.sum(dim=2), write(contexts[:, :, head]), atol=1e-5)
        assert torch.allclose(moved.norm(dim=-1), seen["weighted"][:, head], atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_classes_are_those_of_hf_attention_example_by_example(weighted):
    hf, tokenizer, task = tiny_model("bert", n_heads=4, d_model=32), tiny_tokenizer("bert"), random_task(20)

    def network(maps):
        """A class by where the largest entry is: padding, transposing or another head's map would show."""
        return nn.functional.one_hot(maps.flatten(1).argmax(dim=1) % 5, 5).float()

    table = classify_maps(hf, task, "dev", weighted=weighted, network=network, batch_size=6, tokenizer=tokenizer)
    plain = tiny_model("bert", n_heads=4, d_model=32)
    plain.set_attn_implementation("eager")
    counts = np.zeros((2, 4, 5))
    for row in task.split("dev").data.itertuples():
        output = plain(
            **tokenizer(row.text_a, row.text_b, return_tensors="pt"), output_attentions=True, output_hidden_states=True
        )
        for layer, block in enumerate(plain.bert.encoder.layer):
            maps = output.attentions[layer][0]
            if weighted:
                values = block.attention.self.value(output.hidden_states[layer][0]).unflatten(-1, (4, 8))
                columns = block.attention.output.dense.weight.unflatten(1, (4, 8))  # [d_model, head, d_head]
                maps = maps * torch.einsum("khd,mhd->hkm", values, columns).norm(dim=-1)[:, None]
            for head in range(4):
                counts[layer, head, network(maps[head][None]).argmax()] += 1
    assert table[list(CLASSES)].to_numpy() == pytest.approx(counts.reshape(8, 5) / 20)
    assert table["class"].tolist() == [CLASSES[i] for i in counts.reshape(8, 5).argmax(axis=1)]
    assert table["n"].eq(20).all() and len(np.unique(counts.argmax(axis=2))) > 1


def test_heads_can_be_chosen_and_mistakes_are_named():
    assert classify_maps("lab", "lab", heads=["L3.H5", "L1.H1"], max_examples=3)["head"].tolist() == [1, 5]
    with pytest.raises(CoreLensError, match="heads is empty"):
        classify_maps("lab", "lab", heads=[])
    with pytest.raises(CoreLensError, match="max_examples=0"):
        classify_maps("lab", "lab", max_examples=0)


def test_lab_heads_that_look_beside_themselves_are_diagonal():
    """The next-token head of the lab is diagonal to the network, too."""
    measured = core_lens.classify_heads(core_lens.attention_patterns("lab", "lab", max_examples=60))
    shapes = classify_maps("lab", "lab", max_examples=60)
    beside = measured["class"].isin(["previous-token", "next-token"])
    assert beside.any() and shapes.loc[beside, ["diagonal", "vertical+diagonal"]].sum(axis=1).gt(0.5).all()
