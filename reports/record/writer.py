"""A record written line by line, so that a killed run leaves a readable one.

The file appears with its whole header (written aside, then linked under its name); every later
line is one `write` on an `O_APPEND` descriptor. So after `kill -9` at any moment a record is a
header and whole rows; after a full disk or a lost machine the last line may be cut.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record.reader import STAMP, RecordError, lines_of, why

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from kernel_workbench.reports.record.reader import Record, Row
    from kernel_workbench.reports.record.run import RunEnd, RunHeader


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Let Ctrl-C in when the block has ended: a row that is written is also counted."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread alone
        return
    # A mask of signals wouldn't do: the system hands Ctrl-C to any thread that doesn't block it.
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class _TakenError(RecordError):
    """There is a file of the record's name already."""


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
        with interrupts_later():
            self._append(row)
            self._rows += 1

    def close(self, end: RunEnd) -> None:
        """Append the last line and close the file.

        Raises RecordError, with the rows kept, where `end.rows` isn't the number written, or where
        the file isn't what was written: a kernel under test may have changed it.
        """
        digest = None
        with suppress(OSError), self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        if digest != self._written.digest():
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

    def __exit__(self, *_: object) -> None:
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


class RecordContinuation(RecordWriter):
    """Continue the record of a run that was cut off; its last line, cut or the end, is removed.

    Raises:
        RecordError: the file can't be written to.
    """

    def __init__(self, record: Record) -> None:
        self.path, self._rows, self._descriptor = record.path, len(record.every_row), -1
        whole = itertools.islice(lines_of(record.path), 1 + self._rows)
        data = b"\n".join(whole) + b"\n"
        self._written = hashlib.sha256(data)
        try:
            self._descriptor = os.open(record.path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(self._descriptor, len(data))
        except OSError as error:
            self._close()
            raise RecordError(
                f"{shown(record.path)}: the record can't be gone on with ({why(error)}); "
                "see that it can be written to"
            ) from error


def new_path(results: Path, suite: str, started: datetime, device_name: str) -> Path:
    """Return a free path in `results`, as `accuracy-20261121T041500Z-nvidia-h200.jsonl`.

    A `started` without a time zone is taken as UTC.
    """
    utc = started if started.tzinfo is None else started.astimezone(UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")[:40].strip("-") or "device"
    stem = f"{suite}-{utc.strftime(STAMP)}-{slug}"
    path = results / f"{stem}.jsonl"
    number = 2
    while os.path.lexists(path):
        path = results / f"{stem}-{number}.jsonl"
        number += 1
    return path


def new_record(
    results: Path, started: datetime, header: RunHeader, *, mark: str = ""
) -> RecordWriter:
    """Return a record in `results` under a free name, also where two runs begin in one second.

    Args:
        mark: what its name has after the device's.

    Raises:
        RecordError: the file can't be made.
    """
    device = f"{header.environment.device_name} {mark}"
    while True:
        try:
            return RecordWriter(new_path(results, header.suite, started, device), header)
        except _TakenError:
            continue  # by another run, since the name was looked for


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
