"""A process that takes down launches and compiles them, for one generation.

It is forked by a server that has torch, triton and our kernels loaded, and does what it is sent: it
never touches a GPU, and what a user's file does to it is that file's own doing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from kernels.expectation import Claim
from kernels.registry import Kernel, KernelError, all_kernels, load_file
from oracles.op import Case
from suites.resources.capture import CaptureError, Launch, NoteTaker
from suites.resources.claims import offender
from suites.resources.compiler import Compiler, Measured
from suites.resources.stand_in import install

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel on a case, by names that any process knows."""

    op: str
    kernel: str
    case: Case


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch that a call makes, without what only the process that took it down can hold."""

    key: str
    function: str
    tile: dict[str, int]
    warps: int
    grid: tuple[int, ...]
    fp_fusion: bool | None


@dataclass(frozen=True, slots=True)
class Take:
    """Take down the launches of a call: a tuple of `Noted`, or a sentence."""

    call: Call


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile launches, each known by its key and a call that makes it: a list of `Measured`."""

    wanted: tuple[tuple[str, Call], ...]


@dataclass(frozen=True, slots=True)
class Locate:
    """Find an instruction that breaks a claim: its text with the source's line, or None."""

    key: str
    call: Call
    claim: Claim


Task = Take | Compile | Locate


class Worker:
    """What a process holds between the tasks it is sent."""

    def __init__(self, sm: int, files: tuple[Path, ...]) -> None:
        torch.set_num_threads(1)
        for file in files:
            load_file(file)
        self._kernels: dict[tuple[str, str], Kernel] = {
            (each.op.name, each.name): each for each in all_kernels()
        }
        install(sm)
        self._notes = NoteTaker()
        self._compiler = Compiler(self._notes.compile, sm)
        self._launches: dict[str, Launch] = {}

    def do(self, task: Task) -> object:
        """Do one task."""
        match task:
            case Take():
                return self._take(task.call)
            case Compile():
                return self._compile(task)
            case Locate():
                launch = self._launch(task.key, task.call)
                code = () if launch is None else self._compiler.lines(launch)
                found = offender(task.claim, code)
                return None if found is None else str(found).replace(f"{_ROOT}/", "")

    def _take(self, call: Call) -> tuple[Noted, ...] | str:
        kernel = self._kernels[call.op, call.kernel]
        try:
            launches = self._notes.of_call(kernel, call.case)
        except CaptureError as error:
            return str(error)
        for each in launches:
            self._launches.setdefault(each.key, each)
        return tuple(
            Noted(
                each.key,
                each.function,
                each.tile(),
                each.warps,
                each.grid,
                each.options.get("enable_fp_fusion"),
            )
            for each in launches
        )

    def _launch(self, key: str, call: Call) -> Launch | None:
        if key not in self._launches:
            self._take(call)
        return self._launches.get(key)

    def _compile(self, task: Compile) -> list[Measured]:
        launches = [self._launch(*each) for each in task.wanted]
        known = [each for each in launches if each is not None]
        found = iter(self._compiler.measured(known))
        lost = "taken down again, its launch isn't what it was: the host code isn't repeatable"
        return [Measured(0.0, problem=lost) if each is None else next(found) for each in launches]


def serve(connection: Connection, sm: int, files: tuple[Path, ...], scratch: Path) -> None:
    """Do tasks until the other end is closed; the first answer is None, or why there is no worker.

    scratch: a folder for what Triton keeps of each kernel, which nobody reads again.
    """
    try:
        own = Path(tempfile.mkdtemp(dir=scratch))
    except FileNotFoundError:
        return  # the run was interrupted before this process began
    _keep_triton_in(own)
    # A terminal's lines are the parent's; what a compiler prints of a failure is in its error.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            worker = Worker(sm, files)
        except KernelError as error:
            connection.send(str(error))
            return
        try:
            connection.send(None)
            while True:
                connection.send(worker.do(connection.recv()))
        except (EOFError, BrokenPipeError):
            return
        finally:
            shutil.rmtree(own, ignore_errors=True)


def try_file(file: Path, done: Connection) -> None:
    """Import a user's file, and say that the process has outlived it.

    What can be told in a sentence is, where it is loaded in earnest.
    """
    with contextlib.suppress(KernelError):
        load_file(file)
    done.send(True)  # noqa: FBT003 (a file that ends the process may end it with status 0)


def _keep_triton_in(folder: Path) -> None:
    from triton import knobs  # noqa: PLC0415  (only here, where it isn't under the interpreter)

    knobs.cache.dir = str(folder)
