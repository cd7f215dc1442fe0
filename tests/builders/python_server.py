"""Python with torch, Triton and the suites loaded, of which tests run forks.

    python -m tests.builders.python_server DESCRIPTOR

There are two servers: Triton interprets in one and compiles in the other, as its import decides.
A process that imports torch takes four seconds of a core, a fork of one a few hundredths. A fork
becomes a child of the process that asked for it, with its own folder, variables, files and
arguments, and ends as any Python does. A fork has a server too, for the processes that it starts.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO

from kernel_workbench.kernels.registry import all_kernels
from kernel_workbench.oracles import OPS
from kernel_workbench.oracles.reference import ReferenceOp
from tests import ROOT

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_FROM_INPUT = "-"  # Python's argument for a program that comes as input
_LONGEST = 2**20  # bytes of a request
_ROOTS = (ROOT, str(ROOT))
_STANDARD = 3  # input, output and errors
# Python, Triton and a loader read these at their start: a fork has its server's.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MALLOC_")
_INTERPRETS = "TRITON_INTERPRET"
_SET_IN_A_FORK = ("PYTHONPATH", "PYTHONUNBUFFERED")
_MODULE = "tests.builders.python_server"
_LONE = "kernel_workbench.suites.sandbox.worker_side.fork_server"
# The server of workers starts Python only by forks of its own.
_LOADED = (
    *(
        "pytest",
        "pytest_benchmark.plugin",
        "kernel_workbench.reports.__main__",
        "kernel_workbench.reports.comparison.__main__",
    ),
    *("kernel_workbench.kernels", "kernel_workbench.suites.accuracy.suite", _LONE),
    *(
        "kernel_workbench.suites.bench.suite",
        "kernel_workbench.suites.profile.suite",
        "numpy.random",
        "xdist.plugin",
        "nox",
    ),
    "scipy.stats",  # of figures: a second for each run that times
    "triton.experimental.gluon.nvidia.hopper",  # which the interpreter's repairs read
)
_LOADED_TO_COMPILE = (
    "kernel_workbench.suites.compile.session",
    "kernel_workbench.suites.compile.task",
    _LONE,
)
_PLUGINS = ("pytest_benchmark", "kernel_workbench.suites.run", "xdist")


class Server:
    """A server of one process, started at the first request."""

    line: socket.socket | None = None
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, *, interprets: bool = True) -> None:
        self._interprets = interprets
        self._asking = threading.Lock()  # one thread starts the server

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child of this process, and return its number."""
        with self._asking:
            try:
                return self._asked(request, descriptors)
            except OSError:  # ended with all children of this process
                if self.line is not None:
                    self.line.close()
                self.line = None
                return self._asked(request, descriptors)

    def _asked(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        line = self.line or self._start()
        answer, theirs = socket.socketpair()
        with answer:
            with theirs:
                given = [theirs.fileno(), *descriptors]
                socket.send_fds(line, [json.dumps(request).encode()], given)
            said = answer.recv(64)
        if not said:
            raise ConnectionError("the server of Python is gone")
        return int(said)

    def close(self) -> None:
        """End the server."""
        if self.line is not None:
            self.line.close()
        if self._process is not None:
            self._process.wait()

    def _start(self) -> socket.socket:
        if self._process is not None:
            self._process.wait()
        adopt_orphans()
        self.line, theirs = _line()
        with theirs:
            command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {_INTERPRETS: str(int(self._interprets))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return self.line


def _interprets(variables: Mapping[str, str]) -> bool:
    return variables.get(_INTERPRETS) == "1"


SERVERS = {each: Server(interprets=each) for each in (True, False)}
for _server in SERVERS.values():
    atexit.register(_server.close)


class Fork:
    """A forked process of Python, with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        self.args = list(map(str, command))
        self.returncode: int | None = None
        self._reaping = threading.Lock()
        variables = dict(os.environ if env is None else env)
        request = {
            "command": self.args[1:],
            "cwd": str(cwd or Path.cwd()),
            "variables": variables,
            "passed": list(pass_fds),
            "session": start_new_session,
            "held": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        }
        with open(os.devnull, "r+b", buffering=0) as null:  # noqa: PTH123 (Path's can't be both)
            places: list[int] = []
            for number, given in enumerate((stdin, stdout, stderr)):
                place = number if given is None else given
                if place == subprocess.DEVNULL:
                    place = null.fileno()
                elif place == subprocess.STDOUT:
                    place = places[1]
                places.append(place if isinstance(place, int) else place.fileno())
            self.pid = SERVERS[_interprets(variables)].fork(request, [*places, *pass_fds])

    def poll(self) -> int | None:
        """Return the status of the process, None while the process runs.

        One thread at a time asks the system, which tells the status once: the thread that waits
        for an answer and the thread that kills the process both poll.
        """
        with self._reaping:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its status. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        if self.poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self) -> tuple[None, None]:
        """Wait for its end; its text goes to files."""
        self.wait()
        return None, None

    def send_signal(self, number: int) -> None:
        """Send a signal, if it hasn't ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it hasn't ended."""
        self.send_signal(signal.SIGKILL)


class DetachedFork(Fork):
    """A fork that runs a program's text, and leaves its own child to init when it ends.

    The fork becomes a child of this process, which adopts orphans only until then.
    """

    stdout: BinaryIO

    def __init__(self, command: Sequence[str], *, stdin: IO[bytes], **named: Any) -> None:  # noqa: ANN401
        text, writing = os.pipe()
        reading, printed = os.pipe()
        own = {**named, "stdout": printed}
        try:
            with _orphans_adopted():
                super().__init__(command, stdin=text, **own)
        finally:
            os.close(text)
            os.close(printed)
            self.stdout = os.fdopen(reading, "rb")
            with os.fdopen(writing, "wb") as program:
                program.write(stdin.read())


def can_fork(
    command: Sequence[str | Path], folder: str | Path | None, variables: Mapping[str, str] | None
) -> bool:
    """Return True if a fork of the server can replace the process that the command starts."""
    if command[0] != sys.executable or command[1] not in {"-m", "-c", _FROM_INPUT}:
        return False
    # From elsewhere Python would import that folder's modules first; nox imports none of ours.
    if folder not in _ROOTS and command[2] != "nox":
        return False
    variables = os.environ if variables is None else variables
    if command[2] == "pytest" and not _interprets(variables):  # which an option may ask for
        return False
    return _at_start(os.environ) == _at_start(variables)


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_START) and name not in _SET_IN_A_FORK
    }


class ForkingPopen(subprocess.Popen[Any]):
    """Fork the processes that the suite starts, if possible."""

    def __new__(cls, command: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """Fork the process, or start it."""
        if given or isinstance(command, str):
            return super().__new__(cls)
        variables = named.get("env") or os.environ
        can = can_fork(command, named.get("cwd", Path.cwd()), variables)
        as_here = _interprets(variables) == _interprets(os.environ)  # of which there is a server
        if not (can and as_here):
            return super().__new__(cls)
        if command[1] == _FROM_INPUT:
            return DetachedFork(command, **named)
        pipes = subprocess.PIPE in (named.get(name) for name in ("stdin", "stdout", "stderr"))
        return super().__new__(cls) if pipes else Fork(command, **named)


def _serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process at each request, until nobody can ask any more.

    Returns only in a fork: the request and its descriptors.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(line, _LONGEST, 16)
        if not data:
            os._exit(0)
        request = json.loads(data)
        answer, *given = descriptors
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            # The process that asked adopts orphans, so it gets a child whose parent has ended.
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(writing, str(child).encode())
                os._exit(0)
            for each in (reading, writing, answer):
                os.close(each)
            while os.getppid() == between:
                time.sleep(0.001)
            break
        os.waitpid(between, 0)
        os.write(answer, os.read(reading, 64))
        for each in (reading, writing, *descriptors):
            os.close(each)
    line.close()
    if {_LONE, _FROM_INPUT}.isdisjoint(request["command"]):
        ours, theirs = _line()
        if os.fork() == 0:
            ours.close()
            for each in given:
                os.close(each)
            return _serve(theirs)
        theirs.close()
        server = SERVERS[_interprets(os.environ)]
        server.line = socket.socket(fileno=_out_of_the_way(ours.detach()))
    return request, given


def _line() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
    return ours, theirs


def _out_of_the_way(descriptor: int) -> int:
    """Return another number for the descriptor, which no command line names."""
    free = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 512)
    os.close(descriptor)
    return free


def adopt_orphans() -> None:
    """Become the parent of processes that a server forks for this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    """Adopt orphans within the context."""
    libc, adopts = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    adopt_orphans()
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)


def _become(request: dict[str, Any], given: Sequence[int]) -> list[str]:
    """Become like a process that was started, and return its command."""
    adopt_orphans()
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["variables"])
    tempfile.tempdir = None  # TMPDIR may be another
    free = [_out_of_the_way(each) for each in given]
    for each, number in zip(free, (*range(_STANDARD), *request["passed"]), strict=True):
        os.dup2(each, number)
        os.close(each)
    if "PYTHONUNBUFFERED" in os.environ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=True)
    subprocess.Popen = ForkingPopen  # type: ignore[assignment,misc]
    if _FROM_INPUT in request["command"]:
        os.execv = _script  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["held"])
    return list(request["command"])


def _script(_path: str, arguments: Sequence[str]) -> None:
    """Run the program on the standard input here, instead of in a new Python."""
    sys.argv = list(arguments[1:])
    with open(0, encoding="utf-8", closefd=False) as file:
        _program(file.read())


def _program(text: str) -> None:
    module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(text, "<string>", "exec"), module.__dict__)  # noqa: S102


def _run(option: str, what: str, *arguments: str) -> None:
    """Run a module, a program's text, or the text that comes as input."""
    sys.argv = [option, *arguments]
    if option == _FROM_INPUT:
        _script("", ["", option, what, *arguments])
    elif option == "-m":
        for each in (what, f"{what}.__main__"):  # as if it weren't loaded yet
            if not hasattr(sys.modules.get(each), "__path__"):
                sys.modules.pop(each, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        _program(what)


def _end(status: int) -> None:
    """End as Python does, without its cleanup, which takes 0.3 s of a core."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for each in (sys.stdout, sys.stderr):
        each.flush()
    os._exit(status & 0xFF)


def main() -> None:
    """Load what most runs need, and serve; in a fork, run what was asked for."""
    # The server ignores Ctrl-C; a fork gets it once the fork is complete.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    line = socket.socket(fileno=int(sys.argv[1]))
    for each in _LOADED if _interprets(os.environ) else _LOADED_TO_COMPILE:
        importlib.import_module(each)
    all_kernels()
    for op in OPS.values():
        if not isinstance(op, ReferenceOp):  # their cases are searched for, and few runs need them
            op.cases()
    if _interprets(os.environ):  # the module that counts references takes 2 s to load
        OPS["softmax_backward"].cases()
    for name, module in list(sys.modules.items()):
        if name.startswith(_PLUGINS):  # pytest refuses a plugin that is loaded before it
            module.__doc__ = f"{module.__doc__}\n\nPYTEST_DONT_REWRITE"
    gc.collect()
    gc.freeze()
    command, status = _become(*_serve(line)), 0
    try:
        _run(*command)
    except SystemExit as end:
        if not isinstance(end.code, int | None):  # a text, which Python prints
            raise
        status = int(end.code or 0)
    _end(status)


if __name__ == "__main__":
    main()
