"""A record's file as lines, taken apart as they are read: the whole is in memory once at most."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from typing import TYPE_CHECKING

from reports.lines import RecordError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_MOST_BYTES = 2**29  # of a file: fifty times a long run's, and no device that never ends
_CHUNK_BYTES = 2**22  # large enough for the system to have each back when it has been read


def chunks_of(path: Path) -> deque[bytes]:
    """What the file holds, unpacked where its name ends in .gz: large records are kept so.

    Raises RecordError where it can't be read, or can be no record's.
    """
    chunks: deque[bytes] = deque()
    size = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while size <= _MOST_BYTES and (chunk := file.read(_CHUNK_BYTES)):
                chunks.append(chunk)
                size += len(chunk)
    except FileNotFoundError as error:
        raise RecordError(
            f"{shown(path)}: there is no such file; `nox -s accuracy` makes a record"
        ) from error
    except (EOFError, zlib.error) as error:
        raise RecordError(
            f"{shown(path)}: it is cut or damaged and can't be unpacked; copy it again"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise RecordError(f"{shown(path)}: can't be read ({why(error)})") from error
    if size > _MOST_BYTES:
        raise RecordError(
            f"{shown(path)}: larger than {_MOST_BYTES >> 20:,} MiB, so it is no record; name "
            "another file"
        )
    if all(chunk.isspace() for chunk in chunks):
        raise RecordError(f"{shown(path)}: the file is empty, so it is no record; run again")
    _refuse_nul(path, chunks)
    return chunks


def _refuse_nul(path: Path, chunks: Sequence[bytes]) -> None:
    for place, chunk in enumerate(chunks):
        where = chunk.find(b"\0")
        if where < 0:
            continue
        before = list(chunks)[:place]
        number = sum(each.count(b"\n") for each in before) + chunk.count(b"\n", 0, where) + 1
        raise RecordError(
            f"{shown(path)}, line {number}: a NUL byte at byte "
            f"{sum(map(len, before)) + where:,}, so the file is damaged or no text; run again"
        )


def number_of_lines(chunks: deque[bytes]) -> int:
    """How many lines the chunks hold; a last one without its newline counts."""
    return sum(chunk.count(b"\n") for chunk in chunks) + (not chunks[-1].endswith(b"\n"))


def lines_of(chunks: deque[bytes]) -> Iterator[bytes]:
    """The lines without their newlines; takes each chunk out when its lines are read."""
    begun: list[bytes] = []  # a line that goes on in the next chunk
    while chunks:
        first, *others = chunks.popleft().split(b"\n")
        begun.append(first)
        if others:
            yield b"".join(begun)
            begun = [others.pop()]
            yield from others
    if last := b"".join(begun):
        yield last


def why(error: Exception) -> str:
    """What the system says of an error, on one line."""
    return shown(getattr(error, "strerror", None) or error)
