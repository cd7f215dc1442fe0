"""Rows of `nox -s search`, beside those of accuracy: what was found, and what was met."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_workbench.reports.record.accuracy_row import Rule
from kernel_workbench.reports.record.line import CaseInfo, SchemaLine, Whole


class FindRow(SchemaLine):
    """A case that breaks a rule, shrunk until nothing could be left out of it."""

    kind: Literal["find"] = "find"
    op: str
    kernel: str
    rule: Rule
    output: str | None = Field(description="that broke it, where one did")
    reason: str
    case: CaseInfo = Field(description="the shrunk one")
    first_case: str = Field(description="the id of the case that was drawn")
    needs: tuple[str, ...] = Field(
        description="of the shrunk case, what couldn't be left out or made plainer"
    )
    fails_too: tuple[str, ...] = Field(
        description="what the rule is broken with besides: other dtypes, sizes one larger"
    )
    essence: tuple[str, ...] = Field(
        default=(), description="what another case has too, if it is taken for the same find"
    )
    dtypes: tuple[str, ...] = Field(
        default=(), description="of activations, that the rule is broken with: one of these too"
    )
    worst_ratio: float | None = Field(
        default=None, description="error over bound, of the case that was drawn"
    )
    confirmed: Whole = Field(description="of runs on fresh values, those that broke the rule too")
    confirmations: Whole = Field(description="runs on fresh values")
    tried: Whole = Field(description="cases tried while it was shrunk")
    whole: bool = Field(description="every change was tried; False where time or number ended it")
    gates: bool
    reproduce: str
    duration_s: float


class CoverageRow(SchemaLine):
    """How many pairs of levels of two factors the cases of a kernel met."""

    kind: Literal["coverage"] = "coverage"
    op: str
    kernel: str
    cases: Whole
    factor: str
    other: str
    possible: Whole = Field(description="pairs of which a case that the kernel serves was found")
    met: Whole
    missing: tuple[str, ...] = Field(description="some of those that weren't met")
