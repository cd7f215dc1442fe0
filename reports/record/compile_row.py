"""Rows of `nox -s compile`: a jit function compiled for a generation, and a predicted time.

A record names the first kind `resources`, as it did before the suite had its name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Whole


class LoopMix(SchemaLine):
    """What one trip of a kernel's busiest loop makes a warp issue, at the least."""

    instructions: Whole
    matrix: Whole = Field(description="matrix instructions")
    matrix_flops: Whole | None = Field(description="of these; None where their names don't tell")
    load_bytes: Whole = Field(description="from global memory, by all lanes")
    special: Whole = Field(description="instructions of exp2 and its like")


class CodeMix(SchemaLine):
    """What compiled code holds: numbers of instructions, not of times that they run."""

    instructions: Whole
    loads: dict[Whole, Whole] = Field(description="of global memory, by bytes a thread")
    stores: dict[Whole, Whole] = Field(description="of global memory, by bytes a thread")
    atomics: dict[str, Whole]
    local: dict[str, Whole] = Field(description="accesses of local memory: spilled registers")
    matrix: dict[str, Whole]
    bulk: dict[str, Whole] = Field(description="copies by the copy engine")
    busy_loop: LoopMix | None


class BrokenExpectation(SchemaLine):
    """An expectation of a compiled kernel that doesn't hold."""

    says: str
    reason: str
    sass: str | None = Field(description="an instruction that breaks it, with the source's line")


class CompileRow(SchemaLine):
    """One jit function as one call launches it, compiled for one generation, with no GPU.

    A row is the same variant as another, of another generation or record, where op, kernel, label,
    function and sm are. A figure that couldn't be read is None, and `unread` says why.
    """

    kind: Literal["resources"] = "resources"
    op: str
    kernel: str
    label: str = Field(description="the case in short, alike on every generation")
    function: str = Field(description="the jit function, numbered where a call has several of it")
    sm: Whole
    case: CaseInfo = Field(description="the call that launches it")
    alignment_bytes: Whole = Field(description="widest load that the case's rows allow")
    variant: str | None = Field(default=None, description="what dispatch takes for the case")
    also: tuple[str, ...] = Field(
        default=(), description="other calls that launch the same: op, kernel, label"
    )
    status: Literal["compiled", "failed"]
    reason: str | None = None
    tile: dict[str, Whole] = Field(default_factory=dict)
    fp_fusion: bool | None = Field(default=None, description="products and sums may be fused")
    warps: Whole | None = None
    registers: Whole | None = Field(default=None, description="of a thread")
    stack_bytes: Whole | None = None
    spill_store_bytes: Whole | None = Field(default=None, description="of a thread")
    spill_load_bytes: Whole | None = None
    shared_bytes: Whole | None = Field(default=None, description="of a block, asked for at launch")
    shared_limit_bytes: Whole
    tensor_columns: Whole = Field(default=0, description="of Blackwell's tensor memory")
    blocks_per_sm: Whole | None = Field(default=None, description="0: it can't be launched")
    occupancy_warps: Whole | None = None
    most_warps: Whole = Field(gt=0)
    limited_by: str | None = None
    code_bytes: Whole | None = None
    mix: CodeMix | None = None
    compile_s: float = Field(description="when it was compiled, which may be an earlier run")
    tools: dict[str, str]
    unread: tuple[str, ...] = ()
    expected: Whole = Field(default=0, description="expectations that are about it")
    broken: tuple[BrokenExpectation, ...] = ()


class PredictionRow(SchemaLine):
    """The least time that a call could take on a GPU model: predicted from code, never measured."""

    kind: Literal["prediction"] = "prediction"
    op: str
    kernel: str
    case: CaseInfo
    gpu: str
    sm: Whole
    multiprocessors: Whole
    power_w: Whole
    predicted_us: float | None
    limit: Literal["memory", "matrix", "arithmetic", "issue", "special functions"] | None = Field(
        default=None, description="what the least time is of"
    )
    reason: str | None = Field(default=None, description="why there is none")
    flops: Whole
    bytes: Whole
    from_code: bool = Field(description="whether a variant of the call was compiled in the run")
