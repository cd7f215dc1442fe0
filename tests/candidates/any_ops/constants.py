# ruff: noqa: F722, F821, UP037, ARG001  # shapes in annotations; arguments that a defect leaves
"""Optional tensors, lists, strings and bytes as arguments; `wrong` ones must fail."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float8e4m3fn, Float32, Int8
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op


def some(*values: int) -> Sizes:
    """Sizes of one level."""
    return Sizes("some", {"some": values}, lambda _: "some")


_SIZES = {"m": some(5, 9), "n": some(16, 33)}
_PRODUCT = {**_SIZES, "k": some(32, 17)}
_DOMAIN = Domain(dtypes=(torch.float32,))


@op(sizes=_PRODUCT)
def linear(
    x: Float[Tensor, "m k"], w: Float[Tensor, "n k"], bias: Float[Tensor, "n"] | None = None
) -> Float[Tensor, "m n"]:
    """An optional bias."""
    y = x @ w.T
    return y if bias is None else y + bias


linear_without_bias = linear.without("bias")
_BIASED = Domain(dtypes=(torch.float32,), weight_dtypes=(torch.float32,))


@kernel(linear, _BIASED)
@kernel(linear_without_bias, _DOMAIN)
def right_linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Add the bias where there is one."""
    y = x @ w.T
    return y if bias is None else y + bias


@kernel(linear, _BIASED)
def wrong_without_bias(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Leave the bias out."""
    return x @ w.T


@op(sizes=_SIZES)
def add_all(xs: list[Float[Tensor, "m n"]]) -> Float[Tensor, "m n"]:
    """A list of tensors."""
    return sum(xs[1:], xs[0])


@kernel(add_all, _DOMAIN)
def right_sum(xs: list[Tensor]) -> Tensor:
    """Add up all of them."""
    return torch.stack(xs).sum(0)


@kernel(add_all, _DOMAIN)
def wrong_last_left_out(xs: list[Tensor]) -> Tensor:
    """Leave the last one out."""
    return torch.stack(xs[:-1]).sum(0)


@op(sizes=_SIZES)
def act(x: Float[Tensor, "m n"], kind: str = "silu") -> Float[Tensor, "m n"]:
    """A string that chooses."""
    return torch.nn.functional.silu(x) if kind == "silu" else x.relu()


@kernel(act, _DOMAIN)
def right_act(x: Tensor, *, kind: str) -> Tensor:
    """Do what the string says."""
    return torch.nn.functional.silu(x) if kind == "silu" else x.relu()


@kernel(act, _DOMAIN)
def wrong_act(x: Tensor, *, kind: str) -> Tensor:
    """Do the other thing."""
    return x.relu() if kind == "silu" else torch.nn.functional.silu(x)


@op(sizes=_PRODUCT)
def int8_product(
    x: Float[Tensor, "m k"], w: Int8[Tensor, "n k"], scale: Float[Tensor, "n"]
) -> Float[Tensor, "m n"]:
    """Weights are bytes."""
    return (x @ w.to(x.dtype).T) * scale


@kernel(int8_product, _DOMAIN)
def right_bytes(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """Multiply in fp32."""
    return (x @ w.float().T) * scale


@kernel(int8_product, _DOMAIN)
def wrong_bytes(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """Take a byte's sign off."""
    return (x @ w.view(torch.uint8).float().T) * scale


@op(sizes=_PRODUCT)
def fp8_product(
    x: Float8e4m3fn[Tensor, "m k"],
    w: Float8e4m3fn[Tensor, "n k"],
    sx: Float32[Tensor, "m"],
    sw: Float32[Tensor, "n"],
) -> Float[Tensor, "m n"]:
    """Codes with scales."""
    return (x.double() @ w.double().T) * sx[:, None] * sw


@kernel(fp8_product, _DOMAIN)
def right_codes(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    """Multiply in fp32."""
    return (x.float() @ w.float().T) * sx[:, None] * sw


@kernel(fp8_product, _DOMAIN)
def wrong_scale(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
    """Scale by one of the two."""
    return (x.float() @ w.float().T) * sx[:, None]
