"""The strict interpreter: every access of a kernel is checked, where a GPU would say nothing.

At a launch the extent of each tensor argument is known: from its first to its last element, and
nothing of the buffer around it. A masked-in lane that reads or writes outside of every argument is
an illegal access, by however little; an offset that overflowed 32 bits ends up there too. A masked
lane without `other` is undefined on a GPU, so it gets NaN, or the smallest integer, in place of the
stock interpreter's zeros. And two programs that store to one element conflict, whatever they store
and in whichever order the interpreter ran them: on a GPU there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl

_TRITON = str(Path(triton.__file__).parent)
_Array = np.ndarray[Any, Any]

# A log of who wrote each element is kept for arguments up to this many; above, in a dictionary.
_DENSE_LOG = 2**24


class IllegalAccessError(RuntimeError):
    """A kernel did what a GPU leaves undefined; the message says what and where."""


@dataclass(slots=True)
class _Extent:
    """The bytes of one tensor argument, and which program wrote each of its elements."""

    name: str
    start: int
    end: int
    itemsize: int
    writers: _Array | dict[int, int] | None = None

    def wrote(self, addresses: _Array, program: int) -> tuple[int, int] | None:
        """Note that `program` (from 1) wrote; another's number and the element where one did."""
        elements = (addresses - np.uint64(self.start)) // np.uint64(self.itemsize)
        count = (self.end - self.start) // self.itemsize
        if self.writers is None:
            self.writers = np.zeros(count, np.int32) if count <= _DENSE_LOG else {}
        if isinstance(self.writers, dict):
            for element in elements.tolist():
                earlier = self.writers.setdefault(element, program)
                if earlier != program:
                    return earlier, element
            return None
        before = self.writers[elements]
        conflict = (before != 0) & (before != program)
        if conflict.any():
            at = int(conflict.argmax())
            return int(before[at]), int(elements[at])
        self.writers[elements] = program
        return None


@dataclass(slots=True)
class _Launch:
    """The launch in progress: its kernel's name and its arguments' extents."""

    kernel: str
    extents: list[_Extent]


@dataclass(slots=True)
class _State:
    """What the patched interpreter consults; violations outlive an except clause of a candidate."""

    enabled: bool = False
    launches: list[_Launch] = field(default_factory=list)
    violation: str | None = None


_STATE = _State()


@contextmanager
def watched() -> Iterator[Callable[[], str | None]]:
    """Check launches inside, where the strict interpreter is on; yields the first violation."""
    _STATE.violation = None
    try:
        yield lambda: _STATE.violation
    finally:
        _STATE.launches.clear()


def _extent(name: str, tensor: Any) -> _Extent | None:
    base = getattr(tensor, "base", tensor)  # a TensorWrapper, or a descriptor
    if not hasattr(base, "data_ptr") or not hasattr(base, "stride"):
        return None
    steps = zip(base.shape, base.stride(), strict=True)
    reached = 1 + sum((size - 1) * stride for size, stride in steps) if base.numel() else 0
    start = base.data_ptr()
    return _Extent(name, start, start + reached * base.element_size(), base.element_size())


def _line() -> str:
    """The innermost line of the stack that is neither Triton's nor the workbench's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_TRITON) and Path(file).parent != Path(__file__).parent:
            return f"line {frame.f_lineno} of {file}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown line"


def _refuse(text: str) -> None:
    if _STATE.violation is None:
        _STATE.violation = text
    raise IllegalAccessError(text)


def _check(builder: Any, handle: Any, mask: _Array, *, write: bool) -> None:
    """Raise unless each masked-in access lies within one argument of the launch in progress."""
    if not _STATE.launches:
        return
    launch, pointers = _STATE.launches[-1], handle.data
    itemsize = max(1, handle.get_element_ty().primitive_bitwidth // 8)
    if not write and pointers.size:
        # Where no lane leaves a tensor, masked-in or not, it needn't be asked which are.
        low, high = int(pointers.min()), int(pointers.max()) + itemsize
        if any(each.start <= low and high <= each.end for each in launch.extents):
            return
    if mask.size and mask.all():
        addresses = pointers.reshape(-1)
    else:
        pointers, mask = np.broadcast_arrays(pointers, mask)
        addresses = pointers[mask]
    if not addresses.size:
        return
    low, high = int(addresses.min()), int(addresses.max()) + itemsize
    owner = next((each for each in launch.extents if each.start <= low < each.end), None)
    if owner is None or high > owner.end:
        _refuse(_outside(builder, launch, low, high, owner, write=write))
    elif write:
        x, y, z = builder.grid_idx
        program = 1 + x + builder.grid_dim[0] * (y + builder.grid_dim[1] * z)
        conflict = owner.wrote(addresses, program)
        if conflict is not None:
            other, element = conflict
            _refuse(
                f"programs {_place(builder, other - 1)} and {builder.grid_idx} of {launch.kernel} "
                f"both write element {element} of {owner.name}'s memory, at {_line()}"
            )


def _place(builder: Any, linear: int) -> tuple[int, int, int]:
    x, y = builder.grid_dim[0], builder.grid_dim[1]
    return linear % x, linear // x % y, linear // (x * y)


def _outside(
    builder: Any, launch: _Launch, low: int, high: int, owner: _Extent | None, *, write: bool
) -> str:
    """A sentence on an access from byte `low` to byte `high`, by the argument nearest to it."""
    did = "writes" if write else "reads"
    who = f"program {builder.grid_idx} of {launch.kernel} {did}"
    if owner is not None:
        by = -(-(high - owner.end) // owner.itemsize)
        return f"{who} up to {by:,} elements past the end of {owner.name}, at {_line()}"
    if not launch.extents:
        return f"{who} memory that belongs to no argument, at {_line()}"
    near = min(launch.extents, key=lambda each: min(abs(low - each.start), abs(low - each.end)))
    side, gap = ("before the start", near.start - low)
    if low >= near.end:
        side, gap = "past the end", high - near.end
    by = -(-gap // near.itemsize)
    hint = " (an offset that overflowed 32 bits?)" if by > 2**28 else ""
    return f"{who} {by:,} elements {side} of {near.name}{hint}, at {_line()}"


def install() -> None:
    """Make the interpreter strict, on top of `interpreter.install`."""
    from triton.runtime import interpreter  # noqa: PLC0415  (read only where it is in use)

    builder = interpreter.InterpreterBuilder
    executor = interpreter.GridExecutor
    if _STATE.enabled:
        return
    _STATE.enabled = True
    launch, load, store = (
        executor.__call__,
        builder.create_masked_load,
        builder.create_masked_store,
    )
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def strict_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        found = (_extent(name, value) for name, value in named.items())
        extents = [each for each in found if each is not None]
        _STATE.launches.append(_Launch(self.fn.__name__, extents))
        try:
            return launch(self, *args, **kwargs)
        finally:
            if _STATE.launches:
                _STATE.launches.pop()

    def lanes(mask: Any) -> Any:
        """The mask as the builder has it elsewhere; a descriptor passes a bare array."""
        return interpreter.TensorHandle(mask, tl.int1) if isinstance(mask, np.ndarray) else mask

    def strict_load(
        self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **more: Any
    ) -> Any:
        mask = lanes(mask)
        _check(self, pointers, mask.data, write=False)
        loaded = load(self, pointers, mask, other, *rest, **more)
        if other is None and not mask.data.all():
            undefined = ~np.broadcast_to(mask.data, loaded.data.shape)
            if np.issubdtype(loaded.data.dtype, np.integer):
                loaded.data[undefined] = np.iinfo(loaded.data.dtype).min
            elif loaded.data.dtype != np.bool_:
                loaded.data[undefined] = np.nan
        return loaded

    def strict_store(
        self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any
    ) -> Any:
        mask = lanes(mask)
        _check(self, pointers, mask.data, write=True)
        return store(self, pointers, value, mask, *rest, **more)

    def strict_rmw(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check(self, pointers, mask.data, write=False)
        return rmw(self, op, pointers, value, mask, *rest)

    def strict_cas(self: Any, pointers: Any, *rest: Any) -> Any:
        every = np.ones(pointers.data.shape, bool)
        _check(self, pointers, every, write=False)
        return cas(self, pointers, *rest)

    executor.__call__ = strict_launch
    builder.create_masked_load = strict_load
    builder.create_masked_store = strict_store
    builder.create_atomic_rmw = strict_rmw
    builder.create_atomic_cas = strict_cas
