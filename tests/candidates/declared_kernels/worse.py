"""Kernels that declare casts as the others here do, and then do something worse."""

import torch

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, LayerNormNumerics, Numerics, kernel
from tests.candidates.declared_kernels.half_products import half_products
from tests.candidates.declared_kernels.locked_partials import backward
from tests.candidates.declared_kernels.mixed_types import mixed_types

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DOMAIN = Domain(dtypes=_DTYPES, weight_dtypes=_DTYPES, strides="rows", sizes={"n": (1, 16384)})


@kernel(
    LAYER_NORM_BACKWARD,
    _DOMAIN,
    numerics=LayerNormNumerics(half_accumulators=256, bitwise_repeatable=False),
)
def one_partial_of_256(dy, x, weight, mean, rstd):
    """256 sums in x's type are declared, and all rows are added to one."""
    return backward(dy, x, weight, mean, rstd, sums=1)


@kernel(
    LAYER_NORM_BACKWARD,
    _DOMAIN,
    numerics=Numerics(casts="normalised products dnormalised"),
)
def products_summed_in_half(dy, x, weight, mean, rstd):
    """Products in x's type are declared, and their sum is in that type too, row by row."""
    dx, _, dbias = half_products(dy, x, weight, mean, rstd)
    total = torch.zeros(x.shape[-1], dtype=x.dtype, device=x.device)
    for product in dy * ((x.float() - mean[:, None]) * rstd[:, None]).to(x.dtype):
        total = total + product
    return dx, total.to(weight.dtype), dbias


@kernel(LAYER_NORM_BACKWARD, _DOMAIN, numerics=Numerics(casts="gradient"))
def gradient_in_bfloat16(dy, x, weight, mean, rstd):
    """A dy in the weight's type is declared, and it is cast to bfloat16 beside any weight."""
    return mixed_types(dy.bfloat16().to(dy.dtype), x, weight, mean, rstd)


@kernel(LAYER_NORM_BACKWARD, _DOMAIN, numerics=Numerics(casts="partials"))
def partials_added_in_half(dy, x, weight, mean, rstd):
    """Partials that are cast once are declared, and they are added in x's type."""
    dx, _, _ = mixed_types(dy.to(weight.dtype).to(dy.dtype), x, weight, mean, rstd)
    products = dy.float() * ((x.float() - mean[:, None]) * rstd[:, None])
    sums = []
    for addends in (products, dy.float()):
        total = torch.zeros(x.shape[-1], dtype=x.dtype, device=x.device)
        for few in addends.split(2):
            total = total + few.sum(0).to(x.dtype)
        sums.append(total.to(weight.dtype))
    return dx, *sums
