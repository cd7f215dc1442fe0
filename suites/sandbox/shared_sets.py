"""Sets of one case's inputs, and places for outputs, in memory that the judge owns.

A worker calls kernels on these inputs in place and copies the outputs to their places. So the judge
has the outputs as soon as the worker replies. All sets have one layout: first the buffers of a set,
with the case's distance from a multiple of 256 bytes, and then the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.oracles.op import Inputs, OutputForm, dtype_name
from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, Place, aligned


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Positions of a set's parts, in bytes from the start of the set.

    parcel   a parcel of inputs with this layout
    starts   the start of each buffer of the parcel
    outputs  name, start and form of each output
    nbytes   size of a set, a multiple of 256
    """

    parcel: Parcel
    starts: tuple[int, ...]
    outputs: tuple[tuple[str, int, OutputForm], ...]
    nbytes: int

    @classmethod
    def of(cls, parcel: Parcel, forms: Mapping[str, OutputForm]) -> SetLayout:
        """Return the layout for inputs like the parcel's. The parcel must contain whole buffers."""
        starts, size = [], 0
        for buffer in parcel.buffers:
            assert buffer.whole
            starts.append(size + buffer.lead)
            size += aligned(buffer.lead + buffer.nbytes)
        outputs = []
        for name, form in forms.items():
            outputs.append((name, size, form))
            size += aligned(form.nbytes)
        return cls(parcel, tuple(starts), tuple(outputs), size)

    def message(self, count: int) -> dict[str, Any]:
        """Return a message in JSON from which a worker opens `count` sets."""
        packed = self.parcel.described()
        outputs = [
            {"name": name, "start": start, "dtype": dtype_name(form.dtype), "shape": form.shape}
            for name, start, form in self.outputs
        ]
        buffers = [
            {"start": start, "bytes": buffer.nbytes}
            for start, buffer in zip(self.starts, self.parcel.buffers, strict=True)
        ]
        return {
            "count": count,
            "nbytes": self.nbytes,
            "buffers": buffers,
            "tensors": packed["tensors"],
            "others": packed["others"],
            "outputs": outputs,
        }

    def fill(self, arena: Arena, number: int, values: Parcel) -> None:
        """Copy the parcel's values to a set.

        The parcel's tensors may start elsewhere in their buffers than the layout's tensors, because
        the addresses of the buffers differ from a multiple of 256 by other amounts.
        """
        moved = {}
        for name, place in values.places.items():
            by = place.start - self.parcel.places[name].start
            moved[place.buffer] = by * place.dtype.itemsize
        for buffer, (start, part) in enumerate(zip(self.starts, values.parts(), strict=True)):
            by = moved.get(buffer, 0)
            first, last = max(0, by), part.numel() + min(0, by)
            home = arena.at(number * self.nbytes + start, part.numel())
            home[first - by : last - by].copy_(part[first:last])

    def read(self, arena: Arena, number: int) -> dict[str, Tensor]:
        """Return copies of the outputs in a set's places, by name."""
        outputs = {}
        for name, start, form in self.outputs:
            place = arena.at(number * self.nbytes + start, form.nbytes)
            outputs[name] = place.clone().view(form.dtype).view(form.shape)
        return outputs


@dataclass(frozen=True, slots=True)
class OpenedSets:
    """The sets in a worker: the arguments of each set, and the places of its outputs, by name."""

    inputs: tuple[Inputs, ...]
    places: tuple[dict[str, Tensor], ...]

    @classmethod
    def of(cls, arena: Arena, message: dict[str, Any]) -> OpenedSets:
        """Return views of the arena's bytes, as `SetLayout.message` describes them."""
        tensors = {name: Place.of(value) for name, value in message["tensors"].items()}
        scalars: Inputs = {
            name: tuple(value["tuple"]) if isinstance(value, dict) else value
            for name, value in message["others"].items()
        }
        inputs, places = [], []
        for number in range(message["count"]):
            base = number * message["nbytes"]
            buffers = [
                arena.at(base + buffer["start"], buffer["bytes"]) for buffer in message["buffers"]
            ]
            views: Inputs = {
                name: place.seen_in(buffers[place.buffer], whole=True)
                for name, place in tensors.items()
            }
            inputs.append(views | scalars)
            places.append(
                {
                    output["name"]: _output(arena, base + output["start"], output)
                    for output in message["outputs"]
                }
            )
        return cls(tuple(inputs), tuple(places))


def _output(arena: Arena, start: int, output: dict[str, Any]) -> Tensor:
    form = OutputForm(tuple(output["shape"]), getattr(torch, output["dtype"]))
    return arena.at(start, form.nbytes).view(form.dtype).view(form.shape)
