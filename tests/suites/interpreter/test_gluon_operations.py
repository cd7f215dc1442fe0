"""Operations of kernels in Gluon that compute as on a GPU, and places of shared memory."""

from __future__ import annotations

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernel_workbench.suites.interpreter.gluon.blocks import MachineError

pytestmark = pytest.mark.usefixtures("interpreted")

_NAN = float("nan")


@gluon.jit
def _extremes_kernel(x_ptr, out_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    x = gl.load(x_ptr + gl.arange(0, BLOCK, layout))
    gl.store(out_ptr + gl.arange(0, BLOCK, layout), gl.maximum(x, 0.0))
    gl.store(out_ptr + BLOCK + gl.arange(0, BLOCK, layout), gl.minimum(x, 0.0))
    gl.store(out_ptr + 2 * BLOCK, gl.max(x, 0))
    gl.store(out_ptr + 2 * BLOCK + 1, gl.min(x, 0))


@gluon.jit
def _indexing_kernel(out_ptr, place, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    memory = gl.allocate_shared_memory(gl.float32, [2, BLOCK], shared)
    memory.index(0).store(gl.full([BLOCK], 1.0, gl.float32, layout))
    gl.store(out_ptr + gl.arange(0, BLOCK, layout), memory.index(place).load(layout))


@pytest.mark.parametrize(
    ("numbers", "low", "high"), [([_NAN, -2.0, 3.0, _NAN], -2.0, 3.0), ([_NAN] * 4, _NAN, _NAN)]
)
def test_extreme_of_a_number_and_nan_is_the_number(
    numbers: list[float], low: float, high: float
) -> None:
    """As for kernels in Triton; of NaN alone it is NaN."""
    x, out = torch.tensor(numbers), torch.empty(10)
    _extremes_kernel[(1,)](x, out, BLOCK=4)
    zero = torch.zeros(4)
    right = [*x.fmax(zero).tolist(), *x.fmin(zero).tolist(), high, low]
    assert torch.equal(out.nan_to_num(9.0), torch.tensor(right).nan_to_num(9.0))


@pytest.mark.parametrize("place", [-1, 2])
def test_place_outside_of_shared_memory_is_an_error(place: int) -> None:
    """A negative one too, which Python counts from the end."""
    with pytest.raises(MachineError, match=f"place {place} of 2 places in shared memory"):
        _indexing_kernel[(1,)](torch.empty(4), place, BLOCK=4)
