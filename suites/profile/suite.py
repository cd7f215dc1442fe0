"""`profile`: judge the accuracy of each pair, then loop the right ones, rows in turn."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.profiles.environment import gpu
from kernel_workbench.profiles.traces import Missing
from kernel_workbench.reports.record import AccuracyRow, ProfileRow
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.profile.cases import (
    Distribution,
    distributions_of,
    profiled_cases,
    profiled_kernels,
)
from kernel_workbench.suites.profile.loop_request import LOOP, Card, Looping, card_of
from kernel_workbench.suites.profile.rows import Board, row_of
from kernel_workbench.suites.profile.sampler_process import Sampling
from kernel_workbench.suites.profile.trials import Entry, Trials
from kernel_workbench.suites.run.descriptions import case_info
from kernel_workbench.suites.run.option_table import ProfileOptions
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.reproduce import command_of, deciding_options
from kernel_workbench.suites.run.selection import kernel_files, refusing, selected_kernels
from kernel_workbench.suites.run.suite import DeviceLostError, Pair, Suite
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import TaskError, Workers
from kernel_workbench.suites.sandbox.orphans import end_children

_DROPPED_S = 1.0  # clocks and power settle at a trial's begin


class Profile(Suite[ProfileRow]):
    """Loops every right pair. A pair whose accuracy fails, or can't be judged, has no figure."""

    name = "profile"
    takes = ProfileOptions
    options: ProfileOptions

    def __init__(self, options: ProfileOptions, device: torch.device) -> None:
        self.card = _card(options, device)
        super().__init__(options, device, sm=self.card.sm)
        self.workers = Workers(
            device,
            self.sm,
            files=kernel_files(options),
            tasks=(LOOP,),
            time_limit_s=options.time_limit,
            memory_limit=options.memory_limit,
        )
        self.entries: list[Entry] = []

    def plan(self) -> Sequence[Pair]:
        """Return the pairs that cases.py selects."""
        options = self.options
        with refusing(WorkersError):
            kernels = selected_kernels(options, self.workers.kernels)
        self.judge = Run(
            device=self.device,
            sm=self.sm,
            gate_baselines=options.gate_baselines,
            named=frozenset(options.kernel),
            reproduce_options=deciding_options(options, self.name, self.device),
            workers=self.workers,
            signs=options.signs,
            two_calls_alone=True,
        )
        self.looping = Looping(self.workers, self.device, self.card.l2_bytes, LOOP)
        cases = profiled_cases(options, self.device, kernels, self.workers.refusal)
        chosen = profiled_kernels(options, kernels, cases, self.sm)
        planned = [one for group in chosen.values() for one in group]
        self.kernels = tuple({(one.op.name, one.name): one for one in planned}.values())
        return [(kernel, case) for case in cases for kernel in chosen[case.id()]]

    def rows_of(self, kernel: Kernel, case: Case) -> int:
        """Return 1 for each distribution of the operands' values."""
        del kernel
        return len(self._distributions(case))

    def _distributions(self, case: Case) -> tuple[Distribution, ...]:
        return distributions_of(self.options.distribution, case)

    def begin(self) -> dict[str, Any]:
        """Print at once if the rows will have no energy, before minutes pass."""
        board = gpu(self.card.uuid, self.card.pci_bus_id)
        why = str(board) if isinstance(board, Missing) else None
        if self.machine.mig:
            why = "mig: the board's power is shared by its MIG instances"
        if why is not None:
            print(f"profile: rows will have times and no energy ({why})", file=sys.stderr)
        return {}

    def left_out(self) -> tuple[str, ...]:
        """Return what the workers couldn't import or build."""
        return self.workers.left_out

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return the reason of the kernel's domain, or None."""
        return self.judge.refusal(kernel, case)

    def refused(self, kernel: Kernel, case: Case, reason: str) -> Sequence[ProfileRow]:
        """Return a row for each distribution."""
        return self._without_figure(kernel, case, "refused", reason)

    def measure(self, kernel: Kernel, case: Case) -> Sequence[ProfileRow]:
        """Judge the pair. Returns its rows if it gets no figure, else none: `finish` loops it."""
        try:
            row = self.judge.try_pair(kernel, case)
        except DeviceLostError as lost:
            row = lost.args[0]
            reason = row.reason or ""
            rows = self._without_figure(kernel, case, "failed", reason, row)
            raise DeviceLostError(*rows) from lost
        status, wrong = self._problem(kernel, case, row)
        if wrong is not None:
            return self._without_figure(kernel, case, status, wrong, row)
        # Distributions after the first get one trial less: it saves minutes over eight kernels.
        trials = self.options.trials
        self.entries += [
            Entry(kernel, case, distribution, row, max(1, trials - bool(place)))
            for place, distribution in enumerate(self._distributions(case))
        ]
        return []

    def _problem(self, kernel: Kernel, case: Case, row: AccuracyRow) -> tuple[str, str | None]:
        """Return a row's status and the reason why it gets no figure, or None if it gets one."""
        if row.status == "no power":
            return "failed", "its accuracy can't be judged on this case: the bound says nothing"
        if row.status == "refused":
            return "refused", row.reason
        if row.status != "passed":
            return "wrong", f"{row.rule}: {row.reason}"
        try:
            wrong = self.looping.unconfirmed(self.judge, kernel, case)
        except TaskError as error:
            return "failed", f"while it was looped, {error}"
        if wrong is None:
            return "passed", None
        return "wrong", f"its outputs were right before it was looped, and wrong after: {wrong}"

    def finish(self, progress: Progress) -> Iterator[ProfileRow]:
        """Run the trials in turn, between two measurements of the idle board."""
        idle: list[float | str] = ["not measured: the run ended before"] * 2
        try:
            if self.entries:
                self._measure(progress, idle)
        finally:  # after Ctrl-C too
            board = Board(self.machine.power_limit_w, *idle)
            for entry in self.entries:
                if entry.windows or entry.failed is not None:
                    gates = self.judge.gates(entry.kernel)
                    command = self._reproduce(entry.kernel, entry.case, entry.distribution)
                    yield row_of(entry, board, gates=gates, reproduce=command)

    def _measure(self, progress: Progress, idle: list[float | str]) -> None:
        with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
            trials = Trials(
                sampling=Sampling(self.card.uuid, Path(folder), self.card.pci_bus_id),
                loop=self.looping.loop,
                seconds=self.options.window,
                dropped_s=_DROPPED_S,
                advance=progress.advance,
            )
            progress.begin(trials.count(self.entries))
            idle[0] = trials.idle()
            trials.run(self.entries)
            idle[1] = trials.idle()

    def _without_figure(
        self,
        kernel: Kernel,
        case: Case,
        status: str,
        reason: str,
        accuracy: AccuracyRow | None = None,
    ) -> list[ProfileRow]:
        """Return a row without figures for each distribution."""
        fields = {
            "op": kernel.op.name,
            "kernel": kernel.name,
            "case": case_info(case),
            "status": status,
            "reason": reason,
            "accuracy": None if accuracy is None else accuracy.status,
            "variant": None if accuracy is None else accuracy.variant,
            "validity": "invalid",
            "weight": case.weight,
            "gates": self.judge.gates(kernel),
        }
        return [
            ProfileRow.model_validate(
                fields | {"distribution": name, "reproduce": self._reproduce(kernel, case, name)}
            )
            for name in self._distributions(case)
        ]

    def _reproduce(self, kernel: Kernel, case: Case, distribution: str) -> str:
        more = [f"--distribution {distribution}"]
        return command_of(self.name, kernel, case, self.judge.reproduce_options, more)

    def wrong(self, row: ProfileRow) -> str | None:
        """Return why the row lacks a figure that it should have, or None."""
        return f"{row.status}: {row.reason}" if row.status in ("wrong", "failed") else None

    def counts(self, row: ProfileRow) -> bool:
        """Return True if the row has an energy."""
        return row.energy_j is not None

    def close(self) -> None:
        """End the workers, and processes that a candidate started and that might still write."""
        self.workers.close()
        end_children()


def _card(options: ProfileOptions, device: torch.device) -> Card:
    """Return the GPU. Raises UsageError if there is none."""
    if device.type == "cpu":
        option = " --device cpu:" if options.device == "cpu" else ""
        raise pytest.UsageError(
            f"profile:{option} power is read of an NVIDIA GPU, through its driver; run this where "
            "torch sees a CUDA device"
        )
    return card_of(device)
