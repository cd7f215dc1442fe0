"""ATTENTION_FORWARD: `flash` and its tf32 twin.

Both write out packed in the order (b, s, h, d). Bitwise repeatable, and a row's bits depend on no
other batch or head.
"""

from __future__ import annotations

from typing import Unpack

import torch
import triton
from torch import Tensor

from kernels.attention.forward_kernel import forward_kernel
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

Forward = tuple[Tensor, Tensor]


def launch(problem: Problem, variant: Variant) -> Forward:
    """out and lse, by one variant."""
    q, k, v, options = problem.q, problem.k, problem.v, problem.options
    shape = (q.shape[0], q.shape[1], problem.h_q, problem.d_v)
    lse_shape = (q.shape[0], problem.h_q, q.shape[1])
    out = torch.empty(shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(lse_shape, dtype=torch.float32, device=q.device)
    tile = variant.tile
    grid = (triton.cdiv(problem.s_q, tile.queries) * problem.b * problem.h_q,)
    if not grid[0]:
        return out, lse
    pointers = (
        q, k, v, problem.bias, options.alibi_slopes, options.sink,
        options.cu_seqlens_q, options.cu_seqlens_k,
    )  # fmt: skip
    lse_strides = lse.stride()[:2]
    vector = vector_elements(q, k, v) if variant.aligned else 1
    heads = problem.d // vector, problem.d_v // vector
    strides = (
        *units(q, vector), *units(k, vector), *units(v, vector), *problem.bias_strides,
        *units(out, vector)[:3],
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
            *pointers, out, lse, *strides, *lse_strides, problem.kernel_scale, *problem.numbers,
            *heads, *problem.limits, NATURAL=problem.natural, EVEN_D=problem.even,
            WIDE=is_wide(q, k, v), BLOCK_D=problem.block_d, BLOCK_DV=problem.block_dv,
            STAGES=tile.stages, **flags,
        )  # fmt: skip
    return out, lse


def flash_forward(problem: Problem, *, tf32: bool = False) -> Forward:
    """out [b, s_q, h_q, d_v] like q and lse [b, h_q, s_q], by the first variant that fits."""
    tensors = problem.q, problem.k, problem.v
    need = need_of_call(problem, sm_of(problem.q.device), tensors, tf32=tf32)
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
    return flash_forward(Problem.of(q, k, v, Options(**given)))


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
    return flash_forward(Problem.of(q, k, v, Options(**given)), tf32=True)
