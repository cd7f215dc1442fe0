"""Domains: the cases in which a kernel is right, decided from a case's data alone.

The op defines where a case puts its tensors (`Op.geometry`); this module decides, for every op
alike, whether that suits a kernel. A refusal is one sentence: the required value, and the value of
the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from kernel_workbench.kernels.declarations import (
    KernelError,
    wrong_alignment,
    wrong_choice,
    wrong_dtypes,
    wrong_function,
    wrong_kind,
    wrong_since,
    wrong_sizes,
    wrong_sm,
)
from kernel_workbench.kernels.size_relations import parsed
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.declared import wrong_names
from kernel_workbench.oracles.op import Case, Geometry, dtype_name

Strides = Literal["any", "rows", "contiguous"]
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The cases that a kernel serves. A kernel is right on all of them and refuses all others.

    dtypes         dtypes of the activations
    weight_dtypes  dtypes of the weights; None: the activations' own
    alignment      every pointer, every last axis and every stride of an axis longer than 1 must be
                   a multiple of so many bytes; for a vector, its pointer, and its elements must be
                   adjacent
    unaligned      arguments that `alignment` doesn't apply to; it never applies to statistics in
                   fp32
    strides        "any": every rank and stride, of vectors and whole numbers too; "rows": the last
                   axis of every argument adjacent, any other stride;
                   "contiguous": packed in the order of the op's axes (an element offset is still
                   possible). The last two refuse matrices with a third axis
    sm             compute capabilities, as 10 * major + minor, both ends included
    since          for a dtype, the capability that introduced it, if higher than `sm`'s
    sizes          for each size, the smallest and largest value; None: no limit. Sizes that a case
                   lacks aren't checked
    relations      relations of sizes, for example "s_kv >= s_q", "d_v == d" or "h_q % h_kv == 0";
                   with sequences end to end, they apply to each sequence. Relations of sizes that a
                   case lacks aren't checked
    features       the served options of the op
    devices        device types
    interpretable  True if it runs under the interpreter (no inline assembly or extern; Gluon for
                   Hopper)
    also           (case) -> a refusal that the other fields can't express, or None; called last
    """

    dtypes: tuple[torch.dtype, ...]
    weight_dtypes: tuple[torch.dtype, ...] | None = None
    alignment: int = 1
    unaligned: frozenset[str] = frozenset()
    strides: Strides = "any"
    sm: tuple[int, int] = (0, 999)
    since: Mapping[torch.dtype, int] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    relations: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ("cpu", "cuda")
    interpretable: bool = True
    also: Callable[[Case], str | None] | None = None

    def __post_init__(self) -> None:
        """Raise KernelError for the first wrong field."""
        for problem in self._problems():
            if problem is not None:
                raise KernelError(f"Domain: {problem}")
        for relation in self.relations:
            parsed(relation)
        object.__setattr__(self, "features", frozenset(self.features))  # accept any collection

    def _problems(self) -> Iterator[str | None]:
        yield from self._empty()
        yield wrong_dtypes("dtypes", self.dtypes)
        if self.weight_dtypes is not None:
            yield wrong_dtypes("weight_dtypes", self.weight_dtypes)
        yield wrong_alignment(self.alignment)
        yield wrong_choice("strides", self.strides, get_args(Strides))
        yield wrong_sm(self.sm)
        yield wrong_since(self.since)
        yield wrong_sizes(self.sizes)
        for name in ("unaligned", "relations", "features", "devices"):
            yield wrong_names(name, getattr(self, name))
        for device in self.devices:
            yield wrong_choice("devices", device, _DEVICES)
        yield wrong_kind("interpretable", self.interpretable, bool, "True or False")
        yield wrong_function("also", self.also)

    def _empty(self) -> Iterator[str | None]:
        """Yield sentences about empty fields: a kernel with an empty one serves no case."""
        for name, example in (
            ("dtypes", "(torch.float16,)"),
            ("weight_dtypes", "(torch.float32,), or None for the activations' own"),
            ("devices", "('cuda',)"),
        ):
            value = getattr(self, name)
            if isinstance(value, tuple | list | set | frozenset | dict | str) and not value:
                yield f"{name} is empty, so the kernel serves no case; write {example}"

    def reject(self, case: Case, sm: int, device: str = "cuda") -> str | None:
        """Return the sentence by which this domain refuses a case, or None.

        Args:
            case: the case.
            sm: the GPU's capability, for example 90.
            device: "cuda" or "cpu".
        """
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)}, got {device}"
        if device == "cpu" and not self.interpretable:
            return "can't run under Triton's interpreter"
        if not self.sm[0] <= sm <= self.sm[1]:
            return f"serves sm {self.sm[0]} to {self.sm[1]}, got sm {sm}"
        return (
            self._reject_dtypes(case, sm)
            or self._reject_features(case)
            or self._reject_sizes(case)
            or self._reject_relations(case)
            or self._reject_strides(case)
            or self._reject_alignment(case)
            or (self.also(case) if self.also is not None else None)
        )

    def _reject_dtypes(self, case: Case, sm: int) -> str | None:
        if case.dtype not in self.dtypes:
            served = ", ".join(map(dtype_name, self.dtypes))
            return f"serves {served}, got {dtype_name(case.dtype)}"
        since = self.since.get(case.dtype, 0)
        if sm < since:
            return f"serves {dtype_name(case.dtype)} from sm {since}, got sm {sm}"
        weights = (case.dtype,) if self.weight_dtypes is None else self.weight_dtypes
        if "no_weight" not in case.options and case.weight_dtype not in weights:
            served = ", ".join(map(dtype_name, weights))
            return (
                f"serves {served} weights with {dtype_name(case.dtype)} activations, "
                f"got {dtype_name(case.weight_dtype)}"
            )
        return None

    def _reject_features(self, case: Case) -> str | None:
        missing = sorted(case.features - self.features)
        return f"doesn't serve {', '.join(missing)}" if missing else None

    def _reject_sizes(self, case: Case) -> str | None:
        present = dict(case.sizes)
        for name, (least, most) in self.sizes.items():
            value = present.get(name, least)
            if value < least or (most is not None and value > most):
                limit = f"{least} or more" if most is None else f"{least} to {most}"
                return f"serves {name} of {limit}, got {value}"
        return None

    def _reject_relations(self, case: Case) -> str | None:
        sizes, sequences = dict(case.sizes), OPS[case.op].sequences
        lengths = () if sequences is None else sequences(case)
        for relation in map(parsed, self.relations):
            if not relation.names <= sizes.keys():
                continue
            if not lengths or not relation.names & lengths[0].keys():
                if not relation.holds(sizes):
                    return f"serves {relation.text}, got {relation.got(sizes)}"
                continue
            for number, sequence in enumerate(lengths):
                own = sizes | {**sequence}
                if not relation.holds(own):
                    where = f"{relation.got(own)} in sequence {number}"
                    return f"serves {relation.text} in each sequence, got {where}"
        return None

    def _reject_strides(self, case: Case) -> str | None:
        if self.strides == "any":
            return None
        if case.layout.batches is not None:
            return "needs inputs of rank 2, got rank 3"
        for name, laid_out in OPS[case.op].geometry(case).items():
            reason = _apart(name, laid_out)
            if reason is None and self.strides == "contiguous":
                reason = _unpacked(name, laid_out)
            if reason is not None:
                return reason
        return None

    def _reject_alignment(self, case: Case) -> str | None:
        if self.alignment == 1:
            return None
        op = OPS[case.op]
        for name, laid_out in op.geometry(case).items():
            if name in op.statistics or name in self.unaligned:
                continue
            if not laid_out.dtype.is_floating_point:
                continue
            reason = _misaligned(name, laid_out, self.alignment)
            if reason is not None:
                return reason
        return None


def _apart(name: str, laid_out: Geometry) -> str | None:
    """Return a sentence if the elements of the last axis aren't adjacent, else None."""
    if not laid_out.shape or laid_out.strides[-1] == 1 or laid_out.shape[-1] <= 1:
        return None
    stride = laid_out.strides[-1]
    if len(laid_out.shape) < 4:
        return f"needs adjacent columns, got a column stride of {stride} in {name}"
    return f"needs an adjacent last axis, got a stride of {stride} there in {name}"


def _unpacked(name: str, laid_out: Geometry) -> str | None:
    """Return a sentence if an axis has a gap, else None."""
    packed = 1
    for axis in reversed(range(len(laid_out.shape))):
        extent, stride = laid_out.shape[axis], laid_out.strides[axis]
        if extent > 1 and stride != packed:
            if len(laid_out.shape) < 4:
                got = f"a row stride of {stride} in {name}"
                return f"needs packed rows of {packed} elements, got {got}"
            got = f"a stride of {stride} in place of {packed} along axis {axis} of {name}"
            return f"needs packed tensors, got {got}"
        packed *= max(extent, 1)
    return None


def _misaligned(name: str, laid_out: Geometry, width: int) -> str | None:
    """Return a sentence if a pointer, row or stride isn't a multiple of `width` bytes."""
    shape, strides, size = laid_out.shape, laid_out.strides, laid_out.dtype.itemsize
    kind, rank = dtype_name(laid_out.dtype), len(shape)
    if rank > 1 and shape[-1] * size % width:
        row = f"n = {shape[-1]} {kind} elements"
        if rank >= 4:
            row = f"{shape[-1]} {kind} elements in {name}"
        return f"needs rows of whole {width} bytes, got {row}"
    if laid_out.offset * size % width:
        return f"needs {width}-byte pointers, got {name} offset by {laid_out.offset} elements"
    if (reason := _apart(name, laid_out)) is not None:
        return reason
    for axis in reversed(range(rank - 1)):
        stride = strides[axis]
        if shape[axis] <= 1 or stride * size % width == 0:
            continue
        if rank >= 4:
            got = f"a stride of {stride} {kind} elements along axis {axis} of {name}"
            return f"needs {width}-byte strides, got {got}"
        got = f"a row stride of {stride} {kind} elements in {name}"
        if axis < rank - 2:
            got = f"batches {stride - shape[1] * strides[1]} elements apart"
        return f"needs {width}-byte rows, got {got}"
    return None
