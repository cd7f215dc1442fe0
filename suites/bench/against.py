"""`bench --against REF`: two versions of the kernels, timed in turn on the same GPU.

Side A is the ref's tree, or an older kernel file; side B this tree as it is, with what isn't
committed. Processes run in the order A B B A, --rounds times, so that a drift of the machine that
is steady falls on both sides alike; each is a whole run of the suite in its side's tree. The
processes of a side become one record, and the comparison of the two ends the run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_workbench.reports.commands import this_program
from kernel_workbench.reports.comparison.__main__ import main as compare
from kernel_workbench.reports.exit_status import ExitStatus
from kernel_workbench.reports.record import RecordError
from kernel_workbench.suites import ROOT
from kernel_workbench.suites.bench.processes import given
from kernel_workbench.suites.bench.rounds import Side, Timed, time_in_turn
from kernel_workbench.suites.bench.worktrees import TreeError, commit_of, is_dirty, tree_of
from kernel_workbench.suites.run.commands import with_values, without
from kernel_workbench.suites.run.exit_status import in_pytest
from kernel_workbench.suites.run.option_table import OF_FILES, BenchOptions
from kernel_workbench.suites.run.options import DEVICE
from kernel_workbench.suites.run.session import typed

_SUITE = "kernel_workbench/suites/bench"
_EARLIER = ("suites/bench", "suites/throughput")  # the names that it had in earlier commits
_ORDER = "ABBA"
_ROUNDS = 2  # the fewest whose processes, four a side, tell 2 %
_OWN = {"--against": True, "--rounds": True, "--results": True, "--gate": False}


def run_against(config: pytest.Config, options: BenchOptions, older: str) -> int:
    """Time both sides, write a record of each, print the comparison; return the exit status.

    older: the ref or file of side A.
    """
    folder = Path(config.invocation_params.dir)
    arguments = (*_in_full(without(given(config), _OWN), folder), *_ours_alone(config, options))
    try:
        with two_sides(older, options.kernels, arguments, folder) as sides:
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


def in_order(sides: tuple[Side, Side], rounds: int) -> list[Side]:
    """The sides of the processes, A B B A in each round."""
    return [sides[each == "B"] for each in _ORDER * rounds]


def tell(timed: Timed, *, gate: bool) -> int:
    """Print where the sides' records are, and how they compare; the exit status of all."""
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
    """The option that leaves peers out, which no commit of this checkout changes.

    On a CPU they are all that there is to time.
    """
    named = options.kernel or options.kernels
    told = named or options.no_baselines or config.stash[DEVICE].type == "cpu"
    return () if told else ("--no-baselines",)


@contextmanager
def two_sides(
    against: str, files: Sequence[str], arguments: Sequence[str], folder: Path, root: Path = ROOT
) -> Iterator[tuple[Side, Side]]:
    """Both sides, their trees in place. Raises TreeError, in one sentence.

    files: those of --kernels; arguments: of a process, files in full; root: the checkout, side B.
    """
    if against.endswith(".py"):
        older = (folder / against).resolve()
        if not files:
            raise TreeError(
                f"--against {against}: name the newer file too: --kernels NEW.py --against OLD.py"
            )
        if not older.is_file():
            raise TreeError(f"--against {against}: there is no such file")
        others = without(arguments, {"--kernels": True})
        yield (
            Side("A", against, root, (*others, "--kernels", str(older))),
            Side("B", " ".join(files), root, tuple(arguments)),
        )
        return
    commit = commit_of(root, against)
    state = "and what isn't committed" if is_dirty(root) else "as committed"
    with tree_of(root, commit) as tree:
        suite = _checked_suite(tree, root, f"--against {against}: commit {commit[:12]}")
        moved = tuple(
            suite if root / each == root / _SUITE else _moved(each, tree, root, against)
            for each in arguments
        )
        yield (
            Side("A", f"{against}, {commit[:12]}", tree, moved),
            Side("B", f"this tree, {state}", root, tuple(arguments)),
        )


def _checked_suite(tree: Path, root: Path, named: str) -> str:
    """The suite's folder there. Raises TreeError where it can't time, or times by other rules."""
    suites = [each for each in (_SUITE, *_EARLIER) if (tree / each / "conftest.py").is_file()]
    if not suites:
        raise TreeError(f"{named} is older than the suite that times; name a later one")
    theirs, ours = (_protocol(each) for each in (tree, root))
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
    """An argument for the ref's tree: a file of this checkout is that tree's own version of it."""
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
    """The arguments, with files in full: a side's process runs in another folder."""
    return with_values(arguments, OF_FILES, lambda _, value: str((folder / value).resolve()))
