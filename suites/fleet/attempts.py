"""The attempts of one run as a state machine: it keeps rows, and decides when to retry or end.

The state machine knows no clock (time is an argument) and no cluster; tests invent its events. Only
the latest attempt counts: late events of an older one are ignored.
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

SILENT_S = 15.0  # a node sends an event every second
MOST_LOSSES = 2  # a run is tried again after this many losses
_MOST_CRASHES = 2  # a pair that crashes this often isn't tried again
_SIGNALS = 128  # the least status of a process that a signal ended


@dataclass(slots=True)
class _Attempt:
    """The latest attempt. `heard` is the time of its last event; None while it waits for a node."""

    number: int
    node: str
    heard: float | None = None
    host: str = ""
    header: RunHeader | None = None
    end: RunEnd | None = None
    cut: bytes = b""  # the begin of a line whose end hasn't arrived


class Attempts:
    """The attempts of a run on one type of node.

    rows     pairs of the kept rows, by the key that equal rows share
    planned  rows of the whole run; None until an attempt has sent it
    again    why another attempt must follow; None if none must
    over     True once the run has ended; `problem` says why rows are missing
    status   exit status of the process that ended last
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
        self._configured = False  # True once a row is of a configuration

    @property
    def done(self) -> tuple[Pair, ...]:
        """Pairs that needn't be tried again.

        A pair of profile has several rows, and the last pair may lack some. With configurations,
        several pairs may lack rows, so that all pairs are tried again.
        """
        if self._configured:
            return ()
        pairs = list(dict.fromkeys(self.rows.values()))
        return tuple(pairs[:-1] if self.suite == "profile" else pairs)

    @property
    def crashed(self) -> tuple[Pair, ...]:
        """Pairs to record as crashed."""
        return tuple(pair for pair, times in self._crashes.items() if times >= _MOST_CRASHES)

    def keep(self, row: Row) -> bool:
        """Keep a row. Returns False if an equal row is kept already."""
        case = getattr(row, "case", None)
        pair = str(getattr(row, "kernel", "")), "" if case is None else case.id
        key = (*pair, row.distribution) if isinstance(row, ProfileRow) else pair
        if isinstance(row, AccuracyRow) and row.configuration is not None:
            key, self._configured = (*pair, row.configuration), True
        if self.suite == "search":  # a case may be drawn twice
            key = (*pair, str(len(self.rows)))
        if key in self.rows:
            return False
        self.rows[key] = pair
        wrong = getattr(row, "status", "") in ("wrong", "failed")
        self.wrong += wrong and bool(getattr(row, "gates", True))
        return True

    def begin(self, number: int, node: str) -> None:
        """Note that an attempt was placed on this node."""
        self.current, self.again = _Attempt(number, node), None
        self.count += 1

    def take(self, number: int, event: Event, now: float) -> Iterator[RunHeader | Row]:
        """Process an attempt's event; yield the lines to write to the record."""
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
                    self._lose(f"it sent bytes that are no record: {error}")
            case Lost(reason):
                self._lose(reason)
            case Ended():
                self._end(attempt, event)

    def is_silent(self, now: float) -> bool:
        """Return True if the attempt has sent no event for `SILENT_S` seconds."""
        attempt = self.current
        if attempt is None or attempt.heard is None or self.again is not None or self.over:
            return False
        return now - attempt.heard > SILENT_S

    def stop(self, problem: str | None) -> None:
        """End the run: no attempt follows."""
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
        """Note that the attempt is lost, and decide if another one follows."""
        assert self.current is not None
        where = self.current.host or self.current.node
        self.losses += 1
        if elsewhere:
            self.avoided.add(self.current.node)
        message = f"{where}: {reason}"
        if self.suite == "search":
            self.stop(f"{message}; a search isn't moved, since its draws are lost with the node")
        elif self.planned is not None and len(self.rows) >= self.planned:
            self.stop(None)  # only its end is missing
        elif self.losses > MOST_LOSSES:
            self.stop(f"{message}; that was attempt {self.count}, the last one")
        else:
            self.again = message

    def _end(self, attempt: _Attempt, event: Ended) -> None:
        """Process the end of the process, as planned or too early."""
        self.status = event.status
        last = event.output.splitlines()[-1:] or ["it printed nothing"]
        if attempt.end is not None and not (attempt.end.interrupted and not attempt.end.stopped):
            self.stop(attempt.end.stopped)
        elif attempt.end is not None:
            self._lose(f"the run ended early, with status {event.status}: {last[0]}")
        elif attempt.header is None and event.status < _SIGNALS:
            self.stop(event.output or f"it ended with status {event.status} and printed nothing")
        elif event.pair is None or event.pair in self.rows.values():
            message = f"its process ended with status {event.status}: {last[0]}"
            self._lose(message, elsewhere=False)
        else:
            self._crashes[event.pair] += 1
            on = " on ".join(event.pair)
            self.again = f"{attempt.host}: its process ended with status {event.status} in {on}"
