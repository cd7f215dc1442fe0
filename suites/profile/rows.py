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
    """What all rows of a run share: the GPU's limit, and what it draws when nothing runs."""

    power_limit_w: float | None
    idle_before_w: float | Missing
    idle_after_w: float | Missing


def row_of(entry: Entry, board: Board, *, gates: bool, reproduce: str) -> ProfileRow:
    """The entry as a row; a figure that can't be had is None and its reason is in `missing`."""
    windows, validity, codes = counted_windows(entry.windows)
    missing: dict[str, str] = {}
    known = {
        "power_limit_w": board.power_limit_w,
        "idle_before_w": board.idle_before_w,
        "idle_after_w": board.idle_after_w,
        "sampler_slowdown": entry.slowdown,
    }
    told: dict[str, Any] = {}
    for name, value in known.items():
        told[name] = None if isinstance(value, Missing) else value
        if isinstance(value, Missing):
            missing[name] = str(value)
    told["device_us"] = _mean(windows, lambda each: each.device_us)
    told["power_w"] = _mean(windows, mean_power_w)
    if not windows:  # what the windows lack is why there is nothing to count
        for each in entry.windows:
            missing = dict(each.missing) | missing
    told |= _energies(windows, told, missing)
    if entry.kernel.op.has_figures:
        told |= _work(entry, told)
    else:
        missing["flops"] = (
            f"no work: what {' and '.join(entry.kernel.op.outputs)} takes isn't known"
        )
    if told["energy_j"] is not None and all(each.energy_counter_j is None for each in windows):
        codes.append("energy by samples")
    if told["sampler_slowdown"] is not None and told["sampler_slowdown"] > MOST_SLOWDOWN:
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
        reason=(entry.failed or "no trial of it was made") if failed else None,
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
        **({} if entry.failed is not None else told),
    )


def _mean(windows: list[Window], of: Callable[[Window], float | None]) -> float | None:
    values = [value for each in windows if (value := of(each)) is not None]
    return statistics.fmean(values) if values else None


def _energies(
    windows: list[Window], told: dict[str, Any], missing: dict[str, str]
) -> dict[str, float | None]:
    """Energy of a call: gross with its error, less what the board draws idle, and by samples."""
    found = energy_per_call(windows)
    energy_j, error_j = (None, None) if found is None else found
    if energy_j is None:
        none = "no window: no trial has a window to count in"
        missing["energy_j"] = missing.get("energy_counter_j", none)
    if error_j is None and energy_j is not None:
        missing["energy_error_j"] = "one trial: of one window no scatter is known"
    idles = [told[name] for name in ("idle_before_w", "idle_after_w") if told[name] is not None]
    net_j = None
    if energy_j is not None and idles and told["device_us"] is not None:
        net_j = energy_j - statistics.fmean(idles) * told["device_us"] * 1e-6
    elif energy_j is not None:
        missing["net_energy_j"] = "no idle power: what the board draws idle isn't known"
    return {
        "energy_j": energy_j,
        "energy_error_j": error_j,
        "net_energy_j": net_j,
        "energy_integral_j": _mean(
            windows,
            lambda each: (
                None
                if each.energy_integral_j is None or not each.calls
                else each.energy_integral_j / each.calls
            ),
        ),
    }


def _work(entry: Entry, told: dict[str, Any]) -> dict[str, float | int | None]:
    op, device_us, power_w = entry.kernel.op, told["device_us"], told["power_w"]
    flops, moved = op.flops(entry.case), op.bytes(entry.case)
    tflops = None if device_us is None else flops / device_us * 1e-6
    gb_s = None if device_us is None else moved / device_us * 1e-3
    energy_j = told["energy_j"]
    return {
        "flops": flops,
        "bytes": moved,
        "tflops": tflops,
        "gb_s": gb_s,
        "joules_per_tflop": None if energy_j is None or not flops else energy_j / flops * 1e12,
        "tflops_per_w": None if tflops is None or not power_w else tflops / power_w,
        "gb_s_per_w": None if gb_s is None or not power_w else gb_s / power_w,
    }
