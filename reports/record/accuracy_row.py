"""A row of `nox -s accuracy`: one kernel on one case, with the errors measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Status, Whole

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
    "wrote out of bounds",
    "undefined load",
    "unwritten output",
    "changed input",
    "changed process state",
    "replaced code",
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


class OutputError(SchemaLine):
    """How far one output was from the truth. Ratios are |error| / bound: at most 1 passes."""

    output: str
    worst_deterministic: float
    worst_probabilistic: float | None
    worst_index: tuple[Whole, ...]
    got: float
    expected: float
    bound: float
    rmse: float
    max_ulp: float
    elements: Whole | None = None
    unjudged: Whole = Field(
        default=0, description="elements whose bound is infinite: nothing is promised of them"
    )
    powerless: Whole = Field(
        default=0, description="elements whose bound is so wide that it says nothing of them"
    )
    worst_emulation: float | None = Field(
        default=None,
        description="a block's errors over the most that an emulation's allow; None: not compared",
    )
    ulp_histogram: tuple[Whole, ...] = Field(
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
    configuration: str | None = Field(
        default=None,
        description="what the call was held to, of --every-configuration; None: dispatch's choice",
    )
    workspace_bytes: Whole | None = Field(
        default=None, description="most that a call took at one time beyond inputs and outputs"
    )
    declared_workspace_bytes: Whole | None = Field(
        default=None, description="the most that the kernel says it takes for the case"
    )
    gates: bool = Field(description="a failure of this row makes the run's exit status non-zero")
    reproduce: str = Field(description="the command that runs this row alone")
    duration_s: float
    call_s: float | None = Field(default=None, description="host time of the first call")
    launches: Whole | None = Field(default=None, description="Triton kernels that a call launched")
    signs: Whole | None = Field(
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
