"""`attention(q, k, v, ...)`: attention as a function with gradients, for use in a model.

Two operators of torch.library implement it, for torch.compile, autograd and torch's own checks
(`torch.library.opcheck`, `torch.autograd.gradcheck` in fp32). Only first derivatives exist: a
second one is refused. A call that isn't traced takes less host time: it uses a third operator, the
forward without a gradient, and a function of torch.autograd if a tensor requires a gradient
(decision 0043).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from inspect import Parameter, signature
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.attention import hopper, hopper_backward
from kernel_workbench.kernels.attention.backward import WIDEST_UNORDERED, Gradients, backward
from kernel_workbench.kernels.attention.forward import Forward, flash_forward
from kernel_workbench.kernels.attention.problem import (
    AttentionCall,
    AttentionError,
    check_options,
    check_shapes,
)
from kernel_workbench.kernels.attention.registration import (
    elements,
    gathered_elements,
    ours,
    variants_of_case,
)
from kernel_workbench.kernels.attention.split_keys import (
    serves,
    serves_case,
    split_forward,
    split_workspace,
    tile_of_case,
)
from kernel_workbench.kernels.attention.tile_model import WIDEST_RF
from kernel_workbench.kernels.device import unlaunchable
from kernel_workbench.kernels.eager import is_eager
from kernel_workbench.oracles import ATTENTION_GRADIENTS
from kernel_workbench.oracles.attention.options import Corner, Options, Window
from kernel_workbench.oracles.op import Case

Precision = Literal["ieee", "tf32"]


# The options as operators have them: tensors in this order, which autograd asks for, and the rest
# by name. A window's missing side is -1. torch hands on only what differs from the defaults.
_TYPES = get_type_hints(Options)
_TENSORS = tuple(name for name in Options._fields if _TYPES[name] == Tensor | None)
_TYPE_NAMES = {
    bool: "bool",
    int: "SymInt",
    int | None: "SymInt?",
    float: "float",
    float | None: "float?",
    Corner: "str",
    Window | None: "SymInt[]?",
}
_SCHEMA = ", ".join(
    (
        *(f"Tensor? {name}=None" for name in _TENSORS),
        "*",
        *(
            f"{_TYPE_NAMES[_TYPES[name]]} {name}={default!r}"
            for name, default in Options._field_defaults.items()
            if name not in _TENSORS
        ),
        "bool deterministic=True",
        "str precision='ieee'",
    )
)


def _new_library() -> torch.library.Library:
    """Return the library of the operators, without definitions of an earlier import of this module.

    torch would keep these otherwise; its own `custom_op` removes them too.
    """
    operators: Any = torch.ops.kernel_workbench
    if "_attention" in vars(operators):
        operators._attention._destroy()  # noqa: SLF001
    library = torch.library.Library("kernel_workbench", "FRAGMENT")
    operators._attention = library  # noqa: SLF001
    return library


_library = _new_library()


def packed(
    options: Mapping[str, Any], *, deterministic: bool = True, precision: Precision = "ieee"
) -> tuple[list[Tensor | None], dict[str, object]]:
    """Return the options as operators take them: tensors in order, and the rest by name."""
    settings: dict[str, object] = dict(options)
    tensors: Any = [settings.pop(name, None) for name in _TENSORS]
    if all(tensor is None for tensor in tensors):
        tensors = []
    window = options.get("window")
    if window is not None:
        settings["window"] = [-1 if side is None else side for side in window]
    if not deterministic:
        settings["deterministic"] = deterministic
    if precision != "ieee":
        settings["precision"] = precision
    return tensors, settings


def _options_of(tensors: Sequence[Tensor | None], settings: Mapping[str, Any]) -> Options:
    """Return the options that `packed` split."""
    # torch leaves out tensors at the end that are None.
    named = {**dict(zip(_TENSORS, tensors, strict=False)), **settings}
    named.pop("deterministic", None)
    named.pop("precision", None)
    if named.get("window") is not None:
        named["window"] = tuple(None if side < 0 else side for side in named["window"])
    return Options(**named)


def _define(name: str, tensors: str, results: int) -> Any:
    """Define an operator of these tensors and the options."""
    returned = ", ".join(["Tensor"] * results)
    _library.define(
        f"{name}({tensors}, {_SCHEMA}) -> ({returned})", tags=(torch.Tag.pt2_compliant_tag,)
    )
    return getattr(torch.ops.kernel_workbench, name).default


_QKV = "Tensor q, Tensor k, Tensor v"
forward_operator = _define("attention_forward", _QKV, 2)
forward_only_operator = _define("attention_forward_only", _QKV, 2)
backward_operator = _define("attention_backward", f"Tensor do, {_QKV}, Tensor out, Tensor lse", 5)
_ON_ANY_DEVICE = "CompositeExplicitAutograd"


def _forward(problem: AttentionCall, *, tf32: bool) -> Forward:
    """Compute out [b, s_q, h_q, d_v] like q and lse [b, h_q, s_q], on every generation."""
    if serves(problem) and not tf32:
        return split_forward(problem)
    return flash_forward(problem, tf32=tf32)


def _outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.compiler.disable` of a function, applied at the first call.

    Importing the compiler takes a second.
    """
    disabled = cache(lambda: torch.compiler.disable(function))

    @wraps(function)
    def called(*arguments: object, **named: object) -> object:
        return disabled()(*arguments, **named)

    return called


def forward(problem: AttentionCall, *, tf32: bool, key: launch_plan.Key | None = None) -> Forward:
    """Compute as `_forward` by the kernel that dispatch takes; key: the key of its launch plan."""
    if serves(problem) and not tf32:
        return split_forward(problem)
    if hopper.serves(problem):
        return hopper.hopper_forward(problem, key)
    return flash_forward(problem, tf32=tf32, key=key)


@torch.library.impl(_library, "attention_forward", _ON_ANY_DEVICE)
@torch.library.impl(_library, "attention_forward_only", _ON_ANY_DEVICE)
@_outside_graphs
def _run_forward(
    q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Return out and lse."""
    return _compute_forward(q, k, v, tensors, settings)


def _key_of(
    entry: str,
    tensors: Sequence[Tensor],
    options: Sequence[Tensor | None],
    settings: Mapping[str, Any],
) -> launch_plan.Key | None:
    """Return the key of a call's plan; None where an option is a tensor, or there is dropout.

    A seed is another one at each call.
    """
    if "dropout_p" in settings or any(tensor is not None for tensor in options):
        return None
    return launch_plan.key_of(entry, tensors, repr(settings) if settings else None)


def _compute_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: Sequence[Tensor | None],
    settings: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    key = _key_of("attention", (q, k, v), tensors, settings)
    planned = launch_plan.planned(key, (q, k, v))
    if planned is not None:
        out, lse = planned
        return out, lse
    problem = AttentionCall.of(q, k, v, _options_of(tensors, settings))
    reason = unlaunchable(q)
    if reason is not None:
        raise AttentionError(reason)
    return forward(problem, tf32=settings.get("precision") == "tf32", key=key)


def _compute_gradients(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tensors: Sequence[Tensor | None],
    settings: Mapping[str, Any],
) -> Gradients:
    """Compute dq, dk, dv, dbias and dsink as dispatch does."""
    inputs = do, q, k, v, out, lse
    key = _key_of("attention_backward", inputs, tensors, settings)
    planned = launch_plan.planned(key, inputs)
    if planned is not None:
        dq, dk, dv = planned
        return dq, dk, dv, None, None
    problem = AttentionCall.of(q, k, v, _options_of(tensors, settings))
    ordered, tf32 = settings.get("deterministic", True), settings.get("precision") == "tf32"
    if hopper_backward.serves(problem, do, ordered=ordered):
        return hopper_backward.hopper_gradients(do, problem, out, lse, ordered=ordered, key=key)
    return backward(do, problem, out, lse, tf32=tf32, ordered=ordered)


@torch.library.register_fake("kernel_workbench::attention_forward", lib=_library)
@torch.library.register_fake("kernel_workbench::attention_forward_only", lib=_library)
def _(
    q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None, **settings: Any
) -> tuple[Tensor, Tensor]:
    check_shapes(q, k, v)
    check_options(q, _options_of(tensors, settings))
    b, s_q, h_q, _ = q.shape
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    return q.new_empty((b, s_q, h_q, v.shape[3])), lse


@torch.library.impl(_library, "attention_backward", _ON_ANY_DEVICE)
@_outside_graphs
def _run_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *tensors: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv, dbias and dsink; a gradient that doesn't exist is an empty tensor."""
    dq, dk, dv, dbias, dsink = _compute_gradients(do, q, k, v, out, lse, tensors, settings)
    # An operator returns no None.
    absent = q.new_empty(0)
    return (
        dq,
        dk,
        dv,
        absent if dbias is None else dbias,
        absent.clone() if dsink is None else dsink,
    )


@torch.library.register_fake("kernel_workbench::attention_backward", lib=_library)
def _(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None, **settings: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    del do, settings
    options = dict(zip(_TENSORS, rest[2:], strict=False))

    def like(tensor: Tensor | None) -> Tensor:
        return q.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape)

    return like(q), like(k), like(v), like(options.get("bias")), like(options.get("sink"))


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
    return _in_order((dq, dk, dv, dbias, dsink), tensors)


def _in_order(gradients: Gradients, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return gradients in the order of an operator's tensors; None: it has none."""
    dq, dk, dv, dbias, dsink = gradients
    of_options = {"bias": dbias, "sink": dsink}
    named = zip(_TENSORS, tensors, strict=False)
    rest = (None if tensor is None else of_options.get(name) for name, tensor in named)
    return dq, dk, dv, *rest


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
    del ctx, gradients
    raise AttentionError(
        "attention has no second derivative; call backward without create_graph=True"
    )


torch.library.register_autograd(
    "kernel_workbench::attention_forward", _differentiate, setup_context=_save, lib=_library
)
torch.library.register_autograd("kernel_workbench::attention_backward", _refuse, lib=_library)


class _DifferentiableAttention(torch.autograd.Function):
    """The forward with its gradient, for a call that nothing traces.

    torch's wrapper of an operator with a registered gradient takes ten times the host time. So does
    `setup_context`: torch inspects the forward's signature at each call.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Compute out and lse from the other options, q, k, v and the tensor options."""
        settings, q, k, v, *tensors = inputs
        output = _compute_forward(q, k, v, tensors, settings)
        _save(ctx, (q, k, v, *tensors), settings, output)
        return output

    @staticmethod
    def backward(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients as the operator does; where gradients are traced too, by it."""
        q, k, v, *tensors, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(do, q, k, v, *tensors):
            return None, *_differentiate(ctx, do, _)
        gradients = _compute_gradients(do, q, k, v, out, lse, tensors, ctx.settings)
        return None, *_in_order(gradients, tensors)


def attention_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    deterministic: bool = True,
    precision: Precision = "ieee",
    **given: Any,
) -> tuple[Tensor, Tensor]:
    """Return out as `attention` does, and lse [b, h_q, s_q] in fp32, which has no gradient."""
    if precision not in ("ieee", "tf32"):
        raise AttentionError(f"precision must be ieee or tf32, got {precision}")
    tracing = torch.compiler.is_compiling()
    # Otherwise the operator checks, and only if no earlier call was alike. A window goes through
    # the check here, because a negative side means a missing one to the operator.
    if tracing or not deterministic or given.get("window") is not None:
        _check(q, k, v, given, deterministic=deterministic, precision=precision)
    tensors, settings = packed(given, deterministic=deterministic, precision=precision)
    outputs: tuple[Tensor, Tensor]
    try:
        if not is_eager(q, k, v, *tensors):
            outputs = forward_operator(q, k, v, *tensors, **settings)
        elif torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (q, k, v, *tensors)
        ):
            outputs = _DifferentiableAttention.apply(settings, q, k, v, *tensors)
        else:
            outputs = _compute_forward(q, k, v, tensors, settings)
    except (
        RuntimeError,
        TypeError,
    ):  # torch raises these for arguments that an operator doesn't take
        _check(q, k, v, given, deterministic=deterministic, precision=precision)
        raise
    return outputs


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Mapping[str, Any],
    *,
    deterministic: bool,
    precision: Precision,
) -> None:
    """Check everything that doesn't need a tensor's values. Raises AttentionError."""
    if not deterministic and precision == "tf32":
        raise AttentionError(
            "the unordered backward is served in ieee alone; pass deterministic=True"
        )
    # The operator reads sequences when it runs, so a trace doesn't need their values.
    check_shapes(q, k, v)
    check_options(q, Options(**given))
    widest = max(q.shape[3], v.shape[3])
    if not deterministic and widest > WIDEST_UNORDERED:
        raise AttentionError(
            f"the unordered backward serves heads of at most {WIDEST_UNORDERED}, got {widest}; "
            "pass deterministic=True"
        )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    deterministic: bool = True,
    precision: Precision = "ieee",
    **given: Any,
) -> Tensor:
    """Return attention of q to k and v, [b, s_q, h_q, d_v], with gradients.

    Gradients flow to q, k, v, bias and sink.

    Args:
        q: [b, s_q, h_q, d] in float32, float16 or bfloat16, with any strides.
        k: [b, s_kv, h_kv, d] like q.
        v: [b, s_kv, h_kv, d_v] like q.
        deterministic: gradients are bitwise repeatable; False: dk and dv are added in no order,
        which is faster if few programs own keys.
        precision: "ieee": whole fp32 operands; "tf32": operands with 10 bits.
        **given: options, as `oracles.attention` defines them.

    Raises:
        AttentionError: if the arguments aren't served, before any launch.

    Example:
        out = attention(q, k, v, causal=True)
        out.sum().backward()
    """
    out, _ = attention_with_lse(q, k, v, deterministic=deterministic, precision=precision, **given)
    return out


def _named(function: Callable[..., object]) -> None:
    """Put the options' names and defaults into a function's signature, for `help` and editors."""
    options = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_TYPES[name])
        for name, default in Options._field_defaults.items()
    )
    own = signature(function)
    *first, _ = own.parameters.values()
    vars(function)["__signature__"] = own.replace(parameters=[*first, *options])


_named(attention_with_lse)
_named(attention)


def _end_to_end(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, given: Mapping[str, Any], *, tf32: bool
) -> Gradients:
    problem = AttentionCall.of(q, k, v, Options(**given))
    out, lse = _forward(problem, tf32=tf32)
    return backward(do, problem, out, lse, tf32=tf32)


def _workspace(case: Case, *, tf32: bool = False) -> int:
    """Return the bytes of out, lse, delta and wide heads' accumulators, or of a split's shares.

    The shares are freed before delta and the accumulators of the backward are allocated.
    """
    rows = elements(case, "dq") // case.size("d")
    out = rows * case.size("d_v")
    output_bytes = out * case.dtype.itemsize + 4 * rows
    kept = output_bytes + 2 * 4 * rows + 4 * gathered_elements(case)
    if max(case.size("d"), case.size("d_v")) > WIDEST_RF:
        return kept + 4 * out
    if serves_case(case) and not tf32:
        return max(kept, output_bytes + split_workspace(case))
    return kept


def _variants(case: Case, sm: int, *, tf32: bool = False) -> str:
    first = tile_of_case(case) if serves_case(case) and not tf32 else "fwd"
    return variants_of_case(first, "dq", "dkdv", case=case, sm=sm, tf32=tf32)


@ours(ATTENTION_GRADIENTS, priority=20, variant=_variants, workspace=_workspace)
def flash_two_pass(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Gradients:
    """Compute `flash`, or `split_keys` with few queries, then `two_pass` on its outputs."""
    return _end_to_end(do, q, k, v, given, tf32=False)


@ours(
    ATTENTION_GRADIENTS,
    priority=15,
    variant=partial(_variants, tf32=True),
    workspace=partial(_workspace, tf32=True),
    tf32=True,
)
def flash_two_pass_tf32(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Gradients:
    """Compute `flash_tf32`, then `two_pass_tf32` on its outputs."""
    return _end_to_end(do, q, k, v, given, tf32=True)
