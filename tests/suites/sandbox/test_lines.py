"""A process that can't be started leaves no open socket or file behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_workbench.suites.sandbox.judge_side import detached, worker_process
from kernel_workbench.suites.sandbox.judge_side.detached import DetachedError, start_detached
from kernel_workbench.suites.sandbox.judge_side.worker_process import ForkServer, WorkersError
from kernel_workbench.suites.sandbox.judge_side.workers import Workers

_CPU = torch.device("cpu")


def _opened() -> set[str]:
    """Return what this process's descriptors refer to: sockets, and files in memory."""
    opened = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            opened.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return {name for name in opened if name.startswith(("socket:", "/memfd:"))}


def _replace(monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any]) -> None:
    """Let both modules start processes by this function."""
    replaced = SimpleNamespace(**vars(subprocess) | {"Popen": start})
    for module in (detached, worker_process):
        monkeypatch.setattr(module, "subprocess", replaced)


def _fork_by_a_dead_server() -> None:
    server = ForkServer.start(_CPU, strict=None, tasks=("json",))
    try:
        server.wait()
        server.kill()
        server.fork({})
    finally:
        server.close()


def _start_a_server() -> None:
    ForkServer.start(_CPU, strict=None, tasks=("json", "os"))


def _start_alone() -> None:
    start_detached("user_script.py")


def _no_process(*_: object, **__: object) -> None:
    raise BlockingIOError("no more processes")


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (_fork_by_a_dead_server, WorkersError),
        (_start_a_server, BlockingIOError),
        (_start_alone, BlockingIOError),
    ],
    ids=["fork", "server", "alone"],
)
def test_process_that_cannot_be_started_leaves_nothing_open(
    start: Callable[[], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would warn of the socket whenever it is collected, in the middle of another call."""
    first = ForkServer.start(_CPU, strict=None, tasks=("json",))
    first.close()  # the tests keep a socket of their own from the first start on
    before = _opened()
    if error is BlockingIOError:
        _replace(monkeypatch, _no_process)
    with pytest.raises(error):
        start()
    assert _opened() <= before


def test_keeper_that_says_nothing_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends before it prints its number can't be called."""
    before = _opened()
    _replace(monkeypatch, lambda _, **settings: subprocess.Popen(["/bin/true"], **settings))
    with pytest.raises(DetachedError, match="can't be started"):
        start_detached("user_script.py")
    assert _opened() <= before


_LOAD: dict[str, object] = {"overlay": None, "files": [], "tasks": [], "sm": 90, "watched": False}


def test_server_of_a_gpu_is_neither_strict_nor_not() -> None:
    """A server that a warm judge started for a GPU serves each run there, --no-strict or not."""
    keys = {
        ForkServer.key(torch.device(name), strict=strict)
        for name in ("cpu", "cuda")
        for strict in (True, False)
    }
    assert len(keys) == 3


def test_prepared_worker_is_taken_once() -> None:
    """Also one that has ended is replaced: no kernel is to blame for that."""
    server = ForkServer.start(_CPU, strict=None)
    before = _opened()
    try:
        server.prepare()
        prepared = server._prepared
        assert prepared is not None
        workers = [server.fork(_LOAD), server.fork(_LOAD)]
        assert [worker.pid == prepared.pid for worker in workers] == [True, False]
        server.prepare()
        assert server._prepared is not None
        ended = os.pidfd_open(server._prepared.pid)
        os.kill(server._prepared.pid, signal.SIGKILL)
        assert select.select([ended], [], [], 60.0)[0]
        os.close(ended)
        workers.append(server.fork(_LOAD))
        for worker in workers:
            assert "kernels" in worker.answer(60.0, 2**40)
            worker.end()
        assert _opened() <= before
        server.prepare()
        left = server._prepared
    finally:
        server.close()
    assert left is not None
    assert not Path(f"/proc/{left.pid}").exists()
    assert _opened() < before


def test_first_worker_is_prepared_as_soon_as_its_server_has_loaded() -> None:
    """A process that waits for its cases isn't held up by the server, nor by a second worker."""
    workers = Workers(_CPU, 90)
    try:
        assert not workers.prepare_worker()
        server = workers.server
        assert server is not None
        assert server._prepared is None
        assert select.select([server.line.socket], [], [], 60.0)[0]
        assert workers.prepare_worker()
        prepared = server._prepared
        assert prepared is not None
        assert workers.prepare_worker()
        assert server._prepared is prepared
        assert workers._ready() is not None
        assert workers._worker is not None
        assert workers._worker.pid == prepared.pid
        assert workers.prepare_worker()
        assert server._prepared is None
    finally:
        workers.close()


def test_server_that_ended_while_it_loaded_is_told() -> None:
    """The process that waits would otherwise wait for a worker that never comes."""
    server = ForkServer.start(_CPU, strict=None, tasks=("json", "sys"))
    try:
        server.process.kill()
        assert select.select([server.line.socket], [], [], 60.0)[0]
        with pytest.raises(WorkersError, match="no worker can be started"):
            server.prepare_if_ready()
    finally:
        server.close()
