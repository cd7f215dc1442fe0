"""The workbench's sessions; `nox --list` shows them, `nox -s NAME -- OPTIONS` passes options on.

All sessions share one environment, made by the session `environment` on the first run and kept in
.nox. A session installs there what its group of pyproject.toml lists and no more, on its first run.
Under --no-venv sessions run in the interpreter that runs nox, and nothing is installed.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

import nox
from nox.command import CommandFailed
from packaging.requirements import Requirement

# A bare `nox` runs the workbench's own tests: they need neither a GPU nor a word of options.
nox.options.sessions = ["tests"]
nox.needs_version = ">=2026.10.20"  # what this file was tried with

_PYPROJECT = nox.project.load_toml("pyproject.toml")
# The requirements that an environment holds, one a line, written when an installation ends.
_STAMP = "kernel-workbench-requirements.txt"

# Set by `environment`; never looked up in .nox, where an environment may be left that --no-venv
# asks not to use. The session itself installs, later, what other sessions need.
_python: Path | None = None
_environment: nox.Session | None = None
_worst = 0  # the largest status of the sessions so far

# Unbuffered, so that a run that is killed has shown what it did. PYTHONSAFEPATH would keep the
# checkout off sys.path, PYTHONOPTIMIZE leave asserts out.
_VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": None, "PYTHONOPTIMIZE": None}

_PATIENCE_S = 60.0  # for a run that is interrupted, to close its record

# With these pytest ends well and has run nothing.
_RUNS_NOTHING = {
    "-h",
    "--help",
    "--co",
    "--collect-only",
    "--list",
    "--version",
    "--fixtures",
    "--markers",
}

# As in reports/exit_status.py, which nox's own Python may be unable to import.
_SUITE_FAILED, _INCOMPLETE = 3, 4
_STATUS_OF_NOX = {
    "tests",
    "lint",
    "mutants",
    "versions",
}  # sessions whose command has other statuses

# Options whose value is a path; tests/suites/run/test_commands.py holds them to what the
# sessions take.
_PATHS = {
    *(
        "--accept",
        "--accepted",
        "--against",
        "--benchmark-json",
        "--cache",
        "--cases",
        "--definition",
        "--detection",
    ),
    *(
        "--failed",
        "--html",
        "--junit",
        "--kernels",
        "--markdown",
        "--ops",
        "--problem",
        "--results",
        "--resume",
        "--roofline",
        "--svg",
        "--workloads",
    ),
}
# Sessions whose bare words are files, and their options whose value is a word of another kind.
_TAKES_FILES = {"report", "compare", "history"}
_NOT_OF_FILES = {"--baseline", "--branch", "--gpu", "--kernel", "--width"}


def _interpreter(session: nox.Session, group: str) -> Path:
    """Return the shared environment's Python, after installing what a group lists.

    Under --no-venv nothing is installed, and the session ends where a package is missing.
    """
    if _python is None or _environment is None:
        message = "the session `environment` comes first: leave out --no-dependencies"
        _fail(session, _SUITE_FAILED, message)
    if _python == Path(sys.executable):
        _require(session, group)
    else:
        _install(_environment, group)
    return _python


def _install(environment: nox.Session, group: str) -> None:
    """Install a group's requirements unless the environment holds them already."""
    wanted = set(nox.project.dependency_groups(_PYPROJECT, group))
    stamp = Path(environment.virtualenv.location) / _STAMP
    stamped = set(stamp.read_text().splitlines()) if stamp.is_file() else set()
    if wanted <= stamped:
        return
    # A requirement that pyproject.toml no longer lists counts for nothing.
    listed = set(nox.project.dependency_groups(_PYPROJECT, *_PYPROJECT["dependency-groups"]))
    requirements = sorted(wanted | (stamped & listed))
    stamp.unlink(missing_ok=True)  # an installation that is cut off counts for nothing
    environment.log(f"installing what the group {group} of pyproject.toml lists; it takes a while")
    pip = ["python", "-m", "pip", "install", "--quiet", *requirements]
    if not sys.flags.dont_write_bytecode and not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        pip.append("--no-compile")  # the first import compiles the few modules that are used
    try:
        done = environment.run_install(*pip, silent=True)
    except CommandFailed:
        _note(_SUITE_FAILED)
        raise
    if done is None:
        environment.warn("--no-install: the environment stays as it is")
    else:
        stamp.write_text("".join(f"{line}\n" for line in requirements))


def _typed(session: nox.Session) -> str:
    """How this nox is called where its user stands, for a shell: `.venv/bin/nox`, `nox -f PATH`."""
    here = Path(session.invoked_from)

    def near(path: Path) -> str:
        """The path from there where it lies below, as it was typed, and else a whole one."""
        whole = Path(os.path.normpath(here / path))
        return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)

    program = here / sys.argv[0]
    on_path = shutil.which("nox")
    if program.name == "__main__.py":
        words = [near(Path(sys.executable)), "-m", "nox"]
    elif not program.is_file() or (on_path is not None and program.samefile(on_path)):
        words = ["nox"]
    else:
        words = [near(program)]
    if here != Path.cwd():
        words += ["-f", near(Path.cwd() / "noxfile.py")]
    if _python == Path(sys.executable):
        words.append("--no-venv")
    return shlex.join(words)


def _arguments(session: nox.Session) -> list[str]:
    """Return the words after `--`; paths become absolute if nox runs in another folder.

    A suite runs in the checkout's root: a user's own folder `kernels` would hide the checkout's.
    """
    here = Path(session.invoked_from)
    if here == Path.cwd():
        return list(session.posargs)
    words, before = [], ""
    for word in session.posargs:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            files = session.name in _TAKES_FILES and before not in _NOT_OF_FILES
            is_path = before in _PATHS or files
            words.append(_whole(session, before, word) if is_path else word)
        elif option in _PATHS and equals:
            words.append(f"{option}={_whole(session, option, value)}")
        else:
            words.append(word)
        before = word
    return words


def _whole(session: nox.Session, option: str, value: str) -> str:
    """The path from where the user stands; `-` is stdout, `~` a home, what is empty is refused."""
    bench = "bench" in (session.name, *session.posargs)
    no_path = bench and (option == "--cache" or (option == "--against" and value[-3:] != ".py"))
    if no_path or value.strip() in {"", "-"} or value.startswith("~"):
        return value
    return str(Path(session.invoked_from) / value)


def _run(
    session: nox.Session,
    group: str,
    *command: str,
    variables: Mapping[str, str | None] | None = None,
) -> None:
    """Run `python -m COMMAND` in the shared environment, from the root of the checkout."""
    python = _interpreter(session, group)
    together = {**_VARIABLES, **(variables or {})}
    together |= {"WORKBENCH_NOX": _typed(session), "WORKBENCH_FOLDER": session.invoked_from}
    # stderr=None leaves stderr apart, where nox would fold it into stdout: `--markdown -`.
    # On Ctrl-C a run closes its record and prints its report, which takes more than nox's 0.3 s.
    try:
        session.run(
            str(python),
            "-m",
            *command,
            env=together,
            external=True,
            stderr=None,
            interrupt_timeout=_PATIENCE_S,
        )
    except CommandFailed as failed:
        if session.name not in _STATUS_OF_NOX:
            _note(_of_process(failed.return_code))
        raise
    except KeyboardInterrupt:
        _note(_INCOMPLETE)
        raise


def _of_process(code: int | None) -> int:
    """Return the exit status for a process's code; a signal cuts a run off."""
    if code is None:
        return _SUITE_FAILED
    return code if 0 <= code <= _INCOMPLETE else _INCOMPLETE


def _note(status: int) -> None:
    """Keep a session's exit status: nox ends with the largest, and by itself with 1 for any."""
    global _worst  # noqa: PLW0603 (sessions of one nox run share nothing else)
    _worst = max(_worst, status)


@atexit.register
def _end_with_status() -> None:
    if _worst:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_worst)


def _fail(session: nox.Session, status: int, message: str) -> NoReturn:
    """End the session with a sentence and a status."""
    _note(status)
    session.error(message)


def _run_command(
    session: nox.Session, group: str, variables: Mapping[str, str | None] | None = None
) -> None:
    """Run the command with the session's name and the words after `--`."""
    command = ("kernel_workbench", session.name, *_arguments(session))
    _run(session, group, *command, variables=variables)


def _require(session: nox.Session, group: str) -> None:
    """End the session if nox's interpreter lacks a dependency; warn of an untested version."""
    missing = []
    for line in nox.project.dependency_groups(_PYPROJECT, group):
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            session.warn(f"the workbench is tested with {requirement}; this is {installed}")
    if missing:
        message = f"--no-venv runs in {sys.executable}, which lacks {', '.join(missing)}"
        _fail(session, _SUITE_FAILED, message)


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def environment(session: nox.Session) -> None:
    """Make the environment that the other sessions share; they install what they need."""
    global _python, _environment  # noqa: PLW0603 (sessions of one nox run share nothing else)
    _environment = session
    # Not resolved: behind the link lies the base interpreter, which has none of the packages.
    sandboxed = session.virtualenv.is_sandboxed
    _python = Path(session.bin) / "python" if sandboxed else Path(sys.executable)


@nox.session(venv_backend="none", requires=["environment"])
def accuracy(session: nox.Session) -> None:
    """Verify kernels against float64: `-- --op OP --kernel NAME --kernels=FILE --tier full`."""
    # A folder of its own: two runs in one checkout would take each other's record for theirs.
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
        note = Path(folder) / "record"
        _run_command(session, "accuracy", {"WORKBENCH_RECORD_NOTE": str(note)})
        # A kernel that ends the process with status 0 leaves an unfinished record, or none.
        if note.is_file():
            _run(session, "accuracy", "kernel_workbench", "report", note.read_text(), "--check")
        elif _RUNS_NOTHING.isdisjoint(session.posargs):
            message = "the run ended before it began a record: a file of --kernels ended it"
            _fail(session, _INCOMPLETE, message)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def search(session: nox.Session) -> None:
    """Draw cases until one breaks a kernel, and shrink it: `-- --kernel NAME --minutes M`."""
    _run_command(session, "accuracy")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def profile(session: nox.Session) -> None:
    """Measure energy, power and clocks of kernels on a GPU: `-- --op OP --window S --trials N`."""
    _run_command(session, "bench")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def bench(session: nox.Session) -> None:
    """Time kernels beside their peers on a GPU: `-- --op OP --kernel NAME --kernels=FILE`."""
    _run_command(session, "bench")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def fleet(session: nox.Session) -> None:
    """Run a suite on nodes of a cluster: `-- --on H200 --on A100 -- bench --op OP`."""
    _run_command(session, "fleet")


@nox.session(venv_backend="none", requires=["environment"])
def report(session: nox.Session) -> None:
    """Show records, by default the latest: `-- [FILE ...] --html PATH --markdown PATH`."""
    _run_command(session, "report")


@nox.session(venv_backend="none", requires=["environment"])
def compare(session: nox.Session) -> None:
    """Lay records beside one another: `-- A B [C ...] --gate --markdown PATH --html PATH`."""
    _run_command(session, "report")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def history(session: nox.Session) -> None:
    """Follow the figures of a folder's records over time: `-- FOLDER --gate --html PATH`."""
    _run_command(session, "report")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def compile(session: nox.Session) -> None:  # noqa: A001 (the name that a user types)
    """Compile every kernel for every GPU generation, with no GPU: `-- --all --against FILE`."""
    _run_command(session, "accuracy")


@nox.session(venv_backend="none", requires=["environment"])
def mutants(session: nox.Session) -> None:
    """Show that wrong and cheating kernels fail: `-- NAME --detection FILE`."""
    _run(session, "test", "tests.mutants", *_arguments(session))


@nox.session(venv_backend="none", requires=["environment"], default=False)
def versions(session: nox.Session) -> None:
    """Judge and compile kernels under several Tritons: `-- --triton 3.6,3.9 --kernels FILE`."""
    _run(session, "test", "studies.versions", *_arguments(session))


@nox.session(venv_backend="none", requires=["environment"], default=False)
def sanitize(session: nox.Session) -> None:
    """Run a few cases under compute-sanitizer and Triton's consan: `-- --kernel NAME -k WORDS`."""
    _run_command(session, "accuracy")


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """Test the workbench itself, under the interpreter; options and paths go to pytest.

    Tests of whole runs, which take long, are left to `-- --all`. File by file in one process more
    than there are cores (tests/conftest.py); `-- -n0` keeps them in one.
    """
    spread = ("-n=auto", "--maxprocesses=8", "--dist=loadfile", "--no-loadscope-reorder")
    # Each of the processes, and all that they start, would else compile every module anew.
    kept = {"PYTHONDONTWRITEBYTECODE": None}
    _run(session, "test", "pytest", "--device=cpu", *spread, *session.posargs, variables=kept)


@nox.session(venv_backend="none", requires=["environment"])
def lint(session: nox.Session) -> None:
    """Check style (ruff), types (mypy) and which room imports which (import-linter)."""
    _run(session, "lint", "ruff", "check")
    _run(session, "lint", "ruff", "format", "--check")
    _run(session, "lint", "mypy")
    lint_imports = _interpreter(session, "lint").with_name("lint-imports")
    session.run(str(lint_imports), "--no-logo", env=_VARIABLES, external=True)
