"""One row: a kernel on a case, judged, timed in a worker, and its figure checked.

A row gets a figure only after the accuracy of the same call was established in the same run. Then
the judge checks the worker's claims by its own observations:

- the outputs of one sample, which the judge chose, are right (no other sample had its inputs);
- passes of calls on other values take as long on the judge's clock as the median says, and outputs
  that the judge draws after a pass are right (judged_pass.py);
- no roof is exceeded.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import AccuracyRow, BenchRow, Stop, TimedProcess
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.devices import Cache
from kernel_workbench.suites.bench.figures import (
    Roofs,
    SampleStatistics,
    past_belief,
    quartiles,
    rates,
)
from kernel_workbench.suites.bench.judged_pass import (
    TASK,
    DisagreementError,
    JudgedPasses,
    PassResult,
    WrongOutputsError,
)
from kernel_workbench.suites.bench.neighbours import Neighbours
from kernel_workbench.suites.bench.rotation import changes_in
from kernel_workbench.suites.bench.task import kept_of
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.suite import DeviceLostError
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.wire import Message

INTERPRETED = "interpreted: its time says nothing"

_BUFFERS = 2
_MOST_BYTES_TWICE = 2**32  # larger cases have one buffer
# After so many failures the driver can't capture or trace; each failure costs a process.
_MOST_UNCOUNTED = 4
_TRACED_CALLS, _MOST_TRACED_US = 5, 50_000.0
_TRACE_LIMIT_S = 30.0  # a witness isn't worth more
_MOST_BYTES_BESIDE = 2**31  # a larger case leaves no memory in the process that traces


class _WorkerSamples(BaseModel):
    """The worker's message about its samples."""

    model_config = ConfigDict(extra="forbid", strict=True)

    times_us: list[float] = Field(min_length=1)
    clocks_mhz: list[float | None]
    placements: list[Annotated[int, Field(ge=1)]]
    held: bool
    throttled: int = Field(ge=0)
    stopped: Stop
    kept: int
    number: int = Field(ge=0)
    enqueue_us: float = Field(ge=0)
    host_us: float = Field(ge=0)
    peak_bytes: int | None
    started_at: str
    clock_reason: str | None

    def problem(self, pick: str) -> str | None:
        """Return a sentence if no worker that received `pick` could send these values."""
        if self.kept != kept_of(pick, len(self.times_us) + self.throttled):
            return "its outputs are of another sample than was asked for"
        numbers = [*self.times_us, *(value for value in self.clocks_mhz if value is not None)]
        if not all(0 < value < math.inf for value in numbers):
            return "a sample's time or clock isn't a positive number"
        if len(self.clocks_mhz) != len(self.times_us):
            return "there isn't a clock for each sample"
        if self.placements and sum(self.placements) != len(self.times_us):
            return "its samples aren't those of its places in memory"
        return None


class _WorkerTrace(BaseModel):
    """The worker's message about calls that CUPTI traced."""

    model_config = ConfigDict(extra="forbid", strict=True)

    busy_us: float = Field(gt=0, allow_inf_nan=False)
    kernels: int = Field(ge=0)


class UnbelievedError(Exception):
    """A rejected figure; the message gives the reason."""

    def __init__(self, status: Literal["wrong", "failed"], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal["wrong", "failed"] = status


@dataclass(slots=True)
class Bench:
    """Shared state of a run's rows.

    flush_us     time of a flush of the cache on a GPU, in microseconds; None: unknown
    first_calls  seconds of each pair's first call, if it was made ahead of the run
    uncounted    successive calls whose launches couldn't be counted
    tracers      workers in which CUPTI traces calls, and nothing is timed; None: no row is traced
    untraced     successive calls that couldn't be traced
    """

    run: Run
    workers: Workers
    roofs: Roofs
    cache: Cache
    row_s: float
    default_clock_mhz: float | None
    limit_s: float
    flush_us: float | None
    first_calls: dict[tuple[str, str, str], float] = field(default_factory=dict)
    uncounted: int = 0
    tracers: Workers | None = None
    untraced: int = 0
    neighbours: Neighbours = field(default_factory=Neighbours)
    passes: JudgedPasses = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the comparison of figures with the judge's clock."""
        self.passes = JudgedPasses(
            self.run,
            self.workers,
            self.cache,
            self.roofs.cache_bytes,
            self.flush_us,
            self.limit_s,
        )

    def refused(self, kernel: Kernel, case: Case, reason: str) -> BenchRow:
        """Return the row of a pair that isn't timed."""
        return self._row(kernel, case, "refused", reason)

    def row(self, kernel: Kernel, case: Case) -> BenchRow:
        """Judge the kernel, then time it. Raises DeviceLostError, with the row."""
        started = time.perf_counter()
        try:
            accuracy = self.run.try_pair(kernel, case)
        except DeviceLostError as lost:
            judged = lost.args[0]
            assert isinstance(judged, AccuracyRow)
            raise DeviceLostError(self._wrong(kernel, case, judged)) from lost
        if accuracy.status == "refused":
            row = self._row(kernel, case, "refused", accuracy.reason or "", accuracy)
        elif accuracy.status != "passed":
            row = self._wrong(kernel, case, accuracy)
        elif self.roofs.device == "cpu" and accuracy.launches:
            row = self._row(kernel, case, "refused", INTERPRETED, accuracy)
        else:
            row = self._timed(kernel, case, accuracy)
        return row.model_copy(update={"duration_s": time.perf_counter() - started})

    def _wrong(self, kernel: Kernel, case: Case, accuracy: AccuracyRow) -> BenchRow:
        if accuracy.status == "no power":
            reason = "its accuracy can't be judged on this case: the bound says nothing there"
            return self._row(kernel, case, "failed", reason, accuracy)
        return self._row(kernel, case, "wrong", f"{accuracy.rule}: {accuracy.reason}", accuracy)

    def _timed(self, kernel: Kernel, case: Case, accuracy: AccuracyRow) -> BenchRow:
        parcel = self.run.parcel(kernel, case)
        if self.roofs.device == "cuda":
            torch.cuda.empty_cache()  # leave the truth's memory to the worker
        few = self.cache == "warm" or parcel.nbytes * _BUFFERS > _MOST_BYTES_TWICE
        parcels = [parcel] * (1 if few else _BUFFERS)
        try:
            timed, besides = self._samples(kernel, case, parcels)
            spread = SampleStatistics.of(timed.times_us, timed.placements)
            self._hold_to_roofs(kernel, case, spread.median)
            judged = self._judged(kernel, case, parcel, spread.median, timed.enqueue_us)
        except UnbelievedError as error:
            return self._row(kernel, case, error.status, str(error), accuracy)
        except TaskError as error:
            return self._row(kernel, case, "failed", f"while it was timed, {error}", accuracy)
        launches = self._launches(kernel, case, parcel)
        trace = self._trace(kernel, case, parcel, spread.median)
        if trace is not None:
            besides |= {"cupti_us": trace.busy_us}
            launches = launches or trace.kernels or None
        row = self._figures(kernel, case, accuracy, timed, spread)
        if row.share_of_ceiling is not None and row.share_of_ceiling > 1:
            if judged.reason is not None:
                reason = (
                    f"{spread.median:.4g} us is past what this device was measured to do, and the "
                    f"judge's clock can't confirm it: {judged.reason}"
                )
                return self._row(kernel, case, "failed", reason, accuracy)
            # The measured roof is no ceiling here, so there is no share of it.
            row = row.model_copy(update={"share_of_ceiling": None})
        return row.model_copy(
            update=besides
            | {
                "launches": launches,
                "judged_us": judged.time_us,
                "judged_slack_us": judged.slack_us,
                "judged_sets": judged.sets,
                "judged_passes": judged.passes,
                "unconfirmed": judged.reason,
            }
        )

    def _samples(
        self, kernel: Kernel, case: Case, parcels: Sequence[Parcel]
    ) -> tuple[_WorkerSamples, dict[str, Any]]:
        """Return the worker's samples, and the fields of a row about other work meanwhile."""
        seed, pick = secrets.randbits(31), secrets.token_hex(8)
        settings: Message = {
            "do": "time",
            "cache": self.cache,
            "row_s": self.row_s,
            "default_clock_mhz": self.default_clock_mhz,
            "seed": seed,
            "pick": pick,
        }
        before = self.neighbours.look()
        reply, outputs = self.workers.task(kernel, case, parcels, TASK, settings, self.limit_s)
        besides = self.neighbours.since(before)
        try:
            timed = _WorkerSamples.model_validate(reply)
        except ValidationError as error:
            raise UnbelievedError("failed", "its process sent what no worker sends") from error
        problem = timed.problem(pick)
        if problem is not None:
            raise UnbelievedError("failed", f"its process sent what no worker sends: {problem}")
        original = _undone(case, seed, changes_in(timed.number, len(parcels)), outputs)
        wrong = self.run.confirm(kernel, case, original) if original else "it returned no outputs"
        if wrong is not None:
            reason = f"its outputs were right before it was timed, and wrong while it was: {wrong}"
            raise UnbelievedError("wrong", reason)
        return timed, besides

    def _hold_to_roofs(self, kernel: Kernel, case: Case, median_us: float) -> None:
        """Raise UnbelievedError if the figure exceeds a roof."""
        problem = past_belief(kernel, case, median_us, self.cache, self.roofs)
        if problem is not None:
            raise UnbelievedError("failed", problem)

    def _judged(
        self, kernel: Kernel, case: Case, parcel: Parcel, median_us: float, enqueue_us: float
    ) -> PassResult:
        """Compare the median with judged passes. Raises UnbelievedError, TaskError."""
        try:
            return self.passes.confirm(kernel, case, parcel, median_us, enqueue_us)
        except WrongOutputsError as error:
            reason = f"outputs that the judge drew after a pass of calls are wrong: {error}"
            raise UnbelievedError("wrong", reason) from error
        except DisagreementError as error:
            raise UnbelievedError("failed", str(error)) from error

    def _launches(self, kernel: Kernel, case: Case, parcel: Parcel) -> int | None:
        """Return the number of launches on the device; None: the call can't be captured."""
        if self.roofs.device == "cpu" or self.uncounted >= _MOST_UNCOUNTED:
            return None
        settings: Message = {"do": "launches"}
        try:
            reply, _ = self.workers.task(kernel, case, [parcel], TASK, settings, self.limit_s)
        except TaskError:
            self.workers.renew()  # the remains of a failed capture may fail the next call
            self.uncounted += 1
            return None
        self.uncounted = 0
        count = reply.get("launches")
        return count if isinstance(count, int) and count > 0 else None

    def _trace(
        self, kernel: Kernel, case: Case, parcel: Parcel, median_us: float
    ) -> _WorkerTrace | None:
        """Return what CUPTI says of a call; None: it can't trace here, or isn't asked.

        A baseline's compiler, such as Inductor, would take seconds in another process.
        """
        if self.tracers is None or self.untraced >= _MOST_UNCOUNTED or kernel.origin == "baseline":
            return None
        count = max(1, min(_TRACED_CALLS, int(_MOST_TRACED_US / median_us)))
        settings: Message = {"do": "trace", "cache": self.cache, "count": count}
        limit_s = min(self.limit_s, _TRACE_LIMIT_S)
        try:
            reply, _ = self.tracers.task(kernel, case, [parcel], TASK, settings, limit_s)
            trace = _WorkerTrace.model_validate(reply)
        except (TaskError, KernelError, WorkersError, ValidationError, torch.OutOfMemoryError):
            self.tracers.give_back()
            self.untraced += 1
            return None
        self.untraced = 0
        if parcel.nbytes > _MOST_BYTES_BESIDE:
            self.tracers.give_back()
        return trace

    def _figures(
        self,
        kernel: Kernel,
        case: Case,
        accuracy: AccuracyRow,
        timed: _WorkerSamples,
        spread: SampleStatistics,
    ) -> BenchRow:
        clocks = [clock for clock in timed.clocks_mhz if clock is not None]
        clock_mhz = statistics.median(clocks) if clocks else None
        cycles = [
            time_us * clock
            for time_us, clock in zip(timed.times_us, timed.clocks_mhz, strict=True)
            if clock is not None
        ]
        in_cycles = quartiles(cycles) if cycles else (None, None, None)
        process = TimedProcess(
            times_us=tuple(timed.times_us),
            clocks_mhz=tuple(timed.clocks_mhz) if clocks else (),
            placements=tuple(timed.placements),
            throttled=timed.throttled,
            stopped=timed.stopped,
            started_at=timed.started_at,
            held=timed.held if self.roofs.device == "cuda" else None,
        )
        figures: dict[str, Any] = {
            "processes": (process,),
            "median_us": spread.median,
            "low_us": spread.low,
            "high_us": spread.high,
            "first_quartile_us": spread.first_quartile,
            "third_quartile_us": spread.third_quartile,
            "clock_mhz": clock_mhz,
            "clock_reason": None if clocks else timed.clock_reason,
            "first_quartile_cycles": in_cycles[0],
            "median_cycles": in_cycles[1],
            "third_quartile_cycles": in_cycles[2],
            "host_us": timed.host_us,
            "enqueue_us": timed.enqueue_us,
            "peak_bytes": timed.peak_bytes,
        }
        if kernel.op.has_figures:
            figures |= asdict(rates(kernel, case, spread.median, clock_mhz, self.roofs))
        return self._row(kernel, case, "timed", None, accuracy).model_copy(update=figures)

    def _row(
        self,
        kernel: Kernel,
        case: Case,
        status: Literal["timed", "wrong", "refused", "failed"],
        reason: str | None,
        accuracy: AccuracyRow | None = None,
    ) -> BenchRow:
        fields: dict[str, Any] = {}
        if accuracy is not None:
            ahead = self.first_calls.get((kernel.op.name, kernel.name, case.id()))
            fields = {
                "variant": accuracy.variant,
                "accuracy": accuracy.status,
                "worst_ratio": _worst_ratio(accuracy),
                "first_call_s": accuracy.call_s if ahead is None else ahead,
                "workspace_bytes": accuracy.workspace_bytes,
                "accuracy_s": accuracy.duration_s,
            }
        return BenchRow(
            op=kernel.op.name,
            kernel=kernel.name,
            case=case_info(case),
            status=status,
            reason=reason,
            cache=self.cache,
            distribution=case.distribution,
            weight=case.weight,
            gates=self.run.gates(kernel),
            reproduce=self.run.command("bench", kernel, case),
            **fields,
        )


def _undone(
    case: Case, seed: int, changes: Sequence[int], outputs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the outputs with the signs restored that were changed in the inputs."""
    for change in changes:
        outputs = OPS[case.op].signs(case, seed + change).outputs(outputs)
    return outputs


def _worst_ratio(accuracy: AccuracyRow) -> float | None:
    """Return the largest ratio of an error to its bound."""
    ratios = [
        max(output.worst_deterministic, output.worst_probabilistic or 0.0)
        for output in accuracy.outputs
    ]
    return max(ratios, default=None)
