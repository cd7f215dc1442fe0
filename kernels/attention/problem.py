"""One call's arguments, checked and measured, for every launch of attention.

Unserved arguments are refused here, before any launch, in one sentence with the given and the
required values.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_workbench.kernels.attention.scores import UNLIMITED
from kernel_workbench.kernels.integers import next_power_of_2
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import dtype_name

LARGEST_HEAD = 512
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_INT32 = 2**31


class AttentionError(ValueError):
    """Arguments that attention doesn't serve; the message is one sentence."""


class AttentionCall(NamedTuple):
    """The sizes, limits and strides of one call, and its tensors as they were passed.

    b is the number of sequences under varlen, and s_q, s_kv the largest lengths; else the sizes of
    q and k. left and right are the numbers of keys behind and ahead of its own position (with the
    corner's shift) that a query may attend to. natural: scores are more than scale q.k, and are
    kept in base e.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: Options
    b: int
    h_q: int
    h_kv: int
    s_q: int
    s_kv: int
    d: int
    d_v: int
    left: int
    right: int
    scale: float
    bias: Tensor | None  # expanded to [b, h_q, s_q, s_kv]

    @property
    def group(self) -> int:
        """The number of query heads to a key head."""
        return self.h_q // self.h_kv if self.h_kv else 1

    @property
    def natural(self) -> bool:
        """True if scores are kept in base e: an option adds to scale q.k or bends it."""
        options = self.options
        added = (options.bias, options.alibi_slopes, options.sink, options.softcap)
        return any(option is not None for option in added) or self.scale <= 0

    @property
    def dropout(self) -> bool:
        """True if weights are dropped."""
        return self.options.dropout_p > 0

    @property
    def threshold(self) -> int:
        """A draw of 32 bits below this threshold is dropped."""
        return round(self.options.dropout_p * 2**32)

    @property
    def random_words(self) -> tuple[int, int, int]:
        """The seed's low and high word and the threshold, as signed integers of 32 bits."""
        seed = self.options.dropout_seed
        low, high, threshold = (
            (word + 2**31) % 2**32 - 2**31 for word in (seed % 2**32, seed >> 32, self.threshold)
        )
        return low, high, threshold

    @property
    def keep_scale(self) -> float:
        """The factor of kept weights."""
        return 1 / (1 - self.options.dropout_p)

    @property
    def bias_strides(self) -> tuple[int, int, int, int]:
        """The bias's strides over [b, h_q, s_q, s_kv], 0 along broadcast axes."""
        if self.bias is None:
            return 0, 0, 0, 0
        batch, head, query, key = self.bias.stride()
        return batch, head, query, key

    @property
    def arguments(self) -> dict[str, object]:
        """Return the options and sizes by the names of kernels' parameters."""
        options = self.options
        stride_bb, stride_bh, stride_bm, stride_bn = self.bias_strides
        seed_low, seed_high, threshold = self.random_words
        # Blocks that hold a head, for a product 16 at least.
        block_d, block_dv = (max(16, next_power_of_2(size)) for size in (self.d, self.d_v))
        return {
            "bias_ptr": self.bias,
            "stride_bb": stride_bb,
            "stride_bh": stride_bh,
            "stride_bm": stride_bm,
            "stride_bn": stride_bn,
            "slopes_ptr": options.alibi_slopes,
            "sink_ptr": options.sink,
            "cu_q": options.cu_seqlens_q,
            "cu_k": options.cu_seqlens_k,
            "softcap": options.softcap or 0.0,  # which no kernel reads where there is none
            "keep_scale": self.keep_scale,
            "seed_low": seed_low,
            "seed_high": seed_high,
            "threshold": threshold,
            "left": self.left,
            "right": self.right,
            "bottom_right": int(options.corner == "bottom_right"),
            "h_q": self.h_q,
            "group": self.group,
            "s_q": self.s_q,
            "s_kv": self.s_kv,
            "SOFTCAP": options.softcap is not None,
            "EVEN_D": (self.d, self.d_v) == (block_d, block_dv),
            "BLOCK_D": block_d,
            "BLOCK_DV": block_dv,
        }

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, options: Options) -> AttentionCall:
        """Check the arguments of a forward. Raises AttentionError."""
        check_shapes(q, k, v)
        check_options(q, options)
        batch, rows, h_q, d = q.shape
        (_, keys, h_kv, _), d_v = k.shape, v.shape[3]
        b, s_q, s_kv = batch, rows, keys
        if options.cu_seqlens_q is not None or options.cu_seqlens_k is not None:
            b, s_q, s_kv = _sequences(q, k, options)
        left, right = _limits(options)
        scale = 1 / math.sqrt(d) if options.scale is None else options.scale
        bias = _expanded_bias(options, batch, h_q, rows, keys)
        return cls(
            q, k, v, options, b, h_q, h_kv, s_q, s_kv, d, d_v, left, right, scale, bias
        )  # fmt: skip

    def check_gradients(self, do: Tensor, out: Tensor, lse: Tensor) -> None:
        """Check the further arguments of a backward. Raises AttentionError."""
        batch, s_q, h_q, _ = self.q.shape
        shape, rows = (batch, s_q, h_q, self.d_v), (batch, h_q, s_q)
        _same_kind(self.q, do=do, out=out)
        for name, tensor in (("do", do), ("out", out)):
            if tensor.shape != shape:
                raise AttentionError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
        if lse.shape != rows or lse.dtype != torch.float32:
            raise AttentionError(
                f"lse must be float32 of shape {rows}, got {dtype_name(lse.dtype)} of "
                f"{tuple(lse.shape)}"
            )


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check that q, k and v belong together. Raises AttentionError."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise AttentionError(
                f"{name} must have 4 axes, (b, s, h, d), got shape {tuple(tensor.shape)}"
            )
    _same_kind(q, k=k, v=v)
    (b, _, h_q, d), (b_k, keys, h_kv, d_k), (b_v, keys_v, h_v, d_v) = q.shape, k.shape, v.shape
    if not b == b_k == b_v:
        raise AttentionError(f"q, k and v must have one batch size, got {b}, {b_k} and {b_v}")
    if d_k != d:
        raise AttentionError(f"q and k must have one head size, got {d} and {d_k}")
    if keys_v != keys:
        raise AttentionError(f"k and v must be equally long, got {keys} and {keys_v} keys")
    if h_v != h_kv:
        raise AttentionError(f"k and v must have the same heads, got {h_kv} and {h_v}")
    if h_kv == 0 or h_q % h_kv:
        raise AttentionError(f"q's heads must be a multiple of k's, got {h_q} and {h_kv}")
    for name, size in (("d", d), ("d_v", d_v)):
        if not 1 <= size <= LARGEST_HEAD:
            raise AttentionError(f"{name} must be from 1 to {LARGEST_HEAD}, got {size}")


def _same_kind(q: Tensor, **others: Tensor | None) -> None:
    if q.dtype not in _DTYPES:
        raise AttentionError(f"q must be float32, float16 or bfloat16, got {dtype_name(q.dtype)}")
    for name, tensor in others.items():
        if tensor is None:
            continue
        if tensor.dtype != q.dtype:
            raise AttentionError(
                f"{name} must be {dtype_name(q.dtype)} like q, got {dtype_name(tensor.dtype)}"
            )
        if tensor.device != q.device:
            raise AttentionError(f"{name} must be on {q.device} like q, got {tensor.device}")


def _sequences(q: Tensor, k: Tensor, options: Options) -> tuple[int, int, int]:
    """The number of sequences and the largest lengths. Reads the offsets: one copy to the host."""
    if options.bias is not None:
        raise AttentionError("a bias isn't served together with cu_seqlens; leave one of them out")
    counts = {}
    longest = {}
    for name, offsets, tensor, largest in (
        ("q", options.cu_seqlens_q, q, options.max_seqlen_q),
        ("k", options.cu_seqlens_k, k, options.max_seqlen_k),
    ):
        label = f"cu_seqlens_{name}"
        if offsets is None:
            raise AttentionError(
                f"{label} is missing; cu_seqlens are given for q and k or for none"
            )
        if offsets.dtype != torch.int32 or offsets.dim() != 1 or offsets.numel() < 1:
            raise AttentionError(
                f"{label} must be int32 of shape (n + 1,), got {dtype_name(offsets.dtype)} of "
                f"{tuple(offsets.shape)}"
            )
        if offsets.device != q.device:
            raise AttentionError(f"{label} must be on {q.device} like q, got {offsets.device}")
        if tensor.shape[0] != 1:
            raise AttentionError(
                f"with cu_seqlens {name} must have batch 1, its sequences end to end, got "
                f"{tensor.shape[0]}"
            )
        listed = offsets.tolist()
        if listed[0] != 0:
            raise AttentionError(f"{label} must start at 0, got {listed[0]}")
        steps = [after - before for before, after in pairwise(listed)]
        if min(steps, default=0) < 0:
            at = next(index for index, step in enumerate(steps) if step < 0)
            raise AttentionError(
                f"{label} must ascend, got {listed[at]} and then {listed[at + 1]} at {at + 1}"
            )
        if listed[-1] != tensor.shape[1]:
            raise AttentionError(
                f"{label} must end at the {tensor.shape[1]} rows of {name}, got {listed[-1]}"
            )
        counts[name] = len(steps)
        longest[name] = max(steps, default=0)
        if largest is not None and largest < longest[name]:
            raise AttentionError(
                f"max_seqlen_{name} must be at least the longest sequence, {longest[name]}, got "
                f"{largest}"
            )
    if counts["q"] != counts["k"]:
        raise AttentionError(
            f"cu_seqlens_q and cu_seqlens_k must have the same number of sequences, got "
            f"{counts['q']} and {counts['k']}"
        )
    return counts["q"], longest["q"], longest["k"]


def check_options(q: Tensor, options: Options) -> None:
    """Check the options without reading a tensor's values. Raises AttentionError."""
    _same_kind(q, bias=options.bias)
    if options.corner not in ("top_left", "bottom_right"):
        raise AttentionError(f"corner must be top_left or bottom_right, got {options.corner}")
    for side in options.window or ():
        if side is not None and side < 0:
            raise AttentionError(f"a window's sides must be 0 or more, got {options.window}")
    h_q = q.shape[2]
    for name, vector in (("sink", options.sink), ("alibi_slopes", options.alibi_slopes)):
        if vector is None:
            continue
        if tuple(vector.shape) != (h_q,) or vector.dtype != torch.float32:
            raise AttentionError(
                f"{name} must be float32 of shape ({h_q},), got {dtype_name(vector.dtype)} of "
                f"{tuple(vector.shape)}"
            )
        if vector.device != q.device:
            raise AttentionError(f"{name} must be on {q.device} like q, got {vector.device}")
    if options.scale is not None and not math.isfinite(options.scale):
        raise AttentionError(f"scale must be finite, got {options.scale}")
    if options.softcap is not None and not 0 < options.softcap < math.inf:
        raise AttentionError(f"softcap must be positive and finite, got {options.softcap}")
    if not 0 <= options.dropout_p < 1:
        raise AttentionError(f"dropout_p must be at least 0 and below 1, got {options.dropout_p}")
    if not 0 <= options.dropout_seed < 2**63:
        raise AttentionError(
            f"dropout_seed must be at least 0 and below 2^63, got {options.dropout_seed}"
        )


def _limits(options: Options) -> tuple[int, int]:
    """Return how far back and ahead a query may attend."""
    left, right = options.window or (None, None)
    back = UNLIMITED if left is None else min(left, UNLIMITED)
    ahead = UNLIMITED if right is None else min(right, UNLIMITED)
    return back, 0 if options.causal else ahead


def _expanded_bias(options: Options, b: int, h_q: int, s_q: int, s_kv: int) -> Tensor | None:
    bias, full = options.bias, (b, h_q, s_q, s_kv)
    if bias is None:
        return None
    fits = bias.dim() == 4 and all(
        got == size or (got == 1 and axis < 3)
        for axis, (got, size) in enumerate(zip(bias.shape, full, strict=True))
    )
    if not fits:
        raise AttentionError(
            f"bias must have shape {full}, or 1 in place of any of the first three, got "
            f"{tuple(bias.shape)}"
        )
    return bias.expand(full)


def load_bytes(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> int:
    """Return the widest load, at most 16 bytes, that a tensor's address, strides and rows allow.

    address and itemsize in bytes, strides in elements.
    """
    return math.gcd(address, _load_bytes(shape, strides, itemsize))


@lru_cache(maxsize=1024)
def _load_bytes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return `load_bytes` at address 0; cached, because models repeat shapes."""
    if strides[-1] != 1 and shape[-1] > 1:
        return itemsize
    outer = zip(strides[:-1], shape[:-1], strict=True)
    steps = (stride for stride, length in outer if length > 1)
    return math.gcd(16, itemsize * math.gcd(shape[-1], *steps))


def vector_elements(*tensors: Tensor) -> int:
    """Return the elements that one load can take from every tensor; all have one dtype."""
    size = tensors[0].element_size()
    widths = [load_bytes(t.data_ptr(), t.shape, t.stride(), size) for t in tensors]
    return min(widths) // size


def adjacent(*tensors: Tensor) -> bool:
    """Return True if every tensor's last axis is adjacent in memory."""
    return all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in tensors)


def is_wide(*tensors: Tensor) -> bool:
    """Return True if an offset within one head of some tensor may exceed 31 bits."""
    return any(
        sum(
            (length - 1) * abs(stride)
            for length, stride in ((t.shape[1], t.stride(1)), (t.shape[3], t.stride(3)))
            if length
        )
        >= _INT32
        for t in tensors
    )
