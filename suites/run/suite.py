"""The interface between a suite and the session that runs it; session.py has the shared parts."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch

from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.record import (
    AccuracyRow,
    BenchRow,
    Environment,
    KernelInfo,
    ProfileRow,
    Record,
    Row,
)
from kernel_workbench.suites.run.option_table import (
    DEFAULT_SM,
    CallingOptions,
    DomainOptions,
    VerdictOptions,
)
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.run.selection import known_ops
from kernel_workbench.suites.run.shards import Claims

Pair = tuple[Kernel, Case]
PairRow = TypeVar("PairRow", bound=AccuracyRow | BenchRow | ProfileRow)


class DeviceLostError(RuntimeError):
    """A candidate left the GPU unusable for the judge too; the pair's rows are the arguments."""


class NoMemoryError(RuntimeError):
    """The GPU has too little memory for a pair, which is no verdict on the kernel."""

    def __init__(self, message: str, processes: int) -> None:
        beside = f" beside {processes - 1} other processes of this run" if processes > 1 else ""
        if processes == 2:
            beside = " beside another process of this run"
        again = "; run it again with --jobs 1" if processes > 1 else ""
        super().__init__(f"{_SHORT} for this case{beside} ({message}){again}")


_SHORT = "incomplete: the GPU has too little memory"
_LONGEST_MESSAGE = 300  # characters of PyTorch's message


def memory_message(error: torch.OutOfMemoryError) -> str:
    """Return PyTorch's message on one line, and free the tensors in the error's frames."""
    traceback.clear_frames(error.__traceback__)
    return " ".join(str(error).split())[:_LONGEST_MESSAGE]


def is_short(row: object) -> bool:
    """Return True if a row says that the GPU had too little memory for it."""
    return (getattr(row, "reason", None) or "").startswith(_SHORT)


class Suite(Generic[PairRow]):
    """A suite on a device, with its options.

    The session calls `close` at the end, whatever failed after the suite was created.

    takes      the class of its options
    sm         the GPU generation that domains are asked about
    kernels    the kernels of the pairs
    share      the cases of this process, if it is a process of a larger run; else None
    claims     the families of the run's cases, if this process takes one after the other
    machine    the record's environment, which is set before `begin`
    record_path    the record's path, which is set after `begin`
    processes  the number of processes of this run that share the GPU
    drawn      the suite draws its cases during the run, so that it plans no rows
    earlier    the record that a drawn run continues
    """

    name: ClassVar[str]
    takes: ClassVar[type[CallingOptions]]
    drawn: ClassVar[bool] = False
    earlier: Record | None = None
    strict: bool | None = None
    unchecked: tuple[str, ...] = ()
    share: frozenset[str] | None = None
    claims: Claims | None = None
    processes: int = 1
    machine: Environment
    record_path: Path
    kernels: tuple[Kernel, ...]

    def __init__(
        self, options: CallingOptions, device: torch.device, sm: int | None = None
    ) -> None:
        self.options, self.device = options, device
        # A case's tensors are too small to share: with two threads oracle, bound and verdict of
        # attention's cases take three times as long.
        torch.set_num_threads(1)
        known_ops(options)
        simulated = options.sm if isinstance(options, DomainOptions) else DEFAULT_SM
        self.sm: int = sm or (simulated if device.type == "cpu" else _sm_of_gpu())
        if device.type != "cpu":
            _refuse_on_gpu(options, self.sm)

    def plan(self) -> Sequence[Pair]:
        """Return the pairs, case by case, so that a case's truth is computed once.

        Raises:
            pytest.UsageError: the options select nothing, or something that doesn't exist.
        """
        raise NotImplementedError

    def rows_of(self, kernel: Kernel, case: Case) -> int:
        """Return the number of rows of a pair."""
        del kernel, case
        return 1

    def begin(self) -> dict[str, Any]:
        """Return the fields of the record's header that this suite adds. Raises UsageError."""
        return {}

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Return why the pair isn't tried; None if it is."""
        raise NotImplementedError

    def refused(self, kernel: Kernel, case: Case, reason: str) -> Sequence[PairRow]:
        """Return the rows of a pair that isn't tried."""
        raise NotImplementedError

    def jobs(self, kept: Sequence[Pair]) -> tuple[int, bool]:
        """Return the number of processes, and True if some cases are tried alone afterwards."""
        del kept
        return 1, False

    def likely_jobs(self) -> int:
        """Return the number of processes that the options make likely, before `plan`; 0: none."""
        return 0

    def for_processes(self, count: int) -> str:
        """Return what the run's other processes, `count` of them, read with --known."""
        del count
        return ""

    def prepare(self, kept: Sequence[Pair]) -> None:
        """Do the suite's work before the first pair."""

    def measure(self, kernel: Kernel, case: Case) -> Sequence[PairRow]:
        """Try a pair. Raises DeviceLostError."""
        raise NotImplementedError

    def finish(self, progress: Progress) -> Iterator[PairRow]:
        """Yield the rows of pairs that are measured together, after each pair was tried.

        Ctrl-C yields the rows so far, and then raises KeyboardInterrupt.
        """
        del progress
        return iter(())

    def summary(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield the last rows, which summarise all others; Ctrl-C doesn't skip them."""
        del rows
        return iter(())

    def wrong(self, row: PairRow) -> str | None:
        """Return what is wrong with a row, or None; a wrong row that gates fails the run."""
        raise NotImplementedError

    def counts(self, row: PairRow) -> bool:
        """Return True if the row is a result; a run without any result isn't complete."""
        raise NotImplementedError

    def fails(self, kernels: Sequence[KernelInfo], rows: Sequence[PairRow]) -> bool:
        """Return True if something beside a wrong row fails the run."""
        del kernels, rows
        return False

    def left_out(self) -> tuple[str, ...]:
        """Return sentences about files and kernels of the user that can't be tried here."""
        return ()

    def close(self) -> None:
        """End the suite's processes."""


def _refuse_on_gpu(options: CallingOptions, sm: int) -> None:
    """Raise UsageError for an option that means something on a CPU alone."""
    if isinstance(options, DomainOptions) and options.sm not in (DEFAULT_SM, sm):
        raise pytest.UsageError(
            f"--sm {options.sm}: this GPU's generation is {sm}, which a run on it has to use; "
            "leave --sm out, or add --device cpu"
        )
    if isinstance(options, VerdictOptions) and options.no_strict:
        raise pytest.UsageError(
            "--no-strict: it changes the interpreter, which a run on a GPU doesn't use; leave it "
            "out, or add --device cpu"
        )


def _sm_of_gpu() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
