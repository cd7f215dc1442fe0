"""The suite `accuracy`: plan the pairs, call kernels in workers, and judge them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from kernel_workbench.kernels.device import SIMULATED_SM_VARIABLE
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.cases import GENERATED
from kernel_workbench.oracles.op import Case, Tier, dtype_name
from kernel_workbench.reports.record import (
    ACCURACY_PROTOCOL,
    AccuracyRow,
    CoverageRow,
    KernelInfo,
    Row,
)
from kernel_workbench.reports.views.accuracy import served
from kernel_workbench.suites.accuracy.coverage import (
    MOST_BYTES_IN_REACH,
    coverage_rows,
    is_in_reach,
)
from kernel_workbench.suites.accuracy.order import by_early_death
from kernel_workbench.suites.accuracy.own_cases import own_cases
from kernel_workbench.suites.accuracy.pages import keep_freed_pages
from kernel_workbench.suites.accuracy.questions import Questions
from kernel_workbench.suites.accuracy.quick_cases import MOST_CASES, quick_cases
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.interpreter import repairs
from kernel_workbench.suites.run import shards
from kernel_workbench.suites.run.option_table import AccuracyOptions, VerdictOptions
from kernel_workbench.suites.run.reproduce import deciding_options
from kernel_workbench.suites.run.selection import (
    alike_together,
    kernel_files,
    refusing,
    selected_cases,
    selected_kernels,
)
from kernel_workbench.suites.run.suite import DeviceLostError, NoMemoryError, Pair, Suite
from kernel_workbench.suites.run.user_cases import TIMES_ITS_BYTES
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.orphans import end_children
from kernel_workbench.suites.sandbox.wire import case_of, spelled
from kernel_workbench.suites.sandbox.worker_side.in_process import InProcess, mend

# Cases that are also tried on values drawn from a secret: this share, and at least this number.
FURTHER, _FURTHER_CASES = 0.2, 40


class VerdictSuite(Suite[AccuracyRow]):
    """A suite whose rows are verdicts: accuracy, and search."""

    options: VerdictOptions
    judge: Run

    def __init__(self, options: VerdictOptions, device: torch.device) -> None:
        super().__init__(options, device)
        keep_freed_pages()
        if device.type == "cpu":
            # Domains and dispatch must see the same GPU generation.
            os.environ[SIMULATED_SM_VARIABLE] = str(self.sm)
            self.strict = not options.no_strict
        self.files = kernel_files(options)
        self.workers: Workers | None = None
        if options.shard:
            self.processes = int(options.shard.partition("/")[2])
        if not options.shard or options.in_process:
            with refusing(repairs.InterpreterError):
                self.unchecked = mend(device, strictly=self.strict is True)
        if not options.in_process:
            self.workers = Workers(
                device,
                self.sm,
                strict=self.strict is not False,
                files=self.files,
                time_limit_s=options.time_limit,
                memory_limit=options.memory_limit,
                builds=not options.shard,
            )

    def selected(self) -> tuple[Kernel, ...]:
        """Return the kernels that the options select."""
        if self.workers is None:
            here = InProcess(self.device, self.sm, self.files)
            return selected_kernels(self.options, here.kernels)
        with refusing(WorkersError):
            if self.options.shard or self.files:
                self.workers.prepare()
            return selected_kernels(self.options, self.workers.kernels)

    def left_out(self) -> tuple[str, ...]:
        """Return what the workers couldn't import or build."""
        return () if self.workers is None else self.workers.left_out

    def run_of(
        self, further: float, *, every_configuration: bool = False, signs: int | None = None
    ) -> Run:
        """Return the run that judges pairs.

        Args:
            further: the share of cases that are also tried on values drawn from a secret.
            every_configuration: try each configuration of autotuned kernels.
            signs: the number of --signs, or None for a secret.
        """
        options = self.options
        return Run(
            device=self.device,
            sm=self.sm,
            gate_baselines=options.gate_baselines,
            named=frozenset(options.kernel),
            reproduce_options=deciding_options(options, "accuracy", self.device),
            workers=self.workers,
            signs=signs,
            further=further,
            every_configuration=every_configuration,
            strict=self.strict is not False,
            processes=self.processes,
        )

    def begin(self) -> dict[str, Any]:
        """Return the protocol for the record's header."""
        return {"protocol": ACCURACY_PROTOCOL}

    def wrong(self, row: Row) -> str | None:
        """Return the broken rule and the reason; None for a row that didn't fail."""
        if not isinstance(row, AccuracyRow) or row.status != "failed":
            return None
        return f"{row.rule}: {row.reason}"

    def counts(self, row: Row) -> bool:
        """Return True if the pair ran."""
        return isinstance(row, AccuracyRow) and row.status != "refused"

    def _coverage(self, rows: Sequence[Row]) -> Iterator[CoverageRow]:
        """Yield rows for the kernels that gate; a kernel's possible pairs are drawn first."""
        tried = [row for row in rows if isinstance(row, AccuracyRow)]
        for kernel in filter(self.judge.gates, self.kernels):
            yield from coverage_rows(kernel, self._reaches(kernel), tried)

    def _reaches(self, kernel: Kernel) -> Callable[[Case], bool]:
        """Return a predicate: the kernel serves a case, and the device judges it in a second."""

        def reaches(case: Case) -> bool:
            served = self.judge.refusal(kernel, case) is None
            return served and is_in_reach(kernel.op, case, self.device.type)

        return reaches

    def most_memory(self) -> int:
        """Estimate the bytes of memory that the largest drawn case needs."""
        return TIMES_ITS_BYTES * MOST_BYTES_IN_REACH[self.device.type]

    def close(self) -> None:
        """End the workers, and processes of candidates that might still write to the record."""
        if self.workers is not None:
            self.workers.close()
            end_children()


class Accuracy(VerdictSuite):
    """Compare every kernel with float64 on every case of its domain."""

    name = "accuracy"
    takes = AccuracyOptions
    options: AccuracyOptions

    def __init__(self, options: AccuracyOptions, device: torch.device) -> None:
        super().__init__(options, device)
        self.cases: tuple[Case, ...] = ()
        self._refusals: dict[tuple[str, str, str], str | None] = {}
        # Processes that start before the cases are listed take memory.
        self._free_bytes = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0

    def plan(self) -> Sequence[Pair]:
        """Return all kernels on all cases of their ops."""
        options = self.options
        kernels = self.selected()
        every = options.every_configuration or options.tier == "full"
        self.judge = self.run_of(FURTHER, every_configuration=every, signs=options.signs)
        self.judge.tells_configurations = options.every_configuration
        self.judge.briefly = options.tier == "ci" and not options.case and not options.cases
        self.cases = self._cases_of_run() if options.planned_cases else self._planned(kernels)
        tried = {case.op for case in self.cases}
        self.kernels = tuple(kernel for kernel in kernels if kernel.op.name in tried)
        if self.claims is not None and all(kernel.origin != "user" for kernel in kernels):
            # A process may have any kernel's cases, so each would ask the same questions. A user's
            # kernel could create the files of the folder itself, and avoid the questions.
            self.judge.asked_before = Questions(self.claims.folder)
        if options.shard and not options.planned_cases:
            self.share = self._share(shards.shares_of(self.cases, self.processes, self.device.type))
        self.judge.further = max(FURTHER, _FURTHER_CASES / max(1, len(self.cases)))
        alike = alike_together(self.kernels)
        pairs = [
            (kernel, case)
            for case in self.cases
            for kernel in alike
            if kernel.op.name == case.op and self.is_for(kernel, case)
        ]
        mine = [pair for pair in pairs if self.share is None or pair[1].id() in self.share]
        for kernel in self.kernels:
            self.judge.learn(kernel, (case for other, case in mine if other is kernel))
        return pairs

    def _cases_of_run(self) -> tuple[Case, ...]:
        """Return the cases of the run that this process belongs to; note which it may try."""
        path = Path(self.options.planned_cases)
        with refusing(WorkersError):
            has_cases = shards.wait_for(path, self._get_ready)
        if not has_cases:
            raise pytest.UsageError("the run that this process belongs to has ended")
        spellings = [json.loads(line) for line in path.read_text().splitlines()]
        shares = [spelling.pop("share") for spelling in spellings]
        families = [spelling.pop("family") for spelling in spellings]
        cases = tuple(map(case_of, spellings))
        names = [case.id() for case in cases]
        self.share = self._share(dict(zip(names, shares, strict=True)))
        on_demand = {
            name: family for name, family in zip(names, families, strict=True) if family is not None
        }
        if on_demand and self._number < self.processes:
            self.share = frozenset(on_demand)
            self.claims = shards.Claims(path.parent, on_demand)
        return cases

    def _get_ready(self) -> None:
        """Start the first worker as soon as that can be done, and import PyTorch's tracer."""
        if self.workers is None or self.workers.prepare_worker():
            # The first bound of an op made of a reference would import it, in one to two seconds.
            import_module("torch._dynamo")

    @property
    def _number(self) -> int:
        """The number of this process of a run."""
        return int(self.options.shard.partition("/")[0])

    def _share(self, shares: Mapping[str, int]) -> frozenset[str]:
        """Return the ids of the cases of this process."""
        return frozenset(name for name, share in shares.items() if share == self._number)

    def _planned(self, kernels: Sequence[Kernel]) -> tuple[Case, ...]:
        """Return the cases that the options select, in the order in which they are tried."""
        options = self.options
        self.cases = selected_cases(options, self.device, kernels, tier=options.tier)
        if options.quick:
            self.cases = self._quick_cases(kernels)
        elif not options.case and not options.cases:
            self.cases += self._own_cases(kernels)
        return self.cases if options.case or options.cases else self._ordered(kernels)

    def _ordered(self, kernels: Sequence[Kernel]) -> tuple[Case, ...]:
        """Sort the cases, op by op: cases that fail wrong kernels first, refused cases last."""
        ordered: list[Case] = []
        for op in {kernel.op.name: kernel.op for kernel in kernels}.values():
            mine = [case for case in self.cases if case.op == op.name]
            own = [kernel for kernel in kernels if kernel.op.name == op.name]
            gating = [kernel for kernel in own if self.judge.gates(kernel)]
            for kernel in gating:
                self.judge.learn(kernel, mine)
            served = [
                case
                for case in mine
                if any(self._refusal(kernel, case) is None for kernel in gating)
            ]
            refused = set(mine) - set(served)
            ordered += by_early_death(op, served)
            ordered += [case for case in mine if case in refused]
        return tuple(ordered)

    def _quick_cases(self, kernels: Sequence[Kernel]) -> tuple[Case, ...]:
        """Return a few cases of each op, or cases drawn in kernels' domains if they serve none.

        Where kernels serve no case at all, a few that they refuse: a row of each says why.
        """
        chosen: list[Case] = []
        for name, op in {kernel.op.name: kernel.op for kernel in kernels}.items():
            own = [kernel for kernel in kernels if kernel.op.name == name]
            listed = [case for case in self.cases if case.op == name]
            for kernel in own:
                self.judge.learn(kernel, listed)

            def serves(case: Case, own: Sequence[Kernel] = own) -> bool:
                return any(self._refusal(kernel, case) is None for kernel in own)

            served = quick_cases(op, listed, serves) or self._own_cases(own)
            chosen += (served or listed)[:MOST_CASES]
        return tuple(chosen)

    def for_processes(self, count: int) -> str:
        """Return each case with its share and family for --known, one JSON object a line.

        Listing and ordering cases takes seconds. The cases of a file, which may hold their values,
        are read from it again.
        """
        if self.options.cases:
            return ""
        kind = self.device.type
        shares = shards.shares_of(self.cases, count, kind)
        families = shards.families_of(self.cases, kind) if kind in shards.ON_DEMAND else {}
        places = (
            {"share": shares[case.id()], "family": families.get(case.id())} for case in self.cases
        )
        lines = (spelled(case) | place for case, place in zip(self.cases, places, strict=True))
        return "\n".join(map(json.dumps, lines))

    def is_for(self, kernel: Kernel, case: Case) -> bool:
        """Return True if the kernel is tried on the case.

        Generated cases of `ci` are for kernels whose failure counts alone. An interpreter tries
        code that two kernels share once. On a GPU such code is compiled for fp32 and again for
        TF32, which takes most of a run's time, so each of these cases is tried in one of the two:
        in the other one if the first refuses the case, as TF32 does before sm 80.
        """
        if not self.judge.briefly or case.why != GENERATED:
            return True
        if not self.judge.gates(kernel) or self.judge.repeats(kernel):
            return False
        twins = self._twins.get((kernel.op.name, kernel.name), (kernel,))
        chosen = twins[crc32(case.id().encode()) % len(twins)]
        return chosen is kernel or self._refusal(chosen, case) is not None

    @cached_property
    def _twins(self) -> dict[tuple[str, str], tuple[Kernel, Kernel]]:
        """The two kernels of each code that a GPU has in fp32 and in TF32, by op and either name.

        Kernels that the options name aren't among them: they are tried on all of their cases.
        """
        kernels = {(kernel.op.name, kernel.name): kernel for kernel in self.kernels}
        twins: dict[tuple[str, str], tuple[Kernel, Kernel]] = {}
        for (op, name), kernel in kernels.items():
            first = kernels.get((op, str(kernel.same_code_as)))
            if first is None or self.judge.repeats(kernel) or not kernel.numerics.tf32_operands:
                continue
            if not self.judge.named.intersection((first.name, name)):
                twins |= dict.fromkeys(((op, first.name), (op, name)), (first, kernel))
        return twins

    def _own_cases(self, kernels: Sequence[Kernel]) -> tuple[Case, ...]:
        """Draw cases for users' kernels within their domains."""
        drawn: dict[str, Case] = {}
        tier: Tier = "full" if self.options.tier == "full" else "ci"
        for kernel in kernels:
            if kernel.origin != "user":
                continue
            every = (*self.cases, *drawn.values())
            beside = [case for case in every if case.op == kernel.op.name]
            refusal, learn = partial(self.judge.refusal, kernel), partial(self.judge.learn, kernel)
            for case in own_cases(kernel, refusal, beside, tier, learn):
                for seed in self.options.seed:
                    other = replace(case, seed=case.seed + seed)
                    if not self.options.dtype or dtype_name(case.dtype) in self.options.dtype:
                        drawn.setdefault(other.id(), other)
        return tuple(drawn.values())

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return why the kernel doesn't serve the case, or lacks the named configurations."""
        refusal = self._refusal(kernel, case)
        if refusal is None and not self._configured(kernel, case):
            named = " or ".join(self.options.configuration)
            return f"has no configuration {named} for the case"
        return refusal

    def _refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return why the kernel doesn't serve the case; each pair is asked about several times."""
        pair = kernel.op.name, kernel.name, case.id()
        if pair not in self._refusals:
            self._refusals[pair] = self.judge.refusal(kernel, case)
        return self._refusals[pair]

    def _configured(self, kernel: Kernel, case: Case) -> list[Kernel]:
        """Return the kernel with each configuration to try.

        Without --configuration the first entry is the kernel with its own choice.
        """
        named, every = self.options.configuration, self.options.every_configuration
        if not (named or every):
            return [kernel]
        configured = [
            replace(kernel, configuration=configuration)
            for configuration in self.judge.runner.declared(kernel, case).configurations
            if configuration in named or not named
        ]
        return configured if named else [kernel, *configured]

    def rows_of(self, kernel: Kernel, case: Case) -> int:
        """Return the number of configurations to try, or 1 for a refused pair."""
        return len(self._configured(kernel, case)) if self.refusal(kernel, case) is None else 1

    def refused(self, kernel: Kernel, case: Case, reason: str) -> Sequence[AccuracyRow]:
        """Return the row of a refused pair."""
        return [self.judge.refused(kernel, case, reason)]

    def likely_jobs(self) -> int:
        """Return the number of processes of a run of all kernels, which is large enough for them.

        A run that the options narrow may be done before other processes have started.
        """
        options, is_cpu = self.options, self.device.type == "cpu"
        narrow = (options.op, options.kernel, options.kernels, options.dtype, options.case)
        alone = options.shard, options.in_process, options.list, is_cpu and options.quick
        rest = options.cases, options.lf, options.failed, options.resume, options.done
        if any((*narrow, *alone, *rest)):
            return 0
        return options.jobs or shards.default_jobs(self.device.type, shards.FEWEST_PAIRS)

    def jobs(self, kept: Sequence[Pair]) -> tuple[int, bool]:
        """Return the number of processes, and True if a huge case has to be tried alone.

        The number is that of --jobs, or follows the machine and the cases' memory.
        """
        kind, wanted = self.device.type, self.options.jobs or int(self.options.in_process)
        times = Counter(case for _, case in kept)
        seconds = sum(count * shards.weight_of(case, kind) for case, count in times.items())
        jobs = wanted or shards.default_jobs(kind, len(kept), seconds)
        if not wanted and kind == "cuda":
            cases = {case.id(): case for _, case in kept if not shards.is_huge(case, kind)}
            needed = map(shards.memory_of, cases.values())
            jobs = min(jobs, shards.fitting_jobs(needed, self._free_bytes))
        is_huge = any(shards.is_huge(case, kind) for _, case in kept)
        return min(jobs, shards.most_jobs(self.cases, kind)), is_huge

    def measure(self, kernel: Kernel, case: Case) -> Sequence[AccuracyRow]:
        """Return a row with the verdict for each configuration to try."""
        rows: list[AccuracyRow] = []
        try:
            for configured in self._configured(kernel, case):
                try:
                    rows.append(self.judge.try_pair(configured, case))
                except NoMemoryError as error:
                    rows.append(self.judge.refused(configured, case, str(error)))
        except DeviceLostError as lost:
            raise DeviceLostError(*rows, *lost.args) from lost
        return rows

    def fails(self, kernels: Sequence[KernelInfo], rows: Sequence[Row]) -> bool:
        """Return True if a kernel that the options name served none of its cases."""
        tried = [row for row in rows if isinstance(row, AccuracyRow)]
        return any(kernel.fails for kernel in served(kernels, tried))

    def summary(self, rows: Sequence[Row]) -> Iterator[CoverageRow]:
        """Yield rows on met pairs of levels with --coverage."""
        if not self.options.coverage or self.options.shard:
            return iter(())
        return self._coverage(rows)
