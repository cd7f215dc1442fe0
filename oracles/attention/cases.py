"""The cases of attention, in two tiers, and which a user may ask for.

`ci` runs under an interpreter on two cores, where a tile of 64 x 64 costs milliseconds: lengths
stay under 70 but for a few, heads and batches under 4. `full` is for a GPU. Every case of `ci` is
in `full` too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from kernel_workbench.oracles.attention.factors import TOGETHER, factors_of, layouts_of
from kernel_workbench.oracles.attention.geometry import (
    ARGUMENTS,
    BACKWARD,
    DELTA,
    FORWARD,
    GRADIENTS,
    shapes,
)
from kernel_workbench.oracles.attention.layouts import (
    BIAS_STRIDES,
    FAR_BATCHES,
    FAR_HEADS,
    FAR_KEYS,
    FAR_QUERIES,
    OFFSETS,
    STRIDES,
    moves,
)
from kernel_workbench.oracles.attention.probes import NEEDLES
from kernel_workbench.oracles.attention.values import (
    DISTRIBUTIONS,
    DRAWN_SLOPES,
    DROPOUTS,
    SCALES,
    SLOPES,
    SOFTCAPS,
    chosen,
)
from kernel_workbench.oracles.cases import DTYPES, collect
from kernel_workbench.oracles.cases.distributions import COARSE, INTEGERS, objection
from kernel_workbench.oracles.op import CONTIGUOUS, Allowed, Case, Layout, Tier

OPS = (FORWARD, DELTA, BACKWARD, GRADIENTS)
SIZES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d", "d_v")
DELTA_SIZES = ("b", "h_q", "s_q", "d_v")
_TURNS = {FORWARD: 0, BACKWARD: 1, GRADIENTS: 2, DELTA: 2}
Window = tuple[int | None, int | None]
_WINDOW = ("window_left", "window_right")


def implied(sizes: Mapping[str, int]) -> frozenset[str]:
    """The options that follow from the sizes."""
    follows = {
        "gqa": sizes.get("h_q") != sizes.get("h_kv", sizes.get("h_q")),
        "unequal_d": sizes.get("d_v") != sizes.get("d", sizes.get("d_v")),
        "window": any(name in sizes for name in _WINDOW),
    }
    return frozenset(name for name, holds in follows.items() if holds)


def turn(op: str, index: int) -> tuple[torch.dtype, ...]:
    """Return one dtype, the next at each index; forward, backward and gradients differ."""
    return (DTYPES[(index + _TURNS[op]) % len(DTYPES)],)


def attention_case(
    op: str,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    tier: Tier,
    *,
    options: str = "",
    window: Window | None = None,
    layout: Layout = CONTIGUOUS,
    distribution: str = "normal",
    seed: int = 0,
    why: str = "",
) -> Case:
    """A case of any attention op; sizes are (b, h_q, h_kv, s_q, s_kv, d, d_v).

    options are separated by spaces; "window", "gqa" and "unequal_d" follow from the rest. Delta has
    no options, and so none of these.
    """
    named = dict(zip(SIZES, sizes, strict=True))
    if op == DELTA:
        named, options, window = {name: named[name] for name in DELTA_SIZES}, "", None
    limits = zip(_WINDOW, window or (None, None), strict=True)
    named |= {name: limit for name, limit in limits if limit is not None}
    return Case(
        op=op,
        sizes=tuple(named.items()),
        dtype=dtype,
        weight_dtype=dtype,
        layout=layout,
        distribution=distribution,
        options=implied(named).union(options.split()),
        seed=seed,
        tier=tier,
        why=why,
    )


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the feature table: options, a window, and the sizes of its case in `ci`."""

    options: str
    sizes: tuple[int, ...]
    window: Window | None = None
    why: str = ""

    def case(self, op: str, dtype: torch.dtype, tier: Tier, sizes: tuple[int, ...] = ()) -> Case:
        """Its case, or one of other sizes, which `why` isn't of."""
        wanted, why = sizes or self.sizes, "" if sizes else self.why
        return attention_case(
            op, wanted, dtype, tier, options=self.options, window=self.window, why=why
        )


_SHORT, _LONG = (1, 1, 1, 37, 70, 64, 64), (1, 1, 1, 70, 37, 64, 64)
_PLAIN = (1, 1, 1, 37, 41, 64, 64)

# In `ci` in every dtype.
FEATURES = (
    Feature("", (2, 2, 2, 37, 41, 64, 64), why="bugs 41, 42, 45: delta, scale, base of lse"),
    Feature("", (1, 4, 2, 17, 33, 64, 64), why="grouped heads: dk and dv are sums over a group"),
    Feature("", (1, 3, 1, 33, 17, 64, 64), why="one key head for all"),
    Feature("", (1, 1, 1, 37, 41, 40, 64)),
    Feature("causal", _SHORT, why="bug 13: the corner is top left; keys that nobody attends to"),
    Feature("causal", _LONG, why="bug 13: the corner is top left; the last queries see all keys"),
    Feature("causal bottom_right", _SHORT, why="bug 13: the corner is bottom right"),
    Feature("causal bottom_right", _LONG, why="bugs 8, 13, 14: the first queries see no key"),
    Feature("", _LONG, (5, 3), "bug 8: the last queries' windows lie past the last key"),
    Feature("bottom_right", _SHORT, (5, 3), "bug 18: a shifted window, whose backward shifts too"),
    Feature("bottom_right", _LONG, (5, 3), "bugs 8, 18: shifted the other way, with dead rows"),
    Feature("bias", (1, 2, 2, 37, 41, 64, 64), why="bug 25: a bias row of 41 elements"),
    Feature("bias bias_over_batch", (2, 1, 1, 37, 41, 64, 64)),
    Feature("bias bias_over_heads", (1, 2, 2, 37, 41, 64, 64)),
    Feature("bias bias_over_queries", (1, 2, 2, 37, 41, 64, 64), why="dbias sums over queries"),
    Feature("alibi", (1, 2, 2, 37, 41, 64, 64)),
    Feature("softcap", _PLAIN),
    Feature("sink", (1, 2, 2, 37, 41, 64, 64)),
    Feature("dropout", (2, 1, 1, 37, 70, 64, 64), why="bug 47: both passes drop the same pairs"),
    Feature("varlen", (5, 1, 1, 37, 41, 64, 64), why="bug 15: sequences of length 0"),
    Feature("scale", _PLAIN, why="bug 42: a scale that is not 1 / sqrt(d)"),
)

# Kinds of the same, and meetings of options in one branch of a kernel; in `ci` each in one dtype,
# another for every op, and every third for the gradients.
COMBINATIONS = (
    Feature("", (1, 1, 1, 37, 41, 64, 24)),
    Feature("causal", (1, 1, 1, 70, 70, 64, 64)),
    Feature("bias bias_over_batch bias_over_heads", (2, 2, 2, 37, 41, 64, 64)),
    Feature("causal", (1, 1, 1, 70, 70, 64, 64), (5, None)),
    Feature("", _SHORT, (None, 3)),
    Feature("dropout causal", (1, 4, 2, 37, 41, 64, 64), why="bug 47, with grouped heads"),
    Feature("", _SHORT, (7, None)),
    Feature("varlen", (5, 2, 2, 37, 37, 64, 64), why="bug 15: empty sequences, equal lengths"),
    Feature("varlen causal bottom_right", (6, 2, 1, 37, 41, 64, 64), why="bugs 14, 15"),
    Feature("causal bottom_right", _SHORT, (5, None)),
    Feature("causal bottom_right", (1, 1, 1, 70, 130, 64, 64), (17, 3), "a key tile in no window"),
    Feature("bias softcap", _PLAIN, why="dbias is taken before the cap, dq and dk after"),
    Feature("", (1, 1, 1, 70, 70, 64, 64), (0, 0), "each query sees one key: out is v"),
    Feature("", (1, 1, 1, 70, 130, 64, 64), (200, 200), "a window wider than the sequence"),
    Feature("sink causal bottom_right", _LONG, why="rows with no key have the sink as lse"),
    Feature("causal", (1, 2, 1, 70, 70, 64, 64)),
    Feature("causal bias", (1, 1, 1, 37, 70, 64, 64), why="dbias is 0 where the mask is"),
    Feature("bias dropout", _PLAIN),
    Feature("bias", (1, 4, 2, 37, 41, 64, 64)),
    Feature("bias bias_over_batch bias_over_heads bias_over_queries", (2, 2, 1, 37, 41, 64, 64)),
    Feature("varlen dropout", (5, 2, 2, 37, 41, 64, 64)),
    Feature("bias bias_over_heads bias_over_queries causal", (2, 2, 2, 37, 41, 64, 64)),
    Feature("bias alibi", _PLAIN),
    Feature("sink softcap scale", (1, 2, 2, 37, 41, 64, 64)),
    Feature("bias scale", _PLAIN, why="bug 42: dbias has no scale"),
    Feature("bias sink", _PLAIN),
    Feature("varlen sink softcap", (5, 1, 1, 37, 41, 64, 64)),
    Feature("alibi causal bottom_right", (1, 2, 2, 37, 70, 64, 64), why="the distance is shifted"),
    Feature("alibi", (1, 4, 2, 37, 41, 64, 64)),
    Feature(
        "causal bottom_right bias bias_over_batch alibi softcap sink dropout scale",
        (2, 2, 1, 37, 41, 40, 24),
        (17, None),
        "every option at once",
    ),
    Feature("softcap causal", (1, 2, 1, 70, 37, 64, 64)),
    Feature("softcap scale", _PLAIN),
    Feature(
        "varlen causal bottom_right alibi softcap sink dropout scale",
        (6, 2, 1, 37, 41, 40, 24),
        (17, None),
        "every option that goes with varlen at once",
    ),
    Feature("sink", (1, 4, 2, 37, 41, 64, 64), (5, None)),
    Feature("dropout sink", _PLAIN),
    Feature("varlen causal", (6, 1, 1, 41, 41, 64, 64)),
    Feature("dropout causal bottom_right", (1, 1, 1, 70, 130, 64, 64), (17, None), "bug 47"),
    Feature("varlen", (6, 1, 1, 41, 70, 64, 64), (5, 3), "bug 15, with a window"),
    Feature("varlen bottom_right", (6, 1, 1, 70, 41, 64, 64), (5, 3), "bugs 15, 18"),
    Feature("varlen alibi causal", (5, 2, 2, 41, 41, 64, 64)),
    Feature("varlen scale", (5, 2, 1, 37, 41, 64, 24)),
    Feature("varlen", (1, 2, 2, 37, 41, 64, 64), why="one sequence"),
    Feature("varlen", (5, 1, 1, 129, 130, 64, 64), why="sequences longer than a tile"),
    Feature("causal", (1, 1, 1, 70, 70, 64, 24)),
    Feature("bias", (1, 1, 1, 37, 41, 40, 24)),
)

# Few queries, of the forward alone: keys split over programs, a group's query heads in one tile.
_DECODING = (
    Feature("", (2, 6, 2, 3, 300, 64, 64), why="three shares of keys, the last of 44"),
    Feature(
        "causal bottom_right", (1, 5, 1, 7, 290, 40, 24), why="each row of a group its own end"
    ),
    Feature("causal", (1, 10, 1, 7, 270, 64, 64), why="a query's heads in two tiles; empty shares"),
    Feature("bottom_right", (1, 6, 3, 9, 333, 64, 64), (40, 9), "shares that a window cuts"),
    Feature("sink", (1, 4, 1, 2, 257, 64, 64), why="bug 17: the last share is one key"),
    Feature(
        "bias dropout", (2, 6, 2, 5, 200, 64, 64), why="bug 47: each row its head's bias, mask"
    ),
    Feature(
        "causal bottom_right bias bias_over_batch alibi softcap sink dropout scale",
        (2, 4, 2, 6, 200, 40, 24),
        (170, None),
        "every option at once",
    ),
    Feature(
        "causal bottom_right", (1, 1, 1, 300, 280, 64, 64), why="bugs 8, 14: rows without keys"
    ),
)

_TORCH_DROPOUT = (
    Feature("torch_dropout", _PLAIN),
    Feature("torch_dropout causal", (2, 3, 3, 333, 200, 64, 64)),
    Feature("torch_dropout bias", (2, 3, 3, 200, 328, 64, 64)),
)

# `full` has both corners, tiles' edges, and more programs than an H200 has SMs. A GPU compiles each
# meeting of options, dtype and head sizes anew, so that `full` tries those of `ci` at more lengths.
_FULL_LENGTHS = ((200, 333), (333, 200), (1, 517), (1024, 1000))


def _scaled(feature: Feature, s_q: int, s_kv: int) -> tuple[int, ...]:
    """Return the feature's sizes with other lengths; varlen keeps equal lengths equal."""
    b, h_q, h_kv, q, kv, d, d_v = feature.sizes
    if "varlen" in feature.options:
        return (2 * b + 1, h_q, h_kv, s_q, s_q if q == kv else s_kv, d, d_v)
    return (2 * b, h_q, h_kv, s_q, s_kv, d, d_v)


def features(tier: Tier) -> Iterator[Case]:
    """Yield every feature in every dtype, and the combinations."""
    for op in OPS:
        if op == DELTA:
            continue
        for index, feature in enumerate(FEATURES + COMBINATIONS):
            if tier == "ci" and op == GRADIENTS and feature in COMBINATIONS and index % 3:
                continue  # its parts have them
            all_sizes: list[tuple[int, ...]] = [()]
            if tier == "full":
                all_sizes += [_scaled(feature, *lengths) for lengths in _FULL_LENGTHS]
            for dtype in DTYPES if feature in FEATURES else turn(op, index):
                for sizes in all_sizes:
                    yield feature.case(op, dtype, tier, sizes)
        for index, feature in enumerate(_DECODING if op == FORWARD else ()):
            for dtype in turn(op, index) if tier == "ci" else DTYPES:
                yield feature.case(op, dtype, tier)
        if tier == "full":
            for feature, dtype in itertools.product(_TORCH_DROPOUT, DTYPES):
                yield feature.case(op, dtype, tier)


_LENGTHS = (1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 257)

# (s_q, s_kv, options, why), at d = 64 with one head.
_CI_LENGTHS = (
    (0, 17, "", "no queries: dk and dv are zeros"),
    (17, 0, "", "bug 8: no keys: out is 0, lse -inf, dq 0"),
    (0, 0, "causal", "neither queries nor keys"),
    (1, 1, "", "one key: out is v"),
    (1, 17, "causal bottom_right", "bug 11: a single query, as in decoding"),
    (1, 257, "", ""),
    (2, 3, "causal", "bug 11: keys past the end"),
    (3, 2, "", "bug 11"),
    (5, 3, "causal bottom_right", "bugs 11, 14"),
    (3, 5, "", "bug 11"),
    (17, 1, "", "bug 11: the softmax over one key"),
    (17, 5, "causal", "bug 11"),
    (5, 17, "", "bug 11"),
    (257, 2, "causal", ""),
    (63, 129, "", "bug 17: the last key is a tile of its own"),
    (64, 128, "causal", "whole tiles"),
    (65, 127, "causal bottom_right", "bug 17: the last query is a tile of its own"),
    (127, 65, "", "bug 17"),
    (128, 64, "causal bottom_right", "bug 14: a whole query tile sees no key"),
    (129, 63, "causal", "bug 17"),
    (64, 257, "", "bug 44: five key tiles, so that the row maximum moves"),
    (130, 200, "causal bottom_right", "bug 14"),
)

# d (and d_v), each with its own way to leave a tile partly filled, or to fall out of registers.
_HEAD_SIZES = (1, 3, 8, 16, 24, 32, 40, 59, 80, 96, 111, 128, 192, 256, 257, 320, 512)
_UNEQUAL = ((8, 64), (40, 59), (59, 40), (96, 64), (192, 128), (64, 257), (320, 64), (1, 512))


def sizes(tier: Tier) -> Iterator[Case]:
    """Lengths about tile edges, head sizes, numbers of heads and batches."""
    for op in OPS:
        yield from _lengths(op, tier)
        yield from _head_sizes(op, tier)
        yield from _heads(op, tier)


def _lengths(op: str, tier: Tier) -> Iterator[Case]:
    if tier == "ci":
        for index, (s_q, s_kv, options, why) in enumerate(_CI_LENGTHS):
            if op == DELTA:
                why = "" if s_q else "no rows"
            elif op == GRADIENTS and s_q * s_kv and index % 3:
                continue  # its parts have them
            for dtype in turn(op, index) if s_q * s_kv else DTYPES:
                sizes = (1, 1, 1, s_q, s_kv, 64, 64)
                yield attention_case(op, sizes, dtype, tier, options=options, why=why)
        for dtype in DTYPES:
            yield attention_case(op, (0, 2, 2, 5, 7, 64, 64), dtype, tier, why="no batches")
        why = "bug 12: heads and batches past the first, with an odd tail"
        for dtype in DTYPES if op != GRADIENTS else turn(op, 0):
            yield attention_case(op, (2, 2, 2, 65, 35, 64, 64), dtype, tier, why=why)
        if op != GRADIENTS:
            why = "bug 17: whole tiles of 128 queries and one more"
            yield attention_case(op, (1, 1, 1, 1025, 33, 64, 64), turn(op, 2)[0], tier, why=why)
        if op == FORWARD:
            why = "bug 17: whole tiles of 128 keys and one more"
            yield attention_case(op, (1, 1, 1, 33, 1025, 64, 64), turn(op, 1)[0], tier, why=why)
        return
    masks = ("", "causal", "causal bottom_right")
    for (i, s_q), (j, s_kv) in itertools.product(enumerate(_LENGTHS), repeat=2):
        options = masks[(i + j) % len(masks)]
        for dtype in turn(op, i + j // len(masks)):
            yield attention_case(op, (2, 2, 2, s_q, s_kv, 64, 64), dtype, tier, options=options)


def _head_sizes(op: str, tier: Tier) -> Iterator[Case]:
    s_q, s_kv = (33, 35) if tier == "ci" else (130, 200)
    b, heads, step = (1, 1, 2 if op == GRADIENTS else 1) if tier == "ci" else (2, 2, 1)
    for index, d in enumerate(_HEAD_SIZES[::step]):
        for dtype in turn(op, index) if tier == "ci" else DTYPES:
            yield attention_case(op, (b, heads, heads, s_q, s_kv, d, d), dtype, tier)
    if op == DELTA:
        return
    for index, (d, d_v) in enumerate(_UNEQUAL[::step]):
        for dtype in turn(op, index):
            yield attention_case(op, (b, heads, heads, s_q, s_kv, d, d_v), dtype, tier)
    why = "bug 30: a race that showed with a bias at some head sizes"
    for index, d in enumerate((16, 32, 80, 128, 256)):
        for dtype in turn(op, index):
            sizes = (b, heads, heads, s_q, s_kv, d, d)
            yield attention_case(op, sizes, dtype, tier, options="bias", why=why)


def _heads(op: str, tier: Tier) -> Iterator[Case]:
    ratios = ((8, 1), (6, 3), (5, 5)) if tier == "ci" else ((8, 1), (8, 2), (6, 3), (5, 5), (3, 1))
    for index, (h_q, h_kv) in enumerate(ratios):
        for dtype in turn(op, index) if tier == "ci" else DTYPES:
            if tier == "ci" and op == GRADIENTS:
                continue
            b, s = (1, (19, 21)) if tier == "ci" else (9, (150, 140))
            yield attention_case(op, (b, h_q, h_kv, *s, 64, 64), dtype, tier)
    if tier == "ci":
        return
    why = "bug 6: more batches times heads than a grid's y or z may have; `ci` lacks the minutes"
    for dtype in DTYPES:
        yield attention_case(op, (65537, 1, 1, 3, 2, 8, 8), dtype, tier, why=why)
        yield attention_case(op, (1, 65537, 65537, 2, 3, 8, 8), dtype, tier, why=why)
    yield attention_case(op, (8193, 8, 8, 5, 3, 64, 64), DTYPES[2], tier, why=why)


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


def _arguments_of(op: str) -> tuple[str, ...]:
    return ARGUMENTS[op] if op == DELTA else (*ARGUMENTS[op], "bias")


def _placed(op: str, tier: Tier) -> list[Layout]:
    """Return an op's layouts; in `ci` a backward shifts q, k and v less, and gradients have few."""
    offsets, strides = OFFSETS, (*STRIDES, *BIAS_STRIDES)
    if tier == "ci" and op == BACKWARD:
        shifted = ("q_offset1", "k_offset2", "v_offset3", "bias_offset4")
        kept = ("offset", "do_", "out_")
        offsets = tuple(
            offset for offset in OFFSETS if offset.name in shifted or offset.name.startswith(kept)
        )
    if tier == "ci" and op == GRADIENTS:
        offsets, strides = OFFSETS[::7], strides[::3]
    return [offset for offset in (*offsets, *strides) if moves(offset, _arguments_of(op))]


def layouts(tier: Tier) -> Iterator[Case]:
    """Every layout for every op that has a tensor of it."""
    for op in OPS:
        for index, layout in enumerate(_placed(op, tier)):
            has_bias = layout.name.startswith(("bias", "offset", "kv_expanded_keys"))
            options = "bias" if has_bias else ""
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
            if not moves(layout, _arguments_of(op)):
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
    Fed("inf_q", "causal", ops=(FORWARD, BACKWARD)),
    Fed("inf_v", heads=(1, 4, 2), ops=(FORWARD, BACKWARD)),
    Fed("inf_do", "causal", tensors="do", ops=(DELTA, BACKWARD)),
    Fed("large_do", tensors="do", ops=(DELTA, BACKWARD)),
    Fed("nan_bias", "bias", ops=(FORWARD, BACKWARD)),
    Fed("nan_sink", "sink", heads=(1, 2, 2), ops=(FORWARD, BACKWARD)),
    Fed("minus_inf_sink", "sink", heads=(1, 2, 2), ops=(FORWARD, BACKWARD)),
    Fed("nan_slopes", "alibi", heads=(1, 2, 2), ops=(FORWARD, BACKWARD)),
)


def _index(fed: Fed) -> int:
    """Return the index of a distribution among all that differ."""
    places: dict[tuple[object, ...], int] = {}
    for other in FED:
        key = other.distribution, other.options, other.window, other.lengths
        places.setdefault(key, len(places))
    return places[fed.distribution, fed.options, fed.window, fed.lengths]


def distributions(tier: Tier) -> Iterator[Case]:
    """Yield every distribution, for the ops that have the tensors it changes.

    In `ci` in one dtype, which differs from op to op; delta, which is quick, has them all.
    """
    for op in OPS:
        drawn = set(ARGUMENTS[op]) - ({"out"} if op == BACKWARD else set())
        for fed in FED:
            if not set(fed.tensors.split()) & drawn or (tier == "ci" and op not in fed.ops):
                continue
            dtypes = fed.dtypes
            if tier == "ci" and dtypes == DTYPES and op != DELTA and not fed.every:
                dtypes = turn(op, _index(fed))
            for (sizes, seed), dtype in itertools.product(_fed_sizes(fed, tier), dtypes):
                yield attention_case(
                    op,
                    sizes,
                    dtype,
                    tier,
                    options=fed.options,
                    window=fed.window,
                    distribution=fed.distribution,
                    seed=seed,
                    why=fed.why,
                )


def _fed_sizes(fed: Fed, tier: Tier) -> list[tuple[tuple[int, ...], int]]:
    """Return the sizes and seeds of a distribution's cases."""
    own = (*fed.heads, *fed.lengths, 64, 64)
    if tier == "ci":
        return [(own, 0)]
    b, h_q, h_kv = fed.heads
    s_q, s_kv = fed.lengths
    longer = (b, 2 * h_q, 2 * h_kv, 4 * s_q + 3, 4 * s_kv + (3 if s_q == s_kv else 5), 64, 64)
    wide = (b, h_q, h_kv, s_q, s_kv, 128, 128)
    return [(own, 0), (own, 1), (longer, 0), (wide, 0)]


@dataclass(frozen=True, slots=True)
class Probe:
    """Needles in a case of these sizes; `dtypes`: of `ci`, none for one that differs by the op.

    Heads times batches is how many of the keys beside tile edges each query beside one finds, those
    of the largest tiles first: 19 do for 67 keys and tiles of 16 and more, 68 for 263.
    """

    sizes: tuple[int, ...]
    options: str = ""
    window: Window | None = None
    why: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    ops: tuple[str, ...] = (FORWARD, BACKWARD, GRADIENTS)

    def case(self, op: str, dtype: torch.dtype, tier: Tier, seed: int = 0) -> Case:
        """Its case."""
        return attention_case(
            op, self.sizes, dtype, tier,
            options=self.options, window=self.window,
            distribution=NEEDLES, seed=seed, why=self.why,
        )  # fmt: skip


_EDGES = "bugs 17, 44: each query beside a tile's edge finds each key beside one, exactly"
_TWO, _SINGLE = (FORWARD, BACKWARD), DTYPES[:1]

QUICK = (
    Probe((2, 5, 5, 70, 67, 64, 64), why=f"{_EDGES}, for tiles of 32 and 64", dtypes=DTYPES),
    Probe((4, 5, 5, 70, 67, 64, 64), why=_EDGES, dtypes=_SINGLE, ops=_TWO),
    Probe((3, 3, 3, 131, 133, 64, 64), why=f"{_EDGES}, for tiles of 128", dtypes=_SINGLE, ops=_TWO),
    Probe((1, 6, 2, 70, 66, 64, 64), why="bug 17: grouped heads, whose sums are exact", ops=_TWO),
    Probe((1, 6, 3, 70, 70, 64, 64), "causal", why="bugs 13, 17: the diagonal's edges"),
    Probe((1, 3, 3, 50, 83, 64, 64), "causal bottom_right", why="bugs 13, 17: the other corner"),
    Probe((1, 3, 3, 70, 66, 64, 64), window=(33, 15), why="bugs 17, 18: the window's edges"),
    Probe((6, 1, 1, 66, 67, 64, 64), "varlen", why="bugs 15, 17: the sequences' edges"),
    Probe((1, 3, 3, 35, 33, 8, 16), why="bug 17: the least head that 33 codes fit in", ops=_TWO),
    Probe((1, 2, 2, 33, 35, 256, 40), why="bug 17: a wide head", ops=_TWO),
    Probe((1, 2, 2, 17, 300, 40, 64), why="bug 44: many key tiles, one needle each", ops=_TWO),
)

LONG = (
    Probe((3, 23, 23, 261, 263, 64, 64), why=_EDGES),
    Probe((2, 40, 20, 261, 263, 128, 128), why=_EDGES),
    Probe((2, 33, 33, 261, 263, 64, 64), "causal", why=_EDGES),
    Probe((2, 33, 33, 200, 263, 64, 64), "causal bottom_right", why=_EDGES),
    Probe((2, 16, 16, 263, 261, 64, 64), "bottom_right", (129, 65), _EDGES),
    Probe((9, 16, 16, 261, 263, 64, 64), "varlen causal", why=_EDGES),
    Probe((2, 8, 8, 1030, 2051, 64, 64), why=_EDGES),
    Probe((1, 4, 2, 2050, 1025, 128, 128), "causal", why=_EDGES),
    Probe((1, 2, 2, 17, 32771, 128, 128), why="bug 44: keys split over programs", ops=_TWO),
    *(Probe((2, 16, 16, 133, 131, d, d), why=_EDGES) for d in (16, 32, 40, 59, 80, 111, 192, 256)),
    Probe((2, 16, 16, 133, 131, 320, 320), why=_EDGES),
    Probe((2, 16, 16, 133, 131, 64, 257), why=_EDGES),
    Probe((4, 8, 8, 65, 63, 8, 8), why=_EDGES),
)


def probes(tier: Tier) -> Iterator[Case]:
    """Yield needles, and for delta sums that are exact: see probes.py."""
    for op in OPS:
        if op == DELTA:
            yield from _deltas(tier)
            continue
        for index, needle in enumerate(QUICK):
            if op in needle.ops or tier == "full":
                dtypes = needle.dtypes if op != GRADIENTS else ()
                for dtype in DTYPES if tier == "full" else dtypes or turn(op, index):
                    yield needle.case(op, dtype, tier)
        for needle in LONG if tier == "full" else ():
            if op in needle.ops:
                for dtype in DTYPES:
                    yield needle.case(op, dtype, tier)
                    if needle is LONG[0]:
                        yield needle.case(op, dtype, tier, seed=1)


# Relations are tried on these (options, window, sizes). A kernel is called a dozen times on each.
_RELATED: tuple[tuple[str, Window | None, tuple[int, ...]], ...] = (
    ("", None, (2, 1, 1, 19, 23, 64, 64)),
    ("bias", None, (1, 4, 2, 19, 35, 64, 24)),
    ("causal", None, (1, 2, 2, 35, 35, 64, 64)),
    ("varlen", None, (5, 1, 1, 19, 23, 64, 64)),
    ("softcap sink", None, (1, 1, 1, 19, 23, 64, 64)),
    ("bottom_right", (9, 4), (2, 1, 1, 23, 35, 40, 40)),
)
_RELATED_LENGTHS = ((333, 200), (130, 517))


def related(tier: Tier) -> Iterator[Case]:
    """Coarse numbers, to which others can be added without a rounding: see relations.py."""
    for op in OPS:
        for index, (options, window, sizes) in enumerate(_RELATED):
            if op == DELTA:
                if index:
                    continue
                sizes = (2, 3, 3, *sizes[3:])
            if op == GRADIENTS and tier == "ci" and index > 1:
                continue  # its parts have them
            lengths = [sizes[3:5], *(_RELATED_LENGTHS if tier == "full" else ())]
            for length in lengths:
                wanted = (*sizes[:3], *length, *sizes[5:])
                for dtype in DTYPES if tier == "full" else turn(op, index):
                    yield attention_case(
                        op, wanted, dtype, tier,
                        options=options, window=window, distribution=COARSE,
                    )  # fmt: skip


def _deltas(tier: Tier) -> Iterator[Case]:
    widths = ((37, 64), (3, 257)) if tier == "ci" else ((261, 64), (131, 257), (33, 512))
    for s_q, d_v in widths:
        for dtype in DTYPES:
            sizes = (2, 3, 3, s_q, 5, d_v, d_v)
            why = "bug 17: no sum has a rounding, whatever its order"
            yield attention_case(DELTA, sizes, dtype, tier, distribution=INTEGERS, why=why)


_ON_CHIP = (64, 128, 256)
_CROSSED_HEADS = (*_ON_CHIP, 320)
_FEW_QUERIES = (5, 21)
_CROSSED_OPTIONS = ("", "bias", "dropout", "bias dropout")


def crossed(tier: Tier) -> Iterator[Case]:
    """Yield crossed choices of a kernel's variant, so that each variant has some cases.

    Head size, alignment, additive terms and dropout choose a variant together: a mistake in one
    combination hides behind cases that vary one at a time. Forward and backward alone: end to end
    runs the same kernels.
    """
    if tier == "ci":
        return
    layouts = (CONTIGUOUS, OFFSETS[0])
    for op, dtype, d, layout, options in itertools.product(
        (FORWARD, BACKWARD), DTYPES, _CROSSED_HEADS, layouts, _CROSSED_OPTIONS
    ):
        sizes = (1, 2, 2, 131, 200, d, d)
        yield attention_case(op, sizes, dtype, tier, options=options, layout=layout)
    # Few queries have tiles of their own, for up to 16 rows a key head, and for more.
    for dtype, d, layout, options, s_q in itertools.product(
        DTYPES, _ON_CHIP, layouts, _CROSSED_OPTIONS, _FEW_QUERIES
    ):
        sizes = (1, 2, 2, s_q, 300, d, d)
        yield attention_case(FORWARD, sizes, dtype, tier, options=options, layout=layout)


# (options, window, sizes); each in one or two dtypes. The truth takes all pairs in float64.
_LONG_SEQUENCES: tuple[tuple[str, Window | None, tuple[int, ...]], ...] = (
    ("", None, (1, 2, 2, 4096, 4096, 64, 64)),
    ("", None, (1, 2, 2, 4096, 4096, 128, 128)),
    ("causal", None, (1, 2, 2, 4096, 4096, 128, 128)),
    ("causal bottom_right", None, (1, 2, 1, 1024, 8192, 128, 128)),
    ("causal", (512, None), (1, 2, 2, 8192, 8192, 64, 64)),
    ("causal", None, (1, 1, 1, 8192, 8192, 128, 128)),
    ("bias bias_over_heads", None, (1, 2, 2, 4096, 4096, 64, 64)),
    ("varlen causal", None, (9, 2, 2, 4096, 4096, 64, 64)),
    ("dropout", None, (1, 2, 2, 2048, 4096, 64, 64)),
    ("", None, (1, 2, 2, 4097, 4095, 59, 59)),
)
_SPLIT = (
    (1, 8, 1, 1, 65537, 128, 128),
    (2, 4, 4, 7, 32769, 64, 64),
    (1, 32, 1, 16, 8193, 128, 128),
)

_PAST = "more than 2^31 elements"
_MANY_QUERIES, _MANY_KEYS = 2**21 + 3, 2**21 + 5


def large(tier: Tier) -> Iterator[Case]:
    """Yield cases for a GPU alone: long sequences, then the largest tensors."""
    if tier == "ci":
        return
    for op in OPS:
        for index, (options, window, sizes) in enumerate(_LONG_SEQUENCES):
            dtype = DTYPES[1 + index % 2]
            yield attention_case(op, sizes, dtype, tier, options=options, window=window)
        for sizes in _SPLIT:
            why = "few queries and many keys: keys split over programs"
            yield attention_case(op, sizes, DTYPES[2], tier, why=why)
    for op in (FORWARD, BACKWARD):
        yield attention_case(op, (1, 2, 2, 4096, 4096, 64, 64), DTYPES[0], tier)
        sizes = (1, 2, 2, 16384, 16384, 128, 128)
        yield attention_case(op, sizes, DTYPES[2], tier, options="causal", why="the longest")
        sizes = (1, 1, 1, 65536, 65536, 128, 128)
        why = "memory stays O(s d): no kernel may hold s x s"
        yield attention_case(op, sizes, DTYPES[2], tier, why=why)
    yield from _past_2_31(tier)


def _past_2_31(tier: Tier) -> Iterator[Case]:
    """q, k, v, do, out and the gradients past 2^31 elements, one or two at a time.

    Few keys or few queries keep the pairs, and unequal head sizes the float64 truth, in memory.
    """
    dtype = DTYPES[2]
    many_q = (1, 8, 8, _MANY_QUERIES, 5, 128, 8)
    many_k = (1, 8, 8, 5, _MANY_KEYS, 128, 8)
    for op in (FORWARD, BACKWARD, GRADIENTS):
        queries, keys = f"bugs 3, 4, 5: {_PAST} in q", f"bugs 3, 4, 5: {_PAST} in k"
        yield attention_case(op, many_q, dtype, tier, why=queries)
        yield attention_case(op, many_k, dtype, tier, why=keys)
    sizes = (1, 8, 8, _MANY_QUERIES, 5, 8, 128)
    yield attention_case(FORWARD, sizes, dtype, tier, why=f"bug 4: {_PAST} in out")
    sizes = (1, 8, 8, 5, _MANY_KEYS, 8, 128)
    yield attention_case(FORWARD, sizes, dtype, tier, why=f"bug 4: {_PAST} in v")
    sizes = (1, 8, 8, 2**22 + 3, 2, 128, 8)
    yield attention_case(FORWARD, sizes, dtype, tier, why="bug 1: more than 2^32 elements in q")
    sizes = (1, 8, 8, _MANY_QUERIES, 0, 0, 128)
    yield attention_case(DELTA, sizes, dtype, tier, why=f"bug 2: {_PAST} in out and do")


# Numbers of options for which a kernel may have a constant, or which it may take for none.
_RARE_NUMBERS: tuple[tuple[str, Sequence[float], float], ...] = (
    ("softcap", SOFTCAPS, 50.0),
    ("dropout", DROPOUTS, 0.17),
    ("scale", SCALES, -0.2),
    ("scale", SCALES, 0.0),
    ("alibi", SLOPES, DRAWN_SLOPES),
)


# Under ALiBi a negative slope makes far keys heavy, and of 8 drawn slopes some are negative.
_FAR_KEYS = (1, 8, 8, 5, 520, 64, 64)


def numbers(tier: Tier) -> Iterator[Case]:
    """Yield numbers that no default has: a scale of 0 or below; slopes without a formula."""
    sizes = (1, 2, 1, 37, 70, 64, 64)
    for op, (index, (option, choices, value)) in itertools.product(
        (FORWARD, BACKWARD), enumerate(_RARE_NUMBERS)
    ):
        for dtype in turn(op, index) if tier == "ci" else DTYPES:
            case_of = partial(attention_case, op, sizes, dtype, tier, options=option)
            drawn = (case_of(seed=seed) for seed in range(len(choices)))
            yield next(case for case in drawn if chosen(case, choices) == value)
    for op in (FORWARD, BACKWARD):
        for dtype in (torch.float32, torch.bfloat16) if tier == "ci" else DTYPES:
            case_of = partial(attention_case, op, _FAR_KEYS, dtype, tier, options="alibi")
            drawn = (
                case_of(seed=seed, why="distances past 256, which bfloat16 rounds")
                for seed in range(len(SLOPES))
            )
            yield next(case for case in drawn if chosen(case, SLOPES) == DRAWN_SLOPES)


FAMILIES = (features, sizes, layouts, distributions, numbers, probes, related, crossed, large)


@cache
def _all() -> tuple[Case, ...]:
    return collect(FAMILIES)


@cache
def cases(op: str) -> tuple[Case, ...]:
    """All cases of an op, those of `ci` first, each once."""
    return tuple(case for case in _all() if case.op == op)


# A truth is counted row by row, and the lengths of sequences are listed one by one.
_LONGEST, _MOST_SEQUENCES = 2**24, 2**16
_OWN = {NEEDLES, INTEGERS, COARSE}  # their cases' sizes are chosen for them
_TILE, _FEW_TILES = 64, 4
_OPTIONAL = ("bias", "sink")  # tensors that distributions and layouts may be of


def _of_sizes(case: Case) -> str | None:
    sizes = dict(case.sizes)
    for name in ("h_q", "h_kv", "d", "d_v"):
        if sizes.get(name, 1) < 1:
            return f"{name} must be 1 or more"
    for name in ("s_q", "s_kv"):
        if sizes.get(name, 0) > _LONGEST:
            return f"{name} is {sizes[name]:,}, and the longest here is {_LONGEST:,}"
    h_q, h_kv = sizes["h_q"], sizes.get("h_kv", sizes["h_q"])
    if h_q % h_kv:
        return f"h_q {h_q} is no multiple of h_kv {h_kv}; each key head has as many query heads"
    if "varlen" in case.options and sizes["b"] > _MOST_SEQUENCES:
        return f"b is {sizes['b']:,} sequences, and varlen has {_MOST_SEQUENCES:,} at most here"
    return None


def _of_options(case: Case) -> str | None:
    options, sizes = case.options, dict(case.sizes)
    follows = implied(sizes)
    if "window" in options - follows:
        return "window needs window_left, window_right or both among the sizes"
    if "gqa" in options - follows:
        return f"gqa means that h_q and h_kv differ, and both are {sizes['h_q']}; leave it out"
    if "unequal_d" in options - follows:
        return f"unequal_d means that d and d_v differ, and both are {sizes['d']}; leave it out"
    if {"bias", "varlen"} <= options:
        return "bias and varlen don't go together: no case has both; leave one out"
    over = sorted(option for option in options if option.startswith("bias_over_"))
    if over and "bias" not in options:
        return f"{over[0]} is about a bias, and there is none; add bias to the options"
    if {"dropout", "torch_dropout"} <= options:
        return "dropout and torch_dropout are two masks of one dropout; leave one out"
    if "bottom_right" in options and not options & {"causal", "window", "alibi"}:
        return "bottom_right moves a mask or a distance; add causal, a window or alibi"
    return None


_IN_SCORES = frozenset(
    {
        *("nan_q", "nan_k", "nan_v", "nan_bias", "nan_sink", "nan_slopes"),
        *("inf_q", "inf_k", "inf_v", "inf_do"),
    }
)


def _of_tensors(case: Case) -> str | None:
    drawn, present = case.distribution, shapes(case)
    for name in _OPTIONAL:
        if drawn.startswith(f"{name}_") and name not in present:
            return f"distribution {drawn} is about a {name}, and there is none; add {name}"
    if drawn in _IN_SCORES and "dropout" in case.options:
        # 0 for a kernel that selects, and NaN for one that multiplies by the mask: both are right.
        return f"distribution {drawn} and dropout leave open what a dropped pair is; leave one out"
    return None


def _objection(case: Case) -> str | None:
    return _of_sizes(case) or _of_options(case) or objection(case, _OWN) or _of_tensors(case)


def _is_quick(op: str, case: Case) -> bool:
    """Return True if a case has few tiles of queries and keys: an interpreter runs them in turn.

    End to end runs the kernels of the forward and the backward, which meet the rest.
    """
    sizes = dict(case.sizes)
    lengths = (-(-sizes.get(name, 1) // _TILE) for name in ("s_q", "s_kv"))
    tiles = sizes["b"] * sizes["h_q"] * math.prod(lengths)
    if op == GRADIENTS:
        narrow = max(sizes["d"], sizes["d_v"]) <= _TILE
        return narrow and tiles <= _FEW_TILES // 2 and case.distribution == "normal"
    return tiles <= _FEW_TILES


def allowed(op: str) -> Allowed:
    """Return what a user may ask of a case of the op."""
    far = (*FAR_QUERIES, *FAR_KEYS, *FAR_HEADS, *FAR_BATCHES)
    return Allowed(
        DELTA_SIZES if op == DELTA else SIZES,
        () if op == DELTA else _WINDOW,
        implied,
        _objection,
        layouts=layouts_of(op)
        | {layout.name: layout for layout in far if moves(layout, _arguments_of(op))},
        distributions=tuple(DISTRIBUTIONS),
        factors=factors_of(op, _OWN),
        together=() if op == DELTA else TOGETHER,
        is_quick=partial(_is_quick, op),
    )
