"""Roofs: the device's speed at simple work, measured by the same protocol as kernels.

Measured are a copy (one read, one write), a sum (one read), an addition (two reads, one write: the
traffic of a layer-norm backward) and a product of matrices in each dtype. A GPU has normal values,
because zeros would be faster, by 13 % for a matmul on an H200.

The flush probe reads memory of one size right after reading it, after the flush of samples, and
after a long time. A working flush makes the second read as slow as the third. If it is nearer to
the first, a call that is reported as cold is warm, and the run is refused.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.oracles.op import dtype_name
from kernel_workbench.profiles.peaks import Peak
from kernel_workbench.reports.record import FlushProbe, Roof
from kernel_workbench.suites.bench.devices import Cache, CpuDevice, Device
from kernel_workbench.suites.bench.protocol import Rule, Sample, collect

_ROOF_S = 0.25  # of sampling for each roof
_GPU_SIDE = 8192
_CPU_MATMUL_SIDE = 512
_PROBE_SAMPLES = 15
_PROBE_TRIES = {"cuda": 1, "cpu": 8}
_EMPTY_CALL_SAMPLES = 41
_FLUSHES = 50
_NO_FASTER = 0.9  # the cache counts as no faster from this share of memory's time on
# The least position of a flushed read between the cache's time (0) and memory's (1). On H200s it is
# 0.73 to 1.4 after the flush and 0.00 to 0.03 without: a read has two times, 1 us apart, whatever
# it reads (docs/measured.md). A CPU is shared with other processes.
_LEAST_WAY = {"cuda": 0.6, "cpu": 0.5}
_CPU_PROBE_BYTES = 2**23
_SHARE_OF_CACHE = 2  # the probe reads half of the cache; with a quarter the difference is 1.7 us
_UNTOUCHED = 8  # two reads of the same memory are so many caches apart


def _prepared(call: Callable[[], object]) -> Callable[[], Callable[[], object]]:
    return lambda: call


def _numbers(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return numbers in fp32, on a GPU random ones, since its power and time follow their bits.

    A CPU would take seconds to draw as many as its caches ask for.
    """
    make = torch.randn if device.type == "cuda" else torch.ones
    return make(shape, dtype=torch.float32, device=device)


def _sampled(on: Device, call: Callable[[], object]) -> list[Sample]:
    for _ in range(3):
        call()
    on.wait()
    return collect(lambda: on.sample(_prepared(call)), Rule(_ROOF_S, rest=on.rest)).samples


def times_us(on: Device, call: Callable[[], object], samples: int) -> list[float]:
    """Return the times of so many calls, sampled as a kernel's; the inputs stay in place."""
    on.begin()
    return [on.sample(_prepared(call)).time_us for _ in range(samples)]


def _roof(name: str, unit: str, work: float, samples: list[Sample], source: str) -> Roof:
    """Return the roof of samples, by their median. work: bytes or flops of a call."""
    times = tuple(sample.time_us for sample in samples)
    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz is not None]
    rate = work / statistics.median(times) * (1e-3 if unit == "GB/s" else 1e-6)
    return Roof.model_validate(
        {
            "name": name,
            "value": rate,
            "unit": unit,
            "measured": True,
            "source": source,
            "times_us": times,
            "clock_mhz": statistics.median(clocks) if clocks else None,
        }
    )


def measured_roofs(device: torch.device, on: Device) -> Iterator[Roof]:
    """Measure a copy, a sum, an addition and products of matrices, and yield each."""
    if device.type == "cuda":
        shape, side = (_GPU_SIDE, _GPU_SIDE), _GPU_SIDE
    else:
        # Four times the cache, so no data stays there.
        shape, side = (on.cache_bytes // 2**12, 2**12), _CPU_MATMUL_SIDE
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x, y, out = (_numbers(shape, device).to(dtype) for _ in range(3))
    sizes = f"{' x '.join(map(str, shape))} {dtype_name(dtype)}"
    moved = x.numel() * x.element_size()
    samples = _sampled(on, partial(out.copy_, x))
    yield _roof("copy", "GB/s", 2 * moved, samples, f"out.copy_(x), {sizes}")
    samples = _sampled(on, partial(torch.sum, x))
    yield _roof("read", "GB/s", moved, samples, f"torch.sum(x), {sizes}")
    samples = _sampled(on, partial(torch.add, x, y, out=out))
    yield _roof("add", "GB/s", 3 * moved, samples, f"torch.add(x, y, out=out), {sizes}")
    del x, y, out
    yield from _products(device, on, side)


def _products(device: torch.device, on: Device, side: int) -> Iterator[Roof]:
    kinds = [("float32", torch.float32, "ieee")]
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        kinds.append(("float16", torch.float16, "ieee"))
        if major >= 8:
            kinds += [("bfloat16", torch.bfloat16, "ieee"), ("tf32", torch.float32, "tf32")]
    for name, dtype, precision in kinds:
        a, b, out = (_numbers((side, side), device).to(dtype) for _ in range(3))
        with _float32_products(precision):
            samples = _sampled(on, partial(torch.mm, a, b, out=out))
        source = f"torch.mm, {side} x {side} x {side}"
        yield _roof(f"matmul {name}", "TFLOP/s", 2.0 * side**3, samples, source)


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def empty_call_us(on: Device) -> float:
    """Return the median time of an empty call: on a GPU two events with nothing between them.

    The time is the machine's and part of every time, whatever a call launches: 1.3 us on H200s that
    are alone in their host, 2.9 us on H200s of a host with two (docs/measured.md).
    """
    cache = on.cache
    if isinstance(on, CpuDevice):
        on.cache = "warm"  # nothing is read, and a flush takes a tenth of a second
    empty_us = statistics.median(times_us(on, _nothing, _EMPTY_CALL_SAMPLES))
    on.cache = cache
    return empty_us


def _nothing() -> None:
    """Do nothing."""


def flush_us(on: Device) -> float:
    """Return the time of one flush in a sequence of flushes, in microseconds."""

    def seconds() -> float:
        on.wait()
        started = time.perf_counter()
        for _ in range(_FLUSHES):
            on.flush()
        on.wait()
        return time.perf_counter() - started

    seconds()
    return 1e6 * statistics.median(seconds() for _ in range(5)) / _FLUSHES


def datasheet_roofs(peak: Peak) -> tuple[Roof, ...]:
    """Return the row of the peak table as roofs."""
    values = {"memory": peak.memory_gb_s, "half": peak.half_tflops, "tf32": peak.tf32_tflops}
    return tuple(
        Roof(
            name=name,
            value=value,
            unit="GB/s" if name == "memory" else "TFLOP/s",
            measured=False,
            source=peak.source,
        )
        for name, value in (values | {"fp32": peak.fp32_tflops}).items()
        if value is not None
    )


def flush_probe(device: torch.device, on: Device) -> FlushProbe:
    """Test that the flush between samples evicts the cache on this device.

    Other processes on a CPU's host disturb reads for about a second, so the probe is repeated
    there.
    """
    for _ in range(_PROBE_TRIES[device.type]):
        probe = _probe(device, on)
        if probe.evicts:
            break
    return probe


def _probe(device: torch.device, on: Device) -> FlushProbe:
    size = max(on.cache_bytes // _SHARE_OF_CACHE, 2**20)
    if device.type == "cpu":
        size = min(size, _CPU_PROBE_BYTES)
    count = size // 4
    whole = _numbers((max(_UNTOUCHED * on.cache_bytes // 4, 4 * count),), device)
    places = whole.split(count)
    warm, cold, memory = [], [], []
    for number in range(_PROBE_SAMPLES):
        # A read's place changes its time by half as much as the cache: use one place for all three.
        read = partial(torch.sum, here := places[number % (len(places) - 1)])
        memory.append(_read_us(on, "cold", _prepared(read)))
        cold.append(_read_us(on, "cold", partial(_written, here, read)))
        warm.append(_read_us(on, "warm", _prepared(read)))
    on.cache = "cold"
    warm_us, cold_us, memory_us = map(statistics.median, (warm, cold, memory))
    return judged_probe(4 * count, warm_us, cold_us, memory_us, least_way=_LEAST_WAY[device.type])


def _written(here: torch.Tensor, read: Callable[[], object]) -> Callable[[], object]:
    """Write the memory as a sample's inputs are written; return the read."""
    here.neg_()
    return read


def _read_us(on: Device, cache: Cache, prepare: Callable[[], Callable[[], object]]) -> float:
    on.cache = cache
    return on.sample(prepare).time_us


def judged_probe(
    size: int, warm_us: float, cold_us: float, memory_us: float, *, least_way: float
) -> FlushProbe:
    """Return the verdict on a flush, from three reads of the same size."""
    no_faster = warm_us >= _NO_FASTER * memory_us
    evicts = no_faster or cold_us >= warm_us + least_way * (memory_us - warm_us)
    read = f"a read of {size / 2**20:.1f} MiB took {cold_us:.1f} us after the flush"
    beside = f"{memory_us:.1f} us from memory and {warm_us:.1f} us from the cache"
    if not evicts:
        reason = f"{read}, {beside}: the flush left it in the cache"
    elif no_faster:
        reason = f"{read}, {beside}: this cache is no faster than memory, so cold and warm are one"
    else:
        reason = f"{read}, {beside}"
    return FlushProbe(bytes=size, warm_us=warm_us, cold_us=cold_us, evicts=evicts, reason=reason)
