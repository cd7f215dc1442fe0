"""Calls, the launches that they make, and a record's rows of what was measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.registry import Kernel
from oracles.op import Case
from profiles.peaks import LIMITS
from reports.record import CodeMix, CompileRow
from suites.compile.compiler import Measured
from suites.compile.occupancy import occupancy_of
from suites.compile.selection import alignment_bytes
from suites.run.descriptions import case_info
from suites.sandbox.wire import Message, spelled


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel on a case, by names that any process knows."""

    op: str
    kernel: str
    case: Case

    @property
    def message(self) -> Message:
        """In JSON."""
        return {"op": self.op, "kernel": self.kernel, "case": spelled(self.case)}


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that a call makes, without what only the process that took it down can hold."""

    key: str
    function: str
    tile: dict[str, int]
    warps: int
    grid: tuple[int, ...]
    fp_fusion: bool | None


@dataclass(frozen=True, slots=True)
class Planned:
    """One launch to be compiled: of which kernel's call, on which generation.

    function   numbered where the call launches several of it
    also       other calls that launch the same
    """

    kernel: Kernel
    label: str
    case: Case
    sm: int
    function: str
    noted: Noted
    also: tuple[str, ...] = ()

    @property
    def call(self) -> Call:
        """The call, by names."""
        return Call(self.kernel.op.name, self.kernel.name, self.case)

    def shared_with(self, other: str) -> Planned:
        """The same, launched by another call too."""
        return self if other in self.also else replace(self, also=(*self.also, other))


def row_of(planned: Planned, measured: Measured, tools: dict[str, str]) -> CompileRow:
    """The row of one compiled launch, expectations aside."""
    limits = LIMITS[planned.sm]
    occupancy = None
    if measured.warps and measured.registers is not None and measured.shared_bytes is not None:
        occupancy = occupancy_of(
            limits,
            warps=measured.warps,
            registers=measured.registers,
            shared_bytes=measured.shared_bytes,
            tensor_columns=measured.tensor_columns,
        )
    variant = planned.kernel.variant
    return CompileRow(
        op=planned.kernel.op.name,
        kernel=planned.kernel.name,
        label=planned.label,
        function=planned.function,
        sm=planned.sm,
        case=case_info(planned.case),
        alignment_bytes=alignment_bytes(planned.case),
        variant=None if variant is None else variant(planned.case, planned.sm),
        also=planned.also,
        status="compiled" if measured.problem is None else "failed",
        reason=measured.problem,
        tile=planned.noted.tile,
        fp_fusion=planned.noted.fp_fusion,
        warps=measured.warps,
        registers=measured.registers,
        stack_bytes=measured.stack_bytes,
        spill_store_bytes=measured.spill_store_bytes,
        spill_load_bytes=measured.spill_load_bytes,
        shared_bytes=measured.shared_bytes,
        shared_limit_bytes=limits.shared_block_bytes,
        tensor_columns=measured.tensor_columns,
        blocks_per_sm=None if occupancy is None else occupancy.blocks,
        occupancy_warps=None if occupancy is None else occupancy.warps,
        most_warps=limits.warps,
        limited_by=None if occupancy is None else occupancy.limited_by,
        code_bytes=measured.code_bytes,
        mix=None if measured.mix is None else CodeMix.model_validate(measured.mix),
        compile_s=measured.compile_s,
        tools=tools,
        unread=tuple(measured.unread),
    )


def numbered(functions: Sequence[str]) -> list[str]:
    """Names with a number where one comes again: `key_gradients`, `key_gradients 2`."""
    seen: dict[str, int] = {}
    named = []
    for each in functions:
        seen[each] = seen.get(each, 0) + 1
        named.append(each if seen[each] == 1 else f"{each} {seen[each]}")
    return named
