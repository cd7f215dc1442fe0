"""The attempts of one run as a machine of states: what is kept, when to try again, when to end.

It knows no clock (time is an argument) and no cluster; its tests make up what it is told. Only the
latest attempt is listened to, so that what an older one says late appears nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_workbench.reports.record import (
    AccuracyRow,
    ProfileRow,
    RecordError,
    Row,
    RunEnd,
    RunHeader,
)
from kernel_workbench.reports.record.reader import header_of, line_of
from kernel_workbench.suites.fleet.engine import Beat, Ended, Event, Lost, Pair, Started, Text

SILENT_S = 15.0  # a node tells something every second
MOST_LOSSES = 2  # after which a run is tried again
_MOST_CRASHES = 2  # of a pair
_SIGNALS = 128  # the least status of a process that a signal ended


@dataclass(slots=True)
class _Attempt:
    """The latest attempt. heard: when it last told something; None: it waits for its node."""

    number: int
    node: str
    heard: float | None = None
    host: str = ""
    header: RunHeader | None = None
    end: RunEnd | None = None
    cut: bytes = b""  # of a line whose end hasn't come


class Attempts:
    """The attempts of a run on one type of node.

    rows     pairs of the rows that are kept, by what makes a row the same
    planned  rows of the whole run; None: no attempt has said
    again    why an attempt is to follow; None: none is
    over     whether the run is; `problem` says why where rows are missing
    status   the exit status of the process that ended last
    """

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.rows: dict[tuple[str, ...], Pair] = {}
        self.planned: int | None = None
        self.again: str | None = None
        self.over = False
        self.problem: str | None = None
        self.status = 0
        self.count = self.losses = self.wrong = 0
        self.avoided: set[str] = set()
        self.current: _Attempt | None = None
        self._crashes: Counter[Pair] = Counter()
        self._held = False  # whether a row is of a configuration

    @property
    def done(self) -> tuple[Pair, ...]:
        """Pairs that needn't be tried again.

        A pair of profile has several rows, of which the last pair may lack some. So has one of
        --every-configuration, several at a time: then all are tried again.
        """
        if self._held:
            return ()
        pairs = list(dict.fromkeys(self.rows.values()))
        return tuple(pairs[:-1] if self.suite == "profile" else pairs)

    @property
    def crashed(self) -> tuple[Pair, ...]:
        """Pairs that are to be recorded as crashed."""
        return tuple(pair for pair, times in self._crashes.items() if times >= _MOST_CRASHES)

    def keep(self, row: Row) -> bool:
        """Keep a row; False where there is such a row already."""
        case = getattr(row, "case", None)
        pair = str(getattr(row, "kernel", "")), "" if case is None else case.id
        key = (*pair, row.distribution) if isinstance(row, ProfileRow) else pair
        if isinstance(row, AccuracyRow) and row.configuration is not None:
            key, self._held = (*pair, row.configuration), True
        if self.suite == "search":  # what is drawn may come twice
            key = (*pair, str(len(self.rows)))
        if key in self.rows:
            return False
        self.rows[key] = pair
        wrong = getattr(row, "status", "") in ("wrong", "failed")
        self.wrong += wrong and bool(getattr(row, "gates", True))
        return True

    def begin(self, number: int, node: str) -> None:
        """An attempt was placed on this node."""
        self.current, self.again = _Attempt(number, node), None
        self.count += 1

    def take(self, number: int, event: Event, now: float) -> Iterator[RunHeader | Row]:
        """Hear of an attempt; the lines of its record that are to be written."""
        attempt = self.current
        if attempt is None or attempt.number != number or self.again is not None or self.over:
            return
        match event:
            case Started(host):
                attempt.host, attempt.heard = host, now
            case Beat():
                attempt.heard = now
            case Text(data):
                attempt.heard = now
                try:
                    yield from self._lines(attempt, data)
                except RecordError as error:
                    self._lose(f"what it sent is no record: {error}")
            case Lost(reason):
                self._lose(reason)
            case Ended():
                self._end(attempt, event)

    def is_silent(self, now: float) -> bool:
        """Whether the attempt has told nothing for so long that it is to be given up."""
        attempt = self.current
        if attempt is None or attempt.heard is None or self.again is not None or self.over:
            return False
        return now - attempt.heard > SILENT_S

    def stop(self, problem: str | None) -> None:
        """No attempt is to follow."""
        self.again, self.over, self.problem = None, True, problem

    def _lines(self, attempt: _Attempt, data: bytes) -> Iterator[RunHeader | Row]:
        *lines, attempt.cut = (attempt.cut + data).split(b"\n")
        for line in lines:
            if attempt.header is None:
                header = attempt.header = header_of(Path(attempt.node), line)
                done = set(self.done)
                before = sum(pair in done for pair in self.rows.values())
                self.planned = header.planned_rows + before
                yield header
                continue
            value = line_of(Path(attempt.node), 0, line, attempt.header)
            if isinstance(value, RunEnd):
                attempt.end = value
            elif value is None:
                raise RecordError("a line that is cut")
            elif self.keep(value):
                yield value

    def _lose(self, reason: str, *, elsewhere: bool = True) -> None:
        """The attempt came to nothing more: another one follows, or none."""
        assert self.current is not None
        where = self.current.host or self.current.node
        self.losses += 1
        if elsewhere:
            self.avoided.add(self.current.node)
        told = f"{where}: {reason}"
        if self.suite == "search":
            self.stop(f"{told}; a search isn't moved, since what it drew is lost with it")
        elif self.planned is not None and len(self.rows) >= self.planned:
            self.stop(None)  # it had told all but its end
        elif self.losses > MOST_LOSSES:
            self.stop(f"{told}; that was attempt {self.count}, and no other one is made")
        else:
            self.again = told

    def _end(self, attempt: _Attempt, event: Ended) -> None:
        """The process ended: as planned, or too early."""
        self.status = event.status
        last = event.output.splitlines()[-1:] or ["it printed nothing"]
        if attempt.end is not None and not (attempt.end.interrupted and not attempt.end.stopped):
            self.stop(attempt.end.stopped)
        elif attempt.end is not None:
            self._lose(f"the run ended early, with status {event.status}: {last[0]}")
        elif attempt.header is None and event.status < _SIGNALS:
            self.stop(event.output or f"it ended with status {event.status} and printed nothing")
        elif event.pair is None or event.pair in self.rows.values():
            told = f"its process ended with status {event.status}: {last[0]}"
            self._lose(told, elsewhere=False)
        else:
            self._crashes[event.pair] += 1
            on = " on ".join(event.pair)
            self.again = f"{attempt.host}: its process ended with status {event.status} in {on}"
