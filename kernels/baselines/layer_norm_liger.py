"""Liger's layer-norm backward, where the package liger-kernel is installed.

Its Triton kernels run a program for each SM, which sums dweight and dbias of its share of the rows
in fp32; PyTorch adds up the programs' sums. Source: linkedin/Liger-Kernel,
liger_kernel/ops/layer_norm.py.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from kernel_workbench.kernels.baselines.layer_norm_torch import DTYPES, Gradients
from kernel_workbench.kernels.baselines.liger import liger_op
from kernel_workbench.kernels.baselines.optional import peer
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import LAYER_NORM_BACKWARD

_DOMAIN = Domain(
    dtypes=DTYPES,
    weight_dtypes=DTYPES,
    strides="rows",
    sizes={"n": (1, 65536)},  # a row is one block, and Triton limits a tensor's elements
    features=frozenset({"no_bias"}),
    # It is right under the interpreter too; but bench on a CPU times all baselines that run there,
    # and an interpreted kernel's time is meaningless.
    devices=("cuda",),
)


def liger(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, *, has_bias: bool = True
) -> Gradients:
    """Call its own backward, which needs the bias only for its dtype."""
    dx, dweight, dbias = liger_op("layer_norm", "layer_norm_backward")(
        dy, x, weight, weight, mean, rstd, needs_dw=True, needs_db=has_bias
    )
    return dx, dweight, dbias


peer(
    LAYER_NORM_BACKWARD,
    liger,
    _DOMAIN,
    name="liger",
    priority=-12,
    installed=find_spec("liger_kernel") is not None,
    package="liger-kernel",
)
