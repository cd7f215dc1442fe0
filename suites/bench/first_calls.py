"""Make first calls ahead in several processes, so that compiling precedes timing.

A call of flex_attention or of inductor's compiles for seconds for each shape, and a Triton kernel
of ours for each variant; one after the other that takes longer than all of the timing. Processes
share compiled code through the caches on disk (Triton's, inductor's), so the process that times
loads it from there. Nothing is timed in the meantime, and the GPU has little to do: the judge
computes truths of the first cases on it. A call that fails here fails again in its row.

cuDNN plans for up to two seconds for each shape, and no other process can load its plans. So the
process that times makes these calls itself while the others compile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import torch

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.run.shards import jobs_on_gpu
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel

# Parts of names of peers that compile; nothing else tells that they do.
_COMPILING = ("flex", "inductor", "compile", "liger")
_SLOWEST_FIRST = ("flex", "inductor")
_PLANNING = "cudnn"
_FEWEST_PAIRS = 4
_LIMIT_S = 300.0

FirstCalls = dict[tuple[str, str, str], float]
_Pair = tuple[Kernel, Case]
Meanwhile = Callable[[Callable[[], bool]], None]


def compiles(kernel: Kernel) -> bool:
    """Return True if a kernel's first call compiles, which takes seconds."""
    return kernel.origin != "baseline" or any(word in kernel.name for word in _COMPILING)


def _plans(kernel: Kernel) -> bool:
    """Return True if a kernel's first call plans, for its own process alone."""
    return kernel.origin == "baseline" and _PLANNING in kernel.name


def compile_ahead(
    pairs: Sequence[_Pair],
    device: torch.device,
    workers: Callable[[], Workers],
    timing: Workers,
    *,
    meanwhile: Meanwhile = lambda _: None,
    processes: int | None = None,
) -> FirstCalls:
    """Make the first call of each pair that compiles.

    Nothing is done on a CPU, or for a few pairs.

    Args:
        pairs: kernels and cases.
        device: the device.
        workers: returns the workers of one process.
        timing: the workers that time the pairs; they plan while the others compile.
        meanwhile: called once while the processes compile, with a function that returns False when
            all of them have ended.
        processes: number of processes; None: chosen by the cores and pairs.

    Returns:
        Seconds of each first call, by op, kernel and case.
    """
    compiling = [(kernel, case) for kernel, case in pairs if compiles(kernel)]
    if device.type == "cpu" and processes is None:
        return {}
    count = processes or min(jobs_on_gpu(), len(compiling))
    if count < 2 or len(compiling) < _FEWEST_PAIRS:
        return {}
    print(
        f"bench: compiling {len(compiling)} calls ahead, in {count} processes",
        file=sys.stderr,
        flush=True,
    )
    planned = [(kernel, case) for kernel, case in pairs if _plans(kernel)]
    planned.sort(key=lambda pair: pair[0].name != _PLANNING)  # torch_cudnn plans more quickly
    for op in {kernel.op.name: kernel.op for kernel, _ in (*compiling, *planned)}.values():
        # Workers receive the signs. The search changes the process's default dtype, so it can't run
        # in a thread beside threads that draw inputs.
        op.found_signs()
    ahead = _Ahead(device, compiling, planned)
    return ahead.run([workers() for _ in range(count)], timing, meanwhile)


class _Ahead:
    def __init__(
        self, device: torch.device, compiling: Iterable[_Pair], planned: Sequence[_Pair]
    ) -> None:
        self._device, self._planned = device, planned
        self._inputs = threading.Lock()  # one case's at a time, because they take GPU memory
        self._stopped = threading.Event()
        self._todo: SimpleQueue[_Pair] = SimpleQueue()
        for pair in sorted(compiling, key=lambda pair_of: _rank(pair_of[0])):
            self._todo.put(pair)
        self._first_calls: FirstCalls = {}

    def run(self, several: Sequence[Workers], timing: Workers, meanwhile: Meanwhile) -> FirstCalls:
        """Run until all has been compiled; on Ctrl-C end the running calls."""
        with ThreadPoolExecutor(len(several) + 1) as threads:
            try:
                futures = [threads.submit(self._work, workers) for workers in several]

                def goes_on() -> bool:
                    return not all(future.done() for future in futures)

                plans = threads.submit(self._call, timing, self._planned, goes_on)
                meanwhile(goes_on)
                for future in (*futures, plans):
                    future.result()
            except BaseException:
                self._stopped.set()
                for workers in (*several, timing):
                    workers.kill()
                raise
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._first_calls

    def _work(self, workers: Workers) -> None:
        try:
            self._call(workers, self._remaining())
        finally:
            workers.close()

    def _remaining(self) -> Iterator[_Pair]:
        """Yield pairs that no other process has taken."""
        with suppress(Empty):
            while True:
                yield self._todo.get_nowait()

    def _call(
        self,
        workers: Workers,
        pairs: Iterable[_Pair],
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make the first calls of pairs, as long as the process can make calls."""
        for kernel, case in pairs:
            if self._stopped.is_set() or not goes_on():
                return
            try:
                with self._inputs:
                    inputs = kernel.op.inputs(case, self._device)
                    parcel = Parcel.of(inputs, workers.arena_device)
                    del inputs
                result, _ = workers.task(
                    kernel, case, [parcel], TASK, {"do": "first call"}, _LIMIT_S
                )
            except (TaskError, torch.OutOfMemoryError):
                continue  # its row will show the failure, or find memory
            except (KernelError, WorkersError):
                return
            seconds = result.get("seconds")
            if isinstance(seconds, float):
                self._first_calls[kernel.op.name, kernel.name, case.id()] = seconds


def _rank(kernel: Kernel) -> int:
    return next((i for i, word in enumerate(_SLOWEST_FIRST) if word in kernel.name), 9)
