"""What every line of a record is: closed and frozen JSON; and the case that a row is of."""

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

    id: str
    op: str
    sizes: dict[str, Whole]
    dtype: str = Field(description="activations, and the weight's where it differs")
    layout: str
    distribution: str
    options: tuple[str, ...]
    seed: Whole
    tier: Literal["ci", "full"]
    why: str
