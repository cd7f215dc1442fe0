"""Run a kernel in a child process: the checkout's, one of a changed copy, or one of a file.

A judge is called there on each case, with the kernel; its results come back as JSON, a line for
each case, so that the results before the end of the process are kept.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel_workbench import use_overlay
from kernel_workbench.kernels.registry import Kernel
from kernel_workbench.oracles.op import Case
from tests.mutants import own_ops
from tests.mutants.bench import PLAIN
from tests.mutants.mutant import Mutant

Judge = Callable[[Kernel, Case], Any]
Cases = Sequence[Case] | Callable[[Kernel], Sequence[Case]]  # or what chooses them for a kernel
Results = dict[str, Any]  # by the case's id; a case without a result ended the process


def sound_results(mutant: Mutant, cases: Cases, judge: Judge, limit_s: int) -> Results:
    """Return the judge's results for the kernel that a mutant was made of."""
    kernel = mutant.sound or mutant.kernel
    return _results(mutant.op, kernel, cases, judge, limit_s, files=sound_files(mutant))


def sound_files(mutant: Mutant) -> tuple[Path, ...]:
    """Return the files, one of which registers the kernel that a mutant was made of.

    There is none where the kernel is one of the checkout's.
    """
    if not mutant.sound:
        return ()
    return (mutant.file,) if mutant.edits and mutant.file is not None else (PLAIN, *own_ops.RIGHT)


def mutant_results(mutant: Mutant, cases: Cases, judge: Judge, limit_s: int) -> Results:
    """Return the judge's results for a mutant. Raises EditError."""
    op, kernel = mutant.op, mutant.kernel
    if mutant.file is not None and not mutant.edits:
        return _results(op, kernel, cases, judge, limit_s, files=(mutant.file,))
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        if mutant.file is not None:
            file = mutant.write_file(Path(folder))
            return _results(op, kernel, cases, judge, limit_s, files=(file,))
        mutant.write_overlay(Path(folder))
        return _results(op, kernel, cases, judge, limit_s, overlay=Path(folder))


def _results(
    op: str,
    kernel: str,
    cases: Cases,
    judge: Judge,
    limit_s: int,
    *,
    overlay: Path | None = None,
    files: Sequence[Path] = (),
) -> Results:
    """Fork, load the kernel and judge it there. limit_s: seconds for a case."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ours)
            signal.alarm(limit_s)
            if overlay is not None:
                use_overlay(str(overlay))
            loaded = _loaded(op, kernel, files)
            for case in cases(loaded) if callable(cases) else cases:
                signal.alarm(limit_s)
                line = json.dumps({case.id(): judge(loaded, case)})
                os.write(theirs, line.encode() + b"\n")
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as lines:
        results: Results = {}
        for line in lines:
            results |= json.loads(line)
    os.waitpid(child, 0)
    return results


def _loaded(op: str, kernel: str, files: Sequence[Path]) -> Kernel:
    registry = importlib.import_module("kernel_workbench.kernels.registry")
    registry.all_kernels()
    for file in files:
        registry.load_file(file)
    kernels: tuple[Kernel, ...] = registry.all_kernels()
    return next(found for found in kernels if (found.op.name, found.name) == (op, kernel))
