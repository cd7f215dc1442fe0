"""One run of `compile`: plan, compile, check expectations, and record."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path

import pytest
import torch

from kernel_workbench.kernels.expectation import Claim
from kernel_workbench.kernels.registry import KernelError, all_kernels, load_file
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
from kernel_workbench.suites.compile.rows import row_of
from kernel_workbench.suites.compile.workers import Compile, CompileWorkers, Locate, Unfinished
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
from kernel_workbench.suites.run.user_cases import user_cases
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError

_BATCH = 6  # kernels for one run of the disassembler
_LARGE_TILE = 2**15  # elements along one axis: the compiler takes minutes for a larger tile

_Suspect = tuple[CompileRow, Planned, list[Claim]]  # a row, and the claims that it breaks


def run(options: CompileOptions, command: str) -> int:
    """Compile, record and report as the options say; return the exit status.

    Raises UsageError, and KeyboardInterrupt if that comes before the record exists.
    """
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # ends a run as Ctrl-C does
    jobs, files = options.jobs or os.cpu_count() or 1, kernel_files(options)
    with (
        refusing(KernelError, RecordError, WorkersError),
        tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch,
        closing(CompileWorkers(jobs, files, Path(scratch))) as workers,
    ):
        workers.prepare()
        session = CompileRun(options, command, workers)
        against = None if options.against is None else _saved(Path(options.against))
        planned = plan(session.chosen(), workers, everything=session.everything)
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
    """Read the record to compare a run with. Raises RecordError."""
    record = read(path)
    if record.header.suite != "compile":
        raise RecordError(f"{path}: a record of {record.header.suite}; name one of compile")
    return record


def _generations(options: CompileOptions) -> tuple[int, ...]:
    """Return the generations to compile for: --sm, all, or the GPU's. Raises UsageError."""
    sms = set(options.sm) or set(GENERATIONS)
    if options.check_driver:
        if not torch.cuda.is_available():
            raise pytest.UsageError(
                "--check-driver: torch sees no CUDA device here; run it on a machine with a GPU"
            )
        major, minor = torch.cuda.get_device_capability()
        sms = {10 * major + minor}
    for sm in sms:
        if sm not in LIMITS or not peaks_of_sm(sm):
            names = ", ".join(map(str, GENERATIONS))
            raise pytest.UsageError(f"--sm {sm}: there is no such generation; there are {names}")
    return tuple(sorted(sms))


def _print(planned: Plan) -> None:
    """Print how often each kernel would be compiled, and each variant's generations."""
    kernels = Counter(f"{one.kernel.op.name} {one.kernel.name}" for one in planned.launches)
    variants: dict[str, list[str]] = defaultdict(list)
    for launch in planned.launches:
        name = f"{launch.kernel.op.name} {launch.kernel.name} {launch.label}: {launch.function}"
        variants[name].append(str(launch.sm))
    print(f"{count(len(kernels), 'kernel')}, and how often each would be compiled:")
    for name, times in kernels.items():
        print(f"  {name} {times:,}")
    print(f"{count(len(variants), 'variant')}, and the generations of each:")
    for name, sms in variants.items():
        print(f"  {name}, sm {' '.join(sms)}")
    if planned.failures:
        print(f"{count(len(planned.failures), 'call')} failed, and the launches are unknown:")
    for failed, reason in planned.failures:
        print(f"  on sm {failed.sm}, {reason}")


class CompileRun:
    """A run in progress: its record, its rows, and problems that aren't a row's."""

    record: RunRecord[CompileRow | PredictionRow]

    def __init__(self, options: CompileOptions, command: str, workers: CompileWorkers) -> None:
        """Read the options. Raises UsageError or KernelError if they name missing things."""
        self.options, self.command, self.workers = options, command, workers
        self.started = time.monotonic()
        self.sms = _generations(options)
        self.results = Path(options.results)
        if self.results.exists() and not self.results.is_dir():
            raise pytest.UsageError(f"--results {self.results}: it is no folder; name one")
        self.files = hashes_of(workers.files)  # before any file is read
        known_ops(options)
        workers.check_files()
        self.cases = user_cases(options, torch.device("cpu"))
        self.everything = options.all or self.cases is not None
        self.kernels = selected_kernels(
            options,
            lambda: tuple(kernel for file in workers.files for kernel in load_file(file)),
            baselines=False,
        )
        if self.cases is not None:
            ops = {case.op for case in self.cases}
            self.kernels = tuple(kernel for kernel in self.kernels if kernel.op.name in ops)
        self._infos = tuple(kernel_info(kernel, max(self.sms)) for kernel in self.kernels)
        self.tools = {
            sm: tool_versions(sm) for sm in self.sms
        }  # versions of triton and ptxas, by sm
        self.cache = Cache(Path(options.cache) if options.cache else default_folder())
        self.rows: list[CompileRow] = []
        self.problems: list[str] = []
        self._unfinished: list[str] = []  # launches that reached a limit, whose rows are missing
        self._changed: list[str] = []  # files that changed while the run read them
        # Expectations are about the suite's cases: rows of 64 columns have no wide loads, say.
        self._expectations = {
            (kernel.op.name, kernel.name): () if options.cases else expectations_of(kernel)
            for kernel in self.kernels
        }
        self._met: set[int] = set()  # expectations that applied to a row

    def chosen(self) -> list[Standing]:
        """Return the cases that represent all that is compiled."""
        entries: list[Standing] = []
        for kernel in self.kernels:
            # Unselected kernels count too: dispatch doesn't give their cases to this kernel.
            before = [
                other
                for other in all_kernels()
                if other.op.name == kernel.op.name
                and other.priority > kernel.priority
                and other.origin == kernel.origin
            ]
            entries += standing(
                kernel, self.sms, before=before, everything=self.everything, own=self.cases
            )
        return entries

    def compile(self, planned: Plan) -> ExitStatus:
        """Compile and record the plan; return the exit status. Raises RecordError."""
        benches = bench_cases(self.kernels, self.sms, self.cases)
        rows = len(planned.launches) + len(planned.failures)
        self.record = self._begin(rows + sum(len(bench.gpus) for bench in benches))
        keep_what_ran()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        failures = (
            row_of(failed, Measured(0.0, problem=reason), {}) for failed, reason in planned.failures
        )
        try:
            for row in chain(failures, self._compiled(planned.launches)):
                self.record.add(row)
                self.rows.append(row)
            for prediction in predictions(benches, self.rows):
                self.record.add(prediction)
            self._judge()
        except KeyboardInterrupt:
            self.record.interrupted = True
        status, stopped = self._status(), None
        if self._unfinished:
            stopped = f"{count(len(self._unfinished), 'compilation')} reached a limit"
        self.record.close(status, (*self.problems, *self._unfinished), stopped)
        return status

    def _status(self) -> ExitStatus:
        if self.record.interrupted:
            return ExitStatus.INCOMPLETE
        if self._changed:
            return ExitStatus.SUITE_FAILED
        if self._unfinished:
            return ExitStatus.INCOMPLETE
        if not any(row.status == "compiled" for row in self.rows):
            failed = any(row.status == "failed" for row in self.rows)
            return ExitStatus.WRONG if failed else ExitStatus.INCOMPLETE
        wrong = any(row.status == "failed" or row.broken for row in self.rows)
        return ExitStatus.WRONG if wrong or self.problems else ExitStatus.RIGHT

    def notes(self, planned: Plan) -> list[str]:
        """Return the notes to print beside the report."""
        versions = {row.tools.get("triton", "") for row in self.rows if row.tools}
        notes = [text for version in versions if (text := unknown_version(version)) is not None]
        if planned.silent:
            names = ", ".join(planned.silent)
            notes.append(f"kernels that launch no Triton kernel: {names}")
        return notes

    def _begin(self, rows: int) -> RunRecord[CompileRow | PredictionRow]:
        machine = describe_machine(torch.device("cpu"), max(self.sms), strict=None)
        versions = {name: number for of in self.tools.values() for name, number in of.items()}
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
        """Yield the rows of all launches: cached ones first, broken expectations last."""
        suspects: list[_Suspect] = []
        for planned, measured in self._measured(launches):
            row, claims = self._checked(row_of(planned, measured, self.tools[planned.sm]))
            if claims:
                suspects.append((row, planned, claims))
            else:
                yield row
        yield from self._located(suspects)

    def _measured(self, launches: Sequence[Planned]) -> Iterator[tuple[Planned, Measured]]:
        missing: dict[tuple[int, str], Planned] = {}
        with Progress("compile") as progress:
            progress.begin(len(launches))
            for launch in launches:
                kept = self.cache.get(launch.noted.key, self.tools[launch.sm])
                if kept is None:
                    missing[launch.sm, launch.noted.key] = launch
                else:
                    yield launch, kept
                    progress.advance(launch.kernel.name)
            batches = _batches(missing.values(), self.workers.jobs)
            for sm, task, answer in self.workers.run(batches, progress.wait):
                assert isinstance(task, Compile)
                if isinstance(answer, Unfinished):
                    self._unfinished.append(f"{task.name} for sm {sm}: {answer.how}")
                    progress.advance(task.name)
                    continue
                assert isinstance(answer, list)
                for (key, _), measured in zip(task.wanted, answer, strict=True):
                    self.cache.put(key, self.tools[sm], measured)
                    yield missing[sm, key], measured
                    progress.advance(missing[sm, key].kernel.name)

    def _checked(self, row: CompileRow) -> tuple[CompileRow, list[Claim]]:
        """Return the row with its broken expectations, and their claims."""
        expectations = self._expectations[row.op, row.kernel]
        self._met.update(id(one) for one in expectations if is_about(one, row))
        about = [one for one in counting(expectations, row) if row.status == "compiled"]
        reasons = [(one, broken(one.claim, row)) for one in about]
        failed = [(one, reason) for one, reason in reasons if reason is not None]
        reports = tuple(
            BrokenExpectation(says=one.says, reason=reason, sass=None) for one, reason in failed
        )
        row = row.model_copy(update={"expected": len(about), "broken": reports})
        return row, [one.claim for one, _ in failed]

    def _located(self, suspects: Sequence[_Suspect]) -> Iterator[CompileRow]:
        """Yield the rows that break expectations, with the instructions at fault."""
        tasks: dict[int, list[Locate]] = defaultdict(list)
        for row, planned, claims in suspects:
            tasks[row.sm] += [Locate(planned.call, planned.noted.key, claim) for claim in claims]
        instructions: dict[tuple[int, str, Claim], object] = {}
        for sm, task, answer in self.workers.run(tasks):
            assert isinstance(task, Locate)
            instructions[sm, task.key, task.claim] = answer
        for row, planned, claims in suspects:
            reports = tuple(
                report.model_copy(update={"sass": instructions[row.sm, planned.noted.key, claim]})
                for report, claim in zip(row.broken, claims, strict=True)
            )
            yield row.model_copy(update={"broken": reports})

    def _judge(self) -> None:
        """Collect the problems of the run that aren't a row's."""
        self._changed = edited(self.files)
        self.problems += self._changed
        if self._unfinished:
            return
        if not any(row.status == "compiled" for row in self.rows):
            self.problems.append("nothing was compiled")
        options = self.options
        if options.op or options.kernel or options.kernels or options.sm or options.cases:
            return
        # The run is complete, so that every expectation must apply to a row.
        unmet = {
            one.says: name
            for (_, name), expectations in self._expectations.items()
            for one in expectations
            if id(one) not in self._met and (one.stands or options.all)
        }
        self.problems += [
            f"an expectation beside {name} applies to no compiled kernel: {says}"
            for says, name in unmet.items()
        ]


def _batches(planned: Iterable[Planned], jobs: int) -> dict[int, list[Compile]]:
    """Return batches of launches to compile: the fewer launches a job has, the smaller they are.

    Small tiles come first, so that rows arrive early; a large tile takes minutes, and is alone.
    """
    by_sm: dict[int, list[Planned]] = defaultdict(list)
    for launch in sorted(planned, key=_largest_extent):
        by_sm[launch.sm].append(launch)
    batches = {}
    for sm, group in by_sm.items():
        small = sum(_largest_extent(launch) <= _LARGE_TILE for launch in group)
        size = max(1, min(_BATCH, -(-small // (2 * jobs))))
        starts = [*range(0, small, size), *range(small, len(group)), len(group)]
        batches[sm] = [
            Compile(tuple((launch.noted.key, launch.call) for launch in group[start:end]))
            for start, end in pairwise(starts)
        ]
    return batches


def _largest_extent(planned: Planned) -> int:
    """Return the largest constant of a launch's tile; compile time grows with it."""
    return max(planned.noted.tile.values(), default=0)
