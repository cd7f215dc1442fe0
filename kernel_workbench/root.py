"""Where the workbench lies: in a checkout, or in the folder where Python's packages are installed.

In a checkout the rooms in the package are links; a copy of the checkout may have copied the rooms.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IS_CHECKOUT = (PACKAGE.parent / "noxfile.py").is_file()
# The folder that holds the rooms.
ROOT = PACKAGE.parent if IS_CHECKOUT else PACKAGE


def start_folder() -> Path:
    """Return the folder in which processes of the workbench start.

    In a checkout that is its root, where `python -m kernel_workbench` finds the package. An
    installed package is found from every folder, so a process starts where its parent is.
    """
    return ROOT if IS_CHECKOUT else Path.cwd()


def default_results() -> Path:
    """Return the folder where records are written unless the user names one."""
    return start_folder() / "results"


def results_from_here() -> Path:
    """Return the same folder as a path from the current folder, where records are looked for."""
    return Path(os.path.relpath(default_results()))


def ignore_start_folder() -> None:
    """Keep modules in the current folder out of the processes that start from here.

    `python -m` searches the current folder first. A user's `profile.py` there would stand for
    Python's, and a checkout for the installed package.
    """
    if not IS_CHECKOUT:
        os.environ["PYTHONSAFEPATH"] = "1"
