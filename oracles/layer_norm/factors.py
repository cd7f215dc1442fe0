"""What layer norm's cases differ in. Sizes are small, so that an interpreter runs what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from oracles.cases import factors
from oracles.op import Case, Factor, Layout, Part

_OPTION = "residual", "accumulate", "device_independent", "rms_norm", "zero_centred"


def _size(name: str, *values: int) -> tuple[Part, ...]:
    return tuple(Part(sizes={name: each}) for each in values)


def _rows() -> Factor:
    def level(case: Case) -> str:
        m = case.size("m")
        return "none" if not m else "one" if m == 1 else "few" if m < 30 else "many"

    levels = {
        "few": _size("m", 12, 3, 9, 15),
        "one": _size("m", 1),
        "many": _size("m", 33, 66, 132),
        "none": _size("m", 0),
    }
    return Factor("rows", levels, level)


def _columns() -> Factor:
    def level(case: Case) -> str:
        n = case.size("n")
        if n < 8:
            return "under 8"
        if n > 8192:
            return "over 8192"
        if n > 1024:
            return "over 1024, whole" if n % 8 == 0 else "over 1024, odd"
        if n & (n - 1) == 0:
            return "a power of two"
        return "a multiple of 8" if n % 8 == 0 else "no multiple of 8"

    levels = {
        "a multiple of 8": _size("n", 264, 24, 760, 520),
        "a power of two": _size("n", 64, 128, 256, 512, 1024),
        "no multiple of 8": _size("n", 77, 127, 129, 229, 513, 1023),
        "under 8": _size("n", 1, 3, 5),
        "over 1024, whole": _size("n", 2056, 3000, 1536, 2048),
        "over 1024, odd": _size("n", 1025, 1537, 3001),
        "over 8192": _size("n", 8193, 8200),
    }
    return Factor("columns", levels, level)


def factors_of(
    pairs: Iterable[tuple[torch.dtype, torch.dtype]],
    known: Mapping[str, Layout],
    distributions: Iterable[str],
) -> tuple[Factor, ...]:
    """Its factors, of these dtypes, layouts and distributions."""
    residual = Part(options=frozenset({"residual"}))
    affine = factors.choice(
        "parameters",
        {
            "weight and bias": (Part(),),
            "no bias": (Part(options=frozenset({"no_bias"})),),
            "no weight": (Part(options=frozenset({"no_weight"})),),
        },
        {"no_weight": "no weight", "no_bias": "no bias"},
    )
    half = torch.float16
    return (
        factors.dtypes(pairs),
        factors.layouts(known, "n", {"dresidual": residual}),
        factors.distributions(distributions, {"near_overflow": Part(dtypes=(half, half))}),
        _rows(),
        _columns(),
        affine,
        *map(factors.option, _OPTION),
    )
