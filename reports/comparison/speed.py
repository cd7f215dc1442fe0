"""Two records of one GPU model: the verdict on each row, and what they add up to.

Times are compared by the rule of `reports.comparison.rule`. FASTER and SLOWER are said of times and
confirmed in cycles; where a side has no clock of its SMs, the row says `unconfirmed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.comparison.pairs import Pairs, pair_speeds
from reports.comparison.rule import (
    EMPTY_CALLS_US,
    Judgement,
    Verdict,
    empty_calls_apart_us,
    judge,
)
from reports.comparison.totals import weighted_total
from reports.comparison.words import changed, dropped_tables, names, time_told
from reports.page import Cell, Column, Part, Table
from reports.phrases import count, figure

if TYPE_CHECKING:
    from reports.comparison.pairs import Pair
    from reports.comparison.sides import Side, Timed
    from reports.comparison.totals import Weighed
    from reports.page import Tone

_TONES: dict[Verdict, Tone] = {
    Verdict.SLOWER: "bad",
    Verdict.FASTER: "good",
    Verdict.AMBIGUOUS: "doubtful",
    Verdict.SAME: "",
}
_NOTES = {
    Verdict.AMBIGUOUS: "More processes may tell: --rounds 4 for each record of nox -s bench, or "
    "more of --against.",
    Verdict.SAME: "Within 0.5 % where both sides ran in turn; of two records within 1 %, or 0.2 us "
    "for each kernel that a call launches; of two boards within 4 %, or 0.4 us a launch; or within "
    "the timer's step.",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A pair of rows, and the verdict on it."""

    pair: Pair[Timed]
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Speeds:
    """The rows of one side, held against the base's."""

    held: tuple[Held, ...]
    pairs: Pairs[Timed]

    def of(self, verdict: Verdict) -> list[Held]:
        """The rows with this verdict, the largest change first."""
        found = [each for each in self.held if each.judgement.verdict is verdict]
        return sorted(found, key=lambda each: -abs(each.judgement.change))


def hold(base: Side, other: Side) -> Speeds:
    """Hold every row of `other` against the base's."""
    pairs = pair_speeds(base, other, dispatched=True)
    one_board = base.machine.is_board_of(other.machine)
    apart_us = _apart_us(base, other)
    held = []
    for pair in pairs.pairs:
        assert pair.base.evidence is not None
        assert pair.other.evidence is not None
        judgement = judge(
            pair.base.evidence,
            pair.other.evidence,
            one_board=one_board,
            empty_calls_us=apart_us,
        )
        held.append(Held(pair, judgement))
    return Speeds(tuple(held), pairs)


def speed_part(base: Side, other: Side, speeds: Speeds) -> Part:
    """The part of a report on two records of one model."""
    numbers = {verdict: len(speeds.of(verdict)) for verdict in Verdict}
    slower, faster = numbers[Verdict.SLOWER], numbers[Verdict.FASTER]
    verdict, tone = _verdict(numbers)
    refused, unmatched = len(speeds.pairs.refused), len(speeds.pairs.unmatched)
    sentence = (
        f"of {count(len(speeds.held), 'row')}, {slower:,} slower, {faster:,} faster, "
        f"{numbers[Verdict.SAME]:,} the same, {numbers[Verdict.AMBIGUOUS]:,} ambiguous; "
        f"{refused:,} refused, {unmatched:,} in one record alone"
    )
    notes = [_timed_by(base, other, speeds)] if speeds.held else []
    if not base.machine.is_board_of(other.machine):
        notes.append(
            "two boards: cards of one model differ by up to 4 % on one kernel, so less is the same"
        )
    of_the_machine = _of_the_machine(base, other)
    notes += [] if of_the_machine is None else [of_the_machine]
    notes += [
        f"{op}: {its} of {other.letter} is held against {mine} of {base.letter}"
        for op, (mine, its) in speeds.pairs.renamed.items()
    ]
    unconfirmed = sum(
        each.judgement.verdict in (Verdict.SLOWER, Verdict.FASTER)
        and each.judgement.confirmed is None
        for each in speeds.held
    )
    if unconfirmed:
        notes.append(
            f"{count(unconfirmed, 'row')} unconfirmed in cycles: a record has no clock of the SMs"
        )
    tables = [_table(base, other, speeds.of(each), each) for each in _TONES if numbers[each]]
    tables += _totals(base, other, speeds)
    tables += dropped_tables(speeds.pairs)
    title = f"Speed: {other.letter} beside {base.letter}, on one model: {base.machine.name}"
    return Part(title, verdict, tone, sentence, notes, items=tables)


def _apart_us(base: Side, other: Side) -> float | None:
    """By how much an empty call takes longer on the other's machine; None: not known.

    On a CPU it is no more than the noise of a call, and nothing that others have a part of.
    """
    if "cpu" in (base.header.environment.device, other.header.environment.device):
        return 0.0
    return empty_calls_apart_us(base.empty_call_us, other.empty_call_us)


def _of_the_machine(base: Side, other: Side) -> str | None:
    """What of a time is the machine's, where it differs or could."""
    apart_us = _apart_us(base, other)
    if apart_us:
        return (
            f"an empty call takes {figure(base.empty_call_us)} us on {base.letter}'s machine and "
            f"{figure(other.empty_call_us)} us on {other.letter}'s: changes are without the "
            "difference, times and totals with it"
        )
    if apart_us is None and not base.machine.is_board_of(other.machine):
        return (
            "a record doesn't tell what an empty call takes on its machine, which may be "
            f"{EMPTY_CALLS_US} us of a time: so much less or more is the same"
        )
    return None


def _timed_by(base: Side, other: Side, speeds: Speeds) -> str:
    """What the verdicts rest on: how many processes, whose samples aren't independent."""
    told = []
    for side, rows in (
        (base, [each.pair.base for each in speeds.held]),
        (other, [each.pair.other for each in speeds.held]),
    ):
        numbers = {each.evidence.processes for each in rows if each.evidence is not None}
        least, most = min(numbers), max(numbers)
        if most == 0:
            told.append(f"{side.letter} by figures without samples")
            continue
        many = count(most, "process").replace("processs", "processes")
        told.append(f"{side.letter} by {many if least == most else f'{least:,} to {many}'}")
    return f"timed: {', '.join(told)}; changes are of the time, relative to {base.letter}"


def _verdict(numbers: dict[Verdict, int]) -> tuple[str, Tone]:
    for each in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.AMBIGUOUS):
        if numbers[each]:
            return str(each), _TONES[each] or "good"
    return "NOTHING COMPARED", "doubtful"


def _table(base: Side, other: Side, rows: list[Held], verdict: Verdict) -> Table:
    columns = [
        Column("kernel"),
        Column("case"),
        Column(f"{base.letter} us", "number"),
        Column(f"{other.letter} us", "number"),
        Column("change", "number"),
        Column("cycles", "number", "the change in cycles of the SMs"),
    ]
    why = verdict is Verdict.AMBIGUOUS
    if why:
        columns.append(Column("why"))
    return Table(
        f"{verdict}, {other.letter} beside {base.letter}",
        tuple(columns),
        [_row(each, _TONES[verdict], why=why) for each in rows],
        _NOTES.get(verdict, ""),
        folded=verdict is Verdict.SAME,
    )


def _row(held: Held, tone: Tone, *, why: bool) -> tuple[Cell | str, ...]:
    found, pair = held.judgement, held.pair
    base, other = pair.base.evidence, pair.other.evidence
    assert base is not None
    assert other is not None
    cycles = found.cycles_change
    if found.verdict in (Verdict.SLOWER, Verdict.FASTER) and found.confirmed is None:
        in_cycles = Cell("unconfirmed", None, "doubtful")
    else:
        in_cycles = Cell("-") if cycles is None else Cell(changed(cycles), cycles)
    cells: tuple[Cell | str, ...] = (
        *names(pair.key),
        time_told(base.time_us.centre),
        time_told(other.time_us.centre),
        Cell(changed(found.change), found.change, tone),
        in_cycles,
    )
    return (*cells, found.reason or "") if why else cells


def _totals(base: Side, other: Side, speeds: Speeds) -> list[Table]:
    return weighted_total(base, other, map(_weighed, speeds.held), "us", time_told)


def _weighed(held: Held) -> Weighed:
    key, pair = held.pair.key, held.pair
    assert pair.base.evidence is not None
    assert pair.other.evidence is not None
    return (
        *(key.op, key.kernel, pair.base.weight, pair.other.weight),
        *(pair.base.evidence.time_us.centre, pair.other.evidence.time_us.centre),
    )
