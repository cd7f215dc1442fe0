"""Records of several processes of one side, as one record: a row has a process for each.

A figure is the median of the processes' figures, since the samples of one aren't independent. The
bootstrapped interval of one process's median says nothing of another process: from the lowest to
the highest of their medians stands in its place. A row that was wrong or failed in any process has
no figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from reports.record import BenchRow, Record, RunEnd, new_record

_FIGURES = (
    *("median_us", "first_quartile_us", "third_quartile_us", "clock_mhz", "median_cycles"),
    *("first_quartile_cycles", "third_quartile_cycles", "tflops", "gb_s", "share_of_peak"),
    *("share_of_ceiling", "share_of_clocked_peak", "host_us", "enqueue_us"),
)


def merge_rows(rows: Sequence[BenchRow]) -> BenchRow:
    """One row of the same row of several processes, in the order that they ran."""
    number = len(rows)
    for place, row in enumerate(rows, 1):
        if row.status in ("wrong", "failed"):
            reason = f"in process {place} of {number}: {row.reason}"
            return row.model_copy(update={"reason": reason if number > 1 else row.reason})
    timed = [row for row in rows if row.status == "timed"]
    if len(timed) < 2:
        return timed[0] if timed else rows[0]
    figures: dict[str, object] = {name: _median(timed, name) for name in _FIGURES}
    ratios = [row.worst_ratio for row in timed if row.worst_ratio is not None]
    peaks = [row.peak_bytes for row in timed if row.peak_bytes is not None]
    medians = [row.median_us for row in timed if row.median_us is not None]
    return timed[0].model_copy(
        update={
            **figures,
            "processes": tuple(each for row in timed for each in row.processes),
            "low_us": min(medians, default=None),
            "high_us": max(medians, default=None),
            "worst_ratio": max(ratios, default=None),
            "peak_bytes": max(peaks, default=None),
            "duration_s": sum(row.duration_s for row in timed),
        }
    )


def _median(rows: Sequence[BenchRow], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return statistics.median(values) if values else None


def write_merged(
    records: Sequence[Record], results: Path, started: datetime, letter: str, command: str
) -> Path:
    """Write the processes' records as one, and return its path. Raises RecordError."""
    first = records[0].header
    rows: dict[tuple[str, str, str, str, str], list[BenchRow]] = {}
    for record in records:
        for row in record.benches:
            key = (row.op, row.kernel, row.case.id, row.cache, row.distribution)
            rows.setdefault(key, []).append(row)
    planned = max(each.header.planned_rows for each in records)
    header = first.model_copy(update={"command": command, "planned_rows": planned})
    ends = [each.end for each in records]
    with new_record(results, started, header, mark=letter) as writer:
        for same in rows.values():
            writer.write(merge_rows(same))
        writer.close(
            RunEnd(
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                duration_s=sum(each.duration_s for each in ends if each is not None),
                rows=len(rows),
                interrupted=any(each is None or each.interrupted for each in ends),
                exit_status=max((each.exit_status for each in ends if each is not None), default=2),
            )
        )
    return writer.path
