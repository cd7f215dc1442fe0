"""Domains and declarations of our attention kernels, and the variants of calls and cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from kernel_workbench.kernels.attention.problem import AttentionCall, load_bytes
from kernel_workbench.kernels.attention.tile_model import GENERATIONS, Pass
from kernel_workbench.kernels.attention.variants import Need, dtype_key, key_passes, pick, serving
from kernel_workbench.kernels.registry import Domain, Function, kernel
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.attention.values import scale_of
from kernel_workbench.oracles.op import Case, Geometry, Numerics, Op

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
_SINGLE = (torch.float32,)
FEATURES = frozenset(
    {
        "causal", "bottom_right", "window", "bias", "bias_over_batch", "bias_over_heads",
        "bias_over_queries", "alibi", "softcap", "sink", "dropout", "varlen", "scale", "gqa",
        "unequal_d",
    }
)  # fmt: skip
SM = (75, 121)
_SINCE = {torch.bfloat16: 80}
# The halves' products, and tf32's, run on tensor cores, which don't round to nearest; whole fp32
# operands are multiplied by FMA units, which do. Every tile of ours holds 16 keys at least.
# Grids and tiles follow from the sizes alone.
_FP32 = Numerics(key_tile=16, batch_invariant=True, device_independent=True)
_TENSOR_CORES = replace(_FP32, accumulation_roundoff=2.0**-23)
_TF32 = replace(_TENSOR_CORES, tf32_operands=True)


def need_of_call(problem: AttentionCall, sm: int, vector: int, *, tf32: bool) -> Need:
    """Return a call's requirements on a variant; `vector`: elements that can be loaded at once."""
    whole = 16 // problem.q.element_size()
    return Need(
        dtype=dtype_key(problem.q.dtype, tf32=tf32),
        sm=sm,
        aligned=vector == whole,
        d=max(problem.d, problem.d_v),
        bias=problem.natural,
        dropout=problem.dropout,
    )


def load_bytes_of(place: Geometry) -> int:
    """Return the widest load from a tensor of a case at a 256-byte address plus its offset."""
    size = place.dtype.itemsize
    # A tensor without elements has no address.
    offset = place.offset if math.prod(place.shape) else 0
    return load_bytes(offset * size, place.shape, place.strides, size)


def need_of_case(case: Case, sm: int, *, tf32: bool) -> Need:
    """Return a case's requirements on a variant, from its data alone."""
    places = OPS[case.op].geometry(case)
    return Need(
        dtype=dtype_key(case.dtype, tf32=tf32),
        sm=sm,
        aligned=all(load_bytes_of(place) == 16 for name, place in places.items() if name != "bias"),
        d=max(case.size("d"), case.size("d_v")),
        bias=bool(case.options & {"bias", "alibi", "softcap", "sink"}) or scale_of(case) <= 0,
        dropout="dropout" in case.options,
    )


def variants_of_case(*kinds: Pass, case: Case, sm: int, tf32: bool = False) -> str:
    """Return the names of a case's variants on an sm, one for each pass."""
    need = need_of_case(case, sm, tf32=tf32)
    passes = [part for kind in kinds for part in (key_passes(need) if kind == "dkdv" else (kind,))]
    return " ".join(pick(part, need).name for part in passes)


def configurations_of_case(
    *ways: tuple[Pass, ...], case: Case, sm: int, tf32: bool = False
) -> tuple[str, ...]:
    """Return names of variants, one for each pass of a way; each variant occurs at least once.

    The passes of one way vary together, because their product would be large.
    """
    need = need_of_case(case, sm, tf32=tf32)
    combinations: list[str] = []
    tried: set[Pass] = set()
    for way in ways:
        of_pass = {kind: serving(kind, need) for kind in way}
        if not all(of_pass.values()):
            continue
        new = max(len(variants) for kind, variants in of_pass.items() if kind not in tried)
        tried |= set(way)
        combinations += [
            " ".join(variants[turn % len(variants)].name for variants in of_pass.values())
            for turn in range(new)
        ]
    return tuple(combinations)


def elements(case: Case, name: str) -> int:
    """Return the number of elements of an output of the case."""
    return math.prod(OPS[case.op].forms(case)[name].shape)


def gathered_elements(case: Case) -> int:
    """Return the elements of dq, dk and dv with fp32 accumulators in memory, on some sm."""
    need, outputs = need_of_case(case, 0, tf32=False), set()
    for sm, _ in (generation.sm for generation in GENERATIONS):
        if sm < _SINCE.get(case.dtype, 0):
            continue
        here = replace(need, sm=sm)
        if pick("dq", here).accumulator == "gmem":
            outputs.add("dq")
        if any(pick(kind, here).accumulator == "gmem" for kind in key_passes(here)):
            outputs |= {"dk", "dv"}
    return sum(elements(case, name) for name in outputs)


Variants = Callable[[Case, int], str]
Configurations = Callable[[Case, int], tuple[str, ...]]


def ours(
    op: Op,
    *,
    priority: int,
    workspace: Callable[[Case], int],
    variant: Variants,
    variants: Callable[[tuple[str, ...], int], tuple[str, ...]] | None = None,
    configurations: Configurations | None = None,
    features: frozenset[str] = FEATURES,
    sizes: Mapping[str, tuple[int, int | None]] | None = None,
    also: Callable[[Case], str | None] | None = None,
    ordered: bool = True,
    tf32: bool = False,
) -> Callable[[Function], Function]:
    """Register a function under its name for halves, and with `_fp32` for whole operands of fp32.

    tf32: for fp32 with tf32's operands alone. variants: names of all, of dtypes' names and an sm.
    ordered: its sums are added in one order; else what is added depends on the batch and the SMs.
    """
    kinds = [(_HALVES, _TENSOR_CORES, "", ("f16", "bf16")), (_SINGLE, _FP32, "_fp32", ("f32",))]
    if tf32:
        kinds = [(_SINGLE, _TF32, "", ("tf32",))]

    def register(function: Function) -> Function:
        for dtypes, declared, suffix, names in kinds:
            domain = Domain(
                dtypes=dtypes,
                features=features,
                sm=(80, SM[1]) if tf32 else SM,
                since={option: sm for option, sm in _SINCE.items() if option in dtypes},
                sizes=sizes or {},
                also=also,
            )
            numerics = declared
            if not ordered:
                numerics = replace(
                    declared,
                    bitwise_repeatable=False,
                    batch_invariant=False,
                    device_independent=False,
                )
            kernel(
                op,
                domain,
                numerics=numerics,
                priority=priority,
                same_code_as=f"{function.__name__.removesuffix('_tf32')}_fp32" if tf32 else None,
                variant=variant,
                variants=None if variants is None else partial(variants, names),
                configurations=configurations,
                workspace=workspace,
                name=function.__name__ + suffix,
            )(function)
        return function

    return register
