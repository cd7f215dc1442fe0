"""Blocks that are turned, taken apart and put together, and stored by what became of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _turned_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
    tl.store(out_ptr + cols[:, None] * M + rows[None, :] + FAULT, tl.trans(x) + x.T)


@idiom("_turned_kernel writes up to 1 elements past the end of out_ptr")
def transposed_tile(fault: int) -> Made:
    """tl.trans and .T."""
    x, out = torch.randn(4, 8), torch.empty(8, 4)
    _turned_kernel[(1,)](x, out, FAULT=fault, M=4, N=8)
    return out, 2 * x.mT


@triton.jit
def _permuted_kernel(x_ptr, out_ptr, FAULT: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, A * B * 2)
    x = tl.reshape(tl.load(x_ptr + at), (A, B, 2))
    y = tl.permute(x, (2, 0, 1))
    z = tl.reshape(y, (2 * A, B))
    offs = tl.arange(0, 2 * A)[:, None] * (B + FAULT) + tl.arange(0, B)[None, :]
    tl.store(out_ptr + offs, z)


@idiom("_permuted_kernel writes up to 7 elements past the end of out_ptr")
def reshaped_and_permuted(fault: int) -> Made:
    """A stride that is one too large reaches past the end."""
    x, out = torch.randn(4, 4, 2), torch.empty(8, 4)
    _permuted_kernel[(1,)](x, out, FAULT=fault, A=4, B=4)
    return out, x.permute(2, 0, 1).reshape(8, 4)


@triton.jit
def _rotated_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, FAULT: tl.constexpr, HALF: tl.constexpr):
    """Rotary embedding of pairs that lie side by side."""
    row, at = tl.program_id(0), tl.arange(0, 2 * HALF)
    even, odd = tl.split(tl.reshape(tl.load(x_ptr + row * 2 * HALF + at), (HALF, 2)))
    angle = row * HALF + tl.arange(0, HALF)
    cos, sin = tl.load(cos_ptr + angle + FAULT), tl.load(sin_ptr + angle)
    y = tl.interleave(even * cos - odd * sin, odd * cos + even * sin)
    tl.store(out_ptr + row * 2 * HALF + at, y)


@idiom("program (2, 0, 0) of _rotated_kernel reads up to 1 elements past the end of cos_ptr")
def pairs_split_and_interleaved(fault: int) -> Made:
    """As rotary embeddings do."""
    x, angle, out = torch.randn(3, 8), torch.randn(3, 4), torch.empty(3, 8)
    _rotated_kernel[(3,)](x, angle.cos(), angle.sin(), out, FAULT=fault, HALF=4)
    right = torch.view_as_complex(x.view(3, 4, 2)) * torch.polar(torch.ones(3, 4), angle)
    return out, torch.view_as_real(right).view(3, 8)


@triton.jit
def _halves_kernel(
    q_ptr, cos_ptr, out_ptr, heads, FAULT: tl.constexpr, H: tl.constexpr, D: tl.constexpr
):
    """Rotary embedding of halves, all heads of a position at once."""
    position = tl.program_id(0)
    head, at = tl.arange(0, H)[:, None], tl.arange(0, D // 2)[None, :]
    mask = (head < heads) & (at < D // 2)
    first = position * heads * D + head * D + at
    second = first + D // 2
    a = tl.load(q_ptr + first, mask=mask, other=0)
    b = tl.load(q_ptr + second, mask=head < heads + FAULT, other=0)
    cos = tl.load(cos_ptr + position * (D // 2) + tl.arange(0, D // 2))
    tl.store(out_ptr + first, a * cos - b, mask=mask)
    tl.store(out_ptr + second, b * cos + a, mask=mask)


@idiom("program (1, 0, 0) of _halves_kernel reads up to 8 elements past the end of q_ptr")
def halves_of_all_heads(fault: int) -> Made:
    """A row of heads, padded to a power of two."""
    q, cos, out = torch.randn(2, 3, 8), torch.randn(2, 4), torch.empty(2, 3, 8)
    _halves_kernel[(2,)](q, cos, out, 3, FAULT=fault, H=4, D=8)
    a, b = q.chunk(2, -1)
    return out, torch.cat([a * cos[:, None] - b, b * cos[:, None] + a], -1)


@triton.jit
def _joined_kernel(x_ptr, y_ptr, out_ptr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    pairs = tl.join(x, y)  # [BLOCK, 2]
    at = offs[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(out_ptr + at + FAULT, pairs)
    both = tl.sum(tl.cat(x, y, can_reorder=True), 0)
    tl.store(out_ptr + 2 * BLOCK, both)


@idiom("_joined_kernel writes up to 1 elements past the end of out_ptr")
def blocks_joined_and_put_end_to_end(fault: int) -> Made:
    """Along a new axis, and in any order."""
    x, y, out = torch.randn(8), torch.randn(8), torch.empty(17 - fault)
    _joined_kernel[(1,)](x, y, out, FAULT=fault, BLOCK=8)
    return out, torch.cat([torch.stack([x, y], 1).flatten(), (x.sum() + y.sum())[None]])


@triton.jit
def _spread_kernel(x_ptr, y_ptr, out_ptr, m, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.expand_dims(tl.load(x_ptr + rows, mask=rows < m, other=0.0), 1)
    y = tl.broadcast_to(tl.load(y_ptr + cols)[None, :], (M, N))
    z = tl.broadcast_to(x, (M, N)) * y
    three = tl.reshape(z, (M, 1, N)) + tl.zeros((M, 2, N), tl.float32)
    at = rows[:, None, None] * 2 * N + tl.arange(0, 2)[None, :, None] * N + cols[None, None, :]
    tl.store(out_ptr + at, three, mask=rows[:, None, None] < m + FAULT)


@idiom("_spread_kernel writes up to 16 elements past the end of out_ptr")
def axes_added_and_spread(fault: int) -> Made:
    """Masks of [M, 1, 1] too."""
    x, y, out = torch.randn(3), torch.randn(8), torch.empty(3, 2, 8)
    _spread_kernel[(1,)](x, y, out, 3, FAULT=fault, M=4, N=8)
    return out, (x[:, None] * y)[:, None].expand(3, 2, 8)


@triton.jit
def _gathered_kernel(
    x_ptr, index_ptr, out_ptr, FAULT: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x, index = tl.load(x_ptr + at), tl.load(index_ptr + at)
    taken = tl.gather(x, index, axis=1)
    tl.store(out_ptr + at + FAULT * index, taken)


@idiom("_gathered_kernel writes up to 7 elements past the end of out_ptr")
def lanes_taken_from_other_lanes(fault: int) -> Made:
    """tl.gather; the fault adds the index to where it stores."""
    x, out = torch.randn(4, 8), torch.empty(4, 8)
    index = torch.arange(8, dtype=torch.int32).roll(-1).repeat(4, 1)
    index[3] = torch.arange(8)
    _gathered_kernel[(1,)](x, index, out, FAULT=fault, M=4, N=8)
    return out, x.gather(1, index.long())


@triton.jit
def _nibbles_kernel(packed_ptr, scale_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Two numbers of 4 bits in a byte, and a scale for eight of them."""
    offs = tl.arange(0, BLOCK)
    byte = tl.load(packed_ptr + offs // 2, mask=offs < n, other=0)
    number = ((byte >> ((offs % 2) * 4)) & 0xF).to(tl.float32) - 8.0
    scale = tl.load(scale_ptr + offs // 8 + FAULT, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, number * scale, mask=offs < n)


@idiom("_nibbles_kernel reads up to 1 elements past the end of scale_ptr")
def numbers_of_four_bits(fault: int) -> Made:
    """Unpacked by shifts, several lanes to a byte."""
    packed, scale = torch.randint(0, 256, (12,), dtype=torch.uint8), torch.rand(3)
    out = torch.empty(24)
    _nibbles_kernel[(1,)](packed, scale, out, 24, FAULT=fault, BLOCK=32)
    wide = packed.int()
    numbers = torch.stack([wide & 15, wide >> 4], 1).flatten() - 8
    return out, numbers * scale.repeat_interleave(8)
