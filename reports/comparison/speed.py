"""Two records of one GPU model: the verdict on each row, and what they add up to.

Times are compared by the rule of `reports.comparison.rule`. FASTER and SLOWER are said of times and
confirmed in cycles; where a side has no clock of its SMs, the row says `unconfirmed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_workbench.reports.comparison.pairs import PairedRows, pair_speeds
from kernel_workbench.reports.comparison.rule import (
    EMPTY_CALLS_US,
    Judgement,
    SpeedVerdict,
    empty_calls_apart_us,
    judge,
)
from kernel_workbench.reports.comparison.tables import (
    change_text,
    dropped_tables,
    name_fields,
    renamed_notes,
    weighted_total,
)
from kernel_workbench.reports.document.fields import number, table_of, text
from kernel_workbench.reports.document.model import Cell, Column, ReportPart
from kernel_workbench.reports.phrases import count, figure, microseconds

if TYPE_CHECKING:
    from kernel_workbench.reports.comparison.pairs import RowPair
    from kernel_workbench.reports.comparison.side import RecordSide, TimedRow
    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Table, Tone

_TONES: dict[SpeedVerdict, Tone] = {
    SpeedVerdict.SLOWER: "bad",
    SpeedVerdict.FASTER: "good",
    SpeedVerdict.AMBIGUOUS: "doubtful",
    SpeedVerdict.SAME: "",
}
_NOTES = {
    SpeedVerdict.AMBIGUOUS: "More processes may tell: --rounds 4 for each record of bench, "
    "or more of --against.",
    SpeedVerdict.SAME: "Within 0.5 % where both sides ran in turn; of two records within 1 %, or "
    "0.2 us for each kernel that a call launches; of two boards within 4 %, or 0.4 us a launch; or "
    "within the timer's step.",
}


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A pair of rows, and the verdict on it."""

    pair: RowPair[TimedRow]
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Speeds:
    """The rows of one side, compared with the base's."""

    rows: tuple[ComparedRow, ...]
    pairs: PairedRows[TimedRow]

    def of(self, verdict: SpeedVerdict) -> list[ComparedRow]:
        """Return the rows with this verdict, the largest change first."""
        result = [compared for compared in self.rows if compared.judgement.verdict is verdict]
        return sorted(result, key=lambda item: -abs(item.judgement.change))


def compare_speeds(base: RecordSide, other: RecordSide) -> Speeds:
    """Hold every row of `other` against the base's."""
    pairs = pair_speeds(base, other, dispatched=True)
    one_board = base.machine.is_board_of(other.machine)
    apart_us = _apart_us(base, other)
    compared = [
        ComparedRow(
            pair,
            judge(
                pair.base.needed_evidence,
                pair.other.needed_evidence,
                one_board=one_board,
                empty_calls_us=apart_us,
            ),
        )
        for pair in pairs.pairs
    ]
    return Speeds(tuple(compared), pairs)


def speed_part(base: RecordSide, other: RecordSide, speeds: Speeds) -> ReportPart:
    """Return the part of a report on two records of one model."""
    rows = {verdict: speeds.of(verdict) for verdict in _TONES}
    numbers = {verdict: len(of_verdict) for verdict, of_verdict in rows.items()}
    verdict, tone = _verdict(numbers)
    sentence = (
        f"of {count(len(speeds.rows), 'row')}, {numbers[SpeedVerdict.SLOWER]:,} slower, "
        f"{numbers[SpeedVerdict.FASTER]:,} faster, {numbers[SpeedVerdict.SAME]:,} the same, "
        f"{numbers[SpeedVerdict.AMBIGUOUS]:,} ambiguous; {len(speeds.pairs.refused):,} refused, "
        f"{len(speeds.pairs.unmatched):,} in one record alone"
    )
    tables = [
        *(_table(base, other, of_verdict, item) for item, of_verdict in rows.items()),
        weighted_total(base, other, speeds.pairs, lambda row: row.time_us, "us", microseconds),
        *dropped_tables(speeds.pairs),
    ]
    title = f"Speed: {other.letter} beside {base.letter}, on one model: {base.machine.name}"
    return ReportPart(title, verdict, tone, sentence, _notes(base, other, speeds), items=tables)


def _verdict(numbers: dict[SpeedVerdict, int]) -> tuple[str, Tone]:
    for verdict in (
        SpeedVerdict.SLOWER,
        SpeedVerdict.FASTER,
        SpeedVerdict.SAME,
        SpeedVerdict.AMBIGUOUS,
    ):
        if numbers[verdict]:
            return str(verdict), _TONES[verdict] or "good"
    return "NOTHING COMPARED", "doubtful"


def _notes(base: RecordSide, other: RecordSide, speeds: Speeds) -> list[str]:
    """Return notes on the evidence of the verdicts, and on the machines' own share of a time."""
    notes = []
    if speeds.rows:
        mine = _timed_by(base, [compared.pair.base for compared in speeds.rows])
        its = _timed_by(other, [compared.pair.other for compared in speeds.rows])
        notes.append(f"timed: {mine}, {its}; changes are of the time, relative to {base.letter}")
    one_board, apart_us = base.machine.is_board_of(other.machine), _apart_us(base, other)
    if not one_board:
        notes.append(
            "two boards: cards of one model differ by up to 4 % on one kernel, so less is the same"
        )
    ours_us, its_us = base.empty_call_us, other.empty_call_us
    if apart_us and ours_us is not None and its_us is not None:
        notes.append(
            f"an empty call takes {figure(ours_us)} us on {base.letter}'s machine and "
            f"{figure(its_us)} us on {other.letter}'s: changes are without the "
            "difference, times and totals with it"
        )
    elif apart_us is None and not one_board:
        notes.append(
            "a record doesn't tell what an empty call takes on its machine, which may be "
            f"{EMPTY_CALLS_US} us of a time: so much less or more is the same"
        )
    notes += renamed_notes(base, other, speeds.pairs)
    replaced = sum(", then " in compared.pair.key.kernel for compared in speeds.rows)
    if replaced:
        notes.append(
            f"{count(replaced, 'row')} of two kernels, `old, then new`: dispatch took the old one "
            f"in {base.letter} and takes the new one in {other.letter}"
        )
    unconfirmed = sum(compared.judgement.is_unconfirmed for compared in speeds.rows)
    if unconfirmed:
        notes.append(
            f"{count(unconfirmed, 'row')} unconfirmed in cycles: a record has no clock of the SMs"
        )
    return notes


def _apart_us(base: RecordSide, other: RecordSide) -> float | None:
    """By how much an empty call takes longer on the other's machine; None: not known.

    On a CPU it is no more than the noise of a call, and nothing that others have a part of.
    """
    if "cpu" in (base.header.environment.device, other.header.environment.device):
        return 0.0
    return empty_calls_apart_us(base.empty_call_us, other.empty_call_us)


def _timed_by(side: RecordSide, rows: list[TimedRow]) -> str:
    """Return how many processes there are: samples of one aren't independent."""
    numbers = {row.needed_evidence.processes for row in rows}
    least, most = min(numbers), max(numbers)
    if most == 0:
        return f"{side.letter} by figures without samples"
    many = f"{most:,} {'process' if most == 1 else 'processes'}"
    return f"{side.letter} by {many if least == most else f'{least:,} to {many}'}"


def _table(
    base: RecordSide, other: RecordSide, rows: list[ComparedRow], verdict: SpeedVerdict
) -> Table:
    fields: list[Field[ComparedRow]] = [
        *name_fields(lambda compared: compared.pair.key),
        number(f"{base.letter} us", lambda compared: compared.pair.base.time_us, microseconds),
        number(f"{other.letter} us", lambda compared: compared.pair.other.time_us, microseconds),
        number(
            "change",
            lambda compared: compared.judgement.change,
            change_text,
            tone=lambda _: _TONES[verdict],
        ),
        (Column("cycles", "number", "the change in cycles of the SMs"), _in_cycles),
        text("why", lambda compared: compared.judgement.reason or "", below=True, rank=1),
    ]
    return table_of(
        f"{verdict}, {other.letter} beside {base.letter}",
        fields,
        rows,
        _NOTES.get(verdict, ""),
        folded=verdict is SpeedVerdict.SAME,
        least=3 if verdict is SpeedVerdict.SLOWER else 0,
    )


def _in_cycles(held: ComparedRow) -> Cell:
    if held.judgement.is_unconfirmed:
        return Cell("unconfirmed", tone="doubtful")
    change = held.judgement.cycles_change
    return Cell("-") if change is None else Cell(change_text(change), change)
