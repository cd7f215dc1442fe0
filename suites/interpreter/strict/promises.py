"""Check promises to the compiler: tl.multiple_of, tl.max_contiguous and tl.max_constancy.

The compiler trusts a promise, and reads or writes several lanes by the address of the first. In
Triton's analysis of axes (lib/Analysis/AxisInfo.cpp), an axis is cut into groups of lanes, and

    max_contiguous(x, C)    in a group of C, x[i] is x[first] + i (pointers: i elements);
    max_constancy(x, C)     in a group of C, x[i] is x[first];
    multiple_of(x, V)       x[first] is a multiple of V (pointers: in bytes), in groups as long as
                            x is known to be contiguous.

A promise is false only if no reading of it is true. So multiple_of judges a lane by the longest
group that contains a contiguous run up to the lane, along any axis.

Public kernels clamp or wrap the lanes past an edge (tl.where(offs < n, offs, 0), offs % n) and then
promise contiguity, which is false in these lanes, but harmless unless a result of these lanes is
used. So lanes from the first one that doesn't rise on count as past an edge: a lane there that
breaks a promise is marked (overflow.py); a load by a marked lane is undefined (NaN, or an integer
that is no valid index), and a store is an illegal access. Any other lane that breaks a promise is
an illegal access at once, as is a false tl.assume. Promises about floats aren't checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl

from kernel_workbench.suites.interpreter.strict import overflow
from kernel_workbench.suites.interpreter.strict.initialisation import Array
from kernel_workbench.suites.interpreter.strict.launch import ADDRESS, STATE, line, name_of, who

_NAMES = {
    "tt.divisibility": "multiple_of",
    "tt.contiguity": "max_contiguous",
    "tt.constancy": "max_constancy",
}


def install(interpreter: Any) -> None:
    """Check the promises of `triton.runtime.interpreter`'s kernels from here on."""
    handle = interpreter.TensorHandle
    stock = handle.set_attr

    def set_attr(self: Any, key: str, value: Any) -> None:
        stock(self, key, value)
        if STATE.launch is not None and key in _NAMES:
            _check(self, key, value)

    handle.set_attr = set_attr


def _check(handle: Any, key: str, values: Sequence[int]) -> None:
    data, step = handle.data, 1
    if data.dtype.kind not in "iub" or data.ndim != len(values) or not data.size:
        return
    if isinstance(handle.dtype.scalar, tl.pointer_type):
        step = max(1, handle.get_element_ty().primitive_bitwidth // 8)
        data = data & ADDRESS
    numbers = data.astype(np.int64)
    broken, edge = np.zeros(data.shape, bool), np.zeros(data.shape, bool)
    for axis, value in enumerate(values):
        if value <= 1:
            continue
        if key == "tt.divisibility":
            broken |= _no_multiples(numbers, value, step)
        else:
            expected = _as_first(numbers, axis, value, step if key == "tt.contiguity" else 0)
            broken |= numbers != expected
    if not broken.any():
        return
    for axis in range(data.ndim):
        edge |= _past_an_edge(numbers, axis, strict=key == "tt.constancy")
    text = f"{_NAMES[key]}({', '.join(map(str, values))}) at {line()}"
    if (broken & ~edge).any():
        STATE.refuse(_refuted(handle, numbers, broken & ~edge, text))
    overflow.mark_unpromised(handle, broken, text)


def _refuted(handle: Any, numbers: Array, lanes: Array, text: str) -> str:
    launch = STATE.launch
    assert launch is not None
    place = tuple(map(int, np.unravel_index(int(lanes.argmax()), lanes.shape)))
    where = "" if lanes.size == 1 else f" in lane {place[0] if len(place) == 1 else place}"
    holds = f"the value is {numbers[place]}"
    if isinstance(handle.dtype.scalar, tl.pointer_type):
        address = int(handle.data[place])
        holds = f"the address, of {name_of(launch, address)}, is {numbers[place]:#x}"
    elif lanes.size > 1 and place[-1]:
        holds += f", after {numbers[(*place[:-1], place[-1] - 1)]}"
    return f"{who(launch)} promises {text}, which is false{where}: {holds}"


def _as_first(numbers: Array, axis: int, length: int, step: int) -> Array:
    """Return the numbers that the first of each group of `length` lanes implies along an axis."""
    lanes = np.arange(numbers.shape[axis])
    within = (lanes % length).reshape([-1 if at == axis else 1 for at in range(numbers.ndim)])
    expected: Array = np.take(numbers, lanes - lanes % length, axis) + within * step
    return expected


def _no_multiples(numbers: Array, value: int, step: int) -> Array:
    """Return the lanes for which no group length gives a first number divisible by `value`."""
    wrong: Array = numbers % value != 0
    for axis in range(numbers.ndim):
        if not wrong.any():
            break
        count = numbers.shape[axis]
        lanes = np.arange(count).reshape([-1 if at == axis else 1 for at in range(numbers.ndim)])
        starts = np.diff(numbers, axis=axis, prepend=np.take(numbers, [0], axis)) != step
        run = np.maximum.accumulate(np.where(starts, lanes, 0), axis)  # the run's first lane
        length = 2
        while length <= count:
            within = lanes % length
            reached = within <= lanes - run
            wrong &= ~(reached & ((numbers - within * step) % value == 0))
            length *= 2
    return wrong


def _past_an_edge(numbers: Array, axis: int, *, strict: bool) -> Array:
    """Return the lanes from the first one that doesn't rise on; with `strict`, that falls."""
    steps = np.diff(numbers, axis=axis, prepend=np.take(numbers, [0], axis) - 1)
    edge: Array = np.logical_or.accumulate(steps < 0 if strict else steps <= 0, axis=axis)
    return edge
