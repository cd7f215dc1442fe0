"""The rows of a record of `nox -s profile`, grouped and put in words, for every kind of report.

Powers and energies are of the whole board, idle power included unless a name says net.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from reports.bench_figures import facts_of as machine_facts
from reports.bench_figures import in_common
from reports.headline import total_duration
from reports.partial import part_notes, parts_of
from reports.phrases import count, figure

if TYPE_CHECKING:
    from reports.page import Tone
    from reports.record import Record
    from reports.schema import ProfileRow
    from reports.schema_profile import Validity, Window

_TONES: dict[str, Tone] = {
    "MEASURED": "good",
    "FAILED": "bad",
    "INCOMPLETE": "doubtful",
    "NOTHING MEASURED": "bad",
}
GAIN = (
    "Boards of one model differ by 5 % in what they report, so energies of two boards compare to "
    "7 % at best; two rows of one record share that error."
)
_WORSE: tuple[Validity, ...] = ("valid", "transient", "invalid")  # in this order
_DENSE = 50  # flops a byte from which work is told in flops: between layer norm's 2 and attention's
_MOST_OF_WINDOW = 1.01  # that a time within it can come to
_SAMPLER_MOST = 0.005  # of a call's time; above it the sampler disturbs what it measures


@dataclass(frozen=True, slots=True)
class Held:
    """What held clocks down in a row's windows: seconds by the counters, and the share polled."""

    reason: str
    seconds: float | None
    share: float | None
    polled: float | None


@dataclass(frozen=True, slots=True)
class Missing:
    """Figures that rows lack, for one reason."""

    fields: tuple[str, ...]
    reason: str
    rows: int
    example: str


class _Figures(NamedTuple):
    row: ProfileRow
    energy_j: float
    device_us: float


@dataclass(frozen=True, slots=True)
class Total:
    """A model's calls of one kernel: each case as often as its weight says.

    cases: that the sum is of; of: that have a weight. energy_error_j: 95 %, None where a row's is;
    validity: the worst of its rows.
    """

    op: str
    kernel: str
    distribution: str
    cases: int
    of: int
    energy_j: float
    energy_error_j: float | None
    device_us: float
    validity: Validity

    @property
    def power_w(self) -> float | None:
        """The mean over these calls."""
        return over(self.energy_j, self.device_us * 1e-6)


def verdict_of(record: Record) -> tuple[str, Tone]:
    """The verdict and its tone; MEASURED needs a whole record and nothing against it."""
    rows = record.profiles
    gated = any(row.status in {"wrong", "failed"} and row.gates for row in rows)
    status = 0 if record.end is None else record.end.exit_status
    if record.problem is not None:
        verdict = "INCOMPLETE"
    elif gated or status:
        verdict = "FAILED"
    elif not any(row.status == "measured" for row in rows):
        verdict = "NOTHING MEASURED"
    else:
        verdict = "MEASURED"
    return verdict, _TONES[verdict]


def summary_of(record: Record) -> str:
    """What was measured, in one sentence."""
    rows = record.profiles
    statuses: Counter[str] = Counter(row.status for row in rows)
    kernels = {(row.op, row.kernel) for row in rows}
    validities: Counter[str] = Counter(row.validity for row in rows if row.status == "measured")
    counted = [f"{statuses['measured']:,} measured"]
    others = [each for each in ("transient", "invalid") if validities[each]]
    if others:
        counted[0] += f" ({', '.join(f'{validities[each]:,} {each}' for each in others)})"
    without = ("wrong", "failed", "refused", "absent")
    counted += [f"{statuses[each]:,} {each}" for each in without if statuses[each]]
    return (
        f"{count(len(rows), 'row')} ({count(len(kernels), 'kernel')}): {', '.join(counted)}, "
        f"in {total_duration(record)}"
    )


def notes_of(record: Record) -> tuple[str, ...]:
    """What a reader must know besides."""
    notes = [] if record.problem is None else [record.problem]
    notes += [] if record.end is None else record.end.problems
    measured = {(row.op, row.kernel) for row in record.profiles if row.status == "measured"}
    notes += part_notes(record.header, measured)
    disturbed = [
        row
        for row in record.profiles
        if row.sampler_slowdown is not None and not row.sampler_slowdown <= _SAMPLER_MOST
    ]
    if disturbed:
        worst = max(disturbed, key=lambda row: row.sampler_slowdown or 0.0)
        slower = 100 * (worst.sampler_slowdown or 0.0)
        notes.append(
            f"the sampler slows {count(len(disturbed), 'row')} by more than 0.5 %, "
            f"{worst.kernel} by {slower:.2f} %"
        )
    apart = [(far, row) for row in record.profiles if (far := counter_apart(row)) is not None]
    if apart:
        far, row = max(apart, key=lambda pair: abs(pair[0]))
        notes.append(
            f"energy by the counter and by sampled power are {100 * abs(far):.1f} % apart at "
            f"most ({row.kernel}, {short_case(row)})"
        )
    return tuple(notes)


def facts_of(record: Record) -> tuple[tuple[str, str], ...]:
    """What was run where, as (label, text)."""
    return machine_facts(record)


def short_case(row: ProfileRow) -> str:
    """The case's id without its op's name."""
    return row.case.id.removeprefix(f"{row.op}-")


def cases_of(record: Record) -> dict[tuple[str, str], list[ProfileRow]]:
    """The rows by op and case, in the order in which each came first."""
    groups: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in record.profiles:
        groups.setdefault((row.op, short_case(row)), []).append(row)
    ops = list(dict.fromkeys(op for op, _ in groups))
    return dict(sorted(groups.items(), key=lambda item: ops.index(item[0][0])))


def beside(record: Record) -> list[list[ProfileRow]]:
    """Measured rows of one kernel and case under several input distributions, normal first."""
    groups: dict[tuple[str, str, str], list[ProfileRow]] = {}
    for row in record.profiles:
        if row.status == "measured":
            groups.setdefault((row.op, row.kernel, row.case.id), []).append(row)
    found = [rows for rows in groups.values() if len({row.distribution for row in rows}) > 1]
    for rows in found:
        rows.sort(key=lambda row: row.distribution != "normal")
    return found


def totals_of(record: Record) -> tuple[Total, ...]:
    """Weighted totals by op, inputs and kernel that computes all of it, the least energy first.

    Each is over the cases on which every kernel with one has energy and time.
    """
    groups: dict[tuple[str, str], dict[str, tuple[float, dict[str, _Figures]]]] = {}
    parts = parts_of(record.header)
    for row in record.profiles:
        if row.weight is not None and (row.op, row.kernel) not in parts:
            cases = groups.setdefault((row.op, row.distribution), {})
            _, having = cases.setdefault(row.case.id, (row.weight, {}))
            if row.energy_j is not None and row.device_us is not None:
                having[row.kernel] = _Figures(row, row.energy_j, row.device_us)
    found: list[Total] = []
    for (op, distribution), of_group in groups.items():
        common = in_common(list(of_group.values()))
        totals = []
        for kernel in common[0][1] if common else ():
            weighed = [(weight, having[kernel]) for weight, having in common]
            errors = [(weight, each.row.energy_error_j) for weight, each in weighed]
            known = [weight * error for weight, error in errors if error is not None]
            totals.append(
                Total(
                    op=op,
                    kernel=kernel,
                    distribution=distribution,
                    cases=len(common),
                    of=len(of_group),
                    energy_j=sum(weight * each.energy_j for weight, each in weighed),
                    energy_error_j=math.hypot(*known) if len(known) == len(errors) else None,
                    device_us=sum(weight * each.device_us for weight, each in weighed),
                    validity=max((each.row.validity for _, each in weighed), key=_WORSE.index),
                )
            )
        found += sorted(totals, key=lambda each: each.energy_j)
    return tuple(found)


def energy_text(joules: float | None) -> str:
    """`26.7 mJ`, `1.21 J`, `812 uJ`; `-` where there is none."""
    if joules is None:
        return "-"
    for unit, size in (("J", 1.0), ("mJ", 1e-3)):
        if abs(joules) >= size:
            return f"{figure(joules / size, 4)} {unit}"
    return f"{figure(joules * 1e6, 4)} uJ"


def error_text(figures: ProfileRow | Total) -> str:
    """`0.8 %`: the energy's 95 % error next to it."""
    if figures.energy_error_j is None or not figures.energy_j:
        return "-"
    return f"{100 * figures.energy_error_j / figures.energy_j:.1f} %"


def of_limit(row: ProfileRow) -> float | None:
    """The mean power's share of the limit in force."""
    if row.power_w is None or not row.power_limit_w:
        return None
    return row.power_w / row.power_limit_w


def counter_apart(row: ProfileRow) -> float | None:
    """By how much of it the energy of sampled power is more than the counter's."""
    if row.energy_integral_j is None or not row.energy_j:
        return None
    return row.energy_integral_j / row.energy_j - 1


def mean_of(row: ProfileRow, name: str) -> float | None:
    """The mean over the trials of a quantity's mean: sm_clock_mhz, temperature_c, ..."""
    spreads = [getattr(window, name) for window in row.windows]
    means = [spread.mean for spread in spreads if spread is not None]
    return sum(means) / len(means) if means else None


def highest_of(row: ProfileRow, name: str) -> float | None:
    """The highest that any trial saw."""
    spreads = [getattr(window, name) for window in row.windows]
    return max((spread.highest for spread in spreads if spread is not None), default=None)


def over(value: float | None, other: float | None) -> float | None:
    """value / other; None where it can't be had."""
    return None if value is None or not other else value / other


def _of_window(share: float) -> float:
    """The whole, where the ends of a window that were read a moment apart make it a little more."""
    return 1.0 if 1.0 < share <= _MOST_OF_WINDOW else share


def held_by(row: ProfileRow) -> tuple[Held, ...]:
    """Throttle reasons over all trials, the longest first; those never seen are left out."""
    names = dict.fromkeys(
        name
        for window in row.windows
        for reasons in (window.reasons_s, window.reasons_polled)
        for name, value in reasons.items()
        if value
    )
    found = []
    for name in names:
        counted = [window for window in row.windows if name in window.reasons_s]
        polled = [
            window.reasons_polled[name] for window in row.windows if name in window.reasons_polled
        ]
        seconds = sum(window.reasons_s[name] for window in counted) if counted else None
        total = sum(window.duration_s for window in counted)
        held = Held(
            reason=name,
            seconds=seconds,
            share=None if seconds is None or not total > 0 else _of_window(seconds / total),
            polled=sum(polled) / len(polled) if polled else None,
        )
        if held.seconds or held.polled:
            found.append(held)
    found.sort(key=lambda each: -(each.share or each.polled or 0.0))
    return tuple(found)


def held_text(row: ProfileRow) -> str:
    """`SW power cap 45 %`: the reason that held longest, and its share of the windows."""
    held = held_by(row)
    if not held:
        known = any(window.reasons_s or window.reasons_polled for window in row.windows)
        return "nothing" if known else "-"
    first = held[0]
    share = first.share if first.share is not None else first.polled
    return first.reason if share is None else f"{first.reason} {share:.0%}"


def efficiency_text(row: ProfileRow) -> str:
    """What a joule buys: `0.84 TFLOP/s/W`, `5.32 GB/s/W`."""
    flops, least = row.flops or 0, row.bytes or 0
    if row.tflops_per_w is not None and (row.gb_s_per_w is None or flops > _DENSE * least):
        return f"{figure(row.tflops_per_w, 3)} TFLOP/s/W"
    return "-" if row.gb_s_per_w is None else f"{figure(row.gb_s_per_w, 3)} GB/s/W"


def timeline_of(row: ProfileRow) -> tuple[int, Window] | None:
    """The first trial with a timeline, and its number from 1."""
    for number, window in enumerate(row.windows, 1):
        if window.series is not None and len(window.series.seconds) > 1:
            return number, window
    return None


def codes_of(row: ProfileRow) -> tuple[str, ...]:
    """The codes of the row and of its windows, each once."""
    return tuple(
        dict.fromkeys((*row.codes, *(code for each in row.windows for code in each.codes)))
    )


def missing_of(record: Record) -> tuple[Missing, ...]:
    """Figures that rows lack, those that the same rows lack for the same reason together."""
    lacking: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(record.profiles):
        pairs = [*row.missing.items()]
        pairs += [pair for window in row.windows for pair in window.missing.items()]
        for pair in dict.fromkeys(pairs):
            lacking.setdefault(pair, []).append(number)
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (field, reason), numbers in lacking.items():
        together.setdefault((reason, tuple(numbers)), []).append(field)
    return tuple(
        Missing(tuple(fields), reason, len(numbers), named(record.profiles[numbers[0]]))
        for (reason, numbers), fields in together.items()
    )


def named(row: ProfileRow) -> str:
    """The row in words, without its op's name: kernel, inputs, case."""
    return f"{row.kernel}, {row.distribution}, {short_case(row)}"


def reasons_of(record: Record) -> tuple[ProfileRow, ...]:
    """Rows without a measurement: what went wrong before what was refused, what gates first."""
    found = [row for row in record.profiles if row.status != "measured"]
    return tuple(
        sorted(found, key=lambda row: (row.status not in {"wrong", "failed"}, not row.gates))
    )
