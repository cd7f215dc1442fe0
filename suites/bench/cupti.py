"""Times of a call's work on the GPU by CUPTI, a witness beside the times by events.

CUPTI, NVIDIA's tracing library, reports when each kernel, copy and fill ran, on every stream. A
call's time is the length of the union of these intervals, because work of several streams overlaps.

A process that CUPTI has traced launches more slowly afterwards (PyTorch's issue 144455), so no row
is timed in it. The tracing library stays attached between the rows: detaching it has crashed
processes and blocked them.

This module binds torch's functions when it is imported, before any candidate is.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kernel_workbench.suites.bench.devices import Device

_profile: Callable[..., Any] = torch.autograd.profiler.profile
_spin: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001  (torch has no public function for this)
_ON_DEVICE = torch._C._autograd.DeviceType.CUDA  # noqa: SLF001  (torch.autograd exports it to itself alone)

_MARKER = "spin_kernel"  # part of the name of the kernel that `_spin` launches
_COPIES = ("Memcpy ", "Memset ")  # how names of other activities than kernels begin
_TEARDOWN = "TEARDOWN_CUPTI"


class NothingTracedError(RuntimeError):
    """CUPTI reported no work of the calls, or not all of them."""


@dataclass(frozen=True, slots=True, order=True)
class Activity:
    """A kernel, a copy or a fill of memory on the device, by CUPTI's clock."""

    start_ns: int
    end_ns: int
    name: str

    @property
    def is_kernel(self) -> bool:
        """True for a kernel, False for a copy or a fill."""
        return not self.name.startswith(_COPIES)


@dataclass(frozen=True, slots=True)
class TracedCalls:
    """Medians over some calls: microseconds at work on the device, and the number of kernels."""

    busy_us: float
    kernels: int


def traced_calls(call: Callable[[], object], on: Device, count: int) -> TracedCalls:
    """Trace some calls in one session of CUPTI.

    A marker kernel runs before and after each call, with nothing else on the device, so that the
    flush of a cold cache isn't part of the call.

    Args:
        call: calls the kernel, which was called before.
        on: the GPU; its cache is flushed before each call if it is to be cold.
        count: the number of calls.

    Raises:
        NothingTracedError: if CUPTI isn't available, or another program uses it.
    """
    with (
        _attached(),
        _profile(use_cpu=False, use_device="cuda", use_kineto=True) as session,
    ):
        for _ in range(count):
            if on.cache == "cold":
                on.flush()
            _spin(1)
            on.wait()
            call()
            on.wait()
            _spin(1)
        on.wait()
    calls = calls_of(activities_of(session.kineto_results.events()), count)
    busy_us = statistics.median(1e-3 * busy_ns(activities) for activities in calls)
    kernels = statistics.median_low(
        sum(activity.is_kernel for activity in activities) for activities in calls
    )
    if not busy_us:
        raise NothingTracedError("CUPTI reported no work of the calls")
    return TracedCalls(busy_us, kernels)


def activities_of(events: Iterable[Any]) -> list[Activity]:
    """Return the work on the device among the events of a session."""
    return [
        Activity(event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in events
        if event.device_type() == _ON_DEVICE
    ]


def calls_of(activities: Iterable[Activity], count: int) -> list[list[Activity]]:
    """Return the activities of each call: those between its two markers.

    Raises:
        NothingTracedError: if there aren't two markers for each of `count` calls.
    """
    in_order = sorted(activities)
    markers = [place for place, activity in enumerate(in_order) if _MARKER in activity.name]
    if len(markers) != 2 * count:
        raise NothingTracedError(
            f"CUPTI reported {len(markers)} of the {2 * count} markers around the calls"
        )
    pairs = zip(markers[::2], markers[1::2], strict=True)
    return [in_order[before + 1 : after] for before, after in pairs]


def busy_ns(activities: Sequence[Activity]) -> int:
    """Return the nanoseconds in which at least one activity ran."""
    busy = end = 0
    for activity in sorted(activities):
        busy += max(0, activity.end_ns - max(end, activity.start_ns))
        end = max(end, activity.end_ns)
    return busy


@contextmanager
def _attached() -> Iterator[None]:
    """Let CUPTI stay attached when the session ends within the context."""
    before = os.environ.get(_TEARDOWN)
    os.environ[_TEARDOWN] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TEARDOWN]
        else:
            os.environ[_TEARDOWN] = before
