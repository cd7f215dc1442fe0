"""Kernels of well-known shapes that are right: no check alarms, and results are theirs."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.watched import violation_of


@triton.jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, GROUP: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Programs in groups of rows; rows and columns past the end wrap around, and aren't stored."""
    rows, columns = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    size = tl.minimum(rows - first, GROUP)
    within = tl.program_id(0) % (GROUP * columns)
    offs_m = (first + within % size) * BLOCK + tl.arange(0, BLOCK)
    offs_n = within // size * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_m % m)[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * n + (offs_n % n)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=offs_k[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < left, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * n
    there = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], total, mask=there)


@triton.jit
def _split_sum_kernel(x_ptr, parts_ptr, counts_ptr, out_ptr, n, SPLITS, BLOCK: tl.constexpr):
    """Programs share a row; the last one of each row adds up what they left."""
    row, split = tl.program_id(0), tl.program_id(1)
    offs = split * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + row * n + offs, mask=offs < n, other=0.0))
    tl.store(parts_ptr + row * SPLITS + split, part)
    if tl.atomic_add(counts_ptr + row, 1) == SPLITS - 1:
        total = 0.0
        for each in range(SPLITS):
            total += tl.load(parts_ptr + row * SPLITS + each)
        tl.store(out_ptr + row, total)


@triton.jit
def _grouped_kernel(
    x_ptr, locks_ptr, counts_ptr, sums_ptr, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows are added into a few buffers, each under a lock; the first to come needn't read."""
    row = tl.program_id(0)
    group = row % GROUPS
    offs = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + row * n + offs, mask=offs < n, other=0.0)
    while tl.atomic_cas(locks_ptr + group, 0, 1) == 1:
        pass
    if tl.load(counts_ptr + group) == 0:
        tl.atomic_xchg(counts_ptr + group, 1)
    else:
        total += tl.load(sums_ptr + group * n + offs, mask=offs < n, other=0.0)
    tl.store(sums_ptr + group * n + offs, total, mask=offs < n)
    tl.debug_barrier()
    tl.atomic_xchg(locks_ptr + group, 0)


@triton.jit
def _softmax_kernel(x_ptr, stride, rows, n, BLOCK: tl.constexpr):
    """In place, rows a grid apart."""
    offs = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * stride + offs, mask=offs < n, other=float("-inf"))
        e = tl.exp(x - tl.max(x, 0))
        tl.store(x_ptr + row * stride + offs, e / tl.sum(e, 0), mask=offs < n)


@triton.jit
def _dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, offs) > p
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, tl.where(keep, x / (1 - p), 0.0), mask=offs < n)


@triton.jit
def _histogram_kernel(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bins = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(counts_ptr + bins, 1, mask=offs < n)


@pytest.fixture(autouse=True)
def _on_the_interpreter(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the strict interpreter is for machines without a GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matmul_by_groups_passes(dtype: torch.dtype) -> None:
    """Sizes that no block divides: offsets wrap by a remainder, pointers walk along k."""
    a, b = torch.randint(-3, 4, (37, 41)).to(dtype), torch.randint(-3, 4, (41, 29)).to(dtype)
    c: list[torch.Tensor] = []

    def call() -> None:
        c.append(torch.empty(37, 29))
        _matmul_kernel[(6,)](a, b, c[0], 37, 29, 41, GROUP=2, BLOCK=16, BLOCK_K=16)

    assert violation_of(call) is None
    assert torch.equal(c[0], a.float() @ b.float())


def test_sum_by_splits_passes() -> None:
    """A counter for each row; the workspace is fresh."""
    x, out = torch.randint(-9, 10, (5, 100)).float(), torch.zeros(5)

    def call() -> None:
        parts, counts = torch.empty(5, 4), torch.zeros(5, dtype=torch.int32)
        _split_sum_kernel[(5, 4)](x, parts, counts, out, 100, 4, BLOCK=32)

    assert violation_of(call) is None
    assert torch.equal(out, x.sum(1))


def test_sums_under_locks_pass() -> None:
    """The partial sums of a layer norm's weight gradient; nothing clears their buffer."""
    x, sums = torch.randint(-9, 10, (11, 20)).float(), []

    def call() -> None:
        locks, counts = torch.zeros(2, 3, dtype=torch.int32)
        sums.append(torch.empty(3, 20))
        _grouped_kernel[(11,)](x, locks, counts, sums[0], 20, GROUPS=3, BLOCK=32)

    assert violation_of(call) is None
    assert torch.equal(sums[0].sum(0), x.sum(0))


def test_softmax_in_place_passes() -> None:
    """Of rows with padding between them."""
    x = torch.randn(7, 24)[:, :20]
    expected = x.softmax(1)
    assert violation_of(lambda: _softmax_kernel[(3,)](x, 24, 7, 20, BLOCK=32)) is None
    torch.testing.assert_close(x, expected)


def test_dropout_passes() -> None:
    """Philox wraps on purpose, in unsigned integers."""
    x, out = torch.ones(1000), torch.zeros(1000)
    assert violation_of(lambda: _dropout_kernel[(8,)](x, out, 1000, 0.5, 7, BLOCK=128)) is None
    assert out.unique().tolist() == [0, 2]


def test_histogram_passes() -> None:
    """Atomics of a tile, several lanes and several programs at one address."""
    x, counts = torch.randint(0, 8, (1000,)), torch.zeros(8, dtype=torch.int32)
    assert violation_of(lambda: _histogram_kernel[(8,)](x, counts, 1000, BLOCK=128)) is None
    assert torch.equal(counts, x.bincount().int())
