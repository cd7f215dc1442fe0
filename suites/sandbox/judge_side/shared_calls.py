"""Calls of a kernel on sets of inputs that the judge fills, in an order that the judge sends late.

The inputs and the places for outputs are the judge's memory (`shared_sets.py`). The conversation is
one task of a worker: the worker replies that it is ready, and then replies to each order of calls
after it has made them, until the judge ends the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernel_workbench.suites.sandbox.parcels import Arena, Parcel
from kernel_workbench.suites.sandbox.shared_sets import SetLayout
from kernel_workbench.suites.sandbox.wire import Message

_NOTHING_YET = 255  # repeated, this byte is NaN in every floating-point type
_now: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True)
class SharedCalls:
    """One kernel on `count` sets.

    pid  process id of the worker
    ask  a function that sends a message and returns the worker's reply
    """

    arena: Arena
    layout: SetLayout
    count: int
    pid: int
    ask: Callable[[Message], Message]

    def fill(self, number: int, values: Parcel) -> None:
        """Copy values to a set, and overwrite its places for outputs with NaN."""
        self.layout.fill(self.arena, number, values)
        self.forget(number)

    def forget(self, number: int) -> None:
        """Overwrite a set's places for outputs with NaN."""
        for _, start, form in self.layout.outputs:
            place = self.arena.at(number * self.layout.nbytes + start, form.nbytes)
            place.fill_(_NOTHING_YET)

    def run(self, order: Sequence[int], flushes: int) -> float:
        """Have the kernel called on these sets in this order.

        Args:
            order: indices of sets.
            flushes: number of flushes of the cache before each call, or in an empty order.

        Returns:
            Seconds by the judge's own clock. On a CPU they exclude the time in which the judge or
            the worker was ready to run while other processes used the cores.

        Raises:
            TaskError: if the kernel fails.
            EndedError: if its process ends.
        """
        message: Message = {"order": list(order), "flushes": flushes}
        if self.arena.device.type == "cuda":
            torch.cuda.synchronize(self.arena.device)
        started, kept_waiting_s = _now(), self._kept_waiting_s()
        self.ask(message)
        return _now() - started - (self._kept_waiting_s() - kept_waiting_s)

    def _kept_waiting_s(self) -> float:
        """Return the seconds that Linux's scheduler kept both waiting, or 0 if unknown."""
        if self.arena.device.type == "cuda":
            return 0.0  # a GPU goes on working
        nanoseconds = 0
        for process in (self.pid, "self"):
            try:
                counts = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()
                nanoseconds += int(counts[1])
            except (OSError, ValueError, IndexError):
                return 0.0
        return 1e-9 * nanoseconds

    def read(self, number: int) -> dict[str, Tensor]:
        """Return copies of a set's outputs, by name."""
        return self.layout.read(self.arena, number)
