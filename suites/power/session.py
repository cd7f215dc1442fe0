"""The profile session: what is looped, the record that it writes, the progress that it shows."""

from __future__ import annotations

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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.registry import Kernel, KernelError
from oracles.op import Case, Numerics
from profiles.traces import Missing
from reports.command_line import report_console
from reports.profile import render
from reports.record import read
from reports.schema import AccuracyRow, Environment, ProfileRow, RunHeader
from suites.accuracy.fork_server import end_children
from suites.accuracy.run import DeviceLostError, Run
from suites.accuracy.worker_process import WorkersError
from suites.accuracy.workers import TaskError, Workers
from suites.described import case_info, describe_machine, kernel_info
from suites.nox_command import nox_command, path_in_command
from suites.options import DEVICE
from suites.power.cases import distributions_of, profiled_cases, profiled_kernels
from suites.power.looping import LOOP, Card, Looping, card_of
from suites.power.rows import Board, row_of
from suites.power.trials import Entry, Trials
from suites.recorded_run import RecordedRun
from suites.selection import absent_kernels, kernel_files, selected_kernels
from suites.user_cases import cases_options

_DROPPED_S = 1.0  # of a trial: clocks and power settle
_LINE_EVERY_S = 15.0  # between progress lines where there is no terminal


class PowerSession(RecordedRun[ProfileRow]):
    """A pytest plugin for one run: accuracy as tests, then the trials of what passed."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config, "profile", "suites/power")
        self.device = config.stash[DEVICE]
        self.card = _card(config)
        self.seconds, self.trials = config.getoption("--window"), config.getoption("--trials")
        torch.set_num_threads(1)
        most = config.getoption("--memory-limit")
        self.workers = Workers(
            self.device,
            self.card.sm,
            files=kernel_files(config),
            tasks=(LOOP,),
            time_limit_s=config.getoption("--time-limit"),
            memory_limit=None if most is None else int(most * 2**30),
        )
        config.add_cleanup(self._end_workers)
        try:
            kernels = selected_kernels(config, self.workers.kernels)
        except WorkersError as error:
            raise pytest.UsageError(str(error)) from error
        self.run = Run(
            device=self.device,
            sm=self.card.sm,
            gate_baselines=config.getoption("--gate-baselines"),
            named=frozenset(config.getoption("--kernel") or ()),
            reproduce_options=cases_options(config),
            workers=self.workers,
            signs=config.getoption("--signs"),
            two_calls_alone=True,
        )
        self.looping = Looping(self.workers, self.device, self.card.l2_bytes, LOOP)
        self.cases = profiled_cases(config, kernels)
        self.kernels_of = profiled_kernels(config, kernels, self.cases, self.run.sm)
        self.entries: list[Entry] = []
        self.board = Board(None, *(Missing("not measured", "the run ended before"),) * 2)
        self.progress: Progress | None = None
        self.started = self.last_line = time.monotonic()

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
        status, wrong = self._problem(kernel, case, row)
        if wrong is None:
            # What only stands beside another row has one trial less: minutes, over eight kernels.
            self.entries += [
                Entry(kernel, case, each, row, max(1, self.trials - bool(place)))
                for place, each in enumerate(distributions)
            ]
            return None
        for each in distributions:
            self._without_figure(kernel, case, each, status, wrong, row)
        return wrong

    def _problem(self, kernel: Kernel, case: Case, row: AccuracyRow) -> tuple[str, str | None]:
        """The status and the reason of a row without a figure; the reason None: it may have one."""
        if row.status == "no power":
            return "failed", "its accuracy can't be judged on this case: the bound says nothing"
        if row.status != "passed":
            return "wrong", f"{row.rule}: {row.reason}"
        try:
            wrong = self.looping.unconfirmed(self.run, kernel, case)
        except TaskError as error:
            return "failed", f"while it was looped, {error}"
        if wrong is None:
            return "passed", None
        return "wrong", f"its outputs were right before it was looped, and wrong after: {wrong}"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the record."""
        if self.begins_nothing(session):
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
        self._warn(environment)
        try:
            infos = tuple(kernel_info(each, self.run.sm) for each in chosen.values())
        except KernelError as error:
            raise pytest.UsageError(str(error)) from error
        header = RunHeader(
            suite="profile",
            started_at=now.isoformat(timespec="seconds"),
            command=self.command(),
            environment=environment,
            kernels=infos,
            default_numerics=asdict(Numerics()),
            planned_rows=self.planned,
            gate_baselines=self.run.gate_baselines,
            files=self.files,
            absent=absent_kernels(self.config, {case.op for case in self.cases}),
        )
        self.open_record(header, now)

    def _warn(self, environment: Environment) -> None:
        """Say before minutes pass that there will be no energy."""
        why = environment.missing.get("gpu_uuid")
        if environment.mig:
            why = "mig: the board's power is shared by its MIG instances"
        if why is not None:
            print(f"profile: rows will have times and no energy ({why})", file=sys.stderr)

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
        with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
            trials = Trials(
                sampling=self.card.sampling(Path(folder)),
                loop=self.looping.loop,
                seconds=self.seconds,
                dropped_s=_DROPPED_S,
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
                self.add(
                    row_of(
                        entry,
                        self.board,
                        gates=self.run.gates(entry.kernel),
                        reproduce=self._reproduce(entry.kernel, entry.case, entry.distribution),
                    )
                )

    def _without_figure(
        self,
        kernel: Kernel,
        case: Case,
        distribution: str,
        status: str,
        reason: str,
        accuracy: AccuracyRow | None = None,
    ) -> None:
        self.add(
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

    def _reproduce(self, kernel: Kernel, case: Case, distribution: str) -> str:
        parts: list[str] = []
        if kernel.origin == "user":
            parts.append(f"--kernels={path_in_command(Path(kernel.path))}")
        parts += ["--kernel", kernel.name, "--case", case.id(), "--distribution", distribution]
        command = nox_command("profile", ["--"])
        return " ".join([command, *self.run.reproduce_options, shlex.join(parts)])

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

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record, say where it is, and set the exit status."""
        if self.writer is None or self.path is None:
            return
        failed = any(row.gates and row.status in {"wrong", "failed"} for row in self.rows)
        measured = any(row.energy_j is not None for row in self.rows)
        session.exitstatus = self.close_record(exitstatus, failed=failed, anything=measured)
        self._end_workers()
        console = report_console()
        console.print()
        render(read(self.path), console)
        self.print_suite_errors(Console(stderr=True, soft_wrap=True))


def _card(config: pytest.Config) -> Card:
    """The GPU. Raises UsageError where there is none."""
    device = config.stash[DEVICE]
    if device.type == "cpu":
        asked = " --device cpu:" if config.getoption("--device") == "cpu" else ""
        raise pytest.UsageError(
            f"profile:{asked} power is read of an NVIDIA GPU, through its driver; run this where "
            "torch sees a CUDA device"
        )
    return card_of(device)


def _case_of(item: pytest.Item) -> Case:
    assert isinstance(item, pytest.Function)
    case = item.callspec.params["case"]
    assert isinstance(case, Case)
    return case


SESSION: pytest.StashKey[PowerSession] = pytest.StashKey()
