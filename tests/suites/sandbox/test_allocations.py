"""The values in a candidate's fresh memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_workbench.suites.sandbox.call import SENTINEL, stored
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory

NAN = math.nan

_UNINITIALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda like: torch.empty(3, 4, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda like: like.new_empty(3, 4),
    "empty_strided": lambda like: torch.empty_strided((3, 4), (1, 3), dtype=like.dtype),
    "empty_permuted": lambda like: torch.empty_permuted((3, 4), (1, 0), dtype=like.dtype),
    "new_empty_strided": lambda like: like.new_empty_strided((3, 4), (4, 1)),
    "transposed empty_like": lambda like: torch.empty_like(like.mT),
    "Tensor.new": lambda like: like.new(3, 4),
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("name", _UNINITIALISED)
def test_fresh_memory_holds_the_value(name: str, dtype: torch.dtype) -> None:
    """Every way to memory that nothing was written to."""
    like = torch.zeros(3, 4, dtype=dtype)
    for value in (NAN, SENTINEL):
        with fresh_memory(value, torch.device("cpu")):
            made = _UNINITIALISED[name](like)
        made = made.to(torch.float32 if dtype.itemsize == 1 else dtype)
        expected = torch.full_like(made, stored(value, dtype))
        assert torch.equal(made.isnan(), expected.isnan())
        assert torch.equal(made.nan_to_num(0.0), expected.nan_to_num(0.0))


def test_fresh_memory_leaves_made_values_and_integers_alone() -> None:
    """Only what is uninitialised is filled, and an integer has no NaN."""
    with fresh_memory(NAN, torch.device("cpu")):
        assert torch.equal(torch.zeros(3), torch.tensor([0.0, 0.0, 0.0]))
        assert torch.equal(torch.zeros_like(torch.ones(2)), torch.tensor([0.0, 0.0]))
        assert torch.equal(torch.full((2,), 7.0), torch.tensor([7.0, 7.0]))
        assert torch.equal(torch.ones(2).clone(), torch.tensor([1.0, 1.0]))
        assert torch.equal(torch.arange(3.0) + 1, torch.tensor([1.0, 2.0, 3.0]))
        assert torch.empty(5, dtype=torch.int32).dtype == torch.int32
        assert torch.empty(5, dtype=torch.bool).dtype == torch.bool
    assert not torch.zeros(3).isnan().any()
