"""Placing values in memory: misaligned, padded, strided or expanded, with poison all around.

Every tensor is a view into a buffer of its own. Elements of the buffer that the view doesn't
reach hold NaN: a kernel that reads past a row, or takes a stride for granted, meets it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.op import Layout, TensorLayout

_GUARD = 256  # poisoned elements before the first and after the last one that a view reaches
_ALIGNMENT = 256  # bytes; an element offset of 0 means an address that is a multiple of it

# Above this a buffer's poison would touch gigabytes: the strides that reach past 2^31 elements
# are tried over memory that stays untouched, and so without poison.
LARGEST_POISONED_BUFFER = 2**30  # bytes


def generator(device: torch.device, *key: object) -> torch.Generator:
    """A generator whose stream depends on `key` alone (and on the kind of device)."""
    seed = 0
    for character in "|".join(map(str, key)):
        seed = (seed * 1_000_003 + ord(character)) % (2**63)
    return torch.Generator(device=device).manual_seed(seed)


def _buffer(elements: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, int]:
    """A buffer with room for `elements` and its guards, and the index of the first element."""
    spare = _ALIGNMENT // dtype.itemsize
    total = elements + 2 * _GUARD + spare
    buffer = torch.empty(total, dtype=dtype, device=device)
    if total * dtype.itemsize <= LARGEST_POISONED_BUFFER:
        buffer.fill_(math.nan)
    lead = -(buffer.data_ptr() + _GUARD * dtype.itemsize) % _ALIGNMENT
    return buffer, _GUARD + lead // dtype.itemsize


def strides_of(layout: TensorLayout, axes: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a tensor of `shape`, whose axes have one letter each, laid out so.

    The fastest axis has the column stride; row_padding follows each of its runs. Each entry of
    the axis two further out is followed by those of the tensors that share the buffer
    (`interleaved`). row_stride is that of the slowest axis. An expanded axis takes no room.
    """
    sizes = dict(zip(axes, shape, strict=True))
    order = layout.order or axes
    strides: dict[str, int] = {}
    step = layout.column_stride
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= 1 if axis in layout.expanded else max(sizes[axis], 1)
        if place == 0:
            step += layout.row_padding
        elif place == 1:
            step *= layout.interleaved
    if layout.row_stride is not None:
        strides[order[0]] = layout.row_stride
    return tuple(0 if axis in layout.expanded else strides[axis] for axis in axes)


def place_vector(values: Tensor, dtype: torch.dtype, layout: TensorLayout) -> Tensor:
    """`values` (any shape, packed) rounded to `dtype`, at the element offset of `layout`."""
    rounded = values.to(dtype)
    buffer, start = _buffer(rounded.numel() + layout.offset, dtype, values.device)
    view = buffer[start + layout.offset :][: rounded.numel()].view(rounded.shape)
    return view.copy_(rounded)


def place_matrix(values: Tensor, dtype: torch.dtype, argument: str, layout: Layout) -> Tensor:
    """`values` [m, n] rounded to `dtype` and laid out as `layout` says for `argument`.

    Returns [m, n], or [batches, m / batches, n] where the layout has batches. Expanded layouts
    repeat the first row, or the first element.
    """
    m, n = values.shape
    tensor_layout = layout.of(argument)
    if layout.batches is not None:
        rows = m // layout.batches
        row, column = tensor_layout.strides(rows, n)
        shape: tuple[int, ...] = (layout.batches, rows, n)
        strides: tuple[int, ...] = (rows * row + layout.batch_padding, row, column)
    else:
        shape, strides = (m, n), tensor_layout.strides(m, n)
    reached = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    elements = max(0, reached) if values.numel() else 0
    buffer, start = _buffer(elements + tensor_layout.offset, dtype, values.device)
    view = buffer.as_strided(shape, strides, start + tensor_layout.offset)
    if not values.numel():
        return view
    if tensor_layout.expanded:
        first = values[:1, :1] if tensor_layout.expanded == "all" else values[:1]
        width = 1 if tensor_layout.expanded == "all" else n
        once = buffer.as_strided((1, width), strides[-2:], start + tensor_layout.offset)
        once.copy_(first.to(dtype))
    else:
        view.copy_(values.to(dtype).view(shape))
    return view


def place_tensor(values: Tensor, dtype: torch.dtype, layout: TensorLayout, axes: str) -> Tensor:
    """`values` rounded to `dtype` and laid out so; `axes` has a letter for each of its axes.

    Of an expanded axis the first entry alone is kept, and seen throughout.
    """
    shape = tuple(values.shape)
    strides = strides_of(layout, axes, shape)
    reached = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    elements = reached if values.numel() else 0
    buffer, start = _buffer(elements + layout.offset, dtype, values.device)
    view = buffer.as_strided(shape, strides, start + layout.offset)
    if values.numel():
        first = tuple(slice(1 if axis in layout.expanded else None) for axis in axes)
        view[first].copy_(values[first].to(dtype))
    return view
