"""The page of detection and its rows: what a run writes has the form of what docs/ holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_workbench.reports.record import RecordError
from tests import ROOT
from tests.mutants import catalogue, detection
from tests.mutants.processes import outcomes_of

pytestmark = pytest.mark.long_run

_PAGE = ROOT / "docs" / "detection.md"
_FEW = ("ln_x_without_other", "ln_last_row_tile_dropped", "ln_more_partials_than_programs")


def test_run_of_a_few_mutants_writes_their_rows_of_docs(tmp_path: Path) -> None:
    """The rows of a few mutants, tried anew, are the ones that docs/detection.csv has of them."""
    mutants = catalogue.chosen(_FEW, None)
    page = tmp_path / "page.md"
    detection.write(page, list(outcomes_of(mutants, 1)), 1)
    written = detection.read_rows(detection.rows_path(page))
    committed = detection.read_rows(detection.rows_path(_PAGE))
    assert sorted(row["mutant"] for row in written) == sorted(_FEW)
    assert all(row in committed for row in written)
    assert "|3 mutants|this suite|" in page.read_text(encoding="utf-8")


def test_page_of_docs_has_the_totals_of_its_rows() -> None:
    """All figures of the page that follow from the rows are the ones that the rows give."""
    text = _PAGE.read_text(encoding="utf-8")
    made = detection.page_text(detection.read_rows(detection.rows_path(_PAGE)), {}, {}, 0)
    # The rules on errors alone and the false alarms need a run, and differ.
    lines = [line for line in made.splitlines() if "|0|0|0|" not in line]
    assert [line for line in lines if line not in text.splitlines()] == []


def test_rows_file_never_replaces_another_file(tmp_path: Path) -> None:
    """A file beside the page that has no rows is refused, and so is a page called as its rows."""
    page = tmp_path / "page.md"
    detection.check_rows_path(page)
    detection.rows_path(page).write_text("a,b\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"page\.csv, which isn't such a file; name another page"):
        detection.check_rows_path(page)
    with pytest.raises(RecordError, match=r"name the page, as page\.md"):
        detection.check_rows_path(tmp_path / "rows.csv")
    detection.rows_path(page).write_text(detection.rows_text([]), encoding="utf-8")
    detection.check_rows_path(page)
