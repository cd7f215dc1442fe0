"""A record's rows of compiled kernels, with their occupancy.

Occupancy follows the calculator of CUDA's toolkit: a warp gets registers in units of 256, out of a
quarter of the SM's file; a block gets shared memory in units, plus the driver's share, and on
Blackwell tensor memory in columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kernel_workbench.profiles.peaks import LIMITS, SmLimits
from kernel_workbench.reports.record import CompileRow
from kernel_workbench.suites.compile.cases import alignment_bytes
from kernel_workbench.suites.compile.compiler import Measured
from kernel_workbench.suites.compile.plan import Planned
from kernel_workbench.suites.run.descriptions import case_info

_TENSOR_COLUMNS = 512  # columns of an SM's tensor memory
_LANES = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks that an SM holds, their warps, and what limits them, by the record's names.

    `blocks_per_sm` is 0 if a block asks for more shared memory than a block may have.
    """

    blocks_per_sm: int
    occupancy_warps: int
    limited_by: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy_of(
    limits: SmLimits, *, warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy:
    """Return the occupancy of a kernel: `warps` a block, `registers` a thread, bytes a block."""
    allocated = _up(shared_bytes + limits.shared_reserved_bytes, limits.shared_unit_bytes)
    # Warps sit in the quarters of an SM, each with a quarter of the registers.
    quarter = limits.registers // limits.schedulers
    a_quarter = quarter // _up(max(registers, 1) * _LANES, limits.register_unit)
    by = {
        "blocks": limits.blocks,
        "warps": limits.warps // warps,
        "registers": a_quarter * limits.schedulers // _up(warps, limits.schedulers)
        if warps >= limits.schedulers
        else a_quarter * limits.schedulers // warps,
        "shared memory": limits.shared_bytes // allocated if allocated else limits.blocks,
    }
    if tensor_columns:
        by["tensor memory"] = _TENSOR_COLUMNS // tensor_columns
    if shared_bytes > limits.shared_block_bytes:
        by["shared memory"] = 0
    fewest = min(by, key=lambda name: by[name])
    return Occupancy(by[fewest], by[fewest] * warps, fewest)


def row_of(planned: Planned, measured: Measured, tools: dict[str, str]) -> CompileRow:
    """Return the row of one launch, without expectations; measured fields keep their names."""
    figures = asdict(measured)
    problem = figures.pop("problem")
    limits = LIMITS[planned.sm]
    if measured.warps and measured.registers is not None and measured.shared_bytes is not None:
        figures |= asdict(
            occupancy_of(
                limits,
                warps=measured.warps,
                registers=measured.registers,
                shared_bytes=measured.shared_bytes,
                tensor_columns=measured.tensor_columns,
            )
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
        status="compiled" if problem is None else "failed",
        reason=problem,
        tile=planned.noted.tile,
        fp_fusion=planned.noted.fp_fusion,
        shared_limit_bytes=limits.shared_block_bytes,
        most_warps=limits.warps,
        tools=tools,
        **figures,
    )
