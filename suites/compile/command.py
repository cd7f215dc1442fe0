"""What the command line asks for, run and reported; bad input is told in one sentence."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from rich.console import Console

from profiles.peaks import LIMITS, peaks_of_sm
from reports.record import Record, RecordError, read
from reports.report import print_report
from suites.compile.cache import Cache, default_folder
from suites.compile.selection import GENERATIONS, SelectionError, selected_kernels
from suites.compile.session import Asked, Session
from suites.compile.workers import WorkerError, check_files

_WIDTH_OF_NO_TERMINAL = 120


def run(options: argparse.Namespace, command: str) -> int:
    """Compile, record and report; return the exit status.

    Raises KeyboardInterrupt where it comes before there is a record.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # closes the record, as Ctrl-C does
    try:
        asked = asked_for(options, command)
        against = None if options.against is None else saved(options.against)
        session = Session(asked)
        status = session.run()
        assert session.record is not None
        record = read(session.record.path)
    except (SelectionError, WorkerError, RecordError) as error:
        print(error, file=sys.stderr)
        return 2
    at_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console() if at_terminal else Console(width=_WIDTH_OF_NO_TERMINAL)
    console.print()
    if options.check_driver:
        from suites.compile.driver_check import differences  # noqa: PLC0415  (replaces compile)

        return differences(session.launches, session.rows, console)
    print_report(record, console, details=options.details, against=against, notes=session.notes())
    return status


def asked_for(options: argparse.Namespace, command: str) -> Asked:
    """The run that the options ask for. Raises SelectionError, WorkerError."""
    sms = tuple(dict.fromkeys(options.sm)) or GENERATIONS
    if options.check_driver:
        sms = (_sm_of_gpu(),)
    for sm in sms:
        if sm not in LIMITS or not peaks_of_sm(sm):
            known = ", ".join(map(str, GENERATIONS))
            raise SelectionError(f"--sm {sm}: there is no such generation; there are {known}")
    if options.results.exists() and not options.results.is_dir():
        raise SelectionError(f"--results {options.results}: it is no folder; name one")
    files = tuple(path.expanduser().resolve() for path in options.kernels)
    check_files(files)
    return Asked(
        kernels=selected_kernels(options.op, options.kernel, options.kernels),
        sms=tuple(sorted(sms)),
        everything=options.all,
        jobs=options.jobs,
        files=files,
        results=options.results,
        cache=Cache(options.cache or default_folder()),
        command=command,
        whole=not (options.op or options.kernel or options.kernels or options.sm),
    )


def _sm_of_gpu() -> int:
    if not torch.cuda.is_available():
        raise SelectionError(
            "--check-driver: torch sees no CUDA device here; run it on a machine with a GPU"
        )
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def saved(path: Path) -> Record:
    """The record that a run is shown against. Raises RecordError."""
    record = read(path)
    if record.header.suite != "compile":
        raise RecordError(
            f"{path}: a record of nox -s {record.header.suite}; name one of nox -s compile"
        )
    return record
