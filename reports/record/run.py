"""The first line of a record and its last: what was run, where, and how it went.

A record is self-contained, JSON lines: one header, rows, one end. `schema_version` changes when a
field changes its meaning or goes; `protocol` changes when the rules behind the numbers do, and runs
of two protocols don't compare. A field that is added with a default changes neither: records made
before it still read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_workbench.reports.record.line import SchemaLine, Whole
from kernel_workbench.reports.record.row_field import RowField

SCHEMA_VERSION = 1
PROTOCOL = 2
ACCURACY_PROTOCOL = 6  # of `accuracy`: what is asked of a kernel
BENCH_PROTOCOL = 3  # of `bench`: what it is to time a call


class Environment(SchemaLine):
    """The machine and its software. A figure that is missing is None, never zero."""

    device: Literal["cpu", "cuda"] = Field(description="where kernels ran")
    device_name: str = Field(description="of the GPU, or of the CPU")
    simulated_sm: Whole | None = Field(
        default=None, description="sm as whose kernels served cases, where no GPU is"
    )
    strict: bool | None = Field(
        default=None, description="under the interpreter: whether every access was checked"
    )
    unchecked: tuple[str, ...] = Field(
        default=(),
        description="the strict interpreter's checks that Triton's version doesn't allow",
    )
    sm: Whole | None = Field(default=None, description="compute capability times ten: 90 is 9.0")
    multiprocessors: Whole | None = Field(default=None, description="of the GPU")
    memory_bytes: Whole | None = Field(default=None, description="of the GPU")
    gpu_uuid: str | None = Field(
        default=None, description="of the GPU, or a hash of it where --hash-uuid asks for one"
    )
    driver: str | None = Field(default=None, description="version of the GPU's driver")
    cuda: str | None = Field(default=None, description="version of CUDA that torch was built for")
    hostname: str = Field(description="of the machine")
    platform: str = Field(description="the operating system")
    cpu: str = Field(description="model of the CPU")
    cpu_count: Whole = Field(description="logical cores")
    python: str = Field(description="version")
    packages: dict[str, str] = Field(description="version of each package that decides a result")
    git_commit: str | None = Field(default=None, description="of the checkout")
    git_dirty: bool | None = Field(
        default=None, description="the checkout had changes that weren't committed"
    )
    tree: str | None = Field(
        default=None, description="SHA-256 of the checkout's files that make a run what it is"
    )
    vbios: str | None = Field(default=None, description="version of the GPU's firmware")
    pci_bus_id: str | None = Field(default=None, description="of the GPU")
    power_limit_w: float | None = Field(default=None, description="enforced")
    default_power_limit_w: float | None = Field(
        default=None, description="of the GPU, as delivered"
    )
    default_sm_clock_mhz: Whole | None = Field(
        default=None, description="of applications, else the most that the SMs may run at"
    )
    max_sm_clock_mhz: Whole | None = Field(default=None, description="that the SMs may run at")
    max_memory_clock_mhz: Whole | None = Field(
        default=None, description="that the memory may run at"
    )
    ecc: bool | None = Field(default=None, description="error correction of the GPU's memory is on")
    mig: bool | None = Field(default=None, description="the GPU is divided into instances")
    persistence: bool | None = Field(
        default=None, description="the driver keeps the GPU initialised"
    )
    virtualisation: str | None = Field(default=None, description="of the GPU: none, vGPU, ...")
    l2_bytes: Whole | None = Field(default=None, description="size of the L2 cache")
    fp_fusion: bool | None = Field(
        default=None, description="whether Triton fuses products and sums where nobody says"
    )
    container: str | None = Field(default=None, description="what the run was contained in")
    missing: dict[str, str] = Field(
        default_factory=dict, description="fields of the GPU that couldn't be read, and why"
    )


class KernelInfo(SchemaLine):
    """A kernel as registered, with the numerics that it declares."""

    op: str = Field(description="name of the op")
    name: str = Field(description="of the kernel")
    origin: Literal["ours", "baseline", "user"] = Field(
        description="ours, a baseline, or of a file of --kernels"
    )
    priority: Whole = Field(description="of kernels that serve a case, dispatch takes the highest")
    path: str = Field(description="the file that registers it")
    numerics: dict[str, bool | int | float | str | None] = Field(
        description="what it declares of its arithmetic"
    )
    variants: tuple[str, ...] = Field(
        default=(), description="all that there are on the run's sm; none where it doesn't say"
    )
    returns: tuple[str, ...] = Field(
        default=(), description="of a kernel of a part of its op: the outputs that it computes"
    )
    left_out: tuple[str, ...] = Field(
        default=(), description="the op's outputs that it doesn't, which aren't judged"
    )
    asked_for: bool = Field(
        default=False,
        description="a user's, or one of ours that --kernel names: where nothing of it runs, the "
        "run fails",
    )


class AbsentKernel(SchemaLine):
    """A peer that the run would have tried too, had it been there."""

    op: str = Field(description="name of the op")
    name: str = Field(description="of the kernel")
    reason: str = Field(description="why it isn't there, and what to do: not installed: ...")


class Roof(SchemaLine):
    """The most that a GPU did, or could do, of one kind of work."""

    name: str = Field(description="copy, add, matmul bfloat16, memory, half, tf32, fp32 ...")
    value: Annotated[float, RowField(unit="of the field unit")] = Field(description="in `unit`")
    unit: Literal["GB/s", "TFLOP/s"] = Field(description="of value")
    measured: bool = Field(description="in this run; else it is of a datasheet")
    source: str = Field(description="what ran, with its sizes; or the datasheet")
    times_us: tuple[float, ...] = Field(default=(), description="the samples")
    clock_mhz: float | None = Field(default=None, description="of the SMs while it was measured")


class FlushProbe(SchemaLine):
    """A read of a known size: right after itself, and after the flush that samples have."""

    bytes: Whole = Field(description="that are read")
    warm_us: float = Field(description="time of the read right after itself")
    cold_us: float = Field(description="time of the read after the flush")
    evicts: bool = Field(description="whether the flushed read is as slow as memory makes it")
    reason: str = Field(description="one sentence")


class RunHeader(SchemaLine):
    """The first line: what was run, where, and how it was asked for."""

    kind: Literal["run"] = "run"
    schema_version: Literal[1] = Field(
        default=1, description="changes when a field changes its meaning or goes"
    )
    protocol: Whole = Field(
        default=PROTOCOL,
        description="changes when the rules behind the numbers do",
    )
    suite: Literal["accuracy", "compile", "bench", "profile", "search"] = Field(
        description="what ran"
    )
    started_at: str = Field(description="ISO 8601, UTC")
    command: str = Field(description="what would run it again, from the checkout's root")
    environment: Environment = Field(description="the machine and its software")
    kernels: tuple[KernelInfo, ...] = Field(description="those of the rows")
    default_numerics: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict,
        description="what a kernel that declares nothing has; a report shows what differs",
    )
    planned_rows: Whole = Field(
        description="rows that a whole run has; 0 where that isn't known before"
    )
    gate_baselines: bool = Field(description="baselines' failures set the exit status too")
    files: dict[str, str] = Field(
        default_factory=dict, description="files of --kernels and --cases, and the SHA-256 of each"
    )
    figures: Literal["measured", "published", "imported"] = Field(
        default="measured",
        description="measured by this suite, taken from a publication, or from another program",
    )
    absent: tuple[AbsentKernel, ...] = Field(
        default=(), description="peers that aren't installed, of the ops that were run"
    )
    roofs: tuple[Roof, ...] = Field(default=(), description="what the GPU could do at most")
    flush: FlushProbe | None = Field(
        default=None, description="whether what is read between samples evicts the L2 cache"
    )
    empty_call_us: float | None = Field(
        default=None,
        description="what a call that does nothing takes here, by the protocol that times kernels; "
        "it is part of every time, and the machine's",
    )
    finds_command: str | None = Field(
        default=None,
        description="of a search: the command that tries all it found, less --cases=RECORD",
    )


class RunEnd(SchemaLine):
    """The last line. A record without it is of a run that was cut off."""

    kind: Literal["end"] = "end"
    finished_at: str = Field(description="ISO 8601, UTC")
    duration_s: float = Field(description="of the run")
    rows: Whole = Field(description="rows in the record")
    interrupted: bool = Field(description="the run didn't try all that it planned")
    exit_status: Whole = Field(description="of the command")
    problems: tuple[str, ...] = Field(default=(), description="what failed it beside its rows")
    stopped: str | None = Field(
        default=None, description="why it ended before its last row, as its options had asked"
    )
