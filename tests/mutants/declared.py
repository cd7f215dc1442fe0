"""Kernels that declare casts on their way and do something worse."""

from __future__ import annotations

from pathlib import Path

from oracles import LAYER_NORM_BACKWARD
from tests.mutants.mutant import ERROR, Mutant

_FILE = Path(__file__).resolve().parent.parent / "candidates" / "declared_kernels" / "worse.py"


def _worse(name: str, why: str, *cases: str) -> Mutant:
    return Mutant(
        name=f"declared_{name}",
        bugs=(),
        op=LAYER_NORM_BACKWARD.name,
        kernel=name,
        cases=cases,
        rules=ERROR,
        why=why,
        file=_FILE,
        sound="plain_ln_sound",
    )


MUTANTS = (
    _worse(
        "one_partial_of_256",
        "it adds all rows to one sum in the input's type, of 256 that it declares",
        "m37-n760-bfloat16-contiguous",
    ),
    _worse(
        "products_summed_in_half",
        "it adds the products that it casts, as declared, in the input's type",
        "m37-n760-bfloat16-contiguous",
    ),
    _worse(
        "gradient_in_bfloat16",
        "it casts dy to bfloat16, and declares the weight's type",
        "m37-n760-float32-contiguous",
    ),
    _worse(
        "partials_added_in_half",
        "it adds the partials that it casts, as declared, in the input's type",
        "m37-n760-bfloat16-contiguous",
    ),
)
