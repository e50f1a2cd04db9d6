"""Models compiled by Tracr (Lindner et al., 2023), as GPT-2 classifiers, for `planted.py --tracr`.

A program of Tracr's library is a transformer whose weights are worked out by hand, without LayerNorm. Here it becomes a GPT-2
that answers at the last token. Its LayerNorms are made idle: each direction of the residual stream has a mirror that gets the
negative, so that the mean is 0, and two directions hold a constant so large that it alone makes the variance. Heads and MLPs
that the program leaves empty get random weights and write to directions of their own, which nothing reads.
"""

import itertools

import numpy as np
import torch
from torch import Tensor
from tracr.compiler import compiling, lib  # pyright: ignore[reportMissingImports]
from tracr.rasp import rasp  # pyright: ignore[reportMissingImports]
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2ForSequenceClassification

import core_lens
from core_lens.ablation import fit_means
from core_lens.hooked import Encoded, batches, component_set, logits
from core_lens.pruners import PruningProblem

PROGRAMS = {
    "reverse": (lambda: lib.make_reverse(rasp.tokens), "abc"),
    "shuffle-Dyck-1": (lambda: lib.make_shuffle_dyck(["()"]), "()"),
    "shuffle-Dyck-2": (lib.make_shuffle_dyck2, "(){}"),
}
LONGEST = 8
"""Tokens, the first of which is BOS."""
CONSTANT, SPARE, SCALE = 1e3, 8, 10.0
"""What makes the variance; directions for distractors; the logit of the program's answer, all others being 0."""


def compiled(name: str, seed: int) -> tuple[PruningProblem, Tensor]:
    """The problem of pruning a program, on strings with its answers in balance, and which units are needed, [unit]."""
    make, vocabulary = PROGRAMS[name]
    program = make()
    source = compiling.compile_rasp_to_model(program, set(vocabulary), LONGEST, compiler_bos="BOS", causal=True)
    generator = torch.Generator().manual_seed(seed)
    model, is_needed = _gpt2(source, program.label, generator)
    codes = source.input_encoder.encoding_map
    bridge = core_lens.load_model(model, device="cpu")

    texts = [s for n in range(2, LONGEST) for s in itertools.product(sorted(vocabulary), repeat=n)]
    texts = [texts[i] for i in torch.randperm(len(texts), generator=generator)[:4096]]
    encoded = _encode(texts, codes)
    answers = _logits(bridge, encoded).argmax(-1)
    for text, answer in zip(texts[:10], answers.tolist(), strict=False):  # against Tracr's own run of it
        said = str(source.apply(["BOS", *text]).decoded[-1])
        assert said == model.config.id2label[answer], (text, said, model.config.id2label[answer])  # pyright: ignore[reportOptionalSubscript]
    places = [(answers == answer).nonzero()[:, 0] for answer in answers.unique()]
    chosen = torch.cat([place[torch.randint(len(place), (200,), generator=generator)] for place in places])
    encoded = _encode([texts[i] for i in chosen], codes)
    teacher = _logits(bridge, encoded)
    gold = torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[1]).bool()
    units = component_set(bridge)
    means = fit_means(bridge, list(batches(encoded, 64)))
    return PruningProblem(bridge, units, means, encoded, teacher, gold), is_needed


def _encode(texts: list[tuple[str, ...]], codes: dict[str, int]) -> Encoded:
    rows = [[codes["BOS"], *(codes[token] for token in text)] for text in texts]
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return Encoded(ids, None, torch.tensor([len(row) for row in rows]), codes["compiler_pad"])


def _logits(bridge: TransformerBridge, encoded: Encoded) -> Tensor:
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for rows, inputs in batches(encoded, 64):
            found.update(zip(rows.tolist(), logits(bridge, inputs), strict=True))
    return torch.stack([found[row] for row in range(len(encoded))])


def _gpt2(source, label: str, generator: torch.Generator) -> tuple[GPT2ForSequenceClassification, Tensor]:
    """The compiled weights in a GPT-2, and which of its units they fill."""
    config, weights = source.model_config, {
        module: {name: torch.from_numpy(np.array(value)) for name, value in values.items()}
        for module, values in source.params.items()
    }  # fmt: skip
    n_layers, n_heads, d_old, n_read = config.num_layers, config.num_heads, config.key_size, len(source.residual_labels)
    width = 2 * (n_read + SPARE) + 2
    d_head = max(-(-width // n_heads), d_old)
    width = n_heads * d_head
    answers = [i for i, name in enumerate(source.residual_labels) if name.startswith(f"{label}:")]
    names = {k: source.residual_labels[i].split(":", 1)[1] for k, i in enumerate(answers)}
    codes = source.input_encoder.encoding_map
    model = GPT2ForSequenceClassification(
        GPT2Config(
            vocab_size=len(codes), n_positions=LONGEST + 1, n_embd=width, n_layer=n_layers, n_head=n_heads,
            n_inner=config.mlp_hidden_size, activation_function="relu", num_labels=len(answers), id2label=names,
            label2id={name: k for k, name in names.items()}, pad_token_id=codes["compiler_pad"], bos_token_id=None,
            eos_token_id=None, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )
    ).eval()  # fmt: skip
    half = n_read + SPARE

    def wide(x: Tensor, start: int = 0) -> Tensor:
        """What is written, [..., direction], at its place from `start` on and mirrored."""
        out = torch.zeros(*x.shape[:-1], width)
        out[..., start : start + x.shape[-1]] = x
        out[..., half + start : half + start + x.shape[-1]] = -x
        return out

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[0] ** 0.5

    heads = torch.zeros(n_layers, n_heads, dtype=torch.bool)
    mlps = torch.zeros(n_layers, dtype=torch.bool)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        transformer = model.transformer
        constant = torch.zeros(width)
        constant[2 * half : 2 * half + 2] = torch.tensor([CONSTANT, -CONSTANT])
        transformer.wte.weight.copy_(wide(weights["token_embed"]["embeddings"]) + constant)
        positions = wide(weights["pos_embed"]["embeddings"])[: LONGEST + 1]
        transformer.wpe.weight[: len(positions)] = positions
        for norm in (transformer.ln_f, *(norm for block in transformer.h for norm in (block.ln_1, block.ln_2))):
            norm.weight.fill_(CONSTANT * (2 / width) ** 0.5)
        model.score.weight[range(len(answers)), answers] = SCALE
        for layer, block in enumerate(transformer.h):
            attention = {
                part: weights[f"transformer/layer_{layer}/attn/{part}"] for part in ("query", "key", "value", "linear")
            }
            for head in range(n_heads):
                old = slice(head * d_old, (head + 1) * d_old)
                v, o = attention["value"]["w"][:, old], attention["linear"]["w"][old]
                heads[layer, head] = bool((v @ o).any())
                for k, part in enumerate(("query", "key", "value")):
                    start = k * width + head * d_head
                    # Attention is scaled by the square root of d_head, of which there is more here.
                    factor = (d_head / d_old) ** 0.5 if part == "query" else 1.0
                    w, b = attention[part]["w"][:, old], attention[part]["b"][old]
                    if not heads[layer, head]:
                        w, b = draw(n_read, d_old), torch.zeros(d_old)
                    block.attn.c_attn.weight[:n_read, start : start + d_old] = factor * w
                    block.attn.c_attn.bias[start : start + d_old] = factor * b
                rows = slice(head * d_head, head * d_head + d_old)
                block.attn.c_proj.weight[rows] = wide(o) if heads[layer, head] else wide(draw(d_old, SPARE), n_read)
            block.attn.c_proj.bias.copy_(wide(attention["linear"]["b"]))
            first, second = (weights[f"transformer/layer_{layer}/mlp/linear_{k}"] for k in (1, 2))
            mlps[layer] = bool(second["w"].any())
            if mlps[layer]:
                block.mlp.c_fc.weight[:n_read] = first["w"]
                block.mlp.c_fc.bias.copy_(first["b"])
                block.mlp.c_proj.weight.copy_(wide(second["w"]))
                block.mlp.c_proj.bias.copy_(wide(second["b"]))
            else:
                block.mlp.c_fc.weight[:n_read] = draw(n_read, config.mlp_hidden_size)
                block.mlp.c_proj.weight.copy_(wide(draw(config.mlp_hidden_size, SPARE), n_read))
    return model, torch.cat([heads.flatten(), mlps])
