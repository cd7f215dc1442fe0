"""The trials of a run: every row's loop beside a sampler, in rounds of random order.

The order spreads drifts over minutes, such as the room's temperature, evenly over rows. Before the
rounds, one loop of each kernel runs beside a sampler that samples and rests in turn, which shows
what sampling costs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import AccuracyRow, Window
from kernel_workbench.suites.profile.cases import Distribution
from kernel_workbench.suites.profile.figures import (
    Reply,
    mean_power_w,
    slowdown,
    window_of,
)
from kernel_workbench.suites.profile.sampler_process import Sampling
from kernel_workbench.suites.profile.windows import NS, measure
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError

ALTERNATE_S = 0.25  # a few batches to a stretch
_ALTERNATE_SHARE = 0.8  # of a trial's seconds
_SETTLE_S = 2.0  # the clocks come down for this time before a GPU counts as idle
IDLE_S = 4.0
_TRIED_ONCE = Missing("not tried", "the sampler's cost is measured once for a kernel and a case")


@dataclass(slots=True)
class Entry:
    """A row in progress: what to loop, and the results so far.

    trials  the number of trials to run
    failed  why the loop failed; a failed entry isn't looped again
    """

    kernel: Kernel
    case: Case
    distribution: Distribution
    accuracy: AccuracyRow
    trials: int
    windows: list[Window] = field(default_factory=list)
    slowdown: float | Missing = _TRIED_ONCE
    failed: str | None = None
    captured: bool | None = None
    why_not_captured: str | None = None
    duration_s: float = 0.0

    @property
    def label(self) -> str:
        """The entry's name in the progress bar, for example "flash, zeros"."""
        return f"{self.kernel.name}, {self.distribution}"


@dataclass(slots=True, kw_only=True)
class Trials:
    """Runs trials. `loop` loops an entry's kernel for some seconds and may raise TaskError."""

    sampling: Sampling
    loop: Callable[[Entry, float], Reply]
    seconds: float
    dropped_s: float
    advance: Callable[[str], None]
    order: random.Random = field(default_factory=random.Random)
    settle_s: float = _SETTLE_S
    idle_s: float = IDLE_S

    def count(self, entries: Sequence[Entry]) -> int:
        """Return the most loops that `run` makes."""
        return sum(entry.trials for entry in entries) + len(_first_of_each(entries))

    def run(self, entries: Sequence[Entry]) -> None:
        """Run all trials, and store results in the entries, also if this is interrupted."""
        for entry in _first_of_each(entries):
            self._timed(entry, self._try_sampler)
        for number in range(max((entry.trials for entry in entries), default=0)):
            shuffled = [entry for entry in entries if number < entry.trials]
            self.order.shuffle(shuffled)
            for entry in shuffled:
                self._timed(entry, self._try)

    def idle(self) -> float | str:
        """Return the mean power in watts while nothing runs, or the reason why it isn't known."""
        time.sleep(self.settle_s)
        with self.sampling.during() as sampled:
            begin_s = time.monotonic_ns() * NS
            time.sleep(self.idle_s)
            end_s = time.monotonic_ns() * NS
        window = measure(sampled.trace, begin_s, end_s).window
        power_w = mean_power_w(window)
        return window.missing["power_w"] if power_w is None else power_w

    def _timed(self, entry: Entry, attempt: Callable[[Entry], None]) -> None:
        self.advance(entry.label)
        if entry.failed is not None:
            return
        started = time.monotonic()
        try:
            attempt(entry)
        except TaskError as error:
            entry.failed = f"{error.rule}: {error}"
        finally:
            entry.duration_s += time.monotonic() - started

    def _try_sampler(self, entry: Entry) -> None:
        with self.sampling.during(ALTERNATE_S) as sampled:
            reply = self.loop(entry, _ALTERNATE_SHARE * self.seconds)
        entry.slowdown = slowdown(sampled.trace, reply)

    def _try(self, entry: Entry) -> None:
        with self.sampling.during() as sampled:
            reply = self.loop(entry, self.seconds)
        entry.captured, entry.why_not_captured = reply.captured, reply.why
        entry.windows.append(window_of(sampled.trace, reply, self.dropped_s))


def _first_of_each(entries: Sequence[Entry]) -> list[Entry]:
    """Return one entry for each kernel and case: one distribution shows the sampler's cost."""
    first: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        first.setdefault((entry.kernel.name, entry.case.id()), entry)
    return list(first.values())
