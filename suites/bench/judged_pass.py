"""Judged passes: the judge times calls by its own clock, and judges outputs that it draws later.

A worker says how long a call takes, and a candidate lives in the worker: it can compute for the
sample alone whose outputs are judged, or change the clock. So the judge refutes it:

- The judge owns some sets of inputs with different values, and places for their outputs. It fills
  the sets, starts its clock, and sends an order of sets. The worker calls the kernel on each set in
  that order, copies each call's outputs to their place, waits for the device and answers.
- The judge stops its clock and at once copies the outputs of two sets, which it draws only now. It
  judges them against the truth of their values.
- What isn't the kernel's is taken off, by the judge's own measurements: the answer to an empty
  order, flushes of the cache, and the copy of outputs.
- The next pass has other values at the same addresses. Passes go on until their mean is known to
  2 %.

A candidate that computes only what it expects to be judged, that computes later, that keeps outputs
by address, or that works on another stream has wrong outputs or takes its time here.

A user's kernel meets values that are drawn anew for each set, and two outputs of every pass are
judged. Kernels of the workbench and its peers, which nobody is rewarded for, meet the case's values
with signs drawn anew, whose truth the run has already, and two outputs of the first pass of a try
are judged; without a symmetry of signs these kernels meet the case's own values.

A call is so short that its host time hides it, or the inputs so large that two sets don't fit:
then the row says that its figure is the worker's word.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench.devices import Cache
from kernel_workbench.suites.sandbox.judge_side.shared_calls import SharedCalls
from kernel_workbench.suites.sandbox.judge_side.workers import NoSharedMemoryError, Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.shared_sets import SetLayout

TASK = "kernel_workbench.suites.bench.task"

_now: Callable[[], float] = time.perf_counter
_secret = secrets.SystemRandom()

_MOST_BYTES = {"cuda": 2**33, "cpu": 2**27}
_MOST_SHARE = 4  # of a GPU's free memory that sets take
_MOST_SETS, _FEWEST_SETS = 64, 2
_FEWEST_JUDGED = 8  # calls of a pass, where there is room: two of them are judged
_PASS_S = {"cuda": 0.008, "cpu": 0.03}
_FEWEST_PASSES, _MOST_PASSES = 3, {"cuda": 8, "cpu": 3}
_PRECISION = 0.02  # of the mean of passes
_JUDGED = 2  # sets of each pass
_CACHES = 4  # of the last level of cache that the sets of a pass must fill, to be cold
_WARM_SHARE = 4  # of the cache that the sets of a warm pass may fill
_EMPTY_ORDERS = 5
_COPIES = 10
_MOST_FLUSHES = 24
# Host time beside the kernel's own in a pass: flushes' launches, copies' launches, the loop.
_HOST_US, _HOST_ROOM = 25.0, 1.5
# What a figure may be beyond the worker's: a share of it, of what was taken off, and launches.
_ROOM = 1.25
_SHARE_TAKEN_OFF, _ORDER_S = 0.01, 1e-4
_LAUNCH_US = {"cuda": 1.0, "cpu": 25.0}  # of a call and of a flush
# A GPU changes from the judge's process to the worker's in some 0.7 ms on an H100. A candidate that
# makes an order without calls slow gains no more than this.
_MOST_EMPTY_S = 2e-3
_POWER = 0.5  # of the worker's figure: where the rest isn't known better, it is its word
_TRIES = {"cuda": 4, "cpu": 8}
_REST = 2.0  # of a pass's time, so that the clock doesn't fall as it wouldn't between samples


class WrongOutputsError(RuntimeError):
    """Outputs of a pass aren't right; the message says why."""


class DisagreementError(RuntimeError):
    """The judge's clock refutes the worker's figure; the message says why."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What passes showed.

    time_us  of a call, by the judge's clock; None where no pass was made
    slack_us how far that may be off, beside 25 % of it
    reason   why the worker's figure is its word alone; None where the judge's clock confirms it
    """

    time_us: float | None
    slack_us: float | None
    sets: int
    passes: int
    reason: str | None


class _Values(Protocol):
    """Where a pass's inputs come from, and what is known of their outputs.

    every_pass: outputs of every pass are judged, and not of one alone.
    """

    every_pass: bool

    def fill(self, calls: SharedCalls, number: int) -> None:
        """Fill a set with other values than it had."""

    def problem(self, number: int, outputs: dict[str, Tensor]) -> str | None:
        """Why the outputs of a set aren't right; None where they are."""


@dataclass(slots=True)
class _ChangedSigns:
    """The case's values with signs drawn anew."""

    run: Run
    kernel: Kernel
    case: Case
    parcel: Parcel
    seeds: dict[int, int]
    every_pass: bool = False  # the judge takes seconds for an output of gigabytes

    def fill(self, calls: SharedCalls, number: int) -> None:
        """Draw signs."""
        self.seeds[number] = _secret.getrandbits(31)
        flips = OPS[self.case.op].signs(self.case, self.seeds[number])
        changed = replace(self.parcel, content=self.parcel.content.clone())
        changed.change(flips.apply_)
        calls.fill(number, changed)

    def problem(self, number: int, outputs: dict[str, Tensor]) -> str | None:
        """Judge them with their signs put back."""
        flips = OPS[self.case.op].signs(self.case, self.seeds[number])
        return self.run.confirm(self.kernel, self.case, flips.outputs(outputs))


@dataclass(slots=True)
class _FreshValues:
    """The case with a secret seed for each set."""

    run: Run
    kernel: Kernel
    case: Case
    seeds: dict[int, int]
    every_pass: bool = True

    def fill(self, calls: SharedCalls, number: int) -> None:
        """Draw a seed."""
        self.seeds[number] = _secret.getrandbits(31)
        values = self.run.values_of_seed(self.kernel, self.case, self.seeds[number])
        calls.fill(number, Parcel.of(values.originals.read(), calls.arena.device))

    def problem(self, number: int, outputs: dict[str, Tensor]) -> str | None:
        """Judge them by a truth of their own."""
        values = self.run.values_of_seed(self.kernel, self.case, self.seeds[number])
        return self.run.problem_of(self.kernel, values, outputs)


@dataclass(slots=True)
class JudgedPasses:
    """What the passes of a run share. flush_us: what a flush takes; None: it isn't known."""

    run: Run
    workers: Workers
    cache: Cache
    cache_bytes: int
    flush_us: float | None
    limit_s: float

    def confirm(
        self, kernel: Kernel, case: Case, parcel: Parcel, claimed_us: float, enqueue_us: float
    ) -> Judged:
        """Hold the worker's figure against passes.

        Args:
            kernel: the kernel, which has just been judged on the case.
            case: the case.
            parcel: the case's inputs.
            claimed_us: device time of a call, as the worker says.
            enqueue_us: host time of a call, as the worker says.

        Returns:
            What the passes showed.

        Raises:
            WrongOutputsError: where outputs of a pass aren't right.
            DisagreementError: where the calls take longer than the worker says.
            TaskError: where the kernel or its process fails.
        """
        if not all(buffer.whole for buffer in parcel.buffers):
            return _unconfirmed("its inputs are too large to be there several times")
        layout = SetLayout.of(parcel, kernel.op.forms(case))
        count = self._count(layout, claimed_us)
        if count < _FEWEST_SETS:
            size = f"{layout.nbytes / 2**20:,.0f} MiB"
            return _unconfirmed(f"a set of inputs and outputs takes {size}, and two don't fit")
        flushes = self._flushes(layout, count, claimed_us, enqueue_us)
        if flushes is None:
            return _unconfirmed(
                f"its host time of {enqueue_us:.0f} us hides a call of {claimed_us:.1f} us"
            )
        values: _Values
        if kernel.origin == "user":
            values = _FreshValues(self.run, kernel, case, {})
        else:
            values = _ChangedSigns(self.run, kernel, case, parcel, {})
        try:
            with self.workers.shared_calls(
                kernel, layout, count, TASK, {"cache": self.cache}, self.limit_s
            ) as calls:
                return self._confirmed(calls, values, flushes, claimed_us)
        except NoSharedMemoryError:
            return _unconfirmed("the GPU's driver shares no memory between processes")
        except torch.OutOfMemoryError:
            self.workers.give_back()
            return _unconfirmed("the GPU has too little memory for several sets of inputs")

    def _count(self, layout: SetLayout, claimed_us: float) -> int:
        """How many sets a pass has: so many that they fill a pass, and are cold."""
        device = self.run.device
        most = _MOST_BYTES[device.type]
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            most = max(min(most, free // _MOST_SHARE), min(free // 3, _FEWEST_SETS * layout.nbytes))
        if self.cache == "warm":
            most = min(most, self.cache_bytes // _WARM_SHARE)
        wanted = max(
            math.ceil(_CACHES * self.cache_bytes / layout.nbytes),
            math.ceil(_PASS_S[device.type] * 1e6 / claimed_us),
            _FEWEST_JUDGED,
        )
        return min(wanted, _MOST_SETS, most // layout.nbytes)

    def _flushes(
        self, layout: SetLayout, count: int, claimed_us: float, enqueue_us: float
    ) -> int | None:
        """How often the cache is flushed before each call; None where no number of flushes helps.

        On a GPU the flush also takes the time in which the host queues the next call.
        """
        if self.run.device.type == "cpu":
            return 0
        host_us = _HOST_ROOM * (enqueue_us + _HOST_US)
        if self.cache == "warm" or self.flush_us is None:
            return 0 if host_us < claimed_us else None
        is_cold = count * layout.nbytes >= _CACHES * self.cache_bytes
        flushes = math.ceil(max(0.0, host_us - claimed_us) / self.flush_us)
        flushes = max(flushes, 0 if is_cold else 1)
        return flushes if flushes <= _MOST_FLUSHES else None

    def _confirmed(
        self,
        calls: SharedCalls,
        values: _Values,
        flushes: int,
        claimed_us: float,
    ) -> Judged:
        for number in range(calls.count):
            values.fill(calls, number)
        calls.run(range(min(calls.count, _FEWEST_JUDGED)), 0)  # what a first call does
        copy_us = self._copy_us(calls)
        empty_s = min(self._empty_s(calls), _MOST_EMPTY_S)
        figures: list[float] = []
        made, length = 0, calls.count
        for _ in range(_TRIES[self.run.device.type]):
            flush_us = flushes * (self.flush_us or 0.0)
            taken_off_us = flush_us + copy_us
            slack_us = (
                _SHARE_TAKEN_OFF * taken_off_us
                + _LAUNCH_US[self.run.device.type] * (1 + flushes)
                + 1e6 * _ORDER_S / length
            )
            passes = self._passes(calls, values, length, flushes, empty_s, taken_off_us)
            made += len(passes)
            # Others on a host only ever keep a CPU's calls waiting.
            figure_us = statistics.median(passes) if self.flush_us is not None else min(passes)
            figures.append(max(0.0, figure_us))
            if figures[-1] <= _ROOM * claimed_us + slack_us:
                reason = None
                if slack_us > _POWER * claimed_us:
                    reason = (
                        f"a call of {claimed_us:.1f} us is too short for the judge's clock, which "
                        f"tells {slack_us:.1f} us here"
                    )
                return Judged(figures[-1], slack_us, length, made, reason)
            # Calls that are slower than the worker says fill a pass with fewer of them.
            enough = math.ceil(1e6 * _PASS_S[self.run.device.type] / max(figures[-1], 1.0))
            length = min(length, max(enough, _FEWEST_JUDGED))
            if self.run.device.type == "cuda" and self.flush_us is not None:
                flushes = min(2 * flushes + 1, _MOST_FLUSHES)  # its host time may have shown
        raise DisagreementError(
            f"a call took {min(figures):.1f} us by the suite's clock, over {made} passes of up "
            f"to {calls.count} calls, and {claimed_us:.1f} us by its process's"
        )

    def _empty_s(self, calls: SharedCalls) -> float:
        """Time orders without calls, with a flush each that is taken off again.

        Before each of them the judge uses the device, as before a pass.
        """
        flushes = 0 if self.flush_us is None else 1
        empty = []
        for _ in range(_EMPTY_ORDERS):
            calls.forget(0)
            empty.append(calls.run((), flushes) - 1e-6 * flushes * (self.flush_us or 0.0))
        return max(0.0, statistics.median(empty))

    def _passes(
        self,
        calls: SharedCalls,
        values: _Values,
        length: int,
        flushes: int,
        empty_s: float,
        taken_off_us: float,
    ) -> list[float]:
        """Time passes of `length` calls; microseconds of a call, pass by pass.

        Raises WrongOutputsError.
        """
        figures: list[float] = []
        most = _MOST_PASSES[self.run.device.type]
        while len(figures) < _FEWEST_PASSES or (len(figures) < most and not _is_known(figures)):
            order = _secret.sample(range(calls.count), length)
            for number in order:
                values.fill(calls, number)
            seconds = calls.run(order, flushes)
            drawn = _secret.sample(order, _JUDGED) if values.every_pass or not figures else []
            outputs = {number: calls.read(number) for number in drawn}
            for number in drawn:
                problem = values.problem(number, outputs[number])
                if problem is not None:
                    raise WrongOutputsError(problem)
            figures.append(1e6 * (seconds - empty_s) / length - taken_off_us)
            if self.run.device.type == "cuda":
                time.sleep(min(0.5, _REST * seconds))
        return figures

    def _copy_us(self, calls: SharedCalls) -> float:
        """Time a copy of the outputs right after they were written, by the judge's clock."""
        device = calls.arena.device
        pairs = [
            (
                calls.arena.at(start, form.nbytes),
                torch.empty_like(calls.arena.at(start, form.nbytes)),
            )
            for _, start, form in calls.layout.outputs
        ]

        def wait() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        def seconds(*, copied: bool) -> float:
            wait()
            started = _now()
            for number in range(_COPIES):
                for place, source in pairs:
                    source.fill_(number)
                    if copied:
                        place.copy_(source)
            wait()
            return _now() - started

        seconds(copied=True)
        both = min(seconds(copied=True) for _ in range(3))
        written = min(seconds(copied=False) for _ in range(3))
        return max(0.0, 1e6 * (both - written) / _COPIES)


def _unconfirmed(reason: str) -> Judged:
    return Judged(None, None, 0, 0, reason)


def _is_known(figures: list[float]) -> bool:
    """Tell whether the mean of passes is known to 2 %."""
    mean = statistics.fmean(figures)
    error = statistics.stdev(figures) / math.sqrt(len(figures))
    return error <= _PRECISION * abs(mean)
