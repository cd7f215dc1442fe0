"""What the commands that show records share: width, streams, and the files that are written."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from reports.arguments import whole_number
from reports.phrases import shown
from reports.record import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_WIDTH_OF_NO_TERMINAL = 120  # fits a CI log's page; rich alone would take 80


def spell_out_streams() -> None:
    """Under LC_ALL=C a name that isn't ASCII is spelled out, rather than a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def rows_uncollected() -> Iterator[None]:
    """Put off the search for cycles: rows are many and hold none, and it would walk them all.

    They are to be let go of inside: at the end the search is made up for.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def until_the_reader_has_enough() -> Iterator[None]:
    """A closed pipe (`| head`) ends what is inside, and is no error."""
    try:
        yield
    except BrokenPipeError:
        # Python would complain once more when flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


columns = whole_number(20, 10_000)  # a width, as an option gives it


def report_console(width: int | None = None) -> Console:
    """Where a report goes: the terminal, or a log that is wide enough; width: in columns."""
    if width is None and not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        width = _WIDTH_OF_NO_TERMINAL
    return Console(width=width)


def terminal_text(show: Callable[[Console], None], width: int | None) -> str:
    """What `show` prints; width: in columns, None for the terminal's."""
    console = report_console(width)
    # Captured, not printed: rich ends the process with status 1 at a broken pipe.
    with console.capture() as captured:
        show(console)
    return captured.get()


def save(path: Path, data: bytes) -> None:
    """Write a file, and its folder. Raises RecordError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RecordError(
            f"{shown(path)}: the report can't be written ({error.strerror}); name another path"
        ) from error
