"""One sample on a GPU, or on a CPU: flush, hold, event, call, event.

On a GPU, in the order of the stream: a flush of L2 by reading (zeroing leaves dirty lines, whose
write-back the call would pay for: torch.add of 16384 x 1024 bf16 on an H200 took 24.6 us after a
read and 28.8 after zeroing); a stamp of the SMs' clocks; a kernel that spins while the host
enqueues the rest; an event; the call; an event; a stamp. So no host time is between the events,
unless the host took longer than the hold: that is checked, and told. On a CPU the wall clock stands
around the call, and what is read to flush is four times the last level of cache.

What is called here is taken from torch when this file is imported, before any candidate is: one
that replaces an event's `elapsed_time` replaces its own.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

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
_spin: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001  (no public call holds a device)

_library = ctypes.CDLL

_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
_LEAST_FLUSH_BYTES = 256 * 2**20  # over four times an H200's L2
_CACHES = 4  # of the cache that is flushed
_CPU_CACHE_BYTES = 32 * 2**20  # where the system doesn't say
_SPIN_CYCLES = 200_000  # about 0.1 ms
_NO_FASTER_MHZ = 3500.0  # than any GPU's SMs


class Device(Protocol):
    """What the protocol needs of a device."""

    cache: Cache
    cache_bytes: int
    flush_bytes: int
    clock_reason: str | None
    rest: float

    def begin(self) -> None:
        """Another kernel is going to be called: forget what the last one took."""

    def flush(self) -> None:
        """Read memory until nothing else is in the cache."""

    def sample(self, prepare: Callable[[], Call]) -> Sample:
        """The time of one call, of `prepare`'s, which may be asked again for another try."""

    def host_times_us(self, call: Call) -> tuple[float, float]:
        """Host time until a call returns, and until it has ended on the device."""

    def wait(self) -> None:
        """Until everything that was asked of the device is done."""


def cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The last level of cache that the first core has."""
    sizes = []
    for each in sorted(root.glob("index*/size")):
        try:
            text = each.read_text().strip()
            sizes.append(int(text.removesuffix("K")) * 2**10 if text.endswith("K") else int(text))
        except (OSError, ValueError):
            continue
    return max(sizes, default=_CPU_CACHE_BYTES)


def driver_clock_mhz() -> float:
    """The highest clock of the SMs, as CUDA's driver tells it; 0 where it doesn't."""
    current = torch.cuda.current_device()
    told = triton.runtime.driver.active.utils.get_device_properties(current)
    return float(told.get("sm_clock_rate", 0)) / 1e3


class CacheSetAsideError(RuntimeError):
    """A kernel keeps a part of the L2 cache for itself, which no flush evicts."""


class PersistingCache:
    """The part of the L2 cache that CUDA sets aside for data which a flush doesn't evict.

    driver: CUDA's library, of which three functions are kept.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._set, self._get = driver.cuCtxSetLimit, driver.cuCtxGetLimit
        self._reset = driver.cuCtxResetPersistingL2Cache

    def clear(self) -> None:
        """Set nothing aside, and make ordinary what was kept; older GPUs have no such part."""
        self._reset()
        self._set(ctypes.c_int(_PERSISTING_L2), ctypes.c_size_t(0))

    def check(self) -> None:
        """Raise CacheSetAsideError where a part was set aside since it was cleared."""
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
        # At the highest clock that there is: at any lower one a hold is longer.
        self._cycles_a_us = driver_clock_mhz() or _NO_FASTER_MHZ
        self._persisting = PersistingCache(_library("libcuda.so.1"))
        self._stamper.stamp(0)  # compiles it
        _spin(_SPIN_CYCLES)
        self._stamper.stamp(1)
        self.clock_reason = (
            None if self._stamper.clock_mhz() else "the SMs' stamps have no cycles in them"
        )

    def begin(self) -> None:
        """Hold for as long as at first."""
        self._hold = Hold()

    def flush(self) -> None:
        """Read the buffer."""
        _sum(self._buffer)

    def wait(self) -> None:
        """Synchronise all streams."""
        _synchronize()

    def sample(self, prepare: Callable[[], Call]) -> Sample:
        """Held; under a longer hold, or in the end as it is, where that was too short."""

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
        """The call, after a flush, or after another one on the same memory with other values."""
        if self.cache == "warm":
            prepare()()
        call = prepare()
        self._persisting.clear()
        if self.cache == "cold":
            self.flush()
        return call

    def host_times_us(self, call: Call) -> tuple[float, float]:
        """After a flush, with nothing else on the device."""
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
        """A CPU isn't held."""

    def flush(self) -> None:
        """Read the buffer."""
        _sum(self._buffer)

    def wait(self) -> None:
        """A CPU's calls have ended when they return."""

    def sample(self, prepare: Callable[[], Call]) -> Sample:
        """By the wall clock."""
        if self.cache == "warm":
            prepare()()
        call = prepare()
        if self.cache == "cold":
            self.flush()
        started = _now()
        call()
        return Sample(1e6 * (_now() - started))

    def host_times_us(self, call: Call) -> tuple[float, float]:
        """Both are one: a call has ended when it returns."""
        if self.cache == "cold":
            self.flush()
        started = _now()
        call()
        taken = 1e6 * (_now() - started)
        return taken, taken


@cache
def _made(device: torch.device) -> Device:
    if device.type == "cuda":
        return CudaDevice(device)
    return CpuDevice()


def device_of(device: torch.device, cache: Cache) -> Device:
    """The device of this process, made once: its flush buffer is hundreds of megabytes."""
    made = _made(device)
    made.cache = cache
    return made


def forget_device() -> None:
    """Give its memory back."""
    _made.cache_clear()
