"""Numbers with errors, as rules are given them, and what is made of them once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

FEW = 16  # times fewer numbers: operations on them take no time
_EXACT_INTEGERS = 2**24
_SINGLE = 2.0**-24

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A tensor in float64 and how far a kernel's may be from it; no error means that it is exact.

    The error of a bool tensor is bool: True where a kernel's may be the other value.

    lazy_error  the error, added up or not
    memory      what was computed from both; cleared after the operation
    of_value    what was computed from the value alone: both forms of a bound share it, and each
                operation that reads the value
    """

    value: Tensor
    lazy_error: Combination | Tensor | None = None
    memory: dict[object, Any] = field(default_factory=dict)
    of_value: dict[object, Any] = field(default_factory=dict)

    @property
    def error(self) -> Tensor | None:
        """The error, added up."""
        return added_up(self.lazy_error)

    @property
    def exact(self) -> bool:
        """Return True if a kernel has the same numbers."""
        return self.lazy_error is None

    @property
    def size(self) -> Tensor:
        """The magnitude, which isn't changed; of truth values 0 and 1."""
        is_mask = self.value.dtype == torch.bool
        return self.once_of_value("size", self.value.double if is_mask else self.value.abs)

    @property
    def reach(self) -> Tensor:
        """The largest magnitudes that a kernel may have; they aren't changed."""
        error = self.error
        return self.size if error is None else self.size + error

    @property
    def most(self) -> float:
        """No less than the largest magnitude that a kernel may have; NaN where some number is."""
        return self.once_of_value("most", self._most)

    @property
    def least_size(self) -> float:
        """The least magnitude; NaN where some number is, and infinite where there is none."""
        return self.once_of_value(
            "least_size", lambda: float(self.size.amin()) if self.size.numel() else math.inf
        )

    def _most(self) -> float:
        if not self.value.numel():
            return 0.0
        error = self.error
        return float(self.size.amax()) + (0.0 if error is None else float(error.amax()))

    def total(self, axes: tuple[int, ...]) -> Tensor:
        """The sum of magnitudes over axes, which stay, of size 1."""
        return self.once_of_value(("total", axes), lambda: self.size.sum(axes, keepdim=True))

    def times(self, x: Quantity) -> Quantity:
        """The product of magnitudes."""
        # x is kept with it, so that no other tensor comes to have its id.
        result, _ = self.once(id(x.value), lambda: (magnitude(self.size * x.size), x))
        return result

    def mark_nonnegative(self) -> None:
        """Note that it is its own magnitude."""
        self.of_value["size"] = self.value

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, called once for both forms; never change it."""
        return _once(self.memory, key, make)

    def once_of_value(self, key: object, make: Callable[[], _T]) -> _T:
        """The same of what doesn't depend on the error: it is kept as long as the value."""
        return _once(self.of_value, key, make)


Coefficient = float | Tensor


@dataclass(slots=True)
class Combination:
    """The error of a number as a linear combination of magnitudes, added up where it is read.

    of      the number
    terms   coefficients, and what has the magnitudes that they multiply
    rest    what is added to these
    cached  the sum, once it is computed

    Coefficients and the rest are numbers, or tensors of far fewer numbers than `of` has.
    """

    of: Quantity
    terms: list[tuple[Coefficient, Quantity]]
    rest: Coefficient
    cached: Tensor | None = None

    def plus(self, error: Combination | Tensor | None, times: Coefficient = 1.0) -> Combination:
        """Add a multiple of another error, and return self; None adds nothing."""
        if error is None:
            return self
        if isinstance(error, Tensor):
            return self.plus_term(times, magnitude(error))
        if error.cached is not None and len(error.terms) > 1:
            return self.plus_term(times, magnitude(error.cached))
        for coefficient, term in error.terms:
            self.plus_term(coefficient * times, term)
        return self.plus_rest(error.rest * times)

    def plus_term(self, coefficient: Coefficient, x: Quantity) -> Combination:
        """Add a multiple of a magnitude, and return self."""
        if _is(0.0, coefficient):
            return self
        if is_few(self.of.value, coefficient, x.value):
            return self.plus_rest(coefficient * x.size)
        for place, (other, same) in enumerate(self.terms):
            if same.value is x.value and (
                not isinstance(coefficient, Tensor)
                or not isinstance(other, Tensor)
                or coefficient.shape == other.shape
            ):
                self.terms[place] = other + coefficient, same
                return self
        self.terms.append((coefficient, x))
        return self

    def plus_rest(self, rest: Coefficient) -> Combination:
        """Add a part that is no multiple of a magnitude, and return self."""
        if isinstance(rest, Tensor) and not rest.dim() and rest.device.type == "cpu":
            rest = float(rest)
        if not isinstance(rest, Tensor) or is_few(self.of.value, self.rest, rest):
            self.rest = self.rest + rest
        else:
            self.terms.append((1.0, magnitude(rest)))
        return self

    def plus_product(
        self, x: Quantity, error: Combination, times: Coefficient = 1.0
    ) -> Combination:
        """Add a multiple of an error's product with a magnitude, and return self."""
        if len(error.terms) > 1:
            if error.cached is not None or x.value.shape != error.of.value.shape:
                return self.plus_term(times, magnitude(x.size * error.tensor()))
            return self.plus_term(times, magnitude(error._add_terms().mul_(x.size)))
        for coefficient, term in error.terms:  # both forms share the product
            self.plus_term(coefficient * times, x.times(term))
        return self.plus_term(error.rest * times, x)

    def apart(self) -> tuple[Coefficient, Combination]:
        """Return the coefficient of the number's own magnitude, and the remainder of the error."""
        if self.cached is not None and len(self.terms) > 1:
            return 0.0, Combination(self.of, [(1.0, magnitude(self.cached))], 0.0, self.cached)
        own: Coefficient = 0.0
        remainder = Combination(self.of, [], self.rest)
        for coefficient, term in self.terms:
            if term.value is self.of.value:
                own = own + coefficient
            else:
                remainder.terms.append((coefficient, term))
        return own, remainder if len(remainder.terms) < len(self.terms) else self

    def largest(self) -> float:
        """Return an upper limit of the largest error."""
        if self.cached is not None or not self.of.value.numel():
            return largest(self.tensor())
        result = largest(self.rest)
        for coefficient, term in self.terms:
            result += largest(coefficient) * term.most
        return result

    def sum(self, axes: tuple[int, ...]) -> Tensor:
        """Return the sum over axes, which stay, of size 1."""
        shape = self.of.value.shape
        result: Coefficient = self.rest * float(math.prod(shape[axis] for axis in axes))
        coefficients = self.rest, *(coefficient for coefficient, _ in self.terms)
        if (
            self.cached is not None
            or not self.of.value.numel()
            or any(term.value.shape != shape for _, term in self.terms)
            or any(
                isinstance(coefficient, Tensor) and _varies(coefficient, shape, axes)
                for coefficient in coefficients
            )
        ):
            return self.tensor().sum(axes, keepdim=True)
        for coefficient, term in self.terms:
            result = result + coefficient * term.total(axes)
        if not isinstance(result, Tensor) or result.dim() < len(shape):
            result = self.of.value.new_zeros([]).add(result)
        kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
        return result.expand(kept)

    def tensor(self) -> Tensor:
        """Added up; it isn't changed."""
        if self.cached is None:
            self.cached = self._add_terms()
        return self.cached

    def _add_terms(self) -> Tensor:
        shape, device = self.of.value.shape, self.of.value.device
        terms = sorted(self.terms, key=lambda one: (-one[1].value.numel(), not _is(1.0, one[0])))
        result = self.rest if isinstance(self.rest, Tensor) else scalar(self.rest)
        mine = False  # whether it may be changed
        if terms and _is(1.0, terms[0][0]) and _is(0.0, self.rest):
            result, terms = terms[0][1].size, terms[1:]
        for coefficient, term in terms:
            if isinstance(coefficient, Tensor):
                add = partial(torch.addcmul, result.to(device), coefficient, term.size)
            else:
                add = partial(torch.add, result, term.size, alpha=coefficient)
            result, mine = add(out=result) if mine else add().to(device), True
            if result.shape != shape:
                result = result.expand(shape).contiguous()
        return result.to(device).expand(shape)


def _is(number: float, coefficient: Coefficient) -> bool:
    return not isinstance(coefficient, Tensor) and coefficient == number


def _varies(x: Tensor, shape: torch.Size, axes: tuple[int, ...]) -> bool:
    """Return True if an expanded tensor varies along one of the axes of the shape."""
    first = len(shape) - x.dim()
    return any(axis >= first and x.shape[axis - first] > 1 for axis in axes)


def is_few(beside: Tensor, *coefficients: Coefficient) -> bool:
    """Return True if a product of coefficients has far fewer numbers than `beside`.

    Floats alone have.
    """
    shapes = {coefficient.shape for coefficient in coefficients if isinstance(coefficient, Tensor)}
    several = len(shapes) > 1  # to broadcast one takes long
    numbers: int = math.prod(torch.broadcast_shapes(*shapes) if several else [*shapes, ()][0])
    return numbers * FEW <= beside.numel()


def largest(error: Combination | Coefficient) -> float:
    """No less than the largest number of an error."""
    if isinstance(error, Combination):
        return error.largest()
    if isinstance(error, Tensor):
        return float(error.amax()) if error.numel() else 0.0
    return error


@overload
def added_up(error: Combination | Tensor) -> Tensor: ...
@overload
def added_up(error: None) -> None: ...
def added_up(error: Combination | Tensor | None) -> Tensor | None:
    """An error as a tensor."""
    return error.tensor() if isinstance(error, Combination) else error


def magnitude(x: Tensor) -> Quantity:
    """Numbers that are none below 0, which a combination may be of."""
    return Quantity(x, of_value={"size": x})


def _once(memory: dict[object, Any], key: object, make: Callable[[], _T]) -> _T:
    if key not in memory:
        memory[key] = make()
    result: _T = memory[key]
    return result


@lru_cache(maxsize=1024)
def scalar(x: float) -> Tensor:
    """Return a constant as a float64 tensor, which callers never change."""
    return torch.tensor(x, dtype=torch.float64)


@lru_cache(maxsize=1024)
def constant_error(x: float) -> float:
    """Return the relative error of a constant in fp32: 0 for a constant that fp32 holds."""
    exact = scalar(x)
    return 0.0 if bool((exact.float() == exact) | exact.isnan()) else _SINGLE


def number(x: Quantity | float) -> Quantity:
    """An argument in float64; of a constant the error is what fp32 makes of it."""
    if not isinstance(x, Quantity):
        return Quantity(
            scalar(x), scalar(abs(x) * constant_error(x)) if constant_error(x) else None
        )
    value = x.value
    if value.is_floating_point():
        return x
    if value.dtype == torch.bool:
        return Quantity(value.double(), None if x.error is None else x.error.double())
    value, error = value.double(), x.error
    if value.numel() > 0 and bool(value.abs().amax() > _EXACT_INTEGERS):
        before = scalar(0.0).to(value.device) if error is None else error
        error = before + (value.abs() + before) * _SINGLE
    return Quantity(value, error)
