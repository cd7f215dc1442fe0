"""Records of `profile` beside one another: energy of a call, power and clocks.

Boards of one model differ by 5 % in what their sensors read, so the ratio of two boards is +-7 %
before anything else: 5 % of either, in quadrature, with the measurements' own errors on top. On
one board the sensors' gain cancels, and the measurements' errors are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_workbench.reports.comparison.pairs import PairedRows, pair_energies
from kernel_workbench.reports.comparison.tables import (
    dropped_tables,
    name_fields,
    named,
    weighted_total,
)
from kernel_workbench.reports.document.fields import table_of
from kernel_workbench.reports.document.model import Cell, Column, ReportPart
from kernel_workbench.reports.phrases import count, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernel_workbench.reports.comparison.pairs import RowPair
    from kernel_workbench.reports.comparison.side import EnergyRow, RecordSide
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Table

BOARDS = 0.07


@dataclass(frozen=True, slots=True)
class EnergyRatio:
    """Energy of the other side over the base's, and its error: 95 %, both relative to 1."""

    value: float
    error: float | None

    @property
    def word(self) -> str:
        """LESS, MORE, or that the error leaves it open."""
        if self.error is None or abs(self.value - 1) <= self.error:
            return "OPEN"
        return "MORE" if self.value > 1 else "LESS"


def energy_ratio(base: EnergyRow, other: EnergyRow, *, one_board: bool) -> EnergyRatio:
    """Return the ratio of two rows that both have an energy.

    J/TFLOP has the same ratio, as the two rows count the same flops.
    """
    value = other.joules / base.joules
    errors = [
        row.row.energy_error_j / row.joules
        for row in (base, other)
        if row.row.energy_error_j is not None
    ]
    if len(errors) < 2 and one_board:
        return EnergyRatio(value, None)
    gain = 0.0 if one_board else BOARDS
    return EnergyRatio(value, value * math.hypot(gain, *errors))


def energy_part(base: RecordSide, others: Sequence[RecordSide]) -> tuple[ReportPart, int]:
    """Return the part of a report on records of profile, and how many rows it has.

    No verdict, but a word on what the errors allow.
    """
    tables: list[Table] = []
    notes: list[str] = []
    rows = 0
    for side in others:
        pairs = pair_energies(base, side)
        one_board = base.machine.is_board_of(side.machine)
        rows += len(pairs.pairs)
        of_boards = (
            "one board, so errors are those of the measurements"
            if one_board
            else "two boards, so an energy ratio is +-7 % before its measurement's own errors"
        )
        notes.append(f"{named(side)} and {base.letter}: {of_boards}")
        tables += [
            _table(base, side, pairs, one_board=one_board),
            weighted_total(base, side, pairs, lambda row: row.joules, "mJ", _millijoules),
            *dropped_tables(pairs),
        ]
    sentence = (
        f"{count(rows, 'row')} of {named(base)} beside "
        f"{', '.join(map(named, others))}: energy of a call, power and clocks"
    )
    return ReportPart("Energy and power", "SIDE BY SIDE", "", sentence, notes, items=tables), rows


def _table(
    base: RecordSide, other: RecordSide, pairs: PairedRows[EnergyRow], *, one_board: bool
) -> Table:
    def ratio(pair: RowPair[EnergyRow]) -> Cell:
        energies = energy_ratio(pair.base, pair.other, one_board=one_board)
        error = "" if energies.error is None else f" +-{energies.error:.2f}"
        transient = [
            side.letter
            for side, row in ((base, pair.base), (other, pair.other))
            if row.row.validity == "transient"
        ]
        doubt = f" ({' and '.join(transient)} transient)" if transient else ""
        return Cell(f"{times(energies.value)}{error} {energies.word}{doubt}", energies.value)

    def both(
        title: str, value: Callable[[EnergyRow], float | None], note: str, *, rank: int, digits: int
    ) -> Field[RowPair[EnergyRow]]:
        def cell(pair: RowPair[EnergyRow]) -> str:
            values = (value(pair.base), value(pair.other))
            return " / ".join("-" if value is None else f"{value:,.{digits}f}" for value in values)

        return Column(title, "number", note, rank=rank), cell

    fields: list[Field[RowPair[EnergyRow]]] = [
        *name_fields(lambda pair: pair.key),
        (Column(f"{base.letter} mJ", "number"), lambda pair: _joules(pair.base)),
        (Column(f"{other.letter} mJ", "number"), lambda pair: _joules(pair.other)),
        (Column("ratio", "number", "of energy, and of J/TFLOP: the flops are the same"), ratio),
        both("W", lambda item: item.row.power_w, "power, of either", rank=1, digits=0),
        both("SM MHz", lambda item: item.sm_clock_mhz, "clock, of either", rank=1, digits=0),
        both("J/TFLOP", lambda item: item.row.joules_per_tflop, "of either", rank=2, digits=2),
    ]
    return table_of(
        f"Energy of a call: {other.letter} beside {base.letter}",
        fields,
        pairs.pairs,
        "Errors are of 95 %; OPEN: the error leaves open which is more.",
    )


def _millijoules(joules: float) -> str:
    return f"{1e3 * joules:,.1f}"


def _joules(side: EnergyRow) -> Cell:
    error_j = side.row.energy_error_j
    error = "" if error_j is None else f" +-{1e3 * error_j:.2g}"
    return Cell(f"{1e3 * side.joules:.4g}{error}", side.joules)
