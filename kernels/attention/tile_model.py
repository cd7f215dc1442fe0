"""A model of attention's tiles: a tile's needs on an SM, and its approximate time there.

It chooses the tiles of generations on which nobody measured (variants.py). It describes a
generation by the resources of one SM and its work in a cycle, and uses neither the board nor the
call, so that a row's bits depend on neither. Nothing is timed when a kernel runs.

A program keeps a block of rows (queries; keys, for dk and dv), and walks over columns.

    shared memory   resident operands + buffers of streamed operands + weights on their way
    registers       accumulators + tiles of scores + addresses of loads + operands held
    time            waves x (steps x the busiest pipe's cycles, or the waits of one program)

Shared memory is at least what Triton 3.7 takes. Registers are counted: of 411 tiles compiled for sm
80 the count predicts 137 of the 138 that spill more than 100 bytes, and 61 that don't. Time only
ranks tiles. docs/measured.md compares each with compiled code, and the ranking with the tiles that
were timed on sm 90.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

from kernel_workbench.kernels.integers import next_power_of_2

Pass = Literal["fwd", "split16", "split64", "dkdv", "dk", "dv", "dq"]
Unit = Literal["fma", "mma", "wgmma", "tcgen05"]

KIB = 1024
WIDEST_RF = 256
WIDE_CHUNK = 64  # columns of a head at a time where accumulators are in memory
_WARP = 32
_REGISTERS_A_THREAD = 255
_REGISTERS = 65_536
_TENSOR_COLUMNS = 512
_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "tf32": 4}


@dataclass(frozen=True, slots=True)
class KernelTile:
    """A block of queries by a block of keys, warps a program, and stages in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The resources of one SM and its work in a cycle; for a range, the least of its members.

    sm            compute capabilities, both ends included
    shared_kib    shared memory of all blocks; a block may have 1 KiB less from sm 80 on
    warps         resident at one time
    unit          the unit of Triton's 16-bit products: FMA units on sm 75
    half          fused multiply-adds of halves in a cycle, with fp32 sums; tf32 half as many
    lanes         FMA units
    multiprocessors  SMs of the representative GPU, for counting waves of a nominal call
    """

    sm: tuple[int, int]
    shared_kib: int
    warps: int
    unit: Unit
    half: int
    lanes: int
    multiprocessors: int

    @property
    def reserved_bytes(self) -> int:
        """The driver's part of each block's shared memory."""
        return 0 if self.sm[0] < 80 else KIB

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a block."""
        return self.shared_kib * KIB - self.reserved_bytes


# profiles/peaks.py has the sources, with which tests compare these. Sm 87 is as sm 86 and 89.
GENERATIONS = (
    Generation(
        sm=(75, 79), shared_kib=64, warps=32, unit="fma", half=64, lanes=64, multiprocessors=40
    ),
    Generation(
        sm=(80, 85), shared_kib=164, warps=64, unit="mma", half=1024, lanes=64, multiprocessors=108
    ),
    Generation(
        sm=(86, 89), shared_kib=100, warps=48, unit="mma", half=512, lanes=128, multiprocessors=72
    ),
    Generation(
        sm=(90, 99), shared_kib=228, warps=64, unit="wgmma", half=2048, lanes=128,
        multiprocessors=132,
    ),
    Generation(
        sm=(100, 119), shared_kib=228, warps=64, unit="tcgen05", half=4096, lanes=128,
        multiprocessors=148,
    ),
    Generation(
        sm=(120, 121), shared_kib=100, warps=48, unit="mma", half=256, lanes=128,
        multiprocessors=170,
    ),
)  # fmt: skip

# The numbers that a pass has for each tile: fp32 accumulators of a head's width, tiles of scores,
# operands that stay, operands that stream, and products.
_COUNTS: dict[Pass, tuple[int, int, int, int, int]] = {
    "fwd": (1, 1, 1, 2, 2),
    "split16": (1, 1, 1, 2, 2),
    "split64": (1, 1, 1, 2, 2),
    "dq": (1, 2, 2, 2, 3),
    "dkdv": (2, 2, 2, 2, 4),
    "dk": (1, 2, 2, 2, 3),
    "dv": (1, 1, 1, 2, 2),
}
_FORWARDS = ("fwd", "split16", "split64")
_OF_KEYS = ("dkdv", "dk", "dv")  # passes whose programs keep keys and walk over queries
# The rows from which a product takes all of a unit, and below which it is one of mma at half speed.
_FULL_ROWS = {"fma": 1, "mma": 16, "wgmma": 64, "tcgen05": 128}
_ASYNC_ROWS = 64

_EXP2 = 16  # in a cycle of an SM
_SCORE_FLOPS = 8  # fp32 instructions for each score: scale, mask, maximum, sum, a change of type
_SHARED_BYTES = 128  # read in a cycle of an SM
_L2_BYTES = 32  # that reach an SM in a cycle, where all of them load
_LATENCY = 800  # cycles from a load of memory to its use
_STEP = 300  # cycles of a step in which a program waits: barriers, the head of a pipe
_BASE_REGISTERS = 24  # addresses, counters, statistics of rows
_HOISTED_REGISTERS = 56  # more that ptxas takes where it can, so that fewer programs are resident
# A nominal call, as the bench has them: 16,384 tokens, h d = 2048, s 4,096.
_LENGTH, _ELEMENTS = 4096, 4 * 4096 * 2048


@dataclass(frozen=True, slots=True)
class Needs:
    """A tile's needs: bytes of shared memory, registers a thread, columns of tensor memory."""

    shared_bytes: int
    registers: int
    tensor_columns: int = 0


@dataclass(frozen=True, slots=True)
class _Walk:
    """A tile in a program: rows that it keeps, columns of a step, both with a head."""

    kind: Pass
    rows: int
    columns: int
    width: int  # of a head
    item: int  # bytes of an element
    threads: int
    stages: int
    unit: Unit

    @classmethod
    def of(cls, kind: Pass, dtype: str, d: int, tile: KernelTile, generation: Generation) -> _Walk:
        rows, columns = tile.queries, tile.keys
        if kind in _OF_KEYS:
            rows, columns = columns, rows
        item, unit = _ITEM_BYTES[dtype], unit_of(dtype, generation)
        return cls(kind, rows, columns, d, item, _WARP * tile.warps, tile.stages, unit)

    @property
    def scores(self) -> int:
        return self.rows * self.columns

    @property
    def is_unrolled_too_far(self) -> bool:
        """True if a thread gets more of a product's terms than ptxas can order.

        FMA units take a product term by term, unrolled over threads. Nothing else predicts these
        spills: dq of heads of 128 in fp32 stores 332 bytes in the smallest tile too.
        """
        terms = self.scores * (WIDE_CHUNK if self.is_wide else self.width)
        sums = _COUNTS[self.kind][0] * self.rows * self.width
        return terms > 512 * self.threads or (sums > 32 * self.threads and not self.is_wide)

    @property
    def is_wide(self) -> bool:
        """True if accumulators are in memory."""
        return self.width > WIDEST_RF

    @property
    def is_async(self) -> bool:
        """True if products run beside the warps that request them, on operands in shared memory."""
        return self.unit in ("wgmma", "tcgen05") and self.rows >= _ASYNC_ROWS

    @property
    def buffers(self) -> int:
        """Buffers of each streamed operand: one for each stage, except the one in registers."""
        return max(1, self.stages if self.is_async else self.stages - 1)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the resident operands, which FMA units take in fp32."""
        item = 4 if self.unit == "fma" else self.item
        return _COUNTS[self.kind][2] * self.rows * self.width * item

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the operands of one step."""
        return _COUNTS[self.kind][3] * self.columns * self.width * self.item


def unit_of(dtype: str, generation: Generation) -> Unit:
    """Return the unit of products: whole fp32 operands go through FMA units everywhere.

    >>> unit_of("f32", generation_of(90)), unit_of("bf16", generation_of(90))
    ('fma', 'wgmma')
    """
    return "fma" if dtype == "f32" else generation.unit


def needs(
    kind: Pass, dtype: str, d: int, tile: KernelTile, generation: Generation, *, plain: bool = True
) -> Needs:
    """Return the shared memory, registers and tensor memory of a tile for heads of d.

    Past d = 256 accumulators are in memory, and d comes in chunks of 64.

    plain: nothing is added to scores, no weight is dropped, and loads are 16 bytes wide. Otherwise
    a tile of fp32 numbers, and of their addresses, is held beside the scores, and laid out anew.
    """
    walk = _Walk.of(kind, dtype, d, tile, generation)
    accumulators, tiles, *_ = _COUNTS[kind]
    width = WIDE_CHUNK if walk.is_wide else d
    weights = walk.scores * walk.item
    operands = (walk.rows + walk.columns) * width * walk.item  # of one product
    if walk.is_wide:
        # A chunk of sums, or the weights, is laid out anew.
        aside = max(2 * weights, 4 * max(walk.rows, walk.columns) * width)
        shared, operand_bytes = walk.buffers * operands + aside, operands
    else:
        shared = walk.kept_bytes + walk.buffers * walk.streamed_bytes + _aside(walk, dtype)
        operand_bytes = 0 if walk.is_async else walk.kept_bytes
    columns = 0
    if walk.unit == "tcgen05" and walk.is_async and not walk.is_wide:
        columns = accumulators * d + (2 * tiles + 1) * walk.columns // 2
    sums = (1 if walk.is_wide else accumulators) * walk.rows * width
    registers = (sums + tiles * walk.scores + (weights + operand_bytes) // 4) // walk.threads
    # A vector of 16 bytes has an offset of 32 bits and a mask; of wide heads one of 64, and sums
    # are loaded too.
    loads = 2 * (operands + 4 * walk.rows * width) if walk.is_wide else walk.streamed_bytes
    registers += 2 * (loads // (16 * walk.threads))
    if not plain and walk.unit != "fma":
        shared += 0 if walk.is_wide else 4 * walk.scores
        registers += 2 * walk.scores // walk.threads
    return Needs(shared, _BASE_REGISTERS + registers, columns)


def _aside(walk: _Walk, dtype: str) -> int:
    """Return bytes of shared memory beside operands: data laid out anew between two products.

    The values are Triton 3.7's: weights, lse and delta, and barriers, by the multiplying unit. Some
    have no known reason; all were observed.
    """
    weights, of_keys = walk.scores * walk.item, walk.kind in _OF_KEYS
    few_rows = walk.rows < _ASYNC_ROWS
    aside = 0
    if walk.unit == "fma":
        aside += 2 * weights if of_keys else 0 if few_rows else weights
    elif not walk.is_async:
        aside += weights if walk.rows < walk.width else 0
    elif walk.unit == "tcgen05":
        aside += KIB
        if walk.kind not in _FORWARDS:
            narrow = walk.rows < _FULL_ROWS["tcgen05"]
            aside += max(2 * weights, 4 * walk.rows * walk.width if narrow else 0)
    if dtype == "tf32":
        aside += weights + 4 * KIB if walk.stages > 1 else 0
        if walk.kind not in _FORWARDS and (walk.stages > 1 or (of_keys and few_rows)):
            aside += walk.streamed_bytes // 2
    if of_keys and walk.stages > 1:
        aside += max(walk.buffers * 8 * walk.columns, KIB)
    elif of_keys:
        aside += 16 * walk.threads * (2 if few_rows else 1) + (2 * weights if few_rows else 0)
    return aside


def programs_an_sm(need: Needs, tile: KernelTile, generation: Generation) -> int:
    """Return the number of resident programs; 0: none fits, or a thread would spill."""
    if need.shared_bytes > generation.shared_bytes or need.tensor_columns > _TENSOR_COLUMNS:
        return 0
    if need.registers > _REGISTERS_A_THREAD:
        return 0
    by_shared = generation.shared_kib * KIB // (need.shared_bytes + generation.reserved_bytes)
    registers = min(_REGISTERS_A_THREAD, need.registers + _HOISTED_REGISTERS)
    by_registers = _REGISTERS // (registers * _WARP * tile.warps)
    by_columns = _TENSOR_COLUMNS // next_power_of_2(max(32, need.tensor_columns))
    return min(by_shared, by_registers, by_columns, generation.warps // tile.warps)


def cycles(
    kind: Pass, dtype: str, d: int, tile: KernelTile, generation: Generation, *, plain: bool = True
) -> float:
    """Return the approximate cycles of a nominal call; infinite if the tile can't be launched."""
    need = needs(kind, dtype, d, tile, generation, plain=plain)
    resident = programs_an_sm(need, tile, generation)
    walk = _Walk.of(kind, dtype, d, tile, generation)
    if not resident or (walk.unit == "fma" and walk.is_unrolled_too_far):
        return math.inf
    pipes = _pipes(walk, tile, dtype, generation)
    # Loads begin as many steps ahead as there are other buffers; with one buffer amid a step.
    ahead = max(0.0, tile.stages - (1 if walk.is_async else 1.5))
    # A step waits, and its pipes wait for one another, as far as no other warps go on: four at a
    # time, one for each scheduler.
    waits = _STEP + max(0.0, _LATENCY - ahead * sum(pipes)) + sum(pipes) - max(pipes)
    step = max(pipes) + waits * 4 / (tile.warps * resident)
    begins = _LATENCY / resident + walk.kept_bytes / _L2_BYTES
    programs = _ELEMENTS // (d * walk.rows)
    waves = -(-programs // (generation.multiprocessors * resident))
    return waves * resident * (begins + _LENGTH / walk.columns * step)


def _pipes(walk: _Walk, tile: KernelTile, dtype: str, generation: Generation) -> tuple[float, ...]:
    """Return an SM's cycles for a step of a program: products, scores, shared memory, loads."""
    accumulators, *_, products = _COUNTS[walk.kind]
    rate = min(1.0, walk.rows / _FULL_ROWS[walk.unit])
    rate *= generation.lanes if walk.unit == "fma" else generation.half
    rate *= 0.5 if dtype == "tf32" else 1.0
    multiplies = products * walk.scores * walk.width / rate
    scores = walk.scores * (1 / _EXP2 + _SCORE_FLOPS / generation.lanes)
    if walk.kind in _FORWARDS:  # sums are scaled anew
        scores += walk.rows * walk.width / generation.lanes
    # Each product reads a streamed operand: once for each block of rows that takes it at a time.
    readers = max(1, tile.warps // 4) if walk.is_async else min(tile.warps, max(1, walk.rows // 16))
    read = products * walk.columns * walk.width * walk.item * readers / _SHARED_BYTES
    loads = walk.streamed_bytes / _L2_BYTES
    if walk.is_wide:  # sums go to memory and back, and what else would be kept is loaded again
        loads += (walk.kept_bytes + 8 * accumulators * walk.rows * walk.width) / _L2_BYTES
    return multiplies, scores, read, loads


def candidates(kind: Pass, dtype: str, d: int, generation: Generation) -> Iterator[KernelTile]:
    """Yield the considered tiles, all of which kernels take.

    A thread stores at least 16 bytes of a result. On tensor cores a warp has 16 rows of a product,
    and four warps share fewer. FMA units wait for no operand that they couldn't load at once.
    """
    queries = {"split16": (16,), "split64": (32, 64)}.get(kind, (16, 32, 64, 128))
    fma = unit_of(dtype, generation) == "fma"
    for cut in product(queries, (16, 32, 64, 128), (4, 8), (1,) if fma else (1, 2, 3, 4)):
        tile = KernelTile(*cut)
        rows = tile.keys if kind in _OF_KEYS else tile.queries
        if rows * min(d, WIDEST_RF) * _ITEM_BYTES[dtype] < 16 * _WARP * tile.warps:
            continue
        if fma or kind == "split16" or tile.warps * 16 <= max(rows, 64):
            yield tile


@cache
def ranked(
    kind: Pass, dtype: str, d: int, generation: Generation, *, plain: bool = True
) -> tuple[KernelTile, ...]:
    """Return the tiles that fit on a generation, the fastest one first."""
    order = [
        (cycles(kind, dtype, d, tile, generation, plain=plain), tile)
        for tile in candidates(kind, dtype, d, generation)
    ]
    fit = [(time, tile) for time, tile in order if time < math.inf]
    return tuple(tile for _, tile in sorted(fit, key=lambda pair: (pair[0], _plainness(pair[1]))))


def _plainness(tile: KernelTile) -> tuple[int, ...]:
    """Return a key that prefers, among equally fast tiles, the one with the least needs."""
    return tile.stages, tile.warps, tile.queries * tile.keys, tile.queries


def fits(
    kind: Pass, dtype: str, d: int, tile: KernelTile, generation: Generation, *, plain: bool = True
) -> bool:
    """Return True if a block of the tile can be launched: its shared and tensor memory exist."""
    need = needs(kind, dtype, d, tile, generation, plain=plain)
    shared = need.shared_bytes <= generation.shared_bytes
    return shared and need.tensor_columns <= _TENSOR_COLUMNS


def generation_of(sm: int) -> Generation:
    """Return the generation of an sm. Raises LookupError.

    >>> generation_of(90).unit
    'wgmma'
    """
    for generation in GENERATIONS:
        if generation.sm[0] <= sm <= generation.sm[1]:
            return generation
    raise LookupError(f"no generation has sm {sm}")
