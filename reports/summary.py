"""The rows of a record of the suite `accuracy`, grouped and ranked, for every kind of report.

Nothing here knows where it is shown. Texts from the record are as the record has them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.partial import parts_of
from reports.phrases import number, numerics_value, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reports.record import Record
    from reports.schema import AccuracyRow, OutputError, Rule, Status

Key = tuple[str, str]  # op, kernel: two ops may have kernels of one name
NO_OPTION = "no option"

# How a domain begins its refusal of options; what follows is their names.
_UNSERVED = "doesn't serve "
BOUND_RULES = ("deterministic bound", "probabilistic bound")
_MEASURED_RULES = (*BOUND_RULES, "emulation")
# What a layout's name may begin with: the tensors it is of, and an axis.
_TENSOR = re.compile(
    r"^(?:(?:d?[qkvox]|q?kv|out|lse|delta|dy|d?(?:weight|bias|residual|gamma|beta|sink)|mean|rstd"
    r"|heads|batches)_(?=.))+"
)
_NUMBER = re.compile(
    r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)"
)  # whole words: not the 16 of float16
_SHORT_RULE: dict[Rule, str] = {
    "non-finite values": "non-finite",
    "unwritten output": "unwritten",
    "changed input": "input changed",
    "not repeatable": "unrepeatable",
    "wrong outputs": "wrong outputs",
    "raised": "raised",
    "illegal access": "illegal access",
    "undefined load": "undefined load",
}


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error / bound of some rows; NaN is larger than any number."""

    ratio: float
    output: str
    row: AccuracyRow


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One kernel's rows, counted, with what it declares beyond the defaults.

    judged: "all" of the op's outputs, or those that it computes, as "dx alone"
    """

    op: str
    name: str
    origin: str
    gates: bool
    declares: str
    judged: str
    passed: int
    failed: int
    powerless: int
    refused: int
    deterministic: Worst | None
    probabilistic: Worst | None
    emulation: Worst | None

    @property
    def ran(self) -> int:
        """Rows whose kernel was called."""
        return self.passed + self.failed + self.powerless


@dataclass(frozen=True, slots=True)
class Cell:
    """A kernel's cases of one dtype and one family of layouts."""

    status: Status
    text: str
    ratio: float | None
    gates: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """An op's cells: kernels down, each with its dtypes, and layout families across.

    Or options across, a case under each that it has; then a kernel's dtypes are taken together,
    and "" stands in their place. No cell where nothing ran.
    """

    op: str
    title: str
    families: tuple[str, ...]
    kernels: tuple[tuple[str, tuple[str, ...]], ...]  # name, its dtypes
    cells: dict[tuple[str, str, str], Cell]  # kernel, dtype, family


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Rows of one kernel refused for one reason, its varying numbers replaced by N."""

    op: str
    kernel: str
    reason: str
    count: int
    example: AccuracyRow


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Rows of one kernel that failed by one rule, the worst first; `shown` is how many to list."""

    op: str
    kernel: str
    rule: str
    gates: bool
    rows: tuple[AccuracyRow, ...]
    shown: int


def kernel_summaries(record: Record) -> tuple[KernelSummary, ...]:
    """Every kernel of the header or of a row, op by op: ours, then the user's, then baselines."""
    infos = {(info.op, info.name): info for info in record.header.kernels}
    parts = parts_of(record.header)
    summaries = []
    for key, rows in by_kernel(record).items():
        info = infos.get(key)
        statuses = Counter(row.status for row in rows)
        summaries.append(
            KernelSummary(
                op=key[0],
                name=key[1],
                origin="unknown" if info is None else info.origin,
                gates=any(row.gates for row in rows),
                declares="" if info is None else _declares(record, info.numerics),
                judged=parts.get(key, "all"),
                passed=statuses["passed"],
                failed=statuses["failed"],
                powerless=statuses["no power"],
                refused=statuses["refused"],
                deterministic=worst(rows, "deterministic bound"),
                probabilistic=worst(rows, "probabilistic bound"),
                emulation=worst(rows, "emulation"),
            )
        )
    return tuple(summaries)


def matrices(record: Record) -> tuple[Matrix, ...]:
    """Each op's matrix by layout, and by option where its cases have any; of kernels that ran."""
    result = []
    ran_anything = {
        key: rows
        for key, rows in by_kernel(record).items()
        if any(row.status != "refused" for row in rows)
    }
    for op in dict.fromkeys(op for op, _ in ran_anything):
        rows = [row for key, rows in ran_anything.items() if key[0] == op for row in rows]
        by_layout = [(row.case.dtype, layout_family(row.case.layout), row) for row in rows]
        families = list(dict.fromkeys(family for _, family, _ in by_layout))
        # Contiguous is what the others are read against, so it comes first; likewise no option.
        families.sort(key=lambda family: family != "contiguous")
        result.append(_matrix(op, "by dtype and layout", families, by_layout))
        by_option = [("", each, row) for row in rows for each in row.case.options or (NO_OPTION,)]
        options = sorted(
            {each for _, each, _ in by_option}, key=lambda each: (each != NO_OPTION, each)
        )
        if options != [NO_OPTION]:
            result.append(_matrix(op, "by option", options, by_option))
    return tuple(result)


def _matrix(
    op: str,
    title: str,
    families: Sequence[str],
    placed: Iterable[tuple[str, str, AccuracyRow]],
) -> Matrix:
    """The matrix of rows that are placed by dtype and family."""
    groups: dict[tuple[str, str, str], list[AccuracyRow]] = {}
    dtypes: dict[str, dict[str, None]] = {}
    for dtype, family, row in placed:
        groups.setdefault((row.kernel, dtype, family), []).append(row)
        # A dtype of which a kernel refused every case is told among the refusals alone.
        if row.status != "refused":
            dtypes.setdefault(row.kernel, {})[dtype] = None
    return Matrix(
        op=op,
        title=f"error / bound {title}",
        families=tuple(families),
        kernels=tuple(
            (name, tuple(sorted(kinds, key=_dtype_rank))) for name, kinds in dtypes.items()
        ),
        cells={where: _cell(rows) for where, rows in groups.items()},
    )


def _dtype_rank(label: str) -> tuple[int, str]:
    """Widest first, and a dtype before its mixtures with another weight."""
    dtype, _, mixture = label.partition("_")
    known = ("float32", "float16", "bfloat16")
    return (10 if mixture else 0) + (known.index(dtype) if dtype in known else 9), label


def layout_family(layout: str) -> str:
    """`offset` of `dy_offset3`, `expanded` of `expanded_rows`; `rank3` is a name as it is."""
    first = _TENSOR.sub("", layout).split("_", 1)[0]
    if re.fullmatch(r"rank\d+", first):
        return first
    return first.rstrip("0123456789") or layout


def refusals(record: Record) -> tuple[RefusalGroup, ...]:
    """Refused rows by kernel and reason, the most frequent reason of a kernel first."""
    result = []
    for (op, name), rows in by_kernel(record).items():
        groups: dict[tuple[str, ...], list[AccuracyRow]] = {}
        for row in rows:
            if row.status == "refused":
                reason = row.reason or "no reason given"
                alike = (_UNSERVED,) if reason.startswith(_UNSERVED) else _NUMBER.split(reason)
                groups.setdefault(tuple(alike), []).append(row)
        result += [
            RefusalGroup(op, name, _template(group), len(group), group[0])
            for group in sorted(groups.values(), key=len, reverse=True)
        ]
    return tuple(result)


def failures(record: Record, most: int = 10, per_group: int = 3) -> tuple[FailureGroup, ...]:
    """Failed rows by kernel and rule, those that gate first, with how many of each to list.

    About `most` in all, and of each group one at least: else nothing tells how to see its failure.
    """
    groups: dict[tuple[str, str, str, bool], list[AccuracyRow]] = {}
    for (op, name), rows in by_kernel(record).items():
        for row in rows:
            if row.status == "failed":
                key = (op, name, row.rule or "no rule given", row.gates)
                groups.setdefault(key, []).append(row)
    result = []
    left = most
    for (op, name, rule, gates), rows in sorted(groups.items(), key=lambda item: not item[0][3]):
        rows.sort(key=lambda row: _rank(failing_ratio(row)), reverse=True)
        shown = min(max(left, 1), per_group, len(rows))
        left -= shown
        result.append(FailureGroup(op, name, rule, gates, tuple(rows), shown))
    return tuple(result)


def nearest_passes(record: Record, most: int = 5) -> tuple[tuple[AccuracyRow, str, Worst], ...]:
    """The rows nearest to failing that pass, with the bound they are nearest to.

    Of rows that gate, where there are any: a baseline's margin is its author's concern.
    """
    passed = [row for row in record.rows if row.status == "passed"]
    found = []
    for row in [row for row in passed if row.gates] or passed:
        nearest = [(rule, worst([row], rule)) for rule in BOUND_RULES]
        known = [(row, rule, each) for rule, each in nearest if each is not None]
        if known:
            found.append(max(known, key=lambda item: _rank(item[2].ratio)))
    found.sort(key=lambda item: _rank(item[2].ratio), reverse=True)
    return tuple(found[:most])


def slowest(record: Record, most: int = 5) -> tuple[AccuracyRow, ...]:
    """The rows that took longest."""
    ran = [row for row in record.rows if row.status != "refused"]
    return tuple(sorted(ran, key=lambda row: _rank(row.duration_s), reverse=True)[:most])


def short_case(row: AccuracyRow) -> str:
    """The case's id without the op and the kernel, for where both are named already."""
    return row.case.id.removeprefix(f"{row.case.op}-").removeprefix(f"{row.kernel}-")


def worst(rows: Iterable[AccuracyRow], rule: str) -> Worst | None:
    """The largest ratio to what `rule` allows; None where nothing was measured by it."""
    found: Worst | None = None
    for row in rows:
        for output in row.outputs:
            value = _ratio(output, rule)
            if value is not None and (found is None or _rank(value) > _rank(found.ratio)):
                found = Worst(value, output.output, row)
    return found


def failing_ratio(row: AccuracyRow) -> float:
    """The ratio that a failed row is ranked by; infinite where its rule measures none."""
    if row.rule not in _MEASURED_RULES:
        return math.inf
    found = worst([row], row.rule)
    return math.inf if found is None else found.ratio


def failing_output(row: AccuracyRow) -> str | None:
    """What the worst output of a failed row got and should have got, on one line."""
    rule = row.rule if row.rule in _MEASURED_RULES else "deterministic bound"
    found = worst([row], rule) or worst([row], "deterministic bound")
    if found is None:
        return None
    output = next(each for each in row.outputs if each.output == found.output)
    index = ", ".join(map(str, output.worst_index))
    text = (
        f"{output.output}[{index}]: got {number(output.got)}, expected {number(output.expected)}, "
        f"bound {number(output.bound)}; error / bound {ratio(output.worst_deterministic)}"
    )
    if output.worst_probabilistic is not None:
        text += f", {ratio(output.worst_probabilistic)} of the probabilistic bound"
    if output.worst_emulation is not None:
        text += f"; a block has {ratio(output.worst_emulation)} of what an emulation's allow"
    return text


def several_ops(record: Record) -> bool:
    """Whether a kernel's name needs its op's beside it."""
    return len({op for op, _ in by_kernel(record)}) > 1


def by_kernel(record: Record) -> dict[Key, list[AccuracyRow]]:
    """Rows by kernel: op by op, and of each ours first, then the user's, then baselines."""
    rank = {"ours": 0, "user": 1, "baseline": 2}
    ops = list(dict.fromkeys(info.op for info in record.header.kernels))
    listed = sorted(record.header.kernels, key=lambda info: (ops.index(info.op), rank[info.origin]))
    groups: dict[Key, list[AccuracyRow]] = {(info.op, info.name): [] for info in listed}
    for row in record.rows:
        groups.setdefault((row.case.op, row.kernel), []).append(row)
    return groups


def _declares(record: Record, numerics: dict[str, bool | int | float | str | None]) -> str:
    defaults = record.header.default_numerics
    return ", ".join(
        numerics_value(name, value)
        for name, value in numerics.items()
        if value is not None and (name not in defaults or defaults[name] != value)
    )


def _cell(rows: Sequence[AccuracyRow]) -> Cell:
    failed = [row for row in rows if row.status == "failed"]
    found = worst((row for row in rows if row.status != "refused"), "deterministic bound")
    value = None if found is None else found.ratio
    if failed:
        text = _failed_text(failed)
        return Cell("failed", text, value, any(row.gates for row in failed))
    if all(row.status == "refused" for row in rows):
        return Cell("refused", "refused", None, gates=False)
    if not any(row.status == "passed" for row in rows):
        return Cell("no power", "no power", None, gates=False)
    return Cell("passed", "passed" if value is None else ratio(value), value, gates=False)


def _failed_text(failed: Sequence[AccuracyRow]) -> str:
    """The graver rule first: a kernel that raises or writes NaN has no ratio worth showing."""
    for rule, short in _SHORT_RULE.items():
        if any(row.rule == rule for row in failed):
            return f"FAIL {short}"
    for measured, mark in zip(_MEASURED_RULES, ("", "p ", "e "), strict=True):
        found = worst((row for row in failed if row.rule == measured), measured)
        if found is not None:
            return f"FAIL {mark}{ratio(found.ratio)}"
    return f"FAIL {failed[0].rule or ''}".rstrip()


def _template(rows: Sequence[AccuracyRow]) -> str:
    """The rows' reason, with N for the numbers that differ; of options, all that any row names."""
    reasons = [row.reason or "no reason given" for row in rows]
    if reasons[0].startswith(_UNSERVED):
        options = {each for reason in reasons for each in reason[len(_UNSERVED) :].split(", ")}
        return _UNSERVED + ", ".join(sorted(options))
    columns = list(zip(*(_NUMBER.findall(reason) for reason in reasons), strict=True))
    numbers = iter(column[0] if len(set(column)) == 1 else "N" for column in columns)
    return _NUMBER.sub(lambda _: next(numbers), reasons[0])


def _ratio(output: OutputError, rule: str) -> float | None:
    if rule == "probabilistic bound":
        return output.worst_probabilistic
    return output.worst_emulation if rule == "emulation" else output.worst_deterministic


def _rank(value: float) -> tuple[bool, float]:
    """A sort key under which NaN is worse than any number, infinity too."""
    return (True, 0.0) if math.isnan(value) else (False, value)
