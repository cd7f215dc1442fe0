"""Run a program of the user's while it is recorded; started by `kernel-workbench record`.

The first argument has what `record` takes, in JSON; the others are the program, as `python` has it.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_USAGE, _SUITE_FAILED = 2, 3  # of reports/exit_status.py


def main() -> None:
    """Record the program, and end as it ends."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    program = sys.argv[2:]
    sys.path[0] = str(Path.cwd()) if program[0] == "-m" else str(Path(program[0]).resolve().parent)
    # Last, so that no file beside the package stands for a module of the program.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    try:
        from kernel_workbench.recording import RecordingError, record  # noqa: PLC0415
    except ImportError as error:
        python = f"the program's Python, {sys.executable},"
        _end(f"{python} can't record: {error}; install it there", _SUITE_FAILED)
    try:
        recorder = record(wanted.pop("path"), **wanted)
    except RecordingError as error:
        _end(str(error), _USAGE)
    signal.signal(signal.SIGTERM, _ended)
    is_module = program[0] == "-m"
    sys.argv = program[1:] if is_module else program
    try:
        with recorder:
            if is_module:
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program[0], run_name="__main__")
    except RecordingError as error:
        _end(str(error), _SUITE_FAILED)
    finally:
        for sentence in (recorder.summary, *recorder.unseen):
            if sentence:
                sys.stderr.write(f"{sentence}\n")


def _ended(number: int, _: FrameType | None) -> NoReturn:
    """End the program as an exception does, so that the file is written."""
    sys.exit(128 + number)


def _end(message: str, status: int) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
