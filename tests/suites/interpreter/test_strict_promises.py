"""Promises to the compiler: a false one is found, and a true one never is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernel_workbench.suites.accuracy.verdict import Verdict as Judged
from kernel_workbench.suites.accuracy.verdict import explained
from kernel_workbench.suites.interpreter.strict import masked_lanes, promises
from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _scalar_kernel(x_ptr, n, BY: tl.constexpr):
    tl.multiple_of(n, BY)
    tl.store(x_ptr, n.to(tl.float32))


@triton.jit
def _pointer_kernel(x_ptr, start, BY: tl.constexpr):
    tl.store(tl.multiple_of(x_ptr + start, BY), 1.0)


@triton.jit
def _block_kernel(x_ptr, start, step, BY: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    offs = start + tl.arange(0, BLOCK) * step
    offs = tl.max_contiguous(tl.multiple_of(offs, BY), LONG)
    tl.store(x_ptr + offs, 1.0)


@triton.jit
def _square_kernel(x_ptr, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    at = x_ptr + tl.arange(0, BLOCK)[:, None] * stride + tl.arange(0, BLOCK)[None, :]
    at = tl.max_contiguous(tl.multiple_of(at, (ROWS, COLUMNS)), (1, BLOCK))
    tl.store(at, tl.zeros((BLOCK, BLOCK), tl.float32))


@triton.jit
def _constant_kernel(x_ptr, EVERY: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.max_constancy(tl.arange(0, BLOCK) // EVERY, LONG)
    tl.store(x_ptr + tl.arange(0, BLOCK), group.to(tl.float32))


@triton.jit
def _loop_kernel(x_ptr, first, last, BY: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(first, last, BLOCK):
        start = tl.multiple_of(start, BY)
        tl.store(x_ptr + start + tl.arange(0, BLOCK), 1.0)


@triton.jit
def _edge_kernel(x_ptr, out_ptr, n, HOW: tl.constexpr, STORED: tl.constexpr, BLOCK: tl.constexpr):
    """The lanes past the end are clamped or wrapped, and contiguity is promised of all."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs = lanes % n if HOW == "wrapped" else tl.where(lanes < n, lanes, 0)
    offs = tl.max_contiguous(tl.multiple_of(offs, BLOCK), BLOCK)
    x = tl.load(x_ptr + offs)
    if STORED == "by the promise":
        tl.store(out_ptr + offs, x)
    tl.store(out_ptr + lanes, x, mask=lanes < (n if STORED == "within" else n + 1))


def _line(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number = next(at for at, each in enumerate(lines, 1) if each.strip().startswith(text))
    return f"at line {number} of {__file__}"


def test_number_that_is_no_multiple_is_found_where_it_is_promised() -> None:
    """In a sentence with the program, the promise, its line and the number."""
    x = torch.zeros(1)
    assert violation_of(lambda: _scalar_kernel[(1,)](x, 48, BY=16)) is None
    where = _line("tl.multiple_of(n")
    assert violation_of(lambda: _scalar_kernel[(1,)](x, 40, BY=16)) == (
        f"program (0, 0, 0) of _scalar_kernel promises multiple_of(16) {where}, which is false: "
        "the value is 40"
    )


@pytest.mark.parametrize(("by", "is_true"), [(4, True), (16, True), (32, False)])
def test_promise_about_a_pointer_is_in_bytes(by: int, is_true: bool) -> None:  # noqa: FBT001
    """Four elements of fp32 past a multiple of 64 bytes are 16 bytes past it."""
    memory = torch.zeros(64)
    x = memory[(-memory.data_ptr() % 64) // 4 :]
    found = violation_of(lambda: _pointer_kernel[(1,)](x, 4, BY=by))
    assert (found is None) == is_true
    assert is_true or "the address, of x_ptr, is 0x" in str(found)


@pytest.mark.parametrize(
    ("start", "step", "by", "long", "is_true"),
    [
        (0, 1, 16, 16, True),
        (32, 1, 32, 16, True),
        (8, 1, 8, 16, True),
        (8, 1, 16, 16, False),  # the first of each group
        (0, 2, 2, 1, True),
        (0, 2, 4, 1, False),
        (0, 2, 1, 2, False),  # lanes two apart
        (0, 8, 8, 1, True),
        (1, 1, 1, 16, True),
        (3, 1, 1, 4, True),
    ],
)
def test_promise_about_a_block_is_one_about_its_groups(
    start: int,
    step: int,
    by: int,
    long: int,
    is_true: bool,  # noqa: FBT001
) -> None:
    """multiple_of means the first of each contiguous group; max_contiguous all within one."""
    x = torch.zeros(256)
    found = violation_of(lambda: _block_kernel[(1,)](x, start, step, BY=by, LONG=long, BLOCK=16))
    assert (found is None) == is_true, found


@pytest.mark.parametrize(
    ("stride", "rows", "columns", "is_true"),
    [(16, 64, 64, True), (20, 1, 16, True), (20, 16, 16, True), (18, 1, 16, False)],
)
def test_promise_about_a_tile_is_by_its_axes(
    stride: int,
    rows: int,
    columns: int,
    is_true: bool,  # noqa: FBT001
) -> None:
    """A row of 18 elements of 4 bytes begins at no multiple of 16 bytes."""
    memory = torch.zeros(1024)
    x = memory[(-memory.data_ptr() % 64) // 4 :]
    call = lambda: _square_kernel[(1,)](x, stride, ROWS=rows, COLUMNS=columns, BLOCK=16)  # noqa: E731
    assert (violation_of(call) is None) == is_true


@pytest.mark.parametrize(("every", "long", "is_true"), [(4, 4, True), (4, 2, True), (4, 8, False)])
def test_promise_of_constancy_is_one_about_groups(every: int, long: int, is_true: bool) -> None:  # noqa: FBT001
    """Groups of 4 lanes have one value, groups of 8 have two."""
    x = torch.zeros(16)
    found = violation_of(lambda: _constant_kernel[(1,)](x, EVERY=every, LONG=long, BLOCK=16))
    assert (found is None) == is_true
    assert is_true or "which is false in lane 4: the value is 1, after 0" in str(found)


@pytest.mark.parametrize(("first", "is_true"), [(16, True), (8, False)])
def test_promise_about_the_number_of_a_loop_is_checked(first: int, is_true: bool) -> None:  # noqa: FBT001
    """As attention's loops over keys promise it."""
    x = torch.zeros(64)
    found = violation_of(lambda: _loop_kernel[(1,)](x, first, 48, BY=16, BLOCK=16))
    assert (found is None) == is_true


@pytest.mark.parametrize("how", ["clamped", "wrapped"])
@pytest.mark.parametrize("n", [1, 7, 16, 21, 32])
def test_lanes_past_an_edge_may_break_a_promise_where_nothing_comes_of_them(
    how: str, n: int
) -> None:
    """As in Triton's tutorials of products, whose last rows are clamped and never stored."""
    x, out = torch.randn(n), torch.empty(n)
    grid = (triton.cdiv(n, 16),)
    call = lambda: _edge_kernel[grid](x, out, n, HOW=how, STORED="within", BLOCK=16)  # noqa: E731
    assert violation_of(call) is None
    torch.testing.assert_close(out, x)


def test_result_of_a_lane_that_breaks_a_promise_is_undefined() -> None:
    """An offset that wraps round gives no number once the compiler was promised that it doesn't."""
    x, out = torch.randn(21), torch.zeros(22)
    call = lambda: _edge_kernel[(2,)](x, out, 21, HOW="wrapped", STORED="", BLOCK=16)  # noqa: E731
    with masked_lanes.noted(zeros=False) as loads:
        assert violation_of(call) is None
    assert out[:21].equal(x)
    assert out[21].isnan()
    (load,) = loads()
    assert load.startswith(f"x_ptr {_line('x = tl.load(x_ptr + offs)')}, in lanes where ")
    broken = Judged("non-finite values", "out[21] is nan", ())
    reason = explained(broken, loads(), lambda: Judged(None, None, ())).reason
    assert reason is not None
    assert "it comes of lanes that break a promise to the compiler" in reason
    assert reason.endswith("; promise less, or use nothing of these lanes")


def test_store_by_a_lane_that_breaks_a_promise_is_an_illegal_access() -> None:
    """It may go elsewhere."""
    x, out = torch.randn(5), torch.zeros(5)
    call = lambda: _edge_kernel[(1,)](  # noqa: E731
        x, out, 5, HOW="clamped", STORED="by the promise", BLOCK=16
    )
    found = violation_of(call)
    assert found is not None
    assert "writes out_ptr" in found
    assert "by an offset that breaks a promise: max_contiguous(16)" in found


def test_multiples_are_refuted_by_no_group_alone() -> None:
    """Over random blocks: a lane is right where a group's first before it is a multiple."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        count, value = 2 ** int(draw.integers(0, 5)), int(draw.integers(2, 9))
        numbers = np.cumsum(draw.choice([1, 1, 1, -3, 2], count)).astype(np.int64)
        expected = []
        for lane in range(count):
            groups = [2**power for power in range(6) if 2**power <= count]
            firsts = [lane - lane % length for length in groups]
            right = [
                numbers[first] % value == 0
                and (
                    numbers[first : lane + 1] == numbers[first] + np.arange(lane + 1 - first)
                ).all()
                for first in firsts
            ]
            expected.append(not any(right))
        wrong = promises._no_multiples(numbers, value, 1)
        assert wrong.tolist() == expected
