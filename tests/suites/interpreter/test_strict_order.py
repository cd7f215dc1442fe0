"""Programs that meet at an element have no order, but for what atomics give them."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def _overlapping_kernel(out_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * (BLOCK - 1) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, offs * 0.0 + 1.0, mask=offs < size)


@triton.jit
def _same_kernel(out_ptr, other, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    value = tl.where((tl.program_id(0) == 3) & (offs == 12), 7 + other, 7)
    tl.store(out_ptr + offs, value.to(out_ptr.dtype.element_ty))


@triton.jit
def _adding_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


@triton.jit
def _shifting_kernel(x_ptr, out_ptr, shift, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs + shift, mask=offs + shift < size, other=0.0)
    tl.store(out_ptr + offs, x + 1.0, mask=offs < size)


@triton.jit
def _broadcasting_kernel(x_ptr, out_ptr, WRITER: tl.constexpr):
    x = tl.load(x_ptr)
    if tl.program_id(0) == WRITER:
        tl.store(x_ptr, x + 1.0)
    tl.store(out_ptr + tl.program_id(0), x)


@triton.jit
def _last_reduces_kernel(work_ptr, count_ptr, out_ptr, SEM: tl.constexpr, BLOCK: tl.constexpr):
    mine, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(work_ptr + mine, mine + 1.0)
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1, sem=SEM) == programs - 1:
        offs = tl.arange(0, BLOCK)
        parts = tl.load(work_ptr + offs, mask=offs < programs, other=0.0)
        tl.store(out_ptr, tl.sum(parts))


@triton.jit
def _locked_kernel(lock_ptr, sum_ptr, RELEASE_LATE: tl.constexpr, STEP: tl.constexpr):
    lock = lock_ptr + tl.program_id(0) * STEP
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    total = tl.load(sum_ptr)
    if not RELEASE_LATE:
        tl.atomic_xchg(lock, 0)
    tl.store(sum_ptr, total + 1.0)
    tl.debug_barrier()
    if RELEASE_LATE:
        tl.atomic_xchg(lock, 0)


@triton.jit
def _passing_on_kernel(work_ptr, flag_ptr, out_ptr, SEM: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(work_ptr, 5.0)
        tl.atomic_store(flag_ptr, 1)
    else:
        while tl.atomic_load(flag_ptr, sem=SEM) == 0:
            pass
        tl.atomic_poll(flag_ptr, 1, sem="relaxed")
        tl.store(out_ptr, tl.load(work_ptr))


@triton.jit
def _unread_count_kernel(work_ptr, count_ptr, out_ptr):
    mine = tl.program_id(0)
    tl.store(work_ptr + mine, mine + 1.0)
    tl.atomic_add(count_ptr, 1)
    if mine == 1:
        tl.store(out_ptr, tl.load(work_ptr))


@triton.jit
def _zeroing_kernel(sum_ptr, WRITER: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if tl.program_id(0) == WRITER:
        tl.store(sum_ptr + offs, 0.0)
    tl.atomic_add(sum_ptr + offs, 1.0, sem="relaxed")


@triton.jit
def _bytes_kernel(out_ptr, SHIFT: tl.constexpr):
    narrow = out_ptr.to(tl.pointer_type(tl.int8))
    tl.store(narrow + tl.program_id(0) + SHIFT, 1)
    if tl.program_id(0) == 3:
        tl.store(out_ptr + 1, 2)


def test_two_programs_that_write_one_element_conflict() -> None:
    """They write the same value, and in sequence: on a GPU the order is open all the same.

    A kernel may declare that it means to.
    """
    out = torch.empty(15)
    found = violation_of(lambda: _overlapping_kernel[(2,)](out, 15, BLOCK=8))
    assert found is not None
    assert "program (1, 0, 0) of _overlapping_kernel writes element 7 of out_ptr's memory" in found
    assert "which program (0, 0, 0) writes the same value to in the same launch, with no" in found
    assert found.endswith("; a kernel that means to declares same_stores=True")
    assert violation_of(lambda: _overlapping_kernel[(1,)](out, 8, BLOCK=8)) is None
    call = lambda: _overlapping_kernel[(2,)](out, 15, BLOCK=8)  # noqa: E731
    assert violation_of(call, same_stores=True) is None
    assert torch.equal(out, torch.ones(15))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_different_values_at_one_element_conflict_whatever_is_declared(dtype: torch.dtype) -> None:
    """Four programs share halves of tiles, and the last stores its own value in one element."""
    out = torch.zeros(20, dtype=dtype)
    call = lambda other: _same_kernel[(4,)](out, other, BLOCK=8)  # noqa: E731
    assert violation_of(lambda: call(0), same_stores=True) is None
    found = violation_of(lambda: call(1), same_stores=True)
    assert found is not None
    assert "program (3, 0, 0) of _same_kernel writes element 12 of out_ptr's memory" in found
    assert "which program (2, 0, 0) writes in the same launch, with no order" in found


def test_read_of_what_another_program_stores_conflicts_whatever_is_declared() -> None:
    """Declared are stores alone: the reader may come before the first of them."""
    x = torch.zeros(16)
    call = lambda: _shifting_kernel[(2,)](x[4:], x[8:], 0, 8, BLOCK=4)  # noqa: E731
    found = violation_of(call, same_stores=True)
    assert found is not None
    assert "program (1, 0, 0) of _shifting_kernel reads element 4 of x_ptr's memory" in found


def test_conflict_is_seen_through_two_views() -> None:
    """The arguments are two, the memory is one: elements 4 to 7 of the second are written twice."""
    out = torch.zeros(12)
    call = lambda x, y: _shifting_kernel[(2,)](x, y, 0, 8, BLOCK=4)  # noqa: E731
    assert violation_of(lambda: call(out[:8], out[:8])) is None
    found = violation_of(lambda: call(out[:8], out[4:]))
    assert found is not None
    assert "program (1, 0, 0) of _shifting_kernel reads element 4 of x_ptr's memory" in found
    assert "which program (0, 0, 0) writes in the same launch" in found


def test_read_of_what_an_earlier_program_writes_is_found() -> None:
    """A shift in place to the right: program 1 would read what program 0 has stored, or not yet."""
    x = torch.zeros(16)
    call = lambda shift: _shifting_kernel[(2,)](x[8:], x[8:], shift, 8, BLOCK=4)  # noqa: E731
    assert violation_of(lambda: call(0)) is None
    found = violation_of(lambda: _shifting_kernel[(2,)](x[4:], x[8:], 0, 8, BLOCK=4))
    assert found is not None
    assert "program (1, 0, 0) of _shifting_kernel reads element 4 of x_ptr's memory" in found


def test_write_of_what_an_earlier_program_reads_is_found() -> None:
    """A shift in place to the left: program 1 stores what program 0 has read, or not yet."""
    x = torch.zeros(8)
    found = violation_of(lambda: _shifting_kernel[(2,)](x, x, 2, 8, BLOCK=4))
    assert found is not None
    assert "program (1, 0, 0) of _shifting_kernel writes element 4 of out_ptr's memory" in found
    assert "which program (0, 0, 0) reads or adds to in the same launch, with no order" in found
    apart = torch.zeros(8)
    assert violation_of(lambda: _shifting_kernel[(2,)](x, apart, 2, 8, BLOCK=4)) is None


@pytest.mark.parametrize("writer", [0, 1, 2])
def test_element_that_all_read_and_one_writes_is_found(writer: int) -> None:
    """The writer is first, in the middle or last; an element read by all, written by none is fine.

    The sentence says "several" where more than one program has read, the writer among them.
    """
    x, out = torch.zeros(1), torch.zeros(3)
    call = lambda writer: _broadcasting_kernel[(3,)](x, out, WRITER=writer)  # noqa: E731
    assert violation_of(lambda: call(3)) is None
    found = violation_of(lambda: call(writer))
    assert found is not None
    begin, where = "of _broadcasting_kernel", "element 0 of x_ptr's memory, which"
    expected = (
        f"program (1, 0, 0) {begin} reads {where} program (0, 0, 0) writes",
        f"program (1, 0, 0) {begin} writes {where} several programs read or add to",
        f"program (2, 0, 0) {begin} writes {where} several programs read or add to",
    )
    assert expected[writer] in found


def test_atomic_additions_to_one_element_are_no_conflict() -> None:
    """That is what atomics are for."""
    x, out = torch.ones(8), torch.zeros(1)
    assert violation_of(lambda: _adding_kernel[(5,)](x, out, BLOCK=8)) is None
    assert out.item() == 40


@pytest.mark.parametrize("sem", ["acq_rel", "acquire", "release", "relaxed"])
def test_last_program_may_reduce_what_all_have_stored(sem: str) -> None:
    """By a counter: each releases what it stored, and the one that counts last acquires it."""
    work, out = torch.zeros(4), torch.zeros(1)
    count = torch.zeros(1, dtype=torch.int32)
    call = lambda: _last_reduces_kernel[(4,)](work, count, out, SEM=sem, BLOCK=4)  # noqa: E731
    found = violation_of(call)
    if sem == "acq_rel":
        assert found is None
        assert out.item() == 10
    else:
        assert found is not None
        assert "reads element 0 of work_ptr's memory, which program (0, 0, 0) writes" in found


@pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="Triton 3.9 brought them")
def test_atomic_loads_and_stores_pass_on_what_was_stored() -> None:
    """A flag: an acquire that reads what a release has written."""
    work, out = torch.zeros(1), torch.zeros(1)
    for sem, ordered in (("acquire", True), ("relaxed", False)):
        flag = torch.zeros(1, dtype=torch.int32)
        call = lambda: _passing_on_kernel[(2,)](work, flag, out, SEM=sem)  # noqa: B023, E731
        found = violation_of(call)
        if ordered:
            assert found is None
            assert out.item() == 5
        else:
            assert found is not None
            assert "_passing_on_kernel reads element 0 of work_ptr's memory" in found


def test_count_that_nobody_looks_at_orders_nothing() -> None:
    """Program 1 can't know whether program 0 has counted before it."""
    work, out = torch.zeros(2), torch.zeros(1)
    count = torch.zeros(1, dtype=torch.int32)
    found = violation_of(lambda: _unread_count_kernel[(2,)](work, count, out))
    assert found is not None
    assert "program (1, 0, 0) of _unread_count_kernel reads element 0 of work_ptr's" in found


def test_lock_orders_what_is_done_under_it() -> None:
    """Not what is stored after it was released, nor what another lock protects."""
    total = torch.zeros(1)

    def call(*, late: bool, step: int) -> None:
        locks = torch.zeros(3, dtype=torch.int32)
        _locked_kernel[(3,)](locks, total, RELEASE_LATE=late, STEP=step)

    assert violation_of(lambda: call(late=True, step=0)) is None
    assert total.item() == 3
    early = violation_of(lambda: call(late=False, step=0))
    other = violation_of(lambda: call(late=True, step=1))
    for found in (early, other):
        assert found is not None
        assert "program (1, 0, 0) of _locked_kernel reads element 0 of sum_ptr's memory" in found


@pytest.mark.parametrize("writer", [0, 1])
def test_tile_that_one_program_zeroes_and_all_add_to_is_found(writer: int) -> None:
    """Whichever comes first here: on a GPU the zeros may come after the sums."""
    total = torch.zeros(8)
    call = lambda writer: _zeroing_kernel[(2,)](total, WRITER=writer, BLOCK=8)  # noqa: E731
    assert violation_of(lambda: call(2)) is None
    found = violation_of(lambda: call(writer))
    assert found is not None
    assert ("updates" if writer == 0 else "writes") + " element 0 of sum_ptr's memory" in found


def test_bytes_of_one_element_may_be_written_by_several_programs() -> None:
    """Through a pointer to bytes: four programs, four bytes; a fifth writer of them is found."""
    out = torch.zeros(2, dtype=torch.int32)
    assert violation_of(lambda: _bytes_kernel[(4,)](out, SHIFT=0)) is None
    assert out.tolist() == [0x01010101, 2]
    found = violation_of(lambda: _bytes_kernel[(4,)](out, SHIFT=4))
    assert found is not None
    assert "program (3, 0, 0) of _bytes_kernel writes element 1 of out_ptr's memory" in found
