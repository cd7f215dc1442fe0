"""`bench --function`: our functions in eager mode, and PyTorch's, as a model calls them.

A row has two figures. `host_us` is the host's time of a call: a loop makes calls and never waits
for the device. `median_us` is a call's whole time, in a loop that waits at its end: the device's
time, or the host's where that is longer. A backward is `torch.autograd.grad` on a graph that is
kept. Each figure is the mean over a loop's calls; `host_us` is of the fastest loop, and `median_us`
of the median loop.

The rows' op is the function's name and the part of a training step, as in `layer_norm() backward`;
the kernels are "workbench" and "torch". Their outputs aren't judged here: tests judge the
functions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.kernels.model_calls import Function, ModelCall
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.record import BenchRow, CaseInfo, TimedProcess
from kernel_workbench.suites.run.progress import Progress

OURS, PYTORCH = "workbench", "torch"
_LOOPS = 7
_CALLS = 50  # fewer than a device queues, so that no call waits for room
_LOOP_S = 0.1  # of a loop that waits for the device
_Call = Callable[[], object]


def function_rows(
    calls: Sequence[ModelCall], device: torch.device, progress: Progress
) -> Iterator[BenchRow]:
    """Yield the rows of each call: forward without a gradient, forward, backward.

    Args:
        calls: the calls; a row is of ours or of PyTorch's.
        device: where the tensors are.
        progress: counts the rows.
    """
    parts = ("no gradient", "forward", "backward")
    progress.begin(2 * len(parts) * len(calls))
    for call in calls:
        for part in parts:
            for name, function in ((OURS, call.ours), (PYTORCH, call.theirs)):
                yield _row(call, part, name, function, device)
                progress.advance(name)


def _op_of(call: ModelCall, part: str) -> str:
    return f"{call.name}() {part}"


def _info(call: ModelCall, op: str) -> CaseInfo:
    """Return the record's form of a call."""
    sizes = "-".join(f"{name}{size}" for name, size in call.sizes.items())
    return CaseInfo(
        id="-".join([op, sizes, "bfloat16", *call.options]),
        op=op,
        sizes=call.sizes,
        dtype="bfloat16",
        layout="contiguous",
        distribution="normal",
        options=call.options,
        seed=0,
        tier="full",
        why="a call as a model makes it",
    )


def _row(
    model_call: ModelCall, part: str, kernel: str, function: Function, device: torch.device
) -> BenchRow:
    started, started_at = time.perf_counter(), datetime.now(UTC)
    info = _info(model_call, _op_of(model_call, part))
    drawn = [torch.randn(shape, device=device).bfloat16() for shape in model_call.shapes]
    inputs = [tensor.requires_grad_() for tensor in drawn]
    call = _call_of(part, function, inputs)
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else _no_wait
    for _ in range(3):
        call()
    wait()
    (once,) = _loops(call, wait, 1, 1)
    host = _loops(call, wait, _CALLS, _LOOPS, waits=False) if once < 1e4 else [once]
    calls = max(1, min(_CALLS, math.ceil(_LOOP_S / (once * 1e-6))))
    times = _loops(call, wait, calls, _LOOPS)
    return BenchRow(
        op=info.op,
        kernel=kernel,
        case=info,
        status="timed",
        cache="warm",
        distribution="normal",
        processes=(
            TimedProcess(
                times_us=tuple(times),
                stopped="sample limit",
                started_at=started_at.isoformat(timespec="seconds"),
            ),
        ),
        median_us=statistics.median(times),
        low_us=min(times),
        high_us=max(times),
        host_us=min(host),
        gates=False,
        reproduce=this_program().command("bench", ["--function"]),
        duration_s=time.perf_counter() - started,
    )


def _call_of(part: str, function: Function, inputs: Sequence[Tensor]) -> _Call:
    if part == "forward":
        return partial(function, *inputs)
    if part == "no gradient":
        return partial(_without_gradient, function, inputs)
    y = function(*inputs)
    dy = torch.randn_like(y)
    return partial(torch.autograd.grad, y, inputs, dy, retain_graph=True)


def _without_gradient(function: Function, inputs: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return function(*inputs)


def _no_wait() -> None:
    """Do nothing: a CPU's calls have ended when they return."""


def _loops(
    call: _Call, wait: Callable[[], None], calls: int, loops: int, *, waits: bool = True
) -> list[float]:
    """Return the mean time of a call in us, loop by loop; waits: for the device at its end."""
    times = []
    for _ in range(loops):
        wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        if waits:
            wait()
        times.append(1e6 * (time.perf_counter() - started) / calls)
    wait()
    return times
