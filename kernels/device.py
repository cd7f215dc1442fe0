"""What a launch needs to know of its device: its sm and its SMs, or those simulated on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# On a CPU kernels run under the interpreter, as the variants that this sm would take.
SIMULATED_SM_VARIABLE = "WORKBENCH_SIMULATED_SM"
_SIMULATED_SM = 90


# Programs a device-independent launch is split into, whatever it runs on: 2 for each SM of an H200.
FIXED_MULTIPROCESSORS = 132

# An interpreter runs programs one after the other, so a few suffice to fold several rows in each.
SIMULATED_MULTIPROCESSORS_VARIABLE = "WORKBENCH_SIMULATED_MULTIPROCESSORS"
_SIMULATED_MULTIPROCESSORS = 2


@cache
def _on_device(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def sm_of(device: torch.device) -> int:
    """10 * major + minor of a GPU's compute capability; on a CPU the simulated one."""
    if device.type == "cuda":
        return _on_device(device)
    return int(os.environ.get(SIMULATED_SM_VARIABLE, _SIMULATED_SM))


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(slots=True)
class Told:
    """A number of SMs that kernels are told, and whether one has asked."""

    count: int
    asked: bool = False


_told: list[Told] = []  # the last one holds
_AS_IT_IS = nullcontext()


@contextmanager
def told_multiprocessors(count: int) -> Iterator[Told]:
    """Inside, a kernel that asks is told that its device has `count` SMs, whatever it has."""
    _told.append(Told(count))
    try:
        yield _told[-1]
    finally:
        _told.pop()


def is_told() -> bool:
    """Whether kernels are told of a number of SMs."""
    return bool(_told)


def multiprocessors(device: torch.device, *, device_independent: bool = False) -> int:
    """SMs to spread programs over: the device's, a simulated few on a CPU, or a fixed number."""
    if _told:
        _told[-1].asked = True
    if device_independent:
        return FIXED_MULTIPROCESSORS
    if _told:
        return _told[-1].count
    if device.type == "cuda":
        return _multiprocessors(device)
    return int(os.environ.get(SIMULATED_MULTIPROCESSORS_VARIABLE, _SIMULATED_MULTIPROCESSORS))


def real_multiprocessors(device: torch.device) -> int:
    """SMs that a GPU has, whatever kernels are told."""
    return _multiprocessors(device)


def unlaunchable(tensor: Tensor) -> str | None:
    """Why no kernel of Triton's can run where the tensor is; None where one can."""
    if tensor.is_cuda:
        return None
    import triton  # noqa: PLC0415  # what asks for an sm alone does without it

    if triton.knobs.runtime.interpret:
        return None
    return (
        f"Triton's kernels run on a GPU, got a tensor on {tensor.device}; for a CPU set "
        "TRITON_INTERPRET=1 before triton is imported, which is slow"
    )


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current GPU: inside, it is the one that `tensor` is on."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _AS_IT_IS
    return torch.cuda.device(tensor.device)
