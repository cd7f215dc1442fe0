"""PyTorch's CUDA operators of attention, emulated on a CPU to their documented conventions.

They bind their arguments to the real operators' schemas, and compute by `torch_eager`. They follow
these conventions: the memory-efficient ones pad lse along the queries to
a multiple of 32 with +inf, give 0 where a query has no keys, hold a window to a causal mask and
count the query's own key; flash counts from the bottom right corner, and gives +inf where a query
has no keys; cuDNN's lse has an axis more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from kernel_workbench.kernels.baselines.attention_call import spans
from kernel_workbench.kernels.baselines.attention_eager import eager_backward, torch_eager

Bound = dict[str, Any]


def bound(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Bound:
    """Return the arguments of a call and defaults, by the names of the operator's schema.

    Raises TypeError if the schema doesn't take them.
    """
    schema = getattr(torch.ops.aten, name).default._schema
    positional = [each for each in schema.arguments if not each.kwarg_only]
    if len(args) > len(positional):
        raise TypeError(f"{name} takes {len(positional)} positional arguments, got {len(args)}")
    given = dict(zip((each.name for each in positional), args, strict=False)) | kwargs
    names = {each.name for each in schema.arguments}
    if not set(given) <= names:
        raise TypeError(f"{name} takes no {', '.join(sorted(set(given) - names))}")
    for each in schema.arguments:
        if each.name not in given:
            if not each.has_default_value():
                raise TypeError(f"{name} needs {each.name}")
            given[each.name] = each.default_value
    return given


def _efficient_options(call: Bound) -> Bound:
    kind, window = call["custom_mask_type"], call["window_size"]
    if window is not None and not kind:
        raise RuntimeError("custom_mask_type not supported")
    made: Bound = {"causal": kind != 0, "scale": call["scale"], "bias": call["bias"]}
    made["corner"] = "bottom_right" if kind == 2 else "top_left"
    made["window"] = None if window is None else (window - 1, None)
    made["cu_seqlens_q"], made["cu_seqlens_k"] = call["cu_seqlens_q"], call["cu_seqlens_k"]
    return made


def _rows(call: Bound) -> list[slice]:
    """Return the queries of each sequence; a dense call is one sequence."""
    if call["cu_seqlens_q"] is None:
        return [slice(0, call["query"].shape[1])]
    return [rows for rows, _ in spans(call["cu_seqlens_q"], call["cu_seqlens_k"])]


def efficient_forward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._efficient_attention_forward`."""
    call = bound("_efficient_attention_forward", args, kwargs)
    q, k, v = call["query"], call["key"], call["value"]
    assert call["compute_log_sumexp"]
    out, lse = torch_eager(q, k, v, **_efficient_options(call))
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    if call["cu_seqlens_q"] is None:
        length = -(-q.shape[1] // 32) * 32
        padded = lse.new_full((*lse.shape[:2], length), math.inf)
        padded[:, :, : q.shape[1]] = lse
    else:
        each = _rows(call)
        length = -(-call["max_seqlen_q"] // 32) * 32
        padded = lse.new_full((len(each), lse.shape[1], length), math.inf)
        for index, rows in enumerate(each):
            padded[index, :, : rows.stop - rows.start] = lse[0, :, rows]
    return out, padded, torch.tensor(0), torch.tensor(0), q.shape[1], k.shape[1]


def efficient_backward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._efficient_attention_backward`; hidden elements of dbias are left NaN."""
    call = bound("_efficient_attention_backward", args, kwargs)
    q, k, v, padded = call["query"], call["key"], call["value"], call["logsumexp"]
    assert padded.shape[2] % 32 == 0
    assert call["out"].is_contiguous()
    each = _rows(call)
    dense = call["cu_seqlens_q"] is None
    parts = [padded[slice(None) if dense else index] for index in range(len(each))]
    lengths = [rows.stop - rows.start for rows in each]
    kept = [part[..., :length] for part, length in zip(parts, lengths, strict=True)]
    assert all((part[..., n:] == math.inf).all() for part, n in zip(parts, lengths, strict=True))
    lse = kept[0] if dense else torch.cat(kept, -1)[None]
    options = _efficient_options(call)
    do, out = call["grad_out_"].contiguous(), call["out"]
    dq, dk, dv, dbias, _ = eager_backward(do, q, k, v, out, lse, **options)
    assert call["bias_requires_grad"] == (call["bias"] is not None)
    if dbias is not None and options["causal"]:
        shift = k.shape[1] - q.shape[1] if options["corner"] == "bottom_right" else 0
        hidden = torch.ones(q.shape[1], k.shape[1]).triu(shift + 1).bool()
        dbias = dbias.masked_fill(hidden, math.nan)
    return dq, dk, dv, dbias


def _flash_options(call: Bound) -> Bound:
    left, right = call["window_size_left"], call["window_size_right"]
    made: Bound = {"causal": call["is_causal"], "scale": call["scale"], "corner": "bottom_right"}
    made["window"] = None if left is None and right is None else (left, right)
    made["cu_seqlens_q"], made["cu_seqlens_k"] = call["cum_seq_q"], call["cum_seq_k"]
    return made


def flash_forward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._flash_attention_forward`."""
    call = bound("_flash_attention_forward", args, kwargs)
    varlen = call["cum_seq_q"] is not None
    given = [call[name] for name in ("query", "key", "value")]
    assert all(each.dim() == (3 if varlen else 4) for each in given)
    q, k, v = (each[None] if varlen else each for each in given)
    options = _flash_options(call)
    out, lse = torch_eager(q, k, v, **options)
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    nothing = torch.empty(0)
    return (*((out[0], lse[0]) if varlen else (out, lse)), nothing, nothing, nothing)


def flash_backward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._flash_attention_backward`."""
    call = bound("_flash_attention_backward", args, kwargs)
    varlen = call["cum_seq_q"] is not None
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    do, q, k, v, out, lse = (call[name][None] if varlen else call[name] for name in names)
    assert not (lse == -math.inf).any()
    lse = lse.masked_fill(lse == math.inf, -math.inf)
    gradients = eager_backward(do, q, k, v, out, lse, **_flash_options(call))[:3]
    return tuple(each[0] if varlen else each for each in gradients)


def cudnn_forward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._scaled_dot_product_cudnn_attention`."""
    call = bound("_scaled_dot_product_cudnn_attention", args, kwargs)
    q, k, v = (call[name].transpose(1, 2) for name in ("query", "key", "value"))
    options = {"causal": call["is_causal"], "scale": call["scale"], "bias": call["attn_bias"]}
    out, lse = torch_eager(q, k, v, **options)
    return (out.transpose(1, 2), lse[..., None], *[None] * 7)


def cudnn_backward(*args: object, **kwargs: object) -> tuple[object, ...]:
    """`aten._scaled_dot_product_cudnn_attention_backward`."""
    call = bound("_scaled_dot_product_cudnn_attention_backward", args, kwargs)
    names = ("grad_out", "query", "key", "value", "out")
    do, q, k, v, out = (call[name].transpose(1, 2) for name in names)
    lse = call["logsumexp"].squeeze(3)
    options = {"causal": call["is_causal"], "scale": call["scale"]}
    gradients = eager_backward(do, q, k, v, out, lse, **options)[:3]
    return tuple(each.transpose(1, 2) for each in gradients)


EMULATED: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "attention_efficient": (efficient_forward, efficient_backward),
    "attention_flash": (flash_forward, flash_backward),
    "attention_cudnn": (cudnn_forward, cudnn_backward),
}
