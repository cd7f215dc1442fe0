"""A record of the suite `accuracy` on a terminal: the verdict first, then why to believe it.

Every text of a record is shown literally: as a rich `Text`, never as markup, and with control
characters spelled out. Status words stand beside the colours, so that it reads without them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.headline import environment_lines, headline, total_duration
from reports.phrases import count, duration, ratio
from reports.record import shown
from reports.summary import (
    failing_output,
    failures,
    kernel_summaries,
    matrices,
    nearest_passes,
    refusals,
    short_case,
    slowest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from reports.headline import Verdict
    from reports.record import Record
    from reports.schema import AccuracyRow
    from reports.summary import Cell, KernelSummary, Matrix, Worst

LEGEND = (
    "Each cell: the largest error / deterministic bound of its cases, at most 1 passes; "
    "FAIL p: of the probabilistic bound; refused: outside what the kernel serves; -: no case."
)
_VERDICT_STYLE: dict[Verdict, str] = {
    "PASSED": "bold white on green",
    "FAILED": "bold white on red",
    "INCOMPLETE": "bold black on yellow",
    "NOT GATED": "bold black on yellow",
}
_NOT_GATING = " not gating"
_GAP = 2  # spaces between columns
_LEAST_COLUMNS = 20  # a narrower first column folds names past reading


def render(record: Record, console: Console, *, most_failures: int = 10) -> None:
    """Print the report. Commands to reproduce a row are not wrapped, so that they can be copied."""
    summaries = kernel_summaries(record)
    render_outline(record, console)
    _margins(console, summaries)
    _refusals(record, console)
    _failures(record, console, most_failures)
    _nearest(record, console)
    _times(record, console)


def render_outline(record: Record, console: Console) -> None:
    """Print the report's head: the verdict, the environment, the matrix and the kernels."""
    summaries = kernel_summaries(record)
    _headline(record, console)
    _labelled(console, environment_lines(record))
    _matrices(record, console, summaries)
    _kernels(console, summaries)


def _headline(record: Record, console: Console) -> None:
    line = headline(record)
    console.print(
        Text.assemble((f" {line.verdict} ", _VERDICT_STYLE[line.verdict]), f" {line.sentence}")
    )
    for note in line.notes:
        console.print(Padding(Text(shown(note), overflow="fold"), (0, 0, 0, 2)))
    console.print()


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _labelled(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(Text(shown(label)), Text(shown(text)))
    console.print(table)


def _table() -> Table:
    return Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="italic",  # bold is the heading's, right above
    )


def _matrices(record: Record, console: Console, summaries: Sequence[KernelSummary]) -> None:
    ungated = {(each.op, each.name) for each in summaries if not each.gates}
    every = matrices(record)
    for matrix in every:
        _heading(console, f"{shown(matrix.op)}: error / bound by dtype and layout")
        for families in _fitting(matrix, ungated, console.width):
            console.print(_matrix_table(matrix, families, ungated))
            console.print()
    if every:
        console.print(Text(LEGEND, style="dim"))


def _first_column(matrix: Matrix, ungated: set[tuple[str, str]]) -> int:
    names = [
        shown(name) + _NOT_GATING * ((matrix.op, name) in ungated) for name, _ in matrix.kernels
    ]
    dtypes = [f"  {shown(dtype)}" for _, kinds in matrix.kernels for dtype in kinds]
    return max(map(cell_len, names + dtypes))


def _fitting(matrix: Matrix, ungated: set[tuple[str, str]], width: int) -> list[list[str]]:
    """The families, split into as many tables as it takes for no word to be cut."""
    least = max(_LEAST_COLUMNS, width // 2)
    room = max(1, width - min(_first_column(matrix, ungated), least) - _GAP)
    needs = {
        family: max(
            cell_len(text)
            for text in [
                shown(family),
                *(cell.text for (_, _, where), cell in matrix.cells.items() if where == family),
            ]
        )
        + _GAP
        for family in matrix.families
    }
    parts = _filled(needs, room)
    # As few tables as can be, and of those the ones of nearest width: no last table of one column.
    narrowest = next(
        limit for limit in range(1, room + 1) if len(_filled(needs, limit)) == len(parts)
    )
    return _filled(needs, narrowest)


def _filled(needs: dict[str, int], room: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    used = 0
    for family, needed in needs.items():
        if parts[-1] and used + needed > room:
            parts.append([])
            used = 0
        parts[-1].append(family)
        used += needed
    return parts


def _matrix_table(matrix: Matrix, families: Sequence[str], ungated: set[tuple[str, str]]) -> Table:
    table = _table()
    table.add_column("kernel, dtype", overflow="fold")
    for family in families:
        table.add_column(Text(shown(family)), justify="right", overflow="fold")
    for name, dtypes in matrix.kernels:
        label = Text(shown(name), style="bold")
        if (matrix.op, name) in ungated:
            label.append(_NOT_GATING, style="not bold dim")
        table.add_row(label)
        for dtype in dtypes:
            cells = (matrix.cells.get((name, dtype, family)) for family in families)
            table.add_row(Text(f"  {shown(dtype)}"), *map(_cell_text, cells))
    return table


def _cell_text(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-", style="dim")
    if cell.status == "refused":
        return Text(cell.text, style="dim")
    if cell.status == "failed":
        return Text(cell.text, style="bold red" if cell.gates else "yellow")
    return Text(cell.text, style="green")


def _kernels(console: Console, summaries: Sequence[KernelSummary]) -> None:
    if not summaries:
        return
    _heading(console, "Kernels")
    table = _table()
    table.add_column("kernel", overflow="fold")
    table.add_column("origin", overflow="fold")
    for title in ("ran", "passed", "failed", "refused"):
        table.add_column(title, justify="right")
    for each in summaries:
        failed = Text(f"{each.failed:,}")
        if each.failed:
            failed.stylize("bold red" if each.gates else "yellow")
        origin = each.origin if each.gates or not each.ran else f"{each.origin}, not gating"
        table.add_row(
            Text(shown(each.name)),
            Text(shown(origin)),
            f"{each.ran:,}",
            f"{each.passed:,}",
            failed,
            f"{each.refused:,}",
        )
    console.print(table)
    declared = [(each.name, each.declares) for each in summaries if each.declares]
    if declared:
        console.print()
        console.print(Text("Declared arithmetic that differs from a plain kernel's:", style="dim"))
        _labelled(console, declared)


def _margins(console: Console, summaries: Sequence[KernelSummary]) -> None:
    lines = [
        (each.name, bound, found)
        for each in summaries
        for bound, found in (
            ("deterministic", each.deterministic),
            ("probabilistic", each.probabilistic),
        )
        if found is not None
    ]
    if not lines:
        return
    _heading(console, "Largest error / bound of each kernel")
    table = _table()
    table.add_column("kernel, bound", overflow="fold")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("output", overflow="fold")
    table.add_column("case", overflow="fold")
    previous = ""
    for name, bound, found in lines:
        if name != previous:
            table.add_row(Text(shown(name), style="bold"))
        table.add_row(
            Text(f"  {bound}"),
            _ratio_text(found),
            Text(shown(found.output)),
            Text(shown(short_case(found.row))),
        )
        previous = name
    console.print(table)


def _ratio_text(found: Worst) -> Text:
    within = found.ratio <= 1  # false for NaN
    return Text(ratio(found.ratio), style="green" if within else "bold red")


def _refusals(record: Record, console: Console) -> None:
    groups = refusals(record)
    if not groups:
        return
    _heading(console, "Refused: outside what a kernel says it serves (N: a number that varies)")
    table = _table()
    table.add_column("kernel", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("reason, and one case", overflow="fold")
    previous = ""
    for group in groups:
        reason = Text(shown(group.reason))
        reason.append(f"\n  {shown(short_case(group.example))}", style="dim")
        name = "" if group.kernel == previous else shown(group.kernel)
        table.add_row(Text(name), f"{group.count:,}", reason)
        previous = group.kernel
    console.print(table)


def _failures(record: Record, console: Console, most: int) -> None:
    groups = failures(record, most)
    if not groups:
        return
    _heading(console, "Failures")
    for group in groups:
        title = Text(f"{shown(group.kernel)}: {shown(group.rule)}, ")
        title.append(count(len(group.rows), "row"))
        title.stylize("bold red" if group.gates else "yellow")
        title.append("" if group.gates else ", not gating")
        console.print(title)
        for row in group.rows[: group.shown]:
            _failure(row, console)
        hidden = len(group.rows) - group.shown
        if hidden:
            console.print(Text(f"  {count(hidden, 'more row')} not shown", style="dim"))


def _failure(row: AccuracyRow, console: Console) -> None:
    _indented(console, shown(row.case.id))
    text = row.reason or failing_output(row)
    if text is not None:
        _indented(console, shown(text), by=4)
    _command(console, row)


def _indented(console: Console, text: str, *, by: int = 2) -> None:
    console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, by), expand=False))


def _command(console: Console, row: AccuracyRow) -> None:
    console.print(Text(f"    {shown(row.reproduce)}", style="cyan"), soft_wrap=True)


def _nearest(record: Record, console: Console) -> None:
    found = nearest_passes(record)
    if not found:
        return
    _heading(console, "The worst cases that pass")
    for row, bound, each in found:
        _indented(
            console,
            f"{ratio(each.ratio)} of the {bound}, {shown(each.output)} of "
            f"{shown(row.kernel)} on {shown(short_case(row))}",
        )
        _command(console, row)


def _times(record: Record, console: Console) -> None:
    _heading(console, f"Time taken: {total_duration(record)}")
    rows = slowest(record)
    if not rows:
        return
    table = _table()
    table.add_column("row", justify="right", no_wrap=True)
    table.add_column("first call", justify="right", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    table.add_column("slowest cases", overflow="fold")
    for row in rows:
        call = "-" if row.call_s is None or math.isnan(row.call_s) else duration(row.call_s)
        table.add_row(
            duration(row.duration_s), call, Text(shown(row.kernel)), Text(shown(short_case(row)))
        )
    console.print(table)
