"""What a session finds of its device before it times a kernel: roofs, flush, the default clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernel_workbench.profiles.peaks import Peak, peak_of
from kernel_workbench.reports.record import Environment, FlushProbe, Roof
from kernel_workbench.suites.bench.devices import device_of, driver_clock_mhz, forget_device
from kernel_workbench.suites.bench.figures import Roofs
from kernel_workbench.suites.bench.roofs import (
    datasheet_roofs,
    empty_call_us,
    flush_probe,
    flush_us,
    measured_roofs,
)


@dataclass(frozen=True, slots=True)
class Ground:
    """What rows stand on. told: the roofs for the record, measured and of the datasheet.

    empty_call_us: what a call that does nothing takes
    flush_us: what a flush of the cache takes, one after the other; None on a CPU
    """

    roofs: Roofs
    told: tuple[Roof, ...]
    probe: FlushProbe
    empty_call_us: float
    flush_us: float | None
    default_clock_mhz: float | None


def survey(device: torch.device, machine: Environment) -> Ground:
    """Measure the device; its memory is given back."""
    on = device_of(device, "cold")
    probe = flush_probe(device, on)
    measured = tuple(measured_roofs(device, on))
    empty_us = empty_call_us(on)
    flushed_us = flush_us(on) if device.type == "cuda" else None
    cache_bytes = on.cache_bytes
    del on
    forget_device()
    peak: Peak | None = None
    clock_mhz: float | None = None
    kind: Literal["cpu", "cuda"] = "cpu"
    if device.type == "cuda":
        kind = "cuda"
        torch.cuda.empty_cache()
        clock_mhz = float(machine.default_sm_clock_mhz or driver_clock_mhz()) or None
        if machine.multiprocessors is not None and machine.power_limit_w is not None:
            peak = peak_of(machine.device_name, machine.multiprocessors, machine.power_limit_w)
    told = measured if peak is None else (*measured, *datasheet_roofs(peak))
    roofs = Roofs(kind, cache_bytes, peak, measured)
    return Ground(roofs, told, probe, empty_us, flushed_us, clock_mhz)
