"""The three forms of a report hold what the record says, fit their room and run no markup."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len
from rich.console import Console

from kernel_workbench.reports.document.markdown import render_markdown
from kernel_workbench.reports.document.model import Document
from kernel_workbench.reports.junit import render_junit
from kernel_workbench.reports.phrases import duration, ratio
from kernel_workbench.reports.record import AccuracyRow, CaseInfo, Record, read
from kernel_workbench.reports.report import part_of, picture_of, print_report
from kernel_workbench.reports.views.accuracy import (
    cell_of,
    failures,
    headline,
    layout_family,
    refusals,
)
from tests.builders.accuracy_records import example_row, example_rows, write_example
from tests.builders.documents import markdown_of, rows_of, tables_of, terminal

# Rich markup, an emoji code, HTML, Markdown, a table's pipe, an escape sequence, a line break.
HOSTILE = "[red]k[/red] [/] :bomb: <b>&amp; | `x` **y** ]]> \x1b[31m\n\u202e\x07"

MATRIX = "layer_norm_backward: error / bound by dtype and layout"


def record_of(tmp_path: Path, rows: list[AccuracyRow], **options: int | bool) -> Record:
    """Write `rows` and read them back."""
    path = tmp_path / "run.jsonl"
    planned = options.get("planned")
    whole = bool(options.get("whole", True))
    return read(write_example(path, rows, planned=planned, whole=whole))


def parsed(document: bytes) -> ET.Element:
    """Return the root of a document that we wrote."""
    return ET.fromstring(document)


def hostile_row() -> AccuracyRow:
    """Return a failing row, every text of which is HOSTILE."""
    row = example_row(ratio=17.4, rule="deterministic bound")
    case = dict(row.case) | dict.fromkeys(("id", "dtype", "layout", "op"), HOSTILE)
    output = row.outputs[0].model_copy(update={"output": HOSTILE})
    changes = {"kernel": HOSTILE, "reason": HOSTILE, "reproduce": HOSTILE}
    made = {"case": CaseInfo(**case), "outputs": (output,), "printed": (HOSTILE,)}
    return row.model_copy(update=changes | made)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_report_fits_its_width(tmp_path: Path, width: int) -> None:
    """No line but a command to copy is wider than the console, and no word of a table is cut."""
    text = terminal(record_of(tmp_path, example_rows()), width)
    lines = text.splitlines()
    wide = [line for line in lines if cell_len(line) > width]
    assert all(
        re.match(r" *(nox -s accuracy -- --only|record: | FAILED .* to look)", line)
        for line in wide
    )
    words = set(text.split())
    assert "…" not in text
    families = {"contiguous", "offset", "rowpad", "colstride", "transposed", "expanded", "rank3"}
    assert words >= families | {"far", "row_persistent", "bfloat16_float32weight", "refused"}
    assert "FAIL 17.4" in text
    assert "FAIL non-finite" in text


def test_terminal_report_of_a_narrow_console_still_shows(tmp_path: Path) -> None:
    """Twenty columns are served without an error, if not prettily."""
    assert "FAILED" in terminal(record_of(tmp_path, example_rows()), 20)


def test_terminal_report_reads_alike_without_colour(tmp_path: Path) -> None:
    """Colours add nothing that words don't say."""
    record = record_of(tmp_path, example_rows())
    plain = terminal(record)
    assert "\x1b" not in plain
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=True, color_system="truecolor")
    print_report(record, console, details=True)
    assert "\x1b[" in file.getvalue()
    assert re.sub("\x1b\\[[0-9;]*m", "", file.getvalue()) == plain


def test_commands_to_reproduce_are_whole_lines(tmp_path: Path) -> None:
    """A command longer than the console is still one line, so that it can be copied."""
    row = example_row(ratio=3.0, rule="deterministic bound")
    lines = terminal(record_of(tmp_path, [row]), 40).splitlines()
    assert f"  {row.reproduce}" in lines


@pytest.mark.parametrize(
    ("typed", "begins"),
    [
        ("nox -s accuracy", "nox -s report --"),
        (
            ".venv/bin/nox -f ../noxfile.py -s accuracy -- --op x",
            ".venv/bin/nox -f ../noxfile.py -s report --",
        ),
        ("python3 -m nox --no-venv -s accuracy", "python3 -m nox --no-venv -s report --"),
        ("kernel-workbench accuracy --op x", "kernel-workbench report"),
        ("python bench.py -s 3", "kernel-workbench report"),
    ],
)
def test_command_to_look_closer_begins_as_the_runs_did(
    typed: str, begins: str, tmp_path: Path
) -> None:
    """So it works where it is pasted."""
    record = record_of(tmp_path, [example_row()])
    header = record.header.model_copy(update={"command": typed})
    *_, last = terminal(replace(record, header=header), 100).splitlines()
    assert last.endswith(f"; to look closer: {begins} --details {record.path}")


def test_names_are_shown_literally_everywhere(tmp_path: Path) -> None:
    """No text of a record is obeyed: by rich, by a terminal, by Markdown, by HTML or by XML."""
    passing = hostile_row().model_copy(update={"status": "passed", "rule": None, "outputs": ()})
    refused = passing.model_copy(update={"status": "refused"})
    record = record_of(tmp_path, [hostile_row(), passing, refused])
    text = terminal(record, 200)
    assert "[red]k[/red] [/] :bomb: <b>&amp; | `x` **y** ]]> \\x1b[31m\\n\\u202e\\x07" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    markdown = markdown_of(record)
    assert "<b>" not in markdown
    assert "**y**" not in markdown
    assert not {"\x1b", "\x07", "\u202e"} & set(markdown)
    names = [case.get("name") for case in parsed(render_junit(record)).iter("testcase")]
    assert len(names) == 3
    assert all(name is not None and name.startswith("[red]k[/red]") for name in names)


def test_pipes_in_names_keep_a_table_in_columns(tmp_path: Path) -> None:
    """Each row of a Markdown table has as many cells as its head."""
    markdown = markdown_of(record_of(tmp_path, [hostile_row()]))
    bars = 0
    for line in markdown.splitlines():
        if not line.startswith("|"):
            bars = 0
            continue
        bars = bars or line.count("|")
        assert line.count("|") == bars


def test_headline_of_a_pass_counts_every_row(tmp_path: Path) -> None:
    """The figures of the sentence add up to the rows of the record."""
    line = headline(record_of(tmp_path, example_rows(failing=False)))
    assert line.verdict == "PASSED"
    assert line.sentence == (
        "144 rows (2 kernels and 1 baseline, each on 48 cases): 132 passed, 0 failed, "
        "12 refused, in 2 min 31 s"
    )


def test_headline_fails_for_a_row_that_gates_only(tmp_path: Path) -> None:
    """A baseline above the bound is told and doesn't fail the run."""
    baseline = example_row("torch_native", ratio=1.3, rule="probabilistic bound")
    line = headline(record_of(tmp_path, [example_row(), baseline]))
    assert line.verdict == "PASSED"
    assert line.notes == ("baselines: 1 row above the bound, which doesn't fail the run",)
    (tmp_path / "run.jsonl").unlink()
    ours = example_row(ratio=1.3, rule="deterministic bound")
    assert headline(record_of(tmp_path, [example_row(m=1), ours])).verdict == "FAILED"


def test_headline_of_a_run_in_which_nothing_ran_is_no_pass(tmp_path: Path) -> None:
    """Neither an empty record, nor one of refusals, nor one of baselines alone says PASSED."""
    refused = example_row(refusal="needs rows of whole 16 bytes, got n = 37 float16 elements")
    cases: tuple[tuple[list[AccuracyRow], str], ...] = (
        ([], "FAILED"),
        ([refused], "FAILED"),
        ([refused, example_row("torch_native")], "FAILED"),
        ([example_row("torch_native")], "NOT GATED"),
    )
    for rows, verdict in cases:
        line = headline(record_of(tmp_path, rows))
        assert (line.verdict, bool(line.notes)) == (verdict, True)
        (tmp_path / "run.jsonl").unlink()


def test_headline_doubts_a_pass_that_the_figures_deny(tmp_path: Path) -> None:
    """A row marked passed with NaN or a ratio above 1 fails the run."""
    for value in (float("nan"), 1.0001):
        line = headline(record_of(tmp_path, [example_row(ratio=value)]))
        assert line.verdict == "FAILED"
        assert "contradicts itself" in line.notes[0]
        (tmp_path / "run.jsonl").unlink()


def test_headline_of_a_cut_record_is_incomplete(tmp_path: Path) -> None:
    """Rows that passed so far are no verdict on the rest."""
    line = headline(record_of(tmp_path, [example_row()], planned=9, whole=False))
    assert line.verdict == "INCOMPLETE"
    assert "1 of 9 rows" in line.notes[0]


@pytest.mark.parametrize(
    ("layout", "family"),
    [
        ("contiguous", "contiguous"),
        ("offset1", "offset"),
        ("dy_offset3", "offset"),
        ("weight_offset2", "offset"),
        ("dresidual_rowpad8", "rowpad"),
        ("colstride2", "colstride"),
        ("x_transposed", "transposed"),
        ("expanded_rows", "expanded"),
        ("rank3", "rank3"),
        ("rank3_batchpad1", "rank3"),
        ("far", "far"),
        ("qkv_interleaved", "interleaved"),
        ("kv_expanded_heads", "expanded"),
        ("do_heads_far", "far"),
        ("bias_offset7", "offset"),
        ("bhsd", "bhsd"),
        ("k_bhsd", "bhsd"),
        ("123", "123"),
    ],
)
def test_layout_family_is_the_name_without_tensor_and_digits(layout: str, family: str) -> None:
    """Families are derived, so that a new layout needs no edit."""
    assert layout_family(layout) == family


def test_matrix_cell_shows_the_worst_of_its_cases() -> None:
    """A NaN or a failure is never hidden by a good neighbour; a refusal is, by one that ran."""
    good, refused = example_row(ratio=0.2), example_row(m=3, refusal="no")
    bad = example_row(m=5, ratio=float("nan"), rule="non-finite values")
    texts = [cell_of(rows).text for rows in ([refused], [refused, good], [refused, good, bad])]
    assert texts == ["refused", "0.20", "FAIL non-finite"]


def test_matrix_leaves_out_a_kernel_that_ran_nothing(tmp_path: Path) -> None:
    """Rows of nothing but refusals say what the list of refusals says better."""
    part = part_of(record_of(tmp_path, [example_row(refusal="no")]))
    assert not any("by dtype and layout" in title for title in tables_of(part))


def test_matrix_leaves_out_a_dtype_that_a_kernel_refuses_whole(tmp_path: Path) -> None:
    """The dtypes it ran keep their refused cells; one it doesn't serve would be a row of those."""
    rows = [example_row(), example_row(layout="rowpad1", refusal="no")]
    rows.append(example_row(dtype="float16", refusal="no"))
    (line,) = rows_of(part_of(record_of(tmp_path, rows)), MATRIX)
    assert (line["kernel"], line["dtype"], line["rowpad"]) == (
        "row_persistent",
        "float32",
        "refused",
    )


def test_refusals_are_grouped_by_sentence(tmp_path: Path) -> None:
    """Numbers that differ become N, those that don't stay, and digits of a dtype are no number."""
    reasons = [f"needs 16-byte rows, got n = {n} float16 elements" for n in (1, 4095)]
    rows = [example_row(m=m, refusal=reason) for m, reason in enumerate([*reasons, "got N"])]
    groups = refusals(record_of(tmp_path, rows))
    assert [(len(group.rows), group.why) for group in groups] == [
        (2, "needs 16-byte rows, got n = N float16 elements"),
        (1, "got N"),
    ]


def test_failures_are_a_line_each_kernel_and_rule(tmp_path: Path) -> None:
    """With the plainest case and its command; a baseline's take one line a kernel."""
    rows = [example_row(m=m, ratio=1.0 + m, rule="deterministic bound") for m in range(1, 6)] + [
        example_row("torch_native", m=m, rule="raised") for m in range(4)
    ]
    record = record_of(tmp_path, rows)
    first, second = failures(record)
    assert (first.gates, len(first.rows)) == (True, 5)
    assert [row.case.sizes["m"] for row in first.rows] == [1, 2, 3, 4, 5]
    assert first.largest == 6.0
    assert (second.gates, len(second.rows)) == (False, 4)
    summary = terminal(record, details=False)
    assert [row.reproduce in summary for row in first.rows] == [True, *4 * [False]]
    assert [row.reproduce in summary for row in second.rows] == 4 * [False]
    assert re.search(r"torch_native +4 +4 raised", summary)
    assert all(row.reproduce in terminal(record) for row in record.rows)


def test_nan_is_worse_than_infinity(tmp_path: Path) -> None:
    """A comparison that NaN loses would list it last, or not at all."""
    rows = [
        example_row(m=m, ratio=value, rule="deterministic bound")
        for m, value in enumerate((2.0, float("nan"), float("inf")))
    ]
    record = record_of(tmp_path, rows)
    (group,) = failures(record)
    assert math.isnan(group.largest)
    assert cell_of(rows).text == "FAIL NaN"


def test_markdown_keeps_its_budget_and_says_what_is_missing(tmp_path: Path) -> None:
    """At any budget the bytes fit; what was left out is counted; a large one leaves out nothing."""
    rows = [
        example_row(m=m, ratio=2.0, rule="deterministic bound") for m in range(1, 300)
    ] + example_rows()
    record = record_of(tmp_path, rows)
    document = Document("", (part_of(record),))
    whole = render_markdown(document)
    assert "Left out" not in whole
    for budget in (0, 50, 700, 3000, 20_000, len(whole) // 2):
        text = render_markdown(document, budget)
        assert len(text.encode()) <= budget
        assert text.startswith("## FAILED"[:budget])
        if budget >= 3000:
            assert "failure" in text.rsplit("Left out", 1)[1]
            assert text.count("<details>") == text.count("</details>")


def test_junit_counts_agree_with_the_record(tmp_path: Path) -> None:
    """Failures are rows that gate; refusals and baselines' failures are skipped."""
    rows = [*example_rows(), example_row("torch_native", m=5, ratio=2, rule="raised")]
    root = parsed(render_junit(record_of(tmp_path, rows)))
    statuses = [(row.status, row.gates) for row in rows]
    assert int(root.get("tests", "")) == len(rows)
    assert int(root.get("failures", "")) == statuses.count(("failed", True))
    assert int(root.get("skipped", "")) == sum(status == "refused" for status, _ in statuses) + 1
    assert int(root.get("errors", "")) == 0
    assert [suite.get("name") for suite in root] == [
        f"layer_norm_backward.{name}"
        for name in ("row_persistent", "two_pass_split", "torch_native")
    ]
    properties = {each.get("name"): each.get("value") for each in root[0].iter("property")}
    assert properties["device"] == (
        "no GPU: Triton interpreter; kernels serve the cases that they serve on sm 90"
    )


def test_junit_of_a_cut_or_empty_run_is_red(tmp_path: Path) -> None:
    """A CI that reads nothing but JUnit sees that the run isn't whole, or that nothing ran."""
    for rows, whole in (([example_row()], False), ([], True)):
        root = parsed(render_junit(record_of(tmp_path, rows, whole=whole)))
        assert root.get("errors") == "1"
        (tmp_path / "run.jsonl").unlink()


def test_figures_are_never_rounded_across_the_limit() -> None:
    """Neither a failed nor a passed ratio reads as 1.00; no figure but zero is shown as zero."""
    ratios = {
        0: "0",
        1e-9: "<0.01",
        0.43: "0.43",
        0.9999: ">0.99",
        1: "1",
        1.0001: ">1.00",
        17.4: "17.4",
        1234.4: "1234",
        float("inf"): "inf",
        float("nan"): "NaN",
    }
    assert {value: ratio(value) for value in ratios} == ratios
    times = {0.42: "0.42 s", 12.34: "12.3 s", 151.2: "2 min 31 s", 3725: "1 h 02 min"}
    times |= {float("nan"): "unknown", -1: "unknown"}
    assert {value: duration(value) for value in times} == times


def test_picture_names_nothing_outside_itself(tmp_path: Path) -> None:
    """No font, image or link of the SVG is fetched: only the XML name space holds an address."""
    picture = picture_of(record_of(tmp_path, [example_row(ratio=0.2)]))
    assert picture.startswith("<svg")
    addresses = re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[^\"')]*", picture)
    assert [each for each in addresses if "terminal" not in each] == []
    assert "@font-face" not in picture
