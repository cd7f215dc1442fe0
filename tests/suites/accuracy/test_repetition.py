"""Notes on kernels that keep more memory, or do more, at each call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_workbench.reports.record import AccuracyRow, latest, read
from kernel_workbench.reports.views.accuracy import headline
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.accuracy.trial import Trial
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from tests import ROOT
from tests.builders.commands import ACCURACY, run_python
from tests.suites.sandbox.test_tasks import CASE

_FILE = ROOT / "tests" / "candidates" / "growing_kernels.py"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Workers that know the file of growing kernels."""
    made = Workers(torch.device("cpu"), 90, files=(_FILE,))
    yield made
    made.close()


def _row(workers: Workers, name: str) -> AccuracyRow:
    """The kernel's row, without the note that nothing of it is stubbed: it launches nothing."""
    kernel = next(each for each in workers.kernels() if each.name == name)
    row = Run(torch.device("cpu"), 90, workers=workers).try_pair(kernel, CASE)
    assert row.status == "passed", row.reason
    (unstubbed,) = (each for each in row.notes if each.startswith("wasn't tried with its launches"))
    return row.model_copy(update={"notes": tuple(each for each in row.notes if each != unstubbed)})


def test_kernel_that_keeps_memory_at_each_call_is_told_of(workers: Workers) -> None:
    """By the bytes of one call: 3 rows of 5 floats."""
    told = _row(workers, "keeps_workspaces").notes
    assert told == ("keeps 60 bytes more after each of 8 more calls",)


def test_kernel_that_does_more_at_each_call_is_told_of(workers: Workers) -> None:
    """By what it calls, which is counted and not timed."""
    (told,) = _row(workers, "sums_its_calls").notes
    assert told.startswith("does more at each call: ")


@pytest.mark.parametrize(
    "name", ["caches_workspaces", "replaces_its_workspace", "refers_to_itself"]
)
def test_kernel_that_keeps_no_more_is_not_told_of(name: str, workers: Workers) -> None:
    """A cache that is full, a workspace that is replaced, and garbage."""
    assert _row(workers, name).notes == ()


def test_kernels_of_a_graph_are_the_launches_of_a_call_without_triton(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that wasn't captured has none."""
    assert _row(workers, "caches_workspaces").launches == 0
    monkeypatch.setattr(Trial, "_in_a_graph", lambda trial: setattr(trial, "captured", 3))
    assert _row(workers, "caches_workspaces").launches == 3


def test_report_tells_of_a_kernel_that_keeps_memory(tmp_path: Path) -> None:
    """In the verdict's notes, and the run passes."""
    command = [*ACCURACY, "--jobs=1"]
    command += [f"--results={tmp_path}", f"--kernels={_FILE}", "--kernel=keeps_workspaces"]
    ran = run_python(*command, "--case=layer_norm_backward-m37-n64-float32-contiguous")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    notes = headline(read(latest(tmp_path))).notes
    words = "keeps_workspaces keeps 9,472 bytes more after each of 8 more calls"
    assert any(each.startswith(words) for each in notes)
    assert "keeps_workspaces keeps 9,472 bytes more" in " ".join(ran.stdout.split())
