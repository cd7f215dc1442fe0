"""Our dropout's mask: the oracle's own, under every tiling, forward and backward alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernel_workbench.kernels.attention.backward import two_pass
from kernel_workbench.kernels.attention.forward import launch
from kernel_workbench.kernels.attention.launch import Launcher
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.tile_model import KernelTile
from kernel_workbench.kernels.attention.variants import Need, pick
from kernel_workbench.oracles.attention.dropout import keep_mask
from kernel_workbench.oracles.attention.options import Options

_SEED, _P = 2**40 + 12345, 0.3
_TILES = (KernelTile(16, 16, 4, 1), KernelTile(32, 64, 4, 1), KernelTile(128, 32, 4, 1))


def _expected(b: int, h: int, s_q: int, s_kv: int, device: torch.device) -> Tensor:
    """[b, h, s_q, s_kv]"""
    heads = torch.arange(b * h, device=device)
    queries = torch.arange(s_q, device=device)
    return keep_mask(_SEED, _P, heads, queries, range(s_kv)).view(b, h, s_q, s_kv)


@pytest.mark.parametrize("tile", _TILES, ids=str)
def test_forwards_mask_is_the_oracles_under_every_tiling(
    tile: KernelTile, device: torch.device
) -> None:
    """With q = 0 and v = I, out is the mask over s_kv (1 - p): its zeros are what was dropped."""
    b, h, s_q, s_kv = 2, 2, 45, 80
    q = torch.zeros(b, s_q, h, 16, device=device)
    k = torch.zeros(b, s_kv, h, 16, device=device)
    v = torch.eye(s_kv, device=device)[None, :, None].expand(b, s_kv, h, s_kv).contiguous()
    problem = AttentionCall.of(q, k, v, Options(dropout_p=_P, dropout_seed=_SEED))
    variant = pick("fwd", Need("f32", 90, aligned=True, d=80, bias=False, dropout=True))
    out, _ = launch(Launcher(problem, tf32=False), replace(variant, tile=tile))
    assert torch.equal(out.transpose(1, 2) != 0, _expected(b, h, s_q, s_kv, device))


def test_backwards_mask_is_the_forwards(device: torch.device) -> None:
    """With q = 0 and do = I, dv is the mask, transposed, over s_kv (1 - p)."""
    b, h, s_q, s_kv = 1, 2, 70, 90
    q = torch.zeros(b, s_q, h, 16, device=device)
    k = torch.zeros(b, s_kv, h, 16, device=device)
    v = torch.zeros(b, s_kv, h, s_q, device=device)
    do = torch.eye(s_q, device=device)[None, :, None].expand(b, s_q, h, s_q).contiguous()
    lse = torch.full((b, h, s_q), s_kv, device=device).log()
    out = torch.zeros_like(do)
    _, _, dv, _, _ = two_pass(do, q, k, v, out, lse, dropout_p=_P, dropout_seed=_SEED)
    mask = _expected(b, h, s_q, s_kv, device)
    assert torch.equal(dv.permute(0, 2, 3, 1) != 0, mask)


def test_sequences_draw_by_their_own_positions(device: torch.device) -> None:
    """A sequence of a packed batch drops what it drops as a batch of its own number."""
    lengths = (5, 0, 33)
    ends = torch.tensor([0, 5, 5, 38], dtype=torch.int32, device=device)
    q = torch.zeros(1, 38, 1, 16, device=device)
    v = torch.zeros(1, 38, 1, 40, device=device)
    for start, length in ((0, 5), (5, 33)):
        v[0, start : start + length, 0, :length] = torch.eye(length, device=device)
    options = Options(dropout_p=_P, dropout_seed=_SEED, cu_seqlens_q=ends, cu_seqlens_k=ends)
    problem = AttentionCall.of(q, q, v, options)
    variant = pick("fwd", Need("f32", 90, aligned=True, d=40, bias=False, dropout=True))
    out, _ = launch(Launcher(problem, tf32=False), variant)
    for number, start in ((0, 0), (2, 5)):
        length = lengths[number]
        got = out[0, start : start + length, 0, :length] != 0
        assert torch.equal(got, _expected(3, 1, length, length, device)[number, 0])
