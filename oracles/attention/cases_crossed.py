"""Cases of attention that cross what kernels are specialised by, so that each variant has some.

Head size, alignment, additive terms and dropout choose a kernel's variant together: a mistake in
one combination hides behind cases that vary one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from oracles.attention.cases_builder import DTYPES, OFFSETS, attention_case
from oracles.attention.geometry import BACKWARD, FORWARD
from oracles.op import CONTIGUOUS, Case, Tier

_ON_CHIP = (64, 128, 256)
_HEADS = (*_ON_CHIP, 320)
_FEW_QUERIES = (5, 21)
_OPTIONS = ("", "bias", "dropout", "bias dropout")


def crossed(tier: Tier) -> Iterator[Case]:
    """Forward and backward alone: end to end runs the same kernels."""
    if tier == "ci":
        return
    layouts = (CONTIGUOUS, OFFSETS[0])
    for op, dtype, d, layout, options in product(
        (FORWARD, BACKWARD), DTYPES, _HEADS, layouts, _OPTIONS
    ):
        sizes = (1, 2, 2, 131, 200, d, d)
        yield attention_case(op, sizes, dtype, tier, options=options, layout=layout)
    # Few queries have tiles of their own, for up to 16 rows a key head, and for more.
    for dtype, d, layout, options, s_q in product(
        DTYPES, _ON_CHIP, layouts, _OPTIONS, _FEW_QUERIES
    ):
        sizes = (1, 2, 2, s_q, 300, d, d)
        yield attention_case(FORWARD, sizes, dtype, tier, options=options, layout=layout)
