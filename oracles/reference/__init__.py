"""An op in one file: a torch function with shapes in its annotations, of which the rest follows.

    @op(sizes={"m": ROWS, "n": COLUMNS}, outputs=("y",))
    def rms_norm(x: Float[Tensor, "m n"], weight: Float[Tensor, "n"], eps: float = 1e-6)
        -> Float[Tensor, "m n"]:
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return x * rstd * weight

The function runs in float64 for the truth. Its operations, one by one, give the bound and the
emulation (oracles/analysis), and are counted (counts.py); its annotations give arguments, outputs
and cases (signature.py, cases.py); signs that only turn its outputs' are found by trying them
(symmetries.py). `rms_norm.backward(...)` is the op of its gradients, likewise, by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, partial, update_wrapper
from itertools import combinations, islice, product
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles import analysis
from kernel_workbench.oracles.analysis.trace import tensors_of
from kernel_workbench.oracles.cases.distributions import (
    NEEDLES,
    Values,
    addends_vary,
    deciding_columns,
    generator,
    normal,
)
from kernel_workbench.oracles.cases.factors import number_word
from kernel_workbench.oracles.cases.layouts import place_tensor, strides_of
from kernel_workbench.oracles.cases.sizes import Sizes
from kernel_workbench.oracles.declared import wrong_names
from kernel_workbench.oracles.op import (
    Bound,
    Case,
    Flips,
    Geometry,
    Inputs,
    Numerics,
    Op,
    OutputForm,
    Outputs,
    required,
)
from kernel_workbench.oracles.reference import batches, symmetries
from kernel_workbench.oracles.reference.arguments import case_from
from kernel_workbench.oracles.reference.cases import (
    EQUAL,
    allowed_of,
    case_of,
    cases_of,
    comparable,
    distributions_of,
    workloads_of,
)
from kernel_workbench.oracles.reference.checks import check, check_shape, one_sentence
from kernel_workbench.oracles.reference.counts import Counter, meta
from kernel_workbench.oracles.reference.signature import (
    Array,
    Axis,
    Constant,
    Function,
    OpError,
    Signature,
    length,
    names_in,
    place_of,
)
from kernel_workbench.oracles.reference.whole_numbers import (
    UNREAD,
    gathered,
    overwriting,
    poison_unread,
    set_mask,
)

__all__ = ["OpError", "ReferenceOp", "op"]

Draw = tuple[tuple[tuple[str, int], ...], int]  # sizes and seed of a case
Own = Callable[[Mapping[str, int], int, torch.Generator], Tensor | None]
_SINGLE = (torch.float32, torch.float32)
_MOST_TRIED = 10_000  # sets of sizes
_STAND_INS = (0.375, 30.0, -30.0)  # for a NaN, to see whether an output depends on it
_SMALLEST_EPS, _LARGEST_EPS = 1e-12, 1e-3
_FEWEST_ENDS = 2  # of one part
_FEWEST_ROWS = 2  # of which an order can be told
_RARE = 0.25  # of labels those that are ignored, where some may be; of truth values false ones

_MOST_NAN = 0.4  # share of an output's elements


@dataclass(frozen=True, slots=True)
class Lengths:
    """The largest number of each element of an argument, as a row's length in pages.

    most   an axis's length
    parts  pointers, between two of which a part lies: the part's length times `most`; None: `most`
    """

    most: Axis
    parts: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A function, and what was said of it.

    written    what a user wrote; function computes the op, and is the same or its gradients
    labels     () -> of arguments that hold whole numbers: the axis whose places they name
    named      as `labels`, as far as it was said
    ignored    of some of these another number, which stands for no label at all
    distinct   of some of these the axes along which no number comes twice, but for ignored ones
    pointers   of others the axis whose parts begin and end at them: from 0 to its length, rising
    rising     those whose numbers rise, along their last axis
    lengths    () -> of others the largest number of each element, from 1 on
    uneven     those of which one number may not be valid for every element
    drawn_by   of some arguments a function of the values that would be drawn, which returns theirs
    gradients  arguments that are gradients of outputs
    updates    arguments that are outputs: a kernel changes them in place
    nonzero    as in `Op`
    spreads    the size along which parts are apart: where an argument's part holds a number that
               isn't finite, all of an output's part may be NaN; None: the truth alone is right
    without    distributions on which the op isn't defined
    dtypes     the activations' and the weights' that it is defined in; none: each that ops share
    problem    (sizes) -> why there can be no case of them; None where there can
    numbers    of numbers that kernels are passed: what they are besides their defaults
    stored     of cases that some arguments have values of their own in: () -> these
    smaller    the reference at smaller constants, on which it is checked; None: on its own
    own        of arguments that aren't drawn like others: (sizes, seed, generator) -> values; None:
               drawn after all
    """

    name: str
    written: Function
    function: Function
    signature: Signature
    sizes: Mapping[str, Sizes]
    labels: Callable[[], Mapping[str, Axis]] = dict
    named: Mapping[str, Axis] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    distinct: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pointers: Mapping[str, Axis] = field(default_factory=dict)
    rising: frozenset[str] = frozenset()
    lengths: Callable[[], Mapping[str, Lengths]] = dict
    uneven: frozenset[str] = frozenset()
    drawn_by: Mapping[str, Callable[[Tensor], Any]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    nonzero: frozenset[str] = frozenset()
    spreads: str | None = None
    without: frozenset[str] = frozenset()
    dtypes: tuple[tuple[torch.dtype, torch.dtype], ...] = ()
    problem: Callable[[Mapping[str, int]], str | None] = lambda _: None
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    stored: Mapping[Draw, Mapping[str, Callable[[], Tensor]]] = field(default_factory=dict)
    own: Mapping[str, Own] = field(default_factory=dict)
    smaller: Reference | None = None

    @property
    def repeating(self) -> frozenset[str]:
        """The arguments whose numbers may all be the same: no ends, and none that are distinct.

        An argument that a kernel writes to has a place for each number.
        """
        apart = self.distinct.keys() | self.pointers.keys() | self.drawn_by.keys() | self.rising
        apart |= self.uneven | set(self.updates)
        return frozenset(array.name for array in self.signature.arrays) - apart

    @property
    def may_leave_unread(self) -> bool:
        """Return True if an index may leave slots of an argument unread."""
        arrays = [array for array in self.signature.arrays if not array.is_real]
        whole = [array for array in arrays if array.kind != torch.bool]
        if self.gradients or not whole:
            return False
        named = {self.named[array.name] for array in whole if array.name in self.named}
        return bool(gathered(self.signature.arrays, frozenset(named)))

    def stated(self, what: str) -> AbstractContextManager[None]:
        """Turn what a user's function raises into a sentence with its line."""
        return one_sentence(self.written, f"{self.name}: {what} failed")

    def forms(self, case: Case) -> dict[str, OutputForm]:
        """Shape and dtype of each output."""
        sizes = dict(case.sizes)
        return {
            output.name: OutputForm(output.shape(sizes), output.dtype(case))
            for output in self.signature.outputs
        }

    def geometry(self, case: Case) -> dict[str, Geometry]:
        """Return where each tensor lies."""
        sizes, geometry = dict(case.sizes), {}
        for array in self.signature.arrays:
            layout, shape = case.layout.of(array.name), array.shape(sizes)
            strides = strides_of(layout, array.letters, shape)
            geometry[array.name] = Geometry(shape, strides, layout.offset, array.dtype(case))
        return geometry

    def inputs(self, case: Case, device: torch.device) -> Inputs:
        """Arguments of a kernel: N(0, 1), weights about 1, changed by the distribution, placed."""
        with self.stated("to draw its arguments"):
            return self._drawn(case, device)

    def _drawn(self, case: Case, device: torch.device) -> Inputs:
        sizes, real = dict(case.sizes), self.signature.real
        key = (case.op, case.sizes, case.dtype_label, case.distribution, case.seed)
        draw = generator(device, *key)
        drawn = {}
        stored = {
            name: values().to(device)
            for name, values in self.stored.get((case.sizes, case.seed), {}).items()
        }
        for array in real:
            values = torch.empty(array.shape(sizes), device=device).normal_(generator=draw)
            drawn[array.name] = 1 + values / 2 if array.kind == "weight" else values
            if array.name in stored:
                drawn[array.name] = stored[array.name].float()
        for name in self.own:
            own = self.own[name](sizes, case.seed, draw)
            if own is not None:
                is_real = own.is_floating_point()
                (drawn if is_real else stored)[name] = own.float() if is_real else own
        by_name = distributions_of(self.signature, self.gradients)
        by_name.get(case.distribution, normal)(Values(case, drawn, draw))
        lengths = {} if all(array.is_real for array in self.signature.arrays) else self.lengths()
        for array in self.signature.arrays:
            if array.kind == torch.float8_e4m3fn:  # which has no infinity to overflow to
                most = torch.finfo(array.kind).max
                drawn[array.name].clamp_(-most, most)
            if not array.is_real and array.name not in lengths:
                whole = stored.get(array.name)
                whole = self._whole_of(array, case, draw) if whole is None else whole
                drawn[array.name] = whole.to(array.dtype(case))
            if array.name in self.drawn_by and array.name not in stored:
                drawn[array.name] = self._drawn_by_user(array, drawn[array.name])
        for array in self.signature.arrays:
            if array.name in lengths:
                whole = stored.get(array.name)
                if whole is None:
                    whole = self._lengths_of(array, lengths[array.name], sizes, drawn, draw)
                drawn[array.name] = whole.to(array.dtype(case))
        numbers = self._numbers_of(case)
        if case.distribution == UNREAD:
            poison_unread(self, {**drawn, **numbers}, drawn)
        result: Inputs = {
            array.name: place_tensor(
                drawn[array.name], array.dtype(case), case.layout.of(array.name), array.letters
            )
            for array in self.signature.arrays
        }
        result.update(numbers)
        return result

    def _whole_of(self, array: Array, case: Case, draw: torch.Generator) -> Tensor:
        """Return whole numbers of an argument; of needles, the places that decide."""
        whole = self._whole(array, dict(case.sizes), draw)
        if case.distribution == NEEDLES:
            self._set_deciding(array, whole, case)
        return whole

    def _numbers_of(self, case: Case) -> dict[str, Constant]:
        """Return the numbers that kernels are passed: a case's options may give other values."""
        chosen = dict(self.signature.numbers)
        for name, values in self.numbers.items():
            for value in values:
                if number_word(name, value) in case.options:
                    chosen[name] = value
        return chosen

    def _set_deciding(self, array: Array, whole: Tensor, case: Case) -> None:
        """Set two places of three, of an argument that holds places, to those that decide a row.

        A mask's rows keep one number, the last quarter, nothing, or all. One of the parts has
        all of the axis: the first, the one before the last, or the last.
        """
        turn = case.seed + sum(size for _, size in case.sizes)
        if array.kind == torch.bool:
            empty, full = (_mask_may_be(self, array.name, value=value) for value in (False, True))
            set_mask(whole, turn, may_be_empty=empty, may_be_full=full)
            return
        if array.name in self.pointers:
            whole[1:-1] = int(whole[-1]) if turn % 3 == 0 else 0
            whole[1:-1][-1:] = int(whole[-1]) if turn % 3 < 2 else 0
            return
        axis = self.labels().get(array.name)
        is_free = array.name in self.repeating and array.name not in overwriting(self)
        if axis is None or not is_free or not whole.numel():
            return
        columns = deciding_columns(length(axis, dict(case.sizes)), turn + 1)
        flat = whole.view(-1)
        free = (flat >= 0) & (torch.arange(len(flat), device=flat.device) % 3 > 0)
        turns = torch.arange(int(free.sum()), device=flat.device) % len(columns)
        flat[free] = torch.tensor(columns, device=flat.device, dtype=flat.dtype)[turns]

    def _drawn_by_user(self, array: Array, values: Tensor) -> Tensor:
        """Return the values that a user's function makes of those drawn. Raises OpError."""
        result: object = self.drawn_by[array.name](values)
        if not isinstance(result, Tensor) or result.shape != values.shape:
            raise OpError(
                f"{place_of(self.written)}: distributions: the function of {array.name} must "
                f"return a tensor of the shape that it is passed, {tuple(values.shape)}"
            )
        return result

    def plain_inputs(self, sizes: Mapping[str, int]) -> Inputs:
        """Return inputs of a plain case of these sizes, real numbers in float64."""
        # A worker calls this where it imports an op, and may call nothing of the analysis.
        inputs = self.inputs(case_of(self.name, sizes, _SINGLE, "ci"), torch.device("cpu"))
        return {
            name: value.double()
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }

    def sizes_with_room(self, axis: str, named: Axis) -> dict[str, int] | None:
        """Return small sizes of which `named` is no shorter than `axis`; None: there are none."""
        small = small_sizes(self)
        values = sorted({size for of in self.sizes[axis].levels.values() for size in of})
        largest = {
            name: max(size for of in named_size.levels.values() for size in of)
            for name, named_size in self.sizes.items()
        }
        for size in values:
            for sizes in (small | {axis: size}, largest | {axis: size}):
                fits = size > _FEWEST_ROWS and length(named, sizes) >= size
                if fits and self.problem(sizes) is None:
                    return sizes
        return None

    def objection(self, sizes: Mapping[str, int]) -> str | None:
        """Return why there can be no case of these sizes; None where there can."""
        wrong = self.problem(sizes)
        if wrong is not None:
            return wrong
        for array in self.signature.arrays:
            if array.is_real or array.name not in overwriting(self):
                continue
            most = length(self.labels()[array.name], sizes)
            if math.prod(array.shape(sizes)) > most:
                return (
                    f"{array.name} says where rows are written, so that its numbers are distinct, "
                    f"and there are {most:,}: fewer than it holds"
                )
        return None

    def _whole(self, array: Array, sizes: Mapping[str, int], draw: torch.Generator) -> Tensor:
        """Whole numbers of an argument, or truth values, most of them true."""
        shape, device = array.shape(sizes), draw.device

        def rare() -> Tensor:
            return torch.rand(shape, generator=draw, device=device) < _RARE

        if array.kind == torch.bool:
            return ~rare()
        if array.name not in self.pointers and array.name not in self.labels():
            info = torch.iinfo(array.kind)  # type: ignore[arg-type]  # a byte's, which has no label
            return torch.randint(info.min, info.max + 1, shape, generator=draw, device=device)
        if array.name in self.pointers:
            most = length(self.pointers[array.name], sizes)
            ends = torch.randint(most + 1, shape, generator=draw, device=device).sort().values
            ends[:1], ends[-1:] = 0, most
            return ends
        most = length(self.labels()[array.name], sizes)
        if array.name in self.distinct:
            whole = _distinct(array, self.distinct[array.name], most, shape, draw)
        elif array.name in overwriting(self) and math.prod(shape) <= most:
            whole = _distinct(array, tuple(map(str, array.axes)), most, shape, draw)
        else:
            whole = torch.randint(most, shape, generator=draw, device=device)
        if array.name in self.rising:
            whole = whole.sort(-1).values
        if array.name in self.ignored:
            whole = whole.masked_fill(rare(), self.ignored[array.name])
        return whole

    def _lengths_of(
        self,
        array: Array,
        lengths: Lengths,
        sizes: Mapping[str, int],
        drawn: Mapping[str, Tensor],
        draw: torch.Generator,
    ) -> Tensor:
        """Return lengths from 1 to the largest; 0 where that is 0."""
        shape, device = array.shape(sizes), draw.device
        most = torch.full(shape, length(lengths.most, sizes), device=device)
        if lengths.parts is not None:
            most = most * drawn[lengths.parts].diff()
        shares = torch.rand(shape, generator=draw, device=device, dtype=torch.float64)
        return ((shares * most).long() + 1).clamp(max=most)

    def oracle(self, case: Case, inputs: Inputs) -> Outputs:
        """Return the truth. Raises OpError where an output's shape isn't the annotation's."""
        with self.stated("to run it in float64"):
            exact, _ = self._truth(inputs)
        for array, values in zip(self.signature.outputs, exact, strict=True):
            check_shape(self.written, array, values, dict(case.sizes))
        return self._named(tuple(map(Tensor.double, exact)))

    def _truth(self, inputs: Inputs) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]:
        """Return the outputs in float64, and where NaN is right beside them; None: nowhere.

        An output that is the same whatever finite number stands where an argument holds NaN doesn't
        depend on it: the formula's NaN is 0 times NaN there, and a kernel that doesn't read the
        argument's number is right as well.
        """
        exact = analysis.truth(self.function, inputs)
        if not self._has_nan(inputs):
            return exact, None
        first, *further = (
            analysis.truth(self.function, _with_number(inputs, number)) for number in _STAND_INS
        )
        idle = tuple(
            truth.isnan() & one.isfinite() & (one == other) & (one == third)
            for truth, one, other, third in zip(exact, first, *further, strict=True)
        )
        rows = zip(exact, first, idle, strict=True)
        return tuple(torch.where(mask, one, truth) for truth, one, mask in rows), idle

    def _has_nan(self, inputs: Inputs) -> bool:
        return any(_is_nan_in(required(inputs, array.name)) for array in self.signature.real)

    def bound(
        self, case: Case, inputs: Inputs, truth: Outputs, numerics: Numerics
    ) -> dict[str, Bound]:
        """Return the bounds by running error analysis; probabilistic where addends vary.

        Nothing is promised where the formula makes NaN of numbers and infinities alone.
        """
        with self.stated("to follow its errors"):
            bounds_ = self._bounds(case, inputs, numerics)
            has_nan = self._has_nan(inputs)
            if has_nan:
                bounds_ = self._with_idle(case, inputs, numerics, bounds_)
        varies, parts = addends_vary(case, EQUAL), self._infected(inputs)
        any_nan = case.distribution.startswith("minus_inf") and _is_mostly_nan(truth)
        result = {}
        for array, bound in zip(self.signature.outputs, bounds_, strict=True):
            value = required(truth, array.name)
            if not has_nan and _is_nan_in(value):
                bound = _unjudged(bound, value.isnan())
            # An infinity that the reference leaves out of a sum leaves the analysis no number.
            if _is_nan_in(bound.deterministic):
                bound = _unjudged(bound, bound.deterministic.isnan() & value.isfinite())
            or_nan = torch.ones((), dtype=torch.bool) if any_nan else bound.or_nan
            if parts is not None and not any_nan:
                or_nan = _either(or_nan, _along(array, self.spreads, parts))
            result[array.name] = replace(
                bound,
                probabilistic=bound.probabilistic if varies else None,
                or_nan=_either(or_nan, _beside_weights(self, array, inputs)),
            )
        return result

    def _bounds(self, case: Case, inputs: Inputs, numerics: Numerics) -> tuple[Bound, ...]:
        return analysis.bounds(self.function, _packed(inputs), numerics, self._dtypes(case))

    def _with_idle(
        self, case: Case, inputs: Inputs, numerics: Numerics, bounds_: tuple[Bound, ...]
    ) -> tuple[Bound, ...]:
        """Return the bounds, those of a finite number where an output doesn't depend on a NaN."""
        _, idle = self._truth(inputs)
        if idle is None or not any(bool(mask.any()) for mask in idle):
            return bounds_
        of_number = self._bounds(case, _with_number(inputs, _STAND_INS[0]), numerics)
        return tuple(map(_joined, bounds_, of_number, idle))

    def _infected(self, inputs: Inputs) -> Tensor | None:
        """Which parts along `spreads` hold a number that isn't finite; None where none does."""
        infected: Tensor | None = None
        for array in self.signature.real:
            if self.spreads not in array.axes:
                continue
            here = ~required(inputs, array.name).float().isfinite().unsqueeze(-1)
            here = here.movedim(array.axes.index(self.spreads), 0).flatten(1).any(1)
            infected = here if infected is None else infected | here
        return None if infected is None or not bool(infected.any()) else infected

    def emulate(self, case: Case, inputs: Inputs, numerics: Numerics) -> Outputs:
        """Return the reference in fp32, but for codes and whole numbers; {} if not comparable.

        Nearly all of a kernel's codes are right exactly, and the others no measure of it.

        Gradients by a logarithm, exp(x - log sum exp), have its error in all of a row, several
        roundings of a large number, which no two orders of operations share; in fp32 no cast is
        larger.
        """
        rows_share = case.dtype == torch.float32 and bool(self.gradients)
        if not comparable(case) or (rows_share and _counted(self, case.sizes).logarithms):
            return {}
        with self.stated("to run it in fp32"):
            dtypes = self._dtypes(case)
            outputs = self._named(analysis.emulate(self.function, inputs, numerics, dtypes))
        compared = {array.name for array in self.signature.outputs if not array.is_code}
        return {name: outputs[name] for name in outputs if name in compared}

    def flops(self, case: Case) -> int:
        """Operations on elements; of an op that only moves numbers, those that it returns."""
        counted = _counted(self, case.sizes).flops
        if counted or not all(size for _, size in case.sizes):
            return counted
        return sum(math.prod(form.shape) for form in self.forms(case).values())

    def products(self, case: Case) -> bool:
        """Return True if some of the flops are those of matrix products."""
        return _counted(self, case.sizes).products

    def least_bytes(self, case: Case) -> int:
        """Every input read once, every output written once."""
        arrays = (*self.signature.arrays, *self.signature.outputs)
        sizes = dict(case.sizes)
        forms = (OutputForm(array.shape(sizes), array.dtype(case)) for array in arrays)
        return sum(form.nbytes for form in forms)

    def signs(self, case: Case, seed: int) -> Flips:
        """Return signs that change the outputs' signs alone."""
        all_symmetries = _received[self] if self in _received else _symmetries(self)
        free = tuple(
            symmetry for symmetry in all_symmetries if symmetry.arguments.isdisjoint(self.drawn_by)
        )
        return symmetries.flips(free, self.signature, case, seed)

    def at_smaller_constants(self) -> Reference:
        """Return the reference that computes the same at smaller constants, or this one."""
        if self.smaller is None:
            return self
        signature = replace(self.smaller.signature, numbers=self.signature.numbers)
        return replace(self.smaller, signature=signature)

    def check(self) -> None:
        """Raises OpError where the function can't be a reference."""
        small = small_sizes(self)
        empty = ({**small, name: 0} for name, size in self.sizes.items() if not size.least)
        for sizes in (small, *(some for some in empty if self.problem(some) is None)):
            # In the dtypes of its smallest case, so that the graph is also that case's.
            case = case_of(self.name, sizes, (self.dtypes or (_SINGLE,))[0], "ci")
            inputs = self.inputs(case, torch.device("cpu"))
            check(self.written, self.function, self.signature, sizes, inputs)
            self.flops(case)

    def _dtypes(self, case: Case) -> tuple[torch.dtype, ...]:
        return tuple(output.dtype(case) for output in self.signature.outputs)

    def _named(self, values: tuple[Tensor, ...]) -> Outputs:
        pairs = zip(self.signature.outputs, values, strict=True)
        return {array.name: value for array, value in pairs}


def _with_number(inputs: Inputs, number: float) -> Inputs:
    """Return the inputs with a number in the place of each NaN."""
    return {
        name: value.masked_fill(value.isnan(), number)
        if isinstance(value, Tensor) and value.is_floating_point() and value.itemsize > 1
        else value
        for name, value in inputs.items()
    }


def _is_nan_in(x: Tensor) -> bool:
    """Return True if some number is NaN; the largest number is then NaN, and found sooner."""
    if x.itemsize == 1 or not x.is_floating_point() or not x.numel():
        return bool(x.isnan().any())
    return bool(x.amax().isnan())


def _unjudged(bound: Bound, where: Tensor) -> Bound:
    """Return the bound, infinite there."""
    if not bool(where.any()):
        return bound
    return replace(bound, deterministic=bound.deterministic.masked_fill(where, math.inf))


def _joined(bound: Bound, other: Bound, where: Tensor) -> Bound:
    """Return the one bound, and there the other, beside which NaN is right."""
    one, second = bound.probabilistic, other.probabilistic
    likely = None
    if one is not None or second is not None:
        one = bound.deterministic if one is None else one
        second = other.deterministic if second is None else second
        likely = torch.where(where, second, one)
    return replace(
        bound,
        deterministic=torch.where(where, other.deterministic, bound.deterministic),
        probabilistic=likely,
        or_nan=where,
    )


def _packed(inputs: Inputs) -> Inputs:
    """Return the inputs in contiguous layouts: a graph is kept by their shapes."""
    return {
        name: value.contiguous() if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def _distinct(
    array: Array, axes: tuple[str, ...], most: int, shape: tuple[int, ...], draw: torch.Generator
) -> Tensor:
    """Whole numbers below `most`, none of which comes twice along the axes."""
    places = [place for place, axis in enumerate(array.axes) if axis in axes]
    rest = [place for place in range(len(shape)) if place not in places]
    along, beside = ([shape[place] for place in part] for part in (places, rest))
    lots = torch.rand((*beside, most), generator=draw, device=draw.device)
    whole = lots.argsort(-1)[..., : math.prod(along)].reshape(*beside, *along)
    order = [*rest, *places]
    return whole.permute([order.index(place) for place in range(len(shape))])


def _problem(
    signature: Signature,
    labels: Mapping[str, str],
    distinct: Mapping[str, tuple[str, ...]],
    pointers: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str | None:
    """Return why whole numbers can't be drawn as they must be; None where they can."""
    for array in signature.arrays:
        if array.name in pointers and math.prod(array.shape(sizes)) < _FEWEST_ENDS:
            return f"{array.name} needs two numbers or more, where a part begins and where it ends"
        axes = distinct.get(array.name, ())
        count = math.prod(length(axis, sizes) for axis in array.axes if axis in axes)
        if axes and count > sizes[labels[array.name]]:
            of, below = " * ".join(axes), labels[array.name]
            return (
                f"{array.name} holds {count:,} distinct numbers ({of}) below {sizes[below]:,}: "
                f"{below} must be as many"
            )
    return None


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return (one if other is None else other) if one is None or other is None else one | other


def _along(array: Array, size: str | None, parts: Tensor) -> Tensor | None:
    """Return truth values along a size, in a shape that broadcasts to an array.

    An array without the size sums over it, as a weight's gradient over rows: one part is in all of
    its elements. None where the array has the size twice.
    """
    if size not in array.axes:
        return parts.any()
    if array.axes.count(size) != 1:
        return None
    return parts.view([-1 if axis == size else 1 for axis in array.axes])


def _is_mostly_nan(truth: Outputs) -> bool:
    """Return whether an op isn't made for -inf in the argument that holds it.

    The formula makes NaN of most rows then, as a product does, and kernels of some more. In
    an argument that may be -inf, such as logits, at most three rows in eight are -inf throughout.
    """
    shares = [value.isnan().double().mean() for value in truth.values() if value is not None]
    return any(float(share) > _MOST_NAN for share in shares)


def _beside_weights(reference: Reference, output: Array, inputs: Inputs) -> Tensor | None:
    """Return where NaN of a weight may reach an output, since kernels multiply it by padding.

    A kernel often puts 0 where a row is missing, and multiplies it by a weight: 0 times infinity
    is NaN, where a reference that slices has a number. NaN is right only where the output has the
    coordinates of the number that isn't finite.

    Returns:
        Truth values in a shape that broadcasts to the output, or None.
    """
    mask: Tensor | None = None
    for array in reference.signature.real:
        shared = [axis for axis in array.axes if axis in output.axes and isinstance(axis, str)]
        if array.kind != "weight" or not shared:
            continue
        bad = ~required(inputs, array.name).float().isfinite()
        if not bool(bad.any()):
            continue
        dropped = [place for place, axis in enumerate(array.axes) if axis not in shared]
        bad = bad.any(dropped) if dropped else bad
        order = sorted(range(len(shared)), key=lambda place: output.axes.index(shared[place]))
        lengths = dict(zip(shared, bad.shape, strict=True))
        shape = [lengths.get(axis, 1) if isinstance(axis, str) else 1 for axis in output.axes]
        mask = _either(mask, bad.permute(order).reshape(shape))
    return mask


def _several(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def small_sizes(reference: Reference) -> dict[str, int]:
    """Return the smallest sizes above 1 that can be, different ones where there are several."""
    sizes = reference.sizes
    result: dict[str, int] = {}
    for name, size in sizes.items():
        values = size.several
        result[name] = next((value for value in values if value not in result.values()), values[0])
    if reference.problem(result) is None:
        return result
    choices = ({value for of in size.levels.values() for value in of} for size in sizes.values())
    drawn = (dict(zip(sizes, values_, strict=True)) for values_ in product(*map(sorted, choices)))
    return next((sizes_ for sizes_ in drawn if reference.problem(sizes_) is None), result)


@cache
def _mask_may_be(reference: Reference, name: str, *, value: bool) -> bool:
    """Return whether outputs are numbers where all of a mask has this truth value."""
    inputs = reference.plain_inputs(small_sizes(reference))
    inputs[name] = torch.full_like(required(inputs, name), value)
    try:
        outputs = analysis.truth(reference.function, inputs)
    except Exception:  # noqa: BLE001  # whatever a user's function raises
        return False
    return not any(map(_is_nan_in, outputs))


def _apart(reference: Reference) -> list[dict[str, int]]:
    """Two sets of sizes, of which the second has no coincidences: what holds of both is no chance.

    Its values are above 1, differ from each other and from the first set's, and none divides
    another, as far as there are such.
    """
    small = small_sizes(reference)
    values = [item.several for item in reference.sizes.values()]
    drawn = (dict(zip(reference.sizes, item, strict=True)) for item in product(*values))

    def coincidences(sizes: Mapping[str, int]) -> tuple[int, int]:
        pairs = [sorted(item) for item in combinations(sizes.values(), 2)]
        dividing = sum(larger % smaller == 0 for smaller, larger in pairs)
        same = sum(size == small[name] for name, size in sizes.items())
        return same + dividing, math.prod(sizes.values())

    possible = (item for item in drawn if reference.problem(item) is None)
    return [small, min(islice(possible, _MOST_TRIED), key=coincidences, default=small)]


@cache
def _counted(reference: Reference, sizes: tuple[tuple[str, int], ...]) -> Counter:
    """Count the operations of one call on tensors of these sizes."""
    signature, named = reference.signature, dict(sizes)
    empty = {array.name: meta(array.shape(named), array.kind) for array in signature.arrays}
    counter = Counter()
    with reference.stated("to count its operations"):
        try:
            with counter:
                reference.function(**empty, **signature.numbers)
        except Exception:  # noqa: BLE001  # it may go by values, of which these have none
            inputs, counter = reference.plain_inputs(named), Counter()
            with counter:
                reference.function(**inputs)
    return counter


_received: dict[Reference, tuple[symmetries.Symmetry, ...]] = {}  # by another process


@cache
def _symmetries(reference: Reference) -> tuple[symmetries.Symmetry, ...]:
    signature = reference.signature

    def draw(sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
        case = replace(case_of(reference.name, sizes, _SINGLE, "ci"), seed=seed)
        return tensors_of(reference.inputs(case, torch.device("cpu")), torch.float64)

    def run(tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return analysis.truth(reference.function, {**tensors, **signature.numbers})

    with reference.stated("to try its signs"):
        return symmetries.symmetries(run, draw, signature, _apart(reference))


@dataclass(frozen=True, slots=True)
class ReferenceOp(Op):
    """An op that follows from a reference."""

    reference: Reference = field(kw_only=True)

    def check(self) -> None:
        """Raises OpError where the function can't be a reference."""
        self.reference.at_smaller_constants().check()

    def has_batches(self) -> bool:
        """Say whether an output has an axis of rows, a part of which it has alone, too."""
        axis = batches.rows_axis(self.reference)
        outputs = self.reference.signature.outputs
        return any(array.axes[:1] == (axis,) for array in outputs if array.name in self.outputs)

    def found_signs(self) -> list[Any]:
        """Return the symmetries of the function: axis, arguments and outputs of each."""
        all_symmetries = _symmetries(self.reference)
        return [
            [symmetry.axis, sorted(symmetry.arguments), sorted(symmetry.outputs)]
            for symmetry in all_symmetries
        ]

    def tell_signs(self, signs: list[Any] | None) -> None:
        """Set the symmetries that another process found: this one may not ask the oracle."""
        if signs is not None:
            _received[self.reference] = tuple(
                symmetries.Symmetry(axis, frozenset(arguments), frozenset(outputs))
                for axis, arguments, outputs in signs
            )

    def without(self, *names: str) -> ReferenceOp:
        """Make the op whose kernels are passed None for these arguments, as its reference is.

        It is called as this one is, with _without_ and the names before _forward. Raises OpError.
        """
        mine, signature = self.reference, self.reference.signature
        listed = [array.name for array in signature.arrays]
        if not names or not set(names) < set(listed):
            raise OpError(
                f"{place_of(mine.written)}: without {', '.join(names) or 'nothing'}: name some of "
                f"{', '.join(listed)}"
            )
        arrays = tuple(array for array in signature.arrays if array.name not in names)
        numbers = {**signature.numbers, **dict.fromkeys(names, None)}
        used = {
            name
            for array in (*arrays, *signature.outputs)
            for axis in array.axes
            for name in names_in(axis)
        }
        stem = mine.name.removesuffix("_forward")
        return op_of_reference(
            replace(
                mine,
                name=f"{stem}_without_{'_'.join(names)}{mine.name[len(stem) :]}",
                signature=replace(signature, arrays=arrays, numbers=numbers),
                sizes={name: size for name, size in mine.sizes.items() if name in used},
            )
        )

    def backward(
        self,
        of: tuple[str, ...] | None = None,
        *,
        unread: tuple[str, ...] = (),
        spreads: str | None = None,
        name: str | None = None,
    ) -> ReferenceOp:
        """Make the op of its gradients: dy (d and an output's name) and arguments give d of `of`.

        of: the arguments whose gradients are returned; by default all that hold real numbers.
        unread: arguments, some of these, that the gradients don't depend on: kernels get none.
        spreads: as in `op`, of the gradients; None: as it is of the op.
        """
        mine, signature = self.reference, self.reference.signature
        if mine.updates:
            raise OpError(
                f"{place_of(mine.written)}: {mine.name} changes {', '.join(mine.updates)} in "
                "place, and has no gradients; write an op without updates for them"
            )
        wanted = of or tuple(array.name for array in signature.real)
        output_gradients = tuple(
            replace(output, name=f"d{output.name}") for output in signature.outputs
        )
        by_name = {array.name: array for array in signature.arrays}
        if not set(wanted) <= by_name.keys():
            raise OpError(
                f"{place_of(mine.written)}: backward of {', '.join(wanted)}: no arguments"
            )
        gradients_ = tuple(replace(by_name[argument], name=f"d{argument}") for argument in wanted)
        read = tuple(array for array in signature.arrays if array.name not in unread)
        for gradient in output_gradients:
            if gradient.name in (*by_name, *signature.numbers):
                raise OpError(
                    f"{place_of(mine.written)}: backward: {gradient.name} is an argument, and the "
                    f"gradient of the output {gradient.name[1:]}; give the output another name, as "
                    'by outputs=("out",)'
                )
        function = partial(_gradients, mine.function, signature, wanted)
        update_wrapper(function, mine.written)  # whose lines are told
        return op_of_reference(
            replace(
                mine,
                name=name or f"{mine.name.removesuffix('_forward')}_backward",
                function=function,
                signature=Signature((*output_gradients, *read), signature.numbers, gradients_),
                gradients=tuple(gradient.name for gradient in output_gradients),
                spreads=spreads or mine.spreads,
            )
        )


def _functional(
    function: Function, signature: Signature, updates: tuple[str, ...], /, **arguments: Any
) -> tuple[Tensor, ...]:
    """Return a function's tensors, and the new values of copies of the arguments it updates."""
    copies = {name: arguments[name].clone() for name in updates}
    result = function(**{**arguments, **copies})
    several = () if result is None else _several(result)
    if len(several) != len(signature.returned):
        wanted = len(signature.returned)
        raise TypeError(f"it returns {len(several)} tensors, and its annotation says {wanted}")
    values = {**copies, **dict(zip(signature.returned, several, strict=True))}
    return tuple(values[array.name] for array in signature.outputs)


def _listed(function: Function, lists: Mapping[str, tuple[str, ...]], /, **arguments: Any) -> Any:
    """Call a function with its lists as lists."""
    whole = {name: [arguments.pop(part) for part in parts] for name, parts in lists.items()}
    return function(**arguments, **whole)


def _gradients(
    function: Function, signature: Signature, wanted: tuple[str, ...], /, **arguments: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of `wanted`, of the outputs' gradients and the function's arguments."""
    further = {name: value for name, value in arguments.items() if name not in wanted}
    weights = tuple(further.pop(f"d{output.name}") for output in signature.outputs)
    missing = [array for array in signature.arrays if array.name not in arguments]
    if missing:
        present = [array for array in signature.arrays if array.name in arguments]
        with_sizes = (
            *zip(signature.outputs, weights, strict=True),
            *((a, arguments[a.name]) for a in present),
        )
        sizes = {
            str(axis): n for a, it in with_sizes for axis, n in zip(a.axes, it.shape, strict=True)
        }
        arguments |= {array.name: weights[0].new_zeros(array.shape(sizes)) for array in missing}

    with torch.enable_grad():
        leaves = [arguments[argument].detach().requires_grad_() for argument in wanted]
        outputs = function(**dict(zip(wanted, leaves, strict=True)), **further)
        return torch.autograd.grad(_several(outputs), leaves, weights, materialize_grads=True)


def op_of_reference(reference: Reference) -> ReferenceOp:
    """Return the op of a reference, with its cases, bounds and counts."""
    signature, sizes = reference.signature, reference.sizes
    matrices = [array for array in signature.real if len(array.axes) > 1]
    rank = max((len(array.axes) for array in signature.real), default=0)
    free = (array.name for array in signature.real if array.name not in reference.drawn_by)
    linear = (*reference.gradients, *free, *(array.name for array in signature.real))[0]
    result = ReferenceOp(
        reference=reference,
        name=reference.name,
        arguments=(*(array.name for array in signature.arrays), *signature.numbers),
        outputs=tuple(output.name for output in signature.outputs),
        options={
            number_word(name, value): f"the number {name} is {value:g}"
            for name, values in reference.numbers.items()
            for value in values
        },
        updates=reference.updates,
        lists=signature.lists,
        inputs=reference.inputs,
        oracle=reference.oracle,
        bound=reference.bound,
        emulate=reference.emulate,
        forms=reference.forms,
        geometry=reference.geometry,
        flops=reference.flops,
        bytes=reference.least_bytes,
        cases=tuple,
        signs=reference.signs,
        relations=partial(batches.relations, reference),
        linear=linear,
        allowed=allowed_of(
            signature,
            sizes,
            reference.gradients,
            reference.repeating,
            reference.without,
            reference.dtypes,
            reference.objection,
            reference.numbers,
            unread=reference.may_leave_unread,
            distinct=partial(overwriting, reference),
        ),
        products=reference.products,
        workloads=workloads_of(reference.name, sizes, reference.problem),
        widths=tuple(
            dict.fromkeys(
                matrix.axes[-1] for matrix in matrices if isinstance(matrix.axes[-1], str)
            )
        ),
        statistics=frozenset(
            array.name
            for array in signature.real
            if array.kind == torch.float32 and len(array.axes) < rank
        ),
        nonzero=reference.nonzero,
        case_from=partial(case_from, reference.name, signature, tuple(sizes), reference.numbers),
    )

    @cache
    def cases() -> tuple[Case, ...]:
        with reference.stated("to make its cases"):
            return cases_of(result, sizes)

    return replace(result, cases=cases)


def op(  # noqa: PLR0913  # each is a thing that a reference's text can't say
    *,
    sizes: Mapping[str, Sizes],
    outputs: tuple[str, ...] = ("y",),
    weights: tuple[str, ...] = ("weight", "bias"),
    labels: Mapping[str, str] | None = None,
    ignored: Mapping[str, int] | None = None,
    distinct: Mapping[str, str] | None = None,
    pointers: Mapping[str, str] | None = None,
    rising: tuple[str, ...] = (),
    distributions: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    nonzero: tuple[str, ...] = (),
    spreads: str | None = None,
    without: tuple[str, ...] = (),
    gradients: tuple[str, ...] = (),
    numbers: Mapping[str, tuple[float, ...]] | None = None,
    updates: tuple[str, ...] = (),
    name: str | None = None,
) -> Callable[[Function], ReferenceOp]:
    """Make an op of the decorated function, called NAME_forward.

    sizes: what each size in its annotations is tried at. outputs: their names. weights: the
    arguments whose dtype may differ from the others'. labels: of each argument of whole numbers
    the size that they are below. ignored: of some of these another number, that stands for none.
    distinct: of some the axes along which no number comes twice, as {"slot": "m"}; ignored may;
    where they are as many as there are labels, they are a permutation. pointers: of others the size
    whose parts begin and end at them, as {"cu_seqlens": "t"}: they rise from 0 to it. rising:
    arguments whose numbers rise along their last axis. distributions: of an argument a function of
    the values that would be drawn, which returns others of the same shape, as {"decay":
    torch.sigmoid}.
    nonzero: arguments that may not be zero. spreads: the size along which parts, as rows, are
    apart: where an argument's part holds NaN or an infinity, NaN is right in an output's, too.
    without: distributions on which it isn't defined. gradients: arguments that are gradients of
    outputs, which autograd may hand over expanded. numbers: of its numbers what they are tried at
    besides their defaults, as {"eps": (1e-12,)}; None: what `values_of_number` says. updates:
    arguments that kernels change in place: each is an output, by its name, whose value is what the
    argument holds after the call; the reference may return it, or change the argument itself. name:
    the op's whole name.

    Raises OpError.
    """

    def decorate(function: Function) -> ReferenceOp:
        listed = {"outputs": outputs, "weights": weights, "nonzero": nonzero, "without": without}
        listed |= {"rising": rising, "updates": updates}
        for what, names in listed.items():
            if (wrong := wrong_names(what, names)) is not None:
                raise OpError(f"{place_of(function)}: {wrong}")
        signature = Signature.of(function, outputs, weights, updates)
        computed = function
        if signature.lists:
            computed = partial(_listed, computed, signature.lists)
        if updates:
            computed = partial(_functional, computed, signature, updates)
        if computed is not function:
            update_wrapper(computed, function)
        if gradients:
            signature = _with_weights(signature, {f"d{weight}" for weight in weights})
        ends, own = pointers or {}, distributions or {}
        _compare(function, signature, sizes, {**(labels or {}), **ends}, spreads)
        arguments = [array.name for array in signature.arrays]
        _check_names(function, {"nonzero": nonzero, "distributions": own}, arguments)
        _check_names(function, {"without": without}, distributions_of(signature, gradients))
        _check_names(function, {"numbers": numbers or {}}, signature.numbers)
        whole = [
            array.name
            for array in signature.arrays
            if not array.is_real and array.kind != torch.bool
        ]
        of_whole = {"rising": rising, "pointers": ends, "distinct": distinct or {}}
        _check_names(function, of_whole, whole, "arguments of whole numbers")
        for name_, drawn in own.items():
            if not callable(drawn):
                raise OpError(
                    f"{place_of(function)}: distributions has {drawn!r} for {name_}; give a "
                    "function of the values that would be drawn, as torch.sigmoid"
                )
        apart = {name: tuple(axes.split()) for name, axes in (distinct or {}).items()}
        problem = partial(_problem, signature, labels or {}, apart, ends)
        _compare_distinct(function, signature, sizes, apart, problem)
        tried = _tried_numbers(function, signature, numbers or {})
        called = name or f"{getattr(function, '__name__', 'op')}_forward"
        return op_of_reference(
            Reference(
                name=called,
                written=function,
                function=computed,
                signature=signature,
                sizes=sizes,
                updates=updates,
                labels=lambda: labels or {},
                named=labels or {},
                pointers=ends,
                rising=frozenset(rising),
                drawn_by=own,
                ignored=ignored or {},
                distinct=apart,
                problem=problem,
                numbers=tried,
                gradients=gradients,
                nonzero=frozenset(nonzero),
                spreads=spreads,
                without=frozenset(without),
            )
        )

    return decorate


def values_of_number(name: str, default: object) -> tuple[float, ...]:
    """Return what a number is tried at besides its default, where an op doesn't say it.

    A kernel with a constant in its place is right at the default alone. eps: the smallest and the
    largest in use. A share of 1: none, and twice as much. A scale: its negative, and 0. Any other:
    twice as much. A whole number, which may be a size, is left as it is, and so is a truth value.
    """
    tried: tuple[float, ...] = ()
    if type(default) is not float or not math.isfinite(default):
        return tried
    if "eps" in name and 0 < default <= _LARGEST_EPS:
        tried = (_SMALLEST_EPS, _LARGEST_EPS)
    elif "scale" in name and default:
        tried = (-default, 0.0)
    elif 0 < default < 1:
        tried = (0.0, min(2 * default, (1 + default) / 2))
    else:
        tried = (2 * default or 0.25,)
    return tuple(value for value in tried if value != default)


def _tried_numbers(
    function: Function, signature: Signature, stated: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[float, ...]]:
    """Return what each number is tried at besides its default. Raises OpError."""
    for name, values in stated.items():
        if not all(isinstance(value, bool | int | float) for value in values):
            raise OpError(f"{place_of(function)}: numbers of {name} are {values}; write numbers")
    tried = {
        name: tuple(stated.get(name, values_of_number(name, default)))
        for name, default in signature.numbers.items()
    }
    return {name: values for name, values in tried.items() if values}


def _with_weights(signature: Signature, names: set[str]) -> Signature:
    """Return the signature with outputs of these names in the weights' dtype."""
    arrays = (
        replace(array, kind="weight") if array.name in names else array
        for array in signature.outputs
    )
    return replace(signature, outputs=tuple(arrays))


def _compare(
    function: Function,
    signature: Signature,
    sizes: Mapping[str, Sizes],
    labels: Mapping[str, str],
    spreads: str | None,
) -> None:
    """Raises OpError where the decorator and the annotations speak of different things."""
    where = place_of(function)
    for name, size in sizes.items():
        if not isinstance(size, Sizes):
            raise OpError(
                f"{where}: sizes has {size!r} for {name}; write ROWS, COLUMNS or a Sizes(...) of "
                "kernel_workbench"
            )
    arrays: tuple[Array, ...] = (*signature.arrays, *signature.outputs)
    used = {name for array in arrays for axis in array.axes for name in names_in(axis)}
    for missing in sorted(used - sizes.keys()):
        raise OpError(f"{where}: nothing says what size {missing} is tried at; add it to sizes")
    for idle in sorted(sizes.keys() - used - set(labels.values())):
        raise OpError(f"{where}: sizes has {idle}, which no annotation or label has; leave it out")
    if spreads is not None and spreads not in sizes:
        raise OpError(f"{where}: spreads names {spreads}, which is no size; name one of sizes")
    if not signature.real:
        raise OpError(f"{where}: it takes no tensor of real numbers; annotate one with Float")
    for array in signature.arrays:
        is_any = array.kind in {torch.bool, torch.int8, torch.uint8} and array.name not in labels
        if not (array.is_real or is_any or labels.get(array.name) in sizes):
            raise OpError(
                f"{where}: {array.name} holds whole numbers; say the size that they are below, as "
                f'labels={{"{array.name}": "n"}}'
            )


def _check_names(
    function: Function,
    names_by_word: Mapping[str, Iterable[str]],
    there: Collection[str],
    kind: str = "there",
) -> None:
    """Raise OpError where a word of the decorator names none of `there`; kind: what these are."""
    for what, names in names_by_word.items():
        for name in names:
            if name not in there:
                raise OpError(
                    f"{place_of(function)}: {what} names {name!r}, and {kind} are "
                    f"{', '.join(there) or 'none'}"
                )


def _compare_distinct(
    function: Function,
    signature: Signature,
    sizes: Mapping[str, Sizes],
    distinct: Mapping[str, tuple[str, ...]],
    problem: Callable[[Mapping[str, int]], str | None],
) -> None:
    """Raises OpError where numbers that are said to be distinct can't be."""
    where = place_of(function)
    arrays = {array.name: array for array in signature.arrays}
    for name, axes in distinct.items():
        if not axes or not set(axes) <= set(arrays[name].axes):
            raise OpError(
                f"{where}: {name} is distinct along {' '.join(axes) or 'no axis'}; name some of "
                f"its axes, {' '.join(map(str, arrays[name].axes))}"
            )
    if not distinct:
        return
    values = ({size for of in array.levels.values() for size in of} for array in sizes.values())
    drawn = (dict(zip(sizes, array, strict=True)) for array in product(*map(sorted, values)))
    why: str | None = None
    for array in islice(drawn, _MOST_TRIED):
        if (why := problem(array)) is None and all(array.values()):
            return
    raise OpError(f"{where}: no sizes have as many values as distinct indices: {why}")
