"""Describe cases, kernels and machines for records."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles import environment
from kernel_workbench.profiles.nvml import full_uuid
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import CaseInfo, Environment, KernelInfo
from kernel_workbench.suites import ROOT

# Fields of the record's environment that come from NVML, under the same names.
_OF_NVML = tuple(
    field.name
    for field in dataclasses.fields(environment.Gpu)
    if field.name in Environment.model_fields and field.name not in {"memory_bytes", "missing"}
)


def shortest(path: Path) -> str:
    """Return the path from the checkout's root if the checkout holds it, and else all of it.

    A room's path is the same where the links in `kernel_workbench/` were copied.
    """
    if not path.is_relative_to(ROOT):
        return str(path)
    return str(path.relative_to(ROOT)).removeprefix("kernel_workbench/")


def hashes_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each readable file, by its path."""
    hashes = {shortest(file): environment.hash_of(file) for file in files}
    return {path: digest for path, digest in hashes.items() if digest is not None}


def edited(files: Mapping[str, str]) -> list[str]:
    """Return a sentence for each file that changed since it was hashed.

    Args:
        files: the earlier hashes by path.
    """
    now = hashes_of(ROOT / file for file in files)
    return [
        f"{path} changed during the run: a row may be of the old or the new file; run again"
        for path, digest in files.items()
        if now.get(path) != digest
    ]


def case_info(case: Case) -> CaseInfo:
    """Return the record's form of a case."""
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


def kernel_info(kernel: Kernel, sm: int, named: Collection[str] = ()) -> KernelInfo:
    """Return the record's form of a kernel.

    Args:
        kernel: the kernel.
        sm: the GPU generation for which the kernel lists its variants.
        named: the names of --kernel.

    Raises:
        KernelError: the kernel's `variants` raised.
    """
    try:
        variants = () if kernel.variants is None else tuple(kernel.variants(sm))
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise KernelError(
            f"kernel {kernel.name} in {kernel.path}: its variants for sm {sm} raised {message}"
        ) from error
    return KernelInfo(
        op=kernel.op.name,
        name=kernel.name,
        origin=kernel.origin,
        priority=kernel.priority,
        path=shortest(Path(kernel.path)),
        numerics=dataclasses.asdict(kernel.numerics),
        variants=variants,
        returns=kernel.op.outputs if kernel.op.left_out else (),
        left_out=kernel.op.left_out,
        asked_for=kernel.origin == "user" or (kernel.origin == "ours" and kernel.name in named),
    )


def describe_machine(
    device: torch.device,
    sm: int,
    *,
    strict: bool | None,
    unchecked: tuple[str, ...] = (),
    hash_uuid: bool = False,
) -> Environment:
    """Return the environment of a run for its record.

    PyTorch gives the GPU's UUID if NVML can't, so that two boards of one host stay apart.

    Args:
        device: the device of the run.
        sm: its GPU generation, or the simulated one.
        strict: the interpreter is strict; None without an interpreter.
        unchecked: the strict interpreter's checks that this version of Triton doesn't allow.
        hash_uuid: record a hash in place of the GPU's UUID.
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
        "tree": environment.tree_hash(),
        "fp_fusion": bool(triton.knobs.language.default_fp_fusion),
        "container": environment.container(),
    }
    if device.type == "cpu":
        shared |= {"strict": strict, "unchecked": unchecked}
        return Environment(device="cpu", device_name=cpu, simulated_sm=sm, **shared)
    properties = torch.cuda.get_device_properties(device)
    card = environment.gpu(str(properties.uuid), pci_bus_id(properties))
    described: dict[str, Any] = {
        "device": "cuda",
        "device_name": properties.name,
        "sm": sm,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "l2_bytes": properties.L2_cache_size,
        **shared,
    }
    uuid = full_uuid(str(properties.uuid)) if isinstance(card, Missing) else card.uuid
    described["gpu_uuid"] = environment.hashed(uuid) if hash_uuid else uuid
    if isinstance(card, Missing):
        described["missing"] = dict.fromkeys(_OF_NVML, str(card))
        return Environment(**described)
    described |= {name: getattr(card, name) for name in _OF_NVML}
    if card.memory_bytes is not None and not card.mig:
        described["memory_bytes"] = card.memory_bytes
    described["missing"] = {
        name: str(reason) for name, reason in card.missing.items() if name in _OF_NVML
    }
    return Environment(**described)


def pci_bus_id(properties: Any) -> str | None:  # noqa: ANN401  (torch's, untyped)
    """Return a GPU's PCI address as NVML spells it; None if this PyTorch doesn't have it.

    >>> from types import SimpleNamespace
    >>> pci_bus_id(SimpleNamespace(pci_domain_id=0, pci_bus_id=26, pci_device_id=0))
    '00000000:1A:00.0'
    """
    try:
        domain, bus, device = (
            getattr(properties, f"pci_{part}_id") for part in ("domain", "bus", "device")
        )
    except AttributeError:
        return None
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def default_numerics() -> dict[str, bool | int | float | str | None]:
    """Return the fields of `Numerics`, and of each op's own numerics, with their defaults."""
    defaults: dict[str, bool | int | float | str | None] = {}
    for op in OPS.values():
        defaults |= dataclasses.asdict(op.numerics())
    return defaults
