"""Derive figures from rows of `profile`: cases, weighted totals, throttle reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kernel_workbench.reports.views.performance import over
from kernel_workbench.reports.views.run import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_workbench.reports.record import ProfileRow, Record, Validity, Window

_WORSE: tuple[Validity, ...] = ("valid", "transient", "invalid")  # in this order
_MOST_OF_WINDOW = 1.01  # that a time within it can come to


@dataclass(frozen=True, slots=True)
class MissingFigures:
    """Figures that rows lack, for one reason."""

    fields: tuple[str, ...]
    reason: str
    rows: int
    example: ProfileRow


class _Figures(NamedTuple):
    row: ProfileRow
    energy_j: float
    device_us: float


@dataclass(frozen=True, slots=True)
class Total:
    """A model's calls of one kernel: each case as often as its weight says.

    Attributes:
        cases: the number of cases in the sum.
        of: the number of cases with a weight.
        energy_error_j: of 95 %; None where a row's is.
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


def short_case(row: ProfileRow) -> str:
    """Return the case's id without its op's name."""
    return row.case.id.removeprefix(f"{row.op}-")


def totals_of(record: Record) -> tuple[Total, ...]:
    """Weighted totals by op, inputs and kernel that computes all of it, the least energy first.

    Each is over the cases on which every kernel that has energy and time anywhere has both.
    """
    groups: dict[tuple[str, str], dict[str, tuple[float, dict[str, _Figures]]]] = {}
    parts = parts_of(record.header)
    for row in record.profiles:
        if row.weight is not None and (row.op, row.kernel) not in parts:
            cases = groups.setdefault((row.op, row.distribution), {})
            _, having = cases.setdefault(row.case.id, (row.weight, {}))
            if row.energy_j is not None and row.device_us is not None:
                having[row.kernel] = _Figures(row, row.energy_j, row.device_us)
    result: list[Total] = []
    for (op, distribution), of_group in groups.items():
        everyone = {kernel for _, having in of_group.values() for kernel in having}
        common = [one for one in of_group.values() if everyone <= one[1].keys()]
        totals = []
        for kernel in common[0][1] if common else ():
            weighed = [(weight, having[kernel]) for weight, having in common]
            errors = [(weight, item.row.energy_error_j) for weight, item in weighed]
            present = [weight * error for weight, error in errors if error is not None]
            totals.append(
                Total(
                    op=op,
                    kernel=kernel,
                    distribution=distribution,
                    cases=len(common),
                    of=len(of_group),
                    energy_j=sum(weight * item.energy_j for weight, item in weighed),
                    energy_error_j=math.hypot(*present) if len(present) == len(errors) else None,
                    device_us=sum(weight * item.device_us for weight, item in weighed),
                    validity=max((item.row.validity for _, item in weighed), key=_WORSE.index),
                )
            )
        result += sorted(totals, key=lambda item: item.energy_j)
    return tuple(result)


def counter_apart(row: ProfileRow) -> float | None:
    """By how much of it the energy of sampled power is more than the counter's."""
    if row.energy_integral_j is None or not row.energy_j:
        return None
    return row.energy_integral_j / row.energy_j - 1


def mean_of(row: ProfileRow, name: str) -> float | None:
    """Return the mean over the trials of a quantity's mean: sm_clock_mhz, temperature_c, ..."""
    spreads = [getattr(window, name) for window in row.windows]
    means = [spread.mean for spread in spreads if spread is not None]
    return sum(means) / len(means) if means else None


def highest_of(row: ProfileRow, name: str) -> float | None:
    """Return the highest that any trial saw."""
    spreads = [getattr(window, name) for window in row.windows]
    return max((spread.highest for spread in spreads if spread is not None), default=None)


def _of_window(share: float) -> float:
    """Return a share of at most 1: the two ends of a window are read a moment apart."""
    return 1.0 if 1.0 < share <= _MOST_OF_WINDOW else share


def held_by(row: ProfileRow) -> dict[str, float]:
    """Return the reasons for low clocks with their shares of all trials' windows, largest first."""
    names = dict.fromkeys(
        name for window in row.windows for name in (*window.reasons_s, *window.reasons_polled)
    )
    shares = {name: _held_share(name, row.windows) for name in names}
    present = ((name, value) for name, value in shares.items() if value)
    return dict(sorted(present, key=lambda item: -item[1]))


def _held_share(name: str, windows: Sequence[Window]) -> float:
    """Return a reason's share by the driver's counter, else of the samples that had it."""
    counted = [window for window in windows if name in window.reasons_s]
    seconds = sum(window.reasons_s[name] for window in counted)
    total_s = sum(window.duration_s for window in counted)
    polled = [window.reasons_polled[name] for window in windows if name in window.reasons_polled]
    if seconds and total_s > 0:
        return _of_window(seconds / total_s)
    return sum(polled) / len(polled) if polled else 0.0


def codes_of(row: ProfileRow) -> tuple[str, ...]:
    """Return the codes of the row and of its windows, each once."""
    return tuple(
        dict.fromkeys((*row.codes, *(code for window in row.windows for code in window.codes)))
    )


def missing_of(record: Record) -> tuple[MissingFigures, ...]:
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
        MissingFigures(tuple(fields), reason, len(numbers), record.profiles[numbers[0]])
        for (reason, numbers), fields in together.items()
    )
