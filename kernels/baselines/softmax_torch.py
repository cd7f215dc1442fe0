"""PyTorch's softmax and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES, gradients
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import SOFTMAX_BACKWARD, SOFTMAX_FORWARD


@kernel(SOFTMAX_FORWARD, Domain(dtypes=DTYPES), priority=-10)
def torch_native(x: Tensor) -> Tensor:
    """`torch.softmax`."""
    return torch.softmax(x, -1)


@kernel(SOFTMAX_BACKWARD, Domain(dtypes=DTYPES), priority=-10, name="torch_native")
def torch_native_backward(dy: Tensor, x: Tensor) -> Tensor:
    """Autograd's gradient of `torch.softmax` in fp32."""
    return gradients(lambda wide: torch.softmax(wide, -1), dy, x)[0]
