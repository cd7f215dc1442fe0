"""The loop on a simulated GPU: what it queues, what it counts, and what it says of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.layer_norm.cases import layer_norm_case
from kernel_workbench.suites.profile import loop as module
from kernel_workbench.suites.profile.figures import Reply
from kernel_workbench.suites.profile.loop import loop

CPU = torch.device("cpu")
EAGER = next(
    each for each in all_kernels() if each.name == "torch_eager" and each.op is LAYER_NORM_BACKWARD
)


@dataclass
class Gpu:
    """A queue of work with a host beside it; times in microseconds. waited: idle in between."""

    call_us: float
    host_us: float = 5.0
    refuses_capture: bool = False
    host: float = 0.0
    free: float = 0.0
    waited: float = 0.0
    calls: int = 0
    capturing: list[float] | None = None
    in_capture: int = field(default=0)

    def call(self) -> None:
        """Queue a call, or capture it."""
        if self.capturing is not None:
            if self.refuses_capture:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.in_capture += 1
            return
        self.host += self.host_us
        self.queue(1)

    def queue(self, calls: int) -> None:
        """Queue so many calls."""
        self.waited += max(0.0, self.host - self.free)
        self.free = max(self.free, self.host) + calls * self.call_us
        self.calls += calls

    def monotonic_ns(self) -> int:
        """The host's clock, which goes on a little at each look."""
        self.host += 0.1
        return round(1e3 * self.host)

    def synchronize(self) -> None:
        """Wait for all."""
        self.host = max(self.host, self.free)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU on which a call takes 400 us, put in the place of CUDA."""
    gpu = Gpu(400.0)

    class Event:
        def __init__(self, **_: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = max(gpu.free, gpu.host)

        def synchronize(self) -> None:
            gpu.host = max(gpu.host, self.at)

        def elapsed_time(self, later: Event) -> float:
            return (later.at - self.at) * 1e-3

    class Stream:
        def wait_stream(self, _: object) -> None:
            """One queue: nothing to wait for."""

    class Graph:
        calls = 0

        def replay(self) -> None:
            gpu.host += 10.0
            gpu.queue(self.calls)

    @contextmanager
    def capture(graph: Graph, **_: str) -> Iterator[None]:
        gpu.capturing, gpu.in_capture = [], 0
        try:
            yield
        finally:
            gpu.capturing = None
            graph.calls = gpu.in_capture

    @contextmanager
    def on(_: object) -> Iterator[None]:
        yield

    for name, made in {
        "_Event": Event,
        "_Stream": Stream,
        "_Graph": Graph,
        "_graph": capture,
        "_on_device": on,
        "_on_stream": on,
        "_current_stream": Stream,
        "_synchronize": gpu.synchronize,
        "_monotonic_ns": gpu.monotonic_ns,
    }.items():
        monkeypatch.setattr(module, name, made)
    return gpu


def _reply(looped: module.Looped) -> Reply:
    return Reply.model_validate(looped.message)


def test_loop_lasts_as_long_as_asked_and_counts_its_calls(simulated: Gpu) -> None:
    """Two seconds of calls of 400 us: as many as fit, each with its device time."""
    looped = loop([simulated.call], CPU, 2.0, 0.05)
    counted = sum(calls for _, calls, _ in looped.batches)
    seconds = (looped.batches[-1][0] - looped.began_ns) * 1e-9
    assert looped.captured
    assert 2.0 <= seconds < 2.2
    assert counted == pytest.approx(seconds * 1e6 / 400, rel=0.001)
    assert sum(us for _, _, us in looped.batches) / counted == pytest.approx(400, rel=0.001)


def test_loop_keeps_the_gpu_busy(simulated: Gpu) -> None:
    """The host is a batch ahead: the device never waits for it, once the loop goes."""
    loop([simulated.call], CPU, 0.1, 0.05)
    before = simulated.waited
    looped = loop([simulated.call], CPU, 1.0, 0.05)
    assert len(looped.batches) > 15
    assert simulated.waited - before < 100  # until the first batch is queued


def test_loop_takes_its_inputs_in_turn(simulated: Gpu) -> None:
    """Each set of inputs is called as often as the others."""
    counts = [0, 0, 0]

    def call(place: int) -> None:
        counts[place] += 1
        simulated.call()

    looped = loop([partial(call, each) for each in range(3)], CPU, 0.5, 0.05)
    assert len(set(counts)) == 1
    assert all(calls % 3 == 0 for _, calls, _ in looped.batches)


def test_call_longer_than_a_batch_is_a_batch(simulated: Gpu) -> None:
    """An attention of 80 ms: one call each."""
    simulated.call_us = 80_000.0
    looped = loop([simulated.call], CPU, 0.5, 0.05)
    assert {calls for _, calls, _ in looped.batches} == {1}
    assert len(looped.batches) >= 6


def test_kernel_that_cannot_be_captured_is_called_as_it_is(simulated: Gpu) -> None:
    """The loop says why, and its figures are of the same calls."""
    simulated.refuses_capture = True
    looped = loop([simulated.call], CPU, 0.5, 0.05)
    assert not looped.captured
    assert looped.why == "RuntimeError: operation not permitted when stream is capturing"
    assert _reply(looped).device_us(0.0, 1e9) == pytest.approx(400, rel=0.01)


def test_outputs_after_a_loop_are_of_inputs_that_it_never_had(simulated: Gpu) -> None:
    """Signs are changed after it: the outputs are those of a call on the changed inputs."""
    simulated.refuses_capture = True
    case = layer_norm_case(5, 8, (torch.float32, torch.float32))

    def function(**given: object) -> object:
        simulated.call()
        return EAGER.function(**given)

    kernel = replace(EAGER, function=function)
    inputs, changed, plain = (LAYER_NORM_BACKWARD.inputs(case, CPU) for _ in range(3))
    settings = {"seconds": 0.05, "batch_s": 0.02, "seed": 7}
    _, outputs = module.run_task(kernel, case, [inputs], CPU, settings)
    LAYER_NORM_BACKWARD.signs(case, 7).apply_(changed)
    expected, before = EAGER.function(**changed), EAGER.function(**plain)
    assert isinstance(expected, tuple)
    assert isinstance(before, tuple)
    assert list(outputs) == list(LAYER_NORM_BACKWARD.outputs)
    assert all(map(torch.equal, outputs.values(), expected))
    assert not torch.equal(outputs["dx"], before[0])
    assert module.run_task(kernel, case, [inputs], CPU, settings | {"seed": None})[1] == {}


def test_reply_counts_calls_at_any_time(simulated: Gpu) -> None:
    """Between two batches' ends, evenly; none before the first, all after the last."""
    reply = _reply(loop([simulated.call], CPU, 1.0, 0.05))
    began_s = reply.began_ns * 1e-9
    assert reply.calls_by(began_s - 1) == 0
    assert reply.calls_by(began_s + 0.5) == pytest.approx(0.5e6 / 400, rel=0.002)
    assert reply.calls_by(began_s + 100) == sum(calls for _, calls, _ in reply.batches)
