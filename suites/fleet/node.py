"""Run a suite on a node, in the process that a single machine runs, and yield its events.

This module doesn't know how the events reach the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from kernel_workbench.root import start_folder
from kernel_workbench.suites.fleet.engine import Beat, Ended, Event, Order, Pair, Started, Text
from kernel_workbench.suites.run.attempt import PAIR_NOTE, write_pairs

_PREFIX = "kernel-workbench-fleet-"
_DEAD_S = 3600.0  # a run that lives beats each second
_POLL_S = 0.1
_CHUNK_BYTES = 2**15  # Ray passes so few bytes on without a copy in its store
_OUTPUT_LINES = 30
_GPUS = "CUDA_VISIBLE_DEVICES"  # a run uses the first GPU of this list


def run(order: Order) -> Generator[Event, None, None]:
    """Run the suite and yield its events; closing the generator ends the suite's processes."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        results, beat, output = folder / "results", folder / "beat", folder / "output"
        process = _start(order, folder, results, beat, output)
        yield Started(socket.gethostname())
        size = beats = 0
        try:
            while True:
                ended = process.poll() is not None  # polled first, so that all its bytes are read
                for chunk in _written(results, size):
                    size += len(chunk)
                    yield Text(chunk)
                if ended:
                    break
                if beat.is_file() and beat.stat().st_size > beats:
                    beats = beat.stat().st_size
                    yield Beat()
                time.sleep(_POLL_S)
            yield Ended(process.returncode, _last_lines(output), _pair(folder / "pair"))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _sweep() -> None:
    """Remove the files of runs whose worker was killed: the engine kills their guard too."""
    for beat in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/beat"):
        with suppress(OSError):
            if time.time() - beat.stat().st_mtime > _DEAD_S:
                shutil.rmtree(beat.parent, ignore_errors=True)


def _start(
    order: Order, folder: Path, results: Path, beat: Path, output: Path
) -> subprocess.Popen[bytes]:
    """Start the suite, as noxfile.py does, under a guard."""
    write_pairs(folder / "done", order.done, order.crashed)
    command = [sys.executable, "-m", "kernel_workbench.suites.fleet.guard", str(beat)]
    command += [sys.executable, "-m", "kernel_workbench.suites.run", order.suite, *order.arguments]
    command.append(f"--results={results}")
    if order.done or order.crashed:
        command.append(f"--done={folder / 'done'}")
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=start_folder(),
            env=_variables(os.environ) | order.variables | {PAIR_NOTE: str(folder / "pair")},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an engine's environment variables, changed to those of a single machine's run."""
    # Ray limits threads by its own idea of a task; a single machine's run has no limit.
    own = {name: value for name, value in variables.items() if name != "OMP_NUM_THREADS"}
    if _GPUS in own:
        # Ray lists GPUs in another order each time, and a second attempt on a node must have the
        # same board.
        own[_GPUS] = ",".join(sorted(own[_GPUS].split(","), key=lambda gpu: (len(gpu), gpu)))
    return own


def _written(results: Path, start: int) -> Iterator[bytes]:
    """Yield the record's bytes from `start` on, in chunks."""
    for record in sorted(results.glob("*.jsonl"))[:1]:
        with record.open("rb") as file:
            file.seek(start)
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _last_lines(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-_OUTPUT_LINES:])


def _pair(note: Path) -> Pair | None:
    """Return the pair that ran when the process ended; None if there was none or it is unknown."""
    try:
        kernel, case = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return str(kernel), str(case)


def lacks(packages: Sequence[str]) -> tuple[str, ...]:
    """Return the packages that this node's Python lacks."""
    missing = []
    for package in packages:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    return tuple(missing)
