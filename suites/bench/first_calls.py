"""First calls, made ahead in several processes: what compiles does it before anything is timed.

A call of flex_attention or of inductor's compiles for seconds for each shape, and a Triton kernel
of ours for each variant; one after the other that is longer than all of the timing. Processes share
what they compiled through the caches on disk (Triton's, inductor's), so the process that times
loads it from there. Nothing is timed meanwhile. A call that fails here fails again in its row.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import torch

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel

# What a peer's name says of it: nothing else tells that it compiles.
_COMPILING = ("flex", "inductor", "compile", "liger")
_SLOWEST_FIRST = ("flex", "inductor")
_MOST_PROCESSES = 12
_FEWEST_PAIRS = 4
_LIMIT_S = 300.0

FirstCalls = dict[tuple[str, str, str], float]


def compiles(kernel: Kernel) -> bool:
    """Whether a first call takes seconds that a later one doesn't."""
    return kernel.origin != "baseline" or any(each in kernel.name for each in _COMPILING)


def compile_ahead(
    pairs: Iterable[tuple[Kernel, Case]],
    device: torch.device,
    workers: Callable[[], Workers],
    *,
    processes: int | None = None,
) -> FirstCalls:
    """Seconds of the first call of each pair that compiles, by op, kernel and case.

    workers: makes those of one process. Nothing is done on a CPU, or for a few pairs.
    """
    asked = [(kernel, case) for kernel, case in pairs if compiles(kernel)]
    if device.type == "cpu" and processes is None:
        return {}
    count = processes or min(_MOST_PROCESSES, (os.cpu_count() or 1) - 2, len(asked))
    if count < 2 or len(asked) < _FEWEST_PAIRS:
        return {}
    print(
        f"bench: compiling {len(asked)} calls ahead, in {count} processes",
        file=sys.stderr,
        flush=True,
    )
    for op in {kernel.op.name: kernel.op for kernel, _ in asked}.values():
        # Workers are told of them. The search changes the process's default dtype, so not in a
        # thread, beside others that draw inputs.
        op.found_signs()
    return _Ahead(device, asked).run([workers() for _ in range(count)])


class _Ahead:
    def __init__(self, device: torch.device, asked: Sequence[tuple[Kernel, Case]]) -> None:
        self._device = device
        self._inputs = threading.Lock()  # one case's at a time: they take a GPU's memory
        self._stopped = threading.Event()
        self._todo: SimpleQueue[tuple[Kernel, Case]] = SimpleQueue()
        for pair in sorted(asked, key=lambda each: _rank(each[0])):
            self._todo.put(pair)
        self._made: FirstCalls = {}

    def run(self, several: Sequence[Workers]) -> FirstCalls:
        """Until all is done; on Ctrl-C what has begun is ended."""
        with ThreadPoolExecutor(len(several)) as threads:
            try:
                for each in [threads.submit(self._work, workers) for workers in several]:
                    each.result()
            except BaseException:
                self._stopped.set()
                for workers in several:
                    workers.kill()
                raise
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._made

    def _work(self, workers: Workers) -> None:
        try:
            self._call(workers)
        finally:
            workers.close()

    def _call(self, workers: Workers) -> None:
        while not self._stopped.is_set():
            try:
                kernel, case = self._todo.get_nowait()
            except Empty:
                return
            with self._inputs:
                inputs = kernel.op.inputs(case, self._device)
                parcel = Parcel.of(inputs, workers.arena_device)
                del inputs
            try:
                said, _ = workers.task(kernel, case, [parcel], TASK, {"do": "first call"}, _LIMIT_S)
            except TaskError:
                continue  # as it will say in its row
            except (KernelError, WorkersError):
                return
            seconds = said.get("seconds")
            if isinstance(seconds, float):
                self._made[kernel.op.name, kernel.name, case.id()] = seconds


def _rank(kernel: Kernel) -> int:
    return next((i for i, each in enumerate(_SLOWEST_FIRST) if each in kernel.name), 9)
