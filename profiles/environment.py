"""The machine and its software, as a record needs them. An unreadable value is None, never zero."""

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
from kernel_workbench.root import IS_CHECKOUT, ROOT

_PACKAGES = (
    *("kernel-workbench", "torch", "triton", "numpy", "ml_dtypes", "pydantic", "pytest"),
    "nvidia-ml-py",
)
# The variable holds a copied checkout's commit and, after a space, "clean" or "edited".
CHECKOUT = "WORKBENCH_CHECKOUT"


def _then(value: Any, convert: Callable[[Any], Any]) -> Any:  # noqa: ANN401  (pynvml is untyped)
    """Return `convert(value)`, or `value` itself where it is a Missing."""
    return value if isinstance(value, Missing) else convert(value)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1e3


def _default_clock(gpu: NvmlGpu) -> Any:  # noqa: ANN401  (pynvml is untyped)
    """Return the default application clock, or the highest clock where the driver has none."""
    clock = gpu.ask("nvmlDeviceGetDefaultApplicationsClock", pynvml.NVML_CLOCK_SM)
    if isinstance(clock, Missing):
        return gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)
    return clock


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


_FACTS: dict[str, Callable[[NvmlGpu], Any]] = {
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
    """A GPU as NVML describes it. `memory_bytes` counts the whole card's memory.

    `missing` maps a field that couldn't be read to the reason; the field itself is then None.
    """

    uuid: str
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
    """Return the GPU of this UUID (with or without `GPU-`), or why NVML can't describe it.

    The UUID finds the GPU, because NVML's indices ignore CUDA_VISIBLE_DEVICES.
    """
    device = open_gpu(uuid, pci_bus_id)
    if isinstance(device, Missing):
        return device
    try:
        values = {"driver": driver()} | {name: fact(device) for name, fact in _FACTS.items()}
    finally:
        device.close()
    missing = {name: value for name, value in values.items() if isinstance(value, Missing)}
    if device.virtualisation is None:
        missing["virtualisation"] = Missing("not supported", "this driver doesn't report it")
    readable = {name: None if name in missing else value for name, value in values.items()}
    return Gpu(
        uuid=device.uuid,
        mig=device.mig,
        virtualisation=device.virtualisation,
        missing=missing,
        **readable,
    )


def hashed(uuid: str) -> str:
    """Return the hash of a UUID: equal for the same GPU, and not reversible.

    >>> hashed("GPU-0")
    'sha256-742563b159cc4efa'
    """
    return f"sha256-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}"


# gVisor's kernel has had this version, built on this day, since its first release.
_GVISOR = ("gvisor", "Sun Jan 10 15:06:54 PST 2016")


def container(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the containers of this process, outermost last, for example "docker, gvisor".

    None outside of containers; the variable `container` where no other mark is known.
    """
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
    containers = [name for name, is_there in marks.items() if is_there]
    named = variables.get("container", "")  # set by systemd-nspawn, lxc and podman
    return ", ".join(containers) or named or None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def cpu_name() -> str:
    """Return the processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def packages() -> dict[str, str]:
    """Return the versions of the installed packages that a result depends on, by name."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state() -> tuple[str | None, bool | None]:
    """Return the checkout's commit, and True if it has uncommitted changes; None if git fails.

    A copy of the checkout on another machine has no .git: the variable `CHECKOUT` states both. An
    installed package belongs to no commit, even where it lies in a folder that git keeps.
    """
    if stated := os.environ.get(CHECKOUT):
        name, _, state = stated.partition(" ")
        return name, state != "clean"
    if not IS_CHECKOUT:
        return None, None

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(  # noqa: S603 (its arguments are this file's own)
                ["git", "-C", str(ROOT), *arguments],  # noqa: S607 (wherever git is)
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
    """Return the SHA-256 of a file's bytes; None where the file can't be read.

    >>> hash_of(Path(os.devnull))[:16]
    'e3b0c44298fc1c14'
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def tree_hash(root: Path = ROOT) -> str:
    """Return a SHA-256 over the paths and contents of the files that a run depends on.

    The files are those of the package, committed or not. The hash is the same with git and without
    it, in a checkout and where the package is installed; a change in the README or in a test
    doesn't alter the hash.
    """
    package = root / "kernel_workbench"
    if not package.is_dir():
        package = root
    paths = {}
    for top in sorted(package.iterdir()):
        base = top.resolve()  # `rglob` follows no link
        for path in [base] if base.is_file() else base.rglob("*"):
            parts = top.name, *path.relative_to(base).parts
            if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in parts):
                paths["/".join(parts)] = path
    whole = hashlib.sha256()
    for name, path in sorted(paths.items()):
        whole.update(f"{name}\0{hash_of(path)}\n".encode())
    return whole.hexdigest()


def host() -> tuple[str, str]:
    """Return the host's name, and its platform."""
    return socket.gethostname(), platform.platform()
