"""Reports of timed kernels hold what the record says, at every width and without colour."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len

from kernel_workbench.reports.document.html import render_html
from kernel_workbench.reports.document.markdown import render_markdown
from kernel_workbench.reports.document.model import Document, Table
from kernel_workbench.reports.phrases import figure, microseconds, share, times
from kernel_workbench.reports.record import (
    AbsentKernel,
    BenchRow,
    CountedLaunch,
    FlushProbe,
    Record,
    RecordError,
    RunHeader,
    TimedProcess,
    read,
)
from kernel_workbench.reports.report import part_of, picture_of
from kernel_workbench.reports.views.bench import bench_part
from kernel_workbench.reports.views.bench_cases import cases_of, kernels_of, short_case, totals_of
from kernel_workbench.reports.views.performance import reasons_of
from tests import ROOT
from tests.builders.bench_records import (
    bench_row,
    bench_rows,
    counted,
    example_bench_header,
    forward_case,
    many_bench_rows,
    norm_case,
    write_bench,
    wrong_row,
)
from tests.builders.documents import markdown_of, rows_of, tables_of, terminal

GALLERY = ROOT / "docs" / "gallery"


def record_of(
    tmp_path: Path, rows: list[BenchRow], *, header: RunHeader | None = None, whole: bool = True
) -> Record:
    """Write `rows` and read them back."""
    return read(write_bench(tmp_path / "run.jsonl", rows, header=header, whole=whole))


def line_of(text: str, *words: str) -> str:
    """Return the first line that begins with these words."""
    lines = text.splitlines()
    return next(line for line in lines if tuple(line.split()[: len(words)]) == words)


@pytest.mark.parametrize("suite", ["accuracy", "bench", "profile"])
def test_report_of_the_gallery_fits_a_screen(suite: str) -> None:
    """About 40 lines at 100 columns; the verdict is first and last, its command on one line."""
    record = read(GALLERY / f"{suite}-h200.jsonl.gz")
    verdict = part_of(record).verdict
    for width in (80, 100, 200):
        lines = terminal(record, width, details=False).rstrip().splitlines()
        wide = [line for line in lines if cell_len(line.rstrip()) > width]
        assert len(lines) <= (44 if width >= 100 else 48), width
        assert set(wide) <= {lines[-1]}, width
        assert lines[0].startswith(f" {verdict} "), width
        assert lines[-1].startswith(f" {verdict} "), width
        assert lines[-1].endswith(f"nox -s report -- --details {record.path}"), width


def test_bench_names_each_field_in_the_page_and_by_details(tmp_path: Path) -> None:
    """A wide terminal shows each field of a row, and the Markdown does too."""
    record = record_of(tmp_path, bench_rows())
    text, markdown = terminal(record, 240), markdown_of(record)
    for table in tables_of(bench_part(record)).values():
        for column in table.columns:
            headed = not (column.group or column.below or column.kind == "command")
            assert not headed or all(word in text for word in column.title.split())
            assert f"| {column.title} |" in markdown
    (row,) = (
        each
        for each in rows_of(bench_part(record), "attention_forward, 4 cases")
        if each["us"] == "913.8"
    )
    assert (row["kernel"], row["rate"], row["of peak"]) == ("sdpa_cudnn", "601.6 TFLOP/s", "60.8 %")


def test_bench_verdict_needs_every_gating_row(tmp_path: Path) -> None:
    """TIMED: whole, and no row that gates is wrong; a baseline's failure costs nothing."""
    good = bench_rows(failing=False)
    failing_baseline = [each for each in bench_rows() if each.status == "failed"]
    assert [each.gates for each in failing_baseline] == [False]
    for number, (rows, whole, verdict) in enumerate(
        (
            (good, True, "TIMED"),
            ([*good, *failing_baseline], True, "TIMED"),
            ([*good, wrong_row()], True, "FAILED"),
            (good, False, "INCOMPLETE"),
            (failing_baseline, True, "NOTHING TIMED"),
        )
    ):
        folder = tmp_path / str(number)
        assert bench_part(record_of(folder, rows, whole=whole)).verdict == verdict


def test_bench_verdict_believes_no_cold_figure_of_a_flush_that_keeps(tmp_path: Path) -> None:
    """A flush that leaves data in the cache fails the run, and the report says why."""
    rows = bench_rows(failing=False)
    warm = FlushProbe(bytes=1, warm_us=3.9, cold_us=4.0, evicts=False, reason="as fast as warm")
    header = example_bench_header(len(rows)).model_copy(update={"flush": warm})
    record = record_of(tmp_path, rows, header=header)
    assert bench_part(record).verdict == "FAILED"
    text = terminal(record)
    assert "no cold figure is believed" in text
    assert "DOES NOT EVICT: as fast as warm" in text


def test_bench_ratios_are_of_the_case_and_the_baseline(tmp_path: Path) -> None:
    """A row's ratio is its time over the fastest of its case, and over the baseline's."""
    rows = [
        bench_row("row_persistent_aligned", norm_case(8, 64), 10.0),
        bench_row("torch_native", norm_case(8, 64), 25.0),
        bench_row("liger", norm_case(8, 64), 20.0),
        bench_row("liger", norm_case(16, 64), 99.0),
    ]
    first, second = cases_of(record_of(tmp_path, rows), "liger")
    assert [each.row.kernel for each in first.rows] == [
        "row_persistent_aligned", "liger", "torch_native",
    ]  # fmt: skip
    assert [each.to_best for each in first.rows] == [1.0, 2.0, 2.5]
    assert [each.to_baseline for each in first.rows] == [0.5, 1.0, 1.25]
    assert [(each.to_best, each.to_baseline) for each in second.rows] == [(1.0, 1.0)]


def test_bench_kernel_of_a_part_is_held_against_none_that_computes_more(tmp_path: Path) -> None:
    """It is marked, is no case's fastest, and has no ratio, of its weighted total neither."""
    case = norm_case(8, 64)
    rows = [
        bench_row("row_persistent_aligned", case, 10.0).model_copy(update={"weight": 2.0}),
        bench_row("liger", case, 1.0).model_copy(update={"weight": 2.0}),
    ]
    header = example_bench_header(len(rows))
    update = {"returns": ("dx",), "left_out": ("dweight", "dbias")}
    kernels = [
        each.model_copy(update=update if each.name == "liger" else {}) for each in header.kernels
    ]
    record = record_of(tmp_path, rows, header=header.model_copy(update={"kernels": tuple(kernels)}))
    cases = cases_of(record, "row_persistent_aligned")
    assert [(each.name, each.to_best, each.to_baseline) for each in cases[0].rows] == [
        ("row_persistent_aligned", 1.0, 1.0),
        ("liger (dx alone)", None, None),
    ]
    fastest = {kernel.name: kernel.fastest for kernel in kernels_of(record, cases)}
    assert fastest == {"row_persistent_aligned": 1, "liger (dx alone)": 0}
    totals = {total.name: (total.time_us, total.ratio) for total in totals_of(cases)}
    assert totals == {"row_persistent_aligned": (20.0, 1.0), "liger (dx alone)": (2.0, None)}
    text = " ".join(terminal(record).split())
    assert "liger computes dx alone; dweight and dbias aren't judged" in text
    assert "liger (dx alone)" in render_html(Document("a part", [bench_part(record)]))


def test_bench_ratios_keep_caches_and_inputs_apart(tmp_path: Path) -> None:
    """A warm row and one of zeros aren't compared with a cold row of normal inputs."""
    row = bench_row("liger", norm_case(8, 64), 10.0)
    warm = row.model_copy(update={"kernel": "torch_native", "cache": "warm", "median_us": 5.0})
    zeros = row.model_copy(update={"kernel": "torch_native", "distribution": "zeros"})
    cases = cases_of(record_of(tmp_path, [row, warm, zeros]))
    assert [len(case.rows) for case in cases] == [1, 1, 1]
    assert [case.title.partition(" ")[2] for case in cases] == ["", "(warm)", "(zeros)"]


def test_bench_weighted_total_says_how_far_of_the_calls_it_goes(tmp_path: Path) -> None:
    """A kernel that refuses the slow case is no faster for it; one without any has no total."""
    small, large, query = norm_case(8, 64), norm_case(8, 4096), forward_case(1024, 128)
    rows = [
        bench_row("row_persistent_aligned", small, 10.0, weight=3.0),
        bench_row("row_persistent_aligned", large, 100.0, weight=2.0),
        bench_row("torch_native", small, 20.0, weight=3.0),
        bench_row("inductor", norm_case(9, 64), 1.0),
        bench_row("flash_wide", query, 1000.0, weight=0.5),
    ]
    record = record_of(tmp_path, rows)
    cases = cases_of(record)
    without = {total.name: total for total in totals_of(cases)}
    assert list(without) == ["flash_wide", "row_persistent_aligned", "torch_native"]
    ours, theirs = without["row_persistent_aligned"], without["torch_native"]
    assert (ours.calls, ours.of, ours.time_us, ours.ratio) == (5.0, 5.0, 230.0, 1.0)
    assert (theirs.calls, theirs.of, theirs.time_us, theirs.ratio) == (3.0, 5.0, 60.0, 2.0)
    assert ours.share == theirs.share == pytest.approx(230 / 730)
    cases = cases_of(record, "torch_native")
    beside = {total.name: total for total in totals_of(cases, "torch_native")}
    ours = beside["row_persistent_aligned"]
    assert (ours.time_us, ours.reference_us, ours.ratio) == (230.0, 60.0, 0.5)
    assert ours.share == pytest.approx((3 * 20 + 2 * 100) / 760)
    assert beside["flash_wide"].reference_us is None


def test_bench_weighted_total_counts_a_case_once(tmp_path: Path) -> None:
    """Rows of a cold and a warm cache are of the same calls."""
    row = bench_row("liger", norm_case(8, 64), 10.0, weight=3.0)
    warm = row.model_copy(update={"cache": "warm", "median_us": 5.0})
    (total,) = totals_of(cases_of(record_of(tmp_path, [row, warm])))
    assert (total.calls, total.of, total.time_us) == (3.0, 3.0, 30.0)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(
    ("baseline", "share_of_norms", "ratio"),
    [(None, "62.2 %", "1.88 x"), ("torch_native", "77.2 %", "0.915 x")],
)
def test_bench_report_says_each_ops_share_of_the_calls(
    tmp_path: Path, width: int, baseline: str | None, share_of_norms: str, ratio: str
) -> None:
    """All columns have room at 80 columns, and the page says the same."""
    record = record_of(tmp_path, bench_rows())
    text = terminal(record, width, details=False, baseline=baseline)
    table = text[text.index("Weighted totals") :].partition("By --details")[0]
    assert f"layer_norm_backward, {share_of_norms} of the calls' time" in table
    assert line_of(table, "inductor").split()[1:4] == ["480", "of", "480"]
    assert line_of(table, "inductor").rstrip().endswith(ratio)
    assert "Left out" not in table
    page = render_html(Document("calls", [bench_part(record, baseline)]))
    assert f"{share_of_norms} of the calls" in page


def test_bench_report_refuses_a_baseline_that_no_row_is_of(tmp_path: Path) -> None:
    """One sentence names the kernels that the record has."""
    record = record_of(tmp_path, bench_rows())
    with pytest.raises(RecordError, match=r"no row is of a kernel 'nvfuser'.*flex.*torch_native"):
        terminal(record, baseline="nvfuser")
    assert "x torch_native" in terminal(record, baseline="torch_native")


def test_bench_report_of_an_unknown_gpu_draws_the_measured_ceiling(tmp_path: Path) -> None:
    """Without a datasheet the bars are of what was measured, and a note says so."""
    rows = bench_rows(known_gpu=False, failing=False)
    header = example_bench_header(len(rows), known_gpu=False)
    part = bench_part(record_of(tmp_path, rows, header=header))
    assert "no datasheet of this GPU is known" in " ".join(part.notes)
    table = tables_of(part)["attention_forward, 4 cases"]
    kinds = {column.title: column.kind for column in table.columns}
    assert kinds["of ceiling"] == "share"
    assert "of peak" not in kinds
    assert "85.8 %" in [each["of ceiling"] for each in rows_of(part, table.title)]


def test_bench_report_lists_what_has_no_figure_with_reason_and_command(tmp_path: Path) -> None:
    """Wrong, failed, refused and absent rows are told, alike ones once, gating ones first."""
    rows = bench_rows()
    refused = [
        bench_row("liger", norm_case(m, 65536), 1.0).model_copy(
            update={"status": "refused", "reason": f"serves n up to 32,768, got {m}"}
        )
        for m in (40_000, 50_000)
    ]
    record = record_of(tmp_path, [*rows, *refused])
    found = reasons_of(record.benches, "timed", short_case)
    first = found[0].rows[0]
    assert (first.status, first.gates) == ("wrong", True)
    alike = next(each for each in found if len(each.rows) > 1)
    assert {row.kernel for row in alike.rows} == {"liger"}
    assert (len(alike.rows), alike.reason) == (3, "serves n up to 32,768, got N")
    text = terminal(record)
    assert f"    {first.reproduce}" in text.splitlines()
    assert "not installed: liger-kernel" in text


def test_peer_that_is_absent_for_two_ops_is_named_once(tmp_path: Path) -> None:
    """Its reason is the same, and so is what to install."""
    absent = tuple(AbsentKernel(op=op, name="peer", reason="not installed") for op in ("a", "b"))
    rows = bench_rows()
    header = example_bench_header(len(rows)).model_copy(update={"absent": absent})
    text = terminal(record_of(tmp_path, rows, header=header))
    assert line_of(text, "absent").split() == ["absent", "peer,", "not", "installed"]


def test_bench_report_shows_a_missing_figure_as_missing(tmp_path: Path) -> None:
    """None is a dash, not a zero, and NaN is NaN; neither takes part in a ratio."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    bare = row.model_copy(
        update={
            "kernel": "liger", "median_us": math.nan, "low_us": None, "clock_mhz": None,
            "share_of_peak": math.nan, "share_of_ceiling": None, "host_us": None,
        }
    )  # fmt: skip
    record = record_of(tmp_path, [row, bare])
    line = line_of(terminal(record, 200), "liger", "NaN")
    assert "  -  " in line
    assert " 0.000" not in line
    assert [each.to_best for each in cases_of(record)[0].rows] == [1.0, None]


def test_bench_report_says_where_host_time_may_be_in_samples(tmp_path: Path) -> None:
    """A row whose device couldn't be held is counted; one of which nobody knows isn't."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    leaking = tuple(each.model_copy(update={"held": False}) for each in row.processes)
    rows = [row, row.model_copy(update={"kernel": "liger", "processes": leaking})]
    assert "1 row whose calls took longer to queue" in terminal(record_of(tmp_path, rows))
    assert "to queue" not in terminal(record_of(tmp_path / "held", [row]))


def test_bench_report_says_where_cupti_saw_longer_work(tmp_path: Path) -> None:
    """The farthest row is named; gaps between kernels make events longer, which is no wonder."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    short = row.model_copy(update={"kernel": "liger", "cupti_us": 12.9})  # by under 3 us
    gaps = row.model_copy(update={"kernel": "quack", "cupti_us": 2.0})
    near = row.model_copy(update={"kernel": "apex", "median_us": 80.0, "cupti_us": 100.0})
    quiet = record_of(tmp_path / "quiet", [row, short, gaps, near])
    assert quiet.benches[1].cupti_us == 12.9
    assert "CUPTI us" in terminal(quiet)
    assert "CUPTI saw" not in terminal(quiet)
    without = row.model_copy(update={"cupti_us": None})
    assert "CUPTI" not in terminal(record_of(tmp_path / "none", [without]))
    hidden = row.model_copy(update={"kernel": "hides_streams", "cupti_us": 15.0})
    farthest = hidden.model_copy(update={"kernel": "hides_more", "cupti_us": 40.0})
    text = " ".join(terminal(record_of(tmp_path / "told", [short, hidden, farthest])).split())
    assert "2 rows in which CUPTI saw the device at work for longer than the events say" in text
    assert "hides_more: 40.00 us instead of 10.00" in text


def test_bench_report_marks_rows_timed_beside_other_work(tmp_path: Path) -> None:
    """How many and how much, in every form; a record of before this was looked for has none."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    unmarked = record_of(tmp_path / "unmarked", [row])
    for form in (terminal(unmarked, 240), markdown_of(unmarked)):
        assert "other work" not in form and "host load" not in form
    reason = "no permission: this user may not read it"
    rows = [
        row.model_copy(update={"codes": ("shared GPU", "busy host"), "gpu_processes": 3}),
        row.model_copy(update={"codes": ("busy host",), "host_load": 0.43, "kernel": "liger"}),
        row.model_copy(update={"gpu_processes_reason": reason, "kernel": "inductor"}),
    ]
    record = record_of(tmp_path, rows)
    told = " ".join(terminal(record, 240).split())
    assert "1 row timed while another process had the GPU" in told
    assert "2 rows timed while others took a tenth of the host's cores or more, 43.0 % at" in told
    assert f"whether others had the GPU isn't known of 1 row ({reason})" in told
    shown = {each["kernel"]: each for each in rows_of(bench_part(record), f"{row.op}, 1 case")}
    assert shown["row_persistent_aligned"]["other work"] == "shared GPU, busy host"
    assert shown["row_persistent_aligned"]["on GPU"] == "3"
    assert shown["liger"]["host load"] == "43.0 %"
    assert shown["inductor"]["other work"] == ""


def test_bench_report_has_counters_launch_by_launch(tmp_path: Path) -> None:
    """In the page and by --details; what isn't there is missing, and why rows have none is said."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)
    bare = {"counters": (CountedLaunch(launch="bare"),), "counters_file": "b.ncu-rep"}
    rows = [
        row.model_copy(update=counted("rows_kernel", "reduce_kernel")),
        row.model_copy(update={"kernel": "liger", **bare}),
        row.model_copy(update={"kernel": "inductor", "counters_reason": "no permission: ask"}),
    ]
    record = record_of(tmp_path, rows)
    title = "Counters of a call, by Nsight Compute"
    shown = {each["launch"]: each for each in rows_of(bench_part(record), title)}
    assert list(shown) == ["rows_kernel", "reduce_kernel", "bare"]
    first = shown["rows_kernel"]
    assert (first["occupancy"], first["DRAM"], first["tensor"]) == ("41.2 %", "87.0 %", "8.1 %")
    assert (first["registers"], first["counted us"]) == ("96", "7.500")
    assert first["stalls"] == "long scoreboard 12.5, wait 1.30, barrier 0.800"
    assert (shown["bare"]["occupancy"], shown["bare"]["stalls"]) == ("-", "")
    assert "bench-1-001-a.ncu-rep" in markdown_of(record)
    assert title in terminal(record, 200)
    short = terminal(record, 200, details=False)
    assert title not in short
    assert "no counters of 1 row: no permission: ask" in short


def test_bench_report_of_a_cpu_names_it_and_no_interpreter(tmp_path: Path) -> None:
    """On a CPU baselines run as they are: the report doesn't speak of an interpreter."""
    rows = [bench_row("torch_native", norm_case(8, 64), 10.0)]
    header = example_bench_header(1)
    machine = header.environment.model_copy(update={"device": "cpu", "device_name": "A CPU"})
    text = terminal(
        record_of(tmp_path, rows, header=header.model_copy(update={"environment": machine}))
    )
    assert "no GPU: A CPU" in text
    assert "interpreter" not in text
    unknown = example_bench_header(1, known_gpu=False).model_copy(update={"environment": machine})
    record = record_of(tmp_path / "unknown", rows, header=unknown)
    for width in (80, 200):
        told = " ".join(terminal(record, width).split())
        assert "no datasheet of this CPU is known, so shares are" in told
        assert "this GPU" not in told
    for form in (markdown_of(record), render_html(Document("", (bench_part(record),)))):
        assert "no GPU: A CPU" in str(form)
        assert "interpreter" not in str(form)
        assert "this GPU" not in str(form)


@pytest.mark.parametrize("width", [80, 200])
def test_share_of_a_measured_ceiling_may_be_above_all_of_it(tmp_path: Path, width: int) -> None:
    """A ceiling is what one kernel reached, so a better one's share is shown, not cut to 99.9 %."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0, known_gpu=False)
    over = row.model_copy(update={"share_of_ceiling": 1.0417})
    header = example_bench_header(1, known_gpu=False)
    record = record_of(tmp_path, [over], header=header)
    text = terminal(record, width)
    assert text.count("104.2 %") == 2  # of the kernel, and of the case
    assert "99.9 %" not in text
    assert _tones(record, "104.2 %") == {""}  # nothing is wrong with it
    beyond = row.model_copy(update={"share_of_peak": 1.0417})  # imported: ours fail such a row
    known = record_of(tmp_path / "known", [beyond], header=example_bench_header(1))
    assert "104.2 %" in terminal(known, width)
    assert "bad" in _tones(known, "104.2 %")


def _tones(record: Record, text: str) -> set[str]:
    """Return the tones of the page's cells with this text."""
    tables = (item for item in bench_part(record).items if isinstance(item, Table))
    cells = (cell for table in tables for row in table.rows for cell in row)
    return {cell.tone for cell in cells if cell.text == text}


def test_bench_report_says_whose_time_was_up_while_samples_varied(tmp_path: Path) -> None:
    """In words about samples; ten slow calls that are alike have their time up, and are steady."""
    row = bench_row("row_persistent_aligned", norm_case(8, 64), 10.0)

    def sampled(kernel: str, stopped: str, *times_us: float) -> BenchRow:
        process = TimedProcess.model_validate({"times_us": times_us, "stopped": stopped})
        return row.model_copy(update={"kernel": kernel, "processes": (process,)})

    steady = [
        sampled("slow", "time limit", *[10.0, 10.01] * 5),
        sampled("plateaued", "noise plateau", *[10.0, 12.0] * 20),
        sampled("single", "time limit", 10.0),
    ]
    assert "varied" not in terminal(record_of(tmp_path / "steady", steady))
    record = record_of(tmp_path, [*steady, sampled("noisy", "time limit", *[10.0, 12.0] * 5)])
    expected = (
        "1 row still varied from call to call when the time for samples was up; a longer "
        "--row-time makes medians surer"
    )
    for width in (80, 200):
        assert expected in " ".join(terminal(record, width).split())


def test_published_figures_say_that_they_are(tmp_path: Path) -> None:
    """A record of publications is PUBLISHED, never TIMED."""
    told = {"source": "A paper, table 3", "accuracy": None}
    rows = [row.model_copy(update=told) for row in bench_rows(failing=False)]
    header = example_bench_header(len(rows)).model_copy(update={"figures": "published"})
    record = record_of(tmp_path, rows, header=header)
    assert bench_part(record).verdict == "PUBLISHED"
    text = terminal(record)
    assert "measured neither here nor by this workbench" in text
    assert "34 rows of unknown accuracy" in text
    assert rows_of(bench_part(record), "Sources") == [
        {"source": "A paper, table 3", "rows": f"{len(rows)}"}
    ]


def test_bench_markdown_keeps_to_its_budget_and_its_columns(tmp_path: Path) -> None:
    """Rows are left out from the end, the last sentence says so, and every row has its cells."""
    record = record_of(tmp_path, many_bench_rows(400, samples=2))
    page = Document("", (bench_part(record),))
    text = render_markdown(page, 20_000)
    assert len(text.encode()) <= 20_000
    assert "Left out, to stay within 20,000 bytes:" in text
    bars = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            bars = 0
        elif bars:
            assert line.count("|") == bars
        else:
            bars = line.count("|")
    assert render_markdown(page).count("-bfloat16-contiguous |") == 400


def test_bench_picture_has_no_font_or_file_from_outside(tmp_path: Path) -> None:
    """The SVG of the report's head is XML that refers to nothing else."""
    record = record_of(tmp_path, bench_rows())
    svg = picture_of(record)
    assert ET.fromstring(svg).tag.endswith("svg")
    assert "@font-face" not in svg
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", svg)


def test_figures_keep_their_digits() -> None:
    """A figure has about as many digits whatever its size, and none is cut before its point."""
    told = [microseconds(us) for us in (4.3124, 47.312, 146.21, 2225.71, 12113.7)]
    assert told == ["4.312", "47.31", "146.2", "2,225.7", "12,114"]
    assert [figure(value) for value in (4390.4, 0.02134, 512.0)] == [
        "4,390", "0.0213", "512",
    ]  # fmt: skip
    assert [share(value) for value in (0.0, 1e-5, 0.5, 0.9995, 1.0)] == [
        "0 %", "<0.1 %", "50.0 %", ">99.9 %", "100 %",
    ]  # fmt: skip
    assert [share(value) for value in (1.0004, 1.0417, 9.5, 12.5, 1e300, math.inf)] == [
        ">100 %", "104.2 %", "950.0 %", "1250 %", "1e+302 %", "inf",
    ]  # fmt: skip
    assert [times(value) for value in (1.0, 12.345, 1234.5)] == [
        "1.00 x", "12.3 x", "1234 x",
    ]  # fmt: skip
