"""The mutants that take two or three things at once, as studies try them: many at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch

from kernel_workbench.reports.arguments import CommandLine, whole_number
from kernel_workbench.suites import MOST_JOBS
from kernel_workbench.suites.sandbox.orphans import die_with_parent
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


def each_known(
    task: Callable[[Mutant, Path], Known], mutants: Sequence[Mutant], jobs: int
) -> Iterator[tuple[Mutant, Known | BaseException]]:
    """Yield what the task makes of each mutant, as it is known, or what it raised.

    The task gets an empty folder. On Ctrl-C it says how many weren't done, and ends.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context, done = multiprocessing.get_context("spawn"), 0
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        pool = ProcessPoolExecutor(jobs, context, _begin)
        waiting = {
            pool.submit(task, mutant, _made(Path(folder) / mutant.name)): mutant
            for mutant in mutants
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
    """Prepare a process: Ctrl-C comes to the process that started it, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    torch.set_num_threads(1)
