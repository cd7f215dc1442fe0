"""The host's side that both algorithms share: arguments seen as matrices, and the device's size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# Programs a device-independent launch is split into, whatever it runs on: 2 for each SM of an H200.
FIXED_MULTIPROCESSORS = 132

# An interpreter runs programs one after the other, so a few suffice to fold several rows in each.
SIMULATED_MULTIPROCESSORS_VARIABLE = "WORKBENCH_SIMULATED_MULTIPROCESSORS"
_SIMULATED_MULTIPROCESSORS = 2


@cache
def _on_device(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def multiprocessors(device: torch.device, *, device_independent: bool = False) -> int:
    """SMs to spread programs over: the device's, a simulated few on a CPU, or a fixed number."""
    if device_independent:
        return FIXED_MULTIPROCESSORS
    if device.type == "cuda":
        return _on_device(device.index or 0)
    return int(os.environ.get(SIMULATED_MULTIPROCESSORS_VARIABLE, _SIMULATED_MULTIPROCESSORS))


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
