"""ATTENTION_FORWARD: `flash`, its tf32 twin, and `split_keys` for few queries against many keys.

All write out packed in the order (b, s, h, d). Bitwise repeatable, and a row's bits don't depend on
the other batches and heads; `split_keys` splits by the sizes alone, never by the device.
"""

from __future__ import annotations

from typing import Unpack

import torch
import triton
from torch import Tensor

from kernels.attention.forward_kernel import combine_kernel, forward_kernel
from kernels.attention.problem import (
    Given,
    Options,
    Problem,
    adjacent,
    is_wide,
    units,
    vector_elements,
)
from kernels.attention.served import (
    DECLARED,
    DECLARED_FP32,
    DECLARED_TF32,
    FEATURES,
    HALVES,
    SINCE,
    SINGLE,
    SM,
    elements,
    need_of_call,
    variants_of_case,
)
from kernels.attention.variants import WIDEST_RF, Variant, names, pick
from kernels.attention.wide_kernels import forward_wide_kernel
from kernels.device import on_device_of, sm_of
from kernels.registry import Domain, kernel
from oracles import ATTENTION_FORWARD
from oracles.op import Case

WIDE_CHUNK = 64  # columns of a head at a time where accumulators are in memory
_KEYS_A_SPLIT = 256
_MOST_SPLITS = 32
_COMBINED_ROWS = 16

Forward = tuple[Tensor, Tensor]


def launch(problem: Problem, variant: Variant, *, splits: int = 1) -> Forward:
    """out and lse; with splits > 1 fp32 shares of both, [splits, ...]."""
    q, k, v, options = problem.q, problem.k, problem.v, problem.options
    shape = (q.shape[0], q.shape[1], problem.h_q, problem.d_v)
    lse_shape = (q.shape[0], problem.h_q, q.shape[1])
    split = splits > 1
    shares = (splits,) if split else ()
    out_dtype = torch.float32 if split else q.dtype
    out = torch.empty((*shares, *shape), dtype=out_dtype, device=q.device)
    lse = torch.empty((*shares, *lse_shape), dtype=torch.float32, device=q.device)
    tile = variant.tile
    grid = (triton.cdiv(problem.s_q, tile.queries) * problem.b * problem.h_q * splits,)
    if not grid[0]:
        return out, lse
    pointers = (
        q, k, v, problem.bias, options.alibi_slopes, None if split else options.sink,
        options.cu_seqlens_q, options.cu_seqlens_k,
    )  # fmt: skip
    lse_strides = lse.stride()[-3:-1]
    vector = vector_elements(q, k, v) if variant.aligned else 1
    heads = problem.d // vector, problem.d_v // vector
    strides = (
        *units(q, vector), *units(k, vector), *units(v, vector), *problem.bias_strides,
        *units(out[0] if split else out, vector)[:3],
    )  # fmt: skip
    flags = {
        "SOFTCAP": options.softcap is not None,
        "DROPOUT": problem.dropout,
        "PRECISION": variant.precision,
        "ADJACENT": adjacent(q, k, v),
        "VECTOR": vector,
        "BLOCK_M": tile.queries,
        "BLOCK_N": tile.keys,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    with on_device_of(q):
        if variant.accumulator == "gmem":
            acc = torch.zeros(shape, dtype=torch.float32, device=q.device)
            forward_wide_kernel.of(vector)[grid](
                *pointers, acc, out, lse, *strides, *lse_strides, problem.scale, *problem.numbers,
                *heads, *problem.limits, BLOCK_C=WIDE_CHUNK, **flags,
            )  # fmt: skip
            return out, lse
        forward_kernel.of(vector)[grid](
            *pointers, out, lse, *strides, out.stride(0) if split else 0, *lse_strides,
            lse.stride(0) if split else 0, problem.kernel_scale, *problem.numbers, *heads,
            *problem.limits, splits, NATURAL=problem.natural, SPLIT=split, EVEN_D=problem.even,
            WIDE=is_wide(q, k, v), BLOCK_D=problem.block_d, BLOCK_DV=problem.block_dv,
            STAGES=tile.stages, **flags,
        )  # fmt: skip
    return out, lse


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options, *, tf32: bool = False) -> Forward:
    """out [b, s_q, h_q, d_v] like q and lse [b, h_q, s_q], by the first variant that fits."""
    problem = Problem.of(q, k, v, options)
    need = need_of_call(problem, sm_of(q.device), (q, k, v), tf32=tf32)
    return launch(problem, pick("fwd", need))


def _workspace(case: Case) -> int:
    """fp32 accumulators like out, where a head is too wide for registers; else nothing."""
    wide = max(case.size("d"), case.size("d_v")) > WIDEST_RF
    return 4 * elements(case, "out") if wide else 0


@kernel(
    ATTENTION_FORWARD,
    Domain(dtypes=HALVES, features=FEATURES, sm=SM, since=SINCE),
    numerics=DECLARED,
    priority=20,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm),
    variants=lambda sm: names("fwd", ("f16", "bf16"), sm),
    workspace=_workspace,
)
@kernel(
    ATTENTION_FORWARD,
    Domain(dtypes=SINGLE, features=FEATURES, sm=SM),
    numerics=DECLARED_FP32,
    priority=20,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm),
    variants=lambda sm: names("fwd", ("f32",), sm),
    workspace=_workspace,
    name="flash_fp32",
)
def flash(q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]) -> Forward:
    """A block of queries a program, whole operands in fp32."""
    return forward(q, k, v, Options(**given))


@kernel(
    ATTENTION_FORWARD,
    Domain(dtypes=(torch.float32,), features=FEATURES, sm=(80, SM[1])),
    numerics=DECLARED_TF32,
    priority=15,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm, tf32=True),
    variants=lambda sm: names("fwd", ("tf32",), sm),
    workspace=_workspace,
)
def flash_tf32(q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]) -> Forward:
    """As `flash`, for fp32 on tensor cores: operands of products lose all but 10 bits."""
    return forward(q, k, v, Options(**given), tf32=True)


def splits_of(s_kv: int) -> int:
    """How many programs share a block's keys: by the keys alone, so that bits don't vary."""
    return min(_MOST_SPLITS, max(2, -(-s_kv // _KEYS_A_SPLIT)))


def _split_workspace(case: Case) -> int:
    """A share of out and of lse for each split, in fp32."""
    shares = splits_of(case.size("s_kv"))
    return 4 * shares * (elements(case, "out") + elements(case, "lse"))


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=HALVES,
        features=FEATURES - {"varlen"},
        sm=SM,
        since=SINCE,
        sizes={"d": (1, WIDEST_RF), "d_v": (1, WIDEST_RF)},
    ),
    numerics=DECLARED,
    priority=10,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm),
    workspace=_split_workspace,
)
@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=SINGLE,
        features=FEATURES - {"varlen"},
        sm=SM,
        sizes={"d": (1, WIDEST_RF), "d_v": (1, WIDEST_RF)},
    ),
    numerics=DECLARED_FP32,
    priority=10,
    variant=lambda case, sm: variants_of_case("fwd", case=case, sm=sm),
    workspace=_split_workspace,
    name="split_keys_fp32",
)
def split_keys(q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]) -> Forward:
    """Several programs share the keys of a block of queries, and their shares are then joined."""
    problem = Problem.of(q, k, v, Options(**given))
    variant = pick("fwd", need_of_call(problem, sm_of(q.device), (q, k, v), tf32=False))
    splits = splits_of(problem.s_kv)
    shares, share_lse = launch(problem, variant, splits=splits)
    out = torch.empty(shares.shape[1:], dtype=q.dtype, device=q.device)
    lse = torch.empty(share_lse.shape[1:], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(problem.s_q, _COMBINED_ROWS) * problem.b * problem.h_q,)
    if not grid[0]:
        return out, lse
    with on_device_of(q):
        combine_kernel[grid](
            shares, share_lse, problem.options.sink, out, lse, *shares.stride()[:4],
            *share_lse.stride()[:3], *out.stride()[:3], problem.h_q, problem.s_q, problem.d_v,
            splits, BLOCK_M=_COMBINED_ROWS, BLOCK_DV=problem.block_dv,
        )  # fmt: skip
    return out, lse
