"""Spread a run over processes: each tries its share of the cases, and one writes the record.

On a CPU the interpreter uses one core; on a GPU most of a run's time is Triton's compiler, which
uses one core too. A share has whole cases, so that a case's truth is computed once. On a CPU it has
families that need the same graph of a reference. On a GPU a family needs the same compiled kernels,
and no estimate tells how long these compile: a process takes the next family when it has done its
last one. Cases whose truth takes most of a card's memory form a last share, which has the card to
itself.

A process of a run is pytest with the same arguments and `--shard`. Its rows are read from its own
record as they come; if it dies, its own share is lost alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pydantic import TypeAdapter

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.op import Case
from kernel_workbench.oracles.reference import ReferenceOp
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import AccuracyRow, FindRow, Line, RunEnd
from kernel_workbench.suites.run.user_cases import TIMES_ITS_BYTES

# The variable names a file for the record's path: `fleet` reads there that the run ended, because a
# candidate can end the process with status 0.
RECORD_NOTE = "WORKBENCH_RECORD_NOTE"
FEWEST_PAIRS = 150  # below this one process is done before a second one has started
# The cost of a process of a run on a CPU beside its cases, in seconds as `weight_of` counts them:
# its judge, its server of workers and a user's process import torch, in 5 s, and small cases take
# two thirds of their weights.
_START_S = 7.5
MOST_ON_GPU = 16  # processes, which wait for one driver
# Contexts of CUDA that a process of a run has on the card, in its judge, its worker and its user's
# process, at about half a GiB.
_CONTEXTS_BYTES = 3 * 2**29
_HUGE_BYTES = 2**31
ON_DEMAND = {"cuda"}  # devices on which a process takes one family after the other
_FAMILIES = 8  # families of a process on average, below which large ones are split
# Seconds for which a kernel of ours compiles for a case of `ci`: the mean of 13,000 pairs on the 16
# cores of an H200's machine.
_COMPILE_S = 0.25
_POLL_S = 0.1
_WAIT_S = 0.02
_KNOWN, _STARTER = "known", "starter"  # files in the folder of a run's processes
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


def default_jobs(device: str, pairs: int, seconds: float | None = None) -> int:
    """Return the number of processes for a run.

    Args:
        device: "cpu" or "cuda".
        pairs: the number of pairs.
        seconds: the estimated time of the pairs in one process on a CPU, or None. A run stays in
            one process if more would save less time than their start takes.

    >>> default_jobs("cuda", 20)
    1
    """
    if pairs < FEWEST_PAIRS:
        return 1
    if device != "cpu":
        return jobs_on_gpu()
    cores = len(os.sched_getaffinity(0))
    saved = None if seconds is None else seconds * (1 - 1 / cores)
    return 1 if saved is not None and saved < _START_S else cores


def jobs_on_gpu() -> int:
    """Return the number of processes that share a GPU: one for each core, at most 16."""
    return min(MOST_ON_GPU, len(os.sched_getaffinity(0)))


def memory_of(case: Case) -> int:
    """Estimate the bytes of a card that a case takes, with its truth and bounds."""
    return TIMES_ITS_BYTES * OPS[case.op].bytes(case)


def fitting_jobs(needed: Iterable[int], free: int) -> int:
    """Return the number of processes that fit side by side into the free bytes of a card.

    Args:
        needed: the bytes of each case. n processes fit if the n largest cases fit together.
        free: the free bytes.

    Returns:
        The number, at least 1 and at most 16.

    >>> fitting_jobs([2**30, 2**30, 2**20], free=2**33)
    3
    """
    total, largest = 0, sorted(needed, reverse=True)
    for count in range(MOST_ON_GPU):
        total += _CONTEXTS_BYTES + (largest[count] if count < len(largest) else 0)
        if total > free:
            return max(1, count)
    return MOST_ON_GPU


def most_jobs(cases: Sequence[Case], device: str) -> int:
    """Return the largest number of processes that all have a case to try, without huge cases."""
    if device == "cpu":
        return len(cases)
    return len({_family(case, device) for case in cases if not is_huge(case, device)})


def shares_of(cases: Sequence[Case], count: int, device: str) -> dict[str, int]:
    """Assign the cases of a run to shares that have about equal work.

    Args:
        cases: all cases of the run.
        count: the number of shares, beside the one of the huge cases of a GPU.
        device: "cpu" or "cuda".

    Returns:
        The number of each case's share, by id; `count` is the number of the share of huge cases.
    """
    shares = {case.id(): count for case in cases if is_huge(case, device)}
    loads, weighed = [0.0] * count, _weighed_families(cases, device)
    if device == "cpu":  # a graph is made in a second: no process waits for another's
        most = sum(weight for weight, _ in weighed) / (_FAMILIES * count)
        large = [case for weight, family in weighed if weight > most for case in family]
        weighed = [pair for pair in weighed if pair[0] <= most]
        weighed += [(weight_of(case, device), [case]) for case in large]
    for weight, family in sorted(weighed, key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        loads[least] += weight
        shares |= {case.id(): least for case in family}
    return shares


def families_of(cases: Iterable[Case], device: str) -> dict[str, int]:
    """Number the families of cases, from the one with the most work on.

    Args:
        cases: all cases of the run; huge ones have no number.
        device: "cpu" or "cuda".

    Returns:
        The number of each case's family, by the case's id.
    """
    ordered = sorted(_weighed_families(cases, device), key=lambda pair: -pair[0])
    return {case.id(): number for number, (_, family) in enumerate(ordered) for case in family}


def _weighed_families(cases: Iterable[Case], device: str) -> list[tuple[float, list[Case]]]:
    """Return the families of cases with their weights, without huge cases."""
    families: dict[object, list[Case]] = {}
    for case in cases:
        if not is_huge(case, device):
            families.setdefault(_family(case, device), []).append(case)
    compiled: Counter[str] = Counter()
    if device != "cpu":
        compiled.update(one.op.name for one in all_kernels() if one.origin != "baseline")

    def weight(case: Case) -> float:
        return weight_of(case, device) + _COMPILE_S * compiled[case.op]

    return [(sum(map(weight, family)), family) for family in families.values()]


@dataclass(slots=True)
class Claims:
    """The families of a run's cases, of which each process takes one after the other.

    folder  has a file for each family that a process has taken
    family  the number of each case's family, by the case's id
    """

    folder: Path
    family: Mapping[str, int]
    _mine: dict[int, bool] = field(default_factory=dict)

    def take(self, case: Case) -> bool:
        """Return True if this process tries the case: it has the family, or takes it now."""
        number = self.family[case.id()]
        if number not in self._mine:
            try:
                (self.folder / f"family-{number}").touch(exist_ok=False)
            except FileExistsError:
                self._mine[number] = False
            else:
                self._mine[number] = True
        return self._mine[number]


def is_huge(case: Case, device: str) -> bool:
    """Return True if the case has to be tried alone on the GPU."""
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
    """Estimate the seconds that a case takes, for comparisons between cases alone."""
    flops = OPS[case.op].flops(case)
    return 0.05 + flops * (4e-8 if device == "cpu" else 1e-12)


@dataclass(slots=True)
class _Process:
    """One process of a run, its folder, the bytes read of its record, and its failed rows."""

    number: int
    folder: Path
    process: subprocess.Popen[bytes]
    read_bytes: int = 0
    failures: int = 0
    ended: RunEnd | None = None

    def rows(self) -> Iterator[AccuracyRow | FindRow]:
        """Yield the rows of tried pairs that were written since the last call."""
        for record in self.folder.glob("*.jsonl"):
            with record.open("rb") as file:
                file.seek(self.read_bytes)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self.read_bytes += len(line)
                    read = _LINE.validate_json(line)
                    if isinstance(read, RunEnd):
                        self.ended = read
                    elif isinstance(read, FindRow | AccuracyRow):
                        self.failures += isinstance(read, FindRow) or read.status == "failed"
                        yield read

    def problem(self) -> str | None:
        """Return a message if the process itself failed; None if its rows explain its status."""
        if self.ended is not None:
            status = self.ended.exit_status
            explained = status == 0 or (status == 1 and self.failures)  # others are pytest's own
            if status == ExitStatus.USAGE or (explained and not self.ended.interrupted):
                return None
        output = (self.folder / "output").read_text(errors="replace").strip()
        last_lines = "\n".join(output.splitlines()[-30:])
        code = self.process.returncode
        return f"share {self.number} of the run ended early, with status {code}:\n{last_lines}"


def wait_for(known: Path, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """Wait for the file of --known; return False if the process that writes it has ended.

    Args:
        known: the path of the file, whose folder the process that started this one has made.
        meanwhile: a function that is called again and again, and returns soon.
    """
    with suppress(FileNotFoundError):  # the run removes the folder at its end
        while not known.exists():
            if os.getppid() != int((known.parent / _STARTER).read_text()):
                return False
            meanwhile()
            time.sleep(_WAIT_S)
        return True
    return False


@dataclass(slots=True)
class Shards:
    """The processes of a run; iterate over `rows`, then read `problems` and `op_failures`.

    count          the number of processes, beside the one of huge cases
    huge           there are cases to be tried alone, after the others
    for_processes  the text of --known for each process, which may follow when they have started;
                   None: it follows; empty: there is none
    """

    count: int
    arguments: Sequence[str]
    cwd: Path
    huge: bool = False
    for_processes: str | None = None
    problems: list[str] = field(default_factory=list)
    op_failures: list[str] = field(default_factory=list)
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _processes: list[_Process] = field(default_factory=list)

    def start(self) -> Path:
        """Start the processes, which get ready and wait for the text; return their folder."""
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-shards-")
        folder = Path(self._folder.name)
        (folder / _STARTER).write_text(str(os.getpid()))
        for number in range(self.count):
            self._processes.append(self._start(number, folder))
        return folder

    def rows(self) -> Generator[AccuracyRow | FindRow, None, None]:
        """Yield each row as the processes write it, until all have ended.

        Ctrl-C ends the processes: their rows are yielded before KeyboardInterrupt is raised.
        """
        try:
            folder = self.start() if self._folder is None else Path(self._folder.name)
            (folder / "text").write_text(self.for_processes or "")
            (folder / "text").rename(folder / _KNOWN)  # whole at once
            yield from self._until_all_ended()
            if self.huge:
                self._processes.append(self._start(self.count, folder))
                yield from self._until_all_ended()
            for process in self._processes:
                problem = process.problem()
                self.problems += [] if problem is None else [problem]
                # A share's problems are sentences about ops of a user's file.
                self.op_failures += () if process.ended is None else process.ended.problems
        except KeyboardInterrupt:
            self._stop()
            yield from self._written()
            raise
        finally:
            self.close()

    def _until_all_ended(self) -> Iterator[AccuracyRow | FindRow]:
        while any(process.process.poll() is None for process in self._processes):
            yield from self._written()
            time.sleep(_POLL_S)
        yield from self._written()

    def close(self) -> None:
        """Kill the processes that still run, and remove their records."""
        self._stop()
        if self._folder is not None:
            self._folder.cleanup()

    def _start(self, number: int, folder: Path) -> _Process:
        own = folder / str(number)
        own.mkdir()
        environment = {name: value for name, value in os.environ.items() if name != RECORD_NOTE}
        command = [sys.executable, "-m", "pytest", *self.arguments]
        command += ["--jobs=1", f"--shard={number}/{self.count}", f"--results={own}"]
        command += [f"--known={folder / _KNOWN}"] * (self.for_processes != "")
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

    def _written(self) -> Iterator[AccuracyRow | FindRow]:
        return chain.from_iterable(process.rows() for process in self._processes)

    def _stop(self) -> None:
        """Kill the processes that still run: their rows are read, their records are temporary."""
        for process in self._processes:
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()
