"""The report of a comparison: records of one suite in a group, the first the base of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import TYPE_CHECKING

from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.comparison.accuracy import AccuracyChange, accuracy_part
from kernel_workbench.reports.comparison.energy import energy_part
from kernel_workbench.reports.comparison.generations import generations_part
from kernel_workbench.reports.comparison.rule import SpeedVerdict
from kernel_workbench.reports.comparison.speed import ComparedRow, hold, speed_part
from kernel_workbench.reports.comparison.tables import named
from kernel_workbench.reports.document.model import Document, ReportPart
from kernel_workbench.reports.phrases import count, shown
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.views.run import commit_text, part_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_workbench.reports.comparison.side import RecordSide

# Of the parts' verdicts the first of these heads the report.
_WORST = (
    *("LESS ACCURATE", "SLOWER", "FASTER", "MORE ACCURATE", "AMBIGUOUS", "NOTHING COMPARED"),
    *("SAME", "SIDE BY SIDE", "AS ACCURATE"),
)


@dataclass(slots=True)
class Comparison:
    """What a comparison found: the parts of its report, accuracy first, and what a gate asks."""

    parts: list[ReportPart] = field(default_factory=list)
    held: list[ComparedRow] = field(default_factory=list)
    changes: list[AccuracyChange] = field(default_factory=list)
    compared: bool = False

    @property
    def document(self) -> Document:
        """All of it."""
        return Document("Comparison", self.parts)

    @property
    def broken(self) -> str | None:
        """What a gate refuses, in a sentence; baselines' rows don't count."""
        slower = sum(
            each.judgement.verdict is SpeedVerdict.SLOWER and each.pair.gates for each in self.held
        )
        worse = sum(each.kind == "LESS ACCURATE" and each.gates for each in self.changes)
        if not self.compared:
            return "the gate is shut: no row was compared"
        if not slower and not worse:
            return None
        return (
            f"the gate is shut: {count(slower, 'row')} slower, {count(worse, 'row')} less accurate"
        )


def compare(sides: Sequence[RecordSide]) -> Comparison:
    """Lay the sides beside one another. Raises RecordError where they can't be."""
    for number, side in enumerate(sides):  # A to Z, then AA, BB and so on
        side.letter = ascii_uppercase[number % 26] * (number // 26 + 1)
    _refuse(sides)
    found = Comparison()
    speeds: list[ReportPart] = []
    for suite in ("accuracy", "bench", "profile"):
        group = [each for each in sides if each.suite == suite]
        if len(group) < 2:
            continue
        base, *others = group
        for other in others:
            part, changes = accuracy_part(base, other)
            if part is not None:
                found.parts.append(part)
                found.changes += changes
                found.compared = True
        if suite == "bench":
            speeds += _speeds(base, others, found)
        elif suite == "profile":
            part, rows = energy_part(base, others)
            speeds.append(part)
            found.compared |= rows > 0
    found.parts += speeds
    if not found.parts:
        empty = ", ".join(shown(each.path) for each in sides)
        raise RecordError(f"{empty}: no row that both have was tried; run them again")
    found.parts.insert(0, _head(sides, found))
    return found


def _speeds(base: RecordSide, others: Sequence[RecordSide], found: Comparison) -> list[ReportPart]:
    """A verdict for each other side of the base's model; the rest side by side."""
    parts: list[ReportPart] = []
    beside: dict[str, str] = {}
    for other in others:
        reason = _no_verdict(base, other)
        if reason is not None:
            beside[other.letter] = reason
            continue
        speeds = hold(base, other)
        found.held += speeds.held
        found.compared |= bool(speeds.held)
        parts.append(speed_part(base, other, speeds))
    if beside:
        without = [each for each in others if each.letter in beside]
        part, rows = generations_part(base, without, list(beside.values()))
        parts.append(part)
        found.compared |= rows > 0
    return parts


def _no_verdict(base: RecordSide, other: RecordSide) -> str | None:
    """Why two sides are laid side by side only; None: a verdict can be given."""
    for side in (other, base):
        if side.figures in ("predicted", "published"):
            return f"figures of {side.letter} are {side.figures}, not measured here"
    unlike = base.machine.unlike(other.machine)
    return None if unlike is None else f"another machine: {unlike}"


def _refuse(sides: Sequence[RecordSide]) -> None:
    """Raise RecordError where the records have nothing that may be compared."""
    firsts: dict[str, RecordSide] = {}
    for side in sides:
        if side.figures != "measured":
            continue
        first = firsts.setdefault(side.header.suite, side)
        if side.header.protocol != first.header.protocol:
            raise RecordError(
                f"{shown(side.path)}: its protocol is {side.header.protocol} and that of "
                f"{shown(first.path)} is {first.header.protocol}: the rules behind the figures "
                "differ; run both with one checkout"
            )
    suites = [each.suite for each in sides]
    if len(set(suites)) == len(suites):
        told = ", ".join(f"{shown(each.path)} of {each.header.suite}" for each in sides)
        raise RecordError(
            f"records are compared with others of their suite, and there are {told}; name two of "
            "one suite"
        )


def _head(sides: Sequence[RecordSide], found: Comparison) -> ReportPart:
    """What is compared: the worst verdict, those of all parts, and a line for each side."""
    suites = [each.suite for each in sides]
    several = len(found.parts) > 1
    notes = [f"{each.title}: {each.verdict}" for each in found.parts if several]
    notes += [
        f"{each.letter}, of {each.header.suite}: no other record of it to hold it against"
        for each in sides
        if suites.count(each.suite) < 2
    ]
    notes += [each.problem for each in sides if each.problem is not None]
    for each in sides:
        tried = {key[:2] for key in (*each.speeds, *each.judged, *each.energies)}
        notes += [f"in {each.letter} {told}" for told in part_notes(each.header, tried)]
    notes += [
        f"{each.letter} has {count(each.twice, 'row')} more than once: the first is taken"
        for each in sides
        if each.twice
    ]
    compiled = list(
        dict.fromkeys(str(each.path) for each in sides if each.header.suite == "compile")
    )
    if len(compiled) > 1:
        notes.append(
            "what changed in compiled code is told by: "
            + this_program().command("report", [compiled[1], "--against", compiled[0]])
        )
    notes += _imported(sides)
    notes += _differing([each for each in sides if each.figures == "measured"])
    sentence = f"{count(len(sides), 'record')}, {sides[0].letter} the base"
    worst = min(found.parts, key=lambda each: _WORST.index(each.verdict))
    return ReportPart(
        "",
        worst.verdict,
        worst.tone,
        sentence,
        notes,
        facts=[(named(each), _described(each)) for each in sides],
        environment=[(f"{each.letter} began", each.header.started_at) for each in sides],
        closing=f"{sentence}; --details shows every row of every table",
    )


def _imported(sides: Sequence[RecordSide]) -> list[str]:
    told = []
    for side in sides:
        if side.figures == "imported":
            reason = side.header.environment.missing.get("device_name")
            told.append(
                f"{side.letter} is an import of pytest-benchmark: no clocks, so unconfirmed; "
                "accuracy not known; cold cache and normal inputs are taken for granted where it "
                "doesn't say" + (f"; {reason}" if reason else "")
            )
    return told


def _differing(measured: Sequence[RecordSide]) -> list[str]:
    """What differs in the software and the set-up of measured sides, beside the first."""
    told = []
    for side in measured[1:]:
        first = measured[0]
        base, other = first.header.environment, side.header.environment
        letters = f"{first.letter} and {side.letter}"
        if None not in (base.tree, other.tree) and base.tree != other.tree:
            told.append(f"{letters} ran different trees of the checkout")
        its_files = side.header.files
        told += [
            f"{letters} ran different versions of {path}"
            for path, mine in first.header.files.items()
            if its_files.get(path, mine) != mine
        ]
        pairs: list[tuple[str, object, object]] = [
            (name, mine, other.packages.get(name)) for name, mine in sorted(base.packages.items())
        ]
        pairs += [
            (name.replace("_", " "), getattr(base, name), getattr(other, name))
            for name in ("driver", "cuda", "python", "power_limit_w", "ecc", "fp_fusion")
        ]
        told += [
            f"{name} differs: {mine} in {first.letter}, {its} in {side.letter}"
            for name, mine, its in pairs
            if mine != its and mine is not None and its is not None
        ]
    return told


def _described(side: RecordSide) -> str:
    header = side.header
    commit = commit_text(header.environment)
    suite = f", {header.suite}" if side.figures == "measured" else ""
    return f"{side.path}{suite}" + (f", commit {commit}" if commit else "")
