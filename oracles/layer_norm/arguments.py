"""The arguments of layer-norm backward, their shapes, and how much work a case is."""

from __future__ import annotations

import math
from types import MappingProxyType

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.arguments import (
    check_dtype,
    check_names,
    check_shape,
    dtype_of,
    tensor_of,
)
from kernel_workbench.oracles.cases.layouts import strides_of
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    Case,
    Geometry,
    Inputs,
    Layout,
    OutputForm,
    optional,
)

NAME = "layer_norm_backward"
OPTIONS = MappingProxyType(
    {
        "no_weight": "no affine part: weight is None, dweight and dbias are None",
        "no_bias": "has_bias=False is passed, dbias is None",
        "zero_centred": "zero_centred=True is passed: the weight acts as 1 + weight, added in fp32",
        "rms_norm": "mean is None: x^ = x * rstd, with no mean taken off anywhere",
        "residual": "dresidual, like dx, is passed and added to dx before it is rounded",
        "accumulate": "dweight and dbias are passed, added to in place, and returned",
        "device_independent": "device_independent=True is passed: bits don't depend on the device",
    }
)


def rows_of(case: Case) -> tuple[int, ...]:
    """The shape of a statistic: (m,), or (batches, m / batches)."""
    m, batches = case.size("m"), case.layout.batches
    return (m,) if batches is None else (batches, m // batches)


def axes_of(case: Case) -> str:
    """The letters of a matrix's axes."""
    return "mn" if case.layout.batches is None else "bmn"


def forms(case: Case) -> dict[str, OutputForm]:
    """dx like x, and dweight and dbias like the weight, where the options leave them in."""
    n = case.size("n")
    result = {"dx": OutputForm((*rows_of(case), n), case.dtype)}
    if "no_weight" not in case.options:
        result["dweight"] = OutputForm((n,), case.weight_dtype)
        if "no_bias" not in case.options:
            result["dbias"] = OutputForm((n,), case.weight_dtype)
    return result


def geometry(case: Case) -> dict[str, Geometry]:
    """Where the case puts dy, x and dresidual, and each vector that has an offset of its own."""
    rows, n, options, result = rows_of(case), case.size("n"), case.options, {}
    for name in ("dy", "x", "dresidual") if "residual" in options else ("dy", "x"):
        layout, shape = case.layout.of(name), (*rows, n)
        strides = strides_of(layout, axes_of(case), shape)
        result[name] = Geometry(shape, strides, layout.offset, case.dtype)
    gradients = [name for name in forms(case) if name != "dx"] if "accumulate" in options else []
    weight = [] if "no_weight" in options else ["weight"]
    for name in (*weight, *gradients):
        placed = case.layout.of(name)
        result[name] = Geometry((n,), (placed.column_stride,), placed.offset, case.weight_dtype)
    for name in ("rstd",) if "rms_norm" in options else ("mean", "rstd"):
        placed = case.layout.of(name)
        steps = (*(max(row, 1) * placed.column_stride for row in rows[1:]), placed.column_stride)
        result[name] = Geometry(rows, steps, placed.offset, torch.float32)
    return result


def flops(case: Case) -> int:
    """Additions and multiplications of the closed form: 12 for each element.

    x^ 2, g 1, the row's sums 1 + 2, dx 3 (and rstd), dweight 2, dbias 1.
    """
    return 12 * case.size("m") * case.size("n")


def least_bytes(case: Case) -> int:
    """The least traffic: every input read once, every output written once."""
    m, n = case.size("m"), case.size("n")
    matrices = 3 + ("residual" in case.options)
    statistics = 1 if "rms_norm" in case.options else 2
    vectors = 0
    if "no_weight" not in case.options:
        gradients = len(forms(case)) - 1
        vectors = 1 + gradients * (2 if "accumulate" in case.options else 1)
    return (
        matrices * m * n * case.dtype.itemsize
        + statistics * m * torch.float32.itemsize
        + vectors * n * case.weight_dtype.itemsize
    )


_FLAGS = {"has_bias": False, "zero_centred": True, "device_independent": True}
_TENSORS = ("dy", "x", "weight", "mean", "rstd", "dresidual", "dweight", "dbias")


def case_from(arguments: Inputs) -> Case:
    """Return the case that has the arguments' sizes, dtypes and options. Raises ArgumentsError."""
    check_names(NAME, arguments, (*_TENSORS, *_FLAGS))
    x = arguments.get("x")
    rank = x.ndim if isinstance(x, Tensor) and x.ndim in {2, 3} else 2
    x = tensor_of(NAME, arguments, "x", rank)
    rows, n = tuple(x.shape[:-1]), x.shape[-1]
    weight = optional(arguments, "weight")
    has = {
        "no_weight": weight is None,
        "no_bias": arguments.get("has_bias", True) is False,
        "zero_centred": arguments.get("zero_centred", False) is True,
        "rms_norm": optional(arguments, "mean") is None,
        "residual": optional(arguments, "dresidual") is not None,
        "accumulate": optional(arguments, "dweight") is not None,
        "device_independent": arguments.get("device_independent", False) is True,
    }
    case = Case(
        op=NAME,
        sizes=(("m", math.prod(rows)), ("n", n)),
        dtype=dtype_of(NAME, "x", x),
        weight_dtype=x.dtype if weight is None else dtype_of(NAME, "weight", weight),
        layout=CONTIGUOUS if rank == 2 else Layout("rank3", batches=rows[0]),
        options=frozenset(name for name, holds in has.items() if holds),
    )
    for name, laid_out in geometry(case).items():
        tensor = tensor_of(NAME, arguments, name, len(laid_out.shape))
        check_shape(NAME, name, tensor, laid_out.shape)
        check_dtype(NAME, name, tensor, laid_out.dtype)
    return case
