"""Sums, scans and orders, and what is read or written by their results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _axes_kernel(x_ptr, out_ptr, m, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + rows[:, None] * n + cols[None, :], mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=1, keep_dims=True) / n, 0.0)
    tl.store(out_ptr + cols, tl.sum(centred * centred, axis=0), mask=cols < n)
    tl.store(out_ptr + n + rows, tl.max(x.abs(), 1), mask=rows < m + FAULT)


@idiom("_axes_kernel writes up to 1 elements past the end of out_ptr")
def reductions_along_axes(fault: int) -> Made:
    """One keeps its axis; a method too."""
    x, out = torch.randn(7, 13), torch.empty(13 + 7)
    _axes_kernel[(1,)](x, out, 7, 13, FAULT=fault, M=8, N=16)
    centred = x - x.mean(1, keepdim=True)
    return out, torch.cat([centred.square().sum(0), x.abs().amax(1)])


@triton.jit
def _best_kernel(x_ptr, rows_ptr, out_ptr, n, width, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + offs, mask=offs < n, other=-float("inf"))
    value, at = tl.max(x, 0, return_indices=True)
    least = tl.argmin(tl.where(offs < n, x, float("inf")), 0)
    row = tl.load(rows_ptr + (at + FAULT) * width + tl.arange(0, 4))
    tl.store(out_ptr + tl.program_id(0), value + tl.sum(row) + least)


@idiom("_best_kernel reads up to 4 elements past the end of rows_ptr")
def row_at_the_largest(fault: int) -> Made:
    """argmax with its value, and argmin; ties go to the left."""
    x = torch.tensor([[3.0, 1, 3, 0, 0], [0, 1, 2, 3, 9]])
    rows, out = torch.randn(5, 4), torch.empty(2)
    _best_kernel[(2,)](x, rows, out, 5, 4, FAULT=fault, BLOCK=8)
    at, least = torch.tensor([0, 4]), torch.tensor([3, 0])
    return out, x.amax(1) + rows[at].sum(1) + least


@triton.jit
def _joined(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta, count = mean_b - mean_a, count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / count)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def _welford_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n + FAULT, other=0.0)
    one = (offs < n).to(tl.float32)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), one), 0, _joined)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, m2 / count)


@idiom("_welford_kernel reads up to 1 elements past the end of x_ptr")
def mean_and_variance_by_a_function_of_ones_own(fault: int) -> Made:
    """tl.reduce of three blocks."""
    x, out = torch.randn(13) + 5, torch.empty(2)
    _welford_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    return out, torch.stack([x.mean(), x.var(correction=0)])


@triton.jit
def _parity_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr, tl.xor_sum(x, 0))
    tl.store(out_ptr + 1 + FAULT, tl.min(tl.where(offs < n, x, 2147483647), 0))


@idiom("_parity_kernel writes up to 1 elements past the end of out_ptr")
def exclusive_or_of_integers(fault: int) -> Made:
    """And the smallest of them."""
    x, out = torch.tensor([5, 9, 1024, 7], dtype=torch.int32), torch.empty(2, dtype=torch.int32)
    _parity_kernel[(1,)](x, out, 4, FAULT=fault, BLOCK=8)
    return out, torch.tensor([5 ^ 9 ^ 1024 ^ 7, 5])


@triton.jit
def _compact_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    keep = (x > 0).to(tl.int32)
    place = tl.cumsum(keep, 0) - 1 + FAULT
    tl.store(out_ptr + place, x, mask=keep != 0)


@idiom("_compact_kernel writes up to 1 elements past the end of out_ptr")
def places_by_a_running_sum(fault: int) -> Made:
    """The fault takes the sum for the places before it."""
    x = torch.randn(13)
    right = x[x > 0]
    out = torch.empty(right.shape)
    _compact_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    return out, right


@triton.jit
def _chained(decay_a, state_a, decay_b, state_b):
    return decay_a * decay_b, state_a * decay_b + state_b


@triton.jit
def _scan_kernel(a_ptr, x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offs, mask=offs < n, other=1.0)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    _, state = tl.associative_scan((a, x), 0, _chained)
    _, back = tl.associative_scan((a, x), 0, _chained, reverse=True)
    tl.store(out_ptr + offs, state + back, mask=offs < n + FAULT)


@idiom("_scan_kernel writes up to 1 elements past the end of out_ptr")
def recurrence_by_a_scan_of_ones_own(fault: int) -> Made:
    """Forwards and backwards, as linear attention has it."""
    a, x, out = torch.rand(13), torch.randn(13), torch.empty(13)
    _scan_kernel[(1,)](a, x, out, 13, FAULT=fault, BLOCK=16)
    forth, back, h, g = torch.empty(13), torch.empty(13), torch.zeros(()), torch.zeros(())
    for i in range(13):
        h = forth[i] = a[i] * h + x[i]
        g = back[12 - i] = a[12 - i] * g + x[12 - i]
    return out, forth + back


@triton.jit
def _products_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    running = tl.cumprod(x, axis=1)
    tl.store(out_ptr + offs + FAULT, running + tl.cumsum(x, 0, reverse=True))


@idiom("_products_kernel writes up to 1 elements past the end of out_ptr")
def running_products_and_sums_from_the_end(fault: int) -> Made:
    """The products run along one axis of a matrix, the sums along the other."""
    x, out = torch.rand(4, 8) + 0.5, torch.empty(4, 8)
    _products_kernel[(1,)](x, out, FAULT=fault, M=4, N=8)
    return out, x.cumprod(1) + x.flip(0).cumsum(0).flip(0)


@triton.jit
def _bins_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    counts = tl.histogram(x, BINS, mask=offs < n)
    tl.store(out_ptr + FAULT + tl.arange(0, BINS), counts)


@idiom("_bins_kernel writes up to 1 elements past the end of out_ptr")
def histogram_of_a_block(fault: int) -> Made:
    """Under a mask."""
    x, out = torch.randint(0, 8, (29,)).int(), torch.empty(8, dtype=torch.int32)
    _bins_kernel[(1,)](x, out, 29, FAULT=fault, BINS=8, BLOCK=32)
    return out, x.bincount(minlength=8)


@triton.jit
def _sorted_kernel(x_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=float("inf"))
    up = tl.sort(x)
    tl.store(out_ptr + offs, up, mask=offs < n)
    tl.store(out_ptr + n + offs - (BLOCK - n) + FAULT, tl.flip(x, 0), mask=offs >= BLOCK - n)


@idiom("_sorted_kernel writes up to 1 elements past the end of out_ptr")
def sorted_and_flipped_blocks(fault: int) -> Made:
    """Padding is sorted to the end, and flipped to the start."""
    x, out = torch.randn(13), torch.empty(26)
    _sorted_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    return out, torch.cat([x.sort().values, x.flip(0)])


@triton.jit
def _softmax_kernel(x_ptr, out_ptr, stride, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """As the tutorial has it, a row a program."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + cols, e / tl.sum(e, axis=0), mask=cols < n + FAULT)


@idiom(
    "program (1, 0, 0) of _softmax_kernel writes element 13 of out_ptr's memory, which program (0"
)
def softmax_of_padded_rows(fault: int) -> Made:
    """Rows have gaps between them; the fault stores into the next one's."""
    x, out = torch.randn(4, 16)[:, :13], torch.empty(4, 13)
    _softmax_kernel[(4,)](x, out, 16, 13, FAULT=fault, BLOCK=16)
    return out, x.softmax(1)
