"""Kernels in Gluon with a changed text, and their rows of the accuracy suite."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.interpreter import gluon
from tests.builders.by_hand import run_on


def row_of(name: str, case: Case, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> AccuracyRow:
    """Return a kernel's row; all launches have one order of asynchronous work."""
    if torch.cuda.is_available():
        pytest.skip("there asynchronous work has no order to be put in")
    monkeypatch.setattr(gluon, "_is_late", lambda _: late)
    kernel = next(each for each in all_kernels() if each.name == name)
    return run_on(torch.device("cpu")).try_pair(kernel, case)


def changed(module: ModuleType, path: Path, before: str, after: str) -> Any:  # noqa: ANN401
    """Import a copy of a module with a text, which its source contains once, replaced."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(before) == 1, before
    path.write_text(source.replace(before, after), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
