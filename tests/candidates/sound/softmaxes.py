"""Sound softmaxes and cross entropies: a row may be summed in any order, in one pass or in more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    Domain,
    kernel,
)

_DOMAIN = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def plus(a, b):
    """Add two numbers, for a reduction or a scan."""
    return a + b


@triton.jit
def row_sum(values, HOW: tl.constexpr, BLOCK: tl.constexpr):
    """Add up a block in the order that HOW names."""
    if HOW == "scan":
        sums = tl.associative_scan(values, 0, plus)
        return tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, sums, 0.0), 0)
    elif HOW == "cumsum":
        sums = tl.cumsum(values, 0, reverse=True)
        return tl.sum(tl.where(tl.arange(0, BLOCK) == 0, sums, 0.0), 0)
    elif HOW == "square":
        return tl.sum(tl.sum(tl.reshape(values, [16, BLOCK // 16]), 0), 0)
    elif HOW == "reduce":
        return tl.reduce(values, 0, plus)
    else:
        return tl.sum(values, 0)


@triton.jit
def power(x, EXP2: tl.constexpr):
    """e^x, by base 2 if EXP2."""
    return tl.exp2(x * _LOG2_E) if EXP2 else tl.exp(x)


@triton.jit
def finite(highest):
    """Return the number to subtract: 0 where all numbers so far are -inf."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def chunk(ptr, start, n, step, REVERSED: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """A part of a row in fp32, with OTHER past the row's end; its columns."""
    at = start + tl.arange(0, BLOCK)
    column = n - 1 - at if REVERSED else at
    return tl.load(ptr + column * step, mask=at < n, other=OTHER).to(tl.float32), column


@triton.jit
def statistics(
    ptr, n, step, PASSES: tl.constexpr, EXP2: tl.constexpr, REVERSED: tl.constexpr,
    HOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's largest number, and the sum of e^(x - largest)."""
    minus = float("-inf")
    if PASSES == "lanes":  # a running maximum and sum for each lane, merged at the end
        tops, sums = tl.full([BLOCK], minus, tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            x, _ = chunk(ptr, start, n, step, REVERSED, minus, BLOCK)
            new = tl.maximum(tops, x)
            sums = sums * power(tops - finite(new), EXP2) + power(x - finite(new), EXP2)
            tops = new
        top = finite(tl.max(tops, 0))
        total = row_sum(sums * power(tops - top, EXP2), HOW, BLOCK)
    elif PASSES == "online":
        top, total = tl.full([], minus, tl.float32), tl.zeros([], tl.float32)
        for start in range(0, n, BLOCK):
            x, _ = chunk(ptr, start, n, step, REVERSED, minus, BLOCK)
            new = tl.maximum(top, tl.max(x, 0))
            total *= power(top - finite(new), EXP2)
            total += row_sum(power(x - finite(new), EXP2), HOW, BLOCK)
            top = new
        top = finite(top)
    else:
        tops = tl.full([BLOCK], minus, tl.float32)
        for start in range(0, n, BLOCK):
            x, _ = chunk(ptr, start, n, step, REVERSED, minus, BLOCK)
            tops = tl.maximum(tops, x)
        top = finite(tl.max(tops, 0))
        sums, lost = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            x, _ = chunk(ptr, start, n, step, REVERSED, minus, BLOCK)
            e = power(x - top, EXP2)
            if PASSES == "kahan":
                term = e - lost
                new = sums + term
                lost = (new - sums) - term
                sums = new
            else:
                sums += e
        total = row_sum(sums, HOW, BLOCK)
    return top, total


@triton.jit
def softmax_kernel(
    x_ptr, y_ptr, m, n, xm, xn, PASSES: tl.constexpr, EXP2: tl.constexpr, REVERSED: tl.constexpr,
    HOW: tl.constexpr, RECIPROCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a persistent program, in chunks of columns."""
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        x_row = x_ptr + row.to(tl.int64) * xm
        top, total = statistics(x_row, n, xn, PASSES, EXP2, REVERSED, HOW, BLOCK)
        inverse = 1.0 / total
        for start in range(0, n, BLOCK):
            x, column = chunk(x_row, start, n, xn, REVERSED, float("-inf"), BLOCK)
            e = power(x - top, EXP2)
            y = e * inverse if RECIPROCAL else e / total
            mask = (column >= 0) & (column < n)
            tl.store(y_ptr + row.to(tl.int64) * n + column, y, mask=mask)


@triton.jit
def softmax_block_kernel(
    x_ptr, y_ptr, m, n, xm, xn, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Whole rows in a block, as rows or as columns of the block; a grid of three axes."""
    program = tl.program_id(0) + tl.num_programs(0) * (
        tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    )
    row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    if TRANSPOSED:
        at, to = row[None, :] * xm + column[:, None] * xn, row[None, :] * n + column[:, None]
        mask = (row[None, :] < m) & (column[:, None] < n)
        x = tl.load(x_ptr + at, mask=mask, other=float("-inf")).to(tl.float32)
        e = tl.exp(x - finite(tl.max(x, 0))[None, :])
        y = e / tl.sum(e, 0)[None, :]
    else:
        at, to = row[:, None] * xm + column[None, :] * xn, row[:, None] * n + column[None, :]
        mask = (row[:, None] < m) & (column[None, :] < n)
        x = tl.load(x_ptr + at, mask=mask, other=float("-inf")).to(tl.float32)
        e = tl.exp(x - finite(tl.max(x, 1, keep_dims=True)))
        y = e / tl.sum(e, 1, keep_dims=True)
    tl.store(y_ptr + to, y, mask=mask)


@triton.jit
def parts_kernel(x_ptr, top_ptr, sum_ptr, n, xm, xn, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest number and the sum of a part of a row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width = tl.cdiv(n, PARTS)
    length = tl.maximum(tl.minimum(width, n - part * width), 0)
    ptr = x_ptr + row * xm + part * width * xn
    top, total = statistics(ptr, length, xn, "online", False, False, "tree", BLOCK)
    tl.store(top_ptr + row * PARTS + part, tl.where(total > 0, top, float("-inf")))
    tl.store(sum_ptr + row * PARTS + part, total)


@triton.jit
def merge_kernel(
    x_ptr, top_ptr, sum_ptr, y_ptr, n, xm, xn, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Merge the parts of a row, and write a chunk of it."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = row * PARTS + tl.arange(0, PARTS)
    tops, sums = tl.load(top_ptr + part), tl.load(sum_ptr + part)
    top = finite(tl.max(tops, 0))
    # A part's sum that is NaN has a maximum of -inf.
    total = tl.sum(tl.where(sums == 0, 0.0, sums * tl.exp(tops - top)), 0)
    total = tl.where(tl.sum(sums, 0) >= 0, total, float("nan"))
    x = tl.load(x_ptr + row * xm + column * xn, mask=column < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n + column, tl.exp(x - top) / total, mask=column < n)


@triton.jit
def softmax_backward_kernel(
    dy_ptr, x_ptr, dx_ptr, n, gm, gn, xm, xn, PASSES: tl.constexpr, EXP2: tl.constexpr,
    REVERSED: tl.constexpr, SPREAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = y (dy - sum dy y), or y dy - y sum dy y if SPREAD."""
    row = tl.program_id(0).to(tl.int64)
    x_row, dy_row = x_ptr + row * xm, dy_ptr + row * gm
    top, total = statistics(x_row, n, xn, PASSES, EXP2, REVERSED, "tree", BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x, _ = chunk(x_row, start, n, xn, REVERSED, float("-inf"), BLOCK)
        dy, _ = chunk(dy_row, start, n, gn, REVERSED, 0.0, BLOCK)
        sums += dy * (power(x - top, EXP2) / total)
    along = tl.sum(sums, 0)
    for start in range(0, n, BLOCK):
        x, column = chunk(x_row, start, n, xn, REVERSED, float("-inf"), BLOCK)
        dy, _ = chunk(dy_row, start, n, gn, REVERSED, 0.0, BLOCK)
        y = power(x - top, EXP2) / total
        dx = y * dy - y * along if SPREAD else y * (dy - along)
        tl.store(dx_ptr + row * n + column, dx, mask=(column >= 0) & (column < n))


@triton.jit
def loss_kernel(
    x_ptr, target_ptr, loss_ptr, n, xm, xn, PASSES: tl.constexpr, EXP2: tl.constexpr,
    REVERSED: tl.constexpr, HOW: tl.constexpr, LABEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """lse - x_target; the label's number is loaded, or found by comparison."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * xm
    target = tl.load(target_ptr + row)
    top, total = statistics(x_row, n, xn, PASSES, EXP2, REVERSED, HOW, BLOCK)
    if LABEL == "sum":
        chosen = tl.zeros([], tl.float32)
        for start in range(0, n, BLOCK):
            x, column = chunk(x_row, start, n, xn, REVERSED, 0.0, BLOCK)
            chosen += tl.sum(tl.where(column == target, x, 0.0), 0)
    else:
        chosen = tl.load(x_row + target * xn).to(tl.float32)
    log = tl.log2(total) * 0.6931471805599453 if EXP2 else tl.log(total)
    loss = (top - chosen) + log if LABEL == "near" else top + log - chosen
    tl.store(loss_ptr + row, loss)


@triton.jit
def loss_backward_kernel(
    dloss_ptr, x_ptr, target_ptr, dx_ptr, n, xm, xn, PASSES: tl.constexpr, EXP2: tl.constexpr,
    REVERSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dloss (softmax - 1 at the target)."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * xm
    target, dloss = tl.load(target_ptr + row), tl.load(dloss_ptr + row)
    top, total = statistics(x_row, n, xn, PASSES, EXP2, REVERSED, "tree", BLOCK)
    for start in range(0, n, BLOCK):
        x, column = chunk(x_row, start, n, xn, REVERSED, float("-inf"), BLOCK)
        y = power(x - top, EXP2) / total
        dx = tl.where(column == target, y - 1.0, y) * dloss
        tl.store(dx_ptr + row * n + column, dx, mask=(column >= 0) & (column < n))


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _softmax(name, passes, block, *, how="tree", programs=None, **flags):
    switches = {"EXP2": False, "REVERSED": False, "RECIPROCAL": False, **flags}

    @kernel(SOFTMAX_FORWARD, _DOMAIN, name=name)
    def call(x):
        (m, n), y = x.shape, _like(x)
        if m:
            grid = (min(m, programs or m),)
            softmax_kernel[grid](
                *(x, y, m, n, *x.stride()), PASSES=passes, HOW=how, BLOCK=block, **switches
            )
        return y


_softmax("two_pass_chunks", "two", 128)
_softmax("online_chunks", "online", 64)
_softmax("online_lanes_reversed_exp2", "lanes", 32, EXP2=True, REVERSED=True)
_softmax("kahan_reciprocal", "kahan", 64, RECIPROCAL=True)
_softmax("scan_persistent", "online", 128, how="scan", programs=3)
_softmax("cumsum_backwards", "two", 256, how="cumsum")
_softmax("columns_of_a_square", "online", 256, how="square", EXP2=True)
_softmax("custom_reduce_reversed", "lanes", 64, how="reduce", REVERSED=True)


def _softmax_block(name, rows, *, transposed):
    @kernel(SOFTMAX_FORWARD, _DOMAIN, name=name)
    def call(x):
        (m, n), y = x.shape, _like(x)
        if m:
            grid = (triton.cdiv(triton.cdiv(m, rows), 6), 3, 2)
            block = triton.next_power_of_2(n)
            softmax_block_kernel[grid](
                x, y, m, n, *x.stride(), TRANSPOSED=transposed, ROWS=rows, BLOCK=block
            )
        return y


_softmax_block("rows_of_a_block_in_3d_grid", 4, transposed=False)
_softmax_block("columns_of_a_block_in_3d_grid", 2, transposed=True)


@kernel(SOFTMAX_FORWARD, _DOMAIN, name="split_rows_merged")
def split_rows(x):
    """Split a row over 4 programs, and merge what they store."""
    (m, n), y = x.shape, _like(x)
    tops, sums = torch.empty((2, m, 4), dtype=torch.float32, device=x.device)
    if m:
        parts_kernel[m, 4](x, tops, sums, n, *x.stride(), PARTS=4, BLOCK=64)
        grid = (m, triton.cdiv(n, 256))
        merge_kernel[grid](x, tops, sums, y, n, *x.stride(), PARTS=4, BLOCK=256)
    return y


def _softmax_backward(name, passes, block, **flags):
    switches = {"EXP2": False, "REVERSED": False, "SPREAD": False, **flags}

    @kernel(SOFTMAX_BACKWARD, _DOMAIN, name=name)
    def call(dy, x):
        (m, n), dx = x.shape, _like(x)
        if m:
            softmax_backward_kernel[(m,)](
                *(dy, x, dx, n, *dy.stride(), *x.stride()), PASSES=passes, BLOCK=block, **switches
            )
        return dx


_softmax_backward("two_pass_chunks", "two", 128)
_softmax_backward("online_reversed_exp2", "lanes", 64, EXP2=True, REVERSED=True)
_softmax_backward("spread_products", "kahan", 64, SPREAD=True)


def _loss(name, passes, block, *, how="tree", label="load", **flags):
    switches = {"EXP2": False, "REVERSED": False, **flags}

    @kernel(CROSS_ENTROPY_FORWARD, _DOMAIN, name=name)
    def call(x, target):
        (m, n), target = x.shape, target.contiguous()
        loss = torch.empty(m, dtype=torch.float32, device=x.device)
        if m:
            loss_kernel[(m,)](
                *(x, target, loss, n, *x.stride()),
                PASSES=passes, HOW=how, LABEL=label, BLOCK=block, **switches,
            )  # fmt: skip
        return loss


_loss("online_chunks", "online", 64)
_loss("compare_and_sum", "two", 128, how="square", label="sum")
_loss("lanes_exp2_reversed", "lanes", 32, EXP2=True, REVERSED=True)
_loss("kahan_difference_first", "kahan", 64, label="near")
_loss("scan", "online", 128, how="scan", label="sum", REVERSED=True)


def _loss_backward(name, passes, block, **flags):
    switches = {"EXP2": False, "REVERSED": False, **flags}

    @kernel(CROSS_ENTROPY_BACKWARD, _DOMAIN, name=name)
    def call(dloss, x, target):
        (m, n), dx = x.shape, _like(x)
        dloss, target = dloss.contiguous(), target.contiguous()
        if m:
            loss_backward_kernel[(m,)](
                *(dloss, x, target, dx, n, *x.stride()), PASSES=passes, BLOCK=block, **switches
            )
        return dx


_loss_backward("online_chunks", "online", 64)
_loss_backward("two_pass_exp2_reversed", "two", 128, EXP2=True, REVERSED=True)
