"""What an op of a user may be: arguments changed in place, whole numbers, lists, modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels import registry
from kernel_workbench.kernels.registry import load_ops
from kernel_workbench.oracles import OPS
from kernel_workbench.reports.record import AccuracyRow
from studies.sound_kernels import rows_of

_FOLDER = Path("tests/candidates/any_ops")
_FILES = ("in_place", "whole_numbers", "constants")
_DISTRIBUTIONS = ("normal", "constant_rows", "mean100")
_CHANGED, _FORM = "changed input", "wrong outputs"
# Of wrong kernels the rules by which they are found, where that isn't by their numbers.
_RULES = {
    "wrong_changes_weight": _CHANGED,
    "wrong_writes_past_rows": _CHANGED,
    "wrong_returns_others": _FORM,
    "wrong_never_written": "unwritten output",
}


@pytest.fixture(autouse=True)
def _known_ops_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test defines is gone after it."""
    before = dict(OPS)
    monkeypatch.setattr(registry, "_homes", {})
    yield
    OPS.clear()
    OPS.update(before)


def _rows(file: Path, device: torch.device) -> tuple[AccuracyRow, ...]:
    """Rows on a few cases of each op of the file, one in an odd layout among them."""
    cases = []
    for op in load_ops(file):
        listed = [case for case in op.cases() if case.dtype == torch.float32]
        for distribution in _DISTRIBUTIONS:
            cases += [case for case in listed if case.distribution == distribution][:1]
        cases += [case for case in listed if "colstride2" in case.layout.name][:1]
    names = [f"--case={case.id()}" for case in dict.fromkeys(cases)]
    _, rows = rows_of((file,), [f"--device={device.type}", "--jobs=1", "--seed=0..1", *names])
    return rows


@pytest.mark.parametrize("name", _FILES)
def test_kernel_of_any_op_is_judged_rightly(name: str, device: torch.device) -> None:
    """A kernel called `right` passes on each case, and one called `wrong` fails on some case."""
    rows = _rows(_FOLDER / f"{name}.py", device)
    assert len(rows) > 20  # each kernel on about four cases
    for kernel in dict.fromkeys((row.case.op, row.kernel) for row in rows):
        of_kernel = [row for row in rows if (row.case.op, row.kernel) == kernel]
        failed = [row for row in of_kernel if row.status == "failed"]
        if kernel[1].startswith("right"):
            assert not failed, f"{kernel}: {failed[0].rule}: {failed[0].reason}"
            assert any(row.status == "passed" for row in of_kernel), kernel
            continue
        assert failed, f"{kernel} passes on {[row.case.id for row in of_kernel]}"
        if kernel[1] in _RULES:
            assert {row.rule for row in failed} == {_RULES[kernel[1]]}, kernel
