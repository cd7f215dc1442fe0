"""`torch_flash`: PyTorch's build of FlashAttention-2, through `aten._flash_attention_*`.

The operators take (b, s, h, d) as it is, with fewer heads of keys than of queries, and sequences
one after the other as [total, h, d]. Positions count from the bottom right corner always. A query
without keys has lse +inf here, instead of the contract's -inf; if there may be such a query, lse is
corrected, with as little timed work as possible.

PyTorch's build lacks ALiBi.

Sources: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp
(refusals; dk and dv summed over a group in 16 bits).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import (
    Gradients,
    PeerOptions,
    may_lack_keys,
    packed,
    reject_corner,
    undrawn,
)
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD
from kernel_workbench.oracles.op import Numerics

_ATEN = torch.ops.aten
_FORWARD = _ATEN._flash_attention_forward  # noqa: SLF001  (has no public name)
_BACKWARD = _ATEN._flash_attention_backward  # noqa: SLF001  (likewise)

HALVES = (torch.float16, torch.bfloat16)
SM = (80, 121)
# b and the heads are a grid's y and z. SDPA, one level up, refuses tensors without elements.
SIZES = {"b": (1, 65535), "h_q": (1, 65535), "s_q": (1, None), "s_kv": (1, None)}

# 64 keys a tile on sm 80 and 90, but 32 on sm 86 and 89 at d = 128.
FORWARD = Numerics(accumulation_roundoff=2.0**-23, key_tile=32)
# dq is added up by atomics, and dk, dv leave each query head in the half.
BACKWARD = Numerics(
    accumulation_roundoff=2.0**-23, key_tile=32, casts="partials", bitwise_repeatable=False
)
_FEATURES = frozenset({"causal", "bottom_right", "window", "varlen", "gqa", "scale"})


def _limits(options: PeerOptions) -> dict[str, int | None]:
    """Return the window by the operators' names; they limit a causal mask themselves."""
    left, right = options.window or (None, None)
    return {"window_size_left": left, "window_size_right": 0 if options.causal else right}


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=HALVES,
        alignment=16,
        sm=SM,
        sizes=SIZES | {"d": (8, 256)},
        features=_FEATURES,
        devices=("cuda",),
        also=reject_corner,
    ),
    numerics=FORWARD,
    priority=-12,
    profiled=True,
)
def torch_flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **given: object,
) -> tuple[Tensor, Tensor]:
    """Compute out and lse; dense, or for sequences one after the other."""
    options = PeerOptions.of(given)
    varlen = options.cu_seqlens_q is not None
    operands = tuple(tensor[0] for tensor in (q, k, v)) if varlen else (q, k, v)
    out, lse, *_ = _FORWARD(
        *operands,
        options.cu_seqlens_q,
        options.cu_seqlens_k,
        options.max_seqlen_q if varlen else q.shape[1],
        options.max_seqlen_k if varlen else k.shape[1],
        0.0,
        options.causal,
        return_debug_mask=False,
        scale=options.scale,
        **_limits(options),
    )
    if varlen:
        out, lse = out[None], lse[None]  # lse [h, total] without padding
    mask = replace(options.mask, corner="bottom_right")
    if may_lack_keys(mask, q, k, options.cu_seqlens_q):
        lse = lse.masked_fill(lse == math.inf, -math.inf)
    return out, lse


@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=HALVES,
        alignment=16,
        unaligned=frozenset({"do", "out"}),
        sm=SM,
        sizes=SIZES | {"d": (8, 256)},
        features=_FEATURES,
        devices=("cuda",),
        also=reject_corner,
    ),
    numerics=BACKWARD,
    priority=-12,
    name="torch_flash",
    profiled=True,
)
def flash_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    **given: object,
) -> Gradients:
    """Compute dq, dk and dv from the given out and lse."""
    options = PeerOptions.of(given)
    varlen = options.cu_seqlens_q is not None
    mask = replace(options.mask, corner="bottom_right")
    dead_rows = may_lack_keys(mask, q, k, options.cu_seqlens_q)
    statistics = lse.masked_fill(lse == -math.inf, math.inf) if dead_rows else lse.contiguous()
    tensors = (packed(do), q, k, v, packed(out), statistics)
    operands = tuple(tensor[0] for tensor in tensors) if varlen else tensors
    state = undrawn((2,), torch.uint64, q.device)
    dq, dk, dv = _BACKWARD(
        *operands,
        options.cu_seqlens_q,
        options.cu_seqlens_k,
        options.max_seqlen_q if varlen else q.shape[1],
        options.max_seqlen_k if varlen else k.shape[1],
        0.0,
        options.causal,
        state,
        state,
        scale=options.scale,
        **_limits(options),
    )
    if varlen:
        dq, dk, dv = dq[None], dk[None], dv[None]
    return dq, dk, dv, None, None
