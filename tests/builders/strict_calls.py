"""What the strict interpreter says of a call, for its tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kernel_workbench.suites.interpreter import strict
from kernel_workbench.suites.sandbox.worker_side.allocations import fresh_memory


def violation_of(
    call: Callable[[], object], inputs: tuple[object, ...] = (), *, same_stores: bool = False
) -> str | None:
    """The sentence about what `call` did, None where it did nothing wrong.

    Uninitialised tensors that it makes are NaN, and known to be unwritten, as in the suite.
    """
    watched = strict.watched(inputs, same_stores=same_stores)
    with watched as violation, fresh_memory(math.nan, torch.device("cpu")):
        try:
            call()
        except Exception:  # the interpreter wraps it
            if violation() is None:
                raise
        return violation()
