"""Attentions that are wrong on purpose, each a small change to `tests.builders.plain_attention`'s.

There is one for each defect of docs/bugs-covered.md that attention can have in `ci`; the cases
whose `why` names the defect's number must find it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from kernel_workbench.oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
)
from kernel_workbench.oracles.op import Case, Op
from kernel_workbench.reports.record import Rule
from tests.builders.plain_attention import Attention, Given, Part

# Its own generator: PyTorch's random state belongs to the process.
_ORDERS = torch.Generator().manual_seed(0)


def _half(tensor: Tensor, like: torch.dtype) -> Tensor:
    """Round to `like`, or to bfloat16 if `like` is fp32, and back."""
    return tensor.to(torch.bfloat16 if like == torch.float32 else like).float()


def _in_buffer(tensor: Tensor, strides: tuple[int, ...], back: int = 0) -> Tensor:
    """Return the elements at other strides, `back` elements before, if the buffer has them."""
    offset = int(tensor.storage_offset()) - back
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - offset
    reached = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
    if offset < 0 or reached > room:
        return tensor
    return tensor.as_strided(tensor.shape, strides, offset)


def _packed(tensor: Tensor) -> Tensor:
    """Return the elements that a kernel reads which assumes a packed tensor."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return _in_buffer(tensor, strides)


class _OffsetWraps(Attention):
    """An offset past 2^31 elements is cut to 32 bits, and NaN lies where it then leads."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        wide = super().read(name, tensor, backward=backward)
        for axis, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if (size - 1) * step >= 2**31:
                wide = wide.clone()
                wide.select(axis, size - 1).fill_(math.nan)
        return wide


class _DeadRowsDivided(Attention):
    """0 / 0 in rows that attend to nothing."""

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        _, lse = super().closed(part, out, total, largest)
        return out / total, lse


class _MaximumUnguarded(Attention):
    """-inf taken off -inf where the first keys have a bias of -inf."""

    def finite(self, largest: Tensor) -> Tensor:
        return largest


class _MaskedMultiplied(Attention):
    """Masked keys and values are multiplied by a weight of 0: a NaN stays one."""

    def hide(self, rows: Tensor, unseen: Tensor) -> Tensor:
        del unseen
        return rows


class _PaddedKeysCounted(Attention):
    """The last tile's keys past the end, with scores of 0, count in the sum."""

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        past = -part.k.shape[2] % self.tile
        total = total + past * torch.exp(-self.finite(largest))
        return super().closed(part, out, total, largest)


class _TailOfLaterHeads(Attention):
    """dv of heads past the first leaves out the queries of the last partial tile."""

    def dv(self, weights: Tensor, do: Tensor) -> Tensor:
        rows = weights.shape[2] // self.tile * self.tile
        made = super().dv(weights, do)
        made[:, 1:] = super().dv(weights[:, 1:, :rows], do[:, 1:, :rows])
        return made


class _OtherCorner(Attention):
    """Top left and bottom right are taken for each other."""

    def shift(self, given: Given, m: int, n: int, *, backward: bool) -> int:
        return n - m - super().shift(given, m, n, backward=backward)


class _DeadRowsUniform(Attention):
    """A large negative number in place of -inf: rows without keys get the mean of all values."""

    def scores(self, part: Part) -> tuple[Tensor, Tensor | None]:
        s, tanh = super().scores(part)
        return s.masked_fill(~part.mask, -1e30), tanh


class _EmptySequencesSkipped(Attention):
    """Sequences without keys return before they write their rows."""

    def sequences(self, given: Given, m: int, n: int) -> Iterator[tuple[int, slice, slice]]:
        return (each for each in super().sequences(given, m, n) if each[2].stop > each[2].start)


class _LastKeyDropped(Attention):
    """The keys end one too early."""

    def mask(self, given: Given, m: int, n: int, *, backward: bool) -> Tensor:
        mask = super().mask(given, m, n, backward=backward)
        mask[:, n - 1 :] = False
        return mask


class _PartialTileDropped(Attention):
    """The loop over keys stops before the last partial tile."""

    def tiles(self, n: int) -> Iterator[slice]:
        return super().tiles(n // self.tile * self.tile)


class _WindowUnshiftedBackward(Attention):
    """The backward's window forgets s_kv - s_q."""

    def shift(self, given: Given, m: int, n: int, *, backward: bool) -> int:
        forgets = backward and given.get("window") is not None
        return 0 if forgets else super().shift(given, m, n, backward=backward)


class _ReadsPacked(Attention):
    """A tensor's strides are taken to be a packed one's; in a shorter buffer, 1 and not 0."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if name in self.names and tensor.numel():
            once = _in_buffer(tensor, tuple(int(step) or 1 for step in tensor.stride()))
            packed = _packed(tensor)
            tensor = once if packed is tensor else packed
        return super().read(name, tensor, backward=backward)


class _ZeroStridesAsOne(Attention):
    """A stride of 0 is taken for a missing one, and replaced by 1."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if 0 in tensor.stride() and tensor.numel():
            tensor = _in_buffer(tensor, tuple(int(step) or 1 for step in tensor.stride()))
        return super().read(name, tensor, backward=backward)


class _StridesOfQ(Attention):
    """k is read with q's strides."""

    def parts(
        self, q: Tensor, k: Tensor, v: Tensor, given: Given, *, backward: bool = False
    ) -> Iterator[Part]:
        if k.stride()[1:] != q.stride()[1:]:
            k = _in_buffer(k, (k.stride(0), *q.stride()[1:]))
        return super().parts(q, k, v, given, backward=backward)


class _SliceIgnored(Attention):
    """k is read from where its buffer's rows begin, 8 elements before the slice."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if name == "k" and tensor.numel():
            over = tensor.data_ptr() % 256 // tensor.element_size()
            tensor = _in_buffer(tensor, tensor.stride(), over)
        return super().read(name, tensor, backward=backward)


class _OffsetIgnored(Attention):
    """Addresses are rounded down to 16 bytes, as a kernel does that loads vectors of them."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if tensor.numel():
            over = tensor.data_ptr() % 16 // tensor.element_size()
            tensor = _in_buffer(tensor, tensor.stride(), over)
        return super().read(name, tensor, backward=backward)


class _BiasRowsRounded(Attention):
    """The bias's rows are taken to be a multiple of 8 elements apart."""

    def read(self, name: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if name == "bias" and tensor.shape[2] > 1:
            batch, head, row, column = tensor.stride()
            rounded = batch, head, -(-row // 8) * 8, column
            tensor = _in_buffer(tensor, rounded)
        return super().read(name, tensor, backward=backward)


class _RacingWithBias(Attention):
    """With a bias and nothing else, sums are in another order at every call.

    Sums over keys change order too: products of bfloat16 are so short that their sums seldom round.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, **given: Unpack[Given]
    ) -> tuple[Tensor, Tensor]:
        if given.keys() <= {"bias", "scale"} and "bias" in given:
            order = torch.randperm(q.shape[3], generator=_ORDERS)
            keys = torch.randperm(k.shape[1], generator=_ORDERS)
            q, k, v = q[..., order], k[:, keys][..., order], v[:, keys]
            given["bias"] = given["bias"].expand(*given["bias"].shape[:-1], k.shape[1])[..., keys]
        return super().forward(q, k, v, **given)


class _DeltaInHalf(Attention):
    """delta is rounded to the half."""

    def row_products(self, do: Tensor, out: Tensor) -> Tensor:
        return _half(super().row_products(do, out), torch.bfloat16)


class _DeltaForgotten(Attention):
    """dS = P dP."""

    def score_gradients(self, p: Tensor, dp: Tensor, delta: Tensor) -> Tensor:
        del delta
        return p * dp


class _ScaleTwice(Attention):
    """dS has the scale already, and dq and dk are multiplied by it again."""

    def score_gradients(self, p: Tensor, dp: Tensor, delta: Tensor) -> Tensor:
        return super().score_gradients(p, dp, delta) / math.sqrt(64)


class _ScaleNotInDk(Attention):
    """dq has the scale and dk hasn't."""

    def dk(self, part: Part, dx: Tensor) -> Tensor:
        return super().dk(part, dx) / part.scale


class _ExpBeforeMaximum(Attention):
    """Nothing is taken off the scores before exp."""

    def finite(self, largest: Tensor) -> Tensor:
        return torch.zeros_like(largest)


class _NotRescaled(Attention):
    """The accumulator keeps its old scale when a later tile has a larger score."""

    def rescaled(self, accumulator: Tensor, factor: Tensor) -> Tensor:
        del factor
        return accumulator


class _LseInBase2(Attention):
    """log2 of the sum."""

    def closed(
        self, part: Part, out: Tensor, total: Tensor, largest: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, lse = super().closed(part, out, total, largest)
        return rows, lse / math.log(2)


class _LseReadInBase2(Attention):
    """A backward that takes the natural lse it is given for one in base 2."""

    def probabilities(self, scores: Tensor, lse: Tensor) -> Tensor:
        return super().probabilities(scores, lse * math.log(2))


class _OtherDropoutBackward(Attention):
    """The backward draws its mask from the next seed."""

    def keep(self, part: Part) -> Tensor | None:
        if part.backward and "dropout_seed" in part.given:
            part.given["dropout_seed"] += 1
        return super().keep(part)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong kernel, the defect's number, and how it may be found.

    rules    the row must break one of them
    words    the reason must contain one of them
    """

    number: int
    op: Op
    function: Callable[..., object]
    rules: tuple[Rule, ...]
    words: tuple[str, ...]


def claiming(op: Op, number: int) -> list[Case]:
    """Return the `ci` cases of an op whose `why` names the defect."""
    claimed = re.compile(rf"\bbugs? (?:\d+, )*{number}\b")
    return [case for case in op.cases() if case.tier == "ci" and claimed.search(case.why)]


_BOUNDS: tuple[Rule, ...] = ("deterministic bound", "probabilistic bound")
_NAN: tuple[Rule, ...] = ("non-finite values",)
_F, _D, _B, _G = ATTENTION_FORWARD, ATTENTION_DELTA, ATTENTION_BACKWARD, ATTENTION_GRADIENTS

WRONG: dict[str, Wrong] = {
    "offset_wraps": Wrong(3, _F, _OffsetWraps().forward, _NAN, ("got nan",)),
    "offset_wraps_backward": Wrong(5, _B, _OffsetWraps().backward, _NAN, ("got nan",)),
    "dead_rows_divided": Wrong(8, _F, _DeadRowsDivided().forward, _NAN, ("out",)),
    "dead_rows_shared": Wrong(8, _G, _DeadRowsDivided().gradients, _NAN, ("dk", "dq")),
    "maximum_unguarded": Wrong(9, _F, _MaximumUnguarded().forward, _NAN, ("out",)),
    "masked_multiplied": Wrong(10, _F, _MaskedMultiplied().forward, _NAN, ("got nan",)),
    "masked_multiplied_backward": Wrong(10, _B, _MaskedMultiplied().backward, _NAN, ("got nan",)),
    "padded_keys_counted": Wrong(11, _F, _PaddedKeysCounted().forward, _BOUNDS, ("out",)),
    "tail_of_later_heads": Wrong(12, _B, _TailOfLaterHeads().backward, _BOUNDS, ("dv",)),
    "other_corner": Wrong(13, _F, _OtherCorner().forward, _BOUNDS, ("out", "lse")),
    "other_corner_backward": Wrong(13, _B, _OtherCorner().backward, _BOUNDS, ("dq",)),
    "dead_rows_uniform": Wrong(14, _F, _DeadRowsUniform().forward, _BOUNDS, ("out",)),
    "empty_sequences_skipped": Wrong(
        15, _F, _EmptySequencesSkipped().forward, ("unwritten output",), ("out",)
    ),
    "last_key_dropped": Wrong(17, _F, _LastKeyDropped().forward, _BOUNDS, ("out", "lse")),
    "last_key_dropped_backward": Wrong(17, _B, _LastKeyDropped().backward, _BOUNDS, ("dq", "dk")),
    "partial_tile_dropped": Wrong(17, _F, _PartialTileDropped().forward, _BOUNDS, ("out",)),
    "window_unshifted_backward": Wrong(
        18, _B, _WindowUnshiftedBackward().backward, _BOUNDS, ("dq", "dk")
    ),
    "zero_strides_as_one": Wrong(
        19, _F, _ZeroStridesAsOne().forward, (*_BOUNDS, *_NAN), ("out", "lse")
    ),
    "do_packed": Wrong(20, _B, _ReadsPacked("do").backward, (*_BOUNDS, *_NAN), ("dq", "dv")),
    "strides_of_q": Wrong(21, _F, _StridesOfQ().forward, (*_BOUNDS, *_NAN), ("out",)),
    "slice_ignored": Wrong(22, _B, _SliceIgnored().backward, _NAN, ("got nan",)),
    "do_packed_delta": Wrong(23, _D, _ReadsPacked("do").delta, (*_BOUNDS, *_NAN), ("delta",)),
    "transposed_v_packed": Wrong(24, _F, _ReadsPacked("v").forward, _BOUNDS, ("out",)),
    "bias_rows_rounded": Wrong(25, _F, _BiasRowsRounded().forward, (*_BOUNDS, *_NAN), ("out",)),
    "offset_ignored": Wrong(26, _F, _OffsetIgnored().forward, _NAN, ("got nan",)),
    "racing_with_bias": Wrong(30, _F, _RacingWithBias().forward, ("not repeatable",), ("differ",)),
    "delta_in_half": Wrong(41, _D, _DeltaInHalf().delta, _BOUNDS, ("delta",)),
    "delta_in_half_backward": Wrong(41, _B, _DeltaInHalf().backward, _BOUNDS, ("dq", "dk")),
    "delta_forgotten": Wrong(41, _B, _DeltaForgotten().backward, _BOUNDS, ("dq",)),
    "scale_twice": Wrong(42, _B, _ScaleTwice().backward, _BOUNDS, ("dq",)),
    "scale_not_in_dk": Wrong(42, _B, _ScaleNotInDk().backward, _BOUNDS, ("dk",)),
    "exp_before_maximum": Wrong(43, _F, _ExpBeforeMaximum().forward, _NAN, ("out",)),
    "not_rescaled": Wrong(44, _F, _NotRescaled().forward, _BOUNDS, ("out",)),
    "lse_in_base_2": Wrong(45, _F, _LseInBase2().forward, _BOUNDS, ("lse",)),
    "lse_read_in_base_2": Wrong(45, _B, _LseReadInBase2().backward, _BOUNDS, ("dq", "dv")),
    "other_dropout_backward": Wrong(
        47, _B, _OtherDropoutBackward().backward, _BOUNDS, ("dv", "dq")
    ),
    "other_dropout_end_to_end": Wrong(
        47, _G, _OtherDropoutBackward().gradients, _BOUNDS, ("dv", "dq")
    ),
}
