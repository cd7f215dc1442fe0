"""Ops that a user may write: arguments changed in place, whole numbers, lists, modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.registry import KernelError, load_ops
from kernel_workbench.oracles.op import CONTIGUOUS
from kernel_workbench.reports.record import AccuracyRow
from studies.sound_kernels import rows_of

pytestmark = [pytest.mark.long_run, pytest.mark.usefixtures("known_ops_alone")]

_FOLDER = Path("tests/candidates/any_ops")
_FILES = ("in_place", "whole_numbers", "constants", "masks")
_DISTRIBUTIONS = ("normal", "constant_rows", "mean100", "needles")
_CHANGED, _FORM = "changed input", "wrong outputs"
# The rule that each wrong kernel breaks, where that isn't a rule about its numbers.
_RULES = {
    "wrong_changes_weight": _CHANGED,
    "wrong_writes_past_rows": _CHANGED,
    "wrong_returns_others": _FORM,
    "wrong_never_written": "unwritten output",
}


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


def _rows_of_problem(kernels: Path, device: torch.device) -> dict[str, list[AccuracyRow]]:
    """Rows by kernel, on the problem's own sizes and on small ones."""
    problem = Path("tests/candidates/problems/linear_norm.py")
    (op,) = load_ops(problem, "--problem")
    cases = [case for case in op.cases() if case.dtype == torch.float32]
    plain = [case for case in cases if case.layout == CONTIGUOUS]
    chosen = dict.fromkeys([*plain[:2], cases[0], cases[-1]])
    assert "own sizes" in cases[-1].why
    assert any(case.sizes != cases[-1].sizes for case in chosen)
    names = [f"--case={case.id()}" for case in chosen]
    problems = [f"--problem={problem}", f"--device={device.type}", "--jobs=1"]
    _, rows = rows_of((kernels,), [*problems, *names])
    found: dict[str, list[AccuracyRow]] = {}
    for row in rows:
        found.setdefault(row.kernel, []).append(row)
    return found


def test_kernel_of_a_problem_is_judged_rightly(device: torch.device) -> None:
    """Parameters are spread, and buffers that change are outputs, so that neither is left out."""
    found = _rows_of_problem(Path("tests/candidates/problems/kernels.py"), device)
    assert len(found) == 6
    for name, rows in found.items():
        failed = [row for row in rows if row.status == "failed"]
        if name.startswith("right"):
            assert not failed, f"{name}: {failed[0].rule}: {failed[0].reason}"
            assert any(row.status == "passed" for row in rows)
        else:
            assert failed, name


@pytest.mark.parametrize("name", ["right", "wrong"])
def test_solution_of_a_problem_is_judged_rightly(name: str, device: torch.device) -> None:
    """A file with ModelNew needs no registration."""
    found = _rows_of_problem(Path(f"tests/candidates/problems/{name}_solution.py"), device)
    failed = [row for row in found["ModelNew"] if row.status == "failed"]
    assert bool(failed) == (name == "wrong"), [row.reason for row in failed]
    assert any(row.status != "refused" for row in found["ModelNew"])


_IMPORTS = """import torch
from jaxtyping import Float
from torch import Tensor
from kernel_workbench import ROWS, WIDTHS, op

"""


def test_page_shows_ops_that_change_arguments(tmp_path: Path) -> None:
    """Both ops of the page are read, and their outputs are arguments."""
    page = Path("docs/how-to/own-op.md").read_text(encoding="utf-8")
    shown = page.partition("## What a kernel changes")[2].split("```python\n")[1].split("```")[0]
    (tmp_path / "mine.py").write_text(_IMPORTS + shown)
    added, filled = load_ops(tmp_path / "mine.py")
    assert added.outputs == added.updates == ("x", "residual")
    assert filled.outputs == filled.updates == ("out",)


def test_op_that_changes_arguments_has_no_gradients(tmp_path: Path) -> None:
    """A sentence says so, with the op's file and line."""
    (tmp_path / "mine.py").write_text(
        _IMPORTS
        + "@op(sizes={'m': ROWS}, updates=('x',))\n"
        + "def double(x: Float[Tensor, 'm']) -> None:\n    x.mul_(2)\n"
        + "double.backward()\n"
    )
    with pytest.raises(KernelError, match=r"mine.py:6: double_forward changes x in place"):
        load_ops(tmp_path / "mine.py")
