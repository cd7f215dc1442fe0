"""Convolutions, pools and upsampling, computed by loops in fp32, within their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product as every
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles.analysis import NoRuleError, Reference, bounds, emulate, rounds, truth
from kernel_workbench.oracles.analysis.trace import trace
from kernel_workbench.oracles.analysis.windows import addends_of
from kernel_workbench.oracles.op import Numerics
from kernel_workbench.oracles.rounding import whole_products

_SINGLE = [torch.float32]

GEOMETRIES: dict[str, tuple[bool, dict[str, Any], tuple[int, ...]]] = {
    "plain": (False, {}, (6, 4, 3, 3)),
    "strided": (False, {"stride": 2, "padding": 1}, (6, 4, 3, 3)),
    "dilated": (False, {"dilation": 2, "padding": 3}, (6, 4, 3, 2)),
    "grouped": (False, {"groups": 2, "stride": 3}, (6, 2, 3, 3)),
    "by channel": (False, {"groups": 4, "padding": (2, 1)}, (4, 1, 5, 3)),
    "all at once": (
        False,
        {"groups": 2, "stride": (2, 3), "dilation": (2, 1), "padding": (3, 1)},
        (6, 2, 3, 3),
    ),
    "transposed": (True, {"stride": 2, "padding": 1, "output_padding": 1}, (4, 6, 3, 3)),
    "transposed in groups": (
        True,
        {"groups": 2, "stride": 3, "dilation": 2, "padding": 2},
        (4, 3, 3, 3),
    ),
}


def _convolution(name: str) -> tuple[Callable[..., Tensor], tuple[int, ...]]:
    transposed, options, shape = GEOMETRIES[name]
    function = F.conv_transpose2d if transposed else F.conv2d
    return lambda x, w, b: function(x, w, b, **options), shape


def _given(name: str, seed: int = 0) -> dict[str, Tensor]:
    """x [2, 4, 11, 9], w and b."""
    transposed, options, shape = GEOMETRIES[name]
    draw = torch.Generator().manual_seed(seed)
    channels = shape[1] * options.get("groups", 1) if transposed else shape[0]
    return {
        "x": torch.randn(2, 4, 11, 9, generator=draw),
        "w": torch.randn(shape, generator=draw),
        "b": torch.randn(channels, generator=draw),
    }


def _by_taps(name: str, x: Tensor, w: Tensor, b: Tensor, *, start: bool) -> Tensor:
    """A convolution in fp32 by products of single taps and channels that are added up in turn.

    start: the bias comes first, else last.
    """
    function, shape = _convolution(name)
    zero = torch.zeros_like(b)
    total = function(torch.zeros_like(x), w, b if start else zero)
    for tap in every(*map(range, shape[2:])):
        for channel in range(x.shape[1]):
            one, weight = torch.zeros_like(x), torch.zeros_like(w)
            one[:, channel] = x[:, channel]
            place: Any = (..., *tap)
            weight[place] = w[place]
            total = total + function(one, weight, zero)
    return total if start else total + b.view(-1, 1, 1)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution_in_another_order_is_within_its_bounds(name: str) -> None:
    """Bias first or last, tap by tap; a tap that is left out is beyond the bound."""
    function, _ = _convolution(name)
    given = _given(name)
    (exact,) = truth(function, given)
    (bound,) = bounds(function, given, Numerics(), _SINGLE)
    assert bound.probabilistic is not None
    for computed in (
        function(**given),
        _by_taps(name, **given, start=True),
        _by_taps(name, **given, start=False),
    ):
        error = (computed.double() - exact).abs()
        assert bool((error <= bound.probabilistic).all())
    given["w"][..., 1, 1] = 0
    wrong = (function(**given).double() - exact).abs()
    assert bool((wrong > 0.1).any())
    assert bool((wrong > bound.deterministic)[wrong > 0.1].all())


@pytest.mark.parametrize("name", GEOMETRIES)
def test_number_of_products_is_the_most_that_one_number_adds_up(name: str) -> None:
    """Ones convolved with ones count them."""
    function, shape = _convolution(name)
    transposed, options, _ = GEOMETRIES[name]
    ones = {key: torch.ones_like(value) for key, value in _given(name).items()}
    most = int(function(ones["x"], ones["w"], torch.zeros_like(ones["b"])).max())
    steps = [
        (each, each) if isinstance(each, int) else each
        for each in (options.get(key, 1) for key in ("stride", "dilation"))
    ]
    groups = options.get("groups", 1)
    assert addends_of(shape, steps[0], steps[1], groups, transposed=transposed) == most


@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradients_of_convolution_are_convolutions(name: str) -> None:
    """The gradients that the graph computes are autograd's, and fp32's are within their bounds."""
    function, _ = _convolution(name)
    given = _given(name)

    def gradients(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (x, w, b)]
            return torch.autograd.grad(function(*leaves), leaves, dy)

    dy = torch.randn_like(function(**given))
    arguments = {"dy": dy, **given}
    exact = truth(gradients, arguments)
    graph = trace(gradients, arguments)
    assert not any("convolution_backward" in str(node.target) for node in graph.graph.nodes)
    for value, computed in zip(
        exact, graph(*(each.double() for each in arguments.values())), strict=True
    ):
        assert value.shape == computed.shape
        assert float((value - computed).abs().max()) <= 2.0**-40
    found = bounds(gradients, arguments, Numerics(), _SINGLE * 3)
    for value, made, bound in zip(exact, gradients(**arguments), found, strict=True):
        assert bound.probabilistic is not None
        assert bool(((made.double() - value).abs() <= bound.probabilistic).all())


def test_addition_to_a_convolution_may_be_its_first() -> None:
    """A kernel begins its sums with what is added: the tree has one addend more."""
    draw = torch.Generator().manual_seed(0)
    given = {**_given("plain"), "c": torch.randn(2, 6, 9, 7, generator=draw) * 1e4}

    def reference(x: Tensor, w: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return F.conv2d(x, w, b) + c

    (exact,) = truth(reference, given)
    (bound,) = bounds(reference, given, Numerics(), _SINGLE)
    total = given["c"] + given["b"].view(-1, 1, 1)
    zero = torch.zeros(6)
    for row, column in every(range(3), range(3)):
        tap = torch.zeros_like(given["w"])
        tap[..., row, column] = given["w"][..., row, column]
        total = total + F.conv2d(given["x"], tap, zero)
    error = (total.double() - exact).abs()
    assert bound.probabilistic is not None
    assert bool((error <= bound.probabilistic).all())
    last = (F.conv2d(given["x"], given["w"], given["b"]) + given["c"]).double() - exact
    assert float(error.max()) > 2 * float(last.abs().max())


def _unbiased(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w)


def test_alike_products_are_bounded_by_the_deterministic_form() -> None:
    """They round alike: a filter of equal numbers has no probable form of its own."""
    w = torch.stack([torch.full((40, 3, 3), 0.1), torch.randn(40, 3, 3)])
    given = {"x": torch.full((1, 40, 9, 9), 0.7), "w": w}
    (bound,) = bounds(_unbiased, given, Numerics(), _SINGLE)
    assert bound.probabilistic is not None
    ratio = bound.probabilistic / bound.deterministic
    assert float(ratio[:, 0].min()) == 1
    assert float(ratio[:, 1].max()) < 0.5


def test_cut_operands_of_a_convolution_are_within_the_bound_of_tf32_alone() -> None:
    """So is the emulation, which cuts them."""
    given = _given("plain")
    given = {"x": given["x"].abs(), "w": given["w"].abs()}
    cut = [(x.view(torch.int32) & -(2**13)).view(torch.float32) for x in given.values()]
    declared = Numerics(tf32_operands=True)
    (exact,) = truth(_unbiased, given)
    (wide,) = bounds(_unbiased, given, declared, _SINGLE)
    (plain,) = bounds(_unbiased, given, Numerics(), _SINGLE)
    (emulated,) = emulate(_unbiased, given, declared, _SINGLE)
    for computed in (_unbiased(*cut), emulated):
        error = (computed.double() - exact).abs()
        assert bool((error <= wide.deterministic).all())
        assert bool((error > plain.deterministic).any())


def test_convolutions_of_an_emulation_read_whole_operands() -> None:
    """cuDNN would cut them otherwise; a process's own choice comes back."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        with whole_products():
            assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max of a line": lambda x: F.max_pool1d(x[0], 3, 2),
    "max of a volume": lambda x: F.max_pool3d(x, 2, ceil_mode=True),
    "dilated max": lambda x: F.max_pool2d(x, 2, 3, 1, dilation=2),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average without padding": lambda x: F.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "average of a volume": lambda x: F.avg_pool3d(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive average of a volume": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "linear": lambda x: F.interpolate(x[0], size=13, mode="linear"),
    "bilinear": lambda x: F.interpolate(x, size=(5, 17), mode="bilinear", align_corners=True),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=1.5, mode="trilinear"),
}


def _gradient_of(function: Callable[[Tensor], Tensor]) -> Reference:
    def gradient(dy: Tensor, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (made,) = torch.autograd.grad(function(x), x, dy)
        return made

    return gradient


@pytest.mark.parametrize("name", POOLS)
def test_gradient_of_a_window_is_within_its_bound(name: str) -> None:
    """In fp32, of an exact argument; 1.1 times as large it is beyond the bound."""
    function = POOLS[name]
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 10, 8, generator=draw)
    given = {"dy": torch.randn(function(x).shape, generator=draw), "x": x}
    reference = _gradient_of(function)
    (exact,) = truth(reference, given)
    (bound,) = bounds(reference, given, Numerics(), _SINGLE)
    computed = reference(**given)
    assert isinstance(computed, Tensor)
    error = (computed.double() - exact).abs()
    assert bool((error <= bound.deterministic).all())
    large = exact.abs() > 0.1
    assert bool((0.1 * exact.abs() > bound.deterministic)[large].all())


def test_gradient_of_a_max_pool_may_go_to_any_number_that_may_be_the_largest() -> None:
    """Two numbers that a cast may exchange: either may get it, and no third one."""
    x = torch.tensor([[[[1.0, 1.001], [0.5, -1.0]]]])
    dy = torch.full((1, 1, 1, 1), 3.0)

    def pool(x: Tensor) -> Tensor:
        return F.max_pool2d(rounds(x, "", torch.bfloat16), 2)

    (bound,) = bounds(_gradient_of(pool), {"dy": dy, "x": x}, Numerics(), _SINGLE)
    limit = bound.deterministic[0, 0]
    assert bool((limit[0] >= 3).all())
    assert float(limit[1].max()) <= 2.0**-100
    (exact,) = bounds(
        _gradient_of(lambda x: F.max_pool2d(x, 2)), {"dy": dy, "x": x}, Numerics(), _SINGLE
    )
    assert float(exact.deterministic.max()) <= 2.0**-100


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [7, 13, 64])
def test_bilinear_by_positions_in_fp32_is_within_its_bound(size: int, *, align: bool) -> None:
    """As a kernel computes it: a ratio, a position, and weights, all rounded to fp32."""
    x = torch.randn(1, 1, 1, 11)
    place = torch.arange(size, dtype=torch.float32)
    ratio = torch.tensor((11 - 1) / (size - 1) if align else 11 / size)
    source = place * ratio if align else ((place + 0.5) * ratio - 0.5).clamp(min=0)
    low = source.floor().long().clamp(max=10)
    high, share = (low + 1).clamp(max=10), source - low
    left, right = x[..., low], x[..., high]

    def reference(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(1, size), mode="bilinear", align_corners=align)

    (exact,) = truth(reference, {"x": x})
    (bound,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
    for computed in (left * (1 - share) + right * share, left + (right - left) * share):
        assert bool(((computed.double() - exact).abs() <= bound.deterministic).all())
    shifted = (left * share + right * (1 - share)).double()
    assert bool(((shifted - exact).abs() > bound.deterministic).any())


def test_nearest_number_whose_place_is_a_matter_of_rounding_is_refused() -> None:
    """A ratio of 1.7 in fp32 isn't what a quotient of sizes is."""
    with pytest.raises(NoRuleError, match="how a ratio is rounded"):
        bounds(
            lambda x: F.interpolate(x, scale_factor=1 / (1 / 3 + 1e-9)),
            {"x": torch.randn(1, 1, 300, 3)},
            Numerics(),
            _SINGLE,
        )


def test_average_of_equal_numbers_is_that_number_to_some_roundings() -> None:
    """The bound follows the size of a window, which padding isn't in."""
    x = torch.full((1, 1, 9, 9), 0.1)
    (small,) = bounds(lambda x: F.avg_pool2d(x, 2), {"x": x}, Numerics(), _SINGLE)
    (large,) = bounds(lambda x: F.avg_pool2d(x, 9), {"x": x}, Numerics(), _SINGLE)
    assert math.isclose(float(small.deterministic.max()) / (0.1 * 2.0**-24), 3 + 6, rel_tol=1e-3)
    assert math.isclose(float(large.deterministic.max()) / (0.1 * 2.0**-24), 80 + 6, rel_tol=1e-3)


def test_window_of_which_some_order_overflows_is_promised_nothing() -> None:
    """The mean of large numbers is finite, and their sum isn't; their neighbours are bounded."""
    x = torch.ones(1, 1, 8)
    x[..., :2] = 3e38
    w = torch.tensor([[[1.0, -1.0]]])
    for function in (lambda x: F.avg_pool1d(x, 2), lambda x: F.conv1d(x, w.to(x.dtype), None, 2)):
        (bound,) = bounds(function, {"x": x}, Numerics(), _SINGLE)
        assert bound.deterministic[0, 0].isinf().tolist() == [True, False, False, False]
