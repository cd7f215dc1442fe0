"""The judge's side of a process: its limits, and the sentence about its end."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_workbench.oracles import LAYER_NORM_BACKWARD
from kernel_workbench.suites.sandbox.judge_side.detached import Keeper
from kernel_workbench.suites.sandbox.judge_side.worker_process import (
    EndedError,
    WorkerProcess,
    default_memory_limit,
)
from kernel_workbench.suites.sandbox.judge_side.workers import Workers
from kernel_workbench.suites.sandbox.parcels import Parcel
from kernel_workbench.suites.sandbox.wire import Channel
from tests.builders.by_hand import kernel_of
from tests.builders.wrong_layer_norms import closed_form
from tests.suites.sandbox.test_tasks import CASE

CPU = torch.device("cpu")
_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
_CHILD = "memory = b'x' * 2**28; print('ready', flush=True); input()"


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


def test_memory_of_kept_processes_counts() -> None:
    """A user's call is made by a child of the process that the keeper keeps."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        keeper = Keeper(parent.pid, socket.socket(), -1, os.pidfd_open(parent.pid))
        with keeper.line, _process(keeper, parent.pid) as (process, _):
            assert process._beyond(math.inf, 1.0, 2**30) is None
            late = process._beyond(math.inf, 1.0, 2**27)
            parent.communicate(b"\n")
    assert "its process took 0.3 GiB of memory, past 0.1 GiB" in str(late)


@pytest.mark.parametrize("rule", ["no such rule", "not captured"])
def test_rule_that_no_call_breaks_is_no_reply(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row couldn't have that rule, and only the replay of a graph can't be captured."""
    reply = {"seconds": 1.0, "rule": rule, "reason": "it says so", "outputs": []}
    monkeypatch.setattr(Workers, "_sent", lambda *_: (reply, None, 0))
    parcel = Parcel.of(LAYER_NORM_BACKWARD.inputs(CASE, CPU), CPU)
    call = Workers(CPU, 90).call(kernel_of(closed_form), CASE, parcel, "nan")
    assert (call.rule, call.reason) == ("process ended", "its process sent what no worker sends")


_FILE = """
import os
from pathlib import Path

import torch
from kernel_workbench import LAYER_NORM_BACKWARD, Domain, kernel

mark = Path(__file__).with_suffix(".mark")
if mark.exists():
    raise ValueError("no second time")
mark.touch()

@kernel(LAYER_NORM_BACKWARD, Domain(dtypes=(torch.float32,)))
def ends(dy, x, weight, mean, rstd):
    os._exit(3)
"""


def test_file_that_is_imported_once_fails_its_rows(tmp_path: Path) -> None:
    """Every later call finds no worker, and says why; the run goes on."""
    file = tmp_path / "once.py"
    file.write_text(_FILE)
    inputs = LAYER_NORM_BACKWARD.inputs(CASE, CPU)
    workers = Workers(CPU, 90, files=(file,))
    try:
        (kernel,) = workers.kernels()
        calls = [workers.call(kernel, CASE, Parcel.of(inputs, CPU), "nan") for _ in range(2)]
        calls.append(workers.call_plainly(kernel, CASE, inputs))
    finally:
        workers.close()
    assert [call.rule for call in calls] == ["process ended"] * 3
    assert calls[0].reason == "it ended its process, with status 3"
    for call in calls[1:]:
        assert "can't be imported again" in str(call.reason)
        assert "importing it raised ValueError: no second time" in str(call.reason)
