"""Kernels of linear_norm; `wrong` ones must fail."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench import OPS, Domain, kernel

_DOMAIN = Domain(dtypes=(torch.float32,), weight_dtypes=(torch.float32,))


def _norm(x: Tensor, w: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = x @ w.T + b
    z = z - z.mean(0)
    return z * torch.rsqrt(z.square().mean(0) + 1e-5) * weight + bias


@kernel(OPS["linear_norm"], _DOMAIN)
def right_with_state(
    x: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    norm_running_mean: Tensor,
    norm_running_var: Tensor,
    norm_num_batches_tracked: Tensor,
) -> tuple[Tensor, ...]:
    """Return what the buffers become, too."""
    z = x @ linear_weight.T + linear_bias
    mean, variance = z.mean(0), z.var(0)
    y = torch.relu(_norm(x, linear_weight, linear_bias, norm_weight, norm_bias))
    return (
        y,
        0.9 * norm_running_mean + 0.1 * mean,
        0.9 * norm_running_var + 0.1 * variance,
        norm_num_batches_tracked + 1,
    )


@kernel(OPS["linear_norm"], _DOMAIN)
def wrong_biased_variance(**given: Tensor) -> tuple[Tensor, ...]:
    """Keep the variance of a batch that isn't corrected."""
    y, mean, variance, count = right_with_state(**given)
    rows = len(given["x"])
    return y, mean, variance - 0.1 * (given["x"] @ given["linear_weight"].T).var(0) / rows, count


@kernel(OPS["linear_norm"], _DOMAIN)
def wrong_count(**given: Tensor) -> tuple[Tensor, ...]:
    """Leave the number of batches as it was."""
    y, mean, variance, count = right_with_state(**given)
    return y, mean, variance, count - 1


@kernel(OPS["linear_norm"], _DOMAIN, returns=("y",))
def right_alone(**given: Tensor) -> Tensor:
    """Return y alone."""
    return right_with_state(**given)[0]


@kernel(OPS["linear_norm"], _DOMAIN, returns=("y",))
def wrong_without_affine(**given: Tensor) -> Tensor:
    """Leave out what is 1 and 0 in a new module."""
    ones = torch.ones_like(given["norm_weight"])
    return right_with_state(**given | {"norm_weight": ones, "norm_bias": ones * 0})[0]


@kernel(OPS["linear_norm"], _DOMAIN, returns=("y",))
def wrong_without_linear_bias(**given: Tensor) -> Tensor:
    """Add the product's bias behind the norm, where it doesn't cancel."""
    bias = given["norm_bias"] + given["linear_bias"]
    return right_with_state(**given | {"norm_bias": bias})[0]
