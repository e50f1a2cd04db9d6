"""Fine-tuning: checkpoints that load, a curve that is what evaluate says, and a run that continues after an interruption."""

import json

import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from builders import frame, random_task
from core_lens import (
    CoreLensError,
    Split,
    Subnetwork,
    Task,
    ZeroActivations,
    evaluate,
    finetune,
    load_model,
    model_info,
)
from core_lens.errors import SavedFileError
from core_lens.finetune import _Keeper
from core_lens.magnitude import magnitude_mask
from tiny_models import LABELS, tiny_model, tiny_tokenizer


@pytest.fixture
def pretrained(tmp_path):
    """A tiny encoder without a classification head, on disk."""
    tiny_model("bert").bert.save_pretrained(tmp_path / "encoder")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def tune(model, out, **changes):
    settings = {"steps": 6, "every": 3, "batch_size": 8, "device": "cpu"} | changes
    return finetune(model, settings.pop("task", None) or random_task(), out, **settings)


def test_checkpoints_load_and_the_curve_is_what_evaluate_says(pretrained, tmp_path):
    made = tune(pretrained, tmp_path / "out")
    assert sorted(made.checkpoints) == [3, 6] and made.final.name == "step-6"
    assert set(made.curve["step"]) == {3, 6} and {"dev", "hard", "easy"} == set(made.curve["split"])
    model = AutoModelForSequenceClassification.from_pretrained(made.final)
    assert model.config.id2label == dict(enumerate(LABELS))
    again = evaluate(made.final, random_task(), device="cpu")
    there = made.curve[made.curve.step == 6].drop(columns="step").reset_index(drop=True)
    pd.testing.assert_frame_equal(there, again)
    assert not (tmp_path / "out" / "resume").exists()


def test_it_learns():
    """A label that one word gives away is learned; the same steps with learning rate almost 0 do not."""
    data = frame(200)
    data["label"] = data["text_a"].map(lambda text: LABELS[0] if "doctor" in text else LABELS[1])
    task = Task("word", LABELS[:2], (Split("train", "train", data), Split("dev", "id", data)))
    import tempfile

    accuracy = []
    for rate in (2e-3, 1e-9):
        with tempfile.TemporaryDirectory() as out:
            made = tune(tiny_model("bert", n_labels=2), out, task=task, steps=200, every=200, learning_rate=rate,
                        batch_size=32, tokenizer=tiny_tokenizer("bert"))  # fmt: skip
        accuracy.append(made.curve[made.curve.metric == "accuracy"]["value"].iloc[0])
    assert accuracy[0] > max(0.8, accuracy[1] + 0.15)


def test_an_interrupted_run_continues_to_the_same_weights(pretrained, tmp_path, monkeypatch):
    whole = tune(pretrained, tmp_path / "whole", steps=8, every=2)
    keep = _Keeper.keep

    def interrupt(self, model, step):
        keep(self, model, step)
        if step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(_Keeper, "keep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune(pretrained, tmp_path / "cut", steps=8, every=2)
    monkeypatch.setattr(_Keeper, "keep", keep)
    cut = tune(pretrained, tmp_path / "cut", steps=8, every=2)
    assert sorted(cut.checkpoints) == [2, 4, 6, 8]
    a, b = (AutoModelForSequenceClassification.from_pretrained(made.final).state_dict() for made in (whole, cut))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)
    pd.testing.assert_frame_equal(
        whole.curve.sort_values(["step", "split", "metric"], ignore_index=True),
        cut.curve.sort_values(["step", "split", "metric"], ignore_index=True),
    )
    finished = tune(pretrained, tmp_path / "cut", steps=8, every=2)  # nothing left to do
    assert finished.checkpoints.keys() == cut.checkpoints.keys()


def test_decoders_and_regression(tmp_path):
    data = frame(40)
    data["label"] = data["text_a"].map(len).astype(float)
    task = Task("length", (), (Split("train", "train", data), Split("dev", "id", data)), metric="pearson")
    tiny_model("gpt2").transformer.save_pretrained(tmp_path / "gpt2")
    tiny_tokenizer("gpt2").save_pretrained(tmp_path / "gpt2")
    made = tune(tmp_path / "gpt2", tmp_path / "out", task=task)
    assert json.loads((made.final / "config.json").read_text())["problem_type"] == "regression"
    assert "pearson" in set(made.curve["metric"])


def test_mistakes(pretrained, tmp_path):
    with pytest.raises(CoreLensError, match="cannot load"):
        tune(tmp_path / "absent", tmp_path / "a")
    no_train = Task("t", LABELS, (Split("dev", "id", frame(5)),))
    with pytest.raises(CoreLensError, match="no training examples"):
        tune(pretrained, tmp_path / "b", task=no_train)
    for wrong in (
        {"steps": 0},
        {"batch_size": 0},
        {"every": 0},
        {"max_examples": 0},
        {"learning_rate": 0},
        {"warmup_steps": -5},
    ):
        ((name, value),) = wrong.items()
        with pytest.raises(CoreLensError, match=f"{name}={value}"):
            tune(pretrained, tmp_path / "c", **wrong)
    with pytest.raises(CoreLensError, match="leaves nothing to evaluate"):
        tune(pretrained, tmp_path / "c", splits="train")
    with pytest.raises(CoreLensError, match="device='gpu'"):
        tune(pretrained, tmp_path / "c", device="gpu")
    with pytest.raises(CoreLensError, match="no classification head"):
        tune(tiny_model("bert").bert, tmp_path / "d")
    tune(pretrained, tmp_path / "e")
    with pytest.raises(SavedFileError, match="another learning_rate"):
        tune(pretrained, tmp_path / "e", learning_rate=1e-3)
    tiny_model("bert", seed=9).bert.save_pretrained(tmp_path / "other")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "other")
    with pytest.raises(SavedFileError, match="another model"):
        tune(tmp_path / "other", tmp_path / "e")
    file = pretrained / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(CoreLensError, match="cannot load"):
        tune(pretrained, tmp_path / "f")


def test_a_head_that_names_the_labels_keeps_its_order_and_the_users_model_is_left_alone(tmp_path):
    model = tiny_model("bert")
    model.config.id2label = {0: "contradiction", 1: "neutral", 2: "entailment"}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = tune(model, tmp_path / "out", tokenizer=tiny_tokenizer("bert"), learning_rate=1e-12, steps=2, every=2)
    there = AutoModelForSequenceClassification.from_pretrained(made.final)
    assert there.config.id2label[0] == "contradiction"
    untouched = evaluate(model, random_task(), tokenizer=tiny_tokenizer("bert"), device="cpu")
    assert made.curve["value"].tolist() == pytest.approx(untouched["value"].tolist(), abs=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_a_ticket_is_trained_with_its_mask_fixed(pretrained, tmp_path):
    """Removed weights are 0 at every checkpoint, all others are trained; ablating what is not there changes nothing."""
    whole = tiny_model("bert")
    mask = magnitude_mask(whole, 0.6)
    made = tune(pretrained, tmp_path / "weights", keep=mask, learning_rate=1e-2)
    for folder in made.checkpoints.values():
        for name, weight in AutoModelForSequenceClassification.from_pretrained(folder).named_parameters():
            if name in mask.kept:
                assert (weight[~mask.kept[name]] == 0).all(), name
                moved = (weight != whole.get_parameter(name))[mask.kept[name]]
                assert moved.float().mean() > 0.95, name
    bridge = load_model(whole, tokenizer=tiny_tokenizer("bert"))
    zero = ZeroActivations(model_info(bridge).weight_hash)
    subnetwork = Subnetwork.of(bridge, ["L0.H0", "L0.MLP", "L1.H1"], zero)
    made = tune(pretrained, tmp_path / "heads", keep=subnetwork, learning_rate=1e-2)
    tuned = load_model(made.final, device="cpu")
    ours = Subnetwork(subnetwork.units, subnetwork.mask, ZeroActivations(model_info(tuned).weight_hash))
    table = evaluate(tuned, random_task(), ours).set_index(["split", "group", "metric"])["value"]
    assert table[:, "all", "kl"].max() < 1e-6 and table[:, "all", "agreement"].min() == 1
    curve = made.curve[(made.curve.step == 6)].set_index(["split", "group", "metric"])["value"]
    assert curve["dev", "all", "accuracy"] == table["dev", "all", "accuracy"]
    for keep in (None, mask):  # the folder knows what it trains
        with pytest.raises(SavedFileError, match="another kept"):
            tune(pretrained, tmp_path / "heads", keep=keep, learning_rate=1e-2)
