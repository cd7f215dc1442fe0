"""Shared jit functions of layer norm's backward, and the names of cuts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import triton
import triton.language as tl

from kernel_workbench.kernels.configurations import configuration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Cut = TypeVar("Cut", bound="DataclassInstance")


def named(cuts: Iterable[Cut]) -> dict[str, Cut]:
    """Return cuts by name, for example `block_m4_num_warps8`; equal cuts occur once."""
    return {
        "_".join(f"{field}{value}" for field, value in asdict(cut).items()): cut for cut in cuts
    }


def requested_cut(cuts: Iterable[Cut]) -> Cut | None:
    """Return the cut that the call must take; None: the kernel's own choice. Raises LookupError."""
    name = configuration()
    if name is None:
        return None
    by_name = named(cuts)
    if name not in by_name:
        raise LookupError(f"no cut is called {name}; there are {', '.join(by_name)}")
    return by_name[name]


@triton.jit
def offsets(row, offs_n, stride_m, stride_n, ADJACENT: tl.constexpr, VECTOR: tl.constexpr):
    """Return the offsets of a tile of a matrix; row [BLOCK_M, 1] in int64, offs_n [BLOCK_N].

    Strides of rows arrive divided by VECTOR: the compiler knows that their product with it is a
    multiple, and so loads are VECTOR elements wide, whatever the JIT knows of the number.
    """
    if ADJACENT:
        offs = row * (stride_m * VECTOR) + offs_n[None, :]
    else:
        offs = row * stride_m + offs_n.to(tl.int64)[None, :] * stride_n
    return offs


@triton.jit
def weight_of(weight_ptr, offs_n, n, ZERO_CENTRED: tl.constexpr):
    """Return the weight of columns, or 1 + it, [1, BLOCK_N] in fp32."""
    weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
    if ZERO_CENTRED:
        weight += 1.0
    return weight[None, :]


@triton.jit
def leave_partials(dweight_part_ptr, dbias_part_ptr, dweight, dbias, part, offs_n, n, end=None):
    """Store a program's sums of its rows as the partial row `part`, up to the column `end` or n."""
    if end is None:
        end = n
    part_offs = part.to(tl.int64) * n + offs_n
    if dweight_part_ptr is not None:
        tl.store(dweight_part_ptr + part_offs, tl.sum(dweight, axis=0), mask=offs_n < end)
    if dbias_part_ptr is not None:
        tl.store(dbias_part_ptr + part_offs, tl.sum(dbias, axis=0), mask=offs_n < end)
