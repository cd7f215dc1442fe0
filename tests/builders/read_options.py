"""A pytest plugin that writes the options which a suite has read to a variable's file.

`-p tests.builders.read_options`, with WORKBENCH_TEST_READ.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from kernel_workbench.suites.run.option_table import CommonOptions

_read: set[str] = set()


def _watched(options: object, name: str) -> object:
    """Note that an option is read; a copy of all options reads none."""
    if sys._getframe(1).f_globals["__name__"] != dataclasses.__name__:
        _read.add(name)
    return object.__getattribute__(options, name)


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Watch every suite's options, from before a suite begins."""
    CommonOptions.__getattribute__ = _watched  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    """Write the names."""
    Path(os.environ["WORKBENCH_TEST_READ"]).write_text("\n".join(sorted(_read)))
