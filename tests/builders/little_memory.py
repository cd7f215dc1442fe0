"""A pytest plugin: the judge finds no memory for arenas of large cases, as on a GPU.

`-p tests.builders.little_memory`; the variable WORKBENCH_TEST_LIMIT is the limit in bytes.
"""

from __future__ import annotations

import os
from unittest import mock

import torch

from kernel_workbench.suites.sandbox.parcels import Arena, fitting


def _limited(arenas: dict[str, Arena], nbytes: int, device: torch.device, name: str) -> Arena:
    """Return an arena, or raise as PyTorch's allocator does."""
    if nbytes > int(os.environ["WORKBENCH_TEST_LIMIT"]):
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes")
    return fitting(arenas, nbytes, device, name)


def pytest_configure() -> None:
    """Replace the function that gives the judge its arenas."""
    mock.patch("kernel_workbench.suites.sandbox.judge_side.workers.fitting", _limited).start()
