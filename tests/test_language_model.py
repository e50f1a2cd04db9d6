"""Training a language model: the order of its sequences, what the loss counts, and going on where it was interrupted."""

import numpy as np
import pytest
import torch

from core_lens.completions import token_rows
from core_lens.errors import CoreLensError
from core_lens.language_model import _Order, _padded, small_gpt2, train_language_model
from core_lens.training import Rows
from tiny_models import tiny_model

RNG = np.random.default_rng(0)
SEQUENCES = [RNG.integers(0, 9, size=n) for n in RNG.integers(2, 30, size=70)]
SETTINGS = {"steps": 6, "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 2, "every": 2, "device": "cpu"}


def new_model():
    return small_gpt2(9, n_layers=1, n_heads=2, d_model=8, length=32)


def test_batches_are_of_like_length_and_all_lengths_alternate():
    lengths = torch.from_numpy(RNG.integers(2, 500, size=1003))
    order = _Order(lengths, 20, seed=0)
    order.set_epoch(3)
    rows = list(order)
    assert len(rows) == len(order) == len(set(rows)) == 1000  # three rows wait for another epoch
    batches = lengths[torch.tensor(rows)].reshape(50, 20).double()
    # 1,000 lengths in 50 batches: a batch spans a fiftieth of them, a random one most of the range.
    assert (batches.max(dim=1).values - batches.min(dim=1).values).median() < 20
    # Neighbours are as far apart as batches drawn at random (a third of the range), not next to each other in length.
    assert batches.mean(dim=1).diff().abs().mean() == pytest.approx(498 / 3, rel=0.25)
    assert rows == list(order)
    order.set_epoch(4)
    assert rows != list(order)


def test_few_rows_are_one_batch():
    assert sorted(_Order(torch.tensor([3, 4, 5]), 20, seed=0)) == [0, 1, 2]


def test_the_loss_is_of_every_real_token_but_the_first():
    model = new_model().eval()
    rows = Rows(token_rows(SEQUENCES[:5]))
    with torch.no_grad():
        loss = model(**_padded([rows[i] for i in range(5)], 0)).loss
        parts = []
        for sequence in SEQUENCES[:5]:
            ids = torch.from_numpy(sequence)[None]
            log_p = model(ids).logits.log_softmax(dim=-1)[0, :-1]
            parts += log_p[torch.arange(len(sequence) - 1), ids[0, 1:]].tolist()
    assert loss.item() == pytest.approx(-np.mean(parts), rel=1e-5)


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path):
    rows = token_rows(SEQUENCES)
    whole = train_language_model(new_model(), rows, tmp_path / "whole", **SETTINGS)

    def stop(model, step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_language_model(new_model(), rows, tmp_path / "parts", look=stop, **SETTINGS)
    assert not (tmp_path / "parts" / "model").exists()
    seen = []
    parts = train_language_model(
        new_model(), rows, tmp_path / "parts", look=lambda m, step: seen.append(step), **SETTINGS
    )
    assert seen[-1] == 6 and seen[0] > 2  # the first steps are not taken again
    first, second = (type(new_model()).from_pretrained(folder).state_dict() for folder in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)
    start = new_model().state_dict()
    assert not torch.equal(first["transformer.wte.weight"], start["transformer.wte.weight"])
    assert not (tmp_path / "parts" / "resume").exists()
    # A third call reads it.
    assert train_language_model(new_model(), rows, tmp_path / "parts", look=stop, **SETTINGS) == parts
    with pytest.raises(CoreLensError, match="another batch_size"):
        train_language_model(new_model(), rows, tmp_path / "parts", **{**SETTINGS, "batch_size": 4})


@pytest.mark.parametrize(("changed", "message"), [
    ({"steps": 0}, "steps=0"),
    ({"learning_rate": 0.0}, "learning_rate=0.0"),
    ({"adam_epsilon": -1.0}, "adam_epsilon=-1.0"),
    ({"seed": -1}, "seed=-1"),
    ({"device": "abacus"}, "device='abacus'"),
])  # fmt: skip
def test_mistakes_leave_no_folder(tmp_path, changed, message):
    with pytest.raises(CoreLensError, match=message):
        train_language_model(new_model(), token_rows(SEQUENCES), tmp_path / "out", **{**SETTINGS, **changed})
    assert not (tmp_path / "out").exists()


def test_sequences_the_model_cannot_read(tmp_path):
    with pytest.raises(CoreLensError, match="has 33 tokens, the model takes 32"):
        train_language_model(new_model(), token_rows([np.zeros(33, dtype=int)]), tmp_path / "out", **SETTINGS)
    with pytest.raises(CoreLensError, match="token id 9"):
        train_language_model(new_model(), token_rows([np.array([1, 9])]), tmp_path / "out", **SETTINGS)
    with pytest.raises(CoreLensError, match="token id -1"):
        train_language_model(new_model(), token_rows([np.array([1, -1])]), tmp_path / "out", **SETTINGS)
    with pytest.raises(CoreLensError, match="BertForSequenceClassification is no language model"):
        train_language_model(tiny_model("bert"), token_rows(SEQUENCES), tmp_path / "out", **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_other_weights_to_start_from_are_another_training(tmp_path):
    train_language_model(new_model(), token_rows(SEQUENCES), tmp_path / "out", **SETTINGS)
    other = small_gpt2(9, n_layers=1, n_heads=2, d_model=8, length=32, seed=1)
    with pytest.raises(CoreLensError, match="another weights"):
        train_language_model(other, token_rows(SEQUENCES), tmp_path / "out", **SETTINGS)
