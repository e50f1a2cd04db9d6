"""The lab's shipped models: they load offline, are what their curve says, and show the story they are there for."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from core_lens import lab
from core_lens.errors import CoreLensError

CURVE = json.loads((lab.WEIGHTS / "curve.json").read_text())
TASK = lab.lab_task()
OOD = [split.name for split in TASK.with_role("ood")]
COMPANIONS = [split.name for split in TASK.with_role("companion")]
FOLDERS = [lab.model_folder("lab-gpt2"), *(lab.checkpoint(step) for step in lab.checkpoint_steps())]


def mean(scores: dict[str, float], names: list[str]) -> float:
    return sum(scores[name] for name in names) / len(names)


def predicted(folder: Path, split: str, n: int) -> list[str]:
    """Label names that the model gives the first `n` pairs of a split, one pair at a time, hence without padding."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    data, names = TASK.split(split).data[:n], []
    with torch.no_grad():
        for a, b in zip(data["text_a"], data["text_b"]):
            logits = model.eval()(**tokenizer(a, b, return_tensors="pt")).logits
            names.append(model.config.id2label[int(logits.argmax())])
    return names


def test_folders_by_name_and_step():
    steps = lab.checkpoint_steps()
    assert len(steps) == 10 and list(steps) == sorted(steps)
    assert lab.checkpoint() == lab.checkpoint(steps[-1]) == lab.model_folder("lab")
    assert len({lab.checkpoint(step) for step in steps}) == 10
    for folder in [*FOLDERS, lab.model_folder("lab-pretrained")]:
        assert (folder / "model.safetensors").is_file() and (folder / "config.json").is_file()
    with pytest.raises(CoreLensError, match=rf"step 7\b.*{steps[0]}, .*{steps[-1]}"):
        lab.checkpoint(7)
    with pytest.raises(CoreLensError, match="lab-bert.*lab-gpt2"):
        lab.model_folder("lab-bert")


def test_the_package_carries_at_most_ten_megabytes_and_only_known_kinds_of_files():
    files = [path for path in lab.WEIGHTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10_000_000
    assert {path.suffix for path in files} == {".safetensors", ".json"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_models_load_in_float32_with_label_names_and_the_size_asked_for(folder):
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.config.id2label == {0: "entailment", 1: "non-entailment"}
    assert (model.config.num_hidden_layers, model.config.num_attention_heads, model.config.hidden_size) == (4, 8, 64)
    assert 190_000 < model.num_parameters() < 250_000
    text = [*TASK.split("dev").data["text_a"], *TASK.split("Embed-Verb").data["text_a"]]
    assert all(tokenizer.unk_token_id not in ids for ids in tokenizer(text)["input_ids"])
    assert tokenizer.convert_ids_to_tokens(tokenizer("The judge slept.", "The nurse met the judge.")["input_ids"]) == (
        ["[CLS]", "the", "judge", "slept", ".", "[SEP]", "the", "nurse", "met", "the", "judge", ".", "[SEP]"]
    )


@pytest.mark.parametrize("name", ["lab", "lab-gpt2"])
def test_padding_does_not_change_what_a_model_says(name):
    folder = lab.model_folder(name)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    data = TASK.split("dev").data[:16]
    batch = tokenizer(list(data["text_a"]), list(data["text_b"]), padding=True, return_tensors="pt")
    assert (batch["attention_mask"] == 0).any()
    with torch.no_grad():
        together = model.eval()(**batch).logits
        alone = [model(**tokenizer(a, b, return_tensors="pt")).logits for a, b in zip(data["text_a"], data["text_b"])]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("folder", "name", "step"),
    [(lab.checkpoint(step), "lab", step) for step in lab.checkpoint_steps()[2::7]]
    + [(lab.model_folder("lab-gpt2"), "lab-gpt2", lab.checkpoint_steps()[-1])],
)
def test_shipped_weights_score_what_the_curve_says(folder, name, step):
    for split in ("dev", "Rel-Clause", "Prep-entailed"):
        gold = TASK.split(split).data["label"][:150].tolist()
        right = sum(a == b for a, b in zip(predicted(folder, split, 150), gold, strict=True))
        expected = CURVE[name][str(step)][split]
        # Four standard errors of a sample of 150, and two pairs that another processor may round otherwise.
        assert abs(right / 150 - expected) <= 4 * (expected * (1 - expected) / 150) ** 0.5 + 2 / 150, split


def test_the_curve_first_shows_the_heuristic_then_the_way_out_of_it():
    curve = [CURVE["lab"][str(step)] for step in lab.checkpoint_steps()]
    heuristic = [scores for scores in curve if scores["dev"] >= 0.9 and mean(scores, OOD) <= 0.35]
    assert len(heuristic) >= 2, "there is no stage in which overlap decides"
    final = curve[-1]
    assert final["dev"] >= 0.95 and mean(final, OOD) >= 0.7 and mean(final, COMPANIONS) >= 0.9
    assert heuristic[-1]["dev"] > final["dev"] - 0.06, "in-domain accuracy says little about the change"


def test_the_decoder_has_learned_its_task():
    (final,) = CURVE["lab-gpt2"].values()
    assert final["dev"] >= 0.93 and mean(final, COMPANIONS) >= 0.9


def test_the_pretrained_encoder_fills_a_gap_from_the_other_sentence():
    """Asked for a name that the second sentence must share with the first, it finds it; a model without training cannot."""
    folder = lab.model_folder("lab-pretrained")
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = "The [MASK] thanked the pilot."
    for name in ("judge", "nurse", "singer", "banker"):
        batch = tokenizer(f"The {name} thanked the pilot in the garden.", text, return_tensors="pt")
        with torch.no_grad():
            logits = model.eval()(**batch).logits[batch["input_ids"] == tokenizer.mask_token_id]
        assert tokenizer.decode(logits.argmax(-1)) == name


def test_the_card_carries_the_curve():
    card = (lab.WEIGHTS.parent / "MODEL_CARD.md").read_text()
    for name, steps in CURVE.items():
        for step, scores in steps.items():
            (row,) = [line for line in card.splitlines() if line.startswith(f"| {name} | {step} |")]
            assert f"| {scores['dev']:.3f} | {mean(scores, OOD):.3f} |" in row


@pytest.mark.slow
def test_making_the_models_twice_gives_the_same_bits(tmp_path):
    """A few steps of every stage, each time in a new process with another hash seed."""
    script = """
import sys
from pathlib import Path
from core_lens.lab.make import Settings, make
make(Path(sys.argv[1]), Settings(corpus_pairs=500, pretrain_steps=6, pretrain_batch=8, checkpoints=(2, 4)))
"""
    digests = []
    for run in ("1", "2"):
        out = tmp_path / run
        environment = {**os.environ, "PYTHONHASHSEED": run}
        subprocess.run([sys.executable, "-c", script, str(out)], check=True, env=environment, capture_output=True)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        digests.append({str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert digests[0] == digests[1]
    assert {"MODEL_CARD.md", "weights/curve.json"} <= set(digests[0])
    names = ["lab", "lab-gpt2", "lab-pretrained", "lab-step-2"]
    assert [f"weights/{name}/model.safetensors" in digests[0] for name in names] == [True] * 4
    assert len({digests[0][f"weights/{name}/model.safetensors"] for name in names}) == 4
