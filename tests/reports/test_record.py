"""A record survives its writer, and what isn't a record is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.console import Console

from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.record import (
    AccuracyRow,
    KernelInfo,
    OutputError,
    RecordError,
    RecordWriter,
    RunEnd,
    latest,
    new_path,
    read,
)
from kernel_workbench.reports.report import print_report
from kernel_workbench.suites.run.record import RunRecord
from tests import ROOT
from tests.builders.accuracy_records import example_header, example_row, example_rows, write_example
from tests.builders.documents import markdown_of

# Writes record after record until it is killed, so that a kill finds it anywhere.
WRITER = """
import itertools, pathlib, sys
from tests.builders.accuracy_records import example_row, write_example
rows = [example_row(m=m) for m in range(1, 12)]
for number in itertools.count():
    write_example(pathlib.Path(sys.argv[1]) / f"{number}.jsonl", rows)
"""


def refusal(path: Path) -> str:
    """Return the message that `path` is refused with, which names the file in one line."""
    with pytest.raises(RecordError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def edited(path: Path, number: int, **changes: object) -> None:
    """Change fields of a record's line, counted from 1."""
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | changes)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a record of three rows."""
    return write_example(tmp_path / "small.jsonl", [example_row(m=m) for m in (1, 2, 3)])


def test_record_reads_back_as_it_was_written(small: Path) -> None:
    """Every line that was written is read, unchanged, and nothing is wrong with it."""
    record = read(small)
    assert record.rows == tuple(example_row(m=m) for m in (1, 2, 3))
    assert record.header == example_header(3)
    assert record.end is not None
    assert record.problem is None


def test_packed_record_reads_as_it_was_and_a_damaged_one_is_refused(small: Path) -> None:
    """A record that gzip made small, and one of which a part is missing or changed."""
    packed = small.with_name("packed.jsonl.gz")
    data = gzip.compress(small.read_bytes())
    packed.write_bytes(data)
    assert read(packed).rows == read(small).rows
    middle = len(data) // 2
    changed = data[:middle] + b"\0\0\0" + data[middle + 3 :]
    for damaged in (data[:middle], data[:-6], changed, b"no"):
        packed.write_bytes(damaged)
        assert str(packed) in refusal(packed)


def test_killed_writer_leaves_readable_records(tmp_path: Path) -> None:
    """After kill -9 at any moment a record is absent, or a header and whole rows.

    The system may cut the line that is being written, at a page's end: its rows are read all the
    same, and it says that it was cut.
    """
    chance = random.Random(20261121)
    incomplete = 0
    for trial in range(5):
        results = tmp_path / str(trial)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(results)], cwd=ROOT)
        while not (results / "0.jsonl").exists():
            assert writer.poll() is None
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        for path in results.glob("*.jsonl"):
            data, record = path.read_bytes(), read(path)
            incomplete += record.problem is not None
            assert data.endswith(b"\n") or "the last line is cut" in (record.problem or "")
            assert len(record.rows) == data.count(b"\n") - 1 - (record.end is not None)
    assert incomplete <= 5, "only the record being written may be incomplete"


def test_record_without_an_end_says_how_far_it_got(tmp_path: Path) -> None:
    """A killed run's rows are kept and the problem counts them."""
    path = write_example(tmp_path / "a.jsonl", [example_row()] * 57, planned=300, whole=False)
    record = read(path)
    assert len(record.rows) == 57
    assert record.problem == f"{path}: the run did not finish: 57 of 300 rows"


def test_record_cut_at_any_byte_is_read_or_refused(tmp_path: Path) -> None:
    """Whole rows are kept, the problem or refusal is one sentence, and a cut is never missed."""
    data = write_example(tmp_path / "small.jsonl", [example_row()]).read_bytes()
    cut = tmp_path / "cut.jsonl"
    header = data.index(b"\n")
    for size in range(len(data) - 1):  # the last byte is a newline, and nothing is lost with it
        cut.write_bytes(data[:size])
        if size < header:
            assert refusal(cut)
            continue
        record = read(cut)
        assert record.problem is not None
        assert "\n" not in record.problem
        # A line is whole without its newline, since it ends with its closing brace.
        whole = data[: size + 1].count(b"\n") - 1
        assert len(record.rows) == min(whole, 1)


def test_cut_last_line_is_located(small: Path) -> None:
    """The problem names the byte at which the file ends and counts the rows that are whole."""
    data = small.read_bytes()
    lines = data.splitlines(keepends=True)
    size = len(b"".join(lines[:3])) + 20
    small.write_bytes(data[:size])
    expected = f"{small}: the last line is cut at byte {size:,}; 2 of 3 rows are whole"
    assert read(small).problem == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"not json\n{}\n", "line 1: not JSON"),
        (b"[1, 2]\n", "line 1: JSON, but not an object"),
        (b'{"kind": "accuracy"}\n', "not a run header"),
        (b'{"kind": "run", "schema_version": 2}\n', "version 2 and this program reads version 1"),
        (b'{"kind": "run"}\n', "schema version null"),
        (b'{"kind": "run", "schema_version": 1, "protocol": []}\n', "protocol doesn't fit"),
        (b'{"kind": "run"\0}\n', "line 1: not JSON"),
        (b'{"kind": "\xff"}\n{}\n', "line 1: not JSON"),
        (b"[" * 100_000 + b"\n{}\n", "line 1: not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}\n{}\n", "line 1: not JSON"),
    ],
)
def test_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """The refusal says what is wrong, and where."""
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    assert words in refusal(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    """The message of a missing file says how to make a record."""
    assert "`accuracy` makes" in refusal(tmp_path / "none.jsonl")
    assert "it is a folder; name a record in it" in refusal(tmp_path)


def test_newer_schema_is_refused_before_its_fields_are_judged(small: Path) -> None:
    """A version that isn't ours is named, rather than the first field that differs."""
    edited(small, 1, schema_version=9, novelty=True)
    assert "schema version 9 and this program reads version 1" in refusal(small)


def test_misfit_row_is_named_by_line_and_field(small: Path) -> None:
    """A row that doesn't fit is refused with its line, the field and what it holds."""
    edited(small, 3, duration_s="soon")
    message = refusal(small)
    assert "line 3: duration_s doesn't fit" in message
    assert '"soon"' in message


def test_unknown_kind_and_damaged_line_are_refused(small: Path) -> None:
    """Neither is skipped: a record with a hole would pass for a whole one."""
    whole = small.read_bytes()
    edited(small, 3, kind="timing")
    assert 'line 3: a line of kind "timing"' in refusal(small)
    small.write_bytes(whole.replace(b'{"kind":"accuracy"', b'{"kind"!"accuracy"', 1))
    assert "line 2: not JSON, and not the last line" in refusal(small)


def test_lines_that_two_runs_wrote_are_refused(small: Path) -> None:
    """Rows after the end, a second header and a wrong count are not one run's record."""
    whole = small.read_bytes()
    lines = whole.splitlines(keepends=True)
    small.write_bytes(whole + lines[1])
    assert "line 6: something follows the end line" in refusal(small)
    small.write_bytes(lines[0] + whole)
    assert "line 2: a second run header" in refusal(small)
    small.write_bytes(b"".join(lines[:2] + lines[4:]))
    assert "counts 3 rows and the file has 1" in refusal(small)


def test_interrupted_and_short_runs_are_problems(small: Path) -> None:
    """An end line alone doesn't make a run whole."""
    edited(small, 5, interrupted=True)
    assert read(small).problem == f"{small}: the run was interrupted: 3 of 3 rows"
    edited(small, 5, interrupted=False)
    edited(small, 1, planned_rows=4)
    assert read(small).problem == f"{small}: the run stopped early: 3 of 4 rows"
    # A search plans no rows.
    edited(small, 1, planned_rows=0)
    edited(small, 5, interrupted=True)
    assert read(small).problem == f"{small}: the run was interrupted: 3 rows"


def test_floats_that_json_lacks_round_trip() -> None:
    """NaN and infinities come back as floats, in optional fields too."""
    given = OutputError(
        output="dx",
        worst_deterministic=math.nan,
        worst_probabilistic=math.inf,
        worst_index=(),
        got=-math.inf,
        expected=5e-324,
        bound=0.1,
        rmse=math.nan,
        max_ulp=1e308,
    )
    back = OutputError.model_validate_json(given.model_dump_json())
    assert math.isnan(back.worst_deterministic)
    assert back.worst_probabilistic == math.inf
    assert back.got == -math.inf
    assert (back.expected, back.bound, back.max_ulp) == (5e-324, 0.1, 1e308)


def test_declared_numerics_keep_their_types() -> None:
    """True isn't read as 1, nor 1 as 1.0: a report shows a flag and a number differently."""
    given: dict[str, bool | int | float | str | None] = {"a": True, "b": 1, "c": 1.0, "d": "tf32"}
    info = KernelInfo(op="o", name="k", origin="ours", priority=0, path="k.py", numerics=given)
    back = KernelInfo.model_validate_json(info.model_dump_json()).numerics
    assert [type(value) for value in back.values()] == [bool, int, float, str]


def test_writer_overwrites_nothing_and_leaves_nothing_aside(small: Path) -> None:
    """A second writer on one path is refused, and the record is as it was."""
    before = small.read_bytes()
    with pytest.raises(RecordError, match="never overwritten"):
        RecordWriter(small, example_header(1))
    assert small.read_bytes() == before
    assert list(small.parent.iterdir()) == [small]


def test_writer_without_a_folder_to_write_to_says_so(small: Path) -> None:
    """A file where the folder should be is refused in one sentence."""
    with pytest.raises(RecordError, match="can't be created"):
        RecordWriter(small / "a.jsonl", example_header(1))


def test_short_write_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in mid-line costs that line only."""
    path = tmp_path / "a.jsonl"
    write = os.write
    with RecordWriter(path, example_header(3)) as writer:
        writer.write(example_row())
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: write(fd, data[:40]))
            with pytest.raises(RecordError, match="is the disk full"):
                writer.write(example_row())
        writer.write(example_row(m=5))
    assert [row.case.sizes["m"] for row in read(path).rows] == [37, 5]


def test_end_that_miscounts_is_refused_with_the_rows_kept(tmp_path: Path) -> None:
    """A record can't be closed with a count that its reader would refuse."""
    writer = RecordWriter(tmp_path / "a.jsonl", example_header(1))
    writer.write(example_row())
    end = RunEnd(finished_at="", duration_s=0, rows=2, interrupted=False, exit_status=0)
    with pytest.raises(RecordError, match="counts 2 rows and 1 were written"):
        writer.close(end)
    assert len(read(writer.path).rows) == 1
    with pytest.raises(RecordError, match="is closed"):
        writer.write(example_row())


def test_row_that_ctrl_c_meets_is_written_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the write and the count comes after both, so that the record is readable."""
    header = example_header(1)
    fields = {name: getattr(header, name) for name in header.model_fields_set - {"started_at"}}
    record = RunRecord[AccuracyRow](tmp_path, 0.0, **fields)
    write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        written = write(descriptor, data)
        os.kill(os.getpid(), signal.SIGINT)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            record.add(example_row())
    record.close(0)
    assert len(record.rows) == len(read(record.path).rows) == 1


def test_new_path_is_free_and_in_utc(tmp_path: Path) -> None:
    """The name holds the suite, the UTC time and the device, and no file has it."""
    started = datetime(2026, 11, 21, 5, 15, tzinfo=timezone(timedelta(hours=1)))
    first = new_path(tmp_path, "accuracy", started, "NVIDIA H200 / (MIG)")
    assert first == tmp_path / "accuracy-20261121T041500Z-nvidia-h200-mig.jsonl"
    first.touch()
    second = new_path(tmp_path, "accuracy", started, "NVIDIA H200 / (MIG)")
    assert second.name == "accuracy-20261121T041500Z-nvidia-h200-mig-2.jsonl"
    assert new_path(tmp_path, "accuracy", started, "???").stem.endswith("-device")


def test_latest_goes_by_the_name_then_by_the_time_written(tmp_path: Path) -> None:
    """A copy that was touched later isn't newer than a run that started later."""
    names = ("accuracy-20261121T041500Z-a", "accuracy-20261121T041600Z-a", "accuracy-junk-a")
    for age, name in enumerate(names):
        path = tmp_path / f"{name}.jsonl"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    assert latest(tmp_path).stem == "accuracy-20261121T041600Z-a"
    late = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    os.utime(tmp_path / "accuracy-junk-a.jsonl", (late, late))
    assert latest(tmp_path).stem == "accuracy-junk-a"


def test_latest_of_none_says_how_to_make_one(tmp_path: Path) -> None:
    """An empty folder and a missing one are alike."""
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RecordError, match="`accuracy` makes one"):
            latest(folder)


def test_whole_example_reads_without_a_problem(tmp_path: Path) -> None:
    """The run that the gallery and the other tests show is a valid record."""
    rows = example_rows()
    assert read(write_example(tmp_path / "a.jsonl", rows)).rows[0] == rows[0]


def test_record_from_before_a_field_was_added_still_reads(tmp_path: Path) -> None:
    """One that knows neither variants nor memory is shown in every form."""
    later = {"variant", "workspace_bytes", "declared_workspace_bytes", "relations", "invariance"}
    path = write_example(tmp_path / "old.jsonl", example_rows())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    old = [{key: value for key, value in line.items() if key not in later} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    record = read(path)
    assert {row.variant for row in record.rows} == {None}
    assert {row.workspace_bytes for row in record.rows} == {None}
    file = io.StringIO()
    print_report(record, Console(file=file, width=80), details=True)
    assert "Variants" not in file.getvalue()
    assert "variants" not in markdown_of(record)
    assert render_junit(record).count(b"<testcase") == len(record.rows)


def test_gallerys_records_are_whole_and_show() -> None:
    """Each of a real GPU: finished, with a commit that nothing was changed beside."""
    found = sorted((ROOT / "docs" / "gallery").glob("*-h200.jsonl.gz"))
    names = [each.name.partition("-")[0] for each in found]
    assert names == ["accuracy", "bench", "profile", "shapes"]
    for path in found:
        record = read(path)
        assert record.problem is None
        assert record.end is not None
        assert record.end.exit_status == 0
        assert record.header.environment.device_name == "NVIDIA H200"
        assert record.header.environment.git_dirty is False


@pytest.mark.parametrize("how", ["appended", "replaced"])
def test_record_that_something_else_wrote_to_is_not_closed(tmp_path: Path, how: str) -> None:
    """A kernel that adds a row of its own, or edits one, leaves a record that isn't whole."""
    path = tmp_path / "record.jsonl"
    writer = RecordWriter(path, example_header(1))
    writer.write(example_row(m=1))
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n" if how == "appended" else text[:-9] + "\n")
    end = RunEnd(finished_at="", duration_s=0.0, rows=1, interrupted=False, exit_status=0)
    with pytest.raises(RecordError, match="something else wrote to the record"):
        writer.close(end)
    assert read(path).problem is not None
