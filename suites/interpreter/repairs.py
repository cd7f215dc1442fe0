"""Repair bfloat16 and tl.dot in Triton's interpreter, and install all other repairs.

The stock interpreter keeps bfloat16 as uint16: it adds and multiplies bit patterns, truncates
fp32 in casts to bfloat16, and fails on atomics. Here its numpy dtype is ml_dtypes' bfloat16, whose
arithmetic goes through fp32 and rounds to nearest even, as a GPU's does. Casts with rounding toward
zero truncate. Casts to fp8 round to nearest even too, and saturate; the stock casts round wrongly
where the fraction carries, and among subnormals.

arguments.py gives arguments their compiled types; loops.py counts loops in their compiled type;
operations.py mends comparisons, fma and minima of NaN, and refuses missing operations.

The stock tl.dot is exact fp32 for any input precision. Here fp32 operands of "tf32", the default,
lose all but 10 bits of their fraction, by truncation: Triton passes the registers to the tensor
cores unchanged, and the tensor cores ignore the rest. "tf32x3" is three such products: high x high
and twice high x low. Products of halves are summed in fp32.

`probe` checks that each repair took effect on this Triton version.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import jit

from kernel_workbench.suites.interpreter import arguments, loops, operations, overhead, plans
from kernel_workbench.suites.interpreter.strict import masked_lanes
from kernel_workbench.suites.interpreter.strict.launch import line

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (tl.float16, tl.bfloat16, tl.float32, tl.float64)


# fp8 types by Triton's names; the interpreter keeps their values as bits.
_EIGHTS = {"fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}

TRIED = "use triton 3.6, 3.7, 3.8 or 3.9"


class InterpreterError(RuntimeError):
    """The interpreter of this Triton version can't be mended; the message says why."""


def _toward_zero(data: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast `data` to `dtype` by truncation: to nearest, then one step back if that grew."""
    nearest = data.astype(dtype)
    grew = np.abs(nearest.astype(np.float64)) > np.abs(data.astype(np.float64))
    bits = nearest.view(np.uint16).copy()
    bits[grew] -= 1
    return bits.view(dtype)


def _eighth(data: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return the bits of `data` in fp8, rounded to nearest even and saturated."""
    kind = np.dtype(_EIGHTS[name])
    most = float(ml_dtypes.finfo(kind).max)
    narrow: np.ndarray[Any, Any] = np.clip(data.astype(np.float32), -most, most).astype(kind)
    return narrow.view(np.uint8)


def _truncated(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return fp32 `data` with 10 of its 23 bits of fraction, as tensor cores read tf32."""
    return (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


_MENDED = (
    "_get_np_dtype",
    "InterpreterBuilder",
    "TensorHandle",
    "_implicit_cvt",
    "_interpreter",
    "_ir",
    "interpreter_builder",
    "interpreter_semantic",
    "_patch_lang_core",
    "ASTTransformer",
    "FunctionRewriter",
    "InterpretedFunction",
)
_MENDED_LANGUAGE = ("builtin_min", "builtin_max")


def _require(interpreter: Any) -> None:
    missing = [name for name in _MENDED if not hasattr(interpreter, name)]
    missing += [name for name in _MENDED_LANGUAGE if not hasattr(tl.core, name)]
    missing += [name for name in arguments.NEEDED if not hasattr(jit, name)]
    if missing:
        raise InterpreterError(
            f"Triton {triton.__version__}'s interpreter lacks {', '.join(missing)}, which making "
            f"it right needs; {TRIED}"
        )


def install() -> None:
    """Mend the interpreter, for every kernel launched from here on. Raises InterpreterError."""
    from triton.runtime import interpreter  # noqa: PLC0415  (read only where it is in use)

    _require(interpreter)
    stock_np_dtype = interpreter._get_np_dtype
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    stock_fp_to_fp, rtz = builder.create_fp_to_fp, interpreter._ir.ROUNDING_MODE.RTZ
    kept: dict[str, Any] = {}  # the stock function builds a table at every call
    if getattr(stock_np_dtype, "mended", False):
        return

    def np_dtype(tt_dtype: Any) -> Any:
        scalar = tt_dtype.scalar
        kind = kept.get(scalar.name)
        if kind is None:
            kind = _BFLOAT16 if scalar == tl.bfloat16 else stock_np_dtype(scalar)
            kept[scalar.name] = kind
        return kind

    np_dtype.mended = True  # type: ignore[attr-defined]

    def cast(_: Any, source: Any, target: Any) -> Any:
        return handle(source.data.astype(np_dtype(target)), target.scalar)

    def fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        kinds = source.dtype.scalar, target.scalar
        if kinds[0] in _FLOATS and kinds[1].name in _EIGHTS and rounding != rtz:
            return handle(_eighth(source.data, kinds[1].name), kinds[1])
        if any(kind not in _FLOATS for kind in kinds):
            return stock_fp_to_fp(self, source, target, rounding)
        if rounding == rtz and np_dtype(target).itemsize == 2:
            return handle(_toward_zero(source.data, np_dtype(target)), target.scalar)
        return cast(self, source, target)

    def bf16_constant(_: Any, value: float) -> Any:
        return handle(np.array([value], dtype=_BFLOAT16), tl.bfloat16)

    np.seterr(all="ignore")  # a GPU overflows and divides by zero without an error
    interpreter._get_np_dtype = np_dtype
    builder.cast_impl = cast
    builder.create_fp_to_fp = fp_to_fp
    builder.get_bf16 = bf16_constant
    _mend_memory(interpreter)
    _mend_atomics(interpreter)
    _mend_dot(interpreter)
    operations.mend(interpreter)
    arguments.mend(interpreter)
    loops.mend(interpreter)
    plans.mend(interpreter)
    overhead.mend(interpreter)
    try:
        probe()
    except interpreter.InterpreterError as error:
        raise InterpreterError(
            f"Triton {triton.__version__}'s interpreter, mended, doesn't run a kernel ({error}); "
            f"{TRIED}"
        ) from error


def _mend_memory(interpreter: Any) -> None:
    """Load and store bfloat16 as integers of its bits, since Triton 3.9 requires them."""
    builder = interpreter.InterpreterBuilder
    stock_load, stock_store = builder.create_masked_load, builder.create_masked_store
    handle = interpreter.TensorHandle

    @functools.wraps(stock_load)  # strict/access.py inspects the signature
    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **more: Any) -> Any:
        lanes = mask if isinstance(mask, np.ndarray) else mask.data  # a descriptor's is bare
        has_other = operations.GIVEN
        if other is None and not (has_other and has_other[-1]) and not lanes.all():
            masked_lanes.note(line(), lambda: masked_lanes.UNNAMED)
        if pointers.get_element_ty() != tl.bfloat16:
            return stock_load(self, pointers, mask, other, *rest, **more)
        if other is None:
            instead = np.zeros(pointers.data.shape, np.uint16)
        else:
            instead = other.data.view(np.uint16)
        bits = interpreter._interpreter.load(pointers.data, lanes, instead, np.dtype(np.uint16))
        return handle(bits.view(_BFLOAT16), tl.bfloat16)

    @functools.wraps(stock_store)
    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        if value.data.dtype == _BFLOAT16:
            value = handle(value.data.view(np.uint16), tl.uint16)
        return stock_store(self, pointers, value, mask, *rest, **more)

    builder.create_masked_load, builder.create_masked_store = load, store


def _mend_atomics(interpreter: Any) -> None:
    """Add atomic operations on bfloat16, which the stock interpreter lacks."""
    stock_atomic_rmw = interpreter.InterpreterBuilder.create_atomic_rmw

    @functools.wraps(stock_atomic_rmw)
    def atomic_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *order: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return stock_atomic_rmw(self, op, ptr, value, mask, *order)
        memory = interpreter._interpreter
        pointers, values, masks = np.broadcast_arrays(ptr.data, value.data, mask.data)
        before = np.zeros(values.shape, _BFLOAT16)
        for index in np.ndindex(values.shape):  # in sequence: addresses may repeat
            if not masks[index]:
                continue
            address, lane = np.array([pointers[index]]), np.array([True])
            bits = memory.load(address, lane, np.zeros(1, np.uint16), np.dtype(np.uint16))
            old = bits.view(_BFLOAT16)
            memory.store(address, (old + values[index]).astype(_BFLOAT16).view(np.uint16), lane)
            before[index] = old[0]
        return interpreter.TensorHandle(before, tl.bfloat16)

    interpreter.InterpreterBuilder.create_atomic_rmw = atomic_rmw


def _mend_dot(interpreter: Any) -> None:
    """Make tl.dot sum in fp32, and follow its input precision."""
    stock_dot = interpreter.InterpreterBuilder.create_dot
    handle, precision = interpreter.TensorHandle, interpreter._ir.INPUT_PRECISION

    def dot(self: Any, a: Any, b: Any, d: Any, asked: Any, imprecise: Any) -> Any:
        single = d.data.dtype == np.float32
        if not single or a.data.dtype.itemsize < 2 or b.data.dtype.itemsize < 2:
            return stock_dot(self, a, b, d, asked, imprecise)
        both_single = a.data.dtype == b.data.dtype == np.float32
        x, y = a.data.astype(np.float32, copy=False), b.data.astype(np.float32, copy=False)
        if not both_single or asked == precision.IEEE:
            return handle(np.matmul(x, y) + d.data, d.dtype.scalar)
        high_x, high_y = _truncated(x), _truncated(y)
        total = np.matmul(high_x, high_y)
        if asked == precision.TF32x3:
            low_x, low_y = _truncated(x - high_x), _truncated(y - high_y)
            total = np.matmul(low_x, high_y) + np.matmul(high_x, low_y) + total
        return handle(total + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = dot


@triton.jit
def _probe_kernel(x_ptr, y_ptr, near_ptr, cut_ptr, sum_ptr, atomic_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.store(near_ptr + offs, x.to(tl.bfloat16))
    tl.store(cut_ptr + offs, x.to(tl.bfloat16, fp_downcast_rounding="rtz"))
    tl.store(sum_ptr + offs, y * y + tl.full((BLOCK,), 1.5, tl.bfloat16))
    tl.atomic_add(atomic_ptr + offs * 0, y)


@triton.jit
def _probe_integer_kernel(sum_ptr, number, annotated: tl.int64, one):
    tl.store(sum_ptr, number + number)
    tl.store(sum_ptr + 1, annotated + annotated)
    short = tl.full((1,), 127, tl.int8)
    tl.store(sum_ptr + 2 + tl.arange(0, 1), short + one)


@triton.jit
def _probe_loop_kernel(sum_ptr, start, wide):
    for number in range(start, start + 1):
        tl.store(sum_ptr, number + number)
    for number in tl.range(start, wide):
        tl.store(sum_ptr + 1, number + number)


@triton.jit
def _probe_dot_kernel(x_ptr, half_ptr, tf32_ptr, ieee_ptr, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    square = offs[:, None] * SIZE + offs[None, :]
    x = tl.load(x_ptr + square)
    half = x.to(half_ptr.dtype.element_ty)
    ones = tl.full((SIZE, SIZE), 1.0, tl.float32)
    tl.store(half_ptr + square, tl.dot(half, ones.to(half.dtype)).to(half.dtype))
    tl.store(tf32_ptr + square, tl.dot(x, ones))
    tl.store(ieee_ptr + square, tl.dot(x, ones, input_precision="ieee"))


def probe() -> None:
    """Raise InterpreterError unless bfloat16 and tl.dot compute as they must."""
    # Ties to even both ways, a carry into the exponent, a subnormal, the largest number, -0.
    numbers = [1 + 2**-8, 1 + 3 * 2**-8, 1.999, 2.0**-133 * 1.5, 3.39e38, -0.0, -2.7, 1e-30]
    x = torch.tensor(numbers, dtype=torch.float32)
    y = torch.linspace(-3, 3, len(numbers)).bfloat16()
    near, cut, total = (torch.empty_like(y) for _ in range(3))
    atomic = torch.zeros(1, dtype=torch.bfloat16)
    _probe_kernel[(1,)](x, y, near, cut, total, atomic, BLOCK=len(numbers))
    truncated = (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    wide = torch.zeros(3, dtype=torch.int64)
    _probe_integer_kernel[(1,)](wide, 2**31, 2**30, 1)
    counted = torch.zeros(2, dtype=torch.int64)
    _probe_loop_kernel[(1,)](counted, 2**31 - 2, 2**31)
    running = torch.zeros(1, dtype=torch.bfloat16)
    for element in y:
        running += element
    checks = [
        ("casts fp32 to bfloat16 wrongly", near, x.bfloat16()),
        ("ignores rounding toward zero", cut, truncated),
        ("multiplies or adds bfloat16 wrongly", total, y * y + 1.5),
        ("adds bfloat16 atomically wrongly", atomic, running),
        ("gives arguments another type", wide, torch.tensor([2**32, 2**31, -128])),
        ("counts a loop in another type", counted, torch.tensor([-4, 2**32 - 2])),
        *_dots(),
    ]
    wrong = [what for what, got, expected in checks if not torch.equal(_bits(got), _bits(expected))]
    if wrong:
        raise InterpreterError(
            f"Triton {triton.__version__}'s interpreter {' and '.join(wrong)}, also after mending; "
            f"{TRIED}"
        )


def _dots() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return checks of tl.dot: the possible fault, the computed and the expected values."""
    size, checks = 16, []
    x = torch.ones(size, size)
    x[0, 0], x[1, 0] = 4096.0, 256.0  # adding 1 fifteen times fails in fp16, and in bfloat16
    x[2:] = 1 + 2.0**-10 + 2.0**-11  # tf32 can't represent the last term
    tf32, ieee = torch.empty(2, size, size)
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.empty(size, size, dtype=dtype)
        _probe_dot_kernel[(1,)](x, half, tf32, ieee, SIZE=size)
        checks.append((f"sums products of {dtype} in less than fp32", half, _rows(x.to(dtype))))
    cut = torch.where(x < 2, x - x.frac() % 2.0**-10, x)
    return [
        *checks,
        ("computes tf32 products with more than tf32's bits", tf32, _rows(cut)),
        ("computes ieee products with fewer than fp32's bits", ieee, _rows(x)),
    ]


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row of a square `x`, in every column."""
    return x.double().sum(1, keepdim=True).to(x.dtype).expand_as(x)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as integers, so that -0 differs from 0."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])
