"""Reports of profiles hold what the record says, and a missing figure is never a zero."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_workbench.reports.document.markdown import render_markdown
from kernel_workbench.reports.document.model import Document, Figure, Table
from kernel_workbench.reports.phrases import energy
from kernel_workbench.reports.record import CaseInfo, ProfileRow, Record, read
from kernel_workbench.reports.views.profile import profile_part
from kernel_workbench.reports.views.profile_codes import MEANINGS
from kernel_workbench.reports.views.profile_energies import (
    counter_apart,
    held_by,
    missing_of,
    totals_of,
)
from tests.builders.bench_records import norm_case
from tests.builders.documents import markdown_of, rows_of, terminal
from tests.builders.profile_records import profile_row, profile_rows, write_profile


def record_of(tmp_path: Path, rows: list[ProfileRow], *, whole: bool = True) -> Record:
    """Write `rows` and read them back."""
    return read(write_profile(tmp_path / "run.jsonl", rows, whole=whole))


def line_of(text: str, *words: str) -> str:
    """Return the first line that begins with these words."""
    lines = text.splitlines()
    return next(line for line in lines if tuple(line.split()[: len(words)]) == words)


def test_profile_verdict_needs_every_gating_row(tmp_path: Path) -> None:
    """MEASURED: whole and none wrong; a transient row is a measurement that says what it is."""
    for number, (rows, whole, verdict) in enumerate(
        (
            (profile_rows(failing=False), True, "MEASURED"),
            (profile_rows(), True, "FAILED"),
            (profile_rows(), False, "INCOMPLETE"),
            ([], True, "NOTHING MEASURED"),
        )
    ):
        record = record_of(tmp_path / str(number), rows, whole=whole)
        assert profile_part(record).verdict == verdict
    assert "7 measured (1 transient, 1 invalid), 1 wrong" in terminal(
        record_of(tmp_path, profile_rows()), 200
    )


def test_profile_tells_reasons_a_line_a_kernel_what_gates_first(tmp_path: Path) -> None:
    """A hundred refusals of one kernel are one line; the wrong row that came last is before it."""
    example = profile_row("flash", norm_case(8192, 8192), 100.0)
    lost = {"status": "refused", "windows": (), "energy_j": None}
    refused = [
        example.model_copy(update=lost | {"reason": f"{each} is too large"}) for each in range(100)
    ]
    update = lost | {"status": "wrong", "reason": "0.1 past its bound", "reproduce": "nox -s x"}
    part = profile_part(record_of(tmp_path, [*refused, example.model_copy(update=update)]))
    (failed,) = rows_of(part, "Failed")
    assert (failed["reason"], failed["reproduce"]) == ("0.1 past its bound", "nox -s x")
    (others,) = rows_of(part, "Without a figure, which doesn't fail the run")
    assert (others["rows"], others["reason"]) == ("100", "N is too large")


def test_profile_figures_follow_from_the_row(tmp_path: Path) -> None:
    """The share of the limit, the counter against the integral, the share of a reason."""
    row = profile_row("flash_wide", norm_case(8, 64), 100.0, power_w=350.0, capped=0.25)
    assert counter_apart(row) == pytest.approx(0.006)
    assert held_by(row) == {"SW power cap": pytest.approx(0.25)}
    for capped, share in ((1.0003, 1.0), (1.05, 1.05)):  # read a moment apart; and a wrong counter
        full = profile_row("flash_wide", norm_case(8, 64), 100.0, capped=capped)
        assert held_by(full) == {"SW power cap": pytest.approx(share)}
    uncounted = [replace(window, reasons_s={}) for window in row.windows]
    polled = held_by(row.model_copy(update={"windows": tuple(uncounted)}))
    assert polled == {"SW power cap": pytest.approx(0.25 * 0.996)}
    told = [energy(joules) for joules in (1.2345, 0.0267, 8.12e-4, 2.5e-6)]
    assert told == ["1.234 J", "26.70 mJ", "812.0 uJ", "2.500 uJ"]
    record = record_of(tmp_path, [row, full])
    shown, _ = rows_of(profile_part(record), "Energy, power and clocks")
    assert (shown["of limit"], shown["held by"]) == ("50.0 %", "SW power cap 25.0 %")
    note = "SW power cap kept the clock of 2 rows down, for 105.0 % of the windows at most"
    assert note in terminal(record, 200)


def test_profile_report_says_why_a_figure_is_missing(tmp_path: Path) -> None:
    """Dashes in the table, and below it each reason once with what it is missing from."""
    record = record_of(tmp_path, profile_rows())
    text = terminal(record, 200)
    line = line_of(text, "sdpa_flash", "normal")
    assert line.split()[2:6] == ["invalid", "-", "-", "-"]
    found = {each.reason: each for each in missing_of(record)}
    denied = found["no permission: this user may not read it"]
    assert denied.fields == ("energy_j", "power_w", "energy_counter_j", "energy_integral_j")
    assert (denied.rows, denied.example.kernel == "sdpa_flash") == (1, True)
    assert "energy_j, power_w, energy_counter_j, energy_integral_j" in text


def test_profile_report_explains_its_codes(tmp_path: Path) -> None:
    """A code stands with its meaning; one that the report doesn't know stands alone."""
    rows = profile_rows()
    rows[0] = rows[0].model_copy(update={"validity": "invalid", "codes": ("cosmic rays",)})
    told = rows_of(profile_part(record_of(tmp_path, rows)), "Not valid, or less than whole")
    meanings = {each["code"]: each["meaning"] for each in told}
    assert meanings["power drifts"] == MEANINGS["power drifts"]
    assert meanings["cosmic rays"] == ""
    (unknown,) = (each for each in told if each["code"] == "cosmic rays")
    assert (unknown["kernel"], unknown["state"]) == ("row_persistent_aligned", "invalid")


def test_profile_markdown_and_page_hold_every_window(tmp_path: Path) -> None:
    """The page lists each trial, and the Markdown of a step summary has the same tables."""
    record = record_of(tmp_path, profile_rows())
    tables = {item.title: item for item in profile_part(record).items}
    windows = tables["Windows"]
    assert len(windows.rows) == sum(len(row.windows) for row in record.profiles)  # type: ignore[union-attr]
    markdown = markdown_of(record)
    assert markdown.startswith("## FAILED: 8 rows")
    assert "| flash_wide | normal | valid |" in markdown


def test_profile_weighted_total_counts_cases_that_all_kernels_have(tmp_path: Path) -> None:
    """Three calls of 6.4 mJ make 19.2; what one kernel lacks is nobody's, errors add in squares."""
    small, large, other = norm_case(8, 64), norm_case(8, 4096), norm_case(9, 64)

    def row(kernel: str, case: CaseInfo, us: float, weight: float | None) -> ProfileRow:
        return profile_row(kernel, case, us).model_copy(update={"weight": weight})

    drifting = row("torch_native", other, 10.0, 4.0).model_copy(update={"validity": "transient"})
    rows = [
        row("row_persistent_aligned", small, 10.0, 3.0),
        row("row_persistent_aligned", large, 100.0, 2.0),
        row("row_persistent_aligned", other, 20.0, 4.0),
        row("torch_native", small, 5.0, 3.0),
        drifting,
        row("inductor", small, 1.0, None),
    ]
    record = record_of(tmp_path, rows)
    fast, slow = totals_of(record)
    assert (fast.kernel, slow.kernel) == ("torch_native", "row_persistent_aligned")
    assert (slow.cases, slow.of) == (2, 3)
    assert (slow.energy_j, slow.device_us) == pytest.approx((640e-6 * 110, 110))
    assert slow.energy_error_j == pytest.approx(0.011 * 640e-6 * 10 * (3**2 + 8**2) ** 0.5)
    assert (fast.validity, slow.validity) == ("transient", "valid")
    line = line_of(terminal(record), "row_persistent_aligned", "2", "of", "3")
    assert "70.40 mJ" in line
    assert "0.1100 ms" in line
    assert "70.40 mJ" in render_markdown(Document("", (profile_part(record),)))


def test_profile_weighted_total_lacks_what_no_row_has(tmp_path: Path) -> None:
    """No power or no weight, no total; one trial, no error."""
    norm = norm_case(8, 64)
    one = profile_row("torch_native", norm, 10.0).model_copy(
        update={"weight": 3.0, "energy_error_j": None}
    )
    without = profile_row("inductor", norm, 10.0).model_copy(
        update={"weight": 3.0, "energy_j": None}
    )
    record = record_of(tmp_path, [one, without, profile_row("liger", norm_case(9, 64), 1.0)])
    (total,) = totals_of(record)
    assert (total.kernel, total.energy_error_j) == ("torch_native", None)


def test_profile_marks_a_kernel_of_a_part_and_adds_it_to_no_total(tmp_path: Path) -> None:
    """Less work takes less energy: it stands beside the others with what it computes."""
    update: dict[str, object] = {"weight": 3.0}
    rows = [
        profile_row(kernel, norm_case(8, 64), 10.0).model_copy(update=update)
        for kernel in ("row_persistent_aligned", "torch_native")
    ]
    record = record_of(tmp_path, rows)
    part = {"returns": ("dx",), "left_out": ("dweight", "dbias")}
    kernels = tuple(
        each.model_copy(update=part if each.name == "torch_native" else {})
        for each in record.header.kernels
    )
    header = record.header.model_copy(update={"kernels": kernels})
    record = read(write_profile(tmp_path / "part.jsonl", rows, header=header))
    assert [each.kernel for each in totals_of(record)] == ["row_persistent_aligned"]
    for text in (terminal(record, 200), render_markdown(Document("", (profile_part(record),)))):
        assert "torch\\_native (dx alone)" in text or "torch_native (dx alone)" in text
        assert "computes dx alone; dweight and dbias aren't judged" in text


def test_profile_sets_apart_none_but_kernels_listed_as_own(tmp_path: Path) -> None:
    """A kernel that the header doesn't list may be anyone's: it isn't shown as ours."""
    record = record_of(tmp_path, profile_rows(failing=False))
    listed = {each.name: each.origin for each in record.header.kernels}
    assert set(listed.values()) == {"ours", "baseline"}
    for kernels in (record.header.kernels, ()):
        header = record.header.model_copy(update={"kernels": kernels})
        part = profile_part(replace(record, header=header))
        (rows,) = [each for each in part.items if each.title == "Energy, power and clocks"]
        assert isinstance(rows, Table)
        place = [each.title for each in rows.columns].index("kernel")
        cells = [row[place] for row in rows.rows]
        strong = {each.text for each in cells if each.tone == "strong"}
        shown = {each.text for each in cells}
        own = {name for name, origin in listed.items() if origin == "ours" and name in shown}
        assert strong == (own if kernels else set())
        figures = [each for each in part.items if isinstance(each, Figure)]
        wide = re.findall(r'stroke-width="2"', figures[0].draw("x"))
        assert bool(wide) == bool(kernels)
