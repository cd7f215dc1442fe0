"""The matrices of a terminal report: kernels down, layouts or options across, no word cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from reports.record import shown
from reports.summary import matrices
from reports.tables import GAP, heading, new_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from reports.record import Record
    from reports.summary import Cell, KernelSummary, Key, Matrix

LEGEND = (
    "Each cell: the largest error / deterministic bound of its cases, at most 1 passes; "
    "FAIL p: of the probabilistic bound; FAIL e: of what an emulation's errors allow; no power: "
    "bounds that say nothing; refused: outside what the kernel serves; -: no case."
)
_NOT_GATING = " not gating"
_LEAST_COLUMNS = 20  # a narrower first column folds names past reading


def render_matrices(record: Record, console: Console, summaries: Sequence[KernelSummary]) -> None:
    """Print every matrix of the record, and what their cells mean."""
    ungated = {(each.op, each.name) for each in summaries if not each.gates}
    every = matrices(record)
    for matrix in every:
        heading(console, f"{shown(matrix.op)}: {matrix.title}")
        for part, families in enumerate(_fitting(matrix, ungated, console.width)):
            if part:
                console.print()
            console.print(_matrix_table(matrix, families, ungated))
    if every:
        console.print()
        console.print(Text(LEGEND, style="dim"))


def _first_column(matrix: Matrix, ungated: set[Key]) -> int:
    names = [
        shown(name) + _NOT_GATING * ((matrix.op, name) in ungated) for name, _ in matrix.kernels
    ]
    dtypes = [f"  {shown(dtype)}" for _, kinds in matrix.kernels for dtype in kinds]
    return max(map(cell_len, [*names, *dtypes, "kernel, dtype"]))


def _fitting(matrix: Matrix, ungated: set[Key], width: int) -> list[list[str]]:
    """The families, split into as many tables as it takes for no word to be cut."""
    least = max(_LEAST_COLUMNS, width // 2)
    room = max(1, width - min(_first_column(matrix, ungated), least) - GAP)
    needs = {
        family: max(
            cell_len(text)
            for text in [
                shown(family),
                *(cell.text for (_, _, where), cell in matrix.cells.items() if where == family),
            ]
        )
        + GAP
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


def _matrix_table(matrix: Matrix, families: Sequence[str], ungated: set[Key]) -> Table:
    table = new_table()
    alone = all(dtypes == ("",) for _, dtypes in matrix.kernels)
    table.add_column("kernel" if alone else "kernel, dtype", overflow="fold")
    for family in families:
        table.add_column(Text(shown(family)), justify="right", overflow="fold")
    for name, dtypes in matrix.kernels:
        label = Text(shown(name), style="" if alone else "bold")
        if (matrix.op, name) in ungated:
            label.append(_NOT_GATING, style="not bold dim")
        rows = {
            dtype: [_cell_text(matrix.cells.get((name, dtype, each))) for each in families]
            for dtype in dtypes
        }
        if alone:
            table.add_row(label, *rows[""])
            continue
        table.add_row(label)
        for dtype, cells in rows.items():
            table.add_row(Text(f"  {shown(dtype)}"), *cells)
    return table


def _cell_text(cell: Cell | None) -> Text:
    if cell is None:
        return Text("-", style="dim")
    if cell.status in {"refused", "no power"}:
        return Text(cell.text, style="dim")
    if cell.status == "failed":
        return Text(cell.text, style="bold red" if cell.gates else "yellow")
    return Text(cell.text, style="green")
