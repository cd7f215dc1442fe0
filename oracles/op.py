"""The contract of truth: what an op says of itself, and what it is made of.

An op is a package of this room (`oracles/layer_norm/` is the shortest), and all that is known of
it stands there. Suites, kernels and reports know no op by name: they ask an `Op` for its cases, its
truth and the rest. To add an op, fill in an `Op` and list it in `oracles/__init__.py`.

    Case        one input set, as data: all that is needed to make it again, value by value
    Layout      where a case's tensors lie in memory
    Numerics    what a kernel declares of its arithmetic
    Bound       how far a correct kernel with these numerics may be from the truth
    Relation, Balance    how outputs must change when inputs are changed in a known way
    Flips       changes of signs that leave a correct kernel's outputs as they are, but for signs
    Workloads   the cases that are timed and profiled
    Allowed     the cases that a user may ask for
    Op          all of these together, with the oracle
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import update_wrapper
from types import NoneType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from kernel_workbench.oracles.declared import quoted, wrong_repetition

Tier = Literal["ci", "full"]
Argument = Tensor | bool | float | str | tuple[int | None, int | None] | None
Inputs = dict[str, Argument]
Outputs = dict[str, Tensor | None]


def optional(tensors: Mapping[str, object], name: str) -> Tensor | None:
    """Return the tensor `name` of arguments or outputs, None where it is absent or None.

    Example:
        >>> optional({"x": torch.ones(2)}, "bias") is None
        True
    """
    value = tensors.get(name)
    return value if isinstance(value, Tensor) else None


def required(tensors: Mapping[str, object], name: str) -> Tensor:
    """Return the tensor `name` of arguments or outputs, which is always there.

    Example:
        >>> required({"x": torch.ones(2)}, "x")
        tensor([1., 1.])
    """
    value = optional(tensors, name)
    assert value is not None, name
    return value


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without the module.

    Example:
        >>> dtype_name(torch.bfloat16)
        'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where one tensor's elements lie in the buffer that holds it. Lengths are in elements.

    One letter stands for an axis; an op chooses them ("bshd" of attention's q, "mn" of a matrix).

    offset         elements between a 256-byte-aligned address and the first element
    row_padding    elements between the end of a row and the start of the next
    batch_padding  elements between the last row of a batch and the first of the next, so that the
                   rows can't be seen as one strided matrix
    column_stride  elements from one column to the next
    expanded       the letters of the axes whose stride is 0: one entry, seen throughout
    row_stride     the stride of the slowest axis outright, where padding can't say it
    order          the axes' letters, slowest first in memory; "": as they come
    interleaved    how many such tensors share a buffer, position by position, as q, k and v of one
                   projection do; row by row where the tensor is a matrix
    """

    offset: int = 0
    row_padding: int = 0
    batch_padding: int = 0
    column_stride: int = 1
    expanded: str = ""
    row_stride: int | None = None
    order: str = ""
    interleaved: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A named arrangement of an op's tensors; a tensor that isn't named is packed and aligned.

    batches: in how many the rows of a matrix are split, which then comes with a third axis.
    """

    name: str
    tensors: tuple[tuple[str, TensorLayout], ...] = ()
    batches: int | None = None

    def of(self, argument: str) -> TensorLayout:
        """The layout of one argument."""
        return dict(self.tensors).get(argument, TensorLayout())

    @property
    def is_expanded(self) -> bool:
        """True if a tensor is expanded: several of its elements are one number in memory."""
        return any(tensor_layout.expanded for _, tensor_layout in self.tensors)


CONTIGUOUS = Layout("contiguous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input set: everything that makes it, and why it is there where that isn't obvious.

    sizes         in the order of the id; a size that only an option has stands in it only then
    weight_dtype  of the affine parameters, where the op has them; else the dtype again
    weight        how often a model makes the call, where a user said so; nothing depends on it
    """

    op: str
    sizes: tuple[tuple[str, int], ...]
    dtype: torch.dtype
    weight_dtype: torch.dtype
    layout: Layout = CONTIGUOUS
    distribution: str = "normal"
    options: frozenset[str] = frozenset()
    seed: int = 0
    tier: Tier = "ci"
    why: str = ""
    weight: float | None = None

    @property
    def features(self) -> frozenset[str]:
        """Return the options that a kernel has to serve: all but values of its numbers."""
        return frozenset(word for word in self.options if "=" not in word)

    def size(self, name: str) -> int:
        """The size called `name`, as in `case.size("m")`."""
        return dict(self.sizes)[name]

    @property
    def dtype_label(self) -> str:
        """The activations' dtype, and the weight's where it differs."""
        name = dtype_name(self.dtype)
        if self.weight_dtype == self.dtype:
            return name
        return f"{name}_{dtype_name(self.weight_dtype)}weight"

    def id(self, kernel: str | None = None) -> str:
        """The case's name, with the kernel's after the op's where one is given.

        Parts that hold their default are left out, so that an id stays short enough to type.
        """
        parts = [self.op]
        if kernel is not None:
            parts.append(kernel)
        parts += [f"{name}{value}" for name, value in self.sizes]
        parts += [self.dtype_label, self.layout.name]
        if self.distribution != "normal":
            parts.append(self.distribution)
        parts += sorted(self.options)
        if self.seed:
            parts.append(f"seed{self.seed}")
        return "-".join(parts)


# The types that a field of Numerics may have by the type of its default, and what to write.
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"),
    NoneType: ((bool, NoneType), "True, False or None"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "names in a string, with spaces between"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """A kernel's declared arithmetic; the defaults fit a plain fp32-accumulating kernel.

    These are the words that all ops share. An op has more by a subclass (`Op.numerics`), and names
    the casts that its kernels may make (`Op.casts`, or marks of its reference).

    accumulation_roundoff     unit roundoff of its sums: 2^-24 for fp32 FMA, 2^-23 on tensor
                              cores, which don't round to nearest
    gradual_underflow         fp32 subnormals are kept inside the kernel (a GPU's fast paths
                              flush them; the bound then allows 2^-126 for each operation)
    bitwise_repeatable        the same input gives the same bits on the same device
    batch_invariant           the bits of a row don't depend on the rows beside it; None: not said
    device_independent        no bit depends on the number of the device's SMs; None: not said
    casts                     names of the casts that it makes on its way, with spaces between
    tf32_operands             fp32 operands of every product lose all but 10 bits
    key_tile                  numbers between two rescalings of a running softmax
    """

    accumulation_roundoff: float = 2.0**-24
    gradual_underflow: bool = False
    bitwise_repeatable: bool = True
    batch_invariant: bool | None = None
    device_independent: bool | None = None
    casts: str = ""
    tf32_operands: bool = False
    key_tile: int = 32

    def __post_init__(self) -> None:
        """Raise ValueError for a value of another type, and for arithmetic without a bound."""
        for item in fields(self):
            value = getattr(self, item.name)
            kind, wanted = _KINDS[type(item.default)]
            if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
                raise ValueError(f"{item.name} is {quoted(value)}; write {wanted}")
        repeated = wrong_repetition("casts", self.casts.split())
        if repeated is not None:
            raise ValueError(repeated)
        if not 2.0**-53 <= self.accumulation_roundoff <= 2.0**-8:  # of float64, of bfloat16
            raise ValueError(
                "accumulation_roundoff must be from 2^-53 to 2^-8, got "
                f"{self.accumulation_roundoff:g}"
            )
        if not self.key_tile >= 1:
            raise ValueError(f"key_tile must be 1 or more, got {self.key_tile}")

    @classmethod
    def of(cls, numerics: Numerics) -> Self:
        """Return the same in this class, whose own words keep their defaults where it has more."""
        if isinstance(numerics, cls):
            return numerics
        return cls(**{field_.name: getattr(numerics, field_.name) for field_ in fields(Numerics)})

    def makes(self, cast: str) -> bool:
        """Say whether the kernel makes the cast of this name."""
        return cast in self.casts.split()

    @property
    def casts_early(self) -> bool:
        """Say whether the kernel casts more than its outputs."""
        return bool(self.casts.split())

    @property
    def of_bounds(self) -> Self:
        """The same without what bounds and emulation don't ask for: equal where these are."""
        return replace(self, bitwise_repeatable=True, batch_invariant=None, device_independent=None)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The numbers that an output of indices chooses from, in order: these judge it.

    values  in float64, the largest of which comes first
    error   how far a right kernel's may be from each
    axis    along which indices point, and along which as many are chosen as `shape` has
    shape   of the indices
    first   indices that PyTorch promises where numbers are equal; None: any of these is right
    """

    values: Tensor
    error: Tensor
    axis: int
    shape: tuple[int, ...]
    first: Tensor | None = None

    def judged(self, got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the numbers at these indices, those expected, and how far they may be apart.

        In a row with NaN nothing is promised. An index that points to nothing has NaN.
        """
        index, count = self._index(got), self.shape[self.axis]
        at = index.clamp(0, max(self.values.shape[self.axis] - 1, 0))
        value, error = (numbers.gather(self.axis, at) for numbers in (self.values, self.error))
        expected = self._largest(self.values, count)
        least = self._largest(self.values - self.error, count).nan_to_num(nan=-math.inf)
        most = self._largest(self.values + self.error, count).nan_to_num(nan=math.inf)
        limit = torch.where(value <= expected, expected - least, most - expected) + error
        limit = torch.where(expected.isinf(), error, limit) * (1 + _SLACK)
        unknown = self.values.isnan().any(self.axis, keepdim=True).expand_as(limit)
        return (
            value.masked_fill(at != index, math.nan),
            expected.nan_to_num(posinf=math.inf, neginf=-math.inf),
            limit.masked_fill(unknown, math.inf),
        )

    def wrong(self, got: Tensor) -> str | None:
        """Say which index can't be right whatever the numbers are; None where each may be."""
        index, length = self._index(got), self.values.shape[self.axis]
        outside = (index < 0) | (index >= length)
        if bool(outside.any()):
            return f"{_at(outside, index)}, and there are {length:,} numbers"
        times = torch.zeros_like(self.values).scatter_add(
            self.axis, index, torch.ones_like(index, dtype=torch.float64)
        )
        twice = times.gather(self.axis, index) > 1
        if bool(twice.any()):
            return f"{_at(twice, index)}, which comes twice in its row"
        if self.first is None:
            return None
        exact = ((self.error == 0) & self.values.isfinite()).all(self.axis, keepdim=True)
        right = self.first.reshape(self.shape)
        equal = self.values.gather(self.axis, index) == self.values.gather(self.axis, right)
        other = exact & equal & (index != right)
        if bool(other.any()):
            place = int(right[other][0])
            return f"{_at(other, index)}, and of equal numbers {place} is the first"
        return None

    def _index(self, got: Tensor) -> Tensor:
        return got.reshape(self.shape).long()

    def _largest(self, values: Tensor, count: int) -> Tensor:
        return values.sort(self.axis, descending=True).values.narrow(self.axis, 0, count)


_SLACK = 2.0**-48  # of float64's own roundings


def _at(mask: Tensor, index: Tensor) -> str:
    place = mask.nonzero()[0].tolist()
    return f"{place}: got {int(index[tuple(place)])}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Largest |kernel - truth| of a correct kernel, element by element, in float64.

    Infinite where nothing is promised of an element, which then isn't judged.

    deterministic  holds always: every rounding at its worst, in the same direction
    probabilistic  holds with probability 1 - 1e-6 over the roundings of a tensor; None where
                   they don't vary independently, as when equal addends are summed
    powerless      bool, to be broadcast over them: where the bound holds and says nothing, being
                   as wide as the values could be apart; None: nowhere
    or_nan         bool, to be broadcast likewise: where NaN is right, too; None: nowhere
    chosen         of indices what they are judged by, in place of a distance; None: a distance is
    replayed       bool, likewise: where the probabilistic bound is one from replays with random
                    roundings, as the others say nothing there; None: nowhere
    """

    deterministic: Tensor
    probabilistic: Tensor | None
    powerless: Tensor | None = None
    or_nan: Tensor | None = None
    chosen: Chosen | None = None
    replayed: Tensor | None = None


Property = Literal["batch-invariant", "device-independent"]


@dataclass(frozen=True, slots=True)
class Relation:
    """One change of a case's inputs, and what it does to the outputs of a correct kernel.

    A kernel is compared with itself, and the oracle has no part in it but for the bounds: where it
    may be off by E on its own inputs and by E' on the changed ones, both outputs are within
    carry(E) + E' of what the relation says. A relation that is exact holds bit for bit.

    name      a phrase for the report, as "K + c leaves out"
    case      the case that the changed inputs are of: sizes and layout as changed
    change    the case's own inputs -> the changed ones, tensors of their own
    carry     outputs on the case's own inputs -> those that the changed inputs must have, for the
              outputs that the relation speaks of, but for the shift; bounds are carried likewise
    shift     the case's own inputs -> what is added to some outputs, in float64
    exact     bit for bit, of a kernel whose bits repeat; else within both bounds
    slack     for an exact one: outputs on the case's own inputs -> what they may be off by after
              all, in float64
    underflows    an exact one holds within both bounds alone, of a kernel that casts early
              (`Numerics.casts_early`): what is subnormal before the change isn't after it
    of        the property that a kernel needs to have declared for this to be asked of it; None
              where every correct kernel has it
    """

    name: str
    case: Case
    change: Callable[[Inputs], Inputs]
    carry: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    shift: Callable[[Inputs], dict[str, Tensor]] | None = None
    exact: bool = False
    slack: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    underflows: bool = False
    of: Property | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """A sum over the last axis of an output, perhaps weighted, that must come to a known value.

    The casts of the output err to either side alike, so that their errors all but cancel; what is
    bounded before them is added up in full.

    name      a phrase for the report, as "sum of dx is 0"
    output    the name of the output
    weights   the case's inputs -> float64 weights that broadcast to the output; None: all 1
    total     the case's inputs -> what the sums must be, in float64
    """

    name: str
    output: str
    weights: Callable[[Inputs], Tensor] | None
    total: Callable[[Inputs], Tensor]


Relations = tuple[Relation | Balance, ...]


# Integers as wide as a number, and the one whose single bit is the sign's.
_BITS = {
    1: (torch.int8, -(2**7)),
    2: (torch.int16, -(2**15)),
    4: (torch.int32, -(2**31)),
    8: (torch.int64, -(2**63)),
}


@dataclass(frozen=True, slots=True)
class Flips:
    """Which signs to change: of each tensor some bool tensors that broadcast to it, True: flipped.

    An element's sign is changed once for each True that it meets. Multiplying by -1 is exact, and
    rounding to nearest or towards zero knows no sign: where the outputs' signs follow from the
    inputs', a call on flipped inputs returns the first call's numbers, bit by bit but for the signs
    of zeros (x - x is +0 whichever way it is turned). Compare them as numbers.
    """

    of_inputs: Mapping[str, tuple[Tensor, ...]]
    of_outputs: Mapping[str, tuple[Tensor, ...]]

    def apply_(self, inputs: Inputs) -> None:
        """Change the inputs in place, whatever their strides; what lies between stays."""
        for name, factors in self.of_inputs.items():
            tensor = inputs.get(name)
            if isinstance(tensor, Tensor):
                _flip_(tensor, factors)

    def outputs(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a call on changed inputs with their signs put back, in new memory."""
        result = {}
        for name, output in outputs.items():
            result[name] = output.clone()
            _flip_(result[name], self.of_outputs.get(name, ()))
        return result


def _flip_(tensor: Tensor, factors: Iterable[Tensor]) -> None:
    kind, sign = _BITS[tensor.element_size()]
    bits = tensor.view(kind)
    once = tuple(
        slice(1 if step == 0 else None)
        for step in bits.stride()  # an expanded axis is one place in memory
    )
    for factor in factors:
        bits[once].bitwise_xor_(factor.to(bits.device).to(kind) * sign)


class ArgumentsError(ValueError):
    """Arguments that an op can't have; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The shape and dtype that an output must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, packed."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a case puts one tensor argument: what a domain is asked about. Lengths in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The settings that one level of a factor adds to a case; other factors choose the rest."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    dtypes: tuple[torch.dtype, torch.dtype] | None = None
    layout: Layout | None = None
    distribution: str | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """One thing that cases differ in, as "heads" with the levels "one", "grouped" and so on.

    levels   name -> parts, each of which makes a case of that level; the first level is the plain
             one
    level    (case) -> the name of its level
    meets    the names of the factors whose levels are to meet this factor's levels; None: all
    """

    name: str
    levels: Mapping[str, tuple[Part, ...]]
    level: Callable[[Case], str]
    meets: frozenset[str] | None = None

    def meets_levels_of(self, other: Factor) -> bool:
        """Return whether pairs of levels of the two factors are to meet."""
        return (self.meets is None or other.name in self.meets) and (
            other.meets is None or self.name in other.meets
        )


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which cases an op could have besides its own.

    sizes          those that every case has, in the order of its id
    option_sizes   those that an option brings, after them in the id
    implied        (sizes) -> the options that follow from them alone
    objection      (case) -> why there can be no such case, in one sentence; None where there can
    layouts        those that a case can be given by name, alone or joined by "+"
    distributions  those that fit any sizes
    factors        what cases differ in: what they are drawn from, and what coverage is counted by
    together       sets of alternatives, in each of which one alternative of each kind is to meet
                   one of each other kind in `ci`: three options that fail where no two of them do
    is_quick       (case) -> whether an interpreter needs few programs for it: in such cases each
                   pair of levels meets in `ci`
    """

    sizes: tuple[str, ...]
    option_sizes: tuple[str, ...]
    implied: Callable[[Mapping[str, int]], frozenset[str]]
    objection: Callable[[Case], str | None]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    distributions: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    together: tuple[tuple[tuple[Part, ...], ...], ...] = ()
    is_quick: Callable[[Case], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Workloads:
    """The cases of an op that are timed, and profiled, where nobody names a case.

    anchors   for a GPU: large shapes at which peers' figures are known
    further   for a GPU: what models and users have besides, each with its `why`
    on_cpu    for a CPU, where the large ones would take hours
    profiled  larger than any L2, and long enough that a loop of them is nothing but them
    """

    anchors: tuple[Case, ...] = ()
    further: tuple[Case, ...] = ()
    on_cpu: tuple[Case, ...] = ()
    profiled: tuple[Case, ...] = ()

    def timed(self, device: str) -> tuple[Case, ...]:
        """Return the cases timed on a device, "cuda" or "cpu"."""
        return (*self.anchors, *self.further) if device == "cuda" else self.on_cpu


@dataclass(frozen=True, slots=True)
class Op:
    """An op: its computation, its cases, and the accuracy of its truth. It says nothing of the how.

    A kernel's arguments and results:
    arguments  always passed to a kernel, by keyword
    outputs    what it returns, in this order; None for one that an option leaves out
    options    the op's optional features, each with one sentence; a kernel is given a case with
               an option only if its domain lists it, and only then the option's argument. A word
               with "=" is a value of a number, which every kernel is passed: no domain lists it
    updates    arguments that a kernel changes in place and returns (accumulated gradients, caches)
    lists      of arguments that are lists of tensors: the names of these, as `arguments` has them
    forms      (case) -> shape and dtype of each output that the case has
    geometry   (case) -> where each tensor argument lies, as far as its arrangement can vary

    The truth:
    cases      () -> all cases, both tiers, those of `ci` first
    inputs     (case, device) -> keyword arguments of a kernel, values fixed by the case
    oracle     (case, inputs) -> float64 outputs, None where an option leaves an output out
    bound      (case, inputs, truth, numerics) -> one bound for each output that exists
    emulate    (case, inputs, numerics) -> what an idealised kernel with these numerics returns, in
               the outputs' dtypes: the same roundings, none of its indexing
    relations  (case) -> the metamorphic relations that the case is good for
    numerics   what its kernels may declare: `Numerics`, or a subclass with the op's own words
    casts      the casts that they may declare, each with one sentence; None: those that a reference
               marks
    signs      (case, seed) -> changes of signs, drawn from the seed; some sign is changed wherever
               one can be. Second calls are made on them, and every buffer of a timing but the first
    linear     the argument that all outputs are linear in, but for those that `signs` leaves
    allowed    which cases a user may ask for

    How much work it is:
    flops, bytes    (case) -> arithmetic, and the least memory traffic: every input read once,
                    every output written once
    products   (case) -> whether the flops are those of matrix products, which tensor cores do
    whole_work outputs that each take all of the flops, and all of the inputs
    left_out   of a part of an op: the outputs that it hasn't
    workloads  what is timed and profiled

    Facts of arguments, sizes and options for kernels and suites:
    sequences  (case) -> the sizes of each sequence where several lie end to end, else none; None:
               they never do
    widths     sizes of a last axis, for which kernels are compiled
    statistics arguments in fp32 of which there is one number a row or a head: a kernel reads them
               one at a time, whatever their alignment
    nonzero    arguments that stay as they are where all operands are made zero for a profile:
               divided by, or a logarithm
    unaligned  arguments with rows whose alignment chooses no variant of a kernel
    gpu_options    options whose truth a GPU alone can make

    For arguments that the op didn't draw:
    case_from      (arguments of a kernel) -> the case that has their sizes, dtypes and options;
                   raises ArgumentsError
    """

    name: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, str]
    inputs: Callable[[Case, torch.device], Inputs]
    oracle: Callable[[Case, Inputs], Outputs]
    bound: Callable[[Case, Inputs, Outputs, Numerics], dict[str, Bound]]
    forms: Callable[[Case], dict[str, OutputForm]]
    geometry: Callable[[Case], dict[str, Geometry]]
    flops: Callable[[Case], int]
    bytes: Callable[[Case], int]
    cases: Callable[[], tuple[Case, ...]]
    signs: Callable[[Case, int], Flips]
    linear: str
    emulate: Callable[[Case, Inputs, Numerics], Outputs]
    relations: Callable[[Case], Relations]
    allowed: Allowed
    case_from: Callable[[Inputs], Case]
    updates: tuple[str, ...] = field(default=())
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numerics: type[Numerics] = Numerics
    casts: Mapping[str, str] | None = None
    products: Callable[[Case], bool] = lambda _: False
    whole_work: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    workloads: Workloads = field(default_factory=Workloads)
    sequences: Callable[[Case], tuple[Mapping[str, int], ...]] | None = None
    widths: tuple[str, ...] = ()
    statistics: frozenset[str] = frozenset()
    nonzero: frozenset[str] = frozenset()
    unaligned: frozenset[str] = frozenset()
    gpu_options: frozenset[str] = frozenset()

    def found_signs(self) -> list[Any] | None:
        """Return the result of the trials for `signs`, in JSON; None without trials."""
        return None

    def tell_signs(self, signs: list[Any] | None) -> None:
        """Set the found signs in a process that may not ask the oracle."""

    def has_batches(self) -> bool:
        """Say whether some relation tells the bits of a batch-invariant kernel."""
        return True

    def part(self, outputs: tuple[str, ...]) -> Op:
        """The op with these outputs alone, in their order; the others are `left_out`.

        Oracle, bound and emulation stay those of the whole op, so that kernels of either share a
        case's truth. Where `has_figures` is False, so do flops and bytes, which then only say how
        large a case is. Raises ValueError where `outputs` aren't some of the op's, in its order.
        """
        if not outputs or outputs != tuple(output for output in self.outputs if output in outputs):
            raise ValueError(f"{outputs} aren't outputs of {self.name} in its order")
        left_out = tuple(output for output in self.outputs if output not in outputs)
        if not left_out:
            return self

        def forms(case: Case) -> dict[str, OutputForm]:
            return {name: form for name, form in self.forms(case).items() if name in outputs}

        def least_bytes(case: Case) -> int:
            sizes = {name: form.nbytes for name, form in self.forms(case).items()}
            return self.bytes(case) - sum(sizes.get(name, 0) for name in left_out)

        updates = tuple(update for update in self.updates if update in outputs)
        return replace(
            self,
            outputs=outputs,
            forms=forms,
            bytes=least_bytes,
            updates=updates,
            left_out=left_out,
        )

    @property
    def has_figures(self) -> bool:
        """Return True if flops and bytes are known: for a part of an op not always."""
        return not self.left_out or not self.whole_work.isdisjoint(self.outputs)

    def caller_of(self, function: Callable[..., object]) -> Callable[..., object]:
        """A kernel's function as suites call it: each tensor by its name, each output returned.

        The kernel itself gets lists whole, and needn't return what it changes in place.
        """
        if not (self.lists or self.updates):
            return function
        returned_ones = [name for name in self.outputs if name not in self.updates]

        def called(**arguments: object) -> object:
            passed: dict[str, object] = dict(arguments)
            for name, parts in self.lists.items():
                passed[name] = [passed.pop(part) for part in parts]
            returned = function(**passed)
            if isinstance(returned, Tensor) or returned is None:
                returned = () if returned is None else (returned,)
            if not isinstance(returned, tuple | list):
                return returned
            are_passed = all(arguments.get(name) is not None for name in self.updates)
            if are_passed and len(returned) == len(returned_ones) < len(self.outputs):
                rest = iter(returned)
                returned = [next(rest) if name in returned_ones else None for name in self.outputs]
            if len(returned) != len(self.outputs):
                return returned
            return tuple(
                arguments.get(name) if value is None and name in self.updates else value
                for name, value in zip(self.outputs, returned, strict=True)
            )

        return update_wrapper(called, function)

    def as_tuple(self, returned: object) -> object:
        """Return a kernel's outputs as a tuple, also where it returned one tensor."""
        return (returned,) if isinstance(returned, Tensor) and len(self.outputs) == 1 else returned
