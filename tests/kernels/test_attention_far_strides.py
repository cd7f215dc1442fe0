"""Strides of 2^31 elements and more, which a product with the width of a load must not cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.attention.backward import two_pass
from kernels.attention.delta import delta
from kernels.attention.forward import flash
from kernels.attention.split_keys import split_keys
from tests.builders.strict_calls import violation_of

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
    """Of a backward, whose out and lse need not be those of a forward."""
    q, k, v, do, out = (_drawn(2, 2, 2, d) for _ in range(5))
    return {"do": do, "q": q, "k": k, "v": v, "out": out, "lse": torch.full((2, 2, 2), 2.0)}


def _same_where_far(
    kernel: Callable[..., tuple[Tensor | None, ...]], inputs: dict[str, Tensor], far: str, axis: int
) -> None:
    expected = kernel(**inputs)
    got: list[Tensor | None] = []
    moved = {**inputs, far: _far(inputs[far], axis)}
    assert violation_of(lambda: got.extend(kernel(**moved)), tuple(moved.values())) is None
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("axis", _AXES)
@pytest.mark.parametrize("far", ["q", "k", "v"])
@pytest.mark.parametrize("d", _D)
def test_forward_reads_strides_past_31_bits(d: str, far: str, axis: str) -> None:
    """Of batches, rows and heads, with accumulators in registers and in memory."""
    inputs = {name: each for name, each in _inputs(_D[d]).items() if name in ("q", "k", "v")}
    _same_where_far(flash, inputs, far, _AXES[axis])


@pytest.mark.parametrize("axis", _AXES)
@pytest.mark.parametrize("far", ["q", "k", "v"])
def test_split_forward_reads_strides_past_31_bits(far: str, axis: str) -> None:
    """Likewise where programs share keys."""
    inputs = {name: each for name, each in _inputs(64).items() if name in ("q", "k", "v")}
    _same_where_far(split_keys, inputs, far, _AXES[axis])


@pytest.mark.parametrize("axis", _AXES)
@pytest.mark.parametrize("far", ["do", "q", "k", "v", "out"])
@pytest.mark.parametrize("d", _D)
def test_backward_reads_strides_past_31_bits(d: str, far: str, axis: str) -> None:
    """Both passes, and delta."""
    _same_where_far(two_pass, _inputs(_D[d]), far, _AXES[axis])


@pytest.mark.parametrize("axis", _AXES)
@pytest.mark.parametrize("far", ["out", "do"])
def test_delta_reads_strides_past_31_bits(far: str, axis: str) -> None:
    """Of out and do."""
    inputs = {name: each for name, each in _inputs(64).items() if name in ("do", "out")}
    _same_where_far(delta, inputs, far, _AXES[axis])
