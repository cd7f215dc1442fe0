"""`python -m kernel_workbench.suites.fleet --on TYPE ... -- SUITE OPTIONS`.

Run a suite on the nodes of a cluster.

A node runs the same process as a single machine. The exit status is the largest of all nodes: 0 if
every run is complete and no row is wrong; 1 if a row is wrong; 2 if an option is wrong or no node
can be had; 3 if the suite itself failed on a node; 4 if a run is incomplete, also after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernel_workbench.profiles.environment import tree_hash
from kernel_workbench.reports.arguments import CommandLine, not_empty
from kernel_workbench.reports.commands import NOX, PROGRAM, this_program
from kernel_workbench.reports.exit_status import ExitStatus, status_of
from kernel_workbench.reports.output import outlast_readers
from kernel_workbench.reports.phrases import shown
from kernel_workbench.reports.record import RecordError
from kernel_workbench.root import IS_CHECKOUT, ROOT, default_results
from kernel_workbench.suites.fleet.attempts import Attempts
from kernel_workbench.suites.fleet.checkout import packages, too_large, variables
from kernel_workbench.suites.fleet.driver import Fleet, Lane, records_of, tell
from kernel_workbench.suites.fleet.engine import Engine, FleetError, Order
from kernel_workbench.suites.fleet.shelf import Shelf
from kernel_workbench.suites.run.commands import with_values, without
from kernel_workbench.suites.run.option_table import OF_FILES
from kernel_workbench.suites.run.options import FOLDERS, check

# Options of a suite that a fleet doesn't serve, and why.
_OF_ONE_MACHINE = {
    "--results": "records come to the driver; give it before the second --",
    "--resume": "it is the fleet's; give it before the second --",
    "--ncu": "its reports would stay on the node",
    **dict.fromkeys(("--gpus", "--gpus-together"), "a run takes all of a node, and one GPU of it"),
    **dict.fromkeys(("--against", "--gate"), "it needs the repository, which isn't on the node"),
    **dict.fromkeys(
        ("--lf", "--last-failed", "--ff", "--failed-first", "--failed"), "no record is on the node"
    ),
    **dict.fromkeys(
        ("--list", "--collect-only", "--co", "--pdb", "-s", "--details"),
        "there is no terminal on the node",
    ),
}


def _parser() -> CommandLine:
    prefix = this_program().prefix("fleet")
    parser = CommandLine(
        prog=prefix,
        usage=f"{prefix} [options] --on TYPE -- SUITE [options of the suite]",
        description="Run a suite (accuracy, bench, profile or search) on a node of each type of a "
        "cluster. Rows arrive here as soon as they exist.",
    )
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="TYPE",
        help="a type of accelerator, as the cluster names it (H200, A100); may be repeated",
    )
    parser.add_argument(
        "--engine",
        choices=("ray", "slurm"),
        default="ray",
        help="the scheduler that places the runs (default ray)",
    )
    parser.add_argument(
        "--address",
        default="auto",
        type=not_empty,
        metavar="HOST:PORT",
        help="address of the Ray cluster (default auto: the one that this machine belongs to)",
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of sbatch for each job, such as partition=gpu or time=60; may be repeated",
    )
    parser.add_argument(
        "--results",
        default=str(default_results()),
        type=not_empty,
        metavar="DIR",
        help="where to create the folder of records (default results)",
    )
    parser.add_argument(
        "--resume",
        type=not_empty,
        metavar="DIR",
        help="continue an interrupted fleet: its folder of records; repeat its options",
    )
    return parser


def _order(words: Sequence[str]) -> Order:
    """Return the order for a node from the words after the second `--`. Raises FleetError."""
    if not words or words[0] not in FOLDERS:
        problem = f"{words[0]}: there is no such suite" if words else "no suite is named"
        raise FleetError(f"{problem}; after a second -- comes one of {', '.join(FOLDERS)}")
    suite, *arguments = words
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in _OF_ONE_MACHINE or name.startswith("--benchmark-"):
            why = _OF_ONE_MACHINE.get(name, "its files would stay on the node")
            raise FleetError(f"{name}: a fleet doesn't serve it: {why}")
    check(suite, arguments)
    kept = ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", NOX, PROGRAM)
    own = {name: os.environ[name] for name in kept if name in os.environ}
    near = with_values(arguments, OF_FILES, _in_checkout)
    return Order(suite, tuple(near), variables=own | variables())


def _in_checkout(option: str, value: str) -> str:
    """Return a file's path relative to the checkout's root. Raises FleetError."""
    path = (ROOT / Path(value).expanduser()).resolve()
    if not path.is_file():
        raise FleetError(f"{option} {shown(value)}: there is no such file")
    if not path.is_relative_to(ROOT):
        raise FleetError(
            f"{option} {shown(value)}: it lies outside of the checkout, and nodes get only that; "
            "copy it into the checkout"
        )
    return str(path.relative_to(ROOT))


def _engine(options: Namespace, folder: Path) -> Engine:
    """Return the engine, after checking that each type has a node. Raises FleetError."""
    try:
        if options.engine == "slurm":
            return _slurm_engine(options, folder)
        from kernel_workbench.suites.fleet.ray_engine import RayEngine  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise FleetError(
            f"--engine {options.engine}: this Python has no {error.name}; install the dependency "
            "group fleet of pyproject.toml (pip install --group fleet)"
        ) from error
    problem = too_large()
    if problem is not None:
        raise FleetError(problem)
    engine = RayEngine(options.address)
    engine.preflight(options.on, packages())
    return engine


def _slurm_engine(options: Namespace, folder: Path) -> Engine:
    from kernel_workbench.suites.fleet.slurm_engine import SlurmEngine  # noqa: PLC0415 (optional)

    pairs = [word.partition("=") for word in options.slurm]
    wrong = next(("".join(pair) for pair in pairs if not all(pair)), None)
    if wrong is not None:
        raise FleetError(f"--slurm {shown(wrong)}: write KEY=VALUE, such as partition=gpu")
    engine = SlurmEngine(folder, {name: value for name, _, value in pairs})
    engine.preflight(options.on)
    return engine


def _lanes(options: Namespace, order: Order, folder: Path) -> list[Lane]:
    """Return a lane for each type, with the rows of an earlier run. Raises FleetError."""
    command = this_program().command(order.suite, order.arguments)
    lanes = [
        Lane(kind, Attempts(order.suite), Shelf(folder / kind, command)) for kind in options.on
    ]
    if options.resume is not None:
        if not folder.is_dir():
            raise FleetError(f"--resume {shown(folder)}: there is no such folder")
        tree = tree_hash()
        for lane in lanes:
            lane.shelf.resume(lane.attempts, tree)
    return lanes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    place = typed.index("--") if "--" in typed else len(typed)
    parser = _parser()
    options = parser.read(typed[:place])
    if len(set(options.on)) < len(options.on) or not options.on:
        parser.error("--on names each type of accelerator once, for example --on H200 --on A100")
    if not IS_CHECKOUT:
        parser.error(
            "a fleet's nodes get the files of a checkout, and this workbench is an installed "
            "package; clone the checkout, and run `nox -s fleet` there"
        )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(options.resume or Path(options.results) / f"fleet-{stamp}-{os.getpid()}")
    try:
        order = _order(typed[place + 1 :])
        lanes = _lanes(options, order, folder)
        again = [*without(typed[:place], {"--resume": True}), f"--resume={folder}"]
        engine = _engine(options, folder)
        words = [*again, "--", order.suite, *order.arguments]
        tell("to continue it", this_program().command("fleet", words))
        status = Fleet(engine, order, lanes).run()
    except (FleetError, RecordError, pytest.UsageError) as error:
        print(error, file=sys.stderr)
        return ExitStatus.USAGE
    except KeyboardInterrupt:
        print("interrupted before anything was run", file=sys.stderr)
        return ExitStatus.INCOMPLETE
    paths = records_of(lanes)
    if len(paths) > 1:
        print(this_program().command("compare", map(str, paths)))
    return status


if __name__ == "__main__":
    outlast_readers()
    sys.exit(status_of(main))
