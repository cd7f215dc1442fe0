"""An invented run of `nox -s profile`, for tests and for display; no figure was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kernel_workbench.reports.record import ProfileRow, RecordWriter, RunEnd, Series, Spread, Window
from tests.builders.bench_records import (
    FORWARD,
    NORM,
    bench_row,
    example_bench_header,
    forward_case,
    norm_case,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_workbench.reports.record import CaseInfo, RunHeader

_LIMIT_W, _IDLE_W = 700.0, 78.0
_NOT_SUPPORTED = "not supported: this GPU doesn't report it"


def profile_row(
    kernel: str,
    case: CaseInfo,
    median_us: float,
    *,
    distribution: str = "normal",
    power_w: float = 640.0,
    clock_mhz: float = 1980.0,
    capped: float = 0.0,
    trials: int = 4,
) -> ProfileRow:
    """Return a measured row; `capped` is the share of its time under the power cap."""
    timed = bench_row(kernel, case, median_us)
    windows = tuple(
        _window(median_us, power_w + trial, clock_mhz, capped, trial) for trial in range(trials)
    )
    energy = power_w * median_us * 1e-6
    tflops, gb_s = timed.tflops or 0.0, timed.gb_s or 0.0
    return ProfileRow(
        op=case.op,
        kernel=kernel,
        case=case,
        distribution=distribution,
        status="measured",
        accuracy="passed",
        missing={"memory_temperature_c": _NOT_SUPPORTED} if case.op == NORM else {},
        windows=windows,
        energy_j=energy,
        energy_error_j=0.011 * energy,
        net_energy_j=(power_w - _IDLE_W) * median_us * 1e-6,
        energy_integral_j=1.006 * energy,
        device_us=median_us,
        power_w=power_w,
        power_limit_w=_LIMIT_W,
        idle_before_w=_IDLE_W,
        idle_after_w=_IDLE_W + 33,
        flops=timed.flops,
        bytes=timed.bytes,
        tflops=tflops,
        gb_s=gb_s,
        joules_per_tflop=power_w / tflops,
        tflops_per_w=tflops / power_w,
        gb_s_per_w=gb_s / power_w,
        sampler_slowdown=0.0011,
        gates=True,
        reproduce=f"nox -s profile -- --device cuda --kernel {kernel} --case {case.id}",
        duration_s=24.0,
    )


def _window(us: float, power_w: float, clock_mhz: float, capped: float, trial: int) -> Window:
    seconds = tuple(0.04 * point for point in range(100))
    start = 41.0 + 6 * trial
    power = tuple(power_w + 9 * math.sin(0.9 * at + trial) for at in range(100))
    clocks = tuple(clock_mhz - (15.0 * (at % 3) if capped else 0.0) for at in range(100))
    warmth = tuple(start + 14 * (1 - math.exp(-at / 30)) for at in range(100))
    duration = 4.1
    return Window(
        duration_s=duration,
        calls=int(duration * 1e6 / us),
        dropped_s=1.0,
        energy_counter_j=power_w * duration,
        energy_counter_error_j=power_w * 0.021,
        energy_integral_j=power_w * duration * 1.006,
        power_w=_spread(power),
        sm_clock_mhz=_spread(clocks),
        memory_clock_mhz=_spread((3201.0,) * 100),
        sm_clocks={
            int(each): clocks.count(each) / len(clocks) for each in sorted(set(clocks))
        },
        temperature_c=_spread(warmth),
        reasons_s={"SW power cap": capped * duration, "sync boost": 0.0, "HW power brake": 0.0},
        reasons_polled={"SW power cap": capped * 0.996, "gpu idle": 0.0},
        slopes={"power_w": 3.1, "sm_clock_mhz": -0.4, "temperature_c": 22.0},
        samples=205,
        period_ms=20.01,
        largest_gap_ms=31.2,
        device_us=us,
        missing={"memory_temperature_c": _NOT_SUPPORTED},
        series=Series(
            seconds=seconds, power_w=(*power[:60], None, *power[61:]), sm_clock_mhz=clocks,
            temperature_c=warmth,
        ),
    )  # fmt: skip


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    return Spread(
        mean=sum(ordered) / len(ordered),
        p50=ordered[len(ordered) // 2],
        p95=ordered[int(0.95 * len(ordered))],
        lowest=ordered[0],
        highest=ordered[-1],
    )


def profile_rows(*, failing: bool = True) -> list[ProfileRow]:
    """Return rows of two ops and distributions: valid, transient, powerless, wrong if asked."""
    norm, forward = norm_case(8192, 8192), forward_case(4096, 128)
    rows = [
        profile_row("row_persistent_aligned", norm, 113.9, power_w=512.0),
        profile_row("row_persistent_aligned", norm, 113.7, power_w=431.0, distribution="zeros"),
        profile_row("torch_native", norm, 254.2, power_w=402.0),
        profile_row("flash_wide", forward, 1093.0, power_w=688.0, clock_mhz=1515.0, capped=0.83),
        profile_row(
            "flash_wide", forward, 921.0, power_w=523.0, clock_mhz=1980.0, distribution="zeros"
        ),
    ]
    warming = profile_row(
        "sdpa_cudnn", forward, 931.0, power_w=697.0, clock_mhz=1440.0, capped=0.97
    )
    rows.append(
        warming.model_copy(
            update={"validity": "transient", "codes": ("power drifts", "temperature drifts")}
        )
    )
    rows.append(_without_power(profile_row("sdpa_flash", forward, 1502.0)))
    if failing:
        unmeasured = ProfileRow(
            op=FORWARD,
            kernel="flex",
            case=forward,
            distribution="normal",
            status="wrong",
            reason="out is further from the truth than its bound in 3 of 33,554,432 elements",
            accuracy="failed",
            reproduce=f"nox -s profile -- --device cuda --kernel flex --case {forward.id}",
        )
        rows.append(unmeasured)
    return rows


def _without_power(row: ProfileRow) -> ProfileRow:
    """Return the row of a user who may not read the board's power."""
    gone = dict.fromkeys(
        (
            *("energy_j", "energy_error_j", "net_energy_j", "energy_integral_j", "power_w"),
            *("idle_before_w", "idle_after_w", "joules_per_tflop", "tflops_per_w", "gb_s_per_w"),
        )
    )
    why = "no permission: this user may not read it"
    empty = ("energy_counter_j", "energy_integral_j", "power_w")
    windows = tuple(
        replace(
            each,
            energy_counter_j=None,
            energy_integral_j=None,
            power_w=None,
            codes=("no permission",),
            missing=dict.fromkeys(empty, why),
            series=each.series and each.series.model_copy(update={"power_w": (None,) * 100}),
        )
        for each in row.windows
    )
    missing = {"energy_j": why, "power_w": why}
    return row.model_copy(
        update={**gone, "windows": windows, "missing": missing, "validity": "invalid"}
    )


def write_profile(
    path: Path,
    rows: Sequence[ProfileRow],
    *,
    header: RunHeader | None = None,
    whole: bool = True,
) -> Path:
    """Write `rows` as a record at `path`, with an end line if `whole`."""
    if header is None:
        told = {"suite": "profile", "command": "nox -s profile", "flush": None, "roofs": ()}
        header = example_bench_header(len(rows)).model_copy(update=told)
    with RecordWriter(path, header) as writer:
        for row in rows:
            writer.write(row)
        if whole:
            writer.close(
                RunEnd(
                    finished_at="2026-11-21T04:25:00Z",
                    duration_s=401.0,
                    rows=len(rows),
                    interrupted=False,
                    exit_status=int(any(row.status == "wrong" for row in rows)),
                )
            )
    return path
