"""The declaration of a row's field: its unit, its column, and how its values merge.

A row's class declares each of its fields once, and the code that shows or merges rows reads the
declaration:

    clock_mhz: Annotated[float | None, RowField(merge="median", title="MHz", form=whole)] = Field(
        default=None, description="median over the samples"
    )
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from kernel_workbench.reports.record.line import CaseInfo, SchemaLine

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from kernel_workbench.reports.document.model import Kind, Tone

Merge = Literal[
    "key", "common", "median", "sum", "smallest", "largest", "concatenated", "distinct", "any"
]
# How a merged row gets a value from its processes' values, and the same in words; None isn't one.
MERGES: dict[Merge, tuple[Callable[[Sequence[Any]], Any], str]] = {
    "key": (lambda values: values[0], "rows that differ in it aren't merged"),
    "common": (statistics.mode, "the value of most processes"),  # of several such the first
    "median": (statistics.median, "median"),
    "sum": (sum, "sum"),
    "smallest": (min, "smallest"),
    "largest": (max, "largest"),
    "concatenated": (
        lambda values: tuple(chain.from_iterable(values)),
        "those of every process, in order",
    ),
    "distinct": (
        lambda values: tuple(dict.fromkeys(chain.from_iterable(values))),
        "those of any process, each once",
    ),
    "any": (lambda values: values[0], "the first process that has one"),
}
# Units by the end of a field's name, the longest first.
_UNITS = {
    "gb_s": "GB/s",
    "_cycles": "cycles",
    "tflops": "TFLOP/s",
    "flops": "FLOP",
    "bytes": "bytes",
    "_mhz": "MHz",
    "_share": "0 to 1",
    "_us": "us",
    "_ms": "ms",
    "_s": "s",
    "_j": "J",
    "_w": "W",
    "_c": "°C",
}
_LAST_RANK = 20  # of a column whose field names none: the first that a narrow terminal leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class RowField:
    """The declaration of a field, in the field's annotation.

    Args:
        merge: how the values of several processes become one. None: rows of the class never merge.
        merge_of: the field whose values are merged. Empty: its own.
        unit: empty for a count, or where the end of the field's name says it.
        title: of the field's column in the table of its rows. Empty: no column.
        form: returns what a cell shows of a value; None from it is shown as `missing`. By default
            the text itself, or a whole number.
        kind: of the column: "number" sorts by value and stands to the right.
        note: what explains the title. None: the field's description.
        rank: of the column; a narrow terminal leaves out the highest first.
        after: the field whose column stands before this one. Empty: by the order of declaration.
        tone: of the cell, or a function of the value that returns it.
        below: in a terminal the cell has lines of its own below its row.
        missing: what a cell shows of None. None: "-" for a figure, nothing for a text.
    """

    merge: Merge | None = None
    merge_of: str = ""
    unit: str = ""
    title: str = ""
    form: Callable[[Any], str | None] | None = None
    kind: Kind = "number"
    note: str | None = None
    rank: int = _LAST_RANK
    after: str = ""
    tone: Tone | Callable[[Any], Tone] = ""
    below: bool = False
    missing: str | None = None


_PLAIN = RowField()


class MergedLine(SchemaLine):
    """A row that several processes may have. A field without a merge rule is a TypeError."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: object) -> None:
        """Hold every field to a rule. Raises TypeError, at import."""
        super().__pydantic_init_subclass__(**settings)
        fields = fields_of(cls)
        for name, field in fields.items():
            rule = declaration_of(field)
            if name != "kind" and rule.merge is None:
                raise TypeError(
                    f"{cls.__name__}.{name} has no merge rule, so a run in several processes "
                    f"doesn't know its value; annotate it with RowField(merge=...), one of "
                    f"{', '.join(get_args(Merge))}"
                )
            if rule.merge_of and rule.merge_of not in fields:
                raise TypeError(
                    f"{cls.__name__}.{name} merges the values of {rule.merge_of}, which is no "
                    "field of the class"
                )


_Merged = TypeVar("_Merged", bound=MergedLine)


def fields_of(model: type) -> Mapping[str, FieldInfo]:
    """Return the fields of a pydantic model or dataclass, in the order of a record."""
    fields: Mapping[str, FieldInfo] = model.__pydantic_fields__  # type: ignore[attr-defined]
    return fields


def declaration_of(field: FieldInfo) -> RowField:
    """Return the declaration in a field's annotation; a plain one where it has none."""
    return next(
        (declaration for declaration in field.metadata if isinstance(declaration, RowField)), _PLAIN
    )


def unit_of(name: str, field: FieldInfo) -> str:
    """Return the unit of a field; empty for a count or a text."""
    ends = (unit for end, unit in _UNITS.items() if name.endswith(end))
    return declaration_of(field).unit or next(ends, "")


def columns_in_order(model: type) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields that have a column, from left to right."""
    fields = fields_of(model)
    titled = {name: declaration_of(field) for name, field in fields.items()}

    def following(before: str) -> Iterator[tuple[str, FieldInfo]]:
        for name, rule in titled.items():
            if rule.title and rule.after == before:
                yield name, fields[name]
                yield from following(name)

    return following("")


def key_of(row: MergedLine) -> tuple[object, ...]:
    """Return what tells a row from the other rows of its process."""
    fields = fields_of(type(row)).items()
    names = [name for name, field in fields if declaration_of(field).merge == "key"]
    values = (getattr(row, name) for name in names)
    return tuple(value.id if isinstance(value, CaseInfo) else value for value in values)


def merged(rows: Sequence[_Merged]) -> _Merged:
    """Return one row of the rows of one key, each of another process."""
    values = {}
    for name, field in fields_of(type(rows[0])).items():
        rule = declaration_of(field)
        if rule.merge is not None:
            own = (getattr(row, rule.merge_of or name) for row in rows)
            present = [value for value in own if value is not None]
            values[name] = MERGES[rule.merge][0](present) if present else None
    return rows[0].model_copy(update=values)
