"""Figures from samples: median and interval, rates, shares of roofs, and impossible times.

FLOPs are the op's, in the usual count for attention: 4 b h s_q s_kv d forward, half of it under a
causal mask (pair by pair), two and a half times that backward; gradients are both. Bytes are the
least traffic: inputs read once, outputs written once. A part of an op has rates if one of its
outputs takes all of both; otherwise only its written bytes are compared with the memory's roof.

A figure beyond a roof is a mistake of the measurement, or comes from a kernel that didn't do its
work, and fails the row. For the memory's roof, a cold call reads its inputs from memory, and may
leave as much of its outputs in the L2 cache as the cache holds; a warm call may find that much of
any data there. For the arithmetic's roof, the fastest unit that takes the dtype counts (tf32 for
float32: three tf32 products make a float32 product, so a share may refer to a lower roof than the
refusal).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case, dtype_name
from kernel_workbench.profiles.peaks import Peak
from kernel_workbench.reports.record import Roof

Limit = Literal["memory", "matrix", "arithmetic"]

_STREAMS = "copy", "add", "read"  # the memory's roofs
_RESAMPLES = 1000
_CONFIDENCE = 0.95
# A measured roof isn't the hardware's: another kernel may be somewhat faster.
_MEASURED_ROOM = {"cuda": 1.25, "cpu": 3.0}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile.

    >>> quartiles([1.0, 2.0, 3.0])
    (1.5, 2.0, 2.5)
    """
    first, median, third = np.percentile(np.asarray(values, dtype=np.float64), (25, 50, 75))
    return float(first), float(median), float(third)


@dataclass(frozen=True, slots=True)
class SampleStatistics:
    """Median with its 95 % interval by a percentile bootstrap, and the quartiles.

    Samples at one place in memory correlate, so the bootstrap draws places: an interval from single
    samples, four a place, would be half as wide if places differ.
    """

    median: float
    low: float
    high: float
    first_quartile: float
    third_quartile: float

    @classmethod
    def of(cls, values: Sequence[float], placements: Sequence[int] = ()) -> SampleStatistics:
        """Compute the statistics of samples in their order; the bootstrap has a fixed seed.

        Args:
            values: times of the samples.
            placements: numbers of samples at each place in memory, in order; empty: each sample has
            its own place.
        """
        data = np.asarray(values, dtype=np.float64)
        first, median, third = quartiles(values)
        if len(set(values)) < 2:  # nothing to resample
            return cls(median, median, median, first, third)
        table = _by_place(data, placements if len(placements) > 1 else [1] * len(data))

        def medians(places: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
            drawn = table[places.astype(np.intp)]
            return np.asarray(np.nanmedian(drawn, axis=(axis - 1, -1)))

        from scipy import stats  # noqa: PLC0415  (the import takes a second, which a refusal saves)

        interval = stats.bootstrap(
            (np.arange(len(table), dtype=np.float64),),
            medians,
            n_resamples=_RESAMPLES,
            confidence_level=_CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        return cls(median, float(interval.low), float(interval.high), first, third)


def _by_place(data: NDArray[np.float64], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return a row for each place in memory: its samples, then NaN."""
    table = np.full((len(sizes), max(sizes)), np.nan)
    for row, end, size in zip(table, np.cumsum(sizes), sizes, strict=True):
        row[:size] = data[end - size : end]
    return table


@dataclass(frozen=True, slots=True)
class Roofs:
    """The limits of this device: the row of a datasheet, if it has one, and measured limits."""

    device: Literal["cpu", "cuda"]
    cache_bytes: int
    peak: Peak | None
    measured: tuple[Roof, ...]

    def seen(self, *names: str) -> float | None:
        """Return the highest measured roof with one of these names, or None."""
        values = [roof.value for roof in self.measured if roof.name in names]
        return max(values, default=None)

    def memory_gb_s(self) -> float | None:
        """Return the datasheet's memory bandwidth in GB/s, or None."""
        return None if self.peak is None else self.peak.memory_gb_s

    def compute_tflops(self, case: Case, *, tf32: bool) -> float | None:
        """Return the datasheet's TFLOP/s or None: tensor cores for 16-bit dtypes and tf32."""
        if self.peak is None:
            return None
        if case.dtype.itemsize == 2:
            return self.peak.half_tflops
        return self.peak.tf32_tflops if tf32 else self.peak.fp32_tflops


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a call and their shares of the roof that limits it."""

    flops: int
    bytes: int
    tflops: float
    gb_s: float
    limit: Limit
    share_of_peak: float | None
    share_of_ceiling: float | None
    share_of_clocked_peak: float | None


def rates(
    kernel: Kernel, case: Case, median_us: float, clock_mhz: float | None, roofs: Roofs
) -> Rates:
    """Return the rates of a call.

    Args:
        kernel: the kernel.
        case: the case.
        median_us: the median time, in microseconds.
        clock_mhz: the SMs' clock, in MHz; None: unknown.
        roofs: the limits of the device.
    """
    flops, least = kernel.op.flops(case), kernel.op.bytes(case)
    tflops, gb_s = flops / median_us * 1e-6, least / median_us * 1e-3
    tf32 = kernel.numerics.tf32_operands
    limit = _limit(case, flops, least, roofs, tf32=tf32)
    if limit == "memory":
        peak, ceiling, rate = roofs.memory_gb_s(), roofs.seen(*_STREAMS), gb_s
    else:
        peak, rate = roofs.compute_tflops(case, tf32=tf32), tflops
        ceiling = roofs.seen(f"matmul {_product(case, tf32=tf32)}")
    clocked = None
    if limit != "memory" and peak is not None and clock_mhz and roofs.peak is not None:
        clocked = rate / (peak * clock_mhz / roofs.peak.clock_mhz)
    return Rates(
        flops,
        least,
        tflops,
        gb_s,
        limit,
        None if peak is None else rate / peak,
        None if ceiling is None else rate / ceiling,
        clocked,
    )


def _product(case: Case, *, tf32: bool) -> str:
    return "tf32" if tf32 and case.dtype == torch.float32 else dtype_name(case.dtype)


def _limit(case: Case, flops: int, least: int, roofs: Roofs, *, tf32: bool) -> Limit:
    """Return the roof that takes longer; matrix ops without a known roof count as compute-bound."""
    matrix = OPS[case.op].products(case)
    tensor_cores = roofs.device == "cuda" and (tf32 or case.dtype.itemsize == 2)
    compute: Limit = "matrix" if matrix and tensor_cores else "arithmetic"
    gb_s = roofs.memory_gb_s() or roofs.seen(*_STREAMS)
    if not matrix:
        return "memory"
    tflops = roofs.compute_tflops(case, tf32=tf32) or roofs.seen(
        f"matmul {_product(case, tf32=tf32)}"
    )
    if gb_s is None or tflops is None:
        return compute
    return compute if flops / (tflops * 1e12) > least / (gb_s * 1e9) else "memory"


def past_belief(
    kernel: Kernel, case: Case, median_us: float, cache: Literal["cold", "warm"], roofs: Roofs
) -> str | None:
    """Return a sentence if the median is impossibly short, else None."""
    datasheet = roofs.peak is not None
    room = 1.0 if datasheet else _MEASURED_ROOM[roofs.device]
    kind = "the datasheet's" if datasheet else f"{room:g} x the highest seen here,"
    gb_s = roofs.memory_gb_s() or roofs.seen(*_STREAMS)
    moved = _from_memory(kernel, case, cache, roofs.cache_bytes)
    if gb_s is not None and moved > 0:
        rate = moved / median_us * 1e-3
        if rate > room * gb_s:
            return (
                f"{median_us:.4g} us can't be: {moved / 2**20:.1f} MiB at least would have come "
                f"through memory at {rate:,.0f} GB/s, past {kind} {gb_s:,.0f} GB/s"
            )
    fastest = _fastest_tflops(case, roofs)
    if fastest is not None and kernel.op.has_figures:
        rate = kernel.op.flops(case) / median_us * 1e-6
        if rate > room * fastest:
            return (
                f"{median_us:.4g} us can't be: its arithmetic would have run at {rate:,.1f} "
                f"TFLOP/s, past {kind} {fastest:,.1f} TFLOP/s"
            )
    return None


def _fastest_tflops(case: Case, roofs: Roofs) -> float | None:
    if roofs.peak is not None:
        if case.dtype.itemsize == 2:
            return roofs.peak.half_tflops
        return max(roofs.peak.tf32_tflops or 0.0, roofs.peak.fp32_tflops)
    names = {f"matmul {dtype_name(case.dtype)}"} | (
        {"matmul tf32"} if case.dtype.itemsize == 4 else set()
    )
    return roofs.seen(*names)


def _from_memory(
    kernel: Kernel, case: Case, cache: Literal["cold", "warm"], cache_bytes: int
) -> int:
    """Return the bytes that a call has to move through memory."""
    written = sum(form.nbytes for form in kernel.op.forms(case).values())
    # The inputs that a part of an op needs aren't known.
    read = kernel.op.bytes(case) - written if kernel.op.has_figures else 0
    if cache == "cold":
        return read + max(0, written - cache_bytes)
    return max(0, read + written - cache_bytes)
