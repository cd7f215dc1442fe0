"""The files of docs/how-to/other-languages.md: named there, right where a CPU runs them."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.causes import kernels_named_in
from kernel_workbench.reports.record import latest, read
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

_PAGE = ROOT / "docs" / "how-to" / "other-languages.md"
_FILES = sorted((ROOT / "docs" / "how-to" / "languages").glob("*.py"))
_ON_A_CPU = ("by_gluon.py", "by_torch_compile.py", "cpp_library.py")


def _imported(file: Path) -> list[str]:
    """Return the packages that a file imports, in its order."""
    names: list[str] = []
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            names.append(statement.module)
    return names


def _absent(file: Path) -> str | None:
    """Return the first package of the file that isn't installed here, or None."""
    roots = (name.partition(".")[0] for name in _imported(file))
    return next((root for root in roots if importlib.util.find_spec(root) is None), None)


def test_page_of_languages_links_each_file() -> None:
    """No file without a line on the page, and no link to a file that isn't there."""
    page = _PAGE.read_text(encoding="utf-8")
    assert len(_FILES) == 12
    for file in _FILES:
        assert f"(languages/{file.name})" in page


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_file_of_a_language_registers_kernels(file: Path) -> None:
    """Its text compiles, and a file that a CPU can't run says so in its domain."""
    text = file.read_text(encoding="utf-8")
    compile(text, str(file), "exec")
    assert kernels_named_in(file)
    if file.name not in (*_ON_A_CPU, "by_jax.py"):
        assert 'devices=("cuda",)' in text


def test_file_without_its_package_is_said_to_lack_it() -> None:
    """One sentence for each file names package and kernels, and the other files' kernels stay."""
    lacking = [file for file in _FILES if _absent(file) is not None]
    if not lacking:
        pytest.skip("every package is installed here")
    files = (*lacking, _FILES[0].with_name("by_gluon.py"))
    with closing(Workers(torch.device("cpu"), 90, strict=False, files=files)) as workers:
        assert [kernel.name for kernel in workers.kernels()] == ["gluon_softmax"]
        sentences = dict(zip(lacking, workers.left_out, strict=True))
    for file, sentence in sentences.items():
        assert sentence.startswith(f"--kernels {file}: importing it raised ModuleNotFoundError")
        assert f"this machine lacks the package {_absent(file)}" in sentence
        assert f"(its kernels: {', '.join(kernels_named_in(file))})" in sentence


def _passed(results: Path, *options: str) -> set[str]:
    """Run `accuracy`, and return the kernels with a row that passed."""
    ran = run_python(*ACCURACY, *options, "--jobs=1", f"--results={results}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {row.kernel for row in read(latest(results)).rows if row.status == "passed"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")
@pytest.mark.parametrize("name", _ON_A_CPU)
def test_file_that_a_cpu_runs_is_right(name: str, tmp_path: Path) -> None:
    """C++ by g++, torch.compile and Gluon, on a case with a wide row."""
    file = _FILES[0].with_name(name)
    case = "--case=softmax_forward-m3-n128-float32-contiguous"
    assert _passed(tmp_path, f"--kernels={file}", case) == set(kernels_named_in(file))


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX isn't installed here")
def test_file_of_jax_is_right(tmp_path: Path) -> None:
    """JAX's own compiler and Pallas' interpreter, on a few cases."""
    file = _FILES[0].with_name("by_jax.py")
    assert _passed(tmp_path, f"--kernels={file}", "--quick") == set(kernels_named_in(file))
