"""One side of a comparison: what is compared of a record, without its raw samples.

A side of speeds is a record of bench, an import, or one GPU of a record of `compile`, whose
rows are predictions. Rows are the same where op, kernel, case, cache and distribution are. Each row
is reduced as it is read, so that no sample stays in memory, and figures that only a damaged record
holds are None.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kernel_workbench.reports.comparison.rule import (
    LEAST_PLACEMENTS,
    Evidence,
    Interval,
    interval_of_placements,
    interval_of_processes,
    interval_of_samples,
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

# Times that a damaged record may have and no call takes: a nanosecond, and a week.
_SHORTEST_US, _LONGEST_US = 1e-3, 6e11
_LONGEST_EMPTY_CALL_US = 1000.0
_LEAST_J = 1e-12
_MOST_LAUNCHES = 10**6
_LARGEST = 1e15  # of any other figure that is shown
# Between what memory-bound ops do (layer-norm backward: 2 a byte) and a matrix unit's balance
# (V100: 140); it picks a unit to show, and decides nothing.
_FLOPS_A_BYTE = 30


class Key(NamedTuple):
    """The fields in which two rows agree if they are the same row."""

    op: str
    kernel: str
    case: str
    cache: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A model of GPU, or a CPU; `board` is the one card of it."""

    name: str
    multiprocessors: int | None = None
    power_limit_w: float | None = None
    board: str | None = None

    def unlike(self, other: Machine) -> str | None:
        """Return why the two aren't one model, or None. Limits within 5 % are the same."""
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
        """True if both records name the same card."""
        return self.board is not None and self.board == other.board


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A row of speeds, without its samples. evidence: None where it has no time."""

    key: Key
    row: BenchRow
    evidence: Evidence | None

    def lack(self, letter: str) -> str | None:
        """Return why the row, of the side of this letter, has no time; None: it has one."""
        if self.evidence is not None:
            return None
        why = "it has no time that a call could take"
        if self.row.status != "timed":
            why = self.row.reason or ""
        return f"not timed in {letter} ({self.row.status}){why and f': {why}'}"

    @property
    def needed_evidence(self) -> Evidence:
        """The evidence of a row that lacks none."""
        assert self.evidence is not None
        return self.evidence

    @property
    def time_us(self) -> float:
        """Microseconds of a call, of a row that lacks no time."""
        return self.needed_evidence.time_us.centre

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
        """Return why the row, of the side of this letter, has no energy; None: it has one."""
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

    Attributes:
        rmse: of each output, where the record has it.
    """

    key: Key
    status: str
    worst_ratio: float | None
    rule: str | None = None
    gates: bool = True
    rmse: dict[str, float] = field(default_factory=dict)


_Reduced = TimedRow | JudgedRow | EnergyRow
_AnyRow = TypeVar("_AnyRow", BenchRow, ProfileRow)


@dataclass(slots=True)
class RecordSide:
    """One column of a comparison; `letter` names it in tables.

    Attributes:
        twice: rows that the record has more than once: the first is taken.
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
        """Microseconds of a call that does nothing on this machine. None: the record has none."""
        empty_call_us = self.header.empty_call_us
        return (
            empty_call_us
            if empty_call_us is not None and 0 < empty_call_us < _LONGEST_EMPTY_CALL_US
            else None
        )

    def left_out(self, key: Key) -> tuple[str, ...]:
        """Return the op's outputs that the row's kernel doesn't compute."""
        kernel = key.op, key.kernel
        kernels = self.header.kernels
        return next((info.left_out for info in kernels if (info.op, info.name) == kernel), ())

    @property
    def suite(self) -> str:
        """Return the suite whose records it compares with; predicted speeds compare with bench."""
        return "bench" if self.header.suite == "compile" else self.header.suite

    def take(self, row: _Reduced) -> None:
        """Add a row, and of a timing that was measured how right it was."""
        rows: dict[Key, Any] = self.energies
        if not isinstance(row, EnergyRow):
            rows = self.speeds if isinstance(row, TimedRow) else self.judged
        if rows.setdefault(row.key, row) is not row:
            self.twice += 1
        elif isinstance(row, TimedRow) and self.figures == "measured":
            bench_row = row.row
            if bench_row.status in ("timed", "wrong"):
                self.judged[row.key] = JudgedRow(
                    key=row.key,
                    status=bench_row.accuracy or "not checked",
                    worst_ratio=bench_row.worst_ratio,
                    gates=bench_row.gates,
                )


def read_sides(path: Path) -> list[RecordSide]:
    """Return the record's sides: one, or of predictions one for each GPU model.

    Raises:
        RecordError: the file is no record, or is one of compile and predicts nothing.
    """
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

    record = read_import(path) or read(path, into=reduce)
    for bench in record.benches:  # of an import, which is read whole
        reduce(bench)
    if record.header.suite == "compile":
        sides: dict[Machine, RecordSide] = {}
        for machine, timed in predicted:
            sides.setdefault(machine, _side(record, machine, "predicted")).take(timed)
        if not sides:
            raise RecordError(f"{shown(path)}: a record of compile without predictions")
        return list(sides.values())
    side = _side(record, _machine(record.header.environment))
    for row in rows:
        side.take(row)
    return [side]


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
    clocks = [window.sm_clock_mhz.mean for window in row.windows if window.sm_clock_mhz is not None]
    figures = ("energy_j", "energy_error_j", "power_w", "joules_per_tflop")
    kept = _reduced(row, *figures, samples="windows")
    if row.energy_j is not None and (kept.energy_j is None or kept.energy_j <= _LEAST_J):
        damage = {"energy_j": None, "reason": "its energy isn't a positive number"}
        kept = kept.model_copy(update=damage)
    return EnergyRow(key, kept, _figure(sum(clocks) / len(clocks)) if clocks else None)


def _judged(row: AccuracyRow) -> JudgedRow:
    ratios = [output.worst_deterministic for output in row.outputs]
    return JudgedRow(
        key=Key(row.case.op, row.kernel, configured_case(row), "", row.case.distribution),
        status=row.status,
        rule=row.rule,
        worst_ratio=max(
            ratios, key=lambda item: math.inf if math.isnan(item) else item, default=None
        ),
        gates=row.gates,
        rmse={output.output: output.rmse for output in row.outputs},
    )


def _as_timed(row: PredictionRow) -> BenchRow:
    """Return a prediction as a timing by one figure."""
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
    """Return the row without its samples, and without figures that no table can show."""
    kept: dict[str, object] = {name: _figure(getattr(row, name)) for name in (*figures, "weight")}
    kept |= {"flops": _count(row.flops), "bytes": _count(row.bytes), samples: ()}
    return row.model_copy(update=kept)


def _figure(value: float | None) -> float | None:
    return value if value is not None and 0 < value < _LARGEST else None


def _count(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


def _evidence(row: BenchRow) -> Evidence | None:
    """Return the row's time by its samples, else by its figures; None where it has neither."""
    timed = [process for process in row.processes if process.times_us]
    evidence = _of_processes(timed) if timed else _of_figures(row)
    if evidence is None or not _is_sane(evidence.time_us):
        return None
    began = sorted(timed_row.started_at or "" for timed_row in timed)
    cycles = evidence.cycles
    return replace(
        evidence,
        cycles=cycles if cycles is not None and _is_ordered(cycles) else None,
        launches=row.launches if row.launches and 0 < row.launches <= _MOST_LAUNCHES else 0,
        began=(began[0], began[-1]) if began else ("", ""),
        disturbed=", ".join(_disturbing(row)),
    )


def _disturbing(row: BenchRow) -> list[str]:
    """Return the codes of other work that may be in its times, unknown codes among them.

    No host time is in the samples of a GPU that was held until its calls were queued.
    """
    is_held = bool(row.processes) and all(process.held for process in row.processes)
    return [code for code in row.codes if code != BUSY_HOST or not is_held]


def _of_processes(timed: Sequence[TimedProcess]) -> Evidence:
    cycles = [in_cycles for timed_row in timed if (in_cycles := _cycles(timed_row))]
    return Evidence(
        time_us=_interval(timed, [timed_row.times_us for timed_row in timed]),
        cycles=_interval(timed, cycles) if len(cycles) == len(timed) else None,
        processes=len(timed),
        step_us=max(timer_step_us(timed_row.times_us) for timed_row in timed),
    )


def _interval(timed: Sequence[TimedProcess], samples: Sequence[Sequence[float]]) -> Interval:
    """Return the interval of one process, or of several by their centres.

    The reach of each process counts where its places in memory gave it.
    """
    intervals = [
        _of_process(values, process.placements)
        for values, process in zip(samples, timed, strict=True)
    ]  # fmt: skip
    if len(intervals) == 1:
        return intervals[0]
    placed = all(len(timed_row.placements) >= LEAST_PLACEMENTS for timed_row in timed)
    far = [(interval.high - interval.low) / 2 for interval in intervals] if placed else []
    return interval_of_processes([interval.centre for interval in intervals], far)


def _of_process(samples: Sequence[float], placements: Sequence[int]) -> Interval:
    """By its places in memory, where it has enough of them."""
    if len(placements) < LEAST_PLACEMENTS or sum(placements) != len(samples):
        return interval_of_samples(samples)
    ends = list(itertools.accumulate(placements))
    medians = [
        statistics.median(samples[start:end])
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
