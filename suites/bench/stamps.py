"""The SMs' own clock: a kernel of one warp a program that records its SM and its time.

    effective clock of an SM = cycles that its counter advanced / nanoseconds that the timer did

between two stamps. NVML's clock lags and overstates under a power cap; this clock is the SMs' real
one. The counter belongs to an SM, so stamps are paired by SM. The timer belongs to the GPU and has
a step of 32 ns on Hopper, so the stamps enclose the hold too, not only a short call. A stamp is
outside of the events that time the call.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import torch
import triton
import triton.language as tl

_COLUMNS = 3  # SM, cycles, nanoseconds
_LEAST_NS = 2_000  # 60 steps of the timer; in a shorter time its step matters too much

Stamps = Mapping[int, tuple[int, int]]  # by SM: cycles, nanoseconds


@triton.jit
def _stamp_kernel(out_ptr):  # noqa: ANN001, ANN202  (a pointer, as Triton has it)
    """Store the program's SM, the SM's cycle counter and the GPU's nanoseconds."""
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    nanoseconds = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    here = out_ptr + tl.program_id(0) * 3
    tl.store(here, sm.to(tl.int64))
    tl.store(here + 1, cycles)
    tl.store(here + 2, nanoseconds)


class Stamper:
    """Memory for two stamps on a GPU, with one program for each of its SMs."""

    def __init__(self, device: torch.device) -> None:
        self.programs = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._out = torch.zeros((2, self.programs, _COLUMNS), dtype=torch.int64, device=device)

    def stamp(self, place: int) -> None:
        """Stamp on the current stream: 0 before the call, 1 after it."""
        _stamp_kernel[(self.programs,)](self._out[place], num_warps=1)

    def clock_mhz(self) -> float | None:
        """Return the clock between the two stamps in MHz, once both have ended."""
        before, after = self._out.tolist()
        return effective_mhz(_by_sm(before), _by_sm(after))


def _by_sm(rows: Iterable[Sequence[int]]) -> Stamps:
    return {sm: (cycles, nanoseconds) for sm, cycles, nanoseconds in rows}


def effective_mhz(before: Stamps, after: Stamps) -> float | None:
    """Return the median over the SMs with two stamps, in MHz; None: there is no such SM."""
    clocks = []
    for sm in before.keys() & after.keys():
        cycles = after[sm][0] - before[sm][0]
        nanoseconds = after[sm][1] - before[sm][1]
        if nanoseconds >= _LEAST_NS and cycles > 0:
            clocks.append(1e3 * cycles / nanoseconds)
    return statistics.median(clocks) if clocks else None
