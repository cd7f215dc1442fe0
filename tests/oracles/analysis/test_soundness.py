"""No sound computation is beyond a bound, and the worst of them come near.

An argument carries an error where it is cast to bfloat16 by a mark: a kernel's may be anything
within the cast's error, so that the ends of that interval are tried, in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from kernel_workbench.oracles.analysis import Reference, bounds, rounds, rules, truth
from kernel_workbench.oracles.analysis.trace import trace
from kernel_workbench.oracles.op import Numerics

_CAST = 2.0**-8  # unit roundoff of bfloat16
_U = 2.0**-24
_SINGLE = [torch.float32]


@dataclass(frozen=True)
class Operation:
    """A function of tensors, the values that it is tried on, and how near its worst error comes.

    near: the worst error over its bound, at least
    """

    function: Callable[..., Tensor]
    draw: Callable[[Tensor], Tensor] = lambda normal: normal * 3
    count: int = 1
    near: float = 0.5


def _positive(normal: Tensor) -> Tensor:
    return normal.abs() + 0.1


def _near_one(normal: Tensor) -> Tensor:
    return 1 + normal / 8


def _within_one(normal: Tensor) -> Tensor:
    return normal.tanh() * 0.95


def _image(a: Tensor, space: int) -> Tensor:
    """2 images of a line, of a plane or of a volume, of [16, 64] numbers."""
    shape = {1: (2, 12, 42), 2: (2, 5, 10, 10), 3: (2, 2, 6, 6, 6)}[space]
    return a.flatten()[: math.prod(shape)].view(shape)


_ONES = torch.arange(64) % 3 == 0
_PLACES = torch.arange(64).expand(16, -1) % 8

OPERATIONS = {
    "add": Operation(lambda a, b: a + b, count=2),
    "sub with alpha": Operation(lambda a, b: torch.sub(a, b, alpha=3), count=2),
    "mul": Operation(lambda a, b: a * b, count=2),
    "mul by a constant": Operation(lambda a: a * 0.1),
    "div": Operation(lambda a, b: a / b, _positive, count=2),
    "reciprocal": Operation(torch.reciprocal, _positive),
    "neg": Operation(torch.neg),
    "abs": Operation(torch.abs),
    "square": Operation(torch.square),
    "cube": Operation(lambda a: a**3),
    "power of 1.5": Operation(lambda a: a**1.5, _positive),
    "power of -2": Operation(lambda a: a**-2.0, _positive),
    "power of a tensor": Operation(lambda a: 3.7**a),
    "sqrt": Operation(torch.sqrt, _positive),
    "rsqrt": Operation(torch.rsqrt, _positive),
    "exp": Operation(torch.exp),
    "exp2": Operation(torch.exp2),
    "expm1": Operation(torch.expm1),
    "log": Operation(torch.log, _positive),
    "log2": Operation(torch.log2, _positive),
    "log1p": Operation(torch.log1p, _positive),
    "sigmoid": Operation(torch.sigmoid, near=0.4),
    "tanh": Operation(torch.tanh),
    "erf": Operation(torch.erf),
    "sin": Operation(torch.sin),
    "cos": Operation(torch.cos),
    "silu": Operation(F.silu, near=0.4),
    "gelu": Operation(F.gelu, near=0.4),
    "gelu by tanh": Operation(lambda a: F.gelu(a, approximate="tanh"), near=0.4),
    "softplus": Operation(F.softplus, near=0.4),
    "relu": Operation(F.relu),
    "leaky relu": Operation(F.leaky_relu),
    "sign": Operation(torch.sign, near=0.0),
    "maximum": Operation(torch.maximum, count=2),
    "clamp": Operation(lambda a: a.clamp(-1, 2)),
    "where": Operation(lambda a, b: torch.where(_ONES, a, b), count=2),
    "where of a comparison": Operation(lambda a, b: torch.where(a > b, a, b), count=2),
    "masked_fill": Operation(lambda a: a.masked_fill(_ONES, 0.5)),
    "where infinite": Operation(lambda a: torch.where((a / _ONES).isinf(), 0.5, a)),
    "zero_": Operation(lambda a: torch.cat([a, a.clone().zero_()])),
    "sum": Operation(lambda a: a.sum(-1)),
    "mean": Operation(lambda a: a.mean(-1, keepdim=True)),
    "cumsum": Operation(lambda a: a.cumsum(-1)),
    "amax": Operation(lambda a: a.amax(-1)),
    "var": Operation(lambda a: a.var(-1), near=0.2),
    "std": Operation(lambda a: a.std(-1, correction=0), near=0.2),
    "product": Operation(lambda a, b: a @ b.mT, count=2, near=0.1),
    "product with a sum": Operation(
        lambda a, b: torch.addmm(a[:, :16], a, b.mT, beta=0.3, alpha=1.7), count=2, near=0.1
    ),
    "softmax": Operation(lambda a: torch.softmax(a, -1), near=0.1),
    "log_softmax": Operation(lambda a: torch.log_softmax(a, -1), near=0.1),
    "logsumexp": Operation(lambda a: a.logsumexp(-1), near=0.1),
    "gather": Operation(lambda a: a.gather(-1, torch.tensor([[3]] * 16))),
    "cat and slices": Operation(lambda a, b: torch.cat([a[:, ::2], b[3:, :32]]), count=2),
    "mul by truth values": Operation(lambda a: a * _ONES),
    "mul by an open comparison": Operation(lambda a, b: a * (a > b), count=2, near=0.0),
    "sum of one number along an axis": Operation(lambda a: a.sum().sum(0) + a, near=0.05),
    "index_add with alpha": Operation(
        lambda a: torch.ones(4, 64).index_add(0, torch.arange(16) % 4, a, alpha=0.3)
    ),
    "scatter_reduce by sum": Operation(
        lambda a: torch.ones(16, 8).scatter_reduce(-1, _PLACES, a, "sum", include_self=False)
    ),
    "scatter_reduce by mean": Operation(
        lambda a: torch.ones(16, 8).scatter_reduce(-1, _PLACES, a, "mean"), near=0.4
    ),
    "scatter_reduce by extreme": Operation(
        lambda a: torch.zeros(16, 8).scatter_reduce(-1, _PLACES, a, "amin")
    ),
    "scatter_reduce by product": Operation(
        lambda a: torch.full((16, 8), 0.7).scatter_reduce(-1, _PLACES, a, "prod"), _near_one
    ),
    "round to decimals": Operation(lambda a: torch.round(a, decimals=1)),
    "fill": Operation(lambda a: a.clone().fill_(a[3, 5])),
    "attention": Operation(
        lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None], is_causal=True)[0],
        count=2,
        near=0.01,
    ),
    "index_add": Operation(lambda a: torch.zeros(4, 64).index_add(0, torch.arange(16) % 4, a)),
    "scatter_add": Operation(
        lambda a: torch.zeros(16, 8).scatter_add(-1, torch.arange(64).expand(16, -1) % 8, a)
    ),
    "embedding": Operation(lambda a: F.embedding(torch.tensor([1, 5, 1]), a)),
    "pad": Operation(lambda a: F.pad(a, (1, 2), value=3.0)),
    "hardtanh": Operation(lambda a: F.hardtanh(a, -0.3, 0.1)),
    "minimum": Operation(torch.minimum, count=2),
    "amin": Operation(lambda a: a.amin(-1)),
    "sort": Operation(lambda a: a.sort(-1).values),
    "topk": Operation(lambda a: a.topk(3, -1).values),
    "cumprod": Operation(lambda a: a.cumprod(-1), _near_one),
    "prod": Operation(lambda a: a.prod(-1), _near_one),
    "power of two tensors": Operation(lambda a, b: a**b, _positive, count=2),
    "atan": Operation(torch.atan),
    "asin": Operation(torch.asin, _within_one),
    "acos": Operation(torch.acos, _within_one),
    "atan2": Operation(torch.atan2, count=2),
    "sinh": Operation(torch.sinh),
    "cosh": Operation(torch.cosh),
    "tan": Operation(torch.tan, _within_one),
    "asinh": Operation(torch.asinh),
    "acosh": Operation(torch.acosh, lambda normal: normal.abs() + 1.2),
    "atanh": Operation(torch.atanh, _within_one),
    "log10": Operation(torch.log10, _positive),
    "erfc": Operation(torch.erfc),
    "erfinv": Operation(torch.erfinv, _within_one),
    "lgamma": Operation(torch.lgamma, _positive),
    "logcumsumexp": Operation(lambda a: a.logcumsumexp(-1), near=0.4),
    "median": Operation(lambda a: a.median(-1).values),
    "diagonal": Operation(lambda a: a[:, :16].diag()),
    "addbmm": Operation(
        lambda a, b: torch.addbmm(
            a[:, :8], a.view(16, 16, 4), b.view(16, 4, 16)[:, :, :8], beta=0.3, alpha=1.7
        ),
        count=2,
        near=0.1,
    ),
    "hypot": Operation(torch.hypot, count=2),
    "logaddexp": Operation(torch.logaddexp, count=2),
    "logaddexp2": Operation(torch.logaddexp2, count=2),
    "xlogy": Operation(torch.xlogy, _positive, count=2),
    "copysign": Operation(torch.copysign, count=2),
    "round": Operation(torch.round),
    "floor": Operation(torch.floor),
    "ceil": Operation(torch.ceil),
    "trunc": Operation(torch.trunc),
    "frac": Operation(torch.frac),
    "remainder": Operation(torch.remainder, _positive, count=2),
    "fmod": Operation(torch.fmod, _positive, count=2),
    "quotient rounded down": Operation(torch.floor_divide, _positive, count=2),
    "sgn": Operation(torch.sgn, near=0.0),
    "prelu": Operation(lambda a, b: F.prelu(a, b[0, :1]), count=2),
    "celu": Operation(lambda a: F.celu(a, 1.3)),
    "softshrink": Operation(F.softshrink),
    "hardshrink": Operation(F.hardshrink),
    "smooth l1": Operation(lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), count=2),
    "huber": Operation(lambda a, b: F.huber_loss(a, b, "none", 1.3), count=2),
    "split and chunk": Operation(lambda a: torch.cat([*a.split(5), *a.unsafe_chunk(3)])),
    "convolution": Operation(
        lambda a, b: F.conv1d(
            _image(a, 1), b.flatten()[:216].view(12, 6, 3), b[0, :12], 2, 2, 2, 2
        ).flatten(),
        count=2,
    ),
    "convolution over a plane": Operation(
        lambda a, b: F.conv2d(_image(a, 2), b.flatten()[:270].view(6, 5, 3, 3)), count=2
    ),
    "transposed convolution": Operation(
        lambda a, b: F.conv_transpose2d(
            _image(a, 2)[:, :4], b.flatten()[:108].view(4, 3, 3, 3), None, 2, 1, 1, 2
        ),
        count=2,
    ),
    "convolution over a volume": Operation(
        lambda a, b: F.conv3d(_image(a, 3), b.flatten()[:80].view(5, 2, 2, 2, 2)), count=2
    ),
    "max pool": Operation(lambda a: F.max_pool2d(_image(a, 2), 3, 2, 1)),
    "max pool of volumes": Operation(lambda a: F.max_pool3d(_image(a, 3), 2, ceil_mode=True)),
    "adaptive max pool": Operation(lambda a: F.adaptive_max_pool2d(_image(a, 2), (3, 5))),
    "average pool": Operation(lambda a: F.avg_pool2d(_image(a, 2), 3, 2, 1)),
    "average pool of a line": Operation(lambda a: F.avg_pool1d(_image(a, 1), 4)),
    "average pool of volumes": Operation(
        lambda a: F.avg_pool3d(_image(a, 3), 2, padding=1, count_include_pad=False)
    ),
    "adaptive average pool": Operation(lambda a: F.adaptive_avg_pool2d(_image(a, 2), (3, 5))),
    "batch norm": Operation(lambda a: F.batch_norm(_image(a, 2), None, None, training=True)),
    "batch norm by given statistics": Operation(
        lambda a, b: F.batch_norm(_image(a, 2), b[0, :5], b[1, :5].square() + 0.1), count=2
    ),
    "instance norm": Operation(lambda a: F.instance_norm(_image(a, 2))),
    "group norm": Operation(lambda a: F.group_norm(_image(a, 2), 5)),
    "nearest": Operation(lambda a: F.interpolate(_image(a, 2), scale_factor=3)),
    "bilinear": Operation(lambda a: F.interpolate(_image(a, 2), scale_factor=1.7, mode="bilinear")),
    "trilinear": Operation(
        lambda a: F.interpolate(_image(a, 3), size=7, mode="trilinear", align_corners=True),
    ),
}


def _marked(operation: Operation) -> Reference:
    return lambda **given: operation.function(
        *(rounds(each, "", torch.bfloat16) for each in given.values())
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_on_arguments_with_errors_is_within_its_bound(name: str) -> None:
    """At the ends of the arguments' intervals, and inside; at the worst, it comes near the bound.

    The ends are those that a cast allows: towards zero, away from it, each way by an element's
    sign or its neighbour's.
    """
    operation, worst = OPERATIONS[name], 0.0
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        given = {
            f"x{index}": operation.draw(torch.randn(16, 64, generator=draw))
            for index in range(operation.count)
        }
        reference = _marked(operation)
        (exact,) = truth(reference, given)
        (bound,) = bounds(reference, given, Numerics(), _SINGLE)
        for shift in (
            torch.ones_like,
            lambda x: -torch.ones_like(x),
            torch.sign,
            lambda x: -x.sign(),
            lambda x: torch.rand(x.shape, generator=draw) * 2 - 1,  # noqa: B023  # used at once
            lambda x: torch.randint(0, 2, x.shape, generator=draw) * 2.0 - 1,  # noqa: B023
        ):
            for other in (1, -1):
                moved = []
                for index, x in enumerate(given.values()):
                    step = shift(x) * (other if index else 1) * _CAST * x.abs()
                    moved.append((x.double() + step * (1 - 2.0**-15)).float())
                error = (operation.function(*moved).double() - exact).abs()
                assert bool((error <= bound.deterministic).all())
                ratio = torch.where(error > 0, error / bound.deterministic, 0.0)
                worst = max(worst, float(ratio.max()))
    assert worst >= operation.near


@pytest.mark.parametrize(
    "function",
    [torch.exp, torch.exp2, torch.expm1, torch.sigmoid, lambda a: a.softmax(-1)],
    ids=["exp", "exp2", "expm1", "sigmoid", "softmax"],
)
def test_little_errors_are_bounded_as_large_ones_are(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a few terms of a series, which is no less than the function that it stands for."""
    given = {"a": torch.rand(16, 64) * 2 - 1}

    def reference(a: Tensor) -> Tensor:
        return function(rounds(a, "", torch.float16))

    (little,) = bounds(reference, given, Numerics(), _SINGLE)
    monkeypatch.setattr(rules, "_LITTLE", 0.0)
    (large,) = bounds(reference, given, Numerics(), _SINGLE)
    ratio = little.deterministic / large.deterministic
    assert not bool((ratio == 1).all())
    assert float(ratio.min()) >= 1 - 2**-40  # float64 rounds as well
    assert float(ratio.max()) <= 1 + 2**-10


@pytest.mark.parametrize("scale", [1.0, 3.0, 1000.0])
def test_gelu_in_one_is_bounded_as_its_steps_are(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is its gradient, and of what is flushed: to within a small part."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(64, 33, generator=draw) for _ in range(3))
    a[0], a[1, :3] = torch.linspace(-9, 9, 33), torch.tensor([0, 1e-39, 1e-30])
    given = {"a": a * scale, "b": b, "c": c}

    def reference(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            y = F.gelu(a.requires_grad_(), approximate="tanh") * b
            return y.detach(), *torch.autograd.grad(y, a, c)

    found = bounds(reference, given, Numerics(), _SINGLE * 2)
    monkeypatch.setattr(
        "kernel_workbench.oracles.analysis.trace._stays", lambda node: "gelu" not in node.name
    )
    steps = bounds(partial(reference), given, Numerics(), _SINGLE * 2)
    for one, other in zip(found, steps, strict=True):
        ratio = one.deterministic / other.deterministic
        assert not bool((ratio == 1).all())
        assert float(ratio.min()) >= 1
        assert float(ratio.max()) <= 1 + 2**-10


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_gradient_of_softmax_is_within_its_bound_in_either_form(scale: float) -> None:
    """Both forms are bounded with probabilities off, all of a row alike and each to its side."""
    draw = torch.Generator().manual_seed(0)
    dy, x = torch.randn(64, 33, generator=draw), torch.randn(64, 33, generator=draw) * scale
    graph = trace(_softmax_gradient, {"dy": dy, "x": x}).graph
    assert any("_softmax_backward_data" in str(each.target) for each in graph.nodes)
    (bound,) = bounds(_softmax_gradient, {"dy": dy, "x": x}, Numerics(), _SINGLE)
    (exact,) = truth(_softmax_gradient, {"dy": dy, "x": x})
    (allowed,) = bounds(lambda x: torch.softmax(x, -1), {"x": x}, Numerics(), _SINGLE)
    worst = torch.zeros(())
    for side in (1.0, -1.0, (dy - (dy * x.softmax(-1)).sum(-1, keepdim=True)).sign()):
        p = (x.double().softmax(-1) + side * allowed.deterministic * (1 - 2.0**-3)).float()
        total = (p * dy).sum(-1, keepdim=True)
        for made in (p * (dy - total), p * dy - p * total):
            error = (made.double() - exact).abs()
            assert bool((error <= bound.deterministic).all())
            worst = torch.maximum(worst, (error / bound.deterministic).max())
    assert worst >= 0.4  # the bound isn't far above


def _softmax_gradient(dy: Tensor, x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    made: Tensor = torch.ops.aten._softmax_backward_data(dy, p, -1, p.dtype)
    return made


@pytest.mark.parametrize("exact", [False, True])
def test_product_with_a_number_of_each_row_is_bounded_as_one_with_a_matrix(*, exact: bool) -> None:
    """Both forms; the other factor is exact, or isn't."""

    def product(x: Tensor, y: Tensor) -> Tensor:
        return (x if exact else x.cumsum(-1)) * rounds(y, "", torch.bfloat16)

    x, y = torch.randn(5, 64), torch.randn(5, 1)
    (few,) = bounds(product, {"x": x, "y": y}, Numerics(), _SINGLE)
    (many,) = bounds(product, {"x": x, "y": y.repeat(1, 64)}, Numerics(), _SINGLE)
    for one, other in (
        (few.deterministic, many.deterministic),
        (few.probabilistic, many.probabilistic),
    ):
        assert one is not None
        assert other is not None
        assert bool(((one / other - 1).abs() <= 2**-40).all())


def _in_order(addends: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros_like(addends[..., 0])
    for column in addends.unbind(-1):
        total = (total + column).to(dtype)
    return total


def _in_pairs(addends: Tensor, dtype: torch.dtype) -> Tensor:
    while addends.shape[-1] > 1:
        even, odd = addends[..., ::2], addends[..., 1::2]
        addends = torch.cat(
            [(even[..., : odd.shape[-1]] + odd).to(dtype), even[..., odd.shape[-1] :]], -1
        )
    return addends.squeeze(-1)


@pytest.mark.parametrize("values", ["normal", "uniform", "equal", "cancelling"])
@pytest.mark.parametrize(
    ("dtype", "roundoff"), [(torch.float32, _U), (torch.bfloat16, _CAST)], ids=["fp32", "bf16"]
)
def test_sum_in_any_order_is_within_its_bounds(
    values: str, dtype: torch.dtype, roundoff: float
) -> None:
    """In order, reversed, sorted and in pairs, accumulated in fp32 or in a half.

    Equal addends round alike: their probable bound is the deterministic one.
    """
    numerics = Numerics(accumulation_roundoff=roundoff)
    n, reference = 300, lambda x: x.sum(-1)
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(64, n, generator=draw)
        if values == "uniform":
            x = torch.rand(64, n, generator=draw)
        elif values == "equal":
            x = x[:, :1].abs().expand(-1, n).contiguous()
        elif values == "cancelling":
            x = torch.cat([x[:, : n // 2], -x[:, : n // 2].flip(-1)], -1)
        x = x.to(dtype)
        (exact,) = truth(reference, {"x": x})
        (bound,) = bounds(reference, {"x": x}, numerics, [dtype])
        for ordered in (x, x.flip(-1), x.sort(-1).values, x[..., x[0].abs().argsort()]):
            for made in (_in_order(ordered, dtype), _in_pairs(ordered, dtype)):
                error = (made.double() - exact).abs()
                assert bool((error <= bound.deterministic).all())
                if bound.probabilistic is not None:
                    assert bool((error <= bound.probabilistic).all())
        lost = (x[..., 1:].double().sum(-1) - exact).abs()
        if dtype == torch.float32:
            assert bool((lost > bound.deterministic).any()), "an addend that is lost is seen"


def test_product_of_cut_operands_is_within_the_bound_of_tf32_alone() -> None:
    """Operands cut to 10 bits: within the bound of who declares it, beyond the other's."""
    draw = torch.Generator().manual_seed(0)
    given = {name: torch.rand(33, 65, generator=draw) for name in "ab"}

    def reference(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.mT

    cut = [(each.view(torch.int32) & -(2**13)).view(torch.float32) for each in given.values()]
    error = (reference(*cut).double() - truth(reference, given)[0]).abs()
    (declared,) = bounds(reference, given, Numerics(tf32_operands=True), _SINGLE)
    (plain,) = bounds(reference, given, Numerics(), _SINGLE)
    assert bool((error <= declared.deterministic).all())
    assert declared.probabilistic is None
    assert bool((error > plain.deterministic).any())


def test_flushed_subnormals_are_within_the_bound_unless_they_are_kept() -> None:
    """A subnormal that is read as 0 and scaled up again is lost; who keeps it has a bound."""
    x = torch.arange(1, 65) * 2.0**-149

    def reference(x: Tensor) -> Tensor:
        return (x * 2.0**40).sum(-1, keepdim=True) + 0.0

    (exact,) = truth(reference, {"x": x})
    (flushed,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
    (kept,) = bounds(reference, {"x": x}, Numerics(gradual_underflow=True), _SINGLE)
    assert bool((exact.abs() <= flushed.deterministic).all())
    assert bool((exact.abs() > kept.deterministic).all())


class _Roundings(Interpreter):
    """A graph whose results are each off by some part of a unit roundoff.

    A sum of n is off as n - 1 roundings of each addend, and one more.
    """

    def __init__(self, graph: GraphModule, factors: dict[str, Tensor]) -> None:
        super().__init__(graph)
        self.factors = factors

    def _off(self, name: str, x: Tensor, roundings: float = 1) -> Tensor:
        factor = self.factors.setdefault(
            name, torch.zeros(x.shape, dtype=torch.float64, requires_grad=True)
        )
        return x * (1 + roundings * _U * factor)

    def run_node(self, n: Node) -> object:
        """The node's result, rounded."""
        if n.op != "call_function" or "aten.detach" in str(n.target):
            return super().run_node(n)
        if "sum" in str(n.target):
            source = n.args[0]
            assert isinstance(source, Node)
            x = self.env[source]
            self.env[source] = self._off(f"{n.name} addends", x, x.shape[-1] - 2)
            made = super().run_node(n)
            self.env[source] = x
        else:
            made = super().run_node(n)
        assert isinstance(made, Tensor)
        return self._off(n.name, made)


def _polynomial(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((a + b) * c - a * b) * (c + 1.5)


def _norm(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((a - b) * c).sum(-1, keepdim=True) * a + b


def _long(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    for _ in range(8):
        a = a * b + c
    return a


@pytest.mark.parametrize(
    ("reference", "factor"), [(_polynomial, 1.01), (_norm, 1.1), (_long, 1.01)]
)
def test_worst_roundings_of_a_chain_come_near_its_bound(
    reference: Callable[..., Tensor], factor: float
) -> None:
    """Each rounding in the direction that harms an output most: within its bound, and near it.

    The directions are the signs of the output's derivatives. Nothing in these chains cancels
    twice, so that the bound is the worst case to first order.
    """
    draw = torch.Generator().manual_seed(1)
    given = {name: torch.randn(3, 9, generator=draw) for name in "abc"}
    (bound,) = bounds(reference, given, Numerics(gradual_underflow=True), _SINGLE)
    (exact,) = truth(reference, given)
    graph, values = trace(reference, given), [each.double() for each in given.values()]
    for row in range(3):
        place = (row, 2 * row)
        factors: dict[str, Tensor] = {}
        out = _Roundings(graph, factors).run(*values)
        gradients = torch.autograd.grad(out[place], list(factors.values()))
        worst = {name: each.sign() for name, each in zip(factors, gradients, strict=True)}
        for sign in (1, -1):
            moved = {name: sign * each for name, each in worst.items()}
            error = abs(float(_Roundings(graph, moved).run(*values)[place] - exact[place]))
            limit = float(bound.deterministic[place])
            assert error <= limit + 2**-50 * abs(float(exact[place]))  # float64 rounds as well
            assert limit <= factor * error


def test_infinite_and_undefined_numbers_carry_no_distance() -> None:
    """A bound is NaN where the truth isn't finite, and only there; beside it rows are bounded."""
    x = torch.randn(5, 17)
    x[1, 3], x[2, 4] = math.nan, math.inf

    def reference(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True))

    (exact,) = truth(reference, {"x": x})
    (bound,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
    assert bool((bound.deterministic.isnan() == ~exact.isfinite()).all())
    assert bool(bound.deterministic[[0, 3, 4]].isfinite().all())


def test_what_divides_by_an_unknown_number_is_promised_nothing() -> None:
    """1 / (a - b) where a - b may be 0 after rounding: the bound is infinite and has no power."""
    a = torch.tensor([0.1, 0.5, 3.0])
    b = torch.tensor([0.1, 0.25, 1.0])

    def reference(a: Tensor, b: Tensor) -> Tensor:
        return 1 / (a * 0.1 - b * 0.1)

    (bound,) = bounds(reference, {"a": a, "b": b}, Numerics(), _SINGLE)
    assert bound.deterministic.isinf().tolist() == [True, False, False]
    assert bound.powerless is not None
    assert bound.powerless.tolist() == [True, False, False]


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min])
def test_masked_scores_have_no_weight_and_no_error(hidden: float) -> None:
    """Masked weights are 0 in the truth and in every kernel, but for what is flushed."""
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)

    def reference(x: Tensor) -> Tensor:
        return torch.softmax((x * 3.3).masked_fill(mask, hidden) + x, -1)

    (bound,) = bounds(reference, {"x": torch.randn(9, 9)}, Numerics(), _SINGLE)
    assert bool((bound.deterministic[mask] <= 2.0**-120).all())
    assert bool((bound.deterministic[~mask] <= 1e-4).all())


def test_what_the_probable_form_alone_can_bound_is_judged_by_it() -> None:
    """The variance of numbers near 1e4: at worst nothing is known of it, and most likely enough."""
    x = torch.randn(3, 1000) + 1e4

    def reference(x: Tensor) -> Tensor:
        return torch.rsqrt(x.var(-1))

    (exact,) = truth(reference, {"x": x})
    (bound,) = bounds(reference, {"x": x}, Numerics(), _SINGLE)
    assert bound.probabilistic is not None
    assert bool((bound.deterministic > 1e30).all())
    assert bool(bound.deterministic.isfinite().all())
    assert bool((bound.probabilistic < exact).all())


def test_output_of_which_nothing_is_known_is_judged_without_power() -> None:
    """Its bound is finite, or nothing of it would be judged, and the row would pass."""
    (bound,) = bounds(lambda x: 1 / (x * 0.1 - x * 0.1), {"x": torch.ones(3)}, Numerics(), _SINGLE)
    assert bool(bound.deterministic.isfinite().all())
    assert bound.powerless is not None
    assert bool(bound.powerless.all())


def test_bound_as_wide_as_the_scores_are_open_has_no_power() -> None:
    """Scores of 1e7 are known to a unit in fp32: their softmax isn't known at all."""
    x = torch.randn(4, 33) * 1e7
    (wild,) = bounds(lambda x: torch.softmax(x, -1), {"x": x}, Numerics(), _SINGLE)
    (tame,) = bounds(lambda x: torch.softmax(x, -1), {"x": x / 1e7}, Numerics(), _SINGLE)
    assert wild.powerless is not None
    assert bool(wild.powerless.any())
    assert tame.powerless is None


def _convolved(x: Tensor, w: Tensor) -> Tensor:
    padded = F.pad(x, (0, 0, 3, 0))
    return sum((padded[i : i + len(x)] * w[i] for i in range(4)), torch.zeros_like(x))


def _convolved_backwards(x: Tensor, w: Tensor) -> Tensor:
    padded, made = F.pad(x, (0, 0, 3, 0)), torch.zeros_like(x)
    for i in reversed(range(4)):
        made = made + padded[i : i + len(x)] * w[i]
    return made


def _gradient_of_parts(x: Tensor, w: Tensor) -> Tensor:
    """Autograd adds up what the four windows of x get in an order that no text shows."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = _convolved(x, w[:4])
        (made,) = torch.autograd.grad(y, x, w[4:])
    return made


def _gradient_in_turn(x: Tensor, w: Tensor) -> Tensor:
    (rows, made) = F.pad(w[4:], (0, 0, 0, 3)), torch.zeros_like(x)
    for i in range(4):
        made = made + rows[3 - i : 3 - i + len(x)] * w[i]
    return made


def _accumulated(start: Tensor, addends: Tensor) -> Tensor:
    for each in addends.unbind(-1):
        start = start + each
    return start


ORDERS: dict[str, tuple[Reference, Reference, tuple[tuple[int, ...], ...]]] = {
    "four": (
        lambda a, b, c, d: a + b + c + d,
        lambda a, b, c, d: d + c + b + a,
        ((64, 33),) * 4,
    ),
    "four of both signs": (
        lambda a, b, c, d: (a - b) + (c - d),
        lambda a, b, c, d: (a + c) - (d + b),
        ((64, 33),) * 4,
    ),
    "by a view": (
        lambda a, b, c: (a + b).t().reshape(-1)[:99] + c,
        lambda a, b, c: a.t().reshape(-1)[:99] + (b.t().reshape(-1)[:99] + c),
        ((3, 33), (3, 33), (99,)),
    ),
    "where a mask is": (
        lambda a, b, c: torch.where(c > 0, a + b, 0.0) + c,
        lambda a, b, c: torch.where(c > 0, a + (b + c), c),
        ((64, 33),) * 3,
    ),
    "alpha": (
        lambda a, b, c: torch.add(a + b, c, alpha=3),
        lambda a, b, c: torch.add(b, c, alpha=3) + a,
        ((64, 33),) * 3,
    ),
    "a factor of a sum": (
        lambda a, b: (a + b) * 0.3,
        lambda a, b: a * 0.3 + b * 0.3,
        ((64, 33),) * 2,
    ),
    "a divisor of a sum": (
        lambda a, b, c: (a + b + c) / 3,
        lambda a, b, c: c / 3 + a / 3 + b / 3,
        ((64, 33),) * 3,
    ),
    "a sum to which something is added": (
        lambda a, b: a.sum(-1) + b,
        lambda a, b: _accumulated(b, a),
        ((64, 9), (64,)),
    ),
    "a sum of sums": (
        lambda a, b: (a + b).sum(-1),
        lambda a, b: _accumulated(_accumulated(torch.zeros(64), a), b),
        ((64, 9), (64, 9)),
    ),
    "a product to which something is added": (
        lambda a, b, c: a @ b + c,
        lambda a, b, c: _accumulated(c, a[:, None, :] * b.t()),
        ((64, 5), (5, 33), (64, 33)),
    ),
    "addmm": (
        lambda a, b, c: torch.addmm(c, a, b),
        lambda a, b, c: _accumulated(c, a[:, None, :] * b.t()),
        ((64, 5), (5, 33), (64, 33)),
    ),
    "a convolution": (_convolved, _convolved_backwards, ((64, 33), (4, 33))),
    "its gradient": (_gradient_of_parts, _gradient_in_turn, ((64, 33), (68, 33))),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("values", ["normal", "mean", "cancelling"])
def test_additions_in_another_order_are_within_the_bound(name: str, values: str) -> None:
    """Also where what is added first in one of the orders cancels, or is far above the rest."""
    written, other, shapes = ORDERS[name]
    parameters = "abcd" if written.__code__.co_varnames[:1] == ("a",) else "xw"
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(shape, generator=draw) for shape in shapes]
        if values == "mean":
            drawn = [each + 100 for each in drawn]
        if values == "cancelling":
            large = 1e4 * torch.randn(shapes[0], generator=draw)
            drawn = [
                each + (-1) ** place * large if each.shape == large.shape else each
                for place, each in enumerate(drawn)
            ]
        given = dict(zip(parameters, drawn, strict=False))
        (exact,) = truth(written, given)
        (found,) = bounds(written, given, Numerics(), _SINGLE)
        assert found.probabilistic is not None
        for computed in (written(**given), other(**given)):
            assert isinstance(computed, Tensor)
            assert computed.dtype == torch.float32
            assert bool(((computed - exact).abs() <= found.probabilistic).all())


def test_two_addends_have_one_order() -> None:
    """Their sum is off by one rounding of it, though another one takes both in."""

    def sums(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return a + b, a + b + c

    a = torch.full((64,), 1e4)
    given = {"a": a, "b": 1 - a, "c": a}
    two, three = bounds(sums, given, Numerics(), _SINGLE * 2)
    assert float(two.deterministic.max()) < 4 * _U
    assert float(three.deterministic.min()) > 1e4 * _U


def test_sum_of_which_a_part_is_past_the_largest_number_is_promised_nothing() -> None:
    """Another order adds the two large ones first."""
    a = torch.tensor([3e38, 1.0])
    given = {"a": a, "b": -a, "c": a}
    (found,) = bounds(lambda a, b, c: a + b + c, given, Numerics(), _SINGLE)
    assert found.deterministic[0] == math.inf
    assert found.deterministic[1] < 8 * _U
