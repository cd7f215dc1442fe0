"""The rooms have one import name each: `kernel_workbench.kernels`, never `kernels`.

The rooms lie in the checkout's root, which `python -m` puts on `sys.path`. A bare `import kernels`
would find the room there: its ops and kernels would exist twice, and the package `kernels` of
Hugging Face, which users import too, would be hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from kernel_workbench.root import ROOT

ROOMS = ("oracles", "kernels", "profiles", "reports", "suites")
_FOLDERS = {ROOT, ROOT / "kernel_workbench"}


class _OtherPackages(MetaPathFinder):
    """Finds a package with a room's name anywhere but among the rooms."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other package's spec; None where no room lies on sys.path.

        Raises:
            ModuleNotFoundError: the rooms alone have that name.
        """
        if name not in ROOMS or path is not None:
            return None
        elsewhere = [folder for folder in sys.path if Path(folder).resolve() not in _FOLDERS]
        if len(elsewhere) == len(sys.path):  # nothing would find a room by this name
            return None
        spec = PathFinder.find_spec(name, elsewhere, target)
        if spec is None or spec.loader is None:  # a folder without an __init__.py is no package
            raise ModuleNotFoundError(f"No module named {name!r}; {_advice(name)}", name=name)
        return spec


def refuse_bare_names() -> None:
    """Let a bare name of a room stand for another package alone."""
    if not any(isinstance(finder, _OtherPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OtherPackages())


def check_name(name: str) -> None:
    """Raise ImportError for a room that is imported under its bare name."""
    if name in ROOMS:
        raise ImportError(_advice(name), name=name)


def _advice(room: str) -> str:
    return (
        f"kernel-workbench's `{room}` is `kernel_workbench.{room}`, and what a file of kernels "
        "needs comes by `from kernel_workbench import ...`"
    )
