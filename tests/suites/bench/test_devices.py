"""A sample on a GPU, with a GPU that is simulated: what is asked of it, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernel_workbench.suites.bench import devices
from kernel_workbench.suites.bench.devices import CacheSetAsideError, CudaDevice, cpu_cache_bytes


class _Gpu:
    """Notes what it is asked; its clock stands, and each event is 20 us after the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.spins_us: list[float] = []
        self.enqueue_us = iter([100.0] * 1000)
        self.set_aside = 0  # bytes of the cache
        self._now_s = 0.0

        def spin(cycles: int) -> None:
            self.asked.append("hold")
            self.spins_us.append(cycles / 2000.0)

        def now() -> float:
            return self._now_s

        properties = SimpleNamespace(L2_cache_size=60 * 2**20, multi_processor_count=2)
        driver = SimpleNamespace(
            cuCtxSetLimit=lambda *_: 0,
            cuCtxGetLimit=lambda size, _: setattr(size._obj, "value", self.set_aside),
            cuCtxResetPersistingL2Cache=lambda: self.asked.append("reset"),
        )
        monkeypatch.setattr(devices, "_library", lambda _: driver)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: object())
        monkeypatch.setattr(devices, "driver_clock_mhz", lambda: 2000.0)
        monkeypatch.setattr(devices, "Stamper", lambda _: self)
        monkeypatch.setattr(devices, "_ones", lambda *_, **__: None)
        monkeypatch.setattr(devices, "_sum", lambda _: self.asked.append("flush"))
        monkeypatch.setattr(devices, "_spin", spin)
        monkeypatch.setattr(devices, "_record", lambda _: self.asked.append("event"))
        monkeypatch.setattr(devices, "_elapsed", lambda *_: 0.02)
        monkeypatch.setattr(devices, "_synchronize", lambda: self.asked.append("wait"))
        monkeypatch.setattr(devices, "_now", now)

    def stamp(self, place: int) -> None:
        """As `Stamper` does."""
        self.asked.append(f"stamp {place}")

    def clock_mhz(self) -> float:
        """As `Stamper` does."""
        return 1900.0

    def prepare(self) -> Callable[[], None]:
        """A sample's inputs, and the call on them."""
        self.asked.append("prepare")

        def call() -> None:
            self.asked.append("call")
            self._now_s += 1e-6 * next(self.enqueue_us)

        return call


def test_gpu_is_flushed_and_held_while_the_call_is_enqueued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the call is between the events, and stamps are outside of them."""
    gpu = _Gpu(monkeypatch)
    device = CudaDevice(torch.device("cuda"))
    assert device.flush_bytes == 256 * 2**20
    gpu.asked.clear()
    sample = device.sample(gpu.prepare)
    assert gpu.asked == [
        *("prepare", "reset", "flush", "stamp 0", "hold"),
        *("event", "call", "event", "stamp 1", "wait"),
    ]
    assert (sample.time_us, sample.clock_mhz, sample.held) == (20.0, 1900.0, True)


def test_gpu_is_warmed_by_a_call_on_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose inputs lie where the sample's do: a kernel that keeps outputs finds none of its own."""
    gpu = _Gpu(monkeypatch)
    device = CudaDevice(torch.device("cuda"))
    device.cache = "warm"
    gpu.asked.clear()
    device.sample(gpu.prepare)
    assert gpu.asked[:6] == ["prepare", "call", "prepare", "reset", "stamp 0", "hold"]
    assert "flush" not in gpu.asked


def test_kernel_that_sets_cache_aside_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache that is set aside survives the flush, so that the next sample would be warm."""
    gpu = _Gpu(monkeypatch)
    device = CudaDevice(torch.device("cuda"))
    gpu.set_aside = 2**20
    with pytest.raises(CacheSetAsideError, match="1,048,576 bytes of the L2 cache"):
        device.sample(gpu.prepare)


def test_gpu_is_held_for_longer_where_the_host_was_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds are counted at the highest clock there is: at a lower one they only last longer."""
    gpu = _Gpu(monkeypatch)
    device = CudaDevice(torch.device("cuda"))
    gpu.spins_us.clear()
    gpu.enqueue_us = iter([300.0, 300.0])
    assert device.sample(gpu.prepare).held
    assert gpu.spins_us == [150.0, 600.0]


def test_cpu_cache_is_the_largest_that_the_system_tells(tmp_path: Path) -> None:
    """In kibibytes as Linux writes them; 32 MiB where it writes none."""
    assert cpu_cache_bytes(tmp_path) == 32 * 2**20
    for index, size in enumerate(("48K", "2048K", "36864K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert cpu_cache_bytes(tmp_path) == 36 * 2**20
