"""Whole references: their truth, their emulation within their bounds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere
from torch import Tensor

from kernel_workbench.oracles.analysis import NoRuleError, Reference, bounds, emulate, rounds, truth
from kernel_workbench.oracles.analysis.propagation import count_sums
from kernel_workbench.oracles.analysis.trace import trace
from kernel_workbench.oracles.op import Numerics

PLAIN = Numerics()
ROWS, COLUMNS = 33, 129  # past a power of two by one


def _backward_of(reference: Reference) -> Reference:
    """The gradients of a reference's first output by autograd, of its arguments and dy."""

    def gradients(dy: Tensor, **arguments: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = {
                name: each.detach().requires_grad_() if each.is_floating_point() else each
                for name, each in arguments.items()
            }
            y = reference(**leaves)
            assert isinstance(y, Tensor)
            wanted = [each for each in leaves.values() if each.requires_grad]
            return torch.autograd.grad(y, wanted, dy)

    return gradients


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    x = x.float()
    return rounds(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), "normalised") * w


def _layer_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, w)


def _swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def _geglu(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x) * y


def _geglu_tanh(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh") * y


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def _cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x, labels, label_smoothing=0.1, ignore_index=2)


def _z_loss(x: Tensor, labels: Tensor) -> Tensor:
    lse = torch.logsumexp(x, -1)
    loss = lse - x.gather(-1, labels[:, None]).squeeze(-1) + 1e-4 * lse.square()
    return loss.masked_fill(labels == 2, 0)


def _rope(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[0])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[:, :half], x[:, half : 2 * half]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def _product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.mT


def _attention(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    scores = x @ y.mT / x.shape[-1] ** 0.5
    scores.masked_fill_(torch.ones(scores.shape, dtype=torch.bool).triu(1), -torch.inf)
    return rounds(torch.softmax(scores, -1), "p") @ z


def _batch_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, w, training=True)


def _group_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.group_norm(x, 3, w, w)


def _convolution(x: Tensor, y: Tensor) -> Tensor:
    return F.conv1d(x[None], y[:, :99].reshape(33, 33, 3), y[0, :33], padding=1)[0]


def _pooled(x: Tensor, y: Tensor) -> Tensor:
    image = (x * y).view(3, 11, 1, COLUMNS)
    return F.max_pool2d(image, (1, 3), 2) + F.avg_pool2d(image, (1, 3), 2)


def _upsampled(x: Tensor) -> Tensor:
    return F.interpolate(x[None, None], scale_factor=2, mode="bilinear")


def _smooth_l1(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y, reduction="none", beta=0.7)


REFERENCES: dict[Callable[..., Tensor], str] = {
    _rms_norm: "xw",
    _layer_norm: "xw",
    _swiglu: "xy",
    _geglu: "xy",
    _geglu_tanh: "xy",
    _softmax: "x",
    _log_softmax: "x",
    _cross_entropy: "x labels",
    _z_loss: "x labels",
    _rope: "x",
    _product: "xy",
    _attention: "xyz",
    _batch_norm: "xw",
    _group_norm: "xw",
    _convolution: "xy",
    _pooled: "xy",
    _upsampled: "x",
    _smooth_l1: "xy",
}


def _arguments_of(names: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """x, y and z [33, 129], w [129], labels [33]."""
    draw = torch.Generator().manual_seed(0)
    made: dict[str, Tensor] = {}
    for name in names.replace("labels", "").strip():
        shape = (COLUMNS,) if name == "w" else (ROWS, COLUMNS)
        made[name] = torch.randn(shape, generator=draw).to(dtype)
    if "labels" in names:
        made["labels"] = torch.randint(0, COLUMNS, (ROWS,), generator=draw)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_emulation_is_within_both_bounds(
    reference: Callable[..., Tensor], dtype: torch.dtype, *, backward: bool
) -> None:
    """A reference's result in fp32 is as near to its truth as the bounds say, and no nearer to 0.

    The bounds have power: an output is wrong where it is 1.1 times as large.
    """
    numerics = Numerics(casts="p normalised")
    arguments: dict[str, Tensor] = _arguments_of(REFERENCES[reference], dtype)
    function: Reference = reference
    if backward:
        (y,) = truth(reference, arguments)
        arguments = {"dy": torch.randn(y.shape).to(dtype), **arguments}
        function = _backward_of(reference)
    exact = truth(function, arguments)
    dtypes = [dtype] * len(exact)
    found = bounds(function, arguments, numerics, dtypes)
    for made, value, bound in zip(
        emulate(function, arguments, numerics, dtypes), exact, found, strict=True
    ):
        assert made.dtype == dtype
        assert value.dtype == torch.float64
        error = (made.double() - value).abs()
        assert bound.probabilistic is not None
        assert bool((error <= bound.deterministic).all())
        assert bool((error <= bound.probabilistic).all())
        no_more = bound.probabilistic <= bound.deterministic * (1 + 2.0**-50)  # float64 rounds
        assert bool(no_more.all())
        large = value.abs() >= value.abs().median()
        assert bool((0.1 * value.abs() > bound.deterministic)[large].any())


def test_gradient_does_once_what_its_function_did() -> None:
    """GELU's erf is asked for by both. A sum that is done twice stays: it may have two orders."""
    arguments = _arguments_of("xy", torch.float32)
    graph = trace(_backward_of(_geglu), {"dy": arguments["x"], **arguments}).graph
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.erf.default)) == 1

    def twice(x: Tensor) -> Tensor:
        return x.square().sum(-1) * x.square().sum(-1)

    graph = trace(twice, {"x": arguments["x"]}).graph
    assert count_sums(graph) == 2 * ROWS
    assert len(graph.nodes) == 6  # x, its square, two sums, their product, what is returned


def _draws(x: Tensor) -> Tensor:
    return F.dropout(x)


def _branches(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def _changes(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


_STATE = torch.zeros(5, 7, dtype=torch.float64)


def _changes_a_state(x: Tensor) -> Tensor:
    y = x * 2
    _STATE.add_(y)
    return _STATE * y


def _sorts(x: Tensor) -> Tensor:
    order = torch.sort((x > 0) * 0.3).indices
    return x.gather(-1, order)


def _sorts_backward(x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        z = torch.sort(torch.round(y * 3) * 0.1).values
        last = z * z
        (gradient,) = torch.autograd.grad(last.sum(), z)
        (gradient,) = torch.autograd.grad(z, y, gradient)
    return gradient


def _zeta(x: Tensor) -> Tensor:
    result: Tensor = torch.special.zeta(x, x)
    return result


def _picks(x: Tensor) -> Tensor:
    largest = ((x > 0) * 0.3).max(-1, keepdim=True)
    return x.gather(-1, largest.indices)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (_draws, "torch.nn.functional.dropout draws random numbers"),
        (_branches, "depends on a tensor's values"),
        (_changes, "changes its input x"),
        (_changes_a_state, "changes a tensor that is none of its arguments"),
        (_sorts, "indices that depend on rounded values"),
        (_sorts_backward, "the gradient of torch.sort is given indices"),
        (_zeta, "torch.special.zeta has no rule"),
        (_picks, "indices that depend on rounded values"),
    ],
)
def test_what_cannot_be_analysed_is_refused_with_its_line(reference: Reference, words: str) -> None:
    """One sentence, that names this file, a line of the reference and what is wrong."""
    code = reference.__code__
    last = max(line for _, _, line in code.co_lines() if line is not None)
    with pytest.raises(NoRuleError) as caught:
        bounds(reference, {"x": torch.randn(5, 7)}, PLAIN, [torch.float32])
    said = str(caught.value)
    file, _, rest = said.partition(".py:")
    assert f"{file}.py" == __file__
    assert code.co_firstlineno <= int(rest.split(":")[0]) <= last
    assert words in said
    assert "\n" not in said


def test_index_of_rounded_values_is_taken_where_no_kernel_has_another() -> None:
    """The largest by far, and an order of numbers that lie apart, are every kernel's."""
    x, draw = torch.linspace(-1, 1, 12).view(3, 4), torch.Generator().manual_seed(0)
    table = torch.randn(3, 4, generator=draw)

    def reference(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 0.3
        best = y.max(-1, keepdim=True).indices
        return table.gather(-1, best), table.gather(-1, y.sort(-1, descending=True).indices)

    given = {"x": x, "table": table}
    for bound in bounds(reference, given, PLAIN, [torch.float32] * 2):
        assert float(bound.deterministic.amax()) == 0


def test_attention_inside_a_module_is_read_as_products_and_a_softmax() -> None:
    """A function of torch's that calls it is run whole; nothing in it draws random numbers."""
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    names = [name for name, _ in module.named_parameters()]

    def reference(x: Tensor, **parameters: Tensor) -> Tensor:
        weights = {name: parameters[name.replace(".", "_")] for name in names}
        result: Tensor = torch.func.functional_call(
            module, weights, (x, x, x), {"need_weights": False}
        )[0]
        return result

    given = {"x": torch.randn(2, 5, 8)}
    given |= {name.replace(".", "_"): p.detach() for name, p in module.named_parameters()}
    (exact,) = truth(reference, given)
    (bound,) = bounds(reference, given, PLAIN, [torch.float32])
    error = (reference(**given).detach().double() - exact.detach()).abs()
    assert bool((error <= bound.deterministic).all())
    assert float(bound.deterministic.max()) < 1e-4


def _by_exponential(x: Tensor) -> Tensor:
    return torch.sign(x) * (1 - 2 / ((2 * x.abs()).exp() + 1))


def _by_fast_sine(x: Tensor) -> Tensor:
    wave = torch.sin(1000 * x.double())
    return torch.sin(x.double()).add(wave, alpha=2.0**-21.5).float()


@pytest.mark.parametrize(
    ("function", "kernel"),
    [
        (torch.tanh, _by_exponential),
        (torch.sin, _by_fast_sine),
        (
            partial(F.gelu, approximate="tanh"),
            lambda x: x * 0.5 * (1 + _by_exponential(0.7978846 * (x + 0.044715 * x * x * x))),
        ),
    ],
    ids=["tanh", "sin", "gelu by tanh"],
)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_kernel_by_a_usual_form_of_a_function_is_like_the_emulation(
    function: Callable[[Tensor], Tensor], kernel: Callable[[Tensor], Tensor], scale: float
) -> None:
    """No block of a sound kernel has larger errors than twice the emulation's and an eighth."""

    def reference(x: Tensor) -> tuple[Tensor]:
        return (function(x),)

    x = scale * torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    inputs, single = {"x": x}, (torch.float32,)
    (exact,), (bound,) = truth(reference, inputs), bounds(reference, inputs, Numerics(), single)
    (emulated,) = emulate(reference, inputs, Numerics(), single)
    z_kernel, z_emulation = (
        ((values.double() - exact).abs() / bound.deterministic).max().item()
        for values in (kernel(x), emulated)
    )
    assert z_kernel <= 1
    assert z_emulation <= 1
    assert z_kernel <= 2 * z_emulation + 1 / 8


_ADDED_PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "addmm": (torch.addmm, (3, 4), (4, 3)),
    "baddbmm": (torch.baddbmm, (2, 3, 4), (2, 4, 3)),
    "addbmm": (torch.addbmm, (2, 3, 4), (2, 4, 3)),
    "addmv": (torch.addmv, (3, 4), (4,)),
    "addr": (torch.addr, (3,), (3,)),
}


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "in a sum"])
@pytest.mark.parametrize("name", _ADDED_PRODUCTS)
def test_addend_of_a_product_is_not_read_with_beta_0(name: str, *, joined: bool) -> None:
    """Whatever it holds, the bound is one of the product alone."""
    function, *shapes = _ADDED_PRODUCTS[name]
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=draw) for shape in shapes)

    def reference(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = function(c, a, b, beta=0, alpha=0.3)
        return y + 1 if joined else y

    plain = torch.zeros_like(function(torch.zeros(()), a, b))
    limits = []
    for c in (plain, plain + torch.nan, plain + torch.inf):
        inputs = {"c": c, "a": a, "b": b}
        (exact,), (bound,) = (
            truth(reference, inputs),
            bounds(reference, inputs, PLAIN, (torch.float32,)),
        )
        assert bool(((reference(**inputs) - exact).abs() <= bound.deterministic).all())
        limits.append(bound.deterministic)
    assert all(torch.equal(limits[0], limit) for limit in limits)
    assert float(limits[0].max()) < 1e-5


def test_choice_that_goes_one_way_throughout_leaves_its_terms_to_vary() -> None:
    """Nothing of smooth L1 is linear where all differences are below 1: its mean varies."""
    draw = torch.Generator().manual_seed(0)
    inputs = {name: torch.rand(512, 512, generator=draw) for name in ("input", "target")}
    (bound,) = bounds(torch.nn.functional.smooth_l1_loss, inputs, Numerics(), [torch.float32])
    assert bound.probabilistic is not None
    assert float(bound.probabilistic) <= float(bound.deterministic) / 20


def _mean_of_chosen(x: Tensor, y: Tensor, less: float) -> Tensor:
    off = (x - y).abs()
    return torch.where(off < 1, off * off / 2, off - less).mean()


@pytest.mark.parametrize(("less", "varies"), [(0.5, True), (0.1, False)])
def test_number_that_is_taken_off_chosen_terms_varies_where_its_sum_is_exact(
    less: float, *, varies: bool
) -> None:
    """A kernel may add up a number for itself: halves exactly, tenths with errors to one side."""
    draw = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(512, 512, generator=draw) for name in ("x", "y")}
    reference = partial(_mean_of_chosen, less=less)
    (bound,) = bounds(reference, inputs, Numerics(), [torch.float32], with_replays=False)
    assert bound.probabilistic is not None
    assert (float(bound.probabilistic) <= float(bound.deterministic) / 20) is varies
    exact = reference(inputs["x"].double(), inputs["y"].double())
    off = (inputs["x"] - inputs["y"]).abs()
    linear = off >= 1
    total = torch.where(linear, off, off * off / 2).sum() - less * linear.sum()
    assert float((total.double() / off.numel() - exact).abs()) <= float(bound.probabilistic)


def test_operation_alone_is_not_replayed() -> None:
    """Its rule says what its roundings do; a product of hundreds of numbers may have no bound."""
    x = torch.randn(4, 4096, generator=torch.Generator().manual_seed(0))
    alone = partial(torch.cumprod, dim=1)
    (plain,) = bounds(alone, {"input": x}, Numerics(), [torch.float32], with_replays=False)
    with pytest.MonkeyPatch.context() as patch:
        module = import_module("kernel_workbench.oracles.analysis.bounds")
        patch.setattr(module, "errors", _not_asked)
        (bound,) = bounds(alone, {"input": x}, Numerics(), [torch.float32])
    assert bound.powerless is not None
    assert torch.equal(bound.deterministic, plain.deterministic)


def _not_asked(*_: object) -> None:
    raise AssertionError("it was replayed")
