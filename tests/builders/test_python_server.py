"""The server that tests fork Python from."""

from __future__ import annotations

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.builders.python_server import Fork, Server


def test_threads_that_fork_at_one_time_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would take the place of the first, whose process and socket nobody ends."""
    server, started = Server(), []

    def start() -> socket.socket:
        started.append(1)
        time.sleep(0.2)  # as a process takes to start
        server.line, theirs = socket.socketpair()
        theirs.close()
        return server.line

    monkeypatch.setattr(server, "_start", start)
    monkeypatch.setattr(server, "_asked", lambda *_: (server.line or server._start()).fileno())
    with ThreadPoolExecutor(2) as pool:
        descriptors = list(pool.map(lambda _: server.fork({}, ()), range(2)))
    server.close()
    assert len(started) == 1
    assert descriptors[0] == descriptors[1]


def test_threads_that_ask_at_one_time_get_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells a status once: a second question would find no such child."""
    ask = os.waitpid

    def ask_slowly(pid: int, options: int) -> tuple[int, int]:
        time.sleep(0.1)  # so that all threads ask before any has stored what it was told
        return ask(pid, options)

    fork = Fork([sys.executable, "-c", "raise SystemExit(3)"])
    monkeypatch.setattr(os, "waitpid", ask_slowly)
    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda _: fork.wait(60), range(4)))
    assert statuses == [3, 3, 3, 3]
