"""Functions of a mathematical library, and roundings, beside mpmath's numbers of 50 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from kernel_workbench.oracles.analysis import NoRuleError, bounds, rounds, truth
from kernel_workbench.oracles.op import Numerics

_SINGLE = [torch.float32]
_CAST = 2.0**-8  # unit roundoff of bfloat16
_LIBRARY = 6 * 2.0**-23  # units in the last place, which are below 8: what libraries promise

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any], float, float]] = {
    "atan": (torch.atan, mpmath.atan, -30, 30),
    "asin": (torch.asin, mpmath.asin, -0.99, 0.99),
    "acos": (torch.acos, mpmath.acos, -0.99, 0.99),
    "sinh": (torch.sinh, mpmath.sinh, -20, 20),
    "cosh": (torch.cosh, mpmath.cosh, -20, 20),
    "tan": (torch.tan, mpmath.tan, -1.5, 1.5),
    "asinh": (torch.asinh, mpmath.asinh, -90, 90),
    "acosh": (torch.acosh, mpmath.acosh, 1.01, 90),
    "atanh": (torch.atanh, mpmath.atanh, -0.99, 0.99),
    "log10": (torch.log10, mpmath.log10, 0.01, 90),
    "erfc": (torch.erfc, mpmath.erfc, -4, 4),
    "erfinv": (torch.erfinv, mpmath.erfinv, -0.99, 0.99),
    "lgamma": (torch.lgamma, mpmath.loggamma, 0.01, 90),
    "digamma": (torch.digamma, mpmath.digamma, 0.01, 90),
    "i0": (torch.special.i0, lambda x: mpmath.besseli(0, x), -20, 20),
    "i1": (torch.special.i1, lambda x: mpmath.besseli(1, x), -20, 20),
    "i0e": (torch.special.i0e, lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), -20, 20),
    "erfcx": (torch.special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -5, 20),
    "log_ndtr": (torch.special.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), -20, 5),
    "ndtri": (
        torch.special.ndtri,
        lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
        0.01,
        0.99,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_library_function_is_within_its_bound_at_the_ends_of_an_interval(name: str) -> None:
    """A library's error is on top of what an argument's error does, to either side."""
    function, exactly, low, high = FUNCTIONS[name]
    x = torch.linspace(low, high, 41)
    (bound,) = bounds(function, {"x": x}, Numerics(), _SINGLE)
    marked = {"x": x}
    (wide,) = bounds(lambda x: function(rounds(x, "", torch.bfloat16)), marked, Numerics(), _SINGLE)
    with mpmath.workdps(50):
        for place, number in enumerate(x.tolist()):
            value = exactly(mpmath.mpf(number))
            ulps = _LIBRARY * abs(value)
            assert ulps <= float(bound.deterministic[place])
            limit = float(wide.deterministic[place])
            for side in (1, -1):
                moved = mpmath.mpf(number) * (1 + side * _CAST * (1 - 2.0**-10))
                if not low <= moved <= high:
                    continue
                assert abs(exactly(moved) * (1 + side * _LIBRARY) - value) <= limit


@pytest.mark.parametrize("function", [torch.asin, torch.acos, torch.atanh, torch.acosh])
def test_nothing_is_promised_where_a_number_may_be_outside_of_a_domain(
    function: Callable[[Tensor], Tensor],
) -> None:
    """The end itself is promised where it is exact."""
    x = torch.tensor([1.0, 0.5 if function is not torch.acosh else 2.0])
    (open_,) = bounds(lambda x: function(x * 0.7 / 0.7), {"x": x}, Numerics(), _SINGLE)
    assert open_.deterministic.isinf().tolist() == [True, False]
    if function is not torch.atanh:
        (exact,) = bounds(function, {"x": x}, Numerics(), _SINGLE)
        assert bool(exact.deterministic.isfinite().all())


def test_angle_over_the_cut_may_be_a_turn_off() -> None:
    """A point just below the negative axis has an angle of -pi."""
    y, x = torch.tensor([0.3, 1.0]), torch.tensor([-1.0, -1.0])
    (bound,) = bounds(
        lambda y, x: torch.atan2(y * 0.1 - 0.03, x), {"y": y, "x": x}, Numerics(), _SINGLE
    )
    assert float(bound.deterministic[0]) >= 2 * math.pi
    assert float(bound.deterministic[1]) <= 1e-5


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "frac"])
def test_whole_number_is_exact_unless_another_is_near(name: str) -> None:
    """Near one, either may be a kernel's, and the bound has no power there; else it is exact."""
    function: Callable[[Tensor], Tensor] = getattr(torch, name)
    near = 5.0 if name == "round" else 6.0  # a half of it is a tie, or a third is whole
    x, by = torch.tensor([near, 3.7]), 0.5 if name == "round" else 1 / 3
    (bound,) = bounds(lambda x: function(x * 1.1 / 1.1 * by), {"x": x}, Numerics(), _SINGLE)
    assert float(bound.deterministic[0]) >= 1
    assert bound.powerless is not None
    assert bound.powerless.tolist() == [True, False]
    if name != "frac":
        assert float(bound.deterministic[1]) == 0


def test_whole_numbers_of_rounded_ones_are_taken_where_none_is_near() -> None:
    """A cast to whole numbers may choose places, if no kernel can choose another."""
    x, table = torch.tensor([0.3, 1.6, 2.4]), torch.randn(4)

    def reference(x: Tensor, table: Tensor) -> Tensor:
        return table[(x * 1.1 / 1.1).long()] * 2

    (bound,) = bounds(reference, {"x": x, "table": table}, Numerics(), _SINGLE)
    assert float(bound.deterministic.amax()) <= 2.0**-120
    with pytest.raises(NoRuleError, match="indices that depend on rounded values"):
        bounds(reference, {"x": x.ceil(), "table": table}, Numerics(), _SINGLE)


@pytest.mark.parametrize(
    "function", [torch.relu, torch.sigmoid, torch.tanh, lambda x: x.clamp(-1, 1)]
)
def test_saturated_function_hands_on_no_more_than_its_ends_differ(
    function: Callable[[Tensor], Tensor],
) -> None:
    """The sum of numbers near 1e6 is off by 10, which doesn't show where a function is flat."""
    x = torch.cat([torch.full((1, 300), -1e6), torch.full((1, 300), 1e4)])

    def reference(x: Tensor) -> Tensor:
        return function(x.sum(-1))

    (bound,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
    (error,) = bounds(lambda x: x.sum(-1), {"x": x}, Numerics(), _SINGLE)
    assert float(error.deterministic[0]) > 10
    assert float(bound.deterministic[0]) <= 2.0**-18


def test_largest_of_numbers_has_no_error_of_what_is_below_it() -> None:
    """A number far below another can't be the largest, however far off it is."""
    x = torch.tensor([[1.0, 0.0], [-1e6, 2.0]])

    def reference(x: Tensor) -> tuple[Tensor, Tensor]:
        y = rounds(x, "", torch.bfloat16)
        return y.amax(-1), torch.maximum(y[:, 0], y[:, 1])

    for bound in bounds(reference, {"x": x}, Numerics(), _SINGLE * 2):
        assert float(bound.deterministic[1]) <= 2 * _CAST * (1 + 2.0**-10)


@pytest.mark.parametrize("power", [2.5, -1.5])
def test_power_of_tensors_is_bounded_as_one_of_a_number(power: float) -> None:
    """exp(k log a) has one rule, whether k is a number or a tensor."""
    x = torch.rand(50) * 4 + 0.1
    (one,) = bounds(lambda x: x**power, {"x": x}, Numerics(), _SINGLE)
    given = {"x": x, "k": torch.full((50,), power)}
    (other,) = bounds(lambda x, k: x**k, given, Numerics(), _SINGLE)
    assert bool(((one.deterministic / other.deterministic - 1).abs() < 1e-9).all())
    (exact,) = truth(lambda x, k: x**k, given)
    with mpmath.workdps(40):
        for place, number in enumerate(x.tolist()):
            value = mpmath.mpf(number) ** power
            assert abs(value - float(exact[place])) <= 2.0**-50 * abs(value)


def test_product_of_many_factors_is_within_its_bound_in_any_order() -> None:
    """In order, reversed, sorted, and in pairs; one factor that is left out is beyond it."""
    draw = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(64, 100, generator=draw) / 10
    (exact,) = truth(lambda x: x.prod(-1), {"x": x})
    (bound,) = bounds(lambda x: x.prod(-1), {"x": x}, Numerics(), _SINGLE)
    for ordered in (x, x.flip(-1), x.sort(-1).values):
        computed = ordered[:, 0]
        for factor in ordered[:, 1:].unbind(-1):
            computed = computed * factor
        assert bool(((computed.double() - exact).abs() <= bound.deterministic).all())
    left_out = (x[:, 1:].double().prod(-1) - exact).abs()
    assert float((left_out > bound.deterministic).double().mean()) > 0.9


def _flushed(x: Tensor) -> Tensor:
    """Return 0 in the place of subnormals."""
    return x.masked_fill(x.abs() < 2.0**-126, 0.0)


_LARGE = torch.tensor([1e38, -2e38, 1.0, 1e20])
BY_INVERSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[float]]] = {
    "x y^-2": (
        lambda x, y: x * 1e-38 * y**-2,
        lambda x, y: x * 1e-38 * (1 / _flushed(y * y)),
        [6.2e-20, 9e-20, 2.0, -2.0],
    ),
    "x y^-1.5": (
        lambda x, y: x * 1e-38 * y**-1.5,
        lambda x, y: x * 1e-38 * (1 / _flushed(y * y.sqrt())),
        [4e-26, 1.7e-13, 1e13, 2.0],
    ),
    "x y^-3 of tensors": (
        lambda x, y: x * 1e-38 * y ** torch.full_like(y, -3.0),
        lambda x, y: x * 1e-38 * (1 / _flushed(_flushed(y * y) * y)),
        [2.05e-13, 1.7e-13, 1e13, 2.0],
    ),
    "x / y": (lambda x, y: x / y, lambda x, y: x * _flushed(1 / y), [2e38, 1.5e38, 2e38, 3.0]),
    "x / y^3": (
        lambda x, y: x / y**3,
        lambda x, y: x * _flushed(1 / (y * y * y)),
        [6e12, 5.5e12, 6e12, 3.0],
    ),
}


@pytest.mark.parametrize("name", BY_INVERSES)
def test_kernel_that_inverts_a_power_is_sound_where_the_inverse_is_lost(name: str) -> None:
    """A subnormal y^k is flushed, and 1 / 0 is infinite where y^-k and the result are finite."""
    function, kernel, values = BY_INVERSES[name]
    inputs = {"x": _LARGE, "y": torch.tensor(values)}
    (exact,), (bound,) = truth(function, inputs), bounds(function, inputs, Numerics(), _SINGLE)
    result = kernel(**inputs).double()
    lost = result.isinf() | (result == 0)
    assert bool(exact.isfinite().all()) and bool(lost.any())
    assert bool(
        (((result - exact).abs() <= bound.deterministic) | bound.deterministic.isinf()).all()
    )
    assert float((bound.deterministic / exact.abs())[-1]) < 2.0**-16


def test_negative_power_of_a_negative_number_has_a_bound() -> None:
    """It is as far from the truth as that of the magnitude; of an infinity it is 0."""
    y = torch.tensor([-2.0, 2.0, -0.7, 0.7, -math.inf, math.inf])
    (bound,) = bounds(lambda y: y**-3, {"y": y}, Numerics(), _SINGLE)
    assert torch.equal(bound.deterministic[::2], bound.deterministic[1::2])
    assert float(bound.deterministic.max()) < 1e-5


def test_large_whole_number_keeps_its_own_error_as_a_real_one() -> None:
    """Above 2^24 the rounding to fp32 is on top of the whole number that a kernel may have."""
    inputs = {"x": torch.tensor([1.0, 3.0, 0.3])}

    def reference(x: Tensor) -> Tensor:
        return (x * 1e8 / 3).round().long() * 0.5

    (exact,), (bound,) = truth(reference, inputs), bounds(reference, inputs, Numerics(), _SINGLE)
    (whole,) = bounds(lambda x: (x * 1e8 / 3).round().long(), inputs, Numerics(), [torch.int64])
    least = whole.deterministic / 2 + exact.abs() * 2.0**-24
    assert bool((whole.deterministic >= 1).all())
    assert bool((bound.deterministic >= least).all())
    assert bool((bound.deterministic <= 4 * least).all())


def test_constant_of_a_pad_and_of_nan_to_num_is_rounded() -> None:
    """fp32 has no 0.3; the largest number in an infinity's place is any, of whatever dtype."""
    inputs = {"x": torch.tensor([1.0, math.nan, math.inf, -math.inf])}
    for function in (
        lambda x: torch.nn.functional.pad(x[:1], (1, 1), value=0.3),
        lambda x: x.nan_to_num(0.3, 0.1, -0.7),
    ):
        (exact,), (bound,) = truth(function, inputs), bounds(function, inputs, Numerics(), _SINGLE)
        error = (exact.float().double() - exact).abs()
        assert bool((error <= bound.deterministic).all())
        assert float(bound.deterministic.max()) < 1e-7
    (bound,) = bounds(torch.nan_to_num, {"input": inputs["x"]}, Numerics(), _SINGLE)
    assert bound.deterministic.tolist() == [0, 0, math.inf, math.inf]


def test_power_of_a_number_that_is_not_above_0_has_a_bound() -> None:
    """0 to a power is 0 or 1, and a negative number's power is as far off as its magnitude's."""
    k = torch.tensor([0, 1, 2, 3])
    (of_zero,) = bounds(lambda k: 0.0**k, {"k": k}, Numerics(), _SINGLE)
    assert not bool(of_zero.deterministic.any())
    sides = [bounds(lambda k, a=a: a**k, {"k": k}, Numerics(), _SINGLE)[0] for a in (-2.0, 2.0)]
    assert torch.equal(*(bound.deterministic for bound in sides))


def test_quotient_that_is_rounded_by_a_mode_has_a_size() -> None:
    """Where its divisor may be 0 and the bound says nothing, the size of its terms is asked for."""
    x = torch.tensor([[0.0, 1.0, 2.0], [math.inf, 1.0, 0.0]])
    for mode in ("floor", "trunc"):

        def reference(x: Tensor, mode: str = mode) -> Tensor:
            return torch.div(x * 7.3, x.flip(0) * 1.1, rounding_mode=mode)

        (bound,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
        assert float(bound.deterministic[0, 1]) <= 1


def test_extreme_of_truth_values_is_followed() -> None:
    """Its index is any one of those that may be True."""
    x = torch.tensor([[1.0, 2.0, -3.0], [0.5, 0.1, 0.7]])

    def reference(x: Tensor) -> Tensor:
        return (x * 1.1 - x * 1.1 > 0).max(-1).values

    (bound,) = bounds(reference, {"x": x}, Numerics(), [torch.bool])
    assert bound.deterministic.tolist() == [1, 1]
