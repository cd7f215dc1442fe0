"""A row of `nox -s profile`: NVML windows around a looped kernel.

Powers are of the board. A figure that is missing is None, and `missing` has the reason by the
field's name: a reason code, a colon and a sentence.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from kernel_workbench.reports.record.line import CLOSED, CaseInfo, SchemaLine, Status, Whole

Validity = Literal["valid", "transient", "invalid"]


# A record has dozens of thousands of spreads and windows, and a model takes four times the memory.
@dataclass(frozen=True, slots=True, config=CLOSED)
class Spread:
    """A quantity over a window."""

    mean: float
    p50: float
    p95: float
    lowest: float
    highest: float


class Series(SchemaLine):
    """What was sampled, thinned for a picture: columns of one length; None where a read failed."""

    seconds: tuple[float, ...] = Field(description="since the window began")
    power_w: tuple[float | None, ...] = ()
    sm_clock_mhz: tuple[float | None, ...] = ()
    temperature_c: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, config=CLOSED)
class Window:
    """One trial: the kernel looped, between two readings of the counters."""

    duration_s: float
    calls: Whole | None = None
    dropped_s: float = Field(default=0.0, description="at its start, before the window")
    energy_counter_j: float | None = None
    energy_counter_error_j: float | None = Field(
        default=None, description="from the counter's ticks: half a tick at either end"
    )
    energy_integral_j: float | None = Field(default=None, description="of sampled power")
    power_w: Spread | None = None
    sm_clock_mhz: Spread | None = None
    memory_clock_mhz: Spread | None = None
    sm_clocks: dict[Whole, float] = Field(
        default_factory=dict, description="share of the samples at each SM clock, in MHz"
    )
    temperature_c: Spread | None = None
    memory_temperature_c: Spread | None = None
    reasons_s: dict[str, float] = Field(
        default_factory=dict, description="seconds in each throttle reason, by its counter"
    )
    reasons_polled: dict[str, float] = Field(
        default_factory=dict, description="share of the samples that had it"
    )
    slopes: dict[str, float] = Field(
        default_factory=dict, description="a minute, over the window: power_w, sm_clock_mhz, ..."
    )
    samples: Whole = 0
    period_ms: float | None = Field(default=None, description="between samples, median")
    largest_gap_ms: float | None = None
    device_us: float | None = Field(default=None, description="a call, by events around the loop")
    validity: Validity = "valid"
    codes: tuple[str, ...] = Field(default=(), description="why it isn't valid, or what it lacks")
    missing: dict[str, str] = Field(default_factory=dict)
    series: Series | None = None


class ProfileRow(SchemaLine):
    """One kernel on one case and distribution: energy, power, clocks and what held them down."""

    kind: Literal["profile"] = "profile"
    op: str
    kernel: str
    case: CaseInfo
    variant: str | None = None
    distribution: str
    status: Literal["measured", "wrong", "refused", "failed", "absent"]
    reason: str | None = None
    accuracy: Status | None = None
    validity: Validity = "valid"
    codes: tuple[str, ...] = ()
    missing: dict[str, str] = Field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    energy_j: float | None = Field(default=None, description="of a call, gross, over the trials")
    energy_error_j: float | None = Field(default=None, description="95 %, trials and counter")
    net_energy_j: float | None = Field(default=None, description="less idle power x time")
    energy_integral_j: float | None = Field(default=None, description="of a call, by sampled power")
    device_us: float | None = Field(default=None, description="of a call in the loop")
    power_w: float | None = Field(default=None, description="mean over the trials")
    power_limit_w: float | None = Field(default=None, description="enforced")
    idle_before_w: float | None = None
    idle_after_w: float | None = None
    flops: Whole | None = None
    bytes: Whole | None = None
    tflops: float | None = None
    gb_s: float | None = None
    joules_per_tflop: float | None = None
    tflops_per_w: float | None = None
    gb_s_per_w: float | None = None
    sampler_slowdown: float | None = Field(
        default=None, description="time of a call with the sampler over without it, less 1"
    )
    board_error: float = Field(
        default=0.05,
        description="share by which two boards' power sensors may differ in gain; it is in no "
        "other error here, and enters once boards are compared",
    )
    captured: bool | None = Field(
        default=None, description="looped in a CUDA graph, so that the host kept nothing waiting"
    )
    weight: float | None = Field(
        default=None, description="how often a model makes the call, of a file of --cases"
    )
    gates: bool = True
    reproduce: str = ""
    duration_s: float = 0.0
