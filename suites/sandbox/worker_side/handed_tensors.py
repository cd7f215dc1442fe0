"""Find the tensor that an output was copied from, among the arguments of Triton launches.

A kernel may have a library compute its outputs, and launch a Triton kernel that copies them. If
launches read numbers with random signs (sign_scrambler.py), all results of launches are wrong, and
results of PyTorch's operations are right. So the arguments of each launch are copied before it, and
the argument that an output was copied from replaces the output: the judge then checks whether it is
right.

A copying launch keeps magnitudes, which identifies the argument that it copied. Arguments of the
call itself, and permutations of an input's numbers, are no results and don't count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_MOST_AXES = 4  # all orders of at most so many axes are tried
_MOST_BYTES = 4  # copies may take so many times the outputs' bytes


@dataclass(slots=True)
class HandedTensors:
    """Copies of launch arguments, by the kernel and the argument's position.

    wanted   the numbers of elements of the call's outputs
    room     bytes that further copies may take
    written  addresses of storages that launches wrote to
    """

    wanted: frozenset[int]
    room: int
    copies: dict[tuple[int, int], list[tuple[int, Tensor]]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, outputs: Iterable[tuple[int, int]]) -> HandedTensors:
        """Return a collection for outputs of so many elements and bytes."""
        sizes = list(outputs)
        room = _MOST_BYTES * sum(nbytes for _, nbytes in sizes)
        return cls(frozenset(numbers for numbers, _ in sizes), room)

    def note(self, kernel: int, place: int, tensor: Tensor) -> None:
        """Copy an argument of a launch, unless no output could be a copy of it."""
        parts = any(size % tensor.numel() == 0 for size in self.wanted if tensor.numel())
        if not parts or tensor.nbytes > self.room:
            return
        self.room -= tensor.nbytes
        home = tensor.untyped_storage().data_ptr()
        self.copies.setdefault((kernel, place), []).append((home, tensor.clone()))

    def note_written(self, tensor: Tensor) -> None:
        """Record that a launch has written to the tensor."""
        self.written.add(tensor.untyped_storage().data_ptr())

    def stand_ins(
        self, outputs: Mapping[str, Tensor], homes: Mapping[str, int], inputs: Iterable[Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors that outputs may have been copied from, by the outputs' names.

        Args:
            outputs: the outputs by name.
            homes: the address of each output's storage.
            inputs: the arguments of the call.
        """
        with _disable_current_modes():
            arguments = [value for value in inputs if value.is_floating_point()]
            sources = {
                name: self._source(output, homes[name], arguments)
                for name, output in outputs.items()
                if output.is_floating_point() and output.numel()
            }
        return {name: source for name, source in sources.items() if source is not None}

    def _source(self, output: Tensor, home: int, inputs: list[Tensor]) -> Tensor | None:
        nearest, least = None, float("inf")
        magnitudes = output.to(torch.float64).abs()
        for candidate in self._candidates(output, home):
            distance = (candidate.to(torch.float64).abs() - magnitudes).abs().max()
            if float(distance) < least:
                nearest, least = candidate, float(distance)
        if nearest is None or any(_holds_the_same(nearest, value) for value in inputs):
            return None
        return nearest.to(output.dtype)

    def _candidates(self, output: Tensor, home: int) -> Iterator[Tensor]:
        """Yield tensors of the output's shape: arguments, and joined pieces of several launches."""
        for pieces in self.copies.values():
            for place, tensor in pieces:
                # An output that is itself an argument which no launch wrote wasn't computed by one.
                if place == home and home not in self.written:
                    continue
                if tensor.numel() == output.numel():
                    yield from _in_shape(tensor, output.shape)
            whole = [tensor.reshape(-1) for _, tensor in pieces]
            if len(whole) > 1 and sum(map(Tensor.numel, whole)) == output.numel():
                yield torch.cat(whole).view(output.shape)


def _in_shape(tensor: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """Yield the tensor with its axes in each order that gives this shape."""
    yield tensor.reshape(shape)
    if tensor.dim() <= _MOST_AXES:
        for order in itertools.permutations(range(tensor.dim())):
            turned = tensor.permute(order)
            if turned.shape == shape:
                yield turned


def _holds_the_same(tensor: Tensor, other: Tensor) -> bool:
    """Return True if both tensors have the same numbers, in any order."""
    if tensor.numel() != other.numel():
        return False
    one, two = (value.detach().to(tensor.dtype).float().reshape(-1) for value in (tensor, other))
    return torch.equal(one.sort().values.nan_to_num(), two.sort().values.nan_to_num())
