"""ATTENTION_BACKWARD on Hopper: `hopper_ordered`, and `hopper_atomic` that adds dq up in no order.

`hopper_end_to_end` is ATTENTION_GRADIENTS: `hopper`, then `hopper_ordered`.

They serve halves, heads of 64, 128 and 256, causal masks, scales and grouped heads; `two_pass` and
`split_queries` serve the rest. In `hopper_ordered` each sum has one order, so it is bitwise
repeatable, and a row's bits depend on no other batch or head. Programs wait for ones of lower
numbers, which a GPU starts before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import hopper
from kernels.attention.backward import Gradients
from kernels.attention.hopper import DTYPES, SM, descriptor, is_served, lacks_alignment
from kernels.attention.hopper_backward_kernel import gradients_kernel, rounding_kernel, rows_kernel
from kernels.attention.problem import AttentionError, Corner, Options, Problem
from kernels.device import FIXED_MULTIPROCESSORS, multiprocessors, on_device_of
from kernels.integers import cdiv
from kernels.registry import Domain, kernel
from oracles import ATTENTION_BACKWARD, ATTENTION_GRADIENTS
from oracles.op import Case, Numerics

_WARPS = 8  # that compute


@dataclass(frozen=True, slots=True)
class _Cut:
    """Queries of a tile, keys of a block, and tiles of q and do in shared memory."""

    rows: int
    keys: int
    stages: int


# By head, as they were chosen on an H200 (docs/measured.md).
_CUTS = {64: _Cut(128, 128, 2), 128: _Cut(64, 128, 3), 256: _Cut(64, 64, 2)}
_HEADS = tuple(_CUTS)
_FEW_TILES = 8  # of queries


def _sums(tiles: int, blocks: int) -> int:
    """How many sums of dq there are in order, to which blocks of keys add in turn.

    As blocks add to a sum one after the other, one sum would keep few programs busy where tiles of
    queries are few. It follows from a head's sizes alone, since bits depend on it.
    """
    return min(blocks, cdiv(_FEW_TILES, max(tiles, 1)))


def _is_quick(d: int, group: int, rows: int, keys: int, heads: int) -> bool:
    """Whether dispatch takes the kernel without order: `split_queries` has more programs.

    It does where programs, one for each block of keys, fill half of an H200, or each has few tiles
    of queries to walk over.
    """
    cut = _CUTS[d]
    programs: int = cdiv(keys, cut.keys) * heads
    return 2 * programs >= FIXED_MULTIPROCESSORS or cdiv(rows, cut.rows) * group <= _FEW_TILES


def serves(problem: Problem, do: Tensor, *, ordered: bool) -> bool:
    """Whether a kernel serves a call, and dispatch takes it."""
    if not is_served(problem, _HEADS, do):
        return False
    heads = problem.b * problem.h_kv
    return ordered or _is_quick(problem.d, problem.group, problem.s_q, problem.s_kv, heads)


def _at_once(heads: int, working: int, cut: _Cut, device: torch.device, *, waits: bool) -> int:
    """How many key heads are done at once: as many as keep all SMs busy.

    working: programs of a head that work at a time. Under a causal mask each block is shorter than
    the one before. Where it waits for that one, more heads make less of it.
    """
    wanted = multiprocessors(device) * (4 * cut.rows // cut.keys if waits else 1)
    return min(heads, max(1, wanted // working))


def _with_heads_as_rows(tensor: Tensor, group: int) -> Tensor:
    """[b, 1, h_q, d] as [b, group, h_kv, d]: the query heads of a key head as its queries."""
    b, _, h_q, d = tensor.shape
    stride_b, _, stride_h, stride_d = tensor.stride()
    return tensor.as_strided(
        (b, group, h_q // group, d), (stride_b, stride_h, group * stride_h, stride_d)
    )


def hopper_gradients(
    do: Tensor, problem: Problem, out: Tensor, lse: Tensor, *, ordered: bool
) -> Gradients:
    """dq, dk and dv, packed, of a call that both kernels serve; ordered: bitwise repeatable."""
    problem.check_gradients(do, out, lse)
    q, k, v, causal = problem.q, problem.k, problem.v, problem.options.causal
    b, s_q, h_q, s_kv, h_kv, d = (
        problem.b, problem.s_q, problem.h_q, problem.s_kv, problem.h_kv, problem.d,
    )  # fmt: skip
    dq = q.new_empty(b, s_q, h_q, d)
    dk, dv = k.new_empty(b, s_kv, h_kv, d), v.new_empty(b, s_kv, h_kv, d)
    shift = s_kv - s_q if problem.options.corner == "bottom_right" else 0
    # Keys past the last one that some query may attend to, and queries that may attend to none, are
    # never read.
    keys = min(s_kv, max(s_q + shift, 0)) if causal else s_kv
    unseen = max(-shift, 0) if causal else 0
    if not (q.numel() and keys):
        return dq.zero_(), dk.zero_(), dv.zero_(), None, None
    rounded = dq
    if unseen:
        dq[:, :unseen].zero_()
        q, do, out, lse = q[:, unseen:], do[:, unseen:], out[:, unseen:], lse[:, :, unseen:]
        rounded = dq[:, unseen:]
    rows, group, cut, blocks = s_q - unseen, problem.group, _CUTS[d], cdiv(s_kv, _CUTS[d].keys)
    if s_q == 1 and group > 1:
        q, do, out, rounded = (_with_heads_as_rows(each, group) for each in (q, do, out, rounded))
        lse = _with_heads_as_rows(lse.transpose(1, 2)[..., None], group)[..., 0].transpose(1, 2)
        # It sees all keys before `keys`.
        rows, group, h_q, causal = group, 1, h_kv, False
    tiles = cdiv(rows, cut.rows)
    made = b * h_q * tiles
    sums = _sums(cdiv(s_q, cut.rows), cdiv(keys, cut.keys)) if ordered else 1
    total = torch.empty(sums * made * cut.rows * d, dtype=torch.float32, device=q.device)
    of_rows = torch.empty(made * cut.rows * 2, dtype=torch.float32, device=q.device)
    turns = torch.empty(sums * made, dtype=torch.int32, device=q.device) if ordered else None
    # In order a block is a tile of queries behind the one before.
    working = min(blocks, sums * tiles * group) if ordered else blocks
    at_once = _at_once(b * h_kv, working, cut, q.device, waits=ordered and causal)
    scale = problem.scale
    with on_device_of(q):
        rows_kernel[(made,)](
            out, do, lse, of_rows, total, turns, sums, tiles, h_q, rows, *out.stride(),
            *do.stride(), *lse.stride(), ROWS=cut.rows, D=d, CAUSAL=causal, ORDERED=ordered,
            num_warps=4,
        )  # fmt: skip
        gradients_kernel[(blocks * b * h_kv,)](
            descriptor(q, cut.rows), descriptor(do, cut.rows), descriptor(k, cut.keys, keys),
            descriptor(v, cut.keys, keys), descriptor(dk, cut.keys), descriptor(dv, cut.keys),
            of_rows, total, turns, blocks, b * h_kv, at_once, sums, h_kv, group, rows, keys,
            shift + unseen, scale, scale * math.log2(math.e), CAUSAL=causal, ORDERED=ordered,
            STAGES=cut.stages, num_warps=_WARPS,
        )  # fmt: skip
        rounding_kernel[(made,)](
            total, rounded, sums, tiles, h_q, rows, scale, *rounded.stride()[:3], ROWS=cut.rows,
            D=d, num_warps=max(4, d // 32),
        )  # fmt: skip
    return dq, dk, dv, None, None


def _refusal(case: Case) -> str | None:
    if case.size("d") not in _HEADS:
        return f"serves heads of {', '.join(map(str, _HEADS))}, got {case.size('d')}"
    return lacks_alignment(case, "q", "k", "v", "do")


def _workspace(case: Case) -> int:
    """In fp32 the sums of dq, and lse and delta, of whole tiles; and the turns."""
    d = case.size("d")
    rows = _CUTS[d].rows
    tiles = cdiv(case.size("s_q"), rows)
    sums = _sums(tiles, cdiv(case.size("s_kv"), _CUTS[d].keys))
    return 4 * case.size("b") * case.size("h_q") * tiles * (rows * (sums * d + 2) + sums)


def _is_dispatched(case: Case) -> bool:
    heads = case.size("b") * case.size("h_kv")
    group = case.size("h_q") // max(case.size("h_kv"), 1)
    return _is_quick(case.size("d"), group, case.size("s_q"), case.size("s_kv"), heads)


_DOMAIN = Domain(
    dtypes=DTYPES,
    features=frozenset({"causal", "bottom_right", "gqa", "scale"}),
    sm=SM,
    relations=("d_v == d",),
    also=_refusal,
)
_ATOMIC = Numerics(
    key_tile=64,
    accumulation_roundoff=2.0**-23,
    bitwise_repeatable=False,
    batch_invariant=False,
    device_independent=False,
)
_ORDERED = Numerics(
    key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
)


def _served(q: Tensor, k: Tensor, v: Tensor, do: Tensor, options: Options) -> Problem:
    problem = Problem.of(q, k, v, options)
    if not is_served(problem, _HEADS, do):
        raise AttentionError(
            "these kernels for Hopper serve float16 and bfloat16 on sm 90, heads of 64, 128 and "
            "256, and 16-byte pointers, strides and rows; use two_pass"
        )
    return problem


@kernel(
    ATTENTION_BACKWARD,
    _DOMAIN,
    numerics=_ORDERED,
    priority=25,
    workspace=_workspace,
)
def hopper_ordered(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    corner: Corner = "top_left",
    scale: float | None = None,
) -> Gradients:
    """Blocks of keys add to a tile of dq one after the other."""
    problem = _served(q, k, v, do, Options(causal=causal, corner=corner, scale=scale))
    return hopper_gradients(do, problem, out, lse, ordered=True)


@kernel(
    ATTENTION_BACKWARD,
    _DOMAIN,
    numerics=_ATOMIC,
    priority=12,
    workspace=_workspace,
    dispatched=_is_dispatched,
    same_code_as="hopper_ordered",  # but for how dq is added up
)
def hopper_atomic(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    corner: Corner = "top_left",
    scale: float | None = None,
) -> Gradients:
    """Blocks of keys add to a tile of dq in no order."""
    problem = _served(q, k, v, do, Options(causal=causal, corner=corner, scale=scale))
    return hopper_gradients(do, problem, out, lse, ordered=False)


def _workspace_of_both(case: Case) -> int:
    """As the backward's, and out in the half and lse in fp32."""
    rows = case.size("b") * case.size("h_q") * case.size("s_q")
    return _workspace(case) + rows * (case.size("d") * case.dtype.itemsize + 4)


@kernel(
    ATTENTION_GRADIENTS,
    _DOMAIN,
    numerics=_ORDERED,
    priority=25,
    workspace=_workspace_of_both,
    dispatched=hopper.is_dispatched,
)
def hopper_end_to_end(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    corner: Corner = "top_left",
    scale: float | None = None,
) -> Gradients:
    """`hopper`, then `hopper_ordered` on what it stored."""
    problem = _served(q, k, v, do, Options(causal=causal, corner=corner, scale=scale))
    return hopper_gradients(do, problem, *hopper.hopper_forward(problem), ordered=True)
