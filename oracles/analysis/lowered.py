"""Operations written in operations that have rules, where torch has no such decomposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
LEAD = 2  # axes of a batch and of channels, before those of space


def along(given: int | Sequence[int], axes: int) -> list[int]:
    """Return a number for each axis of space, of which torch may be given one for all."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * axes if len(numbers) == 1 else numbers


def _of_convolution(  # noqa: PLR0913,PLR0917  # aten's own
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  # aten's own
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Write a convolution's gradients as convolutions, in place of aten's one operation."""
    del bias_sizes, output_padding
    space = x.dim() - LEAD
    stride, padding, dilation = (along(item, space) for item in (stride, padding, dilation))
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        reached = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                *(dy.shape[LEAD:], stride, padding, dilation, weight.shape[LEAD:]), strict=True
            )
        ]
        missing = [size - its for size, its in zip(x.shape[LEAD:], reached, strict=True)]
        rest = [0] * space if transposed else missing
        of_x = _aten.convolution(
            dy, weight, None, stride, padding, dilation, not transposed, rest, groups
        )
    if output_mask[1]:
        large, small = (dy, x) if transposed else (x, dy)
        of_weight = _aten.convolution(
            *(_batch_last(large, groups), _batch_inside(small), None),
            *(dilation, padding, stride, False, [0] * space, groups),
        )
        for axis, size in enumerate(weight.shape[LEAD:], LEAD):
            of_weight = of_weight.narrow(axis, 0, size)
        of_weight = of_weight.transpose(0, 1).contiguous()  # as aten returns it
    if output_mask[2]:
        of_bias = dy.sum([0, *range(LEAD, dy.dim())])
    return of_x, of_weight, of_bias


def _batch_last(x: Tensor, groups: int) -> Tensor:
    """[n, g c, ...] as [c, g n, ...]: a group's channels as a batch, and the batch as channels."""
    parts = x.unflatten(1, (groups, x.shape[1] // groups)).permute(2, 1, 0, *range(3, x.dim() + 1))
    result: Tensor = parts.reshape(parts.shape[0], -1, *x.shape[LEAD:])
    return result


def _batch_inside(x: Tensor) -> Tensor:
    """[n, g c, ...] as [g c, n, ...], the weight that goes with `_batch_last`."""
    return x.transpose(0, 1)


def _of_shrink(dy: Tensor, x: Tensor, least: float) -> Tensor:
    """Write the gradient of `softshrink` and of `hardshrink` as a choice."""
    result: Tensor = torch.where((x >= -least) & (x <= least), 0.0, dy)
    return result


def _addbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Write a sum of a batch's products as a sum; with beta 0 the addend isn't read."""
    product = torch.bmm(a, b).sum(0)
    if not beta:
        return product if alpha == 1 else product * alpha
    return torch.add(c if beta == 1 else c * beta, product, alpha=alpha)


def _hardsigmoid(x: Tensor) -> Tensor:
    """Write it as torch's documentation does, x / 6 + 1 / 2, whose roundings are large near -3.

    The half is added in three parts, because (x + 3) (1 / 6) has as many roundings.
    """
    return (x / 6 + 0.25 + 0.125 + 0.125).clamp(0, 1)


def _hardswish(x: Tensor) -> Tensor:
    """Write it with the roundings of x clamp(x + 3, 0, 6) / 6 as well."""
    return x * (6 * _hardsigmoid(x)) / 6


LOWERED: dict[Any, Callable[..., Any]] = {
    _aten.convolution_backward.default: _of_convolution,
    _aten.softshrink_backward.default: _of_shrink,
    _aten.hardshrink_backward.default: _of_shrink,
    _aten.addbmm.default: _addbmm,
    _aten.hardsigmoid.default: _hardsigmoid,
    _aten.hardswish.default: _hardswish,
}
"""Functions that stand for operations of aten's."""
