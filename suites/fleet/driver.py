"""The driver of a fleet: it starts a run on each type of node, keeps the rows, and retries."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.phrases import count
from kernel_workbench.reports.record import RecordError, RunHeader
from kernel_workbench.suites.fleet.attempts import SILENT_S, Attempts
from kernel_workbench.suites.fleet.engine import Engine, Event, Lost, NoNodeError, Order
from kernel_workbench.suites.fleet.shelf import Shelf

_WAIT_S = 0.5
_SHOW_EVERY_S = 5.0


@dataclass(slots=True)
class Lane:
    """The run on one type of node."""

    kind: str
    attempts: Attempts
    shelf: Shelf
    shown: float = 0.0


class Fleet:
    """Runs of one order, a lane for each type of node."""

    def __init__(self, engine: Engine, order: Order, lanes: Sequence[Lane]) -> None:
        self.engine, self.order, self.lanes = engine, order, lanes
        self._lane_of: dict[int, Lane] = {}

    def run(self) -> int:
        """Run until every lane is over, close the records, and return the exit status.

        Ctrl-C ends all attempts: rows that have arrived are kept, and the status is 4.
        """
        interrupted = False
        try:
            for lane in self.lanes:
                if not lane.attempts.over:
                    self._start(lane)
            while not all(lane.attempts.over for lane in self.lanes):
                for number, event in self.engine.events(_WAIT_S):
                    self._take(number, event)
                self._give_up_silent()
        except KeyboardInterrupt:
            interrupted = True
            for lane in self.lanes:
                if not lane.attempts.over:
                    lane.attempts.stop("interrupted")
        finally:
            self.engine.close()
        statuses = [self._close(lane) for lane in self.lanes]
        return ExitStatus.INCOMPLETE if interrupted else max(statuses)

    def _start(self, lane: Lane) -> None:
        attempts = lane.attempts
        order = replace(self.order, done=attempts.done, crashed=attempts.crashed)
        why = attempts.again
        try:
            number, node = self.engine.start(lane.kind, order, attempts.avoided)
        except NoNodeError as error:
            attempts.stop(f"{why}; {error}" if why else str(error))
            return
        if why is not None:
            tell(lane.kind, f"{why}; {node} runs the missing rows")
        attempts.begin(number, node)
        self._lane_of[number] = lane

    def _take(self, number: int, event: Event) -> None:
        lane = self._lane_of.get(number)
        if lane is None:
            return
        attempts = lane.attempts
        try:
            for line in attempts.take(number, event, time.monotonic()):
                if isinstance(line, RunHeader):
                    lane.shelf.begin(line, (attempts.planned or 0) - len(attempts.rows))
                else:
                    lane.shelf.write(line)
                    self._show(lane)
        except RecordError as error:
            attempts.stop(str(error))
        current = attempts.current
        if (attempts.over or attempts.again is not None) and current is not None:
            self.engine.cancel(current.number)
            self._lane_of.pop(number, None)
            if attempts.again is not None:
                self._start(lane)

    def _give_up_silent(self) -> None:
        for lane in self.lanes:
            current = lane.attempts.current
            if current is not None and lane.attempts.is_silent(time.monotonic()):
                self._take(current.number, Lost(f"it sent nothing for {SILENT_S:.0f} s"))

    def _show(self, lane: Lane) -> None:
        now = time.monotonic()
        rows, planned = len(lane.attempts.rows), lane.attempts.planned
        if now - lane.shown >= _SHOW_EVERY_S or rows == planned:
            lane.shown = now
            of = "" if planned is None or lane.attempts.suite == "search" else f" of {planned:,}"
            current = lane.attempts.current
            host = "" if current is None else f" ({current.host})"
            tell(lane.kind, f"{rows:,}{of} rows{host}")

    def _close(self, lane: Lane) -> int:
        """Close the records, print their paths, and return the lane's exit status."""
        attempts = lane.attempts
        status = ExitStatus.WRONG if attempts.wrong else ExitStatus.RIGHT
        if attempts.problem is not None:
            status = ExitStatus.INCOMPLETE
        if attempts.count == 1 and attempts.status:
            own = attempts.status in set(ExitStatus)
            status = ExitStatus(attempts.status) if own else ExitStatus.INCOMPLETE
        try:
            lane.shelf.close(status, attempts.problem)
        except RecordError as error:
            tell(lane.kind, str(error))
            status = status or ExitStatus.SUITE_FAILED
        if attempts.problem is not None:
            tell(lane.kind, attempts.problem)
        for path, rows in lane.shelf.rows.items():
            print(f"{lane.kind}: {count(rows, 'row')}: {path}", flush=True)
        return status


def tell(kind: str, text: str) -> None:
    """Print a line about the run on a type of node to stderr."""
    print(f"fleet: {kind}: {text}", file=sys.stderr, flush=True)


def records_of(lanes: Sequence[Lane]) -> list[Path]:
    """Return the paths of the records of all lanes."""
    return [path for lane in lanes for path in lane.shelf.rows]
