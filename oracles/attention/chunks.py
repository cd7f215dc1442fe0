"""Parts of tensors of one shape, so that what is computed of them by element takes little memory.

The largest cases have a truth of an eighth of a GPU's memory, and bounds as large: there is no
room for temporaries of that size too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

_CHUNK_ELEMENTS = 2**24  # 128 MiB for each float64 temporary


@dataclass(frozen=True, slots=True)
class Chunk:
    """Places start to start + length - 1 of one axis of a shape."""

    shape: tuple[int, ...]
    axis: int
    start: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """A view of them in a tensor of the shape, or in one that is broadcast to it."""
        if self.length == self.shape[self.axis]:
            return tensor
        return tensor.expand(self.shape).narrow(self.axis, self.start, self.length)


def chunks(shape: tuple[int, ...], axis: int | None = None) -> Iterator[Chunk]:
    """All places of a shape that has an axis at least, along that axis, or else the longest."""
    if axis is None:
        axis = max(range(len(shape)), key=lambda each: shape[each])
    step = max(1, _CHUNK_ELEMENTS * shape[axis] // max(math.prod(shape), 1))
    for start in range(0, shape[axis], step):
        yield Chunk(shape, axis, start, min(step, shape[axis] - start))
