"""Cases of attention's values and layouts: what the tensors hold, and where they lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles.attention.cases_builder import (
    BIAS_STRIDES,
    DTYPES,
    FAR_BATCHES,
    FAR_HEADS,
    FAR_KEYS,
    FAR_QUERIES,
    OFFSETS,
    OPS,
    STRIDES,
    Window,
    attention_case,
    moves,
    turn,
)
from oracles.attention.geometry import ARGUMENTS, BACKWARD, DELTA, FORWARD, GRADIENTS
from oracles.op import Case, Layout, Tier

_WHY_LAYOUT = {
    "offset1": "bug 26: no pointer is aligned",
    "rowpad1": "bug 26: no row is aligned",
    "qkv_interleaved": "q, k and v of one projection, [b, s, 3, h, d]",
    "q_bhsd": "bug 21: q and k of different strides",
    "k_bhsd": "bug 21: q and k of different strides",
    "k_sliced": "bug 22: k is a part of longer rows",
    "v_transposed": "bug 24: v with its sequence along the fast axis",
    "do_bhsd": "bug 20: do laid out otherwise than out",
    "do_rowpad24": "bug 20: do and out with different row strides",
    "do_transposed": "bug 20: a do that is not contiguous",
    "do_expanded_all": "bugs 20, 23: the gradient of a sum has stride 0 everywhere",
    "do_expanded_rows": "bug 23: one row of do for all queries",
    "do_colstride3": "bug 23: do of every third column",
    "kv_expanded_keys": "bug 19: k and v with stride 0, s_kv % 32 == 1, a bf16 bias",
    "kv_expanded_heads": "bug 19: k and v expanded over heads, as in MQA done by hand",
    "bias_rowpad1": "bug 25: a bias row stride that is no multiple of 8",
    "bias_rowpad3": "bug 25: a bias row stride that is no multiple of 8",
    "bias_rowpad4": "bug 25: a bias row stride that is a multiple of 4, not of 8",
    "q_far": "bug 3: an offset past 2^31 in a small tensor",
    "k_far": "bugs 3, 5: an offset past 2^31 in a small tensor",
    "v_far": "bugs 3, 5: an offset past 2^31 in a small tensor",
}


def _taken(op: str) -> tuple[str, ...]:
    return ARGUMENTS[op] if op == DELTA else (*ARGUMENTS[op], "bias")


def _placed(op: str, tier: Tier) -> list[Layout]:
    """The layouts of an op; in `ci` a backward shifts q, k and v less, and gradients have few."""
    offsets, strides = OFFSETS, (*STRIDES, *BIAS_STRIDES)
    if tier == "ci" and op == BACKWARD:
        others = ("q_offset1", "k_offset2", "v_offset3", "bias_offset4")
        kept = ("offset", "do_", "out_")
        offsets = tuple(
            each for each in OFFSETS if each.name in others or each.name.startswith(kept)
        )
    if tier == "ci" and op == GRADIENTS:
        offsets, strides = OFFSETS[::7], strides[::3]
    return [each for each in (*offsets, *strides) if moves(each, _taken(op))]


def layouts(tier: Tier) -> Iterator[Case]:
    """Every layout for every op that has a tensor of it."""
    for op in OPS:
        for index, layout in enumerate(_placed(op, tier)):
            has_bias = layout.name.startswith(("bias", "offset", "kv_expanded_keys"))
            options = "bias" if has_bias and op != DELTA else ""
            heads = 1 if "offset" in layout.name else 2
            sizes: tuple[int, ...] = (1, heads, heads, 33, 40, 64, 64)
            dtypes = turn(op, index)
            if layout.name == "kv_expanded_keys":
                sizes, dtypes = (1, 2, 2, 37, 33, 64, 64), (torch.bfloat16,)
            if "batch" in layout.name:
                sizes = (2, 1, 1, 17, 24, 64, 64)
            if tier == "full":
                sizes, dtypes = (2, 3, 3, 130, sizes[4] + 256, 64, 64), DTYPES
            why = _WHY_LAYOUT.get(layout.name, "")
            for dtype in dtypes:
                yield attention_case(
                    op, sizes, dtype, tier, layout=layout, options=options, why=why
                )
        yield from _far(op, tier)


def _far(op: str, tier: Tier) -> Iterator[Case]:
    groups: tuple[tuple[tuple[Layout, ...], tuple[int, ...]], ...] = (
        (FAR_QUERIES, (1, 2, 2, 3, 40, 64, 64)),
        (FAR_KEYS, (1, 2, 2, 17, 3, 64, 64)),
        (FAR_HEADS, (1, 3, 3, 17, 24, 64, 64)),
        (FAR_BATCHES, (3, 1, 1, 17, 24, 64, 64)),
    )
    if tier == "ci" and op == GRADIENTS:
        return
    for layouts_, sizes in groups:
        for layout in layouts_:
            if not moves(layout, _taken(op)):
                continue
            options = "bias" if layout.name.startswith("bias") else ""
            why = _WHY_LAYOUT.get(layout.name, "bug 3: an offset past 2^31 in a small tensor")
            for dtype in (torch.bfloat16,) if tier == "ci" else DTYPES[1:]:
                yield attention_case(
                    op, sizes, dtype, tier, layout=layout, options=options, why=why
                )


@dataclass(frozen=True, slots=True)
class Fed:
    """A distribution, and the case that it says something in."""

    distribution: str
    options: str = ""
    window: Window | None = None
    lengths: tuple[int, int] = (37, 70)
    heads: tuple[int, int, int] = (1, 1, 1)
    why: str = ""
    tensors: str = "q"  # the op must have one of these
    dtypes: tuple[torch.dtype, ...] = DTYPES
    ops: tuple[str, ...] = OPS  # in `ci`
    every: bool = False  # in every dtype in `ci` too


_HALF = (torch.float16,)
_DEAD = "bug 8: queries whose every key has a bias of -inf: out 0, lse -inf, no gradient"

FED = (
    Fed("uniform", tensors="q do"),
    Fed("positive", tensors="do", why="bug 41: rounding delta or out shifts every dS of a row"),
    Fed("positive", ops=(FORWARD,)),
    Fed("times3", tensors="q do"),
    Fed("outliers", tensors="q do"),
    Fed("k_plus8"),
    Fed("v_plus8", tensors="do", why="bug 41: dP - delta cancels"),
    Fed("v_plus8", ops=(FORWARD,)),
    Fed("near_flat"),
    Fed("one_hot", why="bug 44: the row maximum moves from tile to tile", lengths=(37, 150)),
    Fed("logits1e4", why="bug 43: exp of a score overflows unless the maximum comes off first"),
    Fed("near_overflow", "causal", tensors="v do", dtypes=_HALF),
    Fed("subnormals", tensors="v do"),
    Fed("qk_subnormals"),
    Fed("constant", tensors="q do", why="bug 11: 1 / s_kv shows a key too many"),
    Fed("negative_zero", tensors="q do"),
    Fed("scaled_rows", tensors="v do"),
    Fed("nan_q", "causal"),
    Fed("nan_k", "causal", heads=(2, 2, 2), why="bug 10: one batch and key head, and no other"),
    Fed("nan_k", "varlen", lengths=(37, 37), heads=(6, 1, 1), why="bug 10: one sequence alone"),
    Fed("nan_v", heads=(1, 4, 2), why="bug 10: one batch and key head, and no other"),
    Fed("inf_k"),
    Fed("nan_do", "causal", tensors="do"),
    Fed("nan_out", tensors="out"),
    Fed("nan_masked", "causal", why="bug 10: NaN in keys that the mask hides", every=True),
    Fed("nan_masked", "", (3, 5), why="bug 10: NaN in keys outside of every window"),
    Fed("nan_masked", "causal", lengths=(37, 200), why="bug 10: whole tiles of NaN, hidden"),
    Fed("nan_masked", "varlen causal", lengths=(37, 41), heads=(6, 1, 1), why="bug 10"),
    Fed("sink_large", "sink", heads=(1, 2, 2)),
    Fed("bias_large", "bias"),
    Fed(
        "bias_inf_first",
        "bias",
        lengths=(37, 150),
        why="bug 9: the first key tile is all -inf",
        every=True,
    ),
    Fed("bias_inf_first", "bias causal", lengths=(150, 150), why="bugs 8, 9: and causal besides"),
    Fed("bias_inf_first", "bias", lengths=(17, 17), why="bug 9: only the last key is not -inf"),
    Fed(
        "bias_finfo_min",
        "bias",
        lengths=(37, 150),
        why="bug 9: the first key tile is at the lowest finite number",
    ),
    Fed("bias_inf_row", "bias", why=_DEAD),
    Fed("bias_inf_row", "bias sink", why=_DEAD),
    Fed("bias_inf_row", "bias bias_over_batch bias_over_queries", heads=(1, 4, 4), why=_DEAD),
    Fed(
        "positive",
        lengths=(33, 35),
        heads=(1, 16, 1),
        why="shares of a group that are summed in the half, which few heads don't show",
        dtypes=(torch.float16, torch.bfloat16),
        ops=(BACKWARD, GRADIENTS),
    ),
)


def _index(each: Fed) -> int:
    """The place of what is fed among all that differ."""
    places: dict[tuple[object, ...], int] = {}
    for other in FED:
        key = other.distribution, other.options, other.window, other.lengths
        places.setdefault(key, len(places))
    return places[each.distribution, each.options, each.window, each.lengths]


def distributions(tier: Tier) -> Iterator[Case]:
    """Every distribution, for the ops that have the tensors it changes.

    In `ci` in one dtype, which differs from op to op; delta, which is quick, has them all.
    """
    for op in OPS:
        drawn = set(ARGUMENTS[op]) - ({"out"} if op == BACKWARD else set())
        for each in FED:
            if not set(each.tensors.split()) & drawn or (tier == "ci" and op not in each.ops):
                continue
            dtypes = each.dtypes
            if tier == "ci" and dtypes == DTYPES and op != DELTA and not each.every:
                dtypes = turn(op, _index(each))
            for (sizes, seed), dtype in itertools.product(_sizes(each, tier), dtypes):
                yield attention_case(
                    op,
                    sizes,
                    dtype,
                    tier,
                    options="" if op == DELTA else each.options,
                    window=None if op == DELTA else each.window,
                    distribution=each.distribution,
                    seed=seed,
                    why=each.why,
                )


def _sizes(each: Fed, tier: Tier) -> list[tuple[tuple[int, ...], int]]:
    """The sizes and seeds of a distribution's cases."""
    own = (*each.heads, *each.lengths, 64, 64)
    if tier == "ci":
        return [(own, 0)]
    b, h_q, h_kv = each.heads
    s_q, s_kv = each.lengths
    longer = (b, 2 * h_q, 2 * h_kv, 4 * s_q + 3, 4 * s_kv + (3 if s_q == s_kv else 5), 64, 64)
    wide = (b, h_q, h_kv, s_q, s_kv, 128, 128)
    return [(own, 0), (own, 1), (longer, 0), (wide, 0)]
