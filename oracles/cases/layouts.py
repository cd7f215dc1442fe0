"""Layouts that cases choose among, and placing values so, with poison all around.

Every tensor is a view into a buffer of its own. Elements of the buffer that the view doesn't
reach hold NaN: a kernel that reads past a row, or takes a stride for granted, meets it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Layout, TensorLayout

_GUARD = 256  # poisoned elements before the first and after the last one that a view reaches
_ALIGNMENT = 256  # bytes; an element offset of 0 means an address that is a multiple of it

# Above this a buffer's poison would touch gigabytes: the strides that reach past 2^31 elements
# are tried over memory that stays untouched, and so without poison.
LARGEST_POISONED_BUFFER = 2**30  # bytes


# The slowest axis has this stride: its third entry starts past element 2^31, over memory that isn't
# touched between the entries.
FAR_STRIDE = 2**30 + 8


def alike(name: str, tensors: Iterable[str], layout: TensorLayout) -> Layout:
    """The same layout of several tensors."""
    return Layout(name, tuple((tensor, layout) for tensor in tensors))


def apart(name: str, **layouts: TensorLayout) -> Layout:
    """Each tensor its own layout."""
    return Layout(name, tuple(layouts.items()))


def offsets(together: Iterable[str], alone: Iterable[str]) -> tuple[Layout, ...]:
    """1 to 7 elements off an aligned address, these tensors together, then each of those alone."""
    tried = range(1, 8)
    return (
        *(alike(f"offset{k}", together, TensorLayout(offset=k)) for k in tried),
        *(
            alike(f"{name}_offset{k}", (name,), TensorLayout(offset=k))
            for name in alone
            for k in tried
        ),
    )


def _poison(dtype: torch.dtype) -> float | bool:
    """Return what no correct kernel can use: NaN, an index past every end, or another mask."""
    if dtype.is_floating_point:
        return math.nan
    return dtype == torch.bool or torch.iinfo(dtype).max // 2


def _buffer(elements: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, int]:
    """A buffer with room for `elements` and its guards, and the index of the first element."""
    spare = _ALIGNMENT // dtype.itemsize
    total = elements + 2 * _GUARD + spare
    buffer = torch.empty(total, dtype=dtype, device=device)
    if total * dtype.itemsize <= LARGEST_POISONED_BUFFER:
        buffer.fill_(_poison(dtype))
    lead = -(buffer.data_ptr() + _GUARD * dtype.itemsize) % _ALIGNMENT
    return buffer, _GUARD + lead // dtype.itemsize


def strides_of(layout: TensorLayout, axes: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a tensor of `shape`, whose axes have one letter each, laid out so.

    The fastest axis has the column stride; row_padding follows each of its runs, and batch_padding
    each run of the next axis. Each entry of the axis two further out (each row of a matrix) is
    followed by those of the tensors that share the buffer (`interleaved`). row_stride is that of
    the slowest axis. An expanded axis takes no room.
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
        if place == min(1, len(order) - 2):
            step *= layout.interleaved
        if place == 1:
            step += layout.batch_padding
    if layout.row_stride is not None:
        strides[order[0]] = layout.row_stride
    return tuple(0 if axis in layout.expanded else strides[axis] for axis in axes)


def place_vector(values: Tensor, dtype: torch.dtype, layout: TensorLayout) -> Tensor:
    """Round `values` (any shape) to `dtype`, and place them one after another, by the layout.

    The layout says the offset of the first and the stride, as of a column of a matrix.
    """
    rounded, step = values.to(dtype), layout.column_stride
    buffer, start = _buffer(step * rounded.numel() + layout.offset, dtype, values.device)
    view = buffer.as_strided((rounded.numel(),), (step,), start + layout.offset)
    return view.view(rounded.shape).copy_(rounded)


def place_tensor(values: Tensor, dtype: torch.dtype, layout: TensorLayout, axes: str) -> Tensor:
    """Return `values` rounded to `dtype` and laid out so; `axes` has a letter for each axis.

    An expanded axis keeps its first entry alone, which is read throughout.
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
