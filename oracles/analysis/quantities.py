"""Numbers with errors, as rules are given them, and what is made of them once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

_EXACT_INTEGERS = 2**24
_SINGLE = 2.0**-24

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor in float64 and how far a kernel's may be from it; None: it is exact.

    Of a bool tensor the error is bool: where it may be the other.

    memory    what was made of both; gone after the operation
    forms     of an operation's result: how many forms of the bound ask for its errors
    of_value  what was made of the value alone: both forms of a bound share it, and each operation
              that reads the value
    """

    value: Tensor
    error: Tensor | None = None
    memory: dict[object, Any] = field(default_factory=dict)
    forms: int = 1
    of_value: dict[object, Any] = field(default_factory=dict)

    @property
    def size(self) -> Tensor:
        """The magnitude, which isn't changed."""
        return self.once_of_value("size", self.value.abs)

    def mark_nonnegative(self) -> None:
        """Note that it is its own magnitude."""
        self.of_value["size"] = self.value

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """What `make` returns, made once: both forms of a bound ask for it. It isn't changed."""
        return _once(self.memory, key, make)

    def once_of_value(self, key: object, make: Callable[[], _T]) -> _T:
        """The same of what doesn't depend on the error: it is kept as long as the value."""
        return _once(self.of_value, key, make)

    @property
    def exact(self) -> bool:
        """Whether a kernel has the same numbers."""
        return self.error is None


@dataclass(slots=True)
class Total:
    """An error that others are added to; mine: it isn't shared, and is changed in place."""

    error: Tensor
    mine: bool

    def plus(self, error: Tensor | None, times: float = 1.0) -> Total:
        """With a multiple of another, which may be none."""
        if error is None:
            return self
        if self.mine:
            self.error.add_(error, alpha=times)
            return self
        return Total(self.error.add(error, alpha=times), mine=True)

    def plus_product(self, a: Tensor, b: Tensor | None, times: float = 1.0) -> Total:
        """With a multiple of a product."""
        if b is None:
            return self
        if not (a.dim() and b.dim()):  # a constant may be on the CPU
            return self.plus(a * b, times)
        if self.mine:
            self.error.addcmul_(a, b, value=times)
            return self
        return Total(self.error.addcmul(a, b, value=times), mine=True)

    def plus_errors_of_product(self, a: Known, b: Known, times: float = 1.0) -> Total:
        """With a multiple of what errors of both factors do to a b."""
        made = self
        for each, other in ((a, b), (b, a)):
            if other.error is not None:
                made = made.plus_product(each.size, other.error, times)
        return made if a.error is None else made.plus_product(a.error, b.error, times)


def _once(memory: dict[object, Any], key: object, make: Callable[[], _T]) -> _T:
    if key not in memory:
        memory[key] = make()
    made: _T = memory[key]
    return made


@lru_cache(maxsize=1024)
def scalar(x: float) -> Tensor:
    """In float64; it isn't changed."""
    return torch.tensor(x, dtype=torch.float64)


@lru_cache(maxsize=1024)
def constant_error(x: float) -> float:
    """What fp32 makes of a constant is off by that much of it."""
    exact = scalar(x)
    return 0.0 if bool((exact.float() == exact) | exact.isnan()) else _SINGLE


def number(x: Known | float) -> Known:
    """An argument in float64; of a constant the error is what fp32 makes of it."""
    if not isinstance(x, Known):
        return Known(scalar(x), scalar(abs(x) * constant_error(x)) if constant_error(x) else None)
    value, error = x.value, x.error
    if value.is_floating_point():
        return x
    if value.dtype == torch.bool:
        return Known(value.double(), None if error is None else error.double())
    value = value.double()
    large = value.numel() > 0 and bool(value.abs().amax() > _EXACT_INTEGERS)
    return Known(value, value.abs() * _SINGLE if large else error)
