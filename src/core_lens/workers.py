"""Many calls through any executor: processes of this machine, Dask, SLURM; one progress bar, failures kept apart."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch
from joblib.externals.loky import ProcessPoolExecutor
from tqdm.auto import tqdm

from .errors import CoreLensError

_TRIES = 3  # of a call whose worker dies


class LocalWorkers(Executor):
    """Processes of this machine, each with its share of the threads, or with a GPU of its own.

        with core_lens.LocalWorkers(4) as workers:
            core_lens.find_core(model, "mnli", out="runs/mnli", executor=workers)

    A process that dies takes only its own call down, and is replaced.

    Args:
        n: how many; by default one for each GPU, or for every two cores.
        gpus: the CUDA devices that they take in turn, by number; by default all there are. None of them, (), for the CPU.

    Raises:
        CoreLensError: n is below 1, or there is no such GPU.
    """

    def __init__(self, n: int | None = None, gpus: Sequence[int] | None = None) -> None:
        there = torch.cuda.device_count()
        chosen = list(range(there)) if gpus is None else list(gpus)
        if bad := [gpu for gpu in chosen if not 0 <= gpu < there]:
            raise CoreLensError(f"gpus={gpus!r}: there is no GPU {bad[0]}, this machine has {there}.")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = n if n is not None else len(chosen) or max(cores // 2, 1)
        if not isinstance(count, int) or count < 1:
            raise CoreLensError(f"workers={n!r} must be a whole number of at least 1.")
        self.n, self.threads = count, max(cores // count, 1)
        self._environments = []
        for i in range(count):
            threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
            visible = {"CUDA_VISIBLE_DEVICES": str(chosen[i % len(chosen)])} if chosen else {}
            self._environments.append({**threads, **visible, "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"})
        self._pools: list[ProcessPoolExecutor | None] = [None] * count
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(count):
            self._idle.put(i)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._run, fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        i = self._idle.get()
        try:
            pool = self._pools[i]
            if pool is None:
                pool = ProcessPoolExecutor(
                    1, env=self._environments[i], initializer=_begin, initargs=(self.threads, os.getpid())
                )
                self._pools[i] = pool
            return pool.submit(fn, *args, **kwargs).result()
        except BrokenProcessPool:
            self._pools[i] = None
            raise
        finally:
            self._idle.put(i)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after their calls, or at once with `cancel_futures`."""
        if not cancel_futures:
            self._threads.shutdown(wait=wait)
        else:
            self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=wait, kill_workers=cancel_futures)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster as an executor.

    Args:
        address: of its scheduler, like `tcp://host:8786`.

    Raises:
        CoreLensError: Dask is not installed, or there is no cluster.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise CoreLensError("Dask is not installed: pip install 'core-lens[dask]'.") from error
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise CoreLensError(f"no Dask scheduler answers at {address}: start one, or check the address.") from error
    with client:
        yield client.get_executor()


def _begin(threads: int, parent: int) -> None:
    """In a new process: its share of the threads; Ctrl-C is for the process that started it, whose end ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave when the parent is gone (killed, say); files are written whole or not at all, so nothing is lost by it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def check_executor(executor: object) -> None:
    """Raise a CoreLensError unless `executor` is None or takes calls."""
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise CoreLensError(
            f"executor={executor!r} is no executor: pass an object with submit, such as core_lens.LocalWorkers(2)."
        )


def call_each(
    executor: Executor, call: Callable[..., Any], items: Sequence[tuple[Any, ...]], title: str, unit: str = "run"
) -> Iterator[tuple[tuple[Any, ...], Any, BaseException | None]]:
    """`call(*item)` for all items through `executor`, with one progress bar.

    Args:
        executor: of `concurrent.futures`, or what has its `submit` (Dask's `client.get_executor()`, submitit's).
        call, items: what can be pickled.
        title, unit: of the bar.

    Yields:
        As they end: the item, what the call returned, and the exception that it raised, if any. A call whose worker died is
        made again, twice. On an exception in between (Ctrl-C) the calls that wait are cancelled.
    """
    tries = dict.fromkeys(range(len(items)), 1)
    going: dict[Any, int] = {}
    with tqdm(total=len(items), desc=title, unit=unit) as bar:
        try:
            for i, item in enumerate(items):
                try:
                    going[executor.submit(call, *item)] = i
                except Exception as error:
                    raise CoreLensError(
                        f"the executor takes no calls ({type(error).__name__}: {error}): give one that is open and works."
                    ) from error
            while going:
                for future in _ended(list(going)):
                    i = going.pop(future)
                    error, found = None, None
                    try:
                        found = future.result()
                    except Exception as raised:
                        error = raised
                    if isinstance(error, BrokenProcessPool) and tries[i] < _TRIES:
                        tries[i] += 1
                        try:
                            going[executor.submit(call, *items[i])] = i
                            continue
                        except Exception as raised:
                            error = raised
                    bar.update()
                    yield items[i], found, error
        finally:
            for future in going:
                future.cancel()


def _ended(futures: list[Any]) -> list[Any]:
    """At least one that is done."""
    if all(isinstance(future, Future) for future in futures):
        return list(wait(futures, return_when=FIRST_COMPLETED).done)
    while not (done := [future for future in futures if future.done()]):
        time.sleep(0.2)
    return done
