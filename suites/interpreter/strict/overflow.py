"""Find integer overflow in the computation of an address.

The interpreter's integers wrap silently, as a GPU's do, and a wrapped offset may land in its
tensor. So this module checks additions, subtractions, products and left shifts of signed integers
of up to 32 bits, and casts to a narrower signed type: first by the ranges of the operands, and
exactly if the ranges allow an overflow. A lane that overflowed is marked with the line of the
operation; the mark follows the value through arithmetic, casts, shapes and tl.where. A lane that
reads or writes by a marked pointer is an error; a masked lane isn't.

Lanes that break a promise to the compiler (promises.py) are marked in the same way.

Intended wrapping isn't marked: unsigned integers never are, and bitwise operations, right shifts,
remainders, comparisons and reductions drop a mark. A loop's number is as wide as in compiled code
(loops.py), and has the mark of its start; an argument is as wide too (arguments.py), and is marked
if its annotated type can't hold it.

Only the check of ranges runs until the first mark; from then to the end of the program, operations
that pass marks on replace the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl

from kernel_workbench.suites.interpreter.arguments import Argument
from kernel_workbench.suites.interpreter.strict.initialisation import Array
from kernel_workbench.suites.interpreter.strict.launch import STATE, line, name_of, who

Range = tuple[int, int]

_LIMITS: dict[object, Range] = {
    np.dtype(kind): (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.int8, np.int16, np.int32)
}
_SAME_SHAPE = ("create_sdiv", "create_udiv", "create_minsi", "create_maxsi", "create_addptr")
_SHAPES = (
    "create_expand_dims",
    "create_broadcast",
    "create_splat",
    "create_unsplat",
    "create_reshape",
    "create_trans",
    "create_join",
    "create_split",
    "create_cat",
)
_SPREADING = ("create_expand_dims", "create_broadcast", "create_splat")
_MARK, _REACH = "wrapped", "reach"  # attributes of a handle
_OVERFLOWED, _UNPROMISED = 1, 2  # bits of a mark's lanes


@dataclass(frozen=True, slots=True)
class _Mark:
    """The lanes of a value that result from an overflow or a false promise, and why.

    lanes   a bit mask of the causes, for each lane
    texts   a phrase about the first occurrence, by bit
    """

    lanes: Array
    texts: dict[int, str]

    def of(self, bit: int) -> Array:
        """Return the lanes with this cause."""
        lanes: Array = (self.lanes & bit) != 0
        return lanes


@dataclass(slots=True)
class _Tracking:
    """The builder's functions with and without marks; `on` is True while a mark exists."""

    builder: Any
    marking: dict[str, Any]
    plain: dict[str, Any]
    on: bool = False

    def switch(self, *, on: bool) -> None:
        """Install the functions with marks, or the plain ones."""
        if on is not self.on:
            self.on = on
            for name, function in (self.marking if on else self.plain).items():
                setattr(self.builder, name, function)


_TRACKING: list[_Tracking] = []


def forget() -> None:
    """End a program: its marks end with its values."""
    for tracking in _TRACKING:
        tracking.switch(on=False)


def begin() -> None:
    """Begin a program, in which only arguments may be marked."""
    for tracking in _TRACKING:
        tracking.switch(on=STATE.launch is not None and STATE.launch.cut)


def passed(argument: Argument, converted: Any) -> None:
    """Mark an argument that doesn't fit its annotated type."""
    kind = converted.data.dtype
    if kind not in _LIMITS or STATE.launch is None or converted.data.item() == argument.value:
        return
    STATE.launch.cut = True
    text = f"argument {argument.name} is {argument.value}"
    wrapped = f"which {kind} holds as {converted.data.item()}"
    _mark(converted, np.ones(converted.data.shape, bool), _OVERFLOWED, f"{text}, {wrapped}")


def _mark(handle: Any, lanes: Array, bit: int, text: str) -> None:
    """Mark lanes of a value, in addition to its marks."""
    bits, texts = lanes * np.uint8(bit), {bit: text}
    before = getattr(handle, _MARK, None)
    if before is not None:
        bits, texts = bits | before.lanes, texts | before.texts
    setattr(handle, _MARK, _Mark(bits, texts))


def mark_unpromised(handle: Any, lanes: Array, text: str) -> None:
    """Mark the lanes of a value that break a promise."""
    _mark(handle, lanes, _UNPROMISED, text)
    _TRACKING[0].switch(on=True)


def marked(pointers: Any) -> bool:
    """Return True if any lanes of these pointers are marked, also masked ones."""
    return bool(_TRACKING) and _TRACKING[0].on and hasattr(pointers, _MARK)


def check(pointers: Any, lanes: Array, did: str) -> None:
    """Raise IllegalAccessError if an active lane uses an offset that overflowed.

    A lane that writes by an offset with a false promise raises too.
    """
    mark = getattr(pointers, _MARK, None)
    if mark is None:
        return
    launch = STATE.launch
    assert launch is not None
    for bit, text in mark.texts.items():
        wrong = mark.of(bit) & lanes
        if not wrong.any() or (bit == _UNPROMISED and did == "reads"):
            continue
        why = "that overflowed" if bit == _OVERFLOWED else "that breaks a promise"
        name = name_of(launch, int(pointers.data[wrong][0]))
        STATE.refuse(f"{who(launch)} {did} {name}, at {line()}, by an offset {why}: {text}")


def unpromised(pointers: Any, lanes: Array) -> tuple[Array, str] | None:
    """Return the active lanes whose offset breaks a promise, and the promise; else None."""
    mark = getattr(pointers, _MARK, None)
    if mark is None or _UNPROMISED not in mark.texts:
        return None
    wrong = mark.of(_UNPROMISED) & lanes
    return (wrong, mark.texts[_UNPROMISED]) if wrong.any() else None


def _sums(a: Range, b: Range) -> Range:
    return a[0] + b[0], a[1] + b[1]


def _differences(a: Range, b: Range) -> Range:
    return a[0] - b[1], a[1] - b[0]


def _products(a: Range, b: Range) -> Range:
    corners = a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]
    return min(corners), max(corners)


def _shifts(a: Range, b: Range) -> Range:
    # A shift by 32 or more is undefined, and isn't checked.
    return _products(a, (1, 2 ** min(max(b[1], 0), 31)))


_ARITHMETIC: dict[str, tuple[str, Any, Callable[[Range, Range], Range]]] = {
    "create_add": ("+", np.add, _sums),
    "create_sub": ("-", np.subtract, _differences),
    "create_mul": ("*", np.multiply, _products),
    "create_shl": ("<<", np.left_shift, _shifts),
}


def _range(data: Array) -> Range:
    if data.size == 1:
        value = data.item()
        return value, value
    return int(data.min()), int(data.max())


def _reach(handle: Any) -> Range:
    """Return a range that contains a handle's numbers, and keep it in the handle."""
    numbers: Range | None = handle.__dict__.get(_REACH)
    if numbers is None:
        numbers = handle.__dict__[_REACH] = _range(handle.data)
    return numbers


def install(interpreter: Any) -> None:
    """Check the integer arithmetic of `triton.runtime.interpreter` from here on."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain: dict[str, Any] = {}
    marking: dict[str, Any] = {}
    for name, (sign, operation, reach) in _ARITHMETIC.items():
        plain[name] = _checked(getattr(builder, name), sign, operation, reach)
    plain["create_int_cast"] = _checked_cast(builder.create_int_cast)
    for name in (*_SAME_SHAPE, *_SHAPES, "create_select", "create_bitcast"):
        if hasattr(builder, name):
            plain[name] = getattr(builder, name)
    for name in _SPREADING:
        plain[name] = _reaching(plain[name])
    for name, function in plain.items():
        setattr(builder, name, function)
        marking[name] = _SPECIAL.get(name, _passed_on)(function)
    for name in _SHAPES:
        if name in plain:
            marking[name] = _reshaped(plain[name], handle)
    _TRACKING.append(_Tracking(builder, marking, plain))


def _checked(stock: Any, sign: str, operation: Any, reach: Callable[[Range, Range], Range]) -> Any:
    def checked(self: Any, a: Any, b: Any) -> Any:
        out = stock(self, a, b)
        limits = _LIMITS.get(out.data.dtype)
        if limits is not None:
            low, high = reach(_reach(a), _reach(b))
            if limits[0] <= low and high <= limits[1]:
                out.__dict__[_REACH] = low, high
                return out
            low, high = reach(_range(a.data), _range(b.data))
            if low < limits[0] or high > limits[1]:
                exact = operation(a.data.astype(np.int64), b.data.astype(np.int64))
                _compare(out, exact, lambda x, y: f"{x} {sign} {y}", a.data, b.data)
        return out

    return checked


def _reaching(stock: Any) -> Any:
    """Make an operation that only repeats numbers keep their range."""

    def spread(self: Any, *operands: Any) -> Any:
        out = stock(self, *operands)
        for operand in operands:
            reach = getattr(operand, _REACH, None)
            if reach is not None:
                out.__dict__[_REACH] = reach
        return out

    return spread


def _checked_cast(stock: Any) -> Any:
    def checked(self: Any, source: Any, *target: Any) -> Any:
        out = stock(self, source, *target)
        kind = out.data.dtype
        if kind in _LIMITS and source.data.dtype.itemsize > kind.itemsize:
            low, high = _range(source.data)
            if low < _LIMITS[kind][0] or high > _LIMITS[kind][1]:
                _compare(out, source.data, lambda x: f"{x} cast to {kind}", source.data)
        return out

    return checked


def _compare(out: Any, exact: Array, spell: Callable[..., str], *operands: Array) -> None:
    """Mark the lanes of `out` that aren't `exact`."""
    lanes = exact != out.data
    if not lanes.any():
        return
    first = np.unravel_index(int(lanes.argmax()), lanes.shape)
    values = (int(np.broadcast_to(operand, lanes.shape)[first]) for operand in operands)
    wrapped = f"which {out.data.dtype} holds as {int(out.data[first])}, at {line()}"
    _mark(out, lanes, _OVERFLOWED, f"{spell(*values)} is {int(exact[first])}, {wrapped}")
    _TRACKING[0].switch(on=True)


def _marks(handles: tuple[Any, ...]) -> list[_Mark]:
    return [handle.wrapped for handle in handles if hasattr(handle, _MARK)]


def _texts(marks: list[_Mark]) -> dict[int, str]:
    """Return by bit the phrase of the first mark with that bit."""
    return {bit: text for mark in reversed(marks) for bit, text in mark.texts.items()}


def _passed_on(stock: Any) -> Any:
    """Return an operation that marks lanes whose operands are marked, or that overflow."""

    def marked(self: Any, *operands: Any) -> Any:
        out = stock(self, *operands)
        marks = _marks((out, *operands))
        if marks:
            lanes = np.zeros(out.data.shape, np.uint8)
            for mark in marks:
                lanes = lanes | mark.lanes
            setattr(out, _MARK, _Mark(lanes, _texts(marks)))
        return out

    return marked


def _chosen(stock: Any) -> Any:
    """Return tl.where with marks: a lane gets the mark of the selected value."""

    def marked(self: Any, condition: Any, left: Any, right: Any) -> Any:
        out, marks = stock(self, condition, left, right), _marks((left, right))
        if marks:
            left_lanes, right_lanes = (getattr(handle, _MARK, None) for handle in (left, right))
            lanes = np.where(
                condition.data,
                np.uint8(0) if left_lanes is None else left_lanes.lanes,
                np.uint8(0) if right_lanes is None else right_lanes.lanes,
            )
            setattr(out, _MARK, _Mark(lanes, _texts(marks)))
        return out

    return marked


def _cast(stock: Any) -> Any:
    """Return the cast with marks; an unsigned type of up to 32 bits drops them on purpose."""
    passed_on = _passed_on(stock)

    def marked(self: Any, source: Any, target: Any, *rest: Any) -> Any:
        scalar = target.scalar
        narrow = not scalar.is_ptr() and scalar.primitive_bitwidth <= 32
        unsigned = narrow and not scalar.is_int_signed()
        return (stock if unsigned else passed_on)(self, source, target, *rest)

    return marked


def _pointer_cast(stock: Any) -> Any:
    passed_on = _passed_on(stock)

    def marked(self: Any, source: Any, target: Any) -> Any:
        pointer = isinstance(source.dtype.scalar, tl.pointer_type)
        return (passed_on if pointer else stock)(self, source, target)

    return marked


_SPECIAL = {
    "create_select": _chosen,
    "create_int_cast": _cast,
    "create_bitcast": _pointer_cast,
}


def _reshaped(stock: Any, handle: Any) -> Any:
    """Return a reshaping operation that moves marks as it moves values."""

    def marks_of(operand: Any) -> Any:
        if not isinstance(operand, handle):
            return operand
        mark = getattr(operand, _MARK, None)
        lanes = np.zeros(operand.data.shape, np.uint8) if mark is None else mark.lanes
        return handle(lanes, tl.uint8)

    def marked(self: Any, *operands: Any) -> Any:
        out, marks = stock(self, *operands), _marks(operands)
        if marks:
            moved = stock(self, *map(marks_of, operands))
            pairs = zip(out, moved, strict=True) if isinstance(out, tuple) else ((out, moved),)
            for result, lanes in pairs:
                setattr(result, _MARK, _Mark(lanes.data, _texts(marks)))
        return out

    return marked
