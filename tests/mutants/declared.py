"""Kernels that declare casts on their way, or batch invariance, and do something worse."""

from __future__ import annotations

from pathlib import Path

import torch

from kernel_workbench.oracles import LAYER_NORM_BACKWARD, RMS_NORM_FORWARD
from kernel_workbench.oracles.reference.cases import case_of
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


_ROWS = {"m": 66, "n": 264}


def _together(name: str, why: str) -> Mutant:
    return Mutant(
        name=f"declared_{name}",
        bugs=(),
        op=RMS_NORM_FORWARD.name,
        kernel=name,
        cases=(case_of(RMS_NORM_FORWARD.name, _ROWS, (torch.float32, torch.float32), "ci"),),
        rules=("invariance",),
        why=why,
        file=_FILE.with_name("rows_together.py"),
        sound="rows",
    )


MUTANTS = (
    _together(
        "block_of_many_rows",
        "it declares batch invariance, and adds a row up in other blocks from 256 rows on",
    ),
    _together(
        "block_of_one_row",
        "it declares batch invariance, and adds a row that is alone up in other blocks",
    ),
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
