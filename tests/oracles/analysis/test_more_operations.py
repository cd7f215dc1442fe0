"""Distances, bags, samples between numbers and places among edges, beside exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product as every

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles.analysis import NoRuleError, bounds, rounds, truth
from kernel_workbench.oracles.op import Numerics

_SINGLE = [torch.float32]
_CAST = torch.bfloat16


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _limit(function: Callable[..., Tensor], **inputs: Tensor) -> Tensor:
    """Return the deterministic bound, which is finite and has power in most elements."""
    (bound,) = bounds(function, inputs, Numerics(), [torch.float64])
    assert bool(bound.deterministic.isfinite().all())
    return bound.deterministic


def _check(function: Callable[..., Tensor], **inputs: Tensor) -> None:
    """A result in fp32, of exact arguments and of arguments in bfloat16, is within its bound."""
    (exact,) = truth(function, inputs)
    plain = _limit(function, **inputs)
    assert bool(((function(**inputs).double() - exact).abs() <= plain).all())

    def rounded(**arguments: Tensor) -> Tensor:
        return function(**{name: rounds(x, "", _CAST) for name, x in arguments.items()})

    cast = {name: x.to(_CAST).float() for name, x in inputs.items()}
    assert bool(((function(**cast).double() - exact).abs() <= _limit(rounded, **inputs)).all())
    assert float(plain.median()) <= 2.0**-10 * max(float(exact.abs().max()), 1)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y)


_TAKES_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fmax": lambda x, y: torch.fmax(2 * x, y),
    "fmin": lambda x, y: torch.fmin(2 * x, y),
    "cdist": _distances,
    "cdist without products": lambda x, y: torch.cdist(
        x, y, compute_mode="donot_use_mm_for_euclid_dist"
    ),
    "cdist 1": lambda x, y: torch.cdist(x, y, 1.0),
    "cdist 3": lambda x, y: torch.cdist(x, y, 3.0),
    "cdist inf": lambda x, y: torch.cdist(x, y, math.inf),
    "pdist": lambda x, y: F.pdist(x * y),
    "bilinear": lambda x, y: F.bilinear(x, y, (x[:, :, None] * y[:, None, :])[:3]),
    "renorm": lambda x, y: torch.renorm(x * y, 2, 0, 0.5),
    "block_diag": lambda x, y: torch.block_diag(x * y, y),
    "masked_scatter": lambda x, y: (x * y).masked_scatter(torch.eye(6, dtype=torch.bool), y + x),
    "put": lambda x, y: torch.put(x * y, torch.tensor([3, -1]), y[0, :2] * 3),
    "put and add": lambda x, y: torch.put(x, torch.tensor([3, 3]), y[0, :2], accumulate=True),
    "index_reduce": lambda x, y: x.index_reduce(0, torch.tensor([1] * 6), y, "mean"),
    "rrelu": lambda x, y: F.rrelu(x * y),
    "fold": lambda x, y: F.fold(x.view(1, 4, 9) * y.view(1, 4, 9), (4, 4), 2),
    "max_unpool": lambda x, y: F.max_unpool2d(
        (x * y).view(1, 1, 6, 6), torch.arange(36).view(1, 1, 6, 6), [1, 1], output_size=[6, 6]
    ),
    "nearest-exact": lambda x, y: F.interpolate(
        (x * y)[None, None], scale_factor=2, mode="nearest-exact"
    ),
    "bicubic": lambda x, y: F.interpolate((x * y)[None, None], size=(11, 9), mode="bicubic"),
    "affine_grid": lambda x, y: F.affine_grid(
        x[:2].view(2, 2, 3) * y[0, 0], [2, 1, 5, 7], align_corners=False
    ),
    "nanmedian": lambda x, y: torch.nanmedian(x * y, 1)[0],
    "mvlgamma": lambda x, y: torch.mvlgamma(x.abs() + y.abs() + 2, 2),
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # "in beta"
@pytest.mark.parametrize("name", _TAKES_TWO)
def test_result_of_arguments_that_are_cast_is_within_its_bound(name: str) -> None:
    """The bound holds for PyTorch's own result, and for one of rounded arguments."""
    _check(_TAKES_TWO[name], x=_draw(6, 6), y=_draw(6, 6, seed=1))


def test_distance_by_products_is_within_its_bound_where_rows_are_near() -> None:
    """|x|^2 + |y|^2 - 2 x y cancels, and PyTorch computes so for more than 25 rows."""
    x = _draw(3, 8) + 4
    y = x + 2.0**-6 * _draw(3, 8, seed=1)
    limit = _limit(_distances, x=x, y=y)
    direct = _limit(
        lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"), x=x, y=y
    )
    products = torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist").double()
    with mpmath.workdps(50):
        for i, j in every(range(3), repeat=2):
            rows = zip(x[i].tolist(), y[j].tolist(), strict=True)
            exact = float(mpmath.sqrt(sum((mpmath.mpf(a) - b) ** 2 for a, b in rows)))
            assert abs(float(products[i, j]) - exact) <= float(limit[i, j])
            assert float(direct[i, j]) <= 2.0**-20 * exact


def test_distance_has_a_gradient() -> None:
    """It is a difference over the distance."""

    def gradient(x: Tensor, y: Tensor, p: float) -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(torch.cdist(leaf, y, p).sum(), leaf)[0]

    for p in (1.0, 2.0, 3.0, math.inf):
        inputs = {"x": _draw(4, 3), "y": _draw(5, 3, seed=1)}

        def function(x: Tensor, y: Tensor, p: float = p) -> Tensor:
            return gradient(x, y, p)

        (exact,) = truth(function, inputs)
        error = (function(inputs["x"], inputs["y"]).double() - exact).abs()
        assert bool((error <= _limit(function, **inputs)).all())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bag_of_embeddings_is_within_its_bound_of_exact_numbers(mode: str) -> None:
    """A bag is a sum of rows, whose errors add up; an empty one is 0."""
    indices, offsets = torch.tensor([1, 2, 4, 4, 0, 3]), torch.tensor([0, 2, 2, 5])
    bags = [[1, 2], [], [4, 4, 0], [3]]
    weight = _draw(5, 3) * 3

    def function(weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode)

    _check(function, weight=weight)
    limit, result = _limit(function, weight=weight), function(weight)
    for place, rows in enumerate(bags):
        for column in range(3):
            numbers = [Fraction(float(weight[row, column])) for row in rows]
            exact = sum(numbers, Fraction(0))
            if mode == "mean" and numbers:
                exact /= len(numbers)
            if mode == "max" and numbers:
                exact = max(numbers)
            off = abs(Fraction(float(result[place, column])) - exact)
            assert off <= Fraction(float(limit[place, column]))


def test_bag_with_factors_and_its_gradient_are_within_their_bounds() -> None:
    """Factors are arguments as well: a product, and an addition."""
    indices, offsets = torch.tensor([1, 2, 4, 4, 0, 3]), torch.tensor([0, 2, 5])

    def function(weight: Tensor, factors: Tensor) -> Tensor:
        return F.embedding_bag(
            indices, weight, offsets, mode="sum", per_sample_weights=factors
        ).square()

    def gradient(weight: Tensor, factors: Tensor) -> Tensor:
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(function(leaf, factors).sum(), leaf)[0]

    for called in (function, gradient):
        _check(called, weight=_draw(5, 3), factors=_draw(6, seed=1))


def _at(image: list[list[Fraction]], row: int, column: int) -> Fraction:
    inside = 0 <= row < len(image) and 0 <= column < len(image[0])
    return image[row][column] if inside else Fraction(0)


def test_sample_between_numbers_is_within_its_bound_of_exact_arithmetic() -> None:
    """Bilinear weights are rational; a position of fp32 and an image have exact values."""
    image, grid = _draw(1, 1, 5, 4), _draw(1, 6, 6, 2, seed=1) * 0.6

    def function(image: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(image, grid, align_corners=False)

    limit, result = _limit(function, image=image, grid=grid), function(image, grid)
    numbers = [[Fraction(x) for x in row] for row in image[0, 0].tolist()]
    for i, j in every(range(6), repeat=2):
        column, row = (
            ((Fraction(x) + 1) * n - 1) / 2
            for x, n in zip(grid[0, i, j].tolist(), (4, 5), strict=True)
        )
        r, c = math.floor(row), math.floor(column)
        down, right = row - r, column - c
        exact = sum(
            _at(numbers, r + below, c + beside)
            * (down if below else 1 - down)
            * (right if beside else 1 - right)
            for below, beside in every((0, 1), repeat=2)
        )
        off = abs(Fraction(float(result[0, 0, i, j])) - exact)
        assert off <= Fraction(float(limit[0, 0, i, j]))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_sample_by_a_grid_that_is_cast_is_within_its_bound(
    mode: str, padding: str, *, align: bool
) -> None:
    """A position that is off moves what is taken by the slope nearby, or over a tie."""
    draw = {"image": _draw(2, 3, 8, 8), "grid": _draw(2, 5, 5, 2, seed=1) * 0.8}

    def function(image: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(image, grid, mode, padding, align_corners=align)

    _check(function, **draw)


def test_sample_of_a_volume_is_within_its_bound() -> None:
    """A grid has an axis more."""
    draw = {"image": _draw(1, 2, 4, 5, 6), "grid": _draw(1, 3, 3, 3, 3, seed=1) * 0.8}

    def function(image: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(image, grid, align_corners=True)

    _check(function, **draw)


def test_nearest_sample_may_be_another_near_a_tie() -> None:
    """Half a place between two numbers, either is right; beside it, one is."""
    image = torch.tensor([[[[1.0, 5.0]]]])
    grid = torch.tensor([[[[1e-9, 0.0], [0.4, 0.0]]]])

    def function(image: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(image, grid, "nearest", align_corners=False)

    assert _limit(function, image=image, grid=grid).flatten().tolist() == [4, 0]


def test_place_among_edges_is_open_near_an_edge_alone() -> None:
    """A count of edges that are less rises with a number; its error is a distance."""
    edges, x = torch.tensor([0.0, 1.0, 2.0, 4.0]), torch.tensor([0.5, 1.0, 3.0, 9.0])
    functions: tuple[Callable[..., Tensor], ...] = (
        lambda x, edges: torch.bucketize(x * 0.1 / 0.1, edges),
        lambda x, edges: torch.searchsorted(edges * 0.1 / 0.1, x, right=True),
    )
    for function in functions:
        (bound,) = bounds(function, {"x": x, "edges": edges}, Numerics(), [torch.int64])
        assert bound.deterministic.tolist() == [0, 1, 0, 0]
    (exact,) = bounds(torch.bucketize, {"input": x, "boundaries": edges}, Numerics(), [torch.int64])
    assert float(exact.deterministic.max()) == 0


def test_place_near_an_edge_chooses_no_number() -> None:
    """A kernel may have another place there."""
    inputs = {"x": torch.tensor([0.5, 1.0]), "table": torch.randn(4)}

    def function(x: Tensor, table: Tensor) -> Tensor:
        return table[torch.bucketize(x * 0.1 / 0.1, torch.tensor([0.0, 1.0]))] * 2

    with pytest.raises(NoRuleError, match="indices that depend on rounded values"):
        bounds(function, inputs, Numerics(), _SINGLE)
    inputs["x"] = torch.tensor([0.5, 1.5])
    assert float(bounds(function, inputs, Numerics(), _SINGLE)[0].deterministic.max()) < 1e-30


def test_count_of_numbers_that_are_not_zero_is_off_by_the_open_ones() -> None:
    """A rounded number that may be 0 counts 1."""
    inputs = {"x": torch.tensor([[1.0, 0.3, 0.0], [2.0, 3.0, 4.0]])}

    def function(x: Tensor) -> Tensor:
        return torch.count_nonzero(x * 0.1 - 0.03, 1)

    (bound,) = bounds(function, inputs, Numerics(), [torch.int64])
    assert bound.deterministic.round(decimals=3).tolist() == [1, 0]


@pytest.mark.parametrize("count", [2, 5, 7, 1000])
def test_line_of_numbers_is_within_its_bound_in_either_direction(count: int) -> None:
    """A kernel may begin at either end, with a rounded step."""
    limit = _limit(lambda x: x * torch.linspace(-1, 0.7, count), x=torch.ones(count))
    first, last = Fraction(-1), Fraction(7, 10)
    step = torch.tensor(1.7 / (count - 1), dtype=torch.float32)
    places = torch.arange(count, dtype=torch.float32)
    ways = (-1 + places * step, torch.tensor(0.7) - places.flip(0) * step)
    for way in (*ways, torch.linspace(-1, 0.7, count)):
        for place, number in enumerate(way.tolist()):
            exact = first + (last - first) * Fraction(place, count - 1)
            assert abs(Fraction(number) - exact) <= Fraction(float(limit[place]))
    whole = _limit(lambda x: x * torch.linspace(0, 8, 5), x=torch.ones(5))
    assert float(whole.max()) <= 1.001 * 2.0**-21  # the product's rounding alone


def test_powers_of_a_line_are_within_their_bound() -> None:
    """Their exponents are a line."""
    limit = _limit(lambda x: x * torch.logspace(-2, 3, 12), x=torch.ones(12))
    with mpmath.workdps(30):
        for place, number in enumerate(torch.logspace(-2, 3, 12).tolist()):
            exact = mpmath.mpf(10) ** (mpmath.mpf(5 * place) / 11 - 2)
            assert abs(number - exact) <= float(limit[place])


def test_sign_bit_may_be_either_near_zero() -> None:
    """Elsewhere it is exact."""
    inputs = {"x": torch.tensor([0.3, 0.5])}
    (bound,) = bounds(
        lambda x: torch.where(torch.signbit(x * 0.1 - 0.03), 1.0, 2.0), inputs, Numerics(), _SINGLE
    )
    assert bound.deterministic.tolist() == [1, 0]


def test_bits_of_whole_numbers_are_read_and_those_of_real_ones_refused() -> None:
    """A view of codes as bfloat16 keeps its number of elements, whatever the truth runs in."""
    inputs = {"packed": torch.tensor([16256, 16640, 49280], dtype=torch.int32), "x": torch.ones(3)}

    def function(packed: Tensor, x: Tensor) -> Tensor:
        return packed.to(torch.int16).view(torch.bfloat16).to(torch.float32) * x

    (exact,) = truth(function, inputs)
    assert exact.tolist() == [1, 8, -4]
    assert float(_limit(function, **inputs).max()) <= 2.0**-21
    with pytest.raises(NoRuleError, match="reads the bits of real numbers"):
        bounds(lambda x: (2 * x).view(torch.int32) >> 23, {"x": torch.ones(3)}, Numerics(), _SINGLE)


def test_largest_numbers_in_no_order_are_taken_where_no_output_depends_on_it() -> None:
    """A router adds its experts up, in whichever order it has them."""
    inputs = {"x": _draw(3, 16), "y": _draw(16, 4, seed=1)}

    def routed(x: Tensor, y: Tensor) -> Tensor:
        weights, places = torch.topk(x, 4, dim=-1, sorted=False)
        return (weights.softmax(-1)[..., None] * y[places]).sum(1)

    (exact,) = truth(routed, inputs)
    assert bool(((routed(**inputs).double() - exact).abs() <= _limit(routed, **inputs)).all())
    with pytest.raises(NoRuleError, match="depends on the order"):
        bounds(lambda x: x.topk(4, sorted=False)[0], {"x": inputs["x"]}, Numerics(), _SINGLE)
