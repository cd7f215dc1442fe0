"""A recorded trace that replaces a GPU, with injected faults, to test the handling of failures.

A fault is spelled `CODE` or `CODE:FIELD`, with `@SECONDS` for a later one. For example: "not
supported:energy_mj", "gpu lost@1.5", "went back:sw_power_cap_ns@2", "no library".
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernel_workbench.profiles.nvml import Reading
from kernel_workbench.profiles.traces import FATAL, FIELDS, Missing, Trace

_WENT_BACK = "went back"
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
                return Missing(fault.code, "a fault that was put into a replayed trace")
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
