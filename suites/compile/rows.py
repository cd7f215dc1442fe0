"""A record's rows of what was compiled, with the occupancy that follows from it.

Occupancy is counted as the occupancy calculator of CUDA's toolkit does: registers are given to each
warp in units of 256, out of a quarter of the SM's file; shared memory to each block in its unit,
with what the driver keeps; Blackwell's tensor memory to each block in columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kernel_workbench.profiles.peaks import LIMITS, SmLimits
from kernel_workbench.reports.record import CompileRow
from kernel_workbench.suites.compile.cases import Standing, alignment_bytes
from kernel_workbench.suites.compile.compiler import Measured
from kernel_workbench.suites.compile.plan import Planned
from kernel_workbench.suites.run.descriptions import case_info

_TENSOR_COLUMNS = 512  # of the tensor memory of an SM that has one
_LANES = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks an SM holds, their warps, the most warps it could hold, and what keeps it from more.

    No blocks: a block asks for more than one may have.
    """

    blocks: int
    warps: int
    most_warps: int
    limited_by: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy_of(
    limits: SmLimits, *, warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy:
    """The occupancy of a kernel whose blocks have so many warps, and take so much of each."""
    held = _up(shared_bytes + limits.shared_reserved_bytes, limits.shared_unit_bytes)
    # Warps sit in the quarters of an SM, each with a quarter of the registers.
    quarter = limits.registers // limits.schedulers
    a_quarter = quarter // _up(max(registers, 1) * _LANES, limits.register_unit)
    by = {
        "blocks": limits.blocks,
        "warps": limits.warps // warps,
        "registers": a_quarter * limits.schedulers // _up(warps, limits.schedulers)
        if warps >= limits.schedulers
        else a_quarter * limits.schedulers // warps,
        "shared memory": limits.shared_bytes // held if held else limits.blocks,
    }
    if tensor_columns:
        by["tensor memory"] = _TENSOR_COLUMNS // tensor_columns
    if shared_bytes > limits.shared_block_bytes:
        by["shared memory"] = 0
    fewest = min(by, key=lambda name: by[name])
    return Occupancy(by[fewest], by[fewest] * warps, limits.warps, fewest)


def row_of(planned: Planned, measured: Measured, tools: dict[str, str]) -> CompileRow:
    """The row of one compiled launch, expectations aside; a measured field has its name here."""
    known = asdict(measured)
    problem = known.pop("problem")
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
        status="compiled" if problem is None else "failed",
        reason=problem,
        tile=planned.noted.tile,
        fp_fusion=planned.noted.fp_fusion,
        shared_limit_bytes=limits.shared_block_bytes,
        blocks_per_sm=None if occupancy is None else occupancy.blocks,
        occupancy_warps=None if occupancy is None else occupancy.warps,
        most_warps=limits.warps,
        limited_by=None if occupancy is None else occupancy.limited_by,
        tools=tools,
        **known,
    )


def failed_row(standing: Standing, sm: int, reason: str) -> CompileRow:
    """The row of a call whose launches couldn't be taken down."""
    case = standing.cases[sm]
    return CompileRow(
        op=standing.kernel.op.name,
        kernel=standing.kernel.name,
        label=standing.label,
        function="its launches",
        sm=sm,
        case=case_info(case),
        alignment_bytes=alignment_bytes(case),
        status="failed",
        reason=reason,
        shared_limit_bytes=LIMITS[sm].shared_block_bytes,
        most_warps=LIMITS[sm].warps,
        compile_s=0.0,
        tools={},
    )
