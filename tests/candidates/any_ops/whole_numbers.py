# ruff: noqa: F722, F821, UP037  # shapes in annotations; arguments that a defect leaves
"""Whole numbers and codes as outputs: indices are judged as sets; `wrong` ones must fail."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int, Int8, Int32
from torch import Tensor

from kernel_workbench import Domain, Sizes, kernel, op


def some(*values: int) -> Sizes:
    """Sizes of one level."""
    return Sizes("some", {"some": values}, lambda _: "some")


_SIZES = {"m": some(5, 9), "n": some(64, 129)}
_DOMAIN = Domain(dtypes=(torch.float32, torch.bfloat16))


@op(sizes=_SIZES)
def largest_place(x: Float[Tensor, "m n"]) -> Int[Tensor, "m"]:
    """Return the place of the first of equal numbers, as PyTorch does."""
    return x.argmax(-1)


@kernel(largest_place, _DOMAIN)
def right_place(x: Tensor) -> Tensor:
    """As PyTorch has it."""
    return x.argmax(-1)


@kernel(largest_place, _DOMAIN)
def wrong_last_of_equal(x: Tensor) -> Tensor:
    """Take the last of equal numbers."""
    return x.shape[1] - 1 - x.flip(-1).argmax(-1)


@kernel(largest_place, Domain(dtypes=(torch.float32,)))
def wrong_in_eight_bits(x: Tensor) -> Tensor:
    """Compare rounded numbers."""
    return x.to(torch.float8_e4m3fn).float().argmax(-1)


@kernel(largest_place, _DOMAIN)
def wrong_first_column_lost(x: Tensor) -> Tensor:
    """Leave the first column out: of equal numbers it is the one."""
    return x[:, 1:].argmax(-1) + 1


@kernel(largest_place, _DOMAIN)
def wrong_never_written(x: Tensor) -> Tensor:
    """Leave the last row's place unwritten."""
    place = torch.empty(len(x), dtype=torch.int64, device=x.device)
    place[:-1] = x[:-1].argmax(-1)
    return place


@op(sizes={"t": some(5, 9), "e": some(8, 16)}, outputs=("w", "ids"))
def router(logits: Float[Tensor, "t e"]) -> tuple[Float[Tensor, "t 2"], Int32[Tensor, "t 2"]]:
    """The two largest of a softmax, in order."""
    w, ids = logits.softmax(-1).topk(2, -1)
    return w / w.sum(-1, keepdim=True), ids.int()


@kernel(router, _DOMAIN)
def right_router(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference, in fp32."""
    w, ids = logits.float().softmax(-1).topk(2, -1)
    return (w / w.sum(-1, keepdim=True)).to(logits.dtype), ids.int()


@kernel(router, _DOMAIN)
def right_by_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compare logits: what a softmax makes equal isn't equal here."""
    w, ids = logits.float().topk(2, -1)
    return w.softmax(-1).to(logits.dtype), ids.int()


@kernel(router, _DOMAIN)
def wrong_order(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Name the second one first."""
    w, ids = right_router(logits)
    return w, ids.flip(-1)


@kernel(router, _DOMAIN)
def wrong_twice(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Name the first one twice."""
    w, ids = right_router(logits)
    return w, ids[:, :1].repeat(1, 2)


@kernel(router, _DOMAIN)
def wrong_third(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Name the third one second."""
    w, _ = right_router(logits)
    ids = logits.float().topk(3, -1).indices.int()
    return w, ids[:, [0, 2]]


@kernel(router, _DOMAIN)
def wrong_outside(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Name an expert that there isn't."""
    w, ids = right_router(logits)
    return w, ids + logits.shape[1]


@op(sizes=_SIZES, outputs=("codes", "scale"))
def quantise(x: Float[Tensor, "m n"]) -> tuple[Int8[Tensor, "m n"], Float32[Tensor, "m"]]:
    """Codes of eight bits, a scale a row."""
    scale = x.abs().amax(-1) / 127
    return torch.round(x / scale[:, None]).clamp(-128, 127).to(torch.int8), scale


@kernel(quantise, _DOMAIN)
def right_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the scale."""
    x = x.float()
    scale = x.abs().amax(-1) / 127
    return torch.round(x / scale[:, None]).clamp(-128, 127).to(torch.int8), scale


@kernel(quantise, _DOMAIN)
def right_by_reciprocal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply by its reciprocal: near a tie the code is another."""
    x = x.float()
    scale = x.abs().amax(-1) / 127
    return torch.round(x * (1 / scale)[:, None]).clamp(-128, 127).to(torch.int8), scale


@kernel(quantise, _DOMAIN)
def wrong_truncates(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cut what is behind the point."""
    x = x.float()
    scale = x.abs().amax(-1) / 127
    return (x / scale[:, None]).clamp(-128, 127).to(torch.int8), scale


@op(sizes=_SIZES)
def sample(p: Float[Tensor, "m n"], u: Float32[Tensor, "m"]) -> Int[Tensor, "m"]:
    """A sample, given its random number."""
    return (p.softmax(-1).cumsum(-1) < (u.abs() % 1)[:, None]).sum(-1)


@kernel(sample, _DOMAIN)
def right_sample(p: Tensor, u: Tensor) -> Tensor:
    """As the reference, in fp32."""
    return (p.float().softmax(-1).cumsum(-1) < (u.abs() % 1)[:, None]).sum(-1)


@kernel(sample, _DOMAIN)
def wrong_next(p: Tensor, u: Tensor) -> Tensor:
    """Take the next one."""
    return right_sample(p, u) + 1


@op(sizes={**_SIZES, "e": some(3)}, labels={"expert": "e"}, outputs=("order", "y"))
def sort_experts(
    x: Float[Tensor, "m n"], expert: Int32[Tensor, "m"]
) -> tuple[Int[Tensor, "m"], Float[Tensor, "m n"]]:
    """Rows in the order of their experts, of one expert in their own."""
    order = expert.argsort(stable=True)
    return order, x[order]


@kernel(sort_experts, _DOMAIN)
def right_order(x: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    order = expert.argsort(stable=True)
    return order, x[order]


@kernel(sort_experts, _DOMAIN)
def wrong_unstable(x: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the order within an expert round."""
    order = len(x) - 1 - expert.flip(0).argsort(stable=True)
    return order, x[order]
