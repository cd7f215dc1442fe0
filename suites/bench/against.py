"""`bench --against REF`: two versions of the kernels, timed in turn on the same GPU.

Side A is the ref's tree, or an older kernel file; side B is this tree with its uncommitted changes.
Processes run in the order A B B A, --rounds times, so that a steady drift of the machine affects
both sides alike. A process is a whole run of the suite in its side's tree. The processes of a side
become one record, and the run ends with a comparison of the two records.

With --changed, the code that each side compiles is compared first, and only rows whose code differs
are timed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.comparison.__main__ import main as compare
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import RecordError
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.bench.changed_code import leave_out_same_code
from kernel_workbench.suites.bench.processes import pytest_arguments
from kernel_workbench.suites.bench.rounds import BenchSide, TimedSides, time_in_turn
from kernel_workbench.suites.bench.suite import BenchSuite
from kernel_workbench.suites.bench.worktrees import TreeError, commit_of, is_dirty, tree_of
from kernel_workbench.suites.run.commands import with_values, without
from kernel_workbench.suites.run.exit_status import in_pytest
from kernel_workbench.suites.run.option_table import OF_FILES, BenchOptions
from kernel_workbench.suites.run.options import DEVICE
from kernel_workbench.suites.run.session import typed
from kernel_workbench.suites.run.suite import Pair

_SUITE = "kernel_workbench/suites/bench"
_EARLIER = ("suites/bench", "suites/throughput")  # the suite's names in earlier commits
_ORDER = "ABBA"
_ROUNDS = 2  # the fewest rounds whose four processes a side resolve 2 %
_OWN = {
    "--against": True,
    "--rounds": True,
    "--results": True,
    "--gate": False,
    "--changed": False,
}


def run_against(config: pytest.Config, options: BenchOptions, older: str) -> int:
    """Time both sides, write a record of each, and print the comparison.

    Args:
        config: pytest's configuration.
        options: the options.
        older: the ref or file of side A.

    Returns:
        The exit status.
    """
    folder = Path(config.invocation_params.dir)
    arguments = (
        *_in_full(without(pytest_arguments(config), _OWN), folder),
        *_ours_alone(config, options),
    )
    try:
        with (
            two_sides(older, options.kernels, arguments, folder) as sides,
            tempfile.TemporaryDirectory(prefix="kernel-workbench-") as scratch,
        ):
            if options.changed:
                pairs, sm = _planned(config, options)
                changed = leave_out_same_code(sides, pairs, sm, Path(scratch))
                if changed is None:
                    print(
                        "bench: every row runs the same compiled code on both sides: none is timed"
                    )
                    return ExitStatus.RIGHT
                sides = changed
            timed = time_in_turn(
                in_order(sides, options.rounds or _ROUNDS),
                Path(options.results).resolve(),
                this_program().command("bench", typed(config, "bench")),
                stop_at_failure=config.option.maxfail == 1,
            )
            return tell(timed, gate=options.gate)
    except (TreeError, RecordError) as error:
        raise pytest.UsageError(str(error)) from error
    except KeyboardInterrupt:
        print("bench: interrupted before any process had begun", file=sys.stderr)
        return int(pytest.ExitCode.INTERRUPTED)


def _planned(config: pytest.Config, options: BenchOptions) -> tuple[Sequence[Pair], int]:
    """Return the pairs that side B times, and the GPU's generation. Raises UsageError."""
    device = config.stash[DEVICE]
    if device.type == "cpu":
        raise pytest.UsageError(
            "--changed: it compares code that is compiled for a GPU, and --device cpu has none; "
            "leave it out"
        )
    ours_alone = "--no-baselines" in _ours_alone(config, options)
    suite = BenchSuite(replace(options, no_baselines=options.no_baselines or ours_alone), device)
    try:
        pairs = [pair for pair in suite.plan() if suite.refusal(*pair) is None]
    finally:
        suite.close()
    return pairs, suite.sm


def in_order(sides: tuple[BenchSide, BenchSide], rounds: int) -> list[BenchSide]:
    """Return the sides of the processes: A B B A in each round."""
    return [sides[letter == "B"] for letter in _ORDER * rounds]


def tell(timed: TimedSides, *, gate: bool) -> int:
    """Print the paths of the sides' records and their comparison; return the exit status."""
    status, problem = timed.status, timed.problem
    for side, path in timed.records.items():
        print(f"{side.letter}: {side.name}: {path}")
    if len(timed.records) == len(set(_ORDER)):
        print()
        sys.stdout.flush()
        compared = compare([*map(str, timed.records.values()), *(["--gate"] if gate else [])])
        status = status or in_pytest(ExitStatus(compared))
    else:
        problem = f"{problem}; one side has no process, so there is nothing to compare"
    if problem is not None:
        print(problem, file=sys.stderr)
    return status


def _ours_alone(config: pytest.Config, options: BenchOptions) -> tuple[str, ...]:
    """Return the option that leaves out peers, which no commit of this checkout changes.

    Return nothing on a CPU, where only peers are timed.
    """
    named = options.kernel or options.kernels
    keep_peers = named or options.no_baselines or config.stash[DEVICE].type == "cpu"
    return () if keep_peers else ("--no-baselines",)


@contextmanager
def two_sides(
    against: str, files: Sequence[str], arguments: Sequence[str], folder: Path, root: Path = ROOT
) -> Iterator[tuple[BenchSide, BenchSide]]:
    """Yield both sides, with their trees checked out.

    Args:
        against: the ref or file of side A.
        files: the files of --kernels.
        arguments: a process's arguments, with absolute paths.
        folder: the folder that `against` is relative to.
        root: the checkout, side B.

    Raises:
        TreeError: if a side can't be timed; the message is one sentence.
    """
    if against.endswith(".py"):
        older = (folder / against).resolve()
        if not files:
            raise TreeError(
                f"--against {against}: name the newer file too: --kernels NEW.py --against OLD.py"
            )
        if not older.is_file():
            raise TreeError(f"--against {against}: there is no such file")
        rest = without(arguments, {"--kernels": True})
        yield (
            BenchSide("A", against, root, (*rest, "--kernels", str(older))),
            BenchSide("B", " ".join(files), root, tuple(arguments)),
        )
        return
    commit = commit_of(root, against)
    state = "and what isn't committed" if is_dirty(root) else "as committed"
    with tree_of(root, commit) as tree:
        suite = _checked_suite(tree, root, f"--against {against}: commit {commit[:12]}")
        moved = tuple(
            suite if root / argument == root / _SUITE else _moved(argument, tree, root, against)
            for argument in arguments
        )
        yield (
            BenchSide("A", f"{against}, {commit[:12]}", tree, moved),
            BenchSide("B", f"this tree, {state}", root, tuple(arguments)),
        )


def _checked_suite(tree: Path, root: Path, named: str) -> str:
    """Return the suite's folder in a tree. Raises TreeError if it can't time, or by other rules."""
    suites = [folder for folder in (_SUITE, *_EARLIER) if (tree / folder / "conftest.py").is_file()]
    if not suites:
        raise TreeError(f"{named} is older than the suite that times; name a later one")
    theirs, ours = (_protocol(checkout) for checkout in (tree, root))
    if theirs != ours:
        raise TreeError(
            f"{named} times by protocol {theirs} and this tree by {ours}, so their figures don't "
            "compare; name a later one"
        )
    return suites[0]


def _protocol(tree: Path) -> str:
    text = "".join(file.read_text() for file in (tree / "reports").rglob("*.py"))
    numbers = dict(re.findall(r"^(\w*PROTOCOL) = (\d+)\b", text, re.MULTILINE))
    return str(numbers.get("BENCH_PROTOCOL", numbers.get("PROTOCOL", "unknown")))


def _moved(argument: str, tree: Path, root: Path, ref: str) -> str:
    """Return an argument for the ref's tree: a file becomes that tree's version of it."""
    option, equals, value = argument.rpartition("=")
    path = Path(value)
    if not path.is_absolute() or not path.is_file():
        return argument
    if not path.is_relative_to(root):
        if path.suffix == ".py":
            raise TreeError(
                f"--against {ref}: {path} isn't in this checkout, so {ref} has no other version "
                "of it; name an older file: --kernels NEW.py --against OLD.py"
            )
        return argument
    other = tree / path.relative_to(root)
    if path.suffix == ".py" and not other.is_file():
        raise TreeError(f"--against {ref}: it has no {path.relative_to(root)}")
    return f"{option}{equals}{other}" if other.is_file() else argument


def _in_full(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments with absolute paths, because a side's process runs in another folder."""
    return with_values(arguments, OF_FILES, lambda _, value: str((folder / value).resolve()))
