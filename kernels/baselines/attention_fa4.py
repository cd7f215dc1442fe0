"""`flash_attention_4`: FlashAttention-4's kernels in the CuTe DSL, where flash-attn-4 is installed.

They take (b, s, h, d) as it is, with fewer heads of keys than of queries, and sequences one after
the other as [total, h, d]. Positions count from the bottom right corner always. Each is compiled at
its first call, for seconds. In the backward dq, and with fewer heads of keys dk and dv too, are
added up in fp32 by atomics.

Source: Dao-AILab/flash-attention, flash_attn/cute/interface.py (4.0.0b36).
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import Gradients, PeerOptions, reject_corner
from kernel_workbench.kernels.baselines.attention_flash import HALVES, SIZES
from kernel_workbench.kernels.baselines.optional import peer
from kernel_workbench.kernels.registry import Domain
from kernel_workbench.oracles import ATTENTION_BACKWARD, ATTENTION_FORWARD
from kernel_workbench.oracles.op import Numerics

_FORWARD = Numerics(accumulation_roundoff=2.0**-23, key_tile=16)
_BACKWARD = Numerics(accumulation_roundoff=2.0**-23, key_tile=16, bitwise_repeatable=False)
_DOMAIN = Domain(
    dtypes=HALVES,
    alignment=16,
    sm=(90, 121),
    sizes=SIZES | {"d": (8, 256)},
    features=frozenset({"causal", "bottom_right", "window", "varlen", "gqa", "scale"}),
    devices=("cuda",),
    also=reject_corner,
)


def _interface() -> Any:  # noqa: ANN401
    return import_module("flash_attn.cute.interface")


def _settings(options: PeerOptions) -> dict[str, object]:
    """Return the options by the names of both directions."""
    left, right = options.window or (None, None)
    return {
        "softmax_scale": options.scale,
        "causal": options.causal,
        "window_size_left": left,
        "window_size_right": right,
        "cu_seqlens_q": options.cu_seqlens_q,
        "cu_seqlens_k": options.cu_seqlens_k,
        "max_seqlen_q": options.max_seqlen_q,
        "max_seqlen_k": options.max_seqlen_k,
    }


def forward(q: Tensor, k: Tensor, v: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    """Compute out and lse; dense, or for sequences one after the other."""
    options = PeerOptions.of(given)
    varlen = options.cu_seqlens_q is not None
    operands = [operand[0] for operand in (q, k, v)] if varlen else [q, k, v]
    called = _interface()._flash_attn_fwd  # noqa: SLF001  (what flash_attn_func calls)
    out, lse, *_ = called(*operands, return_lse=True, **_settings(options))
    return (out[None], lse[None]) if varlen else (out, lse)


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **given: object
) -> Gradients:
    """Compute dq, dk and dv from the given out and lse."""
    options = PeerOptions.of(given)
    varlen = options.cu_seqlens_q is not None
    operands = (
        [tensor[0] for tensor in (q, k, v, out, do, lse)] if varlen else [q, k, v, out, do, lse]
    )
    called = _interface()._flash_attn_bwd  # noqa: SLF001  (what flash_attn_func's backward calls)
    gradients = called(*operands[:5], operands[5].contiguous(), **_settings(options))[:3]
    dq, dk, dv = (tensor[None] for tensor in gradients) if varlen else gradients
    return dq, dk, dv, None, None


_PEERS = ((ATTENTION_FORWARD, forward, _FORWARD), (ATTENTION_BACKWARD, backward, _BACKWARD))
try:
    version("flash-attn-4")
    _installed = True
except PackageNotFoundError:
    _installed = False
for _op, _function, _numerics in _PEERS:
    peer(
        _op,
        _function,
        _DOMAIN,
        name="flash_attention_4",
        numerics=_numerics,
        priority=-13,
        installed=_installed,
        package="--pre flash-attn-4",
    )
