"""Records of `nox -s profile` beside one another: energy of a call, power and clocks.

Boards of one model differ by 5 % in what their sensors read, so the ratio of two boards is +-7 %
before anything else: 5 % of either, in quadrature, with the measurements' own errors on top. On
one board the sensors' gain cancels, and the measurements' errors are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.comparison.pairs import Pairs, pair_energies
from reports.comparison.totals import weighted_total
from reports.comparison.words import dropped_tables, named, names, times
from reports.page import Cell, Column, Part, Table
from reports.phrases import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.comparison.pairs import Pair
    from reports.comparison.sides import Powered, Side
    from reports.comparison.totals import Weighed

BOARDS = 0.07


@dataclass(frozen=True, slots=True)
class EnergyRatio:
    """Energy of the other side over the base's, and its error: 95 %, both relative to 1."""

    value: float
    error: float | None

    @property
    def told(self) -> str:
        """LESS, MORE, or that the error leaves it open."""
        if self.error is None or abs(self.value - 1) <= self.error:
            return "OPEN"
        return "MORE" if self.value > 1 else "LESS"


def energy_ratio(base: Powered, other: Powered, *, one_board: bool) -> EnergyRatio:
    """The ratio of two rows that both have an energy.

    J/TFLOP has the same ratio, as the two rows count the same flops.
    """
    assert base.energy_j is not None
    assert other.energy_j is not None
    value = other.energy_j / base.energy_j
    errors = [
        row.energy_error_j / row.energy_j
        for row in (base, other)
        if row.energy_j is not None and row.energy_error_j is not None
    ]
    if len(errors) < 2 and one_board:
        return EnergyRatio(value, None)
    gain = 0.0 if one_board else BOARDS
    return EnergyRatio(value, value * math.hypot(gain, *errors))


def energy_part(base: Side, others: Sequence[Side]) -> tuple[Part, int]:
    """The part of a report on records of profile, and how many rows it has.

    No verdict, but a word on what the errors allow.
    """
    paired = [pair_energies(base, each) for each in others]
    tables: list[Table] = []
    notes: list[str] = []
    rows = 0
    for side, pairs in zip(others, paired, strict=True):
        one_board = base.machine.is_board_of(side.machine)
        rows += len(pairs.pairs)
        notes.append(
            f"{named(side)} and {base.letter}: one board, so errors are those of the measurements"
            if one_board
            else f"{named(side)} and {base.letter}: two boards, so an energy ratio is +-7 % before "
            "its measurement's own errors"
        )
        tables.append(_table(base, side, pairs, one_board=one_board))
        tables += weighted_total(base, side, map(_weighed, pairs.pairs), "mJ", _millijoules)
        tables += dropped_tables(pairs)
    sentence = (
        f"{count(rows, 'row')} of {named(base)} beside "
        f"{', '.join(named(each) for each in others)}: energy of a call, power and clocks"
    )
    kept = [each for each in tables if each.rows]
    return Part("Energy and power", "SIDE BY SIDE", "", sentence, notes, items=kept), rows


def _table(base: Side, other: Side, pairs: Pairs[Powered], *, one_board: bool) -> Table:
    rows = []
    for pair in pairs.pairs:
        ratio = energy_ratio(pair.base, pair.other, one_board=one_board)
        error = "" if ratio.error is None else f" +-{ratio.error:.2f}"
        transient = [
            side.letter
            for side, row in ((base, pair.base), (other, pair.other))
            if row.validity == "transient"
        ]
        doubt = f" ({' and '.join(transient)} transient)" if transient else ""
        rows.append(
            (
                *names(pair.key),
                _joules(pair.base),
                _joules(pair.other),
                Cell(f"{times(ratio.value)}{error} {ratio.told}{doubt}", ratio.value),
                _both(pair.base.power_w, pair.other.power_w),
                _both(pair.base.sm_clock_mhz, pair.other.sm_clock_mhz),
                _both(pair.base.joules_per_tflop, pair.other.joules_per_tflop, digits=2),
            )
        )
    return Table(
        f"Energy of a call: {other.letter} beside {base.letter}",
        (
            Column("kernel"),
            Column("case"),
            Column(f"{base.letter} mJ", "number"),
            Column(f"{other.letter} mJ", "number"),
            Column("ratio", "number", "of energy, and of J/TFLOP: the flops are the same"),
            Column("W", "number", "power, of either"),
            Column("SM MHz", "number", "clock of the SMs, of either"),
            Column("J/TFLOP", "number", "of either"),
        ),
        rows,
        "Errors are of 95 %; OPEN: the error leaves open which is more.",
    )


def _weighed(pair: Pair[Powered]) -> Weighed:
    """Of the same inputs alone: the suite gives a case several, and its weight is of each."""
    inputs = "" if pair.key.distribution == "normal" else f", {pair.key.distribution} inputs"
    assert pair.base.energy_j is not None
    assert pair.other.energy_j is not None
    return (
        *(pair.key.op, f"{pair.key.kernel}{inputs}", pair.base.weight, pair.other.weight),
        *(pair.base.energy_j, pair.other.energy_j),
    )


def _millijoules(joules: float) -> Cell:
    return Cell(f"{1e3 * joules:,.1f}", joules)


def _joules(row: Powered) -> Cell:
    assert row.energy_j is not None
    error = "" if row.energy_error_j is None else f" +-{1e3 * row.energy_error_j:.2g}"
    return Cell(f"{1e3 * row.energy_j:.4g}{error}", row.energy_j)


def _both(one: float | None, other: float | None, *, digits: int = 0) -> str:
    return " / ".join("-" if each is None else f"{each:,.{digits}f}" for each in (one, other))
