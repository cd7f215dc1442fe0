"""`bench`: its pairs, its measured device, and the meaning of rows without a figure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import BENCH_PROTOCOL, BenchRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.first_calls import compile_ahead
from kernel_workbench.suites.bench.functions import function_rows
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.bench.neighbours import Neighbours
from kernel_workbench.suites.bench.nsight_compute import NsightCompute
from kernel_workbench.suites.bench.pairs import planned_pairs
from kernel_workbench.suites.bench.rows import INTERPRETED, Bench
from kernel_workbench.suites.bench.survey import survey
from kernel_workbench.suites.run.cuda_programs import cuda_program
from kernel_workbench.suites.run.option_table import BenchOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.reproduce import deciding_options
from kernel_workbench.suites.run.selection import kernel_files, refusing, selected_kernels
from kernel_workbench.suites.run.suite import Pair, Suite
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.orphans import end_children

_QUICK = 0.2  # share of a row's time
_TRUTHS_OF_MEMORY = 3  # truths that are computed ahead take at most this part of the card


class BenchSuite(Suite[BenchRow]):
    """Time every kernel on every timed case that it computes right."""

    name = "bench"
    takes = BenchOptions
    options: BenchOptions
    bench: Bench

    def __init__(self, options: BenchOptions, device: torch.device) -> None:
        super().__init__(options, device)
        if device.type == "cpu" and options.device != "cpu":
            raise pytest.UsageError(
                "bench: torch sees no GPU here; run this on a machine with one, or with --device "
                "cpu, which times PyTorch's own kernels on the CPU"
            )
        if device.type == "cpu" and options.function:
            raise pytest.UsageError(
                "--function: our functions launch on a GPU, and --device cpu has none; leave it out"
            )
        # Inductor would start a pool of processes in each of our own, which slows compiling down.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        self.counters = _counters(options, device)
        self.workers = self._new_workers()
        # The run's own workers build; CUPTI, which traces here, would slow their launches down.
        self.tracers = self._new_workers(builds=False) if device.type == "cuda" else None

    def _new_workers(self, *, builds: bool = True) -> Workers:
        return Workers(
            self.device,
            self.sm,
            strict=False,  # interpreted kernels aren't timed
            files=kernel_files(self.options),
            tasks=(TASK,),
            time_limit_s=self.options.time_limit,
            memory_limit=self.options.memory_limit,
            builds=builds,
        )

    def plan(self) -> Sequence[Pair]:
        """Return the pairs (pairs.py)."""
        options = self.options
        with refusing(WorkersError):
            self.workers.prepare()
            kernels = selected_kernels(options, self.workers.kernels)
        pairs = planned_pairs(options, kernels, self.device, self.sm, self.workers.refusal)
        chosen = {(kernel.op.name, kernel.name) for kernel, _ in pairs}
        self.kernels = tuple(
            kernel for kernel in kernels if (kernel.op.name, kernel.name) in chosen
        )
        self.judge = Run(
            device=self.device,
            sm=self.sm,
            gate_baselines=options.gate_baselines,
            named=frozenset(options.kernel),
            reproduce_options=self._deciding(),
            workers=self.workers,
            signs=options.signs,
            two_calls_alone=True,
        )
        return pairs

    def _deciding(self) -> tuple[str, ...]:
        """Return the options of a command that repeats a row; --quick by the time of its row."""
        options = replace(self.options, row_time=self._row_time())
        return deciding_options(options, self.name, self.device)

    def _row_time(self) -> float:
        """Return the seconds of sampling for a row."""
        return self.options.row_time * (_QUICK if self.options.quick else 1)

    def begin(self) -> dict[str, Any]:
        """Measure roofs and the flush."""
        options = self.options
        print("bench: measuring this device's speed at simple work", file=sys.stderr, flush=True)
        ground = survey(self.device, self.machine)
        if options.cache == "cold" and not ground.probe.evicts:
            raise pytest.UsageError(
                f"bench: {ground.probe.reason}, so no sample would be cold; --cache warm times "
                "calls on a warm cache"
            )
        self.bench = Bench(
            self.judge,
            self.workers,
            ground.roofs,
            options.cache,
            self._row_time(),
            ground.default_clock_mhz,
            options.time_limit,
            ground.flush_us,
            tracers=self.tracers,
            neighbours=Neighbours.of(self.device),
        )
        return {
            "protocol": BENCH_PROTOCOL,
            "roofs": ground.listed,
            "flush": ground.probe,
            "empty_call_us": ground.empty_call_us,
        }

    def left_out(self) -> tuple[str, ...]:
        """Return what the workers couldn't import or build."""
        return self.workers.left_out

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return the sentence of the kernel's domain; on a CPU, refuse ours as interpreted."""
        if self.device.type == "cpu" and kernel.origin == "ours":
            return INTERPRETED
        return self.judge.refusal(kernel, case)

    def refused(self, kernel: Kernel, case: Case, reason: str) -> Sequence[BenchRow]:
        """Return the row of a refused pair."""
        return [self.bench.refused(kernel, case, reason)]

    def prepare(self, kept: Sequence[Pair]) -> None:
        """Compile ahead in several processes; meanwhile plan, and compute truths."""
        if self.tracers is not None:
            self.tracers.prepare()
        workers = partial(self._new_workers, builds=False)  # the run's own workers have built all
        most = (self.machine.memory_bytes or 0) // _TRUTHS_OF_MEMORY
        meanwhile = partial(self.judge.compute_ahead, kept, most_bytes=most)
        self.bench.first_calls |= compile_ahead(
            kept, self.device, workers, self.workers, meanwhile=meanwhile
        )

    def measure(self, kernel: Kernel, case: Case) -> Sequence[BenchRow]:
        """Judge the kernel, then time it; then count one call, if requested."""
        row = self.bench.row(kernel, case)
        if self.counters is None or row.status != "timed":
            return [row]
        counted = self.counters.count(kernel, case, self.record_path)
        return [row.model_copy(update=counted)]

    def finish(self, progress: Progress) -> Iterator[BenchRow]:
        """Yield the rows of --function."""
        if self.options.function:
            # Other runs need none of our kernels in this process.
            from kernel_workbench.kernels.model_calls import MODEL_CALLS  # noqa: PLC0415

            yield from function_rows(MODEL_CALLS, self.device, progress)

    def wrong(self, row: BenchRow) -> str | None:
        """Return a sentence if the row should have a figure and has none, else None."""
        return f"{row.status}: {row.reason}" if row.status in ("wrong", "failed") else None

    def counts(self, row: BenchRow) -> bool:
        """Return True if the row has a figure."""
        return row.status == "timed"

    def close(self) -> None:
        """End the workers, and processes of candidates that might still write to the record."""
        self.workers.close()
        if self.tracers is not None:
            self.tracers.close()
        end_children()


def _counters(options: BenchOptions, device: torch.device) -> NsightCompute | None:
    """Return the counter of --ncu, or None. Raises UsageError if it can't count."""
    if not options.ncu:
        return None
    if device.type == "cpu":
        raise pytest.UsageError(
            "--ncu: it counts events of a GPU, and --device cpu has none; leave it out"
        )
    program = cuda_program("ncu")
    if program is None:
        raise pytest.UsageError(
            "--ncu: ncu isn't installed here: it comes with NVIDIA's Nsight Compute and with the "
            "CUDA toolkit; put its folder on PATH, or set CUDA_HOME"
        )
    if find_spec("ncu_report") is None:
        raise pytest.UsageError(
            "--ncu: the package ncu-report, which reads counters, isn't installed here; install it "
            "by pip install ncu-report"
        )
    return NsightCompute(program, device, kernel_files(options), options.cache)
