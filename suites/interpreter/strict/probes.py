"""Kernels with one fault each, to see which checks are in force on this Triton version.

The kernels stay within allocated memory, so that an unchecked one does no harm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench.suites.interpreter.strict import initialisation
from kernel_workbench.suites.interpreter.strict.launch import STATE

_BLOCK = 4


@triton.jit
def _sound_kernel(x_ptr, out_ptr, count_ptr, sum_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < size, other=0.0)
    tl.store(out_ptr + offs, x + 1.0, mask=offs < size)
    if tl.atomic_add(count_ptr, 1) == tl.num_programs(0) - 1:
        offs = tl.arange(0, 2 * BLOCK)
        tl.store(sum_ptr, tl.sum(tl.load(out_ptr + offs, mask=offs < size, other=0.0)))


@triton.jit
def _copying_kernel(x_ptr, out_ptr, start, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + start + offs))


@triton.jit
def _overflowing_kernel(x_ptr, out_ptr, large, BLOCK: tl.constexpr):
    offs = (tl.arange(0, BLOCK) + large) * large
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + offs))


@triton.jit
def _meeting_kernel(out_ptr, STEP: tl.constexpr):
    tl.store(out_ptr + tl.program_id(0) * STEP, 1.0)


@triton.jit
def _crossing_kernel(x_ptr):
    mine = tl.program_id(0)
    tl.store(x_ptr + mine, tl.load(x_ptr + 1 - mine))


@triton.jit
def _undefined_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < size))


@triton.jit
def _promising_kernel(out_ptr, number):
    tl.store(out_ptr + tl.multiple_of(number, 2), 1.0)


def sound_kernel_fails() -> bool:
    """Return True if a sound kernel raises or computes wrong values."""
    x, out = torch.arange(6.0), torch.zeros(6)
    count, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    violation = _violation(
        lambda: _sound_kernel[(2,)](x, out, count, total, 6, BLOCK=_BLOCK), fresh=out
    )
    right = torch.equal(out, x + 1) and count.item() == 2 and total.item() == 21
    return violation is not None or not right


def not_in_force() -> tuple[str, ...]:
    """Return the checks that don't find their wrong kernel."""
    both, fresh, out = torch.zeros(2 * _BLOCK), torch.zeros(_BLOCK), torch.zeros(_BLOCK)
    x, large = both[:_BLOCK], 2**16  # the square of `large` is 0 in 32 bits
    calls: dict[str, Callable[[], object]] = {
        "own tensor": lambda: _copying_kernel[(1,)](x, both[_BLOCK:], _BLOCK, BLOCK=_BLOCK),
        "integer overflow": lambda: _overflowing_kernel[(1,)](x, out, large, BLOCK=1),
        "unwritten memory": lambda: _copying_kernel[(1,)](fresh, out, 0, BLOCK=_BLOCK),
        "two writers": lambda: _meeting_kernel[(2,)](out, STEP=0),
        "reader and writer": lambda: _crossing_kernel[(2,)](x),
        "promises": lambda: _promising_kernel[(1,)](out, 3),
    }
    missing = [name for name, call in calls.items() if _violation(call, fresh) is None]
    problem = _violation(lambda: _undefined_kernel[(1,)](x, out, 3, BLOCK=_BLOCK), fresh)
    if problem is not None or not out[3].isnan():
        missing.append("masked lanes")
    return tuple(missing)


def _violation(call: Callable[[], object], fresh: Tensor) -> str | None:
    """Return the violation of a call, or None; the memory of `fresh` counts as unwritten."""
    STATE.violation = None
    initialisation.watch(on=True)
    initialisation.allocated(fresh)
    try:
        call()
    except Exception:  # noqa: BLE001  (Triton's error differs by version)
        return STATE.violation
    finally:
        initialisation.watch(on=False)
    return STATE.violation
