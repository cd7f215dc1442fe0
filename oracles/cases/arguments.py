"""The case that arguments of a kernel are of: what all ops share of reading shapes and dtypes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from kernel_workbench.oracles.op import ArgumentsError, dtype_name

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SHARE = 1 / 8  # of a tensor's elements that may have the value of another before its sums repeat


def check_names(op: str, names: Iterable[str], wanted: Collection[str]) -> None:
    """Raise ArgumentsError for an argument that the op doesn't have."""
    for name in names:
        if name not in wanted:
            close = difflib.get_close_matches(name, wanted, n=1)
            meant = f"did you mean {close[0]}?" if close else f"it has {', '.join(wanted)}"
            raise ArgumentsError(f"{op} has no argument {name}; {meant}")


def tensor_of(op: str, arguments: Mapping[str, object], name: str, rank: int) -> Tensor:
    """Return an argument that has to be a tensor of `rank` axes.

    Raises:
        ArgumentsError: the argument is missing, isn't a tensor, or has other axes.
    """
    value = arguments.get(name)
    if value is None:
        raise ArgumentsError(f"{op} needs the argument {name}; pass it by its name")
    if not isinstance(value, Tensor):
        raise ArgumentsError(f"{op}: {name} is a {type(value).__name__}, and must be a tensor")
    if value.ndim != rank:
        shape = tuple(value.shape)
        raise ArgumentsError(f"{op}: {name} has the shape {shape}, and must have {rank} axes")
    return value


def check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ArgumentsError where a tensor has another shape than the other arguments imply."""
    if tuple(tensor.shape) != shape:
        raise ArgumentsError(
            f"{op}: {name} has the shape {tuple(tensor.shape)}, and must have {shape} beside the "
            "other arguments"
        )


def check_dtype(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise ArgumentsError where a tensor has another dtype than it must."""
    if tensor.dtype != dtype:
        raise ArgumentsError(
            f"{op}: {name} is {dtype_name(tensor.dtype)}, and must be {dtype_name(dtype)}"
        )


def dtype_of(op: str, name: str, tensor: Tensor) -> torch.dtype:
    """Return a tensor's dtype, one of those that cases have. Raises ArgumentsError."""
    if tensor.dtype not in DTYPES:
        names = ", ".join(map(dtype_name, DTYPES))
        raise ArgumentsError(
            f"{op}: {name} is {dtype_name(tensor.dtype)}, and bounds are derived for {names}"
        )
    return tensor.dtype


def values_vary(arguments: Mapping[str, object]) -> bool:
    """Say whether the values look drawn one by one, as a probabilistic bound needs.

    The roundings of a sum vary independently where its addends do. Equal numbers, a ramp, or a
    tensor that is mostly zeros give the same rounding again and again, and then the deterministic
    bound alone is right. Tensors with one axis (weights) may be constant: only the addends have to
    vary, which are products with a matrix's elements. docs/derivations/verdict.md has the reasons.

    Example:
        >>> values_vary({"x": torch.randn(16, 64, generator=torch.Generator().manual_seed(0))})
        True
        >>> values_vary({"x": torch.ones(16, 64)})
        False
    """
    tensors = [
        value.detach()
        for value in arguments.values()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    matrices = [tensor for tensor in tensors if tensor.ndim > 1] or tensors
    return all(map(_varies, matrices))


def _varies(tensor: Tensor) -> bool:
    """Say whether no value is frequent, and neighbours neither repeat nor rise steadily."""
    if tensor.numel() == 0:
        return True
    wide = tensor.double().nan_to_num()
    counts = torch.unique(wide, return_counts=True)[1]
    if tensor.numel() > 1 and int(counts.max()) > max(1, _SHARE * tensor.numel()):
        return False
    return all(_varies_along(wide, axis) for axis in range(tensor.ndim))


def _varies_along(wide: Tensor, axis: int) -> bool:
    """Say whether neighbours along an axis differ, and turn as often as random numbers do.

    Three independent numbers have the middle one largest or smallest in 2 of 3 cases; half of that
    share has to be seen. An axis of fewer than 3 elements, or tensors of few triples, say nothing.
    """
    steps = wide.diff(dim=axis)
    if steps.numel() and float((steps == 0).double().mean()) > max(_SHARE, 1 / steps.numel()):
        return False
    length = steps.shape[axis]
    if length < 2 or steps.numel() < 64:
        return True
    turns = steps.narrow(axis, 1, length - 1).sign() * steps.narrow(axis, 0, length - 1).sign() < 0
    return float(turns.double().mean()) > 1 / 3
