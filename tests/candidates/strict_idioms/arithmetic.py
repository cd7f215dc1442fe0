"""Functions that kernels compute with, constants, and hints that only steer the compiler."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _functions_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n + FAULT, other=1.0)
    y = tl.exp2(x * LOG2E) + tl.log2(x) / LOG2E + tl.sqrt(x) + tl.rsqrt(x) + tl.sin(x) * tl.cos(x)
    y += tl.floor(x) - tl.ceil(x) + tl.abs(-x) + tl.math.erf(x) + tl.sigmoid(x) + tl.fma(x, x, x)
    y += tl.div_rn(x, 3.0) + tl.sqrt_rn(x) + tl.math.exp(-x) + tl.clamp(x, 0.5, 1.5)
    tl.store(out_ptr + offs, y, mask=offs < n)


@idiom("_functions_kernel reads up to 1 elements past the end of x_ptr")
def functions_of_floats(fault: int) -> Made:
    """All of those that triton.language has."""
    x, out = torch.rand(13) * 2 + 0.1, torch.empty(13)
    _functions_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    right = x.exp() + x.log() + 2 * x.sqrt() + x.rsqrt() + x.sin() * x.cos() + x.floor() - x.ceil()
    right = right + x + x.erf() + x.sigmoid() + x * x + x + x / 3 + (-x).exp() + x.clamp(0.5, 1.5)
    return out, right


@triton.jit
def _integers_kernel(x_ptr, y_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    y = tl.load(y_ptr + offs, mask=mask, other=1)
    z = x // y * 1000 + x % y * 100 + (x >> 1) + (x << 2) + tl.cdiv(tl.abs(x), 7)
    tl.store(out_ptr + offs + FAULT, z + tl.minimum(x, y) - tl.maximum(x, y), mask=mask)


@idiom("_integers_kernel writes up to 1 elements past the end of out_ptr")
def division_and_remainder_of_negative_integers(fault: int) -> Made:
    """Toward zero, as C has it; and shifts with the sign."""
    x = torch.tensor([-7, 7, -7, 7, -8, 0, 3], dtype=torch.int32)
    y = torch.tensor([2, -2, -2, 2, 3, 5, 3], dtype=torch.int32)
    out = torch.empty(7, dtype=torch.int32)
    _integers_kernel[(1,)](x, y, out, 7, FAULT=fault, BLOCK=8)
    right = torch.div(x, y, rounding_mode="trunc") * 1000 + torch.fmod(x, y) * 100
    right += (x >> 1) + (x << 2) + (x.abs() + 6) // 7
    return out, right + torch.minimum(x, y) - torch.maximum(x, y)


@triton.jit
def _dropped_kernel(x_ptr, out_ptr, n, p, seed, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    keep = tl.rand(seed, offs) > p
    again = tl.rand(seed, offs) > p
    word = tl.abs(tl.randint(seed, offs).to(tl.int64))
    x = tl.load(x_ptr + offs, mask=offs < n + FAULT, other=0.0)
    kept = tl.where(keep, x / (1 - p), 0.0)
    once = tl.where(keep == again, 0.0, 1.0) + tl.where(word >= 0, 0.0, tl.randn(seed, offs))
    tl.store(out_ptr + offs, tl.where(keep, kept * (1 - p), x) + once, mask=mask)


@idiom("_dropped_kernel reads up to 1 elements past the end of x_ptr")
def random_numbers_by_a_counter(fault: int) -> Made:
    """Philox, whose integers wrap; what is dropped is put back, so that the result is known."""
    x, out = torch.randn(100), torch.empty(100)
    _dropped_kernel[(4,)](x, out, 100, 0.5, 123, FAULT=fault, BLOCK=32)
    return out, x


@triton.jit
def _casts_kernel(x_ptr, out_ptr, bits_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n + FAULT, other=0.0)
    half = x.to(tl.float16).to(tl.float32) + x.to(tl.bfloat16).to(tl.float32)
    whole = x.to(tl.int32).to(tl.int8).to(tl.float32) + (x > 0).to(tl.float32)
    wide = tl.cast(x, tl.float64) * 2
    tl.store(out_ptr + offs, half + whole + wide.to(tl.float32), mask=offs < n)
    tl.store(bits_ptr + offs, x.to(tl.uint32, bitcast=True) >> 31, mask=offs < n)


@idiom("_casts_kernel reads up to 1 elements past the end of x_ptr")
def casts_between_types(fault: int) -> Made:
    """To halves, integers, bools and bits; stores cast to the pointer's type."""
    x, out, bits = torch.randn(13) * 10, torch.empty(13), torch.empty(13, dtype=torch.int32)
    _casts_kernel[(1,)](x, out, bits, 13, FAULT=fault, BLOCK=16)
    right = x.half().float() + x.bfloat16().float() + x.int().float() + (x > 0) + 2 * x
    return torch.cat([out, bits]), torch.cat([right, (x < 0).float()])


@triton.jit
def _constants_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = x * tl.full((BLOCK,), 1.5, kind) + tl.zeros_like(x) + tl.full([BLOCK], 2, tl.int32).to(kind)
    y = tl.where(x > 0, y, tl.full((), -1, kind))
    scale = tl.full((1,), 4, tl.float32)
    tl.store(out_ptr + offs, y.to(tl.float32) * scale, mask=offs < n + FAULT)


def _constants(dtype: torch.dtype, fault: int) -> Made:
    x, out = torch.randn(13).to(dtype), torch.empty(13)
    _constants_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    y = x * torch.tensor(1.5, dtype=dtype) + torch.tensor(2.0, dtype=dtype)
    return out, torch.where(x > 0, y, torch.tensor(-1.0, dtype=dtype)).float() * 4


@idiom("_constants_kernel writes up to 1 elements past the end of out_ptr")
def constants_of_float16(fault: int) -> Made:
    """tl.full, zeros_like, and a scalar one."""
    return _constants(torch.float16, fault)


@idiom("_constants_kernel writes up to 1 elements past the end of out_ptr")
def constants_of_bfloat16(fault: int) -> Made:
    """The same in the type that numpy doesn't have."""
    return _constants(torch.bfloat16, fault)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def _bounds(offs, n, EXTRA: tl.constexpr = 0):
    mask = offs < n + EXTRA
    return offs, mask


@triton.constexpr_function
def _doubled(number):
    return 2 * number


@triton.jit
def _composed_kernel(
    x_ptr, out_ptr, n, ACTIVATION: tl.constexpr, FUNCTION: tl.constexpr, BLOCK: tl.constexpr
):
    EXTRA: tl.constexpr = 0 if ACTIVATION != "wide" else _doubled(1)
    tl.static_assert(BLOCK >= 8, "a block is short")
    offs, mask = _bounds(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), n, EXTRA=EXTRA)
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    if ACTIVATION == "gelu":
        x = _gelu(x)
    x = FUNCTION(x)
    tl.device_assert(x > -1e30, "a number")
    tl.store(out_ptr + offs, x, mask=mask)


@idiom("program (1, 0, 0) of _composed_kernel reads up to 2 elements past the end of x_ptr")
def functions_that_call_functions(fault: int) -> Made:
    """One returns two values, one is a constant's, one is passed in, one is chosen by a word."""
    x, out = torch.randn(21), torch.empty(21)
    word = "wide" if fault else "gelu"
    _composed_kernel[(2,)](x, out, 21, ACTIVATION=word, FUNCTION=_relu, BLOCK=16)
    return out, torch.nn.functional.gelu(x).relu()


@triton.autotune(
    [triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32})],
    key=["n"],
    reset_to_zero=["total_ptr"],
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit(do_not_specialize=["shift"])
def _tuned_kernel(x_ptr, total_ptr, n, shift, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + shift
    if EVEN:
        x = tl.load(x_ptr + offs)
    else:
        x = tl.load(x_ptr + offs, mask=offs < n + shift, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(x))


@idiom("_tuned_kernel reads up to 1 elements past the end of x_ptr")
def tuned_kernel_with_heuristics(fault: int) -> Made:
    """A grid that asks for the configuration; an argument that is 0 or 1 and no constant."""
    x, total = torch.randn(64), torch.zeros(1)
    grid = lambda chosen: (triton.cdiv(64, chosen["BLOCK"]),)  # noqa: E731
    _tuned_kernel[grid](x, total, 64, fault)
    return total, x.sum()[None]


@triton.jit
def _hinted_kernel(x_ptr, out_ptr, n, stride, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.assume(stride >= 0)
    stride = tl.multiple_of(stride, 16)
    offs = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK), BLOCK), BLOCK)
    x = tl.load(
        x_ptr + row * stride + offs + FAULT,
        mask=offs < n,
        other=0.0,
        cache_modifier=".cg",
    )
    y = tl.load(x_ptr + row * stride + offs, mask=offs < n, other=0.0, volatile=True)
    last = tl.load(
        x_ptr + row * stride + offs, mask=offs < n, other=0.0, eviction_policy="evict_first"
    )
    tl.debug_barrier()
    tl.store(out_ptr + row * n + offs, x + (y + last), mask=offs < n, cache_modifier=".cs")


@idiom("_hinted_kernel reads up to 1 elements past the end of a run of 13 of x_ptr")
def hints_to_the_compiler(fault: int) -> Made:
    """They change nothing; the fault reads the gap between two rows."""
    x, out = torch.randn(3, 16)[:, :13], torch.empty(3, 13)
    _hinted_kernel[(3,)](x, out, 13, 16, FAULT=fault, BLOCK=16)
    return out, x + 2 * x


@triton.jit
def _batched_kernel(a_ptr, b_ptr, out_ptr, FAULT: tl.constexpr, B: tl.constexpr, N: tl.constexpr):
    batch, at = tl.arange(0, B)[:, None, None], tl.arange(0, N)
    offs = batch * N * N + at[None, :, None] * N + at[None, None, :]
    a, b = tl.load(a_ptr + offs), tl.load(b_ptr + offs)
    out = tl.dot(a, b, out_dtype=tl.float32)
    tl.store(out_ptr + offs + FAULT, out)


@idiom("_batched_kernel writes up to 1 elements past the end of out_ptr")
def products_of_a_batch(fault: int) -> Made:
    """tl.dot of three axes, in halves."""
    a, b = torch.randint(-3, 4, (2, 4, 16, 16)).half()
    out = torch.empty(4, 16, 16)
    _batched_kernel[(1,)](a, b, out, FAULT=fault, B=4, N=16)
    return out, a.float() @ b.float()


@triton.jit
def _precise_kernel(a_ptr, b_ptr, out_ptr, m, FAULT: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    mask = tl.arange(0, N)[:, None] < m + FAULT
    a, b = tl.load(a_ptr + at, mask=mask, other=0.0), tl.load(b_ptr + at)
    total = tl.dot(a, b, input_precision="ieee")
    total = tl.dot(a, b, acc=total, input_precision="tf32x3")
    total += tl.dot(a, b, allow_tf32=False)
    whole = tl.dot(a.to(tl.int8), b.to(tl.int8))
    tl.store(out_ptr + at, total + whole.to(tl.float32), mask=tl.arange(0, N)[:, None] < m)


@idiom("_precise_kernel reads up to 32 elements past the end of a_ptr")
def products_by_precision(fault: int) -> Made:
    """Multiply small whole numbers, which every precision has, and in int8 too."""
    a, b = torch.randint(-3, 4, (31, 32)).float(), torch.randint(-3, 4, (32, 32)).float()
    out = torch.empty(31, 32)
    _precise_kernel[(1,)](a, b, out, 31, FAULT=fault, N=32)
    return out, 4 * (a @ b)


@triton.jit
def _high_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """A hash that wraps on purpose."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs + FAULT)
    high = tl.umulhi(x, tl.full((BLOCK,), 0x9E3779B9, tl.uint32))
    low = x * tl.full((BLOCK,), 0x9E3779B9, tl.uint32)
    tl.store(out_ptr + offs, high.to(tl.int64) * 4294967296 + low.to(tl.int64))


@idiom("_high_kernel reads up to 1 elements past the end of x_ptr")
def both_words_of_a_product(fault: int) -> Made:
    """Unsigned, the low one modulo 2^32."""
    numbers = [1, 2**31, 2**32 - 1, 12345]
    x, out = torch.tensor(numbers, dtype=torch.uint32), torch.empty(4, dtype=torch.int64)
    _high_kernel[(1,)](x, out, FAULT=fault, BLOCK=4)
    right = [each * 0x9E3779B9 for each in numbers]
    return out, torch.tensor([each - 2**64 if each >= 2**63 else each for each in right])


@triton.jit
def _narrow_kernel(
    x_ptr, scale_ptr, out_ptr, back_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows in fp8 with a scale each."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + row * n + offs, mask=mask, other=0.0)
    scale = tl.max(tl.abs(x), 0) / 448.0
    narrow = (x / scale).to(tl.float8e4nv)
    tl.store(scale_ptr + row + FAULT, scale)
    tl.store(out_ptr + row * n + offs, narrow, mask=mask)
    tl.store(back_ptr + row * n + offs, narrow.to(tl.float32) * scale, mask=mask)


@idiom("program (2, 0, 0) of _narrow_kernel writes up to 1 elements past the end of scale_ptr")
def rows_scaled_to_fp8(fault: int) -> Made:
    """Rounded to nearest, as torch does."""
    x, scale, back = torch.randn(3, 13), torch.empty(3), torch.empty(3, 13)
    narrow = torch.empty(3, 13, dtype=torch.float8_e4m3fn)
    _narrow_kernel[(3,)](x, scale, narrow, back, 13, FAULT=fault, BLOCK=16)
    right_scale = x.abs().amax(1, keepdim=True) / 448
    right = (x / right_scale).to(torch.float8_e4m3fn).float()
    made = torch.cat([narrow.float().flatten(), back.flatten()])
    return made, torch.cat([right.flatten(), (right * right_scale).flatten()])
