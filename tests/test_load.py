"""Large inputs: rows in bounded memory, and a model far larger than any of the papers'."""

import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch

from builders import frame, hooked
from core_lens import Core, Subnetwork
from core_lens.ablation import ZeroActivations
from core_lens.evaluate import COLUMNS
from core_lens.gates import inject
from core_lens.hooked import batches, component_set, encode, logits, model_info
from core_lens.tasks import Split

ROWS = """
import resource, sys, time
import pandas as pd
import core_lens

n = int(sys.argv[1])
rows = core_lens.load_task("lab").split("SO-Swap").data
data = pd.concat([rows] * (n // len(rows) + 1), ignore_index=True).iloc[:n]
task = core_lens.Task.from_dataframes("many", id=data, labels=("entailment", "non-entailment"))
model = core_lens.load_model("lab", device="cpu")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
table = core_lens.evaluate(model, task, max_examples=None)
assert table.query("metric == 'accuracy' and group == 'all'")["n"].item() == n
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.perf_counter() - start)
"""


@pytest.mark.slow
def test_a_hundred_thousand_rows_in_bounded_memory():
    """Peak memory above the loaded model; ten times the rows may take little more than the tables themselves."""

    def peak(n):
        out = subprocess.run([sys.executable, "-c", ROWS, str(n)], capture_output=True, text=True, check=True).stdout
        kilobytes, seconds = map(float, out.split())
        return kilobytes / 1024, seconds

    small, large = peak(10_000), peak(100_000)
    print(f"10,000 rows: {small[0]:.0f} MB, {small[1]:.1f} s; 100,000 rows: {large[0]:.0f} MB, {large[1]:.1f} s")
    assert large[0] < 400 and large[0] - small[0] < 300


@pytest.mark.slow
def test_forty_eight_layers_of_twenty_five_heads():
    """1,248 units: gates, masks, and the overlap of subnetworks with its exact nulls."""
    start = time.perf_counter()
    model = hooked("bert", n_layers=48, n_heads=25, d_model=100)
    units, info = component_set(model), model_info(model)
    assert len(units) == 48 * 26 == 1248
    inputs = next(batches(encode(Split("x", "id", frame(4)), model.tokenizer), 4))[1]
    zero = ZeroActivations(info.weight_hash)
    with inject(model, units, zero) as gates:
        gates.z = torch.ones(1248, requires_grad=True)
        out = logits(model, inputs)
        out.logsumexp(-1).sum().backward()
        assert gates.z.grad is not None and gates.z.grad.shape == (1248,) and gates.z.grad.abs().sum() > 0
    torch.testing.assert_close(out, logits(model, inputs), atol=1e-4, rtol=1e-4)
    rng = np.random.default_rng(0)
    core_heads = rng.choice(1200, 60, replace=False)
    subnetworks = []
    for seed in range(12):
        scores = torch.from_numpy(rng.random(1248)).float()
        scores[torch.from_numpy(core_heads)] += 1
        mask = torch.zeros(1248, dtype=torch.bool)
        mask[scores.argsort(descending=True)[:624]] = True
        origin = {"asked_sparsity": 0.5, "seed": seed, "pruner": "made"}
        subnetworks.append(Subnetwork(units, mask, zero, scores, origin))
    core = Core(tuple(subnetworks), pd.DataFrame(columns=["subnetwork", "sparsity", "seed", *COLUMNS]), {})
    overlap = core.overlap()
    assert len(core.heads) >= 55 and len(core.frequencies()) == 1248
    assert len(core.head_tests()) == 1200 and overlap is not None
    print(f"{time.perf_counter() - start:.1f} s")
