"""The examples in docstrings of oracles, kernels and profiles are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_FILES = sorted(
    path
    for room in ("kernels", "oracles", "profiles")
    for path in (_ROOT / room).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_example_of_a_docstring_shows_its_result(path: Path) -> None:
    """Each example prints the text below it."""
    parts = ("kernel_workbench", *path.relative_to(_ROOT).with_suffix("").parts)
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
