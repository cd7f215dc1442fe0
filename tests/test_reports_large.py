"""Reports of 5,000 rows take little memory, and hide nothing unsaid."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reports import contents, profile_page
from reports.bench import MOST_CASES as CASES_OF_BENCH
from reports.example_bench import NORM_KERNELS, norm_case
from reports.example_profile import profile_row, profile_rows, write_profile
from reports.forms import forms_of
from reports.page import Cell, Page, Table, render_page
from reports.profile_page import profile_part
from reports.profile_pictures import MOST_CASES, MOST_LINES
from reports.record import Record, RecordError, read
from reports.thinned import read_to_show
from tests.large_records import ROWS, SUITES, large, watched


@pytest.mark.parametrize("suite", SUITES)
def test_report_of_5000_rows_takes_little_memory(suite: str, tmp_path: Path) -> None:
    """Terminal and page: 300 MB. How long it takes is shown by `python -m studies.speed`."""
    path, page = large(suite, tmp_path / "run.jsonl"), tmp_path / "page.html"
    done, peak_mib = watched("reports", path, "--html", page)
    assert done.returncode == 0, done.stderr
    assert "<small>5,000 rows</small>" in page.read_text()
    assert peak_mib < 300
    if suite == "bench":
        assert f"{ROWS // 4 - CASES_OF_BENCH:,} more cases not shown" in done.stdout
    if suite == "profile":
        drawn = MOST_CASES * len(NORM_KERNELS)
        assert f"--html PATH draws {drawn} of all 5,000" in " ".join(done.stdout.split())


def whole_report(record: Record) -> tuple[str, str]:
    """What the terminal and a page show."""
    forms, file = forms_of(record), io.StringIO()
    forms.terminal(record, Console(file=file, width=160))
    return file.getvalue(), render_page(Page("", (forms.part(record),)))


def test_reports_show_the_same_without_the_timelines_that_they_do_not_show(tmp_path: Path) -> None:
    """Of ops that take turns, more cases than are drawn, and more rows of one than its picture."""
    several = profile_rows()
    rows = [*several[::-1]]
    for number in range(MOST_CASES + 3):
        case = norm_case(number + 1, 1024)
        for inputs in range(MOST_LINES + 2 if number == 1 else 2):
            kernel = NORM_KERNELS[inputs % 4]
            rows.append(profile_row(kernel, case, 40.0, distribution=f"inputs {inputs}", trials=2))
    path = write_profile(tmp_path / "run.jsonl", [*rows, *several])
    whole, thin = read(path), read_to_show(path)
    assert whole_report(thin) == whole_report(whole)
    held = [
        [[] if each.series is None else each.series.power_w for each in row.windows]
        for row in (thin.profiles[-len(several) - 1], whole.profiles[-len(several) - 1])
    ]
    assert [[len(power) for power in row] for row in held] == [[0] * 2, [100] * 2]


def test_damaged_timeline_is_refused_as_in_any_record(tmp_path: Path) -> None:
    """What isn't a timeline of numbers is read and found wanting; a cut line is located."""
    rows = [profile_row("torch_native", norm_case(1, 1024), 40.0, trials=1)] * 2
    path = write_profile(tmp_path / "run.jsonl", rows)
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b'"series"') + 400])
    assert read_to_show(path).problem == read(path).problem
    path.write_bytes(text.replace(b'"seconds":[0.0', b'"seconds":[{}', 1))
    with pytest.raises(RecordError, match=r"line 2: windows\.0\.series\.seconds\.0 doesn't fit"):
        read_to_show(path)


def test_page_of_many_windows_says_which_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that aren't valid come first, and the note counts them all."""
    row = profile_row("torch_native", norm_case(1, 1024), 40.0, trials=4)
    *others, last = row.windows
    drifting = row.model_copy(update={"windows": (*others, replace(last, validity="transient"))})
    record = read(write_profile(tmp_path / "run.jsonl", [row, row, drifting]))

    def windows() -> Table:
        (found,) = (each for each in profile_part(record).items if each.title == "Windows")
        assert isinstance(found, Table)
        return found

    assert (len(windows().rows), windows().note) == (12, "")
    monkeypatch.setattr(profile_page, "MOST_WINDOWS", 5)
    assert windows().note.startswith("Of 12 windows 5 are here, those that aren't valid first")
    states = [cells[2] for cells in windows().rows]
    assert states == [Cell("transient", None, "doubtful"), *[Cell("valid", None, "good")] * 4]


def test_lines_of_a_file_are_whole_whatever_chunk_they_lie_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line over many chunks, an end on a chunk's edge, and none at all."""
    path = tmp_path / "lines"
    for text in (b"one\n\ntwo\n", b"one\ntwo", b"\n\nx", b"a much longer line than a chunk\n"):
        path.write_bytes(text)
        for size in range(1, len(text) + 2):
            monkeypatch.setattr(contents, "_CHUNK_BYTES", size)
            chunks = contents.chunks_of(path)
            assert contents.number_of_lines(chunks) == len(text.splitlines())
            assert list(contents.lines_of(chunks)) == text.splitlines()
    path.write_bytes(b"one\ntwo\nth\0ree\n")
    monkeypatch.setattr(contents, "_CHUNK_BYTES", 3)
    with pytest.raises(RecordError, match="line 3: a NUL byte at byte 10,"):
        contents.chunks_of(path)
