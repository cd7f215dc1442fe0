"""Sound attentions: tiles, orders of keys, running, lazy and first-pass maxima, merged parts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_workbench import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
    Domain,
    Numerics,
    kernel,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OPTIONS = frozenset({"causal", "bottom_right", "gqa", "unequal_d", "scale"})
_WIDTHS = {"d": (1, 128), "d_v": (1, 128)}
_LOG2_E = 1.4426950408889634
# Kernels are compiled once for all sizes and strides: compiling is most of a run on a GPU.
_SIZES = "h_q h_kv s_q s_kv d d_v shift"
_STRIDES = "qb qm qh qd kb kn kh kd vb vn vh vd"


@triton.jit
def matrix(ptr, row, row_step, rows, column_step, columns, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a matrix, 0 outside; in fp32 if WIDE."""
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row[:, None] >= 0) & (row[:, None] < rows) & (column < columns)
    x = tl.load(
        ptr + row[:, None].to(tl.int64) * row_step + column * column_step, mask=mask, other=0.0
    )
    return x.to(tl.float32) if WIDE else x


@triton.jit
def products(a, b, FORM: tl.constexpr):
    """a b^T, by tensor cores' tiles or by sums of products."""
    if FORM == "sum":
        return tl.sum(a.to(tl.float32)[:, None, :] * b.to(tl.float32)[None, :, :], 2)
    elif FORM == "transposed":
        return tl.trans(tl.dot(b, tl.trans(a), input_precision="ieee"))
    else:
        return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
def power(x, EXP2: tl.constexpr):
    """The exponential, of the base that the scores are scaled for."""
    return tl.exp2(x) if EXP2 else tl.exp(x)


@triton.jit
def finite(highest):
    """Return the number to subtract: 0 where no key was met."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def tile_scores(
    q, k_ptr, kn, kd, start, limit, d, query, shift, factor, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, WIDE: tl.constexpr, FORM: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The scores of a tile of keys, -inf where masked."""
    key = start + tl.arange(0, N)
    s = products(q, matrix(k_ptr, key, kn, limit, kd, d, WIDE, D), FORM) * factor
    if MASKED:
        seen = key[None, :] < limit
        if CAUSAL:
            seen = seen & (key[None, :] <= query[:, None] + shift)
        s = tl.where(seen, s, float("-inf"))
    return s


@triton.jit(do_not_specialize=f"{_SIZES} {_STRIDES} packed part_step".split())
def forward_kernel(
    q_ptr, k_ptr, v_ptr, sink_ptr, out_ptr, lse_ptr, top_ptr, h_q, h_kv, s_q, s_kv, d, d_v, scale,
    shift, packed, qb, qm, qh, qd, kb, kn, kh, kd, vb, vn, vh, vd, part_step, CAUSAL: tl.constexpr,
    MAX: tl.constexpr, EXP2: tl.constexpr, FOLDED: tl.constexpr, WIDE: tl.constexpr,
    FORM: tl.constexpr, REVERSED: tl.constexpr, APART: tl.constexpr, PARTS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Rows of one head, or of `packed` heads with one key head; a part of the keys by axis 2.

    MAX: "running"; "lazy", raised by more than 6 only; "first", of a pass of its own; "lse", in
    which the second pass needs no division.
    """
    heads, part = h_q // packed, tl.program_id(2)
    own = tl.program_id(1).to(tl.int64)
    batch, first_head = own // heads, own % heads * packed
    row = tl.program_id(0) * M + tl.arange(0, M)
    query, head = row // packed, first_head + row % packed
    live = query < s_q
    key_head = first_head // (h_q // h_kv)
    column = tl.arange(0, D)[None, :]
    at = batch * qb + query[:, None].to(tl.int64) * qm + head[:, None] * qh + column * qd
    q = tl.load(q_ptr + at, mask=live[:, None] & (column < d), other=0.0)
    factor = scale * 1.4426950408889634 if EXP2 else scale
    if WIDE:
        q = q.to(tl.float32)
    if FOLDED:
        q, factor = q * factor, 1.0
    k_ptr += batch * kb + key_head * kh
    v_ptr += batch * vb + key_head * vh

    limit, full = s_kv, s_kv
    if CAUSAL:
        last = tl.minimum((tl.program_id(0) * M + M - 1) // packed, s_q - 1)
        limit = tl.maximum(tl.minimum(s_kv, last + shift + 1), 0)
        full = tl.maximum(tl.minimum(s_kv, tl.program_id(0) * M // packed + shift + 1), 0)
    tiles = tl.cdiv(limit, N)
    width = tl.cdiv(tiles, PARTS)
    begin, end = part * width, tl.minimum(part * width + width, tiles)
    inside = tl.maximum(tl.minimum(full // N, end), begin) if APART else begin

    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, V], tl.float32)
    if sink_ptr is not None:  # one more column, without a value
        if part == 0:
            top = tl.load(sink_ptr + head, mask=live, other=0.0)
            top = top * 1.4426950408889634 if EXP2 else top
            total += 1.0
    if MAX == "first" or MAX == "lse":
        old = top
        for tile in range(begin, end):
            s = tile_scores(
                q,
                k_ptr,
                kn,
                kd,
                tile * N,
                limit,
                d,
                query,
                shift,
                factor,
                CAUSAL,
                True,
                WIDE,
                FORM,
                N,
                D,
            )
            new = tl.maximum(top, tl.max(s, 1))
            if MAX == "lse":
                total = total * power(top - finite(new), EXP2)
                total += tl.sum(power(s - finite(new)[:, None], EXP2), 1)
            top = new
        if MAX == "lse":
            top = finite(top) + (tl.log2(total) if EXP2 else tl.log(total))
        else:
            total = total * power(old - finite(top), EXP2)
    for phase in tl.static_range(2 if APART else 1):
        first, past = inside, end
        if APART:
            if phase == 0:
                first, past = begin, inside
        for step in range(first, past):
            tile = past - 1 - (step - first) if REVERSED else step
            s = tile_scores(
                q, k_ptr, kn, kd, tile * N, limit, d, query, shift, factor, CAUSAL,
                not (APART and phase == 0), WIDE, FORM, N, D,
            )  # fmt: skip
            if MAX == "running" or MAX == "lazy":
                new = tl.maximum(top, tl.max(s, 1))
                if MAX == "lazy":
                    new = tl.where(new > top + 6.0, new, top)
                share = power(top - finite(new), EXP2)
                total, acc, top = total * share, acc * share[:, None], new
            p = power(s - finite(top)[:, None], EXP2)
            if MAX != "lse":
                total += tl.sum(p, 1)
            key = tile * N + tl.arange(0, N)
            v = matrix(v_ptr, key, vn, limit, vd, d_v, WIDE, V)
            if FORM == "sum":
                # Not p[:, :, None] * v[None] over axis 1, which Triton turns into a dot in TF32.
                p = p.to(v.dtype).to(tl.float32)
                acc += tl.sum(p[:, None, :] * tl.trans(v.to(tl.float32))[None, :, :], 2)
            else:
                acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")

    statistic = part * part_step + (batch * h_q + head) * s_q + query
    value = tl.arange(0, V)[None, :]
    to = ((batch * s_q + query[:, None]) * h_q + head[:, None]) * d_v + value
    mask = live[:, None] & (value < d_v)
    if PARTS > 1:
        tl.store(top_ptr + statistic, top, mask=live)
        tl.store(lse_ptr + statistic, total, mask=live)
        tl.store(out_ptr + part * part_step * d_v + to, acc, mask=mask)
    else:
        lse = top
        if MAX != "lse":
            acc = tl.where((total == 0.0)[:, None], 0.0, acc / total[:, None])
            lse = finite(top) + (tl.log2(total) if EXP2 else tl.log(total))
        tl.store(lse_ptr + statistic, lse * 0.6931471805599453 if EXP2 else lse, mask=live)
        tl.store(out_ptr + to, acc, mask=mask)


def _shift(q, k, causal, corner):
    return k.shape[1] - q.shape[1] if causal and corner == "bottom_right" else 0


def _widths(*widths):
    return (max(16, triton.next_power_of_2(width)) for width in widths)


def _forward(
    q, k, v, *, causal=False, corner="top_left", scale=None, sink=None, tile=(32, 32), parts=1,
    packed=False, **switches,
):  # fmt: skip
    (b, s_q, h_q, d), (s_kv, h_kv), d_v = q.shape, k.shape[1:3], v.shape[3]
    scale = d**-0.5 if scale is None else scale
    group = h_q // h_kv if packed else 1
    half = q.dtype if parts == 1 else torch.float32
    out = torch.empty((parts, b, s_q, h_q, d_v), dtype=half, device=q.device)
    lse, tops = torch.empty((2, parts, b, h_q, s_q), dtype=torch.float32, device=q.device)
    flags = {"MAX": "running", "FORM": "dot"} | dict.fromkeys(
        ("EXP2", "FOLDED", "WIDE", "REVERSED", "APART"), False
    )
    widths = dict(zip("DV", _widths(d, d_v), strict=True))
    grid = (triton.cdiv(s_q * group, tile[0]), b * h_q // group, parts)
    if all(grid):
        forward_kernel[grid](
            *(q, k, v, sink, out, lse, tops, h_q, h_kv, s_q, s_kv, d, d_v, scale),
            *(_shift(q, k, causal, corner), group, *q.stride(), *k.stride(), *v.stride()),
            lse.stride(0), CAUSAL=causal, PARTS=parts, M=tile[0], N=tile[1],
            **widths, **(flags | switches),
        )  # fmt: skip
    if parts == 1:
        return out[0], lse[0]
    top = tops.amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    share = torch.exp2(tops - top) if switches.get("EXP2") else torch.exp(tops - top)
    total = (lse * share).sum(0)
    merged = (out * share.transpose(2, 3)[..., None]).sum(0)
    merged /= total.masked_fill(total == 0, 1).transpose(1, 2)[..., None]
    top = top / _LOG2_E if switches.get("EXP2") else top
    return merged.to(q.dtype), top + total.log()


def _numerics(key_tile, **fields):
    return Numerics(accumulation_roundoff=2.0**-23, key_tile=key_tile, **fields)


def _register_forward(name, m, n, **choices):
    features = _OPTIONS | {"sink"}

    @kernel(
        ATTENTION_FORWARD, Domain(dtypes=_DTYPES, sizes=_WIDTHS, features=features), name=name,
        numerics=_numerics(n),
    )  # fmt: skip
    def call(q, k, v, **options):
        return _forward(q, k, v, tile=(m, n), **choices, **options)


_register_forward("running_maximum", 32, 32)
_register_forward("wide_key_tiles_exp2", 16, 64, EXP2=True)
_register_forward("tall_query_tiles", 64, 16)
_register_forward("keys_reversed", 32, 16, REVERSED=True)
_register_forward("lazy_maximum", 32, 32, MAX="lazy")
_register_forward("lazy_maximum_exp2_reversed", 16, 16, MAX="lazy", EXP2=True, REVERSED=True)
_register_forward("maximum_of_a_first_pass", 32, 32, MAX="first")
_register_forward("lse_of_a_first_pass", 16, 32, MAX="lse", WIDE=True)
_register_forward("scale_folded_into_q", 32, 32, FOLDED=True, WIDE=True, EXP2=True)
_register_forward("diagonal_apart", 16, 16, APART=True)
_register_forward("diagonal_apart_exp2_reversed", 32, 16, APART=True, EXP2=True, REVERSED=True)
_register_forward("heads_of_a_group_packed", 32, 32, packed=True)
_register_forward("split_keys_merged", 16, 16, parts=3)
_register_forward("split_keys_packed_exp2", 32, 16, parts=2, packed=True, EXP2=True)
_register_forward("transposed_scores", 32, 32, FORM="transposed")
_register_forward("sums_of_products", 16, 16, FORM="sum", MAX="first")


@triton.jit(do_not_specialize=["h", "s", "d", "ob", "om", "oh", "od", "gb", "gm", "gh", "gd"])
def delta_kernel(
    out_ptr, do_ptr, delta_ptr, h, s, d, ob, om, oh, od, gb, gm, gh, gd,
    REVERSED: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum_c do out of some rows of a head, some columns at a time."""
    batch, head = tl.program_id(1).to(tl.int64) // h, tl.program_id(1).to(tl.int64) % h
    row = tl.program_id(0) * M + tl.arange(0, M)
    total = tl.zeros([M], tl.float32)
    for start in range(0, d, BLOCK):
        at = start + tl.arange(0, BLOCK)
        column = (d - 1 - at if REVERSED else at)[None, :]
        mask = (row[:, None] < s) & (at[None, :] < d)
        out_at = batch * ob + head * oh + row[:, None].to(tl.int64) * om + column * od
        do_at = batch * gb + head * gh + row[:, None].to(tl.int64) * gm + column * gd
        out = tl.load(out_ptr + out_at, mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(out * tl.load(do_ptr + do_at, mask=mask, other=0.0).to(tl.float32), 1)
    tl.store(delta_ptr + (batch * h + head) * s + row, total, mask=row < s)


def _delta(out, do, rows=16, block=32, *, reverse=False):
    b, s, h, d = out.shape
    delta = torch.empty((b, h, s), dtype=torch.float32, device=out.device)
    if delta.numel():
        delta_kernel[triton.cdiv(s, rows), b * h](
            *(out, do, delta, h, s, d, *out.stride(), *do.stride()),
            REVERSED=reverse, M=rows, BLOCK=block,
        )  # fmt: skip
    return delta


_ROWS = Domain(dtypes=_DTYPES)
kernel(ATTENTION_DELTA, _ROWS, name="chunks")(lambda out, do: _delta(out, do, 16, 16))
kernel(ATTENTION_DELTA, _ROWS, name="chunks_reversed")(
    lambda out, do: _delta(out, do, 8, 32, reverse=True)
)
kernel(ATTENTION_DELTA, _ROWS, name="einsum")(
    lambda out, do: torch.einsum("bshd,bshd->bhs", out.float(), do.float())
)


@triton.jit
def pair_gradients(
    q, k, v, do, lse, delta, query, key, s_q, s_kv, shift, scale, CAUSAL: tl.constexpr,
    EXP2: tl.constexpr,
):  # fmt: skip
    """P and dS of a tile of queries and a tile of keys, in fp32."""
    seen = (query[:, None] < s_q) & (key[None, :] < s_kv)
    if CAUSAL:
        seen = seen & (key[None, :] <= query[:, None] + shift)
    s = products(q, k, "dot")
    if EXP2:
        p = tl.exp2(s * (scale * 1.4426950408889634) - lse[:, None] * 1.4426950408889634)
    else:
        p = tl.exp(s * scale - lse[:, None])
    p = tl.where(seen, p, 0.0)
    return p, tl.where(seen, p * (products(do, v, "dot") - delta[:, None]), 0.0)


@triton.jit(do_not_specialize=f"{_SIZES} {_STRIDES} gb gm gh gd ob om oh od".split())
def backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, out_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, h_q, h_kv,
    s_q, s_kv, d, d_v, scale, shift, qb, qm, qh, qd, kb, kn, kh, kd, vb, vn, vh, vd, gb, gm, gh, gd,
    ob, om, oh, od, CAUSAL: tl.constexpr, EXP2: tl.constexpr, WIDE: tl.constexpr,
    REVERSED: tl.constexpr, BY_ROWS: tl.constexpr, ATOMIC: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """BY_ROWS: dq of a tile of queries; else dk and dv of a tile of keys, and dq by atomics.

    Delta is read, or where out is passed computed.
    """
    group = h_q // h_kv
    heads = h_q if BY_ROWS else h_kv
    batch, own_head = tl.program_id(1).to(tl.int64) // heads, tl.program_id(1).to(tl.int64) % heads
    key_head = own_head // group if BY_ROWS else own_head
    limit = s_kv
    if CAUSAL:
        limit = tl.maximum(tl.minimum(s_kv, s_q + shift), 0)
    k_ptr += batch * kb + key_head * kh
    v_ptr += batch * vb + key_head * vh
    q_tiles, k_tiles = tl.cdiv(s_q, M), tl.cdiv(limit, N)
    own = tl.program_id(0)
    if BY_ROWS:
        first, past = own, own + 1
        if CAUSAL:
            k_tiles = tl.minimum(k_tiles, tl.cdiv(tl.maximum(own * M + M + shift, 0), N))
    else:
        first, past = 0, q_tiles
        if CAUSAL:
            first = tl.minimum(tl.maximum(own * N - shift, 0) // M, q_tiles)
    dk, dv = tl.zeros([N, D], tl.float32), tl.zeros([N, V], tl.float32)
    column, value = tl.arange(0, D)[None, :], tl.arange(0, V)[None, :]
    for in_group in range(1 if BY_ROWS else group):
        head = own_head if BY_ROWS else key_head * group + in_group
        for step in range(first, past):
            q_tile = past - 1 - (step - first) if REVERSED else step
            query = q_tile * M + tl.arange(0, M)
            # A query without keys may hold NaN; it is no part of any sum.
            live = tl.where(query + shift >= 0, query, -1) if CAUSAL else query
            q = matrix(q_ptr + batch * qb + head * qh, live, qm, s_q, qd, d, WIDE, D)
            do = matrix(do_ptr + batch * gb + head * gh, live, gm, s_q, gd, d_v, WIDE, V)
            at = (batch * h_q + head) * s_q + query
            lse = tl.load(lse_ptr + at, mask=query < s_q, other=0.0)
            if out_ptr is not None:
                out = matrix(out_ptr + batch * ob + head * oh, live, om, s_q, od, d_v, WIDE, V)
                delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
            else:
                delta = tl.load(delta_ptr + at, mask=query < s_q, other=0.0)
            dq = tl.zeros([M, D], tl.float32)
            for turn in range(k_tiles if BY_ROWS else 1):
                k_tile = (k_tiles - 1 - turn if REVERSED else turn) if BY_ROWS else own
                key = k_tile * N + tl.arange(0, N)
                k = matrix(k_ptr, key, kn, limit, kd, d, WIDE, D)
                v = matrix(v_ptr, key, vn, limit, vd, d_v, WIDE, V)
                p, ds = pair_gradients(
                    q, k, v, do, lse, delta, query, key, s_q, limit, shift, scale, CAUSAL, EXP2
                )
                p, ds = p.to(k.dtype), ds.to(k.dtype)
                if BY_ROWS or ATOMIC:
                    dq = tl.dot(ds, k, dq, input_precision="ieee")
                if not BY_ROWS:
                    dk = tl.dot(tl.trans(ds), q, dk, input_precision="ieee")
                    dv = tl.dot(tl.trans(p), do, dv, input_precision="ieee")
            to = ((batch * s_q + query[:, None]) * h_q + head) * d + column
            mask = (query[:, None] < s_q) & (column < d)
            if BY_ROWS:
                tl.store(dq_ptr + to, dq * scale, mask=mask)
            elif ATOMIC:
                tl.atomic_add(dq_ptr + to, dq * scale, mask=mask)
    if not BY_ROWS:
        key = own * N + tl.arange(0, N)[:, None]
        to = (batch * s_kv + key) * h_kv + key_head
        tl.store(dk_ptr + to * d + column, dk * scale, mask=(key < s_kv) & (column < d))
        tl.store(dv_ptr + to * d_v + value, dv, mask=(key < s_kv) & (value < d_v))


def _backward(
    do, q, k, v, out, lse, *, causal=False, corner="top_left", scale=None, tile=(32, 32),
    atomic=False, fused=False, **switches,
):  # fmt: skip
    (b, s_q, h_q, d), (s_kv, h_kv), d_v = q.shape, k.shape[1:3], v.shape[3]
    scale = d**-0.5 if scale is None else scale
    dq = torch.zeros(q.shape, dtype=torch.float32 if atomic else q.dtype, device=q.device)
    dk, dv = (torch.zeros(each.shape, dtype=q.dtype, device=q.device) for each in (k, v))
    delta = None if fused else _delta(out, do)
    lse = lse.contiguous()
    flags = dict.fromkeys(("EXP2", "WIDE", "REVERSED"), False) | switches
    widths = dict(zip("DV", _widths(d, d_v), strict=True))
    rows, columns = (triton.cdiv(s_q, tile[0]), b * h_q), (triton.cdiv(s_kv, tile[1]), b * h_kv)
    for grid, by_rows in ((rows, True), (columns, False)):
        if all(rows) and all(columns) and not (by_rows and atomic):
            backward_kernel[grid](
                *(q, k, v, do, out if fused else None, lse, delta, dq, dk, dv, h_q, h_kv),
                *(s_q, s_kv, d, d_v, scale, _shift(q, k, causal, corner)),
                *(*q.stride(), *k.stride(), *v.stride(), *do.stride(), *out.stride()),
                CAUSAL=causal, BY_ROWS=by_rows, ATOMIC=atomic, M=tile[0], N=tile[1],
                **widths, **flags,
            )  # fmt: skip
    return dq.to(q.dtype), dk, dv, None, None


def _register_backward(name, m, n, **choices):
    numerics = _numerics(n, bitwise_repeatable=not choices.get("atomic", False))
    domain = Domain(dtypes=_DTYPES, sizes=_WIDTHS, features=_OPTIONS)

    @kernel(ATTENTION_BACKWARD, domain, name=name, numerics=numerics)
    def backward(do, q, k, v, out, lse, **options):
        return _backward(do, q, k, v, out, lse, tile=(m, n), **choices, **options)


_register_backward("rows_and_columns", 32, 32)
_register_backward("exp2_reversed", 16, 32, EXP2=True, REVERSED=True)
_register_backward("dq_by_atomics", 32, 16, atomic=True)
_register_backward("delta_fused", 32, 32, fused=True)
_register_backward("products_in_fp32", 64, 16, WIDE=True, fused=True, REVERSED=True)


_SERVED = Domain(dtypes=_DTYPES, sizes=_WIDTHS, features=_OPTIONS)


@kernel(ATTENTION_GRADIENTS, _SERVED, name="recomputed", numerics=_numerics(16))
def gradients(do, q, k, v, **options):
    """A lazy forward, and a backward that computes delta from its out."""
    out, lse = _forward(q, k, v, tile=(32, 16), MAX="lazy", **options)
    return _backward(do, q, k, v, out, lse, tile=(16, 16), fused=True, **options)
