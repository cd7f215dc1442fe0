"""The variants of attention as data: their domains, their tiles, and the variant of a call.

As in PyTorch's generator of memory-efficient kernels, variants are enumerated from a few tables and
sorted (aligned ones first, then the narrowest head that fits, so that accumulators stay on chip,
then those without dropout, without a bias), and the first that fits runs. `rf` keeps the
accumulators in registers; `gmem` keeps them in memory, for wider heads. "bias" stands for every
option that adds to scale q.k or bends it: those scores are kept in base e.

Tiles of sm 90 were chosen by time, on an H200 (docs/measured.md); a model chooses those of other
generations (tile_model.py), once for each when variants are first requested.
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
    KernelTile,
    Pass,
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
    """A call's requirements on a variant."""

    dtype: str
    sm: int
    aligned: bool
    d: int  # the larger of d and d_v
    bias: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """One compiled specialisation; sort_index orders them, and the lowest that fits is taken."""

    kind: Pass
    dtype: str
    aligned: bool
    sm: tuple[int, int]
    max_d: int
    tile: KernelTile
    bias: bool
    dropout: bool

    @property
    def accumulator(self) -> Accumulator:
        """The place of the accumulators."""
        return "rf" if self.max_d <= WIDEST_RF else "gmem"

    @property
    def precision(self) -> str:
        """The input precision of `tl.dot`."""
        return "tf32" if self.dtype == "tf32" else "ieee"

    @property
    def sort_index(self) -> tuple[int, ...]:
        """Aligned first, then narrow heads, without dropout, without a bias."""
        return (0 if self.aligned else 1, self.max_d, int(self.dropout), int(self.bias))

    @property
    def name(self) -> str:
        """The name, for example `fwd_bf16_aligned_128x64_d64_rf_sm90`."""
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
        """True if it loads 16 bytes at a time, and scores are scale q.k alone."""
        return (self.aligned, self.bias, self.dropout) == _PLAIN

    @property
    def launched(self) -> tuple[object, ...]:
        """The properties that a launch depends on: variants with equal ones run the same code."""
        return self.tile, self.aligned, self.accumulator, self.bias, self.dropout

    def reject(self, need: Need) -> str | None:
        """Return a sentence if this variant doesn't fit, else None."""
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
_HALF: dict[tuple[Pass, int], KernelTile] = {
    ("fwd", 64): KernelTile(64, 64, 4, 3),
    ("fwd", 128): KernelTile(128, 64, 8, 3),
    ("fwd", 256): KernelTile(128, 64, 8, 2),
    ("fwd", LARGEST_HEAD): KernelTile(64, 64, 4, 2),
    ("split16", 64): KernelTile(16, 64, 4, 3),
    ("split16", 128): KernelTile(16, 128, 8, 2),
    ("split16", 256): KernelTile(16, 32, 4, 3),
    ("split64", 64): KernelTile(64, 64, 4, 3),
    ("split64", 128): KernelTile(64, 64, 4, 3),
    ("split64", 256): KernelTile(64, 32, 4, 3),
    ("dkdv", 64): KernelTile(64, 64, 4, 4),
    ("dkdv", 128): KernelTile(64, 128, 8, 3),
    ("dk", 256): KernelTile(64, 128, 8, 1),
    ("dv", 256): KernelTile(64, 128, 8, 2),
    ("dkdv", LARGEST_HEAD): KernelTile(64, 64, 4, 2),
    ("dq", 64): KernelTile(128, 64, 4, 3),
    ("dq", 128): KernelTile(128, 64, 8, 3),
    ("dq", 256): KernelTile(128, 64, 8, 1),
    ("dq", LARGEST_HEAD): KernelTile(64, 64, 4, 2),
}
# Whole fp32 operands go through FMA units: a product is unrolled over its threads, which tiles of
# more than about 8 elements a thread spill by, and compile for many seconds.
_WHOLE: dict[tuple[Pass, int], KernelTile] = {
    ("split16", 64): KernelTile(16, 32, 4, 1),
    ("split16", 128): KernelTile(16, 32, 4, 1),
    ("split16", 256): KernelTile(16, 16, 4, 1),
    ("split64", 64): KernelTile(64, 32, 8, 1),
    ("split64", 128): KernelTile(64, 32, 8, 1),
    ("split64", 256): KernelTile(32, 16, 8, 1),
    ("fwd", 64): KernelTile(64, 32, 8, 1),
    ("fwd", 128): KernelTile(32, 32, 8, 1),
    ("fwd", 256): KernelTile(32, 16, 8, 1),
    ("fwd", LARGEST_HEAD): KernelTile(32, 32, 8, 1),
    ("dkdv", 64): KernelTile(32, 64, 8, 1),
    ("dkdv", 128): KernelTile(32, 32, 8, 1),
    ("dkdv", 256): KernelTile(16, 32, 8, 1),
    ("dkdv", LARGEST_HEAD): KernelTile(32, 32, 8, 1),
    ("dq", 64): KernelTile(64, 32, 8, 1),
    ("dq", 128): KernelTile(32, 32, 8, 1),
    ("dq", 256): KernelTile(32, 16, 8, 1),
    ("dq", LARGEST_HEAD): KernelTile(32, 32, 8, 1),
}
_TF32: dict[tuple[Pass, int], KernelTile] = {
    ("fwd", 64): KernelTile(64, 64, 4, 2),
    ("fwd", 128): KernelTile(64, 32, 4, 2),
    ("fwd", 256): KernelTile(32, 32, 4, 1),
    ("fwd", LARGEST_HEAD): KernelTile(64, 32, 4, 2),
    ("dkdv", 64): KernelTile(32, 64, 4, 2),
    ("dkdv", 128): KernelTile(32, 32, 4, 1),
    ("dkdv", 256): KernelTile(16, 32, 4, 1),
    ("dkdv", LARGEST_HEAD): KernelTile(32, 32, 4, 2),
    ("dq", 64): KernelTile(64, 32, 4, 2),
    ("dq", 128): KernelTile(32, 32, 4, 1),
    ("dq", 256): KernelTile(32, 16, 4, 1),
    ("dq", LARGEST_HEAD): KernelTile(32, 32, 4, 2),
}
MEASURED = {"f16": _HALF, "bf16": _HALF, "f32": _WHOLE, "tf32": _TF32}
_MEASURED_SM = 90


def _variants(kind: Pass) -> Iterator[Variant]:
    """Yield all variants of a pass, on each generation, with their tiles.

    If no tile of a head fits on a generation, the next wider one serves it.
    """
    features = tuple(product((True, False), (False, True), (False, True)))
    heads = [
        (dtype, max_d, tile)
        for dtype, measured in MEASURED.items()
        for (measured_kind, max_d), tile in measured.items()
        if measured_kind == kind
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
    """Return every variant of a pass, in the order of their trial."""
    return tuple(
        sorted(_variants(kind), key=lambda variant: (variant.dtype, variant.sm, variant.sort_index))
    )


def pick(kind: Pass, need: Need) -> Variant:
    """Return the variant that a call takes: the first that fits, or the requested one.

    Raises NoVariantError with the reasons if none fits.
    """
    requested = configuration()
    if requested is None:
        return _first(kind, need)
    named = requested.split()
    matching = [variant for variant in serving(kind, need) if variant.name in named]
    if not matching:
        raise NoVariantError(f"no variant of {kind} for {need} is among {requested}")
    return matching[0]


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
    """Return every variant that a call could take, its own choice first.

    These are the variants of its sm that don't refuse it, and the choices on other generations
    whose tiles fit on its sm. Variants with the same launch occur once.
    """
    here = generation_of(need.sm)
    variants = [variant for variant in all_variants(kind) if variant.reject(need) is None]
    for generation in GENERATIONS:
        there = replace(need, sm=generation.sm[0])
        if generation is not here and generation.sm[0] >= _SINCE.get(need.dtype, 0):
            variants += [
                other
                for other in all_variants(kind)
                if other.reject(there) is None
                and (other.aligned, other.bias, other.dropout)
                == (need.aligned, need.bias, need.dropout)
                and fits(kind, need.dtype, other.max_d, other.tile, here, plain=other.is_plain)
            ]
    distinct: dict[tuple[object, ...], Variant] = {}
    for variant in variants:
        distinct.setdefault(variant.launched, variant)
    return tuple(distinct.values())


def key_passes(need: Need) -> tuple[Pass, ...]:
    """Return the passes for dk and dv: one, or one each if a program can't hold both."""
    requested = configuration()
    if requested is not None:
        return (
            ("dkdv",)
            if any(name.startswith("dkdv_") for name in requested.split())
            else ("dk", "dv")
        )
    split = any(
        variant.reject(need) is None and need.d > variant.max_d // 2
        for variant in all_variants("dk")
    )
    return ("dk", "dv") if split else ("dkdv",)


def names(kind: Pass, dtypes: tuple[str, ...], sm: int) -> tuple[str, ...]:
    """Return the names of an sm's variants of a pass for these dtypes."""
    return tuple(
        variant.name
        for variant in all_variants(kind)
        if variant.dtype in dtypes and variant.sm[0] <= sm <= variant.sm[1]
    )


def dtype_key(dtype: torch.dtype, *, tf32: bool) -> str:
    """Return the key of a dtype, for example bf16; tf32 for float32 whose products take tf32."""
    if tf32 and dtype == torch.float32:
        return "tf32"
    return next(key for key, value in _DTYPES.items() if value == dtype)
