"""The files that a command is told to write: nothing else that lies there is ever overwritten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from reports.phrases import shown
from reports.record import RecordError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOOKED_AT = 4096  # bytes: a form is told by its head
# What a file of a form has in its head; it begins with the first character of each.
_MARKS = {
    "HTML": (b"<!doctype html", b"<html"),
    "JUnit XML": (b"<testsuite",),
    "SVG": (b"<svg",),
    "JSON of pytest-benchmark": (b'{\n    "machine_info"',),
}


def refuse_to_overwrite(targets: Mapping[str, tuple[Path, str]]) -> None:
    """Refuse files that may not be written, before any is; by option, its path and its form.

    A file of the same form may be overwritten, and so may an empty one or a device. Raises
    RecordError.
    """
    taken: dict[Path, str] = {}
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
        other = taken.setdefault(whole, option)
        if other != option:
            raise RecordError(f"{where}: {other} names the same file; give each its own")


def _head(path: Path) -> tuple[bytes, bool]:
    """How the file begins, and whether there is anything that could be lost."""
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if not path.exists():
        nearest = next(each for each in path.absolute().parents if each.exists())
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
    return head[:1] == marks[0][:1] and any(each in head.lower() for each in marks)


def _is_record(head: bytes) -> bool:
    return head.startswith((b'{"kind":"run"', b"\x1f\x8b"))
