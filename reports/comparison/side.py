"""One side of a comparison: what is compared of a record, without its raw samples.

A side of speeds is a record of bench, an import, or one GPU of a record of `compile`, whose
rows are predictions. Rows are the same where op, kernel, case, cache and distribution are. Each row
is reduced as it is read, so that no sample stays in memory, and figures that only a damaged record
holds are None.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kernel_workbench.reports.comparison.rule import (
    LEAST_PLACEMENTS,
    Evidence,
    Interval,
    interval_of_placements,
    interval_of_processes,
    interval_of_samples,
    median_of,
    timer_step_us,
)
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import (
    BUSY_HOST,
    AccuracyRow,
    BenchRow,
    PredictionRow,
    ProfileRow,
    RecordError,
    read,
)
from kernel_workbench.reports.record.pytest_benchmark import read_import
from kernel_workbench.reports.views.accuracy import configured_case

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_workbench.reports.record import Environment, Record, Row, RunHeader, TimedProcess

# What a damaged record may hold and no call takes: a nanosecond, and a week.
_SHORTEST_US, _LONGEST_US = 1e-3, 6e11
_LONGEST_EMPTY_CALL_US = 1000.0
_LEAST_J = 1e-12
_MOST_LAUNCHES = 10**6
_LARGEST = 1e15  # of any other figure that is shown
# Between what memory-bound ops do (layer-norm backward: 2 a byte) and a matrix unit's balance
# (V100: 140); it picks a unit to show, and decides nothing.
_FLOPS_A_BYTE = 30


class Key(NamedTuple):
    """What makes two rows the same row."""

    op: str
    kernel: str
    case: str
    cache: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model of GPU, or a CPU, is told by; `board` is the one card of it."""

    name: str
    multiprocessors: int | None = None
    power_limit_w: float | None = None
    board: str | None = None

    def unlike(self, other: Machine) -> str | None:
        """Why the two aren't one model, or None. A limit within 5 % is the same, as for peaks."""
        if self.name != other.name:
            return f"{self.name} and {other.name}"
        ours, theirs = self.multiprocessors, other.multiprocessors
        if ours is not None and theirs is not None and ours != theirs:
            return f"{self.name} with {ours} and {theirs} SMs"
        mine, its = self.power_limit_w, other.power_limit_w
        if mine is not None and its is not None and abs(mine - its) > 0.05 * max(mine, its):
            return f"{self.name} held to {mine:.0f} W and {its:.0f} W"
        return None

    def is_board_of(self, other: Machine) -> bool:
        """Whether both are one and the same card, as far as their records tell."""
        return self.board is not None and self.board == other.board


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row of speeds, without its samples. evidence: None where it has no time."""

    key: Key
    row: BenchRow
    evidence: Evidence | None

    def lack(self, letter: str) -> str | None:
        """Why the row, of the side of this letter, has no time; None: it has one."""
        if self.evidence is not None:
            return None
        why = "it has no time that a call could take"
        if self.row.status != "timed":
            why = self.row.reason or ""
        return f"not timed in {letter} ({self.row.status}){why and f': {why}'}"

    @property
    def known(self) -> Evidence:
        """The evidence of a row that lacks none."""
        assert self.evidence is not None
        return self.evidence

    @property
    def time_us(self) -> float:
        """What a call takes, of a row that lacks no time."""
        return self.known.time_us.centre

    @property
    def rate(self) -> tuple[float, str] | None:
        """TFLOP/s of a case that counts flops by the thousand a byte, else GB/s."""
        flops, size = self.row.flops, self.row.bytes
        if flops and (not size or flops > _FLOPS_A_BYTE * size):
            return flops / self.time_us / 1e6, "TFLOP/s"
        return (size / self.time_us / 1e3, "GB/s") if size else None


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """A row of energy, without its windows. sm_clock_mhz: the mean over them."""

    key: Key
    row: ProfileRow
    sm_clock_mhz: float | None

    def lack(self, letter: str) -> str | None:
        """Why the row, of the side of this letter, has no energy; None: it has one."""
        row = self.row
        why = row.reason or row.missing.get("energy_j", "")
        if row.validity == "invalid":
            return f"its windows in {letter} aren't valid: {', '.join(row.codes) or why}"
        if row.energy_j is not None:
            return None
        return f"no energy in {letter} ({row.status}){why and f': {why}'}"

    @property
    def joules(self) -> float:
        """Energy of a call, of a row that lacks none."""
        assert self.row.energy_j is not None
        return self.row.energy_j


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """A row of accuracy, of either suite: its status, and its largest error over its bound.

    rmse: of each output, where the record has it
    """

    key: Key
    status: str
    worst_ratio: float | None
    rule: str | None = None
    gates: bool = True
    rmse: dict[str, float] = field(default_factory=dict)


_Reduced = TimedRow | JudgedRow | EnergyRow
_AnyReduced = TypeVar("_AnyReduced", TimedRow, JudgedRow, EnergyRow)
_AnyRow = TypeVar("_AnyRow", BenchRow, ProfileRow)


@dataclass(slots=True)
class RecordSide:
    """One column of a comparison; `letter` names it in tables.

    twice  rows that the record has more than once: the first is taken
    """

    header: RunHeader
    path: Path
    figures: str  # measured, published, imported or predicted
    machine: Machine
    problem: str | None = None
    letter: str = ""
    speeds: dict[Key, TimedRow] = field(default_factory=dict)
    judged: dict[Key, JudgedRow] = field(default_factory=dict)
    energies: dict[Key, EnergyRow] = field(default_factory=dict)
    twice: int = 0

    @property
    def empty_call_us(self) -> float | None:
        """What a call that does nothing takes on this machine; None: the record doesn't tell."""
        told = self.header.empty_call_us
        return told if told is not None and 0 < told < _LONGEST_EMPTY_CALL_US else None

    def left_out(self, key: Key) -> tuple[str, ...]:
        """The op's outputs that the row's kernel doesn't compute."""
        kernel = key.op, key.kernel
        kernels = self.header.kernels
        return next((each.left_out for each in kernels if (each.op, each.name) == kernel), ())

    @property
    def suite(self) -> str:
        """Which sides it can be laid beside: those of its suite, and predictions of speeds."""
        return "bench" if self.header.suite == "compile" else self.header.suite

    def take(self, row: _Reduced) -> None:
        """Add a row, and of a timing that was measured how right it was."""
        if isinstance(row, TimedRow):
            first = self._first(self.speeds, row)
            if first and self.figures == "measured" and row.row.status in ("timed", "wrong"):
                told = row.row
                self.judged[row.key] = JudgedRow(
                    key=row.key,
                    status=told.accuracy or "not checked",
                    worst_ratio=told.worst_ratio,
                    gates=told.gates,
                )
        elif isinstance(row, JudgedRow):
            self._first(self.judged, row)
        else:
            self._first(self.energies, row)

    def _first(self, rows: dict[Key, _AnyReduced], row: _AnyReduced) -> bool:
        is_first = rows.setdefault(row.key, row) is row
        self.twice += not is_first
        return is_first


def read_sides(path: Path, gpus: Sequence[str] = ()) -> list[RecordSide]:
    """The record's sides: one, or of predictions one for each GPU model.

    gpus: of predictions, only models whose name has one of these in it, in any case.
    Raises RecordError.
    """
    imported = read_import(path)
    if imported is not None:
        side = _side(imported, _machine(imported.header.environment))
        for bench in imported.benches:
            side.take(_timed(bench))
        return [side]
    rows: list[_Reduced] = []
    predicted: list[tuple[Machine, TimedRow]] = []

    def reduce(row: Row) -> None:
        if isinstance(row, BenchRow):
            rows.append(_timed(row))
        elif isinstance(row, AccuracyRow):
            rows.append(_judged(row))
        elif isinstance(row, ProfileRow):
            rows.append(_powered(row))
        elif isinstance(row, PredictionRow):
            machine = Machine(row.gpu, row.multiprocessors, float(row.power_w))
            predicted.append((machine, _timed(_as_timed(row))))

    record = read(path, into=reduce)
    if record.header.suite == "compile":
        return _predicted(record, predicted, gpus)
    side = _side(record, _machine(record.header.environment))
    for each in rows:
        side.take(each)
    return [side]


def _predicted(
    record: Record, rows: Sequence[tuple[Machine, TimedRow]], gpus: Sequence[str]
) -> list[RecordSide]:
    """A side for each GPU model that the record predicts."""
    sides: dict[Machine, RecordSide] = {}
    for machine, row in rows:
        if not gpus or any(each.lower() in machine.name.lower() for each in gpus):
            sides.setdefault(machine, _side(record, machine, "predicted")).take(row)
    if not sides:
        asked = f" for --gpu {', '.join(gpus)}" if gpus else ""
        raise RecordError(
            f"{shown(record.path)}: a record of compile without predictions{shown(asked)}"
        )
    return list(sides.values())


def _side(record: Record, machine: Machine, figures: str | None = None) -> RecordSide:
    header = record.header
    return RecordSide(header, record.path, figures or header.figures, machine, record.problem)


def _machine(environment: Environment) -> Machine:
    cpu = environment.device == "cpu"
    return Machine(
        name=environment.device_name,
        multiprocessors=environment.cpu_count if cpu else environment.multiprocessors,
        power_limit_w=environment.power_limit_w,
        board=f"{environment.hostname} {environment.cpu}" if cpu else environment.gpu_uuid,
    )


def _timed(row: BenchRow) -> TimedRow:
    key = Key(row.op, row.kernel, row.case.id, row.cache, row.distribution)
    evidence = _evidence(row) if row.status == "timed" else None
    shares = ("share_of_peak", "share_of_ceiling", "share_of_clocked_peak")
    return TimedRow(key, _reduced(row, *shares, samples="processes"), evidence)


def _powered(row: ProfileRow) -> EnergyRow:
    key = Key(row.op, row.kernel, row.case.id, "", row.distribution)
    clocks = [each.sm_clock_mhz.mean for each in row.windows if each.sm_clock_mhz is not None]
    told = ("energy_j", "energy_error_j", "power_w", "joules_per_tflop")
    kept = _reduced(row, *told, samples="windows")
    if row.energy_j is not None and (kept.energy_j is None or kept.energy_j <= _LEAST_J):
        damage = {"energy_j": None, "reason": "its energy isn't a positive number"}
        kept = kept.model_copy(update=damage)
    return EnergyRow(key, kept, _figure(sum(clocks) / len(clocks)) if clocks else None)


def _judged(row: AccuracyRow) -> JudgedRow:
    ratios = [each.worst_deterministic for each in row.outputs]
    return JudgedRow(
        key=Key(row.case.op, row.kernel, configured_case(row), "", row.case.distribution),
        status=row.status,
        rule=row.rule,
        worst_ratio=max(
            ratios, key=lambda each: math.inf if math.isnan(each) else each, default=None
        ),
        gates=row.gates,
        rmse={each.output: each.rmse for each in row.outputs},
    )


def _as_timed(row: PredictionRow) -> BenchRow:
    """A prediction as a timing by one figure."""
    return BenchRow(
        op=row.op,
        kernel=row.kernel,
        case=row.case,
        status="refused" if row.predicted_us is None else "timed",
        reason=row.reason,
        distribution=row.case.distribution,
        median_us=row.predicted_us,
        flops=row.flops,
        bytes=row.bytes,
    )


def _reduced(row: _AnyRow, *figures: str, samples: str) -> _AnyRow:
    """The row without its samples, and without figures that no table can show."""
    kept: dict[str, object] = {each: _figure(getattr(row, each)) for each in (*figures, "weight")}
    kept |= {"flops": _count(row.flops), "bytes": _count(row.bytes), samples: ()}
    return row.model_copy(update=kept)


def _figure(value: float | None) -> float | None:
    return value if value is not None and 0 < value < _LARGEST else None


def _count(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


def _evidence(row: BenchRow) -> Evidence | None:
    """What the row's samples say; where they aren't there, its figures; None: no time at all."""
    timed = [each for each in row.processes if each.times_us]
    found = _of_processes(timed) if timed else _of_figures(row)
    if found is None or not _is_sane(found.time_us):
        return None
    began = sorted(each.started_at or "" for each in timed)
    cycles = found.cycles
    return replace(
        found,
        cycles=cycles if cycles is not None and _is_ordered(cycles) else None,
        launches=row.launches if row.launches and 0 < row.launches <= _MOST_LAUNCHES else 0,
        began=(began[0], began[-1]) if began else ("", ""),
        disturbed=", ".join(_disturbing(row)),
    )


def _disturbing(row: BenchRow) -> list[str]:
    """The codes that its times may suffer from: those of a GPU that was held have none of the host.

    Codes that this program doesn't know aren't passed over.
    """
    held = bool(row.processes) and all(each.held for each in row.processes)
    return [each for each in row.codes if each != BUSY_HOST or not held]


def _of_processes(timed: Sequence[TimedProcess]) -> Evidence:
    cycles = [in_cycles for each in timed if (in_cycles := _cycles(each))]
    return Evidence(
        time_us=_interval(timed, [each.times_us for each in timed]),
        cycles=_interval(timed, cycles) if len(cycles) == len(timed) else None,
        processes=len(timed),
        step_us=max(timer_step_us(each.times_us) for each in timed),
    )


def _interval(timed: Sequence[TimedProcess], samples: Sequence[Sequence[float]]) -> Interval:
    """Of one process its own; of several how far each reaches counts, if by places in memory."""
    intervals = [
        _of_process(each, process.placements)
        for each, process in zip(samples, timed, strict=True)
    ]  # fmt: skip
    if len(intervals) == 1:
        return intervals[0]
    placed = all(len(each.placements) >= LEAST_PLACEMENTS for each in timed)
    far = [(each.high - each.low) / 2 for each in intervals] if placed else []
    return interval_of_processes([each.centre for each in intervals], far)


def _of_process(samples: Sequence[float], placements: Sequence[int]) -> Interval:
    """By its places in memory, where it has enough of them."""
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


def _of_figures(row: BenchRow) -> Evidence | None:
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


def _is_sane(interval: Interval) -> bool:
    return _is_ordered(interval) and interval.low >= _SHORTEST_US and interval.high <= _LONGEST_US


def _is_ordered(interval: Interval) -> bool:
    return 0 < interval.low <= interval.centre <= interval.high < math.inf
