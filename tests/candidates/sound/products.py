"""Sound matrix products, quantisations and rotations: other tiles, orders, grids and forms."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    MATMUL_FORWARD,
    QUANTISE_BLOCKS,
    QUANTISE_ROWS,
    ROPE_BACKWARD,
    ROPE_FORWARD,
    Domain,
    Numerics,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES)
_FP8 = Domain(dtypes=_DTYPES, sm=(89, 999))


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, cm, cn, REVERSED: tl.constexpr,
    FORM: tl.constexpr, SPLIT: tl.constexpr, GROUP: tl.constexpr, ATOMIC: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Tiles of a persistent program, in groups of GROUP rows of tiles; a part of k by axis 1."""
    part, tiles_m, tiles_n = tl.program_id(1), tl.cdiv(m, M), tl.cdiv(n, N)
    steps = tl.cdiv(tl.cdiv(k, K), SPLIT)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        first = tile // (GROUP * tiles_n) * GROUP
        height = tl.minimum(tiles_m - first, GROUP)
        inside = tile % (GROUP * tiles_n)
        row = ((first + inside % height) * M + tl.arange(0, M)).to(tl.int64)
        column = inside // height * N + tl.arange(0, N)
        acc = tl.zeros([M, N], tl.float32)
        for step in range(steps):
            at = part * steps + (steps - 1 - step if REVERSED else step)
            inner = (at * K + tl.arange(0, K)).to(tl.int64)
            a_mask = (row[:, None] < m) & (inner[None, :] < k)
            b_mask = (inner[:, None] < k) & (column[None, :] < n)
            a = tl.load(a_ptr + row[:, None] * am + inner[None, :] * ak, mask=a_mask, other=0.0)
            b = tl.load(b_ptr + inner[:, None] * bk + column[None, :] * bn, mask=b_mask, other=0.0)
            if FORM == "sum":
                # Triton makes a tl.dot with tf32 operands of tl.sum(a[:, :, None] * b[None], 1).
                wide_a, wide_b = a.to(tl.float32), tl.trans(b.to(tl.float32))
                acc += tl.sum(wide_a[:, None, :] * wide_b[None, :, :], 2)
            elif FORM == "transposed":
                acc += tl.trans(tl.dot(tl.trans(b), tl.trans(a), input_precision="ieee"))
            else:
                acc = tl.dot(a, b, acc, input_precision="ieee")
        mask = (row[:, None] < m) & (column[None, :] < n)
        c = c_ptr + row[:, None] * cm + column[None, :] * cn
        if ATOMIC:
            tl.atomic_add(c, acc, mask=mask)
        else:
            tl.store(c + part * m * n, acc, mask=mask)


def _product(
    name, tile, *, split=1, form="dot", reverse=False, group=1, programs=None, atomic=False
):
    numerics = Numerics(accumulation_roundoff=2.0**-23, bitwise_repeatable=not atomic)

    @kernel(MATMUL_FORWARD, _DOMAIN, numerics=numerics, name=name)
    def call(a, b):
        (m, k), n = a.shape, b.shape[1]
        rows, columns, inner = tile
        tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
        dtype = a.dtype if split == 1 else torch.float32
        kept = () if split == 1 or atomic else (split,)
        c = (torch.zeros if atomic else torch.empty)((*kept, m, n), dtype=dtype, device=a.device)
        product_kernel[min(tiles, programs or tiles), split](
            *(a, b, c, m, n, k, *a.stride(), *b.stride(), n, 1),
            REVERSED=reverse, FORM=form, SPLIT=split, GROUP=group, ATOMIC=atomic,
            M=rows, N=columns, K=inner,
        )  # fmt: skip
        return (c.sum(0) if kept else c).to(a.dtype)


_product("swizzled", (32, 64, 32), group=3)
_product("persistent_backwards", (64, 32, 16), reverse=True, programs=3)
_product("split_k_with_atomics", (32, 32, 32), split=3, atomic=True)
_product("split_k_with_workspace", (32, 32, 16), split=4)
_product("transposed_tiles", (16, 64, 64), form="transposed")
_product("sum_of_products", (16, 16, 32), form="sum")


@triton.jit
def largest_kernel(x_ptr, largest_ptr, n, xm, xn, BLOCK: tl.constexpr):
    """Raise a row's largest |x|, as the bits of a number, by those of a chunk."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * xm + column * xn, mask=column < n, other=0.0).to(tl.float32)
    bits = tl.abs(x).to(
        tl.int32, bitcast=True
    )  # their order is that of the numbers, NaN the largest
    tl.atomic_max(largest_ptr + row, tl.max(bits, 0))


@triton.jit
def codes_kernel(
    x_ptr, largest_ptr, codes_ptr, scales_ptr, n, eps, xm, xn, FORM: tl.constexpr,
    LOOPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes of a group of n columns, by x (1 / scale), x / scale, or x (448 / largest)."""
    row, group, groups = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    x_ptr += row * xm + group * n * xn
    bits = tl.zeros([], tl.int32)
    if LOOPED:
        for start in range(0, n, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + column * xn, mask=column < n, other=0.0).to(tl.float32)
            bits = tl.maximum(bits, tl.max(tl.abs(x).to(tl.int32, bitcast=True), 0))
    else:
        bits = tl.load(largest_ptr + row)
    largest = bits.to(tl.float32, bitcast=True)
    largest = tl.where(largest < eps, eps, largest)  # which a NaN isn't
    scale = largest / 448.0
    for start in range(0, n, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column * xn, mask=column < n, other=0.0).to(tl.float32)
        if FORM == "quotient":
            code = x / scale
        elif FORM == "largest":
            code = x * (448.0 / largest)
        else:
            code = x * (1.0 / scale)
        to = (row * groups + group) * n + column
        tl.store(codes_ptr + to, code.to(tl.float8e4nv), mask=column < n)
    tl.store(scales_ptr + row * groups + group, scale)


def _quantised(x, width, eps, scales, form, block, *, looped):
    codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    (m, n), largest = x.shape, None
    if m and not looped:
        largest = torch.zeros(m, dtype=torch.int32, device=x.device)
        largest_kernel[m, triton.cdiv(n, block)](x, largest, n, *x.stride(), BLOCK=block)
    if m:
        codes_kernel[m, n // width](
            *(x, largest, codes, scales, width, eps, *x.stride()),
            FORM=form, LOOPED=looped, BLOCK=block,
        )  # fmt: skip
    return codes, scales


def _quantise(name, form, block, *, looped):
    @kernel(QUANTISE_ROWS, _FP8, name=name)
    def rows(x, *, eps):
        scales = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        return _quantised(x, x.shape[1], eps, scales, form, block, looped=looped)

    if looped:

        @kernel(QUANTISE_BLOCKS, _FP8, name=name)
        def blocks(x, *, eps):
            shape = x.shape[0], x.shape[1] // 128
            scales = torch.empty(shape, dtype=torch.float32, device=x.device)
            return _quantised(x, 128, eps, scales, form, block, looped=True)


_quantise("looped_quotient", "quotient", 64, looped=True)
_quantise("looped_by_448_over_largest", "largest", 32, looped=True)
_quantise("largest_by_atomics", "inverse", 128, looped=False)


@triton.jit
def rope_kernel(
    x_ptr, cos_ptr, sin_ptr, y_ptr, h, p, xs, xh, xn, cm, cn, sm, sn, turn, FORM: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All heads of a position, HEADS at a time; by fused additions, or by row halves at once."""
    position = tl.program_id(0).to(tl.int64)
    x_ptr += position * xs
    pair = tl.arange(0, BLOCK)
    for start in range(0, h, HEADS):
        head = (start + tl.arange(0, HEADS))[:, None]
        if FORM == "fma":
            mask = (head < h) & (pair < p)[None, :]
            c = tl.load(cos_ptr + position * cm + pair * cn, mask=pair < p, other=0.0)
            s = tl.load(sin_ptr + position * sm + pair * sn, mask=pair < p, other=0.0)
            c, s = c.to(tl.float32)[None, :], s.to(tl.float32)[None, :] * turn
            at = head * xh + pair[None, :] * xn
            low = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
            high = tl.load(x_ptr + at + p * xn, mask=mask, other=0.0).to(tl.float32)
            to = y_ptr + (position * h + head) * (2 * p) + pair[None, :]
            c, s = tl.broadcast_to(c, [HEADS, BLOCK]), tl.broadcast_to(s, [HEADS, BLOCK])
            tl.store(to, tl.fma(low, c, -(high * s)), mask=mask)
            tl.store(to + p, tl.fma(low, s, high * c), mask=mask)
        else:  # a column and its partner
            column = pair[None, :]
            mask = (head < h) & (column < 2 * p)
            is_low = column < p
            partner = tl.where(is_low, column + p, column - p)
            c = tl.load(cos_ptr + position * cm + column % p * cn).to(tl.float32)
            s = tl.load(sin_ptr + position * sm + column % p * sn).to(tl.float32) * turn
            x = tl.load(x_ptr + head * xh + column * xn, mask=mask, other=0.0).to(tl.float32)
            other = tl.load(x_ptr + head * xh + partner * xn, mask=mask, other=0.0).to(tl.float32)
            y = x * c + other * tl.where(is_low, -s, s)
            tl.store(y_ptr + (position * h + head) * (2 * p) + column, y, mask=mask)


def _rope(name, form, heads):
    def called(x, cos, sin, turn):
        (s, h, width), y = x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if s:
            columns = width // 2 if form == "fma" else width
            rope_kernel[(s,)](
                *(x, cos, sin, y, h, width // 2, *x.stride(), *cos.stride(), *sin.stride(), turn),
                FORM=form, HEADS=heads, BLOCK=triton.next_power_of_2(columns),
            )  # fmt: skip
        return y

    kernel(ROPE_FORWARD, _DOMAIN, name=name)(lambda x, cos, sin: called(x, cos, sin, 1.0))
    kernel(ROPE_BACKWARD, _DOMAIN, name=name)(lambda dy, cos, sin: called(dy, cos, sin, -1.0))


_rope("fused_additions", "fma", 4)
_rope("column_and_partner", "partner", 2)
