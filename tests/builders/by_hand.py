"""Kernels and runs for tests that need neither the registry nor a command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import torch

from kernel_workbench.kernels.registry import Domain, Kernel
from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.oracles.op import Numerics, Op
from kernel_workbench.suites.accuracy.run import Run

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def kernel_of(
    function: Callable[..., object],
    *,
    op: Op = LAYER_NORM_BACKWARD,
    name: str = "candidate",
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    features: Iterable[str] = (),
    numerics: Numerics | None = None,
) -> Kernel:
    """Return a user's kernel of `op` for all layouts, `dtypes` and the options `features`."""
    return Kernel(
        op=op,
        name=name,
        domain=Domain(dtypes=dtypes, weight_dtypes=DTYPES, features=frozenset(features)),
        numerics=numerics or Numerics(),
        priority=0,
        function=function,
        origin="user",
        path=inspect.getfile(inspect.unwrap(function)),
    )


def run_on(device: torch.device) -> Run:
    """Return a run on `device` that gates no baseline."""
    return Run(device, 90)
