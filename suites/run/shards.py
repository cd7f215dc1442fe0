"""A run spread over processes: each tries its share of the cases, and one writes the record.

On a CPU the interpreter uses one core; on a GPU most of a run's time is Triton's compiler, which
uses one core too. A share is made of whole cases, so that a case's truth is computed once; on a
GPU, of whole families that need the same compiled kernels, and on a CPU of families that need the
same graph of a reference. Cases whose truth takes most of a card's
memory are a last share, which has the card to itself.
A process of a run is pytest with the same arguments and `--shard`; its rows are taken from its own
record as they come, and one that dies takes its share with it and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import AccuracyRow, FindRow, Line, RunEnd
from kernel_workbench.suites.run.user_cases import TIMES_ITS_BYTES

# Names a file that is to hold the record's path: who started the run can then see that it ended,
# which a status of 0 doesn't show where a candidate ends the process itself.
RECORD_NOTE = "WORKBENCH_RECORD_NOTE"
FEWEST_PAIRS = 150  # below this one process is done before a second one has started
# What a process of a run costs on a CPU beside its cases, in seconds as `weight_of` counts them:
# its judge, its server of workers and a user's process import torch, in 5 s, and small cases take
# two thirds of their weights.
_START_S = 7.5
MOST_ON_GPU = 12  # of one driver, which they wait for
# Contexts of CUDA that a process of a run has on the card, in its judge, its worker and its user's
# process, at about half a GiB.
_CONTEXTS_BYTES = 3 * 2**29
_HUGE_BYTES = 2**31
_FAMILIES = 8  # that a process has at least, before they are taken apart
_POLL_S = 0.1
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


def default_jobs(device: str, pairs: int, seconds: float | None = None) -> int:
    """Return how many processes a run of so many pairs is spread over.

    seconds: what the pairs take one process of a CPU, if that is known. It isn't spread where more
    processes would save less than they take to start.
    """
    if pairs < FEWEST_PAIRS:
        return 1
    cores = len(os.sched_getaffinity(0))
    if device != "cpu":
        return max(1, min(MOST_ON_GPU, cores * 3 // 4))
    saved = None if seconds is None else seconds * (1 - 1 / cores)
    return 1 if saved is not None and saved < _START_S else cores


def memory_of(case: Case) -> int:
    """Return about how many bytes a case takes of a card, with its truth and bounds."""
    return TIMES_ITS_BYTES * OPS[case.op].bytes(case)


def fitting_jobs(needed: Iterable[int], free: int) -> int:
    """Return how many processes fit side by side into the free bytes of a card, at least 1.

    needed: bytes of each case. They fit where as many of the largest cases do at one time.
    """
    total, largest = 0, sorted(needed, reverse=True)
    for count in range(MOST_ON_GPU):
        total += _CONTEXTS_BYTES + (largest[count] if count < len(largest) else 0)
        if total > free:
            return max(1, count)
    return MOST_ON_GPU


def most_jobs(cases: Sequence[Case], device: str) -> int:
    """The most processes of which each has a case to try; the huge cases' aside."""
    if device == "cpu":
        return len(cases)
    return len({_family(case, device) for case in cases if not is_huge(case, device)})


def share_of(cases: Sequence[Case], number: int, count: int, device: str) -> frozenset[str]:
    """The ids of the cases that share `number` of `count` tries: about equal work, all covered.

    Share `count`, the one after the last, has the huge cases of a GPU.
    """
    huge = {case.id() for case in cases if is_huge(case, device)}
    if number == count:
        return frozenset(huge)
    families: dict[object, list[Case]] = {}
    for case in cases:
        if case.id() not in huge:
            families.setdefault(_family(case, device), []).append(case)
    loads = [0.0] * count
    mine: set[str] = set()
    weighed = [
        (sum(weight_of(case, device) for case in family), family) for family in families.values()
    ]
    if device == "cpu":  # a graph is made in a second: no process waits for another's
        most = sum(weight for weight, _ in weighed) / (_FAMILIES * count)
        large = [case for weight, each in weighed if weight > most for case in each]
        weighed = [pair for pair in weighed if pair[0] <= most]
        weighed += [(weight_of(case, device), [case]) for case in large]
    for weight, each in sorted(weighed, key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        loads[least] += weight
        if least == number:
            mine.update(case.id() for case in each)
    return frozenset(mine)


def is_huge(case: Case, device: str) -> bool:
    """Whether the case is to be tried with nothing else on the GPU."""
    return device != "cpu" and OPS[case.op].bytes(case) > _HUGE_BYTES


def _family(case: Case, device: str) -> object:
    if device == "cpu":
        return (case.op, case.sizes) if isinstance(OPS[case.op], ReferenceOp) else case.id()
    blocks = tuple(
        (size - 1).bit_length() for name, size in case.sizes if name in OPS[case.op].widths
    )
    # Ops of one kind run the same kernels: a pass end to end those of its two halves.
    kind, _, _ = case.op.partition("_")
    return kind, case.dtype_label, case.options, blocks


def weight_of(case: Case, device: str) -> float:
    """About how many seconds a case takes, to be compared with another's alone."""
    flops = OPS[case.op].flops(case)
    return 0.05 + flops * (4e-8 if device == "cpu" else 1e-12)


@dataclass(slots=True)
class _Process:
    """One process of a run, its folder, and how much of its record has been taken."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    taken: int = 0
    ended: RunEnd | None = None

    def rows(self) -> Iterator[AccuracyRow | FindRow]:
        """The rows written since the last call, all of pairs that were tried."""
        for record in self.folder.glob("*.jsonl"):
            with record.open("rb") as file:
                file.seek(self.taken)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self.taken += len(line)
                    read = _LINE.validate_json(line)
                    if isinstance(read, RunEnd):
                        self.ended = read
                    elif isinstance(read, FindRow | AccuracyRow):
                        yield read

    @property
    def op_failures(self) -> tuple[str, ...]:
        """Sentences about ops of a user's file that failed on cases of this process."""
        return () if self.ended is None else self.ended.problems

    def problem(self, failures: int) -> str | None:
        """Return what went wrong with the process itself; None where its rows say all there is."""
        if self.ended is not None and self.ended.exit_status == ExitStatus.USAGE:
            return None
        if self.ended is not None and not self.ended.interrupted:
            status = self.ended.exit_status
            if status == 0 or (status == 1 and failures):  # more than that tells of pytest itself
                return None
        output = (self.folder / "output").read_text(errors="replace").strip()
        said = "\n".join(output.splitlines()[-30:])
        code = self.process.returncode
        return f"share {self.number} of the run ended early, with status {code}:\n{said}"


@dataclass(slots=True)
class Shards:
    """The processes of a run; iterate over `rows`, then read `problems` and `op_failures`."""

    count: int
    huge: bool  # whether there are cases to be tried alone, after the others
    arguments: Sequence[str]
    cwd: Path
    known: str = ""  # what they needn't find out again
    problems: list[str] = field(default_factory=list)
    op_failures: list[str] = field(default_factory=list)
    _processes: list[_Process] = field(default_factory=list)

    def rows(self) -> Generator[AccuracyRow | FindRow, None, None]:
        """Start the processes and yield each row as it is written, until all have ended.

        Ctrl-C ends them: what they have by then is yielded before KeyboardInterrupt is raised.
        """
        with tempfile.TemporaryDirectory(prefix="workbench-shards-") as folder:
            failures = dict.fromkeys(range(self.count + 1), 0)
            (Path(folder) / "known").write_text(self.known)
            phases = [range(self.count)] + [range(self.count, self.count + 1)] * self.huge
            try:
                for phase in phases:
                    for number in phase:
                        self._processes.append(self._start(number, Path(folder)))
                    while any(each.process.poll() is None for each in self._processes):
                        yield from self._written(failures)
                        time.sleep(_POLL_S)
                    yield from self._written(failures)
                found = (each.problem(failures[each.number]) for each in self._processes)
                self.problems += [each for each in found if each is not None]
                for process in self._processes:
                    self.op_failures += process.op_failures
            except KeyboardInterrupt:
                self._stop()
                yield from self._written(failures)
                raise
            finally:
                self._stop()

    def _start(self, number: int, folder: Path) -> _Process:
        own = folder / str(number)
        own.mkdir()
        environment = {name: value for name, value in os.environ.items() if name != RECORD_NOTE}
        command = [sys.executable, "-m", "pytest", *self.arguments]
        command += ["--jobs=1", f"--shard={number}/{self.count}", f"--results={own}"]
        command += [f"--known={folder / 'known'}"] * bool(self.known)
        with (own / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes once, from here
            )
        return _Process(number, own, process)

    def _written(self, failures: dict[int, int]) -> Iterable[AccuracyRow | FindRow]:
        for process in self._processes:
            for row in process.rows():
                failures[process.number] += isinstance(row, FindRow) or row.status == "failed"
                yield row

    def _stop(self) -> None:
        """End what still runs, at once: its rows are taken, and its own record is temporary."""
        for process in self._processes:
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()
