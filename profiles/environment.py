"""The machine and its software, as a record needs them. What can't be read is None, never zero."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml

from kernel_workbench.profiles.nvml import NvmlGpu, driver, open_gpu
from kernel_workbench.profiles.traces import Missing

_PACKAGES = ("torch", "triton", "numpy", "ml_dtypes", "pydantic", "pytest", "nvidia-ml-py")
_ROOMS = ("kernel_workbench", "oracles", "kernels", "profiles", "reports", "suites")
# Of a copy of the checkout: its commit, and "clean" or "edited" after a space.
CHECKOUT = "WORKBENCH_CHECKOUT"
_ROOT = Path(__file__).resolve().parent.parent


def _then(told: Any, made: Callable[[Any], Any]) -> Any:  # noqa: ANN401  (pynvml is untyped)
    """Something made of what NVML told; a Missing stays one."""
    return told if isinstance(told, Missing) else made(told)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1e3


def _default_clock(gpu: NvmlGpu) -> Any:  # noqa: ANN401  (pynvml is untyped)
    """Of applications, where the driver still has such a thing; else the most."""
    clock = gpu.ask("nvmlDeviceGetDefaultApplicationsClock", pynvml.NVML_CLOCK_SM)
    if isinstance(clock, Missing):
        return gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
    return clock


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


_FACTS: dict[str, Callable[[NvmlGpu], Any]] = {
    "name": lambda gpu: gpu.ask("nvmlDeviceGetName"),
    "memory_bytes": lambda gpu: _then(
        gpu.ask("nvmlDeviceGetMemoryInfo"), lambda memory: int(memory.total)
    ),
    "vbios": lambda gpu: gpu.ask("nvmlDeviceGetVbiosVersion"),
    "pci_bus_id": lambda gpu: _then(gpu.ask("nvmlDeviceGetPciInfo"), lambda pci: _text(pci.busId)),
    "power_limit_w": lambda gpu: _then(gpu.ask("nvmlDeviceGetEnforcedPowerLimit"), _watts),
    "default_power_limit_w": lambda gpu: _then(
        gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit"), _watts
    ),
    "default_sm_clock_mhz": _default_clock,
    "max_sm_clock_mhz": lambda gpu: gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
    "max_memory_clock_mhz": lambda gpu: gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
    "ecc": lambda gpu: _then(gpu.ask("nvmlDeviceGetEccMode"), lambda modes: bool(modes[0])),
    "persistence": lambda gpu: _then(gpu.ask("nvmlDeviceGetPersistenceMode"), bool),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML describes it. memory_bytes: the whole card's.

    missing: by field, why it couldn't be read; such a field is None.
    """

    uuid: str
    name: str | None
    driver: str | None
    memory_bytes: int | None
    vbios: str | None
    pci_bus_id: str | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    default_sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    max_memory_clock_mhz: int | None
    ecc: bool | None
    mig: bool
    persistence: bool | None
    virtualisation: str | None
    missing: dict[str, Missing]


def gpu(uuid: str, pci_bus_id: str | None = None) -> Gpu | Missing:
    """The GPU of this UUID (with or without `GPU-`), or why NVML can't describe it.

    By UUID, since NVML's indices take no notice of CUDA_VISIBLE_DEVICES.
    """
    found = open_gpu(uuid, pci_bus_id)
    if isinstance(found, Missing):
        return found
    try:
        told = {"driver": driver()} | {name: fact(found) for name, fact in _FACTS.items()}
    finally:
        found.close()
    missing = {name: each for name, each in told.items() if isinstance(each, Missing)}
    if found.virtualisation is None:
        missing["virtualisation"] = Missing("not supported", "this driver doesn't tell it")
    known = {name: None if name in missing else each for name, each in told.items()}
    return Gpu(
        uuid=found.uuid,
        mig=found.mig,
        virtualisation=found.virtualisation,
        missing=missing,
        **known,
    )


def hashed(uuid: str) -> str:
    """A UUID as records keep it on request: the same for the same GPU, and not to be undone."""
    return f"sha256-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}"


# gVisor's kernel has had this version, built on this day, since its first release.
_GVISOR = ("gvisor", "Sun Jan 10 15:06:54 PST 2016")


def container(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str | None:
    """What this process is contained in, outermost last; None where there is no mark of any."""
    kernel = _read(root / "proc/version") + _read(root / "proc/sys/kernel/osrelease")
    groups = _read(root / "proc/1/cgroup")
    board = _read(root / "sys/class/dmi/id/sys_vendor") + _read(root / "proc/cmdline")
    marks = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in variables or "kubepods" in groups,
        "podman": (root / "run/.containerenv").exists(),
        "docker": (root / ".dockerenv").exists() or "/docker/" in groups,
        "singularity": (root / ".singularity.d").exists(),
        "gvisor": any(mark in kernel for mark in _GVISOR),
        "firecracker": "firecracker" in board.lower(),
    }
    found = [name for name, is_there in marks.items() if is_there]
    named = variables.get("container", "")  # set by systemd-nspawn, lxc and podman
    return ", ".join(found) or named or None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def cpu_name() -> str:
    """The processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def packages() -> dict[str, str]:
    """Versions of the packages that a result depends on, of those that are installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state() -> tuple[str | None, bool | None]:
    """The checkout's commit, and whether it has uncommitted changes; None where git can't say.

    A copy of the checkout on another machine has no .git: there `CHECKOUT` says it.
    """
    if told := os.environ.get(CHECKOUT):
        name, _, state = told.partition(" ")
        return name, state != "clean"

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(  # noqa: S603 (its arguments are this file's own)
                ["git", "-C", str(_ROOT), *arguments],  # noqa: S607 (wherever git is)
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    status = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None or commit is None else bool(status)


def hash_of(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None where it can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def tree_hash(root: Path = _ROOT) -> str:
    """SHA-256 of the files that make a run what it is, by path and content.

    All of the rooms, committed or not, and the pinned versions; so it is the same with git and
    without, and a word in the README or another test changes nothing.
    """
    whole = hashlib.sha256()
    files = [each for room in _ROOMS for each in (root / room).rglob("*")]
    for each in sorted([*files, root / "pyproject.toml"]):
        if each.is_file() and "__pycache__" not in each.parts:
            whole.update(f"{each.relative_to(root)}\0{hash_of(each)}\n".encode())
    return whole.hexdigest()


def host() -> tuple[str, str]:
    """The host's name, and its platform."""
    return socket.gethostname(), platform.platform()
