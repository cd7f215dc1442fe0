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
from kernel_workbench.reports.comparison.speed import ComparedRow, compare_speeds, speed_part
from kernel_workbench.reports.comparison.tables import named
from kernel_workbench.reports.document.model import Document, ReportPart
from kernel_workbench.reports.phrases import count, shown
from kernel_workbench.reports.record import RecordError
from kernel_workbench.reports.views.run import commit_text, part_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_workbench.reports.comparison.side import RecordSide

# The first of these that a part has as its verdict heads the report.
_WORST = (
    *("LESS ACCURATE", "SLOWER", "FASTER", "MORE ACCURATE", "AMBIGUOUS", "NOTHING COMPARED"),
    *("SAME", "SIDE BY SIDE", "AS ACCURATE"),
)


@dataclass(slots=True)
class Comparison:
    """The parts of a comparison, accuracy first, and the rows and changes that a gate counts."""

    parts: list[ReportPart] = field(default_factory=list)
    rows: list[ComparedRow] = field(default_factory=list)
    changes: list[AccuracyChange] = field(default_factory=list)
    compared: bool = False

    @property
    def document(self) -> Document:
        """All of it."""
        return Document("Comparison", self.parts)

    @property
    def broken(self) -> str | None:
        """Why a gate is shut, in a sentence. None: it is open. Baselines' rows don't count."""
        slower = sum(
            compared.judgement.verdict is SpeedVerdict.SLOWER and compared.pair.gates
            for compared in self.rows
        )
        worse = sum(change.kind == "LESS ACCURATE" and change.gates for change in self.changes)
        if not self.compared:
            return "the gate is shut: no row was compared"
        if not slower and not worse:
            return None
        return (
            f"the gate is shut: {count(slower, 'row')} slower, {count(worse, 'row')} less accurate"
        )


def compare(sides: Sequence[RecordSide]) -> Comparison:
    """Compare records of each suite with the first of the suite.

    Returns:
        The parts of a report, and the rows and changes that a gate counts.

    Raises:
        RecordError: no two sides can be compared.

    Example:
        >>> comparison = compare([*read_sides(Path("a.jsonl")), *read_sides(Path("b.jsonl"))])
        >>> comparison.broken is None  # no row of ours got slower or less accurate
    """
    for number, side in enumerate(sides):  # A to Z, then AA, BB and so on
        side.letter = ascii_uppercase[number % 26] * (number // 26 + 1)
    _refuse(sides)
    comparison = Comparison()
    speeds: list[ReportPart] = []
    for suite in ("accuracy", "bench", "profile"):
        group = [side for side in sides if side.suite == suite]
        if len(group) < 2:
            continue
        base, *rest = group
        for other in rest:
            part, changes = accuracy_part(base, other)
            if part is not None:
                comparison.parts.append(part)
                comparison.changes += changes
                comparison.compared = True
        if suite == "bench":
            speeds += _speeds(base, rest, comparison)
        elif suite == "profile":
            part, rows = energy_part(base, rest)
            speeds.append(part)
            comparison.compared |= rows > 0
    comparison.parts += speeds
    if not comparison.parts:
        empty = ", ".join(shown(side.path) for side in sides)
        raise RecordError(f"{empty}: no row that both have was tried; run them again")
    comparison.parts.insert(0, _head(sides, comparison))
    return comparison


def _speeds(
    base: RecordSide, others: Sequence[RecordSide], comparison: Comparison
) -> list[ReportPart]:
    """Return a verdict for each other side of the base's model; the rest side by side."""
    parts: list[ReportPart] = []
    beside: dict[str, str] = {}
    for other in others:
        reason = _no_verdict(base, other)
        if reason is not None:
            beside[other.letter] = reason
            continue
        speeds = compare_speeds(base, other)
        comparison.rows += speeds.rows
        comparison.compared |= bool(speeds.rows)
        parts.append(speed_part(base, other, speeds))
    if beside:
        without = [other for other in others if other.letter in beside]
        part, rows = generations_part(base, without, list(beside.values()))
        parts.append(part)
        comparison.compared |= rows > 0
    return parts


def _no_verdict(base: RecordSide, other: RecordSide) -> str | None:
    """Return why two sides are laid side by side only; None: a verdict can be given."""
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
    suites = [side.suite for side in sides]
    if len(set(suites)) == len(suites):
        named = ", ".join(f"{shown(side.path)} of {side.header.suite}" for side in sides)
        raise RecordError(
            f"compare needs two records of one suite, and was passed {named}; name another record"
        )


def _head(sides: Sequence[RecordSide], comparison: Comparison) -> ReportPart:
    """Return the first part: the worst verdict, the verdict of each part, a line for each side."""
    suites = [side.suite for side in sides]
    several = len(comparison.parts) > 1
    notes = [f"{part.title}: {part.verdict}" for part in comparison.parts if several]
    notes += [
        f"{side.letter}, of {side.header.suite}: there is no other record of this suite to "
        "compare it with"
        for side in sides
        if suites.count(side.suite) < 2
    ]
    notes += [side.problem for side in sides if side.problem is not None]
    for side in sides:
        tried = {key[:2] for key in (*side.speeds, *side.judged, *side.energies)}
        notes += [f"in {side.letter} {note}" for note in part_notes(side.header, tried)]
    notes += [
        f"{side.letter} has {count(side.twice, 'row')} more than once: the first is taken"
        for side in sides
        if side.twice
    ]
    compiled = list(
        dict.fromkeys(str(side.path) for side in sides if side.header.suite == "compile")
    )
    if len(compiled) > 1:
        notes.append(
            "changes in compiled code are shown by: "
            + this_program().command("report", [compiled[1], "--against", compiled[0]])
        )
    notes += _imported(sides)
    notes += _differing([side for side in sides if side.figures == "measured"])
    sentence = f"{count(len(sides), 'record')}, {sides[0].letter} the base"
    worst = min(comparison.parts, key=lambda item: _WORST.index(item.verdict))
    return ReportPart(
        "",
        worst.verdict,
        worst.tone,
        sentence,
        notes,
        facts=[(named(side), _described(side)) for side in sides],
        environment=[(f"{side.letter} began", side.header.started_at) for side in sides],
        closing=f"{sentence}; --details shows every row of every table",
    )


def _imported(sides: Sequence[RecordSide]) -> list[str]:
    words = []
    for side in sides:
        if side.figures == "imported":
            reason = side.header.environment.missing.get("device_name")
            words.append(
                f"{side.letter} is an import of pytest-benchmark: no clocks, so unconfirmed; "
                "accuracy not known; cold cache and normal inputs are taken for granted where it "
                "doesn't say" + (f"; {reason}" if reason else "")
            )
    return words


def _differing(measured: Sequence[RecordSide]) -> list[str]:
    """Return how measured sides' software and set-up differ from the first side's."""
    words = []
    for side in measured[1:]:
        first = measured[0]
        base, other = first.header.environment, side.header.environment
        letters = f"{first.letter} and {side.letter}"
        if None not in (base.tree, other.tree) and base.tree != other.tree:
            words.append(f"{letters} ran different trees of the checkout")
        its_files = side.header.files
        words += [
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
        words += [
            f"{name} differs: {mine} in {first.letter}, {its} in {side.letter}"
            for name, mine, its in pairs
            if mine != its and mine is not None and its is not None
        ]
    return words


def _described(side: RecordSide) -> str:
    header = side.header
    commit = commit_text(header.environment)
    suite = f", {header.suite}" if side.figures == "measured" else ""
    return f"{side.path}{suite}" + (f", commit {commit}" if commit else "")
