"""Attention end to end through PyTorch's autograd, as a model that calls SDPA gets it.

`torch_math` stores all scores, with halves widened to fp32, and adds any mask as a tensor to them.
The others are `scaled_dot_product_attention` restricted to one backend, within its public limits:
one causal corner, no mask beside it, no window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernel_workbench.kernels.baselines import (
    attention_cpu,
    attention_cudnn,
    attention_efficient,
    attention_flash,
)
from kernel_workbench.kernels.baselines.attention_call import (
    BROADCAST_BIAS,
    Gradients,
    PeerOptions,
    packed,
    reject_bottom_right,
    reject_reach,
)
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_GRADIENTS
from kernel_workbench.oracles.op import Case

_MATH = torch.ops.aten._scaled_dot_product_attention_math  # noqa: SLF001  (has no public name)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MOST_SCORES = 2**27  # autograd keeps several tensors of this size
_MOST_ELEMENTS = 2**28

# From q, k, v and bias, heads first, to out.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def differentiate(
    attend: Attend, do: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None
) -> Gradients:
    """Return the gradients of `attend`'s output with respect to q, k, v [b, s, h, d] and bias."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    bias = None if bias is None else bias.detach().requires_grad_()
    wanted = [q, k, v] if bias is None else [q, k, v, bias]
    with torch.enable_grad():
        out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias)
        dq, dk, dv, *rest = torch.autograd.grad(out, wanted, packed(do).transpose(1, 2))
    return dq, dk, dv, rest[0] if rest else None, None


def _reject_math(case: Case) -> str | None:
    """Return the refusal of more scores, or larger tensors, than fit into memory, or None."""
    b, h_q, s_q, s_kv = (case.size(name) for name in ("b", "h_q", "s_q", "s_kv"))
    scores = b * h_q * s_q * s_kv
    if scores > _MOST_SCORES:
        return f"holds all scores at once, at most {_MOST_SCORES}, got {scores}"
    elements = b * h_q * max(s_q, s_kv) * max(case.size("d"), case.size("d_v"))
    if elements > _MOST_ELEMENTS:
        return f"widens its operands, of at most {_MOST_ELEMENTS} elements, got {elements}"
    return None


def _added(
    s_q: int, s_kv: int, bias: Tensor | None, options: PeerOptions, device: torch.device
) -> Tensor | None:
    """Return the term added to the scores, [.., s_q, s_kv] in fp32; None: a flag is enough."""
    alone = bias is None and options.alibi_slopes is None
    if alone and options.window is None and (options.corner == "top_left" or not options.causal):
        return None
    added = torch.zeros(s_q, s_kv, device=device) if bias is None else bias.float()
    if options.alibi_slopes is not None:
        shift = options.mask.shift(s_q, s_kv)
        position = torch.arange(s_q, device=device)[:, None] + shift
        distance = (position - torch.arange(s_kv, device=device)).abs()
        added = added - options.alibi_slopes[:, None, None] * distance
    pairs = options.mask.pairs(s_q, s_kv, device)
    return added if pairs is None else added.masked_fill(~pairs, -math.inf)


@kernel(
    ATTENTION_GRADIENTS,
    Domain(
        dtypes=_DTYPES,
        features=frozenset(ATTENTION_GRADIENTS.options)
        - {"softcap", "sink", "dropout", "torch_dropout", "varlen"},
        also=_reject_math,
    ),
    priority=-15,
)
def torch_math(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Compute gradients through `aten._scaled_dot_product_attention_math`, which returns no lse."""
    options = PeerOptions.of(given)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        added = _added(q.shape[2], k.shape[2], bias, options, q.device)
        out, _ = _MATH(
            q,
            k,
            v,
            added,
            is_causal=options.causal and added is None,
            scale=options.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return torch.as_tensor(out)

    return differentiate(attend, do, q, k, v, options.bias)


def _through(
    backend: SDPBackend, do: Tensor, q: Tensor, k: Tensor, v: Tensor, options: PeerOptions
) -> Gradients:
    """Compute the gradients of SDPA, which raises if `backend` doesn't serve the call."""

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        with sdpa_kernel([backend]):
            return torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=bias,
                is_causal=options.causal,
                scale=options.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )

    return differentiate(attend, do, q, k, v, options.bias)


def _reject_flash(case: Case) -> str | None:
    if "causal" in case.options and case.size("s_q") != case.size("s_kv"):
        lengths = f"got s_q = {case.size('s_q')} and s_kv = {case.size('s_kv')}"
        return f"is refused causal masks of unequal lengths by SDPA, {lengths}"
    return None


def _reject_efficient(case: Case) -> str | None:
    if {"causal", "bias"} <= case.options:
        return "is refused a mask and a causal flag together by SDPA"
    return (
        reject_bottom_right(case)
        or attention_efficient.reject_bias_pointer(case)
        or reject_reach(case, "sh")
    )


@kernel(
    ATTENTION_GRADIENTS,
    Domain(
        dtypes=attention_flash.HALVES,
        alignment=16,
        unaligned=frozenset({"do"}),
        sm=attention_flash.SM,
        sizes=attention_flash.SIZES | {"d": (8, 256)},
        features=frozenset({"causal", "bottom_right", "gqa", "scale"}),
        devices=("cuda",),
        also=_reject_flash,
    ),
    numerics=attention_flash.BACKWARD,
    priority=-12,
    name="torch_flash",
)
def sdpa_flash(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Restrict SDPA to its flash backend."""
    return _through(SDPBackend.FLASH_ATTENTION, do, q, k, v, PeerOptions.of(given))


@kernel(
    ATTENTION_GRADIENTS,
    Domain(
        dtypes=attention_efficient.DTYPES,
        alignment=16,
        unaligned=frozenset({"do", "bias"}),
        sm=attention_flash.SM,
        sizes=attention_flash.SIZES,
        features=BROADCAST_BIAS | {"causal", "bottom_right", "scale", "unequal_d"},
        devices=("cuda",),
        also=_reject_efficient,
    ),
    numerics=attention_efficient.BACKWARD,
    priority=-13,
    name="torch_efficient",
)
def sdpa_efficient(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Restrict SDPA to its memory-efficient backend, for which it pads a bias to whole vectors."""
    return _through(SDPBackend.EFFICIENT_ATTENTION, do, q, k, v, PeerOptions.of(given))


@kernel(
    ATTENTION_GRADIENTS,
    Domain(
        dtypes=attention_flash.HALVES,
        alignment=16,
        unaligned=frozenset({"do"}),
        sm=attention_cudnn.SM,
        sizes=attention_cudnn.CUDNN_SIZES,
        features=frozenset({"causal", "bottom_right", "gqa", "scale", "unequal_d"}),
        devices=("cuda",),
        also=attention_cudnn.reject_backward,
    ),
    numerics=attention_cudnn.BACKWARD,
    priority=-11,
    name="torch_cudnn",
)
def sdpa_cudnn(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Restrict SDPA to its cuDNN backend."""
    return _through(SDPBackend.CUDNN_ATTENTION, do, q, k, v, PeerOptions.of(given))


@kernel(
    ATTENTION_GRADIENTS,
    Domain(
        dtypes=_DTYPES,
        strides="rows",
        sizes=attention_cpu.CPU_SIZES,
        features=frozenset({"causal", "bottom_right", "gqa", "scale"}),
        devices=("cpu",),
        also=reject_bottom_right,
    ),
    priority=-12,
    name="torch_flash_cpu",
)
def sdpa_flash_cpu(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Restrict SDPA to the fused backend of a CPU."""
    return _through(SDPBackend.FLASH_ATTENTION, do, q, k, v, PeerOptions.of(given))
