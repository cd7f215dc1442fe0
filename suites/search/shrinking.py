"""Shrink a case to the smallest one that still breaks a rule, and find the needed properties.

One property after the other is made plainer (an option left out, a layout packed, a size halved).
A change is kept if the case still breaks the same rule in the same output. Shrinking ends when no
single change can be kept: all were tried on the reported case.
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
class Simplification:
    """A plainer case, and the property that it lacks, in words: for example "seed 3"."""

    what: str
    case: Case


def changes(op: Op, case: Case) -> Iterator[Simplification]:
    """Yield all cases that are plainer by one property, the plainest first.

    A large case yields small cases first, since they take a fraction of its time.
    """
    simpler = (
        Simplification(what, changed)
        for what, changed in _changed(op, case)
        if changed != case and objection(op, changed) is None
    )
    if op.bytes(case) <= _LARGE_BYTES:
        yield from simpler
    else:
        yield from sorted(simpler, key=lambda change: op.bytes(change.case))


def _changed(op: Op, case: Case) -> Iterator[tuple[str, Case]]:
    implied = op.allowed.implied
    sizes = dict(case.sizes)
    chosen = case.options - implied(sizes)
    for word in sorted(chosen):
        beside = {option for option in chosen if not option.startswith(f"{word}_")} - {word}
        yield word, replace(case, options=frozenset(beside) | implied(sizes))
    for name in op.allowed.option_sizes:
        if name in sizes:
            yield name, _resized(op, case, {size: sizes[size] for size in sizes if size != name})
    if case.distribution != "normal":
        yield f"values {case.distribution}", replace(case, distribution="normal")
    if case.layout != CONTIGUOUS:
        yield f"layout {case.layout.name}", replace(case, layout=CONTIGUOUS)
        names = case.layout.name.split("+")
        for left_out in names if len(names) > 1 else ():
            kept = [layout_named(op, part) for part in names if part != left_out]
            layout = joined([layout_part for layout_part in kept if layout_part is not None])
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
    """Yield cases of smaller sizes: equal sizes together, then single ones; far, then near."""
    sizes = dict(case.sizes)
    groups = [
        (one, other)
        for place, one in enumerate(sizes)
        for other in list(sizes)[place + 1 :]
        if sizes[one] == sizes[other] and sizes[one] > 1
    ]
    for group in (*groups, *((size,) for size in sizes)):
        value = sizes[group[0]]
        edges = [edge + step for edge in reversed(_EDGES) for step in (1, 0) if edge + step < value]
        tried = dict.fromkeys((1, 2, 3, value // 4, value // 2, *edges, value - 2, value - 1))
        for less in tried:
            if 0 < less < value:
                yield (
                    " = ".join(group) + f" of {value}",
                    _resized(op, case, sizes | dict.fromkeys(group, less)),
                )


def _resized(op: Op, case: Case, sizes: dict[str, int]) -> Case:
    """Return the case with these sizes, and the options that follow from them."""
    options = case.options - op.allowed.implied(dict(case.sizes))
    return replace(case, sizes=tuple(sizes.items()), options=options | op.allowed.implied(sizes))


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A shrunk case, and the number of cases tried.

    needs     properties without which the case doesn't break the rule
    whole     True if every change was tried; False if a limit ended the shrinking
    """

    case: Case
    needs: tuple[str, ...]
    tried: int
    whole: bool


def shrink(
    op: Op, case: Case, fails: Callable[[Case], bool], more: Callable[[int], bool]
) -> Shrunk:
    """Shrink the case.

    `fails` returns True if a case breaks the rule; `more(tried)` returns True while tries are left.
    """
    results: dict[str, bool] = {}

    def breaks(candidate: Case) -> bool:
        name = candidate.id()
        if name not in results:
            results[name] = fails(candidate)
        return results[name]

    while True:
        kept: list[str] = []
        smaller = None
        for change in changes(op, case):
            if change.case.id() not in results and not more(len(results)):
                return Shrunk(case, _needs(case, ()), len(results), whole=False)
            if breaks(change.case):
                smaller = change.case
                break
            kept.append(change.what)
        if smaller is None:
            return Shrunk(case, _needs(case, kept), len(results), whole=True)
        case = smaller


def _needs(case: Case, kept: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the properties that couldn't be made plainer, in words.

    A size is a property only if it is above 1 and a smaller value doesn't do.
    """
    sizes = dict(case.sizes)
    needs = dict.fromkeys(change for change in kept if " of " not in change)
    for name, value in sizes.items():
        if value > 1 and any(f"{name} " in f"{change} " for change in kept if " of " in change):
            needs[f"{name} of {value:,}"] = None
    return tuple(needs)
