"""A row of `bench`: a timed call.

Times are of the device unless a name says `host`; a figure that is missing is None, never zero.
A field says here how a report shows it and how several processes' values merge (row_field.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_workbench.reports.phrases import duration, figure, memory, microseconds, share, whole
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Status, Whole
from kernel_workbench.reports.record.row_field import MergedLine, RowField

Cache = Literal["cold", "warm"]
Stop = Literal["steady", "noise plateau", "time limit", "sample limit"]
# Codes of a row.
SHARED_GPU, BUSY_HOST = "shared GPU", "busy host"


class TimedProcess(SchemaLine):
    """The samples that one process took; samples of one process aren't independent."""

    times_us: tuple[float, ...] = Field(description="one a sample, in the order taken")
    clocks_mhz: tuple[float | None, ...] = Field(
        default=(), description="of the SMs, sample by sample: cycles over time, by the SMs' own"
    )
    placements: tuple[Whole, ...] = Field(
        default=(),
        description="samples of each place in memory that the inputs were at, in their order; "
        "none: they were at one",
    )
    throttled: Whole = Field(default=0, description="samples discarded since the clock was low")
    stopped: Stop | None = Field(default=None, description="the rule that ended the sampling")
    started_at: str | None = Field(default=None, description="ISO 8601, UTC")
    held: bool | None = Field(
        default=None,
        description="the device was held until the whole of each call was queued; False: host "
        "time may be in its samples; None: nothing to hold, a CPU",
    )


class CountedLaunch(SchemaLine):
    """Counters of Nsight Compute for one launch of a call. Shares are 0 to 1, of the peak."""

    launch: Annotated[
        str,
        RowField(title="launch", kind="text", note="the kernel on the device", rank=0),
    ] = Field(description="the name of the kernel on the device")
    device_us: Annotated[
        float | None, RowField(title="counted us", form=microseconds, note="while counted", rank=0)
    ] = Field(default=None, description="under its own conditions")
    registers: Annotated[
        Whole | None, RowField(title="registers", rank=2, after="most_occupancy")
    ] = Field(default=None, description="a thread")
    occupancy: Annotated[
        float | None,
        RowField(
            unit="0 to 1",
            title="occupancy",
            form=share,
            note="achieved: active warps, of those that an SM can hold",
            rank=0,
        ),
    ] = Field(
        default=None, description="achieved: warps that were active, of those that an SM can hold"
    )
    most_occupancy: Annotated[
        float | None,
        RowField(
            unit="0 to 1",
            title="possible",
            form=share,
            note="occupancy that its registers and sizes allow",
            rank=3,
        ),
    ] = Field(default=None, description="that registers, shared memory and the block's size allow")
    waves: Annotated[float | None, RowField(unit="waves", title="waves", form=figure, rank=6)] = (
        Field(default=None, description="of blocks, over all SMs")
    )
    sm_share: Annotated[
        float | None,
        RowField(title="SM", form=share, note="throughput of the SMs, of their peak", rank=4),
    ] = Field(default=None, description="throughput of the SMs")
    tensor_share: Annotated[
        float | None,
        RowField(title="tensor", form=share, note="use of the tensor pipe, of its peak", rank=1),
    ] = Field(default=None, description="use of the tensor pipe")
    dram_share: Annotated[
        float | None,
        RowField(title="DRAM", form=share, note="throughput of device memory, of its peak", rank=0),
    ] = Field(default=None, description="throughput of device memory")
    l2_share: Annotated[
        float | None,
        RowField(title="L2", form=share, note="throughput of the L2 cache, of its peak", rank=1),
    ] = Field(default=None, description="throughput of the L2 cache")
    l2_hits: Annotated[
        float | None, RowField(unit="0 to 1", title="L2 hits", form=share, rank=5)
    ] = Field(default=None, description="of the sectors asked of L2")
    stalls: Annotated[
        dict[str, float],
        RowField(
            unit="cycles",
            title="stalls",
            form=lambda stalls: ", ".join(
                f"{reason} {figure(cycles)}" for reason, cycles in stalls.items()
            ),
            kind="text",
            note="cycles that warps waited for each instruction issued, the largest three reasons",
            rank=1,
        ),
    ] = Field(
        default_factory=dict,
        description="the three largest reasons for which warps waited, in cycles for each "
        "instruction that is issued",
    )


class BenchRow(MergedLine):
    """One kernel on one case: how fast, after it was found right in the same run."""

    kind: Literal["bench"] = "bench"
    op: Annotated[str, RowField(merge="key")] = Field(description="name of the op")
    kernel: Annotated[str, RowField(merge="key")] = Field(description="name of the kernel")
    case: Annotated[CaseInfo, RowField(merge="key")] = Field(description="the case of the call")
    variant: Annotated[str | None, RowField(merge="common")] = Field(
        default=None, description="what dispatch took"
    )
    status: Annotated[
        Literal["timed", "wrong", "refused", "failed", "absent"], RowField(merge="common")
    ] = Field(
        description="wrong: its accuracy failed, so it has no figure; failed: the timing did; "
        "absent: not installed"
    )
    reason: Annotated[str | None, RowField(merge="any")] = Field(
        default=None, description="why there is no figure"
    )
    accuracy: Annotated[Status | None, RowField(merge="common")] = Field(
        default=None, description="of this call in this run"
    )
    worst_ratio: Annotated[
        float | None,
        RowField(
            merge="largest",
            unit="1",
            title="error / bound",
            form=figure,
            note="of its accuracy",
            rank=13,
            after="launches",
        ),
    ] = Field(
        default=None,
        description="error / bound, of its outputs; a baseline's bounds "
        "may be those of another kernel, if its outputs keep these",
    )
    cache: Annotated[Cache, RowField(merge="key")] = Field(
        default="cold", description="whether a call found its inputs in the L2 cache"
    )
    distribution: Annotated[str, RowField(merge="key")] = Field(
        default="normal", description="of the inputs' values"
    )
    processes: Annotated[tuple[TimedProcess, ...], RowField(merge="concatenated")] = Field(
        default=(), description="the samples, process by process"
    )
    median_us: Annotated[
        float | None,
        RowField(merge="median", title="us", form=microseconds, note="median device time", rank=0),
    ] = Field(
        default=None, description="device time of a call, median over the samples of a process"
    )
    low_us: Annotated[float | None, RowField(merge="smallest", merge_of="median_us")] = Field(
        default=None,
        description="of the median: 95 %, bootstrapped over places in memory; with several "
        "processes, from the lowest of their medians to the highest",
    )
    high_us: Annotated[float | None, RowField(merge="largest", merge_of="median_us")] = Field(
        default=None, description="the upper end of low_us"
    )
    first_quartile_us: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="of the samples"
    )
    third_quartile_us: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="of the samples"
    )
    clock_mhz: Annotated[
        float | None,
        RowField(
            merge="median",
            title="MHz",
            note="SM clock, median",
            rank=4,
            after="share_of_clocked_peak",
        ),
    ] = Field(default=None, description="median over the samples")
    clock_reason: Annotated[str | None, RowField(merge="any")] = Field(
        default=None, description="why there is no clock"
    )
    median_cycles: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="of the SMs: time x clock"
    )
    first_quartile_cycles: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="of the samples"
    )
    third_quartile_cycles: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="of the samples"
    )
    flops: Annotated[Whole | None, RowField(merge="common")] = Field(
        default=None, description="that figures count"
    )
    bytes: Annotated[Whole | None, RowField(merge="common")] = Field(
        default=None, description="inputs read once, outputs written once"
    )
    tflops: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="flops over median_us"
    )
    gb_s: Annotated[float | None, RowField(merge="median")] = Field(
        default=None, description="bytes over median_us"
    )
    limit: Annotated[Literal["memory", "matrix", "arithmetic"] | None, RowField(merge="common")] = (
        Field(default=None, description="which roof the case is under")
    )
    share_of_peak: Annotated[float | None, RowField(merge="median", unit="0 to 1")] = Field(
        default=None, description="of the datasheet's, 0 to 1"
    )
    share_of_ceiling: Annotated[
        float | None,
        RowField(
            merge="median",
            unit="0 to 1",
            title="of ceiling",
            form=share,
            note="of what this device was measured to do, which a kernel may pass",
            rank=3,
        ),
    ] = Field(default=None, description="of the one measured here")
    share_of_clocked_peak: Annotated[
        float | None,
        RowField(
            merge="median",
            unit="0 to 1",
            title="at its clock",
            form=share,
            note="of the datasheet's roof at the clock that it ran at",
            rank=8,
        ),
    ] = Field(default=None, description="of the datasheet's at the clock that it ran at")
    cupti_us: Annotated[
        float | None,
        RowField(
            merge="median",
            title="CUPTI us",
            form=microseconds,
            note="the device at work, by NVIDIA's tracing library",
            rank=11,
            after="launches",
        ),
    ] = Field(
        default=None,
        description="time of a call in which a kernel, a copy or a fill ran on the device, by "
        "CUPTI in another process, median of up to 5 calls; gaps between kernels don't count",
    )
    host_us: Annotated[
        float | None,
        RowField(
            merge="median", title="host us", form=microseconds, note="from call to end", rank=5
        ),
    ] = Field(
        default=None,
        description="from the call to its end on the device, median, host included",
    )
    enqueue_us: Annotated[
        float | None,
        RowField(
            merge="median",
            title="enqueue us",
            form=microseconds,
            note="host time of a call that is not the first",
            rank=10,
        ),
    ] = Field(default=None, description="host time of a call that is not the first, median")
    judged_us: Annotated[float | None, RowField(merge="median")] = Field(
        default=None,
        description="device time of a call by the judge's own clock, over passes of calls on other "
        "values; the median of the passes",
    )
    judged_slack_us: Annotated[float | None, RowField(merge="largest")] = Field(
        default=None, description="how far judged_us may be off, beside 25 % of it"
    )
    judged_sets: Annotated[Whole | None, RowField(merge="smallest")] = Field(
        default=None, description="calls of a pass"
    )
    judged_passes: Annotated[Whole | None, RowField(merge="smallest")] = Field(
        default=None,
        description="judged passes: outputs of the first were judged, of a user's kernel of each",
    )
    unconfirmed: Annotated[str | None, RowField(merge="any")] = Field(
        default=None,
        description="why the judge's clock doesn't confirm the times, which are the word of the "
        "process that the kernel runs in; None: it does, or no passes were asked for",
    )
    first_call_s: Annotated[
        float | None, RowField(merge="largest", title="first call", form=duration, rank=6)
    ] = Field(default=None, description="compilation and tuning included")
    peak_bytes: Annotated[
        Whole | None, RowField(merge="largest", title="memory", form=memory, rank=7)
    ] = Field(default=None, description="inputs and outputs included")
    workspace_bytes: Annotated[
        Whole | None, RowField(merge="largest", title="workspace", form=memory, note="", rank=9)
    ] = Field(
        default=None, description="most that a call took at one time beyond inputs and outputs"
    )
    launches: Annotated[
        Whole | None,
        RowField(merge="largest", title="launches", note="kernels on the device", rank=12),
    ] = Field(default=None, description="kernels on the device, of one call")
    codes: Annotated[
        tuple[str, ...],
        RowField(
            merge="distinct",
            title="other work",
            form=", ".join,
            kind="text",
            note="what ran besides while it was timed",
            rank=5,
            tone="doubtful",
        ),
    ] = Field(
        default=(),
        description="what else ran while it was timed: shared GPU, busy host; several processes: "
        "in any of them",
    )
    gpu_processes: Annotated[
        Whole | None,
        RowField(
            merge="largest",
            title="on GPU",
            form=lambda number: whole(number) if number else None,
            note="processes of others that had the GPU meanwhile",
            rank=15,
        ),
    ] = Field(default=None, description="others that had the GPU meanwhile, at work or not")
    gpu_processes_reason: Annotated[str | None, RowField(merge="any")] = Field(
        default=None, description="why it isn't known whether others had the GPU"
    )
    host_load: Annotated[
        float | None,
        RowField(
            merge="largest",
            unit="0 to 1",
            title="host load",
            form=share,
            note="share of the host's cores that others took meanwhile",
            rank=16,
        ),
    ] = Field(
        default=None, description="share of the host's cores that others took meanwhile, 0 to 1"
    )
    counters: Annotated[tuple[CountedLaunch, ...], RowField(merge="concatenated")] = Field(
        default=(), description="of one call, launch by launch; asked for by --ncu"
    )
    counters_file: Annotated[str | None, RowField(merge="any")] = Field(
        default=None, description="Nsight Compute's report, beside the record"
    )
    counters_reason: Annotated[str | None, RowField(merge="any")] = Field(
        default=None, description="why there are no counters"
    )
    weight: Annotated[
        float | None,
        RowField(
            merge="common",
            unit="calls",
            title="weight",
            form=lambda weight: f"{weight:g}",
            note="how often a model makes the call",
            rank=14,
        ),
    ] = Field(default=None, description="how often a model makes the call, of a file of --cases")
    source: Annotated[str | None, RowField(merge="common")] = Field(
        default=None, description="of a published or imported figure"
    )
    gates: Annotated[bool, RowField(merge="common")] = Field(
        default=True, description="a failure sets the run's exit status"
    )
    reproduce: Annotated[str, RowField(merge="common")] = Field(
        default="", description="the command that runs this row alone"
    )
    duration_s: Annotated[float, RowField(merge="sum")] = Field(
        default=0.0, description="what the row took"
    )
    accuracy_s: Annotated[float | None, RowField(merge="sum")] = Field(
        default=None, description="of the duration, for its accuracy: the case's truth, if first"
    )
