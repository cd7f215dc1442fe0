"""PyTorch's layer norm, forward."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import LAYER_NORM_FORWARD


@kernel(LAYER_NORM_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_native(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)
