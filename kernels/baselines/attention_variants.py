"""Which of PyTorch's memory-efficient kernels a case runs, predicted by the order they are kept in.

PyTorch generates 45 forward and 162 backward kernels, and at a call walks those of the dtype and
of the GPU's sm in the order of their keys, up to the first that

- is wide enough: max(d, d_v) <= max_d;
- forward: finds the heads of q and k as far apart as its vectors ask (v's aren't asked), and
  backward as its instructions ask, aligned or not: so that the aligned ones come first always;
- backward: draws dropout where there is dropout, and where it is made for whole blocks has them
  (not under varlen);
- fits into shared memory.

A kernel's own shared memory isn't known here. Where an sm has 99 KiB (86, 89, 120, 121) the
backward's 128 x 128 tile is taken not to fit, as the generator's comments say of 86 and 89; all
others are taken to fit.

Source: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels/
generate_kernels.py (the tables and the keys), attention.cu and attention_backward.cu (the walk);
`include/.../kernels/cutlassF.h` and `cutlassB.h` of an installed torch hold the order itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from oracles.attention.geometry import geometry
from oracles.op import Case

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
SM_RANGES = ((50, 69), (70, 74), (75, 79), (80, 121))
UNBOUNDED = 2**16  # stands for no limit on d

_LITTLE_SHARED_MEMORY = frozenset({86, 89, 120, 121})


@dataclass(frozen=True, slots=True)
class ForwardKernel:
    """A forward kernel: what it serves, its tile, and where its output is accumulated.

    queries, keys    the tile
    max_d            the largest of d and d_v
    """

    dtype: str
    aligned: bool
    sm: tuple[int, int]
    queries: int
    keys: int
    max_d: int

    @property
    def key(self) -> tuple[int, ...]:
        """Kernels are tried by this, the lowest first; all of them serve dropout and a bias."""
        return (not self.aligned, self.max_d, self.keys)

    @property
    def name(self) -> str:
        """As a profiler shows it; `rf` where the tile holds a whole row of the output."""
        aligned = "aligned" if self.aligned else "notaligned"
        place = "rf" if self.max_d <= self.keys else "gmem"
        tile = f"{self.queries}x{self.keys}"
        return f"fmha_cutlassF_{self.dtype}_{aligned}_{tile}_{place}_sm{self.sm[0]}"


@dataclass(frozen=True, slots=True)
class BackwardKernel:
    """A backward kernel: what it serves, and its tile.

    queries, keys    the tile
    max_d            the largest of d and d_v
    whole_blocks     it checks no bounds: both lengths must be multiples of the tile's
    only_on          the sms that try it; empty: all of its range
    """

    dtype: str
    aligned: bool
    sm: tuple[int, int]
    dropout: bool
    queries: int
    keys: int
    max_d: int
    whole_blocks: bool = False
    only_on: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[int, ...]:
        """Kernels are tried by this, the lowest first: more queries a tile before fewer."""
        return (
            not self.aligned,
            self.dropout,
            self.max_d,
            -self.queries,
            not self.whole_blocks,
        )

    @property
    def name(self) -> str:
        """As a profiler shows it."""
        aligned = "aligned" if self.aligned else "notaligned"
        tile = f"{self.queries}x{self.keys}_k{self.max_d}"
        suffixes = "_dropout" * self.dropout + "_seqaligned" * self.whole_blocks
        return f"fmha_cutlassB_{self.dtype}_{aligned}_{tile}{suffixes}_sm{self.sm[0]}"


def _kinds() -> Iterator[tuple[str, bool, tuple[int, int]]]:
    """dtype, aligned, sm range: bf16 from sm 80 on, and from there aligned kernels alone."""
    for aligned in (True, False):
        for dtype in ("f32", "f16", "bf16"):
            for sm in SM_RANGES:
                if (dtype == "bf16" and sm[0] < 80) or (not aligned and sm[0] >= 80):
                    continue
                yield dtype, aligned, sm


@cache
def forward_kernels() -> tuple[ForwardKernel, ...]:
    """All of them, in the order in which they are tried."""
    made = []
    for dtype, aligned, sm in _kinds():
        middle = 64 if sm[0] >= 80 else 32
        for queries, keys, max_d in ((64, 64, 64), (middle, 128, 128), (32, 128, UNBOUNDED)):
            made.append(ForwardKernel(dtype, aligned, sm, queries, keys, max_d))
    return tuple(sorted(made, key=lambda each: each.key))


@cache
def backward_kernels() -> tuple[BackwardKernel, ...]:
    """All of them, in the order in which they are tried."""
    made = [
        kernel
        for dtype, aligned, sm in _kinds()
        for dropout in (True, False)
        for max_d in (32, 64, 128, UNBOUNDED)
        for kernel in _backward_tiles(dtype, sm, max_d, aligned=aligned, dropout=dropout)
    ]
    # Heads of 65 to 96 where 128 x 128 doesn't fit: the accumulators stay in registers so.
    made += [
        BackwardKernel(
            dtype,
            aligned=True,
            sm=SM_RANGES[-1],
            dropout=False,
            queries=128,
            keys=64,
            max_d=96,
            only_on=frozenset({86, 89}),
        )
        for dtype in ("f16", "bf16")
    ]
    return tuple(sorted(made, key=lambda each: each.key))


def _backward_tiles(
    dtype: str, sm: tuple[int, int], max_d: int, *, aligned: bool, dropout: bool
) -> Iterator[BackwardKernel]:
    half = dtype != "f32"
    more_memory = sm[0] >= 80 or (sm[0] >= 70 and half)
    for queries in (64, 128) if more_memory and max_d > 64 else (64,):
        in_registers = half and max_d <= queries
        keys = 128 if sm[0] >= 80 and in_registers and max_d > 64 else 64
        plain = BackwardKernel(dtype, aligned, sm, dropout, queries, keys, max_d)
        yield plain
        if half and aligned and not dropout and max_d <= 128 and sm[0] in (70, 80):
            yield replace(plain, whole_blocks=True)


def _vector(dtype: str, sm: int, *, aligned: bool) -> int:
    """Elements that a head of q or k must start at a multiple of."""
    if dtype == "f32":
        return 4 if sm >= 80 else 1  # fp32 is on tensor cores from sm 80 on
    if sm < 70:
        return 1
    if aligned:
        return 8
    return 4 if sm >= 75 else 2


def predict_forward(dtype: str, sm: int, d: int, head_strides: tuple[int, ...]) -> str:
    """The forward kernel of heads of at most `d`; head_strides: of q and of k, in elements.

    Raises LookupError where there is none.
    """
    for each in forward_kernels():
        if each.dtype != dtype or not each.sm[0] <= sm <= each.sm[1] or d > each.max_d:
            continue
        vector = _vector(dtype, sm, aligned=each.aligned)
        if all(stride % vector == 0 for stride in head_strides):
            return each.name
    raise LookupError(f"no forward kernel for {dtype}, sm {sm}, heads {head_strides} apart")


def predict_backward(
    dtype: str,
    sm: int,
    d: int,
    head_strides: tuple[int, ...],
    lengths: tuple[int, int] | None,
    *,
    dropout: bool = False,
) -> str:
    """The backward kernel of heads of at most `d`; head_strides: of q, k and v, in elements.

    lengths: s_q and s_kv, None under varlen. Raises LookupError where there is none.
    """
    vector = _vector(dtype, sm, aligned=False)
    for each in backward_kernels():
        if each.dtype != dtype or not each.sm[0] <= sm <= each.sm[1] or d > each.max_d:
            continue
        if each.only_on and sm not in each.only_on:
            continue
        if dropout and not each.dropout:
            continue
        if each.whole_blocks and (
            lengths is None or lengths[0] % each.queries or lengths[1] % each.keys
        ):
            continue
        if sm in _LITTLE_SHARED_MEMORY and each.queries * each.keys > 128 * 64:
            continue
        if all(stride % vector == 0 for stride in head_strides):
            return each.name
    raise LookupError(f"no backward kernel for {dtype}, sm {sm}, heads {head_strides} apart")


def _head_strides(case: Case, names: str) -> tuple[int, ...]:
    laid_out = geometry(case)
    return tuple(laid_out[name].strides[2] for name in names)


def forward_variant(case: Case, sm: int) -> str:
    """The name of the forward kernel that the case runs on `sm`."""
    d = max(case.size("d"), case.size("d_v"))
    return predict_forward(DTYPES[case.dtype], sm, d, _head_strides(case, "qk"))


def backward_variant(case: Case, sm: int) -> str:
    """The name of the backward kernel that the case runs on `sm`."""
    d = max(case.size("d"), case.size("d_v"))
    lengths = None if "varlen" in case.options else (case.size("s_q"), case.size("s_kv"))
    return predict_backward(
        DTYPES[case.dtype],
        sm,
        d,
        _head_strides(case, "qkv"),
        lengths,
        dropout="torch_dropout" in case.options,
    )


def both_variants(case: Case, sm: int) -> str:
    """The names of both, as a forward and its backward run them."""
    return f"{forward_variant(case, sm)} {backward_variant(case, sm)}"


def forward_names(sm: int) -> tuple[str, ...]:
    """The forward kernels that an sm has."""
    return tuple(each.name for each in forward_kernels() if each.sm[0] <= sm <= each.sm[1])


def backward_names(sm: int) -> tuple[str, ...]:
    """The backward kernels that an sm has."""
    return tuple(
        each.name
        for each in backward_kernels()
        if each.sm[0] <= sm <= each.sm[1] and (not each.only_on or sm in each.only_on)
    )
