"""Bounds from replays: of deep networks, which the proven bounds say nothing of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.oracles.analysis import bounds, truth
from kernel_workbench.oracles.analysis.stochastic import quantile
from kernel_workbench.oracles.op import Bound, Numerics

_LAYERS, _WIDTH, _ROWS = 12, 96, 16
Product = Callable[[Tensor, Tensor], Tensor]


def _network(x: Tensor, w: Tensor, b: Tensor, eps: tuple[float, ...], product: Product) -> Tensor:
    """Layers of a norm, a product, a bias and a relu; the last without a relu."""
    for layer in range(_LAYERS):
        centred = x - x.mean(-1, keepdim=True)
        x = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps[layer])
        x = product(x, w[layer]) + b[layer]
        x = torch.relu(x) if layer < _LAYERS - 1 else x
    return x


_EPS = (1e-3,) * _LAYERS


def _reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return _network(x, w, b, _EPS, torch.matmul)


@cache
def _inputs(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    inputs = {
        "x": drawn(_ROWS, _WIDTH),
        "w": drawn(_LAYERS, _WIDTH, _WIDTH) / _WIDTH**0.5,
        "b": drawn(_LAYERS, _WIDTH) / 8,
    }
    return {name: value.to(dtype) for name, value in inputs.items()}


@cache
def _judged(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Bound]:
    inputs = _inputs(seed, dtype)
    (exact,), (bound,) = (
        truth(_reference, inputs),
        bounds(_reference, inputs, Numerics(), (dtype,)),
    )
    return exact, bound


def _in_turn(x: Tensor, w: Tensor) -> Tensor:
    """Add up the products of a row one after another."""
    total = torch.zeros(x.shape[0], w.shape[1])
    for place in range(w.shape[0]):
        total = total + x[:, place, None] * w[place]
    return total


def _backwards(x: Tensor, w: Tensor) -> Tensor:
    return x.flip(1) @ w.flip(0)


def _split(x: Tensor, w: Tensor) -> Tensor:
    """Add up four parts of a row, and these from the last to the first."""
    parts = [a @ b for a, b in zip(x.chunk(4, 1), w.chunk(4, 0), strict=True)]
    return ((parts[3] + parts[2]) + parts[1]) + parts[0]


@pytest.mark.parametrize("runs", [12, 24, 48])
def test_quantile_is_below_the_one_of_chi_squared(runs: int) -> None:
    """By the incomplete gamma function; and it isn't far below."""
    for chance in (1e-3, 1e-6, 1e-12):
        found = torch.tensor(quantile(chance, runs) / 2, dtype=torch.float64)
        degrees = torch.tensor(runs / 2, dtype=torch.float64)
        exact = float(torch.special.gammainc(degrees, found))
        assert chance / 100 < exact <= chance


@pytest.mark.parametrize("seed", range(3))
def test_bound_of_replays_is_between_errors_and_the_proven_bound(seed: int) -> None:
    """Errors of sound kernels, with products added up in four orders, are within it."""
    exact, bound = _judged(seed)
    assert bound.replayed is not None
    assert bool(bound.replayed.all())
    assert bound.probabilistic is not None
    assert bool((bound.probabilistic <= bound.deterministic).all())
    assert float((bound.deterministic / bound.probabilistic).median()) > 1e3
    for product in (torch.matmul, _in_turn, _backwards, _split):
        made = _network(**_inputs(seed), eps=_EPS, product=product)
        ratio = ((made - exact).abs() / bound.probabilistic).max()
        assert 1e-3 < float(ratio) < 0.5


def test_bound_of_replays_holds_for_halves_computed_in_fp32() -> None:
    """The last cast is added in full."""
    exact, bound = _judged(0, torch.bfloat16)
    wide = {name: value.float() for name, value in _inputs(0, torch.bfloat16).items()}
    made = _network(**wide, eps=_EPS, product=torch.matmul).bfloat16()
    assert bound.probabilistic is not None
    assert bool(((made.double() - exact).abs() <= bound.probabilistic).all())


def _wrong_eps(inputs: dict[str, Tensor]) -> Tensor:
    eps = (*_EPS[:5], 2e-3, *_EPS[6:])
    return _network(**inputs, eps=eps, product=torch.matmul)


def _missing_bias(inputs: dict[str, Tensor]) -> Tensor:
    b = inputs["b"].clone()
    b[4] = 0
    return _network(inputs["x"], inputs["w"], b, _EPS, torch.matmul)


def _halves_in_one_product(inputs: dict[str, Tensor]) -> Tensor:
    calls = 0

    def product(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls != 3:
            return x @ w
        total = torch.zeros(x.shape[0], w.shape[1]).bfloat16()
        for part, rest in zip(x.chunk(6, 1), w.chunk(6, 0), strict=True):
            total = (total.float() + part @ rest).bfloat16()
        return total.float()

    return _network(**inputs, eps=_EPS, product=product)


@pytest.mark.parametrize("defect", [_wrong_eps, _missing_bias, _halves_in_one_product])
def test_bound_of_replays_finds_a_defect_deep_in_a_network(
    defect: Callable[[dict[str, Tensor]], Tensor],
) -> None:
    """The proven bound doesn't."""
    exact, bound = _judged(1)
    error = (defect(_inputs(1)) - exact).abs()
    assert bound.probabilistic is not None
    assert float((error / bound.probabilistic).max()) > 2
    assert bool((error <= bound.deterministic).all())


def _softmaxes(x: Tensor, w: Tensor) -> Tensor:
    for layer in range(_LAYERS):
        x = torch.exp(-(x @ w[layer]).square() / 2) * 2 - 1
    return x


def test_bound_of_replays_holds_for_a_function_that_errs_to_one_side() -> None:
    """Exponentials that are all off by 2^-21 in one direction, in each of twelve layers."""
    inputs = {name: _inputs(0)[name] for name in ("x", "w")}
    exact, (bound,) = (
        truth(_softmaxes, inputs)[0],
        bounds(_softmaxes, inputs, Numerics(), (torch.float32,)),
    )
    assert bound.replayed is not None
    x = inputs["x"].double()
    for w in inputs["w"].double():
        x = torch.exp(-(x @ w).square() / 2) * (1 + 2.0**-21) * 2 - 1
    assert bound.probabilistic is not None
    assert 1e-3 < float(((x - exact).abs() / bound.probabilistic).max()) < 1


def _cut_off(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(_reference(x, w, b))


def test_number_below_the_corner_of_a_relu_has_a_bound_above_zero() -> None:
    """Replays of it may all be 0, where a kernel's is not."""
    inputs = dict(_inputs(2))
    before, plain = _judged(2)
    last = inputs["b"].clone()
    reach = plain.probabilistic
    assert reach is not None
    last[-1] = last[-1] - (before[0] + 0.4 * reach[0]).float()  # all of the first row just below 0
    inputs["b"] = last
    (bound,) = bounds(_cut_off, inputs, Numerics(), (torch.float32,))
    assert bound.probabilistic is not None
    assert bool((truth(_cut_off, inputs)[0][0] < reach[0]).all())
    assert bool((bound.probabilistic[0] > 0.2 * reach[0]).all())


def _repeated(x: Tensor, w: Tensor) -> Tensor:
    for layer in range(_LAYERS):
        x = torch.exp(-(x @ w[layer]).square() / 2) * 2 - 1
    return x


def test_bound_of_replays_holds_for_sums_of_equal_addends() -> None:
    """Their roundings are to one side: added up in turn they come to n u, in each layer."""
    width = 512
    inputs = {"x": torch.full((8, width), 0.3), "w": torch.full((_LAYERS, width, width), 1.1)}
    inputs["w"] /= width
    (exact,), (bound,) = (
        truth(_repeated, inputs),
        bounds(_repeated, inputs, Numerics(), (torch.float32,)),
    )
    x = inputs["x"]
    for w in inputs["w"]:
        x = torch.exp(-_in_turn(x, w).square() / 2) * 2 - 1
    judged = bound.deterministic if bound.probabilistic is None else bound.probabilistic
    assert bool(((x - exact).abs() <= judged).all())


def _divergence(x: Tensor) -> Tensor:
    """Return the divergence of numbers from themselves: only errors of the logarithms are left."""
    return functional.kl_div(x.log(), x, reduction="batchmean")


def _shares(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _triplets(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return functional.triplet_margin_loss(x, y, z)


@pytest.mark.parametrize(
    ("reference", "names", "rows", "drawn", "wanted"),
    [
        pytest.param(_divergence, "x", 2048, _shares, False, id="errors to one side"),
        pytest.param(_triplets, "xyz", 1024, torch.abs, False, id="much to draw for a little"),
        pytest.param(_reference, "", 0, torch.abs, True, id="a deep network"),
    ],
)
def test_replays_are_made_where_they_can_gain(
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[..., Tensor],
    names: str,
    rows: int,
    drawn: Callable[[Tensor], Tensor],
    wanted: bool,  # noqa: FBT001 (of a table)
) -> None:
    """They take 30 times the reference's time and more."""
    replays = list[object]()
    module = sys.modules["kernel_workbench.oracles.analysis.bounds"]
    monkeypatch.setattr(module, "errors", lambda *arguments: replays.append(arguments))
    generator = torch.Generator().manual_seed(5)
    inputs = {
        name: drawn(torch.rand(rows, 2048, generator=generator)) for name in names
    } or _inputs(0)
    bounds(reference, inputs, Numerics(), (torch.float32,))
    assert bool(replays) == wanted
