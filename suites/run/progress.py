"""Show the progress of a run: a bar at a terminal, elsewhere a line every fifteen seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kernel_workbench.reports.output import lasting, report_console

_LINE_EVERY_S = 15.0
_REDRAW_EVERY_S = 0.1


class Progress:
    """The progress of a suite, in a `with`; it shows nothing before the first `begin`."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.done = 0
        self.total: int | None = 0
        # pytest captures both streams while a test runs, so the bar is drawn between tests.
        self._bar = Bar(
            TextColumn(suite),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=report_console(stream=sys.stderr),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("")
        self._shown = time.monotonic()

    def begin(self, total: int | None, done: int = 0) -> None:
        """Count from `done` to `total`, or without an end if `total` is None."""
        self.total, self.done = total, done
        self._bar.reset(self._task, total=total, completed=done)

    def advance(self, label: str) -> None:
        """Count one more; label: the text beside the numbers."""
        self.done += 1
        self.wait(label)

    def wait(self, label: str) -> None:
        """Show that the run goes on without counting; label: the text beside the numbers."""
        self._bar.update(self._task, completed=self.done, description=label)
        at_terminal, now = self._bar.console.is_terminal, time.monotonic()
        if now - self._shown < (_REDRAW_EVERY_S if at_terminal else _LINE_EVERY_S):
            return
        self._shown = now
        if at_terminal:
            self._bar.refresh()
        else:
            of = "" if self.total is None else f" of {self.total:,}"
            line = f"{self.suite}: {self.done:,}{of}, {label}"
            print(line, file=lasting(sys.stderr), flush=True)

    def __enter__(self) -> Self:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.console.is_terminal:  # elsewhere it would end with an empty line
            self._bar.stop()
