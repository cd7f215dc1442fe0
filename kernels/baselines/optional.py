"""Registration and import of peers whose packages needn't be installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from kernel_workbench.kernels.registry import Domain, absent, kernel
from kernel_workbench.oracles.op import Numerics, Op


def peer(
    op: Op,
    function: Callable[..., Any],
    domain: Domain,
    *,
    name: str,
    priority: int,
    installed: bool,
    package: str,
    numerics: Numerics | None = None,
) -> None:
    """Register a peer, or declare it absent with the command that installs it.

    package: the last words of `pip install ...`.
    """
    if installed:
        kernel(op, domain, numerics=numerics, priority=priority, name=name)(function)
    else:
        absent(op, name, f"not installed: pip install {package}")


def imported_without(module: str, package: str) -> ModuleType:
    """Import a module as if a package weren't installed, unless either has been imported before.

    Args:
        module: the module's full name.
        package: a package that the module can do without, and that is slow to import.
    """
    if module in sys.modules or package in sys.modules:
        return import_module(module)
    # None makes the import of its name raise ModuleNotFoundError, as Python's reference says.
    sys.modules[package] = None  # type: ignore[assignment]  # typeshed leaves None out
    try:
        return import_module(module)
    finally:
        del sys.modules[package]
