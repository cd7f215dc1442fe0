"""Traces computed by formula, never measured: the power of a window is known.

They behave like an H200: energy and instant power move every 100 ms, the latter to the mean
of the last 25 ms; a read of energy takes 3.5 ms; counters of nanoseconds are exact at each read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from kernel_workbench.profiles.traces import FIELDS, REASONS, Missing, Trace, TraceSample

UUID = "GPU-00000000-synthetic"
TICK_S = 0.1
_AVERAGED_S = 0.025
_STEPS = 50  # of an integral over a tick
_CAP_BIT, CAP_COUNTER = REASONS["SW power cap"][0], "sw_power_cap_ns"
Power = Callable[[float], float]


def constant(power_w: float) -> Power:
    """Return the same power at all times."""
    return lambda _: power_w


def synthetic(
    power_w: Power,
    *,
    seconds: float = 6.0,
    period_s: float = 0.0203,
    began_s: float = 1000.0,
    capped: Callable[[float], bool] = lambda _: False,
    sm_clock_mhz: Callable[[float], float] = lambda _: 1500.0,
    temperature_c: Callable[[float], float] = lambda _: 50.0,
    jitter_s: float = 0.001,
    counter_from: int = 123_456_789,
) -> Trace:
    """Return a trace of `seconds` from `began_s` on; functions get the seconds since then."""
    draw = random.Random(5)
    ticks = _ticks(power_w, seconds + 1)
    samples = []
    at_s = 0.0
    capped_ns = 0.0
    before_s = 0.0
    while at_s < seconds:
        energy_at_s, done_s = at_s + 0.0001, at_s + 0.0036
        capped_ns += 1e9 * (at_s - before_s) * capped(at_s)
        before_s = at_s
        energy_mj = ticks[int(energy_at_s / TICK_S)][0]
        instant_w = ticks[int(at_s / TICK_S)][1]
        values = {
            "power_instant_mw": round(1e3 * instant_w),
            "power_average_mw": round(1e3 * instant_w),
            "sm_clock_mhz": round(sm_clock_mhz(at_s)),
            "memory_clock_mhz": 3201,
            "temperature_c": round(temperature_c(at_s)),
            "memory_temperature_c": round(temperature_c(at_s)) + 8,
            "reasons": _CAP_BIT if capped(at_s) else 0,
            "energy_mj": counter_from + round(1e3 * energy_mj),
        }
        values |= {name: 10**12 for name in FIELDS if name.endswith("_ns")}
        values[CAP_COUNTER] += round(capped_ns)
        at_ns, energy_at_ns, done_ns = (
            round(1e9 * (began_s + each)) for each in (at_s, energy_at_s, done_s)
        )
        row = tuple(values[name] for name in FIELDS)
        samples.append(TraceSample(at_ns, energy_at_ns, done_ns, row))
        at_s += period_s + jitter_s * draw.random()
    return Trace(UUID, 1e3 * period_s, tuple(samples))


def _ticks(power_w: Power, seconds: float) -> list[tuple[float, float]]:
    """Return, for each tick, the energy in joules since the start, and the instant power."""
    found, energy_j = [(0.0, power_w(0.0))], 0.0
    for tick in range(1, round(seconds / TICK_S) + 1):
        end = tick * TICK_S
        step = TICK_S / _STEPS
        energy_j += sum(step * power_w(end - (each + 0.5) * step) for each in range(_STEPS))
        found.append((energy_j, power_w(end - _AVERAGED_S / 2)))
    return found


def changed(trace: Trace, name: str, change: Callable[[float, int | None], int | None]) -> Trace:
    """Return the trace with a changed column; `change` gets seconds since the start and a value."""
    place = FIELDS.index(name)
    start_ns = trace.samples[0].at_ns
    samples = tuple(
        replace(
            each,
            values=(
                *each.values[:place],
                change((each.at_ns - start_ns) * 1e-9, each.values[place]),
                *each.values[place + 1 :],
            ),
        )
        for each in trace.samples
    )
    return replace(trace, samples=samples)


def without(trace: Trace, name: str) -> Trace:
    """Return the trace of a GPU that lacks a field."""
    missing = trace.missing | {name: Missing("not supported", "made up for a test")}
    return replace(changed(trace, name, lambda *_: None), missing=missing)
