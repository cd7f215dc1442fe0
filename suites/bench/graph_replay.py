"""Device time of a call: CUDA-graph replay, L2 flushed before each, the host kept out.

The call is captured once. For each sample the device is held busy while the host enqueues a
flush of L2, an event, the replay and an event; so neither launch overhead nor Python shows. The
flush reads a buffer: zeroing one leaves dirty lines, whose write-back the call would pay for
(16384 x 1024 bf16 torch.add on an H200: 24.6 us after a read, 28.8 after zeroing).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_FLUSH_BYTES = 256 * 2**20  # over four times an H200's L2
_HOLD_CYCLES = 400_000  # about 0.2 ms: longer than the host takes to enqueue a sample
_WARM_UP = 5


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """What replays the call, which is made here a few times. Needs a CUDA device."""
    for _ in range(3):  # compile, and let the allocator settle, before the capture
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def device_times_us(replay: Callable[[], None], samples: int) -> list[float]:
    """Device time in microseconds of each of `samples` replays, L2 cold."""
    buffer = torch.ones(_FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    times = []
    for index in range(_WARM_UP + samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HOLD_CYCLES)  # noqa: SLF001 (no public call holds a device)
        buffer.sum()
        start.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        if index >= _WARM_UP:
            times.append(1e3 * start.elapsed_time(end))
    return times
