"""The variants of attention as data: what each serves, its tile, and which one a call gets.

As PyTorch's generator of memory-efficient kernels does it: variants are enumerated from a few
tables, sorted (aligned ones first, then the narrowest head that fits, so that accumulators stay on
chip, then those without dropout, without a bias), and the first that fits runs. `rf` holds the
accumulators in registers; `gmem` keeps them in memory, for wider heads.
"bias" stands for everything that is added to, or bends, scale q.k: those scores are kept in base e.

Tiles of sm 90 were chosen by time, on an H200 (docs/measured.md); those of other generations are a
model's choice (tile_model.py), made once for each when variants are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Literal

import torch

from kernel_workbench.kernels.attention.problem import LARGEST_HEAD
from kernel_workbench.kernels.attention.tile_model import (
    GENERATIONS,
    WIDEST_RF,
    Pass,
    Tile,
    fits,
    generation_of,
    ranked,
)
from kernel_workbench.kernels.configurations import configuration

Accumulator = Literal["rf", "gmem"]

_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "tf32": torch.float32,
}
_PLAIN = (True, False, False)  # aligned, without a bias, without dropout
_SINCE = {"bf16": 80, "tf32": 80}  # the capability that a dtype's products came with


@dataclass(frozen=True, slots=True)
class Need:
    """What one call asks of a variant."""

    dtype: str
    sm: int
    aligned: bool
    d: int  # the larger of d and d_v
    bias: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """One compiled specialisation; sort_index orders them, the lowest that fits is taken."""

    kind: Pass
    dtype: str
    aligned: bool
    sm: tuple[int, int]
    max_d: int
    tile: Tile
    bias: bool
    dropout: bool

    @property
    def accumulator(self) -> Accumulator:
        """Where the accumulators are."""
        return "rf" if self.max_d <= WIDEST_RF else "gmem"

    @property
    def precision(self) -> str:
        """What `tl.dot` is asked for."""
        return "tf32" if self.dtype == "tf32" else "ieee"

    @property
    def sort_index(self) -> tuple[int, ...]:
        """Aligned first, then narrow heads, without dropout, without a bias."""
        return (0 if self.aligned else 1, self.max_d, int(self.dropout), int(self.bias))

    @property
    def name(self) -> str:
        """As in `fwd_bf16_aligned_128x64_d64_rf_sm90`."""
        parts = [
            self.kind,
            self.dtype,
            "aligned" if self.aligned else "notaligned",
            f"{self.tile.queries}x{self.tile.keys}",
            f"d{self.max_d}",
            self.accumulator,
        ]
        parts += ["dropout"] * self.dropout + ["bias"] * self.bias
        return "_".join([*parts, f"sm{self.sm[0]}"])

    @property
    def is_plain(self) -> bool:
        """Whether it loads 16 bytes at a time, and scores are scale q.k alone."""
        return (self.aligned, self.bias, self.dropout) == _PLAIN

    @property
    def launched(self) -> tuple[object, ...]:
        """What a launch takes of it: two variants of which this is one run the same code."""
        return self.tile, self.aligned, self.accumulator, self.bias, self.dropout

    def reject(self, need: Need) -> str | None:
        """Why this variant doesn't fit; None where it does."""
        if need.dtype != self.dtype:
            return f"serves {self.dtype}, got {need.dtype}"
        if not self.sm[0] <= need.sm <= self.sm[1]:
            return f"serves sm {self.sm[0]} to {self.sm[1]}, got sm {need.sm}"
        if self.aligned and not need.aligned:
            return "needs 16-byte pointers, strides and rows"
        if need.d > self.max_d:
            return f"serves heads of at most {self.max_d}, got {need.d}"
        if need.bias and not self.bias:
            return "serves scores of scale q.k alone"
        if need.dropout and not self.dropout:
            return "serves no dropout"
        return None


class NoVariantError(LookupError):
    """No variant fits a call; the message gives the reasons."""


# The tiles of sm 90, by pass and largest head: the fastest of those that were timed on an H200
# (docs/measured.md). bf16 takes those of fp16.
_HALF: dict[tuple[Pass, int], Tile] = {
    ("fwd", 64): Tile(64, 64, 4, 3),
    ("fwd", 128): Tile(128, 64, 8, 3),
    ("fwd", 256): Tile(128, 64, 8, 2),
    ("fwd", LARGEST_HEAD): Tile(64, 64, 4, 2),
    ("split16", 64): Tile(16, 64, 4, 3),
    ("split16", 128): Tile(16, 128, 8, 2),
    ("split16", 256): Tile(16, 32, 4, 3),
    ("split64", 64): Tile(64, 64, 4, 3),
    ("split64", 128): Tile(64, 64, 4, 3),
    ("split64", 256): Tile(64, 32, 4, 3),
    ("dkdv", 64): Tile(64, 64, 4, 4),
    ("dkdv", 128): Tile(64, 128, 8, 3),
    ("dk", 256): Tile(64, 128, 8, 1),
    ("dv", 256): Tile(64, 128, 8, 2),
    ("dkdv", LARGEST_HEAD): Tile(64, 64, 4, 2),
    ("dq", 64): Tile(128, 64, 4, 3),
    ("dq", 128): Tile(128, 64, 8, 3),
    ("dq", 256): Tile(128, 64, 8, 1),
    ("dq", LARGEST_HEAD): Tile(64, 64, 4, 2),
}
# Whole fp32 operands go through FMA units: a product is unrolled over its threads, which tiles of
# more than about 8 elements a thread spill by, and compile for many seconds.
_WHOLE: dict[tuple[Pass, int], Tile] = {
    ("split16", 64): Tile(16, 32, 4, 1),
    ("split16", 128): Tile(16, 32, 4, 1),
    ("split16", 256): Tile(16, 16, 4, 1),
    ("split64", 64): Tile(64, 32, 8, 1),
    ("split64", 128): Tile(64, 32, 8, 1),
    ("split64", 256): Tile(32, 16, 8, 1),
    ("fwd", 64): Tile(64, 32, 8, 1),
    ("fwd", 128): Tile(32, 32, 8, 1),
    ("fwd", 256): Tile(32, 16, 8, 1),
    ("fwd", LARGEST_HEAD): Tile(32, 32, 8, 1),
    ("dkdv", 64): Tile(32, 64, 8, 1),
    ("dkdv", 128): Tile(32, 32, 8, 1),
    ("dkdv", 256): Tile(16, 32, 8, 1),
    ("dkdv", LARGEST_HEAD): Tile(32, 32, 8, 1),
    ("dq", 64): Tile(64, 32, 8, 1),
    ("dq", 128): Tile(32, 32, 8, 1),
    ("dq", 256): Tile(32, 16, 8, 1),
    ("dq", LARGEST_HEAD): Tile(32, 32, 8, 1),
}
_TF32: dict[tuple[Pass, int], Tile] = {
    ("fwd", 64): Tile(64, 64, 4, 2),
    ("fwd", 128): Tile(64, 32, 4, 2),
    ("fwd", 256): Tile(32, 32, 4, 1),
    ("fwd", LARGEST_HEAD): Tile(64, 32, 4, 2),
    ("dkdv", 64): Tile(32, 64, 4, 2),
    ("dkdv", 128): Tile(32, 32, 4, 1),
    ("dkdv", 256): Tile(16, 32, 4, 1),
    ("dkdv", LARGEST_HEAD): Tile(32, 32, 4, 2),
    ("dq", 64): Tile(64, 32, 4, 2),
    ("dq", 128): Tile(32, 32, 4, 1),
    ("dq", 256): Tile(32, 16, 4, 1),
    ("dq", LARGEST_HEAD): Tile(32, 32, 4, 2),
}
MEASURED = {"f16": _HALF, "bf16": _HALF, "f32": _WHOLE, "tf32": _TF32}
_MEASURED_SM = 90


def _variants(kind: Pass) -> Iterator[Variant]:
    """Of a pass, on each generation, all that there are; each with its tile.

    Where a generation holds no tile of a head, the next wider one serves it.
    """
    features = tuple(product((True, False), (False, True), (False, True)))
    heads = [
        (dtype, max_d, tile)
        for dtype, measured in MEASURED.items()
        for (each, max_d), tile in measured.items()
        if each == kind
    ]
    for (dtype, max_d, measured), generation in product(heads, GENERATIONS):
        if generation.sm[0] < _SINCE.get(dtype, 0):
            continue
        for aligned, bias, dropout in features:
            plain = (aligned, bias, dropout) == _PLAIN
            tiles = ranked(kind, dtype, max_d, generation, plain=plain)[:1]
            if generation.sm[0] == _MEASURED_SM:
                tiles = (measured,)
            for tile in tiles:
                yield Variant(kind, dtype, aligned, generation.sm, max_d, tile, bias, dropout)


@cache
def all_variants(kind: Pass) -> tuple[Variant, ...]:
    """Every variant of a pass, the one to be tried first at the head."""
    return tuple(sorted(_variants(kind), key=lambda each: (each.dtype, each.sm, each.sort_index)))


def pick(kind: Pass, need: Need) -> Variant:
    """The variant that a call takes: the first that fits, or the one that it is held to.

    Raises NoVariantError with the reasons where none does.
    """
    held = configuration()
    if held is None:
        return _first(kind, need)
    named = held.split()
    known = [each for each in serving(kind, need) if each.name in named]
    if not known:
        raise NoVariantError(f"no variant of {kind} for {need} is among {held}")
    return known[0]


@cache
def _first(kind: Pass, need: Need) -> Variant:
    reasons: dict[str, None] = {}
    for variant in all_variants(kind):
        reason = variant.reject(need)
        if reason is None:
            return variant
        if need.dtype == variant.dtype:
            reasons[reason] = None
    raise NoVariantError(f"no variant of {kind} fits {need}: {'; '.join(reasons)}")


@cache
def serving(kind: Pass, need: Need) -> tuple[Variant, ...]:
    """Every variant that a call could take, the one that it takes by itself first.

    Those of its sm that don't refuse it; and of other generations those that it would take there,
    where its sm can hold their tiles. Of several that launch the same the first.
    """
    here = generation_of(need.sm)
    found = [each for each in all_variants(kind) if each.reject(need) is None]
    for each in GENERATIONS:
        there = replace(need, sm=each.sm[0])
        if each is not here and each.sm[0] >= _SINCE.get(need.dtype, 0):
            found += [
                other
                for other in all_variants(kind)
                if other.reject(there) is None
                and (other.aligned, other.bias, other.dropout)
                == (need.aligned, need.bias, need.dropout)
                and fits(kind, need.dtype, other.max_d, other.tile, here, plain=other.is_plain)
            ]
    distinct: dict[tuple[object, ...], Variant] = {}
    for variant in found:
        distinct.setdefault(variant.launched, variant)
    return tuple(distinct.values())


def key_passes(need: Need) -> tuple[Pass, ...]:
    """What makes dk and dv: one pass, or one each where a program can't hold both."""
    held = configuration()
    if held is not None:
        return ("dkdv",) if any(each.startswith("dkdv_") for each in held.split()) else ("dk", "dv")
    split = any(
        each.reject(need) is None and need.d > each.max_d // 2 for each in all_variants("dk")
    )
    return ("dk", "dv") if split else ("dkdv",)


def names(kind: Pass, dtypes: tuple[str, ...], sm: int) -> tuple[str, ...]:
    """The names of the variants of a pass for these dtypes that an sm has."""
    return tuple(
        each.name
        for each in all_variants(kind)
        if each.dtype in dtypes and each.sm[0] <= sm <= each.sm[1]
    )


def dtype_key(dtype: torch.dtype, *, tf32: bool) -> str:
    """bf16 for bfloat16, and so on; tf32 for float32 whose products take tf32 operands."""
    if tf32 and dtype == torch.float32:
        return "tf32"
    return next(key for key, value in _DTYPES.items() if value == dtype)
