"""Predict the least time of a call on a GPU model from its compiled code.

The prediction is the largest of these limits at the boost clock:
    memory      the op's least traffic / the bandwidth
    matrix      the op's flops / the peak of the matrix instructions that the code uses (bf16 or
                tf32); code without matrix instructions: / the peak of fp32 ("arithmetic")
    issue       the warp instructions / (4 a cycle and SM, or the resident warps if fewer)
    special     the exp2 and similar instructions / (16 lanes a cycle and SM)
The busiest loop (sass.py) gives the least number of instructions: its instructions for each flop of
its matrix instructions times the op's flops, or for each byte that it loads times the bytes of the
inputs. If a call has several launches, the one that needs the fewest counts. A kernel whose block
doesn't fit has no time. Clocks under load are lower and latency costs more time, so a measurement
below a prediction is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_workbench.kernels.registry import Kernel, NoKernelError, choose
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles.peaks import LIMITS, PEAKS, Peak
from kernel_workbench.reports.record import CompileRow, LoopMix, PredictionRow
from kernel_workbench.suites.compile.cases import alignment_bytes, width_class
from kernel_workbench.suites.run.descriptions import case_info

_LANES = 32

Limit = Literal["memory", "matrix", "arithmetic", "issue", "special functions"]


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A timed case, and for each GPU model the kernel that dispatch takes there."""

    case: Case
    gpus: tuple[tuple[Peak, Kernel], ...]


def bench_cases(
    kernels: Sequence[Kernel], sms: Sequence[int], own: Sequence[Case] | None = None
) -> tuple[BenchCase, ...]:
    """Return the cases to predict times of, for a run's kernels and generations.

    They are the user's own cases, or without such those with published figures of peers.
    """
    ops = {kernel.op.name for kernel in kernels}
    anchors = (case for op in OPS.values() for case in op.workloads.anchors)
    benches = []
    for case in (case for case in (anchors if own is None else own) if case.op in ops):
        gpus = []
        for peak in PEAKS:
            if peak.sm in sms:
                try:
                    gpus.append((peak, choose(OPS[case.op], case, peak.sm, among=kernels)))
                except NoKernelError:
                    continue
        if gpus:
            benches.append(BenchCase(case, tuple(gpus)))
    return tuple(benches)


def predictions(
    benches: Sequence[BenchCase], rows: Sequence[CompileRow]
) -> Iterator[PredictionRow]:
    """Yield the least time of each case on each of its GPU models."""
    of_kernel: dict[tuple[str, str, int], list[CompileRow]] = {}
    for row in rows:
        of_kernel.setdefault((row.op, row.kernel, row.sm), []).append(row)
    for bench in benches:
        for peak, kernel in bench.gpus:
            candidates = of_kernel.get((kernel.op.name, kernel.name, peak.sm), [])
            yield _prediction(bench.case, kernel, peak, _alike(bench.case, kernel, candidates))


def _alike(case: Case, kernel: Kernel, rows: Sequence[CompileRow]) -> list[CompileRow]:
    """Return the rows of the launches that the case makes, by its variant or its width class."""
    compiled = [row for row in rows if row.status == "compiled"]
    if kernel.variant is not None:
        return [row for row in compiled if row.variant == kernel.variant(case, row.sm)]
    width = _width(case, dict(case.sizes))
    widths = [
        (other, row)
        for row in compiled
        if row.case.dtype == case.dtype_label
        and not row.case.options
        and row.alignment_bytes == alignment_bytes(case)
        and width_class(other := _width(case, row.case.sizes)) == width_class(width)
    ]
    # If a function has several tiles in the class, the one for the narrowest fitting rows counts.
    nearest: dict[str, int] = {}
    for other, row in widths:
        if other >= width:
            nearest[row.function] = min(other, nearest.get(row.function, other))
    return [row for other, row in widths if other == nearest.get(row.function, other)]


def _width(case: Case, sizes: Mapping[str, int]) -> int:
    """Return the size of a case's widest last axis."""
    return max((1, *(sizes.get(name, 1) for name in OPS[case.op].widths)))


def _prediction(
    case: Case, kernel: Kernel, peak: Peak, rows: Sequence[CompileRow]
) -> PredictionRow:
    op = OPS[case.op]
    flops, least_bytes = op.flops(case), op.bytes(case)
    unfit = next((row for row in rows if row.blocks_per_sm == 0), None)
    times = _times(case, peak, rows, flops, least_bytes)
    limit = max(times, key=lambda name: times[name])
    reason = None
    if unfit is not None:
        reason = f"{unfit.function} can't be launched: {unfit.limited_by}"
    return PredictionRow(
        op=case.op,
        kernel=kernel.name,
        case=case_info(case),
        gpu=peak.name,
        sm=peak.sm,
        multiprocessors=peak.multiprocessors,
        power_w=peak.power_w,
        predicted_us=None if reason else times[limit] * 1e6,
        limit=None if reason else limit,
        reason=reason,
        flops=flops,
        bytes=least_bytes,
        from_code=bool(rows),
    )


def _times(
    case: Case, peak: Peak, rows: Sequence[CompileRow], flops: int, least_bytes: int
) -> dict[Limit, float]:
    """Return the least seconds by each limit."""
    times: dict[Limit, float] = {"memory": least_bytes / (peak.memory_gb_s * 1e9)}
    names = {name for row in rows if row.mix is not None for name in row.mix.matrix}
    if names or (not rows and case.dtype.itemsize == 2):
        tf32 = any("TF32" in name for name in names)
        times["matrix"] = flops / (1e12 * ((tf32 and peak.tf32_tflops) or peak.half_tflops))
    else:
        times["arithmetic"] = flops / (1e12 * peak.fp32_tflops)
    outputs = OPS[case.op].forms(case).values()
    read = least_bytes - sum(form.nbytes for form in outputs)
    limits = LIMITS[peak.sm]
    cycles = peak.multiprocessors * peak.clock_mhz * 1e6  # per second, of all SMs
    issue, special = [], []
    for row in rows:
        loop = None if row.mix is None else row.mix.busy_loop
        work = None if loop is None else _trips(loop, flops, read)
        if loop is None or work is None:
            continue
        at_once = min(limits.schedulers, row.occupancy_warps or limits.schedulers)
        issue.append(work * loop.instructions / (at_once * cycles))
        special.append(work * loop.special * _LANES / (limits.special_lanes * cycles))
    if issue:
        times["issue"] = min(issue)
        times["special functions"] = min(special)
    return times


def _trips(loop: LoopMix, flops: int, read: int) -> float | None:
    """Return the least number of a loop's trips, over all warps, for the op's work."""
    if loop.matrix:
        return flops / loop.matrix_flops if loop.matrix_flops else None
    return read / loop.load_bytes if loop.load_bytes else None
