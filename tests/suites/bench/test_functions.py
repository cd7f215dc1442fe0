"""Rows of `bench --function`, on the CPU by functions of PyTorch's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_workbench.kernels.model_calls import MODEL_CALLS, ModelCall
from kernel_workbench.reports.record import BenchRow, read
from kernel_workbench.suites.bench.functions import OURS, PYTORCH, function_rows
from kernel_workbench.suites.run.progress import Progress
from tests.builders.commands import run_python
from tests.builders.compared_records import header, write
from tests.builders.documents import terminal

pytestmark = pytest.mark.long_run

_SLEEP_S = 0.002


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, list(weight.shape), weight, 1e-6)


def _slow_norm(x: Tensor, weight: Tensor) -> Tensor:
    time.sleep(_SLEEP_S)
    return _norm(x, weight)


_CASE = ModelCall("rms_norm", _slow_norm, _norm, {"m": 4, "n": 8}, ((4, 8), (8,)), ("eps",))


def _rows() -> list[BenchRow]:
    return list(function_rows([_CASE], torch.device("cpu"), Progress("bench")))


def test_rows_are_both_functions_of_each_part() -> None:
    """Ours beside PyTorch's, so that a report compares them."""
    rows = _rows()
    parts = ("no gradient", "forward", "backward")
    assert [(row.op, row.kernel) for row in rows] == [
        (f"rms_norm() {part}", kernel) for part in parts for kernel in (OURS, PYTORCH)
    ]
    assert {row.case.id.removeprefix(row.op) for row in rows} == {"-m4-n8-bfloat16-eps"}
    assert all(row.status == "timed" and not row.gates for row in rows)


def test_time_of_the_host_is_in_both_figures_of_a_forward_and_not_of_a_backward() -> None:
    """A function that sleeps takes as long as it sleeps; its gradient doesn't sleep."""
    rows = {(row.op.partition(" ")[2], row.kernel): row for row in _rows()}
    for part in ("no gradient", "forward"):
        slow = rows[part, OURS]
        assert slow.host_us is not None and slow.median_us is not None
        assert min(slow.host_us, slow.median_us) >= 1e6 * _SLEEP_S
    backward = rows["backward", OURS]
    assert backward.host_us is not None
    assert all(row.host_us is not None and row.host_us > 0 for row in rows.values())


def test_cases_are_a_dozen_and_theirs_compute_what_ours_take() -> None:
    """PyTorch's side of each case runs on small tensors of the same kind, with gradients."""
    assert len(MODEL_CALLS) == 12
    for case in MODEL_CALLS:
        shapes = tuple(tuple(min(size, 8) for size in shape) for shape in case.shapes)
        inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
        y = case.theirs(*inputs)
        gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
        assert [gradient.shape for gradient in gradients] == [x.shape for x in inputs]


def test_report_shows_the_functions_beside_the_kernels(tmp_path: Path) -> None:
    """Each part is an op of its own, with the host's time in its table."""
    text = terminal(read(write(tmp_path / "bench.jsonl", header(), _rows())))
    assert "rms_norm() backward" in text
    assert "host us" in text
    assert "6 rows timed whose outputs were not checked" in " ".join(text.split())


def test_functions_need_a_gpu() -> None:
    """One sentence, and the status of a wrong use."""
    words = ("-m", "kernel_workbench", "bench", "--device", "cpu", "--function")
    done = run_python(*words)
    assert done.returncode == 2
    assert "--function: our functions launch on a GPU" in done.stderr
