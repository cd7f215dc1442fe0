"""Cases of attention that are exact probes, or carry relations: see probes.py and relations.py.

Heads times batches is how many of the keys beside tile edges each query beside one finds, those of
the largest tiles first: 19 do for 67 keys and tiles of 16 and more, 68 for 263.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles.attention.cases_builder import DTYPES, OPS, Window, attention_case, turn
from oracles.attention.distributions import COARSE
from oracles.attention.geometry import BACKWARD, DELTA, FORWARD, GRADIENTS
from oracles.attention.probes import INTEGERS, NEEDLES
from oracles.op import Case, Tier


@dataclass(frozen=True, slots=True)
class Probe:
    """Needles in a case of these sizes; `dtypes`: of `ci`, none for one that differs by the op."""

    sizes: tuple[int, ...]
    options: str = ""
    window: Window | None = None
    why: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    ops: tuple[str, ...] = (FORWARD, BACKWARD, GRADIENTS)


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
    """Needles, and for delta sums that are exact."""
    for op in OPS:
        if op == DELTA:
            yield from _deltas(tier)
            continue
        for index, each in enumerate(QUICK):
            if op in each.ops or tier == "full":
                dtypes = each.dtypes if op != GRADIENTS else ()
                for dtype in DTYPES if tier == "full" else dtypes or turn(op, index):
                    yield _case(op, each, dtype, tier)
        for each in LONG if tier == "full" else ():
            if op in each.ops:
                for dtype in DTYPES:
                    yield _case(op, each, dtype, tier)
                    if each is LONG[0]:
                        yield _case(op, each, dtype, tier, seed=1)


# What relations are tried on: (options, window, sizes). Each is called a dozen times.
_RELATED: tuple[tuple[str, Window | None, tuple[int, ...]], ...] = (
    ("", None, (2, 1, 1, 19, 23, 64, 64)),
    ("bias", None, (1, 4, 2, 19, 35, 64, 24)),
    ("causal", None, (1, 2, 2, 35, 35, 64, 64)),
    ("varlen", None, (5, 1, 1, 19, 23, 64, 64)),
    ("softcap sink", None, (1, 1, 1, 19, 23, 64, 64)),
    ("bottom_right", (9, 4), (2, 1, 1, 23, 35, 40, 40)),
)
_FULL_LENGTHS = ((333, 200), (130, 517))


def related(tier: Tier) -> Iterator[Case]:
    """Coarse numbers, to which others can be added without a rounding."""
    for op in OPS:
        for index, (options, window, sizes) in enumerate(_RELATED):
            if op == DELTA:
                if index:
                    continue
                sizes = (2, 3, 3, *sizes[3:])
            if op == GRADIENTS and tier == "ci" and index > 1:
                continue  # its parts have them
            lengths = [sizes[3:5], *(_FULL_LENGTHS if tier == "full" else ())]
            for each in lengths:
                wanted = (*sizes[:3], *each, *sizes[5:])
                for dtype in DTYPES if tier == "full" else turn(op, index):
                    yield attention_case(
                        op,
                        wanted,
                        dtype,
                        tier,
                        options=options,
                        window=window,
                        distribution=COARSE,
                    )


def _case(op: str, probe: Probe, dtype: torch.dtype, tier: Tier, seed: int = 0) -> Case:
    return attention_case(
        op,
        probe.sizes,
        dtype,
        tier,
        options=probe.options,
        window=probe.window,
        distribution=NEEDLES,
        seed=seed,
        why=probe.why,
    )


def _deltas(tier: Tier) -> Iterator[Case]:
    widths = ((37, 64), (3, 257)) if tier == "ci" else ((261, 64), (131, 257), (33, 512))
    for s_q, d_v in widths:
        for dtype in DTYPES:
            sizes = (2, 3, 3, s_q, 5, d_v, d_v)
            why = "bug 17: no sum has a rounding, whatever its order"
            yield attention_case(DELTA, sizes, dtype, tier, distribution=INTEGERS, why=why)
