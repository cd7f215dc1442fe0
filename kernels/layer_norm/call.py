"""One call of layer norm's backward: the arguments of every kernel here, and its results.

Tensors are treated as matrices [m, n]. Arguments are passed by the names of a kernel's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import torch
import triton
from torch import Tensor

from kernel_workbench.kernels.device import on_device_of
from kernel_workbench.kernels.launch_plan import Launched, Recorded
from kernel_workbench.kernels.layer_norm.finalize import finalize
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import LAYER_NORM_BACKWARD

Gradients = tuple[Tensor, Tensor | None, Tensor | None]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_STATISTICS = ["mean_ptr", "rstd_ptr"]
_INPUTS = ["dy_ptr", "x_ptr", "weight_ptr", "dresidual_ptr"]


class Given(TypedDict, total=False):
    """The options of a call that every kernel takes; see OPTIONS in oracles/layer_norm.

    recorded: gets the call's launches, for a plan of them.
    """

    dresidual: Tensor | None
    dweight: Tensor | None
    dbias: Tensor | None
    has_bias: bool
    zero_centred: bool
    recorded: Recorded | None


class AlignmentTwins(NamedTuple):
    """Two kernels of one function: for any addresses, and for tensors at 16-byte addresses."""

    any: Any
    aligned: Any


def compiled_twice(function: Callable[..., object]) -> AlignmentTwins:
    """Return the kernels of a function; no number is compiled in, so they serve every size."""
    numbers = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is inspect.Parameter.empty and not name.endswith("_ptr")
    ]
    any_address, aligned = (
        triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=loose)
        for loose in ([*_STATISTICS, *_INPUTS], _STATISTICS)
    )
    return AlignmentTwins(any_address, aligned)


def domain(alignment: int, widest: int, sm: tuple[int, int] = (0, 999)) -> Domain:
    """Return a domain of rows up to `widest` columns, with every option.

    A grid's x and a row's index are int32.
    """
    return Domain(
        dtypes=DTYPES,
        weight_dtypes=DTYPES,
        alignment=alignment,
        sizes={"m": (0, 2**31 - 2**20), "n": (1, widest)},
        features=frozenset(LAYER_NORM_BACKWARD.options),
        sm=sm,
    )


@dataclass(frozen=True, slots=True)
class StridedMatrix:
    """A tensor [..., n] as [m, n], and its strides in elements."""

    data: Tensor
    row: int
    column: int


def as_matrix(tensor: Tensor) -> StridedMatrix:
    """Return `tensor` [..., n] as a matrix: a view if its strides allow one, else a packed copy."""
    n = tensor.shape[-1]
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, n)
    return StridedMatrix(rows, rows.stride(0), rows.stride(1))


def packed_vector(tensor: Tensor | None) -> Tensor | None:
    """Return statistics of rows, or a weight, as a packed vector; copied only if strided."""
    return None if tensor is None else tensor.reshape(-1).contiguous()


class BackwardCall:
    """The arguments of one call, its partial sums and its gradients.

    aligned: every pointer and row is a multiple of 16 bytes, columns are adjacent, and rows are
    less than 2^31 elements apart.
    alike: not aligned, but columns are adjacent, and a row begins equally far past a multiple of 16
    bytes in all inputs and in dx.
    """

    def __init__(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor | None,
        rstd: Tensor,
        *,
        aligned: bool,
        dresidual: Tensor | None = None,
        dweight: Tensor | None = None,
        dbias: Tensor | None = None,
        has_bias: bool = True,
        zero_centred: bool = False,
        recorded: Recorded | None = None,
    ) -> None:
        self.x, self.weight, self.has_bias = x, weight, has_bias
        self.recorded = recorded or Recorded()
        self._existing = dweight, dbias
        dy_rows, x_rows = as_matrix(dy), as_matrix(x)
        residual = None if dresidual is None else as_matrix(dresidual)
        self.m, self.n = x_rows.data.shape
        self.dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        matrices = [matrix for matrix in (dy_rows, x_rows, residual) if matrix is not None]
        # A stride beyond 32 bits can't be counted in vectors: see `offsets`.
        self.aligned = aligned and all(matrix.row < 2**31 for matrix in matrices)
        vector = 16 // x.element_size() if self.aligned else 1
        adjacent = all(matrix.column == 1 for matrix in matrices)
        begins = {
            (rows.data.data_ptr() % 16, rows.row * x.element_size() % 16)
            for rows in (*matrices, StridedMatrix(self.dx, self.n, 1))
        }
        self.alike = not self.aligned and adjacent and len(begins) == 1
        self.arguments: dict[str, object] = {
            "dy_ptr": dy_rows.data,
            "x_ptr": x_rows.data,
            "weight_ptr": packed_vector(weight),
            "mean_ptr": packed_vector(mean),
            "rstd_ptr": packed_vector(rstd),
            "dresidual_ptr": None if residual is None else residual.data,
            "dx_ptr": self.dx,
            "m": self.m,
            "n_vectors": self.n // vector,
            "stride_dym": dy_rows.row // vector,
            "stride_dyn": dy_rows.column,
            "stride_xm": x_rows.row // vector,
            "stride_xn": x_rows.column,
            "stride_rm": 0 if residual is None else residual.row // vector,
            "stride_rn": 0 if residual is None else residual.column,
            "inverse_n": 1.0 / self.n,
            "ZERO_CENTRED": zero_centred,
            "ADJACENT": adjacent,
            "VECTOR": vector,
        }

    def sum_in(self, parts: int) -> None:
        """Allocate so many partial sums of dweight and dbias, [parts, n] in fp32."""
        dweight = dbias = None
        if self.weight is not None:
            dweight = torch.empty((parts, self.n), dtype=torch.float32, device=self.x.device)
            if self.has_bias:
                dbias = torch.empty_like(dweight)
        self.recorded.scratch += [sums for sums in (dweight, dbias) if sums is not None]
        self.arguments |= {"dweight_part_ptr": dweight, "dbias_part_ptr": dbias}

    def launch(
        self, kernel: AlignmentTwins, grid: tuple[int, ...], options: dict[str, int], **own: object
    ) -> None:
        """Run a kernel on the arguments that its parameters name; options: num_warps etc."""
        chosen = kernel.aligned if self.aligned else kernel.any
        arguments = {**self.arguments, **own}
        named = {name: arguments[name] for name in chosen.arg_names}
        with on_device_of(self.x):
            compiled = chosen[grid](**named, **options)
        self.recorded.launches.append(Launched(chosen, compiled, grid, tuple(named.values())))

    def gradients(self) -> Gradients:
        """Return dx, dweight and dbias, the latter two folded from their partial sums."""
        parts, bias_parts = self.arguments["dweight_part_ptr"], self.arguments["dbias_part_ptr"]
        if self.weight is None or not isinstance(parts, Tensor):
            return self.dx, None, None
        existing, existing_bias = self._existing
        dweight = _gradient_like(self.weight, existing)
        dbias = _gradient_like(self.weight, existing_bias) if self.has_bias else None
        assert bias_parts is None or isinstance(bias_parts, Tensor)
        with on_device_of(self.x):
            launched = finalize(parts, bias_parts, dweight, dbias, accumulate=existing is not None)
        self.recorded.launches.append(launched)
        return self.dx, dweight, dbias


def _gradient_like(weight: Tensor, existing: Tensor | None) -> Tensor:
    """Return the memory of a gradient of `weight` [n]: the existing one, or a new packed tensor.

    Raises ValueError if the existing one isn't packed.
    """
    if existing is None:
        return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    if not existing.is_contiguous():
        raise ValueError("dweight and dbias to accumulate into must be packed vectors")
    return existing
