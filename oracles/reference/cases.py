"""The cases of an op that is a reference: made of what all ops share, so that each pair meets.

A case's factors are its sizes, its dtypes, where its tensors lie, and what they hold. In `ci` each
pair of their levels meets once, in tensors that an interpreter gets through; `full` adds large
sizes, and each pair once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from kernel_workbench.oracles.cases import DTYPES, collect, factors
from kernel_workbench.oracles.cases import distributions as known
from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.cases.distributions import Distribution
from kernel_workbench.oracles.cases.layouts import alike, apart, offsets
from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.op import (
    CONTIGUOUS,
    Allowed,
    Case,
    Factor,
    Layout,
    Op,
    Part,
    TensorLayout,
    Tier,
    Workloads,
)
from kernel_workbench.oracles.reference.signature import Signature

Dtypes = tuple[torch.dtype, torch.dtype]
_SAME: tuple[Dtypes, ...] = tuple((each, each) for each in DTYPES)
_MIXED: tuple[Dtypes, ...] = ((torch.float16, torch.float32), (torch.bfloat16, torch.float32))
_MOST_BYTES = 2**20  # of a small case: what a core judges in some tens of milliseconds
_ON_CPU = 256  # a size of what is timed there

# Of these equal numbers are summed, whose roundings repeat.
EQUAL = frozenset({"constant_rows", "zeros"})
# And of these errors come from underflow, few in a block and in each order of operations others.
_UNDERFLOWING = frozenset({"subnormals"})


def distributions_of(signature: Signature) -> dict[str, Distribution]:
    """What its activations hold, and what is in fp8; weights are about 1 throughout."""
    changed = ("activation", torch.float8_e4m3fn)
    real = [array for array in signature.real if not array.fixed]
    own = [array.name for array in real if array.kind in changed and array.axes]
    if signature.real and not real:  # values of their own, which nothing changes
        return {"normal": known.normal}
    names, first = " ".join(own), own[0] if own else real[0].name

    def near_overflow(values: known.Values) -> None:
        for each in values.some(names):
            each.mul_(2.5e4).clamp_(-6e4, 6e4)

    return {
        "normal": known.normal,
        "uniform": known.uniform(names),
        "times3": known.scaled(names, 3),
        "outliers": known.outliers(names),
        "mean100": known.shifted(names, 100),
        "scaled_rows": known.scaled_rows(names, 0),
        "constant_rows": known.constant_rows(names),
        "near_overflow": near_overflow,
        "subnormals": known.subnormal(names),
        "zeros": known.scaled(names, 0),
        "negative_zero": known.negative_zero(names),
        "nan": known.one(first, 1, math.nan),
        "inf": known.one(first, -1, math.inf),
    }


def comparable(case: Case) -> bool:
    """Whether a kernel's errors on the case say something beside those of an emulation.

    In the halves numbers near 100 are all but equal.
    """
    equal = case.distribution == "mean100" and case.dtype != torch.float32
    odd = equal or case.distribution in _UNDERFLOWING
    return known.addends_vary(case, EQUAL) and not odd


def layouts_of(signature: Signature, gradients: tuple[str, ...]) -> dict[str, Layout]:
    """Places of its tensors; gradients: arguments that autograd may hand over expanded."""
    movable = [array for array in signature.real if not array.fixed]
    names = [array.name for array in movable]
    matrices = [array for array in movable if len(array.axes) > 1]
    found = [*offsets(names, names)]
    if matrices:
        every = [each.name for each in matrices]
        found += [alike(f"rowpad{k}", every, TensorLayout(row_padding=k)) for k in (3, 8)]
    for each in matrices:
        name, letters = each.name, each.letters
        turned = letters[:-2] + letters[-1] + letters[-2]
        found += [
            apart(f"{name}_rowpad5", **{name: TensorLayout(row_padding=5)}),
            apart(f"{name}_colstride2", **{name: TensorLayout(column_stride=2)}),
            apart(f"{name}_transposed", **{name: TensorLayout(order=turned)}),
        ]
        if name in gradients:
            rows = letters[:-1]
            found += [
                apart(f"{name}_expanded_rows", **{name: TensorLayout(expanded=rows)}),
                apart(f"{name}_expanded_all", **{name: TensorLayout(expanded=letters)}),
            ]
    return {each.name: each for each in found}


def _places(layouts: Mapping[str, Layout]) -> Factor:
    """Layouts as a factor; where a tensor is the only one of its kind it stands for all."""
    made = factors.layouts(layouts, "z", {})
    levels: dict[str, list[Part]] = {}
    for name, parts in made.levels.items():
        levels.setdefault(name.removeprefix("one tensor's "), []).extend(parts)

    def level(case: Case) -> str:
        return made.level(case).removeprefix("one tensor's ")

    return Factor("layout", {name: tuple(parts) for name, parts in levels.items()}, level)


def allowed_of(
    signature: Signature,
    sizes: Mapping[str, Sizes],
    gradients: tuple[str, ...],
    without: frozenset[str],
    dtypes: tuple[Dtypes, ...] = (),
    problem: Callable[[Mapping[str, int]], str | None] = lambda _: None,
) -> Allowed:
    """Which cases there can be. dtypes, problem: as in `Reference`."""
    layouts = layouts_of(signature, gradients)
    half = torch.float16
    pairs = dtypes or (_SAME + _MIXED if _has_weight(signature) else _SAME)
    if (half, half) not in pairs:
        without |= {"near_overflow"}
    distributions = [each for each in distributions_of(signature) if each not in without]

    def objection(case: Case) -> str | None:
        for name, each in sizes.items():
            size = case.size(name)
            if size < each.least or size % each.multiple:
                of = f" and a multiple of {each.multiple}" if each.multiple > 1 else ""
                return f"{name} must be {each.least} or more{of}, got {size}"
        if case.dtype != case.weight_dtype and not _has_weight(signature):
            return "the op has no weight; leave weight_dtype out"
        if (case.dtype, case.weight_dtype) not in pairs:
            return f"the op isn't defined in {case.dtype_label}"
        wrong = problem(dict(case.sizes))
        return wrong or known.objection(case, ())

    return Allowed(
        sizes=tuple(sizes),
        option_sizes=(),
        implied=lambda _: frozenset(),
        objection=objection,
        layouts=layouts,
        distributions=tuple(distributions),
        factors=(
            factors.dtypes(pairs),
            _places(layouts),
            factors.distributions(distributions, {"near_overflow": Part(dtypes=(half, half))}),
            *(each.factor(name, f"{name}: {each.name}") for name, each in sizes.items()),
        ),
    )


def _has_weight(signature: Signature) -> bool:
    return any(each.kind == "weight" for each in signature.arrays)


def cases_of(op: Op, sizes: Mapping[str, Sizes]) -> tuple[Case, ...]:
    """All cases, those of `ci` first, each once."""
    families = (
        *(lambda tier, name=name: _possible(op, _none_of(op, sizes, name, tier)) for name in sizes),
        lambda tier: _covering(op, sizes) if tier == "ci" else _possible(op, _large(op, sizes)),
    )
    return collect(families)


def _possible(op: Op, cases: Iterator[Case]) -> Iterator[Case]:
    assert op.allowed is not None
    return (case for case in cases if op.allowed.objection(case) is None)


def _none_of(op: Op, sizes: Mapping[str, Sizes], name: str, tier: Tier) -> Iterator[Case]:
    """Nothing along one size, where that can be: outputs are empty, or sums of nothing."""
    if not sizes[name].least:
        values = {each: 0 if each == name else sizes[each].plain for each in sizes}
        for pair in _dtypes(op):
            yield case_of(op.name, values, pair, tier)


class _Covering(Coverage):
    """A covering of cases of which nearly all can be made."""

    def search(self) -> None:
        """Take each pair for possible: one that can't be made costs its tries, and is given up."""
        assert self.op.allowed is not None
        self._find_bases()
        if not self._bases:  # one size alone isn't small where another must not be larger
            every = (chain.from_iterable(each.levels.values()) for each in self.op.allowed.factors)
            smallest = (min(parts, key=lambda each: sum(each.sizes.values())) for parts in every)
            self._bases.append([Part(), *smallest])
        counts = [len(each.levels) for each in self.op.allowed.factors]
        owner = np.repeat(np.arange(len(counts)), counts)
        self.possible = owner[:, None] != owner[None, :]

    def _made(self, parts: Iterable[Part]) -> Case | None:
        """As of any covering; what ends with a size of 0 is no case, and most of what is tried."""
        *_, last, end = given = list(parts)
        return None if 0 in {**last.sizes, **end.sizes}.values() else super()._made(given)


def _covering(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Cases in which every pair of levels meets, of as few shapes as that takes.

    What is kept of a shape, kernels and graphs, is made once then.
    """
    assert op.allowed is not None
    few = tuple(map(_one_size, op.allowed.factors))

    # Of fixed axes a definition may have so many that no case is small.
    least = case_of(op.name, {name: each.smallest for name, each in sizes.items()}, _SAME[0], "ci")
    most = max(_MOST_BYTES, 2 * op.bytes(least))
    small: dict[object, bool] = {}

    def serves(case: Case) -> bool:
        key = case.sizes, case.dtype, case.weight_dtype
        if key not in small:
            small[key] = op.bytes(case) <= most and all(size for _, size in case.sizes)
        return small[key]

    of_few = replace(op, cases=tuple, allowed=replace(op.allowed, factors=few))
    coverage = _Covering(of_few, serves)
    coverage.search()
    yield from coverage.cover("ci", "")


def _one_size(factor: Factor) -> Factor:
    """The factor with one value of a size for each level, above 1 where there is one."""

    def one(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        if not any(each.sizes for each in parts):
            return parts
        above = tuple(each for each in parts if max(each.sizes.values()) > 1)
        return (above or parts)[:1]

    return replace(factor, levels={name: one(each) for name, each in factor.levels.items()})


def _dtypes(op: Op) -> Iterator[Dtypes]:
    assert op.allowed is not None
    for parts in op.allowed.factors[0].levels.values():
        for part in parts:
            assert part.dtypes is not None
            yield part.dtypes


def _large(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Large values of each size beside those of the others, in all dtypes; the first also odd.

    Odd ones are of each distribution and of each layout, as dtypes come round.
    """
    assert op.allowed is not None
    most = max((len(each.large) for each in sizes.values()), default=1)
    for turn in range(most):
        for first in range(most):
            values = {
                name: each.large[(first + turn * place) % len(each.large)]
                for place, (name, each) in enumerate(sizes.items())
            }
            for pair in _dtypes(op):
                yield case_of(op.name, values, pair, "full")
    middle = {name: each.large[len(each.large) // 2] for name, each in sizes.items()}
    pairs = tuple(_dtypes(op))
    for place, distribution in enumerate(op.allowed.distributions):
        yield case_of(op.name, middle, pairs[place % len(pairs)], "full", distribution)
    for place, layout in enumerate(op.allowed.layouts.values()):
        yield replace(case_of(op.name, middle, pairs[place % len(pairs)], "full"), layout=layout)


def case_of(
    op: str, sizes: Mapping[str, int], dtypes: Dtypes, tier: Tier, distribution: str = "normal"
) -> Case:
    """A plain case."""
    return Case(
        op=op,
        sizes=tuple(sizes.items()),
        dtype=dtypes[0],
        weight_dtype=dtypes[1],
        layout=CONTIGUOUS,
        distribution=distribution,
        tier=tier,
    )


def workloads_of(
    op: str, sizes: Mapping[str, Sizes], problem: Callable[[Mapping[str, int]], str | None]
) -> Workloads:
    """Few shapes, each of a model's size. problem: as in `Reference`."""
    count = min((len(each.timed) for each in sizes.values()), default=0)
    if not count:
        return Workloads()
    timed = [{name: each.timed[place] for name, each in sizes.items()} for place in range(count)]
    timed = [each for each in timed if problem(each) is None]
    if not timed:
        return Workloads()
    half, single = (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)
    small = {name: min(_ON_CPU, size) for name, size in timed[0].items()}
    return Workloads(
        anchors=tuple(case_of(op, each, half, "full") for each in timed),
        on_cpu=(case_of(op, small, single, "full"),),
        profiled=tuple(case_of(op, each, half, "full") for each in timed[:1]),
    )
