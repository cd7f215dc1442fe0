"""Operations written in operations that have rules, where torch has no such decomposition."""

from __future__ import annotations

import math
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


_NOT_BY_PRODUCTS = 2  # torch's number for distances that no product of matrices computes


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Write Euclidean distances of rows by products, as a kernel may unless that is excluded."""
    if p == 2 and compute_mode != _NOT_BY_PRODUCTS:  # the Euclidean norm
        result: Tensor = _aten._euclidean_dist(x, y)  # noqa: SLF001  # torch's own name
        return result
    apart: Tensor = torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)
    return apart


def _of_distances(dy: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Any:  # noqa: ANN401
    """Write the gradient of distances by the first argument: 0 where two rows are equal."""
    apart, total = x.unsqueeze(-2) - y.unsqueeze(-3), distances.unsqueeze(-1)
    sign = apart.sign()
    if p == 1:
        share = sign
    elif math.isinf(p):
        share = torch.where(apart.abs() == total, sign, 0.0)
    elif p > 1:
        share = sign * torch.where(total == 0, 0.0, apart.abs() / total).pow(p - 1)
    else:
        return NotImplemented
    return (dy.unsqueeze(-1) * share).sum(-2)


def _distances_within(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    apart: Tensor = torch.linalg.vector_norm(x[first] - x[second], p, -1)
    return apart


def _trilinear(  # aten's own
    a: Tensor,
    b: Tensor,
    c: Tensor,
    of_a: Sequence[int],
    of_b: Sequence[int],
    of_c: Sequence[int],
    axes: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Write a bilinear layer as a sum of products of three factors."""
    del unroll_dim
    for axis in sorted(of_a):
        a = a.unsqueeze(axis)
    for axis in sorted(of_b):
        b = b.unsqueeze(axis)
    for axis in sorted(of_c):
        c = c.unsqueeze(axis)
    return (a * b * c).sum(list(axes))


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:  # noqa: FBT001,FBT002
    place = index.flatten()
    place = torch.where(place < 0, place + x.numel(), place)
    flat = x.flatten()
    put = flat.scatter_add if accumulate else flat.scatter
    return put(0, place, source.flatten()).view(x.shape)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    mask, x = torch.broadcast_tensors(mask, x)
    place = (mask.flatten().long().cumsum(0) - 1).clamp(0, max(source.numel() - 1, 0))
    return torch.where(mask, source.flatten()[place].view(x.shape), x)


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = index.view(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _of_bags(  # aten's own
    dy: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    largest: Tensor,
    rows: int,
    by_frequency: bool,  # noqa: FBT001
    mode: int,
    sparse: bool,  # noqa: FBT001
    *rest: Any,  # noqa: ANN401
) -> Tensor:
    """Write a gradient by bags of embeddings as the dense one, with the bag of each index."""
    del bags, sparse
    places = torch.arange(indices.numel(), dtype=offsets.dtype, device=offsets.device)
    of_index = torch.searchsorted(offsets, places, right=True) - 1
    result: Tensor = _aten._embedding_bag_dense_backward(  # noqa: SLF001  # torch's own name
        dy, indices, of_index, sizes, largest, rows, by_frequency, mode, *rest
    )
    return result


def _rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,  # noqa: FBT001,FBT002  # aten's own
    *_: object,
) -> Tensor:
    """Write it with its mean slope, which it has outside of training; else it draws numbers."""
    del noise
    return NotImplemented if training else torch.where(x >= 0, x, x * ((lower + upper) / 2))


LOWERED: dict[Any, Callable[..., Any]] = {
    _aten.convolution_backward.default: _of_convolution,
    _aten.softshrink_backward.default: _of_shrink,
    _aten.hardshrink_backward.default: _of_shrink,
    _aten.addbmm.default: _addbmm,
    _aten.hardsigmoid.default: _hardsigmoid,
    _aten.hardswish.default: _hardswish,
    _aten._cdist_forward.default: _distances,  # noqa: SLF001  # torch's own names
    _aten._cdist_backward.default: _of_distances,  # noqa: SLF001
    _aten._pdist_forward.default: _distances_within,  # noqa: SLF001
    _aten._trilinear.default: _trilinear,  # noqa: SLF001
    _aten._embedding_bag_backward.default: _of_bags,  # noqa: SLF001
    _aten.put.default: _put,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.index_reduce.default: _index_reduce,
    _aten.rrelu_with_noise.default: _rrelu,
}
"""Functions that stand for operations of aten's."""
