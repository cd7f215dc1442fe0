"""Cases of attention for a GPU alone: long sequences, and tensors past 2^31 elements."""

from __future__ import annotations

from collections.abc import Iterator

from oracles.attention.cases_builder import DTYPES, OPS, Window, attention_case
from oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from oracles.op import Case, Tier

# (options, window, sizes); each in one or two dtypes. The truth takes all pairs in float64.
_LONG: tuple[tuple[str, Window | None, tuple[int, ...]], ...] = (
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

_FULL: Tier = "full"
_PAST = "more than 2^31 elements"
_MANY_QUERIES, _MANY_KEYS = 2**21 + 3, 2**21 + 5


def large(tier: Tier) -> Iterator[Case]:
    """Long sequences, then the largest tensors."""
    if tier == "ci":
        return
    for op in OPS:
        for index, (options, window, sizes) in enumerate(_LONG):
            dtype = DTYPES[1 + index % 2]
            wanted = "" if op == DELTA else options
            window_ = None if op == DELTA else window
            yield attention_case(op, sizes, dtype, tier, options=wanted, window=window_)
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
    yield from _past_2_31()


def _past_2_31() -> Iterator[Case]:
    """q, k, v, do, out and the gradients past 2^31 elements, one or two at a time.

    Few keys or few queries keep the pairs, and unequal head sizes the float64 truth, in memory.
    """
    dtype, tier = DTYPES[2], _FULL
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
