"""A record of compiled code is written, read, shown and compared as those of other suites are."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from kernel_workbench.reports.__main__ import main
from kernel_workbench.reports.record import BrokenExpectation, Record, RecordError, read
from kernel_workbench.reports.report import print_report
from kernel_workbench.reports.views.compile import verdict_of
from kernel_workbench.reports.views.compile_changes import WORSE, changes_between
from tests.builders.accuracy_records import example_rows, write_example
from tests.builders.compiled_records import SMS, mix, prediction, record_of, row
from tests.builders.documents import markdown_of


def shown(
    record: Record, width: int, against: Record | None = None, *, details: bool = False
) -> str:
    """The report of a record, in so many columns."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        print_report(record, console, against=against, details=details)
    return captured.get()


@pytest.fixture
def everywhere(tmp_path: Path) -> Record:
    """Two variants on all generations, one of which spills on sm 75 and fits nowhere on sm 86."""
    rows = []
    for sm in SMS:
        rows.append(row(sm=sm, spill_store_bytes=5448 if sm == 75 else 0))
        fits = {"blocks_per_sm": 0, "occupancy_warps": 0} if sm == 86 else {}
        rows.append(row(sm=sm, label="bfloat16 d256 aligned", **fits))
    return record_of(tmp_path / "compile.jsonl", rows, [prediction()])


def test_record_of_compiled_code_reads_back_as_written(everywhere: Record) -> None:
    """Rows and predictions are read as they were written, widths of loads as numbers."""
    assert len(everywhere.compiled) == 14
    assert everywhere.compiled[0] == row(sm=75, spill_store_bytes=5448)
    assert everywhere.compiled[0].mix == mix()
    assert everywhere.predictions == (prediction(),)
    assert everywhere.rows == ()
    assert everywhere.problem is None


def test_record_refuses_rows_of_another_suite(everywhere: Record, tmp_path: Path) -> None:
    """A row of accuracy in a record of compiled code is named, and so is the other way round."""
    accuracy = write_example(tmp_path / "accuracy.jsonl", example_rows()).read_text().splitlines()
    compiled = everywhere.path.read_text().splitlines()
    for lines, stranger, known in (
        (compiled, accuracy[1], "run, resources, prediction and end"),
        (accuracy, compiled[1], "run, accuracy, coverage and end"),
    ):
        mixed = tmp_path / "mixed.jsonl"
        mixed.write_text("\n".join([lines[0], stranger, *lines[1:]]) + "\n")
        with pytest.raises(RecordError, match=known):
            read(mixed)


def test_killed_run_leaves_its_rows_readable(everywhere: Record) -> None:
    """A record cut in the middle of a row shows the rows before it, and says that it is cut."""
    text = everywhere.path.read_bytes()
    everywhere.path.write_bytes(text[: len(text) // 2])
    record = read(everywhere.path)
    assert 0 < len(record.compiled) < 14
    assert "cut" in (record.problem or "")
    assert verdict_of(record) == "INCOMPLETE"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_report_cuts_no_word_at_any_width(everywhere: Record, width: int) -> None:
    """Every generation, figure and status is there, and no line is wider than the terminal."""
    text = shown(everywhere, width, details=True)
    record = str(everywhere.path)
    assert max(len(line) for line in text.splitlines() if record not in line) <= width
    every = text.partition("Every kernel: 14 rows")[2]
    for sm in SMS:
        assert len(re.findall(rf"forward +{sm} ", every)) >= 2
    assert re.search(r"forward +75 +220 +5.3 KiB ", every)
    assert "NO FIT" in every
    assert "1,111.1" in every
    if width > 80:
        assert "16B HGMMA" in every


def test_report_fits_a_screen_and_ends_with_the_verdict(tmp_path: Path) -> None:
    """Two dozen kernels with 400 broken rows get a line for each kernel and rule, and one case."""
    broken = BrokenExpectation(says="nothing is spilled", reason="8 bytes are", sass=None)
    rows = [
        row(kernel=f"kernel{place % 24}", sm=sm, label=f"bfloat16 d{place}", broken=(broken,))
        for place in range(60)
        for sm in SMS
    ]
    record = record_of(tmp_path / "compile.jsonl", rows, status=1)
    lines = shown(record, 100).splitlines()
    assert len(lines) <= 55
    assert sum("nothing is spilled" in line for line in lines) == 8
    assert lines[0].startswith(" FAILED  420 kernels")
    assert lines[-2] == f"record: {record.path}"
    found = "0 failed to compile, 420 expectations broken"
    assert lines[-1].startswith(f" FAILED  {found}; to look closer: nox -s report -- --details ")


def test_report_gives_reason_and_instruction_of_a_broken_expectation(tmp_path: Path) -> None:
    """The verdict is FAILED; the sentence, the reason and the instruction stand together."""
    broken = BrokenExpectation(
        says="aligned variants load 16 bytes at a time",
        reason="8% of the bytes of its loads come 16 at a time, expected 90%",
        sass="/*0a30*/ LDG.E.U16 R5, [R2.64]  kernels/attention/forward_kernel.py:170",
    )
    record = record_of(tmp_path / "a.jsonl", [row(broken=(broken,), expected=3)], status=1)
    text = shown(record, 120)
    assert text.startswith(" FAILED ")
    assert "1 of 3 expectations broken" in " ".join(text.split())
    for part in (broken.says, broken.reason, "LDG.E.U16 R5", "forward_kernel.py:170"):
        assert part in text
        assert part in markdown_of(record)


def test_report_of_failed_compilation_gives_the_reason(tmp_path: Path) -> None:
    """A kernel that doesn't compile is reported, and its figures aren't invented."""
    failed = row(
        status="failed", reason="it doesn't compile: PTXASError", registers=None, mix=None,
        shared_bytes=None, spill_store_bytes=None, occupancy_warps=None, blocks_per_sm=None,
    )  # fmt: skip
    record = record_of(tmp_path / "a.jsonl", [failed, row(sm=80)], status=1)
    text = shown(record, 120)
    assert text.startswith(" FAILED ")
    assert "it doesn't compile: PTXASError" in text


def test_report_says_what_couldnt_be_read(tmp_path: Path) -> None:
    """A figure that is missing is a question mark, never a zero, and the reason is given once."""
    why = "bytes spilled: the log of ptxas lacks them"
    rows = [row(sm=sm, spill_store_bytes=None, unread=(why,)) for sm in SMS]
    text = shown(record_of(tmp_path / "a.jsonl", rows), 120)
    assert re.search(rf"{why} +7\n", text)
    assert re.search(r" 220 +\? ", text)


def test_changes_tell_what_got_worse(tmp_path: Path) -> None:
    """Registers up, spills, a vector width or an instruction lost, no fit: each by its name."""
    before = record_of(tmp_path / "before.jsonl", [row(sm=sm) for sm in SMS])
    after = record_of(
        tmp_path / "after.jsonl",
        [
            row(sm=75, registers=255, spill_store_bytes=60, tools={"triton": "3.9.0"}),
            row(sm=80, mix=mix(loads={16: 4, 2: 320}), tools={"triton": "3.9.0"}),
            row(
                sm=86,
                tools={"triton": "3.9.0"},
                blocks_per_sm=0,
                occupancy_warps=0,
                shared_bytes=300_000,
            ),
            row(sm=89, status="failed", reason="it doesn't compile", tools={"triton": "3.9.0"}),
            row(sm=90, mix=mix(matrix={"HMMA.16816": 64}), tools={"triton": "3.9.0"}),
            row(sm=100, tools={"triton": "3.9.0"}),
            row(sm=120, label="bfloat16 d512 aligned", tools={"triton": "3.9.0"}),
        ],
    )
    found = changes_between(before, after)
    kinds = {(each.kind, each.sm) for each in found.changes}
    assert kinds == {
        ("spills appeared", 75),
        ("registers up", 75),
        ("vector width lost", 80),
        ("doesn't fit any more", 86),
        ("shared memory up", 86),
        ("no longer compiles", 89),
        ("matrix instruction lost", 90),
    }
    assert all(each.kind in WORSE for each in found.changes)
    assert found.tools == (("triton", "3.7.1", "3.9.0"), ("ptxas", "12.8.93", "none"))
    assert (sum(found.new.values()), sum(found.gone.values())) == (1, 1)
    back = {each.kind for each in changes_between(after, before).changes}
    assert back.isdisjoint(WORSE)
    text = shown(after, 120, against=before)
    for kind, _ in kinds:
        assert kind in text
    assert "triton: 3.7.1 then, 3.9.0 now" in text


def test_changes_between_equal_records_are_none(everywhere: Record) -> None:
    """A record has nothing otherwise than itself."""
    found = changes_between(everywhere, everywhere)
    assert found.changes == ()
    assert (found.new, found.gone, found.tools) == ({}, {}, ())
    assert found.compared == 14


def test_report_command_picks_the_suite_of_the_record(
    everywhere: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`nox -s report` shows a record of compiled code as such, in its other forms too."""
    path = str(everywhere.path)
    svg = tmp_path / "head.svg"
    assert main([path, "--against", path, "--svg", str(svg), "--width", "120"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(" PASSED  14 kernels (2 variants on 7 generations): 14 compiled")
    assert "0 changes" in text
    assert "compiled" in svg.read_text()
    assert main([path, "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("## PASSED: 14 kernels")
    assert main([path, "--junit", str(tmp_path / "a.xml")]) == 2
    assert "no form as JUnit" in capsys.readouterr().err
    accuracy = write_example(tmp_path / "accuracy.jsonl", example_rows())
    assert main([str(accuracy), "--against", path]) == 2
    assert "--against takes two of compile" in capsys.readouterr().err


def test_records_texts_are_shown_literally(tmp_path: Path) -> None:
    """A label that looks like markup, or holds an escape, is shown and not obeyed."""
    record = record_of(tmp_path / "a.jsonl", [row(label="[bold]d128\x1b[2J")])
    text = shown(record, 120, details=True)
    assert "[bold]d128" in text
    assert "\x1b[2J" not in text
    assert json.loads(record.path.read_text().splitlines()[1])["label"] == "[bold]d128\x1b[2J"
