"""The judge's side of a process: its limits, and the sentence about its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    WorkerProcess,
    default_memory_limit,
)
from kernel_workbench.suites.sandbox.wire import Channel


@contextmanager
def _process(server: Any, pid: int) -> Iterator[tuple[WorkerProcess, socket.socket]]:  # noqa: ANN401
    """Make the judge's side of a process, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = WorkerProcess(server, pid, Channel(ours), os.memfd_create("printed"))
        try:
            yield process, theirs
        finally:
            process.end()


@pytest.mark.parametrize(("status", "name"), [(-11, "SIGSEGV"), (-40, "signal 40")])
def test_every_signal_has_a_sentence(status: int, name: str) -> None:
    """Python names only the first and the last real-time signal."""
    server = SimpleNamespace(status_of=lambda *_: status)
    with _process(server, 1) as (process, theirs):
        theirs.close()
        with pytest.raises(EndedError, match=f"its process was killed by {name}"):
            process.answer(10.0, default_memory_limit())
