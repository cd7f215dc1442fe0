"""A record read for its reports: without the timelines that none of them shows.

5,000 profiles hold 8 million readings, of which the terminal shows a dozen timelines and a page
draws those of a few cases. The others are passed over unread: whole, they would take 600 MB.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reports.profile import MOST_TIMELINES
from reports.profile_pictures import MOST_CASES, MOST_LINES
from reports.record import read

if TYPE_CHECKING:
    from pathlib import Path

    from reports.record import Record

# As a record has them. In a text of a record a quote has a backslash before it, so none matches.
_TIMELINE = b'"series":{"seconds":['
_NAMES = re.compile(rb'"op":("(?:[^"\\]|\\.)*+").*?"case":\{"id":("(?:[^"\\]|\\.)*+")')
_COUNTED = b'"series":{"seconds":[0,1]}'  # of two points, as a timeline has at the least
_NONE = b'"series":null'


def read_to_show(path: Path) -> Record:
    """Read a record as its reports need it. Raises RecordError."""
    return read(path, thinned=_Thinning().thinned)


class _Thinning:
    """Takes a record's lines in their order; reports show timelines of the first ones."""

    def __init__(self) -> None:
        self._timelines = 0
        self._cases: dict[bytes, dict[bytes, int]] = {}  # by op: the timelines of its first cases

    def thinned(self, line: bytes) -> bytes:
        """The line, its timelines left out where no report shows them."""
        head, *windows = line.split(_TIMELINE)
        names = _NAMES.search(head) if windows else None
        if names is None:
            return line
        told, shown = [head], False
        for window in windows:
            series, end, rest = window.partition(b"}")
            if not end or b"{" in series or b"," not in series.partition(b"]")[0]:
                told += [_TIMELINE, window]  # damaged, or of one point, which is no timeline
            elif shown:
                told += [_NONE, rest]
            else:
                shown = True
                whole = self._shows(*names.groups())
                told += [_TIMELINE, window] if whole else [_COUNTED, rest]
        return b"".join(told)

    def _shows(self, op: bytes, case: bytes) -> bool:
        """Whether the terminal shows this row's timeline, or a page may draw it."""
        self._timelines += 1
        cases = self._cases.setdefault(op, {})
        if case in cases or len(cases) < MOST_CASES:
            cases[case] = cases.get(case, 0) + 1
        return self._timelines <= MOST_TIMELINES or 0 < cases.get(case, 0) <= MOST_LINES
