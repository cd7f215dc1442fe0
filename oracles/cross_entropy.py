"""Cross entropy of rows of logits: loss_i = log sum_j exp(x_ij) - x_i,target_i.

Of a logit of infinity nothing is defined: exp(x - max) is NaN of its row, and the formula isn't.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from oracles.cases.sizes import ROWS, WIDTHS
from oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("loss",), labels={"target": "n"}, without=("inf",))
def cross_entropy(x: Float[Tensor, "m n"], target: Int[Tensor, "m"]) -> Float32[Tensor, "m"]:
    """Row by row, in fp32 whatever the logits are in."""
    return torch.logsumexp(x, -1) - x.gather(-1, target[:, None]).squeeze(-1)


CROSS_ENTROPY_FORWARD = cross_entropy
CROSS_ENTROPY_BACKWARD = cross_entropy.backward()
