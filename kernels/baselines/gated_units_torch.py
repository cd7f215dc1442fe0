"""SwiGLU and GeGLU as PyTorch's operations, one after the other, and their gradients."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES, gradients
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import GEGLU_BACKWARD, GEGLU_FORWARD, SWIGLU_BACKWARD, SWIGLU_FORWARD
from kernel_workbench.oracles.op import Numerics

_gelu = partial(functional.gelu, approximate="tanh")
_CASTS = Numerics(casts="activation")  # before its product with `up`


@kernel(SWIGLU_FORWARD, Domain(dtypes=DTYPES), numerics=_CASTS, priority=-10, name="torch_eager")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu`, and a product."""
    return functional.silu(gate) * up


@kernel(GEGLU_FORWARD, Domain(dtypes=DTYPES), numerics=_CASTS, priority=-10, name="torch_eager")
def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """`gelu`, and a product."""
    return _gelu(gate) * up


@kernel(SWIGLU_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_eager")
def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """Autograd's gradients in fp32."""
    return gradients(lambda g, u: functional.silu(g) * u, dy, gate, up)


@kernel(GEGLU_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_eager")
def geglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """Autograd's gradients in fp32."""
    return gradients(lambda g, u: _gelu(g) * u, dy, gate, up)
