"""The strict interpreter's sentence about a call, for its tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kernel_workbench.suites.interpreter import strict
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory


def violation_of(
    call: Callable[[], object], inputs: tuple[object, ...] = (), *, same_stores: bool = False
) -> str | None:
    """Return the violation of `call`, or None.

    Its uninitialised tensors are NaN, and count as unwritten, as in the suite.
    """
    watched = strict.watched(inputs, same_stores=same_stores)
    with watched as violation, fresh_memory(math.nan, torch.device("cpu")):
        try:
            call()
        except Exception:  # the interpreter wraps it
            if violation() is None:
                raise
        return violation()
