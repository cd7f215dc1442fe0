"""ATTENTION_FORWARD for few queries: `split_keys`, whose programs share the keys of a key head.

Its tile contains the query heads of a key head together. The number of programs that share the keys
depends only on the lengths and the heads of a group, so a row's bits depend neither on the device
nor on other batches and key heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.attention.launch import Launcher
from kernel_workbench.kernels.attention.problem import AttentionCall
from kernel_workbench.kernels.attention.registration import (
    FEATURES,
    configurations_of_case,
    ours,
    variants_of_case,
)
from kernel_workbench.kernels.attention.split_kernels import combine_kernel, split_kernel
from kernel_workbench.kernels.attention.tile_model import WIDEST_RF, Pass
from kernel_workbench.kernels.attention.variants import Variant, names, pick
from kernel_workbench.kernels.device import on_device_of
from kernel_workbench.kernels.integers import cdiv, next_power_of_2
from kernel_workbench.oracles import ATTENTION_FORWARD
from kernel_workbench.oracles.attention.options import Options
from kernel_workbench.oracles.op import Case

# Chosen on an H200 (docs/measured.md). Programs are to be about two for each of its 132 SMs where a
# model has 32 query heads, or 16 with a key head each. The batch and the heads of a call aren't
# asked, so that bits don't depend on them.
_PROGRAMS = 256
_QUERY_HEADS, _MOST_KEY_HEADS = 32, 16
_SMALL_ROWS, _LARGE_ROWS = 16, 64  # of a tile
_MOST_SPLITS = 128
_LEAST_KEYS, _KEYS_TO_A_ROW = 128, 4  # of a split: it leaves 4 d_v bytes for each row
_MOST_KEYS = 2048
_COMBINED_COLUMNS = 64
# `flash` has blocks of 128 queries: it fills half of an H200.
_FLASH_ROWS, _FLASH_PROGRAMS = 128, 64

_SIZES = "b", "h_q", "h_kv", "s_q", "s_kv"
Forward = tuple[Tensor, Tensor]


def tile_of(group: int, s_q: int) -> Pass:
    """Return the kind of tile for the (query, query head) pairs of a key head."""
    return "split16" if group * s_q <= _SMALL_ROWS else "split64"


def splits_of(group: int, s_q: int, s_kv: int) -> int:
    """Return the number of programs that share the keys of a block of rows."""
    rows = group * s_q
    tile = _SMALL_ROWS if rows <= _SMALL_ROWS else _LARGE_ROWS
    blocks = max(1, -(-rows // tile))
    key_heads = min(_MOST_KEY_HEADS, max(1, _QUERY_HEADS // max(1, group)))
    wanted = max(_PROGRAMS // (key_heads * blocks), s_kv // (_MOST_KEYS * blocks))
    most = -(-s_kv // max(_LEAST_KEYS, _KEYS_TO_A_ROW * min(rows, tile)))
    return max(1, min(wanted, most, _MOST_SPLITS))


def few_queries(b: int, h_q: int, h_kv: int, s_q: int, s_kv: int) -> bool:
    """Return True if dispatch takes `split_keys`, by the sizes alone.

    It does if one narrow tile has room for all rows of a key head. Otherwise it does if `flash`
    would leave half of the GPU idle, and one tile has room for the rows or their keys are split.
    """
    group = h_q // h_kv
    if group * s_q <= _SMALL_ROWS:
        return True
    if b * h_q * -(-s_q // _FLASH_ROWS) > _FLASH_PROGRAMS:
        return False
    return group * s_q <= _LARGE_ROWS or splits_of(group, s_q, s_kv) > 1


def serves(problem: AttentionCall) -> bool:
    """Return True if `split_keys` serves a call and dispatch takes it."""
    sizes = problem.b, problem.h_q, problem.h_kv, problem.s_q, problem.s_kv
    fits = max(problem.d, problem.d_v) <= WIDEST_RF and problem.options.cu_seqlens_q is None
    return fits and few_queries(*sizes)


def split_forward(problem: AttentionCall) -> Forward:
    """Compute out [b, s_q, h_q, d_v] and lse [b, h_q, s_q], by the first variant that fits."""
    launcher = Launcher(problem, tf32=False)
    variant = pick(tile_of(problem.group, problem.s_q), launcher.need)
    return launch_split(launcher, variant, splits_of(problem.group, problem.s_q, problem.s_kv))


def launch_split(launcher: Launcher, variant: Variant, splits: int) -> Forward:
    """Compute out and lse, by one variant and this many programs for each block of rows."""
    problem = launcher.problem
    q, sink = problem.q, problem.options.sink
    b, s_q, h_q, d_v = problem.b, problem.s_q, problem.h_q, problem.d_v
    out = q.new_empty((b, s_q, h_q, d_v))
    lse = q.new_empty((b, h_q, s_q), dtype=torch.float32)
    blocks = cdiv(problem.group * s_q, variant.tile.queries)
    programs = blocks * b * problem.h_kv * splits
    joined = splits > 1
    shares, share_lse = out[:, :, :, None], lse[..., None]
    if joined:
        shares = q.new_empty((b, s_q, h_q, splits, d_v), dtype=torch.float32)
        share_lse = q.new_empty((b, h_q, s_q, splits), dtype=torch.float32)
    stride_lb, stride_lh, stride_lm, _ = share_lse.stride()
    launcher.launch(
        split_kernel, programs, variant, {"out": shares[:, :, :, 0]}, out_ptr=shares,
        stride_os=d_v // launcher.vector(variant), lse_ptr=share_lse, stride_lb=stride_lb,
        stride_lh=stride_lh, stride_lm=stride_lm, sink_ptr=None if joined else sink, splits=splits,
    )  # fmt: skip
    if joined and programs:
        columns = min(max(16, next_power_of_2(d_v)), _COMBINED_COLUMNS)
        with on_device_of(q):
            combine_kernel[(b * h_q * s_q * cdiv(d_v, columns),)](
                shares, share_lse, sink, out, lse, h_q, s_q, d_v, splits,
                BLOCK_S=next_power_of_2(splits), BLOCK_DV=columns,
            )  # fmt: skip
    return out, lse


def _group(case: Case) -> int:
    return case.size("h_q") // case.size("h_kv")


def tile_of_case(case: Case) -> Pass:
    """Return `tile_of` for a case."""
    return tile_of(_group(case), case.size("s_q"))


def _few_queries(case: Case) -> bool:
    return few_queries(*(case.size(name) for name in _SIZES))


def serves_case(case: Case) -> bool:
    """Return `serves` for a case."""
    fits = max(case.size("d"), case.size("d_v")) <= WIDEST_RF and "varlen" not in case.options
    return fits and _few_queries(case)


def _refusal(case: Case) -> str | None:
    """Return a refusal that a domain's other fields can't express: queries must be few."""
    if _few_queries(case):
        return None
    got = ", ".join(f"{name} {case.size(name)}" for name in _SIZES)
    return (
        f"serves few queries: at most {_SMALL_ROWS} rows a key head, or blocks of {_FLASH_ROWS} "
        f"queries fewer than {_FLASH_PROGRAMS + 1} whose keys can be split, got {got}"
    )


def split_workspace(case: Case) -> int:
    """Return the bytes of a share of out and of lse for each split, in fp32."""
    shares = splits_of(_group(case), case.size("s_q"), case.size("s_kv"))
    rows = case.size("b") * case.size("h_q") * case.size("s_q")
    return 4 * shares * rows * (case.size("d_v") + 1) if shares > 1 else 0


def _variant(case: Case, sm: int) -> str:
    return variants_of_case(tile_of_case(case), case=case, sm=sm)


def _configurations(case: Case, sm: int) -> tuple[str, ...]:
    return configurations_of_case((tile_of_case(case),), case=case, sm=sm)


def _names(dtypes: tuple[str, ...], sm: int) -> tuple[str, ...]:
    return names("split16", dtypes, sm) + names("split64", dtypes, sm)


@ours(
    ATTENTION_FORWARD,
    priority=30,
    variant=_variant,
    variants=_names,
    configurations=_configurations,
    workspace=split_workspace,
    features=FEATURES - {"varlen"},
    sizes={"d": (1, WIDEST_RF), "d_v": (1, WIDEST_RF)},
    also=_refusal,
)
def split_keys(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Forward:
    """Let programs share the keys of a key head's queries, and join their shares."""
    return split_forward(AttentionCall.of(q, k, v, Options(**given)))
