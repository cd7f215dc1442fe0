"""PyTorch's matrix product: cuBLAS on a GPU, oneDNN and others on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import MATMUL_FORWARD
from kernel_workbench.oracles.op import Numerics

# Tensor cores don't round a sum to nearest.
_ACCUMULATION = Numerics(accumulation_roundoff=2.0**-23)


@kernel(MATMUL_FORWARD, Domain(dtypes=DTYPES), numerics=_ACCUMULATION, priority=-10)
def torch_native(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul`."""
    return torch.matmul(a, b)
