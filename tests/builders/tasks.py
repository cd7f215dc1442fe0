"""Tasks that `test_tasks.py` asks workers to do, in processes of their own."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case, Inputs

_clock = time.perf_counter  # before a candidate may replace it


def run_task(
    kernel: Kernel, case: Case, inputs: list[Inputs], device: torch.device, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Do what `settings` asks for."""
    what = settings["what"]
    if what == "die":
        os._exit(3)
    if what == "hang":
        time.sleep(60)
    started = _clock()
    returned = kernel.function(**inputs[-1])
    seconds = _clock() - started
    assert isinstance(returned, tuple)
    outputs = dict(zip(kernel.op.outputs, returned, strict=True))
    addresses = [each["x"].data_ptr() for each in inputs if isinstance(each["x"], Tensor)]
    said = {"addresses": addresses, "seconds": seconds, "case": case.id(), "on": device.type}
    if what == "other outputs":
        outputs.pop("dx")
    return said, outputs if settings["outputs"] else {}
