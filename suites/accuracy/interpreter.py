"""Triton's interpreter with bfloat16 made right.

The stock interpreter keeps bfloat16 as uint16: it adds and multiplies bit patterns, truncates
fp32 on the way to bfloat16, and fails on atomics. Here its numpy dtype is ml_dtypes' bfloat16,
whose arithmetic goes through fp32 and rounds to nearest even, as a GPU's does. Casts that ask for
rounding toward zero get it. `probe` shows that each of these took effect on this Triton version.

The stock interpreter also patches triton.language anew at every call of a device function, tl.sum
among them, which is a quarter to a third of a call's time; here a launch does it once. And
autotuning, which needs a GPU to time on, takes the first configuration.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (tl.float16, tl.bfloat16, tl.float32, tl.float64)


class InterpreterError(RuntimeError):
    """The interpreter of this Triton version can't be mended; the message says what is wrong."""


def _toward_zero(data: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`data` cast to `dtype` by truncation: nearest, then one step back where that grew."""
    nearest = data.astype(dtype)
    grew = np.abs(nearest.astype(np.float64)) > np.abs(data.astype(np.float64))
    bits = nearest.view(np.uint16).copy()
    bits[grew] -= 1
    return bits.view(dtype)


_MENDED = (
    "_get_np_dtype",
    "InterpreterBuilder",
    "TensorHandle",
    "_interpreter",
    "_ir",
    "_patch_lang",
    "_patch_lang_tensor",
    "InterpretedFunction",
)


def _require(interpreter: Any) -> None:
    missing = [name for name in _MENDED if not hasattr(interpreter, name)]
    if missing:
        raise InterpreterError(
            f"Triton {triton.__version__}'s interpreter lacks {', '.join(missing)}, which making "
            "its bfloat16 right needs; use triton 3.6 or 3.7"
        )


def install() -> None:
    """Mend the interpreter, for every kernel launched from here on. Raises InterpreterError."""
    from triton.runtime import interpreter  # noqa: PLC0415  (read only where it is in use)

    _require(interpreter)
    stock_np_dtype = interpreter._get_np_dtype
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    stock_fp_to_fp = builder.create_fp_to_fp
    stock_atomic_rmw = builder.create_atomic_rmw
    if getattr(stock_np_dtype, "mended", False):
        return

    def np_dtype(tt_dtype: Any) -> Any:
        return _BFLOAT16 if tt_dtype.scalar == tl.bfloat16 else stock_np_dtype(tt_dtype)

    np_dtype.mended = True  # type: ignore[attr-defined]

    def cast(_: Any, source: Any, target: Any) -> Any:
        return handle(source.data.astype(np_dtype(target)), target.scalar)

    def fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        kinds = source.dtype.scalar, target.scalar
        if any(kind not in _FLOATS for kind in kinds):
            return stock_fp_to_fp(self, source, target, rounding)
        if rounding == interpreter._ir.ROUNDING_MODE.RTZ and np_dtype(target).itemsize == 2:
            return handle(_toward_zero(source.data, np_dtype(target)), target.scalar)
        return cast(self, source, target)

    def bf16_constant(_: Any, value: float) -> Any:
        return handle(np.array([value], dtype=_BFLOAT16), tl.bfloat16)

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
            old = memory.load(address, lane, np.zeros(1, _BFLOAT16), _BFLOAT16)
            memory.store(address, (old + values[index]).astype(_BFLOAT16), lane)
            before[index] = old[0]
        return handle(before, tl.bfloat16)

    np.seterr(all="ignore")  # a GPU overflows and divides without a word
    interpreter._get_np_dtype = np_dtype
    builder.cast_impl = cast
    builder.create_fp_to_fp = fp_to_fp
    builder.get_bf16 = bf16_constant
    builder.create_atomic_rmw = atomic_rmw
    _mend_launches(interpreter)
    probe()


def _mend_launches(interpreter: Any) -> None:
    """What isn't arithmetic: device functions, indices, autotuning."""

    def device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A jit function called from a kernel; tl is patched for the launch, not for each call."""
        known = self.fn.__globals__.values()
        modules = [each for each in known if each is tl or each is tl.core]
        if any(tl.core.is_builtin(each.load) for each in modules):
            interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    stock_patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, *scope: Any) -> None:
        """As stock; an index is one element of an array, which Triton 3.6 passes to int() whole."""
        stock_patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter.InterpretedFunction.__call__ = device_function
    interpreter._patch_lang_tensor = patch_tensor
    # Timing needs a driver. With every time equal, the first configuration left after pruning runs.
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


@triton.jit
def _probe_kernel(x_ptr, y_ptr, near_ptr, cut_ptr, sum_ptr, atomic_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.store(near_ptr + offs, x.to(tl.bfloat16))
    tl.store(cut_ptr + offs, x.to(tl.bfloat16, fp_downcast_rounding="rtz"))
    tl.store(sum_ptr + offs, y * y + tl.full((BLOCK,), 1.5, tl.bfloat16))
    tl.atomic_add(atomic_ptr + offs * 0, y)


def probe() -> None:
    """Raise InterpreterError unless bfloat16 rounds, adds and multiplies as it must."""
    # Ties to even both ways, a carry into the exponent, a subnormal, the largest number, -0.
    numbers = [1 + 2**-8, 1 + 3 * 2**-8, 1.999, 2.0**-133 * 1.5, 3.39e38, -0.0, -2.7, 1e-30]
    x = torch.tensor(numbers, dtype=torch.float32)
    y = torch.linspace(-3, 3, len(numbers)).bfloat16()
    near, cut, total = (torch.empty_like(y) for _ in range(3))
    atomic = torch.zeros(1, dtype=torch.bfloat16)
    _probe_kernel[(1,)](x, y, near, cut, total, atomic, BLOCK=len(numbers))
    truncated = (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    running = torch.zeros(1, dtype=torch.bfloat16)
    for each in y:
        running += each
    wrong = [
        what
        for what, got, expected in (
            ("casts fp32 to bfloat16 wrongly", near, x.bfloat16()),
            ("ignores rounding toward zero", cut, truncated),
            ("multiplies or adds bfloat16 wrongly", total, y * y + 1.5),
            ("adds bfloat16 atomically wrongly", atomic, running),
        )
        if not torch.equal(got.view(torch.int16), expected.view(torch.int16))
    ]
    if wrong:
        raise InterpreterError(
            f"Triton {triton.__version__}'s interpreter {' and '.join(wrong)}, also after mending; "
            "use triton 3.6 or 3.7"
        )
