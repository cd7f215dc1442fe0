# ruff: noqa: F722  # shapes in annotations
"""Rows that pass through shared memory by cp.async; one kernel reads them before they are there."""

import torch
from jaxtyping import Float
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernel_workbench import Domain, Sizes, kernel, op

_SIZES = {
    "m": Sizes("rows", {"some": (4, 33)}, lambda _: "some"),
    "n": Sizes("width", {"some": (128, 1024)}, lambda _: "some"),
}
_DOMAIN = Domain(
    dtypes=(torch.float32,), devices=("cuda",), strides="contiguous", sizes={"n": (128, 1024)}
)


@op(sizes=_SIZES, name="doubled_rows")
def doubled_rows(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Twice each number."""
    return x * 2.0


@gluon.jit
def doubled(x_ptr, y_ptr, n, WAIT: gl.constexpr, BLOCK: gl.constexpr):
    """A row; without WAIT it is read before its copy is done."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    column = gl.arange(0, BLOCK, layout)
    offset = gl.program_id(0).to(gl.int64) * n + column
    row = gl.allocate_shared_memory(gl.float32, [BLOCK], shared)
    async_copy.async_load(row, x_ptr + offset, mask=column < n)
    async_copy.commit_group()
    if WAIT:
        async_copy.wait_group(0)
    value = row.load(layout)
    async_copy.wait_group(0)
    gl.store(y_ptr + offset, value * 2.0, mask=column < n)


def _doubled(x, *, wait):
    (m, n), y = x.shape, torch.empty_like(x)
    doubled[(m,)](x, y, n, WAIT=wait, BLOCK=1024)
    return y


@kernel(doubled_rows, _DOMAIN, name="waits")
def waits(x):
    """Its copy is done when it reads."""
    return _doubled(x, wait=True)


@kernel(doubled_rows, _DOMAIN, name="reads_early")
def reads_early(x):
    """It may read what lay there before."""
    return _doubled(x, wait=False)
