"""The checkout does what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import all_kernels, load_file
from kernel_workbench.oracles import LAYER_NORM_BACKWARD, OPS
from kernel_workbench.reports.record import AccuracyRow
from tests import ROOT
from tests.builders.by_hand import run_on
from tests.mutants import detection
from tests.mutants.catalogue import MUTANTS

pytestmark = pytest.mark.long_run

README = (ROOT / "README.md").read_text(encoding="utf-8")
# One case of each kind that the example serves: shapes, an offset, a distribution.
_CASES = (
    "layer_norm_backward-m3-n229-bfloat16-contiguous",
    "layer_norm_backward-m17-n129-float32-contiguous",
    "layer_norm_backward-m9-n1025-bfloat16-contiguous",
    "layer_norm_backward-m13-n229-bfloat16-contiguous-mean1e4",
    "layer_norm_backward-m13-n229-float32-contiguous-nan_x",
    "layer_norm_backward-m7-n264-float32-offset1",
)


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers, at its end; the checkout's own kernels were there before."""
    all_kernels()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def _example() -> str:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def _rows(code: str, path: Path, device: torch.device) -> list[AccuracyRow]:
    path.write_text(code)
    (kernel,) = load_file(path)
    run = run_on(device)
    cases = {case.id(): case for case in LAYER_NORM_BACKWARD.cases()}
    for each in _CASES:
        assert run.refusal(kernel, cases[each]) is None
    return [run.try_pair(kernel, cases[each]) for each in _CASES]


def test_readmes_kernel_is_short_and_passes(tmp_path: Path, device: torch.device) -> None:
    """The example is complete in under 20 lines, and right on all that it says it serves."""
    assert len(_example().splitlines()) < 20
    rows = _rows(_example(), tmp_path / "mine.py", device)
    assert [(row.case.id, row.reason) for row in rows if row.status != "passed"] == []


def test_readmes_wrong_kernel_fails(tmp_path: Path, device: torch.device) -> None:
    """The change that the README makes to it is found, by the bound, in dweight of bfloat16."""
    right = "* rstd[:, None])).sum(0)"
    assert _example().count(right) == 1
    wrong = _example().replace(right, "* rstd[:, None]).to(x.dtype)).sum(0)")
    rows = _rows(wrong, tmp_path / "wrong.py", device)
    failed = [row for row in rows if row.status == "failed"]
    assert {row.case.dtype for row in failed} == {"bfloat16"}
    assert all(row.rule == "deterministic bound" for row in failed)
    assert all("dweight" in (row.reason or "") for row in failed)


@pytest.mark.parametrize("tier", ["ci", "full"])
def test_readme_counts_the_cases(tier: str) -> None:
    """The numbers of cases of all ops, which change with them; of `full` in the first hour."""
    cases = [case for op in OPS.values() for case in op.cases()]
    number = len(cases) if tier == "full" else sum(case.tier == "ci" for case in cases)
    page = ROOT / "docs" / "first-hour.md" if tier == "full" else ROOT / "README.md"
    assert f"{number:,} cases" in page.read_text(encoding="utf-8")


def test_readme_counts_planted_defects_as_their_table_does() -> None:
    """docs/detection.csv has a row for each mutant, and the README has its totals."""
    rows = detection.read_rows(detection.rows_path(ROOT / "docs" / "detection.md"))
    assert sorted(row["mutant"] for row in rows) == sorted(m.name for m in MUTANTS)
    (ours, plain, flash, xformers), _ = detection.totals(rows)
    planted = len(MUTANTS)
    text = " ".join(README.split())
    assert f"It finds {ours} of {planted} planted defects and cheats" in text
    assert f"`torch.testing.assert_close` finds {plain}, and" in text
    assert f"flash-attention and xformers {flash} and {xformers}" in text
