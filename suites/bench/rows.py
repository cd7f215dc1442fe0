"""One row: a kernel on a case, judged, timed in a worker, and its figure believed or not.

A figure is given only where the accuracy of this very call was established first, in this run.
Then the worker's word is held against what the judge can see for itself:

- the outputs of one sample, which the judge chose, are right (no other sample had its inputs);
- passes of calls on other values take as long on the judge's clock as the median says, and outputs
  that the judge draws after a pass are right (judged_pass.py);
- no roof is passed.
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

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import AccuracyRow, BenchRow, Stop, TimedProcess
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.devices import Cache
from kernel_workbench.suites.bench.figures import Roofs, Spread, past_belief, quartiles, rates
from kernel_workbench.suites.bench.judged_pass import (
    TASK,
    DisagreementError,
    Judged,
    JudgedPasses,
    WrongOutputsError,
)
from kernel_workbench.suites.bench.neighbours import Neighbours
from kernel_workbench.suites.bench.rotation import changes_in
from kernel_workbench.suites.bench.task import kept_of
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.suite import DeviceLostError
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.wire import Message

INTERPRETED = "interpreted: its time says nothing"

_BUFFERS = 2
_MOST_BYTES_TWICE = 2**32  # a larger case has one buffer
# After so many the driver is what can't, and not the kernels: each failure costs a process.
_MOST_UNCOUNTED = 4


class _Timed(BaseModel):
    """What the worker says of its samples."""

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
        """What no worker says that was told `pick`."""
        if self.kept != kept_of(pick, len(self.times_us) + self.throttled):
            return "its outputs are of another sample than was asked for"
        numbers = [*self.times_us, *(each for each in self.clocks_mhz if each is not None)]
        if not all(0 < each < math.inf for each in numbers):
            return "a sample's time or clock isn't a positive number"
        if len(self.clocks_mhz) != len(self.times_us):
            return "there isn't a clock for each sample"
        if self.placements and sum(self.placements) != len(self.times_us):
            return "its samples aren't those of its places in memory"
        return None


class UnbelievedError(Exception):
    """A figure that isn't given; the message says why."""

    def __init__(self, status: Literal["wrong", "failed"], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal["wrong", "failed"] = status


@dataclass(slots=True)
class Bench:
    """What the rows of a run share.

    flush_us: what a flush of the cache takes on a GPU; None: it isn't known
    first_calls: seconds of each pair's first call, where it was made ahead of the run
    uncounted: calls in a row whose launches couldn't be counted
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
    neighbours: Neighbours = field(default_factory=Neighbours)
    passes: JudgedPasses = field(init=False)

    def __post_init__(self) -> None:
        """Prepare what holds figures against the judge's clock."""
        self.passes = JudgedPasses(
            self.run,
            self.workers,
            self.cache,
            self.roofs.cache_bytes,
            self.flush_us,
            self.limit_s,
        )

    def refused(self, kernel: Kernel, case: Case, reason: str) -> BenchRow:
        """The row of a pair that isn't timed."""
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
            torch.cuda.empty_cache()  # what the truth took is the worker's to have
        few = self.cache == "warm" or parcel.nbytes * _BUFFERS > _MOST_BYTES_TWICE
        parcels = [parcel] * (1 if few else _BUFFERS)
        try:
            timed, besides = self._samples(kernel, case, parcels)
            spread = Spread.of(timed.times_us, timed.placements)
            self._hold_to_roofs(kernel, case, spread.median)
            judged = self._judged(kernel, case, parcel, spread.median, timed.enqueue_us)
        except UnbelievedError as error:
            return self._row(kernel, case, error.status, str(error), accuracy)
        except TaskError as error:
            return self._row(kernel, case, "failed", f"while it was timed, {error}", accuracy)
        launches = self._launches(kernel, case, parcel)
        row = self._figures(kernel, case, accuracy, timed, spread)
        if row.share_of_ceiling is not None and row.share_of_ceiling > 1:
            if judged.reason is not None:
                reason = (
                    f"{spread.median:.4g} us is past what this device was measured to do, and the "
                    f"judge's clock can't confirm it: {judged.reason}"
                )
                return self._row(kernel, case, "failed", reason, accuracy)
            # What was measured is no ceiling, then: there is no share of it.
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
    ) -> tuple[_Timed, dict[str, Any]]:
        """What was timed, and the fields that tell what else there was meanwhile."""
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
        said, outputs = self.workers.task(kernel, case, parcels, TASK, settings, self.limit_s)
        besides = self.neighbours.since(before)
        try:
            timed = _Timed.model_validate(said)
        except ValidationError as error:
            raise UnbelievedError("failed", "its process sent what no worker sends") from error
        problem = timed.problem(pick)
        if problem is not None:
            raise UnbelievedError("failed", f"its process sent what no worker sends: {problem}")
        made = _undone(case, seed, changes_in(timed.number, len(parcels)), outputs)
        wrong = self.run.confirm(kernel, case, made) if made else "it returned no outputs"
        if wrong is not None:
            reason = f"its outputs were right before it was timed, and wrong while it was: {wrong}"
            raise UnbelievedError("wrong", reason)
        return timed, besides

    def _hold_to_roofs(self, kernel: Kernel, case: Case, median_us: float) -> None:
        """Raises UnbelievedError where the figure is past a roof."""
        problem = past_belief(kernel, case, median_us, self.cache, self.roofs)
        if problem is not None:
            raise UnbelievedError("failed", problem)

    def _judged(
        self, kernel: Kernel, case: Case, parcel: Parcel, median_us: float, enqueue_us: float
    ) -> Judged:
        """Hold the median against judged passes. Raises UnbelievedError, TaskError."""
        try:
            return self.passes.confirm(kernel, case, parcel, median_us, enqueue_us)
        except WrongOutputsError as error:
            reason = f"outputs that the judge drew after a pass of calls are wrong: {error}"
            raise UnbelievedError("wrong", reason) from error
        except DisagreementError as error:
            raise UnbelievedError("failed", str(error)) from error

    def _launches(self, kernel: Kernel, case: Case, parcel: Parcel) -> int | None:
        """Kernels on the device; None where a call can't be captured."""
        if self.roofs.device == "cpu" or self.uncounted >= _MOST_UNCOUNTED:
            return None
        settings: Message = {"do": "launches"}
        try:
            said, _ = self.workers.task(kernel, case, [parcel], TASK, settings, self.limit_s)
        except TaskError:
            self.workers.renew()  # what a capture leaves when it fails may fail the next call
            self.uncounted += 1
            return None
        self.uncounted = 0
        count = said.get("launches")
        return count if isinstance(count, int) and count > 0 else None

    def _figures(
        self,
        kernel: Kernel,
        case: Case,
        accuracy: AccuracyRow,
        timed: _Timed,
        spread: Spread,
    ) -> BenchRow:
        clocks = [each for each in timed.clocks_mhz if each is not None]
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
        told: dict[str, Any] = {}
        if accuracy is not None:
            ahead = self.first_calls.get((kernel.op.name, kernel.name, case.id()))
            told = {
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
            **told,
        )


def _undone(
    case: Case, seed: int, changes: Sequence[int], outputs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The outputs with the signs put back that were changed in the inputs."""
    for each in changes:
        outputs = OPS[case.op].signs(case, seed + each).outputs(outputs)
    return outputs


def _worst_ratio(accuracy: AccuracyRow) -> float | None:
    """The largest error over its bound."""
    ratios = [
        max(each.worst_deterministic, each.worst_probabilistic or 0.0) for each in accuracy.outputs
    ]
    return max(ratios, default=None)
