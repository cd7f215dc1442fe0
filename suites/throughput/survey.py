"""What a session finds of its device before it times a kernel: roofs, flush, the default clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton

from profiles.peaks import peak_of
from reports.schema import Environment, FlushProbe, Roof
from suites.throughput.devices import device_of, forget_device
from suites.throughput.figures import Roofs
from suites.throughput.roofs import datasheet_roofs, flush_probe, measured_roofs


@dataclass(frozen=True, slots=True)
class Ground:
    """What rows stand on. told: the roofs for the record, measured and of the datasheet."""

    roofs: Roofs
    told: tuple[Roof, ...]
    probe: FlushProbe
    default_clock_mhz: float | None


def survey(device: torch.device, machine: Environment) -> Ground:
    """Measure the device; its memory is given back."""
    on = device_of(device, "cold")
    probe = flush_probe(device, on)
    measured = tuple(measured_roofs(device, on))
    cache_bytes = on.cache_bytes
    del on
    forget_device()
    peak, clock_mhz = None, None
    kind: Literal["cpu", "cuda"] = "cpu"
    if device.type == "cuda":
        kind = "cuda"
        torch.cuda.empty_cache()
        clock_mhz = float(machine.default_sm_clock_mhz or _driver_clock_mhz())
        if machine.multiprocessors is not None and machine.power_limit_w is not None:
            peak = peak_of(machine.device_name, machine.multiprocessors, machine.power_limit_w)
    told = measured if peak is None else (*measured, *datasheet_roofs(peak))
    return Ground(Roofs(kind, cache_bytes, peak, measured), told, probe, clock_mhz)


def _driver_clock_mhz() -> float:
    """The SMs' clock as CUDA's driver tells it, where NVML doesn't."""
    current = torch.cuda.current_device()
    told = triton.runtime.driver.active.utils.get_device_properties(current)
    return float(told["sm_clock_rate"]) / 1e3
