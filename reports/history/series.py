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
from kernel_workbench.reports.comparison.speed import hold
from kernel_workbench.reports.history.branch import KINDS
from kernel_workbench.reports.history.change_points import FEWEST_RUNS, change_points
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kernel_workbench.reports.comparison.side import Key, RecordSide

# What is followed of each suite: the figure's name and unit. More of each is worse.
FIGURES = {"bench": "time, us", "profile": "energy, J", "accuracy": "error / bound"}
# The verdict on each row of two runs of bench, which are told by their ids.
_Speeds = dict[tuple[int, int], dict["Key", str]]
_LEAST = 1e-6  # of an error over its bound: below it nothing is told


class SeriesKey(NamedTuple):
    """What a series is of."""

    suite: str
    machine: str
    board: str
    protocol: int
    key: Key


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A new level of a series.

    at       the place of its first run
    ratio    the new level over the old one
    verdict  of `compare` on the runs before and after it
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
        """Whether the series has too few runs for a change to show."""
        return len(self.values) < FEWEST_RUNS


def records_in(folders: Iterable[Path]) -> list[Path]:
    """All records of the folders and below, and records that are named themselves."""
    found: dict[Path, None] = {}
    for each in folders:
        if not each.exists():
            raise RecordError(f"{shown(each)}: there is no such file or folder")
        inside = [each]
        if each.is_dir():
            inside = [path for kind in KINDS for path in each.rglob(f"*{kind}")]
        found |= dict.fromkeys(sorted(inside))
    return list(found)


def read_runs(paths: Iterable[Path]) -> tuple[list[RecordSide], list[str]]:
    """The runs that measured something, the earliest first, and why other files are left out."""
    runs: list[RecordSide] = []
    left_out = []
    for path in paths:
        try:
            sides = read_sides(path)
        except RecordError as error:
            left_out.append(str(error))
            continue
        runs += [each for each in sides if each.suite in FIGURES and each.figures == "measured"]
    return sorted(runs, key=lambda each: each.header.started_at), left_out


def series_of(runs: Iterable[RecordSide]) -> list[FigureSeries]:
    """A series for each figure that two runs have, with its changes."""
    lines: dict[SeriesKey, dict[int, tuple[RecordSide, float, bool]]] = defaultdict(dict)
    for run in runs:
        for key, value, gates in _figures(run):
            board = run.machine.board or run.machine.name
            line = SeriesKey(run.suite, run.machine.name, board, run.header.protocol, key)
            lines[line][id(run)] = run, value, gates
    made = []
    speeds: _Speeds = {}
    for line, points in lines.items():
        if len(points) < 2:
            continue
        sides = tuple(run for run, _, _ in points.values())
        values = tuple(value for _, value, _ in points.values())
        *_, (_, _, gates) = points.values()
        changes = _changes(line, sides, values, speeds)
        made.append(FigureSeries(line, sides, values, gates, changes))
    return made


def _figures(run: RecordSide) -> Iterator[tuple[Key, float, bool]]:
    """The figures of a run that are numbers above zero, and whether they gate."""
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
    """What `compare` says of the row in these two records."""
    key, (before.letter, after.letter) = line.key, "AB"
    if line.suite == "bench":
        runs = id(before), id(after)
        if runs not in speeds:
            held = hold(before, after).held
            speeds[runs] = {each.pair.key: str(each.judgement.verdict) for each in held}
        return speeds[runs].get(key, "NOT COMPARED")
    if line.suite == "profile":
        one_board = before.machine.is_board_of(after.machine)
        rows = before.energies[key], after.energies[key]
        return energy_ratio(*rows, one_board=one_board).told
    changed = (each for each in accuracy_changes(before, after)[0] if each.key == key)
    return next((each.kind for each in changed), "AS ACCURATE")
