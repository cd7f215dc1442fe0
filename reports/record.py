"""A record on disk: written line by line so that a killed run leaves a readable one, and read.

The file appears with its whole header (written aside, then linked under its name); every later
line is one `write` on an `O_APPEND` descriptor. So after `kill -9` at any moment a record is a
header and whole rows; after a full disk or a lost machine the last line may be cut.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from reports.contents import chunks_of, lines_of, number_of_lines, why
from reports.lines import RecordError, header_of, line_of, shown
from reports.schema import (
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
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from pydantic import BaseModel

__all__ = [
    "Record",
    "RecordError",
    "RecordWriter",
    "latest",
    "new_path",
    "new_record",
    "read",
    "shown",
]

_STAMP = "%Y%m%dT%H%M%SZ"
_STAMP_IN_NAME = re.compile(r"-(\d{8}T\d{6}Z)-")


class _TakenError(RecordError):
    """There is a file of the record's name already."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read: of `accuracy` rows, of `compile` resources and predictions, and so on.

    rows, resources, predictions, benches, profiles    whole rows, in the order they were written
    end      None where the run was cut off
    problem  None for the record of a run that finished all it planned; otherwise one sentence
    """

    path: Path
    header: RunHeader
    rows: tuple[AccuracyRow, ...]
    end: RunEnd | None
    problem: str | None
    resources: tuple[ResourceRow, ...] = ()
    predictions: tuple[PredictionRow, ...] = ()
    benches: tuple[BenchRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()


class RecordWriter:
    """Writes one record, whole line by whole line.

    Raises RecordError where `path` exists already (a record is never overwritten), where its
    folder can't be made or written to, and where the disk is full; after a failed write the file
    still ends with a whole line.
    """

    def __init__(self, path: Path, header: RunHeader) -> None:
        self.path = path
        self._rows = 0
        self._descriptor = -1
        self._written = hashlib.sha256()
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                aside.unlink()  # of a killed process that had this one's id
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._descriptor = os.open(aside, flags, 0o666)
            self._append(header)
            named = _give_name(aside, path)
        except OSError as error:
            self._close()
            raise RecordError(
                f"{shown(path)}: the record can't be created ({why(error)}); "
                "name a folder that can be written to"
            ) from error
        except RecordError:
            self._close()
            raise
        finally:
            with suppress(OSError):
                aside.unlink()
        if not named:
            self._close()
            raise _TakenError(
                f"{shown(path)}: there is a file of that name already, and a record is never "
                "overwritten; give the run another path"
            )

    def write(self, row: Row) -> None:
        """Append one row; it is in the file, whole, when this returns."""
        self._append(row)
        self._rows += 1

    def close(self, end: RunEnd) -> None:
        """Append the last line and close the file.

        Raises RecordError, with the rows kept, where `end.rows` isn't the number written, or where
        the file isn't what was written: a kernel under test may have changed it.
        """
        found = hashlib.sha256()
        for chunk in chunks_of(self.path):
            found.update(chunk)
        if found.digest() != self._written.digest():
            self._close()
            raise RecordError(
                f"{shown(self.path)}: something else wrote to the record while the run went on; "
                "it can't be believed, run again"
            )
        if end.rows != self._rows:
            self._close()
            raise RecordError(
                f"{shown(self.path)}: the end line counts {end.rows} rows and {self._rows} were "
                "written; pass the number that was written"
            )
        try:
            self._append(end)
        finally:
            self._close()

    def __enter__(self) -> Self:
        """Return the writer; leaving without `close` leaves a record without an end line."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the descriptor; an end line is written by `close` alone."""
        self._close()

    def _append(self, line: BaseModel) -> None:
        if self._descriptor < 0:
            raise RecordError(f"{shown(self.path)}: the record is closed, so no row can be added")
        data = line.model_dump_json().encode() + b"\n"
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                # A cut line in mid-file would make every later row unreadable: take it back.
                size = os.fstat(self._descriptor).st_size
                os.ftruncate(self._descriptor, size - written)
            else:
                self._written.update(data)
        except OSError as error:
            raise RecordError(
                f"{shown(self.path)}: a line can't be written ({why(error)}); "
                "the rows before it are kept"
            ) from error
        if written < len(data):
            raise RecordError(
                f"{shown(self.path)}: only {written} of a line's {len(data)} bytes could be "
                "written (is the disk full?); the rows before it are kept"
            )

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read(
    path: Path,
    *,
    into: Callable[[Row], None] | None = None,
    thinned: Callable[[bytes], bytes] | None = None,
) -> Record:
    """Read a record, also that of a run that was killed.

    into: takes each row as it is read, and the record then holds none: raw samples of several
    records needn't be in memory at one time.
    thinned: takes each line of a row, and gives what is to be read of it.
    Raises RecordError, in one sentence, where the file isn't a record that this program reads.
    """
    chunks = chunks_of(path)
    count, lines = number_of_lines(chunks), lines_of(chunks)
    first = next(lines)
    header = header_of(path, first, alone=count == 1)
    rows: list[Row] = []
    keep, found = rows.append if into is None else into, 0
    end: RunEnd | None = None
    start = len(first) + 1
    for number, line in enumerate(lines, 2):
        if end is not None:
            raise RecordError(
                f"{shown(path)}, line {number}: something follows the end line, so two runs "
                "wrote one file or it was edited; run again"
            )
        told = line if thinned is None else thinned(line)
        value = line_of(path, number, told, header, last=number == count)
        if value is None and number == count:
            problem = (
                f"{shown(path)}: the last line is cut at byte {start + len(line):,}; "
                f"{found:,} of {header.planned_rows:,} rows are whole"
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
            keep(value)
            found += 1
        start += len(line) + 1
    if end is not None and end.rows != found:
        raise RecordError(
            f"{shown(path)}, line {count}: the end line counts {end.rows} rows and the file "
            f"has {found}, so lines were lost or added; run again"
        )
    return _record(path, header, rows, end, _problem(path, header, found, end))


def _record(
    path: Path, header: RunHeader, rows: Sequence[Row], end: RunEnd | None, problem: str | None
) -> Record:
    return Record(
        path=path,
        header=header,
        rows=tuple(row for row in rows if isinstance(row, AccuracyRow)),
        end=end,
        problem=problem,
        resources=tuple(row for row in rows if isinstance(row, ResourceRow)),
        predictions=tuple(row for row in rows if isinstance(row, PredictionRow)),
        benches=tuple(row for row in rows if isinstance(row, BenchRow)),
        profiles=tuple(row for row in rows if isinstance(row, ProfileRow)),
    )


def new_path(results: Path, suite: str, started: datetime, device_name: str) -> Path:
    """A path in `results` that no file has, as `accuracy-20261121T041500Z-nvidia-h200.jsonl`.

    A `started` without a time zone is taken as UTC.
    """
    utc = started if started.tzinfo is None else started.astimezone(UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")[:40].strip("-") or "device"
    stem = f"{suite}-{utc.strftime(_STAMP)}-{slug}"
    path = results / f"{stem}.jsonl"
    number = 2
    while os.path.lexists(path):
        path = results / f"{stem}-{number}.jsonl"
        number += 1
    return path


def new_record(
    results: Path, started: datetime, header: RunHeader, *, mark: str = ""
) -> RecordWriter:
    """A record in `results` under a name of its own, also where two runs begin in one second.

    mark: what its name has after the device's. Raises RecordError.
    """
    device = f"{header.environment.device_name} {mark}"
    while True:
        try:
            return RecordWriter(new_path(results, header.suite, started, device), header)
        except _TakenError:
            continue  # by another run, since the name was looked for


def latest(results: Path) -> Path:
    """The newest record in `results`, by the time stamp in its name, else by when it was written.

    Raises RecordError where there is none.
    """
    if results.is_file():
        raise RecordError(
            f"{shown(results)}: it is no folder; --results takes the records' folder, and a record "
            "is named without it"
        )
    try:
        found = [path for path in results.glob("*.jsonl") if path.is_file()]
        newest = max(found, key=_age, default=None)
    except OSError as error:
        raise RecordError(f"{shown(results)}: can't be searched ({why(error)})") from error
    if newest is None:
        raise RecordError(f"{shown(results)}: there is no record here; `nox -s accuracy` makes one")
    return newest


def _age(path: Path) -> tuple[float, float, str]:
    written = path.stat().st_mtime
    stamp = _STAMP_IN_NAME.search(path.name)
    if stamp is None:
        return written, written, path.name
    try:
        named = datetime.strptime(stamp[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:  # digits that are no date, as in month 13
        return written, written, path.name
    return named.timestamp(), written, path.name


def _give_name(aside: Path, path: Path) -> bool:
    """Give the file `aside` the name `path` too; False where a file has it already."""
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError:
        # Some network and FAT file systems have no hard links; there a rename comes closest.
        if os.path.lexists(path):
            return False
        aside.rename(path)
    return True


def _problem(path: Path, header: RunHeader, rows: int, end: RunEnd | None) -> str | None:
    count = f"{rows:,} of {header.planned_rows:,} rows"
    if end is None:
        return f"{shown(path)}: the run did not finish: {count}"
    if end.interrupted:
        return f"{shown(path)}: the run was interrupted: {count}"
    if rows < header.planned_rows:
        return f"{shown(path)}: the run stopped early: {count}"
    return None
