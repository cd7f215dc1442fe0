"""Cases, kernels and machines as records spell them."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernels.registry import Kernel, KernelError
from oracles.op import Case
from profiles import environment
from reports.schema import CaseInfo, Environment, KernelInfo

_ROOT = Path(__file__).resolve().parent.parent


def shortest(path: Path) -> str:
    """The path from the checkout's root, where it is in the checkout."""
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else str(path)


def case_info(case: Case) -> CaseInfo:
    """A case as the record spells it."""
    return CaseInfo(
        id=case.id(),
        op=case.op,
        sizes=dict(case.sizes),
        dtype=case.dtype_label,
        layout=case.layout.name,
        distribution=case.distribution,
        options=tuple(sorted(case.options)),
        seed=case.seed,
        tier=case.tier,
        why=case.why,
    )


def kernel_info(kernel: Kernel, sm: int) -> KernelInfo:
    """A kernel as the record spells it, with its variants on `sm`.

    Raises KernelError, in one sentence, where a user's kernel can't say which those are.
    """
    try:
        variants = () if kernel.variants is None else tuple(kernel.variants(sm))
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise KernelError(
            f"kernel {kernel.name} in {kernel.path}: its variants for sm {sm} raised {told}"
        ) from error
    return KernelInfo(
        op=kernel.op.name,
        name=kernel.name,
        origin=kernel.origin,
        priority=kernel.priority,
        path=shortest(Path(kernel.path)),
        numerics=asdict(kernel.numerics),
        variants=variants,
    )


def describe_machine(
    device: torch.device, sm: int, *, strict: bool | None, unchecked: tuple[str, ...] = ()
) -> Environment:
    """The environment of a run on `device`, for its record.

    unchecked: the strict interpreter's checks that this version of Triton doesn't allow.
    """
    commit, dirty = environment.git_state()
    hostname, system = environment.host()
    cpu, cores = environment.cpu_name(), os.cpu_count() or 1
    shared: dict[str, Any] = {
        "hostname": hostname,
        "python": platform.python_version(),
        "platform": system,
        "cpu": cpu,
        "cpu_count": cores,
        "packages": environment.packages(),
        "git_commit": commit,
        "git_dirty": dirty,
    }
    if device.type == "cpu":
        shared |= {"strict": strict, "unchecked": unchecked}
        return Environment(device="cpu", device_name=cpu, simulated_sm=sm, **shared)
    properties = torch.cuda.get_device_properties(device)
    card = environment.gpu(str(properties.uuid))
    return Environment(
        device="cuda",
        device_name=properties.name,
        sm=sm,
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory if card is None else card.memory_bytes,
        gpu_uuid=None if card is None else card.uuid,
        driver=None if card is None else card.driver,
        cuda=torch.version.cuda,
        **shared,
    )
