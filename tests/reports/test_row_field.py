"""A field's declaration: its merge rule, its unit, and its column."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from kernel_workbench.reports.phrases import microseconds
from kernel_workbench.reports.record import BenchRow
from kernel_workbench.reports.record.row_field import (
    MergedLine,
    RowField,
    columns_in_order,
    fields_of,
    merged,
    unit_of,
)
from kernel_workbench.reports.views.row_columns import fields_in_order
from tests.builders.compared_records import bench_row


class _TriedRow(MergedLine):
    """A row as someone might add it."""

    kind: Literal["tried"] = "tried"
    kernel: Annotated[str, RowField(merge="key")]
    last_us: Annotated[float | None, RowField(merge="median", title="last", after="first_us")] = (
        None
    )
    first_us: Annotated[
        float | None, RowField(merge="largest", title="first", form=microseconds, rank=1)
    ] = None
    hits: Annotated[float, RowField(merge="sum", unit="0 to 1")] = 0.0


def test_field_without_a_merge_rule_is_refused_where_it_is_declared() -> None:
    """A run in several processes would report the value of the first one."""
    with pytest.raises(TypeError, match=r"_ForgottenRow\.mean_us has no merge rule"):

        class _ForgottenRow(_TriedRow):
            mean_us: float | None = None


def test_field_that_merges_the_values_of_no_field_is_refused() -> None:
    """The name of the other field is checked too."""
    with pytest.raises(TypeError, match="merges the values of middle_us"):

        class _WrongRow(_TriedRow):
            low_us: Annotated[float | None, RowField(merge="smallest", merge_of="middle_us")] = None


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("median_us", (3.0, 1.0, 2.0), 2.0),
        ("median_us", (None, 1.0, 2.0), 1.5),
        ("median_us", (None, None, None), None),
        ("cupti_us", (3.0, None, 2.0), 2.5),
        ("judged_us", (3.0, 1.0, 2.0), 2.0),
        ("judged_sets", (8, 4, 6), 4),
        ("unconfirmed", (None, "its calls are too short", None), "its calls are too short"),
        ("first_call_s", (1.0, 9.0, 2.0), 9.0),
        ("limit", ("memory", "matrix", "matrix"), "matrix"),
        ("variant", ("wide", "wide", "narrow"), "wide"),
        ("codes", (("shared GPU",), (), ("busy host", "shared GPU")), ("shared GPU", "busy host")),
        ("accuracy_s", (1.0, None, 2.0), 3.0),
    ],
)
def test_field_of_several_processes_has_the_value_that_its_rule_says(
    name: str, values: tuple[Any, ...], expected: object
) -> None:
    """The place of a process among the others doesn't decide a figure."""
    rows = [bench_row().model_copy(update={name: value}) for value in values]
    assert getattr(merged(rows), name) == expected


def test_median_of_merged_rows_lies_between_its_ends() -> None:
    """The interval is that of the processes' medians."""
    rows = [bench_row(median_us=value, low_us=0.0, high_us=99.0) for value in (4.0, 2.0, 7.0)]
    row = merged(rows)
    assert (row.low_us, row.median_us, row.high_us) == (2.0, 4.0, 7.0)


def test_column_stands_after_the_field_that_it_names() -> None:
    """Otherwise columns have the order of declaration; a field without a title has none."""
    assert [name for name, _ in columns_in_order(_TriedRow)] == ["first_us", "last_us"]


def test_cell_shows_a_field_as_it_is_declared() -> None:
    """Its form, and what stands for None."""
    (first, cell), (last, of_none) = fields_in_order(_TriedRow, lambda row: row, derived={})
    assert (first.title, first.rank, last.title) == ("first", 1, "last")
    row = _TriedRow(kernel="mine", first_us=1.5)
    assert (cell(row), of_none(row)) == (("1.500", 1.5, "", ()), ("-", None, "", ()))


def test_unit_is_what_the_name_ends_with() -> None:
    """A unit that is declared comes first."""
    units = {name: unit_of(name, field) for name, field in fields_of(_TriedRow).items()}
    assert units == {"kind": "", "kernel": "", "last_us": "us", "first_us": "us", "hits": "0 to 1"}
    fields = fields_of(BenchRow)
    names = ("gb_s", "duration_s", "tflops", "flops", "peak_bytes", "median_cycles")
    assert [unit_of(name, fields[name]) for name in names] == [
        *("GB/s", "s", "TFLOP/s", "FLOP", "bytes", "cycles"),
    ]
