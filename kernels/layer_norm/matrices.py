"""The host's side that both algorithms share: arguments seen as matrices and vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor [..., n] seen as [m, n], and its strides in elements."""

    data: Tensor
    row: int
    column: int


def as_matrix(tensor: Tensor) -> Matrix:
    """`tensor` [..., n] as a matrix: a view where its strides allow one, else a packed copy."""
    n = tensor.shape[-1]
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, n)
    return Matrix(rows, rows.stride(0), rows.stride(1))


def packed_vector(tensor: Tensor | None) -> Tensor | None:
    """Per-row statistics of any rank, or a weight, as a packed vector; copies only if strided."""
    return None if tensor is None else tensor.reshape(-1).contiguous()


def packed_vector_of(tensor: Tensor) -> Tensor:
    """`packed_vector` of a tensor that is there."""
    return tensor.reshape(-1).contiguous()
