"""Device time of a call: CUDA-graph replay, L2 flushed before each, the host kept out.

The call is captured once. For each sample the device is held busy while the host enqueues a
flush of L2, an event, the replay and an event; so neither launch overhead nor Python shows. The
flush reads a buffer: zeroing one leaves dirty lines, whose write-back the call would pay for
(16384 x 1024 bf16 torch.add on an H200: 24.6 us after a read, 28.8 after zeroing).

    python -m suites.throughput.graph_replay --peers docs/gallery/h200_layer_norm_peers.jsonl

times the kernel that `choose` picks for each shape of the peers' file against their figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from kernels import choose
from kernels.registry import Kernel
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Case
from suites.accuracy.run import Run

_FLUSH_BYTES = 256 * 2**20  # over four times an H200's L2
_HOLD_CYCLES = 400_000  # about 0.2 ms: longer than the host takes to enqueue a sample
_SAMPLES = 50
_WARM_UP = 5


def device_times_us(call: Callable[[], object], samples: int = _SAMPLES) -> list[float]:
    """Device time in microseconds of each of `samples` calls, L2 cold. Needs a CUDA device."""
    for _ in range(3):  # compile, and let the allocator settle, before the capture
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    buffer = torch.ones(_FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    times = []
    for index in range(_WARM_UP + samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HOLD_CYCLES)  # noqa: SLF001 (no public call holds a device)
        buffer.sum()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if index >= _WARM_UP:
            times.append(1e3 * start.elapsed_time(end))
    return times


def layer_norm_case(m: int, n: int, dtype: torch.dtype) -> Case:
    """A packed case of layer-norm backward on normal values."""
    return Case(
        op=LAYER_NORM_BACKWARD.name,
        sizes=(("m", m), ("n", n)),
        dtype=dtype,
        weight_dtype=dtype,
        tier="full",
    )


def time_case(kernel: Kernel, case: Case) -> tuple[float, float]:
    """Median device time in microseconds, and GB/s of the least traffic."""
    inputs = kernel.op.inputs(case, torch.device("cuda"))
    median = statistics.median(device_times_us(lambda: kernel.function(**inputs)))
    return median, kernel.op.bytes(case) / median * 1e-3


def main() -> int:
    """Print ours beside the peers' figures; status 1 where a row's accuracy failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="JSON lines of peers' figures")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; run this on a machine with a GPU")
    figures: dict[tuple[str, int, int], dict[str, float]] = {}
    for line in arguments.peers.read_text().splitlines():
        peer = json.loads(line)
        if "impl" in peer:
            shape = (peer["dtype"], peer["m"], peer["n"])
            figures.setdefault(shape, {})[peer["impl"]] = peer["gbps"]
    major, minor = torch.cuda.get_device_capability()
    run = Run(
        device=torch.device("cuda"),
        sm=10 * major + minor,
        gate_baselines=False,
        named=frozenset(),
        reproduce_options=(),
    )
    names = list(dict.fromkeys(name for row in figures.values() for name in row))
    table = Table(title=f"layer_norm_backward, GB/s, {torch.cuda.get_device_name()}")
    for column in ("dtype", "m", "n", "kernel", "us", "GB/s", "best peer", *names):
        table.add_column(column, justify="left" if column in ("dtype", "kernel") else "right")
    failed = 0
    for (dtype, m, n), peers in figures.items():
        case = layer_norm_case(m, n, getattr(torch, dtype))
        kernel = choose(LAYER_NORM_BACKWARD, case, run.sm)
        row = run.try_pair(kernel, case)
        if row.status != "passed":
            failed += 1
            table.add_row(dtype, str(m), str(n), kernel.name, "-", f"wrong: {row.rule}")
            continue
        time_us, gbps = time_case(kernel, case)
        best = max(peers, key=lambda name: peers[name])
        table.add_row(
            dtype,
            str(m),
            str(n),
            kernel.name,
            f"{time_us:.1f}",
            f"{gbps:.0f}",
            f"{gbps / peers[best]:.2f} x {best}",
            *(f"{peers[name]:.0f}" if name in peers else "-" for name in names),
        )
    Console(width=160).print(table)
    return int(failed > 0 or not figures)


if __name__ == "__main__":
    raise SystemExit(main())
