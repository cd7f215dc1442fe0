"""Cross entropy of rows of logits: loss_i = log sum_j exp(x_ij) - x_i,target_i.

Smoothed, a part of the target is spread over all n labels (Szegedy et al. 2016, arXiv 1512.00567,
7), and z (log sum_j exp(x_ij))^2 is added (PaLM, arXiv 2204.02311, 5); a row without a label has
no loss and no gradient, whatever its logits are. Where one of them is NaN its loss is 0; its
gradient is 0 in Liger, and NaN in PyTorch, which multiplies NaN by 0: either is right.

A logit of infinity is undefined: exp(x - max) makes its row NaN, and the formula doesn't.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from kernel_workbench.oracles.analysis import rounds
from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("loss",), labels={"target": "n"}, without=("inf",))
def cross_entropy(x: Float[Tensor, "m n"], target: Int[Tensor, "m"]) -> Float32[Tensor, "m"]:
    """Row by row, in fp32 whatever the logits are in; some kernels cast it to their type first."""
    loss = torch.logsumexp(x, -1) - x.gather(-1, target[:, None]).squeeze(-1)
    return rounds(loss, "loss")


_NO_LABEL = -100


@op(
    sizes={"m": ROWS, "n": WIDTHS},
    outputs=("loss",),
    labels={"target": "n"},
    ignored={"target": _NO_LABEL},
    without=("inf",),
    numbers={"smoothing": (0.0, 0.2), "z": (0.0, 1e-2)},
)
def smoothed_cross_entropy(
    x: Float[Tensor, "m n"],
    target: Int[Tensor, "m"],
    smoothing: float = 0.1,
    z: float = 1e-4,
) -> Float32[Tensor, "m"]:
    """Row by row, in fp32; a target of -100 is none."""
    ignored = target == _NO_LABEL
    x = torch.where(ignored[:, None], 0.0, x)
    lse = torch.logsumexp(x, -1)
    chosen = x.gather(-1, target.clamp(min=0)[:, None]).squeeze(-1)
    loss = lse - (1 - smoothing) * chosen - smoothing * x.mean(-1) + z * lse.square()
    return rounds(torch.where(ignored, 0.0, loss), "loss")


CROSS_ENTROPY_FORWARD = cross_entropy
CROSS_ENTROPY_BACKWARD = cross_entropy.backward()
SMOOTHED_CROSS_ENTROPY_FORWARD = smoothed_cross_entropy
SMOOTHED_CROSS_ENTROPY_BACKWARD = smoothed_cross_entropy.backward(spreads="m")
