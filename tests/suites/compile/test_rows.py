"""Occupancy is what CUDA's own calculator counts, and says what keeps it from more."""

from __future__ import annotations

import pytest

from kernel_workbench.profiles.peaks import KIB, LIMITS
from kernel_workbench.suites.compile.rows import occupancy_of


@pytest.mark.parametrize(
    ("sm", "warps", "registers", "shared", "blocks", "limit"),
    [
        # 64 registers of 32 threads are 2,048 of the 16,384 of a quarter: 8 warps in each.
        (80, 8, 64, 0, 4, "registers"),
        # 65 are given out as 72: 7 warps in each quarter, 28 in all, 3 blocks of 8.
        (80, 8, 65, 0, 3, "registers"),
        # 255 are 256: 2 warps in each quarter.
        (90, 8, 255, 0, 1, "registers"),
        (90, 4, 255, 0, 2, "registers"),
        # Few registers: 64 warps, which are 2,048 threads.
        (90, 4, 32, 0, 16, "warps"),
        # 48 warps on sm 86, 32 on sm 75.
        (86, 4, 32, 0, 12, "warps"),
        (75, 4, 32, 0, 8, "warps"),
        # One warp a block: the number of blocks ends first.
        (86, 1, 32, 0, 16, "blocks"),
        (89, 1, 32, 0, 24, "blocks"),
        # 48 KiB and the driver's 1 KiB: twice in the 100 of sm 86, four times in the 228 of sm 90.
        (86, 4, 32, 48 * KIB, 2, "shared memory"),
        (90, 4, 32, 48 * KIB, 4, "shared memory"),
        # All that a block may have.
        (90, 4, 32, 227 * KIB, 1, "shared memory"),
        (75, 4, 32, 64 * KIB, 1, "shared memory"),
    ],
)
def test_occupancy_is_the_calculators(
    sm: int, warps: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    """Blocks of so many warps, registers and bytes that an SM holds, and what ends first."""
    found = occupancy_of(LIMITS[sm], warps=warps, registers=registers, shared_bytes=shared)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limit)
    assert found.occupancy_warps == blocks * warps


@pytest.mark.parametrize("sm", LIMITS)
def test_one_byte_more_than_a_block_may_have_fits_nowhere(sm: int) -> None:
    """Shared memory over the limit is no error of the compiler: the occupancy is zero."""
    most = LIMITS[sm].shared_block_bytes
    fits = occupancy_of(LIMITS[sm], warps=4, registers=32, shared_bytes=most)
    over = occupancy_of(LIMITS[sm], warps=4, registers=32, shared_bytes=most + 1)
    assert fits.blocks_per_sm == 1
    assert (over.blocks_per_sm, over.occupancy_warps, over.limited_by) == (0, 0, "shared memory")


def test_tensor_memory_is_counted_in_columns() -> None:
    """Blocks with 256 of Blackwell's 512 columns: two on an SM, whatever else would let in."""
    found = occupancy_of(LIMITS[100], warps=4, registers=32, shared_bytes=0, tensor_columns=256)
    assert (found.blocks_per_sm, found.limited_by) == (2, "tensor memory")
