"""Verify, time and profile GPU kernels: what a file with kernels, a test or a program imports.

    from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

Names are loaded when they are first asked for: a report needs neither torch nor triton.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from kernel_workbench.bare_names import ROOMS, refuse_bare_names

if TYPE_CHECKING:
    from kernel_workbench.kernels import *  # noqa: F403
    from kernel_workbench.kernels.attention import attention as attention
    from kernel_workbench.kernels.expectation import Expectation as Expectation
    from kernel_workbench.kernels.expectation import Fits as Fits
    from kernel_workbench.kernels.expectation import Loads as Loads
    from kernel_workbench.kernels.expectation import Spills as Spills
    from kernel_workbench.kernels.expectation import Stores as Stores
    from kernel_workbench.kernels.expectation import Uses as Uses
    from kernel_workbench.kernels.layer_norm import layer_norm as layer_norm
    from kernel_workbench.kernels.layer_norm import rms_norm as rms_norm
    from kernel_workbench.oracles.cases.sizes import COLUMNS as COLUMNS
    from kernel_workbench.oracles.cases.sizes import ROWS as ROWS
    from kernel_workbench.oracles.cases.sizes import WIDTHS as WIDTHS
    from kernel_workbench.oracles.cases.sizes import Sizes as Sizes
    from kernel_workbench.oracles.reference import op as op

# Modules by the names that they give to users; `kernels` gives all else, the ops among it.
_HOMES = {
    "oracles.reference": ("op",),
    "oracles.cases.sizes": ("COLUMNS", "ROWS", "WIDTHS", "Sizes"),
    "kernels.expectation": ("Expectation", "Fits", "Loads", "Spills", "Stores", "Uses"),
    "kernels.attention": ("attention",),
    "kernels.layer_norm": ("layer_norm", "rms_norm"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

refuse_bare_names()


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever has that name)
    """Load the module that gives `name`, and return what has that name there.

    Raises:
        AttributeError: nothing public has that name.
    """
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name not in ROOMS and not name.startswith("_"):
        kernels = importlib.import_module(f"{__name__}.kernels")
        if name in kernels.__all__:
            return getattr(kernels, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    kernels = importlib.import_module(f"{__name__}.kernels")
    return sorted({*_MODULES, *kernels.__all__})


def use_overlay(folder: str) -> None:
    """Let a changed copy of the room `kernels`, in `folder`, stand for the checkout's."""
    for name in [each for each in sys.modules if f"{each}.".startswith(f"{__name__}.kernels.")]:
        del sys.modules[name]
    __path__.insert(0, folder)  # noqa: F405  (set by the import system)
