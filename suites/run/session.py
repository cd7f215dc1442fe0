"""Run a suite as a pytest plugin: each pair of kernel and case is a test, each row is recorded.

A suite plans and measures (suite.py). This module has the rest, once for all suites: hashes of
files, the record, refused pairs, progress, shards, resumed runs, Ctrl-C, the exit status and the
closing report.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, NoReturn

import pytest
import torch
from rich.console import Console

from kernel_workbench.kernels.registry import Kernel, KernelError
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.reference import OpError
from kernel_workbench.reports.arguments import quoted
from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.output import lasting, report_console
from kernel_workbench.reports.phrases import ACCEPTED, ACCEPTED_PASSES, count, shown
from kernel_workbench.reports.record import AccuracyRow, FindRow, RecordError, RunHeader, read
from kernel_workbench.reports.report import print_report
from kernel_workbench.reports.run_report import accepted_that_pass
from kernel_workbench.suites.run import earlier_run, shards
from kernel_workbench.suites.run.accepted import (
    AcceptedError,
    check_target,
    read_accepted,
    write_accepted,
)
from kernel_workbench.suites.run.attempt import CRASHED, known_pairs, note_pair
from kernel_workbench.suites.run.commands import path_in_command, without
from kernel_workbench.suites.run.descriptions import (
    default_numerics,
    describe_machine,
    edited,
    hashes_of,
    kernel_info,
)
from kernel_workbench.suites.run.exit_status import in_pytest, keep_what_ran
from kernel_workbench.suites.run.option_table import PlannedOptions, VerdictOptions, options_from
from kernel_workbench.suites.run.options import DEVICE, FOLDERS
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.record import RunRecord
from kernel_workbench.suites.run.selection import absent_kernels, kernel_files, refusing
from kernel_workbench.suites.run.suite import (
    DeviceLostError,
    NoMemoryError,
    Pair,
    PairRow,
    Suite,
    is_short,
    memory_message,
)

_MOST_NAMED = 5  # accepted failures that pass now


class Session(Generic[PairRow]):
    """A pytest plugin for one run.

    record        the record, or None before it begins; a run that lists tests never begins one
    errors        failures of the suite itself, which are no verdicts on kernels
    op_failures   sentences about ops of a user's file that failed on a case, whose rows are missing
    also_failed   something beside the rows fails the run
    """

    def __init__(self, config: pytest.Config, make: type[Suite[PairRow]]) -> None:
        self.config, self.options = config, options_from(make.takes, config.option)
        self.started = time.monotonic()
        # Hash the files before any of them is read: a later edit isn't in the record.
        self.files = hashes_of(self._files())
        self.suite = make(self.options, config.stash[DEVICE])
        # From here on a failure has to end the suite's processes too.
        config.add_cleanup(self.suite.close)
        self._failed_before: earlier_run.FailedRows | None = None
        self._early = self._started_early()
        with refusing(OpError):
            planned = self.suite.plan()
        self.pairs = {_names(pair): pair for pair in planned}
        self.record: RunRecord[PairRow] | None = None
        self.progress = Progress(self.suite.name)
        self.shards: shards.Shards | None = None
        self.errors: list[str] = []
        self.op_failures: list[str] = []
        self.also_failed = False
        self._failed = self._beside = self._short = 0
        self._stopped = ""  # why the run ended before its last row, as --max-seconds asked
        self._left_out: str | None = None  # the name of a row that -k leaves out
        self._accepted, self._accept = _accepted_of(self.options)
        self._parent = os.getppid()
        if getattr(self.options, "fail_fast", False):
            config.option.maxfail = 1

    def _started_early(self) -> shards.Shards | None:
        """Start the processes of a large run before its cases are listed, which takes seconds."""
        jobs, narrow = self.suite.likely_jobs(), self.config.option
        if jobs < 2 or narrow.collectonly or narrow.keyword:
            return None
        early = self._processes(jobs)
        self.config.add_cleanup(early.close)
        early.start()
        return early

    def _processes(self, jobs: int) -> shards.Shards:
        """Return processes of this run, which aren't started yet."""
        arguments = list(map(str, self.config.invocation_params.args))
        if self._failed_before is not None:
            arguments.append(f"--failed={self._failed_before.record}")
        return shards.Shards(jobs, arguments, self.config.invocation_params.dir)

    def _files(self) -> list[Path]:
        data = (*self.options.workloads, *self.options.cases)
        return [*kernel_files(self.options), *(Path(file).expanduser().resolve() for file in data)]

    def _pair(self, item: pytest.Item) -> Pair:
        assert isinstance(item, pytest.Function)
        params = item.callspec.params
        return self.pairs[str(params["kernel"]), str(params["case"])]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Let pytest print to a closed pipe: pytest alone would exit with 1, as for a failure."""
        writer = self.config.get_terminal_writer()
        writer._file = lasting(writer._file)  # noqa: SLF001 (there is no other way to its stream)
        self.config.add_cleanup(lasting(sys.__stdout__ or sys.stdout).flush)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a test for each pair; a process of a run has the pairs of its share."""
        share = self.suite.share
        pairs = [
            pytest.param(kernel.name, case.id(), id=case.id(kernel.name))
            for kernel, case in self.pairs.values()
            if share is None or case.id() in share
        ]
        metafunc.parametrize(("kernel", "case"), pairs)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the rows that failed for --lf and --failed, or put them first for --ff.

        Raises:
            pytest.UsageError: the other options select none of the failed rows.
        """
        failed = self._failed_before = earlier_run.failed_rows(self.suite)
        if failed is None:
            return
        first: list[pytest.Item] = []
        rest: list[pytest.Item] = []
        for item in items:
            (first if _names(self._pair(item)) in failed.names else rest).append(item)
        options = self.options
        if isinstance(options, PlannedOptions) and options.failedfirst and not options.lf:
            items[:] = [*first, *rest]
            return
        if not first and self.suite.share is None:
            raise pytest.UsageError(
                f"--failed {shown(failed.record)}: these options select none of the "
                f"{len(failed.names):,} rows that failed there; its own command was: "
                f"{shown(failed.command)}"
            )
        items[:] = first
        if rest:
            self.config.hook.pytest_deselected(items=rest)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep the name of a row that -k leaves out."""
        self._left_out = items[0].name.partition("[")[2].removesuffix("]")

    @refusing(OpError)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin the record, write the rows of pairs that aren't tried, and keep the other tests.

        Raises:
            pytest.UsageError: -k leaves no test.
        """
        # pytest calls this hook after an error, too.
        if sys.exc_info()[0] is not None:
            return
        whole = self.suite.share is None
        if not session.items and self._left_out is not None and whole:
            raise pytest.UsageError(
                f"-k {quoted(self.config.option.keyword)}: no row's name matches; one of the names "
                f"is {self._left_out}"
            )
        if self.config.option.collectonly:
            return
        options = self.options
        earlier_pairs = known_pairs(options.done if isinstance(options, PlannedOptions) else None)
        items = session.items
        items[:] = [item for item in items if _names(self._pair(item)) not in earlier_pairs.done]
        pairs = [self._pair(item) for item in session.items]
        if self.options.list:
            self._list(pairs)
            session.items.clear()
            return
        record, done = self._begin(pairs)
        kept, ran = [], 0
        for item, (kernel, case) in zip(session.items, pairs, strict=True):
            reason = self.suite.refusal(kernel, case)
            earlier = done.get((kernel.name, case.id()), [])
            if len(earlier) < self.suite.rows_of(kernel, case):  # cut off amid its configurations
                earlier = []
            if reason is None and _names((kernel, case)) in earlier_pairs.crashed:
                rows = self.suite.refused(kernel, case, CRASHED) if whole else ()
                self.add(row.model_copy(update=_crash(row)) for row in rows)  # type: ignore[misc]
            elif reason is None and not earlier:
                kept.append(item)
            elif whole:
                ran += bool(earlier)
                refused = self.suite.refused
                self.add(earlier or refused(kernel, case, reason or ""))  # type: ignore[arg-type]
        if not whole:  # the run that it belongs to writes the other rows
            self._plan_share(record, kept)
        self.progress.begin(None if self.suite.drawn else ran + len(kept), ran)
        if whole:
            kept = self._spread(kept)
        session.items[:] = kept

    def _spread(self, kept: list[pytest.Item]) -> list[pytest.Item]:
        """Plan the run's processes; return the tests that this process runs itself: all or none."""
        jobs, is_huge = self.suite.jobs([self._pair(item) for item in kept])
        if jobs > 1:
            self.shards = self._shards(jobs)
            self.shards.huge, self.shards.for_processes = is_huge, self.suite.for_processes(jobs)
        if self._early is not None and self._early is not self.shards:
            self._early.close()
        return kept if self.shards is None else []

    def _shards(self, jobs: int) -> shards.Shards:
        """Return the run's processes: those that were started early, if they are the right ones."""
        early, fresh = self._early, self._processes(jobs)
        if early is not None and (early.count, early.arguments) == (jobs, fresh.arguments):
            return early
        return fresh

    def _plan_share(self, record: RunRecord[PairRow], kept: list[pytest.Item]) -> None:
        """Count the rows of this process's share; sort them where it takes family by family."""
        claims = self.suite.claims
        if claims is None:
            record.planned = sum(self.suite.rows_of(*self._pair(item)) for item in kept)
        else:  # a row is planned when this process has taken it
            record.planned = 0
            kept.sort(key=lambda item: claims.family[self._pair(item)[1].id()])

    def _list(self, pairs: Sequence[Pair]) -> None:
        """Print the kernels that would run with their number of cases, and then the cases.

        A suite that draws its cases during the run prints its kernels alone.
        """
        if self.suite.drawn:
            listed = count(len(self.suite.kernels), "kernel")
            names = (f"  {kernel.op.name} {kernel.name}" for kernel in self.suite.kernels)
            lines = [f"{listed}, for each of which cases would be drawn:", *names]
        else:
            served = [pair for pair in pairs if self.suite.refusal(*pair) is None]
            kernels = Counter(f"{kernel.op.name} {kernel.name}" for kernel, _ in served)
            cases = Counter(case.id() for _, case in served)
            lines = [
                f"{count(len(kernels), 'kernel')}, and on how many cases each would run:",
                *(f"  {name} {times:,}" for name, times in kernels.items()),
                f"{count(len(cases), 'case')}, and how many kernels each:",
                *(f"  {name} {times:,}" for name, times in cases.items()),
            ]
        print("\n".join(lines), file=lasting(sys.stdout))

    def _begin(
        self, pairs: Sequence[Pair]
    ) -> tuple[RunRecord[PairRow], dict[tuple[str, str], list[AccuracyRow]]]:
        """Begin the record; return it with the rows of the run that this run continues.

        Raises:
            pytest.UsageError: the earlier record doesn't belong to this run, or the new record
                can't be written.
        """
        suite, options = self.suite, self.options
        whole = suite.share is None
        suite.machine = describe_machine(
            suite.device,
            suite.sm,
            strict=suite.strict,
            unchecked=suite.unchecked,
            hash_uuid=options.hash_uuid,
        )
        with refusing(KernelError):
            kernels = tuple(
                kernel_info(kernel, suite.sm, named=options.kernel)
                for kernel in suite.kernels
                if whole  # else the run's record describes them
            )
        header: dict[str, Any] = {
            "suite": suite.name,
            "command": this_program().command(suite.name, typed(self.config, suite.name)),
            "environment": suite.machine,
            "kernels": kernels,
            "default_numerics": default_numerics(),
            "planned_rows": sum(suite.rows_of(*pair) for pair in pairs),
            "gate_baselines": options.gate_baselines,
            "files": self.files,
            "absent": absent_kernels(options, {case.op for _, case in self.pairs.values()}),
        }
        header |= suite.begin()
        resume = options.resume if isinstance(options, VerdictOptions) else None
        begun = RunHeader(started_at="", **header)
        done = {} if suite.drawn else earlier_run.done_rows(resume, begun, pairs, whole=whole)
        if suite.drawn and resume is not None:
            suite.earlier = earlier_run.resumed(resume, begun)
        results = Path(options.results)
        try:
            self.record = RunRecord(results, self.started, **header)
        except RecordError as error:
            raise pytest.UsageError(f"--results {results}: {error}") from error
        keep_what_ran()
        suite.record_path = self.record.path
        if note := os.environ.get(shards.RECORD_NOTE):
            Path(note).write_text(str(self.record.path.resolve()))
        if suite.earlier is not None and whole:
            self.add((*suite.earlier.rows, *suite.earlier.finds))  # type: ignore[arg-type]
        return self.record, done

    def add(self, rows: Iterable[PairRow]) -> list[PairRow]:
        """Write rows to the record, and return them; where one can't be written the run ends.

        A failure that --accepted names is written as one that doesn't gate.
        """
        assert self.record is not None
        written = []
        for row in rows:
            row = self._marked(row)
            written.append(row)
            try:
                self.record.add(row)
            except RecordError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.INTERRUPTED)
            if self.suite.wrong(row) is not None:
                self._failed += row.gates
                self._beside += not row.gates
            self._short += is_short(row) and not self.suite.drawn
        return written

    def _marked(self, row: PairRow) -> PairRow:
        """Return a row with what --accepted says of it."""
        if not isinstance(row, AccuracyRow) or not row.gates:
            return row
        if (row.kernel, row.case.id) not in self._accepted:
            return row
        if row.status == "failed":
            changes = {"gates": False, "notes": (*row.notes, ACCEPTED)}
        elif row.status == "passed" and ACCEPTED_PASSES not in row.notes:
            changes = {"notes": (*row.notes, ACCEPTED_PASSES)}
        else:
            return row
        return row.model_copy(update=changes)

    def measure(self, kernel: str, case: str, request: pytest.FixtureRequest) -> Sequence[PairRow]:
        """Run a test: write its rows to the record, and fail if one is wrong and gates."""
        assert self.record is not None
        note_pair(kernel, case)
        try:
            rows = self._rows(*self.pairs[kernel, case])
        except OpError as error:
            self.op_failures.append(f"{error} (on {case})")
            request.node.user_properties.append(("judged", True))
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except DeviceLostError as lost:
            self._lose(lost)
        for row in self.add(rows):
            wrong = self.suite.wrong(row)
            if wrong is not None:
                request.node.user_properties.append(("judged", True))
                if row.gates:
                    pytest.fail(wrong, pytrace=False)
                # pytest.xfail would format a traceback, which nothing shows.
                raise pytest.xfail.Exception(f"doesn't gate: {wrong}", pytrace=False)
        return rows

    def _lose(self, lost: DeviceLostError) -> NoReturn:
        """Write the pair's rows and end the run: the GPU doesn't answer this process any more."""
        assert self.record is not None
        self.add(lost.args)
        self.record.interrupted = True
        row = lost.args[-1]
        pair = f"{row.kernel} on {row.case.id}"
        pytest.exit(f"{pair}: {row.reason}; the GPU is lost to this process")

    def _rows(self, kernel: Kernel, case: Case) -> Sequence[PairRow]:
        """Return a pair's rows; refuse the pair if the GPU's memory is full.

        Raises:
            DeviceLostError: this process can't use the GPU any more.
        """
        try:
            return self.suite.measure(kernel, case)
        except NoMemoryError as error:
            reason = str(error)
        except torch.OutOfMemoryError as error:
            reason = str(NoMemoryError(memory_message(error), self.suite.processes))
        return self.suite.refused(kernel, case, reason)

    @pytest.fixture
    def workbench(self) -> Session[PairRow]:
        """Return the session that a test belongs to."""
        return self

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Show progress while the tests run; then measure all pairs together, and add summaries."""
        if self.record is None:
            return (yield)
        self.suite.prepare([self._pair(item) for item in session.items])
        gc.freeze()  # modules and tests stay to the end: collections needn't look at them again
        with self.progress:
            try:
                if self.shards is not None:
                    self._follow(self.shards, session)
                result = yield
                if not session.shouldstop and not session.shouldfail:
                    try:
                        for row in self.suite.finish(self.progress):
                            self.add([row])
                    except DeviceLostError as lost:
                        self._lose(lost)
            finally:
                self.add(self.suite.summary(self.record.rows))  # type: ignore[arg-type]
            return result

    def _follow(self, processes: shards.Shards, session: pytest.Session) -> None:
        """Write the rows of the run's processes as they come, until -x or --maxfail ends it."""
        before, most = self._failed, self.config.option.maxfail or sys.maxsize
        advanced: set[tuple[str, str]] = set()  # a pair is one test, whatever its rows
        try:
            with closing(processes.rows()) as rows:
                for row in rows:
                    self.add([row])  # type: ignore[list-item]
                    pair = row.kernel, row.case.id
                    if isinstance(row, FindRow) or not row.configuration or pair not in advanced:
                        self._advance()
                    advanced.add(pair)
                    if self._failed - before >= most:
                        session.shouldfail = "enough rows failed"
                        break
                    if self._end_in_time(session):
                        break
        finally:
            self.errors += processes.problems
            self.op_failures += processes.op_failures

    def _advance(self) -> None:
        """Count one more test in the progress; end a share whose run is gone."""
        assert self.record is not None
        if self.suite.share is not None and os.getppid() != self._parent:
            pytest.exit("the run that this process belongs to is gone")
        last = f", {self.record.rows[-1].kernel}" if self.record.rows else ""
        self.progress.advance(f"{self.failures()}{last}")

    def _end_in_time(self, session: pytest.Session) -> bool:
        """End the run before its next row if its time of --max-seconds is over."""
        options = self.options
        most = options.max_seconds if isinstance(options, PlannedOptions) else None
        # A run ends its shares itself.
        if most is None or self.suite.share is not None:
            return False
        if time.monotonic() - self.started >= most:
            self._stopped = f"--max-seconds: it took {most:g} s"
            session.shouldstop = self._stopped
        return bool(self._stopped)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Skip a row after the end of the run's time, and one that another process has taken."""
        if self.record is None:
            return None
        if self._end_in_time(item.session):
            return True
        if self.suite.claims is None:
            return None
        kernel, case = self._pair(item)
        if not self.suite.claims.take(case):
            return True
        self.record.planned += self.suite.rows_of(kernel, case)
        return None

    def failures(self) -> str:
        """Return the number of failed rows so far, with baselines, which fail no run, apart."""
        return f"{self._failed:,} failed" + f", {self._beside:,} of baselines" * bool(self._beside)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Count each test without a letter: the progress bar and the report show the results."""
        if hasattr(report, "wasxfail"):
            return "xfailed", "", ""
        counts = report.when == "call" or report.failed
        return report.outcome if counts else "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Advance the bar; keep errors of the suite itself for the end."""
        if report.failed and not any(key == "judged" for key, _ in report.user_properties):
            self.errors.append(f"{report.nodeid}\n{report.longreprtext}")
        if report.when == "teardown":
            self._advance()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep and report the rows at Ctrl-C, without a traceback.

        pytest renders all frames of the interrupt before it leaves them out. That takes seconds,
        and fails at a frame without a line.
        """
        if self.record is not None:
            self.record.interrupted = True
        excinfo.traceback = excinfo.traceback[:1]
        excinfo.value.__suppress_context__ = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record, print the report, and set the exit status."""
        if self.record is None:
            if self.options.list and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                session.exitstatus = pytest.ExitCode.OK
            return
        stopped = None
        if session.shouldfail:
            most = self.config.option.maxfail
            option = _stopping_option(typed(self.config, self.suite.name))
            stopped = f"{option}: {'a row' if most == 1 else f'{most:,} rows'} failed"
            session._shouldfail = False  # noqa: SLF001 (pytest would say it below the report)
        if self._stopped:
            stopped = self._stopped
            session._shouldstop = False  # noqa: SLF001 (likewise)
            exitstatus = pytest.ExitCode.OK
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        self.record.interrupted |= interrupted
        suite_failed = exitstatus == pytest.ExitCode.INTERNAL_ERROR
        status = self._close(self.record, stopped, suite_failed=suite_failed)
        session.exitstatus = exitstatus if interrupted else in_pytest(status)
        self.suite.close()
        console = report_console()
        # The run that a share belongs to prints the report; --json is a report of its own.
        if self.suite.share is None and not self.options.json:
            console.print()
            print_report(read(self.record.path), console, details=self.options.details)
        # A file that has to be edited can't be gone on with.
        resumes = isinstance(self.options, VerdictOptions) and not self.op_failures
        if not self.record.is_whole and self.suite.share is None and resumes:
            text = f"\nTo go on with it: {self._again(self.record.path)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if self.suite.share is None:
            self._close_accepted(console)
        for error in self.errors:
            console.print("\nThe suite itself failed, which is no verdict on the kernel:")
            console.print(error, markup=False, highlight=False)

    def _close_accepted(self, console: Console) -> None:
        """Say which accepted failures pass now, and write the file of --accept."""
        assert self.record is not None
        rows = [row for row in self.record.rows if isinstance(row, AccuracyRow)]
        if passing := accepted_that_pass(rows):
            named = ", ".join(passing[:_MOST_NAMED])
            more = f", and {len(passing) - _MOST_NAMED:,} more" * (len(passing) > _MOST_NAMED)
            text = f"\nAccepted failures that pass now: {named}{more}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if self._accept is None:
            return
        tried = {(row.kernel, row.case.id) for row in rows}
        failed = {
            (row.kernel, row.case.id)
            for row in rows
            if row.status == "failed" and (row.gates or ACCEPTED in row.notes)
        }
        try:
            write_accepted(self._accept, failed | (self._accepted - tried))
        except OSError as error:
            self.errors.append(f"--accept {self._accept}: it can't be written ({error.strerror})")

    def _close(
        self, record: RunRecord[PairRow], stopped: str | None, *, suite_failed: bool
    ) -> ExitStatus:
        """Write the last line and return the run's exit status.

        Args:
            record: the record.
            stopped: why the run ended early, or None.
            suite_failed: pytest had an internal error.
        """
        whole = self.suite.share is None
        # A share whose pairs are all refused, or all in an earlier run, is done.
        anything = not whole or any(map(self.suite.counts, record.rows))
        failed = self.also_failed or self._failed > 0
        if whole:
            self.errors += edited(self.files)
            failed |= self.suite.fails(record.header.kernels, record.rows)
        if whole and self._short:
            record.interrupted = True
            stopped = f"the GPU had too little memory for {count(self._short, 'row')}"
        left_out = self.suite.left_out() if whole else ()
        if left_out:
            record.interrupted = True
            stopped = stopped or f"{count(len(left_out), 'part')} of it couldn't be tried here"
        if self.op_failures and not record.is_whole and stopped is None:
            stopped = f"an op of a file failed on {count(len(self.op_failures), 'pair')}"
        missing = not record.is_whole and stopped is None
        if record.interrupted:
            status = ExitStatus.INCOMPLETE
        elif self.errors or suite_failed:
            status = ExitStatus.SUITE_FAILED
        elif self.op_failures:
            status = ExitStatus.USAGE
        elif missing or not anything or (self._stopped and not record.is_whole and not failed):
            status = ExitStatus.INCOMPLETE
        else:
            status = ExitStatus.WRONG if failed else ExitStatus.RIGHT
        try:
            record.close(status, tuple(dict.fromkeys((*left_out, *self.op_failures))), stopped)
        except RecordError as error:
            print(error, file=sys.stderr)
            status = status or ExitStatus.SUITE_FAILED
        return status

    def _again(self, path: Path) -> str:
        """Return the command that continues this run, with the record that --lf used."""
        replaced = {"--resume": True, "--lf": False, "--last-failed": False}
        own = without(typed(self.config, self.suite.name), replaced)
        options, by = self.options, []
        named = isinstance(options, PlannedOptions) and options.failed is not None
        if self._failed_before is not None and not named:
            by.append(f"--failed={path_in_command(self._failed_before.record)}")
        return this_program().command(self.suite.name, [*own, *by, f"--resume={path}"])


def _stopping_option(words: Sequence[str]) -> str:
    """Return the option that ends the run at a number of failed rows; pytest reads -x as 1."""
    names = {word.partition("=")[0] for word in words}
    return next((option for option in ("--fail-fast", "--maxfail") if option in names), "-x")


def _accepted_of(options: object) -> tuple[frozenset[tuple[str, str]], str | None]:
    """Return the failures that --accepted names, and the file of --accept. Raises UsageError."""
    accepted, accept = getattr(options, "accepted", None), getattr(options, "accept", None)
    with refusing(AcceptedError):
        names = frozenset() if accepted is None else read_accepted(accepted)
        if accept is not None:
            check_target(accept)
    return names, accept


def _names(pair: Pair) -> tuple[str, str]:
    kernel, case = pair
    return kernel.name, case.id()


def _crash(row: PairRow) -> dict[str, str]:
    """Return the fields that differ between a refused pair and one that ended its process."""
    rule = {"rule": "process ended"} if isinstance(row, AccuracyRow) else {}
    return {"status": "failed"} | rule


SESSION: pytest.StashKey[Session[Any]] = pytest.StashKey()


def start(config: pytest.Config, make: type[Suite[Any]]) -> None:
    """Plug a suite's session into pytest; `make`: the suite's class."""
    config.stash[SESSION] = Session(config, make)
    config.pluginmanager.register(config.stash[SESSION], "workbench-session")


def typed(config: pytest.Config, suite: str) -> list[str]:
    """Return the options that the user typed: pytest's arguments less the suite's folder."""
    folder = FOLDERS[suite]
    start = config.invocation_params.dir
    return [str(word) for word in config.invocation_params.args if start / str(word) != folder]
