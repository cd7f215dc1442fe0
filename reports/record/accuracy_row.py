"""A row of `accuracy`: one kernel on one case, with the errors measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_workbench.reports.phrases import duration
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Status, Whole
from kernel_workbench.reports.record.row_field import RowField

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

    output: str = Field(description="its name")
    worst_deterministic: Annotated[float, RowField(unit="1")] = Field(
        description="largest |error| / deterministic bound"
    )
    worst_probabilistic: Annotated[float | None, RowField(unit="1")] = Field(
        description="largest |error| / probabilistic bound; None: the op has none"
    )
    worst_index: tuple[Whole, ...] = Field(description="of the element with the largest ratio")
    got: Annotated[float, RowField(unit="of the output")] = Field(
        description="that element's value"
    )
    expected: Annotated[float, RowField(unit="of the output")] = Field(
        description="that element's true value"
    )
    bound: Annotated[float, RowField(unit="of the output")] = Field(
        description="that element's deterministic bound"
    )
    rmse: Annotated[float, RowField(unit="of the output")] = Field(
        description="root of the mean of squared errors"
    )
    max_ulp: Annotated[float, RowField(unit="ulp")] = Field(
        description="largest error, in units of the last place"
    )
    elements: Whole | None = Field(default=None, description="of the output")
    unjudged: Whole = Field(
        default=0, description="elements whose bound is infinite: nothing is promised of them"
    )
    powerless: Whole = Field(
        default=0, description="elements whose bound is so wide that it says nothing of them"
    )
    replayed: Whole = Field(
        default=0,
        description="elements whose probabilistic bound is one of replays with random roundings",
    )
    worst_emulation: Annotated[float | None, RowField(unit="1")] = Field(
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

    name: str = Field(description="of the relation or property")
    holds: bool = Field(description="it was seen to hold")
    reason: str | None = Field(default=None, description="the element that shows that it doesn't")


class AccuracyRow(SchemaLine):
    """One kernel on one case: the verdict, the rule that failed it, and the errors measured."""

    kind: Literal["accuracy"] = "accuracy"
    kernel: str = Field(description="name of the kernel")
    case: CaseInfo = Field(description="what it was called on")
    status: Status = Field(
        description="refused: outside its domain; no power: the bound says nothing"
    )
    rule: Rule | None = Field(default=None, description="the one that failed it")
    reason: Annotated[
        str | None,
        RowField(title="why", kind="text", note="", rank=0, after="duration_s"),
    ] = Field(default=None, description="one sentence: why it failed or was refused")
    outputs: tuple[OutputError, ...] = Field(default=(), description="the errors, output by output")
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
    duration_s: Annotated[float, RowField(title="took", form=duration, note="", rank=0)] = Field(
        description="what the row took"
    )
    call_s: float | None = Field(default=None, description="host time of the first call")
    launches: Whole | None = Field(
        default=None,
        description="Triton kernels that a call launched; if it launched none, kernels of any "
        "language in a CUDA graph of the call, where one was captured",
    )
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
