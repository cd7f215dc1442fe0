"""The worker's task: time a kernel, call it in passes that the judge times, or trace its launches.

The judge chooses the seed of the inputs' changes, and by `pick` the sample whose outputs it gets:
the worker learns of the choice with each sample. A candidate in this process can learn it too, and
all returned numbers are claims. The judge checks them by passes (judged_pass.py).
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case, Inputs
from kernel_workbench.suites.bench.cupti import traced_calls
from kernel_workbench.suites.bench.devices import Device, device_of
from kernel_workbench.suites.bench.protocol import Rule, Sample, collect
from kernel_workbench.suites.bench.rotation import Rotation
from kernel_workbench.suites.sandbox.graph_nodes import kernel_nodes
from kernel_workbench.suites.sandbox.shared_sets import OpenedSets

Answer = tuple[dict[str, Any], dict[str, Tensor]]

# Bound before a candidate is imported, which may replace the originals.
_now: Callable[[], float] = time.perf_counter
_clone, _copy = torch.Tensor.clone, torch.Tensor.copy_
_synchronize: Callable[[], None] = torch.cuda.synchronize

_WARM_UP = 3
_HOST_CALLS, _FEW_HOST_CALLS = 10, 3
_LONG_US = 20_000.0
_DENOMINATOR = 2**64


def is_kept(pick: str, number: int) -> bool:
    """Return True if the outputs of sample `number`, from 0, replace the stored ones.

    The probability is 1 / (number + 1), drawn from `pick`: after any number of samples, each sample
    is equally likely to be the stored one.
    """
    digest = hashlib.sha256(f"{pick} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * (number + 1) < _DENOMINATOR


def kept_of(pick: str, count: int) -> int:
    """Return the index of the sample among `count` whose outputs are stored at the end."""
    return max(number for number in range(count) if is_kept(pick, number))


def run_task(
    kernel: Kernel, case: Case, inputs: list[Inputs], device: torch.device, settings: dict[str, Any]
) -> Answer:
    """Do the work named by `settings["do"]`: "time", "launches", "trace" or "first call"."""
    todo: dict[str, Callable[[], Answer]] = {
        "time": lambda: _time(kernel, case, inputs, device, settings),
        "launches": lambda: _launches(kernel, inputs[0]),
        "trace": lambda: _trace(kernel, inputs[0], device, settings),
        "first call": lambda: _first_call(kernel, inputs[0], device),
    }
    return todo[settings["do"]]()


def _time(
    kernel: Kernel, case: Case, inputs: list[Inputs], device: torch.device, settings: dict[str, Any]
) -> Answer:
    on = device_of(device, settings["cache"])
    on.begin()
    if settings["cache"] == "warm":
        inputs = inputs[:1]  # each call reads data that the previous call left in the cache
    rotation = Rotation(case, inputs, settings["seed"], kernel.op.updates)
    timed = _SampledCalls(kernel, rotation, on, settings["pick"])
    for _ in range(_WARM_UP):
        kernel.function(**inputs[0])
    on.wait()
    peak_bytes = _peak_bytes(kernel, inputs[0], device)
    host = _host_times(kernel, inputs, on)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    rule = Rule(settings["row_s"], settings["default_clock_mhz"], on.rest)
    move = timed.move if device.type == "cuda" and rotation.moves else None
    gc.disable()  # a garbage collection takes longer than a hold
    try:
        collected = collect(timed.sample, rule, move=move)
    finally:
        gc.enable()
    samples = collected.samples
    reply = {
        "times_us": [sample.time_us for sample in samples],
        "clocks_mhz": [sample.clock_mhz for sample in samples],
        "placements": collected.placements,
        "held": all(sample.held for sample in samples),
        "throttled": collected.throttled,
        "stopped": collected.stopped,
        "kept": timed.kept,
        "number": timed.number,
        "enqueue_us": statistics.median(times[0] for times in host),
        "host_us": statistics.median(times[1] for times in host),
        "peak_bytes": peak_bytes,
        "started_at": started_at,
        "clock_reason": on.clock_reason,
    }
    return reply, timed.outputs


class _SampledCalls:
    """Calls on rotating inputs, and the outputs of one sample.

    kept    index of the stored sample
    number  index of its call; a sample may take several calls
    """

    def __init__(self, kernel: Kernel, rotation: Rotation, on: Device, pick: str) -> None:
        self._kernel, self._rotation, self._on, self._pick = kernel, rotation, on, pick
        self._samples = self._calls = 0
        self.kept = self.number = 0
        self.outputs: dict[str, Tensor] = {}
        self._returned: object = None

    def sample(self) -> Sample:
        """Take one sample, which may take several calls."""
        sample = self._on.sample(self._prepared)
        if is_kept(self._pick, self._samples):
            returned = self._kernel.op.as_tuple(self._returned)
            assert isinstance(returned, tuple | list)
            named = zip(self._kernel.op.outputs, returned, strict=True)
            self.outputs = {name: _clone(output) for name, output in named if output is not None}
            self.kept, self.number = self._samples, self._calls - 1
        self._returned = None
        self._samples += 1
        return sample

    def move(self) -> None:
        """Move the inputs to other memory, and call the kernel there, so that it allocates."""
        self._rotation.move()
        self._kernel.function(**self._rotation.first)
        self._on.wait()

    def _prepared(self) -> Callable[[], object]:
        arguments = self._rotation.next()
        self._calls += 1

        def call() -> None:
            self._returned = self._kernel.function(**arguments)

        return call


def _host_times(kernel: Kernel, inputs: list[Inputs], on: Device) -> list[tuple[float, float]]:
    """Return host times of calls with nothing else on the device."""

    def call() -> object:
        return kernel.function(**inputs[0])

    first = on.host_times_us(call)
    more = _HOST_CALLS if first[1] < _LONG_US else _FEW_HOST_CALLS
    return [on.host_times_us(call) for _ in range(more)]


def _peak_bytes(kernel: Kernel, inputs: Inputs, device: torch.device) -> int | None:
    """Return the peak memory of a call in bytes, with inputs and outputs; None on a CPU."""
    if device.type != "cuda":
        return None
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    kernel.function(**inputs)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    return int(peak + sum(storage.nbytes() for storage in storages.values()))


def run_passes(
    kernel: Kernel,
    sets: OpenedSets,
    device: torch.device,
    settings: dict[str, Any],
    following: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """Call the kernel in each order of sets that the judge sends, until it sends none.

    Outputs are copied to their places right after each call, and all of the device's work has ended
    before the reply: the judge's clock runs meanwhile.

    Args:
        kernel: the kernel.
        sets: the judge's inputs, which have other values in each order, and places for outputs.
        device: where the kernel runs.
        settings: `cache`, "cold" or "warm".
        following: sends a reply to the judge, and returns its next message.
    """
    function, as_tuple, names = kernel.function, kernel.op.as_tuple, kernel.op.outputs
    places = [[place.get(name) for name in names] for place in sets.places]
    wait = _synchronize if device.type == "cuda" else _nothing
    message = following({"ready": True})
    gc.disable()
    try:
        while message["order"] is not None:
            flush = device_of(device, settings["cache"]).flush if message["flushes"] else _nothing
            if not message["order"]:
                for _ in range(message["flushes"]):
                    flush()
            for number in message["order"]:
                for _ in range(message["flushes"]):
                    flush()
                returned = as_tuple(function(**sets.inputs[number]))
                for place, output in zip(places[number], returned, strict=True):  # type: ignore[call-overload]
                    if place is not None:
                        _copy(place, output)
            wait()
            message = following({"ready": True})
    finally:
        gc.enable()


def _nothing() -> None:
    """Wait for nothing, or flush nothing."""


def _first_call(kernel: Kernel, inputs: Inputs, device: torch.device) -> Answer:
    """Return the seconds of a first call."""
    started = _now()
    kernel.function(**inputs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"seconds": _now() - started}, {}


def _launches(kernel: Kernel, inputs: Inputs) -> Answer:
    """Count the kernels of one call in a CUDA graph that captures it."""
    kernel.function(**inputs)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            kernel.function(**inputs)
        finally:
            graph.capture_end()
    return {"launches": kernel_nodes(graph.raw_cuda_graph())}, {}


def _trace(
    kernel: Kernel, inputs: Inputs, device: torch.device, settings: dict[str, Any]
) -> Answer:
    """Return the device's time at work in a call, and its number of kernels, by CUPTI."""
    on, count = device_of(device, settings["cache"]), settings["count"]

    def call() -> object:
        return kernel.function(**inputs)

    for _ in range(min(_WARM_UP, count)):
        call()
    on.wait()
    try:
        traced = traced_calls(call, on, count)
    finally:
        torch.cuda.empty_cache()  # this process stays beside the one that is timed
    return {"busy_us": traced.busy_us, "kernels": traced.kernels}, {}
