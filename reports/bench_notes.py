"""What a reader of timed rows must know besides: problems, what isn't believed or complete."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reports.partial import part_notes
from reports.phrases import count, share

if TYPE_CHECKING:
    from reports.record import Record
    from reports.schema_bench import TimedProcess

_STEADY = 0.005  # of the mean; at less a row's sampling ends before its time does


def believed(record: Record) -> bool:
    """Whether cold rows were cold: False where the flush was seen not to evict."""
    flush = record.header.flush
    cold = any(row.status == "timed" and row.cache == "cold" for row in record.benches)
    return flush is None or flush.evicts or not cold


def notes_of(record: Record) -> tuple[str, ...]:
    """What a reader must know besides: problems, what isn't believed, what was discarded."""
    notes = [] if record.problem is None else [record.problem]
    notes += [] if record.end is None else record.end.problems
    rows, header = record.benches, record.header
    if not believed(record):
        notes.append("the flush leaves data in the cache, so no cold figure is believed")
    gating = [row for row in rows if row.status in {"wrong", "failed"} and row.gates]
    if gating:
        which = (
            "1 row that gates has" if len(gating) == 1 else f"{len(gating):,} rows that gate have"
        )
        notes.append(f"{which} no figure: wrong or failed")
    if header.figures == "published":
        notes.append("taken from publications: measured neither here nor by this workbench")
    if header.figures == "imported":
        notes.append("imported from another program's record: its rules aren't this workbench's")
    timed = [row for row in rows if row.status == "timed"]
    notes += part_notes(header, {(row.op, row.kernel) for row in timed})
    unchecked = sum(row.accuracy != "passed" for row in timed)
    if unchecked and header.figures != "measured":
        notes.append(f"nothing is told of the accuracy of {count(unchecked, 'row')}")
    elif unchecked:
        notes.append(f"{count(unchecked, 'row')} timed of outputs that were not found right")
    processes = [each for row in timed for each in row.processes]
    taken = sum(len(each.times_us) for each in processes)
    throttled = sum(each.throttled for each in processes)
    if throttled:
        part = share(throttled / (taken + throttled))
        notes.append(
            f"{count(throttled, 'sample')} discarded since the clock was low, {part} of all"
        )
    queued = sum(any(each.held is False for each in row.processes) for row in timed)
    if queued:
        notes.append(
            f"{count(queued, 'row')} whose calls took longer to queue than the device could be "
            "held: host time may be in their samples"
        )
    varying = sum(any(map(_still_varied, row.processes)) for row in timed)
    if varying:
        notes.append(
            f"{count(varying, 'row')} still varied from call to call when the time for samples was "
            "up; a longer --row-time makes medians surer"
        )
    if header.roofs and not any(not roof.measured for roof in header.roofs):
        what = "CPU" if header.environment.device == "cpu" else "GPU"
        notes.append(
            f"no datasheet of this {what} is known, so shares are of what was measured here"
        )
    return tuple(notes)


def _still_varied(process: TimedProcess) -> bool:
    """Whether time ended its sampling and steadiness hadn't; ten slow calls may have both."""
    times = process.times_us
    if process.stopped != "time limit" or len(times) < 2:
        return False
    mean = sum(times) / len(times)
    deviation = math.hypot(*(time - mean for time in times)) / math.sqrt(len(times) - 1)
    return deviation > _STEADY * mean
