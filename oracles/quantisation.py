"""Scaled quantisation to fp8 (e4m3): codes = x / scale, scale = max |x| / 448, by rows or blocks.

No |x| / scale is above 448, the largest code, so that nothing saturates. The scale of numbers that
are all below eps, zeros too, is eps / 448. A NaN makes the scale and all codes of its row or
block NaN; an infinity makes the scale infinite, its own code NaN and the others 0.

Both quotients are written as products. Among x / scale, x (1 / scale) and x (448 / max) the second
has the most roundings, and its bound holds for all three. A scale is max / 448, or max times fp32's
1 / 448, as PyTorch makes it on a GPU.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float8e4m3fn, Float32
from torch import Tensor

from kernel_workbench.oracles.cases.sizes import ROWS, WIDTHS, Sizes
from kernel_workbench.oracles.reference import op

BLOCK = 128
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
BLOCKS = Sizes(
    "blocks",
    {"several": (3, 2, 5), "one": (1,), "many": (9, 11)},
    lambda g: "one" if g == 1 else "several" if g < 8 else "many",
    large=(8, 1, 32, 57, 512),
    timed=(32, 8, 512, 2),
    once=(37,),
)


def _scaled(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Over the last axis."""
    scale = x.abs().amax(-1).clamp(min=eps) * (1 / _LARGEST)
    return x * (1 / scale).unsqueeze(-1), scale


@op(sizes={"m": ROWS, "n": WIDTHS}, outputs=("codes", "scales"), name="quantise_rows")
def quantise_rows(
    x: Float[Tensor, "m n"], eps: float = 1e-12
) -> tuple[Float8e4m3fn[Tensor, "m n"], Float32[Tensor, "m"]]:
    """A scale a row."""
    return _scaled(x, eps)


@op(sizes={"m": ROWS, "g": BLOCKS}, outputs=("codes", "scales"), name="quantise_blocks")
def quantise_blocks(
    x: Float[Tensor, "m 128*g"], eps: float = 1e-12
) -> tuple[Float8e4m3fn[Tensor, "m 128*g"], Float32[Tensor, "m g"]]:
    """A scale for each 128 columns of a row."""
    codes, scales = _scaled(x.unflatten(-1, (x.shape[-1] // BLOCK, BLOCK)), eps)
    return codes.flatten(-2), scales


QUANTISE_ROWS = quantise_rows
QUANTISE_BLOCKS = quantise_blocks
