"""A cluster that plays a script: what each attempt tells is written down beforehand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kernel_workbench.reports.record import BenchRow, RunEnd, RunHeader
from kernel_workbench.suites.fleet.engine import (
    Ended,
    Event,
    NoNodeError,
    Order,
    Pair,
    Started,
    Text,
)
from tests.builders.bench_records import bench_row, example_bench_header, norm_case

Line = RunHeader | BenchRow | RunEnd


def header(rows: int, board: str = "GPU-1") -> RunHeader:
    """Return the header of a run on this board."""
    made = example_bench_header(rows)
    environment = made.environment.model_copy(update={"gpu_uuid": board, "tree": "t"})
    return made.model_copy(update={"environment": environment, "command": "nox -s bench -- x"})


def row(number: int) -> BenchRow:
    """The row of the case of this number."""
    return bench_row("k", norm_case(number, 64), 10.0 + number)


def pair(number: int) -> Pair:
    """Its kernel and case."""
    return row(number).kernel, row(number).case.id


def end(rows: int, *, interrupted: bool = False) -> RunEnd:
    """Return the end of a run that ended by itself."""
    return RunEnd(
        finished_at="2026-11-23T07:00:00+00:00",
        duration_s=1.0,
        rows=rows,
        interrupted=interrupted,
        exit_status=int(interrupted),
    )


def text(*lines: Line) -> Text:
    """Lines of a record, as they come from a node."""
    return Text(b"".join(each.model_dump_json().encode() + b"\n" for each in lines))


def whole(*numbers: int, board: str = "GPU-1") -> list[Event]:
    """Return the events of an attempt that makes these rows and ends."""
    rows = [row(each) for each in numbers]
    told = text(header(len(rows), board), *rows, end(len(rows)))
    return [Started(board), told, Ended(0, "")]


@dataclass
class Script:
    """Plays to each attempt in turn the next part; `nodes` are taken in their order.

    A part may hold KeyboardInterrupt, which is raised in its place.
    """

    parts: Sequence[Sequence[Event | type[KeyboardInterrupt]]]
    nodes: Sequence[str] = ("n1", "n2", "n3", "n4")
    orders: list[Order] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    closed: bool = False

    def start(self, kind: str, order: Order, avoided: Collection[str]) -> tuple[int, str]:
        """Take the first node that isn't avoided."""
        left = [each for each in self.nodes if each not in avoided]
        if not left:
            raise NoNodeError(f"there is no other node that has {kind}")
        self.orders.append(order)
        return len(self.orders), left[0]

    def events(self, timeout_s: float) -> Iterable[tuple[int, Event]]:
        """All of the latest attempt's part."""
        del timeout_s
        number = len(self.orders)
        for each in self.parts[number - 1]:
            if isinstance(each, type):
                raise each
            yield number, each

    def cancel(self, number: int) -> None:
        """Note it."""
        self.cancelled.append(number)

    def close(self) -> None:
        """Note it."""
        self.closed = True
