"""Kernels that are right, and keep more memory or do more at each call; and some that don't."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel
from tests.builders.wrong_layer_norms import closed_form

Outputs = tuple[Tensor, Tensor, Tensor]
SERVES = Domain(dtypes=(torch.float32,))
_sound: Callable[..., Outputs] = closed_form
_kept: list[Tensor] = []
_workspaces: dict[tuple[int, ...], Tensor] = {}
_calls: list[int] = []


@kernel(LAYER_NORM_BACKWARD, SERVES)
def keeps_workspaces(*, x: Tensor, **arguments: Tensor) -> Outputs:
    """A workspace of each call in a list."""
    _kept.append(torch.empty_like(x))
    return _sound(x=x, **arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def sums_its_calls(**arguments: Tensor) -> Outputs:
    """One more operation at each call."""
    _calls.append(1)
    for _ in _calls:
        torch.ones(1)
    return _sound(**arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def caches_workspaces(*, x: Tensor, **arguments: Tensor) -> Outputs:
    """One workspace for each shape, as many kernels have."""
    if tuple(x.shape) not in _workspaces:
        _workspaces[tuple(x.shape)] = torch.empty_like(x)
    return _sound(x=x, **arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def replaces_its_workspace(*, x: Tensor, **arguments: Tensor) -> Outputs:
    """The last call's is freed for the next one's."""
    _workspaces[()] = torch.empty_like(x)
    return _sound(x=x, **arguments)


@kernel(LAYER_NORM_BACKWARD, SERVES)
def refers_to_itself(*, x: Tensor, **arguments: Tensor) -> Outputs:
    """A workspace that is garbage, and freed when Python next collects it."""
    circle: list[object] = [torch.empty_like(x)]
    circle.append(circle)
    return _sound(x=x, **arguments)
