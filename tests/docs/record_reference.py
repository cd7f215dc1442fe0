"""Make docs/reference/record.md, record.csv and record.schema.json of the classes of records.

python -m tests.docs.record_reference --write docs/reference
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from kernel_workbench.reports.arguments import CommandLine
from kernel_workbench.reports.record import (
    SCHEMA_VERSION,
    AccuracyRow,
    BenchRow,
    CompileRow,
    CoverageRow,
    FindRow,
    PredictionRow,
    ProfileRow,
    RunEnd,
    RunHeader,
)
from kernel_workbench.reports.record.row_field import (
    MERGES,
    MergedLine,
    declaration_of,
    fields_of,
    unit_of,
)

PAGE, TABLE, SCHEMA = "record.md", "record.csv", "record.schema.json"
# The lines of a record, as a suite writes them.
LINES: dict[type, str] = {
    RunHeader: "The first line, of every suite",
    AccuracyRow: "A row of accuracy, and of search",
    CoverageRow: "A row of accuracy with --coverage, and of search",
    FindRow: "A find of search",
    BenchRow: "A row of bench",
    ProfileRow: "A row of profile",
    CompileRow: "A row of compile",
    PredictionRow: "A predicted time of compile",
    RunEnd: "The last line, of every suite",
}
_HEAD = f"""# Fields of a record

Made by `python -m tests.docs.record_reference --write docs/reference`.

A record is a file of JSON lines: a header, rows, an end. Its schema version is {SCHEMA_VERSION}.
[record.csv](record.csv) is a table of all fields with type, unit and meaning;
[record.schema.json](record.schema.json) is the JSON schema of a line. A line has no other fields.
A missing figure is null, never zero. NaN and infinities are the strings "NaN", "Infinity" and
"-Infinity". A field without a unit is a count, a name or a sentence; "1" is the unit of a ratio.
The column "several processes" says how a row of `--rounds` or `--against` merges the values of its
processes.

The lines, each a class of the table; the table also has the classes of their parts:
"""


def parts_of(model: type) -> list[type]:
    """Return the classes of a line's parts, those of its parts included, in order."""
    found: dict[type, None] = {}
    for field in fields_of(model).values():
        for part in _classes(field.annotation):
            found |= dict.fromkeys((part, *parts_of(part)))
    return list(found)


def _classes(annotation: object) -> list[type]:
    if isinstance(annotation, type) and hasattr(annotation, "__pydantic_fields__"):
        return [annotation]
    return [each for part in get_args(annotation) for each in _classes(part)]


def text() -> str:
    """Return the page: its head, and a list of the lines of a record."""
    lines = [f"- `{model.__name__}`: {title.lower()}" for model, title in LINES.items()]
    return "\n".join([_HEAD, *lines, ""])


def table_text() -> str:
    """Return the table of all fields in CSV: a row for each class, then its fields."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["class", "field", "type", "unit", "meaning", "several processes"])
    classes = (part for line in LINES for part in (line, *parts_of(line)))
    for model in dict.fromkeys(classes):
        first = (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ")
        writer.writerow([model.__name__, "", "", "", _in_json(first), ""])
        writer.writerows(_rows(model))
    return table.getvalue()


def _rows(model: type) -> Iterator[list[str]]:
    """Yield a row for each field of a class."""
    for name, field in fields_of(model).items():
        kind = f"the kind of line: {field.default}" if name == "kind" else ""
        cells = [_type(field.annotation), unit_of(name, field), field.description or kind, ""]
        if issubclass(model, MergedLine):
            rule = declaration_of(field)
            source = f" of {rule.merge_of}" if rule.merge_of else ""
            cells[-1] = f"{MERGES[rule.merge][1]}{source}" if rule.merge else ""
        yield [model.__name__, name, *map(_in_json, cells)]


def _in_json(text: str) -> str:
    """Return a description with the words of JSON in place of Python's."""
    for word, of_json in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{word}\b", of_json, text)
    return text


def _type(annotation: Any) -> str:  # noqa: ANN401 (a type of any form)
    """Return a type as JSON has it: `number or null`, `list of TimedProcess`."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return _words(adapter.json_schema())


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_words, schema["anyOf"])))
    if "$ref" in schema or "title" in schema:
        return str(schema.get("$ref", schema.get("title"))).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(map(json.dumps, values))
    if schema.get("type") == "array":
        return f"list of {_words(schema['items'])}"
    if schema.get("type") == "object":
        return f"object of {_words(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


class _Schema(GenerateJsonSchema):
    """The schema of a record: a float that is no JSON number is a string."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Return the schema of a float, with what stands for NaN and infinities."""
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def schema_text() -> str:
    """Return the JSON schema of a line, with the unit of each field that has one."""
    union: Any = None
    for line in LINES:
        union = line if union is None else union | line
    schema: dict[str, Any] = TypeAdapter(union).json_schema(schema_generator=_Schema)
    classes = {part.__name__: part for line in LINES for part in (line, *parts_of(line))}
    for name, model in classes.items():
        properties = schema["$defs"][name]["properties"]
        for field_name, field in fields_of(model).items():
            if unit := unit_of(field_name, field):
                properties[field_name]["unit"] = unit
    top = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a record of kernel-workbench",
    }
    return json.dumps(top | schema, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the page, the table and the schema into the folder that --write names."""
    options = CommandLine(prog="python -m tests.docs.record_reference")
    options.add_argument("--write", type=Path, metavar="DIR", required=True)
    folder = options.read().write
    (folder / PAGE).write_text(text(), encoding="utf-8")
    (folder / TABLE).write_text(table_text(), encoding="utf-8")
    (folder / SCHEMA).write_text(schema_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
