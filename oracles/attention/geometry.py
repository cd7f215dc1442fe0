"""Shapes, forms and counts of the attention ops: all that follows from a case without its values.

With n sequences one after the other (option "varlen") the lengths follow from the sizes; query
i of a sequence may attend to an interval of its keys, so that pairs are counted row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import strides_of
from kernel_workbench.oracles.op import Case, Geometry, OutputForm

FORWARD, DELTA = "attention_forward", "attention_delta"
BACKWARD, GRADIENTS = "attention_backward", "attention_gradients"

# One letter for each axis; these are the tensors whose layout a case may choose.
AXES = {
    "q": "bshd",
    "k": "bshd",
    "v": "bshd",
    "do": "bshd",
    "out": "bshd",
    "bias": "bhqk",
}
ARGUMENTS = {
    FORWARD: ("q", "k", "v"),
    DELTA: ("out", "do"),
    BACKWARD: ("do", "q", "k", "v", "out", "lse"),
    GRADIENTS: ("do", "q", "k", "v"),
}


def lengths(case: Case) -> tuple[tuple[int, int], ...]:
    """Return (s_q, s_kv) of each sequence of a varlen case.

    From five sequences on there are an empty one, one without queries, one without keys, one of
    length 1, and the longest. Where the largest lengths are equal (s_q = s_kv) each sequence's
    two lengths are; then none lacks its queries or its keys alone.
    """
    b, s_q, s_kv = case.size("b"), case.size("s_q"), case.size("s_kv")
    if s_q == s_kv:
        first = [(0, 0), (1, 1), (s_q, s_q), (s_q // 2, s_q // 2), (s_q // 3, s_q // 3)]
        more = [(1 + 37 * i % max(s_q, 1),) * 2 for i in range(b - len(first))]
    else:
        first = [(0, 0), (1, (s_kv + 1) // 2), (s_q, s_kv), (0, (s_kv + 2) // 3), (s_q // 2, 0)]
        more = [
            (1 + 37 * i % max(s_q, 1), 1 + 53 * i % max(s_kv, 1)) for i in range(b - len(first))
        ]
    if b < len(first):  # too few for all of them: the longest first
        first = [first[2], first[0], first[1], first[3]][:b]
    return tuple((min(q, s_q), min(k, s_kv)) for q, k in first + more)


def sequences(case: Case) -> tuple[dict[str, int], ...]:
    """s_q and s_kv of each sequence of a varlen case; none of another case."""
    if "varlen" not in case.options:
        return ()
    return tuple({"s_q": s_q, "s_kv": s_kv} for s_q, s_kv in lengths(case))


def spans(case: Case) -> Iterator[tuple[int, slice, slice]]:
    """The batch index, the queries and the keys of each sequence of a case with queries."""
    if "varlen" not in case.options:
        for batch in range(case.size("b")):
            yield batch, slice(0, case.size("s_q")), slice(0, case.size("s_kv"))
        return
    q = k = 0
    for s_q, s_kv in lengths(case):
        yield 0, slice(q, q + s_q), slice(k, k + s_kv)
        q, k = q + s_q, k + s_kv


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor argument that the case has, in the order of the arguments."""
    options = case.options
    b, h_q = case.size("b"), case.size("h_q")
    if case.op == DELTA:
        shape = (b, case.size("s_q"), h_q, case.size("d_v"))
        return {"out": shape, "do": shape}
    s_q, s_kv, batches = case.size("s_q"), case.size("s_kv"), b
    h_kv, d, d_v = case.size("h_kv"), case.size("d"), case.size("d_v")
    if "varlen" in options:
        sequences = lengths(case)
        batches, s_q, s_kv = 1, sum(q for q, _ in sequences), sum(k for _, k in sequences)
    every: dict[str, tuple[int, ...]] = {
        "q": (batches, s_q, h_q, d),
        "k": (batches, s_kv, h_kv, d),
        "v": (batches, s_kv, h_kv, d_v),
        "do": (batches, s_q, h_q, d_v),
        "out": (batches, s_q, h_q, d_v),
        "lse": (batches, h_q, s_q),
    }
    result = {name: every[name] for name in ARGUMENTS[case.op]}
    if "bias" in options:
        result["bias"] = (
            1 if "bias_over_batch" in options else b,
            1 if "bias_over_heads" in options else h_q,
            1 if "bias_over_queries" in options else s_q,
            s_kv,
        )
    if "alibi" in options:
        result["alibi_slopes"] = (h_q,)
    if "sink" in options:
        result["sink"] = (h_q,)
    if "varlen" in options:
        result["cu_seqlens_q"] = result["cu_seqlens_k"] = (b + 1,)
    return result


def forms(case: Case) -> dict[str, OutputForm]:
    """Return the shape and dtype of each output that the case has."""
    arguments = shapes(case)
    single = torch.float32
    if case.op == DELTA:
        b, s_q, h_q, _ = arguments["out"]
        return {"delta": OutputForm((b, h_q, s_q), single)}
    if case.op == FORWARD:
        b, s_q, h_q, _ = arguments["q"]
        out = OutputForm((b, s_q, h_q, case.size("d_v")), case.dtype)
        return {"out": out, "lse": OutputForm((b, h_q, s_q), single)}
    gradients = {
        f"d{name}": OutputForm(arguments[name], case.dtype)
        for name in ("q", "k", "v", "bias")
        if name in arguments
    }
    if "sink" in arguments:
        gradients["dsink"] = OutputForm(arguments["sink"], single)
    return gradients


def geometry(case: Case) -> dict[str, Geometry]:
    """Where the case puts each of q, k, v, do, out and bias that its op takes."""
    return {
        name: Geometry(
            shape,
            strides_of(case.layout.of(name), AXES[name], shape),
            case.layout.of(name).offset,
            case.dtype,
        )
        for name, shape in shapes(case).items()
        if name in AXES
    }


def key_ranges(case: Case, s_q: int, s_kv: int) -> tuple[Tensor, Tensor]:
    """First and last key, [s_q] each, that each query of one sequence may attend to.

    Where the last is below the first the query attends to none.
    """
    return _ranges(s_q, s_kv, _mask(case))


_Limits = tuple[int | None, int | None, bool, bool]


def _mask(case: Case) -> _Limits:
    """The window's two limits, whether it is causal, and whether its corner is bottom right."""
    sizes, options = dict(case.sizes), case.options
    window = sizes.get("window_left"), sizes.get("window_right")
    return *window, "causal" in options, "bottom_right" in options


def _ranges(s_q: int, s_kv: int, limits: _Limits) -> tuple[Tensor, Tensor]:
    left, right, causal, bottom_right = limits
    middle = torch.arange(s_q) + (s_kv - s_q if bottom_right else 0)
    first, last = torch.zeros_like(middle), torch.full_like(middle, s_kv - 1)
    if left is not None:
        first = first.maximum(middle - left)
    if right is not None:
        last = last.minimum(middle + right)
    if causal:
        last = last.minimum(middle)
    return first, last


@lru_cache(2**14)  # asked of thousands of cases that differ in little but their values
def _attended(s_q: int, s_kv: int, limits: _Limits) -> int:
    first, last = _ranges(s_q, s_kv, limits)
    return int((last - first + 1).clamp(min=0).sum())


def pairs(case: Case) -> int:
    """Return the number of (query, key) pairs that masks leave, over the batch, for one head."""
    limits = _mask(case)
    if "varlen" in case.options:
        return sum(_attended(*length, limits) for length in lengths(case))
    return case.size("b") * _attended(case.size("s_q"), case.size("s_kv"), limits)


def flops(case: Case) -> int:
    """Return the multiplications and additions of the matrix products that the masks leave.

    Forward 2 (d + d_v) for each pair and query head; backward 2 (3 d + 2 d_v): S again, dP, dV,
    dQ, dK. Gradients are both. Delta 2 d_v for each row.
    """
    if case.op == DELTA:
        return 2 * case.size("b") * case.size("h_q") * case.size("s_q") * case.size("d_v")
    d, d_v = case.size("d"), case.size("d_v")
    forward, backward = d + d_v, 3 * d + 2 * d_v
    per_pair = {FORWARD: forward, BACKWARD: backward, GRADIENTS: forward + backward}[case.op]
    return 2 * per_pair * pairs(case) * case.size("h_q")


def least_bytes(case: Case) -> int:
    """The least traffic: every input read once, every output written once."""
    total = 0
    for name, shape in shapes(case).items():
        # lse, sink and slopes are in fp32, cu_seqlens in int32
        total += math.prod(shape) * (case.dtype.itemsize if name in AXES else 4)
    return total + sum(form.nbytes for form in forms(case).values())
