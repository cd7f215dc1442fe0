"""The record's schema, version 1: JSON lines, one `RunHeader`, then rows, then one `RunEnd`.

A record is self-contained: it names the environment, the kernels with what they declare, every
case and every measurement. `schema_version` changes when a field changes its meaning or goes;
`protocol` changes when the rules behind the numbers do, and runs of two protocols don't compare.

A field that is added with a default changes neither: records made before it still read. Such are a
kernel's `variants`, a row's `variant`, `workspace_bytes` and `declared_workspace_bytes`, the rule
"workspace", the status "no power", and an output's `elements`, `unjudged`, `powerless`,
`worst_emulation` and `ulp_histogram`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
PROTOCOL = 1

# Upper edges of an output's histogram, in units of the last place; what is past them counts last.
ULP_EDGES: tuple[float, ...] = (0.0, *(2.0**power for power in range(-1, 17)))

Status = Literal["passed", "failed", "refused", "no power"]
Rule = Literal[
    "deterministic bound",
    "probabilistic bound",
    "emulation",
    "metamorphic relation",
    "invariance",
    "non-finite values",
    "illegal access",
    "unwritten output",
    "changed input",
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


class _Line(BaseModel):
    # JSON has no NaN: the strings "NaN", "Infinity" and "-Infinity" read back as floats.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )


class Environment(_Line):
    """The machine and its software. A figure that is missing is None, never zero."""

    device: Literal["cpu", "cuda"]
    device_name: str
    simulated_sm: int | None = Field(
        default=None, description="sm that domains were asked about, no GPU"
    )
    strict: bool | None = Field(
        default=None, description="under the interpreter: whether every access was checked"
    )
    sm: int | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    hostname: str
    platform: str
    cpu: str
    cpu_count: int
    python: str
    packages: dict[str, str]
    git_commit: str | None = None
    git_dirty: bool | None = None


class KernelInfo(_Line):
    """A kernel as registered, with the numerics that it declares."""

    op: str
    name: str
    origin: Literal["ours", "baseline", "user"]
    priority: int
    path: str
    numerics: dict[str, bool | int | float | str | None]
    variants: tuple[str, ...] = Field(
        default=(), description="all that there are on the run's sm; none where it doesn't say"
    )


class RunHeader(_Line):
    """The first line: what was run, where, and how it was asked for."""

    kind: Literal["run"] = "run"
    schema_version: Literal[1] = 1
    protocol: int = PROTOCOL
    suite: Literal["accuracy"]
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


class CaseInfo(_Line):
    """A case, spelled out."""

    id: str
    op: str
    sizes: dict[str, int]
    dtype: str = Field(description="activations, and the weight's where it differs")
    layout: str
    distribution: str
    options: tuple[str, ...]
    seed: int
    tier: Literal["ci", "full"]
    why: str


class OutputError(_Line):
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


class AccuracyRow(_Line):
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
        default=None, description="what the signs of the second call's values were drawn from"
    )


class RunEnd(_Line):
    """The last line. A record without it is of a run that was cut off."""

    kind: Literal["end"] = "end"
    finished_at: str
    duration_s: float
    rows: int
    interrupted: bool
    exit_status: int


Line = Annotated[RunHeader | AccuracyRow | RunEnd, Field(discriminator="kind")]
