"""`torch_flash_cpu`: PyTorch's fused attention on a CPU, `aten._scaled_dot_product_..._for_cpu`.

It takes (b, h, s, d), as a view of a (b, s, h, d) tensor, with fewer heads of keys than of queries,
and counts positions from the top left corner. A bias has no gradient here: the operator treats it
as a mask. Tensors without elements end the process by a division by zero, and a last axis that
isn't adjacent gives wrong results (2.13.0); SDPA refuses both before it calls this operator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import (
    BROADCAST_BIAS,
    Gradients,
    reject_bottom_right,
)
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD

_ATEN = torch.ops.aten
_FORWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001  (has no public name)
_BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001  (likewise)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CPU_SIZES: dict[str, tuple[int, int | None]] = {
    "b": (1, None), "h_q": (1, None), "s_q": (1, None), "s_kv": (1, None), "d": (1, None),
}  # fmt: skip


@kernel(
    ATTENTION_FORWARD,
    Domain(
        dtypes=DTYPES,
        strides="rows",
        sizes=CPU_SIZES,
        features=BROADCAST_BIAS | {"causal", "bottom_right", "gqa", "scale"},
        devices=("cpu",),
        also=reject_bottom_right,
    ),
    priority=-12,
)
def torch_flash_cpu(
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
    out, lse = _FORWARD(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        0.0,
        causal,
        attn_mask=bias,
        scale=scale,
    )
    return out.transpose(1, 2), lse


@kernel(
    ATTENTION_BACKWARD,
    Domain(
        dtypes=DTYPES,
        strides="rows",
        sizes=CPU_SIZES,
        features=frozenset({"causal", "bottom_right", "gqa", "scale"}),
        devices=("cpu",),
        also=reject_bottom_right,
    ),
    priority=-12,
    name="torch_flash_cpu",
)
def flash_cpu_backward(
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
    dq, dk, dv = _BACKWARD(
        do.transpose(1, 2),
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        out.transpose(1, 2),
        lse,
        0.0,
        causal,
        scale=scale,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), None, None
