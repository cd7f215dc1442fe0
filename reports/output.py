"""Where reports go: files, of which no other is ever overwritten, and the terminal."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from rich.console import Console

from kernel_workbench.reports.arguments import NARROWEST, WIDEST
from kernel_workbench.reports.document.html import render_html
from kernel_workbench.reports.document.markdown import render_markdown
from kernel_workbench.reports.document.terminal import print_document
from kernel_workbench.reports.exit_status import status_of
from kernel_workbench.reports.phrases import memory, shown
from kernel_workbench.reports.record import RecordError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from kernel_workbench.reports.document.model import Document

_WIDTH_OF_NO_TERMINAL = 120  # fits a CI log's page; rich alone would take 80
_LINES = 25  # of a console: no report depends on them
_LOOKED_AT = 4096  # bytes: the head of a file shows its form
# A file of a form has one of these in its head, and begins with the first character of one.
_MARKS = {
    "HTML": (b"<!doctype html", b"<html"),
    "JUnit XML": (b"<testsuite",),
    "SVG": (b"<svg",),
    "JSON of pytest-benchmark": (b'{\n    "machine_info"',),
}


class LastingOutput:
    """A stream that loses what nobody can read, where the stream behind it would raise.

    A closed pipe (`| head -1`) and a full disk are no verdict: the command's status must stand.
    problem: why the last write failed, other than by a closed pipe; None: it didn't.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: str | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the stream has)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or lose it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or lose what it holds."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Send what is left, and what Python flushes at exit, nowhere."""
        if not isinstance(error, BrokenPipeError):
            self.problem = error.strerror or str(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def lasting(stream: TextIO) -> TextIO:
    """Return the stream as a `LastingOutput`, for `print` and for rich."""
    return stream if isinstance(stream, LastingOutput) else cast("TextIO", LastingOutput(stream))


def outlast_readers() -> None:
    """Let this process print to a pipe that closes, or to a disk that fills, and go on."""
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr)


def run_alone(main: Callable[[], int]) -> NoReturn:
    """Run the command that this process is for, and end it with the command's status.

    Python's search for cycles is off: rows are many and hold none, and it would walk them all.
    """
    gc.disable()
    outlast_readers()
    status = status_of(main)
    gc.freeze()  # the system takes all back at once
    sys.exit(status)


def report_console(width: int | None = None, stream: TextIO | None = None) -> Console:
    """Return the console that a report goes to, which outlasts its reader.

    Args:
        width: its columns. None: those of COLUMNS or of the terminal, or 120 in a log.
        stream: what the console writes to. None: stdout.
    """
    stream = stream or sys.stdout
    return Console(file=lasting(stream), width=width or _columns(stream), height=_LINES)


def _columns(stream: TextIO) -> int:
    """Return the width of a stream: rich would draw nothing in 0 columns, and raise at "²"."""
    text = os.environ.get("COLUMNS", "")
    if re.fullmatch("[0-9]{1,9}", text) and int(text):
        return min(max(int(text), NARROWEST), WIDEST)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH_OF_NO_TERMINAL
    except (OSError, ValueError):  # no terminal; no file behind the stream
        return _WIDTH_OF_NO_TERMINAL


def write_document(document: Document, options: argparse.Namespace) -> None:
    """Write the forms that --html and --markdown name, and print it, --width columns wide.

    Files come first, so that a closed pipe (`| head`), which is no error, loses none.

    Raises:
        RecordError: a file or stdout can't be written.
    """
    if options.html is not None:
        save(options.html, render_html(document).encode())
    if options.markdown is not None:
        text = render_markdown(document)
        if options.markdown != "-":
            save(Path(options.markdown), text.encode())
    if options.markdown != "-":
        console = report_console(options.width)
        # Captured, not printed: rich ends the process with status 1 at a broken pipe.
        with console.capture() as captured:
            print_document(document, console, details=options.details)
        text = captured.get()
    # Under LC_ALL=C a name that isn't ASCII is spelled out, rather than a traceback.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    output = LastingOutput(sys.stdout)
    output.write(text)
    output.flush()
    problem = output.problem or getattr(sys.stdout, "problem", None)
    if problem is not None:
        raise RecordError(f"the report can't be written to stdout ({problem}); name a file")


def save(path: Path, data: bytes) -> None:
    """Write a file and its folder, and say so on stderr.

    Raises:
        RecordError: the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RecordError(
            f"{shown(path)}: the report can't be written ({error.strerror}); name another path"
        ) from error
    print(f"wrote {shown(path)}, {memory(len(data))}", file=sys.stderr)


def refuse_to_overwrite(targets: Mapping[str, tuple[Path, str]]) -> None:
    """Refuse files that may not be written, before any is; by option, its path and its form.

    A file of the same form may be overwritten, and so may an empty one or a device. Raises
    RecordError.
    """
    used: dict[Path, str] = {}
    for option, (path, form) in targets.items():
        where = f"{option} {shown(path)}"
        if path.name == "-":
            raise RecordError(f"{where}: {form} is written to a file; name one")
        try:
            head, exists = _head(path)
            whole = path.resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; a loop of links
            cause = shown(getattr(error, "strerror", None) or error)
            raise RecordError(
                f"{where}: the file can't be written ({cause}); name another path"
            ) from error
        if exists and not _is_of(form, path, head):
            what = "is a record" if _is_record(head) else f"isn't {form}"
            raise RecordError(
                f"{where}: the file that is there {what}, so it isn't overwritten; name "
                "another path"
            )
        other = used.setdefault(whole, option)
        if other != option:
            raise RecordError(f"{where}: {other} names the same file; give each its own")


def _head(path: Path) -> tuple[bytes, bool]:
    """Return how the file begins, and whether there is anything that could be lost."""
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise PermissionError(None, f"{shown(nearest)} takes no files")
    if not path.is_file():
        return b"", False
    with path.open("rb") as file:
        head = file.read(_LOOKED_AT).removeprefix(b"\xef\xbb\xbf").strip()
    return head, bool(head) or path.stat().st_size > _LOOKED_AT


def _is_of(form: str, path: Path, head: bytes) -> bool:
    if form == "Markdown":
        # Nothing tells Markdown from other text but its name, or the heading of a report.
        named = path.suffix.lower() in {".md", ".markdown"} and head[:1] not in b"{[<"
        return b"\0" not in head and (named or head.startswith(b"## "))
    marks = _MARKS[form]
    return head[:1] == marks[0][:1] and any(mark in head.lower() for mark in marks)


def _is_record(head: bytes) -> bool:
    return head.startswith((b'{"kind":"run"', b"\x1f\x8b"))
