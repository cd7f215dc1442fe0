"""The rows of a record of the suite `accuracy`, grouped and ranked, for every kind of report.

Nothing here knows where it is shown. Texts from the record are as the record has them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kernel_workbench.reports.phrases import count, number, numerics_value, ratio
from kernel_workbench.reports.record import ULP_EDGES
from kernel_workbench.reports.views.failing_cases import plainness, shared_facts
from kernel_workbench.reports.views.run import joint_reason, parts_of, reason_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kernel_workbench.reports.record import AccuracyRow, OutputError, Record, Rule, Status

Key = tuple[str, str]  # op, kernel: two ops may have kernels of one name
NO_OPTION = "no option"

# How a domain begins its refusal of options; what follows is their names.
_UNSERVED = "doesn't serve "
BOUND_RULES = ("deterministic bound", "probabilistic bound")
MEASURED_RULES = (*BOUND_RULES, "emulation")
# What a layout's name may begin with: the tensors it is of, and an axis.
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
# Columns of units in the last place: the last of `ULP_EDGES` in each, and all beyond them.
_SHOWN_ULPS = (0.0, 0.5, 1.0, 2.0, 4.0, 2.0**4, 2.0**8, 2.0**16)
ULP_TITLES = (*(f"<= {edge:g}" if edge else "0" for edge in _SHOWN_ULPS), "more")
# A property's name, and the field of a kernel's numerics that declares it.
PROPERTIES = {
    "bitwise-repeatable": "bitwise_repeatable",
    "batch-invariant": "batch_invariant",
    "device-independent": "device_independent",
}
Measured = Literal["yes", "no", "not tried"]


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error / bound of some rows; NaN is larger than any number."""

    ratio: float
    output: str
    row: AccuracyRow


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One kernel's rows, with what it declares beyond the defaults.

    judged: "all" of the op's outputs, or those that it computes, as "dx alone"
    """

    op: str
    name: str
    origin: str
    declares: str
    judged: str
    rows: tuple[AccuracyRow, ...]

    @property
    def gates(self) -> bool:
        """Whether its failures fail the run."""
        return any(row.gates for row in self.rows)

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return self.count("failed")

    def count(self, *statuses: Status) -> int:
        """Rows that ended so."""
        return sum(row.status in statuses for row in self.rows)


@dataclass(frozen=True, slots=True)
class MatrixCell:
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
    cells: dict[tuple[str, str, str], MatrixCell]  # kernel, dtype, family


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one kernel that failed by one rule in one output, or were refused for one reason.

    why     the rule; or the reason, its varying numbers replaced by N
    rows    that failed: the plainest case first
    output  that broke the rule; empty where the rule is about no output, or the rows were refused
    needs   what the failing cases share and no passing case of the kernel has
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
        """Whether it fails the run."""
        return self.rows[0].gates


def kernel_summaries(record: Record) -> tuple[KernelSummary, ...]:
    """Every kernel of the header or of a row, op by op: ours, then the user's, then baselines."""
    infos = {(info.op, info.name): info for info in record.header.kernels}
    parts = parts_of(record.header)
    summaries = []
    for key, rows in by_kernel(record).items():
        info = infos.get(key)
        origin = "unknown" if info is None else info.origin
        declares = "" if info is None else _declares(record, info.numerics)
        judged = parts.get(key, "all")
        summaries.append(KernelSummary(*key, origin, declares, judged, tuple(rows)))
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
            (name, tuple(sorted(kinds, key=dtype_rank))) for name, kinds in dtypes.items()
        ),
        cells={where: cell_of(rows) for where, rows in groups.items()},
    )


def dtype_rank(label: str) -> tuple[int, str]:
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


def refusals(record: Record) -> tuple[RowGroup, ...]:
    """Refused rows by kernel and reason, the most frequent reason of a kernel first."""
    result = []
    for (op, name), rows in by_kernel(record).items():
        groups: dict[tuple[str, ...], list[AccuracyRow]] = {}
        for row in rows:
            if row.status == "refused":
                reason = row.reason or "no reason given"
                alike = (_UNSERVED,) if reason.startswith(_UNSERVED) else reason_key(reason)
                groups.setdefault(alike, []).append(row)
        result += [
            RowGroup(op, name, _template(group), tuple(group))
            for group in sorted(groups.values(), key=len, reverse=True)
        ]
    return tuple(result)


def failures(record: Record) -> tuple[RowGroup, ...]:
    """Failed rows by kernel, rule and output: groups that gate first, plainest cases first."""
    groups: dict[tuple[str, str, str, str, bool], list[AccuracyRow]] = {}
    passed: dict[Key, list[AccuracyRow]] = {}
    for (op, name), rows in by_kernel(record).items():
        passed[op, name] = [row for row in rows if row.status == "passed"]
        for row in rows:
            if row.status == "failed":
                key = (op, name, row.rule or "no rule given", _failing_name(row), row.gates)
                groups.setdefault(key, []).append(row)
    result = []
    for (op, name, rule, output, _), rows in sorted(
        groups.items(), key=lambda item: not item[0][4]
    ):
        rows.sort(key=lambda row: plainness(row.case))
        needs = shared_facts([row.case for row in rows], [row.case for row in passed[op, name]])
        result.append(RowGroup(op, name, rule, tuple(rows), output, needs))
    return tuple(result)


def _failing_name(row: AccuracyRow) -> str:
    """The output that broke a rule which measures errors; empty of other rules."""
    found = worst([row], row.rule) if row.rule in MEASURED_RULES else None
    return "" if found is None else found.output


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


def held_case(row: AccuracyRow) -> str:
    """The case's id, with the configuration that the call was held to, where it was to one."""
    return row.case.id if row.configuration is None else f"{row.case.id}, {row.configuration}"


def configurations_counted(record: Record) -> str | None:
    """`42 configurations besides dispatch's choice`, of all kernels; None where none was judged."""
    held = {
        (row.case.op, row.kernel, row.configuration)
        for row in record.rows
        if row.configuration is not None and row.status != "refused"
    }
    return f"{count(len(held), 'configuration')} besides dispatch's choice" if held else None


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
    if row.rule not in MEASURED_RULES:
        return math.inf
    found = worst([row], row.rule)
    return math.inf if found is None else found.ratio


def failing_output(row: AccuracyRow) -> str | None:
    """What the worst output of a failed row got and should have got, on one line."""
    rule = row.rule if row.rule in MEASURED_RULES else "deterministic bound"
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


def cell_of(rows: Sequence[AccuracyRow]) -> MatrixCell:
    """What the rows come to: whether they pass, and their largest error / deterministic bound."""
    failed = [row for row in rows if row.status == "failed"]
    found = worst((row for row in rows if row.status != "refused"), "deterministic bound")
    value = None if found is None else found.ratio
    if failed:
        text = _failed_text(failed)
        return MatrixCell("failed", text, value, any(row.gates for row in failed))
    if all(row.status == "refused" for row in rows):
        return MatrixCell("refused", "refused", None, gates=False)
    if not any(row.status == "passed" for row in rows):
        return MatrixCell("no power", "no power", None, gates=False)
    return MatrixCell("passed", "passed" if value is None else ratio(value), value, gates=False)


def _failed_text(failed: Sequence[AccuracyRow]) -> str:
    """The graver rule first: a kernel that raises or writes NaN has no ratio worth showing."""
    for rule, short in _SHORT_RULE.items():
        if any(row.rule == rule for row in failed):
            return f"FAIL {short}"
    for measured, mark in zip(MEASURED_RULES, ("", "p ", "e "), strict=True):
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
    return joint_reason(reasons)


def _ratio(output: OutputError, rule: str) -> float | None:
    if rule == "probabilistic bound":
        return output.worst_probabilistic
    return output.worst_emulation if rule == "emulation" else output.worst_deterministic


def _rank(value: float) -> tuple[bool, float]:
    """A sort key under which NaN is worse than any number, infinity too."""
    return (True, 0.0) if math.isnan(value) else (False, value)


@dataclass(frozen=True, slots=True)
class VariantRows:
    """The rows that ran one variant. listed: in the kernel's own list, or the kernel has none."""

    name: str
    rows: tuple[AccuracyRow, ...]
    listed: bool

    @property
    def failed(self) -> int:
        """Rows that failed."""
        return sum(row.status == "failed" for row in self.rows)

    @property
    def gates(self) -> bool:
        """Whether a row that failed fails the run."""
        return any(row.gates for row in self.rows if row.status == "failed")


@dataclass(frozen=True, slots=True)
class KernelVariants:
    """A kernel's variants: those that ran, in the kernel's own order, and those no case took.

    listed: how many the kernel says that there are; 0 where it doesn't.
    """

    op: str
    kernel: str
    listed: int
    ran: tuple[VariantRows, ...]
    not_taken: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """`18 of 20 ran`; `18 ran` of a kernel that doesn't list its variants."""
        if not self.listed:
            return f"{len(self.ran):,} ran"
        unlisted = sum(not each.listed for each in self.ran)
        text = f"{len(self.ran) - unlisted:,} of {self.listed:,} ran"
        return f"{text}, and {unlisted:,} that it doesn't list" if unlisted else text


def kernel_variants(record: Record) -> tuple[KernelVariants, ...]:
    """The variants of each kernel that ran and lists or names any."""
    listed_by = {(info.op, info.name): info.variants for info in record.header.kernels}
    result = []
    for (op, kernel), rows in by_kernel(record).items():
        ran_rows = [row for row in rows if row.status != "refused"]
        taken: dict[str, list[AccuracyRow]] = {}
        for row in ran_rows:
            # A kernel of several passes takes a variant for each.
            for name in (row.variant or "").split():
                taken.setdefault(name, []).append(row)
        # Of a kernel whose every row was refused the refusals say more.
        listed = listed_by.get((op, kernel), ()) if ran_rows else ()
        names = [each for each in listed if each in taken]
        names += [each for each in taken if each not in listed]
        if listed or taken:
            ran = tuple(
                VariantRows(each, tuple(taken[each]), not listed or each in listed)
                for each in names
            )
            missing = tuple(each for each in listed if each not in taken)
            result.append(KernelVariants(op, kernel, len(listed), ran, missing))
    return tuple(result)


def variants_counted(record: Record) -> str | None:
    """`38 of 45 variants ran`, of the kernels that list theirs; None where none does."""
    kernels = [each for each in kernel_variants(record) if each.listed]
    ran = sum(each.listed - len(each.not_taken) for each in kernels)
    every = sum(each.listed for each in kernels)
    return f"{ran:,} of {every:,} variants ran" if kernels else None


def workspaces(record: Record) -> list[AccuracyRow]:
    """Of each kernel that declares how much memory it may take, the row that took the most."""
    found = []
    for rows in by_kernel(record).values():
        known = [
            row
            for row in rows
            if row.workspace_bytes is not None and row.declared_workspace_bytes is not None
        ]
        found += [max(known, key=lambda row: row.workspace_bytes or 0)] if known else []
    return found


@dataclass(frozen=True, slots=True)
class UlpShares:
    """A kernel's errors: the share of its compared elements in each of ULP_TITLES."""

    op: str
    kernel: str
    shares: tuple[float, ...]


def ulp_shares(record: Record) -> tuple[UlpShares, ...]:
    """Of every kernel of which some element was compared."""
    found = []
    for (op, kernel), rows in by_kernel(record).items():
        counts = [0] * (len(ULP_EDGES) + 1)
        for row in rows:
            for output in row.outputs:
                for place, times in enumerate(output.ulp_histogram):
                    counts[place] += times
        total = sum(counts)
        if total:
            ends = [ULP_EDGES.index(edge) + 1 for edge in _SHOWN_ULPS]
            parts = zip((0, *ends), (*ends, len(counts)), strict=True)
            shares = tuple(sum(counts[start:end]) / total for start, end in parts)
            found.append(UlpShares(op, kernel, shares))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Property:
    """One property of a kernel. declared: None where the kernel says nothing.

    row, reason: the first case that says no, and what shows it there
    """

    name: str
    declared: bool | None
    measured: Measured
    row: AccuracyRow | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """`yes`, `yes, declared`, `no, declared not to be`, `not tried`."""
        if self.declared is None:
            return self.measured
        return f"{self.measured}, declared" + ("" if self.declared else " not to be")

    @property
    def is_broken(self) -> bool:
        """Whether the kernel declares what isn't so."""
        return self.measured == "no" and self.declared is True


@dataclass(frozen=True, slots=True)
class KernelProperties:
    """The properties of one kernel that ran, in the order of PROPERTIES."""

    op: str
    kernel: str
    properties: tuple[Property, ...]


def _property(name: str, declared: object, rows: list[AccuracyRow]) -> Property:
    said = declared if isinstance(declared, bool) else None
    if name == "bitwise-repeatable" and said:
        broken = next((row for row in rows if row.rule == "not repeatable"), None)
        if broken is not None:
            return Property(name, said, "no", broken, broken.reason)
        judged = any(row.status != "failed" for row in rows)
        return Property(name, said, "yes" if judged else "not tried")
    tried = [(row, each) for row in rows for each in row.invariance if each.name == name]
    for row, each in tried:
        if not each.holds:
            return Property(name, said, "no", row, each.reason)
    return Property(name, said, "yes" if tried else "not tried")


def kernel_properties(record: Record) -> tuple[KernelProperties, ...]:
    """The kernels that ran, with their properties; none where a run tried no property."""
    if not any(row.invariance for row in record.rows):
        return ()
    declared = {(each.op, each.name): each.numerics for each in record.header.kernels}
    made = []
    for (op, kernel), rows in by_kernel(record).items():
        ran = [row for row in rows if row.status != "refused"]
        if ran:
            numerics = declared.get((op, kernel), {})
            found = tuple(
                _property(name, numerics.get(PROPERTIES[name]), ran) for name in PROPERTIES
            )
            made.append(KernelProperties(op, kernel, found))
    return tuple(made)


def counterexamples(found: KernelProperties) -> Iterator[tuple[Property, str]]:
    """The properties that a kernel hasn't, each with the case and the element that show it."""
    for each in found.properties:
        if each.row is not None:
            yield each, f"{short_case(each.row)}: {each.reason}"
