"""One accuracy run: try each pair of kernel and case once, and compute each case's truth once.

trial.py lists the checks of a pair in their order.
"""

from __future__ import annotations

import gc
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.op import CONTIGUOUS, Bound, Case, Inputs, Numerics
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.reports.record import AccuracyRow
from kernel_workbench.suites.accuracy.pages import return_pages
from kernel_workbench.suites.accuracy.questions import Questions
from kernel_workbench.suites.accuracy.trial import Trial
from kernel_workbench.suites.accuracy.truth import CaseValues
from kernel_workbench.suites.accuracy.verdict import Verdict, judge
from kernel_workbench.suites.interpreter.strict.masked_lanes import let_pass
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.reproduce import command_of
from kernel_workbench.suites.run.suite import DeviceLostError, NoMemoryError, memory_message
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
from kernel_workbench.suites.sandbox.judge_side.plain_calls import MOST_BYTES as MOST_BYTES_AS_TEXT
from kernel_workbench.suites.sandbox.judge_side.workers import SPENT, Workers
from kernel_workbench.suites.sandbox.originals import Originals
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess

# Triton's variable for a mode that adds checks to kernels, and to a launch memory for their state.
INSTRUMENTATION = "TRITON_INSTRUMENTATION_MODE"
# Truth and bounds in float64 come to about ten times a case's own bytes.
_MOST_BYTES_ON_CPU = 2**30
# An interpreter computes these in about a minute.
_MOST_FLOPS_ON_CPU = 2e10
# Above this the inputs are packed anew for each kernel.
_MOST_BYTES_KEPT_PACKED = 2**30
# Above this judge and worker make room for one another on the card.
_MOST_BYTES_SIDE_BY_SIDE = 2**31
# After a case of more the allocator gives its memory back, which other processes may need.
_MOST_BYTES_KEPT = 2**26
# A core of the host judges these in some tens of milliseconds.
_MOST_BYTES_ON_HOST = 2**20
_MOST_FLOPS_ON_HOST = 3e7


_ONE_WAY = (
    "lists no configurations and isn't autotuned: --every-configuration has nothing more to try"
)


@dataclass(slots=True)
class Run:
    """The settings of an accuracy run, and the values of the last case.

    workers: the processes that call kernels. None means this process, for a debugger and for tests;
    both calls then have the same values, and no other values follow. signs: the seed of the second
    calls' values. None means a secret and the case, so that no kernel can predict the values.
    further: the share of cases that are also tried on values drawn from a secret.
    every_configuration: try each configuration of an autotuned kernel. two_calls_alone: judge two
    calls by their bounds, without the emulation and the other checks of trial.py. briefly: make one
    call where one is enough, without other checks. strict: the interpreter is strict; else rows
    name the undefined lanes that were read. processes: the number of processes of this run that
    share the GPU. tells_configurations: a row says that its kernel has no configurations to try.
    asked_before: the checks that a kernel gets once in a run, and has had.
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
    _values: CaseValues | None = None
    _ahead: dict[Case, CaseValues] = field(default_factory=dict)
    asked_before: Questions = field(default_factory=Questions)
    _of_no_baseline: set[Numerics] = field(default_factory=set)  # of kernels judged so far
    _secret: bytes = field(default_factory=partial(secrets.token_bytes, 16))

    def gates(self, kernel: Kernel) -> bool:
        """Return True if a failure of this kernel makes the exit status non-zero."""
        return kernel.origin != "baseline" or self.gate_baselines or kernel.name in self.named

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return why the kernel doesn't serve the case on this run's device; None if it does."""
        if self.device.type == "cpu":
            least, flops = kernel.op.bytes(case), kernel.op.flops(case)
            if least > _MOST_BYTES_ON_CPU:
                return f"moves {least / 2**30:.1f} GiB at least, which is tried on a GPU only"
            if flops > _MOST_FLOPS_ON_CPU:
                return f"does {flops / 1e9:.0f} GFLOP, which is tried on a GPU only"
        return self.runner.refusal(kernel, case)

    def learn(self, kernel: Kernel, cases: Iterable[Case]) -> None:
        """Ask a worker about all cases in one message, before `refusal` is called for each."""
        if isinstance(self.runner, Workers):
            self.runner.learn(kernel, cases)

    def try_pair(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Call the kernel twice on the case and judge its outputs.

        If the GPU's memory is full, the run frees its own memory and tries the pair again.

        Args:
            kernel: the kernel.
            case: a case that the kernel serves.

        Returns:
            The pair's row; "refused" if the kernel uses a feature that the interpreter lacks.

        Raises:
            DeviceLostError: this process can't use the GPU any more; the row is its argument.
            NoMemoryError: the GPU's memory is full at the second try, too.
        """
        return_pages()
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
        """Return the pair's row, or PyTorch's message if there is no memory for the pair.

        A kernel that finds no memory fails only if this run has one process.
        """
        try:
            row = self._tried(kernel, case)
        except torch.OutOfMemoryError as error:
            return memory_message(error)
        beside = self.processes > 1 and row.status == "failed"
        reason = row.reason or ""
        return reason if beside and any(words in reason for words in SPENT) else row

    def _give_back(self) -> None:
        """Give back the memory of the case, of the workers and of PyTorch's allocator."""
        self._free_values()
        if isinstance(self.runner, Workers):
            self.runner.give_back()

    def _free_values(self) -> None:
        """Give back the memory of the case and of cases whose truth was computed ahead."""
        self._drop_values()
        self._ahead.clear()
        gc.collect()  # a cycle may refer to large tensors
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _tried(self, kernel: Kernel, case: Case) -> AccuracyRow:
        """Try the pair once, whatever memory there is."""
        started = time.perf_counter()
        declared = self._declared(kernel, case)
        if declared.problem is not None:
            verdict = Verdict(declared.rule, declared.problem, ())
            return self._row(kernel, case, declared, verdict, started, ())
        values = self._values_of(kernel, case)
        values.judged = None  # which holds on to the truth
        self._leave_room(kernel, values)
        brief = self.is_brief(kernel, case)
        begun = None if brief else self._plain_kind_begun(kernel, values)
        first = self.call(kernel, values, "nan")
        second = first
        if first.rule is None and not brief:
            second = self.call_flipped(kernel, values, "sentinel")
        # It has to end before the truth is computed, which a running candidate could look for.
        plain = None
        if begun is not None and isinstance(self.workers, Workers):
            plain = self.workers.answer_plainly()
        if NOT_INTERPRETED in (first.rule, second.rule):
            self.asked_before.discard(begun)
            return self.refused(kernel, case, str(first.reason or second.reason))
        if first.fatal or second.fatal:
            lost = Verdict("raised", first.reason or second.reason, ())
            calls = (first,) if first.fatal else (first, second)
            row = self._row(kernel, case, declared, lost, started, calls)
            if not self._answers():
                raise DeviceLostError(row)
            return row  # another worker comes: the context that is dead was the kernel's own
        if not self.apart and (first.rule is not None or second.rule is not None):
            # It may have written where it shouldn't have: the next kernel is judged by fresh ones.
            self._drop_values()
        if kernel.op.bytes(case) > _MOST_BYTES_KEPT_PACKED:
            values.parcel = None  # the truth will need the room
        trial = Trial(self, kernel, values, declared, first, second, plain)
        verdict = trial.verdict()
        if verdict.rule == NOT_INTERPRETED:  # in a later call, such as of another configuration
            return self.refused(kernel, case, str(verdict.reason))
        calls = (first,) if brief else (first, second)
        row = self._row(kernel, case, declared, verdict, started, calls)
        passed = () if self.strict or verdict.rule is not None else let_pass(first.undefined)
        return row.model_copy(
            update={
                "launches": trial.launches,
                "relations": trial.relations,
                "invariance": trial.invariance,
                "notes": (*trial.notes, *passed, *self._has_one_way(kernel, declared, first)),
            }
        )

    def plain_kind(self, kernel: Kernel, case: Case) -> Hashable | None:
        """Return what to add to `asked_before` with a plain call; None if no such call is due.

        A kernel gets one, on a CPU for each of its dtypes, on a small packed case. A kernel of a
        fixed configuration gets none, because a user's call asks for no configuration.
        """
        if not self.apart or kernel.origin == "baseline" or kernel.configuration is not None:
            return None
        if case.layout != CONTIGUOUS or kernel.op.bytes(case) > MOST_BYTES_AS_TEXT:
            return None
        by = None if self.device.type == "cuda" else case.dtype_label
        kind = "plain", kernel.op.name, kernel.name, by
        return None if kind in self.asked_before else kind

    def _plain_kind_begun(self, kernel: Kernel, values: CaseValues) -> Hashable | None:
        """Begin a plain call beside the worker's, if one is due and its process is ready for it."""
        kind = self.plain_kind(kernel, values.case)
        if kind is None or self.two_calls_alone:
            return None
        assert isinstance(self.runner, Workers)
        if not self.runner.ask_plainly(kernel, values.case, values.originals.read()):
            return None
        self.asked_before.add(kind)
        return kind

    def _has_one_way(self, kernel: Kernel, declared: Declared, call: Call) -> tuple[str, ...]:
        """Return a note, once for each kernel, if it has no configurations to choose from."""
        key = "configurations", kernel.op.name, kernel.name
        several = bool(declared.configurations) or call.configurations > 1
        if not self.tells_configurations or several or kernel.configuration:
            return ()
        if key in self.asked_before:
            return ()
        self.asked_before.add(key)
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
        """Return the kernel's declaration for the case.

        A declared workspace belongs to the configuration that the kernel chooses itself, so it is
        dropped if the run names another one, and where Triton allocates memory of its own.
        """
        declared = self.runner.declared(kernel, case)
        if os.environ.get(INSTRUMENTATION):
            declared = replace(declared, workspace_bytes=None)
        if kernel.configuration is None:
            return declared
        return replace(declared, variant=kernel.configuration, workspace_bytes=None)

    def parcel(self, kernel: Kernel, case: Case) -> Parcel:
        """Return the case's inputs in the form in which workers get them."""
        return self._parcel(self._values_of(kernel, case))

    def confirm(self, kernel: Kernel, case: Case, outputs: dict[str, Tensor]) -> str | None:
        """Judge outputs of a later call of the kernel that was tried last, on the same case.

        Bits that follow the signs are a rounding that knows signs, which isn't wrong: then the
        bounds alone have to hold.

        Args:
            kernel: the kernel that was tried last.
            case: its case.
            outputs: the later call's outputs by name.

        Returns:
            The broken rule and a sentence, or None if the outputs are right.
        """
        values = self._values_of(kernel, case)
        assert values.judged is not None and values.judged[0] == kernel.name
        _, first, judged = values.judged
        later = replace(first, outputs=values.at_home(outputs))
        verdict = judged(first, later)
        if verdict.rule == "not repeatable":
            verdict = judged(later, later)
        return None if verdict.rule is None else f"{verdict.rule}: {verdict.reason}"

    def values_of_seed(self, kernel: Kernel, case: Case, seed: int) -> CaseValues:
        """Draw other values of the case, by another seed."""
        return self._values_of(kernel, case).of_seed(seed)

    def problem_of(
        self, kernel: Kernel, values: CaseValues, outputs: dict[str, Tensor]
    ) -> str | None:
        """Say why these outputs of a call on the values aren't right; None where they are."""
        call = Call(values.at_home(outputs), 0.0)
        verdict = self.judged_by(kernel, values)(call, call)
        return None if verdict.rule is None else f"{verdict.rule}: {verdict.reason}"

    def refused(self, kernel: Kernel, case: Case, reason: str) -> AccuracyRow:
        """Return the row of a pair that the kernel refuses."""
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
        """Return True if one call is enough.

        It is for a generated case, for code that another kernel runs too, and for a kernel with a
        fixed configuration.
        """
        fixed = kernel.configuration is not None
        return self.briefly and (fixed or case.why == GENERATED or self.repeats(kernel))

    def repeats(self, kernel: Kernel) -> bool:
        """Return True if an interpreter runs the same code for another kernel too.

        A kernel that the options name never repeats another one.
        """
        own_code = kernel.same_code_as is None or self.device.type != "cpu"
        return not own_code and kernel.name not in self.named

    @property
    def runner(self) -> Workers | InProcess:
        """Return the workers, or this process as a worker."""
        if self.workers is None:
            self.workers = InProcess(self.device, self.sm)
        return self.workers

    @property
    def apart(self) -> bool:
        """Return True if kernels run in another process than the judge."""
        return isinstance(self.runner, Workers)

    def call(self, kernel: Kernel, values: CaseValues, fill: Fill, how: How = PLAIN) -> Call:
        """Call the kernel on the values."""
        return self._called(kernel, values.case, self._parcel(values), fill, how)

    def call_on(
        self, kernel: Kernel, case: Case, inputs: Inputs, like: CaseValues, how: How
    ) -> Call:
        """Call the kernel on other inputs, in the kind of memory in which those of `like` lie."""
        parcel = Parcel.of(inputs, self._handed_over_on(like))
        return self._called(kernel, case, parcel, "nan", how)

    def _called(
        self, kernel: Kernel, case: Case, parcel: Parcel, fill: Fill, how: How = PLAIN
    ) -> Call:
        """Call the kernel; after a large case free the card's memory, in the worker too."""
        if not self._is_large(kernel, case):
            return self.runner.call(kernel, case, parcel, fill, how)
        torch.cuda.empty_cache()
        call = self.runner.call(kernel, case, parcel, fill, how)
        # The truth will need the memory that the worker, and the memory shared with it, still hold.
        self.runner.renew()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        return call

    def _is_large(self, kernel: Kernel, case: Case) -> bool:
        large = kernel.op.bytes(case) > _MOST_BYTES_SIDE_BY_SIDE
        return large and self.device.type == "cuda"

    def _leave_room(self, kernel: Kernel, values: CaseValues) -> None:
        """Forget a large case's truth and bounds if they leave a worker under half the card."""
        if not self._is_large(kernel, values.case):
            return
        torch.cuda.empty_cache()
        free, whole = torch.cuda.mem_get_info(self.device)
        if free < whole // 2:
            values.forget_truth()
            torch.cuda.empty_cache()

    def call_then(
        self, kernel: Kernel, values: CaseValues, other: CaseValues, then: Then
    ) -> Call | None:
        """Call the kernel on the values, then on others at the same addresses.

        Args:
            kernel: the kernel.
            values: the values of the first call.
            other: the values that replace them.
            then: the second step: another call, or the replay of a CUDA graph.

        Returns:
            The second step's result, or None without workers and for a large case.
        """
        workers = self.runner
        if not isinstance(workers, Workers) or self._is_large(kernel, values.case):
            return None
        parcels = self._parcel(values), self._parcel(other)
        how = How(then=then)
        return workers.call(kernel, values.case, parcels[0], "nan", how, then=parcels[1])

    def call_flipped(self, kernel: Kernel, values: CaseValues, fill: Fill) -> Call:
        """Call the kernel on values with changed signs, and change the outputs' signs back.

        A correct kernel's outputs are then those of a call on the same values: see `Op.signs`.
        """
        if not self.apart:
            return self.call(kernel, values, fill)
        parcel = self._parcel(values)
        parcel.change(values.flips.apply_)
        call = self._called(kernel, values.case, parcel, fill)
        parcel.change(values.flips.apply_)  # which undoes itself
        return replace(call, outputs=values.flips.outputs(call.outputs))

    def _judged_on(self, kernel: Kernel, case: Case) -> torch.device:
        """Return the device on which inputs, truth and bounds are computed.

        A small case is judged on the CPU: judges and candidates of several processes would wait for
        one another on the GPU, and a core is as fast.
        """
        small = kernel.op.bytes(case) <= _MOST_BYTES_ON_HOST
        small = small and kernel.op.flops(case) <= _MOST_FLOPS_ON_HOST
        if not self.apart or not small or case.options & kernel.op.gpu_options:
            return self.device
        return torch.device("cpu")

    def _handed_over_on(self, values: CaseValues) -> torch.device:
        on_host = values.originals.device.type == "cpu"
        return values.originals.device if on_host else self.runner.arena_device

    def _secret_of(self, case: Case) -> int:
        """Return the number of --signs, or 32 bits that the run's secret and the case give."""
        if self.signs is not None:
            return self.signs
        digest = hashlib.sha256(self._secret + case.id().encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def _parcel(self, values: CaseValues) -> Parcel:
        if values.parcel is None:
            values.parcel = Parcel.of(values.originals.read(), self._handed_over_on(values))
        return values.parcel

    def _values_of(self, kernel: Kernel, case: Case) -> CaseValues:
        if self._values is None or self._values.case != case:
            large = (
                self._values is not None
                and self._values.op.bytes(self._values.case) > _MOST_BYTES_KEPT
            )
            self._drop_values()  # two truths would take twice the memory
            if large and self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._values = self._ahead.pop(case, None) or self._drawn(kernel, case)
        return self._values

    def _drop_values(self) -> None:
        """Free the case's values at once: `judged` refers to them, and would keep them."""
        if self._values is not None:
            self._values.judged = None
        self._values = None

    def _drawn(self, kernel: Kernel, case: Case) -> CaseValues:
        originals = Originals(kernel.op, case, self._judged_on(kernel, case))
        return CaseValues.of(kernel.op, case, originals, self._secret_of(case))

    @property
    def ahead(self) -> frozenset[Case]:
        """The cases whose truths were computed ahead, and not used yet."""
        return frozenset(self._ahead)

    def compute_ahead(
        self, pairs: Sequence[tuple[Kernel, Case]], goes_on: Callable[[], bool], most_bytes: int
    ) -> None:
        """Compute truths and bounds of cases that are tried later.

        Cases of a user's kernel are left out, because the kernel must not run while their truth is
        in memory. Ops whose bounds are traced are left out, because a trace changes the default
        dtype of all threads.

        Args:
            pairs: the pairs, in the order in which they are tried.
            goes_on: asked before each case; the first False ends the work.
            most_bytes: the most bytes of truths and bounds.
        """
        users = {case for kernel, case in pairs if kernel.origin == "user"}
        for kernel, case in pairs:
            used = sum(values.bytes_of_truth for values in self._ahead.values())
            if used >= most_bytes or not goes_on():
                return
            if kernel.origin != "ours" or case in users or case in self._ahead:
                continue
            if isinstance(kernel.op, ReferenceOp) or self._is_large(kernel, case):
                continue
            values = self._drawn(kernel, case)
            try:
                values.bounds_of(kernel)
            except torch.OutOfMemoryError as error:
                memory_message(error)  # which frees what the error holds
                self._free_values()  # and no worker: another thread may use it
                return
            self._ahead[case] = values

    def judged_by(
        self, kernel: Kernel, values: CaseValues, declared_bytes: int | None = None
    ) -> Callable[[Call, Call], Verdict]:
        """Return a function that judges two calls of the kernel on these values.

        Values drawn from a secret are judged by the bounds alone: an emulation's blocks are a
        measure that chance could exceed in one run and not in the next.
        """
        if kernel.origin != "baseline":
            self._of_no_baseline.add(kernel.numerics.of_bounds)
        elif self.two_calls_alone:
            return partial(self._judge_baseline, kernel, values, declared_bytes)
        truth = values.exact()
        compared = not self.two_calls_alone and values is self._values
        return partial(
            judge,
            truth=truth,
            bounds=values.bounds_of(kernel),
            numerics=kernel.numerics,
            declared_bytes=declared_bytes,
            emulation=values.emulation_of(kernel) if compared else None,
            other_orders=partial(values.emulations_in_other_orders, kernel) if compared else tuple,
        )

    def _judge_baseline(
        self,
        kernel: Kernel,
        values: CaseValues,
        declared_bytes: int | None,
        first: Call,
        second: Call,
    ) -> Verdict:
        """Judge two calls of a baseline by bounds that the case has already, if these pass it.

        Bounds of a large case take seconds, and a baseline that keeps another kernel's needs none
        of its own. The other kernel is no baseline, which may have wide bounds.
        """

        def judged(bounds: dict[str, Bound]) -> Verdict:
            truth, numerics = values.exact(), kernel.numerics
            return judge(first, second, truth, bounds, numerics, declared_bytes=declared_bytes)

        numerics_of_ours = [one for one in values.bounds if one in self._of_no_baseline]
        if numerics_of_ours and kernel.numerics.of_bounds not in values.bounds:
            verdict = judged(values.bounds[numerics_of_ours[-1]])
            if verdict.status == "passed":
                return verdict
        return judged(values.bounds_of(kernel))

    def _row(
        self,
        kernel: Kernel,
        case: Case,
        declared: Declared,
        verdict: Verdict,
        started: float,
        calls: tuple[Call, ...],
    ) -> AccuracyRow:
        secret = self._values.secret if len(calls) > 1 and self._values is not None else None
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
        """Return the command that runs this pair alone; more: options at its end."""
        return command_of(suite, kernel, case, self.reproduce_options, more)
