"""What our attention kernels serve and declare, and the variant that a call or a case needs."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention.problem import Problem, load_bytes, vector_elements
from kernels.attention.variants import Need, Pass, dtype_key, key_passes, pick
from oracles import OPS
from oracles.op import Case, Geometry, Numerics

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
SINGLE = (torch.float32,)
FEATURES = frozenset(
    {
        "causal", "bottom_right", "window", "bias", "bias_over_batch", "bias_over_heads",
        "bias_over_queries", "alibi", "softcap", "sink", "dropout", "varlen", "scale", "gqa",
        "unequal_d",
    }
)  # fmt: skip
SM = (75, 121)
SINCE = {torch.bfloat16: 80}
# The halves' products, and tf32's, run on tensor cores, which don't round to nearest; whole fp32
# operands are multiplied by FMA units, which do. Every tile of ours holds 16 keys at least.
# Grids and tiles follow from the sizes alone.
DECLARED_FP32 = Numerics(key_tile=16, batch_invariant=True, device_independent=True)
DECLARED = replace(DECLARED_FP32, accumulation_roundoff=2.0**-23)
DECLARED_TF32 = replace(DECLARED, tf32_operands=True)


def need_of_call(problem: Problem, sm: int, tensors: tuple[Tensor, ...], *, tf32: bool) -> Need:
    """What a call asks of a variant; `tensors` are those that are loaded by vectors."""
    whole = 16 // problem.q.element_size()
    return Need(
        dtype=dtype_key(problem.q.dtype, tf32=tf32),
        sm=sm,
        aligned=vector_elements(*tensors) == whole,
        d=max(problem.d, problem.d_v),
        bias=problem.natural,
        dropout=problem.dropout,
    )


def load_bytes_of(place: Geometry) -> int:
    """The widest load from a tensor that a case puts at a 256-byte address, but for its offset."""
    size = place.dtype.itemsize
    return load_bytes(place.offset * size, place.shape, place.strides, size)


def need_of_case(case: Case, sm: int, *, tf32: bool) -> Need:
    """What a case asks of a variant, by its data alone."""
    places = OPS[case.op].geometry(case)
    return Need(
        dtype=dtype_key(case.dtype, tf32=tf32),
        sm=sm,
        aligned=all(load_bytes_of(place) == 16 for name, place in places.items() if name != "bias"),
        d=max(case.size("d"), case.size("d_v")),
        bias=bool(case.options & {"bias", "alibi", "softcap", "sink"}),
        dropout="dropout" in case.options,
    )


def variants_of_case(*kinds: Pass, case: Case, sm: int, tf32: bool = False) -> str:
    """The names of the variants that a case takes on an sm, one for each pass, "dkdv" as it is."""
    need = need_of_case(case, sm, tf32=tf32)
    passes = [each for kind in kinds for each in (key_passes(need) if kind == "dkdv" else (kind,))]
    return " ".join(pick(each, need).name for each in passes)


def elements(case: Case, name: str) -> int:
    """How many elements an output of the case has."""
    return math.prod(OPS[case.op].forms(case)[name].shape)
