"""A record read from its file: line by line, each held to the schema or refused in one sentence."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record.accuracy_row import AccuracyRow
from kernel_workbench.reports.record.bench_row import BenchRow
from kernel_workbench.reports.record.compile_row import CompileRow, PredictionRow
from kernel_workbench.reports.record.profile_row import ProfileRow
from kernel_workbench.reports.record.run import SCHEMA_VERSION, RunEnd, RunHeader
from kernel_workbench.reports.record.search_row import CoverageRow, FindRow

Row = AccuracyRow | CompileRow | PredictionRow | BenchRow | ProfileRow | FindRow | CoverageRow
Line = Annotated[
    RunHeader | AccuracyRow | FindRow | CoverageRow | RunEnd, Field(discriminator="kind")
]
_Model = TypeVar("_Model", bound=BaseModel)
_SHOWN = 80  # characters of a value quoted in a message: enough to recognise it
_MOST_BYTES = 2**29  # of a file: fifty times a long run's, and no device that never ends
_KINDS: dict[str, type[Row]] = {
    "accuracy": AccuracyRow,
    "resources": CompileRow,
    "prediction": PredictionRow,
    "bench": BenchRow,
    "profile": ProfileRow,
    "find": FindRow,
    "coverage": CoverageRow,
}
# The kinds of row that a suite's record has; of most lines the first, which is tried first.
_OF_SUITE = {
    "accuracy": ("accuracy", "coverage"),
    "compile": ("resources", "prediction"),
    "bench": ("bench",),
    "profile": ("profile",),
    "search": ("accuracy", "find", "coverage"),
}
STAMP = "%Y%m%dT%H%M%SZ"  # of a record's name
_STAMP_IN_NAME = re.compile(r"-(\d{8}T\d{6}Z)-")


class RecordError(Exception):
    """A record can't be read, written or found; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read: of `accuracy` rows, of `compile` resources and predictions, and so on.

    Attributes:
        rows, compiled, predictions, benches, profiles, finds, coverage: whole rows, in the order
            they were written.
        end: None where the run was cut off.
        problem: None for the record of a run that finished all it planned; otherwise one sentence.
    """

    path: Path
    header: RunHeader
    rows: tuple[AccuracyRow, ...]
    end: RunEnd | None
    problem: str | None
    compiled: tuple[CompileRow, ...] = ()
    predictions: tuple[PredictionRow, ...] = ()
    benches: tuple[BenchRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()
    finds: tuple[FindRow, ...] = ()
    coverage: tuple[CoverageRow, ...] = ()

    @property
    def every_row(self) -> tuple[Row, ...]:
        """The rows of all kinds, kind by kind."""
        kinds: tuple[tuple[Row, ...], ...] = (
            *(self.rows, self.compiled, self.predictions, self.benches, self.profiles),
            *(self.finds, self.coverage),
        )
        return tuple(row for kind in kinds for row in kind)


def read(
    path: Path,
    *,
    into: Callable[[Row], None] | None = None,
    thinned: Callable[[Row], Row] | None = None,
) -> Record:
    """Read a record, also that of a run that was killed.

    Args:
        into: takes each row as it is read, and the record then holds none: raw samples of several
            records needn't be in memory at one time.
        thinned: takes each row as it is read, and gives what of it the record holds.

    Raises:
        RecordError: the file isn't a record that this program reads.

    Example:
        >>> record = read(Path("results/bench-20261121T041500Z-nvidia-h200.jsonl"))
        >>> {row.kernel: row.median_us for row in record.benches if row.status == "timed"}
    """
    lines = lines_of(path)
    first = _first_of(path, lines)
    header = header_of(path, first)
    rows: list[Row] = []
    keep, result = rows.append if into is None else into, 0
    end: RunEnd | None = None
    number, start = 1, len(first) + 1
    for number, line in enumerate(lines, 2):
        if end is not None:
            raise RecordError(
                f"{shown(path)}, line {number}: something follows the end line, so two runs "
                "wrote one file or it was edited; run again"
            )
        value = line_of(path, number, line, header)
        if value is None and next(lines, None) is None:
            problem = (
                f"{shown(path)}: the last line is cut at byte {start + len(line):,}; "
                f"{result:,} of {header.planned_rows:,} rows are whole"
            )
            return _record(path, header, rows, None, problem)
        if value is None:
            raise RecordError(
                f"{shown(path)}, line {number}: not JSON, and not the last line, so the file is "
                "damaged; run again"
            )
        if isinstance(value, RunEnd):
            end = value
        else:
            keep(value if thinned is None else thinned(value))
            result += 1
        start += len(line) + 1
    if end is not None and end.rows != result:
        raise RecordError(
            f"{shown(path)}, line {number}: the end line counts {end.rows} rows and the file "
            f"has {result}, so lines were lost or added; run again"
        )
    return _record(path, header, rows, end, _problem(path, header, result, end))


def latest(results: Path, suite: str = "") -> Path:
    """Return the newest record in `results`, of this suite or of any.

    By the time stamp in its name, else by when it was written. Raises RecordError where there is
    none.
    """
    if results.is_file():
        raise RecordError(
            f"{shown(results)}: it is no folder; --results takes the records' folder, and a record "
            "is named without it"
        )
    try:
        result = [path for path in results.glob(f"{suite}*.jsonl") if path.is_file()]
        newest = max(result, key=_age, default=None)
    except OSError as error:
        raise RecordError(f"{shown(results)}: can't be searched ({why(error)})") from error
    if newest is None:
        raise RecordError(f"{shown(results)}: there is no record here; `accuracy` makes one")
    return newest


def _age(path: Path) -> tuple[float, float, str]:
    written = path.stat().st_mtime
    stamp = _STAMP_IN_NAME.search(path.name)
    if stamp is None:
        return written, written, path.name
    try:
        named = datetime.strptime(stamp[1], STAMP).replace(tzinfo=UTC)
    except ValueError:  # digits that are no date, as in month 13
        return written, written, path.name
    return named.timestamp(), written, path.name


def _record(
    path: Path, header: RunHeader, rows: Sequence[Row], end: RunEnd | None, problem: str | None
) -> Record:
    return Record(
        path=path,
        header=header,
        rows=tuple(row for row in rows if isinstance(row, AccuracyRow)),
        end=end,
        problem=problem,
        compiled=tuple(row for row in rows if isinstance(row, CompileRow)),
        predictions=tuple(row for row in rows if isinstance(row, PredictionRow)),
        benches=tuple(row for row in rows if isinstance(row, BenchRow)),
        profiles=tuple(row for row in rows if isinstance(row, ProfileRow)),
        finds=tuple(row for row in rows if isinstance(row, FindRow)),
        coverage=tuple(row for row in rows if isinstance(row, CoverageRow)),
    )


def _problem(path: Path, header: RunHeader, rows: int, end: RunEnd | None) -> str | None:
    count = f"{rows:,} of {header.planned_rows:,} rows" if header.planned_rows else f"{rows:,} rows"
    if end is None:
        return f"{shown(path)}: the run did not finish: {count}"
    if end.stopped is not None:
        return f"{shown(path)}: the run ended early ({end.stopped}): {count}"
    if end.interrupted:
        return f"{shown(path)}: the run was interrupted: {count}"
    if rows < header.planned_rows:
        return f"{shown(path)}: the run stopped early: {count}"
    return None


def header_at(path: Path) -> RunHeader:
    """Read the header of a record alone. Raises RecordError."""
    return header_of(path, _first_of(path, lines_of(path)))


def _first_of(path: Path, lines: Iterator[bytes]) -> bytes:
    """Return the first line. Raises RecordError for a file of nothing but white space."""
    first = next(lines, b"")
    if not first.strip() and not any(map(bytes.strip, lines)):
        raise RecordError(f"{shown(path)}: the file is empty, so it is no record; run again")
    return first


def header_of(path: Path, line: bytes) -> RunHeader:
    """Return the first line's header. Raises RecordError."""
    value = _parsed(path, 1, line)
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


def line_of(path: Path, number: int, line: bytes, header: RunHeader) -> Row | RunEnd | None:
    """Return the line's row or end; None where it isn't JSON. Raises RecordError."""
    present = _OF_SUITE[header.suite]
    # Rows are by far the most lines: one pass parses and checks them, the rest is for messages.
    try:
        return _KINDS[present[0]].model_validate_json(line)
    except ValidationError:
        pass
    value = _parsed(path, number, line)
    if value is None:
        return None
    kind = value.get("kind")
    if kind in present:
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
        f"run, {', '.join(present)} and end"
    )


def _parsed(path: Path, number: int, line: bytes) -> dict[str, object] | None:
    """Return the line's JSON object; None where it isn't JSON, which in the last line is a cut."""
    try:
        value = json.loads(line.decode())
    except (
        ValueError,
        RecursionError,
    ):  # not UTF-8, not JSON, or an integer of thousands of digits
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
        first, *rest = error.errors(include_url=False, include_context=False)
        field = ".".join(map(str, first["loc"])) or "the line"
        message = first["msg"][:1].lower() + first["msg"][1:]
        more = f" (and {len(rest)} more fields)" if rest else ""
        raise RecordError(
            f"{shown(path)}, line {number}: {shown(field)[:_SHOWN]} doesn't fit schema version "
            f"{SCHEMA_VERSION}: {shown(message)}, got {_quoted(first['input'])}{more}"
        ) from error


def _quoted(value: object) -> str:
    text = shown(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the file's lines without their newlines, unpacked where its name ends in .gz.

    Raises:
        RecordError: it can't be read, or can be no record's.
    """
    size = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(_MOST_BYTES + 1 - size):
                size += len(line)
                if size > _MOST_BYTES:
                    raise RecordError(
                        f"{shown(path)}: larger than {_MOST_BYTES >> 20:,} MiB, so it is no "
                        "record; name another file"
                    )
                yield line.removesuffix(b"\n")
    except FileNotFoundError as error:
        raise RecordError(
            f"{shown(path)}: there is no such file; `accuracy` makes a record"
        ) from error
    except (EOFError, zlib.error) as error:
        raise RecordError(
            f"{shown(path)}: it is cut or damaged and can't be unpacked; copy it again"
        ) from error
    except IsADirectoryError as error:
        raise RecordError(f"{shown(path)}: it is a folder; name a record in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RecordError(
            f"{shown(path)}: it can't be read ({why(error)}); name a record"
        ) from error


def why(error: Exception) -> str:
    """Return the system's message of an error on one line."""
    return shown(getattr(error, "strerror", None) or error)
