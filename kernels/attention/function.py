"""`attention(q, k, v, ...)`: attention as a function with gradients, for use in a model.

Two operators of torch.library carry it, so that torch.compile, autograd and torch's own checks
(`torch.library.opcheck`, `torch.autograd.gradcheck` in fp32) see what they expect. First
derivatives alone: a second one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from kernels.attention import hopper, hopper_backward
from kernels.attention.backward import WIDEST_UNORDERED, Gradients, backward
from kernels.attention.forward import Forward, flash_forward
from kernels.attention.problem import (
    AttentionError,
    Given,
    Options,
    Problem,
    check_options,
    check_shapes,
)
from kernels.attention.registration import elements, gathered_elements, ours, variants_of_case
from kernels.attention.split_keys import (
    serves,
    serves_case,
    split_forward,
    split_workspace,
    tile_of_case,
)
from kernels.attention.tile_model import WIDEST_RF
from kernels.device import unlaunchable
from oracles import ATTENTION_GRADIENTS
from oracles.op import Case

Precision = Literal["ieee", "tf32"]


# The options as operators have them: tensors in this order, which autograd asks for, and the rest
# by name. A window's missing side is -1.
_TENSORS = ("bias", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k")
_SCHEMA = (
    ", ".join(f"Tensor? {name}" for name in _TENSORS)
    + ", *, bool causal, SymInt[]? window, str corner, float? softcap, float dropout_p, "
    "SymInt dropout_seed, SymInt? max_seqlen_q, SymInt? max_seqlen_k, float? scale, "
    "bool deterministic, str precision"
)


def packed(
    options: Options, *, deterministic: bool, precision: Precision
) -> tuple[list[Tensor | None], dict[str, object]]:
    """The options as an operator is given them: its tensors, and the rest by name."""
    given = options._asdict()
    if options.window is not None:
        given["window"] = [-1 if side is None else side for side in options.window]
    tensors = [given.pop(name) for name in _TENSORS]
    return tensors, {**given, "deterministic": deterministic, "precision": precision}


def _given(tensors: Sequence[Tensor | None], settings: Mapping[str, Any]) -> Options:
    """What `packed` took apart."""
    given = {**dict(zip(_TENSORS, tensors, strict=True)), **settings}
    del given["deterministic"], given["precision"]
    if given["window"] is not None:
        given["window"] = tuple(None if side < 0 else side for side in given["window"])
    return Options(**given)


def _forward(problem: Problem, *, tf32: bool) -> Forward:
    """out [b, s_q, h_q, d_v] like q and lse [b, h_q, s_q], on every generation."""
    if serves(problem) and not tf32:
        return split_forward(problem)
    return flash_forward(problem, tf32=tf32)


def forward(problem: Problem, *, tf32: bool) -> Forward:
    """As `_forward`, by the kernel that dispatch takes."""
    if hopper.serves(problem) and not serves(problem):
        return hopper.hopper_forward(problem)
    return _forward(problem, tf32=tf32)


@torch.library.custom_op(
    "kernel_workbench::attention_forward",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor)",
)
def forward_operator(
    q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, **settings: Any
) -> tuple[Tensor, Tensor]:
    """out and lse."""
    reason = unlaunchable(q)
    if reason is not None:
        raise AttentionError(reason)
    problem = Problem.of(q, k, v, _given(tensors, settings))
    return forward(problem, tf32=settings["precision"] == "tf32")


def _gradients(
    do: Tensor, problem: Problem, out: Tensor, lse: Tensor, *, tf32: bool, ordered: bool
) -> Gradients:
    """dq, dk, dv, dbias and dsink, by the kernels that dispatch takes; ordered: repeatable."""
    if hopper_backward.serves(problem, do, ordered=ordered):
        return hopper_backward.hopper_gradients(do, problem, out, lse, ordered=ordered)
    return backward(do, problem, out, lse, tf32=tf32, ordered=ordered)


@forward_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, *tensors: object, **settings: object
) -> tuple[Tensor, Tensor]:
    del k, tensors, settings
    b, s_q, h_q, _ = q.shape
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    return q.new_empty((b, s_q, h_q, v.shape[3])), lse


@torch.library.custom_op(
    "kernel_workbench::attention_backward",
    mutates_args=(),
    schema=(
        f"(Tensor do, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_SCHEMA})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def backward_operator(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *tensors: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dbias and dsink; what there isn't a gradient of is empty."""
    problem = Problem.of(q, k, v, _given(tensors, settings))
    dq, dk, dv, dbias, dsink = _gradients(
        do,
        problem,
        out,
        lse,
        tf32=settings["precision"] == "tf32",
        ordered=settings["deterministic"],
    )
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
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None, **settings: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    del do, settings
    given = dict(zip(_TENSORS, others[2:], strict=True))

    def like(tensor: Tensor | None) -> Tensor:
        return q.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    return like(q), like(k), like(v), like(given["bias"]), like(given["sink"])


def _save(
    ctx: Any,
    inputs: tuple[Any, ...],
    keyword_only_inputs: dict[str, Any],
    output: tuple[Tensor, Tensor],
) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.settings = keyword_only_inputs


def _differentiate(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, *tensors, out, lse = ctx.saved_tensors
    dq, dk, dv, dbias, dsink = backward_operator(do, q, k, v, out, lse, *tensors, **ctx.settings)
    made = {"bias": dbias, "sink": dsink}
    given = dict(zip(_TENSORS, tensors, strict=True))
    rest = (None if given[name] is None else made.get(name) for name in _TENSORS)
    return dq, dk, dv, *rest


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
    tensors, settings = packed(options, deterministic=deterministic, precision=precision)
    out, lse = forward_operator(q, k, v, *tensors, **settings)
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
    own keys. precision: fp32 operands as they are, or "tf32". Raises AttentionError, before any
    launch, for what can't be served.
    """
    out, _ = attention_with_lse(q, k, v, deterministic=deterministic, precision=precision, **given)
    return out


def _end_to_end(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, given: Given, *, tf32: bool
) -> Gradients:
    problem = Problem.of(q, k, v, Options(**given))
    out, lse = _forward(problem, tf32=tf32)
    return backward(do, problem, out, lse, tf32=tf32)


def _workspace(case: Case, *, tf32: bool = False) -> int:
    """out, lse, delta; for wide heads fp32 accumulators of out, dq, dk and dv; or a split's shares.

    The shares are gone before delta and the accumulators of the backward are made.
    """
    rows = elements(case, "dq") // case.size("d")
    out = rows * case.size("d_v")
    made = out * case.dtype.itemsize + 4 * rows
    kept = made + 2 * 4 * rows + 4 * gathered_elements(case)
    if max(case.size("d"), case.size("d_v")) > WIDEST_RF:
        return kept + 4 * out
    if serves_case(case) and not tf32:
        return max(kept, made + split_workspace(case))
    return kept


def _variants(case: Case, sm: int, *, tf32: bool = False) -> str:
    first = tile_of_case(case) if serves_case(case) and not tf32 else "fwd"
    return variants_of_case(first, "dq", "dkdv", case=case, sm=sm, tf32=tf32)


@ours(ATTENTION_GRADIENTS, priority=20, variant=_variants, workspace=_workspace)
def flash_two_pass(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
) -> Gradients:
    """`flash`, or `split_keys` where queries are few, then `two_pass` on what it stored."""
    return _end_to_end(do, q, k, v, given, tf32=False)


@ours(
    ATTENTION_GRADIENTS,
    priority=15,
    variant=partial(_variants, tf32=True),
    workspace=partial(_workspace, tf32=True),
    tf32=True,
)
def flash_two_pass_tf32(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
) -> Gradients:
    """`flash_tf32`, then `two_pass_tf32` on what it stored."""
    return _end_to_end(do, q, k, v, given, tf32=True)
