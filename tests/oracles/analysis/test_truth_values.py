"""Truth values: open where a kernel may have the other one, exact where an exact number decides.

An open truth value has a bound of 1, so that either passes. `_open` is one: a number less its own
rounding, beside 0.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.analysis import bounds, rounds
from kernel_workbench.oracles.op import Numerics

_X = torch.tensor([0.0, -0.0, 2.5, -3.0, 0.1, 1.0])
_K = torch.tensor([False, True, False, True, False, True])


def _of(function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.bool) -> list[float]:
    (bound,) = bounds(function, {"x": _X}, Numerics(), [dtype])
    result: list[float] = bound.deterministic.flatten().tolist()
    return result


def _open(x: Tensor) -> Tensor:
    """Return truth values that are open, but for those of the zeros, which are exact."""
    return x * 1.1 - x * 1.1 > 0


OF_ZEROS: dict[str, Callable[[Tensor], Tensor]] = {
    "a multiple": lambda x: x * 2.5 > 0,
    "a multiple of another shape": lambda x: (x * 2.5).view(2, 3).T + 0 >= 0,
    "a power over a number": lambda x: (x * 2.5) ** 3 / (x + 7) != 0,
    "a root": lambda x: (x * x).sqrt() > 0,
    "a product with a mask": lambda x: x * 1.1 * _K != 0,
    "a choice": lambda x: torch.where(_K, x * 1.1, 0.0).bool(),
    "a row's sum": lambda x: (x * _K * 2.5).view(3, 2).sum(-1) > 0,
    "a row's mean": lambda x: (x * 0.0).view(2, 3).mean(-1) > 0,
    "a product of matrices": lambda x: x.view(3, 2) @ (x * 0.5).view(2, 3) > 0,
    "a cast": lambda x: rounds(x * 2.5, "", torch.bfloat16) > 0,
    "the negation of a number": lambda x: torch.logical_not(x * 1.1),
    "a multiple of what is no less than 0": lambda x: x.relu() * 2.5 > 0,
    "a number and a truth value": lambda x: torch.logical_and(x * 1.1, _K),
}


@pytest.mark.parametrize("name", OF_ZEROS)
def test_truth_value_of_an_exact_zero_is_exact(name: str) -> None:
    """Nothing is flushed of a zero, and no other number of these is near to one."""
    assert not any(_of(OF_ZEROS[name]))


def test_truth_value_of_numbers_that_cancel_is_open() -> None:
    """But for the zeros."""
    assert _of(_open) == [0, 0, 1, 1, 1, 1]


def test_number_that_an_exact_zero_decides_is_exact() -> None:
    """A sign and the next whole number above of a multiple of 0, and a mask's 0 as a factor."""
    assert _of(lambda x: torch.sign(x * 2.5), torch.float32)[:2] == [0, 0]
    assert _of(lambda x: torch.ceil(x * 2.5), torch.float32)[:2] == [0, 0]
    factor = _of(lambda x: x.exp() * torch.where(_K, x * 1.1, 0.0).bool(), torch.float32)
    assert [factor[place] for place in (0, 1, 2, 4)] == [0, 0, 0, 0]


def test_connective_is_open_where_the_other_truth_value_leaves_it_so() -> None:
    """False decides "and", True decides "or", and nothing decides "exclusive or"."""
    assert _of(lambda x: _K & _open(x)) == [0, 0, 0, 1, 0, 1]
    assert _of(lambda x: _K | _open(x)) == [0, 0, 1, 0, 1, 0]
    assert _of(lambda x: _K ^ _open(x)) == [0, 0, 1, 1, 1, 1]
    assert _of(lambda x: ~_open(x)) == [0, 0, 1, 1, 1, 1]


def test_truth_values_as_factors_and_choices_are_open_where_they_differ() -> None:
    """Their product is "and", and of a choice that open one counts which is chosen."""
    assert _of(lambda x: _open(x) * _K) == [0, 0, 0, 1, 0, 1]
    assert _of(lambda x: torch.where(_K, _open(x), x > 1) & (x < 2)) == [0, 0, 0, 1, 0, 1]


def test_number_is_equal_to_itself_whatever_its_error() -> None:
    """But for NaN: so a mean of those that are numbers divides by the number of them."""
    assert not any(_of(lambda x: (y := x * 1.1) != y))
    assert max(_of(lambda x: (x * 1.1).nanmean(), torch.float32)) < 1e-5


def test_row_that_an_exact_truth_value_decides_is_exact() -> None:
    """One False decides `all`, and one True `any`; else a row with an open one is open."""
    assert _of(lambda x: (_open(x) & _K).view(3, 2).all(-1)) == [0, 0, 0]
    assert _of(lambda x: (_open(x) | ~_K).view(2, 3).any(-1)) == [0, 0]
    assert _of(lambda x: _open(x).view(3, 2).any(-1)) == [0, 1, 1]


def test_power_0_is_1_of_a_number_that_may_be_0() -> None:
    """Whatever the number; its bound is a rounding."""
    powers = _of(lambda x: (x * 1.1 - x * 1.1 + 1e-30) ** torch.zeros_like(x), torch.float32)
    assert all(power <= 2.0**-20 for power in powers)  # NaN is none
