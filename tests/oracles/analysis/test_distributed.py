"""A product may be distributed over a sum, as libraries fold a normalisation into a x + b."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.testing import assert_matches

Function = Callable[..., Tensor]

_ROWS, _COLUMNS = 3000, 4


def _statistics(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the mean along an axis and one over the deviation."""
    variance = x.var(axis, unbiased=False, keepdim=True)
    return x.mean(axis, keepdim=True), torch.rsqrt(variance + 1e-5)


def _scaled(x: Tensor, scale: Tensor, mean: Tensor, b: Tensor) -> Tensor:
    return x * scale + (b - mean * scale)


def _folded(x: Tensor, w: Tensor, b: Tensor, axis: int) -> Tensor:
    mean, rstd = _statistics(x, axis)
    return _scaled(x, rstd * w, mean, b)


def _unfolded(x: Tensor, w: Tensor, b: Tensor, axis: int) -> Tensor:
    mean, rstd = _statistics(x, axis)
    return (x - mean) * rstd * w + b


_FORMS: dict[str, tuple[Function, list[Function]]] = {
    "batch norm of given statistics": (
        lambda x, w, b: functional.batch_norm(x, w + 3, w.abs() + 0.1, w, b),
        [
            lambda x, w, b: functional.batch_norm(x, w + 3, w.abs() + 0.1, w, b),
            lambda x, w, b: _scaled(x, w * torch.rsqrt(w.abs() + 0.1 + 1e-5), w + 3, b),
        ],
    ),
    "batch norm": (
        lambda x, w, b: functional.batch_norm(x.mT, None, None, w, b, training=True),
        [
            lambda x, w, b: functional.batch_norm(x.mT, None, None, w, b, training=True),
            lambda x, w, b: _folded(x.mT, w, b, 0),
        ],
    ),
    "layer norm": (
        lambda x, w, b: functional.layer_norm(x, (_COLUMNS,), w, b),
        [lambda x, w, b: _folded(x, w, b, -1), lambda x, w, b: _unfolded(x, w, b, -1)],
    ),
    "lerp": (lambda x, w, b: torch.lerp(x, w + b, 0.3), [lambda x, w, b: 0.7 * x + 0.3 * (w + b)]),
    "hardsigmoid": (
        lambda x, w, b: functional.hardsigmoid(x + w) + 0 * b,
        [
            lambda x, w, b: ((x + w) / 6 + 0.5).clamp(0, 1) + 0 * b,
            lambda x, w, b: (x + w + 3).clamp(0, 6) * (1 / 6) + 0 * b,
        ],
    ),
    "hardswish": (
        lambda x, w, b: functional.hardswish(x + w) + 0 * b,
        [
            lambda x, w, b: (x + w) * ((x + w) / 6 + 0.5).clamp(0, 1) + 0 * b,
            lambda x, w, b: (x + w) * (x + w + 3).clamp(0, 6) / 6 + 0 * b,
        ],
    ),
}


@pytest.mark.parametrize("name", _FORMS)
def test_product_that_is_distributed_over_a_sum_is_within_the_bound(name: str) -> None:
    """PyTorch's own batch norm, which folds, was up to 10 times its bound from the truth."""
    reference, forms = _FORMS[name]
    generator = torch.Generator().manual_seed(3)
    columns = _ROWS if name == "batch norm" else _COLUMNS
    x = torch.randn(_ROWS, _COLUMNS, generator=generator)
    w, b = (2 * torch.randn(columns, generator=generator) for _ in range(2))
    for form in forms:
        assert_matches(form(x, w, b), reference=reference, x=x, w=w, b=b)
    wrong = reference(x, w, b)
    wrong[1, 1] += 1e-4 * (1 + wrong[1, 1].abs())
    with pytest.raises(AssertionError, match="bound"):
        assert_matches(wrong, reference=reference, x=x, w=w, b=b)
