"""One sample on a GPU or a CPU: flush, hold, event, call, event.

A sample on a GPU consists, in stream order, of a flush of L2 by reading (zeroing leaves dirty
lines, whose write-back would add to the call's time: torch.add of 16384 x 1024 bf16 on an H200 took
24.6 us after a read and 28.8 after zeroing); a stamp of the SMs' clocks; a kernel that spins while
the host enqueues the rest; an event; the call; an event; a stamp. So no host time lies between the
events, unless the host took longer than the hold; the sample then says so. On a CPU the wall clock
times the call, and the flush reads four times the last level of cache.

This module binds torch's functions when it is imported, before any candidate is: a candidate that
replaces an event's `elapsed_time` doesn't change the binding.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
import triton

from kernel_workbench.suites.bench.protocol import REST, Hold, Sample
from kernel_workbench.suites.bench.stamps import Stamper

Cache = Literal["cold", "warm"]
Call = Callable[[], object]

_now: Callable[[], float] = time.perf_counter
_sum, _ones = torch.sum, torch.ones
_record, _elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_synchronize: Callable[[], None] = torch.cuda.synchronize
_spin: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001  (torch has no public function for this)

_library = ctypes.CDLL

_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
_LEAST_FLUSH_BYTES = 256 * 2**20  # over four times an H200's L2
_CACHES = 4  # the flush reads so many times the cache
_CPU_CACHE_BYTES = 32 * 2**20  # used if the system doesn't tell
_SPIN_CYCLES = 200_000  # about 0.1 ms
_NO_FASTER_MHZ = 3500.0  # no GPU's SMs are faster


def cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the bytes of the first core's last level of cache."""
    sizes = []
    for file in sorted(root.glob("index*/size")):
        try:
            text = file.read_text().strip()
            sizes.append(int(text.removesuffix("K")) * 2**10 if text.endswith("K") else int(text))
        except (OSError, ValueError):
            continue
    return max(sizes, default=_CPU_CACHE_BYTES)


def driver_clock_mhz() -> float:
    """Return the highest clock of the SMs by CUDA's driver, or 0 if it doesn't tell."""
    current = torch.cuda.current_device()
    properties = triton.runtime.driver.active.utils.get_device_properties(current)
    return float(properties.get("sm_clock_rate", 0)) / 1e3


class CacheSetAsideError(RuntimeError):
    """A kernel reserves a part of the L2 cache, which no flush evicts."""


class PersistingCache:
    """The part of the L2 cache that CUDA reserves for data which a flush doesn't evict.

    driver: CUDA's library; three of its functions are bound.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._set, self._get = driver.cuCtxSetLimit, driver.cuCtxGetLimit
        self._reset = driver.cuCtxResetPersistingL2Cache

    def clear(self) -> None:
        """Reserve nothing, and make persisting lines ordinary; older GPUs have no such part."""
        self._reset()
        self._set(ctypes.c_int(_PERSISTING_L2), ctypes.c_size_t(0))

    def check(self) -> None:
        """Raise CacheSetAsideError if a part was reserved since the last `clear`."""
        size = ctypes.c_size_t(0)
        failed = self._get(ctypes.byref(size), ctypes.c_int(_PERSISTING_L2))
        if not failed and size.value:
            raise CacheSetAsideError(
                f"it set {size.value:,} bytes of the L2 cache aside, which the flush before a "
                "sample doesn't evict: leave CUDA's limit of persisting L2 cache at 0"
            )


class CudaDevice:
    """The current GPU."""

    rest = REST

    def __init__(self, device: torch.device) -> None:
        self.cache: Cache = "cold"
        self.cache_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self.flush_bytes = max(_LEAST_FLUSH_BYTES, _CACHES * self.cache_bytes)
        self._buffer = _ones(self.flush_bytes // 4, dtype=torch.float32, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._stamper = Stamper(device)
        self._hold = Hold()
        # At the highest clock: a hold is longer at any lower one.
        self._cycles_a_us = driver_clock_mhz() or _NO_FASTER_MHZ
        self._persisting = PersistingCache(_library("libcuda.so.1"))
        self._stamper.stamp(0)  # compiles the kernel
        _spin(_SPIN_CYCLES)
        self._stamper.stamp(1)
        self.clock_reason = (
            None if self._stamper.clock_mhz() else "the SMs' stamps have no cycles in them"
        )

    def begin(self) -> None:
        """Start with the shortest hold again."""
        self._hold = Hold()

    def flush(self) -> None:
        """Read the buffer."""
        _sum(self._buffer)

    def wait(self) -> None:
        """Synchronise all streams."""
        _synchronize()

    def sample(self, prepare: Callable[[], Call]) -> Sample:
        """Time a call under a hold; a retry with a longer hold calls `prepare` again."""

        def once(hold_us: float) -> tuple[Sample, float]:
            call = self._prepared(prepare)
            cycles = math.ceil(hold_us * self._cycles_a_us)
            self._stamper.stamp(0)
            launched = _now()
            _spin(cycles)
            _record(self._start)
            call()
            _record(self._end)
            enqueued_us = 1e6 * (_now() - launched)
            self._stamper.stamp(1)
            _synchronize()
            self._persisting.check()
            time_us = 1e3 * float(_elapsed(self._start, self._end))
            return Sample(time_us, self._stamper.clock_mhz()), enqueued_us

        return self._hold.take(once)

    def _prepared(self, prepare: Callable[[], Call]) -> Call:
        """Return the call, after a flush or after a call on the same memory with other values."""
        if self.cache == "warm":
            prepare()()
        call = prepare()
        self._persisting.clear()
        if self.cache == "cold":
            self.flush()
        return call

    def host_times_us(self, call: Call) -> tuple[float, float]:
        """Return the host time until a call returns, and until it has ended on the device."""
        if self.cache == "cold":
            self.flush()
        _synchronize()
        started = _now()
        call()
        returned = _now()
        _synchronize()
        return 1e6 * (returned - started), 1e6 * (_now() - started)


class CpuDevice:
    """One thread of the CPU."""

    rest = 0.0

    def __init__(self) -> None:
        self.cache: Cache = "cold"
        self.cache_bytes = cpu_cache_bytes()
        self.flush_bytes = _CACHES * self.cache_bytes
        self._buffer = _ones(self.flush_bytes // 4, dtype=torch.float32)
        self.clock_reason: str | None = "a CPU's cores aren't stamped"

    def begin(self) -> None:
        """Do nothing: a CPU isn't held."""

    def flush(self) -> None:
        """Read the buffer."""
        _sum(self._buffer)

    def wait(self) -> None:
        """Do nothing: a CPU's call has ended when it returns."""

    def sample(self, prepare: Callable[[], Call]) -> Sample:
        """Time a call by the wall clock."""
        if self.cache == "warm":
            prepare()()
        call = prepare()
        if self.cache == "cold":
            self.flush()
        started = _now()
        call()
        return Sample(1e6 * (_now() - started))

    def host_times_us(self, call: Call) -> tuple[float, float]:
        """Return one time twice: a call has ended when it returns."""
        if self.cache == "cold":
            self.flush()
        started = _now()
        call()
        time_us = 1e6 * (_now() - started)
        return time_us, time_us


Device = CudaDevice | CpuDevice


@cache
def _cached_device(device: torch.device) -> Device:
    if device.type == "cuda":
        return CudaDevice(device)
    return CpuDevice()


def device_of(device: torch.device, cache: Cache) -> Device:
    """Return the device of this process, made once for its large flush buffer."""
    on = _cached_device(device)
    on.cache = cache
    return on


def forget_device() -> None:
    """Free the device's memory."""
    _cached_device.cache_clear()
