"""Rows of `compile`: a jit function compiled for a generation, and a predicted time.

A record names the first kind `resources`, as it did before the suite had its name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_workbench.reports.phrases import duration, memory, microseconds
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Whole
from kernel_workbench.reports.record.row_field import RowField

_UNREAD = "?"  # a figure that couldn't be read, which is never a zero


class LoopMix(SchemaLine):
    """Instructions that a warp issues in one trip of a kernel's busiest loop, at the least."""

    instructions: Whole = Field(description="of all kinds")
    matrix: Whole = Field(description="matrix instructions")
    matrix_flops: Whole | None = Field(description="of these; None where their names don't tell")
    load_bytes: Whole = Field(description="from global memory, by all lanes")
    special: Whole = Field(description="instructions of exp2 and its like")


class CodeMix(SchemaLine):
    """Numbers of instructions in compiled code, not of times that they run."""

    instructions: Whole = Field(description="of all kinds")
    loads: dict[Whole, Whole] = Field(description="of global memory, by bytes a thread")
    stores: dict[Whole, Whole] = Field(description="of global memory, by bytes a thread")
    atomics: dict[str, Whole] = Field(description="by name")
    local: dict[str, Whole] = Field(description="accesses of local memory: spilled registers")
    matrix: dict[str, Whole] = Field(description="matrix instructions, by name")
    bulk: dict[str, Whole] = Field(description="copies by the copy engine")
    busy_loop: LoopMix | None = Field(
        description="None: the code has no loop, or none that can be recognised"
    )


class BrokenExpectation(SchemaLine):
    """An expectation of a compiled kernel that doesn't hold."""

    says: str = Field(description="what is expected")
    reason: str = Field(description="what was found")
    sass: str | None = Field(description="an instruction that breaks it, with the source's line")


class CompileRow(SchemaLine):
    """One jit function as one call launches it, compiled for one generation, with no GPU.

    A row is the same variant as another, of another generation or record, where op, kernel, label,
    function and sm are. A figure that couldn't be read is None, and `unread` says why.
    """

    kind: Literal["resources"] = "resources"
    op: str = Field(description="name of the op")
    kernel: str = Field(description="name of the kernel")
    label: str = Field(description="the case in short, alike on every generation")
    function: str = Field(description="the jit function, numbered where a call has several of it")
    sm: Annotated[Whole, RowField(title="sm", note="", rank=0)] = Field(
        description="the generation: compute capability times ten"
    )
    case: CaseInfo = Field(description="the call that launches it")
    alignment_bytes: Whole = Field(description="widest load that the case's rows allow")
    variant: str | None = Field(default=None, description="what dispatch takes for the case")
    also: tuple[str, ...] = Field(
        default=(), description="other calls that launch the same: op, kernel, label"
    )
    status: Literal["compiled", "failed"] = Field(description="whether it compiled")
    reason: str | None = Field(default=None, description="why it failed to compile")
    tile: dict[str, Whole] = Field(
        default_factory=dict, description="the constants that it was compiled with, by name"
    )
    fp_fusion: bool | None = Field(default=None, description="products and sums may be fused")
    warps: Whole | None = Field(default=None, description="of a block")
    registers: Annotated[Whole | None, RowField(title="registers", rank=0, missing=_UNREAD)] = (
        Field(default=None, description="of a thread")
    )
    stack_bytes: Whole | None = Field(default=None, description="of a thread")
    spill_store_bytes: Annotated[
        Whole | None,
        RowField(
            title="spilled",
            form=memory,
            note="bytes of a thread",
            rank=0,
            tone=lambda size: "doubtful" if size else "",
            missing=_UNREAD,
        ),
    ] = Field(default=None, description="of a thread")
    spill_load_bytes: Whole | None = Field(default=None, description="of a thread")
    shared_bytes: Annotated[
        Whole | None,
        RowField(title="shared memory", form=memory, note="of a block", rank=1, missing=_UNREAD),
    ] = Field(default=None, description="of a block, asked for at launch")
    shared_limit_bytes: Whole = Field(description="of a block, on this generation")
    tensor_columns: Whole = Field(default=0, description="of Blackwell's tensor memory")
    blocks_per_sm: Whole | None = Field(default=None, description="0: it can't be launched")
    occupancy_warps: Whole | None = Field(default=None, description="resident on an SM")
    most_warps: Whole = Field(gt=0, description="that an SM can hold")
    limited_by: Annotated[
        str | None, RowField(title="limited by", kind="text", note="", rank=2)
    ] = Field(default=None, description="what keeps occupancy from being higher")
    code_bytes: Annotated[
        Whole | None, RowField(title="code", form=memory, note="", rank=3, missing=_UNREAD)
    ] = Field(default=None, description="size of the code")
    mix: CodeMix | None = Field(default=None, description="what the code holds")
    compile_s: Annotated[
        float, RowField(title="compiling", form=duration, note="", rank=4, missing=_UNREAD)
    ] = Field(description="when it was compiled, which may be an earlier run")
    tools: dict[str, str] = Field(description="version of each tool of the compilation")
    unread: tuple[str, ...] = Field(default=(), description="figures that couldn't be read")
    expected: Whole = Field(default=0, description="expectations that are about it")
    broken: tuple[BrokenExpectation, ...] = Field(
        default=(), description="expectations that don't hold"
    )


class PredictionRow(SchemaLine):
    """The least time that a call could take on a GPU model: predicted from code, never measured."""

    kind: Literal["prediction"] = "prediction"
    op: str = Field(description="name of the op")
    kernel: str = Field(description="name of the kernel")
    case: CaseInfo = Field(description="the case of the call")
    gpu: Annotated[str, RowField(title="GPU", kind="text", note="", rank=0)] = Field(
        description="model of the GPU"
    )
    sm: Whole = Field(description="its generation: compute capability times ten")
    multiprocessors: Whole = Field(description="of the GPU")
    power_w: Whole = Field(description="the GPU's limit")
    predicted_us: Annotated[
        float | None, RowField(title="us", form=microseconds, note="", rank=0)
    ] = Field(description="the least time of a call")
    limit: Annotated[
        Literal["memory", "matrix", "arithmetic", "issue", "special functions"] | None,
        RowField(title="limit", kind="text", note="", rank=0),
    ] = Field(default=None, description="what the least time is of")
    reason: Annotated[str | None, RowField(title="none, since", kind="text", note="", rank=1)] = (
        Field(default=None, description="why there is none")
    )
    flops: Whole = Field(description="of a call")
    bytes: Whole = Field(description="inputs read once, outputs written once")
    from_code: bool = Field(description="whether a variant of the call was compiled in the run")
