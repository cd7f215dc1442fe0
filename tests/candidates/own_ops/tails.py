"""An op that knows the signs of long rows alone: those found on short ones are no symmetry."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import ROWS, WIDTHS, Domain, kernel, op

_FIRST = 64


@op(sizes={"m": ROWS, "n": WIDTHS})
def tails(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Numbers beside the sum of what is past the first."""
    return x + x[:, _FIRST:].abs().sum(-1, keepdim=True)


def _register(name, power):
    @kernel(tails, Domain(dtypes=(torch.float32, torch.bfloat16)), name=name)
    def add(x):
        wide = x.float()
        return (wide + wide[:, _FIRST:].abs().pow(power).sum(-1, keepdim=True)).to(x.dtype)


_register("right", 1)
_register("squares", 2)
