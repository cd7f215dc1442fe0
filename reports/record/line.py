"""The base of every line of a record, closed and frozen JSON; and the case of a row."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["passed", "failed", "refused", "no power"]
# An integer of JSON may have any length, and one that no float holds is no figure of ours.
Whole = Annotated[int, Field(ge=-(2**63), le=2**63)]
# JSON has no NaN: the strings "NaN", "Infinity" and "-Infinity" read back as floats.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


class SchemaLine(BaseModel):
    """A line, or a part of one: closed, frozen, its infinities and NaN kept."""

    model_config = CLOSED | ConfigDict(frozen=True)


class CaseInfo(SchemaLine):
    """A case, spelled out."""

    id: str = Field(description="what --case takes")
    op: str = Field(description="name of the op")
    sizes: dict[str, Whole] = Field(description="by name")
    dtype: str = Field(description="activations, and the weight's where it differs")
    layout: str = Field(description="how tensors lie in memory")
    distribution: str = Field(description="of the inputs' values")
    options: tuple[str, ...] = Field(description="of the op")
    seed: Whole = Field(description="of the inputs' values")
    tier: Literal["ci", "full"] = Field(description="the smallest that has the case")
    why: str = Field(description="what the case is for")
