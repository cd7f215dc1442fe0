"""ATTENTION_FORWARD on Hopper: `hopper`, with TMA, asynchronous products and groups of warps.

It serves halves, heads of 64, 128 and 256, causal masks and grouped heads; `flash` serves the rest,
and what is too small to keep a GPU busy. Bitwise repeatable, and a row's bits depend on no other
batch or head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention.hopper_kernel import hopper_kernel
from kernels.attention.problem import (
    AttentionError,
    Corner,
    Options,
    Problem,
    vector_elements,
)
from kernels.attention.served import load_bytes_of
from kernels.device import (
    FIXED_MULTIPROCESSORS,
    multiprocessors,
    on_device_of,
    sm_of,
    unlaunchable,
)
from kernels.integers import cdiv
from kernels.registry import Domain, kernel
from oracles import ATTENTION_FORWARD, OPS
from oracles.op import Case, Numerics

Forward = tuple[Tensor, Tensor]

_SM = (90, 90)
DTYPES = (torch.float16, torch.bfloat16)
WHOLE = 16  # bytes that TMA wants pointers and strides to be multiples of
ROWS = 64  # queries of a group of warps
STAGES = 2
_FEW_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """Groups of warps that compute, keys of a tile, and registers of a thread that computes."""

    groups: int
    keys: int
    registers: int


# By head; chosen on an H200 (docs/measured.md).
CUTS = {64: Cut(3, 128, 160), 128: Cut(2, 128, 240), 256: Cut(2, 64, 240)}


def _is_quick(d: int, rows: int, heads: int, *, causal: bool) -> bool:
    """Whether dispatch takes it: pairs of blocks of `rows` queries fill an H200, and it was ahead.

    Under a causal mask `flash` may be ahead for heads of 64 and few queries (docs/measured.md).
    """
    if causal and d == min(CUTS) and rows < _FEW_ROWS:
        return False
    blocks: int = cdiv(rows, CUTS[d].groups * ROWS)
    return heads * ((blocks + 1) // 2) >= FIXED_MULTIPROCESSORS


def _is_served(problem: Problem) -> bool:
    given, q = problem.options, problem.q
    options = (given.window, given.cu_seqlens_q, given.scale)
    plain = not (problem.natural or problem.dropout or any(each is not None for each in options))
    aligned = vector_elements(q, problem.k, problem.v) * q.element_size() == WHOLE
    shaped = q.dtype in DTYPES and problem.d in CUTS and problem.d == problem.d_v
    placed = unlaunchable(q) is None and _SM[0] <= sm_of(q.device) <= _SM[1]
    return plain and shaped and aligned and placed


def serves(problem: Problem) -> bool:
    """Whether `hopper` serves a call, and dispatch takes it."""
    heads, causal = problem.b * problem.h_q, problem.options.causal
    return _is_served(problem) and _is_quick(problem.d, problem.s_q, heads, causal=causal)


@cache
def _layout(rows: int, d: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How TMA lays out a box of `rows` rows of a head."""
    element = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, d], element)


def descriptor(tensor: Tensor, rows: int, there: int | None = None) -> TensorDescriptor:
    """Boxes of so many rows of a head of [b, s, h, d]; rows from `there` on read as 0."""
    b, s, h, d = tensor.shape
    shape = [b, h, s if there is None else there, d]
    # An axis of one element may have any stride; TMA wants multiples of 16 bytes.
    axes = tensor.transpose(1, 2)
    strides = [
        stride if size > 1 else d
        for size, stride in zip(axes.shape[:3], axes.stride()[:3], strict=True)
    ]
    layout = _layout(rows, d, tensor.dtype)
    return TensorDescriptor(tensor, shape, [*strides, 1], [1, 1, rows, d], layout)


def hopper_forward(problem: Problem) -> Forward:
    """out [b, s_q, h_q, d] like q and lse [b, h_q, s_q] in fp32, of a call that `hopper` serves."""
    q, given = problem.q, problem.options
    b, s_q, h_q, s_kv, d = problem.b, problem.s_q, problem.h_q, problem.s_kv, problem.d
    out = q.new_empty(q.shape)
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    shift = s_kv - s_q if given.corner == "bottom_right" else 0
    # What lies past the last key that some query may attend to is never read.
    keys = min(s_kv, max(s_q + shift, 0)) if given.causal else s_kv
    if not lse.numel():
        return out, lse
    if not keys:
        return out.zero_(), lse.fill_(float("-inf"))
    cut = CUTS[d]
    blocks = cdiv(s_q, cut.groups * ROWS)
    programs = min((blocks + 1) // 2 * b * h_q, multiprocessors(q.device))
    with on_device_of(q):
        hopper_kernel[(programs,)](
            descriptor(q, ROWS), descriptor(problem.k, cut.keys, keys),
            descriptor(problem.v, cut.keys, keys), descriptor(out, ROWS), lse, blocks, b * h_q,
            h_q, problem.group, s_q, keys, shift, problem.kernel_scale, CAUSAL=given.causal,
            STAGES=STAGES, GROUPS=cut.groups, REGISTERS=cut.registers, num_warps=4,
        )  # fmt: skip
    return out, lse


def refusal(case: Case) -> str | None:
    """What can't be said by a domain's other fields."""
    if case.size("d") not in CUTS:
        return f"serves heads of {', '.join(map(str, CUTS))}, got {case.size('d')}"
    places = OPS[case.op].geometry(case)
    if any(load_bytes_of(places[name]) < WHOLE for name in "qkv"):
        return "needs 16-byte pointers, strides and rows"
    return None


def _is_dispatched(case: Case) -> bool:
    heads, causal = case.size("b") * case.size("h_q"), "causal" in case.options
    return _is_quick(case.size("d"), case.size("s_q"), heads, causal=causal)


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=DTYPES,
        features=frozenset({"causal", "bottom_right", "gqa"}),
        sm=_SM,
        relations=("d_v == d",),
        also=refusal,
    ),
    numerics=Numerics(
        key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
    ),
    priority=25,
    workspace=lambda _: 0,
    dispatched=_is_dispatched,
)
def hopper(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, corner: Corner = "top_left"
) -> Forward:
    """Warps do a tile's softmax while the tensor cores are at its neighbours' products."""
    problem = Problem.of(q, k, v, Options(causal=causal, corner=corner))
    if not _is_served(problem):
        raise AttentionError(
            "hopper serves float16 and bfloat16 on sm 90, heads of 64, 128 and 256, and 16-byte "
            "pointers, strides and rows; use flash"
        )
    return hopper_forward(problem)
