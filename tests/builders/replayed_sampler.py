"""A sampler whose GPU is a recorded trace with injected faults, to test the handling of failures.

    python -m tests.builders.replayed_sampler --replay TRACE --fault FAULT --uuid GPU-... --out FILE

A fault is spelled `CODE` or `CODE:FIELD`, with `@SECONDS` for a later one. For example: "not
supported:energy_mj", "gpu lost@1.5", "went back:sw_power_cap_ns@2", "no library".
"""

from __future__ import annotations

import argparse
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_workbench.profiles import sampler
from kernel_workbench.profiles.nvml import Reading
from kernel_workbench.profiles.traces import FATAL, FIELDS, Missing, Trace, TraceError, load

_WENT_BACK = "went back"
_INJECTED = "a fault that was put into a replayed trace"
_CODES = frozenset({"not supported", "no permission", "no data", _WENT_BACK}) | FATAL


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of the field `name`, or of all fields if it is None, from `after_s` on."""

    code: str
    name: str | None = None
    after_s: float = 0.0

    @classmethod
    def of(cls, text: str) -> Fault:
        """Parse a fault, for example "gpu lost@1.5". Raises ValueError with one sentence."""
        what, _, when = text.partition("@")
        code, _, name = what.partition(":")
        if code not in _CODES:
            raise ValueError(f"fault {text!r}: there is {', '.join(sorted(_CODES))}")
        if name and name not in FIELDS:
            raise ValueError(f"fault {text!r}: the fields are {', '.join(FIELDS)}")
        try:
            after_s = float(when) if when else 0.0
        except ValueError:
            raise ValueError(f"fault {text!r}: after @ comes a number of seconds") from None
        return cls(code, name or None, after_s)


@dataclass(slots=True)
class Replay:
    """A meter that returns the trace's value at each time, and repeats the trace past its end.

    In a repetition, counters go on from their last value; all other fields start over.
    """

    trace: Trace
    faults: tuple[Fault, ...] = ()
    clock_ns: Callable[[], int] = time.monotonic_ns
    uuid: str = field(init=False)
    _began_ns: int = field(init=False)
    _stamps: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.uuid = self.trace.uuid
        self._began_ns = self.clock_ns()
        self._stamps = [sample.at_ns for sample in self.trace.samples]

    def close(self) -> None:
        """Do nothing."""

    def read(self, names: Sequence[str]) -> dict[str, Reading]:
        """Read fields; return by name a value, or the reason why there is none."""
        passed_ns = self.clock_ns() - self._began_ns
        return {name: self._read(name, passed_ns) for name in names}

    def _read(self, name: str, passed_ns: int) -> Reading:
        going_back = False
        for fault in self.faults:
            if fault.name not in {None, name} or passed_ns < fault.after_s * 1e9:
                continue
            if fault.code != _WENT_BACK:
                return Missing(fault.code, _INJECTED)
            going_back = True
        value = self._value(name, passed_ns)
        if value is None:
            return self.trace.missing.get(name, Missing("no data", "the trace has no value here"))
        # A reloaded driver counts from zero.
        return value - self._first(name) if going_back else value

    def _value(self, name: str, passed_ns: int) -> int | None:
        stamps = self._stamps
        length = stamps[-1] - stamps[0] + int(self.trace.period_ms * 1e6)
        rounds, rest = divmod(passed_ns, length)
        column = self.trace.column(name)
        value = column[bisect_right(stamps, stamps[0] + rest) - 1]
        if value is None or not name.endswith(("_mj", "_ns")):
            return value
        return value + rounds * ((column[-1] or 0) - self._first(name))

    def _first(self, name: str) -> int:
        return next((value for value in self.trace.column(name) if value is not None), 0)


class Steps:
    """`time` for a sampler of a replay: a reading is the time that the sampler last waited for.

    A replayed trace then has no gaps, however late a busy host runs the sampler's rounds.
    """

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._at_ns = time.monotonic_ns()
        self._waited_until = sampler._waited_until

    def monotonic_ns(self) -> int:
        """Return the time of the present round, in nanoseconds of CLOCK_MONOTONIC."""
        return self._at_ns

    def wait_until(self, at_s: float) -> bool:
        """Wait; return True if standard input has closed and no round is late."""
        ended = self._waited_until(at_s) and time.monotonic() < at_s
        self._at_ns = round(1e9 * at_s)
        return ended


def replayed(trace: Path | str, *faults: str) -> tuple[str, ...]:
    """Return the module and the options by which `Sampling` replays a trace with faults."""
    module = "tests.builders.replayed_sampler"
    return module, "--replay", str(trace), *(f"--fault={fault}" for fault in faults)


def main() -> int:
    """Run the sampler's command line on a replay."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replay", type=Path, required=True)
    parser.add_argument("--fault", type=Fault.of, action="append", default=[])
    options, rest = parser.parse_known_args()
    steps = Steps()

    def opened(_uuid: str, _pci_bus_id: str | None) -> Replay | Missing:
        for fault in options.fault:
            if fault.code in {"no library", "no driver", "gpu not found"} and fault.name is None:
                return Missing(fault.code, _INJECTED)
        return Replay(load(options.replay), tuple(options.fault), steps.monotonic_ns)

    vars(sampler).update(open_gpu=opened, time=steps, _waited_until=steps.wait_until)
    try:
        return sampler.main(rest)
    except TraceError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
