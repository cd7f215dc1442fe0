"""The cases of an op that is a reference: made of what all ops share, so that each pair meets.

A case's factors are its sizes, its dtypes, where its tensors lie, and what they hold. In `ci` each
pair of their levels meets once, in tensors that an interpreter gets through; `full` adds large
sizes, and each pair once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, product
from types import MappingProxyType

import torch

from kernel_workbench.oracles.cases import DTYPES, collect, factors
from kernel_workbench.oracles.cases import distributions as known
from kernel_workbench.oracles.cases.covering import Coverage
from kernel_workbench.oracles.cases.distributions import NEEDLES, Distribution
from kernel_workbench.oracles.cases.factors import is_far
from kernel_workbench.oracles.cases.layouts import FAR_STRIDE, alike, apart, offsets
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
from kernel_workbench.oracles.reference.signature import Array, Signature
from kernel_workbench.oracles.reference.whole_numbers import UNREAD

Dtypes = tuple[torch.dtype, torch.dtype]
_SAME: tuple[Dtypes, ...] = tuple((dtype, dtype) for dtype in DTYPES)
_MIXED: tuple[Dtypes, ...] = ((torch.float16, torch.float32), (torch.bfloat16, torch.float32))
_MOST_BYTES = 2**20  # of a small case: what a core judges in some tens of milliseconds
_SHAPES = 3  # of a level: as many values of a size take turns
_ENTRIES = (3, 4, 5)  # of a tensor with a far stride: the last starts past element 2^31
_ON_CPU = 256  # a size of what is timed there

# They sum equal numbers, whose roundings repeat.
EQUAL = frozenset({"constant_rows", "zeros"})
# Their errors come from underflow: few in a block, and different ones in each order.
_UNDERFLOWING = frozenset({"subnormals"})
# In the halves numbers so far from 0, and so near each other, are all but equal.
_NEARLY_EQUAL = frozenset({"mean100", "minus_mean100", "near_5"})

_ORDINARY = ("normal", "uniform", "times3", "outliers", "scaled_rows")
_MAGNITUDES = (
    "mean100",
    "minus_mean100",
    "near_5",
    "huge_first",
    "near_overflow",
    "large_squares",
    "subnormals",
    "large_gradients",
    "far_weights",
)
_ALIKE = ("constant_rows", "zeros", "negative_zero", "ties")
# Values beside which a lost number shows.
_TELLING = frozenset({*_ORDINARY, *_MAGNITUDES, NEEDLES}) - _UNDERFLOWING


def distributions_of(signature: Signature, gradients: tuple[str, ...]) -> dict[str, Distribution]:
    """Return what arguments hold, by name: activations, what is in fp8, and now and then weights.

    gradients: arguments that are gradients. The first argument's NaN is called `nan`, another's
    `nan_bias` and so on; likewise infinities. `minus_inf` is of an argument's rows, and where
    several have a number for each row, `minus_inf_rows` is of the same rows of all of these.
    """
    changed = ("activation", torch.float8_e4m3fn)
    real = [array for array in signature.real if not array.fixed]
    if signature.real and not real:  # values of their own, which nothing changes
        return {"normal": known.normal}
    own = [array.name for array in real if array.kind in changed and array.axes]
    matrices = [array.name for array in real if len(array.axes) > 1]
    vectors = [array.name for array in real if len(array.axes) == 1 and array.name not in gradients]
    weights = " ".join(array.name for array in real if array.kind == "weight")
    names, first = " ".join(own), own[0] if own else real[0].name

    def near_overflow(values: known.Values) -> None:
        for tensor in values.some(names):
            tensor.mul_(2.5e4).clamp_(-6e4, 6e4)

    result = {
        "normal": known.normal,
        "uniform": known.uniform(names),
        "times3": known.scaled(names, 3),
        "outliers": known.outliers(names),
        "mean100": known.shifted(names, 100),
        "minus_mean100": known.shifted(names, -100),
        "near_5": known.near(names, 5),
        "huge_first": known.huge_first(names),
        "scaled_rows": known.scaled_rows(names, 0),
        "constant_rows": known.constant_rows(names),
        "near_overflow": near_overflow,
        "large_squares": known.large_squares(names),
        "subnormals": known.subnormal(names),
        "zeros": known.scaled(names, 0),
        "negative_zero": known.negative_zero(names),
        "ties": known.ties(names),
        NEEDLES: known.needles(names),
    }
    if gradients:
        result["large_gradients"] = known.large(" ".join(gradients))
    if weights:
        result["far_weights"] = known.far_weights(weights)
    for place, array in enumerate(array for array in real if array.axes):
        last = "" if array.name == first else f"_{array.name}"
        result[f"nan{last}"] = known.one(array.name, place + 1, math.nan)
        result[f"inf{last}"] = known.one(array.name, -1 - place, math.inf)
        if array.name in matrices and array.name not in gradients:
            result[f"minus_inf{last}"] = known.minus_inf(array.name)
    if matrices and vectors and not weights:
        result["minus_inf_rows"] = known.minus_inf_rows(vectors)
    return result


def _kinds_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the distributions by their kind, as `factors.distributions` has it."""
    kinds = {"ordinary": _ORDINARY, "magnitudes": _MAGNITUDES, "alike": _ALIKE, NEEDLES: (NEEDLES,)}
    there = list(names)
    result = {kind: [name for name in members if name in there] for kind, members in kinds.items()}
    finite = {name for members in kinds.values() for name in members}
    result[factors.NOT_FINITE] = [name for name in there if name not in finite]
    return {kind: members for kind, members in result.items() if members}


def comparable(case: Case) -> bool:
    """Return True if a kernel's errors on the case can be compared with those of an emulation."""
    equal = case.distribution in _NEARLY_EQUAL and case.dtype != torch.float32
    odd = equal or case.distribution in _UNDERFLOWING
    return known.addends_vary(case, EQUAL) and not odd


def layouts_of(signature: Signature, repeating: frozenset[str]) -> dict[str, Layout]:
    """Return layouts of the op's tensors; numbers of `repeating` arguments may be the same."""
    movable = [array for array in signature.real if not array.fixed]
    names = [array.name for array in movable]
    matrices = [array for array in movable if len(array.axes) > 1]
    result = [*offsets(names, names)]
    if matrices:
        every = [array.name for array in matrices]
        result += [alike(f"rowpad{k}", every, TensorLayout(row_padding=k)) for k in (3, 8)]
        result.append(alike("packed", every, TensorLayout(interleaved=2)))
    for array in (array_ for array_ in signature.arrays if not array_.fixed):
        result += _of_one(array, is_expandable=array.name in repeating)
    for one, other in combinations(matrices, 2):
        # A kernel that takes the columns of the one for those of the other has its row stride.
        if len(one.axes) == 2 and one.axes == other.axes:
            columns = {one.name: TensorLayout(column_stride=2)}
            rows = {other.name: TensorLayout(interleaved=2)}
            result.append(apart(f"{one.name}_columns_of_{other.name}", **columns, **rows))
    return {layout.name: layout for layout in result}


def _of_one(array: Array, *, is_expandable: bool) -> Iterator[Layout]:
    """Yield the layouts of one tensor alone, but for offsets."""

    def alone(what: str, layout: TensorLayout) -> Layout:
        return apart(f"{array.name}_{what}", **{array.name: layout})

    name, letters = array.axes and array.name, array.letters
    if not name:
        return
    if len(letters) == 1:
        yield alone("column", TensorLayout(column_stride=3))
    else:
        yield alone("rowpad5", TensorLayout(row_padding=5))
        yield alone("colstride2", TensorLayout(column_stride=2))
        yield alone("transposed", TensorLayout(order=letters[:-2] + letters[-1] + letters[-2]))
    if len(letters) > 2:
        yield alone("heads_first", TensorLayout(order=letters[1] + letters[0] + letters[2:]))
    if is_expandable and len(letters) > 1:
        yield alone("expanded_rows", TensorLayout(expanded=letters[:-1]))
    if is_expandable:
        yield alone("expanded_all", TensorLayout(expanded=letters))
    if array.is_real and len(letters) > 1 and isinstance(array.axes[0], str):
        yield alone("far", TensorLayout(row_stride=FAR_STRIDE))


# Kinds of layouts that share a level: cases are few, and take the layouts of a level in turn.
_LEVELS = {
    "interleaving": "row padding",
    "order of axes": "row padding",
    "transposition": "column stride",
    "mixed": "column stride",
}


def _places(layouts: Mapping[str, Layout]) -> Factor:
    """Return layouts as a factor; where a tensor is the only one of its kind it stands for all."""
    factor = factors.layouts(layouts, "z", {})

    def level_of(name: str) -> str:
        kind = name.removeprefix("one tensor's ")
        return _LEVELS.get(kind, kind)

    levels: dict[str, list[Part]] = {}
    for name, parts in factor.levels.items():
        levels.setdefault(level_of(name), []).extend(parts)

    return Factor(
        "layout",
        {name: tuple(parts) for name, parts in levels.items()},
        lambda case: level_of(factor.level(case)),
    )


def allowed_of(
    signature: Signature,
    sizes: Mapping[str, Sizes],
    gradients: tuple[str, ...],
    repeating: frozenset[str],
    without: frozenset[str],
    dtypes: tuple[Dtypes, ...] = (),
    problem: Callable[[Mapping[str, int]], str | None] = lambda _: None,
    numbers: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
    *,
    unread: bool = False,
    distinct: Callable[[], frozenset[str]] = frozenset,
) -> Allowed:
    """Return which cases there can be.

    gradients: as in `distributions_of`. repeating: as in `layouts_of`. dtypes, problem, numbers: as
    in `Reference`. unread: whether an index may leave something unread. distinct: () ->
    indices that are found to be distinct.
    """
    layouts = layouts_of(signature, repeating)
    half = torch.float16
    pairs = dtypes or (_SAME + _MIXED if _has_weight(signature) else _SAME)
    if (half, half) not in pairs:
        without |= {"near_overflow"}
    known_names = (*distributions_of(signature, gradients), *(UNREAD,) * unread)
    distributions = [name for name in known_names if name not in without]
    is_mixed = any(one != other for one, other in pairs)

    def objection(case: Case) -> str | None:
        for name, allowed_sizes in sizes.items():
            size = case.size(name)
            if size < allowed_sizes.least or size % allowed_sizes.multiple:
                of = (
                    f" and a multiple of {allowed_sizes.multiple}"
                    if allowed_sizes.multiple > 1
                    else ""
                )
                return f"{name} must be {allowed_sizes.least} or more{of}, got {size}"
        if case.dtype != case.weight_dtype and not _has_weight(signature):
            return "the op has no weight; leave weight_dtype out"
        if (case.dtype, case.weight_dtype) not in pairs:
            return f"the op isn't defined in {case.dtype_label}"
        for name, values in numbers.items():
            if sum(factors.number_word(name, value) in case.options for value in values) > 1:
                return f"{name} has one value, and the options give several; leave one of them in"
        expanded = {name for name, tensor_layout in case.layout.tensors if tensor_layout.expanded}
        for name in sorted(expanded & distinct()) if expanded else ():
            return f"{name} says where rows are written, so that no number of it comes twice"
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
            *((factors.activations(),) if is_mixed else ()),
            _places(layouts),
            *factors.distributions(
                _kinds_of(distributions),
                {"near_overflow": Part(dtypes=(half, half))},
                ("activations" if is_mixed else "dtype", *numbers),
            ),
            *factors.numbers(numbers),
            *(sizes_.factor(name, f"{name}: {sizes_.name}") for name, sizes_ in sizes.items()),
        ),
    )


def _has_weight(signature: Signature) -> bool:
    return any(array.kind == "weight" for array in signature.arrays)


def cases_of(op: Op, sizes: Mapping[str, Sizes]) -> tuple[Case, ...]:
    """All cases, those of `ci` first, each once."""
    families = (
        *(lambda tier, name=name: _possible(op, _none_of(op, sizes, name, tier)) for name in sizes),
        lambda tier: _covering(op, sizes) if tier == "ci" else _possible(op, _large(op, sizes)),
        lambda tier: _possible(op, _far(op, sizes)) if tier == "ci" else iter(()),
        lambda tier: _possible(op, _once(op, sizes)) if tier == "ci" else iter(()),
    )
    return collect(families)


def _possible(op: Op, cases: Iterator[Case]) -> Iterator[Case]:
    return (case for case in cases if op.allowed.objection(case) is None)


def _none_of(op: Op, sizes: Mapping[str, Sizes], name: str, tier: Tier) -> Iterator[Case]:
    """Yield cases with one size 0, where that can be: outputs are empty, or empty sums."""
    if not sizes[name].least:
        values = {size: 0 if size == name else sizes[size].plain for size in sizes}
        for pair in _dtypes(op):
            yield case_of(op.name, values, pair, tier)


def _far(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Yield a case for each tensor whose entries may lie so far apart that offsets pass 2^31."""
    plain = {name: size.plain for name, size in sizes.items()}
    pairs = tuple(_dtypes(op))
    half = (torch.bfloat16, torch.bfloat16)
    pair = half if half in pairs else min(pairs, key=lambda dtypes: dtypes[0].itemsize)
    for layout in filter(is_far, op.allowed.layouts.values()):
        (name, _), *_ = layout.tensors
        for axis, entries in product(sizes, _ENTRIES):
            case = case_of(op.name, plain | {axis: entries}, pair, "ci")
            if op.allowed.objection(case) is None and op.geometry(case)[name].shape[0] == entries:
                yield replace(case, layout=layout, why="offsets past 2^31 elements")
                break


def _once(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Yield a case of each value that is too large to meet each level of the other factors."""
    small = {name: size.several[0] for name, size in sizes.items()}
    pairs = tuple(_dtypes(op))
    values = [(name, value) for name, size in sizes.items() for value in size.once or ()]
    for place, (name, value) in enumerate(values):
        pair = pairs[place % len(pairs)]
        yield case_of(op.name, small | {name: value}, pair, "ci")


class _Covering(Coverage):
    """A covering of cases of which nearly all can be made."""

    def search(self) -> None:
        """Take each pair for possible: one that can't be made costs its tries, and is given up."""
        self._find_bases()
        if not self._bases:  # one size alone isn't small where another must not be larger
            every = (
                chain.from_iterable(factor.levels.values()) for factor in self.op.allowed.factors
            )
            smallest = (min(parts, key=lambda part: sum(part.sizes.values())) for parts in every)
            self._bases.append([Part(), *smallest])
        self.possible = self.wanted.copy()

    def _computes(self, case: Case) -> bool:
        """Return True if no size is 0; to count flops, the function would have to be called."""
        return all(size for _, size in case.sizes)

    def _served_case(self, parts: Iterable[Part]) -> Case | None:
        """Return the case of these parts; None where the last sizes have a 0, as most tries do."""
        *_, last, end = listed = list(parts)
        return None if 0 in {**last.sizes, **end.sizes}.values() else super()._served_case(listed)


def _covering(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Yield cases in which every pair of levels meets, of few shapes.

    Kernels and graphs are made once for each shape.
    """
    few = tuple(map(_few_sizes, op.allowed.factors))

    # A definition may have so many fixed axes that no case is small.
    least = case_of(op.name, {name: size.smallest for name, size in sizes.items()}, _SAME[0], "ci")
    most = max(_MOST_BYTES, 2 * op.bytes(least))
    small: dict[object, bool] = {}

    def serves(case: Case) -> bool:
        key = case.sizes, case.dtype, case.weight_dtype
        if key not in small:
            small[key] = op.bytes(case) <= most and all(size for _, size in case.sizes)
        return small[key]

    of_few = replace(op, cases=tuple, allowed=replace(op.allowed, factors=few))
    coverage = _Covering(of_few, serves, in_turn=True)
    coverage.search()
    plain = {name: size.plain for name, size in sizes.items()}
    pairs = tuple(_dtypes(op))
    cases = [case_of(op.name, plain, pair, "ci") for pair in pairs]
    cases = [case for case in cases if coverage.served(case)]
    for case in cases:
        coverage.add(case)
    cases += coverage.cover("ci", "")
    yield from cases
    # The plainest sizes may be none of the op's, as 12 distinct numbers below 8.
    several = (dict(case.sizes) for case in cases if all(size > 1 for _, size in case.sizes))
    drawn = ((values, case_of(op.name, values, pairs[0], "ci")) for values in (plain, *several))
    fitting = (values for values, case in drawn if coverage.served(case))
    plain = next(fitting, plain)
    yield from _not_finite(op, plain, cases, coverage.served)
    yield from _left_out(op, plain, few, cases, coverage.served)


def _left_out(
    op: Op,
    plain: Mapping[str, int],
    few: Iterable[Factor],
    beside: Iterable[Case],
    serves: Callable[[Case], bool],
) -> Iterator[Case]:
    """Return cases of each layout, and finite distribution, that no case of several rows has.

    A case of one row tells nothing of a stride. Offsets and far distances are many, and alike. The
    layouts' cases have the sizes of `few` that no other case has beside ordinary values: a sum's
    end isn't seen where its numbers are zeros or NaN.
    """
    several = [case for case in beside if all(size > 1 for _, size in case.sizes)]
    layouts, fed = ({case.layout.name for case in several}, {case.distribution for case in several})
    ordinary = (case for case in several if case.distribution in _TELLING)
    asked = {*plain.items(), *(size for case in ordinary for size in case.sizes)}
    parts = chain.from_iterable(of for factor in few for of in factor.levels.values())
    values = (size for part in parts for size in part.sizes.items())
    unasked = [size for size in dict.fromkeys(values) if size not in asked and size[1] > 1]
    pairs = tuple(_dtypes(op))

    def case_with(pair: Dtypes, layout: Layout, distribution: str) -> Iterator[Case]:
        """Yield the case of the first sizes that it may have: unasked ones of several sizes."""
        new = unasked if distribution in _TELLING else []
        for sizes in (dict(reversed(new)), dict(new[:1]), {}):
            case = case_of(op.name, {**plain, **sizes}, pair, "ci", distribution)
            case = replace(case, layout=layout)
            if serves(case):
                unasked[:] = [size for size in unasked if size not in sizes.items()]
                yield case
                return

    for place, layout in enumerate(op.allowed.layouts.values()):
        is_aligned = all(tensor_layout.offset == 0 for _, tensor_layout in layout.tensors)
        if layout.name not in layouts and is_aligned and not is_far(layout):
            yield from case_with(pairs[place % len(pairs)], layout, "normal")
    kinds = next(one for one in op.allowed.factors if one.name == "distribution")
    for part in (part for parts in kinds.levels.values() for part in parts):
        name = part.distribution or ""
        if name not in fed:
            yield from case_with(part.dtypes or pairs[0], CONTIGUOUS, name)


def _not_finite(
    op: Op, plain: Mapping[str, int], beside: Iterable[Case], serves: Callable[[Case], bool]
) -> Iterator[Case]:
    """Each element that isn't finite, of the plainest sizes, in fp32 and in one of the halves.

    beside: cases in which some have met. serves: whether the op has a case, and it is small.
    """
    pairs = [pair for pair in _dtypes(op) if pair[0] == pair[1]] or list(_dtypes(op))
    single, *halves = sorted(pairs, key=lambda pair: pair[0] != torch.float32)
    telling = (case for case in beside if all(size > 1 for _, size in case.sizes))
    met = {(case.distribution, case.dtype) for case in telling}
    kind = next(one for one in op.allowed.factors if one.name == "values")
    names = [part.distribution or "" for part in kind.levels.get(factors.NOT_FINITE, ())]
    for place, name in enumerate(names):
        for pair in (single, *halves[place % max(len(halves), 1) :][:1]):
            case = case_of(op.name, plain, pair, "ci", name)
            if (name, pair[0]) not in met and serves(case):
                yield case


def _few_sizes(factor: Factor) -> Factor:
    """Return the factor with few values of a size for each level, above 1 where there are such."""

    def few(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        if not any(part.sizes for part in parts):
            return parts
        above = tuple(part for part in parts if max(part.sizes.values()) > 1)
        return (above or parts)[:_SHAPES]

    return replace(factor, levels={name: few(parts) for name, parts in factor.levels.items()})


def _dtypes(op: Op) -> Iterator[Dtypes]:
    for parts in op.allowed.factors[0].levels.values():
        for part in parts:
            assert part.dtypes is not None
            yield part.dtypes


def _large(op: Op, sizes: Mapping[str, Sizes]) -> Iterator[Case]:
    """Yield large values of each size beside those of the others; the first also odd.

    Odd ones are of each distribution and of each layout, as dtypes come round.
    """
    most = max((len(size.large) for size in sizes.values()), default=1)
    for turn in range(most):
        for first in range(most):
            values = {
                name: size.large[(first + turn * place) % len(size.large)]
                for place, (name, size) in enumerate(sizes.items())
            }
            for pair in _dtypes(op):
                yield case_of(op.name, values, pair, "full")
    middle = {name: size.large[len(size.large) // 2] for name, size in sizes.items()}
    pairs = tuple(_dtypes(op))
    for place, distribution in enumerate(op.allowed.distributions):
        yield case_of(op.name, middle, pairs[place % len(pairs)], "full", distribution)
    near = (layout for layout in op.allowed.layouts.values() if not is_far(layout))
    for place, layout in enumerate(near):
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
    """Return few shapes, each of a model's size. problem: as in `Reference`."""
    count = min((len(size.timed) for size in sizes.values()), default=0)
    if not count:
        return Workloads()
    timed = [{name: size.timed[place] for name, size in sizes.items()} for place in range(count)]
    timed = [sizes_ for sizes_ in timed if problem(sizes_) is None]
    if not timed:
        return Workloads()
    half, single = (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)
    small = {name: min(_ON_CPU, size) for name, size in timed[0].items()}
    return Workloads(
        anchors=tuple(case_of(op, sizes_, half, "full") for sizes_ in timed),
        on_cpu=(case_of(op, small, single, "full"),),
        profiled=tuple(case_of(op, sizes_, half, "full") for sizes_ in timed[:1]),
    )
