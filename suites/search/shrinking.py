"""The smallest case that still breaks a rule, and which of its properties it takes.

One property after the other is made plainer (an option left out, a layout packed, a size halved),
and kept so where the case still breaks the same rule in the same output. It ends where no single
change can be kept: each was tried on the case that is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from kernel_workbench.oracles.cases.names import joined, layout_named, objection
from kernel_workbench.oracles.op import CONTIGUOUS, Case, Op, dtype_name

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGE_BYTES = 2**20
_EDGES = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Change:
    """A plainer case, and in words what was taken from the other."""

    what: str
    case: Case


def changes(op: Op, case: Case) -> Iterator[Change]:
    """All cases that are plainer by one property, those that leave out most first.

    Of a large case the small ones come first: each takes a fraction of its time.
    """
    found = (
        Change(what, changed)
        for what, changed in _changed(op, case)
        if changed != case and objection(op, changed) is None
    )
    if op.bytes(case) <= _LARGE_BYTES:
        yield from found
    else:
        yield from sorted(found, key=lambda each: op.bytes(each.case))


def _changed(op: Op, case: Case) -> Iterator[tuple[str, Case]]:
    assert op.allowed is not None
    implied = op.allowed.implied
    sizes = dict(case.sizes)
    chosen = case.options - implied(sizes)
    for word in sorted(chosen):
        beside = {each for each in chosen if not each.startswith(f"{word}_")} - {word}
        yield word, replace(case, options=frozenset(beside) | implied(sizes))
    for name in op.allowed.option_sizes:
        if name in sizes:
            yield name, _resized(op, case, {each: sizes[each] for each in sizes if each != name})
    if case.distribution != "normal":
        yield f"values {case.distribution}", replace(case, distribution="normal")
    if case.layout != CONTIGUOUS:
        yield f"layout {case.layout.name}", replace(case, layout=CONTIGUOUS)
        names = case.layout.name.split("+")
        for left_out in names if len(names) > 1 else ():
            kept = [layout_named(op, each) for each in names if each != left_out]
            layout = joined([each for each in kept if each is not None])
            if layout is not None:
                yield f"layout {left_out}", replace(case, layout=layout)
    if case.weight_dtype != case.dtype:
        label = f"weights in {dtype_name(case.weight_dtype)}"
        yield label, replace(case, weight_dtype=case.dtype)
    if case.dtype != _DTYPES[0]:
        kind = _DTYPES[0]
        yield dtype_name(case.dtype), replace(case, dtype=kind, weight_dtype=kind)
    if case.seed:
        yield f"seed {case.seed}", replace(case, seed=0)
    yield from _smaller(op, case)


def _smaller(op: Op, case: Case) -> Iterator[tuple[str, Case]]:
    """Sizes made smaller: two that are equal together, then each alone; far, then near."""
    sizes = dict(case.sizes)
    groups = [
        (one, other)
        for place, one in enumerate(sizes)
        for other in list(sizes)[place + 1 :]
        if sizes[one] == sizes[other] and sizes[one] > 1
    ]
    for group in (*groups, *((each,) for each in sizes)):
        value = sizes[group[0]]
        edges = [each + step for each in reversed(_EDGES) for step in (1, 0) if each + step < value]
        tried = dict.fromkeys((1, 2, 3, value // 4, value // 2, *edges, value - 2, value - 1))
        for less in tried:
            if 0 < less < value:
                yield (
                    " = ".join(group) + f" of {value}",
                    _resized(op, case, sizes | dict.fromkeys(group, less)),
                )


def _resized(op: Op, case: Case, sizes: dict[str, int]) -> Case:
    """The case with these sizes, and the options that follow from them."""
    assert op.allowed is not None
    options = case.options - op.allowed.implied(dict(case.sizes))
    return replace(case, sizes=tuple(sizes.items()), options=options | op.allowed.implied(sizes))


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What is left of a case, and how many were tried.

    needs     properties without which the rule isn't broken
    whole     whether each change was tried; False where the limit ended it
    """

    case: Case
    needs: tuple[str, ...]
    tried: int
    whole: bool


def shrink(
    op: Op, case: Case, fails: Callable[[Case], bool], more: Callable[[int], bool]
) -> Shrunk:
    """Shrink the case.

    fails: whether a case breaks the rule; more: whether another one may be tried, after so many.
    """
    known: dict[str, bool] = {}

    def breaks(each: Case) -> bool:
        name = each.id()
        if name not in known:
            known[name] = fails(each)
        return known[name]

    while True:
        kept: list[str] = []
        smaller = None
        for change in changes(op, case):
            if change.case.id() not in known and not more(len(known)):
                return Shrunk(case, _told(op, case, ()), len(known), whole=False)
            if breaks(change.case):
                smaller = change.case
                break
            kept.append(change.what)
        if smaller is None:
            return Shrunk(case, _told(op, case, kept), len(known), whole=True)
        case = smaller


def _told(op: Op, case: Case, kept: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """What the case needs, in words: the properties that couldn't be made plainer.

    A size of 1 is no property, nor is one that any value will do for.
    """
    assert op.allowed is not None
    sizes = dict(case.sizes)
    needs = dict.fromkeys(each for each in kept if " of " not in each)
    for name, value in sizes.items():
        if value > 1 and any(f"{name} " in f"{each} " for each in kept if " of " in each):
            needs[f"{name} of {value:,}"] = None
    return tuple(needs)
