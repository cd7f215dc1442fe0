"""How many blocks of a kernel an SM holds at a time, and which of its resources ends first.

As the occupancy calculator of CUDA's toolkit counts: registers are given to each warp in units of
256, out of a quarter of the SM's file; shared memory to each block in its unit, with what the
driver keeps; Blackwell's tensor memory to each block in columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.peaks import Limits

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
    limits: Limits, *, warps: int, registers: int, shared_bytes: int, tensor_columns: int = 0
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
