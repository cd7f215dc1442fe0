"""The columns of a row's fields, as the row's class declares them (record/row_field.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kernel_workbench.reports.document.model import Cell, Column
from kernel_workbench.reports.phrases import whole
from kernel_workbench.reports.record.row_field import (
    columns_in_order,
    declaration_of,
    fields_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from kernel_workbench.reports.document.fields import Field

Item = TypeVar("Item")


def column_of(model: type, name: str) -> Column:
    """Return the column of a field."""
    field = fields_of(model)[name]
    rule = declaration_of(field)
    note = (field.description or "") if rule.note is None else rule.note
    return Column(rule.title, rule.kind, note, rank=rule.rank, below=rule.below)


def field_of(model: type, name: str, row_of: Callable[[Item], object]) -> Field[Item]:
    """Return the column of a row's field, and what its cell shows of an item.

    Args:
        row_of: returns the row of an item.
    """
    rule = declaration_of(fields_of(model)[name])
    is_text = rule.kind in {"text", "command"}
    missing = rule.missing if rule.missing is not None else "" if is_text else "-"
    form = rule.form or (str if is_text else whole)

    def cell(item: Item) -> Cell:
        value: Any = getattr(row_of(item), name)
        text = None if value is None else form(value)
        if text is None:
            return Cell(missing)
        tone = rule.tone(value) if callable(rule.tone) else rule.tone
        return Cell(text, None if is_text else value, tone)

    return column_of(model, name), cell


def fields_in_order(
    model: type,
    row_of: Callable[[Item], object],
    *,
    without: Collection[str] = (),
    derived: Mapping[str, Sequence[Field[Item]]],
) -> list[Field[Item]]:
    """Return the columns of all fields of a row that have one, from left to right.

    Args:
        without: fields that are left out.
        derived: further columns, by the field that they stand after.
    """
    columns = []
    for name, _ in columns_in_order(model):
        if name not in without:
            columns.append(field_of(model, name, row_of))
        columns += derived.get(name, ())
    return columns
