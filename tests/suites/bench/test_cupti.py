"""Times by CUPTI, on a simulated GPU whose tracing library reports events of this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.bench import cupti, rows
from kernel_workbench.suites.bench.cupti import (
    Activity,
    NothingTracedError,
    TracedCalls,
    busy_ns,
    calls_of,
    traced_calls,
)
from kernel_workbench.suites.bench.figures import Roofs
from kernel_workbench.suites.bench.judged_pass import TASK
from kernel_workbench.suites.bench.rows import Bench
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers

_DEVICE = torch._C._autograd.DeviceType
_MARKER = "at::cuda::(anonymous namespace)::spin_kernel(long)"
_ROOFS, _NO_ROOFS = Roofs("cuda", 2**25, None, ()), Roofs("cpu", 2**25, None, ())
_CPU = torch.device("cpu")


class _Event:
    """An event of PyTorch's tracing session."""

    def __init__(self, name: str, start_ns: int, duration_ns: int, kind: object) -> None:
        self._values = name, start_ns, duration_ns, kind

    def name(self) -> str:
        """Return the name of the activity."""
        return self._values[0]

    def start_ns(self) -> int:
        """Return its begin."""
        return self._values[1]

    def duration_ns(self) -> int:
        """Return its length."""
        return self._values[2]

    def device_type(self) -> object:
        """Return where it ran."""
        return self._values[3]


class _Gpu:
    """A GPU whose clock stands still between activities, with a tracing library.

    markers: the library reports the markers around calls.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, markers: bool = True) -> None:
        self.cache = "cold"
        self.now_ns = 1_000
        self.events: list[_Event] = []
        self.variable: str | None = None
        monkeypatch.setattr(cupti, "_profile", self.profile)
        marker = _MARKER if markers else "other"
        monkeypatch.setattr(cupti, "_spin", lambda _: self.run(marker, 0, 10))

    def run(self, name: str, after_ns: int, duration_ns: int, *, overlaps: bool = False) -> None:
        """Run an activity so long after the last one ended, or after the last one began."""
        last = self.events[-1].start_ns() if overlaps and self.events else self.now_ns
        self.events.append(_Event(name, last + after_ns, duration_ns, _DEVICE.CUDA))
        self.now_ns = max(self.now_ns, last + after_ns + duration_ns)

    def flush(self) -> None:
        """Read memory."""
        self.run("reduce_kernel", 0, 70_000)

    def wait(self) -> None:
        """Report the host's call: no activity of the device."""
        self.events.append(_Event("cudaDeviceSynchronize", self.now_ns, 5_000, _DEVICE.CPU))

    @contextmanager
    def profile(self, **options: object) -> Iterator[SimpleNamespace]:
        """Trace; the events are reported out of order."""
        assert options == {"use_cpu": False, "use_device": "cuda", "use_kineto": True}
        self.variable = os.environ.get("TEARDOWN_CUPTI")
        results = SimpleNamespace(events=lambda: self.events[::-1])
        yield SimpleNamespace(kineto_results=results)


def _activities(*spans: tuple[int, int]) -> list[Activity]:
    return [Activity(start, end, "kernel") for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ((), 0),
        (((10, 30),), 20),
        (((10, 30), (40, 45)), 25),
        (((10, 30), (20, 50)), 40),
        (((10, 50), (20, 30), (45, 60)), 50),
        (((40, 45), (10, 30), (30, 40)), 35),
    ],
)
def test_busy_time_is_the_length_of_the_union(spans: tuple[Any, ...], expected: int) -> None:
    """Overlaps count once, gaps don't count, and the order of the reports doesn't matter."""
    assert busy_ns(_activities(*spans)) == expected


def test_activities_of_a_call_lie_between_its_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush, markers and the host's calls aren't counted; a copy takes time, but no launch."""
    gpu = _Gpu(monkeypatch)

    def call() -> None:
        gpu.run("first", 3_000, 8_000)
        gpu.run("on_another_stream", 2_000, 8_000, overlaps=True)
        gpu.run("Memcpy DtoD (Device -> Device)", 500, 1_000)

    assert traced_calls(call, gpu, 5) == TracedCalls(pytest.approx(11.0), 2)  # type: ignore[arg-type]
    assert gpu.variable == "0"
    assert "TEARDOWN_CUPTI" not in os.environ


def test_flush_stays_out_on_a_warm_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls and markers run."""
    gpu = _Gpu(monkeypatch)
    gpu.cache = "warm"
    traced_calls(lambda: gpu.run("kernel", 0, 10), gpu, 2)  # type: ignore[arg-type]
    assert "reduce_kernel" not in {event.name() for event in gpu.events}


def test_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value of the variable comes back, also after an error."""
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    gpu = _Gpu(monkeypatch)

    def call() -> None:
        raise ValueError("a kernel's")

    with pytest.raises(ValueError, match="a kernel's"):
        traced_calls(call, gpu, 1)  # type: ignore[arg-type]
    assert gpu.variable == "0"
    assert os.environ["TEARDOWN_CUPTI"] == "1"


def test_missing_markers_and_missing_work_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are markers of a kernel's own, which would cut a call in pieces."""
    gpu = _Gpu(monkeypatch, markers=False)
    with pytest.raises(NothingTracedError, match="0 of the 4 markers"):
        traced_calls(lambda: None, gpu, 2)  # type: ignore[arg-type]
    gpu = _Gpu(monkeypatch)
    with pytest.raises(NothingTracedError, match="no work of the calls"):
        traced_calls(lambda: None, gpu, 2)  # type: ignore[arg-type]
    with pytest.raises(NothingTracedError, match="3 of the 2 markers"):
        calls_of([Activity(at, at + 1, _MARKER) for at in range(3)], 1)


class _Workers:
    """Workers whose task replies with a value, or raises it.

    freed: number of processes that ended.
    """

    def __init__(self, reply: object) -> None:
        self.reply = reply
        self.settings: list[object] = []
        self.freed = 0

    def task(self, *arguments: object) -> tuple[object, dict[str, object]]:
        """As `Workers.task` does."""
        self.settings.append(arguments[4])
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply, {}

    def give_back(self) -> None:
        """As `Workers.give_back` does."""
        self.freed += 1


def _tracer(workers: _Workers | None) -> Callable[..., tuple[float, int] | None]:
    """Return a function that traces a call in these workers; None: it says nothing."""
    nothing: Any = SimpleNamespace()
    tracers: Any = workers
    bench = Bench(nothing, nothing, _ROOFS, "cold", 0.1, None, 60.0, None, tracers=tracers)

    def traced(
        median_us: float = 20.0, nbytes: int = 2**20, origin: str = "user"
    ) -> tuple[float, int] | None:
        parcel: Any = SimpleNamespace(nbytes=nbytes)
        kernel: Any = SimpleNamespace(origin=origin)
        trace = bench._trace(kernel, nothing, parcel, median_us)
        return None if trace is None else (trace.busy_us, trace.kernels)

    return traced


def test_judge_takes_the_trace_of_a_worker() -> None:
    """Fewer calls of a slow kernel are traced, and a large case leaves no memory behind."""
    workers = _Workers({"busy_us": 18.5, "kernels": 3})
    traced = _tracer(workers)
    assert traced() == (18.5, 3)
    traced(median_us=25_000.0)
    traced(median_us=1e6)
    settings = {"do": "trace", "cache": "cold"}
    assert workers.settings == [settings | {"count": count} for count in (5, 2, 1)]
    assert workers.freed == 0
    traced(nbytes=2**32)
    assert workers.freed == 1
    assert traced(origin="baseline") is None


def test_no_row_is_traced_without_workers_for_it() -> None:
    """On a CPU there are none."""
    assert _tracer(None)() is None


@pytest.mark.parametrize(
    "reply",
    [
        TaskError("raised", "CUPTI reported 0 of the 10 markers around the calls"),
        torch.OutOfMemoryError("in the kernel's process"),
        {"busy_us": float("nan"), "kernels": 1},
        {"busy_us": -1.0, "kernels": 1},
        {"busy_us": 1.0},
    ],
)
def test_failed_trace_is_no_failure_of_a_row(reply: object) -> None:
    """After some in a row no other call is tried; one that works in between starts anew."""
    workers = _Workers(reply)
    traced, most = _tracer(workers), rows._MOST_UNCOUNTED
    assert [traced() for _ in range(most - 1)] == [None] * (most - 1)
    workers.reply = {"busy_us": 18.5, "kernels": 3}
    assert traced() == (18.5, 3)
    workers.reply = reply
    assert [traced() for _ in range(most + 2)] == [None] * (most + 2)
    assert len(workers.settings) == 2 * most
    assert workers.freed == 2 * most - 1


@pytest.mark.long_run
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"busy_us": 18.5, "kernels": 3}, (18.5, 3)),
        ({"busy_us": 18.5, "kernels": 0}, (18.5, None)),
        (TaskError("raised", "no CUPTI"), (None, None)),
    ],
)
def test_row_has_the_trace_beside_its_own_times(
    reply: object, expected: tuple[float | None, int | None]
) -> None:
    """Its kernels count as launches where no graph counts them, as on a CPU."""
    tracers: Any = _Workers(reply)
    case = case_named(LAYER_NORM_BACKWARD, "layer_norm_backward-m48-n96-float32-contiguous")
    assert case is not None
    workers = Workers(_CPU, 90, strict=False, tasks=(TASK,))
    (kernel,) = (
        kernel
        for kernel in all_kernels()
        if (kernel.op.name, kernel.name) == (case.op, "torch_eager")
    )
    kernel = replace(kernel, origin="ours")  # a baseline isn't traced
    run = Run(_CPU, 90, workers=workers, two_calls_alone=True)
    bench = Bench(run, workers, _NO_ROOFS, "warm", 0.1, None, 60.0, None, tracers=tracers)
    try:
        row = bench.row(kernel, case)
    finally:
        workers.close()
    assert row.status == "timed", row.reason
    assert (row.cupti_us, row.launches) == expected
    assert row.median_us is not None and row.median_us != row.cupti_us
