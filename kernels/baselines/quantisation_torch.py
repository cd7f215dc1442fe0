"""PyTorch's scaled quantisation to fp8: one eager operation after the other, and compiled.

A cast of a number above 448 gives NaN in some versions, so numbers are clamped before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.autograd_torch import DTYPES
from kernel_workbench.kernels.baselines.compilation import compiled, reject_elements, unwatched
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import QUANTISE_BLOCKS, QUANTISE_ROWS
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.quantisation import BLOCK

_CODES = torch.float8_e4m3fn
_LARGEST = torch.finfo(_CODES).max
_LEAST = 2**20  # elements; each shape is compiled anew, which takes seconds


def _reject(case: Case) -> str | None:
    elements = case.size("m") * dict(case.sizes).get("n", BLOCK) * dict(case.sizes).get("g", 1)
    return reject_elements(elements, _LEAST)


_COMPILED = Domain(dtypes=DTYPES, strides="rows", devices=("cuda",), also=_reject)


@kernel(QUANTISE_ROWS, Domain(dtypes=DTYPES), priority=-10)
def torch_eager(x: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute the formula in fp32, over the last axis."""
    wide = x.float()
    scale = wide.abs().amax(-1).clamp(min=eps) / _LARGEST
    return (wide / scale.unsqueeze(-1)).clamp(-_LARGEST, _LARGEST).to(_CODES), scale


@kernel(QUANTISE_BLOCKS, Domain(dtypes=DTYPES), priority=-10, name="torch_eager")
def torch_eager_blocks(x: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute the formula in fp32, over blocks."""
    codes, scales = torch_eager(x.unflatten(-1, (x.shape[-1] // BLOCK, BLOCK)), eps=eps)
    return codes.flatten(-2), scales


def _compiled(
    function: Callable[..., tuple[Tensor, Tensor]], x: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    with unwatched():
        quantised: tuple[Tensor, Tensor] = compiled(function, tuple(x.shape), x.stride(), x.dtype)(
            x, eps=eps
        )
    return quantised


@kernel(QUANTISE_ROWS, _COMPILED, priority=-15)
def inductor(x: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `torch_eager`, compiled."""
    return _compiled(torch_eager, x, eps)


@kernel(QUANTISE_BLOCKS, _COMPILED, priority=-15, name="inductor")
def inductor_blocks(x: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `torch_eager_blocks`, compiled."""
    return _compiled(torch_eager_blocks, x, eps)
