"""Traces: NVML's readings of a GPU over time, in memory and in a file.

A file is JSON lines, gzipped where its name ends in `.gz`: a head, then a list for each sample,
and an object for each failure and its time. Times are of CLOCK_MONOTONIC, which all processes of a
host share. A failed read is null, and the first failure of each field is kept with its reason.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

ENERGY = "energy_mj"
POWER = "power_instant_mw"
# The columns of a sample, in order; energy is read last, since that read is slow.
FIELDS = (
    POWER,
    "power_average_mw",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "reasons",
    "sw_power_cap_ns",
    "sync_boost_ns",
    "sw_thermal_ns",
    "hw_thermal_ns",
    "power_brake_ns",
    ENERGY,
)
# Reasons for low clocks: the polled bit, and the counter of the time in that state, if any.
REASONS: dict[str, tuple[int, str | None]] = {
    "gpu idle": (0x1, None),
    "application clocks": (0x2, None),
    "SW power cap": (0x4, "sw_power_cap_ns"),
    "HW slowdown": (0x8, None),
    "sync boost": (0x10, "sync_boost_ns"),
    "SW thermal slowdown": (0x20, "sw_thermal_ns"),
    "HW thermal slowdown": (0x40, "hw_thermal_ns"),
    "HW power brake": (0x80, "power_brake_ns"),
    "display clocks": (0x100, None),
}
# Codes after which no field of the GPU can be read any more.
FATAL = frozenset({"no library", "no driver", "gpu not found", "gpu lost"})
_VERSION = 1
_STAMPS = 3


class TraceError(Exception):
    """A trace can't be read; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a figure is absent: a stable code, and a sentence for the reader."""

    code: str
    why: str

    def __str__(self) -> str:
        return f"{self.code}: {self.why}"


@dataclass(frozen=True, slots=True)
class TraceSample:
    """One round of reads. `values` are in the order of FIELDS, None where a read failed.

    at_ns         time before the first read
    energy_at_ns  time before the read of the energy counter, which takes milliseconds
    done_ns       time after the read of the energy counter
    """

    at_ns: int
    energy_at_ns: int
    done_ns: int
    values: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Samples in order of time. `missing` maps a field to the first failure of its reads.

    `lost_ns` is the time at which the GPU was lost; no sample follows it.
    """

    uuid: str
    period_ms: float
    samples: tuple[TraceSample, ...]
    missing: dict[str, Missing] = field(default_factory=dict)
    lost_ns: int | None = None

    def column(self, name: str) -> tuple[int | None, ...]:
        """Return the values of one field, sample by sample."""
        place = FIELDS.index(name)
        return tuple(sample.values[place] for sample in self.samples)

    def without(self) -> Missing:
        """Return the reason why the trace has no samples."""
        return self.missing.get(POWER, Missing("no samples", "the sampler took none"))


class TraceWriter:
    """Writes a trace line by line; a killed process leaves the lines that it had flushed."""

    def __init__(self, path: Path, uuid: str, period_ms: float) -> None:
        self._file: IO[str] = _opened(path, "wt")
        self._write({"trace": _VERSION, "uuid": uuid, "period_ms": period_ms, "fields": FIELDS})

    def sample(self, sample: TraceSample) -> None:
        """Append a sample."""
        self._write([sample.at_ns, sample.energy_at_ns, sample.done_ns, *sample.values])

    def missing(self, name: str, reason: Missing, at_ns: int) -> None:
        """Append the first failure of a field."""
        self._write({"missing": name, "code": reason.code, "why": reason.why, "at_ns": at_ns})

    def flush(self) -> None:
        """Hand the written lines to the system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: object) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def save(trace: Trace, path: Path) -> None:
    """Write a trace to a file."""
    writer = TraceWriter(path, trace.uuid, trace.period_ms)
    for sample in trace.samples:
        writer.sample(sample)
    for name, reason in trace.missing.items():
        lost = trace.lost_ns if reason.code == "gpu lost" else None
        writer.missing(name, reason, lost or 0)
    writer.close()


def load(path: Path) -> Trace:
    """Read a trace; an incomplete last line is ignored. Raises TraceError."""
    try:
        with _opened(path, "rt") as file:
            lines = list(_parsed(file))
    except (OSError, EOFError, ValueError) as error:
        raise TraceError(f"{path}: the trace can't be read ({error})") from error
    if not lines or not isinstance(lines[0], dict) or lines[0].get("trace") != _VERSION:
        raise TraceError(f"{path}: not a trace of version {_VERSION}")
    head, *rest = lines
    try:
        return _parse_trace(head, rest)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise TraceError(f"{path}: the trace is damaged ({error})") from error


def _parse_trace(head: dict[str, Any], rest: Sequence[Any]) -> Trace:
    places = [head["fields"].index(name) if name in head["fields"] else None for name in FIELDS]
    samples, missing, lost = [], {}, None
    for line in rest:
        if isinstance(line, dict):
            missing[line["missing"]] = Missing(line["code"], line["why"])
            if line["code"] == "gpu lost":
                lost = int(line["at_ns"])
            continue
        stamps, values = line[:_STAMPS], line[_STAMPS:]
        in_order = tuple(None if place is None else values[place] for place in places)
        at_ns, energy_at_ns, done_ns = map(int, stamps)
        samples.append(TraceSample(at_ns, energy_at_ns, done_ns, in_order))
    return Trace(head["uuid"], float(head["period_ms"]), tuple(samples), missing, lost)


def _parsed(file: IO[str]) -> Iterator[Any]:
    for line in file:
        if not line.endswith("\n"):
            return  # the writer was killed within a line
        yield json.loads(line)


def _opened(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")
    return path.open(mode, encoding="utf-8")
