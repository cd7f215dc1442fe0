"""What a suite says to the session that runs it; session.py has all that suites do alike."""

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

Pair = tuple[Kernel, Case]
PairRow = TypeVar("PairRow", bound=AccuracyRow | BenchRow | ProfileRow)


class DeviceLostError(RuntimeError):
    """A candidate left the GPU unusable for the judge too. Its arguments: the rows of the pair."""


class NoMemoryError(RuntimeError):
    """The GPU has too little memory for a pair, which says nothing of the kernel: a sentence."""

    def __init__(self, told: str, processes: int) -> None:
        beside = f" beside {processes - 1} other processes of this run" if processes > 1 else ""
        if processes == 2:
            beside = " beside another process of this run"
        again = "; run it again with --jobs 1" if processes > 1 else ""
        super().__init__(f"{_SHORT} for this case{beside} ({told}){again}")


_SHORT = "incomplete: the GPU has too little memory"
_LONGEST_REPORT = 300  # characters of what PyTorch says when it finds no memory


def told_of_memory(error: torch.OutOfMemoryError) -> str:
    """Return what PyTorch says on one line, and let go of the tensors in the error's frames."""
    traceback.clear_frames(error.__traceback__)
    return " ".join(str(error).split())[:_LONGEST_REPORT]


def is_short(row: object) -> bool:
    """Return whether a row says that the GPU had no memory for it."""
    return (getattr(row, "reason", None) or "").startswith(_SHORT)


class Suite(Generic[PairRow]):
    """A suite on a device, as its options ask for it.

    Made before anything is checked that may fail; `close` is called from then on, whatever comes.

    takes      the class of its options
    sm         what domains are asked about
    kernels    those of the pairs
    share      the cases of this process, where another one of the same run started it
    machine    set before `begin`
    record_path    set after it
    processes  how many processes of this run share the GPU
    drawn      what is tried is drawn while the run goes on, so that nothing is planned
    earlier    the record of a drawn run that is gone on with
    """

    name: ClassVar[str]
    takes: ClassVar[type[CallingOptions]]
    drawn: ClassVar[bool] = False
    earlier: Record | None = None
    strict: bool | None = None
    unchecked: tuple[str, ...] = ()
    share: frozenset[str] | None = None
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
        """Kernels and cases, case by case: a case's truth is computed once. Raises UsageError."""
        raise NotImplementedError

    def rows_of(self, kernel: Kernel, case: Case) -> int:
        """How many rows a pair has."""
        del kernel, case
        return 1

    def begin(self) -> dict[str, Any]:
        """What the record's header has of this suite alone. Raises UsageError."""
        return {}

    def refusal(self, kernel: Kernel, case: Case) -> str | None:
        """Why the pair isn't tried; None where it is."""
        raise NotImplementedError

    def refused(self, kernel: Kernel, case: Case, reason: str) -> Sequence[PairRow]:
        """The rows of a pair that isn't."""
        raise NotImplementedError

    def jobs(self, kept: Sequence[Pair]) -> tuple[int, bool]:
        """Processes that share what is tried, and whether part of it is tried alone afterwards."""
        del kept
        return 1, False

    def known(self) -> str:
        """What a process of the same run needn't find out again; it reads it by --known."""
        return ""

    def prepare(self, kept: Sequence[Pair]) -> None:
        """What comes once before the first pair."""

    def measure(self, kernel: Kernel, case: Case) -> Sequence[PairRow]:
        """Try a pair. Raises DeviceLostError."""
        raise NotImplementedError

    def finish(self, progress: Progress) -> Iterator[PairRow]:
        """The rows of what is measured together, after each pair was tried.

        On Ctrl-C those that there are, and then KeyboardInterrupt.
        """
        del progress
        return iter(())

    def summary(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Rows about all rows of the run, which come last; after Ctrl-C too."""
        del rows
        return iter(())

    def wrong(self, row: PairRow) -> str | None:
        """What is wrong with a row; it fails the run where the row gates."""
        raise NotImplementedError

    def counts(self, row: PairRow) -> bool:
        """Whether the row is what the run is for: without any it fails."""
        raise NotImplementedError

    def fails(self, kernels: Sequence[KernelInfo], rows: Sequence[PairRow]) -> bool:
        """Whether more than a wrong row fails the run."""
        del kernels, rows
        return False

    def left_out(self) -> tuple[str, ...]:
        """Return sentences about files and kernels of the user that can't be tried here."""
        return ()

    def close(self) -> None:
        """End what the suite started."""


def _refuse_on_gpu(options: CallingOptions, sm: int) -> None:
    """Raise UsageError for an option that means something on a CPU alone."""
    if isinstance(options, DomainOptions) and options.sm not in (DEFAULT_SM, sm):
        raise pytest.UsageError(
            f"--sm {options.sm}: on a GPU domains are asked about its own, which is {sm}; leave it "
            "out, or add --device cpu"
        )
    if isinstance(options, VerdictOptions) and options.no_strict:
        raise pytest.UsageError(
            "--no-strict: it is about the interpreter, which a GPU doesn't use; leave it out, or "
            "add --device cpu"
        )


def _sm_of_gpu() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
