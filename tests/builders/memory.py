"""A tensor's bits, the poison around it, and the process's memory."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    """Return the values as integers: -0 differs from 0, and a NaN equals itself."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def assert_poison_around(tensor: Tensor) -> None:
    """Assert that 256 elements before and after, and elements that strides skip, are NaN."""
    buffer = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    poisoned = torch.ones(len(buffer), dtype=torch.bool)
    poisoned.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)  # noqa: FBT003
    assert torch.equal(buffer.isnan(), poisoned)
    reached = (~poisoned).nonzero()
    assert int(reached[0]) >= 256
    assert len(buffer) - 1 - int(reached[-1]) >= 256


def resident_bytes() -> int:
    """Return the bytes of the pages that this process has touched, on Linux."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) * 1024
