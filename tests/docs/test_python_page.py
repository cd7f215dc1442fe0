"""The page on Python shows what happens: its programs are run, and its tests pass."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kernel_workbench import api
from kernel_workbench.reports import run_report
from tests import ROOT
from tests.docs import report_reference

pytestmark = pytest.mark.long_run

_PAGE = (ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
_BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)


def _python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_program_of_the_page_prints_a_verdict(tmp_path: Path) -> None:
    """README's kernel passes, in a folder of a user's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)\n```", readme, re.DOTALL)
    assert found is not None
    (tmp_path / "mine.py").write_text(found[1])
    assert _BLOCKS[0].startswith("from kernel_workbench import accuracy")
    done = _python("-c", _BLOCKS[0], folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr


def test_tests_of_the_page_pass(tmp_path: Path) -> None:
    """The blocks with tests are one file, which pytest runs without any option."""
    tests = [block for block in _BLOCKS if "def test_" in block]
    (tmp_path / "test_mine.py").write_text("\n".join(tests))
    plugin = ("-p", "kernel_workbench.pytest_plugin")
    done = _python("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert len(tests) == 4
    assert "test_mine.py::test_my_softmax: " in done.stdout


@pytest.mark.parametrize("name", report_reference.PAGES)
def test_pages_of_the_api_are_what_the_code_says(name: str) -> None:
    """`python -m tests.docs.report_reference --write docs/reference` has been run since."""
    text: Callable[[], str] = report_reference.PAGES[name]
    assert (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") == text()


@pytest.mark.parametrize("module", [api, run_report])
def test_examples_of_the_api_show_what_happens(module: ModuleType) -> None:
    """Each example runs as it is written."""
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert (failed, tried > 0) == (0, True)
