"""Kernels in Gluon on a CPU: right ones run, and what no GPU can be trusted with is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import histogram
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.interpreter import gluon as on_a_cpu
from kernel_workbench.suites.interpreter.gluon.blocks import MachineError
from kernel_workbench.suites.interpreter.operations import NotInterpretedError
from tests.builders.by_hand import kernel_of, run_on
from tests.builders.strict_calls import violation_of
from tests.builders.wrong_layer_norms import closed_form

_ROWS = 64
_CASE = "layer_norm_backward-m5-n5-float32-contiguous"


@gluon.jit
def _copied_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + offs, mask=offs < n, other=0.0)
    gl.store(out_ptr + offs, x + 1, mask=offs < n)


@gluon.jit
def _beyond_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.arange(0, BLOCK, layout)
    gl.store(out_ptr + offs, gl.load(x_ptr + offs, mask=offs <= n, other=0.0), mask=offs < n)


@gluon.jit
def _same_place_kernel(x_ptr, out_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.arange(0, BLOCK, layout)
    gl.store(out_ptr + offs, gl.load(x_ptr + offs) * gl.program_id(0))


@gluon.jit
def _unknown_kernel(BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.histogram(gl.arange(0, BLOCK, layout), 32, layout=layout)


@gluon.jit
def _cast_kernel(x_ptr, out_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + offs).to(gl.float32)
    gl.store(out_ptr + offs, (x + 1).to(out_ptr.dtype.element_ty))


@gluon.jit
def _words_kernel(x_ptr, out_ptr, BLOCK: gl.constexpr):
    """out: sums of rows of two words, and the words of products with 2^32 - 1."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + offs)
    total = gl.sum(x.reshape((BLOCK // 2, 2)), 1)
    high, low = gl.inline_asm_elementwise(
        "{ .reg .b64 t; mul.wide.u32 t, $2, $3; mov.b64 {$1, $0}, t; }", "=r,=r,r,r", [x, -1],
        dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    gl.store(out_ptr + gl.arange(0, BLOCK // 2, total.type.layout), total)
    gl.store(out_ptr + BLOCK // 2 + offs, high)
    gl.store(out_ptr + BLOCK // 2 + BLOCK + offs, low)


@gluon.jit
def _missing_kernel(x_ptr, WHAT: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.arange(0, BLOCK, layout)
    if WHAT == "argument":
        gl.load(x_ptr + offs, cache_modifier=".cg")
    if WHAT == "attribute":
        gl.load(x_ptr + offs).trans()
    if WHAT == "dtype":
        gl.load(x_ptr + offs).to(gl.uint16)
    if WHAT == "function of the standard library":
        gl.xor_sum(offs, 0)
    if WHAT == "function imported by its name":
        histogram(offs, 32, layout=layout)


@gluon.jit
def _product_kernel(x_desc, out_desc, LOADS: gl.constexpr, WAITS: gl.constexpr):
    """out = x x, of one tile."""
    rows: gl.constexpr = x_desc.block_type.shape[0]
    acc: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    x = gl.allocate_shared_memory(x_desc.dtype, [rows, rows], x_desc.layout)
    there = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout()).index(0)
    mbarrier.init(there, count=1)
    if LOADS:
        mbarrier.expect(there, x_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(x_desc, [0, 0], there, x)
    mbarrier.wait(there, 0)
    product = warpgroup_mma(x, x, gl.zeros((rows, rows), gl.float32, acc), is_async=True)
    if WAITS:
        product = warpgroup_mma_wait(0, deps=[product])
    x.store(product.to(x_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [0, 0], x)
    tma.store_wait(0)


@gluon.jit
def _box_kernel(x_desc, out_desc, from_row, from_column, to_row):
    """Move a box from a place of x to a row of out."""
    rows: gl.constexpr = x_desc.block_type.shape[0]
    x = gl.allocate_shared_memory(x_desc.dtype, [rows, rows], x_desc.layout)
    there = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout()).index(0)
    mbarrier.init(there, count=1)
    mbarrier.expect(there, x_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(x_desc, [from_row, from_column], there, x)
    mbarrier.wait(there, 0)
    tma.async_copy_shared_to_global(out_desc, [to_row, 0], x)
    tma.store_wait(0)


def _described(tensor: Tensor) -> TensorDescriptor:
    box = [_ROWS, _ROWS]
    element = gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float32
    layout = gl.NVMMASharedLayout.get_default_for(box, element)
    return TensorDescriptor.from_tensor(tensor, box, layout)


@pytest.mark.parametrize("late", [True, False])
def test_right_kernels_run(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """Loads under a mask; a product of what TMA brought, whose rows past the last are 0."""
    monkeypatch.setattr(on_a_cpu, "_is_late", lambda _: late)
    x, out = torch.arange(300.0), torch.zeros(300)
    _copied_kernel[(3,)](x, out, 300, BLOCK=128)
    assert torch.equal(out, x + 1)
    square = torch.eye(40, dtype=torch.bfloat16) * 3
    made = torch.full_like(square, -1)
    _product_kernel[(1,)](_described(square), _described(made), LOADS=True, WAITS=True)
    assert torch.equal(made, torch.eye(40, dtype=torch.bfloat16) * 9)


def test_product_of_fp32_takes_tf32s_operands() -> None:
    """As tensor cores do: what the last 13 bits say is lost."""
    x = torch.eye(_ROWS) * (1 + 2.0**-12)
    out = torch.zeros_like(x)
    _product_kernel[(1,)](_described(x), _described(out), LOADS=True, WAITS=True)
    assert torch.equal(out, torch.eye(_ROWS))


def test_words_are_of_32_bits() -> None:
    """Sums wrap, and products are of unsigned words."""
    x = torch.tensor([2**30, 2**30, -(2**31), -(2**31)], dtype=torch.int32)
    out = torch.zeros(10, dtype=torch.int64)
    _words_kernel[(1,)](x, out, BLOCK=4)
    high, low = [2**30 - 1, 2**30 - 1, 2**31 - 1, 2**31 - 1], [-(2**30), -(2**30), -(2**31)]
    assert out.tolist() == [-(2**31), 0, *high, *low, -(2**31)]


def test_every_other_launch_does_asynchronous_work_late() -> None:
    """Launches alternate for each kernel, whatever other kernels do meanwhile."""
    first, second = object(), object()
    found = [on_a_cpu._is_late(each) for each in (first, second, first, second, first)]
    assert found == [True, True, False, False, True]


def test_lane_outside_of_an_argument_is_illegal() -> None:
    """Though the storage goes on behind it."""
    x = torch.zeros(128)
    found = violation_of(lambda: _beyond_kernel[(1,)](x[:100], x, 100, BLOCK=128), (x,))
    assert found is not None
    assert found.startswith("a lane reads element 100 of x_ptr, which has 100 of its own, at line")


def test_memory_that_nothing_has_written_is_not_read() -> None:
    """By pointers, and by TMA."""

    def by_pointers() -> None:
        _copied_kernel[(1,)](torch.empty(100), torch.zeros(100), 100, BLOCK=128)

    def by_tma() -> None:
        x = torch.empty(_ROWS, _ROWS, dtype=torch.bfloat16)
        _product_kernel[(1,)](_described(x), _described(x), LOADS=True, WAITS=True)

    def of_bytes() -> None:
        x = torch.empty(400, dtype=torch.uint8)
        x[:40] = 0
        _copied_kernel[(1,)](x.view(torch.float32), torch.empty(100), 100, 128)

    assert "100 elements of x_ptr are read that nothing has" in (violation_of(by_pointers) or "")
    assert "90 elements of x_ptr are read that nothing has" in (violation_of(of_bytes) or "")
    assert "4,096 elements of x_desc are read that nothing" in (violation_of(by_tma) or "")


def test_two_programs_that_store_to_one_element_are_told() -> None:
    """In whatever order they come; unless the kernel means to store one value."""

    def said(*, value: float, same_stores: bool) -> str:
        def call() -> None:
            _same_place_kernel[(2,)](torch.full((128,), value), torch.zeros(128), BLOCK=128)

        return violation_of(call, same_stores=same_stores) or ""

    told = "two programs store to one element of out_ptr, at line"
    assert told in said(value=0.0, same_stores=False)
    assert told in said(value=1.0, same_stores=True)
    assert not said(value=0.0, same_stores=True)


def test_what_a_kernel_in_gluon_stores_is_written() -> None:
    """A kernel that comes after it may read it."""

    def call() -> None:
        made = torch.empty(100)
        _copied_kernel[(1,)](torch.zeros(100), made, 100, BLOCK=128)
        _copied_kernel[(1,)](made, torch.empty(100), 100, BLOCK=128)

    assert violation_of(call) is None


def test_wait_that_never_ends_is_told_with_its_line() -> None:
    """Where nothing arrives."""
    x = _described(torch.zeros(_ROWS, _ROWS, dtype=torch.bfloat16))
    with pytest.raises(MachineError, match=r"a wait at line \d+ never ends"):
        _product_kernel[(1,)](x, x, LOADS=False, WAITS=True)


def test_boxes_that_end_a_program_on_a_gpu_fail() -> None:
    """An H100 ends with an illegal instruction; one that is read may begin before the tensor."""
    x, out = torch.rand(_ROWS, _ROWS).bfloat16(), torch.zeros(_ROWS, _ROWS, dtype=torch.bfloat16)
    described = _described(x), _described(out)
    _box_kernel[(1,)](*described, -3, 8, 0)
    assert torch.equal(out[3:, :-8], x[:-3, 8:])
    with pytest.raises(MachineError, match="x_desc begins at byte 6 of its rows; TMA takes"):
        _box_kernel[(1,)](*described, 0, 3, 0)
    with pytest.raises(MachineError, match="stored that begins before the first element of out_d"):
        _box_kernel[(1,)](*described, 0, 0, -3)


def test_product_that_was_not_waited_for_is_told() -> None:
    """Where its values are used."""
    x = _described(torch.zeros(_ROWS, _ROWS, dtype=torch.bfloat16))
    with pytest.raises(MachineError, match=r"a product is used \(to\) before it was waited for"):
        _product_kernel[(1,)](x, x, LOADS=True, WAITS=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_pointer_tells_what_it_points_to(dtype: torch.dtype) -> None:
    """As a kernel asks for it that stores in the type of its output."""
    x, out = torch.arange(128.0).fmod(7), torch.zeros(128, dtype=dtype)
    _cast_kernel[(1,)](x, out, BLOCK=128)
    assert torch.equal(out.float(), (x + 1).to(dtype).float())


_MISSING = (
    "argument",
    "attribute",
    "dtype",
    "function of the standard library",
    "function imported by its name",
)


@pytest.mark.parametrize("what", _MISSING)
def test_what_the_machine_lacks_is_no_failure_of_the_kernel(what: str) -> None:
    """Whatever it is: the row is refused, in a sentence with the line and what to do."""

    def candidate(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        _missing_kernel[(1,)](torch.zeros(128), WHAT=what, BLOCK=128)
        return closed_form(dy, x, weight, mean, rstd)

    row = _row(candidate)
    assert (row.status, row.rule) == ("refused", None)
    assert row.reason is not None
    assert row.reason.startswith("the interpreter of kernels in Gluon can't run line ")
    assert f"of {__file__} (" in row.reason
    assert row.reason.endswith("; say Domain(interpretable=False) and run it on a GPU")


def test_fault_of_a_kernel_in_gluon_stays_a_failure() -> None:
    """An error of the kernel's own is none of the machine's."""

    def candidate(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        _copied_kernel[(1,)](x, torch.empty_like(x), x.numel() + 1, BLOCK=128)
        return closed_form(dy, x, weight, mean, rstd)

    row = _row(candidate)
    assert (row.status, row.rule) == ("failed", "illegal access")


def _row(candidate: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> AccuracyRow:
    case = next(each for each in LAYER_NORM_BACKWARD.cases() if each.id() == _CASE)
    return run_on(torch.device("cpu")).try_pair(kernel_of(candidate), case)


def test_function_that_is_not_served_is_refused_in_one_sentence() -> None:
    """By its name, with what to do."""
    with pytest.raises(NotInterpretedError) as raised:
        _unknown_kernel[(1,)](BLOCK=128)
    assert str(raised.value) == (
        "a CPU can't run triton.experimental.gluon.language.histogram of a kernel in Gluon; say "
        "Domain(interpretable=False) and run it on a GPU"
    )
