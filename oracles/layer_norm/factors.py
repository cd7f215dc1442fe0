"""What layer norm's cases differ in. Sizes are small, so that an interpreter runs what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kernel_workbench.oracles.cases import factors
from kernel_workbench.oracles.cases.sizes import COLUMNS, ROWS
from kernel_workbench.oracles.op import Factor, Layout, Part

_OPTION = "residual", "accumulate", "device_independent", "rms_norm", "zero_centred"


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
        ROWS.factor("m"),
        COLUMNS.factor("n"),
        affine,
        *map(factors.option, _OPTION),
    )
