"""Operations that the stock interpreter computes otherwise than a GPU, or has nothing for."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.language.extra import cuda, libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import GridExecutor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD, OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.sandbox.worker_side import watch
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.strict_calls import violation_of
from tests.builders.wrong_layer_norms import closed_form

pytestmark = pytest.mark.usefixtures("interpreted")

_CASE = "layer_norm_backward-m5-n5-float32-contiguous"


@triton.jit
def _limits_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, tl.maximum(x, y))
    tl.store(out_ptr + BLOCK + offs, tl.minimum(x, y))
    tl.store(out_ptr + 2 * BLOCK + offs, tl.clamp(x, -1.0, 1.0))
    tl.store(out_ptr + 3 * BLOCK + offs, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _fma_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    product = x * x
    tl.store(out_ptr + offs, tl.fma(x, x, -product))


@triton.jit
def _compared_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    spread = tl.broadcast_to(row < 1, (BLOCK,))
    tl.static_assert(spread.dtype == tl.int1)
    lane = row * BLOCK + offs
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, spread & (offs < size), other=-1.0), row < 2)


@triton.jit
def _sums_kernel(x_ptr, out_ptr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, offs = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + rows[:, None] * BLOCK + offs[None, :])
    again = tl.load(x_ptr + offs[None, :] + rows[:, None] * BLOCK)
    tl.store(out_ptr + rows, tl.sum(x, axis=1))
    tl.store(out_ptr + ROWS + rows, tl.sum(again, axis=1))


@triton.jit
def _elementary_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 4))
    tl.store(out_ptr + tl.arange(0, 4), libdevice.tanh(x) + cuda_libdevice.rsqrt(x))


@triton.jit
def _library_kernel(x_ptr, out_ptr, FUNCTION: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 256))
    if FUNCTION == "libdevice.tanh":
        y = libdevice.tanh(x.to(tl.float16))
    elif FUNCTION == "libdevice.erfinv":
        y = cuda_libdevice.erfinv(x)
    elif FUNCTION == "cuda.smid":
        y = cuda.smid()
    elif FUNCTION == "inline assembly":
        y = tl.inline_asm_elementwise("ex2 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    elif FUNCTION == "the operation descriptor_reduce":
        described = tl.make_tensor_descriptor(out_ptr, [256], [1], [256])
        y = described.atomic_add([0], x)
    else:
        half = tl.reshape(x, (16, 16)).to(tl.float8e5)
        scale = tl.full((16, 1), 127, tl.uint8)
        y = tl.dot_scaled(half, scale, "e5m2", half, scale, "e5m2")
    tl.store(out_ptr + tl.arange(0, 256), y)


_CALLS = {
    "libdevice.tanh": "libdevice.tanh(",
    "libdevice.erfinv": "cuda_libdevice.erfinv(",
    "cuda.smid": "cuda.smid(",
    "inline assembly": "tl.inline_asm_elementwise(",
    "the operation descriptor_reduce": "described.atomic_add(",
    "tl.dot_scaled": "tl.dot_scaled(",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_larger_of_a_number_and_nan_is_the_number(dtype: torch.dtype) -> None:
    """As max.f32 and min.f32 of a GPU have it, and clamp; unless a kernel asks for the NaN."""
    nan = float("nan")
    x, y = torch.tensor([[nan, 2.0], [3.0, nan]], dtype=dtype)
    out = torch.zeros(4, 2, dtype=dtype)
    assert violation_of(lambda: _limits_kernel[(1,)](x, y, out, BLOCK=2)) is None
    assert out[:2].tolist() == [[3.0, 2.0], [3.0, 2.0]]
    assert out[2].tolist() == [-1.0, 1.0]
    assert out[3].isnan().all()


def test_fma_rounds_once() -> None:
    """So that fma(x, x, -(x * x)) is what the product's rounding lost."""
    x = torch.tensor([1 + 2.0**-20, 3.14159274, 1e-10, 65521.0])
    out = torch.zeros(4)
    assert violation_of(lambda: _fma_kernel[(1,)](x, out, BLOCK=4)) is None
    exact = x.double() * x.double()
    assert torch.equal(out.double(), exact - (x * x).double())
    assert out[:2].all()


def test_elementary_function_of_a_library_is_rounded_once() -> None:
    """Functions of fp32 numbers and of zero are rounded once, whichever module they come from."""
    x, out = torch.tensor([0.0, 1e-3, 0.7, 40.0]), torch.zeros(4)
    assert violation_of(lambda: _elementary_kernel[(1,)](x, out)) is None
    wide = x.double()
    assert torch.equal(out, wide.tanh().float() + wide.rsqrt().float())


def test_scalar_comparison_spread_over_a_block_stays_a_mask() -> None:
    """The stock one becomes integers, by which numpy picks lanes 0 and 1."""
    x, out = torch.arange(8.0), torch.zeros(16)
    assert violation_of(lambda: _compared_kernel[(4,)](x, out, 5, BLOCK=8)) is None
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, *[-1.0] * 11]


@triton.jit
def _looking_kernel(x_ptr, out_ptr, n):
    at = 0
    while at < n and tl.load(x_ptr + at) > 0:
        at += 1
    tl.store(out_ptr, at)


def test_operands_of_and_are_all_looked_at() -> None:
    """Compiled, `and` of tensors doesn't stop at the first that is false, nor does a load in it."""
    x, out = torch.ones(5), torch.zeros(1, dtype=torch.int32)
    assert violation_of(lambda: _looking_kernel[(1,)](x - 2, out, 5)) is None
    found = violation_of(lambda: _looking_kernel[(1,)](x, out, 5))
    assert found is not None
    assert "_looking_kernel reads up to 1 elements past the end of x_ptr" in found


@triton.jit
def _scalar_kernel(x_ptr, out_ptr, n):
    tl.store(out_ptr, tl.load(x_ptr, mask=n > 7, other=0.0))


def test_scalar_load_has_its_other_though_it_is_zero() -> None:
    """Triton's own code takes one that isn't true for none."""
    out = torch.ones(1)
    assert violation_of(lambda: _scalar_kernel[(1,)](torch.ones(1), out, 5)) is None
    assert out.item() == 0


@triton.jit
def _narrowing_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x.to(out_ptr.dtype.element_ty), mask=offs < n)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_cast_to_fp8_rounds_to_nearest_even_and_saturates(
    source: torch.dtype, dtype: torch.dtype
) -> None:
    """Each value of fp16, those between, and back again."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.float16).float()
    x = (x[x.isfinite()] * 1.0009765625).to(source)
    narrow, back = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape)
    grid = (triton.cdiv(x.numel(), 4096),)

    def call() -> None:
        _narrowing_kernel[grid](x, narrow, x.numel(), BLOCK=4096)
        _narrowing_kernel[grid](narrow, back, x.numel(), BLOCK=4096)

    assert violation_of(call) is None
    most = torch.finfo(dtype).max
    right = x.float().clamp(-most, most).to(dtype).float()
    assert torch.equal(narrow.float(), right)
    assert torch.equal(back, right)


@pytest.mark.parametrize("function", _CALLS)
def test_kernel_that_calls_what_is_not_interpreted_is_refused(function: str) -> None:
    """In one sentence: which function, and what to do; it is no failure of the kernel."""

    def calling(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        _library_kernel[(1,)](torch.ones(256), torch.zeros(256), FUNCTION=function)
        return closed_form(dy, x, weight, mean, rstd)

    case = next(each for each in LAYER_NORM_BACKWARD.cases() if each.id() == _CASE)
    row = run_on(torch.device("cpu")).try_pair(kernel_of(calling), case)
    assert (row.status, row.rule) == ("refused", None)
    assert row.reason == (
        f"Triton {triton.__version__}'s interpreter can't run {function}; use functions of "
        "triton.language (tl.exp, tl.sigmoid, tl.math.erf), or say Domain(interpretable=False) "
        "and run it on a GPU"
    )


@triton.autotune([triton.Config({"ASSEMBLY": number}) for number in (0, 1)], key=[])
@triton.jit
def _tuned_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ASSEMBLY: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    at, here = tl.program_id(0) * n + offs, offs < n
    x = tl.load(x_ptr + at, here, other=float("-inf"))
    if ASSEMBLY:
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
        )
    power = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + at, power / tl.sum(power, 0), here)


def test_kernel_with_a_configuration_that_is_not_interpreted_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first call took another configuration."""
    for of, name in ((GridExecutor, "__call__"), (GluonJITFunction, "run"), (Autotuner, "run")):
        monkeypatch.setattr(of, name, getattr(of, name))  # put back after the test
    watch.watch_launches(interpreted=True)

    def tuned(x: Tensor) -> Tensor:
        y, n = torch.empty_like(x), x.shape[-1]
        _tuned_kernel[(x.numel() // n,)](x, y, n, BLOCK=triton.next_power_of_2(n))
        return y

    op = OPS["softmax_forward"]
    case = case_named(op, f"{op.name}-m12-n64-float32-contiguous")
    assert case is not None
    run = Run(torch.device("cpu"), 90, every_configuration=True)
    row = run.try_pair(kernel_of(tuned, op=op), case)
    assert (row.status, row.rule) == ("refused", None)
    assert str(row.reason).startswith("tuned to configuration 1 of 2: Triton ")


def test_sum_of_a_block_does_not_depend_on_how_numpy_lays_it_out() -> None:
    """The same numbers, whichever part of their addresses came first: the same bits."""
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    out = torch.empty(2, 64)
    _sums_kernel[(1,)](x, out, ROWS=64, BLOCK=16)
    assert torch.equal(out[0], out[1])
