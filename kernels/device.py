"""Properties of a device for launches: its sm and its SMs, or simulated ones on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# On a CPU kernels run under the interpreter, in the variants for this sm.
SIMULATED_SM_VARIABLE = "WORKBENCH_SIMULATED_SM"
_SIMULATED_SM = 90


# SMs of every device in a device-independent launch: an H200's.
FIXED_MULTIPROCESSORS = 132

# An interpreter runs programs one by one; two are enough for several rows in each program.
SIMULATED_MULTIPROCESSORS_VARIABLE = "WORKBENCH_SIMULATED_MULTIPROCESSORS"
_SIMULATED_MULTIPROCESSORS = 2


@cache
def _on_device(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def sm_of(device: torch.device) -> int:
    """Return 10 * major + minor of a GPU's compute capability; on a CPU the simulated one."""
    if device.type == "cuda":
        return _on_device(device)
    return int(os.environ.get(SIMULATED_SM_VARIABLE, _SIMULATED_SM))


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(slots=True)
class ReportedCount:
    """A number of SMs that kernels read instead of the device's; asked: a kernel has read it."""

    count: int
    asked: bool = False


_reported: list[ReportedCount] = []  # the last one applies
_AS_IT_IS = nullcontext()


@contextmanager
def told_multiprocessors(count: int) -> Iterator[ReportedCount]:
    """Report `count` SMs to kernels within the context, whatever the device has."""
    _reported.append(ReportedCount(count))
    try:
        yield _reported[-1]
    finally:
        _reported.pop()


def is_told() -> bool:
    """Return True while another number of SMs is reported."""
    return bool(_reported)


def multiprocessors(device: torch.device, *, device_independent: bool = False) -> int:
    """Return the number of SMs to spread programs over.

    Args:
        device: a GPU, or a CPU with a few simulated SMs.
        device_independent: return a fixed number, the same for every device.
    """
    if _reported:
        _reported[-1].asked = True
    if device_independent:
        return FIXED_MULTIPROCESSORS
    if _reported:
        return _reported[-1].count
    if device.type == "cuda":
        return _multiprocessors(device)
    return int(os.environ.get(SIMULATED_MULTIPROCESSORS_VARIABLE, _SIMULATED_MULTIPROCESSORS))


def real_multiprocessors(device: torch.device) -> int:
    """Return the number of SMs that a GPU has, whatever is reported to kernels."""
    return _multiprocessors(device)


def unlaunchable(tensor: Tensor) -> str | None:
    """Return a sentence if Triton can't run a kernel on the tensor's device, else None."""
    if tensor.is_cuda:
        return None
    import triton  # noqa: PLC0415  # callers that only need an sm do without triton

    if triton.knobs.runtime.interpret:
        return None
    return (
        f"Triton's kernels run on a GPU, got a tensor on {tensor.device}; for a CPU set "
        "TRITON_INTERPRET=1 before triton is imported, which is slow"
    )


def create_context(device: torch.device) -> None:
    """Create this process's context of CUDA, so that its first operation needn't.

    On another device nothing happens. An error of CUDA isn't raised here: the first operation
    raises the error again.
    """
    if device.type == "cuda":
        with suppress(RuntimeError):
            torch.empty(1, device=device)
            torch.cuda.synchronize(device)


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which Triton launches on the tensor's GPU."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _AS_IT_IS
    return torch.cuda.device(tensor.device)
