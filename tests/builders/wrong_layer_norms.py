"""Layer-norm backwards that are wrong on purpose, each a small change to a sound one.

The sound one is `closed_form`, in fp32 operations of torch; `truncating` is a Triton kernel, since
torch has no cast that truncates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernel_workbench.reports.record import Rule

Outputs = tuple[Tensor, Tensor, Tensor]
Candidate = Callable[..., Outputs]

# Its own generator: PyTorch's random state belongs to the process.
_ORDERS = torch.Generator().manual_seed(0)


def closed_form(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, columns: int | None = None
) -> Outputs:
    """Return dx, dweight and dbias, rounded once; rows have means over `columns` columns."""
    n = x.shape[-1]
    wide_dy, rows = dy.float(), tuple(range(x.dim() - 1))
    x_hat = (x.float() - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    g = wide_dy * weight.float()
    c1 = g[..., :columns].sum(-1, keepdim=True) / n
    c2 = (g * x_hat)[..., :columns].sum(-1, keepdim=True) / n
    dx = (g - c1 - x_hat * c2) * rstd.unsqueeze(-1)
    dweight, dbias = (wide_dy * x_hat).sum(rows), wide_dy.sum(rows)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


def _statistics_in_input_dtype(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> Outputs:
    """mean and rstd are kept in the input's type."""
    narrow = x.dtype if x.dtype != torch.float32 else torch.bfloat16
    return closed_form(dy, x, weight, mean.to(narrow).float(), rstd.to(narrow).float())


def _last_row_dropped(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dweight and dbias leave out the last row."""
    dx, _, _ = closed_form(dy, x, weight, mean, rstd)
    fewer = dy[..., :-1, :], x[..., :-1, :], weight, mean[..., :-1], rstd[..., :-1]
    _, dweight, dbias = closed_form(*fewer)
    return dx, dweight, dbias


def _last_column_dropped(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> Outputs:
    """The row's means leave out the last column."""
    return closed_form(dy, x, weight, mean, rstd, columns=-1)


def _partials_in_half(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dweight's partials are summed in half."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    half = torch.float16 if x.dtype == torch.float32 else x.dtype
    x_hat = (x.float() - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    products = (dy.float() * x_hat).reshape(-1, x.shape[-1])
    total = torch.zeros_like(dweight, dtype=half)
    for part in products.split(2):  # a partial of two rows each
        total += part.sum(0).to(half)
    return dx, total.to(weight.dtype), dbias


def _as_if_packed(tensor: Tensor) -> Tensor:
    """Return the elements that a kernel reads which assumes a packed tensor."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    reached = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
    if not tensor.numel() or reached > room:
        return tensor
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def _strides_ignored(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dy and x are read as packed rows."""
    return closed_form(_as_if_packed(dy), _as_if_packed(x), weight, mean, rstd)


def _offset_ignored(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """Round addresses down to 16 bytes, as in a kernel that loads vectors of 16 bytes."""

    def down(tensor: Tensor) -> Tensor:
        over = tensor.data_ptr() % 16 // tensor.element_size()
        return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - over)

    return closed_form(down(dy), down(x), weight, mean, rstd)


def _dx_left_unwritten(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> Outputs:
    """dx stops after 16 rows, as where a grid is one program short."""
    full, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dx.view(-1, x.shape[-1])[:16] = full.view(-1, x.shape[-1])[:16]
    return dx, dweight, dbias


def _input_changed(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dy is doubled in place."""
    outputs = closed_form(dy, x, weight, mean, rstd)
    if not any(step == 0 for step in dy.stride()):
        dy.mul_(2)
    return outputs


def _padding_written(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """One element past the end of x is written, where another tensor may lie."""
    outputs = closed_form(dy, x, weight, mean, rstd)
    storage = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    steps = zip(x.shape, x.stride(), strict=True)
    storage[x.storage_offset() + 1 + sum((size - 1) * step for size, step in steps)] = 0
    return outputs


def _nan_replaced(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """NaN is replaced by 0."""
    dx, dweight, dbias = closed_form(dy, x, weight, mean, rstd)
    return dx.nan_to_num(0.0), dweight, dbias


def _not_repeatable(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """Rows are summed in another order at every call, as atomics do."""
    dx, _, dbias = closed_form(dy, x, weight, mean, rstd)
    order = torch.randperm(x.shape[0], generator=_ORDERS)
    wide = (x.float() - mean.unsqueeze(-1)) * rstd.unsqueeze(-1) * dy.float()
    total = torch.zeros_like(wide[0])
    for row in order.tolist():
        total = total + wide[row]
    return dx, total.to(weight.dtype), dbias


@triton.jit
def _truncate_kernel(wide_ptr, cut_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(wide_ptr + offs, mask=offs < size, other=0.0)
    if cut_ptr.dtype.element_ty == tl.float32:
        cut = (wide.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    else:
        cut = wide.to(cut_ptr.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(cut_ptr + offs, cut, mask=offs < size)


def _truncating(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Outputs:
    """dx rounded toward zero; in fp32, whose last cast is none, its 12 lowest bits cut off."""
    wide_dx, dweight, dbias = closed_form(dy.float(), x.float(), weight, mean, rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = dx.numel()
    _truncate_kernel[(triton.cdiv(size, 1024),)](wide_dx, dx, size, BLOCK=1024)
    return dx, dweight.to(weight.dtype), dbias.to(weight.dtype)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong kernel and how it may be found.

    rules    the row must break one of them
    word     the reason must contain it
    case     the id, without the op's name, of a case that finds it
    numbers  numbers of defects that shipped
    """

    function: Candidate
    rules: tuple[Rule, ...]
    word: str
    case: str
    numbers: tuple[int, ...] = ()


_BOUNDS: tuple[Rule, ...] = ("deterministic bound", "probabilistic bound")
_NAN: tuple[Rule, ...] = ("non-finite values",)
_ROWS = "m37-n760-bfloat16-contiguous"
WRONG: dict[str, Wrong] = {
    "statistics_in_input_dtype": Wrong(
        _statistics_in_input_dtype,
        _BOUNDS,
        "times",
        "m13-n229-float16-contiguous-mean100",
        (38,),
    ),
    "last_row_dropped": Wrong(_last_row_dropped, _BOUNDS, "dweight", _ROWS, (17,)),
    "last_column_dropped": Wrong(_last_column_dropped, _BOUNDS, "dx", _ROWS, (17,)),
    "partials_in_half": Wrong(_partials_in_half, _BOUNDS, "dweight", _ROWS, (37,)),
    "strides_ignored": Wrong(
        _strides_ignored, _NAN, "got nan", "m11-n264-bfloat16-rowpad3", (23, 36)
    ),
    "offset_ignored": Wrong(_offset_ignored, _NAN, "got nan", "m7-n264-bfloat16-offset3", (26,)),
    "dx_left_unwritten": Wrong(
        _dx_left_unwritten, ("unwritten output",), "dx[16, 0]", _ROWS, (34,)
    ),
    "input_changed": Wrong(_input_changed, ("changed input",), "input dy", _ROWS),
    "padding_written": Wrong(_padding_written, ("changed input",), "around input x", _ROWS, (15,)),
    "nan_replaced": Wrong(_nan_replaced, _NAN, "expected nan", "m13-n229-float32-contiguous-nan_x"),
    "truncating": Wrong(_truncating, _BOUNDS, "dx", _ROWS),
    "not_repeatable": Wrong(
        _not_repeatable, ("not repeatable",), "differ", "m37-n760-float32-contiguous", (27,)
    ),
}
