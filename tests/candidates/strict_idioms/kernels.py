"""Whole kernels, as the tutorials of Triton and libraries have them, in few lines."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.candidates.strict_idioms import Made, idiom


@triton.jit
def _add_kernel(x_ptr, y_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    total = tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=offs < n + FAULT)
    tl.store(out_ptr + offs, total, mask=mask)


@idiom("program (2, 0, 0) of _add_kernel reads up to 1 elements past the end of y_ptr")
def sum_of_vectors(fault: int) -> Made:
    """Without `other`: what a masked lane reads isn't stored."""
    x, y, out = torch.randn(40), torch.randn(40), torch.empty(40)
    _add_kernel[(3,)](x, y, out, 40, FAULT=fault, BLOCK=16)
    return out, x + y


@triton.jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, GROUP: tl.constexpr, BLOCK: tl.constexpr, FAULT: tl.constexpr
):
    """Programs in groups of rows; rows and columns past the end wrap around, and aren't stored."""
    rows, columns = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    size = min(rows - first, GROUP)
    within = tl.program_id(0) % (GROUP * columns)
    offs_m = (first + within % size) * BLOCK + tl.arange(0, BLOCK)
    offs_n = within // size * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, BLOCK)
    a_ptrs = a_ptr + (offs_m % m)[:, None] * k + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * n + (offs_n % n)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.cdiv(k, BLOCK)):
        left = k - step * BLOCK
        a = tl.load(a_ptrs, mask=offs_k[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < left + FAULT, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BLOCK
        b_ptrs += BLOCK * n
    there = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], total, mask=there)


@idiom("_matmul_kernel reads up to 16 elements past the end of b_ptr")
def product_by_groups_of_programs(fault: int) -> Made:
    """Sizes that no block divides; the fault reads a row more of b."""
    a, b = torch.randint(-3, 4, (37, 41)).bfloat16(), torch.randint(-3, 4, (41, 29)).bfloat16()
    c = torch.empty(37, 29)
    _matmul_kernel[(6,)](a, b, c, 37, 29, 41, GROUP=2, BLOCK=16, FAULT=fault)
    return c, a.float() @ b.float()


@triton.jit
def _persistent_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    """Programs that stay, with descriptors; b is stored by its columns."""
    a = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BLOCK, BLOCK])
    b = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BLOCK, BLOCK])
    c = tl.make_tensor_descriptor(c_ptr, [m + FAULT, n], [n, 1], [BLOCK, BLOCK])
    columns = tl.cdiv(n, BLOCK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK) * columns, tl.num_programs(0)):
        row, col = tile // columns * BLOCK, tile % columns * BLOCK
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for step in range(0, k, BLOCK):
            total = tl.dot(a.load([row, step]), b.load([col, step]).T, total)
        c.store([row, col], total.to(tl.float16))


@idiom("_persistent_kernel writes up to 32 elements past the end of c_ptr")
def persistent_product_by_descriptors(fault: int) -> Made:
    """The fault says that the result has a row more."""
    a, b = torch.randint(-2, 3, (19, 24)).half(), torch.randint(-2, 3, (40, 24)).half()
    c = torch.empty(19, 40, dtype=torch.float16)
    _persistent_kernel[(2,)](a, b, c, 19, 40, 24, BLOCK=16, FAULT=fault)
    return c, (a.float() @ b.float().mT).half()


@triton.jit
def _grouped_kernel(
    a_table_ptr, c_table_ptr, sizes_ptr, b_ptr, groups, N: tl.constexpr, FAULT: tl.constexpr
):
    """Products of several heights with one matrix, whose tiles the programs go through."""
    tile, last = tl.program_id(0), 0
    offs = tl.arange(0, N)
    b = tl.load(b_ptr + offs[:, None] * N + offs[None, :])
    for group in range(groups):
        m = tl.load(sizes_ptr + group) + FAULT
        tiles = tl.cdiv(m, N)
        while tile >= last and tile < last + tiles:
            a_ptr = tl.load(a_table_ptr + group).to(tl.pointer_type(tl.float32))
            c_ptr = tl.load(c_table_ptr + group).to(tl.pointer_type(tl.float32))
            rows = (tile - last) * N + offs
            at, mask = rows[:, None] * N + offs[None, :], rows[:, None] < m
            c = tl.dot(tl.load(a_ptr + at, mask=mask, other=0.0), b, input_precision="ieee")
            tl.store(c_ptr + at, c, mask=mask)
            tile += tl.num_programs(0)
        last += tiles


@idiom("_named_kernel reads memory that belongs to no argument, 16 elements past the nearest")
def grouped_product_by_tables_of_pointers(fault: int) -> Made:
    """The tables point into two pools; the fault reads a row after the last."""
    sizes, out = [5, 16, 20], torch.empty(41, 16)
    a, b = torch.randn(41, 16), torch.randn(16, 16)
    tables = [torch.tensor([part.data_ptr() for part in each.split(sizes)]) for each in (a, out)]
    _named_kernel[(1,)](
        a, out, *tables, torch.tensor(sizes, dtype=torch.int32), b, 3, N=16, FAULT=fault
    )
    return out, a @ b


@triton.jit
def _named_kernel(
    a_ptr, c_ptr, a_table_ptr, c_table_ptr, sizes_ptr, b_ptr, groups, N: tl.constexpr,
    FAULT: tl.constexpr,
):  # fmt: skip
    """The pools are arguments, so that tables may point there."""
    _grouped_kernel(a_table_ptr, c_table_ptr, sizes_ptr, b_ptr, groups, N, FAULT)


@triton.jit
def _softmax_kernel(x_ptr, stride, rows, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """In place, rows a grid apart."""
    offs = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0) - FAULT):
        x = tl.load(x_ptr + row * stride + offs, mask=offs < n, other=float("-inf"))
        e = tl.exp(x - tl.max(x, 0))
        tl.store(x_ptr + row * stride + offs, e / tl.sum(e, 0), mask=offs < n)


@idiom("program (2, 0, 0) of _softmax_kernel reads element 48 of x_ptr's memory, which program (0")
def softmax_in_place(fault: int) -> Made:
    """The rows have padding between them; the fault makes two programs work on one row."""
    x = torch.randn(7, 24)[:, :20]
    right = x.softmax(1)
    _softmax_kernel[(3,)](x, 24, 7, 20, FAULT=fault, BLOCK=32)
    return x, right


@triton.jit
def _normed_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, n, eps, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    """Layer norm's forward, in three passes over a row."""
    row = tl.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
        x = tl.where(cols < n, x - mean, 0.0)
        square += x * x
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < n
        w, b = tl.load(w_ptr + cols, mask=cols < n + FAULT), tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@idiom("program (0, 0, 0) of _normed_kernel reads up to 1 elements past the end of w_ptr")
def layer_norm_in_three_passes(fault: int) -> Made:
    """A weight and a bias without `other`, whose masked lanes aren't stored."""
    x, w, b = torch.randn(3, 20), torch.randn(20), torch.randn(20)
    y, mean = torch.empty(3, 20), torch.empty(3)
    _normed_kernel[(3,)](x, w, b, y, mean, 20, 1e-5, FAULT=fault, BLOCK=16)
    return y, torch.nn.functional.layer_norm(x, (20,), w, b, 1e-5)


@triton.jit
def _partials_kernel(
    x_ptr, locks_ptr, sums_ptr, n, FAULT: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows are added into a few buffers, each under a lock; the first to come needn't read."""
    row = tl.program_id(0)
    group, offs = row % GROUPS, tl.arange(0, BLOCK)
    lock, count = locks_ptr + group, locks_ptr + GROUPS + group
    total = tl.load(x_ptr + row * n + offs, mask=offs < n, other=0.0)
    while tl.atomic_cas(lock, 0, 1 - FAULT) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        total += tl.load(sums_ptr + group * n + offs, mask=offs < n, other=0.0)
    tl.store(sums_ptr + group * n + offs, total, mask=offs < n)
    tl.debug_barrier()
    if not FAULT:
        tl.atomic_xchg(lock, 0)


@idiom(
    "program (3, 0, 0) of _partials_kernel reads element 0 of sums_ptr's memory, which program (0"
)
def weight_gradient_under_locks(fault: int) -> Made:
    """Nothing clears the buffers; the fault doesn't release the lock, which nobody took."""
    x, sums = torch.randn(11, 20), torch.empty(3, 20)
    locks = torch.zeros(6, dtype=torch.int32)
    _partials_kernel[(11,)](x, locks, sums, 20, FAULT=fault, GROUPS=3, BLOCK=32)
    return sums.sum(0), x.sum(0)


@triton.jit
def _attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    s,
    scale,
    FAULT: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
):
    """Causal attention with a running maximum and sum."""
    rows, cols = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    base = tl.program_id(1).to(tl.int64) * s * D
    q = tl.load(q_ptr + base + rows[:, None] * D + cols[None, :], mask=rows[:, None] < s, other=0.0)
    top = tl.full((M,), -float("inf"), tl.float32)
    total, acc = tl.zeros((M,), tl.float32), tl.zeros((M, D), tl.float32)
    for first in range(0, tl.minimum((tl.program_id(0) + 1) * M, s), M):
        keys = first + tl.arange(0, M)
        at, there = base + keys[:, None] * D + cols[None, :], keys[:, None] < s
        k = tl.load(k_ptr + at, mask=there, other=0.0)
        v = tl.load(v_ptr + at, mask=keys[:, None] < s + FAULT, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(
            (keys[None, :] <= rows[:, None]) & (keys[None, :] < s), scores, -float("inf")
        )
        new = tl.maximum(top, tl.max(scores, 1))
        p, shrink = tl.exp(scores - new[:, None]), tl.exp(top - new)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p, v, acc * shrink[:, None], input_precision="ieee")
        top = new
    out = acc / total[:, None]
    tl.store(out_ptr + base + rows[:, None] * D + cols[None, :], out, mask=rows[:, None] < s)
    tl.store(lse_ptr + tl.program_id(1) * s + rows, top + tl.log(total), mask=rows < s)


@idiom("program (1, 1, 0) of _attention_kernel reads up to 16 elements past the end of v_ptr")
def causal_attention(fault: int) -> Made:
    """The fault reads a key more than there is, in the last tile."""
    q, k, v = torch.randn(3, 2, 21, 16)
    out, lse = torch.empty(2, 21, 16), torch.empty(2, 21)
    _attention_kernel[(2, 2)](q, k, v, out, lse, 21, 0.25, FAULT=fault, M=16, D=16)
    scores = (q @ k.mT * 0.25).masked_fill(~torch.ones(21, 21).tril().bool(), -float("inf"))
    made = torch.cat([out.flatten(), lse.flatten()])
    return made, torch.cat([(scores.softmax(-1) @ v).flatten(), scores.logsumexp(-1).flatten()])


@triton.jit
def _loss_kernel(
    x_ptr, stride, y_ptr, loss_ptr, n, ignored, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    """Cross entropy; the logits become their own gradient."""
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(y_ptr + row)
    x_ptr += row * stride
    if y == ignored:
        for first in range(0, n, BLOCK):
            offs = first + tl.arange(0, BLOCK)
            tl.store(x_ptr + offs, 0.0, mask=offs < n)
        tl.store(loss_ptr + row, 0.0)
        return
    top, total, at_y = float("-inf"), 0.0, tl.load(x_ptr + y + FAULT * n)
    for first in range(0, n, BLOCK):
        offs = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=float("-inf"))
        new = tl.maximum(top, tl.max(x))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new))
        top = new
    for first in range(0, n, BLOCK):
        offs = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=float("-inf"))
        p = tl.exp(x - top) / total
        tl.store(x_ptr + offs, tl.where(offs == y, p - 1, p), mask=offs < n)
    tl.debug_barrier()
    tl.store(loss_ptr + row, top + tl.log(total) - at_y)


@idiom("program (1, 0, 0) of _loss_kernel writes element 23 of x_ptr's memory, which program (0")
def cross_entropy_in_place(fault: int) -> Made:
    """One row is ignored; the fault looks for the label in the next row."""
    x, y, loss = torch.randn(3, 20), torch.tensor([3, -100, 1]), torch.empty(3)
    logits = x.clone().requires_grad_()
    right = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    right.sum().backward()
    assert logits.grad is not None
    _loss_kernel[(3,)](x, 20, y, loss, 20, -100, FAULT=fault, BLOCK=16)
    made = torch.cat([loss, x.flatten()])
    return made, torch.cat([right.detach(), logits.grad.flatten()])


@triton.jit
def _gated_kernel(gate_ptr, up_ptr, out_ptr, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """SwiGLU of a fused projection: two halves of one row."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + row * 2 * n + cols, mask=cols < n, other=0).to(tl.float32)
    up = tl.load(up_ptr + row * 2 * n + cols, mask=cols < n + FAULT, other=0)
    silu = gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * n + cols, silu.cast(up.dtype) * up, mask=cols < n)


@idiom("_gated_kernel reads up to 1 elements past the end of a run of 13 of up_ptr")
def gated_halves_of_a_row(fault: int) -> Made:
    """Two views of one tensor, whose rows lie between one another."""
    both, out = torch.randn(3, 26), torch.empty(3, 13)
    gate, up = both.chunk(2, 1)
    _gated_kernel[(3,)](gate, up, out, 13, FAULT=fault, BLOCK=16)
    return out, torch.nn.functional.silu(gate) * up


@triton.jit
def _recurrent_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    out_ptr,
    s,
    FAULT: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """A decaying state [K, V], a position at a time, as linear attention has it."""
    head = tl.program_id(0)
    keys, values = tl.arange(0, K), tl.arange(0, V)
    q_ptrs, k_ptrs = q_ptr + head * s * K + keys, k_ptr + head * s * K + keys
    v_ptrs, out_ptrs = v_ptr + head * s * V + values, out_ptr + head * s * V + values
    state = tl.zeros([K, V], dtype=tl.float32)
    for at in range(s + FAULT):
        decay = tl.exp(tl.load(decay_ptr + head * s + at))
        state = state * decay + tl.load(k_ptrs)[:, None] * tl.load(v_ptrs)[None, :]
        tl.store(out_ptrs, tl.sum(state * tl.load(q_ptrs)[:, None], axis=0))
        q_ptrs += K
        k_ptrs += K
        v_ptrs += V
        out_ptrs += V


@idiom(
    "program (1, 0, 0) of _recurrent_kernel writes element 20 of out_ptr's memory, which program (0"
)
def recurrence_over_a_state(fault: int) -> Made:
    """The fault goes a position too far, into the next head's."""
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
    decay, out = -torch.rand(2, 5), torch.zeros(2, 5, 4)
    _recurrent_kernel[(2,)](q, k, v, decay, out, 5, FAULT=fault, K=8, V=4)
    right, state = torch.empty(2, 5, 4), torch.zeros(2, 8, 4)
    for at in range(5):
        state = state * decay[:, at, None, None].exp() + k[:, at, :, None] * v[:, at, None, :]
        right[:, at] = (state * q[:, at, :, None]).sum(1)
    return out, right
