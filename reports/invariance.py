"""What kernels' bits depend on: declared and measured, side by side.

A property holds of a kernel where every case that tried it says so; one case that says no is shown.
Repetition is asked of each case twice called, of kernels that declare it; the rest of few cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from reports.record import shown
from reports.summary import by_kernel, several_ops, short_case
from reports.tables import heading, indented, new_table, op_by_op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from reports.record import Record
    from reports.schema import AccuracyRow

# A property's name, and the field of a kernel's numerics that declares it.
_FIELDS = {
    "bitwise-repeatable": "bitwise_repeatable",
    "batch-invariant": "batch_invariant",
    "device-independent": "device_independent",
}
HEAD = ("kernel", *_FIELDS)

Measured = Literal["yes", "no", "not tried"]


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
    """The properties of one kernel that ran, in the order of HEAD."""

    op: str
    kernel: str
    properties: tuple[Property, ...]


def table(record: Record) -> tuple[KernelProperties, ...]:
    """The kernels that ran, with their properties; none where a run tried no property."""
    if not any(row.invariance for row in record.rows):
        return ()
    declared = {(each.op, each.name): each.numerics for each in record.header.kernels}
    made = []
    for (op, kernel), rows in by_kernel(record).items():
        ran = [row for row in rows if row.status != "refused"]
        if ran:
            numerics = declared.get((op, kernel), {})
            found = tuple(_property(name, numerics.get(_FIELDS[name]), ran) for name in _FIELDS)
            made.append(KernelProperties(op, kernel, found))
    return tuple(made)


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


def counterexamples(found: KernelProperties) -> Iterator[tuple[Property, str]]:
    """The properties that a kernel hasn't, each with the case and the element that show it."""
    for each in found.properties:
        if each.row is not None:
            yield each, f"{short_case(each.row)}: {each.reason}"


def table_rows(record: Record) -> list[tuple[str, ...]]:
    """The table as texts under HEAD, a case that says no in its cell."""
    several = several_ops(record)
    return [
        (
            f"{each.op} {each.kernel}" if several else each.kernel,
            *(
                found.text if found.row is None else f"{found.text}: {short_case(found.row)}"
                for found in each.properties
            ),
        )
        for each in table(record)
    ]


def render_invariance(record: Record, console: Console) -> None:
    """Print the properties of each kernel, and what shows those that don't hold."""
    known = table(record)
    if not known:
        return
    heading(console, "What bits depend on, measured")
    made = new_table()
    for title in HEAD:
        made.add_column(title, overflow="fold")
    for each, indent in op_by_op(known, made, several=several_ops(record)):
        cells = [
            Text(found.text, style="bold red" if found.is_broken else "")
            for found in each.properties
        ]
        made.add_row(Text(indent + shown(each.kernel)), *cells)
    console.print(made)
    for each in known:
        op = f"{each.op} " if several_ops(record) else ""
        for found, text in counterexamples(each):
            if found.is_broken or found.declared is None:
                indented(console, shown(f"{op}{each.kernel}, not {found.name}: {text}"))
