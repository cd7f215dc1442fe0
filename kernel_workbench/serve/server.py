"""Judges that wait: forks of a process that has everything loaded, each of which makes one run.

The server itself judges nothing and imports no candidate. It forks spares. A spare starts the
server of its workers, a first worker and the process of users' calls, as every run does, and waits
for a request. On a GPU the spare and its first worker create their contexts of CUDA meanwhile. With
the request the spare becomes the judge of that one run, with the client's folder, variables and
streams, and then ends. So no value and no verdict is kept from one run to the next, secrets are
drawn anew, and a candidate finds the processes that it finds without a warm judge; on a GPU its
first worker has a context of CUDA already. A judge names the cases of its run when it ends: once no
run is left, the server traces the references of these cases, so that later judges have their
graphs; on a GPU each spare does so. The server adopts no orphan: a run ends what it started itself,
and the ancestors of a user's process reveal nothing of a judge.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_workbench.kernels.device import SIMULATED_SM_VARIABLE, create_context
from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.cases.names import case_named
from kernel_workbench.oracles.op import ArgumentsError, Op
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.serve.client import LARGEST_MESSAGE, lasting, peer_is_own, stamp, wrong_place
from kernel_workbench.suites.accuracy.own_cases import is_small
from kernel_workbench.suites.accuracy.quick_cases import MOST_FLOPS
from kernel_workbench.suites.run.option_table import DEFAULT_SM
from kernel_workbench.suites.run.run_suite import run_suite
from kernel_workbench.suites.sandbox.judge_side import waiting
from kernel_workbench.suites.sandbox.judge_side.plain_calls import UsersProcess
from kernel_workbench.suites.sandbox.judge_side.worker_process import ForkServer, WorkersError
from kernel_workbench.suites.sandbox.orphans import die_with_parent
from kernel_workbench.suites.sandbox.worker_side.in_process import mend

_LOADED = (
    *("pytest", "pytest_benchmark.plugin", "kernel_workbench.suites.run.options"),
    *("kernel_workbench.suites.run.session", "kernel_workbench.suites.accuracy.suite"),
    *("kernel_workbench.reports.report", "numpy.random", "torch._dynamo"),
)
_PLUGINS = ("pytest_benchmark", "kernel_workbench.suites.run", "xdist")
_MOST_RUNS = 8  # at one time; a client beyond them makes its run itself
_ANSWER_S = 2.0  # for a client that has connected to say what it wants
_MOST_LOST = 5
_MOST_ASKED = 64  # cases that wait to be traced: later ones are more likely to be asked again
_END_S = 15.0  # for a run whose client is gone to close its record


class ServeError(RuntimeError):
    """The server can't begin; the message is a sentence."""


@dataclass(slots=True)
class _Judge:
    """A spare, or with a client a run.

    ended       a descriptor that is readable once the process has ended
    line        the server's end of the spare's socket
    client      the connection of who asked; None: the judge is a spare
    killed_at   when a run whose client is gone is killed
    """

    pid: int
    ended: int
    line: socket.socket
    client: socket.socket | None = None
    killed_at: float | None = None


@dataclass(slots=True)
class Server:
    """Listens at a path, and keeps spares.

    stamp     of the package's files as they were loaded: a change of theirs ends the server
    untraced  ids of cases of earlier runs whose references aren't traced yet
    traced    ids of cases whose references are
    ends    why the server ends, in a sentence; None while it serves
    lost    spares that ended in turn before anybody asked
    """

    path: Path
    device: str
    spares: int
    idle_s: float
    listener: socket.socket
    stamp: list[int] = field(default_factory=stamp)
    judges: list[_Judge] = field(default_factory=list)
    untraced: list[str] = field(default_factory=list)
    traced: set[str] = field(default_factory=set)
    ends: str | None = None
    lost: int = 0

    @classmethod
    def begin(cls, path: Path, device: str, spares: int, idle_s: float) -> Server:
        """Load everything and listen. Raises ServeError."""
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True)
        problem = wrong_place(path)
        if problem is not None:
            raise ServeError(problem)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise ServeError(f"a judge serves at {path} already; it ends by itself when idle")
        server = cls(path, device, spares, idle_s, listener)
        _load(device)
        before = os.umask(0o077)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise ServeError(f"{path}: nobody can listen there ({error})") from error
        finally:
            os.umask(before)
        listener.listen(_MOST_RUNS)
        return server

    def run(self) -> None:
        """Serve until nobody has asked for long, the package's files change, or a signal comes.

        The reason goes to stderr: a server that is gone is otherwise a riddle.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)
        last = time.monotonic()
        try:
            while self.ends is None:
                self._trace_one()
                self._keep_spares()
                if self._is_busy:
                    last = time.monotonic()
                if time.monotonic() - last >= self.idle_s:
                    self.ends = f"nobody has asked for {self.idle_s / 60:g} minutes"
                elif self._step():
                    last = time.monotonic()
                if self.lost >= _MOST_LOST:
                    self.ends = f"{self.lost} judges in turn ended before anybody asked"
        finally:
            self._close()
            with suppress(OSError):  # the terminal may be gone
                sys.stderr.write(f"the warm judge ends: {self.ends or 'an error'}\n")
                sys.stderr.flush()

    def _end(self, number: int, _: object) -> None:
        self.ends = f"it was sent {signal.Signals(number).name}"

    def _close(self) -> None:
        """Leave nothing behind: no socket, no spare, no run."""
        self.listener.close()
        self.path.unlink(missing_ok=True)
        for judge in self.judges:
            judge.line.close()
            with suppress(ProcessLookupError):
                os.kill(judge.pid, signal.SIGKILL)
            os.waitpid(judge.pid, 0)

    def _keep_spares(self) -> None:
        """Fork the spares that are missing; during a run only one that nobody could do without.

        A spare that gets ready takes seconds of a processor, which the run has need of. Later
        spares have what the server traces before.
        """
        waiting_now = sum(judge.client is None for judge in self.judges)
        idle = waiting_now == len(self.judges) and not self._has_to_trace
        wanted = self.spares if idle else 1
        for _ in range(wanted - waiting_now):
            self.judges.append(self._fork())

    @property
    def _is_busy(self) -> bool:
        """Return whether a run is being made."""
        return any(judge.client for judge in self.judges)

    @property
    def _has_to_trace(self) -> bool:
        """Return whether the server has cases to trace.

        On a GPU each spare traces them: PyTorch starts CUDA for a trace, which no fork survives.
        """
        return self.device == "cpu" and bool(self.untraced)

    def _trace_one(self) -> None:
        """Trace the references of a case of earlier runs, if there is one and nobody waits."""
        if self._has_to_trace and not self._is_busy:
            name = self.untraced.pop()
            self.traced.add(name)
            _trace(name)

    def _learn(self, line: socket.socket) -> None:
        """Note the cases that a judge whose run has ended has named."""
        line.settimeout(0)
        with suppress(OSError, ValueError):
            names = json.loads(line.recv(LARGEST_MESSAGE))
            noted = {*self.untraced, *self.traced}
            self.untraced += [name for name in names if isinstance(name, str) and name not in noted]
            del self.untraced[:-_MOST_ASKED]

    def _fork(self) -> _Judge:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            status = int(ExitStatus.SUITE_FAILED)
            try:
                self.listener.close()
                ours.close()
                for judge in self.judges:
                    judge.line.close()
                    if judge.client is not None:
                        judge.client.close()
                status = _judge(theirs, self.device, self.untraced)
            finally:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        theirs.close()
        return _Judge(child, os.pidfd_open(child), ours)

    def _step(self) -> bool:
        """Wait for what happens next, a second at most; whether somebody asked."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        for judge in self.judges:
            poll.register(judge.ended, select.POLLIN)
            if judge.client is not None and judge.killed_at is None:
                poll.register(judge.client, select.POLLRDHUP)
        wait_ms = 0 if self._has_to_trace and not self._is_busy else 1000
        happened = {descriptor for descriptor, _ in poll.poll(wait_ms)}
        for judge in list(self.judges):
            if judge.ended in happened:
                self._bury(judge)
            elif judge.client is not None and judge.client.fileno() in happened:
                judge.killed_at = time.monotonic() + _END_S
                os.kill(judge.pid, signal.SIGINT)  # the run closes its record
            elif judge.killed_at is not None and time.monotonic() > judge.killed_at:
                os.kill(judge.pid, signal.SIGKILL)
        if self.listener.fileno() not in happened:
            return False
        with suppress(OSError):
            connection, _ = self.listener.accept()
            self._admit(connection)
        return True

    def _bury(self, judge: _Judge) -> None:
        """Tell the client how its run ended."""
        _, raw = os.waitpid(judge.pid, 0)
        status = os.waitstatus_to_exitcode(raw)
        self.judges.remove(judge)
        os.close(judge.ended)
        if judge.client is None:
            self.lost += 1
        else:
            self.lost = 0
            self._learn(judge.line)
            reply = {"status": status if status >= 0 else ExitStatus.INCOMPLETE}
            with suppress(OSError):
                judge.client.send(json.dumps(reply).encode())
            judge.client.close()
        judge.line.close()

    def _admit(self, connection: socket.socket) -> None:
        """Hand a client's request to a spare, or refuse it."""
        connection.settimeout(_ANSWER_S)
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, LARGEST_MESSAGE + 1, 3)
        except OSError:
            connection.close()
            return
        try:
            request = json.loads(data)
            refusal = self._refusal(connection, request, len(descriptors))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            refusal = "the request isn't one"
        spare = next((judge for judge in self.judges if judge.client is None), None)
        if refusal is None and spare is not None:
            try:
                socket.send_fds(spare.line, [data], descriptors)
                spare.client, connection = connection, spare.line
            except OSError:
                refusal = "the spare is gone"
        for descriptor in descriptors:
            os.close(descriptor)
        if refusal is not None or spare is None:
            with suppress(OSError):
                connection.send(json.dumps({"refused": refusal}).encode())
            connection.close()

    def _refusal(
        self, connection: socket.socket, request: dict[str, Any], descriptors: int
    ) -> str | None:
        """Return why a request isn't served here; None where it is."""
        if not peer_is_own(connection) or descriptors != len(("input", "output", "errors")):
            return "the request isn't this user's"
        if request["stamp"] != self.stamp:
            if not self._is_busy:
                self.ends = "the package's files have changed"
            return "the package has changed since the judge loaded it"
        if request["python"] != sys.executable:
            return "the client has another Python"
        theirs, ours = lasting(request["variables"]), lasting(_STARTED_WITH)
        if theirs != ours:
            names = sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name))
            return f"environment variables differ from the judge's: {', '.join(names)}"
        if sum(judge.client is not None for judge in self.judges) >= _MOST_RUNS:
            return "the judge has as many runs as it takes"
        words = request["words"]
        named = [word.partition("=")[2] for word in words if word.startswith("--device=")]
        named += [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--device"]
        if named[-1:] not in ([], [self.device], ["auto"]):
            return "the judge is for another device"
        return None


_STARTED_WITH = dict(os.environ)


def _load(device: str) -> None:
    """Import what a run imports, in a state that can be forked: no thread, no CUDA."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    torch.set_num_threads(1)
    for name in _LOADED:
        importlib.import_module(name)
    all_kernels()
    if device == "cpu":
        mend(torch.device(device), strictly=True)  # of no consequence for a run with --no-strict
        for op in OPS.values():
            _warm(op)
    for name, module in list(sys.modules.items()):
        if name.startswith(_PLUGINS):  # a plugin that is loaded before pytest is an error to it
            module.__doc__ = f"{module.__doc__}\n\nPYTEST_DONT_REWRITE"
    gc.collect()
    gc.freeze()


def _warm(op: Op) -> None:
    """List an op's cases, find its signs, and take the way of a verdict once, on a small case.

    Libraries import more, and references are traced, when a verdict first needs them.
    """
    cases = [case for case in op.cases() if case.tier == "ci" and not case.options]
    op.found_signs()
    case = min(cases, key=lambda case: (op.flops(case) == 0, op.flops(case)))
    drawn = op.inputs(case, torch.device("cpu"))
    op.bound(case, drawn, op.oracle(case, drawn), op.numerics())
    if op.emulate is not None:
        op.emulate(case, drawn, op.numerics())


def _trace(name: str) -> None:
    """Trace the references of a case, by its id; do nothing for one that isn't small."""
    op = OPS.get(name.partition("-")[0])
    case = None if op is None else case_named(op, name)
    if op is None or case is None or not is_small(op, case, MOST_FLOPS):
        return
    with suppress(ArgumentsError, torch.OutOfMemoryError):
        drawn = op.inputs(case, torch.device("cpu"))
        op.bound(case, drawn, op.oracle(case, drawn), op.numerics())
        gc.freeze()


class _Cases:
    """Notes the ids of the cases that a run tries, as a plugin of pytest."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the cases of the tests that are left."""
        params = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
        self.names = list(dict.fromkeys(str(values["case"]) for values in params))


def _judge(line: socket.socket, device_name: str, untraced: Sequence[str]) -> int:
    """In a fork: get ready, wait for a request, and make the run. Returns the exit status.

    On a GPU the references of the cases in `untraced` are traced before.
    """
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    os.environ[SIMULATED_SM_VARIABLE] = str(DEFAULT_SM)
    device = torch.device(device_name)
    with suppress(WorkersError):  # the run says it, when it can't start one either
        _get_ready(device)
    for name in untraced if device.type == "cuda" else ():
        _trace(name)
    data, descriptors, _, _ = socket.recv_fds(line, LARGEST_MESSAGE + 1, 3)
    if not data:
        return 0  # the server has ended
    request = json.loads(data)
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    if device.type == "cpu":  # as triton was imported
        os.environ["TRITON_INTERPRET"] = "1"
    cases = _Cases()
    try:
        return run_suite(request["suite"], request["words"], [cases])
    finally:
        with suppress(OSError):  # the server may have ended
            line.send(json.dumps(cases.names[:_MOST_ASKED]).encode())


def _get_ready(device: torch.device) -> None:
    """Start the processes of a run that it can take over. Raises WorkersError."""
    server = ForkServer.start(device, strict=True)
    users = UsersProcess(device)
    users.begin()
    server.wait()
    server.prepare()
    create_context(device)
    waiting.keep(ForkServer.key(device, strict=True), server)
    waiting.keep(users.key(), users)
