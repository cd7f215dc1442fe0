"""The accuracy session: the record it writes, the progress it shows, the report it prints."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import chain, pairwise

import pytest
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.device import SIMULATED_SM_VARIABLE
from kernels.registry import Kernel, KernelError
from oracles.op import Case, Numerics
from reports.accuracy import render
from reports.command_line import report_console
from reports.record import read
from reports.schema import ACCURACY_PROTOCOL, AccuracyRow, KernelInfo, RunHeader
from reports.served import served
from suites.accuracy import interpreter, resumed, shards, strict, watching
from suites.accuracy.fork_server import end_children
from suites.accuracy.process_state import load_kept
from suites.accuracy.run import Run
from suites.accuracy.worker_process import WorkersError
from suites.accuracy.workers import Workers
from suites.described import describe_machine, kernel_info
from suites.nox_command import nox_command
from suites.option_table import DEFAULT_SM
from suites.options import DEVICE
from suites.recorded_run import RecordedRun
from suites.selection import (
    absent_kernels,
    kernel_files,
    selected_cases,
    selected_kernels,
)
from suites.user_cases import cases_options

_LINE_EVERY_S = 15.0  # between progress lines where there is no terminal
_REDRAW_EVERY_S = 0.1
# Cases on which kernels are asked for values drawn from a secret: a share, and so many of few.
_FURTHER, _FURTHER_CASES = 0.2, 40


class AccuracySession(RecordedRun[AccuracyRow]):
    """A pytest plugin for one run: refused pairs go to the record, the rest run as tests."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config, "accuracy", "suites/accuracy")
        self.device = config.stash[DEVICE]
        self.strict: bool | None = None
        # A case's tensors are too small to share: with two threads oracle, bound and verdict of
        # attention's cases take three times as long.
        torch.set_num_threads(1)
        if self.device.type == "cpu":
            sm = int(config.getoption("--sm"))
            # What domains are asked about is what kernels dispatch for.
            os.environ[SIMULATED_SM_VARIABLE] = str(sm)
            self.strict = not config.getoption("--no-strict")
        else:
            major, minor = torch.cuda.get_device_capability()
            sm = 10 * major + minor
        names = config.getoption("--kernel") or ()
        files = kernel_files(config)
        self.workers: Workers | None = None
        apart = not config.getoption("--in-process")
        self.unchecked = () if apart and config.getoption("--shard") else self._mend_interpreter()
        if not apart:
            load = partial(map, load_kept, files)
            kernels = selected_kernels(config, lambda: tuple(chain.from_iterable(load())))
        else:
            most = config.getoption("--memory-limit")
            self.workers = Workers(
                self.device,
                sm,
                strict=self.strict is not False,
                files=files,
                time_limit_s=config.getoption("--time-limit"),
                memory_limit=None if most is None else int(most * 2**30),
            )
            # From here on what fails has to end the workers too.
            config.add_cleanup(self._end_workers)
            if config.getoption("--shard") or files:
                self.workers.prepare()
            try:
                kernels = selected_kernels(config, self.workers.kernels)
            except WorkersError as error:
                raise pytest.UsageError(str(error)) from error
        self.run = Run(
            device=self.device,
            sm=sm,
            gate_baselines=config.getoption("--gate-baselines"),
            named=frozenset(names),
            reproduce_options=self._reproduce_options(sm),
            workers=self.workers,
            signs=config.getoption("--signs"),
            every_configuration=config.getoption("--tier") == "full",
            strict=self.strict is not False,
        )
        self.cases = selected_cases(config, kernels)
        self.run.further = max(_FURTHER, _FURTHER_CASES / max(1, len(self.cases)))
        tried = {case.op for case in self.cases}
        self.kernels = tuple(each for each in kernels if each.op.name in tried)
        self.infos: tuple[KernelInfo, ...] = ()
        self.started = time.monotonic()
        self.to_run = self.ran = self.failed = self.beside = 0
        self.shards: shards.Shards | None = None
        self.share = self._share()
        self.parent = os.getppid()
        self.progress: Progress | None = None
        self.last_line = self.started

    def _mend_interpreter(self) -> tuple[str, ...]:
        """Make this process one that kernels can be called in; the checks that aren't in force.

        What a worker does, and what only costs its checks on a version of Triton that is unknown.
        """
        watching.watch_launches(interpreted=self.device.type == "cpu")
        if self.device.type != "cpu":
            return ()
        try:
            interpreter.install()
        except interpreter.InterpreterError as error:
            raise pytest.UsageError(str(error)) from error
        return strict.install() if self.strict else ()

    def _end_workers(self) -> None:
        if self.workers is not None:
            self.workers.close()
            # A candidate's own processes, which might still write to the record.
            end_children()

    def _reproduce_options(self, sm: int) -> tuple[str, ...]:
        """What a command has to repeat so that a row comes out as it did in this run."""
        options = [*cases_options(self.config)]
        if self.device.type == "cpu" and sm != DEFAULT_SM:
            options.append(f"--sm {sm}")
        if self.strict is False:
            options.append("--no-strict")
        return tuple(options)

    def _share(self) -> frozenset[str] | None:
        """The cases of this process, where another one started it; None for all."""
        shard = self.config.getoption("--shard")
        if not shard:
            return None
        number, count = map(int, shard.split("/"))
        return shards.share_of(self.cases, number, count, self.device.type)

    def _kernel_infos(self) -> tuple[KernelInfo, ...]:
        try:
            infos = [kernel_info(each, self.run.sm) for each in self.kernels]
        except KernelError as error:
            raise pytest.UsageError(str(error)) from error
        named = self.run.named
        return tuple(
            each.model_copy(update={"asked_for": each.origin == "user" or each.name in named})
            if each.origin != "baseline"
            else each
            for each in infos
        )

    def add(self, row: AccuracyRow) -> None:
        """Write a row to the record and count it; where it can't be written the run ends."""
        super().add(row)
        self.ran += row.status != "refused"
        self.failed += row.status == "failed" and row.gates
        self.beside += row.status == "failed" and not row.gates

    def failures(self) -> str:
        """What has failed by now; that of baselines apart, since it fails no run."""
        return f"{self.failed:,} failed" + f", {self.beside:,} of baselines" * bool(self.beside)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the record; pairs that a domain refuses are rows already, and need no test."""
        if self.begins_nothing(session):
            return
        pairs = [(item, *_pair(item)) for item in session.items]
        self.planned = len(pairs)
        now = datetime.now(UTC)
        self.infos = self._kernel_infos()
        header = RunHeader(
            suite="accuracy",
            protocol=ACCURACY_PROTOCOL,
            started_at=now.isoformat(timespec="seconds"),
            command=self.command(),
            environment=describe_machine(
                self.device,
                self.run.sm,
                strict=self.strict,
                unchecked=self.unchecked,
                hash_uuid=self.config.getoption("--hash-uuid"),
            ),
            kernels=self.infos,
            default_numerics=asdict(Numerics()),
            planned_rows=self.planned,
            gate_baselines=self.run.gate_baselines,
            files=self.files,
            absent=absent_kernels(self.config, {case.op for case in self.cases}),
        )
        resume = self.config.getoption("--resume")
        done = resumed.rows_of(resume, header, pairs, whole=self.share is None)
        self.open_record(header, now)
        kept = []
        for item, kernel, case in pairs:
            earlier = done.get((kernel.name, case.id()))
            reason = self.run.refusal(kernel, case)
            if reason is None and earlier is None:
                kept.append(item)
            elif self.share is None:  # else the run that it belongs to writes them
                self.add(earlier or self.run.refused(kernel, case, reason or ""))
        self.planned = len(self.rows) + len(kept)
        self.to_run = self.ran + len(kept)
        alone = int(self.config.getoption("--in-process"))
        jobs = (
            self.config.getoption("--jobs")
            or alone
            or shards.default_jobs(self.device.type, len(kept))
        )
        jobs = min(jobs, shards.most_jobs(self.cases, self.device.type))
        if jobs > 1 and self.share is None:
            arguments = list(map(str, self.config.invocation_params.args))
            huge = any(shards.is_huge(_pair(item)[1], self.device.type) for item in kept)
            self.shards = shards.Shards(jobs, huge, arguments, self.config.invocation_params.dir)
            kept = []
        session.items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Show progress while the tests run."""
        console = Console(stderr=True)
        columns = (
            TextColumn("accuracy"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}  {task.description}", markup=False),
        )
        if console.is_terminal:
            # pytest captures both streams while a test runs, so the bar is drawn between tests.
            self.progress = Progress(
                *columns,
                console=console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.progress.add_task("", total=self.to_run, failed=self.failures())
            self.progress.start()
        try:
            if self.shards is not None:
                self._follow(self.shards)
            return (yield)
        finally:
            if self.progress is not None:
                self.progress.stop()

    def _follow(self, processes: shards.Shards) -> None:
        """Take the rows of the run's processes as they come."""
        try:
            for row in processes.rows():
                self.add(row)
                self.advance()
        finally:
            self.suite_errors += processes.problems

    def advance(self) -> None:
        """One more test has ended."""
        if self.share is not None and os.getppid() != self.parent:
            pytest.exit("the run that this process belongs to is gone")
        now = time.monotonic()
        if self.progress is not None:
            name = self.rows[-1].kernel if self.rows else ""
            self.progress.update(
                self.progress.task_ids[0],
                completed=self.ran,
                failed=self.failures(),
                description=name,
            )
            if now - self.last_line > _REDRAW_EVERY_S:
                self.last_line = now
                self.progress.refresh()
        elif now - self.last_line > _LINE_EVERY_S:
            self.last_line = now
            line = f"accuracy: {self.ran:,} of {self.to_run:,} ran, {self.failures()}"
            print(line, file=sys.stderr, flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Advance the bar, too."""
        super().pytest_runtest_logreport(report)
        if report.when == "teardown":
            self.advance()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record, print the report, and set the exit status."""
        if self.writer is None or self.path is None:
            return
        ran = [row for row in self.rows if row.status != "refused"]
        failed = any(row.status == "failed" and row.gates for row in ran)
        if self.share is None:
            self.suite_errors += [
                f"{each} has changed while the run went on: rows may be of either; run again"
                for each in self.edited()
            ]
            failed = failed or any(each.fails for each in served(self.infos, self.rows))
        # A share of nothing but pairs that are refused, or that an earlier run has, is done.
        anything = bool(ran) or self.share is not None
        session.exitstatus = self.close_record(exitstatus, failed=failed, anything=anything)
        self._end_workers()
        console = report_console()
        console.print()
        render(read(self.path), console)
        if (self.interrupted or self.lost) and self.share is None:
            own = self.own_arguments() or ["--"]
            again = [
                each
                for before, each in pairwise(["", *own])
                if not each.startswith("--resume") and before != "--resume"
            ]
            again.append(f"--resume={self.path}")
            text = f"\nTo go on with it: {nox_command('accuracy', again)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.print_suite_errors(console)


def _pair(item: pytest.Item) -> tuple[Kernel, Case]:
    assert isinstance(item, pytest.Function)
    kernel, case = item.callspec.params["kernel"], item.callspec.params["case"]
    assert isinstance(kernel, Kernel)
    assert isinstance(case, Case)
    return kernel, case


SESSION: pytest.StashKey[AccuracySession] = pytest.StashKey()
