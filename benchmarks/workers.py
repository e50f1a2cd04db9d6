"""How much faster do two processes make the runs of one model than one? The same work, in turn, in one call.

python benchmarks/workers.py [RUNS] [STEPS] [TIMES]
"""

import shutil
import statistics
import sys
import tempfile
import time
import warnings

import core_lens

if __name__ == "__main__":
    runs, steps, times = (int(word) for word in (*sys.argv[1:], *("8", "100", "3")[len(sys.argv) - 1 :]))
    warnings.simplefilter("ignore")
    pruner = core_lens.HardConcretePruner(steps=steps)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(times):
        for n in (1, 2) if turn % 2 == 0 else (2, 1):
            folder = tempfile.mkdtemp()
            with core_lens.LocalWorkers(n, gpus=()) as workers:
                for future in [workers.submit(time.sleep, 1.0) for _ in range(n)]:
                    future.result()  # processes are there, and have loaded the package
                start = time.perf_counter()
                core_lens.find_core(
                    "lab", "lab", [0.5], runs, pruner, max_examples=200, out=folder, device="cpu", executor=workers
                )
                seconds[n].append(time.perf_counter() - start)
            shutil.rmtree(folder)
    middle = {n: statistics.median(values) for n, values in seconds.items()}
    threads = {n: core_lens.LocalWorkers(n, gpus=()).threads for n in seconds}
    print(f"{runs} runs of {steps} steps on the lab, median of {times}: {middle} s with {threads} threads a process")
    print(f"1 worker / 2 workers = {middle[1] / middle[2]:.2f}")
