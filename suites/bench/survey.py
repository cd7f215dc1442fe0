"""Measure the device before a session times a kernel: roofs, flush, the default clock."""

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
    """The measured device.

    roofs          limits that figures are compared with
    listed         the roofs for the record, measured and from the datasheet
    probe          the verdict on the flush
    empty_call_us  time of an empty call, in microseconds
    flush_us       time of a flush in a sequence of flushes, in microseconds; None on a CPU
    default_clock_mhz  default clock of the SMs; None: unknown
    """

    roofs: Roofs
    listed: tuple[Roof, ...]
    probe: FlushProbe
    empty_call_us: float
    flush_us: float | None
    default_clock_mhz: float | None


def survey(device: torch.device, machine: Environment) -> Ground:
    """Measure the device, and free its memory again."""
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
    listed = measured if peak is None else (*measured, *datasheet_roofs(peak))
    roofs = Roofs(kind, cache_bytes, peak, measured)
    return Ground(roofs, listed, probe, empty_us, flushed_us, clock_mhz)
