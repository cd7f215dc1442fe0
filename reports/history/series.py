"""The records of a folder as series: one figure of one row on one board, run after run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from kernel_workbench.reports.comparison.accuracy import accuracy_changes
from kernel_workbench.reports.comparison.energy import energy_ratio
from kernel_workbench.reports.comparison.side import read_sides
from kernel_workbench.reports.comparison.speed import compare_speeds
from kernel_workbench.reports.history.branch import KINDS
from kernel_workbench.reports.history.change_points import FEWEST_RUNS, change_points
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kernel_workbench.reports.comparison.side import Key, RecordSide

# The figure that is followed in a suite: its name and unit. More is worse.
FIGURES = {"bench": "time, us", "profile": "energy, J", "accuracy": "error / bound"}
# The verdict on each row of two runs of bench, which are told by their ids.
_Speeds = dict[tuple[int, int], dict["Key", str]]
_LEAST = 1e-6  # of an error over its bound: below it nothing is told


class SeriesKey(NamedTuple):
    """The suite, board and row that a series is of."""

    suite: str
    machine: str
    board: str
    protocol: int
    key: Key


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A new level of a series.

    Attributes:
        at: the place of its first run.
        ratio: the new level over the old one.
        verdict: of `compare` on the runs before and after it.
    """

    at: int
    ratio: float
    verdict: str


@dataclass(frozen=True, slots=True)
class FigureSeries:
    """Figures in the order of their runs, and where they change."""

    line: SeriesKey
    runs: tuple[RecordSide, ...]
    values: tuple[float, ...]
    gates: bool
    changes: tuple[LevelChange, ...]

    @property
    def is_short(self) -> bool:
        """Return True if the series has too few runs for a change to show."""
        return len(self.values) < FEWEST_RUNS

    @property
    def got_worse(self) -> bool:
        """Return True if the last change is for the worse."""
        return bool(self.changes) and self.changes[-1].ratio > 1


def records_in(folders: Iterable[Path]) -> list[Path]:
    """Return all records of the folders and below, and records that are named themselves."""
    result: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise RecordError(f"{shown(folder)}: there is no such file or folder")
        inside = [folder]
        if folder.is_dir():
            inside = [path for kind in KINDS for path in folder.rglob(f"*{kind}")]
        result |= dict.fromkeys(sorted(inside))
    return list(result)


def read_runs(paths: Iterable[Path]) -> tuple[list[RecordSide], list[str]]:
    """Return the runs that measured figures, the earliest first, and why files are left out."""
    runs: list[RecordSide] = []
    left_out = []
    for path in paths:
        try:
            sides = read_sides(path)
        except RecordError as error:
            left_out.append(str(error))
            continue
        runs += [side for side in sides if side.suite in FIGURES and side.figures == "measured"]
    return sorted(runs, key=lambda item: item.header.started_at), left_out


def series_of(runs: Iterable[RecordSide]) -> list[FigureSeries]:
    """Return a series for each figure that two runs have, with its changes.

    Example:
        >>> runs, _ = read_runs(records_in([Path("results")]))
        >>> [series.line.key.kernel for series in series_of(runs) if series.changes]
    """
    lines: dict[SeriesKey, list[tuple[RecordSide, float, bool]]] = defaultdict(list)
    for run in runs:
        for key, value, gates in _figures(run):
            board = run.machine.board or run.machine.name
            line = SeriesKey(run.suite, run.machine.name, board, run.header.protocol, key)
            lines[line].append((run, value, gates))
    created = []
    speeds: _Speeds = {}
    for line, points in lines.items():
        if len(points) < 2:
            continue
        sides, values, all_gate = zip(*points, strict=True)
        changes = _changes(line, sides, values, speeds)
        created.append(FigureSeries(line, sides, values, all_gate[-1], changes))
    return created


def _figures(run: RecordSide) -> Iterator[tuple[Key, float, bool]]:
    """Yield the figures of a run that are numbers above zero, and whether they gate."""
    for key, timed in run.speeds.items():
        if timed.evidence is not None and timed.row.status == "timed":
            yield key, timed.time_us, timed.row.gates
    for key, powered in run.energies.items():
        if powered.lack("") is None and powered.joules > 0:
            yield key, powered.joules, powered.row.gates
    if run.suite == "accuracy":
        for key, judged in run.judged.items():
            if judged.status == "passed" and judged.worst_ratio is not None:
                yield key, max(judged.worst_ratio, _LEAST), judged.gates


def _changes(
    line: SeriesKey, runs: tuple[RecordSide, ...], values: tuple[float, ...], speeds: _Speeds
) -> tuple[LevelChange, ...]:
    places = change_points(values)
    levels = [median(values[one:other]) for one, other in pairwise([0, *places, len(values)])]
    return tuple(
        LevelChange(at, after / before, _verdict(line, runs[at - 1], runs[at], speeds))
        for at, (before, after) in zip(places, pairwise(levels), strict=True)
    )


def _verdict(line: SeriesKey, before: RecordSide, after: RecordSide, speeds: _Speeds) -> str:
    """Return the verdict of `compare` on the row in these two records."""
    key, (before.letter, after.letter) = line.key, "AB"
    if line.suite == "bench":
        runs = id(before), id(after)
        if runs not in speeds:
            compared = compare_speeds(before, after).rows
            speeds[runs] = {row.pair.key: str(row.judgement.verdict) for row in compared}
        return speeds[runs].get(key, "NOT COMPARED")
    if line.suite == "profile":
        one_board = before.machine.is_board_of(after.machine)
        rows = before.energies[key], after.energies[key]
        return energy_ratio(*rows, one_board=one_board).word
    changes, _ = accuracy_changes(before, after)
    return next((change.kind for change in changes if change.key == key), "AS ACCURATE")
