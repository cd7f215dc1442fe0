"""Failures that a team accepts, in a file: they don't fail a run, and new ones do.

A line is a kernel's name and a case's id; `#` begins a comment. A report of `--json`, or its list
of failures, serves as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernel_workbench.reports.phrases import shown

Names = tuple[str, str]  # of a kernel and a case
_HEAD = "# Accepted failures of kernel-workbench: a kernel and a case a line."
_MOST_BYTES = 2**26


class AcceptedError(ValueError):
    """The file of accepted failures can't be used; the message is a sentence."""


def read_accepted(file: str) -> frozenset[Names]:
    """Return the kernels and cases that a file accepts. Raises AcceptedError."""
    where = f"--accepted {shown(file)}"
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise AcceptedError(f"{where}: it is too large for a list of failures; name another")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AcceptedError(f"{where}: it isn't text in UTF-8; name another file") from error
    except (OSError, ValueError) as error:  # a NUL in the name
        cause = getattr(error, "strerror", None) or error
        raise AcceptedError(f"{where}: it can't be read ({cause}); --accept writes one") from error
    if text.lstrip().startswith(("{", "[")):
        return _of_json(where, text)
    names = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and len(words) != len(("kernel", "case")):
            raise AcceptedError(
                f"{where}, line {number}: {shown(line.strip()[:80])} isn't a kernel and a case; "
                "write both with a space between them"
            )
        if words:
            names.add((words[0], words[1]))
    return frozenset(names)


def _of_json(where: str, text: str) -> frozenset[Names]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AcceptedError(f"{where}: it begins as JSON and isn't JSON ({error})") from error
    failures = content.get("failures") if isinstance(content, dict) else content
    names = set()
    for failure in failures if isinstance(failures, list) else [None]:
        pair = (failure.get("kernel"), failure.get("case")) if isinstance(failure, dict) else ()
        if not pair or not all(isinstance(name, str) for name in pair):
            raise AcceptedError(
                f"{where}: it isn't a report of --json, nor a list of failures with kernel and case"
            )
        names.add((str(pair[0]), str(pair[1])))
    return frozenset(names)


def check_target(file: str) -> None:
    """Refuse to write accepted failures over another file. Raises AcceptedError."""
    where, path = f"--accept {shown(file)}", Path(file).expanduser()
    try:
        if path.is_dir():
            raise AcceptedError(f"{where}: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise AcceptedError(f"{where}: there is no such folder; make it first")
        with_head = not path.exists() or path.read_bytes()[: len(_HEAD)] in {b"", _HEAD.encode()}
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise AcceptedError(f"{where}: it can't be written ({cause})") from error
    if not with_head:
        raise AcceptedError(
            f"{where}: the file that is there isn't a list that --accept wrote, so it isn't "
            "overwritten; name another path"
        )


def write_accepted(file: str, names: Iterable[Names]) -> None:
    """Write the failures to a file. Raises OSError."""
    lines = [_HEAD, *(f"{kernel} {case}" for kernel, case in sorted(set(names)))]
    Path(file).expanduser().write_text("\n".join(lines) + "\n", encoding="utf-8")
