"""A recorded call as the arguments of the ops that it stands for.

Shapes are enough: tensors are on the device "meta" unless a recording keeps values. A view is a
function of the call's arguments by name, of its output and of the output's gradient, which is None
where the call is the forward one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class NoOpError(Exception):
    """No op can express the call; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class View:
    """A call as an op has it.

    Attributes:
        op: the op's name.
        arguments: what a kernel of the op would be passed.
        notes: in what the op differs from the call.
        options: options of the case that its arguments can't say without values.
    """

    op: str
    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()
    options: frozenset[str] = field(default_factory=frozenset)


Arguments = Mapping[str, Any]
ViewOf = Callable[[Arguments, Tensor | None, Tensor | None], list[View]]


def rows(tensor: Tensor, width: int) -> Tensor:
    """Return a tensor as a matrix of rows; a copy where no strides of a matrix say it."""
    shape = (tensor.numel() // width if width else math.prod(tensor.shape[:-1]), width)
    try:
        return tensor.view(shape)
    except RuntimeError:
        return tensor.reshape(shape)


def _copied(**tensors: Tensor) -> tuple[str, ...]:
    """Return a note for tensors that are a matrix only after a copy."""
    names = []
    for name, tensor in tensors.items():
        try:
            tensor.view(-1, max(tensor.shape[-1], 1))
        except RuntimeError:
            names.append(name)
    return (f"{' and '.join(names)} copied: no matrix has these strides",) if names else ()


def _single(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def layer_norm(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return the forward or the backward of a layer norm over the last axes."""
    x, weight, bias, eps = (call[name] for name in ("x", "weight", "bias", "eps"))
    width = math.prod(call.get("shape", x.shape[-1:]))
    matrix = rows(x, width)
    weight, bias = (vector if vector is None else vector.reshape(-1) for vector in (weight, bias))
    if grad is None:
        if weight is None or bias is None:
            lacking = " and no ".join(
                name for name, vector in (("weight", weight), ("bias", bias)) if vector is None
            )
            raise NoOpError(
                f"layer_norm_forward has a weight and a bias, and the call no {lacking}"
            )
        arguments = {"x": matrix, "weight": weight, "bias": bias, "eps": eps}
        return [View("layer_norm_forward", arguments, _copied(x=x))]
    mean, rstd = _statistics(matrix, eps)
    arguments = {"dy": rows(grad, width), "x": matrix, "weight": weight}
    arguments |= {"mean": mean, "rstd": rstd}
    if weight is not None and bias is None:
        arguments["has_bias"] = False
    return [View("layer_norm_backward", arguments, _copied(x=x, dy=grad))]


def _statistics(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if matrix.is_meta:
        return _single(matrix, matrix.shape[0]), _single(matrix, matrix.shape[0])
    wide = matrix.double()
    variance = wide.var(-1, correction=0)
    return wide.mean(-1).float(), torch.rsqrt(variance + eps).float()


def rms_norm(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return the forward or the backward of an RMS norm over the last axes."""
    x, weight, eps = call["x"], call["weight"], call["eps"]
    width = math.prod(call.get("shape", x.shape[-1:]))
    if weight is None:
        raise NoOpError("the ops of RMS norm have a weight, and the call none")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    arguments = {"x": rows(x, width), "weight": weight.reshape(-1), "eps": eps}
    if grad is None:
        return [View("rms_norm_forward", arguments, _copied(x=x))]
    return [View("rms_norm_backward", {"dy": rows(grad, width)} | arguments, _copied(x=x, dy=grad))]


def scaled_dot_product_attention(
    call: Arguments, out: Tensor | None, grad: Tensor | None
) -> list[View]:
    """Return torch's attention, whose tensors have the heads before the positions."""
    query, key, value = (call[name] for name in ("query", "key", "value"))
    if query.ndim not in {3, 4}:
        raise NoOpError(f"attention's ops have tensors of four axes, and the call of {query.ndim}")

    def turned(tensor: Tensor) -> Tensor:
        tensor = tensor if tensor.ndim == 4 else tensor.unsqueeze(-3)
        return tensor.transpose(1, 2) if tensor.ndim == 4 else tensor

    mask, dropout, scale = call["attn_mask"], call["dropout_p"], call["scale"]
    options: dict[str, Any] = {"causal": True} if call["is_causal"] else {}
    notes = []
    if mask is not None:
        if mask.dtype == torch.bool:
            raise NoOpError("attention's ops have no boolean mask: causal, window or a bias alone")
        options["bias"] = mask[(None,) * (4 - mask.ndim)]
        batch, heads = turned(query).shape[0], turned(query).shape[2]
        if mask.ndim == 3 and query.ndim == 3:  # [b, s_q, s_kv]
            options["bias"] = mask.unsqueeze(1)
        if options["bias"].shape[0] not in {1, batch} or options["bias"].shape[1] not in {1, heads}:
            raise NoOpError("attention's ops have no mask of such a shape")
    if scale is not None and not math.isclose(scale, query.shape[-1] ** -0.5, rel_tol=1e-6):
        options["scale"] = scale
    more = frozenset({"dropout"} if dropout else ())
    if dropout:
        notes.append(f"dropout of p = {dropout:g} is replayed with the op's own p")
    tensors = {"q": turned(query), "k": turned(key), "v": turned(value)}
    return _attention(tensors, options, out, grad, turned, (tuple(notes), more))


def attention(call: Arguments, out: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return the workbench's own attention."""
    if call.get("cu_seqlens_q") is not None:
        raise NoOpError("the lengths of a packed batch are values, which a recording doesn't read")
    beside = {"q", "k", "v", "deterministic", "precision", "dropout_p", "dropout_seed"}
    options = {
        name: value for name, value in call.items() if name not in beside and value is not None
    }
    tensors = {name: call[name] for name in ("q", "k", "v")}
    more = frozenset({"dropout"} if call.get("dropout_p") else ())
    return _attention(tensors, options, out, grad, lambda tensor: tensor, ((), more))


def _attention(
    tensors: dict[str, Any],
    options: dict[str, Any],
    out: Tensor | None,
    grad: Tensor | None,
    turned: Callable[[Tensor], Tensor],
    more: tuple[tuple[str, ...], frozenset[str]],
) -> list[View]:
    if grad is None:
        return [View("attention_forward", tensors | options, *more)]
    q = tensors["q"]
    if not q.is_meta:
        raise NoOpError("values of attention's backward aren't kept")
    assert out is not None
    both = {"do": turned(grad), "out": turned(out)}
    lse = _single(q, q.shape[0], q.shape[2], q.shape[1])
    return [View("attention_backward", both | tensors | {"lse": lse} | options, *more)]


def softmax(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return a softmax over any axis, as of rows."""
    x, dim, dtype = call["x"], call["dim"], call["dtype"]
    if not isinstance(dim, int):
        raise NoOpError("a softmax without `dim` has no rows that a recording knows")
    notes = []
    if dtype is not None and dtype != x.dtype:
        notes.append(f"x is converted from {x.dtype} before the call")
        x = x.to(dtype)
        grad = grad if grad is None else grad.to(dtype)
    if not x.ndim:
        raise NoOpError("a softmax of a number alone has no rows")
    x = x.movedim(dim, -1)
    width = x.shape[-1]
    if grad is None:
        return [View("softmax_forward", {"x": rows(x, width)}, (*notes, *_copied(x=x)))]
    grad = grad.movedim(dim, -1)
    arguments = {"dy": rows(grad, width), "x": rows(x, width)}
    return [View("softmax_backward", arguments, (*notes, *_copied(x=x, dy=grad)))]


def cross_entropy(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return the cross entropy of logits whose labels are along the second axis."""
    x, target = call["x"], call["target"]
    if call["weight"] is not None:
        raise NoOpError("the ops of cross entropy have no weights of labels")
    if target.dtype.is_floating_point:
        raise NoOpError("the ops of cross entropy have labels as whole numbers, not probabilities")
    x = x.unsqueeze(0) if x.ndim == 1 else x.movedim(1, -1)
    matrix, labels = rows(x, x.shape[-1]), target.reshape(-1)
    notes = [*_copied(x=x), "rows that ignore_index leaves out are computed"]
    arguments: dict[str, Any] = {"x": matrix, "target": labels}
    op = "cross_entropy"
    if call["label_smoothing"]:
        op = "smoothed_cross_entropy"
        arguments |= {"smoothing": call["label_smoothing"], "z": 0.0}
    if call["reduction"] != "none":
        notes.append(f"the {call['reduction']} over rows is left out")
    if grad is None:
        return [View(f"{op}_forward", arguments, tuple(notes))]
    loss = grad.reshape(-1).float()
    return [View(f"{op}_backward", {"dloss": loss.expand(len(labels))} | arguments, tuple(notes))]


def swiglu(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return silu(gate) times up, which were two calls."""
    gate, up = call["gate"], call["up"]
    if gate.shape != up.shape:
        raise NoOpError("SwiGLU has a gate and an up of one shape, and the product broadcasts")
    width = gate.shape[-1] if gate.ndim else 1
    arguments = {"gate": rows(gate, width), "up": rows(up, width)}
    if grad is None:
        return [View("swiglu_forward", arguments, _copied(gate=gate, up=up))]
    arguments = {"dy": rows(grad, width)} | arguments
    return [View("swiglu_backward", arguments, _copied(dy=grad, gate=gate, up=up))]


def linear(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return x w^T, or the two products of its backward."""
    x, weight = call["x"], call["weight"]
    if weight.ndim != 2:
        raise NoOpError("matmul_forward has two matrices, and the weight is none")
    return _product(x, weight.T, grad, "" if call["bias"] is None else "without the bias")


def matmul(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
    """Return a product whose second factor is a matrix, or the two products of its backward."""
    a, b = call["a"], call["b"]
    if a.ndim < 2 or b.ndim != 2:
        raise NoOpError(
            "matmul_forward has two matrices, and the call is a batch of products or has a vector"
        )
    return _product(a, b, grad, "")


def _product(a: Tensor, b: Tensor, grad: Tensor | None, note: str) -> list[View]:
    notes = (note,) if note else ()
    matrix = rows(a, a.shape[-1])
    if grad is None:
        return [View("matmul_forward", {"a": matrix, "b": b}, (*notes, *_copied(a=a)))]
    wide = rows(grad, grad.shape[-1])
    views = []
    if a.requires_grad:
        views.append(View("matmul_forward", {"a": wide, "b": b.T}, ("the gradient of a",)))
    if b.requires_grad:
        views.append(View("matmul_forward", {"a": matrix.T, "b": wide}, ("the gradient of b",)))
    return views


def of_op(op: str, names: tuple[str, ...]) -> ViewOf:
    """Return a view of a function whose arguments are those of an op, by their names."""

    def view(call: Arguments, _: Tensor | None, grad: Tensor | None) -> list[View]:
        del grad
        notes = []
        arguments = {}
        for name, value in call.items():
            if name in names:
                arguments[name] = value
            elif isinstance(value, Tensor):
                raise NoOpError(f"{op} has no tensor {name}; it has {', '.join(names)}")
            elif value is not None and name != "self":
                notes.append(f"{name} is left out")
        return [View(op, arguments, tuple(notes))]

    return view
