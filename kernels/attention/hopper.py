"""ATTENTION_FORWARD on Hopper: `hopper`, with TMA, asynchronous products and groups of warps.

It serves halves, heads of 64, 128 and 256, every mask, scales, grouped heads, ALiBi, sinks,
softcaps, dropout and biases; `flash` serves the rest, and what is too small to keep a GPU busy.
Bitwise repeatable, and a row's bits depend on no other batch or head.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernel_workbench.kernels import launch_plan
from kernel_workbench.kernels.attention.hopper_kernel import hopper_kernel
from kernel_workbench.kernels.attention.problem import (
    AttentionCall,
    AttentionError,
    vector_elements,
)
from kernel_workbench.kernels.attention.registration import load_bytes_of
from kernel_workbench.kernels.device import (
    FIXED_MULTIPROCESSORS,
    multiprocessors,
    on_device_of,
    sm_of,
    unlaunchable,
)
from kernel_workbench.kernels.integers import cdiv
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_FORWARD, OPS
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case, Numerics

Forward = tuple[Tensor, Tensor]

_LOG2E = math.log2(math.e)

SM = (90, 90)
DTYPES = (torch.float16, torch.bfloat16)
WHOLE = 16  # bytes that TMA wants pointers and strides to be multiples of
ROWS = 64  # queries of a group of warps
STAGES = 2
LONGEST_WITH_ALIBI = 2**21  # queries or keys, whose distances fp32 holds
NOT_SERVED = (
    "{name} float16 and bfloat16 on sm 90, heads of 64, 128 and 256, and 16-byte pointers, strides "
    "and rows, without cu_seqlens, ALiBi for at most "
    f"{LONGEST_WITH_ALIBI} keys; use {{other}}"
)
_SMALLEST_UNIT = 2.0**-40  # of scale, that a slope is divided by
FEATURES = frozenset(
    {
        "causal", "bottom_right", "window", "gqa", "scale", "alibi", "sink", "softcap", "dropout",
        "bias", "bias_over_batch", "bias_over_heads", "bias_over_queries",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForwardCut:
    """Groups of warps that compute, keys of a tile, and registers of a computing thread."""

    groups: int
    keys: int
    registers: int


# By head; chosen on an H200 (docs/measured.md). A cut doesn't change bits. Three groups have few
# registers: a window, ALiBi and a softcap want more.
_CUTS = {64: ForwardCut(3, 128, 160), 128: ForwardCut(2, 128, 240), 256: ForwardCut(2, 64, 240)}
_FEW_ROWS = 4096
_OF_FEW_ROWS = {64: ForwardCut(2, 128, 240)}


def cut_of(d: int, rows: int, *, plain: bool = True) -> ForwardCut:
    """Return the cut for a head and a number of queries; plain: no window, ALiBi or softcap."""
    return _CUTS[d] if plain and rows >= _FEW_ROWS else _OF_FEW_ROWS.get(d, _CUTS[d])


def _is_quick(d: int, rows: int, heads: int, *, window: bool) -> bool:
    """Return True if dispatch takes it: pairs of blocks of `rows` queries fill an H200.

    `flash` has smaller tiles, and a window excludes more of them: heads of 64 are faster there.
    """
    if d == 64 and window:
        return False
    blocks: int = cdiv(rows, cut_of(d, rows).groups * ROWS)
    return heads * ((blocks + 1) // 2) >= FIXED_MULTIPROCESSORS


def is_served(problem: AttentionCall, heads: Container[int], *more: Tensor) -> bool:
    """Return True if these kernels serve a call; `more` must be aligned as q, k and v."""
    options, q = problem.options, problem.q
    apart = options.cu_seqlens_q is None  # sequences don't lie end to end
    rows = (q, problem.k, problem.v, *more)
    if problem.bias is not None:
        rows = *rows, problem.bias
    counted = options.alibi_slopes is None or max(problem.s_q, problem.s_kv) <= LONGEST_WITH_ALIBI
    aligned = vector_elements(*rows) * q.element_size() == WHOLE
    shaped = q.dtype in DTYPES and problem.d in heads and problem.d == problem.d_v
    placed = unlaunchable(q) is None and SM[0] <= sm_of(q.device) <= SM[1]
    return apart and counted and shaped and aligned and placed


def serves(problem: AttentionCall) -> bool:
    """Return True if `hopper` serves a call and dispatch takes it."""
    served = is_served(problem, _CUTS)
    heads, window = problem.b * problem.h_q, problem.options.window is not None
    return served and _is_quick(problem.d, problem.s_q, heads, window=window)


class _CachedLayout(gl.NVMMASharedLayout):  # type: ignore[misc]  # triton has no types
    """Triton's layout with a cached text: Triton writes it again for every box of every launch."""

    @cached_property
    def _text(self) -> str:
        written: str = super().__repr__()
        return written.replace(type(self).__name__, "NVMMASharedLayout")

    def __repr__(self) -> str:
        return self._text


@lru_cache(maxsize=1024)
def _boxes(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    rows: int,
    columns: int,
    there: int,
) -> Mapping[str, object]:
    """Return the fields of a descriptor of a tensor [b, s, h, d], except the tensor itself."""
    (b, s, h, d), (stride_b, stride_s, stride_h, _) = shape, strides
    element = gl.float16 if dtype == torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for([1, 1, rows, columns], element)
    # An axis of one element may have any stride; TMA wants multiples of 16 bytes.
    steps = [stride_b if b > 1 else d, stride_h if h > 1 else d, stride_s if s > 1 else d, 1]
    return {
        "shape": [b, h, there, d],
        "strides": steps,
        "block_shape": [1, 1, rows, columns],
        "layout": _CachedLayout(
            **{item.name: getattr(layout, item.name) for item in fields(layout)}
        ),
    }


def descriptor(
    tensor: Tensor, rows: int, there: int | None = None, *, columns: int | None = None
) -> TensorDescriptor:
    """Return boxes of so many rows of a head of [b, s, h, d]; rows from `there` on read as 0.

    columns: columns of a box, if a box isn't as wide as a head. It skips Triton's checks, which
    take 8 us: `is_served` has made them.
    """
    shape = tensor.shape
    boxes = TensorDescriptor.__new__(TensorDescriptor)
    contents = _boxes(
        shape,
        tensor.stride(),
        tensor.dtype,
        rows,
        shape[3] if columns is None else columns,
        shape[1] if there is None else there,
    )
    vars(boxes).update(contents, base=tensor)
    return boxes


class Limits(NamedTuple):
    """The keys that queries may attend to, from `first` up to `end`.

    Query i may attend to keys i + shift - left to i + shift + right, counted from `first`; mask:
    none, causal or window.
    """

    mask: str
    first: int
    end: int
    shift: int
    left: int
    right: int

    @classmethod
    def of(cls, problem: AttentionCall) -> Limits:
        """Return the limits of a call's options; keys outside are never read."""
        options, s_q, s_kv = problem.options, problem.s_q, problem.s_kv
        left, right = problem.left, problem.right
        shift = s_kv - s_q if options.corner == "bottom_right" else 0
        first = min(max(0, shift - left), s_kv)
        end = max(first, min(s_kv, s_q + shift + right))
        mask = "none" if not options.causal else "causal"
        if options.window is not None:
            mask = "window"
        return cls(mask, first, end, shift - first, left, right)


def _is_one_row(bias: Tensor) -> bool:
    """Return True if all queries share one row of an expanded bias."""
    return bias.stride(2) == 0 or bias.shape[2] == 1


def lead_of(problem: AttentionCall, limits: Limits) -> int:
    """Return by how many keys tiles begin before the first key that queries may attend to.

    Dropout draws for four keys at once, so tiles begin where fours begin. TMA ends a program that
    reads a bias from another column than a multiple of 16 bytes on.
    """
    bias = problem.bias
    if bias is not None and not _is_one_row(bias):
        return limits.first % (WHOLE // bias.element_size())
    return limits.first % 4 if problem.threshold else 0


def bias_of(
    problem: AttentionCall, rows: int, keys: int, end: int, unread: Tensor
) -> tuple[TensorDescriptor | None, Tensor, int, int]:
    """Return the bias as kernels take it: boxes or a tensor, and strides of batches and heads.

    rows, keys: sizes of a box; end: rows from `end` on read as 0. unread: any tensor, whose address
    stands for an absent one.
    """
    bias = problem.bias
    if bias is None:
        return None, unread, 0, 0
    if _is_one_row(bias):
        return None, bias, bias.stride(0), bias.stride(1)
    # TMA knows no stride of 0: a shared axis has one element.
    of_batch, of_head = (int(bias.stride(axis) != 0) for axis in (0, 1))
    boxed = bias[: problem.b if of_batch else 1, : problem.h_q if of_head else 1].transpose(1, 2)
    return descriptor(boxed, rows, end, columns=keys), unread, of_batch, of_head


def terms_of(problem: AttentionCall, *, forward: bool) -> str:
    """Return the names of the scores' terms, separated by spaces, as the kernels take them."""
    options = problem.options
    terms = {
        "alibi": options.alibi_slopes is not None,
        "softcap": options.softcap is not None,
        "sink": forward and options.sink is not None,
        "bias": problem.bias is not None and not _is_one_row(problem.bias),
        "bias_row": problem.bias is not None and _is_one_row(problem.bias),
        "dropout": problem.threshold > 0,
        "first": forward and options.softcap is None and problem.scale < _SMALLEST_UNIT,
    }
    return " ".join(name for name, there in terms.items() if there)


def scale_and_cap(problem: AttentionCall) -> tuple[float, float]:
    """Return the scale and the cap of the kernel's terms."""
    scale, softcap = problem.scale * _LOG2E, problem.options.softcap
    return (scale, 1.0) if softcap is None else (2 * scale / softcap, softcap * _LOG2E)


def hopper_forward(problem: AttentionCall, key: launch_plan.Key | None = None) -> Forward:
    """Compute out [b, s_q, h_q, d] like q and lse [b, h_q, s_q] in fp32, for a served call.

    key: the key of the launch's plan.
    """
    q, k, v, options = problem.q, problem.k, problem.v, problem.options
    b, s_q, h_q, d = problem.b, problem.s_q, problem.h_q, problem.d
    # Sizes one by one: torch takes 1 to 2 us less for them than for a tuple or a shape.
    out = q.new_empty(b, s_q, h_q, d)
    lse = q.new_empty(b, h_q, s_q, dtype=torch.float32)
    limits = Limits.of(problem)
    keys = limits.end - limits.first
    if not lse.numel():
        return out, lse
    if not keys:
        return _of_no_keys(problem, out, lse)
    if limits.first:
        k, v = k[:, limits.first :], v[:, limits.first :]
    bent = any(term is not None for term in (options.alibi_slopes, options.softcap, options.bias))
    plain = limits.mask != "window" and not bent and not problem.threshold
    cut = cut_of(d, s_q, plain=plain)
    blocks = cdiv(s_q, cut.groups * ROWS)
    programs = min((blocks + 1) // 2 * b * h_q, multiprocessors(q.device))
    terms, (scale, cap) = terms_of(problem, forward=True), scale_and_cap(problem)
    lead = lead_of(problem, limits)
    natural = options.softcap is not None or options.bias is not None or "first" in terms
    per_slope = _LOG2E if natural else _LOG2E / scale
    slopes, sink = (
        lse if tensor is None else tensor for tensor in (options.alibi_slopes, options.sink)
    )
    arguments = (
        descriptor(q, ROWS), descriptor(k, cut.keys, keys), descriptor(v, cut.keys, keys),
        descriptor(out, ROWS), lse, slopes, sink, blocks, b * h_q, h_q, problem.group, s_q,
        keys + lead,
        limits.shift + lead, limits.left, limits.right, scale, cap, per_slope, limits.first - lead,
        *bias_of(problem, ROWS, cut.keys, s_q, lse), lead, *problem.random_words,
        problem.keep_scale,
    )  # fmt: skip
    constants = {
        "MASK": limits.mask, "TERMS": terms, "STAGES": STAGES, "GROUPS": cut.groups,
        "REGISTERS": cut.registers,
    }  # fmt: skip
    with on_device_of(q):
        compiled = hopper_kernel[(programs,)](*arguments, **constants, num_warps=4)
    if not limits.first:  # k and v as they were given
        passed = (*arguments, *constants.values())
        launched = launch_plan.Launched(hopper_kernel, compiled, (programs,), passed)
        launch_plan.keep(key, (q, k, v), (out, lse), launch_plan.Recorded([launched]))
    return out, lse


def _of_no_keys(problem: AttentionCall, out: Tensor, lse: Tensor) -> Forward:
    """Return zeros, and the sink alone."""
    lse.fill_(float("-inf"))
    if problem.options.sink is not None:
        lse.copy_(problem.options.sink[:, None].expand_as(lse))
    return out.zero_(), lse


def lacks_alignment(case: Case, *names: str) -> str | None:
    """Return a sentence if these tensors of a case lack TMA's alignment, else None."""
    places = OPS[case.op].geometry(case)
    if any(load_bytes_of(places[name]) < WHOLE for name in names):
        return "needs 16-byte pointers, strides and rows"
    return None


def refusal(case: Case) -> str | None:
    """Return a refusal that a domain's other fields can't express, or None."""
    if case.size("d") not in _CUTS:
        return f"serves heads of {', '.join(map(str, _CUTS))}, got {case.size('d')}"
    longest = max(case.size("s_q"), case.size("s_kv"))
    if "alibi" in case.options and longest > LONGEST_WITH_ALIBI:
        return f"serves ALiBi for sequences of at most {LONGEST_WITH_ALIBI}, got {longest}"
    return lacks_alignment(case, "q", "k", "v", *({"bias"} & case.options))


def is_dispatched(case: Case) -> bool:
    """Return True if dispatch takes a served case."""
    heads, window = case.size("b") * case.size("h_q"), "window" in case.options
    return _is_quick(case.size("d"), case.size("s_q"), heads, window=window)


@kernel(
    ATTENTION_FORWARD,
    Domain(dtypes=DTYPES, features=FEATURES, sm=SM, relations=("d_v == d",), also=refusal),
    numerics=Numerics(
        key_tile=64, accumulation_roundoff=2.0**-23, batch_invariant=True, device_independent=True
    ),
    priority=25,
    workspace=lambda _: 0,
    dispatched=is_dispatched,
)
def hopper(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Forward:
    """Compute a tile's softmax on warps while the tensor cores compute its neighbours' products."""
    key = None
    if "dropout_p" not in given:  # a seed is another one at each call
        key = launch_plan.key_of("hopper", (q, k, v), *given, *given.values())
    planned = launch_plan.planned(key, (q, k, v))
    if planned is not None:
        out, lse = planned
        return out, lse
    problem = AttentionCall.of(q, k, v, Options(**given))
    if not is_served(problem, _CUTS):
        raise AttentionError(NOT_SERVED.format(name="hopper serves", other="flash"))
    return hopper_forward(problem, key)
