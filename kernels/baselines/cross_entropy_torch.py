"""PyTorch's cross entropy of rows, and its gradient."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from kernels.baselines.autograd_torch import DTYPES, gradients
from kernels.registry import Domain, kernel
from oracles import CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_FORWARD


@kernel(CROSS_ENTROPY_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_native(x: Tensor, target: Tensor) -> Tensor:
    """`torch.nn.functional.cross_entropy` of logits in fp32, without a reduction."""
    return functional.cross_entropy(x.float(), target, reduction="none")


@kernel(CROSS_ENTROPY_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def torch_native_backward(dloss: Tensor, x: Tensor, target: Tensor) -> Tensor:
    """Autograd's gradient of that."""
    return gradients(
        lambda wide: functional.cross_entropy(wide, target, reduction="none"), dloss, x
    )[0]
