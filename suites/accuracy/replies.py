"""What a worker may say, checked before it is believed: names, numbers and sentences."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from kernels.registry import Domain, Kernel
from oracles import OPS
from oracles.op import Numerics
from reports.schema import Rule
from suites.accuracy.wire import Message


class Done(BaseModel):
    """What a worker says of a task."""

    model_config = ConfigDict(extra="forbid", strict=True)

    said: Message = {}
    outputs: list[str] = []
    raised: str | None = None
    rule: Rule = "raised"
    fatal: bool = False
    spent: bool = False


class Reply(BaseModel):
    """What a worker says of a call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: float
    rule: str | None
    reason: str | None
    fatal: bool
    spent: bool
    outputs: list[str]
    workspace_bytes: int | None
    kept_bytes: int | None
    launches: int | None
    operations: int | None
    configurations: int
    asked: bool
    undefined: list[str]


class Told(BaseModel):
    """What a worker says of a kernel that it has registered."""

    model_config = ConfigDict(extra="forbid")

    op: str
    name: str
    returns: tuple[str, ...]
    origin: Literal["ours", "baseline", "user"]
    path: str
    priority: int
    numerics: dict[str, bool | int | float | None]
    wraps: str | None
    variants: tuple[str, ...]
    problem: str | None


class Answer(BaseModel):
    """What a worker says of a case that a kernel may be tried on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    refusal: str | None = None
    variant: str | None = None
    workspace_bytes: int | None = None
    problem: str | None = None


def _elsewhere(**_: object) -> object:
    raise RuntimeError("this kernel is called in a worker")


def told_kernel(told: Told, *, user: bool) -> Kernel:
    """The kernel as the judge knows it: its function and domain stay in the workers.

    Raises LookupError or ValueError where there is no such op, or part of one.
    """
    return Kernel(
        op=OPS[told.op].part(told.returns),
        name=told.name,
        domain=Domain(dtypes=()),  # asked of the worker, which has it
        numerics=Numerics(**told.numerics),  # type: ignore[arg-type]
        priority=told.priority,
        function=_elsewhere,
        origin="user" if user else told.origin,
        path=told.path,
        variants=lambda _: told.variants,
        wraps=told.wraps,
    )
