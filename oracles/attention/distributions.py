"""The distributions that attention is tried on: changes to tensors drawn from N(0, 1).

After numerics.md's list; some aim at one defect, and the cases that use them say which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.attention.geometry import key_ranges
from oracles.attention.probes import INTEGERS, NEEDLES, integers, needles, spans
from oracles.op import Case

COARSE = "coarse"


@dataclass(slots=True)
class Values:
    """A case's floating-point arguments in float32, by name, to be changed by a distribution."""

    case: Case
    tensors: dict[str, Tensor]
    draw: torch.Generator

    def some(self, names: str) -> Iterator[Tensor]:
        """Those of `names`, separated by spaces, that the case has."""
        return (self.tensors[name] for name in names.split() if name in self.tensors)


Distribution = Callable[[Values], None]
_OPERANDS = "q k v do out"


def _uniform(values: Values) -> None:
    """[0, 1): nothing cancels."""
    for each in values.some(_OPERANDS):
        each.uniform_(generator=values.draw)


def _positive(values: Values) -> None:
    """All positive: the rounding of out shifts every dS of a row the same way."""
    for each in values.some(_OPERANDS):
        each.abs_()


def _outliers(values: Values) -> None:
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as FlashAttention-3's tests have it."""
    for each in values.some(_OPERANDS):
        rare = torch.rand(each.shape, generator=values.draw, device=each.device) < 0.001
        each += rare * torch.empty_like(each).normal_(0, 10, generator=values.draw)


def _scale(names: str, factor: float) -> Distribution:
    def multiply(values: Values) -> None:
        for each in values.some(names):
            each.mul_(factor)

    return multiply


def _shift(names: str, offset: float) -> Distribution:
    def add(values: Values) -> None:
        for each in values.some(names):
            each.add_(offset)

    return add


def _coarse(values: Values) -> None:
    """Multiples of 1/8 of 4 at most: adding such a number to them is exact in every type."""
    for each in values.some(_OPERANDS):
        each.mul_(8).round_().clamp_(-32, 32).div_(8)


def _near_overflow(values: Values) -> None:
    """do (without one: v) of a few times 1e4, and so dv, some of it past fp16's largest number.

    v is then small, so that dP and dS are no larger than do.
    """
    large, small = ("do", "v out") if "do" in values.tensors else ("v", "")
    for each in values.some(large):
        each.abs_().mul_(2.5e4).clamp_(max=6e4)
    for each in values.some(small):
        each.mul_(1e-3)


def _subnormal(names: str) -> Distribution:
    """`names` among the dtype's subnormals: 1 to 15 of its smallest number, and 0."""

    def shrink(values: Values) -> None:
        info = torch.finfo(values.case.dtype)
        for each in values.some(names):
            each.mul_(4).round_().clamp_(-15, 15).mul_(info.smallest_normal * info.eps)

    return shrink


def _constant(values: Values) -> None:
    """Each tensor is one number: every key has the same weight."""
    for number, each in zip((0.5, 1.0, 1.5, -0.75, 1.25), values.some(_OPERANDS), strict=False):
        each.fill_(number)


def _negative_zero(values: Values) -> None:
    """Half of every operand is -0."""
    for each in values.some(_OPERANDS):
        each[..., ::2] = -0.0


def _scaled_rows(values: Values) -> None:
    """Rows 1, 1e-1, 1e-2, 1e-3 times as large: an error in a small row is small in any norm."""
    for each in values.some("v do out"):
        steps = torch.arange(each.shape[1], device=each.device) % 4
        each *= 10.0 ** -steps[:, None, None].float()


def _set(name: str, number: float) -> Distribution:
    """One element of `name`, of its last batch and head and in the middle, is `number`."""

    def place(values: Values) -> None:
        for each in values.some(name):
            if each.numel():
                each[-1, each.shape[1] // 2, -1, each.shape[3] // 2] = number

    return place


def _nan_masked(values: Values) -> None:
    """NaN in every key and value that no query attends to: nothing of it may show."""
    for batch, queries, keys in spans(values.case):
        s_q, s_kv = queries.stop - queries.start, keys.stop - keys.start
        first, last = key_ranges(values.case, s_q, s_kv)
        key = torch.arange(s_kv)[:, None]
        attended = ((first <= key) & (key <= last)).any(1)
        for each in values.some("k v"):
            each[batch, keys][~attended.to(each.device)] = math.nan


def _bias_first(number: float | None, count: int) -> Distribution:
    """The first `count` keys have a bias of `number`; None: the dtype's lowest finite number."""

    def set_first(values: Values) -> None:
        lowest = torch.finfo(values.case.dtype).min if number is None else number
        for each in values.some("bias"):
            each[..., : min(count, each.shape[3] - 1)] = lowest

    return set_first


def _bias_inf_row(values: Values) -> None:
    """Every third row of the bias is -inf throughout: its queries attend to nothing."""
    for each in values.some("bias"):
        each.view(-1, each.shape[3])[1::3] = -math.inf


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": lambda _: None,
    "uniform": _uniform,
    "positive": _positive,
    "times3": _scale(_OPERANDS, 3),
    COARSE: _coarse,
    "outliers": _outliers,
    "k_plus8": _shift("k", 8),
    "v_plus8": _shift("v", 8),
    "near_flat": _scale("q", 1e-3),
    "one_hot": _scale("q", 30),
    "logits1e4": _scale("q k", 100),
    "near_overflow": _near_overflow,
    "subnormals": _subnormal("v do out"),
    "qk_subnormals": _subnormal("q k"),
    "constant": _constant,
    "negative_zero": _negative_zero,
    "scaled_rows": _scaled_rows,
    NEEDLES: needles,
    INTEGERS: integers,
    "nan_q": _set("q", math.nan),
    "nan_k": _set("k", math.nan),
    "nan_v": _set("v", math.nan),
    "inf_k": _set("k", math.inf),
    "nan_do": _set("do", math.nan),
    "nan_out": _set("out", math.nan),
    "nan_masked": _nan_masked,
    "sink_large": _scale("sink", 30),
    "bias_large": _scale("bias", 1000),
    "bias_inf_first": _bias_first(-math.inf, 128),
    "bias_finfo_min": _bias_first(None, 128),
    "bias_inf_row": _bias_inf_row,
}
