"""`attention(q, k, v, ...)`: attention as a function with gradients, for use in a model.

Two operators of torch.library carry it, so that torch.compile, autograd and torch's own checks
(`torch.library.opcheck`, `torch.autograd.gradcheck` in fp32) see what they expect. First
derivatives alone: a second one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from kernels.attention.backward import WIDEST_UNORDERED, Gradients, backward, unordered_backward
from kernels.attention.forward import Forward, flash_forward
from kernels.attention.problem import (
    AttentionError,
    Given,
    Options,
    Problem,
    check_options,
    check_shapes,
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
    variants_of_case,
)
from kernels.attention.split_keys import (
    serves,
    serves_case,
    split_forward,
    split_workspace,
    tile_of_case,
)
from kernels.attention.variants import WIDEST_RF
from kernels.registry import Domain, kernel
from oracles import ATTENTION_GRADIENTS
from oracles.op import Case

Precision = Literal["ieee", "tf32"]


def _options(
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    switches: Sequence[int],
    numbers: Sequence[float],
) -> Options:
    """What `packed` took apart; -1 stands for a side without a limit."""
    causal, bottom_right, left, right, seed, longest_q, longest_k, _, _ = switches
    scale, softcap, dropout_p = numbers
    return Options(
        causal=bool(causal),
        window=(None if left < 0 else left, None if right < 0 else right),
        corner="bottom_right" if bottom_right else "top_left",
        bias=bias,
        alibi_slopes=alibi_slopes,
        softcap=softcap or None,
        sink=sink,
        dropout_p=dropout_p,
        dropout_seed=seed,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=None if longest_q < 0 else longest_q,
        max_seqlen_k=None if longest_k < 0 else longest_k,
        scale=scale,
    )


def packed(
    options: Options, d: int, *, deterministic: bool, precision: Precision
) -> tuple[list[int], list[float]]:
    """The options that aren't tensors, as an operator's schema can carry them."""
    left, right = options.window or (None, None)
    switches = [
        int(options.causal),
        int(options.corner == "bottom_right"),
        -1 if left is None else left,
        -1 if right is None else right,
        options.dropout_seed,
        -1 if options.max_seqlen_q is None else options.max_seqlen_q,
        -1 if options.max_seqlen_k is None else options.max_seqlen_k,
        int(deterministic),
        int(precision == "tf32"),
    ]
    scale = 1 / math.sqrt(d) if options.scale is None else options.scale
    return switches, [scale, options.softcap or 0.0, options.dropout_p]


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options, *, tf32: bool = False) -> Forward:
    """out [b, s_q, h_q, d_v] like q and lse [b, h_q, s_q], by the kernel that dispatch takes."""
    problem = Problem.of(q, k, v, options)
    if serves(problem) and not tf32:
        return split_forward(problem)
    return flash_forward(problem, tf32=tf32)


@torch.library.custom_op("kernel_workbench::attention_forward", mutates_args=())
def forward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    switches: Sequence[int],
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor]:
    """out and lse; what isn't a tensor comes as `packed` made it."""
    options = _options(bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, switches, numbers)
    return forward(q, k, v, options, tf32=bool(switches[8]))


@forward_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    del k, others
    b, s_q, h_q, _ = q.shape
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    return q.new_empty((b, s_q, h_q, v.shape[3])), lse


@torch.library.custom_op("kernel_workbench::attention_backward", mutates_args=())
def backward_operator(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    switches: Sequence[int],
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dbias and dsink; what there isn't a gradient of is empty."""
    options = _options(bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, switches, numbers)
    problem = Problem.of(q, k, v, options)
    if switches[7]:
        dq, dk, dv, dbias, dsink = backward(do, problem, out, lse, tf32=bool(switches[8]))
    else:
        dq, dk, dv, dbias, dsink = unordered_backward(do, problem, out, lse)
    # An operator returns no None.
    absent = q.new_empty(0)
    return (
        dq,
        dk,
        dv,
        absent if dbias is None else dbias,
        absent.clone() if dsink is None else dsink,
    )


@backward_operator.register_fake
def _(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    sink: Tensor | None,
    *others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    del do, out, lse, alibi_slopes, others

    def like(tensor: Tensor | None) -> Tensor:
        return q.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    return like(q), like(k), like(v), like(bias), like(sink)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, switches, numbers = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.switches, ctx.numbers = switches, numbers


def _differentiate(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, bias, slopes, sink, cu_q, cu_k, out, lse = ctx.saved_tensors
    dq, dk, dv, dbias, dsink = backward_operator(
        do, q, k, v, out, lse, bias, slopes, sink, cu_q, cu_k, ctx.switches, ctx.numbers
    )
    return (
        dq,
        dk,
        dv,
        None if bias is None else dbias,
        None,
        None if sink is None else dsink,
        None,
        None,
        None,
        None,
    )


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
    del ctx, gradients
    raise AttentionError(
        "attention has no second derivative; call backward without create_graph=True"
    )


forward_operator.register_autograd(_differentiate, setup_context=_save)
backward_operator.register_autograd(_refuse)


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    deterministic: bool = True,
    precision: Precision = "ieee",
    **given: Unpack[Given],
) -> tuple[Tensor, Tensor]:
    """As `attention`; lse [b, h_q, s_q] in fp32 beside out, without a gradient of its own."""
    if precision not in ("ieee", "tf32"):
        raise AttentionError(f"precision must be ieee or tf32, got {precision}")
    if not deterministic and precision == "tf32":
        raise AttentionError(
            "the unordered backward is served in ieee alone; pass deterministic=True"
        )
    options = Options(**given)
    # Sequences are looked at when the operator runs, so that a trace needs none of their values.
    check_shapes(q, k, v)
    check_options(q, options)
    widest = max(q.shape[3], v.shape[3])
    if not deterministic and widest > WIDEST_UNORDERED:
        raise AttentionError(
            f"the unordered backward serves heads of at most {WIDEST_UNORDERED}, got {widest}; "
            "pass deterministic=True"
        )
    switches, numbers = packed(
        options, q.shape[3], deterministic=deterministic, precision=precision
    )
    out, lse = forward_operator(
        q,
        k,
        v,
        options.bias,
        options.alibi_slopes,
        options.sink,
        options.cu_seqlens_q,
        options.cu_seqlens_k,
        switches,
        numbers,
    )
    return out, lse


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    deterministic: bool = True,
    precision: Precision = "ieee",
    **given: Unpack[Given],
) -> Tensor:
    """out [b, s_q, h_q, d_v] of q [b, s_q, h_q, d], k [b, s_kv, h_kv, d], v [b, s_kv, h_kv, d_v].

    Tensors of float32, float16 or bfloat16, with any strides; `oracles.attention` says what the
    options mean. Gradients flow to q, k, v, bias and sink. deterministic: gradients are bitwise
    repeatable; without it dk and dv are added up in no order, which is faster where few programs
    own keys. precision: fp32 operands
    as they are, or "tf32". Raises AttentionError, before any launch, for what can't be served.
    """
    out, _ = attention_with_lse(q, k, v, deterministic=deterministic, precision=precision, **given)
    return out


def _end_to_end(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, given: Given, *, tf32: bool
) -> Gradients:
    options = Options(**given)
    out, lse = forward(q, k, v, options, tf32=tf32)
    return backward(do, Problem.of(q, k, v, options), out, lse, tf32=tf32)


def _workspace(case: Case, *, tf32: bool = False) -> int:
    """out, lse, delta; for wide heads fp32 accumulators of out, dq, dk and dv; or a split's shares.

    The shares are gone before delta and the accumulators of the backward are made.
    """
    rows = elements(case, "dq") // case.size("d")
    out = rows * case.size("d_v")
    made = out * case.dtype.itemsize + 4 * rows
    kept = made + 2 * 4 * rows
    if max(case.size("d"), case.size("d_v")) > WIDEST_RF:
        return kept + 4 * (out + sum(elements(case, name) for name in ("dq", "dk", "dv")))
    if serves_case(case) and not tf32:
        return max(kept, made + split_workspace(case))
    return kept


def _variants(case: Case, sm: int, *, tf32: bool = False) -> str:
    first = tile_of_case(case) if serves_case(case) and not tf32 else "fwd"
    return variants_of_case(first, "dq", "dkdv", case=case, sm=sm, tf32=tf32)


@kernel(
    ATTENTION_GRADIENTS,
    Domain(dtypes=HALVES, features=FEATURES, sm=SM, since=SINCE),
    numerics=DECLARED,
    priority=20,
    variant=_variants,
    workspace=_workspace,
)
@kernel(
    ATTENTION_GRADIENTS,
    Domain(dtypes=SINGLE, features=FEATURES, sm=SM),
    numerics=DECLARED_FP32,
    priority=20,
    variant=_variants,
    workspace=_workspace,
    name="flash_two_pass_fp32",
)
def flash_two_pass(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
) -> Gradients:
    """`flash`, or `split_keys` where queries are few, then `two_pass` on what it stored."""
    return _end_to_end(do, q, k, v, given, tf32=False)


@kernel(
    ATTENTION_GRADIENTS,
    Domain(dtypes=(torch.float32,), features=FEATURES, sm=(80, SM[1])),
    numerics=DECLARED_TF32,
    priority=15,
    variant=lambda case, sm: _variants(case, sm, tf32=True),
    workspace=lambda case: _workspace(case, tf32=True),
)
def flash_two_pass_tf32(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
) -> Gradients:
    """`flash_tf32`, then `two_pass_tf32` on what it stored."""
    return _end_to_end(do, q, k, v, given, tf32=True)
