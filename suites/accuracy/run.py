"""One accuracy run: each pair of kernel and case tried once, its truth computed once a case."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernels.registry import Kernel
from oracles.op import Bound, Case, Inputs, Outputs
from reports.schema import AccuracyRow
from suites.accuracy.calling import Fill, call_here
from suites.accuracy.candidate import PLAIN, Call, Declared, How, ask_candidate, printed_by
from suites.accuracy.known import Known
from suites.accuracy.originals import Originals
from suites.accuracy.parcels import Parcel
from suites.accuracy.strict.undefined import let_pass
from suites.accuracy.thorough import MOST_BYTES, Asked, Pair, Thorough
from suites.accuracy.verdict import Verdict, explained, judge
from suites.accuracy.workers import Workers
from suites.described import case_info
from suites.nox_command import nox_command, path_in_command

# Truth and bounds in float64 come to about ten times a case's own bytes.
_MOST_BYTES_ON_CPU = 2**30
# What an interpreter computes in about a minute.
_MOST_FLOPS_ON_CPU = 2e10
# Above this the inputs are packed anew for each kernel.
_MOST_BYTES_KEPT_PACKED = 2**30
# Above this judge and worker make room for one another on the card.
_MOST_BYTES_SIDE_BY_SIDE = 2**31
# What a core of the host judges in some tens of milliseconds.
_MOST_BYTES_ON_HOST = 2**20
_MOST_FLOPS_ON_HOST = 3e7
_NEEDS_GPU = frozenset({"torch_dropout"})  # whose mask only a kernel of PyTorch's knows
_SECRETS = 2**32
_DRAWN = "on values drawn from a secret"
_ROOT = Path(__file__).resolve().parent.parent.parent


class DeviceLostError(RuntimeError):
    """A candidate left the GPU unusable for this process."""


@dataclass(slots=True)
class Run:
    """The device of a run, how rows are told to be reproduced, and what is known of the last case.

    workers: where kernels are called; None: in this process, for a debugger and for tests, on the
    same values both times. signs: what second calls' values are drawn from; None: a secret and the
    case, so that no kernel can know what it will be asked. further: the share of cases on which
    kernels are asked for values of which nothing was seen before. every_configuration: try
    autotuned kernels with each of theirs. two_calls_alone: judge them by the bounds, and leave out
    the emulation and what thorough.py asks besides.
    strict: whether the interpreter is; else rows tell which undefined lanes were read.
    oracle_calls counts the truths computed: as many as cases, whatever the number of kernels.
    """

    device: torch.device
    sm: int
    gate_baselines: bool = False
    named: frozenset[str] = frozenset()
    reproduce_options: tuple[str, ...] = ()
    workers: Workers | None = None
    signs: int | None = None
    further: float = 1.0
    every_configuration: bool = False
    two_calls_alone: bool = False
    strict: bool = True
    oracle_calls: int = 0
    _known: Known | None = None
    thorough: Thorough = field(init=False)
    _secret: bytes = field(default_factory=partial(secrets.token_bytes, 16))

    def __post_init__(self) -> None:
        self.thorough = Thorough(self.device.type == "cuda", self.every_configuration)

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
        if self.workers is not None:
            return self.workers.refusal(kernel, case)
        return kernel.domain.reject(case, self.sm, self.device.type)

    def try_pair(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Call the kernel twice on the case and judge what it left.

        Raises DeviceLostError, with the row in its arguments, where the GPU is lost to us.
        """
        started = time.perf_counter()
        declared = self._declared(kernel, case)
        if declared.problem is not None:
            verdict = Verdict("raised", declared.problem, ())
            return self._row(kernel, case, declared, verdict, started, ())
        known, asked = self._known_of(kernel, case), Asked()
        known.judged = None  # which holds on to the truth
        self._leave_room(kernel, known)
        first = self._call(kernel, known, "nan")
        second = first
        if first.rule is None:
            second = self._call_flipped(kernel, known, "sentinel")
        if first.fatal or second.fatal:
            lost = Verdict("raised", first.reason or second.reason, ())
            raise DeviceLostError(self._row(kernel, case, declared, lost, started, (first,)))
        if first.rule is not None or second.rule is not None:
            verdict = judge(first, second, {}, {}, kernel.numerics)
            # It may have written where it shouldn't have: the next kernel is judged by fresh ones.
            self._known = self._known if self.workers is not None else None
        else:
            if kernel.op.bytes(case) > _MOST_BYTES_KEPT_PACKED:
                known.parcel = None  # the truth will need the room
            # Only now: while a candidate runs there is no truth for it to find.
            of_kernel = self._judged_by(kernel, known, declared.workspace_bytes)
            known.judged = kernel.name, first, of_kernel
            verdict = of_kernel(first, second)
            if verdict.rule == "not repeatable" and self.workers is not None:
                # Bits that follow the signs are a rounding that knows signs, which isn't wrong.
                third = self._call_flipped(kernel, known, "nan")
                verdict = of_kernel(third, second)
            zeros = partial(self._on_zeros, kernel, known, of_kernel)
            verdict = explained(verdict, first.undefined, zeros)
            if verdict.rule is None and not self.two_calls_alone:
                pair = self._pair(kernel, known, declared.variant, (first, second), of_kernel)
                asked = self.thorough.ask(pair)
                if asked.broken is not None:
                    verdict = Verdict(*asked.broken, verdict.outputs)
                else:
                    verdict = self._on_others(kernel, known) or verdict
        row = self._row(kernel, case, declared, verdict, started, (first, second))
        extra = {"relations": asked.relations, "invariance": asked.invariance}
        passed = () if self.strict or verdict.rule is not None else let_pass(first.undefined)
        return row.model_copy(update=extra | {"notes": (*asked.notes, *passed)})

    def _on_zeros(
        self, kernel: Kernel, known: Known, judged: Callable[[Call, Call], Verdict]
    ) -> Verdict:
        call = self._call(kernel, known, "nan", How(zeros=True))
        return judged(call, call)

    def parcel(self, kernel: Kernel, case: Case) -> Parcel:
        """The case's inputs, as workers are sent them."""
        return self._parcel(self._known_of(kernel, case))

    def confirm(self, kernel: Kernel, case: Case, outputs: dict[str, Tensor]) -> str | None:
        """Why these outputs of a later call aren't right; None where they are.

        Of the kernel that was tried last, on that case. Bits that follow the signs are a rounding
        that knows signs, which isn't wrong: then the bounds alone have to hold.
        """
        known = self._known_of(kernel, case)
        assert known.judged is not None and known.judged[0] == kernel.name
        _, first, judged = known.judged
        later = replace(first, outputs=outputs)
        verdict = judged(first, later)
        if verdict.rule == "not repeatable":
            verdict = judged(later, later)
        return None if verdict.rule is None else f"{verdict.rule}: {verdict.reason}"

    def _pair(
        self,
        kernel: Kernel,
        known: Known,
        variant: str | None,
        calls: tuple[Call, Call],
        judged: Callable[[Call, Call], Verdict],
    ) -> Pair:
        """What `thorough.py` needs of a kernel that was right twice."""
        inputs = known.originals.read()

        def call_on(case: Case, changed: Inputs, how: How) -> Call:
            if changed is inputs:
                return self._call(kernel, known, "nan", how)
            if self.workers is None:
                made = Originals(kernel.op, case, self.device, changed)
                return call_here(kernel, case, made.give(kernel.op.updates), "nan", how)
            parcel = Parcel.of(changed, self._handed_over_on(known))
            return self._in_worker(kernel, case, parcel, "nan", how)

        def bounds(case: Case, changed: Inputs) -> dict[str, Bound]:
            if changed is inputs:
                return known.bounds_of(kernel)
            truth = kernel.op.oracle(case, changed)
            return kernel.op.bound(case, changed, truth, kernel.numerics.of_bounds)

        return Pair(
            kernel,
            known.case,
            variant,
            inputs,
            *calls,
            self._truth(known),
            call_on,
            bounds,
            lambda case: self.refusal(kernel, case) is None,
            judged,
            None
            if self.workers is None
            else partial(self.workers.call_plainly, kernel, known.case, inputs),
        )

    def refused(self, kernel: Kernel, case: Case, reason: str) -> AccuracyRow:
        """The row of a pair that the kernel's domain doesn't hold."""
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status="refused",
            reason=reason,
            gates=self.gates(kernel),
            reproduce=self.command("accuracy", kernel, case),
            duration_s=0.0,
        )

    def _declared(self, kernel: Kernel, case: Case) -> Declared:
        if self.workers is not None:
            return self.workers.declared(kernel, case)
        return ask_candidate(kernel, case, self.sm)

    def _call(self, kernel: Kernel, known: Known, fill: Fill, how: How = PLAIN) -> Call:
        if self.workers is None:
            return call_here(kernel, known.case, known.originals.give(kernel.op.updates), fill, how)
        return self._in_worker(kernel, known.case, self._parcel(known), fill, how)

    def _in_worker(
        self, kernel: Kernel, case: Case, parcel: Parcel, fill: Fill, how: How = PLAIN
    ) -> Call:
        """A call; of a large case, which leaves none of the card's memory taken."""
        assert self.workers is not None
        if not self._is_large(kernel, case):
            return self.workers.call(kernel, case, parcel, fill, how)
        torch.cuda.empty_cache()
        call = self.workers.call(kernel, case, parcel, fill, how)
        # What the worker and the memory that it shares still hold is what the truth will need.
        self.workers.renew()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        return call

    def _is_large(self, kernel: Kernel, case: Case) -> bool:
        large = kernel.op.bytes(case) > _MOST_BYTES_SIDE_BY_SIDE
        return large and self.device.type == "cuda"

    def _leave_room(self, kernel: Kernel, known: Known) -> None:
        """Forget a large case's truth and bounds where they leave a worker under half a card."""
        if not self._is_large(kernel, known.case):
            return
        torch.cuda.empty_cache()
        free, whole = torch.cuda.mem_get_info(self.device)
        if free < whole // 2:
            known.forget_truth()
            torch.cuda.empty_cache()

    def _call_flipped(self, kernel: Kernel, known: Known, fill: Fill) -> Call:
        """A call on values whose signs are changed, its outputs with theirs changed back.

        A correct kernel's are those of a call on the same values: see signs.py.
        """
        if self.workers is None:
            return self._call(kernel, known, fill)
        parcel = self._parcel(known)
        parcel.change(known.flips.apply_)
        call = self._in_worker(kernel, known.case, parcel, fill)
        parcel.change(known.flips.apply_)  # which undoes itself
        return replace(call, outputs=known.flips.outputs(call.outputs))

    def _judged_on(self, kernel: Kernel, case: Case) -> torch.device:
        """Where inputs, truth and bounds are made.

        A small case's aren't made on the GPU: judges and candidates of several processes would
        wait there for one another, and a core does it as fast.
        """
        small = kernel.op.bytes(case) <= _MOST_BYTES_ON_HOST
        small = small and kernel.op.flops(case) <= _MOST_FLOPS_ON_HOST
        if self.workers is None or not small or case.options & _NEEDS_GPU:
            return self.device
        return torch.device("cpu")

    def _handed_over_on(self, known: Known) -> torch.device:
        assert self.workers is not None
        on_host = known.originals.device.type == "cpu"
        return known.originals.device if on_host else self.workers.arena_device

    def _secret_of(self, case: Case) -> int:
        if self.signs is not None:
            return self.signs
        digest = hashlib.sha256(self._secret + case.id().encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def _parcel(self, known: Known) -> Parcel:
        assert self.workers is not None
        if known.parcel is None:
            known.parcel = Parcel.of(known.originals.read(), self._handed_over_on(known))
        return known.parcel

    def _known_of(self, kernel: Kernel, case: Case) -> Known:
        if self._known is None or self._known.case != case:
            self._known = None  # so that two truths never lie in memory together
            originals = Originals(kernel.op, case, self._judged_on(kernel, case))
            self._known = Known.of(kernel.op, case, originals, self._secret_of(case))
        return self._known

    def _truth(self, known: Known) -> Outputs:
        self.oracle_calls += known.truth is None
        return known.exact()

    def _judged_by(
        self, kernel: Kernel, known: Known, declared_bytes: int | None = None
    ) -> Callable[[Call, Call], Verdict]:
        """The verdict on two calls of the kernel on these values.

        Of values that nobody has seen before the bounds alone: an emulation's blocks are a measure,
        which chance could exceed in one run and not in the next.
        """
        truth = self._truth(known)
        compared = not self.two_calls_alone and known is self._known
        return partial(
            judge,
            truth=truth,
            bounds=known.bounds_of(kernel),
            numerics=kernel.numerics,
            declared_bytes=declared_bytes,
            emulation=known.emulation_of(kernel) if compared else None,
        )

    def _on_others(self, kernel: Kernel, known: Known) -> Verdict | None:
        """What is wrong on further values, which the case's secret gives; None: nothing.

        Asked of part of a run's cases, and of each whose secret was given, so that a failure comes
        again.
        """
        always = self.signs is not None or self.further >= 1
        chosen = always or known.secret < self.further * _SECRETS
        if self.workers is None or not chosen or kernel.op.bytes(known.case) > MOST_BYTES:
            return None
        for other in known.draw_others(both=always):
            if self.refusal(kernel, other.case) is None:
                call = self._call(kernel, other, "nan")
                verdict = (
                    self._judged_by(kernel, other)(call, call)
                    if call.rule is None
                    else judge(call, call, {}, {}, kernel.numerics)
                )
                if verdict.rule is not None:
                    return replace(verdict, reason=f"{_DRAWN}: {verdict.reason}")
        return None

    def _row(
        self,
        kernel: Kernel,
        case: Case,
        declared: Declared,
        verdict: Verdict,
        started: float,
        calls: tuple[Call, ...],
    ) -> AccuracyRow:
        secret = self._known.secret if len(calls) > 1 and self._known is not None else None
        is_drawn = (verdict.reason or "").startswith(_DRAWN)
        more = [f"--signs {secret}"] if is_drawn else []
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status=verdict.status,
            rule=verdict.rule,
            reason=verdict.reason,
            outputs=verdict.outputs,
            variant=declared.variant,
            workspace_bytes=calls[-1].workspace_bytes if calls else None,
            declared_workspace_bytes=declared.workspace_bytes,
            gates=self.gates(kernel),
            reproduce=self.command("accuracy", kernel, case, *more),
            duration_s=time.perf_counter() - started,
            call_s=calls[0].seconds if calls else None,
            launches=calls[0].launches if calls else None,
            signs=secret,
            printed=printed_by(calls) if verdict.status == "failed" else (),
        )

    def command(self, suite: str, kernel: Kernel, case: Case, *more: str) -> str:
        """What runs this pair alone; more: options after those."""
        options = [f"--device {self.device.type}"]
        if kernel.origin == "user":
            options.append(f"--kernels={shlex.quote(path_in_command(Path(kernel.path)))}")
        options += [f"--kernel {shlex.quote(kernel.name)}", f"--case {case.id()}", *more]
        return " ".join([nox_command(suite, ["--"]), *self.reproduce_options, *options])
