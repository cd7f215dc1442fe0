"""A plugin for pytest: writes which options a suite has read, to the file of a variable.

`-p tests.builders.read_options`, with WORKBENCH_TEST_READ.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

_read: set[str] = set()


class _Watched(argparse.Namespace):
    """Options that note which of them is read by name."""

    def __getattribute__(self, name: str) -> object:
        _read.add(name)
        return super().__getattribute__(name)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Watch from before a suite begins: what pytest has read by then isn't the suite's."""
    config.option = _Watched(**vars(config.option))


def pytest_unconfigure() -> None:
    """Write the names."""
    Path(os.environ["WORKBENCH_TEST_READ"]).write_text("\n".join(sorted(_read)))
