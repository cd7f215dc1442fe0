"""`attention` as a function: its gradients, torch's own checks of it, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.attention import attention, attention_with_lse
from kernel_workbench.kernels.attention.function import (
    forward_only_operator,
    forward_operator,
    packed,
)
from kernel_workbench.kernels.attention.problem import AttentionError

SCALE_OF_FP32 = 1e-5  # these outputs are near 1; the suite's bounds judge the kernels themselves


def _draw(device: torch.device, *shape: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=device).requires_grad_()


def _tensors(
    device: torch.device, *, s_q: int = 5, s_kv: int = 7, h_kv: int = 1, d: int = 8, d_v: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a small problem with two query heads."""
    shapes = ((1, s_q, 2, d), (1, s_kv, h_kv, d), (1, s_kv, h_kv, d_v))
    q, k, v = (_draw(device, *shape) for shape in shapes)
    return q, k, v


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse of causal attention with a bias and a sink, in float64."""
    wide_q, wide_k, wide_v = (each.double().transpose(1, 2) for each in (q, k, v))
    scores = wide_q @ wide_k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias.double()
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, -math.inf)
    extra = sink.double()[None, :, None, None].expand(*scores.shape[:3], 1)
    lse = torch.cat([scores, extra], -1).logsumexp(-1)
    out = (scores - lse[..., None]).exp() @ wide_v
    return out.transpose(1, 2), lse


@pytest.mark.parametrize("deterministic", [True, False])
def test_attention_has_the_gradients_of_the_formula(
    device: torch.device, *, deterministic: bool
) -> None:
    """The gradients of q, k, v, a bias and a sink match, with grouped heads and a causal mask."""
    q, k, v = _tensors(device)
    bias, sink = _draw(device, 1, 2, 5, 7), _draw(device, 2)
    leaves = (q, k, v, bias, sink)
    out, lse = attention_with_lse(
        q, k, v, causal=True, bias=bias, sink=sink, deterministic=deterministic
    )
    expected_out, expected_lse = _plain(*leaves)
    assert float((out - expected_out).detach().abs().max()) <= SCALE_OF_FP32
    assert float((lse - expected_lse).detach().abs().max()) <= SCALE_OF_FP32
    weights = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape)
    got = torch.autograd.grad(out, leaves, weights)
    expected = torch.autograd.grad(expected_out, leaves, weights.double())
    for mine, theirs in zip(got, expected, strict=True):
        assert float((mine - theirs).abs().max()) <= SCALE_OF_FP32


# The check of operators in torch 2.15 reads `.grad` of tensors that aren't leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_attention_passes_torchs_check_of_operators(device: torch.device) -> None:
    """Schema, fake tensors, autograd registration and ahead-of-time tracing."""
    q, k, v = _tensors(device, h_kv=2)
    bias, sink = _draw(device, 1, 1, 5, 7), _draw(device, 2)
    given: dict[str, Any] = {"causal": True, "window": (3, None), "bias": bias, "sink": sink}
    tensors, settings = packed(given)
    results = torch.library.opcheck(forward_operator, (q, k, v, *tensors), settings)
    assert set(results.values()) == {"SUCCESS"}
    q, k, v, bias, sink = (each.detach() for each in (q, k, v, bias, sink))
    calls: list[dict[str, Any]] = [{}, {"causal": True, "bias": bias, "sink": sink}]
    for call in calls:
        tensors, settings = packed(call)
        results = torch.library.opcheck(forward_only_operator, (q, k, v, *tensors), settings)
        assert set(results.values()) == {"SUCCESS"}


def test_attention_compiles_without_a_graph_break(device: torch.device) -> None:
    """Traced whole, forward and backward, with the same values and gradients."""
    q, k, v = _tensors(device)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    got = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_call_that_needs_no_gradient_has_the_same_values_and_none(device: torch.device) -> None:
    """Where nothing asks for one, and where gradients are off."""
    leaves = _tensors(device)
    expected = attention_with_lse(*leaves, causal=True, window=(3, 0))
    assert expected[0].requires_grad
    with torch.no_grad():
        off = attention_with_lse(*leaves, causal=True, window=(3, 0))
    none = attention_with_lse(*(each.detach() for each in leaves), causal=True, window=(3, 0))
    for made in (off, none):
        assert not made[0].requires_grad
        assert all(map(torch.equal, made, expected))


@pytest.mark.parametrize("asked", range(5))
def test_one_tensor_that_asks_has_its_gradient(device: torch.device, asked: int) -> None:
    """And no other one does: q, k, v, a bias or a sink."""
    leaves = [*_tensors(device, h_kv=2), _draw(device, 1, 1, 5, 7), _draw(device, 2)]
    expected = torch.autograd.grad(_of_five(leaves), leaves)[asked]
    given = [each.detach() for each in leaves]
    given[asked].requires_grad_()
    _of_five(given).backward()
    assert [each.grad is not None for each in given] == [number == asked for number in range(5)]
    got = given[asked].grad
    assert got is not None
    assert torch.equal(got, expected)


def _of_five(given: list[Tensor]) -> Tensor:
    q, k, v, bias, sink = given
    return attention(q, k, v, bias=bias, sink=sink).square().sum()


def test_attention_has_no_second_derivative(device: torch.device) -> None:
    """It says so, and doesn't return one that is wrong."""
    q, k, v = _tensors(device)
    (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(AttentionError, match="no second derivative"):
        dq.sum().backward()


def test_attention_gives_lse_no_gradient(device: torch.device) -> None:
    """A loss made of lse can't be differentiated in silence."""
    _, lse = attention_with_lse(*_tensors(device))
    assert not lse.requires_grad


def test_gradients_are_repeated_bit_for_bit(device: torch.device) -> None:
    """The default backward, with keys over several tiles."""
    q, k, v = _tensors(device, s_q=70, s_kv=150)
    first, second = (torch.autograd.grad(attention(q, k, v).sum(), (q, k, v)) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_lazy_negation_is_computed_first(device: torch.device) -> None:
    """Its memory has the other sign, of q and of the gradient of out alike."""
    q, k, v = (_draw(device, 1, 4, 2, 16) for _ in range(3))
    do = _draw(device, 1, 4, 2, 16).detach()

    def gradients(q: Tensor, do: Tensor) -> tuple[Tensor, ...]:
        given = q.requires_grad_(), k, v
        return torch.autograd.grad(attention(*given), given, do)

    expected = gradients(-q.detach(), -do)
    lazily = gradients(torch._neg_view(q.detach()), torch._neg_view(do))
    for mine, theirs in zip(lazily, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_attention_of_meta_tensors_has_its_shape() -> None:
    """As torch's own functions: a model's shapes are found without memory."""
    q, k, v = (torch.empty(1, 4, 2, 16, device="meta") for _ in range(3))
    out, lse = attention_with_lse(q, k, v)
    assert (out.shape, lse.shape, out.device.type) == (q.shape, (1, 2, 4), "meta")
