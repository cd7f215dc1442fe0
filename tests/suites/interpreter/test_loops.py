"""A loop in the interpreter counts as when compiled: the same type, and the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as stock

from tests.builders.compiled_python import printed_by

pytestmark = pytest.mark.usefixtures("interpreted")

NARROW, WIDE = 2**31 - 1, 2**31  # the last number that is passed in 32 bits, the first in 64


@triton.jit
def _tell(LOOP: tl.constexpr, number):
    tl.static_print(LOOP, number.dtype)


@triton.jit
def _types_kernel(narrow, wide, ONE: tl.constexpr):
    """Loops that each run once, and tell the type of their number."""
    for number in range(wide, wide + 1):
        _tell(0, number)
    for number in range(narrow - 1, narrow):
        _tell(1, number)
    for number in range(narrow, wide):
        _tell(2, number)
    for number in range(wide, narrow, -ONE):
        _tell(3, number)
    for number in range(narrow - 1, narrow, wide):
        _tell(4, number)
    for number in range(ONE):
        _tell(5, number)
    for number in tl.range(narrow, wide, 4, num_stages=2):
        _tell(6, number)
    for number in tl.range(ONE):
        _tell(7, number)


@triton.jit
def _more_types_kernel(narrow, wide, ONE: tl.constexpr):
    """As above, of unsigned and short types and of bounds that are the least or most of several."""
    one = narrow - narrow + 1
    for number in range(one.to(tl.uint32)):
        _tell(8, number)
    for number in range(one.to(tl.uint32), 2 * one.to(tl.int64)):
        _tell(9, number)
    for number in range(one.to(tl.int8), 2 * one.to(tl.int8), one.to(tl.uint8)):
        _tell(10, number)
    for number in range(one.to(tl.int8), 2 * one.to(tl.int8), one.to(tl.int8)):
        _tell(11, number)
    for number in range(min(one, wide)):
        _tell(12, number)
    end = max(narrow, wide - 8, ONE)
    for number in range(narrow - 1, end):
        _tell(13, number)
    _tell(14, max(one, ONE))


TYPES = [
    *("int64", "int32", "int64", "int64", "int64", "int32"),
    *("int64", "int32", "uint32", "int64", "uint8", "int8"),
    *("int64", "int64", "int32"),
]


@triton.jit
def _numbers_kernel(out_ptr, first, last, step, KIND: tl.constexpr, STEP: tl.constexpr):
    """Every number of a loop, in 64 bits, from out_ptr[1] on; how many they are in out_ptr[0]."""
    count = 0
    if STEP is None:
        for number in range(first.to(KIND), last, step):
            count += 1
            tl.store(out_ptr + count, number)
    else:
        for number in tl.range(first.to(KIND), last, STEP):
            count += 1
            tl.store(out_ptr + count, number)
    tl.store(out_ptr, count)


@triton.jit(do_not_specialize=["first", "last"])  # 1 as a constant has no type to cast from
def _sign_kernel(out_ptr, first, last, FIRST: tl.constexpr, LAST: tl.constexpr):
    count = 0
    for number in range(first.to(FIRST), last.to(LAST)):
        count += 1
        tl.store(out_ptr + count, number)
    tl.store(out_ptr, count)


@triton.jit
def _arithmetic_kernel(out_ptr, first, last):
    """Python's own integers differ here: they round a quotient down."""
    for number in range(first, last):
        tl.store(out_ptr + number - first, number // 2)


@triton.jit
def _bounded_kernel(out_ptr, size, wide, CONSTANT: tl.constexpr):
    for number in range(min(size, wide, CONSTANT)):
        tl.store(out_ptr + number, min(wide, size))
    tl.store(out_ptr + min(size, CONSTANT), min(CONSTANT, CONSTANT + 1))
    most = max(size, wide)
    tl.store(out_ptr + 4, most)


@triton.jit
def _halves(number, COUNT: tl.constexpr):
    total = number * 0
    for each in tl.static_range(COUNT):
        tl.static_assert(each >= 0)  # a constant, as when compiled
        for other in range(each):
            total += other
    return total


@triton.jit
def _nested_kernel(out_ptr, size, COUNT: tl.constexpr):
    for row in range(size):
        if row % 2 == 0 and row != 0:
            for column in range(0, row, 2):
                tl.store(out_ptr + row * size + column, row + column)
        else:
            tl.store(out_ptr + row * size, _halves(row, COUNT))


@triton.jit
def _float_kernel(out_ptr, size):
    for number in range(size * 1.0):
        tl.store(out_ptr, number)


def _numbers(out: Tensor) -> list[int]:
    return out[1 : 1 + int(out[0])].tolist()


def _types(printed: str) -> list[str]:
    """By loop; the compiler goes through the body of one more than once."""
    by_loop = dict(line.split() for line in printed.splitlines())
    return [by_loop[str(loop)] for loop in range(len(TYPES))]


def _compiled_types(cache: Path) -> list[str]:
    """Return what Triton's compiler prints of both kernels, with no GPU and not interpreted."""
    program = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from tests.suites.interpreter.test_loops import _more_types_kernel, _types_kernel
signature = {"narrow": "i32", "wide": "i64", "ONE": "constexpr"}
for kernel in (_types_kernel, _more_types_kernel):
    compile(ASTSource(kernel, signature, {(2,): 1}), target=GPUTarget("cuda", 90, 32))
"""
    return _types(printed_by(program, cache))


def test_number_has_the_type_that_it_has_when_compiled(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """That of start, end and step promoted; held against what this Triton compiles."""
    for kernel in (_types_kernel, _more_types_kernel):
        kernel[(1,)](NARROW, WIDE, ONE=1)
    assert _types(capfd.readouterr().out) == TYPES
    assert _compiled_types(tmp_path) == TYPES


@pytest.mark.parametrize("kind", [tl.int32, tl.int64], ids=str)
@pytest.mark.parametrize(("first", "last", "step"), [(0, 7, 3), (7, 0, -3), (-2, 2, 1), (3, 3, 1)])
def test_loop_counts_by_a_constant_step(first: int, last: int, step: int, kind: tl.dtype) -> None:
    """Up and down, with a step that divides the way and one that doesn't."""
    out = torch.zeros(8, dtype=torch.int64)
    _numbers_kernel[(1,)](out, first, last, 1, KIND=kind, STEP=step)
    assert _numbers(out) == list(range(first, last, step))


@pytest.mark.parametrize(("first", "last", "step"), [(0, 7, 3), (3, 3, 0), (7, 0, -3), (7, 0, 2)])
def test_loop_counts_down_by_no_step_that_is_not_constant(first: int, last: int, step: int) -> None:
    """The compiled loop goes on while its number is below the end, which at first it isn't."""
    out = torch.zeros(8, dtype=torch.int64)
    _numbers_kernel[(1,)](out, first, last, step, KIND=tl.int32, STEP=None)
    assert _numbers(out) == (list(range(first, last, step)) if first < last else [])


@pytest.mark.parametrize(("step", "constant"), [(0, 0), (0, None), (-1, None)])
def test_loop_without_an_end_is_refused(step: int, constant: int | None) -> None:
    """By a step of nothing, or one away from the end; Python's range is silent on the second."""
    out = torch.zeros(8, dtype=torch.int64)
    with pytest.raises(stock.InterpreterError, match=f"from 0 to 5 by {step} doesn't end"):
        _numbers_kernel[(1,)](out, 0, 5, step, KIND=tl.int32, STEP=constant)


def test_bounds_past_two_to_the_31() -> None:
    """Numbers of 64 bits, of which all are kept; a type of 32 ends before it begins."""
    out = torch.zeros(8, dtype=torch.int64)
    _numbers_kernel[(1,)](out, WIDE - 1, WIDE + 2, 1, KIND=tl.int64, STEP=1)
    assert _numbers(out) == [WIDE - 1, WIDE, WIDE + 1]
    _numbers_kernel[(1,)](out, WIDE + 2, WIDE - 1, 1, KIND=tl.int64, STEP=-2)
    assert _numbers(out) == [WIDE + 2, WIDE]
    _sign_kernel[(1,)](out, 0, WIDE + 2, FIRST=tl.uint32, LAST=tl.uint32)
    assert _numbers(out) == []  # compared as signed integers, whose sign bit the end has


def test_bounds_are_extended_by_the_sign_of_the_loop() -> None:
    """As Triton compiles it: an unsigned bound of a signed loop is taken as signed."""
    out = torch.zeros(8, dtype=torch.int64)
    _sign_kernel[(1,)](out, 2**32 - 2, 1, FIRST=tl.uint32, LAST=tl.int64)
    assert _numbers(out) == [-2, -1, 0]
    _sign_kernel[(1,)](out, -2, 1, FIRST=tl.int32, LAST=tl.uint32)
    assert _numbers(out) == [2**32 - 2, 2**32 - 1, 0]
    _sign_kernel[(1,)](out, 0, 1, FIRST=tl.int32, LAST=tl.int1)
    assert _numbers(out) == []  # True is -1


def test_arithmetic_on_a_number_is_the_tensors() -> None:
    """A quotient is cut toward zero, as a GPU's is."""
    out = torch.zeros(5, dtype=torch.int64)
    _arithmetic_kernel[(1,)](out, -3, 2)
    assert out.tolist() == [-1, -1, 0, 0, 0]


def test_least_and_most_are_those_of_tensors_and_of_constants() -> None:
    """In a bound, in an assignment, as an argument and on the way to an address."""
    out = torch.zeros(8, dtype=torch.int64)
    _bounded_kernel[(1,)](out, 3, 2**31, CONSTANT=5)
    assert out.tolist() == [3, 3, 3, 5, 2**31, 0, 0, 0]


def test_loops_in_loops_and_in_device_functions() -> None:
    """Bounds that are numbers of a loop, conditions on them, and a loop that is unrolled."""
    out = torch.zeros(5, 5, dtype=torch.int64)
    _nested_kernel[(1,)](out, 5, COUNT=4)
    expected = torch.zeros_like(out)
    expected[[0, 1, 3], 0] = 4  # 0, 0, 0 + 1 and 0 + 1 + 2
    expected[2, 0], expected[4, 0], expected[4, 2] = 2, 4, 6
    assert torch.equal(out, expected)


def test_bounds_that_are_no_integers_are_refused() -> None:
    """As compiling refuses them; as an index a tensor of floats was cut to an integer."""
    with pytest.raises(stock.InterpreterError, match="are integers, not fp32"):
        _float_kernel[(1,)](torch.zeros(1), 5)
