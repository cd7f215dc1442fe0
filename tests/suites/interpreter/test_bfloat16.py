"""The interpreter's bfloat16: what the stock one gets wrong comes out as on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as stock

from kernel_workbench.suites.interpreter import repairs

pytestmark = pytest.mark.usefixtures("interpreted")

TABLE = torch.arange(3)  # a tensor among a kernel's globals: comparing it with a module fails


@triton.jit
def _cast_kernel(wide_ptr, half_ptr, back_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    half = tl.load(wide_ptr + offs).to(half_ptr.dtype.element_ty)
    tl.store(half_ptr + offs, half)
    tl.store(back_ptr + offs, half.to(tl.float32))


@triton.jit
def _arithmetic_kernel(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offs)
    b = tl.load(b_ptr + offs)
    tl.store(out_ptr + offs, a * b - a)


@triton.jit
def _dot_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    square = offs[:, None] * SIZE + offs[None, :]
    product = tl.dot(tl.load(a_ptr + square), tl.load(b_ptr + square))
    tl.store(out_ptr + square, product + tl.max(tl.load(a_ptr + square), axis=1)[:, None])


@triton.jit
def _wide_kernel(out_ptr, stride, flag):
    tl.store(out_ptr, stride + stride)
    tl.store(out_ptr + 1, tl.where(flag, 1, 2))


@triton.jit
def _doubling_kernel(x_ptr, views, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) * 2)
    tl.store(views[0] + offs, tl.load(views[0] + offs) + 1)


@triton.autotune([triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["size"])
@triton.heuristics({"EVEN": lambda arguments: arguments["size"] % arguments["BLOCK"] == 0})
@triton.jit
def _tuned_kernel(out_ptr, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs * 0 + BLOCK + EVEN, mask=offs < size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_casts_round_to_nearest_even_as_torch_does(dtype: torch.dtype) -> None:
    """Every rounding of fp32 to a half, ties, subnormals, overflow and NaN included."""
    bits = torch.randint(-(2**31), 2**31, (65536,), dtype=torch.int64).to(torch.int32)
    ties = (torch.arange(-32768, 32768, dtype=torch.int32) << 16) + 0x8000
    for pattern in (bits, ties):
        wide = pattern.view(torch.float32)
        half, back = torch.empty_like(wide, dtype=dtype), torch.empty_like(wide)
        _cast_kernel[(1,)](wide, half, back, BLOCK=wide.numel())
        number = ~wide.isnan()
        assert torch.equal(half[number].view(torch.int16), wide.to(dtype)[number].view(torch.int16))
        assert half[~number].isnan().all()
        assert torch.equal(back[number], half[number].float())


def test_arithmetic_on_bfloat16_rounds_each_operation() -> None:
    """Products and differences are those of fp32, rounded to bfloat16 one by one."""
    a, b = torch.randn(2, 512).bfloat16()
    out = torch.empty_like(a)
    _arithmetic_kernel[(1,)](a, b, out, BLOCK=512)
    assert torch.equal(out, a * b - a)


def test_dot_and_max_of_bfloat16_are_exact_where_they_can_be() -> None:
    """A product of small integers has no rounding, so it must be equal, and so must the maximum."""
    a, b = torch.randint(-8, 9, (2, 32, 32)).bfloat16()
    out = torch.empty(32, 32)
    _dot_kernel[(1,)](a, b, out, SIZE=32)
    assert torch.equal(out, a.float() @ b.float() + a.float().amax(1, keepdim=True))


def test_probe_names_what_a_stock_interpreter_gets_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one patch undone, the probe refuses, naming the fault and Triton's version."""

    def truncating(_: Any, source: Any, target: Any, __: Any) -> Any:  # noqa: ANN401
        kept = (source.data.view("uint32") >> 16).astype("uint16")
        return stock.TensorHandle(kept.view(stock._get_np_dtype(target)), target.scalar)

    monkeypatch.setattr(stock.InterpreterBuilder, "create_fp_to_fp", truncating)
    monkeypatch.setattr(
        stock.InterpreterBuilder,
        "cast_impl",
        lambda self, source, target: (
            truncating(self, source, target, None)
            if target.scalar == tl.bfloat16
            else stock.TensorHandle(source.data.astype(stock._get_np_dtype(target)), target.scalar)
        ),
    )
    with pytest.raises(repairs.InterpreterError, match=f"{triton.__version__}.*bfloat16"):
        repairs.probe()


def test_autotuned_kernel_runs_its_first_configuration() -> None:
    """With no GPU to time on, the first one runs; heuristics are evaluated as ever."""
    out = torch.zeros(12, dtype=torch.int32)
    _tuned_kernel[lambda meta: (triton.cdiv(12, meta["BLOCK"]),)](out, 12)
    assert out.tolist() == [5] * 12  # BLOCK = 4, and 12 is a multiple of it


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**32 - 1, 2**32])
def test_integer_arguments_are_as_wide_as_when_compiled(number: int) -> None:
    """From 2^31 on 64 bits, in which twice the number fits; a bool is an argument too."""
    out = torch.zeros(2, dtype=torch.int64)
    _wide_kernel[(1,)](out, number, True)  # noqa: FBT003 (a jit function's, by place)
    wraps = number < 2**31
    assert out.tolist() == [2 * number - 2**32 if wraps else 2 * number, 1]


def test_kernel_writes_to_the_tensors_that_it_was_given() -> None:
    """By name, by place and in a tuple, and to views of them."""
    x, y = torch.ones(3, 4), torch.zeros(4)
    _doubling_kernel[(1,)](x[1], views=(y,), BLOCK=4)
    assert x[1].tolist() == [2] * 4
    assert x[::2].unique().tolist() == [1]
    assert y.tolist() == [1] * 4
