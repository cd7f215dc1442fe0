"""`python -m kernel_workbench.reports.comparison`: forms, exit statuses, refusals."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernel_workbench.reports.comparison.__main__ import main
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import Row
from tests.builders.commands import run_python
from tests.builders.compared_records import A100, H100, bench_row, case, header, profile_row, write
from tests.builders.compiled_records import prediction, record_of
from tests.builders.large_records import five_alike, watched

pytestmark = pytest.mark.long_run


def run(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Run the command in a process of its own; its exit status, stdout and stderr."""
    variables = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | environment
    done = run_python(
        "-m", "kernel_workbench.reports.comparison", *map(str, arguments), variables=variables
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def records(tmp_path: Path) -> tuple[Path, Path]:
    """Two records of one model; of five rows of the second one is slower."""
    sizes = (1024, 2048, 4096, 8192, 16384)
    return (
        write(
            tmp_path / "a.jsonl",
            header(),
            [bench_row(100.0, seed=each, case=case(m=each)) for each in sizes],
        ),
        write(
            tmp_path / "b.jsonl",
            header(),
            [
                bench_row(102.0 if each == 4096 else 100.0, seed=each + 1, case=case(m=each))
                for each in sizes
            ],
        ),
    )


def test_gate_sets_the_exit_status(
    records: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """0 without --gate, 1 with it and the reason on stderr, 0 where nothing got worse."""
    a, b = map(str, records)
    assert main([a, b]) == 0
    capsys.readouterr()
    assert main([a, b, "--gate"]) == 1
    assert capsys.readouterr().err == "the gate is shut: 1 row slower, 0 rows less accurate\n"
    assert main([b, a, "--gate"]) == 0


def test_gate_is_shut_where_nothing_was_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that saw no row has let nothing pass."""
    a = write(tmp_path / "a.jsonl", header(), [bench_row()])
    b = write(tmp_path / "b.jsonl", header(), [bench_row(case=case(m=1))])
    assert main([str(a), str(b), "--gate"]) == ExitStatus.INCOMPLETE
    assert "no row was compared" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_report_fits_the_terminal_and_cuts_no_figure(
    tmp_path: Path, records: tuple[Path, Path], columns: int
) -> None:
    """No line is wider than asked for, and figures of three GPUs are whole at each width."""
    rows: list[Row] = [bench_row(each * 1234.5, noise=0, case=case(m=each)) for each in (1, 2)]
    others = [
        write(tmp_path / f"{name}.jsonl", header(machine=machine), rows)
        for name, machine in (("h100", H100), ("a100", A100))
    ]
    first = write(tmp_path / "first.jsonl", header(), rows)
    status, shown, errors = run(*records, "--width", columns, "--all", NO_COLOR="1")
    assert (status, errors) == (0, "")
    assert max(map(len, shown.splitlines())) <= columns
    assert re.search(r" (100|99)\.\d+ +10[12]\.\d +\+\d\.\d % ", shown)
    status, shown, _ = run(first, *others, "--width", columns, NO_COLOR="1")
    assert status == 0
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.count("1,234.5 1.00 x") == 2
    assert "…" not in shown


def test_verdict_is_a_word_beside_its_colour(records: tuple[Path, Path]) -> None:
    """With NO_COLOR the report says the same."""
    _, coloured, _ = run(*records, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[1;38;5;231;48;5;124m SLOWER " in coloured
    _, plain, _ = run(*records, FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")
    assert "48;5;124m" not in plain
    assert " SLOWER " in plain


def test_markdown_goes_to_stdout_alone_and_keeps_its_budget(
    tmp_path: Path, records: tuple[Path, Path]
) -> None:
    """`--markdown -` prints Markdown only; 20,000 rows are cut to 1 MiB, slower ones first kept."""
    status, shown, _ = run(*records, "--markdown", "-")
    assert status == 0
    assert shown.startswith("## SLOWER: 2 records")
    rows: list[list[Row]] = [
        [
            bench_row(time, noise=0, case=case(m=m), processes=(), median_us=time,
                      first_quartile_us=time, third_quartile_us=time)
            for m in range(6000)
            for time in [100.0 if run == 0 or m != 5999 else 110.0]
        ]
        for run in range(2)
    ]  # fmt: skip
    many = [write(tmp_path / f"many{n}.jsonl", header(), each) for n, each in enumerate(rows)]
    path = tmp_path / "out" / "summary.md"
    assert main([*map(str, many), "--markdown", str(path)]) == 0
    text = path.read_text()
    assert 100_000 < len(text.encode()) <= 1 << 20
    assert "m5999-n8192" in text


class _Outside(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.found.append(f"{tag} {name} {value}")


def test_page_is_one_file_and_runs_nothing_of_a_record(tmp_path: Path) -> None:
    """No address from outside, and a script tag in a kernel's name is text."""
    hostile = "<script>alert(1)</script>"
    paths = [
        write(
            tmp_path / f"{n}.jsonl",
            header(),
            [bench_row(100.0 + 5 * n, seed=n, kernel=hostile), bench_row(seed=n)],
        )
        for n in range(2)
    ]
    page = tmp_path / "page.html"
    assert main([*map(str, paths), "--html", str(page)]) == 0
    text = page.read_text()
    parsed = _Outside()
    parsed.feed(text)
    assert parsed.found == []
    assert parsed.tables >= 2
    assert hostile not in text
    assert "alert(1)" in text


def test_record_that_was_cut_off_is_compared_and_told(
    records: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole rows compare; the report says that the run did not finish."""
    lines = records[1].read_bytes().splitlines(keepends=True)
    records[1].write_bytes(b"".join(lines[:4]))
    assert main([*map(str, records), "--width", "200"]) == 0
    shown = capsys.readouterr().out
    assert "the run did not finish: 3 of 5 rows" in shown
    assert "of 3 rows, 1 slower" in shown


def test_predictions_stand_beside_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of compile brings a column for each GPU, marked, and --gpu picks among them."""
    where = prediction().case
    measured = write(
        tmp_path / "bench.jsonl",
        header(),
        [bench_row(2222.2, noise=0, case=where, kernel="flash", flops=10**12, bytes=10**9)],
    )
    compiled = record_of(
        tmp_path / "compile.jsonl",
        [],
        [prediction(), prediction(gpu="NVIDIA B200", predicted_us=500.0)],
    ).path
    assert main([str(measured), str(compiled), "--width", "200"]) == 0
    shown = capsys.readouterr().out
    assert "B: H200, predicted" in shown
    assert "1,111.1 2.00 x" in shown
    assert "C: B200, predicted" in shown
    assert "SLOWER" not in shown
    assert main([str(measured), str(compiled), "--gpu", "b200", "--width", "200"]) == 0
    assert "B: B200, predicted" in capsys.readouterr().out
    assert main([str(measured), str(compiled), "--gpu", "b300"]) == 2
    assert "--gpu b300: none of these records predicts for it" in capsys.readouterr().err


def test_suites_are_compared_each_with_its_own(
    tmp_path: Path, records: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two records of bench and two of profile make one report of speed and of energy."""
    profiles = [
        write(tmp_path / f"p{n}.jsonl", header("profile"), [profile_row()]) for n in range(2)
    ]
    assert main([str(each) for each in (*records, *profiles)]) == 0
    shown = capsys.readouterr().out
    assert "Speed: B beside A" in shown
    assert "Energy of a call: D beside C" in shown


def test_five_records_of_five_thousand_rows_take_little_memory(tmp_path: Path) -> None:
    """500 MB, of 100 samples at ten places a row. How long: `python -m studies.speed`."""
    done, peak_mib = watched("kernel_workbench.reports.comparison", *five_alike(tmp_path))
    assert done.returncode == 0
    assert done.stdout.count("5,000 the same") == 4
    assert peak_mib < 500
