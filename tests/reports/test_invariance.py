"""The table of what bits depend on: declared and measured, side by side, and who is told of it."""

from __future__ import annotations

from pathlib import Path

from kernel_workbench.reports.record import AccuracyRow, Record, RunHeader, Tried
from kernel_workbench.reports.views.accuracy import (
    Property,
    kernel_properties,
)
from tests.builders.accuracy_records import example_header, example_row
from tests.builders.documents import markdown_of, terminal

HEADER = example_header(planned_rows=4)
KERNEL, OTHER = HEADER.kernels[0], HEADER.kernels[1]
SHOWN = "a row alone: dx[0, 3]: got 1, expected 2"


def _record(*rows: AccuracyRow, **declared: bool | None) -> Record:
    """A record of these rows, the first kernel declaring this."""
    first = KERNEL.model_copy(update={"numerics": KERNEL.numerics | declared})
    header = HEADER.model_copy(update={"kernels": (first, *HEADER.kernels[1:])})
    assert isinstance(header, RunHeader)
    return Record(Path("r.jsonl"), header, rows, end=None, problem=None)


def _row(kernel: str, **tried: bool) -> AccuracyRow:
    found = tuple(
        Tried(name=name.replace("_", "-"), holds=holds, reason=None if holds else SHOWN)
        for name, holds in tried.items()
    )
    return example_row(kernel).model_copy(update={"invariance": found})


def _of(record: Record, kernel: str) -> dict[str, Property]:
    (found,) = (each for (_, name), each in kernel_properties(record).items() if name == kernel)
    return found


def test_one_case_that_says_no_outweighs_those_that_say_yes() -> None:
    """A property is measured as yes where every case says so; no has the case that shows it."""
    yes, no = _row(KERNEL.name, batch_invariant=True), _row(KERNEL.name, batch_invariant=False)
    found = _of(_record(yes, no, yes), KERNEL.name)
    assert found["batch-invariant"].text == "no"
    assert found["batch-invariant"].row == no
    assert found["batch-invariant"].reason == SHOWN
    assert found["device-independent"].text == "not tried"
    assert _of(_record(yes), KERNEL.name)["batch-invariant"].text == "yes"


def test_declared_stands_beside_measured() -> None:
    """yes, no or not tried; declared, declared not to be, or neither."""
    row = _row(KERNEL.name, batch_invariant=False, device_independent=True)
    found = _of(_record(row, batch_invariant=True, device_independent=False), KERNEL.name)
    assert found["batch-invariant"].text == "no, declared"
    assert found["batch-invariant"].is_broken
    assert found["device-independent"].text == "yes, declared not to be"
    assert not found["device-independent"].is_broken
    assert found["bitwise-repeatable"].text == "yes, declared"


def test_repetition_is_measured_by_the_verdicts_own_rule() -> None:
    """A row that failed for it says no; a kernel that denies that it repeats isn't tried."""
    broken = _row(KERNEL.name, batch_invariant=True).model_copy(
        update={"status": "failed", "rule": "not repeatable", "reason": "two calls differ"}
    )
    found = _of(_record(broken), KERNEL.name)["bitwise-repeatable"]
    assert (found.text, found.reason) == ("no, declared", "two calls differ")
    loose = _record(_row(KERNEL.name, batch_invariant=True), bitwise_repeatable=False)
    assert _of(loose, KERNEL.name)["bitwise-repeatable"].text == "not tried, declared not to be"


def test_record_without_properties_has_no_kernel_properties() -> None:
    """As one that was made before there were any, or of cases that try none."""
    assert kernel_properties(_record(example_row())) == {}
    assert "depend on" not in markdown_of(_record(example_row()))


def test_reports_show_the_table_and_the_counterexamples() -> None:
    """On the terminal and in Markdown, with the case of a property that is missing."""
    row = _row(KERNEL.name, batch_invariant=False)
    record = _record(row, _row(OTHER.name, batch_invariant=True))
    page = markdown_of(record)
    assert "### Independence of bits, measured" in page
    assert "| kernel | bitwise-repeatable | batch-invariant | device-independent | " in page
    text = terminal(record)
    assert "Independence of bits, measured" in text
    assert "not batch-invariant" in text
    assert SHOWN in " ".join(text.split())


def test_denied_property_is_no_counterexample_on_the_terminal() -> None:
    """A kernel that says itself that it depends on the batch needs no case that shows it."""
    record = _record(_row(KERNEL.name, batch_invariant=False), batch_invariant=False)
    assert _of(record, KERNEL.name)["batch-invariant"].row is not None
    assert "not batch-invariant" not in terminal(record)
