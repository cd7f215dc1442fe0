"""One accuracy run: each pair of kernel and case tried once, its truth computed once a case."""

from __future__ import annotations

import math
import os
import platform
import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels.registry import Kernel
from oracles.op import Bound, Case, Numerics, Outputs
from profiles import environment
from reports.schema import AccuracyRow, CaseInfo, Environment, KernelInfo
from suites.accuracy.allocations import SENTINEL
from suites.accuracy.candidate import call_candidate
from suites.accuracy.verdict import Verdict, judge

# Truth and bounds in float64 come to about ten times a case's own bytes.
_MOST_BYTES_ON_CPU = 2**30
_ROOT = Path(__file__).resolve().parent.parent.parent


class DeviceLostError(RuntimeError):
    """A candidate left the GPU unusable for this process."""


@dataclass(slots=True)
class _Truth:
    """The truth of one case, and the bounds for each numerics that a kernel has declared."""

    case: Case
    outputs: Outputs
    bounds: dict[Numerics, dict[str, Bound]] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """The device of a run, how rows are told to be reproduced, and the truth of the last case.

    oracle_calls counts the truths computed: as many as cases, whatever the number of kernels.
    """

    device: torch.device
    sm: int
    gate_baselines: bool
    named: frozenset[str]
    reproduce_options: tuple[str, ...]
    oracle_calls: int = 0
    _truth: _Truth | None = None

    def gates(self, kernel: Kernel) -> bool:
        """Whether a failure of this kernel makes the exit status non-zero."""
        return kernel.origin != "baseline" or self.gate_baselines or kernel.name in self.named

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Why the kernel doesn't serve the case on this run's device; None where it does."""
        least = kernel.op.bytes(case)
        if self.device.type == "cpu" and least > _MOST_BYTES_ON_CPU:
            return f"moves {least / 2**30:.1f} GiB at least, which is tried on a GPU only"
        return kernel.domain.reject(case, self.sm, self.device.type)

    def try_pair(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Call the kernel twice on the case and judge what it left.

        Raises DeviceLostError, with the row in its arguments, where the GPU is lost to us.
        """
        started = time.perf_counter()
        first = call_candidate(kernel, case, self.device, fill=math.nan)
        second = (
            first
            if first.rule is not None
            else (call_candidate(kernel, case, self.device, fill=SENTINEL))
        )
        if first.fatal or second.fatal:
            lost = Verdict("raised", first.reason or second.reason, ())
            row = self._row(kernel, case, lost, started, first.seconds)
            raise DeviceLostError(row)
        if first.rule is not None or second.rule is not None:
            verdict = judge(first, second, {}, {}, kernel.numerics)
        else:
            truth = self._truth_of(kernel, case)
            bounds = self._bounds(kernel, case, truth)
            verdict = judge(first, second, truth.outputs, bounds, kernel.numerics)
        return self._row(kernel, case, verdict, started, first.seconds)

    def refused(self, kernel: Kernel, case: Case, reason: str) -> AccuracyRow:
        """The row of a pair that the kernel's domain doesn't hold."""
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status="refused",
            reason=reason,
            gates=self.gates(kernel),
            reproduce=self._command(kernel, case),
            duration_s=0.0,
        )

    def _truth_of(self, kernel: Kernel, case: Case) -> _Truth:
        if self._truth is None or self._truth.case != case:
            self._truth = None  # so that two truths never lie in memory together
            inputs = kernel.op.inputs(case, self.device)
            self._truth = _Truth(case, kernel.op.oracle(case, inputs))
            self.oracle_calls += 1
        return self._truth

    def _bounds(self, kernel: Kernel, case: Case, truth: _Truth) -> dict[str, Bound]:
        if kernel.numerics not in truth.bounds:
            truth.bounds.clear()  # two sets at once would not fit at 2^31 elements
            inputs = kernel.op.inputs(case, self.device)
            truth.bounds[kernel.numerics] = kernel.op.bound(
                case, inputs, truth.outputs, kernel.numerics
            )
        return truth.bounds[kernel.numerics]

    def _row(
        self, kernel: Kernel, case: Case, verdict: Verdict, started: float, call_s: float
    ) -> AccuracyRow:
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status="passed" if verdict.rule is None else "failed",
            rule=verdict.rule,
            reason=verdict.reason,
            outputs=verdict.outputs,
            gates=self.gates(kernel),
            reproduce=self._command(kernel, case),
            duration_s=time.perf_counter() - started,
            call_s=call_s,
        )

    def _command(self, kernel: Kernel, case: Case) -> str:
        options = [f"--device {self.device.type}"]
        if kernel.origin == "user":
            options.append(f"--kernels={shlex.quote(_shortest(Path(kernel.path)))}")
        options += [f"--kernel {shlex.quote(kernel.name)}", f"--case {case.id()}"]
        return " ".join(["nox -s accuracy --", *self.reproduce_options, *options])


def _shortest(path: Path) -> str:
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


def kernel_info(kernel: Kernel) -> KernelInfo:
    """A kernel as the record spells it."""
    return KernelInfo(
        op=kernel.op.name,
        name=kernel.name,
        origin=kernel.origin,
        priority=kernel.priority,
        path=_shortest(Path(kernel.path)),
        numerics=asdict(kernel.numerics),
    )


def describe_machine(device: torch.device, sm: int, *, strict: bool | None) -> Environment:
    """The environment of a run on `device`, for its record."""
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
        return Environment(device="cpu", device_name=cpu, simulated_sm=sm, strict=strict, **shared)
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
