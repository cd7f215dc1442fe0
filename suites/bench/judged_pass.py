"""Judged passes: the judge times calls by its own clock, and judges outputs that it draws later.

A worker claims a time for a call, and a candidate lives in the worker: it can compute only in the
sample whose outputs are judged, or change the clock. So the judge checks the claim:

- The judge owns some sets of inputs with different values, and places for their outputs. It fills
  the sets, starts its clock, and sends an order of sets. The worker calls the kernel on each set in
  that order, copies each call's outputs to their place, waits for the device and answers.
- The judge stops its clock and at once copies the outputs of two sets, which it draws only now. It
  judges them against the truth of their values.
- The judge subtracts times that aren't the kernel's, by its own measurements: the reply to an empty
  order, flushes of the cache, and the copy of outputs.
- The next pass has other values at the same addresses. Three passes that all confirm the claim are
  enough, and one of a baseline; otherwise passes go on until their mean is known to 2 %.

A candidate that computes only the outputs that it expects to be judged, computes later, keeps
outputs by address, or works on another stream has wrong outputs or shows its full time here.

A user's kernel gets new values for each set, and two outputs of every pass are judged. Kernels of
the workbench and its peers, for which nobody is rewarded, get the case's values with new signs,
whose truth the run already has. Two outputs of the first pass of a try are judged, and one output
of a peer's. Without a symmetry of signs these kernels get the case's own values.

If a call is so short that its host time hides it, or if two sets of inputs don't fit, the row says
that its figure is only the worker's claim.
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
_MOST_SHARE = 4  # sets take at most this fraction of a GPU's free memory
_MOST_SETS, _FEWEST_SETS = 64, 2
# The fewest calls of a pass if they fit. A user's kernel makes more: one that computes only some of
# them must not guess which are judged.
_FEWEST_CALLS, _FEWEST_OF_USERS = 3, 8
_FIRST_CALLS = 2  # before the first pass
_PASS_S = {"cuda": 0.008, "cpu": 0.03}
_FEWEST_PASSES, _MOST_PASSES = 3, {"cuda": 8, "cpu": 3}
_PASSES_OF_BASELINES = 1
_PRECISION = 0.02  # of the mean of passes
_JUDGED, _JUDGED_OF_BASELINES = 2, 1  # sets of a pass
_MOST_CHANGES = 8  # of signs in a pass
_CACHES = 4  # the sets of a cold pass fill so many times the last level of cache
_WARM_SHARE = 4  # the sets of a warm pass fill at most this fraction of the cache
_EMPTY_ORDERS = 5
_COPIES = 10
_MOST_FLUSHES = 24
# Host time of a pass beside the kernel's: launches of flushes and copies, the loop.
_HOST_US, _HOST_ROOM = 25.0, 1.5
# Tolerance over the worker's figure: a share of it and of the subtracted time, and launches.
_ROOM = 1.25
_SHARE_TAKEN_OFF, _ORDER_S = 0.01, 1e-4
_LAUNCH_US = {"cuda": 1.0, "cpu": 25.0}  # of a call and of a flush
# An H100 switches from the judge's process to the worker's in about 0.7 ms. A candidate that
# makes an order without calls slow gains no more than this.
_MOST_EMPTY_S = 2e-3
_POWER = 0.5  # with more slack than this share, the figure is only the worker's claim
_TRIES = {"cuda": 4, "cpu": 8}
# Times a pass, before the next one, which is filled meanwhile; without the rest the clock would
# fall lower than between samples.
_REST = 2.0


class WrongOutputsError(RuntimeError):
    """Outputs of a pass are wrong; the message gives the reason."""


class DisagreementError(RuntimeError):
    """The judge's clock refutes the worker's figure; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of judged passes.

    time_us   time of a call by the judge's clock; None: no pass was made
    slack_us  the error of that time, beside 25 % of it
    reason    a sentence if the figure is only the worker's claim; None: the judge's clock confirms
              it
    """

    time_us: float | None
    slack_us: float | None
    sets: int
    passes: int
    reason: str | None


@dataclass(slots=True)
class _ChangedSigns:
    """The case's values with new signs.

    every_pass    judge outputs of every pass, not only of one
    fewest_calls  the fewest calls of a pass, if their sets fit
    """

    run: Run
    kernel: Kernel
    case: Case
    parcel: Parcel
    seeds: dict[int, int]
    every_pass: bool = False  # judging an output of gigabytes takes seconds
    fewest_calls: int = _FEWEST_CALLS

    def fill(self, calls: SharedCalls, numbers: Sequence[int]) -> None:
        """Fill sets with new signs; a change takes 1 ms, so that a few sets get the same signs."""
        few = math.ceil(len(numbers) / _MOST_CHANGES)
        for start in range(0, len(numbers), few):
            seed = _secret.getrandbits(31)
            flips = OPS[self.case.op].signs(self.case, seed)
            changed = replace(self.parcel, content=self.parcel.content.clone())
            changed.change(flips.apply_)
            for number in numbers[start : start + few]:
                self.seeds[number] = seed
                calls.fill(number, changed)

    def problem(self, number: int, outputs: dict[str, Tensor]) -> str | None:
        """Return a sentence if the outputs of a set are wrong, their signs restored, else None."""
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
    fewest_calls: int = _FEWEST_OF_USERS

    def fill(self, calls: SharedCalls, numbers: Sequence[int]) -> None:
        """Fill each set with new values."""
        for number in numbers:
            self.seeds[number] = _secret.getrandbits(31)
            values = self.run.values_of_seed(self.kernel, self.case, self.seeds[number])
            calls.fill(number, Parcel.of(values.originals.read(), calls.arena.device))

    def problem(self, number: int, outputs: dict[str, Tensor]) -> str | None:
        """Return a sentence if the outputs of a set are wrong by their own truth, else None."""
        values = self.run.values_of_seed(self.kernel, self.case, self.seeds[number])
        return self.run.problem_of(self.kernel, values, outputs)


_Values = _ChangedSigns | _FreshValues


@dataclass(frozen=True, slots=True)
class _PassTiming:
    """The calls of a pass, the flushes before each, and times that aren't the kernel's.

    empty_s       seconds of an order without calls
    taken_off_us  microseconds of a call's flushes and copies
    """

    length: int
    flushes: int
    empty_s: float
    taken_off_us: float


@dataclass(slots=True)
class JudgedPasses:
    """Shared state of a run's passes.

    flush_us: the time of a flush in microseconds; None: unknown.
    """

    run: Run
    workers: Workers
    cache: Cache
    cache_bytes: int
    flush_us: float | None
    limit_s: float

    def confirm(
        self, kernel: Kernel, case: Case, parcel: Parcel, claimed_us: float, enqueue_us: float
    ) -> PassResult:
        """Compare the worker's figure with passes; the kernel has just been judged on the case.

        The worker claims a call's time on the device and on the host, in microseconds.

        Raises:
            WrongOutputsError: if outputs of a pass are wrong.
            DisagreementError: if the calls take longer than the worker claims.
            TaskError: if the kernel or its process fails.
        """
        if not all(buffer.whole for buffer in parcel.buffers):
            return _unconfirmed("its inputs are too large to be there several times")
        values: _Values
        if kernel.origin == "user":
            values = _FreshValues(self.run, kernel, case, {})
        else:
            values = _ChangedSigns(self.run, kernel, case, parcel, {})
        layout = SetLayout.of(parcel, kernel.op.forms(case))
        count = self._count(layout, claimed_us, values.fewest_calls)
        if count < _FEWEST_SETS:
            size = f"{layout.nbytes / 2**20:,.0f} MiB"
            return _unconfirmed(f"a set of inputs and outputs takes {size}, and two don't fit")
        flushes = self._flushes(layout, count, claimed_us, enqueue_us)
        if flushes is None:
            return _unconfirmed(
                f"its host time of {enqueue_us:.0f} us hides a call of {claimed_us:.1f} us"
            )
        try:
            with self.workers.shared_calls(
                kernel, layout, count, TASK, {"cache": self.cache}, self.limit_s
            ) as calls:
                fewest = _PASSES_OF_BASELINES if kernel.origin == "baseline" else _FEWEST_PASSES
                return self._confirmed(calls, values, flushes, claimed_us, fewest)
        except NoSharedMemoryError:
            return _unconfirmed("the GPU's driver shares no memory between processes")
        except torch.OutOfMemoryError:
            self.workers.give_back()
            return _unconfirmed("the GPU has too little memory for several sets of inputs")

    def _count(self, layout: SetLayout, claimed_us: float, fewest: int) -> int:
        """Return the number of sets: enough to fill a pass, and to be cold; fewest: of a pass."""
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
            fewest,
        )
        return min(wanted, _MOST_SETS, most // layout.nbytes)

    def _flushes(
        self, layout: SetLayout, count: int, claimed_us: float, enqueue_us: float
    ) -> int | None:
        """Return the number of flushes before each call; None: no number helps.

        On a GPU the flush also covers the time in which the host queues the next call.
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
        fewest: int,
    ) -> PassResult:
        """Make passes until they confirm the claim; fewest: of passes that each confirm it."""
        first = range(min(calls.count, _FIRST_CALLS))
        values.fill(calls, first)
        calls.run(first, 0)  # includes a first call's work
        copy_us = self._copy_us(calls)
        empty_s = min(self._empty_s(calls), _MOST_EMPTY_S)
        figures: list[float] = []
        passes_made, length = 0, calls.count
        for _ in range(_TRIES[self.run.device.type]):
            flush_us = flushes * (self.flush_us or 0.0)
            taken_off_us = flush_us + copy_us
            slack_us = (
                _SHARE_TAKEN_OFF * taken_off_us
                + _LAUNCH_US[self.run.device.type] * (1 + flushes)
                + 1e6 * _ORDER_S / length
            )
            limit_us = _ROOM * claimed_us + slack_us
            timing = _PassTiming(length, flushes, empty_s, taken_off_us)
            passes = self._passes(calls, values, timing, limit_us, fewest)
            passes_made += len(passes)
            # Other processes of a host can only delay a CPU's calls.
            figure_us = statistics.median(passes) if self.flush_us is not None else min(passes)
            figures.append(max(0.0, figure_us))
            if figures[-1] <= limit_us:
                reason = None
                if slack_us > _POWER * claimed_us:
                    reason = (
                        f"a call of {claimed_us:.1f} us is too short for the judge's clock, which "
                        f"tells {slack_us:.1f} us here"
                    )
                return PassResult(figures[-1], slack_us, length, passes_made, reason)
            # Calls that are slower than claimed fill a pass in smaller numbers.
            enough = math.ceil(1e6 * _PASS_S[self.run.device.type] / max(figures[-1], 1.0))
            length = min(length, max(enough, values.fewest_calls))
            if self.run.device.type == "cuda" and self.flush_us is not None:
                flushes = min(2 * flushes + 1, _MOST_FLUSHES)  # host time may have become visible
        raise DisagreementError(
            f"a call took {min(figures):.1f} us by the suite's clock, over {passes_made} passes of "
            f"up to {calls.count} calls, and {claimed_us:.1f} us by its process's"
        )

    def _empty_s(self, calls: SharedCalls) -> float:
        """Return the time of an order without calls, in seconds, without its flush.

        The judge uses the device before each order, as before a pass.
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
        timing: _PassTiming,
        limit_us: float,
        fewest: int,
    ) -> list[float]:
        """Return microseconds of a call in each pass.

        Passes end with `fewest` of at most limit_us, or when their mean is precise.

        Raises WrongOutputsError if outputs of a pass are wrong.
        """
        figures: list[float] = []
        most, rest_s, filling_s = _MOST_PASSES[self.run.device.type], 0.0, 0.0
        judged = _JUDGED_OF_BASELINES if values.kernel.origin == "baseline" else _JUDGED
        while len(figures) < most and not _is_enough(figures, limit_us, fewest):
            order = _secret.sample(range(calls.count), timing.length)
            time.sleep(max(0.0, rest_s - filling_s))  # a device that slept last would be slower
            started = _now()
            values.fill(calls, order)
            filling_s = _now() - started
            seconds = calls.run(order, timing.flushes)
            if self.run.device.type == "cuda":
                rest_s = min(0.5, _REST * seconds)
            drawn = _secret.sample(order, judged) if values.every_pass or not figures else []
            outputs = {number: calls.read(number) for number in drawn}
            for number in drawn:
                problem = values.problem(number, outputs[number])
                if problem is not None:
                    raise WrongOutputsError(problem)
            per_call_us = 1e6 * (seconds - timing.empty_s) / timing.length
            figures.append(per_call_us - timing.taken_off_us)
        return figures

    def _copy_us(self, calls: SharedCalls) -> float:
        """Return the time of a copy of just written outputs, in microseconds."""
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


def _unconfirmed(reason: str) -> PassResult:
    return PassResult(None, None, 0, 0, reason)


def _is_enough(figures: list[float], limit_us: float, fewest: int) -> bool:
    """Return True if enough passes all confirm a claim, or their mean is known to 2 %."""
    if len(figures) >= fewest and max(figures) <= limit_us:
        return True
    if len(figures) < _FEWEST_PASSES:
        return False
    mean = statistics.fmean(figures)
    error = statistics.stdev(figures) / math.sqrt(len(figures))
    return error <= _PRECISION * abs(mean)
