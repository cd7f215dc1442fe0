"""The factors in which cases differ, and their levels: the parts that all ops share.

A case is put together from one part of each factor's level, and a case's levels are read off the
case itself. So a part may bring what its level needs (a bias that is large brings the bias), and
what was asked for in vain shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kernel_workbench.oracles.cases import DTYPES
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    Case,
    Factor,
    Layout,
    Op,
    Part,
    TensorLayout,
    Tier,
    dtype_name,
)

FAR = "far strides"


def option(word: str, *needs: str) -> Factor:
    """Return the factor of an option; needs: options without which it has no meaning."""
    parts = tuple(Part(options=frozenset({word, *words.split()})) for words in needs or ("",))
    return choice(word, {f"no {word}": (Part(),), word: parts}, {word: word})


def choice(name: str, levels: Mapping[str, tuple[Part, ...]], told_by: Mapping[str, str]) -> Factor:
    """Return the factor of options of which a case has one or none.

    told_by: option -> level; the first option that the case has decides.
    """
    plain = next(iter(levels))

    def level(case: Case) -> str:
        return next(
            (level_name for word, level_name in told_by.items() if word in case.options), plain
        )

    return Factor(name, levels, level)


def dtypes(pairs: Iterable[tuple[torch.dtype, torch.dtype]]) -> Factor:
    """Return the factor of the dtypes of activations and weights."""

    def label(kind: torch.dtype, weight: torch.dtype) -> str:
        name = dtype_name(kind)
        return name if kind == weight else f"{name}, weight {dtype_name(weight)}"

    levels = {label(*pair): (Part(dtypes=pair),) for pair in pairs}
    return Factor("dtype", levels, lambda case: label(case.dtype, case.weight_dtype))


NOT_FINITE = "not finite"


def distributions(
    kinds: Mapping[str, Iterable[str]], needs: Mapping[str, Part], beside: Iterable[str]
) -> tuple[Factor, ...]:
    """Return the factors of the values: the distribution, and its kind.

    kinds   kind -> distributions; the first one is the plain kind, whose first is "normal"
    needs   what a distribution has no meaning without
    beside  the factors whose levels each distribution of finite numbers is to meet

    The kinds meet the levels of every factor. A distribution meets few: it shows errors of
    arithmetic, which hang on dtypes and numbers, and hardly on layouts.
    """

    def part(name: str) -> Part:
        needed = needs.get(name, Part())
        return Part(
            sizes=needed.sizes, options=needed.options, dtypes=needed.dtypes, distribution=name
        )

    of_kind = {kind: tuple(names) for kind, names in kinds.items()}
    kind_of = {name: kind for kind, names in of_kind.items() for name in names}
    plain = next(iter(of_kind))
    finite = [name for name, kind in kind_of.items() if kind != NOT_FINITE]
    # A part of the plain kind leaves the distribution to the factor of distributions, before it.
    parts = {
        kind: (*((Part(),) if kind == plain else ()), *map(part, names))
        for kind, names in of_kind.items()
    }
    return (
        Factor(
            "distribution",
            {name: (part(name),) for name in finite},
            lambda case: case.distribution,
            frozenset(beside),
        ),
        Factor("values", parts, lambda case: kind_of.get(case.distribution, plain)),
    )


def activations() -> Factor:
    """Return the activations' dtypes, which distributions meet where weights have their own."""
    levels: dict[str, tuple[Part, ...]] = {}
    for kind in DTYPES:
        part = Part(dtypes=(kind, kind))
        levels[dtype_name(kind)] = (part,) if levels else (Part(), part)  # as the dtypes say
    return Factor(
        "activations", levels, lambda case: dtype_name(case.dtype), frozenset({"distribution"})
    )


def numbers(levels: Mapping[str, Iterable[float]]) -> tuple[Factor, ...]:
    """Return a factor for each number that kernels are passed: its default, and other values."""
    return tuple(
        choice(
            name,
            {
                "default": (Part(),),
                **{
                    f"{value:g}": (Part(options=frozenset({number_word(name, value)})),)
                    for value in values
                },
            },
            {number_word(name, value): f"{value:g}" for value in values},
        )
        for name, values in ((name, tuple(values)) for name, values in levels.items())
    )


def number_word(name: str, value: float) -> str:
    """Return the option that sets a number, for example eps=1em12: ids have "-" between parts."""
    return f"{name}={value:g}".replace("-", "m").replace("+", "")


def layouts(named: Mapping[str, Layout], adjacent: str, needs: Mapping[str, Part]) -> Factor:
    """Return kinds of layouts; adjacent: the letters of the axes that are the fastest as a rule.

    needs: argument -> what a case has to have so that it has the argument. Far strides are a level
    that nothing makes: they take sizes of their own, and so cases of their own.
    """
    kinds: dict[str, list[Part]] = {"contiguous": [Part(layout=CONTIGUOUS)]}
    for layout in named.values():
        kind = layout_kind(layout, adjacent)
        if kind == FAR:
            continue
        places = [name for name, _ in layout.tensors]
        needed = needs.get(places[0], Part()) if len(places) == 1 else Part()
        part = Part(sizes=needed.sizes, options=needed.options, layout=layout)
        kinds.setdefault(kind, []).append(part)
    levels = {kind: tuple(parts) for kind, parts in kinds.items()}
    return Factor("layout", levels, lambda case: layout_kind(case.layout, adjacent))


def is_far(layout: Layout) -> bool:
    """Return True if a tensor's rows lie so far apart that offsets pass 2**31."""
    return any(tensor_layout.row_stride is not None for _, tensor_layout in layout.tensors)


def layout_kind(layout: Layout, adjacent: str) -> str:
    """Return a layout's kind: `offset`, `one tensor's row padding`, `mixed` and so on."""
    kinds = {_kind(tensor_layout, adjacent) for _, tensor_layout in layout.tensors} - {""}
    if FAR in kinds:
        return FAR
    if layout.batches is not None:
        return "rank 3"
    if len(kinds) != 1:
        return "mixed" if kinds else "contiguous"
    (kind,) = kinds
    return f"one tensor's {kind}" if len(layout.tensors) == 1 else kind


def _kind(layout: TensorLayout, adjacent: str) -> str:
    """Return the kind of one tensor's layout."""
    moved = bool(layout.order) and layout.order[-1] not in adjacent
    traits = {
        FAR: layout.row_stride is not None,
        "transposition": moved,
        "order of axes": bool(layout.order) and not moved,
        "offset": layout.offset > 0,
        "row padding": layout.row_padding > 0 or layout.batch_padding > 0,
        "column stride": layout.column_stride != 1,
        "expansion": bool(layout.expanded),
        "interleaving": layout.interleaved > 1,
    }
    present = [name for name, holds in traits.items() if holds]
    if FAR in present:
        return FAR
    return "mixture" if len(present) > 1 else "".join(present)


def levels_of(op: Op, case: Case) -> tuple[str, ...]:
    """The level of each of the op's factors."""
    return tuple(factor.level(case) for factor in op.allowed.factors)


def assembled(
    op: Op, parts: Iterable[Part], *, seed: int = 0, tier: Tier = "ci", why: str = ""
) -> Case:
    """Return the case that has all of the parts; where two parts differ the later one counts."""
    sizes: dict[str, int] = {}
    options: set[str] = set()
    kinds, layout, distribution = (torch.float32, torch.float32), CONTIGUOUS, "normal"
    for part in parts:
        sizes |= part.sizes
        options |= part.options
        kinds = part.dtypes or kinds
        layout = part.layout or layout
        distribution = part.distribution or distribution
    size_names = (*op.allowed.sizes, *op.allowed.option_sizes)
    wanted = {name: sizes[name] for name in size_names if name in sizes}
    return Case(
        op=op.name,
        sizes=tuple(wanted.items()),
        dtype=kinds[0],
        weight_dtype=kinds[1],
        layout=layout,
        distribution=distribution,
        options=frozenset(options) | op.allowed.implied(wanted),
        seed=seed,
        tier=tier,
        why=why,
    )


def as_part(op: Op, case: Case) -> Part:
    """All of a case but its seed."""
    sizes = dict(case.sizes)
    return Part(
        sizes=sizes,
        options=case.options - op.allowed.implied(sizes),
        dtypes=(case.dtype, case.weight_dtype),
        layout=case.layout,
        distribution=case.distribution,
    )
