"""Loop a kernel for some seconds in a worker, and report when its calls ran.

A CUDA graph captures several calls on separate inputs, so that the GPU isn't idle between calls.
The graph is replayed in batches, two of which are always queued. The worker keeps each batch's end
on CLOCK_MONOTONIC and its device time. A call that can't be captured is made directly, and the
report says so.

With a seed, the signs of the inputs change after the loop, the loop's calls run once more, and the
worker returns their outputs: a kernel that returned stored outputs is then wrong.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case, Inputs

# A candidate may replace these functions: they are bound before a candidate is imported.
_Event = torch.cuda.Event
_Stream = torch.cuda.Stream
_Graph = torch.cuda.CUDAGraph
_graph = torch.cuda.graph
_on_device = torch.cuda.device
_on_stream = torch.cuda.stream
_current_stream = torch.cuda.current_stream
_synchronize = torch.cuda.synchronize
_monotonic_ns = time.monotonic_ns

_WARM_UP = 3  # a kernel compiles and tunes in the first call, and settles by the third
_TIMED = 5
_GRAPH_US = 2e3  # device time of a graph: a replay costs the host some 10 us
_MOST_IN_GRAPH = 64
_QUEUED = 2  # batches, so that the device never waits for the host


@dataclass(slots=True)
class Looped:
    """A finished loop. `batches` lists end in ns, calls and device time in us.

    again  repeats the looped calls; the last call writes its outputs to the same place
    """

    again: Callable[[], object]
    began_ns: int
    captured: bool
    why: str | None
    batches: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """The loop as a JSON object."""
        return {
            "began_ns": self.began_ns,
            "captured": self.captured,
            "why": self.why,
            "batches": self.batches,
        }


def run_task(
    kernel: Kernel,
    case: Case,
    inputs: Sequence[Inputs],
    device: torch.device,
    settings: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Loop the kernel over the inputs for `settings["seconds"]`, in batches of `batch_s`.

    `settings["seed"]` draws the changes of signs; None returns no outputs.
    """
    returned: list[object] = [None]

    def call(inputs: Inputs) -> None:
        returned[0] = kernel.function(**inputs)

    calls = [partial(call, inputs_of_call) for inputs_of_call in inputs]
    looped = loop(calls, device, settings["seconds"], settings["batch_s"])
    if settings["seed"] is None:
        return looped.message, {}
    changes = kernel.op.signs(case, settings["seed"])
    for operands in inputs:
        changes.apply_(operands)
    looped.again()
    _synchronize()
    results = kernel.op.as_tuple(returned[0])
    assert isinstance(results, tuple | list)
    outputs = zip(kernel.op.outputs, results, strict=True)
    return looped.message, {name: result for name, result in outputs if result is not None}


def loop(
    calls: Sequence[Callable[[], object]], device: torch.device, seconds: float, batch_s: float
) -> Looped:
    """Make the calls in turn for `seconds`, in batches of `batch_s` seconds."""
    with _on_device(device):
        call_us = _settle(calls)
        turns = max(1, min(round(_GRAPH_US / call_us / len(calls)), _MOST_IN_GRAPH // len(calls)))
        replay, why = _captured(calls, turns)
        in_replay = turns * len(calls)
        replays = max(1, round(1e6 * batch_s / (call_us * in_replay)))
        looped = Looped(replay, _monotonic_ns(), why is None, why)
        _repeat(replay, replays, in_replay, seconds, looped)
        return looped


def _settle(calls: Sequence[Callable[[], object]]) -> float:
    """Compile the kernel, and return the rough time of a call in microseconds."""
    for _ in range(_WARM_UP):
        for call in calls:
            call()
    _synchronize()
    start, end = _Event(enable_timing=True), _Event(enable_timing=True)
    start.record()
    for _ in range(_TIMED):
        for call in calls:
            call()
    end.record()
    _synchronize()
    took_us = 1e3 * float(start.elapsed_time(end))
    return max(took_us / (_TIMED * len(calls)), 1.0)


def _captured(
    calls: Sequence[Callable[[], object]], turns: int
) -> tuple[Callable[[], object], str | None]:
    """Return a function that makes every call `turns` times, and why it isn't a graph, or None."""

    def directly() -> None:
        for _ in range(turns):
            for call in calls:
                call()

    stream = _Stream()
    stream.wait_stream(_current_stream())
    try:
        with _on_stream(stream):  # libraries create their handles for the stream before the capture
            for call in calls:
                call()
        _current_stream().wait_stream(stream)
        _synchronize()
        graph = _Graph()
        # Autograd's threads launch too; the capture restricts only this thread's calls.
        with _graph(graph, capture_error_mode="thread_local"):
            directly()
        graph.replay()
        _synchronize()
    except Exception as error:  # noqa: BLE001  (whatever a kernel does that can't be captured)
        _synchronize()
        return directly, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return graph.replay, None


def _repeat(
    replay: Callable[[], object], replays: int, in_replay: int, seconds: float, looped: Looped
) -> None:
    queued: deque[Any] = deque()
    last = _Event(enable_timing=True, blocking=True)
    last.record()
    last.synchronize()
    looped.began_ns = _monotonic_ns()
    deadline = looped.began_ns + int(1e9 * seconds)

    def take() -> None:
        nonlocal last
        ended = queued.popleft()
        ended.synchronize()
        at_ns = _monotonic_ns()
        looped.batches.append((at_ns, replays * in_replay, 1e3 * last.elapsed_time(ended)))
        last = ended

    while _monotonic_ns() < deadline or not (looped.batches or queued):
        for _ in range(replays):
            replay()
        ended = _Event(enable_timing=True, blocking=True)
        ended.record()
        queued.append(ended)
        if len(queued) > _QUEUED:
            take()
    while queued:
        take()
