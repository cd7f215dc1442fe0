"""Integer overflow on the way to an address.

The interpreter's integers wrap without a word, as a GPU's do, and a wrapped offset may well land in
its tensor. So additions, subtractions, products and left shifts of signed integers of up to 32 bits
are checked, and casts to a narrower signed type: by the ranges of the operands first, exactly where
those say that the result may not fit. What doesn't fit is marked, lane by lane, with the line where
it happened; the mark follows the value through arithmetic, casts, shapes and tl.where. A lane that
reads or writes by a marked pointer is an error, a lane that is masked off isn't.

Lanes of which a promise to the compiler is false (promises.py) are marked in the same way.

What wraps on purpose isn't: unsigned integers, and whatever goes through a bitwise operation, a
right shift, a remainder or a comparison, which drop the mark, as do reductions. A loop's number is
as wide as when compiled (loops.py), and has the mark of the number it starts from; an
argument is as wide as when compiled (arguments.py), and marked where its annotated type
doesn't hold it.

Nothing but the check of ranges runs until a first mark is made; from then to the end of the
program the operations that pass marks on stand in the place of their plain ones.
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
    """The lanes of a value that come of an overflow or of a false promise, and why.

    lanes   of each lane, the bits of what it comes of
    texts   by bit, a phrase about the first
    """

    lanes: Array
    texts: dict[int, str]

    def of(self, bit: int) -> Array:
        """The lanes that come of what the bit says."""
        lanes: Array = (self.lanes & bit) != 0
        return lanes


@dataclass(slots=True)
class _Tracking:
    """The builder's functions that pass marks on, and the plain ones; on while there is a mark."""

    builder: Any
    marking: dict[str, Any]
    plain: dict[str, Any]
    on: bool = False

    def switch(self, *, on: bool) -> None:
        """Put one of the two in place."""
        if on is not self.on:
            self.on = on
            for name, function in (self.marking if on else self.plain).items():
                setattr(self.builder, name, function)


_TRACKING: list[_Tracking] = []


def forget() -> None:
    """A program has ended, and its values with it."""
    for each in _TRACKING:
        each.switch(on=False)


def begin() -> None:
    """A program begins, with nothing marked but arguments."""
    for each in _TRACKING:
        each.switch(on=STATE.launch is not None and STATE.launch.cut)


def passed(argument: Argument, converted: Any) -> None:
    """Mark an argument that the type of its annotation doesn't hold."""
    kind = converted.data.dtype
    if kind not in _LIMITS or STATE.launch is None or converted.data.item() == argument.value:
        return
    STATE.launch.cut = True
    text = f"argument {argument.name} is {argument.value}"
    held = f"which {kind} holds as {converted.data.item()}"
    _mark(converted, np.ones(converted.data.shape, bool), _OVERFLOWED, f"{text}, {held}")


def _mark(handle: Any, lanes: Array, bit: int, text: str) -> None:
    """Mark lanes of a value, beside what is marked already."""
    bits, texts = lanes * np.uint8(bit), {bit: text}
    before = getattr(handle, _MARK, None)
    if before is not None:
        bits, texts = bits | before.lanes, texts | before.texts
    setattr(handle, _MARK, _Mark(bits, texts))


def mark_unpromised(handle: Any, lanes: Array, text: str) -> None:
    """Mark the lanes of a value of which a promise is false."""
    _mark(handle, lanes, _UNPROMISED, text)
    _TRACKING[0].switch(on=True)


def marked(pointers: Any) -> bool:
    """Say whether lanes of these pointers are marked, be they masked off or not."""
    return bool(_TRACKING) and _TRACKING[0].on and hasattr(pointers, _MARK)


def check(pointers: Any, lanes: Array, did: str) -> None:
    """Raise where a lane that is on goes by an offset that overflowed.

    So does one that writes by an offset of which a promise is false.
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
        why = "that overflowed" if bit == _OVERFLOWED else "of which a promise is false"
        name = name_of(launch, int(pointers.data[wrong][0]))
        STATE.refuse(f"{who(launch)} {did} {name}, at {line()}, by an offset {why}: {text}")


def unpromised(pointers: Any, lanes: Array) -> tuple[Array, str] | None:
    """The lanes that are on and go by an offset of which a promise is false, and the promise."""
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
    # A shift of 32 and more is undefined, and left to itself.
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
    """A range that holds a handle's numbers, kept with it."""
    found: Range | None = handle.__dict__.get(_REACH)
    if found is None:
        found = handle.__dict__[_REACH] = _range(handle.data)
    return found


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
    """What spreads a block, or a number over one, changes none of its numbers."""

    def spread(self: Any, *operands: Any) -> Any:
        out = stock(self, *operands)
        for each in operands:
            found = getattr(each, _REACH, None)
            if found is not None:
                out.__dict__[_REACH] = found
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


def _compare(out: Any, exact: Array, told: Callable[..., str], *operands: Array) -> None:
    """Mark the lanes of `out` that aren't `exact`."""
    lanes = exact != out.data
    if not lanes.any():
        return
    first = np.unravel_index(int(lanes.argmax()), lanes.shape)
    values = (int(np.broadcast_to(each, lanes.shape)[first]) for each in operands)
    held = f"which {out.data.dtype} holds as {int(out.data[first])}, at {line()}"
    _mark(out, lanes, _OVERFLOWED, f"{told(*values)} is {int(exact[first])}, {held}")
    _TRACKING[0].switch(on=True)


def _marks(handles: tuple[Any, ...]) -> list[_Mark]:
    return [each.wrapped for each in handles if hasattr(each, _MARK)]


def _texts(marks: list[_Mark]) -> dict[int, str]:
    """By bit, the phrase of the first mark that has it."""
    return {bit: text for mark in reversed(marks) for bit, text in mark.texts.items()}


def _passed_on(stock: Any) -> Any:
    """Mark a lane where a lane of an operand is marked, or where it overflows itself."""

    def marked(self: Any, *operands: Any) -> Any:
        out = stock(self, *operands)
        marks = _marks((out, *operands))
        if marks:
            lanes = np.zeros(out.data.shape, np.uint8)
            for each in marks:
                lanes = lanes | each.lanes
            setattr(out, _MARK, _Mark(lanes, _texts(marks)))
        return out

    return marked


def _chosen(stock: Any) -> Any:
    """tl.where: the lanes that come of the value that is taken."""

    def marked(self: Any, condition: Any, left: Any, right: Any) -> Any:
        out, marks = stock(self, condition, left, right), _marks((left, right))
        if marks:
            left_lanes, right_lanes = (getattr(each, _MARK, None) for each in (left, right))
            lanes = np.where(
                condition.data,
                np.uint8(0) if left_lanes is None else left_lanes.lanes,
                np.uint8(0) if right_lanes is None else right_lanes.lanes,
            )
            setattr(out, _MARK, _Mark(lanes, _texts(marks)))
        return out

    return marked


def _cast(stock: Any) -> Any:
    """To an unsigned type of no more bits it is wanted modulo 2^bits."""
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
    """Marks go where the values go: the same operation, on them."""

    def marks_of(each: Any) -> Any:
        if not isinstance(each, handle):
            return each
        mark = getattr(each, _MARK, None)
        lanes = np.zeros(each.data.shape, np.uint8) if mark is None else mark.lanes
        return handle(lanes, tl.uint8)

    def marked(self: Any, *operands: Any) -> Any:
        out, marks = stock(self, *operands), _marks(operands)
        if marks:
            moved = stock(self, *map(marks_of, operands))
            pairs = zip(out, moved, strict=True) if isinstance(out, tuple) else ((out, moved),)
            for each, lanes in pairs:
                setattr(each, _MARK, _Mark(lanes.data, _texts(marks)))
        return out

    return marked
