# ruff: noqa: F722, F821, UP037, ARG001  # shapes in annotations; arguments that a defect leaves
"""Kernels that change their arguments, as serving stacks call them; `wrong` ones must fail."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op


def some(*values: int) -> Sizes:
    """Sizes of one level."""
    return Sizes("some", {"some": values}, lambda _: "some")


_SIZES = {"m": some(5, 9), "n": some(16, 33)}
_DOMAIN = Domain(dtypes=(torch.float32, torch.bfloat16))


@op(sizes=_SIZES, updates=("x", "residual"))
def fused_add_rms_norm(
    x: Float[Tensor, "m n"], residual: Float[Tensor, "m n"], weight: Float[Tensor, "n"]
) -> None:
    """The sum replaces the residual, and its norm x."""
    residual += x
    x.copy_(residual * torch.rsqrt(residual.square().mean(-1, keepdim=True) + 1e-6) * weight)


def _added(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x.float() + residual.float()
    norm = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return norm.to(x.dtype), total.to(x.dtype)


@kernel(fused_add_rms_norm, _DOMAIN)
def right_returns_nothing(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Change both."""
    norm, total = _added(x, residual, weight)
    x.copy_(norm)
    residual.copy_(total)


@kernel(fused_add_rms_norm, _DOMAIN)
def right_returns_both(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Change both, and return them."""
    right_returns_nothing(x, residual, weight)
    return x, residual


@kernel(fused_add_rms_norm, _DOMAIN)
def wrong_returns_others(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Leave the arguments as they are: whoever reads them is told the old values."""
    return _added(x, residual, weight)


@kernel(fused_add_rms_norm, _DOMAIN)
def wrong_keeps_residual(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Leave the residual as it is."""
    x.copy_(_added(x, residual, weight)[0])


@kernel(fused_add_rms_norm, _DOMAIN)
def wrong_changes_weight(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Write to what may not be written."""
    right_returns_nothing(x, residual, weight)
    weight.mul_(1.5)


@kernel(fused_add_rms_norm, _DOMAIN)
def wrong_writes_past_rows(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    """Write to the number behind the last one."""
    right_returns_nothing(x, residual, weight)
    end = x.storage_offset() + sum((a - 1) * b for a, b in zip(x.shape, x.stride(), strict=True))
    x.as_strided((1,), (1,), end + 1).fill_(0.0)


@op(sizes=_SIZES, outputs=("out",), updates=("out",))
def silu_and_mul(out: Float[Tensor, "m n"], x: Float[Tensor, "m 2*n"]) -> Float[Tensor, "m n"]:
    """Destination passing; the reference is functional."""
    a, b = x.chunk(2, -1)
    return torch.nn.functional.silu(a) * b


@kernel(silu_and_mul, _DOMAIN)
def right_fills(out: Tensor, x: Tensor) -> None:
    """Fill the destination."""
    a, b = x.float().chunk(2, -1)
    out.copy_(torch.nn.functional.silu(a) * b)


@kernel(silu_and_mul, _DOMAIN)
def wrong_adds(out: Tensor, x: Tensor) -> None:
    """Add to what the destination holds."""
    a, b = x.float().chunk(2, -1)
    out.add_(torch.nn.functional.silu(a) * b)


@kernel(silu_and_mul, _DOMAIN)
def wrong_leaves_last(out: Tensor, x: Tensor) -> None:
    """Leave the last column as it was."""
    a, b = x.float().chunk(2, -1)
    out[:, :-1] = (torch.nn.functional.silu(a) * b)[:, :-1]


@op(
    sizes={"t": some(5, 9), "s": some(16, 33), "d": some(8, 17)},
    labels={"slot": "s"},
    distinct={"slot": "t"},
    updates=("cache",),
)
def write_cache(
    key: Float[Tensor, "t d"], cache: Float[Tensor, "s d"], slot: Int[Tensor, "t"]
) -> None:
    """Keys go to their slots."""
    cache[slot] = key


@kernel(write_cache, _DOMAIN)
def right_writes_slots(key: Tensor, cache: Tensor, slot: Tensor) -> None:
    """Write each key."""
    cache.index_copy_(0, slot, key)


@kernel(write_cache, _DOMAIN)
def wrong_clears_others(key: Tensor, cache: Tensor, slot: Tensor) -> None:
    """Clear the slots that nobody named."""
    cache.zero_()
    cache.index_copy_(0, slot, key)


@kernel(write_cache, _DOMAIN)
def wrong_loses_last(key: Tensor, cache: Tensor, slot: Tensor) -> None:
    """Leave the last key out."""
    cache.index_copy_(0, slot[:-1], key[:-1])


@op(sizes={"m": some(5, 9), "p": some(8, 17)}, outputs=("y",), updates=("q",))
def rotate(q: Float[Tensor, "m 2*p"], angle: Float[Tensor, "m p"]) -> Float[Tensor, "m p"]:
    """Rotary positions in place; one output is returned beside what is changed."""
    a, b = q.chunk(2, -1)
    q.copy_(torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1))
    return angle * 2


@kernel(rotate, Domain(dtypes=(torch.float32,)))
def right_rotates(q: Tensor, angle: Tensor) -> Tensor:
    """Turn the pairs, from copies of them."""
    a, b = (each.clone() for each in q.chunk(2, -1))
    half = q.shape[-1] // 2
    q[:, :half] = a * angle.cos() - b * angle.sin()
    q[:, half:] = b * angle.cos() + a * angle.sin()
    return angle * 2


@kernel(rotate, Domain(dtypes=(torch.float32,)))
def wrong_reads_what_it_wrote(q: Tensor, angle: Tensor) -> Tensor:
    """Turn the second half by what the first half has become."""
    a, b = q.chunk(2, -1)
    half = q.shape[-1] // 2
    q[:, :half] = a * angle.cos() - b * angle.sin()
    q[:, half:] = b * angle.cos() + a * angle.sin()
    return angle * 2
