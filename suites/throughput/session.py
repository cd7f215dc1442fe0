"""The throughput session: what is timed, the record it writes, the progress it shows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import pytest
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.registry import Kernel, KernelError
from oracles.op import Case, Numerics
from reports.bench import render
from reports.command_line import report_console
from reports.record import read
from reports.schema import BENCH_PROTOCOL, BenchRow, RunHeader
from suites.accuracy.fork_server import end_children
from suites.accuracy.run import Run
from suites.accuracy.worker_process import WorkersError
from suites.accuracy.workers import Workers
from suites.described import describe_machine, kernel_info
from suites.options import DEVICE
from suites.recorded_run import RecordedRun
from suites.selection import absent_kernels, kernel_files, selected_kernels
from suites.throughput.ahead import compile_ahead
from suites.throughput.pairs import Pairs
from suites.throughput.rows import TASK, Bench
from suites.throughput.saved_runs import save_nothing, show_tables
from suites.throughput.survey import survey
from suites.user_cases import cases_options

_LINE_EVERY_S = 15.0  # between progress lines where there is no terminal
_QUICK = 0.2  # of a row's time


class ThroughputSession(RecordedRun[BenchRow]):
    """A pytest plugin for one run: refused pairs go to the record, the rest run as tests."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config, "bench", "suites/throughput")
        self.device = config.stash[DEVICE]
        self.cache = config.getoption("--cache")
        self.row_s = config.getoption("--row-time") * (_QUICK if config.getoption("--quick") else 1)
        _check(config, self.device)
        # Inductor's own processes, a pool for each of ours that compiles, would only be in the way.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch.set_num_threads(1)
        if self.device.type == "cuda":
            major, minor = torch.cuda.get_device_capability()
            self.sm = 10 * major + minor
        else:
            self.sm = int(config.getoption("--sm"))
        self.workers = self._new_workers()
        # From here on what fails has to end the workers too.
        config.add_cleanup(self._end_workers)
        self.workers.prepare()
        try:
            kernels = selected_kernels(config, self.workers.kernels)
        except WorkersError as error:
            raise pytest.UsageError(str(error)) from error
        self.pairs = Pairs.selected(config, kernels, self.device, self.sm)
        self.run = Run(
            device=self.device,
            sm=self.sm,
            gate_baselines=config.getoption("--gate-baselines"),
            named=frozenset(config.getoption("--kernel") or ()),
            reproduce_options=(
                *cases_options(config),
                *(() if self.cache == "cold" else (f"--cache {self.cache}",)),
            ),
            workers=self.workers,
            signs=config.getoption("--signs"),
            two_calls_alone=True,
        )
        self.machine = describe_machine(
            self.device, self.sm, strict=None, hash_uuid=config.getoption("--hash-uuid")
        )
        self.bench: Bench | None = None
        self.to_run = self.ran = 0
        self.progress: Progress | None = None
        self.started = self.last_line = time.monotonic()

    def _new_workers(self) -> Workers:
        most = self.config.getoption("--memory-limit")
        return Workers(
            self.device,
            self.sm,
            strict=False,  # a kernel that is interpreted isn't timed
            files=kernel_files(self.config),
            tasks=(TASK,),
            time_limit_s=self.config.getoption("--time-limit"),
            memory_limit=None if most is None else int(most * 2**30),
        )

    def _end_workers(self) -> None:
        self.workers.close()
        end_children()  # a candidate's own, which might still write to the record

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Measure roofs and flush, and start the record; refused pairs are rows already."""
        if self.begins_nothing(session):
            return
        chosen = [self.pair(item) for item in session.items]
        self.planned = len(chosen)
        now = datetime.now(UTC)
        header = self._header(now)
        self.open_record(header, now)
        kept = []
        assert self.bench is not None
        for item, (kernel, case) in zip(session.items, chosen, strict=True):
            reason = self.pairs.refusal(kernel) or self.run.refusal(kernel, case)
            if reason is None:
                kept.append(item)
            else:
                self.add(self.bench.refused(kernel, case, reason))
        self.to_run = len(kept)
        session.items[:] = kept

    def pair(self, item: pytest.Item) -> tuple[Kernel, Case]:
        """What a test is about."""
        assert isinstance(item, pytest.Function)
        params = item.callspec.params
        return self.pairs.named(str(params["kernel"]), str(params["case"]))

    def _header(self, now: datetime) -> RunHeader:
        """What the record says first; the roofs are measured for it."""
        try:
            infos = tuple(kernel_info(each, self.sm) for each in self.pairs.kernels)
        except KernelError as error:
            raise pytest.UsageError(str(error)) from error
        print("bench: measuring what this device does of plain work", file=sys.stderr, flush=True)
        ground = survey(self.device, self.machine)
        if self.cache == "cold" and not ground.probe.evicts:
            raise pytest.UsageError(
                f"bench: {ground.probe.reason}, so no sample would be cold; --cache warm times "
                "calls on a warm cache"
            )
        self.bench = Bench(
            self.run,
            self.workers,
            ground.roofs,
            self.cache,
            self.row_s,
            ground.default_clock_mhz,
            self.config.getoption("--time-limit"),
        )
        return RunHeader(
            suite="bench",
            protocol=BENCH_PROTOCOL,
            started_at=now.isoformat(timespec="seconds"),
            command=self.command(),
            environment=self.machine,
            kernels=infos,
            default_numerics=asdict(Numerics()),
            planned_rows=self.planned,
            gate_baselines=self.run.gate_baselines,
            files=self.files,
            absent=absent_kernels(self.config, {case.op for _, case in self.pairs.planned}),
            roofs=ground.told,
            flush=ground.probe,
            empty_call_us=ground.empty_call_us,
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Compile ahead, then show progress while the tests run."""
        if self.bench is not None:
            self.bench.first_calls |= compile_ahead(
                [self.pair(item) for item in session.items],
                self.device,
                self._new_workers,
            )
        console = Console(stderr=True)
        if console.is_terminal:
            # pytest captures both streams while a test runs, so the bar is drawn between tests.
            self.progress = Progress(
                TextColumn("bench"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.progress.add_task("", total=self.to_run)
            self.progress.start()
        try:
            return (yield)
        finally:
            if self.progress is not None:
                self.progress.stop()
            if not any(row.status == "timed" for row in self.rows):
                save_nothing(self.config)

    def _advance(self) -> None:
        """One more test has ended."""
        self.ran += 1
        now = time.monotonic()
        label = ""
        if self.rows:
            last = self.rows[-1]
            figure = "" if last.median_us is None else f", {last.median_us:,.1f} us"
            label = f"{last.kernel} on {last.case.id}: {last.status}{figure}"
        if self.progress is not None:
            task = self.progress.task_ids[0]
            self.progress.update(task, completed=self.ran, description=label)
            self.progress.refresh()
        elif now - self.last_line > _LINE_EVERY_S:
            self.last_line = now
            line = f"bench: {self.ran:,} of {self.to_run:,}, {label}"
            print(line, file=sys.stderr, flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Advance the bar, too."""
        super().pytest_runtest_logreport(report)
        if report.when == "teardown":
            self._advance()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record, say where it is, and set the exit status."""
        if self.writer is None or self.path is None:
            return
        failed = any(row.gates and row.status in {"wrong", "failed"} for row in self.rows)
        timed = any(row.status == "timed" for row in self.rows)
        failed |= not show_tables(self.config)
        session.exitstatus = self.close_record(exitstatus, failed=failed, anything=timed)
        self._end_workers()
        if not timed and self.rows:
            print(f"bench: nothing was timed: {self.rows[-1].reason}", file=sys.stderr)
        console = report_console()
        console.print()
        render(read(self.path), console)
        self.print_suite_errors(Console(stderr=True, soft_wrap=True))


def _check(config: pytest.Config, device: torch.device) -> None:
    """Options that bench can't do with. Raises UsageError."""
    if device.type == "cpu" and config.getoption("--device") != "cpu":
        raise pytest.UsageError(
            "bench: torch sees no GPU here; run this on a machine with one, or with --device cpu, "
            "which times PyTorch's own kernels on the CPU"
        )


SESSION: pytest.StashKey[ThroughputSession] = pytest.StashKey()
