"""Records into sides: each row is reduced as it is read, so that no raw sample stays in memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from reports.comparison.rule import (
    LEAST_PLACEMENTS,
    Evidence,
    Interval,
    interval_of_placements,
    interval_of_processes,
    interval_of_samples,
    median_of,
    timer_step_us,
)
from reports.comparison.sides import Judged, Key, Machine, Powered, Side, Timed
from reports.imported import read_import
from reports.record import RecordError, read, shown
from reports.schema import AccuracyRow, BenchRow, PredictionRow, ProfileRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reports.record import Record
    from reports.schema import Environment, Row
    from reports.schema_bench import TimedProcess

_Reduced = Timed | Judged | Powered | PredictionRow
# What a damaged record may hold and no call takes: a nanosecond, and a week.
_SHORTEST_US, _LONGEST_US = 1e-3, 6e11
_LEAST_J = 1e-12
_MOST_LAUNCHES = 10**6
_LARGEST = 1e15  # of any other figure that is shown


def read_sides(path: Path, gpus: Sequence[str] = ()) -> list[Side]:
    """The record's sides: one, or of predictions one for each GPU model.

    gpus: of predictions, only models whose name has one of these in it, in any case.
    Raises RecordError.
    """
    imported = read_import(path)
    if imported is not None:
        return [_side(imported, [_timed(row) for row in imported.benches])]
    rows: list[_Reduced] = []

    def take(row: Row) -> None:
        reduced = _reduced(row)
        if reduced is not None:
            rows.append(reduced)

    record = read(path, into=take)
    if record.header.suite == "compile":
        return _predicted(record, [row for row in rows if isinstance(row, PredictionRow)], gpus)
    return [_side(record, rows)]


def _reduced(row: Row) -> _Reduced | None:
    if isinstance(row, BenchRow):
        return _timed(row)
    if isinstance(row, AccuracyRow):
        return _judged(row)
    if isinstance(row, ProfileRow):
        return _powered(row)
    return row if isinstance(row, PredictionRow) else None


def _side(record: Record, rows: Sequence[_Reduced]) -> Side:
    figures = record.header.figures
    side = Side(
        header=record.header,
        path=record.path,
        figures=figures,
        machine=_machine(record.header.environment),
        problem=record.problem,
    )
    for row in rows:
        if isinstance(row, Timed):
            side.twice += row.key in side.speeds
            side.speeds.setdefault(row.key, row)
        elif isinstance(row, Judged):
            side.twice += row.key in side.judged
            side.judged.setdefault(row.key, row)
        elif isinstance(row, Powered):
            side.twice += row.key in side.energies
            side.energies.setdefault(row.key, row)
    if figures == "measured":
        for row in side.speeds.values():
            if row.status in ("timed", "wrong"):
                side.judged[row.key] = Judged(
                    key=row.key,
                    status=row.accuracy or "not checked",
                    worst_ratio=row.worst_ratio,
                    gates=row.gates,
                )
    return side


def _machine(environment: Environment) -> Machine:
    cpu = environment.device == "cpu"
    return Machine(
        name=environment.device_name,
        multiprocessors=environment.cpu_count if cpu else environment.multiprocessors,
        power_limit_w=environment.power_limit_w,
        board=f"{environment.hostname} {environment.cpu}" if cpu else environment.gpu_uuid,
    )


def _timed(row: BenchRow) -> Timed:
    evidence = _evidence(row) if row.status == "timed" else None
    reason = row.reason
    if row.status == "timed" and evidence is None:
        reason = "it has no time that a call could take"
    return Timed(
        key=Key(row.op, row.kernel, row.case.id, row.cache, row.distribution),
        case=row.case,
        status=row.status,
        reason=reason,
        accuracy=row.accuracy,
        worst_ratio=row.worst_ratio,
        evidence=evidence,
        gates=row.gates,
        flops=_count(row.flops),
        bytes=_count(row.bytes),
        share_of_peak=_figure(row.share_of_peak),
        share_of_ceiling=_figure(row.share_of_ceiling),
        share_of_clocked_peak=_figure(row.share_of_clocked_peak),
        weight=_figure(row.weight),
        source=row.source,
    )


def _figure(value: float | None) -> float | None:
    """A figure that a table can show; None for what only a damaged record holds."""
    return value if value is not None and 0 < value < _LARGEST else None


def _count(number: int | None) -> int | None:
    """Flops or bytes; an integer of any length fits a line of JSON, and no float."""
    return number if number is not None and 0 < number < 10**30 else None


def _evidence(row: BenchRow) -> Evidence | None:
    """What the row's samples say; where they aren't there, its figures; None: no time at all."""
    timed = [each for each in row.processes if each.times_us]
    found: Evidence | None = None
    if timed:
        times = [_interval(each.times_us, each.placements) for each in timed]
        cycles = [
            _interval(in_cycles, each.placements)
            for each, in_cycles in zip(timed, map(_cycles, timed), strict=True)
            if in_cycles
        ]
        found = Evidence(
            time_us=_together(times, timed),
            cycles=_together(cycles, timed) if len(cycles) == len(timed) else None,
            processes=len(timed),
            step_us=max(timer_step_us(each.times_us) for each in timed),
        )
    else:
        found = _figures(row)
    if found is None or not _sane(found.time_us):
        return None
    began = sorted(each.started_at or "" for each in timed)
    found = replace(
        found,
        launches=row.launches if row.launches and 0 < row.launches <= _MOST_LAUNCHES else 0,
        began=(began[0], began[-1]) if began else ("", ""),
    )
    if found.cycles is not None and not _ordered(found.cycles):
        return replace(found, cycles=None)
    return found


def _interval(samples: Sequence[float], placements: Sequence[int]) -> Interval:
    """Of one process: by its places in memory, where it has enough of them."""
    if len(placements) < LEAST_PLACEMENTS or sum(placements) != len(samples):
        return interval_of_samples(samples)
    ends = list(itertools.accumulate(placements))
    medians = [
        median_of(samples[start:end])
        for start, end in itertools.pairwise([0, *ends])
        if end > start
    ]
    finite = len(medians) >= LEAST_PLACEMENTS and all(map(math.isfinite, medians))
    return interval_of_placements(medians) if finite else interval_of_samples(samples)


def _together(intervals: Sequence[Interval], timed: Sequence[TimedProcess]) -> Interval:
    """Of one process its own; of several how far each reaches counts, if by places in memory."""
    if len(intervals) == 1:
        return intervals[0]
    placed = all(len(each.placements) >= LEAST_PLACEMENTS for each in timed)
    far = [(each.high - each.low) / 2 for each in intervals] if placed else []
    return interval_of_processes([each.centre for each in intervals], far)


def _figures(row: BenchRow) -> Evidence | None:
    centre = row.median_us
    if centre is None and _count(row.flops) and row.flops and row.tflops:
        centre = row.flops / row.tflops / 1e6  # as publications tell a time
    if centre is None:
        return None
    low, high = row.first_quartile_us, row.third_quartile_us
    cycles = row.median_cycles
    return Evidence(
        time_us=Interval(centre if low is None else low, centre, centre if high is None else high),
        cycles=None if cycles is None else Interval(cycles, cycles, cycles),
        spread=low is not None and high is not None,
        processes=0,
    )


def _cycles(timed: TimedProcess) -> list[float]:
    """Microseconds times megahertz are cycles; a sample whose clock wasn't read has none."""
    if len(timed.clocks_mhz) != len(timed.times_us):
        return []
    cycles = [
        time * clock
        for time, clock in zip(timed.times_us, timed.clocks_mhz, strict=True)
        if clock is not None
    ]
    return cycles if math.isfinite(sum(cycles)) else []


def _sane(interval: Interval) -> bool:
    return _ordered(interval) and interval.low >= _SHORTEST_US and interval.high <= _LONGEST_US


def _ordered(interval: Interval) -> bool:
    return 0 < interval.low <= interval.centre <= interval.high < math.inf


def _judged(row: AccuracyRow) -> Judged:
    ratios = [each.worst_deterministic for each in row.outputs]
    return Judged(
        key=Key(row.case.op, row.kernel, row.case.id, "", row.case.distribution),
        status=row.status,
        rule=row.rule,
        worst_ratio=max(ratios, key=_rank, default=None),
        gates=row.gates,
        rmse={each.output: each.rmse for each in row.outputs},
    )


def _rank(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def _powered(row: ProfileRow) -> Powered:
    clocks = [each.sm_clock_mhz.mean for each in row.windows if each.sm_clock_mhz is not None]
    energy = row.energy_j
    sound = _figure(energy) is not None and energy is not None and energy > _LEAST_J
    reason = row.reason or row.missing.get("energy_j")
    return Powered(
        key=Key(row.op, row.kernel, row.case.id, "", row.distribution),
        case=row.case,
        status=row.status,
        reason=reason if sound or energy is None else "its energy isn't a positive number",
        validity=row.validity,
        codes=row.codes,
        accuracy=row.accuracy,
        energy_j=energy if sound else None,
        energy_error_j=_figure(row.energy_error_j),
        power_w=_figure(row.power_w),
        sm_clock_mhz=_figure(sum(clocks) / len(clocks)) if clocks else None,
        joules_per_tflop=_figure(row.joules_per_tflop),
        flops=_count(row.flops),
        weight=_figure(row.weight),
    )


def _predicted(record: Record, rows: Sequence[PredictionRow], gpus: Sequence[str]) -> list[Side]:
    """A side for each GPU model that the record predicts."""
    sides: dict[str, Side] = {}
    wanted = [each.lower() for each in gpus]
    for row in rows:
        if wanted and not any(each in row.gpu.lower() for each in wanted):
            continue
        if row.gpu not in sides:
            sides[row.gpu] = Side(
                header=record.header,
                path=record.path,
                figures="predicted",
                machine=Machine(row.gpu, row.multiprocessors, float(row.power_w)),
                problem=record.problem,
            )
        timed = _prediction(row)
        sides[row.gpu].speeds.setdefault(timed.key, timed)
    if not sides:
        asked = f" for --gpu {', '.join(gpus)}" if gpus else ""
        raise RecordError(
            f"{shown(record.path)}: a record of nox -s compile without predictions{shown(asked)}"
        )
    return list(sides.values())


def _prediction(row: PredictionRow) -> Timed:
    least = row.predicted_us
    interval = None if least is None else Interval(least, least, least)
    return Timed(
        key=Key(row.op, row.kernel, row.case.id, "cold", row.case.distribution),
        case=row.case,
        status="timed" if interval is not None else "not predicted",
        reason=row.reason,
        accuracy=None,
        worst_ratio=None,
        evidence=None
        if interval is None or not _sane(interval)
        else Evidence(time_us=interval, spread=False, processes=0),
        flops=_count(row.flops),
        bytes=_count(row.bytes),
    )
