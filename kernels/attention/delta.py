"""ATTENTION_DELTA: delta = rowsum(out do), bound by memory, by the widest possible loads.

16-byte loads need addresses, strides and rows that are multiples of 16 bytes; otherwise the widest
power of two that divides them all is taken, down to single elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernel_workbench.kernels.attention.backward_kernels import delta_kernel
from kernel_workbench.kernels.attention.launch import arguments_of
from kernel_workbench.kernels.attention.problem import (
    AttentionError,
    adjacent,
    is_wide,
    vector_elements,
)
from kernel_workbench.kernels.attention.registration import DTYPES, SM, load_bytes_of
from kernel_workbench.kernels.attention.variants import dtype_key
from kernel_workbench.kernels.device import on_device_of
from kernel_workbench.kernels.integers import cdiv, next_power_of_2
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_DELTA, OPS
from kernel_workbench.oracles.op import Case, Numerics, dtype_name

_WIDTHS = (16, 8, 4, 2)  # bytes of a load
_TILE = 4096  # elements of a program's tile
_WIDEST = 256  # columns at a time


@dataclass(frozen=True, slots=True)
class DeltaVariant:
    """A delta pass for one dtype and one width of loads."""

    dtype: str
    width: int  # bytes

    @property
    def name(self) -> str:
        """The name, for example `delta_bf16_16bytes`."""
        return f"delta_{self.dtype}_{self.width}bytes"


def _variants(sm: int) -> tuple[str, ...]:
    del sm  # the same everywhere
    return tuple(
        DeltaVariant(dtype_key(dtype, tf32=False), width).name
        for dtype in DTYPES
        for width in _WIDTHS
        if width >= dtype.itemsize
    )


def _variant(case: Case, sm: int) -> str:
    del sm
    width = min(map(load_bytes_of, OPS[case.op].geometry(case).values()))
    return DeltaVariant(dtype_key(case.dtype, tf32=False), width).name


def launch_delta(out: Tensor, do: Tensor) -> Tensor:
    """Return delta [b, h, s] in fp32 from out and do [b, s, h, d_v] with any strides."""
    b, s, h, d_v = out.shape
    delta = torch.empty((b, h, s), dtype=torch.float32, device=out.device)
    vector = vector_elements(out, do)
    columns = min(_WIDEST, next_power_of_2(d_v))
    rows = max(1, _TILE // columns)
    grid = (cdiv(s, rows) * b * h,)
    if grid[0]:
        with on_device_of(out):
            delta_kernel.of(vector)[grid](
                **arguments_of({"out": out, "do": do}, vector), delta_ptr=delta, h=h, s=s,
                d_v=d_v // vector, ADJACENT=adjacent(out, do), VECTOR=vector, WIDE=is_wide(out, do),
                BLOCK_M=rows, BLOCK_DV=columns, num_warps=4,
            )  # fmt: skip
    return delta


@kernel(
    ATTENTION_DELTA,
    Domain(dtypes=DTYPES, sm=SM),
    numerics=Numerics(batch_invariant=True, device_independent=True),
    priority=20,
    variant=_variant,
    variants=_variants,
    workspace=lambda _: 0,
)
def delta(out: Tensor, do: Tensor) -> tuple[Tensor]:
    """Compute a tile of rows a program.

    Raises AttentionError if out and do differ in shape, dtype or device.
    """
    if out.shape != do.shape or out.dim() != 4:
        raise AttentionError(
            f"out and do must have one shape of 4 axes, got {tuple(out.shape)} and "
            f"{tuple(do.shape)}"
        )
    if out.dtype != do.dtype or out.device != do.device:
        raise AttentionError(
            f"out and do must be alike, got {dtype_name(out.dtype)} on {out.device} and "
            f"{dtype_name(do.dtype)} on {do.device}"
        )
    return (launch_delta(out, do),)
