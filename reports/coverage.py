"""Which variants of a kernel the cases of a run took, and what memory the kernels took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.summary import by_kernel, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.record import Record
    from reports.schema import AccuracyRow


@dataclass(frozen=True, slots=True)
class VariantRows:
    """The rows that ran one variant. ratio: the largest error / bound, None where none is known.

    listed: the kernel's own list has it, or the kernel lists none.
    """

    name: str
    ran: int
    failed: int
    gates: bool
    ratio: float | None
    listed: bool


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


@dataclass(frozen=True, slots=True)
class Workspace:
    """The row for which a kernel took most memory beyond inputs and outputs, in bytes."""

    op: str
    kernel: str
    taken: int
    declared: int
    row: AccuracyRow


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
            ran = tuple(_variant(each, taken[each], listed) for each in names)
            missing = tuple(each for each in listed if each not in taken)
            result.append(KernelVariants(op, kernel, len(listed), ran, missing))
    return tuple(result)


def _variant(name: str, rows: Sequence[AccuracyRow], listed: Sequence[str]) -> VariantRows:
    failed = [row for row in rows if row.status == "failed"]
    found = worst(rows, "deterministic bound")
    return VariantRows(
        name=name,
        ran=len(rows),
        failed=len(failed),
        gates=any(row.gates for row in failed),
        ratio=None if found is None else found.ratio,
        listed=not listed or name in listed,
    )


def variants_counted(record: Record) -> str | None:
    """`38 of 45 variants ran`, of the kernels that list theirs; None where none does."""
    kernels = [each for each in kernel_variants(record) if each.listed]
    ran = sum(each.listed - len(each.not_taken) for each in kernels)
    every = sum(each.listed for each in kernels)
    return f"{ran:,} of {every:,} variants ran" if kernels else None


def workspaces(record: Record) -> tuple[Workspace, ...]:
    """The most memory that each kernel took, of the kernels that declare how much that may be."""
    result = []
    for (op, kernel), rows in by_kernel(record).items():
        known = [
            Workspace(op, kernel, row.workspace_bytes, row.declared_workspace_bytes, row)
            for row in rows
            if row.workspace_bytes is not None and row.declared_workspace_bytes is not None
        ]
        if known:
            result.append(max(known, key=lambda each: each.taken))
    return tuple(result)
