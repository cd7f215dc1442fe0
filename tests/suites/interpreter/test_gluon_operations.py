"""Operations of kernels in Gluon that compute as on a GPU, and places of shared memory."""

from __future__ import annotations

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernel_workbench.suites.interpreter.gluon.blocks import MachineError

pytestmark = pytest.mark.usefixtures("interpreted")


@gluon.jit
def _indexing_kernel(out_ptr, place, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    memory = gl.allocate_shared_memory(gl.float32, [2, BLOCK], shared)
    memory.index(0).store(gl.full([BLOCK], 1.0, gl.float32, layout))
    gl.store(out_ptr + gl.arange(0, BLOCK, layout), memory.index(place).load(layout))


@pytest.mark.parametrize("place", [-1, 2])
def test_place_outside_of_shared_memory_is_an_error(place: int) -> None:
    """A negative one too, which Python counts from the end."""
    with pytest.raises(MachineError, match=f"place {place} of 2 places in shared memory"):
        _indexing_kernel[(1,)](torch.empty(4), place, BLOCK=4)
