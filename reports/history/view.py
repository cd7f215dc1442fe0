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
    from collections.abc import Sequence

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


def told_left_out(left_out: Sequence[str]) -> str:
    """That files were no records, and why the first one isn't."""
    return f"{count(len(left_out), 'file')} left out: {left_out[0]}"


def document_of(
    series: Sequence[FigureSeries], runs: Sequence[RecordSide], left_out: Sequence[str]
) -> Document:
    """Return all of it. left_out: why files that were found aren't among the runs."""
    items = [(one_series, change) for one_series in series for change in one_series.changes]
    items.sort(key=lambda item: (item[0].runs[item[1].at].header.started_at, item[1].ratio))
    verdict, tone = _verdict(series)
    short = too_short(series)
    sentence = (
        f"{count(len(items), 'change')} in {len(series):,} series of {count(len(runs), 'run')}, "
        f"{sum(one.got_worse for one in series):,} of which got worse last"
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
                [one_series for one_series in series if one_series.line.suite == suite],
                level="details",
            )
            for suite, name in FIGURES.items()
        ),
    ]
    notes = [told_left_out(left_out)] if left_out else []
    if short:
        notes.append(f"a change shows in a series of {FEWEST_RUNS} runs or more")
    boards = {one_series.line.board for one_series in series}
    if len(boards) > 1:
        notes.append(f"{len(boards):,} boards, each with series of its own")
    dates = [run.header.started_at for run in runs]
    facts = [("runs", f"{dates[0]} to {dates[-1]}")] if dates else []
    closing = f"{sentence}; --details shows every series"
    return Document(
        "History", [ReportPart("", verdict, tone, sentence, notes, facts, tables, closing=closing)]
    )


def too_short(series: Sequence[FigureSeries]) -> str:
    """Return `too short to tell: 3 of 5 series`; empty where no series is too short."""
    short = sum(one.is_short for one in series)
    return f"too short to tell: {short:,} of {len(series):,} series" if short else ""


def _verdict(series: Sequence[FigureSeries]) -> tuple[str, Tone]:
    """Return the verdict and its tone, which is good only if no series is too short to tell."""
    if all(one.is_short for one in series):
        return "TOO SHORT", "doubtful"
    if any(one.got_worse for one in series):
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
        text("kernel", lambda series: f"{series.line.key.op} {series.line.key.kernel}"),
        text("case", lambda series: case_text(series.line.key), below=True),
    ]


def _series_fields() -> list[Field[FigureSeries]]:
    return [
        *_names(),
        number("runs", lambda series: len(series.values)),
        number("first", lambda series: series.values[0], figure),
        number("last", lambda series: series.values[-1], figure),
        (Column("over the runs", "trend"), lambda series: Cell("", trend=series.values)),
        number("changes", lambda series: len(series.changes)),
    ]


def _change_fields() -> list[Field[_Item]]:
    return [
        *(of_part(name, _series_of) for name in _names()),
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
    commits = [commit_text(item.environment) or "an unknown commit" for item in (before, after)]
    return (
        f"between {commits[0]} of {before.started_at} and {commits[1]} of {after.started_at}, "
        f"run {change.at + 1} of {len(series.runs)}"
    )
