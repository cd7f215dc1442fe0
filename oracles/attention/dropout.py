"""Which weights dropout keeps: a function of (seed, batch, query head, query, key) alone.

Philox 4x32-10 (Salmon, Moraes, Dror & Shaw 2011) is ten rounds of

    (c0, c1, c2, c3) <- (hi(B c2) ^ c1 ^ k0, lo(B c2), hi(A c0) ^ c3 ^ k1, lo(A c0))

on four 32-bit words, hi and lo the halves of a 64-bit product, after each of which the key
(k0, k1) grows by two constants. The key is the seed's low and high word; the counter is

    (key // 4, query, batch * h_q + query head, 0)

where query and key are counted within the sequence and batch is the sequence's number; and the
element takes word `key % 4` of the four. It is kept where word >= round(p 2^32), which has the
probability 1 - p up to 2^-33. No tile or launch has a part in it, so that forward and backward
draw alike under every tiling. `tl.philox` computes the same words.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 10
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_WORD = 0xFFFFFFFF


def _product(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of constant * word; int64 wraps at 2^64 and keeps all of its bits."""
    product = word * constant
    return (product >> 32) & _WORD, product & _WORD


def philox(seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The four words that Philox 4x32-10 makes of 32-bit words, held in int64 tensors."""
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        (high_b, low_b), (high_a, low_a) = _product(_ROUND_B, c2), _product(_ROUND_A, c0)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + _KEY_A) & _WORD, (k1 + _KEY_B) & _WORD
    return c0, c1, c2, c3


def keep_mask(
    seed: int, p: float, batch_head: Tensor, queries: Tensor, keys: slice | range
) -> Tensor:
    """Which weights are kept with probability 1 - p, bool [..., s_q, s_kv].

    batch_head [...] and queries [s_q] are integers: batch * h_q + query head, and the index in
    the sequence. keys: the indices in the sequence from keys.start up to keys.stop.
    """
    first, end = keys.start, keys.stop
    fours = torch.arange(first // 4, (end + 3) // 4, device=queries.device)
    blocks = batch_head.long()[..., None, None]
    words = philox(seed, (fours, queries.long()[:, None], blocks, torch.zeros_like(blocks)))
    drawn = torch.stack(torch.broadcast_tensors(*words), -1).flatten(-2)
    at = first - first // 4 * 4
    return drawn[..., at : at + end - first] >= round(p * 2**32)


def torch_keep_mask(
    seed: int, p: float, shape: tuple[int, int, int, int], device: torch.device
) -> Tensor:
    """The mask of PyTorch's memory-efficient kernels, bool [b, h_q, s_q, s_kv]; on a GPU only.

    Raises ValueError elsewhere: the generator is that of the CUDA kernel.
    """
    if device.type != "cuda":
        raise ValueError(
            f"torch's memory-efficient kernels draw their dropout mask on a GPU, not on {device}"
        )
    uniform = torch.empty(shape, dtype=torch.float32, device=device)
    torch.ops.aten._fill_mem_eff_dropout_mask_(uniform, p, seed, 0)
    return uniform > p
