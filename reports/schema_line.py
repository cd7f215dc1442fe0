"""What every line of a record is made of: the machine, the kernels and the cases."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["passed", "failed", "refused", "no power"]


# JSON has no NaN: the strings "NaN", "Infinity" and "-Infinity" read back as floats.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


class SchemaLine(BaseModel):
    """A line, or a part of one: closed, frozen, its infinities and NaN kept."""

    model_config = CLOSED | ConfigDict(frozen=True)


class Environment(SchemaLine):
    """The machine and its software. A figure that is missing is None, never zero."""

    device: Literal["cpu", "cuda"]
    device_name: str
    simulated_sm: int | None = Field(
        default=None, description="sm that domains were asked about, no GPU"
    )
    strict: bool | None = Field(
        default=None, description="under the interpreter: whether every access was checked"
    )
    unchecked: tuple[str, ...] = Field(
        default=(),
        description="the strict interpreter's checks that Triton's version doesn't allow",
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
    tree: str | None = Field(
        default=None, description="SHA-256 of the checkout's files that make a run what it is"
    )
    vbios: str | None = None
    pci_bus_id: str | None = None
    power_limit_w: float | None = Field(default=None, description="enforced")
    default_power_limit_w: float | None = None
    default_sm_clock_mhz: int | None = Field(
        default=None, description="of applications, else the most that the SMs may run at"
    )
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    virtualisation: str | None = Field(default=None, description="of the GPU: none, vGPU, ...")
    l2_bytes: int | None = None
    fp_fusion: bool | None = Field(
        default=None, description="whether Triton fuses products and sums where nobody says"
    )
    container: str | None = Field(default=None, description="what the run was contained in")
    missing: dict[str, str] = Field(
        default_factory=dict, description="fields of the GPU that couldn't be read, and why"
    )


class KernelInfo(SchemaLine):
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
    returns: tuple[str, ...] = Field(
        default=(), description="of a kernel of a part of its op: the outputs that it computes"
    )
    left_out: tuple[str, ...] = Field(
        default=(), description="the op's outputs that it doesn't, which aren't judged"
    )
    asked_for: bool = Field(
        default=False,
        description="a user's, or one of ours that --kernel names: where nothing of it runs, the "
        "run fails",
    )


class AbsentKernel(SchemaLine):
    """A peer that the run would have tried too, had it been there."""

    op: str
    name: str
    reason: str = Field(description="why it isn't there, and what to do: not installed: ...")


class CaseInfo(SchemaLine):
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
