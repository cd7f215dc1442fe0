"""An output beside an idealised emulation of its kernel, block by block: rule 3 of the verdict.

With z = error / bound, and the emulation's the largest of those in several orders of addition
(oracles/orders.py) where more than one is asked, a block fails where

    max z_kernel > c (2 max z_emulation + 1/8)    or    rms z_kernel > 3/2 rms z_emulation + 1/16

c is 1 in outputs of up to 16 blocks. The largest of M errors grows as sqrt(2 log M), and so does c
with an output's M elements. Factors and floors are measured ones: of 272,000 blocks of flash, cuDNN
and the memory-efficient kernel on an H200 plain ratios fail 2 %, and 14 % in the worst column; with
these floors one fails, of a kernel whose declared roundings the emulation then lacked.
docs/derivations/verdict.md derives what a sound kernel's ratio may be, what c is, and why the first
floor is 1/2 where nearly all of the emulation's elements are exact.

A block holds about 1024 elements, 256 at the least, and never one row alone: what the elements of a
row have in common (a softmax's sum, D, a mean) is one draw, whose error says nothing of the next.
So a block is 16 rows of the output's last axis where there are as many, and 64 columns; an output
of a single row isn't compared. Each element of an output with one axis is a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1024
_FEWEST = 256
_ROWS = 16  # that a block has at least, where there are as many
_FACTOR_MAX, _FLOOR_MAX = 2.0, 1 / 8
_FLOOR_RARE = 1 / 2  # of a block where the emulation rounds fewer elements than
_RARE = 16
_FACTOR_RMS, _FLOOR_RMS = 1.5, 1 / 16
_MANY = 16 * _BLOCK  # elements, from which on the largest error of a whole output is larger


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows of an output as a matrix, cut into blocks that differ by a row and a column at most.

    growth: the factor on the allowed largest error of a block; it grows with the output's elements.
    """

    rows: int
    columns: int
    down: int
    across: int
    growth: float

    @classmethod
    def of(cls, rows: int, columns: int, elements: int) -> Tiles | None:
        """Cut a chunk of an output into blocks.

        Args:
            rows: rows of the chunk.
            columns: columns of the chunk and of the output.
            elements: elements of the whole output.

        Returns:
            The blocks, or None if the chunk has one row alone or fewer than 256 elements.

        >>> tiles = Tiles.of(32, 128, 4096)
        >>> tiles.down, tiles.across
        (2, 2)
        >>> Tiles.of(1, 4096, 4096) is None
        True
        """
        if rows < 2 or rows * columns < _FEWEST:
            return None
        wide = min(columns, -(-_BLOCK // min(rows, _ROWS)))
        high = min(rows, -(-_BLOCK // wide))
        growth = math.sqrt(math.log(max(elements, _MANY)) / math.log(_MANY))
        return cls(rows, columns, rows // high, columns // wide, growth)

    def numbers(self, device: torch.device) -> Tensor:
        """Return the number of each element's block, of shape [rows * columns]."""
        row = torch.arange(self.rows, device=device) * self.down // self.rows
        column = torch.arange(self.columns, device=device) * self.across // self.columns
        return (row[:, None] * self.across + column).view(-1)

    def rows_of(self, block: int) -> range:
        """Return the rows of a block."""
        return _share(block // self.across, self.down, self.rows)

    def columns_of(self, block: int) -> range:
        """Return the columns of a block.

        >>> Tiles.of(32, 128, 4096).columns_of(1)
        range(64, 128)
        """
        return _share(block % self.across, self.across, self.columns)


def _share(part: int, parts: int, whole: int) -> range:
    """Return the numbers i < whole with i * parts // whole == part.

    >>> [_share(part, 3, 10) for part in range(3)]
    [range(0, 4), range(4, 7), range(7, 10)]
    """
    return range(-(-part * whole // parts), -(-(part + 1) * whole // parts))


@dataclass(frozen=True, slots=True)
class Block:
    """The block that compares worst: its place, its measures, and its worst element.

    ratio      the larger of two measures, each over its allowed value: at most 1 passes
    by_max     the measure of the largest error gave the ratio; else the root mean square did
    floor_max  the constant part of the allowed largest error
    growth     the factor on the allowed largest error, which follows the output's size
    max_z, rms_z    the two measures, of the kernel and of the emulation
    """

    ratio: float
    by_max: bool
    floor_max: float
    growth: float
    max_z: tuple[float, float]
    rms_z: tuple[float, float]
    elements: int
    rows: range
    columns: range
    element: int
    got: float
    emulated: float
    expected: float
    scale: float

    @property
    def excess(self) -> str:
        """Return a clause that says by how much the block fails."""
        if self.by_max:
            kind, (own, other) = "largest", self.max_z
            factor, floor, growth = _FACTOR_MAX, self.floor_max, self.growth
        else:
            kind, (own, other) = "root mean square", self.rms_z
            factor, floor, growth = _FACTOR_RMS, _FLOOR_RMS, 1.0
        allowed = f"{factor:g} x {other:.3g} + {floor:g}"
        allowed = allowed if growth == 1 else f"{growth:.3g} x ({allowed})"
        return (
            f"the {kind} error / bound of {self.elements:,} elements is {own:.3g}, where an "
            f"emulation of the kernel has {other:.3g} and {allowed} = "
            f"{growth * (factor * other + floor):.3g} is allowed"
        )


def compare(
    tiles: Tiles,
    comparable: Tensor,
    got: Tensor,
    emulated: Sequence[Tensor],
    expected: Tensor,
    scale: Tensor,
) -> Tensor:
    """Measure the worst block of a flattened chunk, on its device; `block_of` reads the numbers.

    Args:
        tiles: the chunk's blocks.
        comparable: elements that count, bool [rows * columns].
        got: the kernel's values, float64 [rows * columns], as are the other values.
        emulated: the emulation's values in one order of addition or several, the plain one first.
        expected: the truth.
        scale: the bound that errors are divided by.

    Returns:
        15 numbers in float64, in the order in which `block_of` reads them.
    """
    at, blocks = tiles.numbers(got.device), tiles.down * tiles.across
    counted = comparable & (scale > 0)  # where nothing is added up both are exact

    def total(values: Tensor) -> Tensor:
        return got.new_zeros(blocks).scatter_add_(0, at, values)

    count = total(counted.double())

    def measure(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.where(counted, (values - expected).abs() / scale, 0.0)
        largest = got.new_zeros(blocks).scatter_reduce_(0, at, z, "amax")
        return z, largest, (total(z.square()) / count.clamp(min=1)).sqrt()

    z, own_max, own_rms = measure(got)
    other_max = other_rms = rounded = got.new_zeros(blocks)
    for values in emulated:
        other_z, largest, root = measure(values)
        other_max, other_rms = other_max.maximum(largest), other_rms.maximum(root)
        rounded = rounded.maximum(total((other_z > 0).double()))
    floor_max = torch.where(rounded < _RARE, _FLOOR_RARE, _FLOOR_MAX).double()
    by_max = own_max / (tiles.growth * (_FACTOR_MAX * other_max + floor_max))
    by_rms = own_rms / (_FACTOR_RMS * other_rms + _FLOOR_RMS)
    ratio = by_max.maximum(by_rms).masked_fill(count < _FEWEST, 0.0)
    worst = ratio.argmax()
    element = torch.where(at == worst, z, -1.0).argmax()
    by_block = (ratio, by_max, by_rms, floor_max, own_max, other_max, own_rms, other_rms, count)
    by_element = (got, emulated[0], expected, scale)
    places = torch.stack([worst, element]).double()
    figures = [*(values[worst] for values in by_block), *(values[element] for values in by_element)]
    return torch.cat([places, torch.stack(figures)])


def block_of(tiles: Tiles, numbers: list[float], first_row: int) -> Block:
    """Read the numbers of `compare`.

    Args:
        tiles: the chunk's blocks.
        numbers: the 15 numbers.
        first_row: the row of the output at which the chunk begins.

    Returns:
        The worst block of the chunk, with its place in the output.
    """
    at, element, ratio, by_max, by_rms, floor_max, *sides, count = numbers[:-4]
    own_max, other_max, own_rms, other_rms = sides
    got, emulated, expected, scale = numbers[-4:]
    rows = tiles.rows_of(int(at))
    return Block(
        ratio=ratio,
        by_max=by_max >= by_rms,
        floor_max=floor_max,
        growth=tiles.growth,
        max_z=(own_max, other_max),
        rms_z=(own_rms, other_rms),
        elements=int(count),
        rows=range(first_row + rows.start, first_row + rows.stop),
        columns=tiles.columns_of(int(at)),
        element=first_row * tiles.columns + int(element),
        got=got,
        emulated=emulated,
        expected=expected,
        scale=scale,
    )
