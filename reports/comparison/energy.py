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
from reports.comparison.tables import (
    MOST,
    NAMES,
    dropped_tables,
    named,
    names,
    times,
    weighted_total,
)
from reports.document.model import Cell, Column, Part, Table
from reports.phrases import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.comparison.pairs import Pair
    from reports.comparison.side import Powered, Side
    from reports.comparison.tables import Weighed

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
    value = other.joules / base.joules
    errors = [
        each.row.energy_error_j / each.joules
        for each in (base, other)
        if each.row.energy_error_j is not None
    ]
    if len(errors) < 2 and one_board:
        return EnergyRatio(value, None)
    gain = 0.0 if one_board else BOARDS
    return EnergyRatio(value, value * math.hypot(gain, *errors))


def energy_part(base: Side, others: Sequence[Side]) -> tuple[Part, int]:
    """The part of a report on records of profile, and how many rows it has.

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
            weighted_total(base, side, map(_weighed, pairs.pairs), "mJ", _millijoules),
            *dropped_tables(pairs),
        ]
    sentence = (
        f"{count(rows, 'row')} of {named(base)} beside "
        f"{', '.join(map(named, others))}: energy of a call, power and clocks"
    )
    return Part("Energy and power", "SIDE BY SIDE", "", sentence, notes, items=tables), rows


def _table(base: Side, other: Side, pairs: Pairs[Powered], *, one_board: bool) -> Table:
    rows = []
    for pair in pairs.pairs:
        mine, its = pair.base, pair.other
        ratio = energy_ratio(mine, its, one_board=one_board)
        error = "" if ratio.error is None else f" +-{ratio.error:.2f}"
        transient = [
            side.letter
            for side, each in ((base, mine), (other, its))
            if each.row.validity == "transient"
        ]
        doubt = f" ({' and '.join(transient)} transient)" if transient else ""
        rows.append(
            (
                *names(pair.key),
                _joules(mine),
                _joules(its),
                Cell(f"{times(ratio.value)}{error} {ratio.told}{doubt}", ratio.value),
                _both(mine.row.power_w, its.row.power_w),
                _both(mine.sm_clock_mhz, its.sm_clock_mhz),
                _both(mine.row.joules_per_tflop, its.row.joules_per_tflop, digits=2),
            )
        )
    return Table(
        f"Energy of a call: {other.letter} beside {base.letter}",
        (
            *NAMES,
            Column(f"{base.letter} mJ", "number"),
            Column(f"{other.letter} mJ", "number"),
            Column("ratio", "number", "of energy, and of J/TFLOP: the flops are the same"),
            Column("W", "number", "power, of either", rank=1),
            Column("SM MHz", "number", "clock of the SMs, of either", rank=1),
            Column("J/TFLOP", "number", "of either", rank=2),
        ),
        rows,
        "Errors are of 95 %; OPEN: the error leaves open which is more.",
        most=MOST,
    )


def _weighed(pair: Pair[Powered]) -> Weighed:
    """Of the same inputs alone: the suite gives a case several, and its weight is of each."""
    key, base, other = pair.key, pair.base, pair.other
    inputs = "" if key.distribution == "normal" else f", {key.distribution} inputs"
    kernel = f"{key.kernel}{inputs}"
    return key.op, kernel, base.row.weight, other.row.weight, base.joules, other.joules


def _millijoules(joules: float) -> Cell:
    return Cell(f"{1e3 * joules:,.1f}", joules)


def _joules(side: Powered) -> Cell:
    error_j = side.row.energy_error_j
    error = "" if error_j is None else f" +-{1e3 * error_j:.2g}"
    return Cell(f"{1e3 * side.joules:.4g}{error}", side.joules)


def _both(one: float | None, other: float | None, *, digits: int = 0) -> str:
    return " / ".join("-" if each is None else f"{each:,.{digits}f}" for each in (one, other))
