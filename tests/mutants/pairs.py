"""The mutants that take two or three things at once, as studies try them: many at a time."""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import TypeVar

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch

from kernel_workbench.kernels.registry import Kernel, all_kernels
from kernel_workbench.oracles.op import Case
from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.suites import MOST_JOBS
from kernel_workbench.suites.accuracy.run import Run
from kernel_workbench.suites.sandbox.orphans import die_with_parent
from tests import ROOT
from tests.mutants import attention_backward_pairs, attention_forward_pairs, layer_norm_pairs
from tests.mutants.mutant import Mutant

PAIRS: tuple[Mutant, ...] = (
    *layer_norm_pairs.MUTANTS,
    *attention_forward_pairs.MUTANTS,
    *attention_backward_pairs.MUTANTS,
)
Known = TypeVar("Known")


def command_line(name: str, told: str | None) -> CommandLine:
    """The options that each has: names of mutants, and --jobs."""
    parser = CommandLine(prog=f"python -m studies.{name}", description=told)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument(
        "--jobs",
        type=whole_number(1, MOST_JOBS),
        default=1,
        metavar="N",
        help="processes, each with one mutant at a time (default 1)",
    )
    return parser


def chosen(parser: CommandLine, options: argparse.Namespace) -> list[Mutant]:
    """The mutants of these names; all pairs where there are none."""
    known = {each.name: each for each in PAIRS}
    for name in options.names:
        if name not in known:
            parser.error(f"{name}: there is no such mutant of two or three things at once")
    return [known[name] for name in options.names or known]


def changed_kernels(kernels: Sequence[Kernel], mutant: Mutant) -> list[Kernel]:
    """Ours of its op that may differ by its edits, the one that it is made of first.

    kernels: of a worker that has the edits. A kernel may differ if the file of its function is an
    edited one, or imports one, or a file that does.
    """
    edited = {f"kernels/{edit.file}" for edit in mutant.edits}
    everywhere = any(each.endswith("__init__.py") for each in edited)
    found = [
        each
        for each in kernels
        if (each.op.name, each.origin) == (mutant.op, "ours")
        and (everywhere or edited & _reached(_relative(each.path)))
    ]
    return sorted(found, key=lambda each: each.name != mutant.kernel)


def is_told_by_another(run: Run, kernel: Kernel, case: Case, beside: Sequence[Kernel]) -> bool:
    """Whether an interpreter runs another kernel's code in this one, which serves the case too."""
    same = _same_code()[kernel.op.name, kernel.name]
    return any(each.name == same and run.refusal(each, case) is None for each in beside)


@cache
def _same_code() -> dict[tuple[str, str], str | None]:
    return {(each.op.name, each.name): each.same_code_as for each in all_kernels()}


def _relative(path: str) -> str:
    """A kernel's file as it is called in a checkout: from its last folder `kernels` on."""
    _, _, inside = path.rpartition("/kernels/")
    return f"kernels/{inside}"


@cache
def _reached(file: str) -> frozenset[str]:
    """The files under kernels/ that a file imports, by whatever way, and itself."""
    found, waiting = {file}, [file]
    while waiting:
        for each in _imports(waiting.pop()) - found:
            found.add(each)
            waiting.append(each)
    return frozenset(found)


def _imports(file: str) -> set[str]:
    """The files of `kernels` whose modules a file imports; packages' own files aside.

    Those gather what others define, and change nothing of it.
    """
    names = set[str]()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{each.name}" for each in node.names)
    names = {name.removeprefix("kernel_workbench.") for name in names}
    files = {f"{name.replace('.', '/')}.py" for name in names if name.startswith("kernels.")}
    return {each for each in files if (ROOT / each).is_file()}


def each_known(
    task: Callable[[Mutant, Path, int], Known], mutants: Sequence[Mutant], jobs: int, parts: int = 1
) -> Iterator[tuple[Mutant, Known | BaseException]]:
    """What the task makes of each mutant, as it is known, or what it raised.

    The task is done once for each part of a mutant. It gets an empty folder, beside those of the
    other parts, and the part's number. On Ctrl-C it says how many weren't done, and ends.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context, done = multiprocessing.get_context("spawn"), 0
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        pool = ProcessPoolExecutor(jobs, context, _begin)
        waiting = {
            pool.submit(task, mutant, _made(Path(folder) / mutant.name / str(part)), part): mutant
            for mutant in mutants
            for part in range(parts)
        }
        try:
            for future in as_completed(waiting):
                done += 1
                error = future.exception()
                yield waiting[future], future.result() if error is None else error
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped: {len(waiting) - done} of {len(waiting)} weren't done\n")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if done < len(waiting):
                for process in multiprocessing.active_children():
                    process.kill()
                    process.join()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _begin() -> None:
    """What a process does first: Ctrl-C comes to the one that started it, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    torch.set_num_threads(1)
