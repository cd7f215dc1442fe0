"""The variants of attention as data: what each serves, its tile, and which one a call gets.

As PyTorch's generator of memory-efficient kernels does it: variants are enumerated from a few
tables, sorted (aligned ones first, then the narrowest head that fits, so that accumulators stay on
chip, then the tile's keys, then those without dropout, without a bias), and the first that fits
runs. `rf` holds the accumulators in registers; `gmem` keeps them in memory, for wider heads.
"bias" stands for everything that is added to, or bends, scale q.k: those scores are kept in base e.

Tiles of sm 90 were chosen on an H200 (docs/measured.md); those of other ranges fit their shared
memory (163 KiB on sm 80, 99 on sm 86 and 89, 64 on sm 75) and are a guess otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

import torch

from kernels.attention.problem import LARGEST_HEAD

Pass = Literal["fwd", "split16", "split64", "dkdv", "dk", "dv", "dq"]
Accumulator = Literal["rf", "gmem"]

_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "tf32": torch.float32,
}
# Each range begins at an sm from which other instructions or more shared memory are to be had.
SM_RANGES = ((75, 79), (80, 89), (90, 99), (100, 121))
WIDEST_RF = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of queries by a block of keys, warps a program, and stages in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


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
        """Aligned first, then narrow heads, few keys, without dropout, without a bias."""
        return (
            0 if self.aligned else 1,
            self.max_d,
            self.tile.keys,
            int(self.dropout),
            int(self.bias),
        )

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


# (kind, dtype, largest head) -> the tile on each range of sm that has it, in SM_RANGES' order.
_Tiles = dict[tuple[Pass, str, int], tuple[Tile | None, ...]]


def _same(small: Tile | None, ampere: Tile, hopper: Tile) -> tuple[Tile | None, ...]:
    return small, ampere, hopper, hopper


_HALF: _Tiles = {
    ("fwd", "f16", 64): _same(Tile(64, 32, 4, 2), Tile(128, 64, 4, 2), Tile(64, 64, 4, 3)),
    ("fwd", "f16", 128): _same(Tile(64, 32, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 8, 3)),
    ("fwd", "f16", 256): _same(Tile(32, 32, 4, 1), Tile(64, 32, 4, 2), Tile(128, 64, 8, 2)),
    ("fwd", "f16", LARGEST_HEAD): _same(Tile(32, 32, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    ("split16", "f16", 64): _same(Tile(16, 32, 4, 1), Tile(16, 64, 4, 3), Tile(16, 64, 4, 3)),
    ("split16", "f16", 128): _same(Tile(16, 32, 4, 1), Tile(16, 64, 4, 2), Tile(16, 128, 8, 2)),
    ("split16", "f16", 256): _same(Tile(16, 32, 4, 1), Tile(16, 32, 4, 2), Tile(16, 32, 4, 3)),
    ("split64", "f16", 64): _same(Tile(64, 32, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3)),
    ("split64", "f16", 128): _same(Tile(64, 32, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3)),
    # sm 120 has shared memory for two stages.
    ("split64", "f16", 256): (
        Tile(32, 32, 4, 1),
        Tile(64, 32, 4, 2),
        Tile(64, 32, 4, 3),
        Tile(64, 32, 4, 2),
    ),
    ("dkdv", "f16", 64): _same(Tile(32, 32, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 4)),
    ("dkdv", "f16", 128): _same(Tile(32, 32, 4, 1), Tile(32, 64, 4, 2), Tile(64, 128, 8, 3)),
    ("dk", "f16", 256): _same(Tile(16, 32, 4, 1), Tile(32, 32, 4, 1), Tile(64, 128, 8, 1)),
    ("dv", "f16", 256): _same(Tile(16, 32, 4, 1), Tile(32, 32, 4, 1), Tile(64, 128, 8, 2)),
    ("dkdv", "f16", LARGEST_HEAD): _same(
        Tile(32, 32, 4, 1), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)
    ),
    ("dq", "f16", 64): _same(Tile(64, 32, 4, 2), Tile(64, 64, 4, 2), Tile(128, 64, 4, 3)),
    ("dq", "f16", 128): _same(Tile(32, 32, 4, 1), Tile(64, 32, 4, 2), Tile(128, 64, 8, 3)),
    ("dq", "f16", 256): _same(Tile(32, 16, 4, 1), Tile(32, 32, 4, 1), Tile(128, 64, 8, 1)),
    ("dq", "f16", LARGEST_HEAD): _same(Tile(32, 32, 4, 1), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
}
# Whole fp32 operands go through FMA units: a product is unrolled over its threads, which tiles of
# more than about 8 elements a thread spill by, and compile for many seconds.
_WHOLE: tuple[tuple[Pass, int, Tile], ...] = (
    ("split16", 64, Tile(16, 32, 4, 1)),
    ("split16", 128, Tile(16, 32, 4, 1)),
    ("split16", 256, Tile(16, 16, 4, 1)),
    ("split64", 64, Tile(64, 32, 8, 1)),
    ("split64", 128, Tile(64, 32, 8, 1)),
    ("split64", 256, Tile(32, 16, 8, 1)),
    ("fwd", 64, Tile(64, 32, 8, 1)),
    ("fwd", 128, Tile(32, 32, 8, 1)),
    ("fwd", 256, Tile(32, 16, 8, 1)),
    ("fwd", LARGEST_HEAD, Tile(32, 32, 8, 1)),
    ("dkdv", 64, Tile(32, 64, 8, 1)),
    ("dkdv", 128, Tile(32, 32, 8, 1)),
    ("dkdv", 256, Tile(16, 32, 8, 1)),
    ("dkdv", LARGEST_HEAD, Tile(32, 32, 8, 1)),
    ("dq", 64, Tile(64, 32, 8, 1)),
    ("dq", 128, Tile(32, 32, 8, 1)),
    ("dq", 256, Tile(32, 16, 8, 1)),
    ("dq", LARGEST_HEAD, Tile(32, 32, 8, 1)),
)
_TF32: tuple[tuple[Pass, int, Tile, Tile], ...] = (
    ("fwd", 64, Tile(64, 32, 4, 2), Tile(64, 64, 4, 2)),
    ("fwd", 128, Tile(64, 32, 4, 1), Tile(64, 32, 4, 2)),
    ("fwd", 256, Tile(32, 16, 4, 1), Tile(32, 32, 4, 1)),
    ("fwd", LARGEST_HEAD, Tile(64, 32, 4, 1), Tile(64, 32, 4, 2)),
    ("dkdv", 64, Tile(32, 32, 4, 1), Tile(32, 64, 4, 2)),
    ("dkdv", 128, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    ("dkdv", 256, Tile(16, 16, 4, 1), Tile(16, 32, 4, 1)),
    ("dkdv", LARGEST_HEAD, Tile(32, 32, 4, 1), Tile(32, 32, 4, 2)),
    ("dq", 64, Tile(32, 32, 4, 1), Tile(64, 32, 4, 2)),
    ("dq", 128, Tile(32, 32, 4, 1), Tile(32, 32, 4, 1)),
    ("dq", 256, Tile(16, 16, 4, 1), Tile(32, 16, 4, 1)),
    ("dq", LARGEST_HEAD, Tile(32, 32, 4, 1), Tile(32, 32, 4, 2)),
)


def _tables() -> _Tiles:
    # bf16 came with sm 80, and uses the tiles of fp16; tf32 came with it too.
    tables = dict(_HALF)
    for (kind, _, max_d), tiles in _HALF.items():
        tables[kind, "bf16", max_d] = (None, *tiles[1:])
    for kind, max_d, tile in _WHOLE:
        tables[kind, "f32", max_d] = (tile,) * len(SM_RANGES)
    for kind, max_d, ampere, hopper in _TF32:
        tables[kind, "tf32", max_d] = _same(None, ampere, hopper)
    return tables


@cache
def all_variants(kind: Pass) -> tuple[Variant, ...]:
    """Every variant of a pass, the one to be tried first at the head."""
    made = []
    for (each, dtype, max_d), tiles in _tables().items():
        if each != kind:
            continue
        for sm, tile in zip(SM_RANGES, tiles, strict=True):
            if tile is None:
                continue
            made += [
                Variant(kind, dtype, aligned, sm, max_d, tile, bias, dropout)
                for aligned, bias, dropout in product((True, False), (False, True), (False, True))
            ]
    return tuple(sorted(made, key=lambda each: (each.dtype, each.sm, each.sort_index)))


@cache
def pick(kind: Pass, need: Need) -> Variant:
    """The first variant that fits. Raises NoVariantError with the reasons where none does."""
    reasons: dict[str, None] = {}
    for variant in all_variants(kind):
        reason = variant.reject(need)
        if reason is None:
            return variant
        if need.dtype == variant.dtype:
            reasons[reason] = None
    raise NoVariantError(f"no variant of {kind} fits {need}: {'; '.join(reasons)}")


def key_passes(need: Need) -> tuple[Pass, ...]:
    """What makes dk and dv: one pass, or one each where a program can't hold both."""
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
