"""PyTorch's cross entropy of rows, and its gradient, also with smoothing and a z-loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES, gradients
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import (
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_FORWARD,
    SMOOTHED_CROSS_ENTROPY_BACKWARD,
    SMOOTHED_CROSS_ENTROPY_FORWARD,
)


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


def _smoothed(x: Tensor, target: Tensor, smoothing: float, z: float) -> Tensor:
    loss = functional.cross_entropy(x, target, reduction="none", label_smoothing=smoothing)
    return loss + (z * x.logsumexp(-1).square()).masked_fill(target == -100, 0)


@kernel(SMOOTHED_CROSS_ENTROPY_FORWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def smoothed(x: Tensor, target: Tensor, *, smoothing: float, z: float) -> Tensor:
    """`torch.nn.functional.cross_entropy` of logits in fp32, and what it hasn't."""
    return _smoothed(x.float(), target, smoothing, z)


@kernel(SMOOTHED_CROSS_ENTROPY_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def smoothed_backward(
    dloss: Tensor, x: Tensor, target: Tensor, *, smoothing: float, z: float
) -> Tensor:
    """Autograd's gradient of that."""
    return gradients(lambda wide: _smoothed(wide, target, smoothing, z), dloss, x)[0]
