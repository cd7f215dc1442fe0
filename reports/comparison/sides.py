"""One side of a comparison: what is compared of a record, without its raw samples.

A side of speeds is a record of bench, an import, or one GPU of a record of `nox -s compile`, whose
rows are predictions. Rows are the same where op, kernel, case, cache and distribution are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from reports.comparison.rule import Evidence
    from reports.schema import CaseInfo, RunHeader, Status
    from reports.schema_profile import Validity

Figures = Literal["measured", "published", "imported", "predicted"]


class Key(NamedTuple):
    """What makes two rows the same row."""

    op: str
    kernel: str
    case: str
    cache: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model of GPU, or a CPU, is told by; `board` is the one card of it."""

    name: str
    multiprocessors: int | None = None
    power_limit_w: float | None = None
    board: str | None = None

    def unlike(self, other: Machine) -> str | None:
        """Why the two aren't one model, or None. A limit within 5 % is the same, as for peaks."""
        if self.name != other.name:
            return f"{self.name} and {other.name}"
        ours, theirs = self.multiprocessors, other.multiprocessors
        if ours is not None and theirs is not None and ours != theirs:
            return f"{self.name} with {ours} and {theirs} SMs"
        mine, its = self.power_limit_w, other.power_limit_w
        if mine is not None and its is not None and abs(mine - its) > 0.05 * max(mine, its):
            return f"{self.name} held to {mine:.0f} W and {its:.0f} W"
        return None

    def is_board_of(self, other: Machine) -> bool:
        """Whether both are one and the same card, as far as their records tell."""
        return self.board is not None and self.board == other.board


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A row of speeds. evidence: None where it has no time, and `reason` says why."""

    key: Key
    case: CaseInfo
    status: str
    reason: str | None
    accuracy: Status | None
    worst_ratio: float | None
    evidence: Evidence | None
    gates: bool = True
    flops: int | None = None
    bytes: int | None = None
    share_of_peak: float | None = None
    share_of_ceiling: float | None = None
    share_of_clocked_peak: float | None = None
    weight: float | None = None
    source: str | None = None

    @property
    def rate(self) -> tuple[float, str] | None:
        """TFLOP/s of a case that counts flops by the thousand a byte, else GB/s."""
        if self.evidence is None:
            return None
        time = self.evidence.time_us.centre
        if self.flops and (not self.bytes or self.flops > _FLOPS_A_BYTE * self.bytes):
            return self.flops / time / 1e6, "TFLOP/s"
        return (self.bytes / time / 1e3, "GB/s") if self.bytes else None


# Between what memory-bound ops do (layer-norm backward: 2 a byte) and a matrix unit's balance
# (V100: 140); it picks a unit to show, and decides nothing.
_FLOPS_A_BYTE = 30
_LONGEST_EMPTY_CALL_US = 1000.0  # longer in a damaged record alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row of accuracy, of either suite: its status, and its largest error over its bound.

    rmse: of each output, where the record has it
    """

    key: Key
    status: str
    worst_ratio: float | None
    rule: str | None = None
    gates: bool = True
    rmse: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Powered:
    """A row of energy. energy_j: of a call; None where it has none, and `reason` says why."""

    key: Key
    case: CaseInfo
    status: str
    reason: str | None
    validity: Validity
    codes: tuple[str, ...]
    accuracy: Status | None
    energy_j: float | None
    energy_error_j: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    joules_per_tflop: float | None
    flops: int | None
    weight: float | None = None


@dataclass(slots=True)
class Side:
    """One column of a comparison; `letter` names it in tables.

    twice  rows that the record has more than once: the first is taken
    """

    header: RunHeader
    path: Path
    figures: Figures
    machine: Machine
    problem: str | None = None
    letter: str = ""
    speeds: dict[Key, Timed] = field(default_factory=dict)
    judged: dict[Key, Judged] = field(default_factory=dict)
    energies: dict[Key, Powered] = field(default_factory=dict)
    twice: int = 0

    @property
    def empty_call_us(self) -> float | None:
        """What a call that does nothing takes on this machine; None: the record doesn't tell."""
        told = self.header.empty_call_us
        return told if told is not None and 0 < told < _LONGEST_EMPTY_CALL_US else None

    def left_out(self, key: Key) -> tuple[str, ...]:
        """The op's outputs that the row's kernel doesn't compute."""
        kernel = key.op, key.kernel
        kernels = self.header.kernels
        return next((each.left_out for each in kernels if (each.op, each.name) == kernel), ())

    @property
    def suite(self) -> str:
        """Which sides it can be laid beside: those of its suite, and predictions of speeds."""
        return "bench" if self.header.suite == "compile" else self.header.suite
