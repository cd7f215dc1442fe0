"""The factors of layer norm's cases. Sizes are small, so that an interpreter runs what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kernel_workbench.oracles.cases import factors
from kernel_workbench.oracles.cases.sizes import COLUMNS, ROWS
from kernel_workbench.oracles.op import Factor, Layout, Part

_OPTION = "residual", "accumulate", "device_independent", "rms_norm", "zero_centred"


def factors_of(
    pairs: Iterable[tuple[torch.dtype, torch.dtype]],
    named_layouts: Mapping[str, Layout],
    kinds: Mapping[str, Iterable[str]],
) -> tuple[Factor, ...]:
    """Return its factors, of these dtypes, layouts, and distributions by their kind."""
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
    half, accumulate = torch.float16, Part(options=frozenset({"accumulate"}))
    needs = {
        "near_overflow": Part(dtypes=(half, half)),
        "nan_dresidual": residual,
        "nan_dweight": accumulate,
    }
    return (
        factors.dtypes(pairs),
        factors.activations(),
        factors.layouts(named_layouts, "n", {"dresidual": residual}),
        *factors.distributions(kinds, needs, ("activations", "parameters", *_OPTION)),
        ROWS.factor("m"),
        COLUMNS.factor("n"),
        affine,
        *map(factors.option, _OPTION),
    )
