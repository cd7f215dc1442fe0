"""Sound norms: Welford's mean and variance, two passes, compensated sums, and sums by columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    LAYER_NORM_BACKWARD,
    LAYER_NORM_FORWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
    Domain,
    Numerics,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES)


@triton.jit
def chunk(ptr, start, n, step, REVERSED: tl.constexpr, BLOCK: tl.constexpr):
    """A part of a row in fp32, its columns, and which of them the row has."""
    at = start + tl.arange(0, BLOCK)
    column = n - 1 - at if REVERSED else at
    return tl.load(ptr + column * step, mask=at < n, other=0.0).to(tl.float32), column, at < n


@triton.jit
def added(total, lost, term, KAHAN: tl.constexpr):
    """The sum with a term more, and what rounding took off it."""
    if KAHAN:
        term = term - lost
        new = total + term
        lost = (new - total) - term
        total = new
    else:
        total += term
    return total, lost


@triton.jit
def merged(count_a, mean_a, square_a, count_b, mean_b, square_b):
    """Two parts' counts, means and sums of squared differences as those of the whole."""
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / tl.maximum(count, 1.0))
    delta = mean_b - mean_a
    mean = mean_a + delta * share
    square = square_a + square_b + delta * delta * count_a * share
    return count, mean, square


@triton.jit
def moments(
    ptr, n, step, HOW: tl.constexpr, REVERSED: tl.constexpr, CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's mean, 0 unless CENTRED, and its mean square difference from that."""
    zeros = tl.zeros([BLOCK], tl.float32)
    if HOW == "welford":  # number by number in a lane, then lane by lane
        counts, means, squares = zeros, zeros, zeros
        for start in range(0, n, BLOCK):
            x, _, mask = chunk(ptr, start, n, step, REVERSED, BLOCK)
            counts += tl.where(mask, 1.0, 0.0)
            delta = tl.where(mask, x - means, 0.0)
            means += delta / tl.maximum(counts, 1.0)
            squares += tl.where(mask, delta * (x - means), 0.0)
        _, mean, square = tl.reduce((counts, means, squares), 0, merged)
    elif HOW == "chunks":  # two passes over a chunk, then chunk by chunk
        count, mean, square = tl.sum(zeros, 0), tl.sum(zeros, 0), tl.sum(zeros, 0)
        for start in range(0, n, BLOCK):
            x, _, mask = chunk(ptr, start, n, step, REVERSED, BLOCK)
            here = tl.minimum(n - start, BLOCK).to(tl.float32)
            local = tl.sum(x, 0) / here
            off = tl.where(mask, x - local, 0.0)
            count, mean, square = merged(count, mean, square, here, local, tl.sum(off * off, 0))
    else:
        mean = tl.sum(zeros, 0)
        if CENTRED:
            sums, lost = zeros, zeros
            for start in range(0, n, BLOCK):
                x, _, _ = chunk(ptr, start, n, step, REVERSED, BLOCK)
                sums, lost = added(sums, lost, x, HOW == "kahan")
            mean = tl.sum(sums, 0) / n
        sums, lost = zeros, zeros
        for start in range(0, n, BLOCK):
            x, _, mask = chunk(ptr, start, n, step, REVERSED, BLOCK)
            off = tl.where(mask, x - mean, 0.0)
            sums, lost = added(sums, lost, off * off, HOW == "kahan")
        square = tl.sum(sums, 0)
    return mean, square / n


@triton.jit
def reciprocal_root(square, ROOT: tl.constexpr):
    """1 / sqrt(square), by one instruction or two."""
    return 1.0 / tl.sqrt(square) if ROOT == "sqrt" else tl.rsqrt(square)


@triton.jit
def norm_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, m, n, eps, xm, xn, HOW: tl.constexpr, ROOT: tl.constexpr,
    REVERSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Layer norm, or RMS norm where there is no bias; rows of a persistent program."""
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        x_row, y_row = x_ptr + row.to(tl.int64) * xm, y_ptr + row.to(tl.int64) * n
        mean, square = moments(x_row, n, xn, HOW, REVERSED, b_ptr is not None, BLOCK)
        rstd = reciprocal_root(square + eps, ROOT)
        for start in range(0, n, BLOCK):
            x, column, mask = chunk(x_row, start, n, xn, REVERSED, BLOCK)
            w = tl.load(w_ptr + column, mask=mask, other=0.0).to(tl.float32)
            if b_ptr is not None:
                b = tl.load(b_ptr + column, mask=mask, other=0.0).to(tl.float32)
                y = tl.fma((x - mean) * rstd, w, b)
            else:
                y = x * rstd * w
            tl.store(y_row + column, y, mask=mask)


@triton.jit
def norm_backward_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, m, n, eps, gm, gn, xm, xn,
    SUMS: tl.constexpr, HOW: tl.constexpr, ROOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of a program's rows; their dweight and dbias are added at once, or stored by program."""
    column = tl.arange(0, BLOCK)
    mask = column < n
    w = tl.load(w_ptr + column, mask=mask, other=0.0).to(tl.float32)
    dw, db = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), m, tl.num_programs(0)):
        at = row.to(tl.int64)
        x = tl.load(x_ptr + at * xm + column * xn, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at * gm + column * gn, mask=mask, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            x_hat = (x - tl.load(mean_ptr + at)) * tl.load(rstd_ptr + at)
            rstd = tl.load(rstd_ptr + at)
        else:
            _, square = moments(x_ptr + at * xm, n, xn, HOW, False, False, 64)
            rstd = reciprocal_root(square + eps, ROOT)
            x_hat = x * rstd
        x_hat = tl.where(mask, x_hat, 0.0)
        g = dy * w
        dx = g - x_hat * (tl.sum(g * x_hat, 0) / n)
        if mean_ptr is not None:
            dx -= tl.sum(g, 0) / n
        tl.store(dx_ptr + at * n + column, dx * rstd, mask=mask)
        if SUMS == "atomics":
            tl.atomic_add(dw_ptr + column, dy * x_hat, mask=mask)
            if db_ptr is not None:
                tl.atomic_add(db_ptr + column, dy, mask=mask)
        else:
            dw += dy * x_hat
            db += dy
    if SUMS == "programs":
        tl.store(dw_ptr + tl.program_id(0) * n + column, dw, mask=mask)
        if db_ptr is not None:
            tl.store(db_ptr + tl.program_id(0) * n + column, db, mask=mask)


@triton.jit
def column_sums_kernel(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr, m, n, gm, gn, xm, xn,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dweight and dbias of some columns, over all rows from the last to the first."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw, db = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, m, ROWS):
        row = (m - 1 - start - tl.arange(0, ROWS)).to(tl.int64)
        mask = (row[:, None] >= 0) & (column[None, :] < n)
        at = row[:, None]
        x = tl.load(x_ptr + at * xm + column[None, :] * xn, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at * gm + column[None, :] * gn, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row >= 0, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + row, mask=row >= 0, other=0.0)[:, None]
        dw += tl.sum(dy * tl.where(mask, (x - mean) * rstd, 0.0), 0)
        db += tl.sum(dy, 0)
    tl.store(dw_ptr + column, dw, mask=column < n)
    tl.store(db_ptr + column, db, mask=column < n)


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _norm(name, how, block, *, root="rsqrt", reverse=False, programs=None):
    def called(x, weight, bias, eps):
        (m, n), y = x.shape, _like(x)
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        if m:
            norm_kernel[(min(m, programs or m),)](
                *(x, weight, bias, y, m, n, eps, *x.stride()),
                HOW=how, ROOT=root, REVERSED=reverse, BLOCK=block,
            )  # fmt: skip
        return y

    @kernel(LAYER_NORM_FORWARD, _DOMAIN, name=name)
    def layer_norm(x, weight, bias, *, eps):
        return called(x, weight, bias, eps)

    if how in {"kahan", "two_pass"}:  # a mean square is no variance
        kernel(RMS_NORM_FORWARD, _DOMAIN, name=name)(
            lambda x, weight, *, eps: called(x, weight, None, eps)
        )


_norm("two_pass_reversed", "two_pass", 64, reverse=True)
_norm("kahan_persistent_sqrt", "kahan", 32, root="sqrt", programs=3)
_norm("welford_lanes", "welford", 32)
_norm("welford_lanes_sqrt", "welford", 256, root="sqrt")
_norm("chunks_merged", "chunks", 64)


def _backward(name, sums):
    """Register kernels of layer norm and of RMS norm that add up rows in one way."""
    numerics = Numerics(bitwise_repeatable=sums != "atomics")

    def called(dy, x, weight, mean, rstd, eps=0.0, root="sqrt"):
        dy, x = (t.reshape(-1, t.shape[-1]) for t in (dy, x))
        (m, n), dx, weight = x.shape, _like(x), weight.contiguous()
        programs = min(m, 4) if sums == "programs" else m
        rows = 1 if sums == "atomics" else programs
        dw = torch.zeros((rows, n), dtype=torch.float32, device=x.device)
        db = torch.zeros_like(dw) if mean is not None else None
        if m:
            norm_backward_kernel[(programs,)](
                *(dy, x, weight, mean, rstd, dx, dw, db, m, n, eps, *dy.stride(), *x.stride()),
                SUMS=sums, HOW="kahan", ROOT=root, BLOCK=triton.next_power_of_2(n),
            )  # fmt: skip
        if sums == "columns" and m:
            column_sums_kernel[(triton.cdiv(n, 32),)](
                *(dy, x, mean, rstd, dw, db, m, n, *dy.stride(), *x.stride()), ROWS=8, BLOCK=32
            )
            dw, db = dw[:1], db[:1]
        return dx, *(None if t is None else t.sum(0).to(weight.dtype) for t in (dw, db))

    @kernel(LAYER_NORM_BACKWARD, _DOMAIN, name=name, numerics=numerics)
    def layer_norm(dy, x, weight, mean, rstd):
        dx, dweight, dbias = called(
            *(dy, x, weight), *(each.reshape(-1).contiguous() for each in (mean, rstd))
        )
        return dx.view(x.shape), dweight, dbias

    if sums != "columns":

        @kernel(RMS_NORM_BACKWARD, _DOMAIN, name=name, numerics=numerics)
        def rms_norm(dy, x, weight, *, eps):
            return called(dy, x, weight, None, None, eps)[:2]


_backward("rows_with_atomics", "atomics")
_backward("persistent_rows_by_program", "programs")
_backward("columns_from_the_last_row", "columns")
