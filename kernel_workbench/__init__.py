"""Verify, time and profile GPU kernels: what a file with kernels, a test or a program imports.

    from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel  # in a file with kernels
    from kernel_workbench.testing import assert_matches  # in a test
    from kernel_workbench import accuracy  # in a program

A name's module is imported when code first uses the name: a report needs neither torch nor triton.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from kernel_workbench.bare_names import ROOMS, refuse_bare_names

if TYPE_CHECKING:
    from kernel_workbench.api import Failure as Failure
    from kernel_workbench.api import Report as Report
    from kernel_workbench.api import accuracy as accuracy
    from kernel_workbench.api import bench as bench
    from kernel_workbench.api import compare as compare
    from kernel_workbench.api import search as search
    from kernel_workbench.kernels import *  # noqa: F403  (it lists them)
    from kernel_workbench.kernels.attention import attention as attention
    from kernel_workbench.kernels.layer_norm import layer_norm as layer_norm
    from kernel_workbench.kernels.layer_norm import rms_norm as rms_norm
    from kernel_workbench.recording import record as record
    from kernel_workbench.recording import recorded_values as recorded_values

# Suites as functions, functions for a model and recordings, by the module that has them; `kernels`
# has all other public names.
_FUNCTIONS = {
    "Failure": "api",
    "Report": "api",
    "accuracy": "api",
    "bench": "api",
    "compare": "api",
    "search": "api",
    "attention": "kernels.attention",
    "layer_norm": "kernels.layer_norm",
    "rms_norm": "kernels.layer_norm",
    "record": "recording",
    "recorded_values": "recording",
}

refuse_bare_names()


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever has that name)
    """Import the module that has a public name, and return the object of that name.

    Raises:
        AttributeError: no public object has that name.
    """
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name not in ROOMS and not name.startswith("_"):
        kernels = importlib.import_module(f"{__name__}.kernels")
        if name in kernels.__all__:
            return getattr(kernels, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    kernels = importlib.import_module(f"{__name__}.kernels")
    return sorted({*_FUNCTIONS, *kernels.__all__})


def use_overlay(folder: str) -> None:
    """Let a changed copy of the room `kernels`, in `folder`, stand for the checkout's."""
    for name in list(sys.modules):
        if f"{name}.".startswith(f"{__name__}.kernels."):
            del sys.modules[name]
    __path__.insert(0, folder)  # noqa: F405  (set by the import system)
