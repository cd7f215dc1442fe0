"""Strides of 2^31 elements and more, which a product with the width of a load must not cut off."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.attention.backward import two_pass
from kernel_workbench.kernels.attention.delta import delta
from kernel_workbench.kernels.attention.forward import flash
from kernel_workbench.kernels.attention.split_keys import split_keys
from tests.builders.strict_calls import violation_of

pytestmark = pytest.mark.usefixtures("interpreted")

_AXES = {"batches": 0, "rows": 1, "heads": 2}
_D = {"aligned": 64, "wide": 264}


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def _far(tensor: Tensor, axis: int) -> Tensor:
    """The same values, 2^31 elements apart along an axis; what is between isn't touched."""
    strides = list(tensor.stride())
    strides[axis] = 2**31
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    return (
        torch.empty(reach + 1, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)
    )


def _inputs(d: int) -> dict[str, Tensor]:
    """Return inputs of a backward, whose out and lse need not be those of a forward."""
    q, k, v, do, out = (_drawn(2, 2, 2, d) for _ in range(5))
    return {"do": do, "q": q, "k": k, "v": v, "out": out, "lse": torch.full((2, 2, 2), 2.0)}


_Kernel = Callable[..., tuple[Tensor | None, ...]]


def _taken(kernel: _Kernel, d: int) -> dict[str, Tensor]:
    names = signature(kernel).parameters
    return {name: each for name, each in _inputs(d).items() if name in names}


@cache
def _expected(kernel: _Kernel, d: int) -> tuple[Tensor | None, ...]:
    return kernel(**_taken(kernel, d))


def _same_where_far(kernel: _Kernel, d: int, far: str, axis: str) -> None:
    inputs, got = _taken(kernel, d), list[Tensor | None]()
    moved = {**inputs, far: _far(inputs[far], _AXES[axis])}
    assert violation_of(lambda: got.extend(kernel(**moved)), tuple(moved.values())) is None
    for mine, theirs in zip(got, _expected(kernel, d), strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("axis", _AXES)
@pytest.mark.parametrize(
    ("kernel", "d", "far"),
    [
        *((flash, d, far) for d in _D for far in "qkv"),  # accumulators in registers, in memory
        *((split_keys, "aligned", far) for far in "qkv"),
        *((two_pass, d, far) for d in _D for far in ("do", "q", "k", "v", "out")),
        *((delta, "aligned", far) for far in ("out", "do")),
    ],
    ids=lambda each: None if isinstance(each, str) else each.__name__,
)
def test_kernel_reads_strides_past_31_bits(kernel: _Kernel, d: str, far: str, axis: str) -> None:
    """The outputs stay the same with far strides of batches, rows and heads."""
    _same_where_far(kernel, _D[d], far, axis)
