"""Reports of what isn't a bound: the emulation's ratio, rows without power, errors in ulps."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.phrases import share
from kernel_workbench.reports.record import ULP_EDGES, AccuracyRow, Record, read
from kernel_workbench.reports.views.accuracy import (
    ULP_TITLES,
    cell_of,
    failing_output,
    failures,
    headline,
    ulp_shares,
    worst,
)
from tests.builders.accuracy_records import example_row, example_rows, write_example
from tests.builders.documents import markdown_of, terminal


def _record(tmp_path: Path, rows: list[AccuracyRow]) -> Record:
    number = len(list(tmp_path.iterdir()))
    return read(write_example(tmp_path / f"run{number}.jsonl", rows))


def _heads(text: str) -> str:
    return next(line for line in text.splitlines() if "ran" in line and "refused" in line)


def _with(row: AccuracyRow, **output: object) -> AccuracyRow:
    return row.model_copy(update={"outputs": (row.outputs[0].model_copy(update=output),)})


def _powerless(m: int = 37, *, kernel: str = "row_persistent") -> AccuracyRow:
    row = _with(example_row(kernel, m=m), elements=40, powerless=40)
    return row.model_copy(update={"status": "no power"})


def test_headline_counts_rows_without_power_apart(tmp_path: Path) -> None:
    """They neither passed nor failed, and are no reason to doubt the run."""
    line = headline(_record(tmp_path, [example_row(m=1), _powerless(m=2)]))
    assert line.verdict == "PASSED"
    assert (
        "1 passed, 0 failed, 1 with no power (bounds too wide to judge by), 0 refused"
        in line.sentence
    )


@pytest.mark.parametrize("beside", [[], [example_row("torch_native", m=3)]])
def test_run_in_which_nothing_had_power_is_no_pass(
    tmp_path: Path, beside: list[AccuracyRow]
) -> None:
    """Nobody knows whether the kernel is right; a baseline that passes changes nothing."""
    line = headline(_record(tmp_path, [_powerless(), *beside]))
    assert line.verdict == "NOT GATED"
    assert any("too wide to tell right from wrong" in note for note in line.notes)
    failed = example_row(m=4, ratio=9.0, rule="deterministic bound")
    assert headline(_record(tmp_path, [_powerless(), failed])).verdict == "FAILED"


def test_every_report_tells_of_rows_without_power(tmp_path: Path) -> None:
    """A column of kernels where there are any, a cell of their own, and a skipped case."""
    rows = [example_row(m=1), _powerless(m=2)]
    rows[1] = rows[1].model_copy(
        update={"case": rows[1].case.model_copy(update={"layout": "offset1", "id": "other"})}
    )
    record = _record(tmp_path, rows)
    assert cell_of(rows[1:]).text == "no power"
    text = terminal(record)
    assert "no power" in _heads(text)
    assert "| no power |" in markdown_of(record)
    suite = ET.fromstring(render_junit(record))
    (skipped,) = suite.iter("skipped")
    assert skipped.get("type") == "no power"
    without = terminal(_record(tmp_path, example_rows(failing=False)))
    assert "no power" not in _heads(without)


def test_block_is_shown_beside_the_bounds(tmp_path: Path) -> None:
    """The largest ratio of each kernel to what an emulation allows, and the case that has it."""
    rows = [_with(example_row(m=m), worst_emulation=0.1 * m) for m in (3, 6, 4)]
    record = _record(tmp_path, rows)
    found = worst(record.rows, "emulation")
    assert found is not None
    assert found.row.case.sizes["m"] == 6
    line = next(each for each in terminal(record).splitlines() if "  emulation  " in each)
    assert "0.60" in line
    assert "m6" in line
    assert "| 0.60 | dx | m6-" in markdown_of(record)


def test_failure_by_the_emulation_is_ranked_and_shown(tmp_path: Path) -> None:
    """The worst block of all, marked as what it is; its error is within the bound."""
    rows = [
        _with(example_row(m=m, ratio=0.9, rule="emulation"), worst_emulation=ratio)
        for m, ratio in ((5, 1.2), (7, 3.0))
    ]
    record = _record(tmp_path, rows)
    (group,) = failures(record)
    assert (group.why, [row.case.sizes["m"] for row in group.rows]) == ("emulation", [5, 7])
    assert cell_of(rows).text == "FAIL e 3.00"
    assert group.largest == 3.0
    told = failing_output(group.rows[-1])
    assert told is not None
    assert told.endswith("a block has 3.00 of what an emulation's allow")


def test_errors_in_ulps_are_shares_of_all_elements(tmp_path: Path) -> None:
    """Summed over a kernel's rows and outputs; in columns that hold several powers of two."""
    counts = [0] * (len(ULP_EDGES) + 1)
    counts[0], counts[1], counts[ULP_EDGES.index(8.0)], counts[-1] = 60, 30, 9, 1
    one = _with(example_row(m=1), ulp_histogram=tuple(counts))
    other = _with(example_row(m=2), ulp_histogram=(100,))
    ((_, of_kernel),) = ulp_shares(_record(tmp_path, [one, other]))
    shares = dict(zip(ULP_TITLES, of_kernel, strict=True))
    assert shares["0"] == 0.8
    assert shares["<= 0.5"] == 0.15
    assert shares["<= 16"] == 0.045  # of 8
    assert shares["more"] == 0.005
    assert sum(of_kernel) == pytest.approx(1)
    record = _record(tmp_path, [one, other])
    text = terminal(record)
    assert "Errors in units of the last place" in text
    assert "80.0 %" in text
    assert "| 80.0 % |" in markdown_of(record)


def test_records_without_histograms_have_no_such_table(tmp_path: Path) -> None:
    """They were made before errors were counted."""
    record = _record(tmp_path, [example_row()])
    assert ulp_shares(record) == []
    assert "units of the last place" not in terminal(record) + markdown_of(record)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1, "100 %"), (0.0004, "<0.1 %"), (0.9996, ">99.9 %"), (0.4567, "45.7 %")],
)
def test_share_is_never_rounded_to_nothing_or_to_all(value: float, text: str) -> None:
    """One element of a million is some."""
    assert share(value) == text
