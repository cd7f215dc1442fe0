"""One run of `nox -s compile`: what is planned, compiled, held to expectations, and recorded."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.expectation import Claim
from kernel_workbench.kernels.registry import Kernel, KernelError, all_kernels, load_file
from kernel_workbench.profiles.peaks import LIMITS, peaks_of_sm
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import report_console
from kernel_workbench.reports.phrases import count
from kernel_workbench.reports.record import (
    BrokenExpectation,
    CompileRow,
    PredictionRow,
    Record,
    RecordError,
    read,
)
from kernel_workbench.reports.report import print_report
from kernel_workbench.suites.compile.cache import Cache, default_folder
from kernel_workbench.suites.compile.cases import GENERATIONS, Standing, standing
from kernel_workbench.suites.compile.ceiling import bench_cases, predictions
from kernel_workbench.suites.compile.compiler import Measured, tool_versions, unknown_version
from kernel_workbench.suites.compile.expectations import broken, counting, expectations_of, is_about
from kernel_workbench.suites.compile.plan import Plan, Planned, plan
from kernel_workbench.suites.compile.rows import failed_row, row_of
from kernel_workbench.suites.compile.workers import Compile, Locate, Workers
from kernel_workbench.suites.run.descriptions import (
    describe_machine,
    edited,
    hashes_of,
    kernel_info,
)
from kernel_workbench.suites.run.exit_status import keep_what_ran
from kernel_workbench.suites.run.option_table import CompileOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.record import RunRecord
from kernel_workbench.suites.run.selection import (
    kernel_files,
    known_ops,
    refusing,
    selected_kernels,
)
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError

_BATCH = 6  # kernels whose code is disassembled at one time
_LARGE_TILE = 2**15  # elements along one axis, of which a compiler takes minutes

_Suspect = tuple[CompileRow, Planned, list[Claim]]  # with the claims that it breaks


def run(options: CompileOptions, command: str) -> int:
    """Compile, record and report what the options ask for; return the exit status.

    Raises UsageError, and KeyboardInterrupt where it comes before there is a record.
    """
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # ends a run as Ctrl-C does
    jobs, files = options.jobs or os.cpu_count() or 1, kernel_files(options)
    with (
        refusing(KernelError, RecordError, WorkersError),
        tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch,
        closing(Workers(jobs, files, Path(scratch))) as workers,
    ):
        workers.prepare()
        session = Session(options, command, workers)
        against = None if options.against is None else _saved(Path(options.against))
        planned = plan(session.chosen(), workers, everything=options.all)
        if options.list:
            _print(planned)
            return ExitStatus.RIGHT
        status = session.compile(planned)
        record = read(session.record.path)
    console = report_console()
    console.print()
    if options.check_driver:
        from kernel_workbench.suites.compile.driver_check import differences  # noqa: PLC0415  (replaces compile)

        return differences(planned.launches, session.rows, console)
    notes = session.notes(planned)
    print_report(record, console, details=options.details, against=against, notes=notes)
    return status


def _saved(path: Path) -> Record:
    """The record that a run is shown against. Raises RecordError."""
    record = read(path)
    if record.header.suite != "compile":
        raise RecordError(
            f"{path}: a record of nox -s {record.header.suite}; name one of nox -s compile"
        )
    return record


def _generations(options: CompileOptions) -> tuple[int, ...]:
    """Those that are asked for, or all, or the GPU's own. Raises UsageError."""
    asked = set(options.sm) or set(GENERATIONS)
    if options.check_driver:
        if not torch.cuda.is_available():
            raise pytest.UsageError(
                "--check-driver: torch sees no CUDA device here; run it on a machine with a GPU"
            )
        major, minor = torch.cuda.get_device_capability()
        asked = {10 * major + minor}
    for sm in asked:
        if sm not in LIMITS or not peaks_of_sm(sm):
            known = ", ".join(map(str, GENERATIONS))
            raise pytest.UsageError(f"--sm {sm}: there is no such generation; there are {known}")
    return tuple(sorted(asked))


def _print(planned: Plan) -> None:
    """What would be compiled: how often each kernel, and each variant for which generations."""
    kernels = Counter(f"{each.kernel.op.name} {each.kernel.name}" for each in planned.launches)
    variants: dict[str, list[str]] = defaultdict(list)
    for each in planned.launches:
        name = f"{each.kernel.op.name} {each.kernel.name} {each.label}: {each.function}"
        variants[name].append(str(each.sm))
    print(f"{count(len(kernels), 'kernel')}, and how many times each would be compiled:")
    for name, times in kernels.items():
        print(f"  {name} {times:,}")
    print(f"{count(len(variants), 'variant')}, and the generations that each would be for:")
    for name, sms in variants.items():
        print(f"  {name}, sm {' '.join(sms)}")
    if planned.failures:
        print(f"{count(len(planned.failures), 'call')} with launches that can't be known:")
    for _, sm, reason in planned.failures:
        print(f"  on sm {sm}, {reason}")


class Session:
    """A run under way: its record and rows, and what is wrong beside them."""

    record: RunRecord[CompileRow | PredictionRow]

    def __init__(self, options: CompileOptions, command: str, workers: Workers) -> None:
        """Raises UsageError or KernelError where what is asked for doesn't exist."""
        self.options, self.command, self.workers = options, command, workers
        self.started = time.monotonic()
        self.sms = _generations(options)
        self.results = Path(options.results)
        if self.results.exists() and not self.results.is_dir():
            raise pytest.UsageError(f"--results {self.results}: it is no folder; name one")
        self.files = hashes_of(workers.files)  # as they are before any is read
        known_ops(options)
        workers.check_files()
        self.kernels = selected_kernels(options, self._load, baselines=False)
        self._infos = tuple(kernel_info(each, max(self.sms)) for each in self.kernels)
        self.tools = {sm: tool_versions(sm) for sm in self.sms}  # of triton and ptxas, by sm
        self.cache = Cache(Path(options.cache) if options.cache else default_folder())
        self.rows: list[CompileRow] = []
        self.problems: list[str] = []
        self._changed: list[str] = []  # which files changed while the run read them
        self._expectations = {
            (each.op.name, each.name): expectations_of(each) for each in self.kernels
        }
        self._met: set[int] = set()  # expectations that were about a row

    def _load(self) -> tuple[Kernel, ...]:
        return tuple(kernel for file in self.workers.files for kernel in load_file(file))

    def chosen(self) -> list[Standing]:
        """The cases that stand for what is compiled."""
        found: list[Standing] = []
        for kernel in self.kernels:
            # Whether or not they are asked for: what dispatch gives them isn't this kernel's.
            before = [
                each
                for each in all_kernels()
                if each.op.name == kernel.op.name
                and each.priority > kernel.priority
                and each.origin == kernel.origin
            ]
            found += standing(kernel, self.sms, before=before, everything=self.options.all)
        return found

    def compile(self, planned: Plan) -> ExitStatus:
        """Compile and record what is planned; return the exit status. Raises RecordError."""
        benches = bench_cases(self.kernels, self.sms)
        rows = len(planned.launches) + len(planned.failures)
        self.record = self._begin(rows + sum(len(each.gpus) for each in benches))
        keep_what_ran()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        failures = (failed_row(*each) for each in planned.failures)
        try:
            for row in chain(failures, self._compiled(planned.launches)):
                self.record.add(row)
                self.rows.append(row)
            for prediction in predictions(benches, self.rows):
                self.record.add(prediction)
            self._judge()
        except KeyboardInterrupt:
            self.record.interrupted = True
        status = self._status()
        self.record.close(status, tuple(self.problems))
        return status

    def _status(self) -> ExitStatus:
        if self.record.interrupted:
            return ExitStatus.INCOMPLETE
        if self._changed:
            return ExitStatus.SUITE_FAILED
        if not any(row.status == "compiled" for row in self.rows):
            failed = any(row.status == "failed" for row in self.rows)
            return ExitStatus.WRONG if failed else ExitStatus.INCOMPLETE
        wrong = any(row.status == "failed" or row.broken for row in self.rows)
        return ExitStatus.WRONG if wrong or self.problems else ExitStatus.RIGHT

    def notes(self, planned: Plan) -> list[str]:
        """What a reader is told beside the report."""
        versions = {row.tools.get("triton", "") for row in self.rows if row.tools}
        told = [text for each in versions if (text := unknown_version(each)) is not None]
        if planned.silent:
            names = ", ".join(planned.silent)
            told.append(f"launch no Triton kernel, so nothing of theirs: {names}")
        return told

    def _begin(self, rows: int) -> RunRecord[CompileRow | PredictionRow]:
        machine = describe_machine(torch.device("cpu"), max(self.sms), strict=None)
        versions = {name: each for of_sm in self.tools.values() for name, each in of_sm.items()}
        machine = machine.model_copy(
            update={"simulated_sm": None, "packages": machine.packages | versions}
        )
        return RunRecord(
            self.results,
            self.started,
            suite="compile",
            command=self.command,
            environment=machine,
            kernels=self._infos,
            planned_rows=rows,
            gate_baselines=False,
            files=self.files,
        )

    def _compiled(self, launches: Sequence[Planned]) -> Iterator[CompileRow]:
        """The rows of all launches: kept ones first, at last those that break an expectation."""
        suspects: list[_Suspect] = []
        for planned, measured in self._measured(launches):
            row, claims = self._held(row_of(planned, measured, self.tools[planned.sm]))
            if claims:
                suspects.append((row, planned, claims))
            else:
                yield row
        yield from self._located(suspects)

    def _measured(self, launches: Sequence[Planned]) -> Iterator[tuple[Planned, Measured]]:
        missing: dict[tuple[int, str], Planned] = {}
        with Progress("compile") as progress:
            progress.begin(len(launches))
            for each in launches:
                kept = self.cache.get(each.noted.key, self.tools[each.sm])
                if kept is None:
                    missing[each.sm, each.noted.key] = each
                else:
                    yield each, kept
                    progress.advance(each.kernel.name)
            batches = _batches(missing.values(), self.workers.jobs)
            for sm, task, answer in self.workers.run(batches, progress.wait):
                assert isinstance(task, Compile)
                assert isinstance(answer, list)
                for (key, _), measured in zip(task.wanted, answer, strict=True):
                    self.cache.put(key, self.tools[sm], measured)
                    yield missing[sm, key], measured
                    progress.advance(missing[sm, key].kernel.name)

    def _held(self, row: CompileRow) -> tuple[CompileRow, list[Claim]]:
        """The row with the expectations that it breaks, and their claims."""
        known = self._expectations[row.op, row.kernel]
        self._met.update(id(each) for each in known if is_about(each, row))
        about = [each for each in counting(known, row) if row.status == "compiled"]
        reasons = [(each, broken(each.claim, row)) for each in about]
        failed = [(each, reason) for each, reason in reasons if reason is not None]
        told = tuple(
            BrokenExpectation(says=each.says, reason=reason, sass=None) for each, reason in failed
        )
        row = row.model_copy(update={"expected": len(about), "broken": told})
        return row, [each.claim for each, _ in failed]

    def _located(self, suspects: Sequence[_Suspect]) -> Iterator[CompileRow]:
        """The rows that break expectations, each with the instruction that does."""
        tasks: dict[int, list[Locate]] = defaultdict(list)
        for row, planned, claims in suspects:
            tasks[row.sm] += [Locate(planned.noted.key, planned.call, each) for each in claims]
        found: dict[tuple[int, str, Claim], object] = {}
        for sm, task, answer in self.workers.run(tasks):
            assert isinstance(task, Locate)
            found[sm, task.key, task.claim] = answer
        for row, planned, claims in suspects:
            told = tuple(
                each.model_copy(update={"sass": found[row.sm, planned.noted.key, claim]})
                for each, claim in zip(row.broken, claims, strict=True)
            )
            yield row.model_copy(update={"broken": told})

    def _judge(self) -> None:
        """What is wrong with the run beside its rows."""
        self._changed = edited(self.files)
        self.problems += self._changed
        if not any(row.status == "compiled" for row in self.rows):
            self.problems.append("nothing was compiled")
        options = self.options
        if options.op or options.kernel or options.kernels or options.sm:
            return
        # Nothing was left out, so that every expectation is to be about something.
        unmet = {
            each.says: name
            for (_, name), expectations in self._expectations.items()
            for each in expectations
            if id(each) not in self._met and (each.stands or options.all)
        }
        self.problems += [
            f"an expectation beside {name} is about nothing that was compiled: {says}"
            for says, name in unmet.items()
        ]


def _batches(planned: Iterable[Planned], jobs: int) -> dict[int, list[Compile]]:
    """Launches to compile, a few at a time: small batches where there are few for each job.

    Launches of small tiles come first, so that rows do; a large tile takes minutes, and is alone.
    """
    wanted: dict[int, list[Planned]] = {}
    alone: dict[int, list[Planned]] = {}
    for launch in sorted(planned, key=_largest_extent):
        into = alone if _largest_extent(launch) > _LARGE_TILE else wanted
        into.setdefault(launch.sm, []).append(launch)
    batches: dict[int, list[Compile]] = {}
    for sm, group in wanted.items():
        size = max(1, min(_BATCH, -(-len(group) // (2 * jobs))))
        batches[sm] = [
            Compile(tuple((each.noted.key, each.call) for each in group[start : start + size]))
            for start in range(0, len(group), size)
        ]
    for sm, group in alone.items():
        large = [Compile(((launch.noted.key, launch.call),)) for launch in group]
        batches.setdefault(sm, []).extend(large)
    return batches


def _largest_extent(planned: Planned) -> int:
    """Return the largest constant of a launch's tile, which its compile time grows with."""
    return max(planned.noted.tile.values(), default=0)
