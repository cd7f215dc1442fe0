"""Reports of 5,000 rows take little memory, and hide nothing unsaid."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kernel_workbench.reports.document.html import render_html
from kernel_workbench.reports.document.model import Cell, Document, Table
from kernel_workbench.reports.record import Record, RecordError, read
from kernel_workbench.reports.report import part_of, print_report
from kernel_workbench.reports.views import profile
from kernel_workbench.reports.views.profile import profile_part
from kernel_workbench.reports.views.profile_pictures import MOST_CASES, MOST_LINES, Thinning
from tests.builders.bench_records import NORM_KERNELS, norm_case
from tests.builders.large_records import SUITES, large, watched
from tests.builders.profile_records import profile_row, profile_rows, write_profile

pytestmark = pytest.mark.long_run


@pytest.mark.parametrize("suite", SUITES)
def test_report_of_5000_rows_takes_little_memory(suite: str, tmp_path: Path) -> None:
    """Terminal and page: 300 MB. How long it takes is shown by `python -m studies.speed`."""
    path, page = large(suite, tmp_path / "run.jsonl"), tmp_path / "page.html"
    done, peak_mib = watched("kernel_workbench.reports", path, "--html", page)
    assert done.returncode == 0, done.stderr
    assert "<small>5,000 rows</small>" in page.read_text()
    assert peak_mib < 300
    if suite in {"bench", "profile"}:
        assert re.search(r"4,9\d\d more not shown; --details shows them", done.stdout)


def whole_report(record: Record) -> tuple[str, str]:
    """Return what the terminal and a page show."""
    file = io.StringIO()
    print_report(record, Console(file=file, width=160), details=True)
    return file.getvalue(), render_html(Document("", (part_of(record),)))


def test_reports_show_the_same_without_the_timelines_that_they_do_not_show(tmp_path: Path) -> None:
    """The ops take turns; there are more cases, and more rows of one case, than pictures show."""
    several = profile_rows()
    rows = [*several[::-1]]
    for number in range(MOST_CASES + 3):
        case = norm_case(number + 1, 1024)
        for inputs in range(MOST_LINES + 2 if number == 1 else 2):
            kernel = NORM_KERNELS[inputs % 4]
            rows.append(profile_row(kernel, case, 40.0, distribution=f"inputs {inputs}", trials=2))
    path = write_profile(tmp_path / "run.jsonl", [*rows, *several])
    whole, thin = read(path), read(path, thinned=Thinning().thinned)
    assert whole_report(thin) == whole_report(whole)
    held = [
        [[] if each.series is None else each.series.power_w for each in row.windows]
        for row in (thin.profiles[-len(several) - 1], whole.profiles[-len(several) - 1])
    ]
    assert [[len(power) for power in row] for row in held] == [[0] * 2, [100] * 2]


def test_damaged_timeline_is_refused_as_in_any_record(tmp_path: Path) -> None:
    """A timeline with anything but numbers is read and refused; a cut line is located."""
    rows = [profile_row("torch_native", norm_case(1, 1024), 40.0, trials=1)] * 2
    path = write_profile(tmp_path / "run.jsonl", rows)
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b'"series"') + 400])
    assert read(path, thinned=Thinning().thinned).problem == read(path).problem
    path.write_bytes(text.replace(b'"seconds":[0.0', b'"seconds":[{}', 1))
    with pytest.raises(RecordError, match=r"line 2: windows\.0\.series\.seconds\.0 doesn't fit"):
        read(path, thinned=Thinning().thinned)


def test_page_of_many_windows_says_which_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid windows come first, and the note counts all windows."""
    row = profile_row("torch_native", norm_case(1, 1024), 40.0, trials=4)
    *others, last = row.windows
    drifting = row.model_copy(update={"windows": (*others, replace(last, validity="transient"))})
    record = read(write_profile(tmp_path / "run.jsonl", [row, row, drifting]))

    def windows() -> Table:
        (found,) = (each for each in profile_part(record).items if each.title == "Windows")
        assert isinstance(found, Table)
        return found

    assert (len(windows().rows), windows().note) == (12, "")
    monkeypatch.setattr(profile, "MOST_WINDOWS", 5)
    assert windows().note.startswith("The table has 5 of 12 windows, invalid ones first")
    place = [column.title for column in windows().columns].index("state")
    states = [cells[place] for cells in windows().rows]
    assert states == [Cell("transient", None, "doubtful"), *[Cell("valid", None, "good")] * 4]
