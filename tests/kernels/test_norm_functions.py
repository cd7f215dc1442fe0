"""`layer_norm` and `rms_norm` as functions: gradients, torch's own checks, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_workbench.kernels.layer_norm import NormError, layer_norm, rms_norm
from kernel_workbench.kernels.layer_norm.call import as_matrix
from kernel_workbench.kernels.layer_norm.function import (
    backward_operator,
    forward_operator,
    is_aligned,
    kernel_for,
)
from kernel_workbench.kernels.registry import choose
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import optional, required

SCALE_OF_FP32 = 1e-5  # these outputs are near 1; the suite's bounds judge the kernels themselves
_SAME_SUM = 8 * 2.0**-8  # of eight bfloat16 numbers near 1, each rounded once

_BOTH = pytest.mark.parametrize("rms", [False, True], ids=["layer_norm", "rms_norm"])


def _draw(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    drawn = torch.randn(shape, generator=generator, device=device)
    return drawn.to(dtype).requires_grad_()


def _given(
    device: torch.device, *rows: int, n: int = 24, rms: bool, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, a weight, and a bias where there can be one; both vectors in fp32."""
    vectors = [_draw(device, n), *([] if rms else [_draw(device, n)])]
    return [_draw(device, *rows, n, dtype=dtype), *vectors]


def _mine(rms: bool) -> Callable[..., Tensor]:  # noqa: FBT001  # of the parametrisation
    return partial(rms_norm, eps=1e-3) if rms else partial(layer_norm, eps=1e-3)


def _theirs(x: Tensor, *vectors: Tensor, rms: bool) -> Tensor:
    """In float64."""
    wide, *others = (each.double() for each in (x, *vectors))
    norm: Callable[..., Tensor] = functional.rms_norm if rms else functional.layer_norm
    return norm(wide, [x.shape[-1]], *others, eps=1e-3)


@_BOTH
@pytest.mark.parametrize("rows", [(5,), (2, 3), ()])
def test_norm_has_the_gradients_of_the_formula(
    device: torch.device, *, rows: tuple[int, ...], rms: bool
) -> None:
    """The gradients of x, the weight and the bias match, whatever the rank."""
    given = _given(device, *rows, rms=rms)
    got, expected = _mine(rms)(*given), _theirs(*given, rms=rms)
    assert float((got - expected).detach().abs().max()) <= SCALE_OF_FP32
    weights = torch.linspace(-1, 1, got.numel(), device=device).view(got.shape)
    mine = torch.autograd.grad(got, given, weights)
    theirs = torch.autograd.grad(expected, given, weights.double())
    for one, other in zip(mine, theirs, strict=True):
        assert float((one - other).abs().max()) <= SCALE_OF_FP32


@_BOTH
def test_halves_keep_their_types(device: torch.device, *, rms: bool) -> None:
    """y and dx like x, gradients of fp32 vectors in fp32; with a row stride and a column stride."""
    x, *vectors = _given(device, 4, n=48, rms=rms, dtype=torch.bfloat16)
    x = x.detach()[:, ::2].requires_grad_()
    vectors = [each.detach()[:24].requires_grad_() for each in vectors]
    y = _mine(rms)(x, *vectors)
    assert y.dtype == torch.bfloat16
    gradients = torch.autograd.grad(y.float().sum(), (x, *vectors))
    assert [each.dtype for each in gradients] == [each.dtype for each in (x, *vectors)]
    expected = torch.autograd.grad(_theirs(x, *vectors, rms=rms).sum(), (x, *vectors))
    for mine, theirs in zip(gradients, expected, strict=True):
        assert float((mine - theirs).abs().max()) <= _SAME_SUM


def test_norms_do_without_vectors(device: torch.device) -> None:
    """A weight without a bias, and neither."""
    x, weight = _draw(device, 3, 16), _draw(device, 16)
    for given in ((x,), (x, weight)):
        for rms in (False, True):
            got = torch.autograd.grad(_mine(rms)(*given).square().sum(), given)
            expected = torch.autograd.grad(_theirs(*given, rms=rms).square().sum(), given)
            for mine, theirs in zip(got, expected, strict=True):
                assert float((mine - theirs).abs().max()) <= SCALE_OF_FP32


def test_kernel_is_the_one_that_dispatch_takes(device: torch.device) -> None:
    """On every small case that a function can be given."""
    served = {"no_weight", "no_bias", "rms_norm"}
    tried = 0
    for case in LAYER_NORM_BACKWARD.cases():
        rows = case.layout.batches is None and case.size("m") and case.size("m") <= 64
        if case.tier != "ci" or not case.options <= served or not rows:
            continue
        inputs = LAYER_NORM_BACKWARD.inputs(case, device)
        dy, x, weight = (required(inputs, "dy"), required(inputs, "x"), optional(inputs, "weight"))
        aligned = is_aligned(
            *(as_matrix(each).data for each in (dy, x)), *(() if weight is None else (weight,))
        )
        name = kernel_for(x).__name__ + ("_aligned" if aligned else "")
        assert name == choose(LAYER_NORM_BACKWARD, case, 90, device=device.type).name, case.id()
        tried += 1
    assert tried > 100


# The check of operators in torch 2.15 reads `.grad` of tensors that aren't leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@_BOTH
def test_norm_passes_torchs_check_of_operators(device: torch.device, *, rms: bool) -> None:
    """Schema, fake tensors, autograd registration and ahead-of-time tracing."""
    x, weight, *others = _given(device, 3, rms=rms)
    given = (x, weight, others[0] if others else None, 1e-3, rms)
    results = torch.library.opcheck(forward_operator, given)
    assert set(results.values()) == {"SUCCESS"}
    y, mean, rstd = (each.detach() for each in forward_operator(*given))
    saved = (y, x.detach(), weight.detach(), mean, rstd, not rms, rms)
    results = torch.library.opcheck(
        backward_operator, saved, test_utils=("test_schema", "test_faketensor")
    )
    assert set(results.values()) == {"SUCCESS"}


@_BOTH
def test_norm_compiles_without_a_graph_break(device: torch.device, *, rms: bool) -> None:
    """Traced whole, forward and backward, with the same values and gradients."""
    given = _given(device, 5, rms=rms)

    def loss(*tensors: Tensor) -> Tensor:
        return _mine(rms)(*tensors).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(loss(*given), given)
    got = torch.autograd.grad(compiled(*given), given)
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_norm_has_no_second_derivative(device: torch.device) -> None:
    """It says so, and doesn't return one that is wrong."""
    x = _draw(device, 3, 16)
    (dx,) = torch.autograd.grad(rms_norm(x).sum(), x, create_graph=True)
    with pytest.raises(NormError, match="no second derivative"):
        dx.sum().backward()


class _Names(TorchDispatchMode):
    """Note the names of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: object,
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> object:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@_BOTH
def test_mode_sees_one_operator_a_pass(device: torch.device, *, rms: bool) -> None:
    """Forward and backward, whether the forward ran under the mode or before it."""
    given = _given(device, 5, rms=rms)
    before = _mine(rms)(*given)
    with _Names() as seen:
        for y in (_mine(rms)(*given), before):
            torch.autograd.grad(y, given, torch.ones_like(y))
    ours = [name for name in seen.names if name.startswith("kernel_workbench::")]
    backward = "kernel_workbench::norm_backward"
    assert ours == ["kernel_workbench::norm_forward", backward, backward]


@_BOTH
def test_lazy_negation_is_computed_first(device: torch.device, *, rms: bool) -> None:
    """Its memory has the other sign, of x and of dy alike."""
    x, *vectors = _given(device, 5, rms=rms)
    dy = torch.linspace(-1, 1, x.numel(), device=device).view(x.shape)

    def gradients(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        given = [x.requires_grad_(), *vectors]
        return torch.autograd.grad(_mine(rms)(*given), given, dy)

    expected = gradients(-x.detach(), -dy)
    lazily = gradients(torch._neg_view(x.detach()), torch._neg_view(dy))
    for mine, theirs in zip(lazily, expected, strict=True):
        assert torch.equal(mine, theirs)


@_BOTH
def test_norm_of_a_meta_tensor_has_its_shape(*, rms: bool) -> None:
    """As torch's own functions: a model's shapes are found without memory."""
    given = [torch.empty(size, device="meta") for size in ((3, 8), (8,))]
    y = _mine(rms)(*given)
    assert (y.shape, y.device.type) == ((3, 8), "meta")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@_BOTH
def test_vmap_gives_the_same_rows(device: torch.device, *, rms: bool) -> None:
    """A transform sees the operator, because it can't see through a call without one."""
    x, *vectors = (tensor.detach() for tensor in _given(device, 3, 5, rms=rms))
    mapped = torch.func.vmap(lambda rows: _mine(rms)(rows, *vectors))(x)
    assert torch.equal(mapped, _mine(rms)(x, *vectors))


def test_norm_on_a_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, with what to do."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(NormError, match="set TRITON_INTERPRET=1 before triton is imported"):
        layer_norm(torch.ones(2, 8))


_X, _WEIGHT = torch.ones(2, 8), torch.ones(8)
_REFUSED: list[tuple[tuple[Tensor | None, ...], str]] = [
    ((_X.double(),), "x must be float32, float16, bfloat16, got float64"),
    ((torch.ones(2, 0),), "x must have columns, got shape (2, 0)"),
    ((_X, torch.ones(4)), "weight must have shape (8,), got (4,)"),
    ((_X, _WEIGHT, torch.ones(1, 8)), "bias must have shape (8,), got (1, 8)"),
    ((_X, None, _WEIGHT), "a bias needs a weight beside it"),
    ((_X, _WEIGHT, _WEIGHT.half()), "bias must be float32 like the weight, got float16"),
    ((_X, _WEIGHT.to("meta")), "weight must be on cpu like x, got meta"),
]


@pytest.mark.parametrize(("given", "told"), _REFUSED, ids=[told for _, told in _REFUSED])
def test_what_a_norm_cant_serve_is_refused(given: tuple[Tensor | None, ...], told: str) -> None:
    """In one sentence, before anything is launched."""
    with pytest.raises(NormError) as refused:
        layer_norm(*given)  # type: ignore[arg-type]
    assert told in str(refused.value)
