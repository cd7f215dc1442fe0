"""`torch_cudnn`: cuDNN's attention, through `aten._scaled_dot_product_cudnn_attention`.

It takes (b, h, s, d), as a view of a (b, s, h, d) tensor, with fewer heads of keys than of queries.
Its only corner is the top left. A bias has no gradient here: its operator returns none.

Sources: pytorch/pytorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (refusals:
check_cudnn_*) and aten/src/ATen/native/cudnn/MHA.cpp.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import (
    BROADCAST_BIAS,
    Gradients,
    packed,
    reject_bottom_right,
    reject_reach,
    undrawn,
)
from kernel_workbench.kernels.baselines.attention_efficient import reject_bias
from kernel_workbench.kernels.baselines.attention_flash import HALVES, SIZES
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD
from kernel_workbench.oracles.op import Case, Numerics

_ATEN = torch.ops.aten
_FORWARD = _ATEN._scaled_dot_product_cudnn_attention  # noqa: SLF001  (has no public name)
_BACKWARD = _ATEN._scaled_dot_product_cudnn_attention_backward  # noqa: SLF001  (likewise)

# The GPUs on which PyTorch prefers it, and on which heads may be wider than 128.
SM = (90, 109)
CUDNN_SIZES = SIZES | {"s_kv": (2, None), "d": (8, 256), "d_v": (8, 256)}

# Its tile isn't published. Seen on an H200: a single query's lse differs from call to call, and
# with grouped heads dk and dv of a few 1e-6 pass the bound of heads that are summed in fp32.
FORWARD = Numerics(accumulation_roundoff=2.0**-23, key_tile=32, bitwise_repeatable=False)
BACKWARD = replace(FORWARD, casts="partials")


def _reject_forward(case: Case) -> str | None:
    return reject_bottom_right(case) or reject_bias(case) or reject_reach(case, "bsh")


def reject_backward(case: Case) -> str | None:
    """Return the refusal of head sizes without a backward, or of the bottom right corner."""
    d, d_v = case.size("d"), case.size("d_v")
    if max(d, d_v) > 128 and (d, d_v) not in {(192, 128), (256, 256)}:
        return f"has a backward for heads up to 128, (192, 128) and 256, got d {d} and d_v {d_v}"
    return reject_bottom_right(case) or reject_reach(case, "bsh")


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=HALVES,
        alignment=16,
        unaligned=frozenset({"bias"}),
        sm=SM,
        sizes=CUDNN_SIZES,
        features=BROADCAST_BIAS | {"causal", "bottom_right", "gqa", "scale", "unequal_d"},
        devices=("cuda",),
        also=_reject_forward,
    ),
    numerics=FORWARD,
    priority=-11,
    profiled=True,
)
def torch_cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    corner: str = "top_left",  # noqa: ARG001  (the domain holds it to where there is but one)
    bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute out and lse."""
    out, lse, *_ = _FORWARD(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        bias,
        compute_log_sumexp=True,
        is_causal=causal,
        scale=scale,
    )
    return out.transpose(1, 2), lse.reshape(q.shape[0], q.shape[2], q.shape[1])


@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=HALVES,
        alignment=16,
        unaligned=frozenset({"do", "out"}),
        sm=SM,
        sizes=CUDNN_SIZES,
        features=frozenset({"causal", "bottom_right", "gqa", "scale", "unequal_d"}),
        devices=("cuda",),
        also=reject_backward,
    ),
    numerics=BACKWARD,
    priority=-11,
    name="torch_cudnn",
    profiled=True,
)
def cudnn_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    corner: str = "top_left",  # noqa: ARG001  (as in the forward)
    scale: float | None = None,
) -> Gradients:
    """Compute dq, dk and dv from the given out and lse."""
    state = undrawn((), torch.int64, q.device)
    dq, dk, dv = _BACKWARD(
        packed(do).transpose(1, 2),
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        packed(out).transpose(1, 2),
        lse[..., None],
        state,
        state,
        None,
        None,
        None,
        q.shape[1],
        k.shape[1],
        0.0,
        causal,
        scale=scale,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), None, None
