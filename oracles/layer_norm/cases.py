"""The cases of layer-norm backward, in two tiers, and which a user may ask for.

`ci` runs under an interpreter on two cores, where a program's trip costs milliseconds: sizes are
small, with one of each large kind. `full` is for a GPU. Every case of `ci` is in `full` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kernel_workbench.oracles.cases import DTYPES, collect
from kernel_workbench.oracles.cases.distributions import COARSE, INTEGERS, objection
from kernel_workbench.oracles.cases.layouts import FAR_STRIDE, alike, apart, offsets
from kernel_workbench.oracles.layer_norm.arguments import NAME
from kernel_workbench.oracles.layer_norm.factors import factors_of
from kernel_workbench.oracles.layer_norm.values import DISTRIBUTIONS, KINDS_OF_VALUES
from kernel_workbench.oracles.op import CONTIGUOUS, Allowed, Case, Layout, TensorLayout, Tier

Dtypes = tuple[torch.dtype, torch.dtype]
_SAME: tuple[Dtypes, ...] = tuple((dtype, dtype) for dtype in DTYPES)
_MIXED: tuple[Dtypes, ...] = (
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
)
_ALL = _SAME + _MIXED
_TENSORS = ("dy", "x", "weight", "mean", "rstd")


_MATRICES = ("dy", "x", "dresidual")
_VECTORS = ("weight", "mean", "rstd")

OFFSETS = offsets((*_TENSORS, "dresidual", "dweight", "dbias"), _TENSORS)
STRIDES = (
    *(alike(f"rowpad{k}", _MATRICES, TensorLayout(row_padding=k)) for k in (1, 3, 8, 16)),
    apart("dy_rowpad3", dy=TensorLayout(row_padding=3)),
    apart("x_rowpad5", x=TensorLayout(row_padding=5)),
    apart("dy_rowpad24", dy=TensorLayout(row_padding=24), x=TensorLayout(row_padding=8)),
    alike("colstride2", ("dy", "x"), TensorLayout(column_stride=2)),
    apart("dy_colstride3", dy=TensorLayout(column_stride=3)),
    apart("x_colstride2", x=TensorLayout(column_stride=2)),
    apart("dy_transposed", dy=TensorLayout(order="nm")),
    apart("x_transposed", x=TensorLayout(order="nm")),
    apart("expanded_rows", dy=TensorLayout(expanded="m")),
    apart("expanded_all", dy=TensorLayout(expanded="mn")),
)

RANK_3 = tuple(
    Layout(
        f"rank3_pad{padding}" if padding else "rank3",
        alike("", _MATRICES, TensorLayout(batch_padding=padding)).tensors,
        batches=3,
    )
    for padding in (0, 8, 5)
)

# In `ci` in one dtype: what the strides above meet in all of them.
FURTHER_STRIDES = (
    *(apart(f"{name}_column", **{name: TensorLayout(column_stride=3)}) for name in _VECTORS),
    apart("x_expanded_rows", x=TensorLayout(expanded="m")),
    alike("packed", _MATRICES, TensorLayout(interleaved=2)),
    *(
        apart(f"{one}_columns_of_{other}", **columns, **rows)
        for one, other in (("dy", "x"), ("x", "dy"))
        for columns in ({one: TensorLayout(column_stride=2)},)
        for rows in ({other: TensorLayout(interleaved=2)},)
    ),
)

FAR = (
    apart("x_far", x=TensorLayout(row_stride=FAR_STRIDE)),
    apart("dy_far", dy=TensorLayout(row_stride=FAR_STRIDE)),
)

# Each option alone, and the combinations that meet in one branch of a kernel.
OPTION_SETS: tuple[frozenset[str], ...] = tuple(
    frozenset(dtypes.split())
    for dtypes in (
        "no_weight",
        "no_bias",
        "zero_centred",
        "rms_norm",
        "residual",
        "accumulate",
        "device_independent",
        "rms_norm no_bias",
        "rms_norm no_weight",
        "rms_norm no_bias zero_centred residual",
        "no_weight residual",
        "no_bias accumulate",
        "zero_centred accumulate",
        "zero_centred residual accumulate",
        "rms_norm no_bias zero_centred residual accumulate device_independent",
        "residual accumulate device_independent",
    )
)


def layer_norm_case(
    m: int,
    n: int,
    dtypes: Dtypes,
    tier: Tier = "ci",
    *,
    layout: Layout = CONTIGUOUS,
    distribution: str = "normal",
    options: frozenset[str] = frozenset(),
    seed: int = 0,
    why: str = "",
) -> Case:
    """A case of m rows and n columns; dtypes: of x and dy, and of the weight."""
    return Case(
        op=NAME,
        sizes=(("m", m), ("n", n)),
        dtype=dtypes[0],
        weight_dtype=dtypes[1],
        layout=layout,
        distribution=distribution,
        options=options,
        seed=seed,
        tier=tier,
        why=why,
    )


_CI_SHAPES = (
    (0, 17, "no rows: dweight and dbias are zeros, not what memory held"),
    (1, 1, "x^ is 0 and so is dx"),
    (1, 768, ""),
    (2, 3, ""),
    (3, 229, "odd, prime: no vector width divides it"),
    (5, 5, ""),
    (17, 1, "a mean over one element"),
    (17, 127, "one under a block"),
    (17, 128, ""),
    (17, 129, "one over a block"),
    (37, 64, "more rows than programs, not a multiple"),
    (37, 760, ""),
    (9, 1023, ""),
    (9, 1024, ""),
    (9, 1025, ""),
    (131, 8, "many short rows: a tile of several"),
    (3, 3000, ""),
    (3, 5000, "two blocks of columns"),
    (2, 8193, "past the widest row that is held in registers"),
)


def _shapes(tier: Tier) -> Iterator[Case]:
    if tier == "ci":
        for m, n, why in _CI_SHAPES:
            for dtypes in _ALL:
                yield layer_norm_case(m, n, dtypes, tier, why=why)
        for dtypes in _SAME:
            yield layer_norm_case(2, 65536, dtypes, tier, why="a row of 65536: the seed's widest")
        return
    for m in (0, 1, 2, 3, 17, 131, 132, 133, 264, 265, 1151):
        for n in (1, 3, 8, 64, 229, 256, 768, 1023, 1024, 1025, 3000, 4096, 8192, 8193):
            for dtypes in _ALL:
                yield layer_norm_case(
                    m, n, dtypes, tier, why="m about the 132 SMs of an H100 or H200"
                )
    two_blocks = (133, 5120), (265, 6001), (134, 6144)
    for m, n in (*two_blocks, (133, 16384), (7, 65536), (128, 65536), (5, 100000), (1, 262144)):
        for dtypes in _ALL:
            yield layer_norm_case(m, n, dtypes, tier, why="wide rows")
    for m, n in ((65537, 64), (65537, 229), (1048576, 3), (65537, 1), (16384, 1024), (4096, 4096)):
        for dtypes in _ALL:
            yield layer_norm_case(m, n, dtypes, tier, why="more rows than a 16-bit grid index")


def _offsets(tier: Tier) -> Iterator[Case]:
    for index, layout in enumerate(OFFSETS):
        if tier == "ci":
            yield layer_norm_case(7, 264, _ALL[index % len(_ALL)], tier, layout=layout)
            continue
        for dtypes in _ALL:
            for m, n in ((137, 768), (19, 8320)):
                yield layer_norm_case(m, n, dtypes, tier, layout=layout)


def _strides(tier: Tier) -> Iterator[Case]:
    shapes = ((11, 264),) if tier == "ci" else ((137, 768), (150, 1023), (19, 8320), (6, 20000))
    for layout in STRIDES:
        for m, n in shapes:
            for dtypes in _SAME if tier == "ci" else _ALL:
                yield layer_norm_case(m, n, dtypes, tier, layout=layout)
    for place, layout in enumerate(FURTHER_STRIDES):
        dtypes = _ALL[place % len(_ALL)]
        for m, n in ((11, 264),) if tier == "ci" else ((137, 1023), (19, 8320)):
            yield layer_norm_case(m, n, dtypes, tier, layout=layout)
    for layout in RANK_3:
        for m, n in ((12, 264),) if tier == "ci" else ((138, 768), (21, 8320)):
            for dtypes in _SAME if tier == "ci" else _ALL:
                yield layer_norm_case(m, n, dtypes, tier, layout=layout)
    for layout in FAR:
        n, why = 264 if tier == "ci" else 8320, "offsets past 2^31 elements"
        yield layer_norm_case(3, n, _SAME[2], tier, layout=layout, why=why)


_NEEDED = {
    "nan_dresidual": frozenset({"residual"}),
    "nan_dweight": frozenset({"accumulate"}),
}


def _distributions(tier: Tier) -> Iterator[Case]:
    shapes = ((13, 229),) if tier == "ci" else ((140, 768), (64, 1025), (33, 8200), (4097, 40))
    for index, name in enumerate(DISTRIBUTIONS):
        if name in _OWN:
            continue  # they have cases of their own
        for m, n in shapes:
            # In `ci` one dtype, another for each: in the generated cases they meet the others.
            for dtypes in (_SAME[index % len(_SAME)],) if tier == "ci" else _ALL:
                if name == "near_overflow" and dtypes[0] != torch.float16:
                    continue  # fp32 sums overflow first where the output's range is fp32's
                options = _NEEDED.get(name, frozenset())
                for seed in (0,) if tier == "ci" else (0, 1):
                    if name != "normal" or seed:
                        yield layer_norm_case(
                            m, n, dtypes, tier, distribution=name, options=options, seed=seed
                        )
    if tier == "ci":
        for name in ("mean1e4", "constant_rows", "constant_both", "outliers"):
            for dtypes in _SAME:
                yield layer_norm_case(5, 2056, dtypes, tier, distribution=name)


def _options(tier: Tier) -> Iterator[Case]:
    shapes = ((11, 264), (6, 77)) if tier == "ci" else ((139, 768), (40, 1023), (21, 8320))
    for options in OPTION_SETS:
        for index, dtypes in enumerate(_SAME if tier == "ci" else _ALL):
            for m, n in shapes[index % 2 :][:1] if tier == "ci" else shapes:
                yield layer_norm_case(m, n, dtypes, tier, options=options)
        if tier == "ci":
            continue
        for layout in (OFFSETS[0], STRIDES[2], STRIDES[7]):
            yield layer_norm_case(139, 768, _SAME[2], tier, options=options, layout=layout)
        for distribution in ("mean100", "outliers", "constant_both"):
            yield layer_norm_case(
                139, 768, _SAME[2], tier, options=options, distribution=distribution
            )


# (m, n, options); lengths beside the edges of tiles of rows and of columns.
_PROBED = (
    (37, 760, ""),
    (17, 129, ""),
    (33, 127, ""),
    (9, 1025, ""),
    (131, 8, ""),
    (3, 3000, ""),
    (2, 8193, ""),
    (65, 64, ""),
    (9, 1024, ""),
    (5, 5, ""),
    (3, 1, ""),
    (33, 256, "rms_norm"),
    (17, 65, "no_weight"),
    (17, 65, "no_bias"),
    (13, 264, "zero_centred"),
    (13, 264, "residual"),
    (13, 264, "accumulate"),
    (13, 512, "rms_norm no_bias zero_centred residual accumulate device_independent"),
)


def _probes(tier: Tier) -> Iterator[Case]:
    """Values without a rounding: one element that is dropped, doubled or swapped shows."""
    why = "bugs 16, 17, 33: every element counts once, exactly"
    for index, (m, n, words) in enumerate(_PROBED):
        for dtypes in _ALL if tier == "full" else (_ALL[index % len(_ALL)],):
            options = frozenset(words.split())
            yield layer_norm_case(
                m, n, dtypes, tier, distribution=INTEGERS, options=options, why=why
            )
    if tier == "ci":
        return
    for m in (1, 131, 132, 133, 263, 1151):
        for n in (64, 229, 768, 1023, 1024, 1025, 4096, 8192, 8193, 65536):
            for dtypes in _SAME:
                yield layer_norm_case(m, n, dtypes, tier, distribution=INTEGERS, why=why)
    for dtypes in _SAME:
        yield layer_norm_case(65537, 40, dtypes, tier, distribution=INTEGERS, why=why)


# (m, n, options); n a power of two, so that the mean of coarse numbers is exact.
_RELATED = (
    (13, 256, ""),
    (37, 64, ""),
    (5, 1024, "residual accumulate"),
    (13, 256, "zero_centred"),
    (13, 256, "rms_norm no_bias"),
    (13, 256, "no_weight"),
    (13, 4096, ""),
)


def _relations(tier: Tier) -> Iterator[Case]:
    """Coarse numbers, which stay exact when others are added: what relations are tried on."""
    for index, (m, n, words) in enumerate(_RELATED):
        # The last one in fp32, whose bits show another order of summation.
        for dtypes in _ALL if tier == "full" else (_ALL[(index + 4) % len(_ALL)],):
            options = frozenset(words.split())
            yield layer_norm_case(m, n, dtypes, tier, distribution=COARSE, options=options)
    if tier == "full":
        for m, n in ((140, 1024), (1151, 256), (33, 4096), (7, 65536), (264, 128)):
            for dtypes in _SAME:
                yield layer_norm_case(m, n, dtypes, tier, distribution=COARSE)


def _huge(tier: Tier) -> Iterator[Case]:
    if tier == "full":
        why = "more than 2^31 elements in each of dy, x and dx"
        yield layer_norm_case(32769, 65544, _SAME[2], tier, why=why)
        yield layer_norm_case(33554433, 65, _SAME[2], tier, why=why)


_FAMILIES = (
    _shapes,
    _offsets,
    _strides,
    _distributions,
    _options,
    _probes,
    _relations,
    _huge,
)


@cache
def cases() -> tuple[Case, ...]:
    """All cases, those of `ci` first, each once."""
    return collect(_FAMILIES)


_OWN = {INTEGERS, COARSE}  # their cases' sizes are chosen for them
_OF_A_WEIGHT = ("no_bias", "zero_centred", "accumulate")


def _objection(case: Case) -> str | None:
    """Return why there can be no such case; None where there can."""
    if case.size("n") < 1:
        return "n must be 1 or more: a row has elements"
    if "no_weight" in case.options:
        idle = [word for word in _OF_A_WEIGHT if word in case.options]
        if idle:
            return f"no_weight leaves {' and '.join(idle)} nothing to act on; leave one side out"
    wrong = objection(case, _OWN)
    if wrong is not None:
        return wrong
    batches, m = case.layout.batches, case.size("m")
    if batches is not None and m % batches:
        return f"layout {case.layout.name} splits the rows in {batches}, and m is {m}"
    return None


_LAYOUTS = {offset.name: offset for offset in (*OFFSETS, *STRIDES, *FURTHER_STRIDES, *RANK_3, *FAR)}
# Pairs of the others with each level would be too many.
_OF_LEVELS = {name: layout for name, layout in _LAYOUTS.items() if layout not in FURTHER_STRIDES}
_KINDS = {
    kind: [name for name in names if name not in _OWN] for kind, names in KINDS_OF_VALUES.items()
}

ALLOWED = Allowed(
    sizes=("m", "n"),
    option_sizes=(),
    implied=lambda _: frozenset(),
    objection=_objection,
    layouts=_LAYOUTS,
    distributions=tuple(DISTRIBUTIONS),
    factors=factors_of(_ALL, _OF_LEVELS, _KINDS),
)
