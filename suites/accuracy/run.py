"""One accuracy run: each pair of kernel and case tried once, its truth computed once a case."""

from __future__ import annotations

import math
import os
import platform
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kernels.registry import Kernel, KernelError
from oracles.op import Bound, Case, Numerics, Outputs
from profiles import environment
from reports.schema import AccuracyRow, CaseInfo, Environment, KernelInfo
from suites.accuracy.allocations import SENTINEL
from suites.accuracy.candidate import Call, Declared, ask_candidate, call_candidate
from suites.accuracy.originals import Originals
from suites.accuracy.verdict import Verdict, judge

# Truth and bounds in float64 come to about ten times a case's own bytes.
_MOST_BYTES_ON_CPU = 2**30
# What an interpreter computes in about a minute.
_MOST_FLOPS_ON_CPU = 2e10
# Bounds take up to eight times a case's bytes for each numerics; of a larger case one set is kept.
_MOST_BYTES_OF_SEVERAL_BOUNDS = 2**25
_ROOT = Path(__file__).resolve().parent.parent.parent


class DeviceLostError(RuntimeError):
    """A candidate left the GPU unusable for this process."""


@dataclass(slots=True)
class _Known:
    """What is made once for all kernels of a case, in this order and only when it is needed.

    Its inputs, its truth, and the bounds for each numerics that a kernel has declared.
    """

    case: Case
    originals: Originals
    truth: Outputs | None = None
    bounds: dict[Numerics, dict[str, Bound]] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """The device of a run, how rows are told to be reproduced, and what is known of the last case.

    oracle_calls counts the truths computed: as many as cases, whatever the number of kernels.
    """

    device: torch.device
    sm: int
    gate_baselines: bool
    named: frozenset[str]
    reproduce_options: tuple[str, ...]
    oracle_calls: int = 0
    _known: _Known | None = None

    def gates(self, kernel: Kernel) -> bool:
        """Whether a failure of this kernel makes the exit status non-zero."""
        return kernel.origin != "baseline" or self.gate_baselines or kernel.name in self.named

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Why the kernel doesn't serve the case on this run's device; None where it does."""
        if self.device.type == "cpu":
            least, flops = kernel.op.bytes(case), kernel.op.flops(case)
            if least > _MOST_BYTES_ON_CPU:
                return f"moves {least / 2**30:.1f} GiB at least, which is tried on a GPU only"
            if flops > _MOST_FLOPS_ON_CPU:
                return f"does {flops / 1e9:.0f} GFLOP, which is tried on a GPU only"
        return kernel.domain.reject(case, self.sm, self.device.type)

    def try_pair(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Call the kernel twice on the case and judge what it left.

        Raises DeviceLostError, with the row in its arguments, where the GPU is lost to us.
        """
        started = time.perf_counter()
        declared = ask_candidate(kernel, case, self.sm)
        if declared.problem is not None:
            verdict = Verdict("raised", declared.problem, ())
            return self._row(kernel, case, declared, verdict, started, ())
        known = self._known_of(kernel, case)
        first = call_candidate(kernel, case, known.originals.give(), fill=math.nan)
        second = first
        if first.rule is None:
            second = call_candidate(kernel, case, known.originals.give(), fill=SENTINEL)
        if first.fatal or second.fatal:
            lost = Verdict("raised", first.reason or second.reason, ())
            raise DeviceLostError(self._row(kernel, case, declared, lost, started, (first,)))
        if first.rule is not None or second.rule is not None:
            verdict = judge(first, second, {}, {}, kernel.numerics)
            # It may have written where it shouldn't have: the next kernel is judged by fresh ones.
            self._known = None
        else:
            truth = self._truth(kernel, known)
            bounds = self._bounds(kernel, known, truth)
            most = declared.workspace_bytes
            verdict = judge(first, second, truth, bounds, kernel.numerics, declared_bytes=most)
        return self._row(kernel, case, declared, verdict, started, (first, second))

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

    def _known_of(self, kernel: Kernel, case: Case) -> _Known:
        if self._known is None or self._known.case != case:
            self._known = None  # so that two truths never lie in memory together
            self._known = _Known(case, Originals(kernel.op, case, self.device))
        return self._known

    def _truth(self, kernel: Kernel, known: _Known) -> Outputs:
        if known.truth is None:
            known.truth = kernel.op.oracle(known.case, known.originals.read())
            self.oracle_calls += 1
        return known.truth

    def _bounds(self, kernel: Kernel, known: _Known, truth: Outputs) -> dict[str, Bound]:
        numerics = replace(kernel.numerics, bitwise_repeatable=True)  # which bounds don't ask
        if numerics not in known.bounds:
            if kernel.op.bytes(known.case) > _MOST_BYTES_OF_SEVERAL_BOUNDS:
                known.bounds.clear()
            known.bounds[numerics] = kernel.op.bound(
                known.case, known.originals.read(), truth, numerics
            )
        return known.bounds[numerics]

    def _row(
        self,
        kernel: Kernel,
        case: Case,
        declared: Declared,
        verdict: Verdict,
        started: float,
        calls: tuple[Call, ...],
    ) -> AccuracyRow:
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status="passed" if verdict.rule is None else "failed",
            rule=verdict.rule,
            reason=verdict.reason,
            outputs=verdict.outputs,
            variant=declared.variant,
            workspace_bytes=calls[-1].workspace_bytes if calls else None,
            declared_workspace_bytes=declared.workspace_bytes,
            gates=self.gates(kernel),
            reproduce=self._command(kernel, case),
            duration_s=time.perf_counter() - started,
            call_s=calls[0].seconds if calls else None,
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
        path=_shortest(Path(kernel.path)),
        numerics=asdict(kernel.numerics),
        variants=variants,
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
