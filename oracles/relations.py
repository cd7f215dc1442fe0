"""Common parts of several ops' relations: inputs changed apart, and scaling by a power of two."""

from __future__ import annotations

import zlib
from collections.abc import Container, Mapping

import torch
from torch import Tensor

from kernel_workbench.oracles.cases.layouts import place_vector
from kernel_workbench.oracles.op import Argument, Case, Inputs, Relation, TensorLayout
from kernel_workbench.oracles.rounding import HALF_SUBNORMAL_SPACING

FACTOR = 8.0  # exact, but where what was subnormal isn't any more

Tensors = Mapping[str, Tensor]


def is_sampled(case: Case, one_in: int) -> bool:
    """Return True if a plain case of `full` is sampled for invariance, one in `one_in`."""
    chosen = zlib.crc32(case.id().encode()) % one_in == 0
    return case.tier == "full" and case.distribution == "normal" and chosen


def copied(inputs: Inputs, changed: Mapping[str, Argument]) -> Inputs:
    """The inputs with some changed, every tensor packed in memory of its own."""

    def apart(value: Argument) -> Argument:
        if not isinstance(value, Tensor):
            return value
        is_real = value.is_floating_point()
        return place_vector(value, value.dtype, TensorLayout()) if is_real else value.clone()

    return {name: apart(value) for name, value in {**inputs, **changed}.items()}


def scaled(
    name: str,
    case: Case,
    inputs: Container[str],
    outputs: Container[str] | None = None,
    *,
    exact: bool = True,
    underflows: bool = False,
) -> Relation:
    """Return FACTOR times the inputs and outputs of these names (None: all); other outputs stay."""

    def times(tensors: Mapping[str, object], names: Container[str] | None) -> dict[str, Tensor]:
        return {
            key: tensor * FACTOR if names is None or key in names else tensor
            for key, tensor in tensors.items()
            if isinstance(tensor, Tensor)
        }

    return Relation(
        name,
        case,
        change=lambda inputs_: copied(inputs_, times(inputs_, inputs)),
        carry=lambda returned: times(returned, outputs),
        exact=exact,
        slack=lambda returned: {key: _of_subnormals(output) for key, output in returned.items()},
        underflows=underflows,
    )


def _of_subnormals(output: Tensor) -> Tensor:
    """Return how far the cast of FACTOR times a number may be from FACTOR times the cast."""
    small = output.abs() < torch.finfo(output.dtype).smallest_normal
    return small.double() * (2 * FACTOR * HALF_SUBNORMAL_SPACING[output.dtype])
