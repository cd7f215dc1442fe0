"""One accuracy run: each pair of kernel and case tried once, its truth computed once a case.

What is asked of a pair, and in which order, is in trial.py.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.op import Case, Inputs, Outputs
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.trial import Trial
from kernel_workbench.suites.accuracy.truth import Known
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.interpreter.strict.masked_lanes import let_pass
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.reproduce import command_of
from kernel_workbench.suites.run.suite import DeviceLostError, NoMemoryError, told_of_memory
from kernel_workbench.suites.sandbox.call import (
    NOT_INTERPRETED,
    PLAIN,
    Call,
    Declared,
    Fill,
    How,
    Then,
    printed_by,
)
from kernel_workbench.suites.sandbox.judge_side.workers import SPENT, Workers
from kernel_workbench.suites.sandbox.originals import Originals
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess

# Truth and bounds in float64 come to about ten times a case's own bytes.
_MOST_BYTES_ON_CPU = 2**30
# What an interpreter computes in about a minute.
_MOST_FLOPS_ON_CPU = 2e10
# Above this the inputs are packed anew for each kernel.
_MOST_BYTES_KEPT_PACKED = 2**30
# Above this judge and worker make room for one another on the card.
_MOST_BYTES_SIDE_BY_SIDE = 2**31
# After a case of more the allocator gives its memory back, which other processes may need.
_MOST_BYTES_KEPT = 2**26
# What a core of the host judges in some tens of milliseconds.
_MOST_BYTES_ON_HOST = 2**20
_MOST_FLOPS_ON_HOST = 3e7


_ONE_WAY = (
    "lists no configurations and isn't autotuned: --every-configuration has nothing more to try"
)


@dataclass(slots=True)
class Run:
    """The device of a run, how rows are told to be reproduced, and what is known of the last case.

    workers: what calls kernels; None: this process itself, for a debugger and for tests, on the
    same values both times and on no others. signs: what second calls' values are drawn from; None:
    a secret and the case, so that no kernel can know what it will be asked. further: the share of
    cases on which kernels are asked for values of which nothing was seen before.
    every_configuration: try autotuned kernels with each of theirs. two_calls_alone: judge them by
    the bounds, and leave out the emulation and what trial.py asks besides. briefly: where one call
    is enough, make one, and ask nothing besides. strict: whether the interpreter is; else rows tell
    which undefined lanes were read. asked: what of that is asked of a kernel once, and has been.
    processes: how many of this run share the GPU.
    tells_configurations: a row says so where its kernel has none to try.
    oracle_calls counts the truths computed: as many as cases, whatever the number of kernels.
    """

    device: torch.device
    sm: int
    gate_baselines: bool = False
    named: frozenset[str] = frozenset()
    reproduce_options: tuple[str, ...] = ()
    workers: Workers | InProcess | None = None
    signs: int | None = None
    further: float = 1.0
    every_configuration: bool = False
    tells_configurations: bool = False
    two_calls_alone: bool = False
    briefly: bool = False
    strict: bool = True
    processes: int = 1
    oracle_calls: int = 0
    _known: Known | None = None
    asked: set[object] = field(default_factory=set)
    _secret: bytes = field(default_factory=partial(secrets.token_bytes, 16))

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
        return self.runner.refusal(kernel, case)

    def learn(self, kernel: Kernel, cases: Iterable[Case]) -> None:
        """Ask a worker about cases together, before `refusal` is asked about each."""
        if isinstance(self.runner, Workers):
            self.runner.learn(kernel, cases)

    def try_pair(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Call the kernel twice on the case and judge what it left.

        Where the GPU's memory is full, all that can be is given back, and the pair tried again.
        A kernel that does what an interpreter has nothing for is refused.
        Raises DeviceLostError, with the row in its arguments, where the GPU is lost to us, and
        NoMemoryError where its memory is full again.
        """
        short = self._short(kernel, case)
        if isinstance(short, AccuracyRow):
            return short
        self._give_back()
        short = self._short(kernel, case)
        if isinstance(short, AccuracyRow):
            return short
        self._give_back()
        raise NoMemoryError(short, self.processes)

    def _short(self, kernel: Kernel, case: Case) -> AccuracyRow | str:
        """Return the pair's row, or what PyTorch says where there is no memory for it.

        A kernel that finds none fails only where its process has the GPU to itself.
        """
        try:
            row = self._tried(kernel, case)
        except torch.OutOfMemoryError as error:
            return told_of_memory(error)
        beside = self.processes > 1 and row.status == "failed"
        reason = row.reason or ""
        return reason if beside and any(words in reason for words in SPENT) else row

    def _give_back(self) -> None:
        """Give back the memory of the case, of the workers and of PyTorch's allocator."""
        self._known = None
        if isinstance(self.runner, Workers):
            self.runner.give_back()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _tried(self, kernel: Kernel, case: Case) -> AccuracyRow:
        started = time.perf_counter()
        declared = self._declared(kernel, case)
        if declared.problem is not None:
            verdict = Verdict(declared.rule, declared.problem, ())
            return self._row(kernel, case, declared, verdict, started, ())
        known = self._known_of(kernel, case)
        known.judged = None  # which holds on to the truth
        self._leave_room(kernel, known)
        first = self.call(kernel, known, "nan")
        second = first
        brief = self.is_brief(kernel, case)
        if first.rule is None and not brief:
            second = self.call_flipped(kernel, known, "sentinel")
        if NOT_INTERPRETED in (first.rule, second.rule):
            return self.refused(kernel, case, str(first.reason or second.reason))
        if first.fatal or second.fatal:
            lost = Verdict("raised", first.reason or second.reason, ())
            row = self._row(kernel, case, declared, lost, started, (first,))
            if not self._answers():
                raise DeviceLostError(row)
            return row  # another worker comes: the context that is dead was the kernel's own
        if not self.apart and (first.rule is not None or second.rule is not None):
            # It may have written where it shouldn't have: the next kernel is judged by fresh ones.
            self._known = None
        if kernel.op.bytes(case) > _MOST_BYTES_KEPT_PACKED:
            known.parcel = None  # the truth will need the room
        trial = Trial(self, kernel, known, declared, first, second)
        verdict = trial.verdict()
        calls = (first,) if brief else (first, second)
        row = self._row(kernel, case, declared, verdict, started, calls)
        passed = () if self.strict or verdict.rule is not None else let_pass(first.undefined)
        return row.model_copy(
            update={
                "relations": trial.relations,
                "invariance": trial.invariance,
                "notes": (*trial.notes, *passed, *self._has_one_way(kernel, declared, first)),
            }
        )

    def _has_one_way(self, kernel: Kernel, declared: Declared, call: Call) -> tuple[str, ...]:
        """Return a note, once for a kernel, where it has no configuration to choose from."""
        key = "configurations", kernel.op.name, kernel.name
        several = bool(declared.configurations) or call.configurations > 1
        if not self.tells_configurations or several or kernel.configuration or key in self.asked:
            return ()
        self.asked.add(key)
        return (_ONE_WAY,)

    def _answers(self) -> bool:
        """Return whether the GPU still answers this process, whose context is the judge's own."""
        if self.device.type != "cuda":
            return True
        try:
            alive = bool((torch.ones(1, device=self.device) + 1 == 2).all())
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return alive

    def _declared(self, kernel: Kernel, case: Case) -> Declared:
        """What the kernel says of the case; the memory that it names is its own choice's."""
        declared = self.runner.declared(kernel, case)
        if kernel.configuration is None:
            return declared
        return replace(declared, variant=kernel.configuration, workspace_bytes=None)

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

    def values_of_seed(self, kernel: Kernel, case: Case, seed: int) -> Known:
        """Draw other values of the case, by another seed."""
        return self._known_of(kernel, case).of_seed(seed)

    def problem_of(self, kernel: Kernel, values: Known, outputs: dict[str, Tensor]) -> str | None:
        """Say why these outputs of a call on the values aren't right; None where they are."""
        home = values.originals.device
        call = Call({name: output.to(home) for name, output in outputs.items()}, 0.0)
        verdict = self.judged_by(kernel, values)(call, call)
        return None if verdict.rule is None else f"{verdict.rule}: {verdict.reason}"

    def refused(self, kernel: Kernel, case: Case, reason: str) -> AccuracyRow:
        """The row of a pair that the kernel's domain doesn't hold."""
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            configuration=kernel.configuration,
            status="refused",
            reason=reason,
            gates=self.gates(kernel),
            reproduce=self.command("accuracy", kernel, case),
            duration_s=0.0,
        )

    def is_brief(self, kernel: Kernel, case: Case) -> bool:
        """Whether one call is enough.

        Pairs meet in the case, the kernel's code is another's, or it is held to a configuration.
        """
        held = kernel.configuration is not None
        return self.briefly and (held or case.why == GENERATED or self.repeats(kernel))

    def repeats(self, kernel: Kernel) -> bool:
        """Whether an interpreter runs another kernel's code in it, and nobody named it."""
        own_code = kernel.same_code_as is None or self.device.type != "cpu"
        return not own_code and kernel.name not in self.named

    @property
    def runner(self) -> Workers | InProcess:
        """What calls kernels."""
        if self.workers is None:
            self.workers = InProcess(self.device, self.sm)
        return self.workers

    @property
    def apart(self) -> bool:
        """Whether what a kernel finds where it is called isn't what it is judged by."""
        return isinstance(self.runner, Workers)

    def call(self, kernel: Kernel, known: Known, fill: Fill, how: How = PLAIN) -> Call:
        """A call on the values that are known."""
        return self._called(kernel, known.case, self._parcel(known), fill, how)

    def call_on(self, kernel: Kernel, case: Case, inputs: Inputs, like: Known, how: How) -> Call:
        """A call on other inputs, handed over where those of `like` are."""
        parcel = Parcel.of(inputs, self._handed_over_on(like))
        return self._called(kernel, case, parcel, "nan", how)

    def _called(
        self, kernel: Kernel, case: Case, parcel: Parcel, fill: Fill, how: How = PLAIN
    ) -> Call:
        """A call; of a large case, which leaves none of the card's memory taken."""
        if not self._is_large(kernel, case):
            return self.runner.call(kernel, case, parcel, fill, how)
        torch.cuda.empty_cache()
        call = self.runner.call(kernel, case, parcel, fill, how)
        # What the worker and the memory that it shares still hold is what the truth will need.
        self.runner.renew()
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

    def call_then(self, kernel: Kernel, known: Known, other: Known, then: Then) -> Call | None:
        """Return a call on other values where those that are known lay; None where it can't be."""
        workers = self.runner
        if not isinstance(workers, Workers) or self._is_large(kernel, known.case):
            return None
        parcels = self._parcel(known), self._parcel(other)
        how = How(then=then)
        return workers.call(kernel, known.case, parcels[0], "nan", how, then=parcels[1])

    def call_flipped(self, kernel: Kernel, known: Known, fill: Fill) -> Call:
        """A call on values whose signs are changed, its outputs with theirs changed back.

        A correct kernel's are those of a call on the same values: see `Op.signs`.
        """
        if not self.apart:
            return self.call(kernel, known, fill)
        parcel = self._parcel(known)
        parcel.change(known.flips.apply_)
        call = self._called(kernel, known.case, parcel, fill)
        parcel.change(known.flips.apply_)  # which undoes itself
        return replace(call, outputs=known.flips.outputs(call.outputs))

    def _judged_on(self, kernel: Kernel, case: Case) -> torch.device:
        """Where inputs, truth and bounds are made.

        A small case's aren't made on the GPU: judges and candidates of several processes would
        wait there for one another, and a core does it as fast.
        """
        small = kernel.op.bytes(case) <= _MOST_BYTES_ON_HOST
        small = small and kernel.op.flops(case) <= _MOST_FLOPS_ON_HOST
        if not self.apart or not small or case.options & kernel.op.gpu_options:
            return self.device
        return torch.device("cpu")

    def _handed_over_on(self, known: Known) -> torch.device:
        on_host = known.originals.device.type == "cpu"
        return known.originals.device if on_host else self.runner.arena_device

    def _secret_of(self, case: Case) -> int:
        if self.signs is not None:
            return self.signs
        digest = hashlib.sha256(self._secret + case.id().encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def _parcel(self, known: Known) -> Parcel:
        if known.parcel is None:
            known.parcel = Parcel.of(known.originals.read(), self._handed_over_on(known))
        return known.parcel

    def _known_of(self, kernel: Kernel, case: Case) -> Known:
        if self._known is None or self._known.case != case:
            before, self._known = self._known, None  # so that no two truths lie in memory together
            large = before is not None and before.op.bytes(before.case) > _MOST_BYTES_KEPT
            del before
            if large and self.device.type == "cuda":
                torch.cuda.empty_cache()
            originals = Originals(kernel.op, case, self._judged_on(kernel, case))
            self._known = Known.of(kernel.op, case, originals, self._secret_of(case))
        return self._known

    def truth(self, known: Known) -> Outputs:
        """The case's, computed when it is first needed."""
        self.oracle_calls += known.truth is None
        return known.exact()

    def judged_by(
        self, kernel: Kernel, known: Known, declared_bytes: int | None = None
    ) -> Callable[[Call, Call], Verdict]:
        """The verdict on two calls of the kernel on these values.

        Of values that nobody has seen before the bounds alone: an emulation's blocks are a measure,
        which chance could exceed in one run and not in the next.
        """
        truth = self.truth(known)
        compared = not self.two_calls_alone and known is self._known
        return partial(
            judge,
            truth=truth,
            bounds=known.bounds_of(kernel),
            numerics=kernel.numerics,
            declared_bytes=declared_bytes,
            emulation=known.emulation_of(kernel) if compared else None,
            other_orders=partial(known.emulations_in_other_orders, kernel) if compared else tuple,
        )

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
        # Second calls' values, and further ones, come from the secret.
        repeats = verdict.status == "failed" and secret is not None
        more = [f"--signs {secret}"] if repeats else []
        return AccuracyRow(
            kernel=kernel.name,
            case=case_info(case),
            status=verdict.status,
            rule=verdict.rule,
            reason=verdict.reason,
            outputs=verdict.outputs,
            variant=declared.variant,
            configuration=kernel.configuration,
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
        return command_of(suite, kernel, case, self.reproduce_options, more)
