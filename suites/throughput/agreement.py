"""On a machine with a GPU: do other ways of timing agree with this suite's medians?

    python -m suites.throughput.agreement

Calls of both ops, ours and peers', from microseconds to milliseconds. Each is timed by the suite,
in a worker, and then here: calls over 1 ms by triton.testing.do_bench, which launches one
after the other and flushes by zeroing; shorter ones by replaying a CUDA graph (graph_replay.py), of
inputs at ten places in memory.

Two differences are none of the method's. do_bench for 100 ms leaves a GPU no pause, so a product
runs at a lower clock under its power cap (H200, attention at d 128: 3 to 7 % slower, told in the
last column): it runs in short bursts here, with pauses, as the suite rests after long calls. And
kernels of one call follow one another faster in a graph, by 1.6 to 1.9 us each there: so much is
allowed. Exit status 1 where more than 2 % is left.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton.testing
from rich.console import Console
from rich.table import Table

from kernels.registry import Kernel, all_kernels, choose
from oracles import OPS
from oracles.op import Case
from reports.schema import BenchRow
from suites.accuracy.run import Run
from suites.accuracy.workers import Workers
from suites.described import describe_machine
from suites.throughput.cases import bench_cases
from suites.throughput.graph_replay import device_times_us
from suites.throughput.rotation import Rotation
from suites.throughput.rows import TASK, Bench
from suites.throughput.survey import survey

_ROW_S, _LIMIT_S = 1.0, 300.0
_LONG_US = 1_000.0
_AGREES = 0.02
_PLACEMENTS, _SAMPLES = 10, 12
_SEED = 1
_BURSTS, _PAUSE_S = 15, 0.1  # of do_bench: eight calls, of which the last is timed
_GRAPH = "graph replay"
_GAP_US = 2.0  # between two kernels of a call, outside a graph

# A kernel's name, "" for the one of ours that dispatch takes, and the beginning of a case's id.
_CALLS = (
    ("", "layer_norm_backward-m16384-n1024-bfloat16"),
    ("", "layer_norm_backward-m8192-n8192-bfloat16"),
    ("", "layer_norm_backward-m2048-n65536-float32"),
    ("", "layer_norm_backward-m16384-n4095-bfloat16"),
    ("torch_native", "layer_norm_backward-m16384-n4096-bfloat16"),
    ("torch_native", "layer_norm_backward-m1048576-n64-float32"),
    ("", "attention_forward-b16-h_q32-h_kv32-s_q1024-s_kv1024-d64-d_v64"),
    ("", "attention_forward-b1-h_q16-h_kv16-s_q16384-s_kv16384-d128-d_v128"),
    ("", "attention_forward-b4-h_q32-h_kv32-s_q4096-s_kv4096-d64-d_v64"),
    ("torch_cudnn", "attention_forward-b16-h_q32-h_kv32-s_q1024-s_kv1024-d64-d_v64"),
    ("torch_flash", "attention_forward-b4-h_q16-h_kv16-s_q4096-s_kv4096-d128-d_v128"),
    ("torch_cudnn", "attention_forward-b4-h_q16-h_kv16-s_q4096-s_kv4096-d128-d_v128"),
    ("torch_flash", "attention_forward-b2-h_q8-h_kv8-s_q197-s_kv197"),
    ("", "attention_backward-b4-h_q16-h_kv16-s_q4096-s_kv4096-d128-d_v128"),
    ("torch_flash", "attention_backward-b16-h_q32-h_kv32-s_q1024-s_kv1024-d64-d_v64"),
)


def _pair(name: str, case_id: str, sm: int) -> tuple[Kernel, Case]:
    op = OPS[case_id.partition("-")[0]]
    case = next(each for each in bench_cases(op.name, "cuda") if each.id().startswith(case_id))
    if not name:
        return choose(op, case, sm), case
    mine = (each for each in all_kernels() if each.op.name == op.name)
    return next(each for each in mine if each.name == name), case


@dataclass(frozen=True, slots=True)
class Otherwise:
    """Median device time in microseconds by another way, and by do_bench without pauses."""

    time_us: float
    by: str
    without_pauses_us: float | None = None

    def left(self, row: BenchRow) -> tuple[float, float]:
        """The suite's median over this one, less 1: as it is, and what nothing known explains."""
        assert row.median_us is not None
        gaps_us = _GAP_US * ((row.launches or 1) - 1) if self.by == _GRAPH else 0.0
        nearest_us = min(max(self.time_us, row.median_us - gaps_us), row.median_us)
        return row.median_us / self.time_us - 1.0, nearest_us / self.time_us - 1.0


def _timed_here(kernel: Kernel, case: Case, median_us: float) -> Otherwise:
    inputs = kernel.op.inputs(case, torch.device("cuda"))
    if median_us <= _LONG_US:
        rotation, times_us = Rotation(case, [inputs], _SEED), list[float]()
        for _ in range(_PLACEMENTS):
            rotation.move()
            times_us += device_times_us(partial(kernel.function, **rotation.first), _SAMPLES)
        return Otherwise(statistics.median(times_us), _GRAPH)
    call = partial(kernel.function, **inputs)
    without_pauses_us = _do_bench(call)
    bursts = []
    for _ in range(_BURSTS):
        time.sleep(_PAUSE_S)
        bursts.append(_do_bench(call, warmup=0, rep=0))
    return Otherwise(statistics.median(bursts), "do_bench", without_pauses_us)


def _do_bench(call: Callable[[], object], **options: int) -> float:
    return 1e3 * float(triton.testing.do_bench(call, return_mode="median", **options))


def main() -> int:
    """Print the table; 1 where a difference is too large or a call has no figure."""
    if not torch.cuda.is_available():
        print("agreement: torch sees no CUDA device here; run this where there is one")
        return 2
    device = torch.device("cuda")
    major, minor = torch.cuda.get_device_capability()
    sm = 10 * major + minor
    workers = Workers(device, sm, strict=False, tasks=(TASK,))
    run = Run(
        device=device,
        sm=sm,
        gate_baselines=False,
        named=frozenset(),
        reproduce_options=(),
        workers=workers,
        two_calls_alone=True,
    )
    ground = survey(device, describe_machine(device, sm, strict=None))
    bench = Bench(run, workers, ground.roofs, "cold", _ROW_S, ground.default_clock_mhz, _LIMIT_S)
    table = Table(title="the suite's medians beside other ways of timing")
    columns = ("call", "suite us", "other us", "by", "difference", "unexplained", "without pauses")
    for column in columns:
        table.add_column(column, justify="left" if column in ("call", "by") else "right")
    apart = alike = 0
    try:
        for name, case_id in _CALLS:
            kernel, case = _pair(name, case_id, sm)
            row = bench.row(kernel, case)
            if row.median_us is None:
                apart += 1
                table.add_row(case.id(kernel.name), "-", "-", "", f"{row.status}: {row.reason}")
                continue
            other = _timed_here(kernel, case, row.median_us)
            difference, left = other.left(row)
            pressed_us = other.without_pauses_us
            apart += abs(left) > _AGREES
            alike += abs(difference) <= _AGREES
            table.add_row(
                case.id(kernel.name),
                f"{row.median_us:,.2f}",
                f"{other.time_us:,.2f}",
                other.by,
                f"{difference:+.2%}",
                f"{left:+.2%}",
                "" if pressed_us is None else f"{row.median_us / pressed_us - 1.0:+.2%}",
            )
    finally:
        workers.close()
    Console(width=max(Console().width, 150)).print(table)
    print(
        f"of {len(_CALLS)} calls {alike} agree to {_AGREES:.0%} as they are, and {apart} differ by "
        "more than what is known explains"
    )
    return int(apart > 0)


if __name__ == "__main__":
    sys.exit(main())
