"""The expectations that stand beside kernels: of a package's modules, or of a user's own file."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import kernels
from kernels.expectation import Expectation
from kernels.registry import Kernel
from suites.compile.selection import SelectionError

_HOME = Path(kernels.__file__).resolve().parent


def expectations_of(kernel: Kernel) -> tuple[Expectation, ...]:
    """What is expected of a kernel's code. Raises SelectionError where a file's aren't any."""
    return tuple(each for module in _modules(Path(kernel.path)) for each in _held(module))


def _modules(path: Path) -> Iterable[ModuleType]:
    if not path.is_relative_to(_HOME):
        return [module for module in list(sys.modules.values()) if _file_of(module) == path]
    folder = path.parent
    package = ".".join(["kernels", *folder.relative_to(_HOME).parts])
    names = [each.name for each in pkgutil.iter_modules([str(folder)])]
    return [
        importlib.import_module(f"{package}.{name}")
        for name in names
        if name.startswith("expectations")
    ]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _held(module: ModuleType) -> tuple[Expectation, ...]:
    held = getattr(module, "EXPECTATIONS", ())
    if not isinstance(held, tuple | list) or not all(
        isinstance(each, Expectation) for each in held
    ):
        raise SelectionError(
            f"EXPECTATIONS in {module.__file__} must be a tuple of kernels.expectation.Expectation"
        )
    return tuple(held)
