"""How errors go through samples between numbers: by a grid of positions, and by cubics.

A result is a function of its positions, piecewise smooth and continuous, so that a position that is
off by d moves it by d times the steepest slope nearby: twice the largest magnitude nearby for a
linear interpolation, `_SLOPE_OF_CUBIC` times that for a cubic one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product as every

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles.analysis.arithmetic import Arithmetic
from kernel_workbench.oracles.analysis.lowered import LEAD
from kernel_workbench.oracles.analysis.quantities import Combination, Quantity, magnitude
from kernel_workbench.oracles.analysis.rules import UnknownError, rule
from kernel_workbench.oracles.analysis.windows import moves

_aten = torch.ops.aten
_LINEAR, _NEAREST, _CUBIC = range(3)  # torch's numbers
_ZEROS, _BORDER, _REFLECTED = range(3)
_NEAR = 7  # numbers along an axis, three on either side: of four taps, and one more
_SLOPE_OF_CUBIC = 6.0  # the sums of |w'| and |w| of four taps are 4.2 and 1.375 at most
_SHARE_OF_CUBIC = 1.9  # 1.375^2
_ROUNDINGS_OF_CUBIC = 128.0  # of two cubics' 16 products, in units of what is nearby


def _largest_nearby(x: Tensor) -> Tensor:
    """Return the largest number within three places of each, along each axis of space."""
    pool = F.max_pool2d if x.dim() == LEAD + 2 else F.max_pool3d
    result: Tensor = pool(x, _NEAR, stride=1, padding=_NEAR // 2)
    return result


@rule("grid_sampler_2d", "grid_sampler_3d")
def _sampled(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    grid: Quantity,
    mode: int,
    padding: int,
    align: bool,  # noqa: FBT001  # aten's own
) -> Tensor:
    space = a.value.dim() - LEAD
    operation = _aten.grid_sampler_2d if space == 2 else _aten.grid_sampler_3d
    lengths = grid.value.new_tensor(a.value.shape[LEAD:]).flip(0)  # as a grid has its axes
    off = 8 * arithmetic.u * (lengths / 2 * (grid.size + 1) + 1)
    off = off if grid.error is None else off + lengths / 2 * grid.error

    def by(x: Tensor, positions: Tensor, how: int, outside: int) -> Tensor:
        result: Tensor = operation(x, positions, how, outside, align)
        return result

    if mode == _NEAREST:
        error = torch.zeros_like(out.value)
        for sides in every((1, -1), repeat=space):
            moved = grid.value + off * grid.value.new_tensor(sides) * (2 / lengths)
            error = error.maximum((by(a.value, moved, mode, padding) - out.value).abs())
            if a.error is not None:
                error = error.maximum(error + by(a.error, moved, mode, padding))
    else:
        outside = _REFLECTED if padding == _REFLECTED else _BORDER

        def nearby(x: Tensor) -> Tensor:
            return by(_largest_nearby(x), grid.value, _LINEAR, outside)

        moved = off.sum(-1).unsqueeze(1)
        if mode == _CUBIC:
            error = _of_cubic(arithmetic, a, nearby, moved)
        else:
            taps = 2**space
            size = by(a.reach, grid.value, mode, padding)
            error = size * arithmetic.sure.growth(taps + 2 * space) + 2 * moved * nearby(a.reach)
            error = error.add_(2 * taps * arithmetic.eta)
            if a.error is not None:
                error = error.add_(by(a.error, grid.value, mode, padding))
    return error.masked_fill(~(off.amax(-1).unsqueeze(1) < 1 / 2), math.inf)


def _of_cubic(
    arithmetic: Arithmetic, a: Quantity, nearby: Callable[[Tensor], Tensor], moved: Tensor | float
) -> Tensor:
    """Bound a cubic interpolation whose positions along both axes are off by `moved` in all."""
    most = nearby(a.reach)
    error = most * (moved * _SLOPE_OF_CUBIC + _ROUNDINGS_OF_CUBIC * arithmetic.u)
    error = error.add_(32 * arithmetic.eta)
    return error if a.error is None else error.add_(nearby(a.error), alpha=_SHARE_OF_CUBIC)


@rule("upsample_bicubic2d")
def _bicubic(
    arithmetic: Arithmetic,
    out: Quantity,
    a: Quantity,
    sizes: Sequence[int] | None,
    align: bool,  # noqa: FBT001  # aten's own
    *scales: float | None,
) -> Combination:
    if sizes is None:
        raise UnknownError("is given factors in place of sizes")

    def nearby(x: Tensor) -> Tensor:
        result: Tensor = _aten.upsample_bilinear2d(_largest_nearby(x), sizes, align, *scales)
        return result

    off = moves(a.value.shape[LEAD:]) / 2
    return Combination(out, [(1.0, magnitude(_of_cubic(arithmetic, a, nearby, off)))], 0.0)
