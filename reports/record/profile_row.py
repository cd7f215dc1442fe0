"""A row of `profile`: NVML windows around a looped kernel.

Powers are of the board. A figure that is missing is None, and `missing` has the reason by the
field's name: a reason code, a colon and a sentence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from kernel_workbench.reports.phrases import energy, figure, four_digits, microseconds
from kernel_workbench.reports.record.line import CLOSED, CaseInfo, SchemaLine, Status, Whole
from kernel_workbench.reports.record.row_field import RowField

Validity = Literal["valid", "transient", "invalid"]
_ENERGY = (
    "of a call, of the whole board; boards of one model differ by 5 % in what they report, so "
    "energies of two compare to 7 % at best, and rows of one record share that error"
)


# A record has dozens of thousands of spreads and windows, and a model takes four times the memory.
@dataclass(frozen=True, slots=True, config=CLOSED)
class Spread:
    """A quantity over a window."""

    mean: Annotated[float, RowField(unit="of the quantity")] = Field(description="over the samples")
    p50: Annotated[float, RowField(unit="of the quantity")] = Field(description="median")
    p95: Annotated[float, RowField(unit="of the quantity")] = Field(description="95th percentile")
    lowest: Annotated[float, RowField(unit="of the quantity")] = Field(description="of the samples")
    highest: Annotated[float, RowField(unit="of the quantity")] = Field(
        description="of the samples"
    )


class Series(SchemaLine):
    """Samples over time, thinned for a picture: columns of one length; None where a read failed."""

    seconds: Annotated[tuple[float, ...], RowField(unit="s")] = Field(
        description="since the window began"
    )
    power_w: tuple[float | None, ...] = Field(default=(), description="of the board")
    sm_clock_mhz: tuple[float | None, ...] = Field(default=(), description="of the SMs")
    temperature_c: tuple[float | None, ...] = Field(default=(), description="of the GPU")


@dataclass(frozen=True, slots=True, config=CLOSED)
class Window:
    """One trial: the kernel looped, between two readings of the counters."""

    duration_s: Annotated[float, RowField(title="seconds", note="", form=four_digits, rank=0)] = (
        Field(description="of the window")
    )
    calls: Annotated[Whole | None, RowField(title="calls", note="", rank=0)] = Field(
        default=None, description="in the window"
    )
    dropped_s: float = Field(default=0.0, description="at its start, before the window")
    energy_counter_j: Annotated[
        float | None, RowField(title="counter", form=energy, note="of the window", rank=0)
    ] = Field(default=None, description="of the window, by the board's energy counter")
    energy_counter_error_j: float | None = Field(
        default=None, description="from the counter's ticks: half a tick at either end"
    )
    energy_integral_j: Annotated[float | None, RowField(title="integral", form=energy, rank=0)] = (
        Field(default=None, description="of sampled power")
    )
    power_w: Spread | None = Field(default=None, description="of the board")
    sm_clock_mhz: Spread | None = Field(default=None, description="of the SMs")
    memory_clock_mhz: Spread | None = Field(default=None, description="of the memory")
    sm_clocks: Annotated[dict[Whole, float], RowField(unit="0 to 1")] = Field(
        default_factory=dict, description="share of the samples at each SM clock, in MHz"
    )
    temperature_c: Spread | None = Field(default=None, description="of the GPU")
    memory_temperature_c: Spread | None = Field(default=None, description="of the memory")
    reasons_s: dict[str, float] = Field(
        default_factory=dict, description="seconds in each throttle reason, by its counter"
    )
    reasons_polled: Annotated[dict[str, float], RowField(unit="0 to 1")] = Field(
        default_factory=dict, description="share of the samples that had it"
    )
    slopes: Annotated[dict[str, float], RowField(unit="the quantity's, a minute")] = Field(
        default_factory=dict, description="a minute, over the window: power_w, sm_clock_mhz, ..."
    )
    samples: Annotated[Whole, RowField(title="samples", note="", rank=0)] = Field(
        default=0, description="in the window"
    )
    period_ms: Annotated[
        float | None, RowField(title="period, ms", form=figure, note="", rank=0)
    ] = Field(default=None, description="between samples, median")
    largest_gap_ms: Annotated[
        float | None, RowField(title="largest gap, ms", form=figure, note="", rank=0)
    ] = Field(default=None, description="between two samples")
    device_us: float | None = Field(default=None, description="a call, by events around the loop")
    validity: Validity = Field(
        default="valid",
        description="valid: a steady state; transient: it still changed; invalid: no figure of a "
        "call comes from it",
    )
    codes: tuple[str, ...] = Field(default=(), description="why it isn't valid, or what it lacks")
    missing: dict[str, str] = Field(
        default_factory=dict, description="reason by the name of a field that couldn't be read"
    )
    series: Series | None = Field(default=None, description="for a picture")


class ProfileRow(SchemaLine):
    """One kernel on one case and distribution: energy, power, clocks and what held them down."""

    kind: Literal["profile"] = "profile"
    op: str = Field(description="name of the op")
    kernel: str = Field(description="name of the kernel")
    case: CaseInfo = Field(description="the case of the call")
    variant: str | None = Field(default=None, description="what dispatch took")
    distribution: str = Field(description="of the inputs' values")
    status: Literal["measured", "wrong", "refused", "failed", "absent"] = Field(
        description="wrong: its accuracy failed; failed: the measurement did; absent: not installed"
    )
    reason: str | None = Field(default=None, description="why there is no figure")
    accuracy: Status | None = Field(default=None, description="of this call in this run")
    validity: Validity = Field(default="valid", description="the worst of the windows that count")
    codes: tuple[str, ...] = Field(default=(), description="why it isn't valid, or what it lacks")
    missing: dict[str, str] = Field(
        default_factory=dict, description="reason by the name of a figure that is None"
    )
    windows: tuple[Window, ...] = Field(default=(), description="the trials")
    energy_j: Annotated[
        float | None, RowField(title="energy", form=energy, note=_ENERGY, rank=0)
    ] = Field(default=None, description="of a call, gross, over the trials")
    energy_error_j: float | None = Field(default=None, description="95 %, trials and counter")
    net_energy_j: Annotated[
        float | None, RowField(title="net", form=energy, note="energy less idle power", rank=7)
    ] = Field(default=None, description="less idle power x time")
    energy_integral_j: float | None = Field(default=None, description="of a call, by sampled power")
    device_us: Annotated[
        float | None, RowField(title="us", form=microseconds, rank=3, after="power_w")
    ] = Field(default=None, description="of a call in the loop")
    power_w: Annotated[float | None, RowField(title="W", form=figure, rank=1, after="energy_j")] = (
        Field(default=None, description="mean over the trials")
    )
    power_limit_w: float | None = Field(default=None, description="enforced")
    idle_before_w: float | None = Field(default=None, description="of the board, before the run")
    idle_after_w: float | None = Field(default=None, description="of the board, after the run")
    flops: Whole | None = Field(default=None, description="of a call")
    bytes: Whole | None = Field(default=None, description="inputs read once, outputs written once")
    tflops: float | None = Field(default=None, description="flops over device_us")
    gb_s: float | None = Field(default=None, description="bytes over device_us")
    joules_per_tflop: Annotated[
        float | None, RowField(title="J/TFLOP", form=figure, note="", rank=8, unit="J/TFLOP")
    ] = Field(default=None, description="energy of a call over its work")
    tflops_per_w: Annotated[float | None, RowField(unit="TFLOP/s/W")] = Field(
        default=None, description="tflops over power_w"
    )
    gb_s_per_w: Annotated[float | None, RowField(unit="GB/s/W")] = Field(
        default=None, description="gb_s over power_w"
    )
    sampler_slowdown: Annotated[
        float | None,
        RowField(
            title="sampler",
            form=lambda slower: f"{100 * slower:+.2f} %",
            note="by how much it slows a call",
            rank=12,
            unit="1",
        ),
    ] = Field(default=None, description="time of a call with the sampler over without it, less 1")
    board_error: Annotated[float, RowField(unit="0 to 1")] = Field(
        default=0.05,
        description="share by which two boards' power sensors may differ in gain; it is in no "
        "other error here, and enters once boards are compared",
    )
    captured: bool | None = Field(
        default=None, description="looped in a CUDA graph, so that the host kept nothing waiting"
    )
    weight: Annotated[float | None, RowField(unit="calls")] = Field(
        default=None, description="how often a model makes the call, of a file of --cases"
    )
    gates: bool = Field(default=True, description="a failure sets the run's exit status")
    reproduce: str = Field(default="", description="the command that runs this row alone")
    duration_s: float = Field(default=0.0, description="what the row took")
