"""A row of `nox -s bench`: a timed call.

Times are of the device unless a name says `host`; a figure that is missing is None, never zero.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Status, Whole

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
    started_at: str | None = None
    held: bool | None = Field(
        default=None,
        description="the device was held until the whole of each call was queued; False: host "
        "time may be in its samples; None: nothing to hold, a CPU",
    )


class CountedLaunch(SchemaLine):
    """What Nsight Compute counted of one launch of a call. Shares are 0 to 1, of the peak."""

    launch: str = Field(description="the name of the kernel on the device")
    device_us: float | None = Field(default=None, description="under its own conditions")
    registers: Whole | None = Field(default=None, description="a thread")
    occupancy: float | None = Field(
        default=None, description="achieved: warps that were active, of those that an SM can hold"
    )
    most_occupancy: float | None = Field(
        default=None, description="that registers, shared memory and the block's size allow"
    )
    waves: float | None = Field(default=None, description="of blocks, over all SMs")
    sm_share: float | None = Field(default=None, description="throughput of the SMs")
    tensor_share: float | None = Field(default=None, description="use of the tensor pipe")
    dram_share: float | None = Field(default=None, description="throughput of device memory")
    l2_share: float | None = Field(default=None, description="throughput of the L2 cache")
    l2_hits: float | None = Field(default=None, description="of the sectors asked of L2")
    stalls: dict[str, float] = Field(
        default_factory=dict,
        description="the three largest reasons for which warps waited, in cycles for each "
        "instruction that is issued",
    )


class BenchRow(SchemaLine):
    """One kernel on one case: how fast, after it was found right in the same run."""

    kind: Literal["bench"] = "bench"
    op: str
    kernel: str
    case: CaseInfo
    variant: str | None = None
    status: Literal["timed", "wrong", "refused", "failed", "absent"] = Field(
        description="wrong: its accuracy failed, so it has no figure; failed: the timing did; "
        "absent: not installed"
    )
    reason: str | None = Field(default=None, description="why there is no figure")
    accuracy: Status | None = Field(default=None, description="of this call in this run")
    worst_ratio: float | None = Field(default=None, description="error / bound, of its outputs")
    cache: Cache = "cold"
    distribution: str = "normal"
    processes: tuple[TimedProcess, ...] = ()
    median_us: float | None = None
    low_us: float | None = Field(
        default=None,
        description="of the median: 95 %, bootstrapped over places in memory; with several "
        "processes, from the lowest of their medians to the highest",
    )
    high_us: float | None = None
    first_quartile_us: float | None = None
    third_quartile_us: float | None = None
    clock_mhz: float | None = Field(default=None, description="median over the samples")
    clock_reason: str | None = Field(default=None, description="why there is no clock")
    median_cycles: float | None = Field(default=None, description="of the SMs: time x clock")
    first_quartile_cycles: float | None = None
    third_quartile_cycles: float | None = None
    flops: Whole | None = Field(default=None, description="that figures count")
    bytes: Whole | None = Field(default=None, description="inputs read once, outputs written once")
    tflops: float | None = None
    gb_s: float | None = None
    limit: Literal["memory", "matrix", "arithmetic"] | None = Field(
        default=None, description="which roof the case is under"
    )
    share_of_peak: float | None = Field(default=None, description="of the datasheet's, 0 to 1")
    share_of_ceiling: float | None = Field(default=None, description="of the one measured here")
    share_of_clocked_peak: float | None = Field(
        default=None, description="of the datasheet's at the clock that it ran at"
    )
    host_us: float | None = Field(
        default=None, description="from the call to its end on the device, median, host included"
    )
    enqueue_us: float | None = Field(
        default=None, description="host time of a call that is not the first, median"
    )
    judged_us: float | None = Field(
        default=None,
        description="device time of a call by the judge's own clock, over passes of calls on other "
        "values; the median of the passes",
    )
    judged_slack_us: float | None = Field(
        default=None, description="how far judged_us may be off, beside 25 % of it"
    )
    judged_sets: Whole | None = Field(default=None, description="calls of a pass")
    judged_passes: Whole | None = Field(
        default=None, description="passes, of each of which two outputs were judged afterwards"
    )
    unconfirmed: str | None = Field(
        default=None,
        description="why the judge's clock doesn't confirm the times, which are the word of the "
        "process that the kernel runs in; None: it does, or no passes were asked for",
    )
    first_call_s: float | None = Field(default=None, description="compilation and tuning included")
    peak_bytes: Whole | None = Field(default=None, description="inputs and outputs included")
    workspace_bytes: Whole | None = None
    launches: Whole | None = Field(default=None, description="kernels on the device, of one call")
    codes: tuple[str, ...] = Field(
        default=(),
        description="what else ran while it was timed: shared GPU, busy host; several processes: "
        "in any of them",
    )
    gpu_processes: Whole | None = Field(
        default=None, description="others that had the GPU meanwhile, at work or not"
    )
    gpu_processes_reason: str | None = Field(
        default=None, description="why it isn't known whether others had the GPU"
    )
    host_load: float | None = Field(
        default=None, description="share of the host's cores that others took meanwhile, 0 to 1"
    )
    counters: tuple[CountedLaunch, ...] = Field(
        default=(), description="of one call, launch by launch; asked for by --ncu"
    )
    counters_file: str | None = Field(
        default=None, description="Nsight Compute's report, beside the record"
    )
    counters_reason: str | None = Field(default=None, description="why there are no counters")
    weight: float | None = Field(
        default=None, description="how often a model makes the call, of a file of --cases"
    )
    source: str | None = Field(default=None, description="of a published or imported figure")
    gates: bool = Field(default=True, description="a failure sets the run's exit status")
    reproduce: str = ""
    duration_s: float = 0.0
    accuracy_s: float | None = Field(
        default=None, description="of the duration, for its accuracy: the case's truth, if first"
    )
