"""A history as a document: what changed last, then every series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_workbench.reports.comparison.tables import case_text, change_text
from kernel_workbench.reports.document.fields import number, of_part, table_of, text
from kernel_workbench.reports.document.model import Cell, Column, Document, ReportPart
from kernel_workbench.reports.history.change_points import FEWEST_RUNS
from kernel_workbench.reports.history.series import FIGURES
from kernel_workbench.reports.phrases import count, figure
from kernel_workbench.reports.views.run import commit_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_workbench.reports.comparison.side import RecordSide
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Tone
    from kernel_workbench.reports.history.series import FigureSeries, LevelChange

_Item = tuple["FigureSeries", "LevelChange"]
_TELLING = 6  # characters at the end of a board's id
_NOTE = (
    "A change is a level that holds for three runs or more and that noise doesn't explain; the "
    "verdict is that of compare on the two runs between which it lies."
)


def worse(series: Iterable[FigureSeries]) -> list[_Item]:
    """The series whose last change is for the worse, each with that change."""
    last = ((each, each.changes[-1]) for each in series if each.changes)
    return [(each, change) for each, change in last if change.ratio > 1]


def told_left_out(left_out: Sequence[str]) -> str:
    """That files were no records, and why the first one isn't."""
    return f"{count(len(left_out), 'file')} left out: {left_out[0]}"


def document_of(
    series: Sequence[FigureSeries], runs: Sequence[RecordSide], left_out: Sequence[str]
) -> Document:
    """All of it. left_out: why files that were found aren't among the runs."""
    items = [(each, change) for each in series for change in each.changes]
    items.sort(key=lambda each: (each[0].runs[each[1].at].header.started_at, each[1].ratio))
    lost = worse(series)
    verdict, tone = _verdict(series)
    short = too_short(series)
    sentence = (
        f"{count(len(items), 'change')} in {len(series):,} series of {count(len(runs), 'run')}, "
        f"{len(lost):,} of which got worse last"
    )
    if all(one.is_short for one in series):
        sentence = f"{short}, of {count(len(runs), 'run')}"
    elif short:
        sentence += f"; {short}"
    tables = [
        table_of("Changes, the latest last", _change_fields(), items, _NOTE),
        *(
            table_of(
                f"Series of {suite}: {name}",
                _series_fields(),
                [each for each in series if each.line.suite == suite],
                level="details",
            )
            for suite, name in FIGURES.items()
        ),
    ]
    notes = [told_left_out(left_out)] if left_out else []
    if short:
        notes.append(f"a change shows in a series of {FEWEST_RUNS} runs or more")
    boards = {each.line.board for each in series}
    if len(boards) > 1:
        notes.append(f"{len(boards):,} boards, each with series of its own")
    dates = [each.header.started_at for each in runs]
    facts = [("runs", f"{dates[0]} to {dates[-1]}")] if dates else []
    closing = f"{sentence}; --details shows every series"
    return Document(
        "History", [ReportPart("", verdict, tone, sentence, notes, facts, tables, closing=closing)]
    )


def too_short(series: Sequence[FigureSeries]) -> str:
    """`too short to tell: 3 of 5 series`; empty where no series is too short."""
    short = sum(one.is_short for one in series)
    return f"too short to tell: {short:,} of {len(series):,} series" if short else ""


def _verdict(series: Sequence[FigureSeries]) -> tuple[str, Tone]:
    """Return the verdict and its tone, which is good only if no series is too short to tell."""
    if all(one.is_short for one in series):
        return "TOO SHORT", "doubtful"
    if worse(series):
        return "WORSE", "bad"
    changed = any(one.changes for one in series)
    return "CHANGED" if changed else "STEADY", "doubtful" if too_short(series) else "good"


def _board_and_figure(series: FigureSeries) -> str:
    line = series.line
    board = "" if line.board == line.machine else f" {line.board[-_TELLING:]}"
    return f"{line.machine}{board}, {FIGURES[line.suite]}"


def _series_of(item: _Item) -> FigureSeries:
    return item[0]


def _names() -> list[Field[FigureSeries]]:
    return [
        text("board and figure", _board_and_figure, group=True),
        text("kernel", lambda each: f"{each.line.key.op} {each.line.key.kernel}"),
        text("case", lambda each: case_text(each.line.key), below=True),
    ]


def _series_fields() -> list[Field[FigureSeries]]:
    return [
        *_names(),
        number("runs", lambda each: len(each.values)),
        number("first", lambda each: each.values[0], figure),
        number("last", lambda each: each.values[-1], figure),
        (Column("over the runs", "trend"), lambda each: Cell("", trend=each.values)),
        number("changes", lambda each: len(each.changes)),
    ]


def _change_fields() -> list[Field[_Item]]:
    return [
        *(of_part(each, _series_of) for each in _names()),
        number(
            "change",
            lambda item: item[1].ratio - 1,
            change_text,
            "of the level's median",
            tone=lambda item: "bad" if item[1].ratio > 1 else "good",
        ),
        text("verdict", lambda item: item[1].verdict),
        (
            Column("over the runs", "trend", "from the first to the last"),
            lambda item: Cell("", trend=item[0].values),
        ),
        text("between", lambda item: _between(*item), below=True),
    ]


def _between(series: FigureSeries, change: LevelChange) -> str:
    before, after = (series.runs[place].header for place in (change.at - 1, change.at))
    commits = [commit_text(each.environment) or "an unknown commit" for each in (before, after)]
    return (
        f"between {commits[0]} of {before.started_at} and {commits[1]} of {after.started_at}, "
        f"run {change.at + 1} of {len(series.runs)}"
    )
