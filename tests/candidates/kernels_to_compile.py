"""A user's file for `nox -s compile`: kernels as they should be, and mutants that break them.

All stand for ATTENTION_DELTA; only their launches matter here. `narrow_rows` drops what is known of
a stride, `spilling_rows` holds a tile twice as large, `oversized_products` a longer pipeline.
Others launch in ways of their own: `tuned`, `described`, `in_gluon`, `without_launches`, `dying`.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernel_workbench import ATTENTION_DELTA, Domain, Expectation, Fits, Loads, Spills, Uses, kernel

EXPECTATIONS = (
    Expectation(says="rows come 16 bytes at a time", claim=Loads(16), functions=("rows",)),
    Expectation(says="rows stay in registers", claim=Spills(), functions=("rows",)),
    Expectation(says="products fit", claim=Fits(), functions=("products_kernel",)),
    Expectation(says="products use tensor cores", claim=Uses("HMMA"), functions=("products_*",)),
)


def _rows(
    out_ptr, do_ptr, delta_ptr, stride, rows,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sums over columns first, and then rows again: the tile is held all the while."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs = offs_m[:, None] * (stride * UNIT) + tl.arange(0, BLOCK_D)[None, :]
    mask = offs_m[:, None] < rows
    out = tl.load(out_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    both, left, right = tl.sum(out * do, 0), tl.sum(out, 0), tl.sum(do, 0)
    mixed = (out * both[None, :] + left[None, :]) * (do * right[None, :] + both[None, :])
    tl.store(delta_ptr + offs_m, tl.sum(mixed, 1), mask=offs_m < rows)


_rows_kernel = triton.jit(_rows, do_not_specialize=["stride", "rows"])


@triton.jit
def _products_kernel(
    out_ptr, do_ptr, delta_ptr, rows,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Products of a block of rows with every other block, loads in flight for STAGES of them."""
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    within = offs_m[:, None] * BLOCK_D + offs_d[None, :]
    out = tl.load(out_ptr + tl.program_id(0) * BLOCK_M * BLOCK_D + within)
    acc = tl.zeros((BLOCK_M, BLOCK_M), tl.float32)
    for start in tl.range(0, rows, BLOCK_M, num_stages=STAGES):
        do = tl.load(do_ptr + start * BLOCK_D + within)
        acc += tl.dot(out, tl.trans(do))
    tl.store(delta_ptr + tl.program_id(0) * BLOCK_M + offs_m, tl.sum(acc, 1))


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": rows}, num_warps=rows // 16) for rows in (32, 64)],
    key=["rows"],
)
@triton.heuristics({"EVEN": lambda given: given["rows"] % 64 == 0})
@triton.jit
def _tuned_kernel(
    out_ptr, do_ptr, delta_ptr, rows,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs = offs_m[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    mask = (offs_m < rows) | EVEN
    out = tl.load(out_ptr + offs, mask=mask[:, None], other=0.0)
    do = tl.load(do_ptr + offs, mask=mask[:, None], other=0.0)
    tl.store(delta_ptr + offs_m, tl.sum(out.to(tl.float32) * do, 1), mask=mask)


@triton.jit
def _described_kernel(out_desc, delta_ptr, BLOCK_M: tl.constexpr):
    start = tl.program_id(0) * BLOCK_M
    out = out_desc.load([start, 0]).to(tl.float32)
    tl.store(delta_ptr + start + tl.arange(0, BLOCK_M), tl.sum(out, 1))


@gluon.jit
def _gluon_kernel(out_ptr, delta_ptr, rows, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offs = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    out = gl.load(out_ptr + offs, mask=offs < rows)
    gl.store(delta_ptr + offs, out.to(gl.float32), mask=offs < rows)


_DOMAIN = Domain(
    dtypes=(torch.bfloat16,), alignment=16, strides="contiguous", sizes={"d_v": (64, 64)}
)


def _delta_of(out: Tensor) -> Tensor:
    b, s, h, _ = out.shape
    return torch.empty((b, h, s), dtype=torch.float32, device=out.device)


def _launch_rows(out: Tensor, do: Tensor, *, unit: int, rows: int) -> tuple[Tensor]:
    delta, d = _delta_of(out), out.shape[3]
    grid = (triton.cdiv(delta.numel(), rows),)
    _rows_kernel[grid](out, do, delta, d // unit, delta.numel(), UNIT=unit, BLOCK_M=rows, BLOCK_D=d)
    return (delta,)


def _launch_products(out: Tensor, do: Tensor, *, stages: int) -> tuple[Tensor]:
    delta, d = _delta_of(out), out.shape[3]
    grid = (triton.cdiv(delta.numel(), 128),)
    _products_kernel[grid](
        out, do, delta, delta.numel(), BLOCK_M=128, BLOCK_D=d, STAGES=stages, num_warps=8
    )
    return (delta,)


@kernel(ATTENTION_DELTA, _DOMAIN)
def rows(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """As it should be."""
    return _launch_rows(out, do, unit=8, rows=128)


@kernel(ATTENTION_DELTA, _DOMAIN)
def narrow_rows(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """The stride as it is: nothing tells that it is a multiple."""
    return _launch_rows(out, do, unit=1, rows=128)


@kernel(ATTENTION_DELTA, _DOMAIN)
def spilling_rows(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """A tile twice as large, more than the registers of four warps hold."""
    return _launch_rows(out, do, unit=8, rows=256)


@kernel(ATTENTION_DELTA, _DOMAIN)
def products(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """As it should be."""
    return _launch_products(out, do, stages=3)


@kernel(ATTENTION_DELTA, _DOMAIN)
def oversized_products(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """More loads in flight than sm 86 has room for, and sm 90 has."""
    return _launch_products(out, do, stages=8)


@kernel(ATTENTION_DELTA, _DOMAIN)
def tuned(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Every configuration of an autotuner, with a heuristic's constant."""
    delta = _delta_of(out)
    _tuned_kernel[lambda given: (triton.cdiv(delta.numel(), given["BLOCK_M"]),)](
        out, do, delta, delta.numel(), BLOCK_D=out.shape[3]
    )
    return (delta,)


@kernel(ATTENTION_DELTA, _DOMAIN)
def described(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """A tensor descriptor made on the host, and as many programs as the GPU has SMs."""
    del do
    delta, programs = _delta_of(out), torch.cuda.get_device_properties(out.device)
    rows = TensorDescriptor.from_tensor(out.view(-1, out.shape[3]), [32, out.shape[3]])
    _described_kernel[(programs.multi_processor_count,)](rows, delta, BLOCK_M=32)
    return (delta,)


@kernel(ATTENTION_DELTA, _DOMAIN)
def in_gluon(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """A launch of Gluon's."""
    del do
    delta = _delta_of(out)
    _gluon_kernel[(1,)](out, delta, delta.numel(), BLOCK=128)
    return (delta,)


@kernel(ATTENTION_DELTA, _DOMAIN)
def without_launches(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Torch alone."""
    return ((out.float() * do.float()).sum(-1).transpose(1, 2).contiguous(),)


@kernel(ATTENTION_DELTA, _DOMAIN)
def dying(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Ends the process that calls it."""
    del out, do
    os.abort()
