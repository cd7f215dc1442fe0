"""Programs that meet: sums, counters, locks and queues."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _tile_sum_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=cols[None, :] < n, other=0.0)
    tl.atomic_add(out_ptr + cols, tl.sum(x, 0), mask=cols < n + FAULT, sem="relaxed")


@idiom("_tile_sum_kernel updates up to 1 elements past the end of out_ptr")
def sums_added_under_a_mask(fault: int) -> Made:
    """A column sum over programs, without an order."""
    x, out = torch.randn(12, 13), torch.zeros(13)
    _tile_sum_kernel[(3,)](x, out, 13, FAULT=fault, M=4, N=16)
    return out, x.sum(0)


@triton.jit
def _histogram_kernel(x_ptr, counts_ptr, n, bins, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(counts_ptr + x, 1, mask=(offs < n) & (x < bins + FAULT))


@idiom("_histogram_kernel updates up to 1 elements past the end of counts_ptr")
def counts_at_indices(fault: int) -> Made:
    """Several lanes and programs at one address; the largest value has no bin."""
    x, counts = torch.arange(100) % 9, torch.zeros(8, dtype=torch.int32)
    _histogram_kernel[(4,)](x, counts, 100, 8, FAULT=fault, BLOCK=32)
    return counts, x.bincount()[:8].int()


@triton.jit
def _last_kernel(x_ptr, parts_ptr, count_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    mine, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(parts_ptr + mine, tl.sum(tl.load(x_ptr + mine * BLOCK + tl.arange(0, BLOCK))))
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1 - FAULT:
        offs = tl.arange(0, BLOCK)
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + offs, mask=offs < programs, other=0.0)))


@idiom("_last_kernel reads element 4 of parts_ptr's memory, which nothing has written")
def last_program_adds_up(fault: int) -> Made:
    """By a counter; the fault has the last but one do it."""
    x, out = torch.randn(5, 8), torch.empty(1)
    parts, count = torch.empty(5), torch.zeros(1, dtype=torch.int32)
    _last_kernel[(5,)](x, parts, count, out, FAULT=fault, BLOCK=8)
    return out, x.sum()[None]


@triton.jit
def _locked_kernel(x_ptr, lock_ptr, sums_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + offs)
    if not FAULT:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
    tl.store(sums_ptr + offs, tl.load(sums_ptr + offs) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@idiom("program (1, 0, 0) of _locked_kernel reads element 0 of sums_ptr's memory, which program (0")
def sums_under_a_lock(fault: int) -> Made:
    """The fault doesn't take the lock."""
    x, sums, lock = torch.randn(4, 8), torch.zeros(8), torch.zeros(1, dtype=torch.int32)
    _locked_kernel[(4,)](x, lock, sums, FAULT=fault, BLOCK=8)
    return sums, x.sum(0)


@triton.jit
def _limits_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_max(out_ptr + offs * 0, x, mask=offs < n)
    tl.atomic_min(out_ptr + 1 + FAULT, tl.min(x))


@idiom("_limits_kernel updates up to 1 elements past the end of out_ptr")
def largest_and_smallest_of_floats(fault: int) -> Made:
    """The floats have both signs; Triton computes their limits by integers' maxima and minima."""
    x, out = torch.randn(40), torch.tensor([-100.0, 100.0])
    _limits_kernel[(3,)](x, out, 40, FAULT=fault, BLOCK=16)
    return out, torch.stack([x.max(), x.min()])


@triton.jit
def _bits_kernel(x_ptr, out_ptr, FAULT: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0))
    tl.atomic_or(out_ptr, 1 << x)
    tl.atomic_and(out_ptr + 1, ~(1 << x))
    tl.atomic_xor(out_ptr + 2 + FAULT, 1 << x)


@idiom("_bits_kernel updates up to 1 elements past the end of out_ptr")
def bits_that_are_set_cleared_and_turned(fault: int) -> Made:
    """One program a bit, one of them twice."""
    out = torch.tensor([0, 255, 0], dtype=torch.int32)
    _bits_kernel[(4,)](torch.tensor([1, 3, 5, 3], dtype=torch.int32), out, FAULT=fault)
    return out, torch.tensor([0b101010, 0b11010101, 0b100010])


@triton.jit
def _append_kernel(x_ptr, count_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=-1.0)
    keep = (x > 0).to(tl.int32)
    first = tl.atomic_add(count_ptr, tl.sum(keep) - FAULT)
    tl.store(out_ptr + first + tl.cumsum(keep) - keep, x, mask=keep > 0)


@idiom("program (1, 0, 0) of _append_kernel writes element 7 of out_ptr's memory, which program (0")
def places_taken_from_a_counter(fault: int) -> Made:
    """Numbers that are kept go where the counter says; the fault takes a place too few."""
    x, count = torch.arange(20.0) - 8.5 * (torch.arange(20) % 2), torch.zeros(1, dtype=torch.int32)
    x[:16] = x[:16].abs() * (1 - 2 * (torch.arange(16) % 2))
    x[0], kept = 0.5, torch.zeros(20)
    _append_kernel[(2,)](x, count, kept, 20, FAULT=fault, BLOCK=16)
    right = torch.zeros(20)
    right[: int((x > 0).sum())] = x[x > 0]
    return kept, right


@triton.jit
def _queue_kernel(x_ptr, next_ptr, out_ptr, tiles, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tile = tl.atomic_add(next_ptr, 1, sem="relaxed")
    while tile < tiles + FAULT:
        at = tile * BLOCK + offs
        tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)
        tile = tl.atomic_add(next_ptr, 1, sem="relaxed")


@idiom("program (0, 0, 0) of _queue_kernel reads up to 8 elements past the end of x_ptr")
def tiles_taken_from_a_queue(fault: int) -> Made:
    """Programs that stay until there are no more."""
    x, out, next_tile = torch.randn(5, 8), torch.empty(5, 8), torch.zeros(1, dtype=torch.int32)
    _queue_kernel[(2,)](x, next_tile, out, 5, FAULT=fault, BLOCK=8)
    return out, x * 2


@triton.jit
def _handed_on_kernel(
    x_ptr, carry_ptr, flag_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    mine, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + mine * BLOCK + offs)
    if not FAULT:
        while tl.atomic_cas(flag_ptr + mine, 1, 1, sem="acquire") != 1:
            pass
    before = tl.load(carry_ptr + mine)
    tl.store(out_ptr + mine * BLOCK + offs, before + tl.cumsum(x))
    tl.store(carry_ptr + mine + 1, before + tl.sum(x))
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + mine + 1, 1, sem="release")


@idiom(
    "program (1, 0, 0) of _handed_on_kernel reads element 1 of carry_ptr's memory, which program (0"
)
def sum_handed_from_program_to_program(fault: int) -> Made:
    """A scan by flags; the fault doesn't wait for them."""
    x, out, carry = torch.randn(4, 8), torch.empty(4, 8), torch.zeros(5)
    flags = torch.tensor([1, 0, 0, 0, 0], dtype=torch.int32)
    _handed_on_kernel[(4,)](x, carry, flags, out, FAULT=fault, BLOCK=8)
    return out, x.flatten().cumsum(0).view(4, 8)


@triton.jit
def _halves_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + offs, mask=offs < n, other=0.0)
    tl.atomic_add(out_ptr + offs, x, mask=offs < n)
    if FAULT and tl.program_id(0) == 1:
        tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("program (1, 0, 0) of _halves_kernel writes element 0 of out_ptr's memory, which several")
def sums_of_halves(fault: int) -> Made:
    """Whole numbers, so that no order matters; the fault stores where others add."""
    x, out = torch.randint(-4, 5, (4, 12)).half(), torch.zeros(12, dtype=torch.float16)
    _halves_kernel[(4,)](x, out, 12, FAULT=fault, BLOCK=16)
    return out, x.sum(0)


@triton.jit
def _packed_kernel(x_ptr, best_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n + FAULT, other=0)
    packed = (x.to(tl.int64) << 32) | offs.to(tl.int64)
    tl.atomic_max(best_ptr, tl.max(packed, 0))


@idiom("program (2, 0, 0) of _packed_kernel reads up to 1 elements past the end of x_ptr")
def value_and_index_in_64_bits(fault: int) -> Made:
    """The place of the largest by one maximum of both."""
    x, best = torch.randperm(40).int() + 1, torch.zeros(1, dtype=torch.int64)
    _packed_kernel[(3,)](x, best, 40, FAULT=fault, BLOCK=16)
    return best & 0xFFFFFFFF, x.argmax()[None]
