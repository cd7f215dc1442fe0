"""A replacement of `suites.profile.loop` without a GPU: a few calls, then a sleep."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case, Inputs

BATCH_S = 0.05
CALL_US = 500.0


def run_task(
    kernel: Kernel, case: Case, inputs: list[Inputs], device: torch.device, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Call the kernel on each of the inputs, then invent batches of calls of 500 us."""
    assert case.op == kernel.op.name
    assert device.type == "cpu"
    outputs: dict[str, Tensor] = {}
    for each in inputs:
        if settings["seed"] is not None:
            kernel.op.signs(case, settings["seed"]).apply_(each)
        returned = kernel.function(**each)
        assert isinstance(returned, tuple)
        outputs = dict(zip(kernel.op.outputs, returned, strict=True))
    began_ns = time.monotonic_ns()
    time.sleep(settings["seconds"])
    calls = round(1e6 * BATCH_S / CALL_US)
    batches = [
        (began_ns + round(1e9 * BATCH_S) * (each + 1), calls, calls * CALL_US)
        for each in range(round(settings["seconds"] / BATCH_S))
    ]
    return {"began_ns": began_ns, "captured": True, "why": None, "batches": batches}, outputs
