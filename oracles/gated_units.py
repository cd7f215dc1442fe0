"""Gated linear units after their products: SwiGLU and GeGLU (Shazeer 2020, arXiv 2002.05202).

    swiglu = silu(gate) up      silu(g) = g / (1 + exp(-g))
    geglu = gelu(gate) up       gelu(g) = g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2

PyTorch's operations cast what stands before `up`; a fused kernel doesn't.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from kernel_workbench.oracles.analysis import rounds
from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS
from kernel_workbench.oracles.reference import op


@op(sizes={"m": ROWS, "n": WIDTHS})
def swiglu(gate: Float[Tensor, "m n"], up: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Element by element."""
    return rounds(functional.silu(gate), "activation") * up


@op(sizes={"m": ROWS, "n": WIDTHS})
def geglu(gate: Float[Tensor, "m n"], up: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Element by element, with the approximation by tanh that models are trained with."""
    return rounds(functional.gelu(gate, approximate="tanh"), "activation") * up


SWIGLU_FORWARD, SWIGLU_BACKWARD = swiglu, swiglu.backward()
GEGLU_FORWARD, GEGLU_BACKWARD = geglu, geglu.backward()
