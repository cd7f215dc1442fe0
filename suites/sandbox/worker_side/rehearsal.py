"""Do the work of a first call ahead, while a worker waits for the judge to name a file.

CUDA loads each operation of torch at its first use, which takes some milliseconds, and cuBLAS at
the first product; Triton starts its driver at the first launch. A worker that waits anyway does
that before it is asked.
"""

from __future__ import annotations

import math
from contextlib import suppress

import torch
import triton

from kernel_workbench.suites.sandbox.parcels import Arena, Parcel, Unpacked, lay_out
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory
from kernel_workbench.suites.sandbox.worker_side.candidate import keep_busy
from kernel_workbench.suites.sandbox.worker_side.handed_tensors import HandedTensors
from kernel_workbench.suites.sandbox.worker_side.sign_scrambler import scrambled

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rehearse(device: torch.device) -> None:
    """Use the operations that calls of kernels need; no candidate is called.

    An error of CUDA isn't raised here: the first call raises the error again.
    """
    with suppress(RuntimeError):
        for dtype in _DTYPES:
            _rehearse(dtype, device)
        if device.type == "cuda":
            keep_busy(device)
            torch.cuda.synchronize(device)
            triton.runtime.driver.active.get_current_device()


def _rehearse(dtype: torch.dtype, device: torch.device) -> None:
    """Unpack an argument, allocate outputs, scramble a launch, and send the argument back."""
    parcel = Parcel.of({"x": torch.ones(2, 8, dtype=dtype, device=device)}, device)
    arena = Arena(torch.empty_like(parcel.content), {})
    unpacked = Unpacked(arena, parcel.put(arena), (), device)
    x = unpacked.arguments["x"]
    assert isinstance(x, torch.Tensor)
    with fresh_memory(math.nan, device) as memory:
        y = torch.empty_like(x)
        torch.zeros_like(x)
    memory.guards.broken()
    handed = HandedTensors.of([(y.numel(), y.nbytes)])
    with scrambled([x, y], handed):
        y.fill_(1)
    handed.stand_ins({"y": y}, {"y": y.untyped_storage().data_ptr()}, [x])
    unpacked.send_back()
    lay_out({"y": y}, Arena(torch.empty_like(parcel.content), {}), 0)
