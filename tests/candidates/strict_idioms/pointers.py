"""How kernels come by their addresses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _strided_kernel(
    x_ptr, out_ptr, sm, sn, m, n, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    at = rows[:, None] * sm + cols[None, :] * (sn + FAULT)
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + rows[:, None] * n + cols[None, :], x, mask=mask)


@idiom("reads up to 12 elements past the end of x_ptr")
def strides_of_a_transposed_tensor(fault: int) -> Made:
    """Both strides are passed; the fault is in the second."""
    x, out = torch.randn(13, 7).mT, torch.empty(7, 13)
    _strided_kernel[(1,)](x, out, x.stride(0), x.stride(1), 7, 13, FAULT=fault, M=8, N=16)
    return out, x


@idiom("reads up to 13 elements past the end of x_ptr")
def stride_of_zero(fault: int) -> Made:
    """A row that is expanded: its stride is 0; the fault takes it for packed."""
    row, out = torch.randn(13), torch.empty(2, 13)
    _strided_kernel[(1,)](row, out, 13 * fault, 1, 2, 13, FAULT=0, M=2, N=16)
    return out, row.expand(2, 13)


@triton.jit
def _reversed_kernel(x_ptr, out_ptr, stride, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    last = x_ptr + n - 1
    x = tl.load(last + offs * stride, mask=mask, other=0.0)
    y = tl.load(x_ptr + (n - 1 + FAULT) - offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@idiom("reads up to 1 elements past the end of x_ptr")
def negative_strides_and_offsets(fault: int) -> Made:
    """From the last element back; lanes that are off lie before the first."""
    x, out = torch.randn(13), torch.empty(13)
    _reversed_kernel[(1,)](x, out, -1, 13, FAULT=fault, BLOCK=16)
    return out, 2 * x.flip(0)


@triton.jit
def _walking_kernel(
    x_ptr, out_ptr, m, stride, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    pointers = x_ptr + rows[:, None] * stride + cols[None, :]
    total = tl.zeros((N,), tl.float32)
    for first in range(0, m + FAULT, M):
        x = tl.load(pointers, mask=first + rows[:, None] < m + FAULT, other=0.0)
        total += tl.sum(x, 0)
        pointers += M * stride
    tl.store(out_ptr + cols, total)


@idiom("reads up to 16 elements past the end of x_ptr")
def pointers_that_walk_in_a_loop(fault: int) -> Made:
    """A block of them, a tile further each time; the fault takes one row too many."""
    x, out = torch.randn(12, 16), torch.empty(16)
    _walking_kernel[(1,)](x, out, 12, 16, FAULT=fault, M=4, N=16)
    return out, x.sum(0)


@triton.jit
def _rebased_kernel(x_ptr, out_ptr, stride, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) + FAULT
    x_ptr += row * stride
    out_ptr += tl.program_id(0).to(tl.int64) * n
    for first in range(0, n, BLOCK):
        offs = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        tl.store(out_ptr + offs, x, mask=offs < n)


@idiom("program (3, 0, 0) of _rebased_kernel reads up to 16 elements past the end of x_ptr")
def argument_moved_to_its_row(fault: int) -> Made:
    """The argument itself is changed, by 64 bits; rows have gaps between them."""
    x, out = torch.randn(4, 20)[:, :12], torch.empty(4, 12)
    _rebased_kernel[(4,)](x, out, x.stride(0), 12, FAULT=fault, BLOCK=8)
    return out, x


@triton.jit
def _table_kernel(
    pool_ptr, table_ptr, sizes_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    """A table may point into any argument."""
    offs = tl.arange(0, BLOCK)
    for member in range(3):
        base = tl.load(table_ptr + member).to(tl.pointer_type(tl.float32))
        size = tl.load(sizes_ptr + member) + FAULT
        tl.store(out_ptr + member, tl.sum(tl.load(base + offs, mask=offs < size, other=0.0)))


@idiom("reads memory that belongs to no argument, 1 elements past the nearest")
def pointers_read_from_a_table(fault: int) -> Made:
    """As grouped products take their members."""
    pool = torch.randn(30)
    members = [pool[:7], pool[7:20], pool[20:]]
    table = torch.tensor([each.data_ptr() for each in members])
    sizes, out = torch.tensor([each.numel() for each in members]), torch.empty(3)
    _table_kernel[(1,)](pool, table, sizes, out, FAULT=fault, BLOCK=16)
    return out, torch.stack([each.sum() for each in members])


@triton.jit
def _packed_kernel(x_ptr, out_ptr, words, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    pairs = x_ptr.to(tl.pointer_type(tl.uint32))
    word = tl.load(pairs + offs, mask=offs < words + FAULT, other=0)
    low = (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
    high = (word >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    tl.store(out_ptr + offs, low.to(tl.float32) + high.to(tl.float32), mask=offs < words)


@idiom("reads up to 2 elements past the end of x_ptr")
def pointer_cast_to_wider_elements(fault: int) -> Made:
    """Two halves in a word, taken apart by shifts and bitcasts."""
    x, out = torch.randn(26).half(), torch.empty(13)
    _packed_kernel[(1,)](x, out, 13, FAULT=fault, BLOCK=16)
    return out, x.float().view(13, 2).sum(1)


@triton.jit
def _pair_kernel(pair, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    a_ptr, b_ptr = pair
    chosen = tl.where(offs % 2 == 0, a_ptr + offs, b_ptr + offs + FAULT)
    tl.store(out_ptr + offs, tl.load(chosen, mask=offs < n, other=0.0), mask=offs < n)


@idiom("reads up to 1 elements past the end of pair[1]")
def pointers_in_a_tuple_and_chosen_by_where(fault: int) -> Made:
    """Lanes go to two tensors in turn."""
    a, b, out = torch.randn(12), torch.randn(12), torch.empty(12)
    _pair_kernel[(1,)]((a, b), out, 12, FAULT=fault, BLOCK=16)
    return out, torch.where(torch.arange(12) % 2 == 0, a, b)


@triton.jit
def _branch_kernel(a_ptr, b_ptr, bias_ptr, out_ptr, half, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    if row < half + FAULT:
        pointer = a_ptr + row * BLOCK
    else:
        pointer = b_ptr + (row - half) * BLOCK
    x = tl.load(pointer + offs)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offs)
    tl.store(out_ptr + row * BLOCK + offs, x)


@idiom("program (2, 0, 0) of _branch_kernel reads up to 8 elements past the end of a_ptr")
def pointer_chosen_by_a_branch_and_one_that_is_none(fault: int) -> Made:
    """The first rows are of one tensor and the rest of another; there is no bias."""
    a, b, out = torch.randn(2, 8), torch.randn(3, 8), torch.empty(5, 8)
    _branch_kernel[(5,)](a, b, None, out, 2, FAULT=fault, BLOCK=8)
    return out, torch.cat([a, b])


@triton.jit
def _gather_kernel(index_ptr, x_ptr, out_ptr, n, padding, BLOCK: tl.constexpr):
    index = tl.load(index_ptr + tl.program_id(0))
    offs = tl.arange(0, BLOCK)
    if index != padding:
        x = tl.load(x_ptr + index * n + offs, mask=offs < n, other=0.0)
    else:
        x = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    tl.store(out_ptr + tl.program_id(0) * n + offs, x, mask=offs < n)


@idiom("program (1, 0, 0) of _gather_kernel reads up to 12 elements past the end of x_ptr")
def rows_by_an_index(fault: int) -> Made:
    """An embedding, with an index for nothing; the fault is one of no row."""
    index = torch.tensor([3, 5 + fault, -1, 0, 3])
    x, out = torch.randn(6, 12), torch.empty(5, 12)
    _gather_kernel[(5,)](index, x, out, 12, -1, BLOCK=16)
    right = x[index.clamp(0, 5)]
    right[2] = 0
    return out, right


@triton.jit
def _scatter_kernel(index_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    to = tl.load(index_ptr + row)
    x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + to * n + offs, x, mask=offs < n)


@idiom(
    "program (2, 0, 0) of _scatter_kernel writes element 12 of out_ptr's memory, which program (0"
)
def rows_to_an_index(fault: int) -> Made:
    """A permutation, where the fault has one target twice."""
    index = torch.tensor([1, 0, 1 if fault else 2])
    x, out = torch.randn(3, 12), torch.empty(3, 12)
    _scatter_kernel[(3,)](index, x, out, 12, BLOCK=16)
    return out, x[index]


@triton.jit
def _paged_kernel(
    pages_ptr, lengths_ptr, cache_ptr, out_ptr, most, PAGE: tl.constexpr, FAULT: tl.constexpr
):
    """Sum of a sequence whose elements lie in pages."""
    sequence, within = tl.program_id(0), tl.arange(0, PAGE)
    length = tl.load(lengths_ptr + sequence) + FAULT * PAGE
    total = tl.zeros((PAGE,), tl.float32)
    for number in range(tl.cdiv(length, PAGE)):
        page = tl.load(pages_ptr + sequence * most + number).to(tl.int64)
        mask = number * PAGE + within < length
        total += tl.load(cache_ptr + page * PAGE + within, mask=mask, other=0.0)
    tl.store(out_ptr + sequence, tl.sum(total))


@idiom("program (1, 0, 0) of _paged_kernel reads up to 1 elements past the end of pages_ptr")
def pages_by_a_block_table(fault: int) -> Made:
    """As attention over a paged cache; the fault takes one page too many of a full sequence."""
    pages, lengths = torch.tensor([[4, 0, 2], [1, 5, 3]]).int(), torch.tensor([9, 12]).int()
    cache, out = torch.randn(6, 4), torch.empty(2)
    _paged_kernel[(2,)](pages, lengths, cache, out, 3, PAGE=4, FAULT=fault)
    rows = [cache[page.long()].flatten()[:n] for page, n in zip(pages, [9, 12], strict=True)]
    return out, torch.stack([each.sum() for each in rows])


@triton.jit
def _sequences_kernel(starts_ptr, x_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    sequence, block = tl.program_id(1), tl.program_id(0)
    begin = tl.load(starts_ptr + sequence)
    length = tl.load(starts_ptr + sequence + 1) - begin
    if block * BLOCK >= length:
        return
    offs = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + begin + offs, mask=offs < length + FAULT, other=0.0)
    tl.store(out_ptr + begin + offs, x / length, mask=offs < length)


@idiom("program (1, 2, 0) of _sequences_kernel reads up to 1 elements past the end of x_ptr")
def sequences_end_to_end(fault: int) -> Made:
    """By cumulative lengths, one of them 0; programs past a sequence's end return."""
    starts = torch.tensor([0, 5, 5, 18]).int()
    x, out = torch.randn(18), torch.empty(18)
    _sequences_kernel[(3, 3)](starts, x, out, FAULT=fault, BLOCK=8)
    return out, torch.cat([x[:5] / 5, x[5:] / 13])


@triton.jit
def _four_axes_kernel(
    x_ptr, out_ptr, sb, sh, ss, heads, FAULT: tl.constexpr, S: tl.constexpr, D: tl.constexpr
):
    batch, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % (heads + FAULT)
    start = x_ptr + batch * sb + head * sh
    offs = tl.arange(0, S)[:, None] * ss + tl.arange(0, D)[None, :]
    packed = tl.program_id(0) * S * D + tl.arange(0, S)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out_ptr + packed, tl.load(start + offs))


@idiom("program (2, 0, 0) of _four_axes_kernel reads up to 8 elements past the end of x_ptr")
def four_axes_by_their_strides(fault: int) -> Made:
    """[b, s, h, d] seen as [b, h, s, d], batches and heads in one axis of the grid."""
    x, out = torch.randn(2, 4, 2, 8).transpose(1, 2), torch.empty(2, 2, 4, 8)
    _four_axes_kernel[(4,)](x, out, *x.stride()[:3], 2, FAULT=fault, S=4, D=8)
    return out, x


@triton.jit
def _swizzled_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, SIZE: tl.constexpr):
    row, col = tl.swizzle2d(tl.program_id(0), tl.program_id(1), SIZE, SIZE, 2)
    at = row * (SIZE + FAULT) + col
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 3)


@idiom("reads up to 1 elements past the end of x_ptr")
def programs_in_another_order(fault: int) -> Made:
    """tl.swizzle2d, in groups of two rows."""
    x, out = torch.randn(4, 4), torch.empty(4, 4)
    _swizzled_kernel[(4, 4)](x, out, FAULT=fault, SIZE=4)
    return out, x * 3


@triton.jit
def _in_place_kernel(x_ptr, y_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs + FAULT, mask=offs + FAULT < n, other=0.0)
    tl.store(y_ptr + offs, x * x, mask=offs < n)


@idiom("program (1, 0, 0) of _in_place_kernel writes element 8 of y_ptr's memory, which program (0")
def one_tensor_read_and_written(fault: int) -> Made:
    """Under two names; the fault reads what the next program writes."""
    x = torch.randn(20)
    right = x * x
    _in_place_kernel[(3,)](x, x, 20, FAULT=fault, BLOCK=8)
    return x, right
