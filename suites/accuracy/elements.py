"""Measure an output element by element, on its device, a chunk at a time.

An output is a matrix here: its last axis is a row's, and each element of an output with one axis is
a row. Chunks are whole rows, and the figures of a chunk come to the host in one transfer: on a GPU
each transfer waits for everything that was launched before it.

An error is the distance to the truth. An fp8 output is a code, and its error is the distance from
the truth to the numbers that round to the code, saturating: a neighbour of the right code has the
distance of the truth to the boundary between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Bound
from kernel_workbench.reports.record import ULP_EDGES
from kernel_workbench.suites.accuracy.blocks import Block, Tiles, block_of, compare
from kernel_workbench.suites.sandbox.call import SENTINEL, stored

_CHUNK_ELEMENTS = 2**24  # 128 MiB for each float64 temporary, of which there are about ten
_KINDS = 5
_SUMS = 5
_NO_COUNTS = (0,) * (len(ULP_EDGES) + 1)


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an output: how bad it is (0: not at all), its place, and its values.

    again: its value after the second call. limit, likely: its two bounds. second: the second call's
    value is the bad one.
    """

    badness: float
    place: tuple[int, ...]
    got: float
    again: float
    expected: float
    limit: float
    likely: float
    second: bool

    @property
    def exists(self) -> bool:
        """Return True if any element is bad at all."""
        return self.badness > 0

    @property
    def text(self) -> str:
        """Return the element's place, its value and the expected value, in words."""
        call = " at the second call" if self.second else ""
        return f"{list(self.place)}: got {self.got:.9g}{call}, expected {self.expected:.9g}"


_NONE = Element(0.0, (), 0.0, 0.0, 0.0, 0.0, 0.0, second=False)


@dataclass(frozen=True, slots=True)
class Output:
    """One output of two calls, with its truth and bounds; all of one shape, on one device.

    emulated: an idealised kernel's output, in one order of addition or several. Without any the
    output isn't compared with an emulation.
    """

    name: str
    first: Tensor
    second: Tensor
    truth: Tensor
    bound: Bound
    emulated: tuple[Tensor, ...] = ()

    @property
    def matrix(self) -> tuple[int, int]:
        """Return the number of rows and of columns."""
        shape = self.first.shape
        if not shape:  # a number
            return 1, 1
        return (shape[0], 1) if len(shape) == 1 else (math.prod(shape[:-1]), shape[-1])

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the output in chunks of nearly equal numbers of rows."""
        rows, columns = self.matrix
        if not rows * columns:
            return
        limit, likely = self.bound.deterministic, self.bound.probabilistic
        got, twice, exact, limit, likely = (
            (value.float() if value.itemsize == 1 else value).reshape(-1)  # torch can't compare fp8
            for value in (
                self.first,
                self.second,
                self.truth,
                limit,
                limit if likely is None else likely,
            )
        )
        silent, or_nan = (
            None if mask is None else mask.expand(self.first.shape).reshape(-1)
            for mask in (self.bound.powerless, self.bound.or_nan)
        )
        emulated = [values.reshape(-1) for values in self.emulated]
        count = min(rows, -(-rows * columns // _CHUNK_ELEMENTS))
        for index in range(count):
            first, last = index * rows // count, (index + 1) * rows // count
            here = slice(first * columns, last * columns)
            yield _Chunk(
                dtype=self.first.dtype,
                first_row=first,
                tiles=Tiles.of(last - first, columns, rows * columns),
                got=got[here],
                twice=twice[here],
                exact=exact[here],
                limit=limit[here],
                likely=likely[here],
                powerless=None if silent is None else silent[here],
                or_nan=None if or_nan is None else or_nan[here],
                emulated=tuple(values[here] for values in emulated),
            )

    def place(self, index: int) -> tuple[int, ...]:
        """Return the indices of the element with this number.

        >>> value = torch.zeros(2, 3)
        >>> Output("y", value, value, value, Bound(value, None)).place(4)
        (1, 1)
        """
        places = []
        for extent in reversed(self.first.shape):
            index, here = divmod(index, extent)
            places.append(here)
        return tuple(reversed(places))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some rows of an output, flattened; tiles: their blocks, or None if they can't be cut.

    dtype: the output's; the values here are wider if the output is fp8.
    """

    dtype: torch.dtype
    first_row: int
    tiles: Tiles | None
    got: Tensor
    twice: Tensor
    exact: Tensor
    limit: Tensor
    likely: Tensor
    powerless: Tensor | None
    or_nan: Tensor | None
    emulated: tuple[Tensor, ...]

    @property
    def numbers(self) -> Tensor:
        """Return sums over the chunk, its histogram, the worst of five kinds of badness, a block.

        All are float64 on the chunk's device, and `Findings.of` reads them in this order.
        """
        got, twice, exact, limit = self.got, self.twice, self.exact, self.limit
        wide, judged = got.double(), limit != math.inf
        compared = judged & exact.isfinite() & wide.isfinite()
        error = torch.where(compared, self._distance(wide), 0.0)
        ratios = [
            torch.where(error > 0, error / allowed, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
            for allowed in (limit, self.likely)  # an error of 0 is within a bound of 0
        ]
        ulps = (error / _ulp(exact, self.dtype)).nan_to_num(0.0)
        kinds = torch.stack(
            [self.left.double(), self.wild.double(), *ratios, (judged & self.differs).double()]
        )
        at = kinds.argmax(1)
        badness = kinds.gather(1, at[:, None]).squeeze(1)
        silent = torch.zeros_like(judged) if self.powerless is None else self.powerless
        sums = (
            error.square().sum(),
            compared.sum(),
            ulps.max(),
            (~judged).sum(),
            (judged & silent).sum(),
        )
        numbers = [
            torch.stack([total.double() for total in sums]),
            _histogram(ulps, compared),
            badness,
            at.double(),
            *(value[at].double() for value in (wide, twice, exact, limit, self.likely)),
        ]
        if self.tiles is not None and self.emulated:
            emulated = [values.double() for values in self.emulated]
            comparable = compared & ~silent
            for values in emulated:
                comparable &= values.isfinite()
            numbers.append(compare(self.tiles, comparable, wide, emulated, exact, self.likely))
        return torch.cat(numbers)

    @property
    def left(self) -> Tensor:
        """Return a mask of the elements that were never written."""
        if not self.dtype.is_floating_point:
            first, second = (stored(value, self.dtype) for value in (math.nan, SENTINEL))
            left = (self.got == first) & (self.twice == second)
        else:
            sentinel = abs(torch.tensor(stored(SENTINEL, self.dtype)).to(self.got.dtype).item())
            left = self.got.isnan() & (self.twice.abs() == sentinel)
        return left & (self.limit != math.inf)

    @property
    def wild(self) -> Tensor:
        """Return a mask of the elements that are finite where they mustn't be, or the reverse."""
        exact, limit, wide = self.exact, self.limit, self.got.double()
        largest = torch.finfo(self.dtype).max if self.dtype.is_floating_point else math.inf
        overflows = (exact.abs() + limit >= largest) & wide.isinf() & (wide.sign() == exact.sign())
        infinite = exact.isinf() & ((wide == exact) | (wide.isnan() & (limit != 0)))
        if self.dtype.itemsize == 1 and self.dtype.is_floating_point:  # their casts saturate
            infinite |= exact.isinf() & (wide == exact.clamp(-largest, largest))
        right = torch.where(
            exact.isfinite(), wide.isfinite() | overflows, infinite | (exact.isnan() & wide.isnan())
        )
        if self.or_nan is not None:
            right |= self.or_nan & wide.isnan()
        return ~right & (limit != math.inf)

    @property
    def differs(self) -> Tensor:
        """Return a mask of the elements whose numbers differ between the two calls.

        Zeros of two signs don't differ, nor do NaN with other bits.
        """
        return (self.got != self.twice) & ~(self.got.isnan() & self.twice.isnan())

    @property
    def beyond(self) -> Tensor:
        """Return a mask of the numbers that aren't within the deterministic bound."""
        return self._past(self.limit)

    @property
    def unlikely(self) -> Tensor:
        """Return a mask of the numbers that aren't within the probabilistic bound."""
        return self._past(self.likely)

    def _past(self, bound: Tensor) -> Tensor:
        judged = (self.limit != math.inf) & self.exact.isfinite() & self.got.isfinite()
        return judged & ~(self._distance(self.got.double()) <= bound)

    def _distance(self, wide: Tensor) -> Tensor:
        """Return the distance of a kernel's values, `wide`, to the truth."""
        if self.dtype.itemsize > 1 or not self.dtype.is_floating_point:
            return (wide - self.exact).abs()
        numbers, edges = _codes(self.dtype, wide.device)
        at = torch.searchsorted(numbers, wide.nan_to_num().clamp(numbers[0], numbers[-1]))
        return (edges[at] - self.exact).maximum(self.exact - edges[at + 1]).clamp(min=0)


@dataclass(slots=True)
class Findings:
    """The measures of an output: the first or worst element by each rule, sums, and a block.

    kinds      never written; not finite; worst by each bound; differing between the calls
    squares, compared, ulps    sum of squares, number and largest of the first call's errors
    histogram  the errors in units of the last place, as `OutputError` has it
    unjudged   number of elements whose bound is infinite
    powerless  number of elements whose bound says nothing
    """

    output: Output
    kinds: list[Element]
    squares: float = 0.0
    compared: float = 0.0
    ulps: float = 0.0
    unjudged: int = 0
    powerless: int = 0
    block: Block | None = None
    histogram: tuple[int, ...] = _NO_COUNTS

    @classmethod
    def of(cls, output: Output) -> Findings:
        """Measure an output and its repetition."""
        result = cls(output, [_NONE] * _KINDS)
        for chunk in output.chunks():
            result.add(chunk)
        return result

    def add(self, chunk: _Chunk) -> None:
        """Add a chunk's measures, and the second call's where its numbers differ."""
        numbers = chunk.numbers.tolist()
        squares, compared, ulps, unjudged, powerless, *numbers = numbers
        self.squares, self.compared = self.squares + squares, self.compared + compared
        self.ulps, self.unjudged = max(self.ulps, ulps), self.unjudged + int(unjudged)
        self.powerless += int(powerless)
        counts, numbers = numbers[: len(_NO_COUNTS)], numbers[len(_NO_COUNTS) :]
        self.histogram = tuple(
            count + int(more) for count, more in zip(self.histogram, counts, strict=True)
        )
        differing = numbers[_KINDS - 1] > 0
        self._worst(chunk, numbers, range(_KINDS))
        block = numbers[7 * _KINDS :]
        if block and chunk.tiles is not None:
            worst = block_of(chunk.tiles, block, chunk.first_row)
            if self.block is None or worst.ratio > self.block.ratio:
                self.block = worst
        if differing:
            again = replace(chunk, got=chunk.twice, emulated=()).numbers.tolist()
            numbers = again[_SUMS + len(_NO_COUNTS) :]
            self._worst(chunk, numbers, range(1, _KINDS - 1), second=True)

    def _worst(
        self, chunk: _Chunk, numbers: list[float], kinds: range, *, second: bool = False
    ) -> None:
        start = chunk.first_row * self.output.matrix[1]
        for kind in kinds:
            badness, index, *values = numbers[kind : 7 * _KINDS : _KINDS]
            # Keep the worst of all chunks; a rule without degrees, 1, keeps the first.
            if badness > self.kinds[kind].badness or self.kinds[kind] is _NONE:
                place = self.output.place(start + int(index))
                got, again, expected, limit, likely = values
                self.kinds[kind] = Element(
                    badness, place, got, again, expected, limit, likely, second
                )


def extent(
    output: Output, mask: Literal["left", "wild", "beyond", "unlikely"], predicate: str
) -> str:
    """Count the first call's elements in a mask, and find the box that holds all of them.

    It measures the output once more, so call it for a failure alone.

    Args:
        output: the output.
        mask: the property of `_Chunk` that is the mask.
        predicate: the predicate of the clause: "are beyond it".

    Returns:
        The end of a sentence, or "" if the mask holds at most one element.
    """
    columns = output.matrix[1]
    chunks = [getattr(chunk, mask).view(-1, columns) for chunk in output.chunks()]
    count = sum(int(chunk.sum()) for chunk in chunks)
    if count <= 1:
        return ""
    shape = output.first.shape
    of_rows = torch.cat([chunk.any(1) for chunk in chunks])
    of_rows = of_rows.view(shape[:-1] if columns > 1 else shape)
    sides = [
        of_rows.movedim(axis, 0).reshape(length, -1).any(1)
        for axis, length in enumerate(of_rows.shape)
    ]
    if len(sides) < len(shape):
        sides.append(torch.stack([chunk.any(0) for chunk in chunks]).any(0))
    box = ", ".join(map(_interval, sides))
    return (
        f"; {count:,} of {output.first.numel():,} elements {predicate}, all of them in "
        f"{output.name}[{box}]"
    )


def _interval(there: Tensor) -> str:
    """Return the places from the first True to the last, written as an index or a slice.

    >>> _interval(torch.tensor([False, True, False, True]))
    '1:4'
    """
    places = there.nonzero().flatten()
    first, last = int(places[0]), int(places[-1])
    return str(first) if first == last else f"{first}:{last + 1}"


@cache
def _codes(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the finite numbers of an fp8 type, rising, and the ends of what rounds to each."""
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(dtype).double()
    numbers = numbers[numbers.isfinite()].unique()
    ends = numbers.new_tensor([math.inf])
    return numbers, torch.cat([-ends, (numbers[1:] + numbers[:-1]) / 2, ends])


def _histogram(ulps: Tensor, compared: Tensor) -> Tensor:
    """Count the compared errors that lie between each two of `ULP_EDGES`."""
    bins = len(_NO_COUNTS)
    edges = torch.tensor(ULP_EDGES, dtype=torch.float64, device=ulps.device)
    number = torch.bucketize(ulps, edges) + 0.5
    return number.masked_fill(~compared, -1.0).double().histc(bins, 0, bins)


def _ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at each element of `exact`; it is 1 for whole numbers."""
    if not dtype.is_floating_point:
        return torch.ones_like(exact)
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal, max=info.max))
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)
