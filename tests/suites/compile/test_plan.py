"""The plan of a compilation, and the workers that capture its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from kernel_workbench.kernels.registry import KernelError, all_kernels
from kernel_workbench.suites.compile.cases import Standing
from kernel_workbench.suites.compile.plan import plan
from kernel_workbench.suites.compile.workers import CompileWorkers, NamedCall, Noted, Take, Task
from kernel_workbench.suites.sandbox.judge_side.worker_process import ForkServer, WorkerProcess
from tests.builders.commands import wait_for


def test_silent_kernel_is_named_beside_another_op_s_kernel_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two kernels of a name launches: the other one still counts as silent."""
    launching, silent = [one for one in all_kernels() if one.name == "torch_eager"][:2]
    entries = [
        Standing(kernel, "plain", {90: next(iter(kernel.op.cases()))})
        for kernel in (launching, silent)
    ]

    def run(
        _: CompileWorkers, tasks: Mapping[int, Sequence[Task]], __: object
    ) -> Iterator[tuple[int, Task, object]]:
        noted = Noted("key", "rows", {}, None)
        for task in tasks.get(90, ()):
            assert isinstance(task, Take)
            yield 90, task, (noted,) if task.call.op == launching.op.name else ()

    monkeypatch.setattr(CompileWorkers, "run", run)
    planned = plan(entries, CompileWorkers(1, (), tmp_path))
    assert planned.silent == (f"{silent.op.name} torch_eager",)


def test_worker_whose_files_fail_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal leaves no process behind, though the server goes on."""
    file = tmp_path / "mine.py"
    file.write_text("raise RuntimeError('no numbers')")
    forked: list[WorkerProcess] = []
    fork = ForkServer.fork

    def noted_fork(server: ForkServer, message: dict[str, object]) -> WorkerProcess:
        forked.append(fork(server, message))
        return forked[-1]

    monkeypatch.setattr(ForkServer, "fork", noted_fork)
    kernel = next(one for one in all_kernels() if one.name == "torch_eager")
    call = NamedCall(kernel.op.name, kernel.name, next(iter(kernel.op.cases())))
    with closing(CompileWorkers(1, (file,), tmp_path)) as workers:
        with pytest.raises(KernelError, match="importing it raised RuntimeError: no numbers"):
            list(workers.run({90: [Take(call)]}))
        (worker,) = forked
        assert worker.ended
        wait_for(lambda: not Path(f"/proc/{worker.pid}").exists())
