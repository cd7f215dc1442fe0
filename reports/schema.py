"""The record's schema, version 1: JSON lines, one `RunHeader`, then rows, then one `RunEnd`.

A record is self-contained: it names the environment, the kernels with what they declare, every
case and every measurement. `schema_version` changes when a field changes its meaning or goes;
`protocol` changes when the rules behind the numbers do, and runs of two protocols don't compare.

A field that is added with a default changes neither: records made before it still read. Such are a
kernel's `variants`, `returns`, `left_out` and `asked_for`, a row's `variant`, `workspace_bytes`,
`declared_workspace_bytes` and `printed`, the rule "workspace", the status "no power", an
output's `elements`, `unjudged`, `powerless`, `worst_emulation` and `ulp_histogram`, a run's
`files`, and its machine's `tree`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reports.schema_bench import BenchRow, FlushProbe, Roof
from reports.schema_line import (
    AbsentKernel,
    CaseInfo,
    Environment,
    KernelInfo,
    SchemaLine,
    Status,
)
from reports.schema_profile import ProfileRow

__all__ = [
    "ACCURACY_PROTOCOL",
    "BENCH_PROTOCOL",
    "PROTOCOL",
    "SCHEMA_VERSION",
    "ULP_EDGES",
    "AbsentKernel",
    "AccuracyRow",
    "BenchRow",
    "BrokenExpectation",
    "CaseInfo",
    "CodeMix",
    "Environment",
    "FlushProbe",
    "KernelInfo",
    "Line",
    "LoopMix",
    "OutputError",
    "PredictionRow",
    "ProfileRow",
    "ResourceRow",
    "Roof",
    "Row",
    "Rule",
    "RunEnd",
    "RunHeader",
    "Status",
    "Tried",
]

SCHEMA_VERSION = 1
PROTOCOL = 2
ACCURACY_PROTOCOL = 3  # of `nox -s accuracy`: what is asked of a kernel
BENCH_PROTOCOL = 3  # of `nox -s bench`: what it is to time a call

# Upper edges of an output's histogram, in units of the last place; what is past them counts last.
ULP_EDGES: tuple[float, ...] = (0.0, *(2.0**power for power in range(-1, 17)))

Rule = Literal[
    "deterministic bound",
    "probabilistic bound",
    "emulation",
    "metamorphic relation",
    "invariance",
    "non-finite values",
    "illegal access",
    "undefined load",
    "unwritten output",
    "changed input",
    "changed process state",
    "not repeatable",
    "workspace",
    "wrong outputs",
    "stubbed",
    "library call",
    "left running",
    "raised",
    "process ended",
    "time limit",
]


class RunHeader(SchemaLine):
    """The first line: what was run, where, and how it was asked for."""

    kind: Literal["run"] = "run"
    schema_version: Literal[1] = 1
    protocol: int = PROTOCOL
    suite: Literal["accuracy", "compile", "bench", "profile"]
    started_at: str = Field(description="ISO 8601, UTC")
    command: str = Field(description="what would run it again, from the checkout's root")
    environment: Environment
    kernels: tuple[KernelInfo, ...]
    default_numerics: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict,
        description="what a kernel that declares nothing has; a report shows what differs",
    )
    planned_rows: int
    gate_baselines: bool
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


class OutputError(SchemaLine):
    """How far one output was from the truth. Ratios are |error| / bound: at most 1 passes."""

    output: str
    worst_deterministic: float
    worst_probabilistic: float | None
    worst_index: tuple[int, ...]
    got: float
    expected: float
    bound: float
    rmse: float
    max_ulp: float
    elements: int | None = None
    unjudged: int = Field(
        default=0, description="elements whose bound is infinite: nothing is promised of them"
    )
    powerless: int = Field(
        default=0, description="elements whose bound is so wide that it says nothing of them"
    )
    worst_emulation: float | None = Field(
        default=None,
        description="a block's errors over the most that an emulation's allow; None: not compared",
    )
    ulp_histogram: tuple[int, ...] = Field(
        default=(),
        description="elements with an error of 0, up to 0.5, 1, 2, 4 ... 2^16 and more units of "
        "the last place of what is right; zeros at the end are left out",
    )


class Tried(SchemaLine):
    """A relation, or a property of a kernel, tried on one case."""

    name: str
    holds: bool
    reason: str | None = Field(default=None, description="the element that shows that it doesn't")


class AccuracyRow(SchemaLine):
    """One kernel on one case: the verdict, the rule that failed it, and the errors measured."""

    kind: Literal["accuracy"] = "accuracy"
    kernel: str
    case: CaseInfo
    status: Status
    rule: Rule | None = None
    reason: str | None = Field(
        default=None, description="one sentence: why it failed or was refused"
    )
    outputs: tuple[OutputError, ...] = ()
    variant: str | None = Field(
        default=None, description="what dispatch took; names with spaces between, of several passes"
    )
    workspace_bytes: int | None = Field(
        default=None, description="most that a call took at one time beyond inputs and outputs"
    )
    declared_workspace_bytes: int | None = Field(
        default=None, description="the most that the kernel says it takes for the case"
    )
    gates: bool = Field(description="a failure of this row makes the run's exit status non-zero")
    reproduce: str = Field(description="the command that runs this row alone")
    duration_s: float
    call_s: float | None = Field(default=None, description="host time of the first call")
    launches: int | None = Field(default=None, description="Triton kernels that a call launched")
    signs: int | None = Field(
        default=None,
        description="what second calls' signs, and further values, were drawn from",
    )
    printed: tuple[str, ...] = Field(
        default=(), description="of a row that failed: the first lines that the kernel printed"
    )
    relations: tuple[Tried, ...] = Field(
        default=(), description="what changed inputs must do to outputs"
    )
    invariance: tuple[Tried, ...] = Field(
        default=(), description="batch-invariant, device-independent: asked of any kernel"
    )
    notes: tuple[str, ...] = Field(
        default=(), description="what more calls show of the kernel, which fails nothing"
    )


class LoopMix(SchemaLine):
    """What one trip of a kernel's busiest loop makes a warp issue, at the least."""

    instructions: int
    matrix: int = Field(description="matrix instructions")
    matrix_flops: int | None = Field(description="of these; None where their names don't tell")
    load_bytes: int = Field(description="from global memory, by all lanes")
    special: int = Field(description="instructions of exp2 and its like")


class CodeMix(SchemaLine):
    """What compiled code holds: numbers of instructions, not of times that they run."""

    instructions: int
    loads: dict[int, int] = Field(description="of global memory, by bytes a thread")
    stores: dict[int, int] = Field(description="of global memory, by bytes a thread")
    atomics: dict[str, int]
    local: dict[str, int] = Field(description="accesses of local memory: spilled registers")
    matrix: dict[str, int]
    bulk: dict[str, int] = Field(description="copies by the copy engine")
    busy_loop: LoopMix | None


class BrokenExpectation(SchemaLine):
    """An expectation of a compiled kernel that doesn't hold."""

    says: str
    reason: str
    sass: str | None = Field(description="an instruction that breaks it, with the source's line")


class ResourceRow(SchemaLine):
    """One jit function as one call launches it, compiled for one generation, with no GPU.

    A row is the same variant as another, of another generation or record, where op, kernel, label,
    function and sm are. A figure that couldn't be read is None, and `unread` says why.
    """

    kind: Literal["resources"] = "resources"
    op: str
    kernel: str
    label: str = Field(description="the case in short, alike on every generation")
    function: str = Field(description="the jit function, numbered where a call has several of it")
    sm: int
    case: CaseInfo = Field(description="the call that launches it")
    alignment_bytes: int = Field(description="widest load that the case's rows allow")
    variant: str | None = Field(default=None, description="what dispatch takes for the case")
    also: tuple[str, ...] = Field(
        default=(), description="other calls that launch the same: op, kernel, label"
    )
    status: Literal["compiled", "failed"]
    reason: str | None = None
    tile: dict[str, int] = Field(default_factory=dict)
    fp_fusion: bool | None = Field(default=None, description="products and sums may be fused")
    warps: int | None = None
    registers: int | None = Field(default=None, description="of a thread")
    stack_bytes: int | None = None
    spill_store_bytes: int | None = Field(default=None, description="of a thread")
    spill_load_bytes: int | None = None
    shared_bytes: int | None = Field(default=None, description="of a block, asked for at launch")
    shared_limit_bytes: int
    tensor_columns: int = Field(default=0, description="of Blackwell's tensor memory")
    blocks_per_sm: int | None = Field(default=None, description="0: it can't be launched")
    occupancy_warps: int | None = None
    most_warps: int
    limited_by: str | None = None
    code_bytes: int | None = None
    mix: CodeMix | None = None
    compile_s: float = Field(description="when it was compiled, which may be an earlier run")
    tools: dict[str, str]
    unread: tuple[str, ...] = ()
    expected: int = Field(default=0, description="expectations that are about it")
    broken: tuple[BrokenExpectation, ...] = ()


class PredictionRow(SchemaLine):
    """The least time that a call could take on a GPU model: predicted from code, never measured."""

    kind: Literal["prediction"] = "prediction"
    op: str
    kernel: str
    case: CaseInfo
    gpu: str
    sm: int
    multiprocessors: int
    power_w: int
    predicted_us: float | None
    limit: Literal["memory", "matrix", "arithmetic", "issue", "special functions"] | None = Field(
        default=None, description="what the least time is of"
    )
    reason: str | None = Field(default=None, description="why there is none")
    flops: int
    bytes: int
    from_code: bool = Field(description="whether a variant of the call was compiled in the run")


class RunEnd(SchemaLine):
    """The last line. A record without it is of a run that was cut off."""

    kind: Literal["end"] = "end"
    finished_at: str
    duration_s: float
    rows: int
    interrupted: bool
    exit_status: int
    problems: tuple[str, ...] = Field(default=(), description="what failed it beside its rows")


Row = AccuracyRow | ResourceRow | PredictionRow | BenchRow | ProfileRow
Line = Annotated[RunHeader | AccuracyRow | RunEnd, Field(discriminator="kind")]
