"""Show a record of `accuracy`: the verdict on the run, its kernels, and what failed.

A terminal's summary has the verdict, the kernels that gate with their largest errors, and the
failures; the other tables are behind it. Where a run tried several ops, a kernel stands under its
op's name, since two ops may have kernels of one name. Texts are as the record has them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kernel_workbench.reports.document.fields import command, number, table_of, text
from kernel_workbench.reports.document.model import Cell, Column
from kernel_workbench.reports.phrases import (
    ACCEPTED,
    count,
    duration,
    memory,
    numerics_value,
    ratio,
    share,
    shown,
)
from kernel_workbench.reports.phrases import number as float_text
from kernel_workbench.reports.record import ULP_EDGES, AccuracyRow
from kernel_workbench.reports.views.coverage import share_met, unmet_pairs
from kernel_workbench.reports.views.failing_cases import plainness, shared_facts
from kernel_workbench.reports.views.row_columns import field_of, fields_in_order
from kernel_workbench.reports.views.run import (
    baselines_of,
    environment_lines,
    grouped,
    joint_reason,
    part_notes,
    parts_of,
    reason_key,
    record_part,
    total_duration,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kernel_workbench.reports.document.fields import Field
    from kernel_workbench.reports.document.model import Level, ReportPart, Table, Tone
    from kernel_workbench.reports.record import (
        CoverageRow,
        KernelInfo,
        OutputError,
        Record,
        Rule,
        Status,
    )

Key = tuple[str, str]  # op, kernel: two ops may have kernels of one name
RunVerdict = Literal["PASSED", "FAILED", "INCOMPLETE", "NOT GATED"]
FEW = 20  # cases, below which a pass says little of shapes and layouts
NO_OPTION = "no option"
BOUND_RULES = ("deterministic bound", "probabilistic bound")
MEASURED_RULES = (*BOUND_RULES, "emulation")
# The columns of units in the last place: the last of `ULP_EDGES` in each, and all beyond them.
_SHOWN_ULPS = (0.0, 0.5, 1.0, 2.0, 4.0, 2.0**4, 2.0**8, 2.0**16)
ULP_TITLES = (*(f"<= {edge:g}" if edge else "0" for edge in _SHOWN_ULPS), "more")
# The name of a property, and the field of a kernel's numerics that declares it.
PROPERTIES = {
    "bitwise-repeatable": "bitwise_repeatable",
    "batch-invariant": "batch_invariant",
    "device-independent": "device_independent",
}
_MOST_REASONS = 3
_MOST_NAMED = 3
_MOST_LISTED = 5  # slowest cases
_MOST_FAILURES = 10  # of three lines each: so many a terminal shows, however full the screen is
_NO_RULE, _NO_REASON = "no rule given", "no reason given"
_UNSERVED = "doesn't serve "  # begins a domain's refusal of options; their names follow
_SEED = re.compile(r"-seed-?\d+$")
_MIXED = re.compile(r"(.+)_(.+)weight")  # a dtype's label, where the weight has another
# A layout's name may begin with the tensors that it is of, and an axis.
_TENSOR = re.compile(
    r"^(?:(?:d?[qkvox]|q?kv|out|lse|delta|dy|d?(?:weight|bias|residual|gamma|beta|sink)|mean|rstd"
    r"|heads|batches)_(?=.))+"
)
_SHORT_RULE: dict[Rule, str] = {
    "non-finite values": "non-finite",
    "unwritten output": "unwritten",
    "changed input": "input changed",
    "not repeatable": "unrepeatable",
    "wrong outputs": "wrong outputs",
    "raised": "raised",
    "illegal access": "illegal access",
    "wrote out of bounds": "out of bounds",
    "undefined load": "undefined load",
}
_VERDICTS: dict[RunVerdict, Tone] = {
    "PASSED": "good",
    "FAILED": "bad",
    "INCOMPLETE": "doubtful",
    "NOT GATED": "doubtful",
}
_TONES: dict[Status, Tone] = {
    "passed": "good",
    "failed": "bad",
    "refused": "dim",
    "no power": "dim",
}
_RATIO_NOTE = "the largest error / deterministic bound of its cases; at most 1 passes"
_NO_POWER = "neither passed nor failed: a plainly wrong kernel would be within the bounds"
_CELLS = (
    "Each cell: the largest error / deterministic bound of its cases, at most 1 passes; "
    "FAIL p: of the probabilistic bound; FAIL e: of what an emulation's errors allow; no power: "
    "bounds so wide that a plainly wrong kernel is within them, so it neither passed nor failed; "
    "refused: outside what the kernel serves; -: no case."
)


def accuracy_part(record: Record) -> ReportPart:
    """Return the record's part of a document."""
    line = headline(record)
    statuses = Counter(row.status for row in record.rows)
    failed = sum(row.status == "failed" and row.gates for row in record.rows)
    passed = f"{statuses['passed']:,} passed, {statuses['refused']:,} refused"
    return record_part(
        record,
        "Accuracy",
        (line.verdict, _VERDICTS[line.verdict], line.sentence),
        found=f"{count(failed, 'row')} failed" if failed else passed,
        notes=line.notes,
        facts=environment_lines(record),
        items=_View(record).tables(),
    )


# The verdict: one sentence that holds, and how many of its cases a kernel ran. A pass on one case
# of hundreds is thin. A kernel that was asked for (named by --kernel, or a user's) and ran nothing
# fails the run, whatever passed beside it. Baselines may serve as little as they like.


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict, the sentence that follows it, and notes that a reader must know besides."""

    verdict: RunVerdict
    sentence: str
    notes: tuple[str, ...]


def headline(record: Record) -> Headline:
    """Return the verdict: PASSED needs a whole record, a row that passed, nothing against it.

    Example:
        >>> headline(read(path)).sentence
        '8 rows (1 kernel, 8 cases): 8 passed, 0 failed, 0 refused, in 1.20 s'
    """
    rows = record.rows
    failed = sum(row.status == "failed" and row.gates for row in rows)
    beside = [row for row in rows if row.status == "failed" and not row.gates]
    gated = any(row.gates for row in rows)
    ran = _ran(rows)
    judged = [row for row in ran if row.status != "no power"]
    contradictions = sum(_contradicts(row) for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    notes = []
    verdict: RunVerdict = "PASSED"
    if not gated:
        verdict = "NOT GATED"
        notes.append(_no_verdict(rows))
    unserved = any(kernel.fails for kernel in served(record.header.kernels, rows))
    if failed or unserved or not any(row.gates or not gated for row in ran):
        verdict = "FAILED"
    elif not any(row.gates or not gated for row in judged):
        verdict = "NOT GATED"
        notes.append(
            "every bound is too wide to tell right from wrong: this is no verdict on a kernel"
        )
    if not ran:
        refused = f"{count(len(rows), 'row')}, each refused" if rows else "the record has no rows"
        notes = [f"nothing ran: {refused}"]
    elif gated and not any(row.gates for row in ran):
        notes.append("baselines alone ran: each row of the other kernels was refused")
    notes += _served_notes(record)
    if contradictions:
        verdict = "FAILED"
        notes.append(
            f"{count(contradictions, 'row')} marked passed with an error that isn't within "
            "the bound: the record contradicts itself"
        )
    notes += _parts(record)
    unjudged = sum(_says_nothing(row) for row in rows)
    if unjudged:
        notes.append(
            f"{count(unjudged, 'row')} passed with an output of which nothing is promised: each "
            "of its bounds is infinite"
        )
    if status and not failed and not unserved and record.problem is None:
        verdict = "FAILED"
        notes.append(f"no failed row fails the run, yet the run's exit status was {status}")
    if record.problem is not None:
        verdict = "INCOMPLETE"
        problems = () if record.end is None else record.end.problems
        notes[:0] = [record.problem, *problems]
        if failed:
            notes.insert(1, f"{count(failed, 'row')} failed already")
    whose = _whose(record, beside)
    if beside:
        notes.append(_beside(whose, beside))
    for row, *more in grouped((row for row in rows if row.notes), _kernel_of).values():
        more_cases = f" and {count(len(more), 'more case')}" if more else ""
        notes.append(f"{row.kernel} {'; it '.join(row.notes)} (on {row.case.id}{more_cases})")
    return Headline(verdict, _counts(record, failed, len(beside), whose), tuple(notes))


def _contradicts(row: AccuracyRow) -> bool:
    ratios = [output.worst_deterministic for output in row.outputs]
    ratios += [output.worst_probabilistic or 0.0 for output in row.outputs]
    return row.status == "passed" and not all(value <= 1 for value in ratios)


def _says_nothing(row: AccuracyRow) -> bool:
    judged = [output.elements - output.unjudged for output in row.outputs if output.elements]
    return row.status == "passed" and 0 in judged


def _no_verdict(rows: Sequence[AccuracyRow]) -> str:
    """Return why rows of which none gates say nothing of a kernel."""
    accepted = any(ACCEPTED in row.notes for row in rows)
    ran = "baselines and accepted failures" if accepted else "baselines"
    return f"only {ran} were run, which can't fail a run: this is no verdict on a kernel"


def _whose(record: Record, rows: Sequence[AccuracyRow]) -> str:
    """Return whose these rows are, which failed and don't fail the run."""
    can_fail = set(map(_kernel_of, rows)) - baselines_of(record.header)
    if any(ACCEPTED in row.notes for row in rows):
        return "rows that can't fail the run"
    return "kernels that can't fail the run" if can_fail else "baselines"


def _beside(whose: str, rows: Sequence[AccuracyRow]) -> str:
    if all(row.rule in BOUND_RULES for row in rows):
        return f"{whose}: {count(len(rows), 'row')} above the bound, which doesn't fail the run"
    rules = Counter(row.rule or _NO_RULE for row in rows)
    listed = ", ".join(f"{times:,} {rule}" for rule, times in rules.most_common())
    return f"{whose}: {count(len(rows), 'row')} failed ({listed}), which doesn't fail the run"


def _counts(record: Record, failed: int, beside: int, whose: str) -> str:
    rows = record.rows
    kernels = set(map(_kernel_of, rows))
    baselines = len(kernels & baselines_of(record.header))
    own = len(kernels) - baselines
    named = [count(own, "kernel")] if own or not baselines else []
    named += [count(baselines, "baseline")] if baselines else []
    statuses = Counter(row.status for row in rows)
    cases = len({(row.case.op, short_case(row)) for row in rows})
    joint = ", each on " if len(kernels) > 1 and len(kernels) * cases == len(rows) else ", "
    ops = len({row.case.op for row in rows})
    over = f"{ops:,} ops, " if ops > 1 else ""
    tried = f"{over}{' and '.join(named)}{joint}{count(cases, 'case')}"
    sentence = (
        f"{count(len(rows), 'row')} ({tried}): {statuses['passed']:,} passed, {failed:,} failed"
    )
    if beside:
        sentence += f", {count(beside, 'failure')} of {whose}"
    if statuses["no power"]:
        sentence += f", {statuses['no power']:,} with no power (bounds too wide to judge by)"
    sentence += f", {statuses['refused']:,} refused"
    parts = len(_parts(record))
    forced = [row for row in _ran(rows) if row.configuration is not None]
    configured = {(_kernel_of(row), row.configuration) for row in forced}
    number_of = count(len(configured), "configuration")
    also = (
        f"in {total_duration(record)}",
        f"{count(parts, 'kernel')} judged in part" if parts else "",
        variants_counted(record),
        f"{number_of} besides dispatch's choice" if configured else "",
        _thin_clause(record),
    )
    return f"{sentence}, " + "; ".join(filter(None, also))


def _parts(record: Record) -> list[str]:
    """Return a note for each kernel that ran and computes a part of its op."""
    return part_notes(record.header, set(map(_kernel_of, _ran(record.rows))))


@dataclass(frozen=True, slots=True)
class ServedCases:
    """The numbers of cases that a run planned for a gating kernel, and ran; seeds count once.

    Attributes:
        asked_for: as in the header.
        example: a row that ran. None: no case ran.
    """

    op: str
    name: str
    asked_for: bool
    cases: int
    ran: int
    example: AccuracyRow | None

    @property
    def thin(self) -> bool:
        """True if it ran few of many.

        Where fewer than FEW were asked for (--case, -k, a short file of --cases) no kernel could
        have run as many, and the user knows: then it isn't the kernel that is thin.
        """
        return 0 < self.ran < FEW <= self.cases

    @property
    def fails(self) -> bool:
        """True if the run fails because no case ran; -k may have left it no case."""
        return self.asked_for and self.cases > 0 and self.ran == 0


def served(kernels: Iterable[KernelInfo], rows: Iterable[AccuracyRow]) -> tuple[ServedCases, ...]:
    """Count the cases that each kernel of ours and of the user's was asked for and ran."""
    of_kernel, counts = grouped(rows, _kernel_of), []
    for kernel in kernels:
        if kernel.origin != "baseline":
            own = of_kernel.get((kernel.op, kernel.name), [])
            ran = _ran(own)
            example = next((row for row in ran if row.status == "passed"), ran[0] if ran else None)
            wanted, cases = (
                len({_SEED.sub("", row.case.id) for row in part}) for part in (own, ran)
            )
            counts.append(
                ServedCases(kernel.op, kernel.name, kernel.asked_for, wanted, cases, example)
            )
    return tuple(counts)


def _thin_clause(record: Record) -> str:
    """Return `thin: mine ran 1 of 312 cases` for the verdict's line; empty for no thin kernel."""
    thin = [kernel for kernel in served(record.header.kernels, record.rows) if kernel.thin]
    if not thin or record.problem is not None:
        return ""
    named = [
        f"{shown(kernel.name)} ran {kernel.ran:,} of {kernel.cases:,} cases"
        for kernel in thin[:_MOST_NAMED]
    ]
    more = len(thin) - len(named)
    return "thin: " + ", ".join(named) + f", and {count(more, 'more kernel')}" * bool(more)


def _served_notes(record: Record) -> Iterator[str]:
    """Yield a sentence for each kernel that was asked for and is thin, or that ran none of many."""
    if record.problem is not None:
        return  # a run that was cut off hasn't tried the cases that the kernel may serve
    for kernel in served(record.header.kernels, record.rows):
        if kernel.fails or (kernel.ran == 0 and kernel.cases >= FEW):
            cases = count(kernel.cases, "case")
            yield f"{kernel.name} served none of {cases}: {_reasons(record, kernel)}"
        elif kernel.thin and kernel.asked_for:
            yield (
                f"{kernel.name} is thin, it refused: {_reasons(record, kernel)}; to try it on more "
                "of what it serves, pass --cases=FILE with a line for each case, as "
                f"{_line(kernel)}"
            )


def _reasons(record: Record, kernel: ServedCases) -> str:
    """Return the kernel's most frequent refusals."""
    groups = [
        group for group in refusals(record) if (group.op, group.kernel) == (kernel.op, kernel.name)
    ]
    reasons = [f"{group.why} ({count(len(group.rows), 'row')})" for group in groups[:_MOST_REASONS]]
    more = len(groups) - len(reasons)
    return "; ".join(reasons) + f"; and {count(more, 'more reason')}" * bool(more)


def _line(kernel: ServedCases) -> str:
    """Return a case that the kernel ran, as a file of --cases spells it."""
    assert kernel.example is not None
    case = kernel.example.case
    mixed = _MIXED.fullmatch(case.dtype)
    line: dict[str, object] = {"op": case.op, "sizes": case.sizes, "dtype": case.dtype}
    if mixed is not None:
        line |= {"dtype": mixed[1], "weight_dtype": mixed[2]}
    if case.layout != "contiguous":
        line["layout"] = case.layout
    if case.options:
        line["options"] = case.options
    return json.dumps(line)


# Rows, grouped and ranked.


def by_kernel(record: Record) -> dict[Key, list[AccuracyRow]]:
    """Return rows by kernel: op by op, ours first, then the user's, then baselines."""
    rank = {"ours": 0, "user": 1, "baseline": 2}
    ops = list(dict.fromkeys(info.op for info in record.header.kernels))
    listed = sorted(record.header.kernels, key=lambda info: (ops.index(info.op), rank[info.origin]))
    return {(info.op, info.name): [] for info in listed} | grouped(record.rows, _kernel_of)


def _kernel_of(row: AccuracyRow) -> Key:
    return row.case.op, row.kernel


def _ran(rows: Iterable[AccuracyRow]) -> list[AccuracyRow]:
    return [row for row in rows if row.status != "refused"]


def short_case(row: AccuracyRow) -> str:
    """Return the case's id without the op and the kernel, for where both are named already."""
    return row.case.id.removeprefix(f"{row.case.op}-").removeprefix(f"{row.kernel}-")


def configured_case(row: AccuracyRow) -> str:
    """Return the case's id, with the configuration that the call had to take, if any."""
    return row.case.id if row.configuration is None else f"{row.case.id}, {row.configuration}"


class Worst(NamedTuple):
    """The largest error / bound of some rows; NaN is larger than any number."""

    ratio: float
    output: str
    row: AccuracyRow


def worst(rows: Iterable[AccuracyRow], rule: str) -> Worst | None:
    """Return the largest ratio to what `rule` allows; None where no row was measured by it."""
    measured = (
        Worst(value, output.output, row)
        for row in rows
        for output in row.outputs
        if (value := _ratio(output, rule)) is not None
    )
    return max(measured, key=lambda item: _rank(item.ratio), default=None)


def _ratio(output: OutputError, rule: str) -> float | None:
    if rule == "probabilistic bound":
        return output.worst_probabilistic
    return output.worst_emulation if rule == "emulation" else output.worst_deterministic


def _worst_ratio(rows: Iterable[AccuracyRow], rule: str) -> float | None:
    largest = worst(rows, rule)
    return None if largest is None else largest.ratio


def _rank(value: float) -> tuple[bool, float]:
    """Return a sort key under which NaN is worse than any number, infinity too."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def _breach(row: AccuracyRow) -> Worst | None:
    """Return the error that a failed row failed for; None where its rule measures none."""
    return worst([row], row.rule) if row.rule in MEASURED_RULES else None


def failing_ratio(row: AccuracyRow) -> float:
    """Return the ratio that ranks a failed row; infinite where its rule measures no error."""
    largest = _breach(row)
    return math.inf if largest is None else largest.ratio


def failing_output(row: AccuracyRow) -> str | None:
    """Return what the worst output of a failed row is and should be, on one line."""
    largest = _breach(row) or worst([row], "deterministic bound")
    if largest is None:
        return None
    output = next(one for one in row.outputs if one.output == largest.output)
    index = ", ".join(map(str, output.worst_index))
    line = (
        f"{output.output}[{index}]: got {float_text(output.got)}, expected "
        f"{float_text(output.expected)}, bound {float_text(output.bound)}; error / bound "
        f"{ratio(output.worst_deterministic)}"
    )
    if output.worst_probabilistic is not None:
        line += f", {ratio(output.worst_probabilistic)} of the probabilistic bound"
    if output.worst_emulation is not None:
        line += f"; a block has {ratio(output.worst_emulation)} of what an emulation's allow"
    return line


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one kernel that failed by one rule in one output, or were refused for one reason.

    Attributes:
        why: the rule; or the reason, its varying numbers replaced by N.
        rows: of failures the plainest case first.
        output: the output that broke the rule; empty where the rule or the refusal is of none.
        needs: facts that the failing cases share and no passing case of the kernel has.
    """

    op: str
    kernel: str
    why: str
    rows: tuple[AccuracyRow, ...]
    output: str = ""
    needs: tuple[str, ...] = ()

    @property
    def largest(self) -> float:
        """The largest ratio of the rows that failed."""
        return max(map(failing_ratio, self.rows), key=_rank)

    @property
    def gates(self) -> bool:
        """True if the group fails the run."""
        return self.rows[0].gates


def failures(record: Record) -> tuple[RowGroup, ...]:
    """Group failed rows by kernel, rule and output: groups that gate first."""
    result = []
    for (op, name), rows in by_kernel(record).items():
        failed = [row for row in rows if row.status == "failed"]
        passed = [row.case for row in rows if row.status == "passed"]
        for (rule, output, _), group in grouped(failed, _broken).items():
            group.sort(key=lambda row: plainness(row.case))
            needs = shared_facts([row.case for row in group], passed)
            result.append(RowGroup(op, name, rule, tuple(group), output, needs))
    return tuple(sorted(result, key=lambda group: not group.gates))


def _broken(row: AccuracyRow) -> tuple[str, str, bool]:
    """Return the rule that a row broke, in which output, and whether it gates."""
    largest = _breach(row)
    return row.rule or _NO_RULE, "" if largest is None else largest.output, row.gates


def refusals(record: Record) -> tuple[RowGroup, ...]:
    """Group refused rows by kernel and reason, the most frequent reason of a kernel first."""

    def alike(row: AccuracyRow) -> tuple[str, ...]:
        reason = row.reason or _NO_REASON
        return (_UNSERVED,) if reason.startswith(_UNSERVED) else reason_key(reason)

    result = []
    for (op, name), rows in by_kernel(record).items():
        groups = grouped((row for row in rows if row.status == "refused"), alike)
        result += [
            RowGroup(op, name, _joint_refusal(group), tuple(group))
            for group in sorted(groups.values(), key=len, reverse=True)
        ]
    return tuple(result)


def _joint_refusal(rows: Sequence[AccuracyRow]) -> str:
    """Return the rows' reason, with N for the numbers that differ, or with all unserved options."""
    reasons = [row.reason or _NO_REASON for row in rows]
    if reasons[0].startswith(_UNSERVED):
        options = {name for reason in reasons for name in reason[len(_UNSERVED) :].split(", ")}
        return _UNSERVED + ", ".join(sorted(options))
    return joint_reason(reasons)


class KernelVariants(NamedTuple):
    """The variants of a kernel that ran or that it lists.

    Attributes:
        listed: variants in the kernel's own list; empty where it has no list.
        rows_of: rows by the variant that they took, in the order of the kernel's list.
    """

    op: str
    kernel: str
    listed: tuple[str, ...]
    rows_of: dict[str, list[AccuracyRow]]

    @property
    def untaken(self) -> tuple[str, ...]:
        """Listed variants that no case took."""
        return tuple(name for name in self.listed if name not in self.rows_of)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Variants that a case took and that aren't in the kernel's list."""
        return tuple(name for name in self.rows_of if self.listed and name not in self.listed)

    @property
    def sentence(self) -> str:
        """`18 of 20 taken`; `18 taken` of a kernel that doesn't list its variants."""
        ran, more = len(self.rows_of) - len(self.unlisted), len(self.unlisted)
        line = f"{ran:,} of {len(self.listed):,} taken" if self.listed else f"{ran:,} taken"
        return f"{line}, and {more:,} that it doesn't list" if more else line


def kernel_variants(record: Record) -> list[KernelVariants]:
    """Return the variants of each kernel that ran and lists or names any."""
    listed_by = {(info.op, info.name): info.variants for info in record.header.kernels}
    result = []
    for key, rows in by_kernel(record).items():
        ran = _ran(rows)
        used: dict[str, list[AccuracyRow]] = {}
        for row in ran:
            for name in (row.variant or "").split():  # a kernel of several passes takes several
                used.setdefault(name, []).append(row)
        # The refusals say more of a kernel whose every row was refused.
        listed = listed_by.get(key, ()) if ran else ()
        if listed or used:
            in_order = [name for name in dict.fromkeys((*listed, *used)) if name in used]
            result.append(KernelVariants(*key, listed, {name: used[name] for name in in_order}))
    return result


def variants_counted(record: Record) -> str:
    """Return how many of the variants that kernels list ran; empty where no kernel lists any."""
    kernels = [kernel for kernel in kernel_variants(record) if kernel.listed]
    every = sum(len(kernel.listed) for kernel in kernels)
    ran = every - sum(len(kernel.untaken) for kernel in kernels)
    return f"cases took {ran:,} of the {every:,} code variants that kernels list" if kernels else ""


def workspaces(record: Record) -> list[AccuracyRow]:
    """Return the row that took the most memory, of each kernel that declares how much it may."""
    result = []
    for rows in by_kernel(record).values():
        measured = [
            row
            for row in rows
            if row.workspace_bytes is not None and row.declared_workspace_bytes is not None
        ]
        result += [max(measured, key=lambda row: row.workspace_bytes or 0)] if measured else []
    return result


def ulp_shares(record: Record) -> list[tuple[Key, list[float]]]:
    """Return the share of each kernel's compared elements in each column of ULP_TITLES."""
    result = []
    ends = [ULP_EDGES.index(edge) + 1 for edge in _SHOWN_ULPS]
    for key, rows in by_kernel(record).items():
        counts = [0] * (len(ULP_EDGES) + 1)
        for output in (output for row in rows for output in row.outputs):
            for place, times in enumerate(output.ulp_histogram):
                counts[place] += times
        if total := sum(counts):
            parts = zip((0, *ends), (*ends, len(counts)), strict=True)
            result.append((key, [sum(counts[start:end]) / total for start, end in parts]))
    return result


class Property(NamedTuple):
    """A property of a kernel's bits.

    Attributes:
        text: measured, declared: `yes`, `yes, declared`, `no, declared not to be`, `not tried`.
        declared: None where the kernel says nothing.
        row: the first case that says no.
        reason: the element that shows it there.
    """

    text: str
    declared: bool | None
    row: AccuracyRow | None
    reason: str | None

    @property
    def is_broken(self) -> bool:
        """True if the kernel declares what isn't so."""
        return self.row is not None and self.declared is True


def kernel_properties(record: Record) -> dict[Key, dict[str, Property]]:
    """Return the properties of each kernel that ran; none where a run tried no property."""
    if not any(row.invariance for row in record.rows):
        return {}
    declared = {(info.op, info.name): info.numerics for info in record.header.kernels}
    result = {}
    for key, rows in by_kernel(record).items():
        ran = _ran(rows)
        if ran:
            numerics = declared.get(key, {})
            result[key] = {
                name: _measured_property(name, numerics.get(field), ran)
                for name, field in PROPERTIES.items()
            }
    return result


def _measured_property(name: str, value: object, rows: Sequence[AccuracyRow]) -> Property:
    declared = value if isinstance(value, bool) else None
    tried = [
        (row, trial.holds, trial.reason)
        for row in rows
        for trial in row.invariance
        if trial.name == name
    ]
    if name == "bitwise-repeatable" and declared:  # the verdict's own rule tries it
        broken = [(row, False, row.reason) for row in rows if row.rule == "not repeatable"]
        tried = broken + [(row, True, None) for row in rows if row.status != "failed"]
    failing = ((row, reason) for row, holds, reason in tried if not holds)
    row, reason = next(failing, (None, None))
    measured = "no" if row is not None else "yes" if tried else "not tried"
    declaration = {None: "", True: ", declared", False: ", declared not to be"}[declared]
    return Property(measured + declaration, declared, row, reason)


def dtype_rank(label: str) -> tuple[int, str]:
    """Return a key that sorts the widest first, and a dtype before its mixtures with a weight."""
    dtype, _, mixture = label.partition("_")
    ranked = ("float32", "float16", "bfloat16")
    return (10 if mixture else 0) + (ranked.index(dtype) if dtype in ranked else 9), label


def layout_family(layout: str) -> str:
    """Return `offset` of `dy_offset3`, `expanded` of `expanded_rows`; `rank3` as it is."""
    first = _TENSOR.sub("", layout).split("_", 1)[0]
    if re.fullmatch(r"rank\d+", first):
        return first
    return first.rstrip("0123456789") or layout


# Tables.


class _KernelRows(NamedTuple):
    """A kernel of the header or of a row, and its rows."""

    op: str
    name: str
    rows: Sequence[AccuracyRow]
    origin: str
    declares: str  # beyond the defaults
    judged: str  # "all" of the op's outputs, or those that it computes, as "dx alone"

    @property
    def gates(self) -> bool:
        return any(row.gates for row in self.rows)


class _View:
    """A record's tables. Each field is named once, as a column beside what its cell shows."""

    def __init__(self, record: Record) -> None:
        self._record = record
        infos = {(info.op, info.name): info for info in record.header.kernels}
        parts, defaults = parts_of(record.header), record.header.default_numerics
        self._all: list[_KernelRows] = []
        for key, rows in by_kernel(record).items():
            info = infos.get(key)
            declares = ", ".join(
                numerics_value(name, value)
                for name, value in (info.numerics.items() if info else ())
                if value is not None and (name not in defaults or defaults[name] != value)
            )
            origin = "unknown" if info is None else info.origin
            self._all.append(_KernelRows(*key, rows, origin, declares, parts.get(key, "all")))
        self._several = len({kernel.op for kernel in self._all}) > 1

    def tables(self) -> Iterator[Table]:
        """Yield the tables, the most needed first."""
        gates = [kernel for kernel in self._all if kernel.gates]
        beside = [kernel for kernel in self._all if not kernel.gates]
        yield self._kernels("Kernels, and their largest error / bound", gates or beside)
        yield from self._failures()
        whose = _whose(self._record, [row for kernel in beside for row in kernel.rows])
        title = f"{whose.capitalize()}, and their largest error / bound"
        yield self._kernels(title, beside if gates else [], level="details")
        yield from self._matrices()
        yield from self._every_failure()
        yield self._worst_cases()
        yield table_of(
            "Declared arithmetic that differs from a plain kernel's",
            [
                *self._names(lambda kernel: kernel[:2]),
                text("declares", lambda kernel: kernel.declares),
            ],
            [kernel for kernel in self._all if kernel.declares],
            level="details",
        )
        yield self._ulps()
        yield from self._variants()
        yield self._workspaces()
        yield self._properties()
        yield self._refusals()
        yield from self._coverage()
        yield self._slowest()
        yield self._rows()

    def _names(self, key_of: Callable[[Any], Key]) -> list[Field[Any]]:
        """Return the kernel's column, below its op's where a run tried several."""
        op: list[Field[Any]] = [text("op", lambda item: key_of(item)[0], group=True)]
        return [*(op if self._several else []), text("kernel", lambda item: key_of(item)[1])]

    def _kernels(
        self, title: str, kernels: Sequence[_KernelRows], level: Level = "summary"
    ) -> Table:
        rows = (row for kernel in kernels for row in kernel.rows)
        alike = grouped(rows, lambda row: (_kernel_of(row), row.case.dtype))
        dtypes = {dtype for (_, dtype), rows in alike.items() if _ran(rows)}

        def of_dtype(dtype: str) -> Field[_KernelRows]:
            # Mixtures of dtypes go first where it is narrow.
            column = Column(dtype.replace("_", " "), "number", _RATIO_NOTE, rank=int("_" in dtype))
            return column, lambda kernel: cell_of(alike.get((kernel[:2], dtype), ()))

        def times(*statuses: Status) -> Callable[[_KernelRows], int]:
            return lambda kernel: sum(row.status in statuses for row in kernel.rows)

        powerless = times("no power")
        judged: Field[_KernelRows] = text(
            "judged",
            lambda kernel: Cell(kernel.judged, tone="" if kernel.judged == "all" else "doubtful"),
        )
        fields: list[Field[_KernelRows]] = [
            *self._names(lambda kernel: kernel[:2]),
            *([judged] if any(kernel.judged != "all" for kernel in kernels) else []),
            *map(of_dtype, sorted(dtypes, key=dtype_rank)),
            number("ran", times("passed", "failed", "no power"), rank=3),
            number("passed", times("passed"), rank=5),
            number(
                "failed", times("failed"), rank=2, tone=lambda kernel: _failed_tone(kernel.rows)
            ),
            number("no power", lambda kernel: powerless(kernel) or None, note=_NO_POWER, rank=6),
            number("refused", times("refused"), rank=4),
            text("origin", lambda kernel: kernel.origin, rank=7),
        ]
        is_beside = level == "details"
        note = _CELLS if is_beside else ""
        least = 0 if is_beside else 60
        return table_of(title, fields, kernels, note, level=level, folded=is_beside, least=least)

    def _failures(self) -> Iterator[Table]:
        groups = failures(self._record)
        gating: list[Field[RowGroup]] = [
            *self._names(lambda group: (group.op, group.kernel)),
            text("rule", lambda group: Cell(group.why, tone="bad")),
            text("output", lambda group: group.output or "-", rank=1),
            number("rows", lambda group: len(group.rows)),
            _ratio_field("error / bound", lambda group: group.largest, "the worst"),
            text(
                "shared",
                lambda group: f"all need: {', '.join(group.needs)}" if group.needs else "",
                "what the failing cases share and no passing case of the kernel has",
                below=True,
            ),
            text(
                "plainest case",
                lambda group: f"{configured_case(group.rows[0])}: {_wrong(group.rows[0])}",
                below=True,
            ),
            command("command", lambda group: group.rows[0].reproduce),
        ]
        failed = [group for group in groups if group.gates]
        yield table_of("Failures", gating, failed, least=_MOST_FAILURES)
        # One line for a kernel: a baseline's failure is its author's concern.
        beside_groups = [group for group in groups if not group.gates]
        by_rules = grouped(beside_groups, lambda group: (group.op, group.kernel))
        beside: list[Field[tuple[Key, list[RowGroup]]]] = [
            *self._names(lambda item: item[0]),
            number("rows", lambda item: sum(len(group.rows) for group in item[1])),
            text(
                "rules",
                lambda item: ", ".join(f"{len(group.rows):,} {group.why}" for group in item[1]),
            ),
        ]
        rows = [row for group in beside_groups for row in group.rows]
        title = f"Failures of {_whose(self._record, rows)}"
        yield table_of(title, beside, by_rules.items(), folded=True)

    def _every_failure(self) -> Iterator[Table]:
        fields: list[Field[tuple[RowGroup, AccuracyRow]]] = [
            *self._names(lambda item: (item[0].op, item[0].kernel)),
            text("rule", lambda item: item[0].why),
            text("output", lambda item: item[0].output or "-", rank=1),
            _ratio_field("error / bound", lambda item: failing_ratio(item[1])),
            text("case", lambda item: configured_case(item[1]), below=True),
            text("what is wrong", lambda item: _wrong(item[1]), below=True),
            command("command", lambda item: item[1].reproduce),
        ]
        groups = failures(self._record)
        for gates in (True, False):
            rows = [(group, row) for group in groups for row in group.rows if group.gates == gates]
            whose = _whose(self._record, [row for _, row in rows])
            title = "Every failure" if gates else f"Every failure of {whose}"
            yield table_of(title, fields, rows, level="details", folded=not gates)

    def _matrices(self) -> Iterator[Table]:
        """Yield for each op its cells by layout, and by option where its cases have any.

        A case stands under each of its options, with the dtypes of a kernel taken together.
        """
        ran = [kernel for kernel in self._all if _ran(kernel.rows)]
        for op, kernels in grouped(ran, lambda kernel: kernel.op).items():
            cases = [row.case for kernel in kernels for row in kernel.rows]
            layouts = dict.fromkeys(layout_family(case.layout) for case in cases)
            yield self._matrix(
                f"{op}: error / bound by dtype and layout",
                kernels,
                # Contiguous is what the others are read against, so it comes first.
                sorted(layouts, key=lambda family: family != "contiguous"),
                lambda row: [(row.case.dtype, layout_family(row.case.layout))],
            )
            options = {name for case in cases for name in case.options}
            if options:
                yield self._matrix(
                    f"{op}: error / bound by option",
                    kernels,
                    [NO_OPTION, *sorted(options)],
                    lambda row: [("", name) for name in row.case.options or (NO_OPTION,)],
                )

    def _matrix(
        self,
        title: str,
        kernels: Sequence[_KernelRows],
        families: Sequence[str],
        places_of: Callable[[AccuracyRow], list[tuple[str, str]]],
    ) -> Table:
        """Return a table of kernels and dtypes down, families across.

        Args:
            places_of: returns the dtypes and families of a row; dtype "" is all dtypes together.
        """
        cells: dict[tuple[str, str, str], list[AccuracyRow]] = {}
        lines: dict[tuple[str, str], None] = {}
        for kernel in kernels:
            # A dtype of which a kernel refused every case is among the refusals alone.
            ran = {dtype for row in _ran(kernel.rows) for dtype, _ in places_of(row)}
            lines |= {(kernel.name, dtype): None for dtype in sorted(ran, key=dtype_rank)}
            for row in kernel.rows:
                for place in places_of(row):
                    cells.setdefault((kernel.name, *place), []).append(row)
        gates = {kernel.name for kernel in kernels if kernel.gates}
        alone = all(dtype == "" for _, dtype in lines)

        def of_family(family: str) -> Field[tuple[str, str]]:
            return Column(family, "number"), lambda line: cell_of(cells.get((*line, family), ()))

        dtype: Field[tuple[str, str]] = text("dtype", lambda line: line[1])
        fields: list[Field[tuple[str, str]]] = [
            text(
                "kernel",
                lambda line: line[0] if line[0] in gates else f"{line[0]} (can't fail the run)",
                group=not alone,
            ),
            *([] if alone else [dtype]),
            *map(of_family, families),
        ]
        return table_of(title, fields, lines, _CELLS, level="details")

    def _worst_cases(self) -> Table:
        rows = [
            (kernel, rule, largest)
            for kernel in self._all
            for rule in MEASURED_RULES
            if (largest := worst(kernel.rows, rule)) is not None
        ]
        fields: list[Field[tuple[_KernelRows, str, Worst]]] = [
            *self._names(lambda item: item[0][:2]),
            text("rule", lambda item: item[1]),
            _ratio_field("ratio", lambda item: item[2].ratio),
            text("output", lambda item: item[2].output),
            text("case", lambda item: short_case(item[2].row)),
            command("command", lambda item: item[2].row.reproduce),
        ]
        title = "Largest error / bound of each kernel, and block / what an emulation allows"
        return table_of(title, fields, rows, level="details")

    def _ulps(self) -> Table:
        def of_place(place: int) -> Field[tuple[Key, list[float]]]:
            return number(ULP_TITLES[place], lambda item: item[1][place], share)

        fields = [*self._names(lambda item: item[0]), *map(of_place, range(len(ULP_TITLES)))]
        title = "Errors in units of the last place, by the share of a kernel's elements"
        return table_of(title, fields, ulp_shares(self._record), level="details")

    def _variants(self) -> Iterator[Table]:
        kernels = kernel_variants(self._record)

        def heading(kernel: KernelVariants) -> str:
            name = f"{kernel.op} {kernel.kernel}" if self._several else kernel.kernel
            return f"{name}: {kernel.sentence}"

        def variant(item: tuple[KernelVariants, str]) -> str:
            return f"{item[1]}{' (not listed)' if item[1] in item[0].unlisted else ''}"

        def rows_of(item: tuple[KernelVariants, str]) -> list[AccuracyRow]:
            return item[0].rows_of[item[1]]

        ran: list[Field[tuple[KernelVariants, str]]] = [
            text("kernel", lambda item: heading(item[0]), group=True),
            text("variant", variant),
            number("cases", lambda item: len(rows_of(item))),
            number(
                "failed",
                lambda item: sum(row.status == "failed" for row in rows_of(item)),
                tone=lambda item: _failed_tone(rows_of(item)),
            ),
            _ratio_field(
                "error / bound", lambda item: _worst_ratio(rows_of(item), "deterministic bound")
            ),
        ]
        yield table_of(
            f"Variants: {variants_counted(self._record) or 'code variants that cases took'}",
            ran,
            [(kernel, name) for kernel in kernels for name in kernel.rows_of],
            level="details",
            folded=True,
        )
        fields: list[Field[KernelVariants]] = [
            *self._names(lambda kernel: kernel[:2]),
            number("variants", lambda kernel: len(kernel.untaken)),
            text("names", lambda kernel: ", ".join(kernel.untaken), below=True),
        ]
        untaken = [kernel for kernel in kernels if kernel.untaken]
        title = "Variants that no case took"
        yield table_of(title, fields, untaken, level="details", folded=True)

    def _workspaces(self) -> Table:
        def tone(row: AccuracyRow) -> Tone:
            used, declared = row.workspace_bytes or 0, row.declared_workspace_bytes or 0
            return "good" if used <= declared else "bad"

        fields: list[Field[AccuracyRow]] = [
            *self._names(_kernel_of),
            number("taken", lambda row: row.workspace_bytes, memory, tone=tone),
            number("declared", lambda row: row.declared_workspace_bytes, memory),
            text("case", short_case),
        ]
        title = "Most memory beyond inputs and outputs, of kernels that declare it"
        return table_of(title, fields, workspaces(self._record), level="details")

    def _properties(self) -> Table:
        def of_name(name: str) -> Field[tuple[Key, dict[str, Property]]]:
            def cell(item: tuple[Key, dict[str, Property]]) -> Cell:
                measured = item[1][name]
                return Cell(measured.text, tone="bad" if measured.is_broken else "")

            return text(name, cell)

        def examples(item: tuple[Key, dict[str, Property]]) -> str:
            # A kernel that says itself that it depends on the batch needs no case that shows it.
            return "; ".join(
                f"not {name}: {short_case(measured.row)}: {measured.reason}"
                for name, measured in item[1].items()
                if measured.row is not None and measured.declared is not False
            )

        fields: list[Field[tuple[Key, dict[str, Property]]]] = [
            *self._names(lambda item: item[0]),
            *map(of_name, PROPERTIES),
            text("a case whose bits depend on more", examples, rank=1, below=True),
        ]
        properties = kernel_properties(self._record)
        title = "Independence of bits, measured"
        return table_of(title, fields, properties.items(), level="details")

    def _refusals(self) -> Table:
        fields: list[Field[RowGroup]] = [
            *self._names(lambda group: (group.op, group.kernel)),
            number("rows", lambda group: len(group.rows)),
            text("reason", lambda group: group.why),
            text("one case", lambda group: Cell(short_case(group.rows[0]), tone="dim"), below=True),
        ]
        return table_of(
            "Refused: outside what a kernel says it serves",
            fields,
            refusals(self._record),
            "N: a number that varies.",
            level="details",
            folded=True,
        )

    def _coverage(self) -> Iterator[Table]:
        """Yield the pairs that met, where the run was asked for them."""
        met = grouped(self._record.coverage, lambda row: (row.op, row.kernel))
        fields: list[Field[tuple[Key, list[CoverageRow]]]] = [
            *self._names(lambda item: item[0]),
            number("cases", lambda item: item[1][0].cases),
            number("possible", lambda item: sum(row.possible for row in item[1])),
            number("met", lambda item: sum(row.met for row in item[1])),
            number("share", lambda item: share_met(item[1]), share),
        ]
        note = (
            "A pair counts if a case that has it is in the kernel's domain, and this device judges "
            "the case in a second; `--tier full` and `search` meet more."
        )
        yield table_of("Pairs of levels that met", fields, list(met.items()), note, level="details")
        yield unmet_pairs(self._record.coverage)

    def _slowest(self) -> Table:
        def first_call(row: AccuracyRow) -> float | None:
            return None if row.call_s is None or math.isnan(row.call_s) else row.call_s

        fields: list[Field[AccuracyRow]] = [
            *self._names(_kernel_of),
            field_of(AccuracyRow, "duration_s", lambda row: row),
            number("first call", first_call, duration),
            text("case", short_case),
        ]
        rows = sorted(_ran(self._record.rows), key=lambda row: _rank(row.duration_s), reverse=True)
        title = f"Time taken: {total_duration(self._record)}; the slowest cases"
        return table_of(title, fields, rows[:_MOST_LISTED], level="details")

    def _rows(self) -> Table:
        def worst_of(rule: str) -> Callable[[AccuracyRow], float | None]:
            return lambda row: _worst_ratio([row], rule)

        fields: list[Field[AccuracyRow]] = [
            *self._names(_kernel_of),
            text("case", short_case),
            text("status", lambda row: Cell(row.status, tone=_TONES[row.status])),
            _ratio_field("deterministic", worst_of("deterministic bound")),
            _ratio_field("probabilistic", worst_of("probabilistic bound")),
            *fields_in_order(AccuracyRow, lambda row: row, derived={}),
        ]
        return table_of("Every row", fields, self._record.rows, level="page", folded=True)


def cell_of(rows: Sequence[AccuracyRow]) -> Cell:
    """Return a cell of rows: whether they pass, and their largest error / deterministic bound."""
    if not rows:
        return Cell("-", tone="dim")
    failed = [row for row in rows if row.status == "failed"]
    value = _worst_ratio(_ran(rows), "deterministic bound")
    if failed:
        gates = any(row.gates for row in failed)
        return Cell(_failed_text(failed), value, "bad" if gates else "doubtful")
    for status in ("passed", "no power"):
        if any(row.status == status for row in rows):
            passed = "passed" if value is None else ratio(value)
            return Cell(passed, value, "good") if status == "passed" else Cell(status, tone="dim")
    return Cell("refused", tone="dim")


def _failed_text(failed: Sequence[AccuracyRow]) -> str:
    """Return the graver rule: a kernel that raises or writes NaN has no ratio worth showing."""
    for rule, short in _SHORT_RULE.items():
        if any(row.rule == rule for row in failed):
            return f"FAIL {short}"
    for measured, mark in zip(MEASURED_RULES, ("", "p ", "e "), strict=True):
        largest = worst((row for row in failed if row.rule == measured), measured)
        if largest is not None:
            return f"FAIL {mark}{ratio(largest.ratio)}"
    return f"FAIL {failed[0].rule or ''}".rstrip()


def _failed_tone(rows: Iterable[AccuracyRow]) -> Tone:
    gates = [row.gates for row in rows if row.status == "failed"]
    return "" if not gates else "bad" if any(gates) else "doubtful"


def _ratio_field(title: str, value: Callable[[Any], float | None], note: str = "") -> Field[Any]:
    """Return a field of an error over its bound; infinite of a rule that measures none."""

    def cell(item: object) -> Cell:
        result = value(item)
        if result is None or math.isinf(result):
            return Cell("-")
        return Cell(ratio(result), result, "good" if result <= 1 else "bad")

    return Column(title, "number", note), cell


def _wrong(row: AccuracyRow) -> str:
    """Return what is wrong with a row that failed, and what its kernel printed."""
    printed = (f"printed: {line}" for line in row.printed)
    return "; ".join(filter(None, (row.reason or failing_output(row) or "", *printed)))
