"""The case of attention's arguments that a user's own test made."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.oracles.attention.cases import DELTA_SIZES, SIZES, implied
from kernel_workbench.oracles.attention.geometry import ARGUMENTS, AXES, DELTA, sequences, shapes
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.cases.arguments import (
    check_dtype,
    check_names,
    check_shape,
    dtype_of,
    tensor_of,
)
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    ArgumentsError,
    Case,
    Inputs,
    optional,
    required,
)

_PACKED = (
    "bounds are for the lengths of the op's own cases alone; judge a packed batch sequence by "
    "sequence: pass one sequence's slices, and no cu_seqlens"
)


def case_from(op: str, arguments: Inputs) -> Case:
    """Return the case that has the arguments' sizes, dtype and options. Raises ArgumentsError."""
    names = ARGUMENTS[op]
    check_names(op, arguments, names if op == DELTA else (*names, *Options._fields))
    tensors = {name: tensor_of(op, arguments, name, 3 if name == "lse" else 4) for name in names}
    if op == DELTA:
        b, s_q, h_q, d_v = tensors["out"].shape
        values = dict(zip(DELTA_SIZES, (b, h_q, s_q, d_v), strict=True))
        options: set[str] = set()
    else:
        (b, s_q, h_q, d), (_, s_kv, h_kv, d_v) = tensors["q"].shape, tensors["v"].shape
        values = dict(zip(SIZES, (b, h_q, h_kv, s_q, s_kv, d, d_v), strict=True))
        options = _options(op, arguments, values)
    first = tensors[names[0]]
    dtype = dtype_of(op, names[0], first)
    case = Case(
        op=op,
        sizes=tuple(values.items()),
        dtype=dtype,
        weight_dtype=dtype,
        layout=CONTIGUOUS,
        options=implied(values) | frozenset(options),
    )
    _check_sequences(case, arguments)
    for name, shape in shapes(case).items():
        tensor = tensor_of(op, arguments, name, len(shape))
        check_shape(op, name, tensor, shape)
        integers = name.startswith("cu_seqlens")
        check_dtype(
            op, name, tensor, dtype if name in AXES else torch.int32 if integers else torch.float32
        )
    return case


def _options(op: str, arguments: Inputs, sizes: dict[str, int]) -> set[str]:
    """Return the options that arguments stand for, and put what they bring into `sizes`."""
    keywords = {name: value for name, value in arguments.items() if name in Options._fields}
    passed = Options.of(keywords)
    for name, limit in zip(("left", "right"), passed.window or (None, None), strict=True):
        if limit is not None and limit < 0:
            raise ArgumentsError(f"{op}: window's {name} limit is {limit}; write None for no limit")
        if limit is not None:
            sizes[f"window_{name}"] = limit
    has = {
        "causal": passed.causal,
        "bottom_right": passed.corner == "bottom_right"
        and (passed.causal or passed.window is not None or passed.alibi_slopes is not None),
        "bias": passed.bias is not None,
        "alibi": passed.alibi_slopes is not None,
        "softcap": passed.softcap is not None,
        "sink": passed.sink is not None,
        "dropout": passed.dropout_p > 0,
        "varlen": passed.cu_seqlens_q is not None,
        "scale": passed.scale is not None,
    }
    options = {name for name, holds in has.items() if holds}
    if passed.bias is not None and passed.bias.ndim == 4:
        over = {"batch": ("b", 0), "heads": ("h_q", 1), "queries": ("s_q", 2)}
        for word, (size, axis) in over.items():
            if passed.bias.shape[axis] == 1 != sizes[size]:
                options.add(f"bias_over_{word}")
    if passed.cu_seqlens_q is not None:
        sizes["b"] = passed.cu_seqlens_q.numel() - 1
        sizes["s_q"] = passed.max_seqlen_q or 0
        sizes["s_kv"] = passed.max_seqlen_k or 0
    scored = [required(arguments, name) for name in ("q", "k", "v")]
    if "dropout" in options and not all(bool(x.isfinite().all()) for x in scored):
        # A kernel that selects has 0 where one that multiplies by the mask has NaN.
        raise ArgumentsError(
            f"{op}: with dropout nothing says what a pair that isn't finite and is dropped gives; "
            "pass finite values"
        )
    return options


def _check_sequences(case: Case, arguments: Inputs) -> None:
    """Raise ArgumentsError for a packed batch whose lengths aren't those of the case."""
    lengths = sequences(case)
    for name, size in (("cu_seqlens_q", "s_q"), ("cu_seqlens_k", "s_kv")):
        ends = optional(arguments, name)
        if ends is None and lengths:
            raise ArgumentsError(f"{case.op} needs the argument {name} beside the other one")
        if isinstance(ends, Tensor) and ends.diff().tolist() != [
            sequence[size] for sequence in lengths
        ]:
            raise ArgumentsError(f"{case.op}: {_PACKED}")
