"""The profile session: what is looped, the record that it writes, the progress that it shows."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.registry import Kernel, KernelError
from oracles import OPS
from oracles.op import Case, Inputs, Numerics
from profiles.traces import Missing
from reports.record import RecordError, RecordWriter, new_path
from reports.schema import AccuracyRow, ProfileRow, RunEnd, RunHeader
from suites.accuracy.fork_server import end_children
from suites.accuracy.parcels import Parcel
from suites.accuracy.run import DeviceLostError, Run
from suites.accuracy.worker_process import WorkersError
from suites.accuracy.workers import TaskError, Workers
from suites.described import case_info, describe_machine, kernel_info, pci_bus_id, shortest
from suites.options import DEVICE
from suites.power.cases import distributions_of, profiled_cases, profiled_kernels
from suites.power.figures import Reply
from suites.power.rows import Board, row_of
from suites.power.sampling import Sampling
from suites.power.trials import Entry, Trials
from suites.selection import absent_kernels, kernel_files, selected_kernels
from suites.user_cases import cases_options

RECORD_NOTE = "WORKBENCH_RECORD_NOTE"
_LOOP = "suites.power.loop"
_BATCH_S = 0.05  # of calls: short against a window, long against what a replay costs the host
_SETTLING_S = 120.0  # of a worker, for compiling and tuning before it loops
_LINE_EVERY_S = 15.0  # between progress lines where there is no terminal
_MOST_SETS = 8
_L2S = (
    2  # the inputs of a replay are as large as so many L2 caches, so that each call finds it cold
)
_KEPT = frozenset({"lse", "rstd", "cu_seqlens_q", "cu_seqlens_kv"})  # no operand of a product


class PowerSession:
    """A pytest plugin for one run: accuracy as tests, then the trials of what passed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.device = config.stash[DEVICE]
        if self.device.type == "cpu":
            asked = " --device cpu:" if config.getoption("--device") == "cpu" else ""
            raise pytest.UsageError(
                f"profile:{asked} power is read of an NVIDIA GPU, through its driver; run this "
                "where torch sees a CUDA device"
            )
        self.seconds, self.trials = config.getoption("--window"), config.getoption("--trials")
        if self.seconds < 2 or self.trials < 1:
            raise pytest.UsageError(
                "--window takes 2 seconds or more (one is dropped), --trials 1 or more"
            )
        torch.set_num_threads(1)
        major, minor = torch.cuda.get_device_capability()
        self.workers = Workers(
            self.device,
            10 * major + minor,
            files=kernel_files(config),
            tasks=(_LOOP,),
            time_limit_s=config.getoption("--time-limit"),
        )
        config.add_cleanup(self._end_workers)
        try:
            kernels = selected_kernels(config, self.workers.kernels)
        except WorkersError as error:
            raise pytest.UsageError(str(error)) from error
        self.run = Run(
            device=self.device,
            sm=10 * major + minor,
            gate_baselines=config.getoption("--gate-baselines"),
            named=frozenset(config.getoption("--kernel") or ()),
            reproduce_options=cases_options(config),
            workers=self.workers,
            signs=config.getoption("--signs"),
        )
        self.cases = profiled_cases(config, kernels)
        self.kernels_of = profiled_kernels(config, kernels, self.cases, self.run.sm)
        self.entries: list[Entry] = []
        self.rows: list[ProfileRow] = []
        self.planned = 0
        self.board = Board(None, *(Missing("not measured", "the run ended before"),) * 2)
        self.writer: RecordWriter | None = None
        self.path: Path | None = None
        self.progress: Progress | None = None
        self.started = self.last_line = time.monotonic()
        self.interrupted = False
        self.suite_errors: list[str] = []

    def _end_workers(self) -> None:
        self.workers.close()
        end_children()

    def admit(self, kernel: Kernel, case: Case) -> str | None:
        """Judge the pair and plan its rows; why it gets no figure, where it doesn't."""
        reason = self.run.refusal(kernel, case)
        distributions = distributions_of(self.config.getoption("--distribution"), case)
        if reason is not None:
            for each in distributions:
                self._without_figure(kernel, case, each, "refused", reason)
            return None
        try:
            row = self.run.try_pair(kernel, case)
        except DeviceLostError as error:
            row = error.args[0]
            assert isinstance(row, AccuracyRow)
            for each in distributions:
                self._without_figure(kernel, case, each, "failed", row.reason or "", row)
            self.interrupted = True
            pytest.exit(f"{kernel.name} on {case.id()}: {row.reason}; the GPU is lost to this run")
        if row.status == "passed":
            self.entries += [Entry(kernel, case, each, row) for each in distributions]
            return None
        wrong = f"{row.rule}: {row.reason}" if row.rule else "its accuracy can't be told here"
        for each in distributions:
            self._without_figure(kernel, case, each, "wrong", wrong, row)
        return wrong

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the record."""
        if session.config.getoption("collectonly"):
            return
        chosen = {each.name: each for of in self.kernels_of.values() for each in of}
        asked = self.config.getoption("--distribution")
        cases = [_case_of(item) for item in session.items]
        self.planned = sum(len(distributions_of(asked, case)) for case in cases)
        now = datetime.now(UTC)
        environment = describe_machine(
            self.device,
            self.run.sm,
            strict=None,
            hash_uuid=self.config.getoption("--hash-uuid"),
        )
        self.board = Board(
            environment.power_limit_w, self.board.idle_before_w, self.board.idle_after_w
        )
        try:
            infos = tuple(kernel_info(each, self.run.sm) for each in chosen.values())
        except KernelError as error:
            raise pytest.UsageError(str(error)) from error
        header = RunHeader(
            suite="profile",
            started_at=now.isoformat(timespec="seconds"),
            command=shlex.join(["nox", "-s", "profile", *self._typed()]),
            environment=environment,
            kernels=infos,
            default_numerics=asdict(Numerics()),
            planned_rows=self.planned,
            gate_baselines=self.run.gate_baselines,
            absent=absent_kernels(self.config, {case.op for case in self.cases}),
        )
        results = Path(self.config.getoption("--results"))
        self.path = new_path(results, "profile", now, environment.device_name)
        try:
            self.writer = RecordWriter(self.path, header)
        except RecordError as error:
            raise pytest.UsageError(f"--results {results}: {error}") from error
        if note := os.environ.get(RECORD_NOTE):
            Path(note).write_text(str(self.path.resolve()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """After the tests, which are the accuracy: the trials, and the rows."""
        result = yield
        if self.writer is None or session.shouldstop or session.shouldfail:
            return result
        try:
            self._measure()
        finally:  # after Ctrl-C too
            self._write()
        return result

    def _measure(self) -> None:
        if not self.entries:
            return
        properties = torch.cuda.get_device_properties(self.device)
        with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
            sampling = Sampling(str(properties.uuid), Path(folder), pci_bus_id(properties))
            trials = Trials(
                sampling=sampling,
                loop=self._loop,
                seconds=self.seconds,
                dropped_s=1.0,
                trials=self.trials,
                advance=self._advance,
            )
            self._start_progress(trials.count(self.entries))
            try:
                limit = self.board.power_limit_w
                before = trials.idle()
                self.board = Board(limit, before, self.board.idle_after_w)
                trials.run(self.entries)
                self.board = Board(limit, before, trials.idle())
            finally:
                if self.progress is not None:
                    self.progress.stop()

    def _write(self) -> None:
        for entry in self.entries:
            if entry.windows or entry.failed is not None:
                self._add(
                    row_of(
                        entry,
                        self.board,
                        gates=self.run.gates(entry.kernel),
                        reproduce=self._reproduce(entry.kernel, entry.case, entry.distribution),
                    )
                )

    def _loop(self, entry: Entry, seconds: float) -> Reply:
        """Loop the entry's kernel in a worker. Raises TaskError."""
        settings = {"seconds": seconds, "batch_s": _BATCH_S}
        parcels = self._parcels(entry)
        limit_s = seconds + _SETTLING_S
        said, _ = self.workers.task(entry.kernel, entry.case, parcels, _LOOP, settings, limit_s)
        try:
            reply = Reply.model_validate(said)
        except ValidationError as error:
            raise TaskError("process ended", "its process sent what no worker sends") from error
        if not reply.batches or any(calls < 1 for _, calls, _ in reply.batches):
            raise TaskError("process ended", "its process says that it made no calls")
        return reply

    def _parcels(self, entry: Entry) -> list[Parcel]:
        """The inputs, as often as it takes for a call not to find them in L2."""
        op = OPS[entry.case.op]
        inputs = op.inputs(entry.case, self.device)
        parcel = Parcel.of(inputs, self.workers.arena_device)
        if entry.distribution == "zeros":
            parcel.change(_zero)
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        sets = -(-_L2S * l2_bytes // max(1, op.bytes(entry.case)))
        return [parcel] * min(_MOST_SETS, sets)

    def _without_figure(
        self,
        kernel: Kernel,
        case: Case,
        distribution: str,
        status: str,
        reason: str,
        accuracy: AccuracyRow | None = None,
    ) -> None:
        self._add(
            ProfileRow.model_validate(
                {
                    "op": kernel.op.name,
                    "kernel": kernel.name,
                    "case": case_info(case),
                    "distribution": distribution,
                    "status": status,
                    "reason": reason,
                    "accuracy": None if accuracy is None else accuracy.status,
                    "variant": None if accuracy is None else accuracy.variant,
                    "validity": "invalid",
                    "weight": case.weight,
                    "gates": self.run.gates(kernel),
                    "reproduce": self._reproduce(kernel, case, distribution),
                }
            )
        )

    def _add(self, row: ProfileRow) -> None:
        assert self.writer is not None
        try:
            self.writer.write(row)
        except RecordError as error:
            pytest.exit(str(error), returncode=int(pytest.ExitCode.INTERRUPTED))
        self.rows.append(row)

    def _reproduce(self, kernel: Kernel, case: Case, distribution: str) -> str:
        parts: list[str] = []
        if kernel.origin == "user":
            parts.append(f"--kernels={shortest(Path(kernel.path))}")
        parts += ["--kernel", kernel.name, "--case", case.id(), "--distribution", distribution]
        return " ".join(["nox -s profile --", *self.run.reproduce_options, shlex.join(parts)])

    def _typed(self) -> list[str]:
        given = map(str, self.config.invocation_params.args)
        typed = [each for each in given if each.rstrip("/") != "suites/power"]
        return ["--", *typed] if typed else []

    def _start_progress(self, loops: int) -> None:
        console = Console(stderr=True)
        self.last_line = time.monotonic()
        self.loops, self.looped = loops, 0
        if console.is_terminal:
            self.progress = Progress(
                TextColumn("profile"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
            )
            self.progress.add_task("idle", total=loops)
            self.progress.start()

    def _advance(self, label: str) -> None:
        """Another loop begins."""
        if self.progress is not None:
            self.progress.update(
                self.progress.task_ids[0], completed=self.looped, description=label
            )
        elif time.monotonic() - self.last_line > _LINE_EVERY_S:
            self.last_line = time.monotonic()
            line = f"profile: {self.looped:,} of {self.loops:,} loops, {label}"
            print(line, file=sys.stderr, flush=True)
        self.looped += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Count each test, with no letter for it: the record says it."""
        if hasattr(report, "wasxfail"):
            return "xfailed", "", ""
        counts = report.when == "call" or report.failed
        return report.outcome if counts else "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what went wrong in the suite itself, to be shown at the end."""
        if report.failed and not any(key == "judged" for key, _ in report.user_properties):
            self.suite_errors.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C: what has been measured is kept."""
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record, say where it is, and set the exit status."""
        if self.writer is None or self.path is None:
            return
        failed = any(row.gates and row.status in {"wrong", "failed"} for row in self.rows)
        measured = any(row.status == "measured" for row in self.rows)
        lost = len(self.rows) < self.planned
        if exitstatus in (0, 1, 5):
            exitstatus = int(failed or not measured or lost or bool(self.suite_errors))
        try:
            self.writer.close(
                RunEnd(
                    finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    duration_s=time.monotonic() - self.started,
                    rows=len(self.rows),
                    interrupted=self.interrupted or lost,
                    exit_status=int(exitstatus),
                )
            )
        except RecordError as error:
            print(error, file=sys.stderr)
            exitstatus = exitstatus or 1
        session.exitstatus = exitstatus
        self._end_workers()
        print(f"\n{self.path}")
        for each in self.suite_errors:
            print("\nThe suite itself failed, which is no verdict on the kernel:", file=sys.stderr)
            print(each, file=sys.stderr)


def _case_of(item: pytest.Item) -> Case:
    assert isinstance(item, pytest.Function)
    case = item.callspec.params["case"]
    assert isinstance(case, Case)
    return case


def _zero(inputs: Inputs) -> None:
    """Every floating-point operand zero: the bits that a datapath sees never change."""
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and name not in _KEPT and value.is_floating_point():
            value.zero_()


SESSION: pytest.StashKey[PowerSession] = pytest.StashKey()
