"""`nox -s bench -- --against REF`: two versions of the kernels, timed in turn on the same GPU.

Side A is the ref's tree, or an older kernel file; side B this tree as it is, with what isn't
committed. Processes run in the order A B B A, twice, so that a drift of the machine that is steady
falls on both sides alike; each is a whole run of the suite in its side's tree. The processes of a
side become one record, and the comparison of the two ends the run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from reports.comparison.__main__ import main as compare
from reports.record import RecordError
from suites import ROOT
from suites.bench.process_turns import Side, refuse_files_of_one_process, time_in_turn, without
from suites.bench.worktrees import TreeError, commit_of, is_dirty, tree_of
from suites.run.nox_command import nox_command
from suites.run.options import DEVICE
from suites.run.session import typed

_SUITE = "suites/bench"
_EARLIER = "suites/throughput"  # the name that it had in commits of before 2026-11-22
_ORDER = "ABBA"
_ROUNDS = 2  # the fewest whose processes, four a side, tell 2 %
_OWN = {"--against": True, "--rounds": True, "--results": True, "--gate": False}
_OF_FILES = ("--kernels", "--cases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for; `arguments` are those of a process, files in full."""

    against: str
    files: tuple[str, ...]
    arguments: tuple[str, ...]
    directory: Path
    results: Path
    command: str
    rounds: int = _ROUNDS
    gate: bool = False


def run_against(config: pytest.Config, against: str) -> int:
    """Time both sides, write a record of each, print the comparison; the exit status."""
    given = list(map(str, config.invocation_params.args))
    refuse_files_of_one_process(given, "--against")
    asked_for = config.getoption("--rounds")
    rounds = _ROUNDS if asked_for is None else asked_for
    directory = Path(config.invocation_params.dir)
    asked = Asked(
        against=against,
        files=tuple(config.getoption("--kernels")),
        arguments=(*_absolute(without(given, _OWN), directory), *_ours_alone(config)),
        directory=directory,
        results=Path(config.getoption("--results")).resolve(),
        command=nox_command("bench", typed(config, "bench")),
        rounds=rounds,
        gate=config.getoption("--gate"),
    )
    try:
        return time_both(asked)
    except (TreeError, RecordError) as error:
        raise pytest.UsageError(str(error)) from error
    except KeyboardInterrupt:
        print("bench: interrupted before any process had begun", file=sys.stderr)
        return int(pytest.ExitCode.INTERRUPTED)


def _ours_alone(config: pytest.Config) -> tuple[str, ...]:
    """The option that leaves peers out, which no commit of this checkout changes.

    On a CPU they are all that there is to time.
    """
    named = config.getoption("--kernel") or config.getoption("--kernels")
    told = named or config.getoption("--no-baselines") or config.stash[DEVICE].type == "cpu"
    return () if told else ("--no-baselines",)


def time_both(asked: Asked, root: Path = ROOT) -> int:
    """Time both sides and compare them; the exit status. Raises TreeError or RecordError.

    root: the checkout that is side B.
    """
    with _sides(asked, root) as sides:
        return _run(asked, sides)


@contextmanager
def _sides(asked: Asked, root: Path) -> Iterator[tuple[Side, Side]]:
    """Both sides, their trees in place. Raises TreeError, in one sentence."""
    against, arguments = asked.against, asked.arguments
    if against.endswith(".py"):
        old = (asked.directory / against).resolve()
        if not asked.files:
            raise TreeError(
                f"--against {against}: name the newer file too: --kernels NEW.py --against OLD.py"
            )
        if not old.is_file():
            raise TreeError(f"--against {against}: there is no such file")
        others = without(arguments, {"--kernels": True})
        yield (
            Side("A", against, root, (*others, "--kernels", str(old))),
            Side("B", " ".join(asked.files), root, arguments),
        )
        return
    commit = commit_of(root, against)
    state = "and what isn't committed" if is_dirty(root) else "as committed"
    with tree_of(root, commit) as tree:
        suite = _checked_suite(tree, root, f"--against {against}: commit {commit[:12]}")
        moved = tuple(
            suite if each == _SUITE else _moved(each, tree, root, against) for each in arguments
        )
        yield (
            Side("A", f"{against}, {commit[:12]}", tree, moved),
            Side("B", f"this tree, {state}", root, arguments),
        )


def _checked_suite(tree: Path, root: Path, named: str) -> str:
    """The suite's folder there. Raises TreeError where it can't time, or times by other rules."""
    suites = [each for each in (_SUITE, _EARLIER) if (tree / each / "conftest.py").is_file()]
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


def _run(asked: Asked, sides: tuple[Side, Side]) -> int:
    """Run the processes in turn, then tell. What ends it early loses nothing that was timed."""
    order = [sides[each == "B"] for each in _ORDER * asked.rounds]
    run = time_in_turn(order, asked.results, asked.command)
    status, problem = run.status, run.problem
    for side, path in run.records:
        print(f"{side.letter}: {side.name}: {path}")
    if len(run.records) == len(sides):
        print()
        sys.stdout.flush()
        paths = [str(path) for _, path in run.records]
        compared = compare([*paths, *(["--gate"] if asked.gate else [])])
        status = status or compared
    else:
        problem = f"{problem}; one side has no process, so there is nothing to compare"
    if problem is not None:
        print(problem, file=sys.stderr)
    return status


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


def _absolute(arguments: Sequence[str], directory: Path) -> list[str]:
    """The arguments, with files in full: a side's process runs in another folder."""
    kept = []
    previous = ""
    for each in arguments:
        option, equals, value = each.partition("=")
        if equals and option in _OF_FILES:
            each = f"{option}={(directory / value).resolve()}"
        elif previous in _OF_FILES:
            each = str((directory / each).resolve())
        kept.append(each)
        previous = each
    return kept
