"""The contracts of truth: `Op`, `Case` and what they are made of.

An op says what is computed, never how: argument and output names, a float64 oracle, a bound on
the error of a correct kernel, the least work (flops, bytes) and the cases that test it. A case
is data: it names everything that is needed to make its inputs again, value by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from oracles.relation import Relations

Tier = Literal["ci", "full"]
Inputs = dict[str, Tensor | bool | float | str | tuple[int | None, int | None] | None]
Outputs = dict[str, Tensor | None]


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where one tensor's elements lie in the buffer that holds it. Lengths are in elements.

    offset         elements between a 256-byte-aligned address and the first element
    row_padding    elements between the end of a row and the start of the next
    column_stride  elements from one column to the next
    transposed     the rows run along memory's slow axis: strides (1, m)
    expanded       "rows": one row seen m times (stride 0); "all": one element seen m*n times;
                   of more than two axes: the letters of those whose stride is 0
    row_stride     the distance between rows outright, where padding can't say it
    order          of more than two axes: their letters, slowest first in memory; "" as they come
    interleaved    of more than two axes: how many such tensors share a buffer, position by
                   position, as q, k and v of one projection do
    """

    offset: int = 0
    row_padding: int = 0
    column_stride: int = 1
    transposed: bool = False
    expanded: str = ""
    row_stride: int | None = None
    order: str = ""
    interleaved: int = 1

    def strides(self, m: int, n: int) -> tuple[int, int]:
        """Strides in elements of an (m, n) matrix laid out so."""
        if self.expanded == "all":
            return 0, 0
        if self.transposed:
            return 1, max(m, 1)
        if self.expanded == "rows":
            return 0, self.column_stride
        if self.row_stride is not None:
            return self.row_stride, self.column_stride
        return n * self.column_stride + self.row_padding, self.column_stride


@dataclass(frozen=True, slots=True)
class Layout:
    """A named arrangement of an op's tensors; a tensor that isn't named is packed and aligned.

    One letter stands for an axis: "b", "s", "h", "d" of q, k, v, out and do, and "b", "h", "q",
    "k" of a bias. batches splits the rows of a rank-3 case, (batches, m / batches, n);
    batch_padding puts that many elements between batches, so that the rows can't be seen as one
    strided matrix.
    """

    name: str
    tensors: tuple[tuple[str, TensorLayout], ...] = ()
    batches: int | None = None
    batch_padding: int = 0

    def of(self, argument: str) -> TensorLayout:
        """The layout of one argument."""
        return dict(self.tensors).get(argument, TensorLayout())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What a kernel declares of its arithmetic; the defaults fit a plain fp32-accumulating one.

    accumulation_roundoff     unit roundoff of its sums: 2^-24 for fp32 FMA, 2^-23 on tensor
                              cores, which don't round to nearest
    gradual_underflow         fp32 subnormals are kept inside the kernel (a GPU's fast paths
                              flush them; the bound then allows 2^-126 for each operation)
    distributed_normalisation x * rstd - mean * rstd in place of (x - mean) * rstd, which
                              costs u * rstd * (|x| + |mean|) for each element
    bitwise_repeatable        the same input gives the same bits on the same device
    batch_invariant           the bits of a row don't depend on the rows beside it; None: not said
    device_independent        no bit depends on the number of the device's SMs; None: not said

    Of attention, whose halves cast P and dS to their own type before a product:
    tf32_operands             fp32 operands of every product lose all but 10 bits
    key_tile                  keys between two rescalings of the running softmax
    rounds_factors            P and dP - D are cast before their product, not dS alone
    half_partials             with grouped heads, each head's dk and dv are cast before their sum
    half_bias_gradient        dS is cast before it is summed over what the bias was broadcast over

    Of layer norm, whose kernels cast nothing but outputs unless they say so:
    half_partials             partial sums of dweight and dbias are cast to x's type, and then added
    half_accumulators         so many partial sums of each are kept in x's type: a row is added, and
                              the sum cast, one row after the other; 0: none
    rounds_normalised         x^ is cast to x's type before its product with dy; dx has it in fp32
    rounds_products           dy x^ is cast to x's type before it is summed
    rounds_weighted           weight dy is cast to x's type
    rounds_gradient           dy is cast to the weight's type before anything else
    """

    accumulation_roundoff: float = 2.0**-24
    gradual_underflow: bool = False
    distributed_normalisation: bool = False
    bitwise_repeatable: bool = True
    batch_invariant: bool | None = None
    device_independent: bool | None = None
    tf32_operands: bool = False
    key_tile: int = 32
    rounds_factors: bool = False
    half_partials: bool = False
    half_bias_gradient: bool = False
    half_accumulators: int = 0
    rounds_normalised: bool = False
    rounds_products: bool = False
    rounds_weighted: bool = False
    rounds_gradient: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for arithmetic that no bound would hold."""
        if not 2.0**-53 <= self.accumulation_roundoff <= 2.0**-8:  # of float64, of bfloat16
            raise ValueError(
                "accumulation_roundoff must be from 2^-53 to 2^-8, got "
                f"{self.accumulation_roundoff:g}"
            )
        if not self.key_tile >= 1:
            raise ValueError(f"key_tile must be 1 or more, got {self.key_tile}")
        if not self.half_accumulators >= 0:
            raise ValueError(f"half_accumulators must be 0 or more, got {self.half_accumulators}")

    @property
    def casts_early(self) -> bool:
        """Whether a layer norm with these casts more than its outputs."""
        sums = self.half_partials or self.half_accumulators > 0 or self.rounds_products
        return sums or self.rounds_normalised or self.rounds_weighted or self.rounds_gradient

    @property
    def of_bounds(self) -> Numerics:
        """The same without what bounds and emulation don't ask for: equal where these are."""
        return replace(self, bitwise_repeatable=True, batch_invariant=None, device_independent=None)


@dataclass(frozen=True, slots=True)
class Bound:
    """Largest |kernel - truth| of a correct kernel, element by element, in float64.

    Infinite where nothing is promised of an element, which then isn't judged.

    deterministic  holds always: every rounding at its worst, in the same direction
    probabilistic  holds with probability 1 - 1e-6 over the roundings of a tensor; None where
                   they don't vary independently, as when equal addends are summed
    powerless      bool, to be broadcast over them: where the bound holds and says nothing, being
                   as wide as the values could be apart; None: nowhere
    """

    deterministic: Tensor
    probabilistic: Tensor | None
    powerless: Tensor | None = None


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


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which cases an op could have besides its own.

    sizes         those that every case has, in the order of its id
    option_sizes  those that an option brings, after them in the id
    implied       (sizes) -> the options that follow from them alone
    objection     (case) -> why there can be no such case, in one sentence; None where there can
    """

    sizes: tuple[str, ...]
    option_sizes: tuple[str, ...]
    implied: Callable[[Mapping[str, int]], frozenset[str]]
    objection: Callable[[Case], str | None]


@dataclass(frozen=True, slots=True)
class Op:
    """What an op computes, for which cases, and how well it can be known.

    arguments  always passed to a kernel, by keyword
    options    the op's optional features, each with one sentence; a kernel is given a case with
               an option only if its domain lists it, and only then the option's argument
    updates    arguments that a kernel changes in place and returns (accumulated gradients)
    inputs     (case, device) -> keyword arguments of a kernel, values fixed by the case
    oracle     (case, inputs) -> float64 outputs, None where an option leaves an output out
    bound      (case, inputs, truth, numerics) -> one bound for each output that exists
    forms      (case) -> shape and dtype of each output that the case has
    geometry   (case) -> where each tensor argument lies, as far as its arrangement can vary
    flops, bytes    (case) -> arithmetic, and the least memory traffic: every input read once,
                    every output written once
    cases      () -> all cases, both tiers
    emulate    (case, inputs, numerics) -> what an idealised kernel with these numerics returns, in
               the outputs' dtypes: the same roundings, none of its indexing; without one None
    relations  (case) -> the metamorphic relations that the case is good for
    allowed    which cases a user may ask for; None: the op's own alone
    sequences  (case) -> the sizes of each sequence where several lie end to end, else none; None:
               they never do
    whole_work outputs that each take all of the flops, and all of the inputs
    left_out   of a part of an op: the outputs that it hasn't
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
    updates: tuple[str, ...] = field(default=())
    emulate: Callable[[Case, Inputs, Numerics], Outputs] | None = None
    relations: Callable[[Case], Relations] | None = None
    allowed: Allowed | None = None
    sequences: Callable[[Case], tuple[Mapping[str, int], ...]] | None = None
    whole_work: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def part(self, outputs: tuple[str, ...]) -> Op:
        """The op with these outputs alone, in their order; the others are `left_out`.

        Oracle, bound and emulation stay those of the whole op, so that kernels of either share a
        case's truth. Where `has_figures` is False, so do flops and bytes, which then only say how
        large a case is. Raises ValueError where `outputs` aren't some of the op's, in its order.
        """
        if not outputs or outputs != tuple(each for each in self.outputs if each in outputs):
            raise ValueError(f"{outputs} aren't outputs of {self.name} in its order")
        left_out = tuple(each for each in self.outputs if each not in outputs)
        if not left_out:
            return self

        def forms(case: Case) -> dict[str, OutputForm]:
            return {name: form for name, form in self.forms(case).items() if name in outputs}

        def least_bytes(case: Case) -> int:
            sizes = {name: form.nbytes for name, form in self.forms(case).items()}
            return self.bytes(case) - sum(sizes.get(name, 0) for name in left_out)

        updates = tuple(each for each in self.updates if each in outputs)
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
        """Whether flops and bytes are of what is computed: of a part that can't always be said."""
        return not self.left_out or not self.whole_work.isdisjoint(self.outputs)

    def as_tuple(self, returned: object) -> object:
        """What a kernel returned; where that is the one output of the op, in a tuple."""
        return (returned,) if isinstance(returned, Tensor) and len(self.outputs) == 1 else returned
