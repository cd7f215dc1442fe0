"""One line of a record: parsed, held to the schema, or refused in one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from reports.schema import (
    SCHEMA_VERSION,
    AccuracyRow,
    BenchRow,
    PredictionRow,
    ProfileRow,
    ResourceRow,
    Row,
    RunEnd,
    RunHeader,
)

if TYPE_CHECKING:
    from pathlib import Path

_Model = TypeVar("_Model", bound=BaseModel)

_SHOWN = 80  # characters of a value quoted in a message: enough to recognise it
_KINDS: dict[str, type[Row]] = {
    "accuracy": AccuracyRow,
    "resources": ResourceRow,
    "prediction": PredictionRow,
    "bench": BenchRow,
    "profile": ProfileRow,
}
# The kinds of row that a suite's record has; of most lines the first, which is tried first.
_OF_SUITE = {
    "accuracy": ("accuracy",),
    "compile": ("resources", "prediction"),
    "bench": ("bench",),
    "profile": ("profile",),
}


class RecordError(Exception):
    """A record can't be read, written or found; the message is one sentence for the user."""


def shown(text: object) -> str:
    """`text` on one line, with what a terminal obeys (escapes, direction marks) spelled out."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in line
    )


def header_of(path: Path, line: bytes, *, alone: bool) -> RunHeader:
    """The first line's header; alone: there is no other line. Raises RecordError."""
    value = _parsed(path, 1, line, last=alone)
    if value is None:
        raise RecordError(
            f"{shown(path)}, line 1: not JSON, so the file is no record or its header is cut; "
            "run again"
        )
    if value.get("kind") != "run":
        raise RecordError(
            f"{shown(path)}, line 1: the first line is not a run header (its kind is "
            f"{_quoted(value.get('kind'))}), so the file is no record"
        )
    version = value.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{shown(path)}, line 1: the record has schema version {_quoted(version)} and this "
            f"program reads version {SCHEMA_VERSION}; read it with the checkout that wrote it"
        )
    return _fitted(path, 1, line, RunHeader)


def line_of(
    path: Path, number: int, line: bytes, header: RunHeader, *, last: bool
) -> Row | RunEnd | None:
    """The line's row or end; None where it isn't JSON. Raises RecordError."""
    known = _OF_SUITE[header.suite]
    # Rows are by far the most lines: one pass parses and checks them, the rest is for messages.
    try:
        return _KINDS[known[0]].model_validate_json(line)
    except ValidationError:
        pass
    value = _parsed(path, number, line, last=last)
    if value is None:
        return None
    kind = value.get("kind")
    if kind in known:
        return _fitted(path, number, line, _KINDS[str(kind)])
    if kind == "end":
        return _fitted(path, number, line, RunEnd)
    if kind == "run":
        raise RecordError(
            f"{shown(path)}, line {number}: a second run header, so two records were joined; "
            "split the file there"
        )
    raise RecordError(
        f"{shown(path)}, line {number}: a line of kind {_quoted(kind)}, and this program knows "
        f"run, {', '.join(known)} and end"
    )


def _parsed(path: Path, number: int, line: bytes, *, last: bool) -> dict[str, object] | None:
    """The line's JSON object; None where it isn't JSON, which in the last line is a cut."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        if last:
            return None
        raise RecordError(
            f"{shown(path)}, line {number}: not UTF-8 at byte {error.start:,} of the line, so "
            "the file is damaged or no record; run again"
        ) from error
    except (ValueError, RecursionError):  # ValueError: also an integer of thousands of digits
        return None
    if not isinstance(value, dict):
        raise RecordError(
            f"{shown(path)}, line {number}: JSON, but not an object, so the file is no record"
        )
    return value


def _fitted(path: Path, number: int, line: bytes, model: type[_Model]) -> _Model:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        first, *others = error.errors(include_url=False, include_context=False)
        field = ".".join(map(str, first["loc"])) or "the line"
        message = first["msg"][:1].lower() + first["msg"][1:]
        more = f" (and {len(others)} more fields)" if others else ""
        raise RecordError(
            f"{shown(path)}, line {number}: {shown(field)[:_SHOWN]} doesn't fit schema version "
            f"{SCHEMA_VERSION}: {shown(message)}, got {_quoted(first['input'])}{more}"
        ) from error


def _quoted(value: object) -> str:
    text = shown(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
