"""Rows of `search`, beside those of accuracy: what was found, and what was met."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_workbench.reports.record.accuracy_row import Rule
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Whole
from kernel_workbench.reports.record.row_field import RowField


class FindRow(SchemaLine):
    """A case that breaks a rule, shrunk until nothing could be left out of it."""

    kind: Literal["find"] = "find"
    op: str = Field(description="name of the op")
    kernel: Annotated[str, RowField(title="kernel", kind="text", note="", rank=0)] = Field(
        description="name of the kernel"
    )
    rule: Annotated[Rule, RowField(title="rule", kind="text", note="", rank=0)] = Field(
        description="the one that the case breaks"
    )
    output: Annotated[
        str | None, RowField(title="output", kind="text", note="", rank=3, missing="-")
    ] = Field(description="that broke it, where one did")
    reason: Annotated[
        str,
        RowField(title="why", kind="text", note="", rank=0, after="fails_too", below=True),
    ] = Field(description="one sentence")
    case: CaseInfo = Field(description="the shrunk one")
    first_case: str = Field(description="the id of the case that was drawn")
    needs: Annotated[
        tuple[str, ...],
        RowField(
            title="needs",
            form=lambda needs: ", ".join(needs) or "nothing more",
            kind="text",
            note="what a case has to have",
            rank=0,
        ),
    ] = Field(description="of the shrunk case, what couldn't be left out or made plainer")
    fails_too: Annotated[
        tuple[str, ...],
        RowField(
            title="fails too",
            form=lambda others: ", ".join(others) or "-",
            kind="text",
            note="other values of what it needs, with which it fails as well",
            rank=4,
        ),
    ] = Field(description="what the rule is broken with besides: other dtypes, sizes one larger")
    essence: tuple[str, ...] = Field(
        default=(), description="what another case has too, if it is taken for the same find"
    )
    dtypes: tuple[str, ...] = Field(
        default=(), description="of activations, that the rule is broken with: one of these too"
    )
    worst_ratio: Annotated[float | None, RowField(unit="1")] = Field(
        default=None, description="error over bound, of the case that was drawn"
    )
    confirmed: Whole = Field(description="of runs on fresh values, those that broke the rule too")
    confirmations: Whole = Field(description="runs on fresh values")
    tried: Whole = Field(description="cases tried while it was shrunk")
    whole: bool = Field(description="every change was tried; False where time or number ended it")
    gates: bool = Field(description="the find sets the run's exit status")
    reproduce: Annotated[str, RowField(title="run it", kind="command", note="", rank=0)] = Field(
        description="the command that tries the shrunk case"
    )
    duration_s: float = Field(description="to shrink it")


class CoverageRow(SchemaLine):
    """The number of pairs of levels of two factors that the cases of a kernel met."""

    kind: Literal["coverage"] = "coverage"
    op: str = Field(description="name of the op")
    kernel: str = Field(description="name of the kernel")
    cases: Whole = Field(description="that were tried")
    factor: str = Field(description="the first of two")
    other: str = Field(description="the second of two")
    possible: Whole = Field(description="pairs of which a case that the kernel serves was found")
    met: Whole = Field(description="pairs that a case had")
    missing: tuple[str, ...] = Field(description="some of those that weren't met")
