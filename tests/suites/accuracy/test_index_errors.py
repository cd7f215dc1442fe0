"""Kernels that are wrong about pointers, or about slots that nobody reads, fail; twins pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernel_workbench.kernels.registry import load_ops
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import Case
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT

_CPU = torch.device("cpu")
_FILE = ROOT / "tests" / "candidates" / "planted" / "index_errors.py"
_PLAIN = "t12-b4-n8-float32-contiguous"
# Each wrong kernel's twin, and a case; for pointers the first of several with an empty part.
_WRONG = {
    "empty_is_the_one_before": ("empty_is_zero", f"planted_segments-{_PLAIN}"),
    "adds_to_the_slot": ("replaces_the_slot", f"planted_write-{_PLAIN}-nan_unread"),
    "masks_by_a_product": ("masks_by_a_choice", f"planted_read-{_PLAIN}-nan_unread"),
}
_SEEDS = 4


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Start workers that have the file, whose ops are known here too."""
    load_ops(_FILE)
    made = Workers(_CPU, 90, files=(_FILE,))
    made.kernels()
    yield made
    made.close()


def _cases(name: str) -> list[Case]:
    made = case_named(OPS[name.partition("-")[0]], name)
    assert made is not None
    return [replace(made, seed=seed) for seed in range(_SEEDS)]


@pytest.mark.parametrize("wrong", _WRONG)
def test_kernel_that_is_wrong_about_its_indices_fails(wrong: str, workers: Workers) -> None:
    """On one of a few draws, each of which its twin passes."""
    right, name = _WRONG[wrong]
    kernels = {each.name: each for each in workers.kernels()}
    run = Run(_CPU, 90, workers=workers, signs=7, two_calls_alone=True)
    cases = _cases(name)
    assert "failed" in {run.try_pair(kernels[wrong], case).status for case in cases}
    assert {run.try_pair(kernels[right], case).status for case in cases} == {"passed"}
