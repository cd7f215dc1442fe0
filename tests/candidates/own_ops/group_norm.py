"""Group norm, whose groups hold one channel each at the smallest sizes, and kernels in PyTorch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernel_workbench import ROWS, WIDTHS, Domain, Sizes, kernel, op

CHANNELS = Sizes(
    "channels",
    {"few": (8, 16), "many": (64, 40, 24)},
    lambda c: "few" if c < 24 else "many",
    large=(64, 256),
    multiple=8,
)


@op(sizes={"b": ROWS, "c": CHANNELS, "s": WIDTHS})
def group_norm(
    x: Float[Tensor, "b c s"],
    weight: Float[Tensor, "c"],
    bias: Float[Tensor, "c"],
    groups: int = 8,
    eps: float = 1e-5,
) -> Float[Tensor, "b c s"]:
    """Normalise each group of channels."""
    b, c, s = x.shape
    wide = x.reshape(b, groups, c // groups * s)
    centred = wide - wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * rstd).reshape(b, c, s) * weight[:, None] + bias[:, None]


def _register(name, change):
    served = Domain(dtypes=(torch.float32, torch.float16, torch.bfloat16))

    @kernel(group_norm, served, name=name)
    def normalise(x, weight, bias, *, groups, eps):
        if not x.numel():
            return torch.empty_like(x)
        b, c, s = x.shape
        wide = x.float().reshape(b, groups, c // groups * s)
        centred = wide - change(wide).mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        y = (centred * rstd).reshape(b, c, s) * weight.float()[:, None] + bias.float()[:, None]
        return y.to(x.dtype)


_register("right", lambda x: x)
_register("mean_of_magnitudes", torch.abs)
