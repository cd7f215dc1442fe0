"""`torch_efficient`: PyTorch's memory-efficient attention, through `aten._efficient_attention_*`.

Its conventions, and what is done about them: lse is padded along the queries to a multiple of 32,
[n, h, padded] under varlen, with +inf past the end; a query without keys has lse 0, in place of the
contract's -inf (what a bias of -inf leaves without keys is left as it comes); the tiles that a mask
hides whole are never written in dbias, which is zero there. A window of w means the w keys up to
the query's own, and needs a causal mask. Dropout draws from PyTorch's generator, which is set and
set back.

Sources: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu
and mem_eff_attention/kernel_forward.h, kernel_backward.h: what they refuse; that V's alignment is
loaded by but not asked for in the forward; that P and dP - D are cast before their product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import (
    BROADCAST_BIAS,
    Gradients,
    KeyMask,
    PeerOptions,
    may_lack_keys,
    packed,
    reduced_like,
    reject_reach,
    spans,
)
from kernel_workbench.kernels.baselines.attention_flash import SIZES, SM
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD
from kernel_workbench.oracles.attention.geometry import geometry
from kernel_workbench.oracles.op import Case, Numerics

_ATEN = torch.ops.aten
_FORWARD = _ATEN._efficient_attention_forward  # noqa: SLF001  (has no public name)
_BACKWARD = _ATEN._efficient_attention_backward  # noqa: SLF001  (likewise)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_VECTOR_BYTES = 16
_LSE_MULTIPLE = 32

# fp32 products are three tf32 ones, of a number's leading bits and the rest: nearly fp32's. The
# narrowest tile has 64 keys.
FORWARD = Numerics(accumulation_roundoff=2.0**-23, key_tile=64)
# Keys are split over programs that add up dq in the order they come.
BACKWARD = Numerics(
    accumulation_roundoff=2.0**-23,
    key_tile=64,
    casts="factors bias_gradient",
    bitwise_repeatable=False,
)


def reject_bias_pointer(case: Case) -> str | None:
    """Return the refusal of a bias off a 16-byte address, or with a strided last axis, or None."""
    bias = geometry(case).get("bias")
    if bias is None:
        return None
    if bias.strides[3] != 1 and bias.shape[3] > 1:
        return f"needs an adjacent last axis, got a stride of {bias.strides[3]} there in bias"
    width = _VECTOR_BYTES // case.dtype.itemsize
    if bias.offset % width:
        return f"needs 16-byte pointers, got bias offset by {bias.offset} elements"
    return None


def reject_bias(case: Case) -> str | None:
    """Return the refusal of a bias whose other axes aren't multiples of 16 bytes, or None."""
    bias = geometry(case).get("bias")
    if bias is None:
        return None
    width = _VECTOR_BYTES // case.dtype.itemsize
    for axis in range(3):
        stride = bias.strides[axis]
        if bias.shape[axis] > 1 and stride % width:
            return f"needs 16-byte strides, got a stride of {stride} along axis {axis} of bias"
    return reject_bias_pointer(case)


def _reject_window(case: Case) -> str | None:
    if "window" not in case.options or "causal" in case.options:
        return None
    right = dict(case.sizes).get("window_right")
    if right == 0:
        return None
    ahead = "without a right limit" if right is None else f"{right} keys ahead"
    return f"serves windows under a causal mask alone, got one {ahead}"


def _reject_positions(case: Case) -> str | None:
    """Return the refusal of rows off 16 bytes, which the operators refuse even for one row."""
    width = _VECTOR_BYTES // case.dtype.itemsize
    for name in ("q", "k", "v"):
        stride = geometry(case)[name].strides[1]
        if stride % width:
            return f"needs 16-byte strides, got a stride of {stride} along axis 1 of {name}"
    return None


def _reject(case: Case) -> str | None:
    if {"torch_dropout", "varlen"} <= case.options:
        return "draws another mask under varlen than the one for (b, h, s_q, s_kv)"
    reason = reject_bias(case) or _reject_window(case) or _reject_positions(case)
    return reason or reject_reach(case, "sh")


_DOMAIN = Domain(
    dtypes=DTYPES,
    alignment=_VECTOR_BYTES,
    unaligned=frozenset({"do", "out", "bias"}),
    sm=SM,
    sizes=SIZES,
    features=BROADCAST_BIAS
    | {"causal", "bottom_right", "window", "torch_dropout", "varlen", "scale", "unequal_d"},
    devices=("cuda",),
    also=_reject,
)


def _mask_type(mask: KeyMask) -> int:
    """Return 0 without a mask, 1 for causal from the top left, 2 from the bottom right."""
    _, right = mask.window or (None, None)
    if not mask.causal and right != 0:
        return 0
    return 2 if mask.corner == "bottom_right" else 1


def _window(mask: KeyMask) -> dict[str, int]:
    """Return the operator's window, if any: a number of keys, the query's own among them."""
    left, _ = mask.window or (None, None)
    return {} if left is None else {"window_size": left + 1}


@contextmanager
def _drawing_from(seed: int, p: float, device: torch.device) -> Iterator[None]:
    """Set PyTorch's generator to the start of the stream of `seed`; restore it after."""
    if not p:
        yield
        return
    with torch.random.fork_rng(devices=[device]), torch.cuda.device(device):
        torch.cuda.manual_seed(seed)
        yield


def _expanded(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return the bias as (b, h_q, s_q, s_kv), a view along broadcast axes."""
    if bias is None:
        return None
    return bias.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])


def _forbid_rows_without_keys(lse: Tensor, mask: KeyMask, s_kv: int) -> None:
    """Set lse [..., s_q] of queries without keys to -inf, in place."""
    lse.masked_fill_(mask.rows_without_keys(lse.shape[-1], s_kv, lse.device), -math.inf)


@kernel(
    ATTENTION_FORWARD,
    _DOMAIN,
    numerics=FORWARD,
    priority=-13,
)
def torch_efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **given: object,
) -> tuple[Tensor, Tensor]:
    """Compute out and lse. Raises RuntimeError if dropout drew from another state than was set."""
    options = PeerOptions.of(given)
    mask = options.mask
    with _drawing_from(options.dropout_seed, options.dropout_p, q.device):
        out, padded, seed, offset, *_ = _FORWARD(
            q,
            k,
            v,
            _expanded(options.bias, q, k),
            options.cu_seqlens_q,
            options.cu_seqlens_k,
            options.max_seqlen_q,
            options.max_seqlen_k,
            options.dropout_p,
            _mask_type(mask),
            compute_log_sumexp=True,
            scale=options.scale,
            **_window(mask),
        )
    if options.dropout_p and (int(seed), int(offset)) != (options.dropout_seed, 0):
        raise RuntimeError(
            f"dropout drew from seed {int(seed)}, offset {int(offset)}, "
            f"not from seed {options.dropout_seed}, offset 0"
        )
    if options.cu_seqlens_q is None or options.cu_seqlens_k is None:
        lse = padded[:, :, : q.shape[1]]
        if mask.leaves_rows_without_keys(q.shape[1], k.shape[1]):
            _forbid_rows_without_keys(lse, mask, k.shape[1])
        return out, lse
    lse = q.new_empty((1, q.shape[2], q.shape[1]), dtype=torch.float32)
    for index, (rows, keys) in enumerate(spans(options.cu_seqlens_q, options.cu_seqlens_k)):
        own = lse[0, :, rows]
        own.copy_(padded[index, :, : own.shape[1]])
        _forbid_rows_without_keys(own, mask, keys.stop - keys.start)
    return out, lse


def _padded(lse: Tensor, options: PeerOptions, *, dead_rows: bool) -> Tensor:
    """Return lse as the backward reads it: [n, h, a multiple of 32], +inf past each sequence's end.

    dead_rows: some queries may have no keys.
    """
    cu_seqlens_q, cu_seqlens_k = options.cu_seqlens_q, options.cu_seqlens_k
    # A query without keys: exp(-inf - 0) is the zero that exp(-inf - (-inf)) is not.
    finite = lse.masked_fill(lse == -math.inf, 0.0) if dead_rows else lse.contiguous()
    if cu_seqlens_q is None or cu_seqlens_k is None or options.max_seqlen_q is None:
        missing = -lse.shape[2] % _LSE_MULTIPLE
        return torch.nn.functional.pad(finite, (0, missing), value=math.inf) if missing else finite
    sequences = cu_seqlens_q.numel() - 1
    length = options.max_seqlen_q + -options.max_seqlen_q % _LSE_MULTIPLE
    padded = lse.new_full((sequences, lse.shape[1], length), math.inf)
    for index, (rows, _) in enumerate(spans(cu_seqlens_q, cu_seqlens_k)):
        padded[index, :, : rows.stop - rows.start] = finite[0, :, rows]
    return padded


@kernel(
    ATTENTION_BACKWARD,
    _DOMAIN,
    numerics=BACKWARD,
    priority=-13,
    name="torch_efficient",
)
def efficient_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: object,
) -> Gradients:
    """Compute dq, dk, dv and dbias from the given out and lse."""
    options = PeerOptions.of(given)
    mask, bias = options.mask, options.bias
    # A bias of -inf leaves a query without keys too.
    dead_rows = bias is not None or may_lack_keys(mask, q, k, options.cu_seqlens_q)
    dq, dk, dv, dbias = _BACKWARD(
        packed(do),
        q,
        k,
        v,
        _expanded(bias, q, k),
        packed(out),
        options.cu_seqlens_q,
        options.cu_seqlens_k,
        q.shape[1] if options.max_seqlen_q is None else options.max_seqlen_q,
        k.shape[1] if options.max_seqlen_k is None else options.max_seqlen_k,
        _padded(lse, options, dead_rows=dead_rows),
        options.dropout_p,
        torch.tensor(options.dropout_seed),
        torch.tensor(0),
        _mask_type(mask),
        bias is not None,
        scale=options.scale,
        **_window(mask),
    )
    if bias is None:
        return dq, dk, dv, None, None
    pairs = mask.pairs(q.shape[1], k.shape[1], q.device)
    if pairs is not None:
        dbias = dbias.masked_fill(~pairs, 0.0)
    return dq, dk, dv, reduced_like(dbias, bias), None
