"""How much faster are single-head ablations from one cached forward pass than as a pass each? Side by side, in one process.

python benchmarks/cached_ablations.py [MODEL] [TASK] [EXAMPLES]
"""

import sys
import time

import torch

import core_lens
from core_lens.ablation_runs import run_ablations
from core_lens.evaluate import predict
from core_lens.hooked import component_set
from core_lens.tasks import class_order

if __name__ == "__main__":
    name, task_name, n = (*sys.argv[1:], *("lab", "lab", "200")[len(sys.argv) - 1 :])
    model, task = core_lens.load_model(name), core_lens.load_task(task_name)
    split = task.with_role("id")[0].sample(int(n))
    order = class_order(core_lens.model_info(model).id2label, task)
    means = core_lens.ZeroActivations(core_lens.model_info(model).weight_hash)
    units = component_set(model, ("head",))

    def cached() -> None:
        run_ablations(model, task, [(unit,) for unit in units], split.name, replacement=means, max_examples=len(split))

    def plain() -> None:
        for i in range(len(units)):
            mask = torch.ones(len(units), dtype=torch.bool)
            mask[i] = False
            predict(model, task, [split], order, core_lens.Subnetwork(units, mask, means), batch_size=32)

    seconds: dict[str, list[float]] = {"cached": [], "plain": []}
    for _ in range(3):
        for run in (cached, plain):
            start = time.perf_counter()
            run()
            seconds[run.__name__].append(time.perf_counter() - start)
    best = {kind: min(values) for kind, values in seconds.items()}
    print(f"{len(units)} heads x {len(split)} examples of {task.name}, best of 3: {best}")
    print(f"plain / cached = {best['plain'] / best['cached']:.2f}")
