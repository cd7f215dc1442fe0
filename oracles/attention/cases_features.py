"""Cases of attention's features: each option alone and with others, and the shapes they meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from oracles.attention.cases_builder import DTYPES, OPS, Window, attention_case, turn
from oracles.attention.geometry import DELTA, FORWARD, GRADIENTS
from oracles.op import Case, Tier


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the feature table: options, a window, and the sizes of its case in `ci`."""

    options: str
    sizes: tuple[int, ...]
    window: Window | None = None
    why: str = ""


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

# Of `full`: both corners, tiles' edges, more programs than an H200 has SMs. A GPU compiles each
# meeting of options, dtype and head sizes anew, so that `full` tries those of `ci` at more lengths.
_FULL_LENGTHS = ((200, 333), (333, 200), (1, 517), (1024, 1000))


def _scaled(each: Feature, s_q: int, s_kv: int) -> tuple[int, ...]:
    """The feature's sizes with other lengths; varlen keeps equal lengths equal."""
    b, h_q, h_kv, q, kv, d, d_v = each.sizes
    if "varlen" in each.options:
        return (2 * b + 1, h_q, h_kv, s_q, s_q if q == kv else s_kv, d, d_v)
    return (2 * b, h_q, h_kv, s_q, s_kv, d, d_v)


def features(tier: Tier) -> Iterator[Case]:
    """Every feature in every dtype, and the combinations."""
    for op in OPS:
        if op == DELTA:
            continue
        for index, each in enumerate(FEATURES + COMBINATIONS):
            if tier == "ci" and op == GRADIENTS and each in COMBINATIONS and index % 3:
                continue  # its parts have them
            all_sizes = [each.sizes]
            if tier == "full":
                all_sizes += [_scaled(each, *lengths) for lengths in _FULL_LENGTHS]
            for dtype in DTYPES if each in FEATURES else turn(op, index):
                for sizes in all_sizes:
                    yield attention_case(
                        op,
                        sizes,
                        dtype,
                        tier,
                        options=each.options,
                        window=each.window,
                        why=each.why if sizes == each.sizes else "",
                    )
        for index, each in enumerate(_DECODING if op == FORWARD else ()):
            for dtype in turn(op, index) if tier == "ci" else DTYPES:
                yield attention_case(
                    op, each.sizes, dtype, tier,
                    options=each.options, window=each.window, why=each.why,
                )  # fmt: skip
        if tier == "full":
            for each, dtype in itertools.product(_TORCH_DROPOUT, DTYPES):
                yield attention_case(op, each.sizes, dtype, tier, options=each.options)


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


def shapes(tier: Tier) -> Iterator[Case]:
    """Lengths about tile edges, head sizes, numbers of heads and batches."""
    for op in OPS:
        yield from _lengths(op, tier)
        yield from _head_sizes(op, tier)
        yield from _heads(op, tier)


def _lengths(op: str, tier: Tier) -> Iterator[Case]:
    if tier == "ci":
        for index, (s_q, s_kv, options, why) in enumerate(_CI_LENGTHS):
            if op == DELTA:
                options, why = "", "" if s_q else "no rows"
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
        options = "" if op == DELTA else masks[(i + j) % len(masks)]
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
