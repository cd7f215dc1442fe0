"""`flex_attention`: PyTorch's attention generated from Python functions of a score and its place.

Each case is compiled anew, which takes seconds: so its domain is a few lengths, which only long
cases of the `full` tier have. Without compiling it would store all scores, and isn't measured. Its
lse is natural.

Source: pytorch/pytorch, torch/nn/attention/flex_attention.py and torch/_inductor/kernel/flex.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernel_workbench.kernels.baselines.attention_call import Gradients, KeyMask, PeerOptions
from kernel_workbench.kernels.baselines.attention_flash import HALVES, SM
from kernel_workbench.kernels.baselines.attention_sdpa import differentiate
from kernel_workbench.kernels.baselines.compilation import compiled, unwatched
from kernel_workbench.kernels.registry import Domain, kernel
from kernel_workbench.oracles import ATTENTION_FORWARD, ATTENTION_GRADIENTS
from kernel_workbench.oracles.op import Case, Numerics

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# The lengths of `bench`; about ten cases of `full` for each op take ten seconds each.
_LENGTHS = (1024, 16384)
_HEADS = frozenset({16, 32, 64, 128, 256})

# Its tiles are the generator's choice; none has fewer keys than a tensor core's product.
_NUMERICS = Numerics(accumulation_roundoff=2.0**-23, key_tile=16)


def _reject(case: Case) -> str | None:
    d, d_v = case.size("d"), case.size("d_v")
    if {d, d_v} <= _HEADS:
        return None
    return f"is compiled for heads of 16, 32, 64, 128 and 256 alone, got d {d} and d_v {d_v}"


_DOMAIN = Domain(
    dtypes=HALVES,
    strides="rows",
    sm=SM,
    sizes={"s_q": _LENGTHS, "s_kv": _LENGTHS, "b": (1, 65535), "h_q": (1, 65535)},
    features=frozenset(
        {"causal", "bottom_right", "window", "alibi", "softcap", "gqa", "scale", "unequal_d"}
    ),
    devices=("cuda",),
    also=_reject,
)


def _score_mod(options: PeerOptions, shift: int) -> Callable[..., Tensor] | None:
    """Return a function from scale q.k to the score of a pair; None: they are equal."""
    softcap, slopes = options.softcap, options.alibi_slopes
    if softcap is None and slopes is None:
        return None

    def modified(score: Tensor, _b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[h] * (i + shift - j).abs()
        return score

    return modified


@lru_cache(maxsize=16)
def _block_mask(mask: KeyMask, s_q: int, s_kv: int, device: torch.device) -> BlockMask | None:
    """Return the tiles with pairs that are attended to; None: all.

    The result is cached, as a model does for all of its layers and steps: it depends on no value,
    and computing it takes longer than the attention.
    """
    left, right = mask.reach
    if left is None and right is None:
        return None
    from torch.nn.attention.flex_attention import (  # noqa: PLC0415  (takes a second)
        create_block_mask,
    )

    back = s_q + s_kv if left is None else left
    ahead = s_q + s_kv if right is None else right
    shift = mask.shift(s_q, s_kv)

    def attended(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = j - i - shift
        return (distance >= -back) & (distance <= ahead)

    return create_block_mask(attended, None, None, s_q, s_kv, device=device)


def _compiled(*specialised_to: object) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415  (takes a second)

    return compiled(flex_attention, *specialised_to)


def _attend(q: Tensor, k: Tensor, v: Tensor, options: PeerOptions) -> tuple[Tensor, Tensor]:
    """Compute out and lse of q, k, v, heads first."""
    from torch.nn.attention.flex_attention import AuxRequest  # noqa: PLC0415  (takes a second)

    s_q, s_kv = q.shape[2], k.shape[2]
    shift = options.mask.shift(s_q, s_kv)
    block_mask = _block_mask(options.mask, s_q, s_kv, q.device)
    laid_out = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in (q, k, v))
    numbers = (options.scale, options.softcap, options.causal, options.window, shift)
    flags = (options.alibi_slopes is None, q.requires_grad)
    out, aux = _compiled(laid_out, numbers, flags)(
        q,
        k,
        v,
        score_mod=_score_mod(options, shift),
        block_mask=block_mask,
        scale=options.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return out, aux.lse


@kernel(ATTENTION_FORWARD, _DOMAIN, numerics=_NUMERICS, priority=-14)
def flex_attention(q: Tensor, k: Tensor, v: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    """Compute out and lse, compiled."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    with unwatched():
        out, lse = _attend(q, k, v, PeerOptions.of(given))
    return out.transpose(1, 2), lse


@kernel(ATTENTION_GRADIENTS, _DOMAIN, numerics=_NUMERICS, priority=-14, name="flex_attention")
def flex_gradients(do: Tensor, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Gradients:
    """Compute the gradients of the compiled forward, by its compiled backward."""
    options = PeerOptions.of(given)

    def attend(q: Tensor, k: Tensor, v: Tensor, _: Tensor | None) -> Tensor:
        return _attend(q, k, v, options)[0]

    with unwatched():
        return differentiate(attend, do, q, k, v)
