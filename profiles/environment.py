"""The machine and its software, as a record needs them. What can't be read is None, never zero."""

from __future__ import annotations

import platform
import socket
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pynvml

_PACKAGES = ("torch", "triton", "numpy", "ml_dtypes", "pydantic", "pytest", "nvidia-ml-py")
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML names it. memory_bytes: the whole card's."""

    name: str
    uuid: str
    driver: str
    memory_bytes: int


def gpu(uuid: str) -> Gpu | None:
    """The GPU of this UUID (with or without `GPU-`), None where NVML doesn't know it.

    By UUID, since NVML's indices take no notice of CUDA_VISIBLE_DEVICES.
    """
    full = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(full)
        return Gpu(
            name=pynvml.nvmlDeviceGetName(handle),
            uuid=full,
            driver=pynvml.nvmlSystemGetDriverVersion(),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


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
    """The checkout's commit, and whether it has uncommitted changes; None where git can't say."""

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


def host() -> tuple[str, str]:
    """The host's name, and its platform."""
    return socket.gethostname(), platform.platform()
