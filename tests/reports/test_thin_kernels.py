"""A kernel that ran few of many cases is called thin; one that was asked for and ran none fails."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.record import AccuracyRow, Record, latest, read
from kernel_workbench.reports.views.accuracy import headline
from kernel_workbench.suites.accuracy.own_cases import FEWEST
from tests.builders.accuracy_records import example_header, example_row, write_example
from tests.builders.commands import ACCURACY, run_python

pytestmark = pytest.mark.long_run

_REASON = "serves n of 64 to 128, got 760"
_FILE = """
import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

def right(dy, x, weight, mean, rstd):
    h, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdim=True) - h * (g * h).mean(1, keepdim=True)) * rstd[:, None]
    return dx, (dy * h).sum(0), dy.sum(0)

for name, m in (("few", 37), ("never", 12345)):
    sizes = {"m": (m, m), "n": (700, 800)}
    served = Domain(dtypes=(torch.float32,), strides="contiguous", sizes=sizes)
    kernel(LAYER_NORM_BACKWARD, served, name=name)(right)
"""


def _rows(ran: int, refused: int, kernel: str = "row_persistent") -> list[AccuracyRow]:
    return [example_row(kernel, m=m + 1) for m in range(ran)] + [
        example_row(kernel, m=1000 + m, refusal=_REASON) for m in range(refused)
    ]


def _record(tmp_path: Path, rows: list[AccuracyRow], *asked_for: str) -> Record:
    header = example_header(len(rows))
    kernels = tuple(
        each.model_copy(update={"asked_for": each.name in asked_for}) for each in header.kernels
    )
    path = write_example(tmp_path / "run.jsonl", rows)
    lines = path.read_text().splitlines(keepends=True)
    lines[0] = header.model_copy(update={"kernels": kernels}).model_dump_json() + "\n"
    path.write_text("".join(lines))
    return read(path)


@pytest.mark.parametrize(
    ("ran", "refused", "thin"),
    [(19, 1, True), (19, 400, True), (20, 400, False), (3, 16, False), (19, 0, False)],
)
def test_kernel_that_ran_few_of_many_is_thin(
    tmp_path: Path, ran: int, refused: int, *, thin: bool
) -> None:
    """Below 20, of 20 or more; of fewer none can run as many, and it's the choice that is thin."""
    line = headline(_record(tmp_path, _rows(ran, refused), "row_persistent"))
    clause = f"; thin: row_persistent ran {ran} of {ran + refused} cases"
    assert line.verdict == "PASSED"
    assert line.sentence.endswith(clause) == thin
    assert len(line.notes) == thin


def test_seeds_of_one_case_are_one_case(tmp_path: Path) -> None:
    """Twenty seeds of what a kernel serves say nothing of other shapes."""
    (one,) = _rows(1, 0)
    seeds = [
        one.model_copy(
            update={"case": one.case.model_copy(update={"id": f"{one.case.id}-seed{seed}"})}
        )
        for seed in range(20)
    ]
    line = headline(_record(tmp_path, [*seeds, *_rows(0, 30)]))
    assert line.sentence.endswith("; thin: row_persistent ran 1 of 31 cases")


def test_thin_kernel_is_told_what_would_fit_it(tmp_path: Path) -> None:
    """Its refusals, and a line of --cases that it serves."""
    (note,) = headline(_record(tmp_path, _rows(2, 30), "row_persistent")).notes
    assert note.startswith(f"row_persistent is thin, it refused: {_REASON} (30 rows); ")
    example = json.loads(note[note.index("{") :])
    assert example == {"op": "layer_norm_backward", "sizes": {"m": 1, "n": 760}, "dtype": "float32"}


def test_kernel_that_was_asked_for_and_ran_nothing_fails(tmp_path: Path) -> None:
    """Whatever passes beside it, also in JUnit; in a run of all kernels it is told of alone."""
    rows = [*_rows(30, 0), *_rows(0, 30, "two_pass_split")]
    record = _record(tmp_path, rows, "two_pass_split")
    line = headline(record)
    assert line.verdict == "FAILED"
    assert line.notes[0] == f"two_pass_split served none of 30 cases: {_REASON} (30 rows)"
    assert b"two_pass_split served none of 30 cases" in render_junit(record)
    line = headline(_record(tmp_path / "all", rows))
    assert line.verdict == "PASSED"
    assert line.notes[0].startswith("two_pass_split served none of 30 cases")


def test_run_that_was_cut_off_says_of_no_kernel_that_it_served_nothing(tmp_path: Path) -> None:
    """Refused cases are rows at once, while cases that the kernel serves wait for their turn."""
    record = _record(tmp_path, _rows(0, 417), "row_persistent")
    assert any("served none of 417 cases" in note for note in headline(record).notes)
    cut_off = replace(record, end=None, problem="the run was interrupted: 417 of 420 rows")
    line = headline(cut_off)
    assert line.verdict == "INCOMPLETE"
    assert not any("served none" in note for note in line.notes)


def _run(tmp_path: Path, *options: str) -> tuple[int, str]:
    file, results = tmp_path / "mine.py", tmp_path / "results"
    file.write_text(_FILE)
    command = (*ACCURACY, f"--kernels={file}")
    ran = run_python(*command, f"--results={results}", *options)
    assert ran.returncode == getattr(read(latest(results)).end, "exit_status", None)
    return ran.returncode, " ".join(ran.stdout.split())


def test_run_of_a_users_kernels_says_which_served_nothing(tmp_path: Path) -> None:
    """Exit status 1, in words; of the kernel that ran by itself it is 0."""
    status, shown = _run(tmp_path)
    assert status == 1
    assert "thin: " not in shown  # few is tried on cases of its own domain
    assert re.search(r"never served none of \d{3} cases: serves ", shown)
    rows = read(latest(tmp_path / "results")).rows
    ran = [row.status for row in rows if row.kernel == "few" and row.status != "refused"]
    assert set(ran) == {"passed"}
    assert len(ran) >= FEWEST
    status, shown = _run(
        tmp_path, "--kernel=few", "--case=layer_norm_backward-m37-n760-float32-contiguous"
    )
    assert status == 0
    assert "thin: " not in shown
