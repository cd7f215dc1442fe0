"""Layer-norm backward as PyTorch's compiler, inductor, generates it from the closed form.

Each shape, dtype and set of options is compiled anew, which takes seconds: so its domain contains
only the large cases, about twenty.
"""

from __future__ import annotations

from torch import Tensor

from kernel_workbench.kernels.baselines.compilation import compiled, reject_elements, unwatched
from kernel_workbench.kernels.baselines.layer_norm_torch import DTYPES, Gradients, torch_eager
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Case

_LEAST = 2**23  # elements of 128 x 65536, the smallest shape of the comparison with peers


def _reject(case: Case) -> str | None:
    return reject_elements(case.size("m") * case.size("n"), _LEAST)


@kernel(
    LAYER_NORM_BACKWARD,
    Domain(
        dtypes=DTYPES,
        weight_dtypes=DTYPES,
        strides="rows",
        features=frozenset({"no_weight", "no_bias", "zero_centred", "rms_norm", "residual"}),
        devices=("cuda",),
        also=_reject,
    ),
    priority=-15,
)
def inductor(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, **given: object
) -> Gradients:
    """Compute the closed form in fp32, compiled."""
    tensors = (dy, x, weight, mean, rstd, given.get("dresidual"))
    laid_out = tuple(
        (tuple(tensor.shape), tensor.stride(), tensor.dtype) if isinstance(tensor, Tensor) else None
        for tensor in tensors
    )
    flags = given.get("has_bias", True), given.get("zero_centred", False)
    with unwatched():
        gradients: Gradients = compiled(torch_eager, laid_out, flags)(
            dy, x, weight, mean, rstd, **given
        )
    return gradients
