"""Reads of memory that nothing has written, of every type and whether or not they show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _copy_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < size, other=0), mask=offs < size)


@triton.jit
def _unused_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.where(offs < size, tl.load(x_ptr + offs), 0))


@triton.jit
def _even_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + 2 * tl.arange(0, BLOCK), 1)


@triton.jit
def _counting_kernel(count_ptr):
    tl.atomic_add(count_ptr, 1)


@triton.jit
def _exchanging_kernel(count_ptr, out_ptr):
    tl.atomic_xchg(count_ptr, 7)
    tl.store(out_ptr, tl.load(count_ptr))


@triton.jit
def _own_workspace_kernel(work_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(work_ptr + offs, offs)
    tl.store(out_ptr + offs, tl.load(work_ptr + offs) + 1)


def _copied(make: Callable[[], Tensor], size: int = 8) -> str | None:
    """Return the violation of a kernel that copies the first `size` of what `make` returns."""

    def call() -> None:
        x = make()
        _copy_kernel[(1,)](x, torch.zeros(8, dtype=x.dtype), size, BLOCK=8)

    return violation_of(call)


_TYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_read_of_fresh_memory_is_found(dtype: torch.dtype) -> None:
    """A read of integers is reported too, which no NaN shows."""
    found = _copied(lambda: torch.empty(8, dtype=dtype))
    assert found is not None
    assert "program (0, 0, 0) of _copy_kernel reads element 0 and 7 more of x_ptr's memory" in found
    assert "which nothing has written, at line" in found
    assert _copied(lambda: torch.zeros(8, dtype=dtype)) is None
    assert _copied(lambda: torch.ones(8).to(dtype)) is None


@pytest.mark.parametrize("allocated", [torch.uint8, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("written", [0, 8])
def test_unwritten_elements_are_counted_in_the_arguments_dtype(
    allocated: torch.dtype, written: int
) -> None:
    """A workspace is allocated in bytes or in wider elements, and passed as another dtype."""

    def make(dtype: torch.dtype) -> Tensor:
        x = torch.empty(32 // allocated.itemsize, dtype=allocated)
        if written:
            x[: written // allocated.itemsize] = 1
        return x.view(dtype)

    found = _copied(lambda: make(torch.float32))
    first = written // 4
    assert f"reads element {first} and {7 - first} more of x_ptr's memory" in (found or "")
    found = _copied(lambda: make(torch.int16)[written // 2 :])
    assert "reads element 0 and 7 more of x_ptr's memory" in (found or "")


@triton.jit
def _recast_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr.to(tl.pointer_type(tl.int32)) + offs))


def test_unwritten_elements_read_through_a_cast_pointer_are_the_arguments() -> None:
    """Two loads of four bytes reach one element of eight."""

    def call() -> None:
        x = torch.empty(4, dtype=torch.float64)
        x[0] = 1
        _recast_kernel[(1,)](x, torch.zeros(8, dtype=torch.int32), BLOCK=8)

    found = violation_of(call)
    assert "reads element 1 and 2 more of x_ptr's memory" in (found or "")


def test_masked_lanes_of_fresh_memory_are_not_read() -> None:
    """A mask on the load keeps to what was written, and there is no more to it."""

    def half_written() -> Tensor:
        x = torch.empty(8)
        x[:5] = 1
        return x

    assert _copied(half_written, size=5) is None
    found = _copied(half_written, size=6)
    assert found is not None
    assert "reads element 5 of x_ptr's memory, which nothing has written" in found


def test_value_that_is_thrown_away_was_read_all_the_same() -> None:
    """As compute-sanitizer's initcheck has it: tl.where after the load isn't a mask of the load."""

    def call(written: int) -> None:
        x = torch.empty(8)
        x[:written] = 1
        _unused_kernel[(1,)](x, torch.zeros(8), 5, BLOCK=8)

    assert violation_of(lambda: call(8)) is None
    found = violation_of(lambda: call(5))
    assert found is not None
    assert "reads element 5 and 2 more of x_ptr's memory" in found


@pytest.mark.parametrize(
    ("write", "unwritten"),
    [
        (lambda x: x.zero_(), None),
        (lambda x: x[:, :2].fill_(1), "element 2 and 3 more"),
        (lambda x: x[1].copy_(torch.ones(4)), "element 0 and 3 more"),
        (lambda x: x.mT.zero_(), None),
        (lambda x: torch.add(torch.ones(2, 4), 1, out=x), None),
        (lambda x: torch._foreach_zero_([x[0], x[1]]), None),
        (lambda x: x.view(-1)[::2].zero_(), "element 1 and 3 more"),
        (lambda x: x.view(torch.int16).zero_(), None),
        (lambda x: x.t_().t_(), "element 0 and 7 more"),
    ],
    ids=["all", "columns", "row", "transposed", "out", "foreach", "strided", "retyped", "view"],
)
def test_operations_of_torch_write_what_they_change(
    write: Callable[[Tensor], object], unwritten: str | None
) -> None:
    """Exactly that: a view in place leaves the rest as it was, a change of the view writes none."""

    def make() -> Tensor:
        x = torch.empty(2, 4)
        write(x)
        return x

    found = _copied(make)
    if unwritten is None:
        assert found is None
    else:
        assert found is not None
        assert f"reads {unwritten} of x_ptr's memory" in found


def test_stores_of_one_launch_are_read_by_the_next() -> None:
    """A workspace: every second element is written, and only those may be read."""

    def call(step: int) -> None:
        work = torch.empty(16)
        _even_kernel[(1,)](work, BLOCK=8)
        x = work[::2] if step == 2 else work[:8]
        _copy_kernel[(1,)](x if step == 1 else x.contiguous(), torch.zeros(8), 8, BLOCK=8)

    assert violation_of(lambda: call(2)) is None
    found = violation_of(lambda: call(1))
    assert found is not None
    assert "reads element 1 and 3 more of x_ptr's memory" in found


def test_stores_of_a_program_are_read_by_itself() -> None:
    """A workspace within one launch, each program its own part."""

    def call() -> None:
        _own_workspace_kernel[(2,)](torch.empty(8), torch.empty(8), BLOCK=4)

    assert violation_of(call) is None


def test_atomic_on_fresh_memory_is_found() -> None:
    """It adds to garbage; what an exchange writes may be read."""
    count = lambda: torch.empty(1, dtype=torch.int32)  # noqa: E731
    found = violation_of(lambda: _counting_kernel[(1,)](count()))
    assert found is not None
    assert "_counting_kernel updates element 0 of count_ptr's memory, which nothing has" in found
    out = torch.zeros(1, dtype=torch.int32)
    assert violation_of(lambda: _exchanging_kernel[(1,)](count(), out)) is None
    assert out.item() == 7


def test_memory_that_comes_again_is_not_taken_for_what_it_was() -> None:
    """The allocator gives a freed block to the next tensor of its size, which torch has written."""

    def call() -> None:
        for _ in range(50):
            x = torch.empty(8)
            address = x.data_ptr()
            del x
            ones = torch.ones(4) * 2
            ones = torch.cat([ones, ones])
            if ones.data_ptr() == address:
                break
        _copy_kernel[(1,)](ones, torch.zeros(8), 8, BLOCK=8)

    assert violation_of(call) is None


def test_inputs_made_before_the_call_are_written() -> None:
    """Whoever made them is no business of the kernel's."""
    x, out = torch.empty(8), torch.empty(8)
    assert violation_of(lambda: _copy_kernel[(1,)](x, out, 8, BLOCK=8)) is None
