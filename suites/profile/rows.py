"""Rows of a profile record: an entry's windows as figures of a call."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import ProfileRow, Window
from kernel_workbench.suites.profile.figures import (
    MOST_SLOWDOWN,
    counted_windows,
    energy_per_call,
    mean_power_w,
)
from kernel_workbench.suites.profile.trials import Entry
from kernel_workbench.suites.run.descriptions import case_info


@dataclass(frozen=True, slots=True)
class Board:
    """The power that all rows of a run share, in watts: the GPU's limit, and its idle power.

    A text says why an idle power isn't known.
    """

    power_limit_w: float | None
    idle_before_w: float | str
    idle_after_w: float | str


def row_of(entry: Entry, board: Board, *, gates: bool, reproduce: str) -> ProfileRow:
    """Return the entry as a row; an absent figure is None and has its reason in `missing`."""
    windows, validity, codes = counted_windows(entry.windows)
    missing: dict[str, str] = {}
    figures = {
        "power_limit_w": board.power_limit_w,
        "idle_before_w": board.idle_before_w,
        "idle_after_w": board.idle_after_w,
        "sampler_slowdown": entry.slowdown,
    }
    fields: dict[str, Any] = {}
    for name, value in figures.items():
        fields[name] = None if isinstance(value, Missing | str) else value
        if isinstance(value, Missing | str):
            missing[name] = str(value)
    fields["device_us"] = _mean(windows, lambda window: window.device_us)
    fields["power_w"] = _mean(windows, mean_power_w)
    if not windows:  # the reasons of the trials' windows explain the absent figures
        for window in entry.windows:
            missing = dict(window.missing) | missing
    fields |= _energies(windows, fields, missing)
    if entry.kernel.op.has_figures:
        fields |= _work(entry, fields)
    else:
        missing["flops"] = (
            f"no work: the work for {' and '.join(entry.kernel.op.outputs)} isn't known"
        )
    if fields["energy_j"] is not None and all(one.energy_counter_j is None for one in windows):
        codes.append("energy by samples")
    if fields["sampler_slowdown"] is not None and fields["sampler_slowdown"] > MOST_SLOWDOWN:
        codes.append("sampler slows")
    if entry.captured is False:
        codes.append("no graph")
        missing["captured"] = f"no graph: {entry.why_not_captured}"
    failed = entry.failed is not None or not entry.windows
    return ProfileRow(
        op=entry.kernel.op.name,
        kernel=entry.kernel.name,
        case=case_info(entry.case),
        variant=entry.accuracy.variant,
        distribution=entry.distribution,
        status="failed" if failed else "measured",
        reason=(entry.failed or "no trial was made") if failed else None,
        accuracy=entry.accuracy.status,
        validity="invalid" if failed else validity,
        codes=tuple(dict.fromkeys(codes)),
        missing=missing,
        windows=tuple(entry.windows),
        captured=entry.captured,
        weight=entry.case.weight,
        gates=gates,
        reproduce=reproduce,
        duration_s=entry.duration_s,
        **({} if entry.failed is not None else fields),
    )


def _mean(windows: list[Window], of: Callable[[Window], float | None]) -> float | None:
    values = [value for window in windows if (value := of(window)) is not None]
    return statistics.fmean(values) if values else None


def _energies(
    windows: list[Window], fields: dict[str, Any], missing: dict[str, str]
) -> dict[str, float | None]:
    """Return the energy of a call: gross, its error, net of idle power, and by samples."""
    energy = energy_per_call(windows)
    energy_j, error_j = (None, None) if energy is None else energy
    if energy_j is None:
        none = "no window: no trial has a window to count in"
        missing["energy_j"] = missing.get("energy_counter_j", none)
    if error_j is None and energy_j is not None:
        missing["energy_error_j"] = "one trial: one window shows no scatter"
    idles = [fields[name] for name in ("idle_before_w", "idle_after_w") if fields[name] is not None]
    net_j = None
    if energy_j is not None and idles and fields["device_us"] is not None:
        net_j = energy_j - statistics.fmean(idles) * fields["device_us"] * 1e-6
    elif energy_j is not None:
        missing["net_energy_j"] = "no idle power: the board's idle power isn't known"
    return {
        "energy_j": energy_j,
        "energy_error_j": error_j,
        "net_energy_j": net_j,
        "energy_integral_j": _mean(
            windows,
            lambda window: (
                None
                if window.energy_integral_j is None or not window.calls
                else window.energy_integral_j / window.calls
            ),
        ),
    }


def _work(entry: Entry, fields: dict[str, Any]) -> dict[str, float | int | None]:
    op, device_us, power_w = entry.kernel.op, fields["device_us"], fields["power_w"]
    flops, moved = op.flops(entry.case), op.bytes(entry.case)
    tflops = None if device_us is None else flops / device_us * 1e-6
    gb_s = None if device_us is None else moved / device_us * 1e-3
    energy_j = fields["energy_j"]
    return {
        "flops": flops,
        "bytes": moved,
        "tflops": tflops,
        "gb_s": gb_s,
        "joules_per_tflop": None if energy_j is None or not flops else energy_j / flops * 1e12,
        "tflops_per_w": None if tflops is None or not power_w else tflops / power_w,
        "gb_s_per_w": None if gb_s is None or not power_w else gb_s / power_w,
    }
