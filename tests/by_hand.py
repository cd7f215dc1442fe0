"""Kernels and runs made by hand, for tests that need neither the registry nor a command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from kernels.registry import Domain, Kernel
from oracles import LAYER_NORM_BACKWARD
from oracles.op import Numerics
from suites.accuracy.run import Run

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def kernel_of(
    function: Callable[..., object],
    *,
    name: str = "candidate",
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    numerics: Numerics | None = None,
) -> Kernel:
    """A user's kernel of layer-norm backward that serves every layout of `dtypes`, no option."""
    return Kernel(
        op=LAYER_NORM_BACKWARD,
        name=name,
        domain=Domain(dtypes=dtypes, weight_dtypes=DTYPES),
        numerics=numerics or Numerics(),
        priority=0,
        function=function,
        origin="user",
        path=inspect.getfile(inspect.unwrap(function)),
    )


def run_on(device: torch.device) -> Run:
    """A run on `device` that gates no baseline."""
    return Run(device, 90, gate_baselines=False, named=frozenset(), reproduce_options=())
