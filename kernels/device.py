"""What a launch needs to know of its device: the sm it has, or simulates on a CPU."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

# On a CPU kernels run under the interpreter, as the variants that this sm would take.
SIMULATED_SM_VARIABLE = "WORKBENCH_SIMULATED_SM"
_SIMULATED_SM = 90


@cache
def _on_device(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def sm_of(device: torch.device) -> int:
    """10 * major + minor of a GPU's compute capability; on a CPU the simulated one."""
    if device.type == "cuda":
        return _on_device(torch.cuda.current_device() if device.index is None else device.index)
    return int(os.environ.get(SIMULATED_SM_VARIABLE, _SIMULATED_SM))


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current GPU: inside, it is the one that `tensor` is on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
