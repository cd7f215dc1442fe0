"""`python -m kernel_workbench.suites.compile.same_code`: hashes of what calls run on a GPU.

    python -m kernel_workbench.suites.compile.same_code SM FILE ... < CALLS > HASHES

CALLS is a JSON list of calls, each with the names of its op and kernel and its case. HASHES is a
JSON list with a hash for each call, or null. Two calls with one hash make the same launches of the
same machine code, on the same grids with the same numbers, and the same operations of PyTorch in
the same order. A hash is null where that can't be told: for a kernel that the files lack, that
launches nothing by Triton, or that calls another package's operation.

`bench --against REF --changed` runs this in the tree of each side; no GPU is needed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kernel_workbench.kernels.registry import KernelError
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.suites.compile.workers import CompileWorkers, Hash, NamedCall
from kernel_workbench.suites.run.progress import Progress
from kernel_workbench.suites.sandbox.judge_side.worker_process import WorkersError
from kernel_workbench.suites.sandbox.wire import case_of


def hashes(
    calls: Sequence[NamedCall], files: Sequence[Path], sm: int, jobs: int
) -> list[str | None]:
    """Return a hash of what each call runs on a GPU, or None where that can't be told.

    Args:
        calls: the calls.
        files: the user's files that define their kernels and ops.
        sm: the GPU generation, for example 90.
        jobs: the number of processes.

    Raises:
        KernelError: if a file can't be imported.
        WorkersError: if a process can't be started.
    """
    answers: dict[NamedCall, str | None] = {}
    with (
        tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch,
        closing(CompileWorkers(jobs, tuple(files), Path(scratch))) as workers,
        Progress("bench, compiled code") as progress,
    ):
        tasks = [Hash(call) for call in dict.fromkeys(calls)]
        progress.begin(len(tasks))
        for _, task, answer in workers.run({sm: tasks}, progress.wait):
            assert isinstance(task, Hash)
            assert answer is None or isinstance(answer, str)
            answers[task.call] = answer
            progress.advance(task.name)
    return [answers[call] for call in calls]


def main() -> int:
    """Read the calls, write the hashes, and return the exit status."""
    sm, *files = sys.argv[1:]
    # Triton reads it when it is imported: nothing compiles under the interpreter.
    os.environ.pop("TRITON_INTERPRET", None)
    calls = [
        NamedCall(call["op"], call["kernel"], case_of(call["case"]))
        for call in json.load(sys.stdin)
    ]
    try:
        answers = hashes(calls, [Path(file) for file in files], int(sm), os.cpu_count() or 1)
        json.dump(answers, sys.stdout)
    except (KernelError, WorkersError) as error:
        print(error, file=sys.stderr)
        return ExitStatus.SUITE_FAILED
    return ExitStatus.RIGHT


if __name__ == "__main__":
    sys.exit(main())
